"""A producer and a worker with the client faktory from PyPI, which knows no bulk push."""

import os
import sys
import threading
import time

from faktory import Client, Worker

QUEUE = "foreign"


def push(url, what):
    with Client(faktory=url) as client:
        if what != "first":
            assert client.queue("hold" if what == "held" else "echo", args=(what,), queue=QUEUE)
            return
        for text in ("one", "bulk-0", "bulk-1", "bulk-2"):
            assert client.queue("echo", args=(text,), queue=QUEUE)
        assert client.queue("flaky", args=("flaky",), queue=QUEUE)


def work(url, folder):
    def path(name):
        return os.path.join(folder, name)

    def echo(text):
        with open(path("ran"), "a") as ran:
            ran.write(text + "\n")

    def flaky(_text):
        if not os.path.exists(path("flaky")):
            open(path("flaky"), "w").close()
            raise ValueError("not at the first time")

    def hold(_text):
        open(path("held"), "w").close()
        while not os.path.exists(path("release")):
            time.sleep(0.01)

    worker = Worker(faktory=url, queues=[QUEUE], concurrency=2, use_threads=True)
    worker.send_heartbeat_every = 1
    for handler in (echo, flaky, hold):
        worker.register(handler.__name__, handler)

    def watch():
        while not worker.is_quiet:
            time.sleep(0.01)
        open(path("quiet"), "w").close()

    threading.Thread(target=watch, daemon=True).start()
    worker.run()


if __name__ == "__main__":
    {"push": push, "work": work}[sys.argv[1]](*sys.argv[2:])
