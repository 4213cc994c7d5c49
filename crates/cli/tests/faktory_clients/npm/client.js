// A producer and a worker with the client faktory-worker from npm.
"use strict";

const assert = require("assert");
const fs = require("fs");
const path = require("path");
const { setTimeout: sleep } = require("timers/promises");
const faktory = require("faktory-worker");

const QUEUE = "foreign";

async function push(url, what) {
  const client = await faktory.connect({ url });
  const job = (jobtype, ...args) => {
    const made = client.job(jobtype, ...args);
    made.queue = QUEUE;
    return made;
  };
  if (what === "first") {
    await client.push(job("echo", "one"));
    const bad = job("echo", "bad");
    bad.jid = "short";
    const jobs = [0, 1, 2].map((number) => job("echo", `bulk-${number}`));
    const refused = await client.pushBulk([...jobs, bad]);
    assert.deepStrictEqual(Object.keys(refused), ["short"]);
    await client.push(job("flaky", "flaky"));
  } else {
    await client.push(job(what === "held" ? "hold" : "echo", what));
  }
  await client.close();
}

async function work(url, folder) {
  const file = (name) => path.join(folder, name);
  faktory.register("echo", (text) => fs.appendFileSync(file("ran"), `${text}\n`));
  faktory.register("flaky", () => {
    if (!fs.existsSync(file("flaky"))) {
      fs.writeFileSync(file("flaky"), "");
      throw new Error("not at the first time");
    }
  });
  faktory.register("hold", async () => {
    fs.writeFileSync(file("held"), "");
    while (!fs.existsSync(file("release"))) await sleep(10);
  });
  const worker = await faktory.work({ url, queues: [QUEUE], concurrency: 2, beatInterval: 1 });
  while (!worker.quieted) await sleep(10);
  fs.writeFileSync(file("quiet"), "");
}

const [what, ...rest] = process.argv.slice(2);
({ push, work })[what](...rest).catch((error) => {
  console.error(error);
  process.exit(1);
});
