//! A restart of all nodes in turn, as for an upgrade: no call of the SDK fails, and the answers to
//! all clients keep all promises.

use crate::cluster::{
    history::{Answer, What},
    load::Load,
    nodes::{NODES, Nodes},
};
use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};
use taskyard::{Client, Error, Fail, Flow, NewTask, TaskContext, Worker};
use tokio::sync::watch;

/// How often each user runs through all calls for each restart.
const USES_LEAST: u32 = 5;
/// The longest call, on a busy machine. Far less than the SDK's timeout of 30 s: a slower call
/// would have been stuck.
const CALL_MAX: Duration = Duration::from_secs(10);
/// A claim without a task is repeated after this.
const CLAIM_WAIT: Duration = Duration::from_secs(5);
/// Longer than the test takes: the test triggers all runs itself.
const HOUR: Duration = Duration::from_secs(3600);

/// A user of the SDK, and what happened to its calls.
struct User {
    client: Client,
    name: String,
    calls: usize,
    slowest: (Duration, &'static str),
}

impl User {
    /// Makes one call and measures its time.
    async fn call<T>(
        &mut self,
        what: &'static str,
        call: impl IntoFuture<Output = Result<T, Error>>,
    ) -> Result<T, String> {
        let asked = Instant::now();
        let answer = call.into_future().await;
        self.calls += 1;
        self.slowest = self.slowest.max((asked.elapsed(), what));
        answer.map_err(|error| format!("{}: {what}: {error} ({})", self.name, error.code()))
    }

    /// Makes every kind of call once.
    async fn use_all(&mut self, count: u32) -> Result<(), String> {
        let client = self.client.clone();
        let (worked, by_hand) = (format!("{}-worked", self.name), format!("{}-hand", self.name));
        let roll = || NewTask::new("roll", &count).queue(&worked);

        let task = self.call("enqueue", client.enqueue_new(roll())).await?;
        self.call("get", client.get(task.id().clone())).await?;
        self.call("result", task.result()).await?;

        let batch = client.batch(&by_hand).extend((0..3).map(|n| NewTask::new("hand", &n)));
        let sent = self.call("batch", batch.send()).await?;
        let mut acked = 0;
        while acked < sent.len() {
            let claim = client.claim([&by_hand]).max(3).wait(CLAIM_WAIT);
            for claimed in self.call("claim", claim).await? {
                self.call("ack", claimed.ack(&1)).await?;
                acked += 1;
            }
        }

        let flow = Flow::new(format!("{}-{count}", self.name));
        let parents = [flow.add("one", roll()), flow.add("two", roll())];
        flow.add("last", roll()).after(&parents[..]);
        let flow = self.call("submit", client.submit(flow)).await?;
        self.call("wait for a flow", flow.wait()).await?;

        let schedule = client.schedule(&worked);
        self.call("schedule", schedule.every(HOUR, roll())).await?;
        let run = self.call("trigger", schedule.trigger()).await?;
        self.call("get a run", client.get(run.id().clone())).await?;
        self.call("list", client.tasks().queue(&worked).collect(10)).await.map(drop)
    }
}

/// Uses the SDK again and again; counts the rounds, and returns the failures.
async fn use_sdk(
    mut user: User,
    until: watch::Receiver<bool>,
    counted: watch::Sender<u32>,
) -> (User, Vec<String>) {
    let mut failed = Vec::new();
    while *until.borrow() {
        let count = *counted.borrow();
        failed.extend(user.use_all(count).await.err());
        counted.send_modify(|count| *count += 1);
    }
    (user, failed)
}

/// Runs a worker for a user until the test stops it.
async fn work(client: Client, name: String, mut until: watch::Receiver<bool>) {
    let handler = |_: TaskContext| std::future::ready(Ok::<_, Fail>(1));
    let worker = Worker::builder(&client).queue(format!("{name}-worked")).concurrency(4);
    let worker = worker.handler("roll", handler).build().unwrap();
    let stop = async move { until.wait_for(|working| !working).await.map(drop) };
    worker.run_until(stop).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_request_of_the_sdk() {
    let mut nodes = Nodes::form(NODES);
    let load = Load::start(nodes.urls(), 1).await;
    let (using, used) = watch::channel(true);
    let (working, worked) = watch::channel(true);
    let (mut users, mut counts, mut workers) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..nodes.len() {
        let mut urls = nodes.urls();
        urls.rotate_left(number);
        let client = Client::builder(urls).build().unwrap();
        let name = format!("user-{number}");
        workers.push(tokio::spawn(work(client.clone(), name.clone(), worked.clone())));
        let user = User { client, name, calls: 0, slowest: Default::default() };
        let (counted, count) = watch::channel(0);
        users.push(tokio::spawn(use_sdk(user, used.clone(), counted)));
        counts.push(count);
    }
    for place in 0..nodes.len() {
        let before: Vec<u32> = counts.iter().map(|count| *count.borrow()).collect();
        nodes.stop(place);
        nodes.start(place);
        nodes.until_settled();
        for (count, before) in counts.iter_mut().zip(before) {
            count.wait_for(|count| *count >= before + USES_LEAST).await.unwrap();
        }
    }
    using.send_replace(false);
    let (mut failed, mut slowest) = (refused_by_sdk(&load), Default::default());
    for user in users {
        let (user, more) = user.await.unwrap();
        println!("{}: {} calls, the slowest {:?}", user.name, user.calls, user.slowest);
        slowest = user.slowest.max(slowest);
        failed.extend(more);
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(slowest.0 < CALL_MAX, "{slowest:?}");
    load.finish_and_check().await;
    working.send_replace(false);
    for worker in workers {
        worker.await.unwrap();
    }
}

/// The calls of the load through the SDK that got no good answer.
fn refused_by_sdk(load: &Load) -> Vec<String> {
    let is_known = |answer: bool, call: String| (!answer).then_some(call);
    let calls = load.history.calls().into_iter();
    let failed = calls.filter_map(|call| match &call.what {
        What::Enqueue { request, answer } if request.starts_with("sdk-") => {
            is_known(matches!(answer, Answer::Is(_)), format!("{call:?}"))
        }
        What::Submit { answer, .. } => {
            is_known(matches!(answer, Answer::Is(_)), format!("{call:?}"))
        }
        _ => None,
    });
    failed.collect()
}
