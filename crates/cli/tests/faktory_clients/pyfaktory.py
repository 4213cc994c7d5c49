"""A producer and a worker with the client pyfaktory."""

import os
import sys
import threading
import time

# The folder of this file would hide the package of the same name.
sys.path.pop(0)

from pyfaktory import Client, Consumer, Job, Producer  # noqa: E402
from pyfaktory.util.enums import State  # noqa: E402

QUEUE = "foreign"


def job(jobtype, *args):
    return Job(jobtype=jobtype, args=list(args), queue=QUEUE)


def push(url, what):
    with Client(url, role="producer") as client:
        producer = Producer(client)
        if what != "first":
            producer.push(job("hold" if what == "held" else "echo", what))
            return
        producer.push(job("echo", "one"))
        bad = Job(jid="short", jobtype="echo", args=["bad"], queue=QUEUE)
        jobs = [job("echo", f"bulk-{number}") for number in range(3)]
        refused = producer.push_bulk([*jobs, bad])
        assert list(refused) == ["short"], refused
        producer.push(job("flaky", "flaky"))


def echo(text):
    with open(os.path.join(sys.argv[3], "ran"), "a") as ran:
        ran.write(text + "\n")


def flaky(_text):
    once = os.path.join(sys.argv[3], "flaky")
    if not os.path.exists(once):
        open(once, "w").close()
        raise ValueError("not at the first time")


def hold(_text):
    open(os.path.join(sys.argv[3], "held"), "w").close()
    while not os.path.exists(os.path.join(sys.argv[3], "release")):
        time.sleep(0.01)


def work(url, folder):
    with Client(url, role="consumer", beat_period=5) as client:
        consumer = Consumer(client, queues=[QUEUE], concurrency=2)
        for handler in (echo, flaky, hold):
            consumer.register(handler.__name__, handler)

        def watch():
            while client.state != State.QUIET:
                time.sleep(0.01)
            open(os.path.join(folder, "quiet"), "w").close()

        threading.Thread(target=watch, daemon=True).start()
        consumer.run()


if __name__ == "__main__":
    {"push": push, "work": work}[sys.argv[1]](*sys.argv[2:])
