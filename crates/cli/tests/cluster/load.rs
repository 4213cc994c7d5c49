//! Load: producers, workers, readers, flows and a schedule, on all nodes at once. Two of the queues
//! are spread over several shards. The history records every answer, and the clients go on even
//! after a wrong answer.

use crate::{
    cluster::{
        check,
        dice::Dice,
        ending::Ending,
        history::{Answer, At, Claimed, History, Made, Seen, What},
        nodes::SHARDS,
        plain::Plain,
    },
    yard::LONG,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use taskyard::{
    Client, Fail, Flow, NewTask, QueueSettings, TaskContext, Worker,
    schedule::{CatchUp, Overlap},
};
use tokio::{sync::watch, task::JoinHandle, time::MissedTickBehavior};

/// Enough for every shard to have some.
pub(crate) const QUEUES: usize = 8;
/// The spreads of the first queues.
const SPREAD: [u32; 2] = [2, 4];
/// The queue of the callbacks of flows.
pub(crate) const CALLBACKS: &str = "callbacks";
/// The queue of the schedule's runs, and its name.
pub(crate) const TICKS: &str = "ticks";
pub(crate) const TICK_EVERY: Duration = Duration::from_secs(1);
/// The prefix of the names of flows.
pub(crate) const FLOW: &str = "flow-";
/// Children of each flow.
pub(crate) const CHILDREN: usize = 4;

const PRODUCERS: usize = 2;
const WORKERS: usize = 2;
const ENQUEUE_EVERY: Duration = Duration::from_millis(40);
const LOOK_EVERY: Duration = Duration::from_millis(15);
const SUBMIT_EVERY: Duration = Duration::from_millis(700);
const CHANGE_SPREAD_EVERY: Duration = Duration::from_millis(900);
/// The lease of claims without a session. Short, so that abandoned tasks come back within a test.
const LEASE: Duration = Duration::from_secs(2);
/// The SDK's timeout for one call. Longer than any fault of a test.
const SDK_PATIENCE: Duration = Duration::from_secs(60);

/// More than the tasks of one queue in a run of hours.
const RETENTION_COUNT: u32 = 1_000_000;
/// A new leader ends no lease for 15 s, and a task that was lost twice waits for 10 s.
const DRAIN_MAX: Duration = Duration::from_secs(120);
/// With fewer tasks the test proves too little.
const TASKS_LEAST: usize = 100;

/// All clients, while they work.
pub(crate) struct Load {
    pub(crate) history: History,
    /// Tasks that were confirmed.
    known: Arc<Mutex<Vec<String>>>,
    client: Client,
    producing: watch::Sender<bool>,
    working: watch::Sender<bool>,
    producers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

/// What every client has.
#[derive(Clone)]
struct Desk {
    history: History,
    urls: Vec<String>,
    /// Tasks that readers look at.
    known: Arc<Mutex<Vec<String>>>,
}

impl Load {
    pub(crate) async fn start(urls: Vec<String>, seed: u64) -> Load {
        let desk = Desk { history: History::begin(), urls, known: Arc::default() };
        let client = desk.sdk(0);
        for queue in all_queues() {
            client.queue(queue).set(kept()).await.unwrap();
        }
        let ticks = NewTask::new("chaos", &"tick").queue(TICKS);
        for (number, shards) in SPREAD.into_iter().enumerate() {
            spread(&client, number, shards).await.unwrap();
        }
        let schedule = client.schedule(TICKS).every(TICK_EVERY, ticks);
        schedule.overlap(Overlap::Allow).catch_up(CatchUp::All).await.unwrap();
        let (producing, until) = watch::channel(true);
        let mut producers = Vec::new();
        for number in 0..PRODUCERS {
            let dice = Dice::new(seed ^ (number as u64 + 1));
            let plain = desk.clone().produce_plainly(number, dice, until.clone());
            let sdk = desk.clone().produce(number, until.clone());
            producers.extend([tokio::spawn(plain), tokio::spawn(sdk)]);
        }
        producers.push(tokio::spawn(desk.clone().submit(until)));
        let (working, until) = watch::channel(true);
        let mut workers = vec![tokio::spawn(desk.clone().look(Dice::new(!seed), until.clone()))];
        for number in 0..WORKERS {
            let dice = Dice::new(seed ^ (number as u64 + 101));
            let plain = desk.clone().work_plainly(number, dice, until.clone());
            let sdk = desk.clone().work(number, until.clone());
            workers.extend([tokio::spawn(plain), tokio::spawn(sdk)]);
        }
        let Desk { history, known, .. } = desk;
        Load { history, known, client, producing, working, producers, workers }
    }

    /// Changes the spread of the spread queues again and again. The answers are not recorded: a
    /// request must make one task with any spread.
    pub(crate) fn change_spreads(&mut self, seed: u64) {
        let (client, until) = (self.client.clone(), self.producing.subscribe());
        let mut dice = Dice::new(seed);
        self.producers.push(tokio::spawn(async move {
            let (mut pace, mut changes) = (pace(CHANGE_SPREAD_EVERY), 0);
            while *until.borrow() {
                pace.tick().await;
                let (number, shards) = (dice.below(SPREAD.len()), dice.below(SHARDS) + 1);
                let changed = spread(&client, number, u32::try_from(shards).unwrap()).await;
                changes += usize::from(changed.is_ok());
            }
            println!("{changes} changes of spread");
            assert!(changes > 0, "no spread was ever changed");
        }));
    }

    /// Waits until `more` further tasks are confirmed.
    pub(crate) async fn until_confirmed(&self, more: usize) {
        let confirmed = || self.known.lock().unwrap().len();
        let (wanted, since) = (confirmed() + more, Instant::now());
        while confirmed() < wanted {
            assert!(since.elapsed() < LONG, "{} of {wanted} tasks were confirmed", confirmed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the producers, waits until all queues are drained, and compares the answers to clients
    /// with the promises. All faults must be over.
    pub(crate) async fn finish_and_check(mut self) {
        self.client.schedule(TICKS).pause("the test ends").await.unwrap();
        self.producing.send_replace(false);
        join_all(&mut self.producers).await;
        let since = Instant::now();
        loop {
            let open = self.open().await;
            if open == 0 {
                break;
            }
            assert!(since.elapsed() < DRAIN_MAX, "{open} tasks have not ended");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let drained = since.elapsed();
        self.working.send_replace(false);
        join_all(&mut self.workers).await;
        let ending = Ending::read(&self.client).await;
        let calls = self.history.calls();
        println!("{}; drained in {drained:.1?}", check::summary(&calls, &ending));
        let broken = check::broken(&calls, &ending);
        assert!(broken.is_empty(), "{} promises broken:\n{}", broken.len(), broken.join("\n"));
        assert!(ending.tasks.len() > TASKS_LEAST, "only {} tasks", ending.tasks.len());
    }

    /// The number of open tasks in all queues.
    async fn open(&self) -> u64 {
        let queues = self.client.queues().await.unwrap();
        let open = queues
            .iter()
            .map(|queue| queue.ready + queue.scheduled + queue.claimed + queue.blocked);
        open.sum()
    }
}

async fn join_all(tasks: &mut Vec<JoinHandle<()>>) {
    for task in tasks.drain(..) {
        task.await.unwrap();
    }
}

impl Desk {
    /// A client of the SDK that knows all nodes, and begins with the one at this place.
    fn sdk(&self, place: usize) -> Client {
        let mut urls = self.urls.clone();
        urls.rotate_left(place % self.urls.len());
        Client::builder(urls).timeout(SDK_PATIENCE).build().unwrap()
    }

    fn plain(&self) -> Vec<Plain> {
        self.urls.iter().map(|url| Plain::to(url)).collect()
    }

    /// Enqueues through the SDK. Repeats a request with an unknown outcome, under its request id.
    async fn produce(self, number: usize, until: watch::Receiver<bool>) {
        let client = self.sdk(number);
        let mut pace = pace(ENQUEUE_EVERY);
        for count in 0.. {
            if !*until.borrow() {
                return;
            }
            pace.tick().await;
            let request = format!("sdk-{number}-{count}");
            loop {
                let begin = self.history.now();
                let task = client.raw_task("chaos", request.clone()).content_type("text/plain");
                let made = task.queue(queue(count)).request_id(&request).await;
                let made = Answer::of(made)
                    .map(|made| Made { id: made.id().to_string(), first: !made.is_duplicate() });
                if self.enqueued(begin, &request, made) {
                    break;
                }
            }
        }
    }

    /// Enqueues on one node, then another. Repeats some requests that already have an answer.
    async fn produce_plainly(self, number: usize, mut dice: Dice, until: watch::Receiver<bool>) {
        let nodes = self.plain();
        let mut node = number;
        let mut pace = pace(ENQUEUE_EVERY);
        for count in 0.. {
            if !*until.borrow() {
                return;
            }
            let request = format!("plain-{number}-{count}");
            let mut times = if dice.once_in(5) { 2 } else { 1 };
            while times > 0 {
                pace.tick().await;
                let begin = self.history.now();
                let made = nodes[node % nodes.len()].enqueue(&queue(count), &request).await;
                if self.enqueued(begin, &request, made) {
                    times -= 1;
                }
                node = if dice.once_in(4) { dice.below(nodes.len()) } else { node };
            }
        }
    }

    /// Records an enqueue, and returns whether it was confirmed.
    fn enqueued(&self, begin: At, request: &str, answer: Answer<Made>) -> bool {
        let made = answer.known().map(|made| made.id.clone());
        self.history.record(begin, What::Enqueue { request: request.into(), answer });
        self.known.lock().unwrap().extend(made.clone());
        made.is_some()
    }

    /// Submits small flows through the SDK. Does not repeat a flow whose answer was lost.
    async fn submit(self, until: watch::Receiver<bool>) {
        let client = self.sdk(1);
        let mut pace = pace(SUBMIT_EVERY);
        for count in 0.. {
            if !*until.borrow() {
                return;
            }
            pace.tick().await;
            let name = format!("{FLOW}{count}");
            let flow = Flow::new(&name);
            let task = |queue: String| NewTask::new("chaos", &name).queue(queue);
            let children: Vec<_> = (0..CHILDREN)
                .map(|child| flow.add(format!("child-{child}"), task(queue(count + child))))
                .collect();
            flow.add("callback", task(CALLBACKS.into())).after(&children);
            let begin = self.history.now();
            let answer = Answer::of(client.submit(flow).await).map(|made| made.id().to_string());
            self.history.record(begin, What::Submit { flow: name, answer });
        }
    }

    /// A worker of the SDK, whose handlers sometimes take their time.
    async fn work(self, number: usize, mut until: watch::Receiver<bool>) {
        let client = self.sdk(number + 1);
        let name = format!("session-{number}");
        let (history, worker) = (self.history, name.clone());
        let handler = move |context: TaskContext| {
            let (history, worker) = (history.clone(), worker.clone());
            async move { handle(&history, worker, &context).await }
        };
        let mut builder = Worker::builder(&client).name(name).concurrency(4);
        for queue in all_queues() {
            builder = builder.queue(queue);
        }
        let worker = builder.handler("chaos", handler).build().unwrap();
        let stop = async move { until.wait_for(|working| !working).await.map(drop) };
        worker.run_until(stop).await.unwrap();
    }

    /// Claims by lease and acks, on one node, then another. Abandons some claims and repeats some
    /// acks.
    async fn work_plainly(self, number: usize, mut dice: Dice, until: watch::Receiver<bool>) {
        let nodes = self.plain();
        let mut node = number;
        let mut late: VecDeque<(At, String, u64)> = VecDeque::new();
        for count in 0.. {
            if !*until.borrow() {
                return;
            }
            let now = self.history.now();
            let due = late.iter().take_while(|(at, ..)| *at <= now).count();
            for (_, id, token) in late.drain(..due) {
                let begin = self.history.now();
                let answer = nodes[node % nodes.len()].ack(&id, token).await;
                self.history.record(begin, What::Ack { id, token, answer });
            }
            let worker = format!("lease-{number}-{count}");
            let begin = self.history.now();
            let answer = nodes[node % nodes.len()].claim(&all_queues(), 2, LEASE, &worker).await;
            let taken = answer.known().cloned().unwrap_or_default();
            let failed = answer.known().is_none();
            self.history.record(begin, What::Claim { worker, lease: LEASE, answer });
            for Claimed { id, token, .. } in taken {
                // Rare enough that no task is abandoned three times and quarantined. Some of these
                // workers ack late, when another worker has the task; such an ack must change
                // nothing.
                if dice.once_in(40) {
                    if dice.once_in(2) {
                        late.push_back((self.history.now() + LEASE * 2, id, token));
                    }
                    continue;
                }
                let mut times = if dice.once_in(5) { 2 } else { 1 };
                while times > 0 {
                    times -= 1;
                    let begin = self.history.now();
                    let answer = nodes[node % nodes.len()].ack(&id, token).await;
                    // A repeated ack gets the same answer, so the worker repeats its ack until it
                    // has one.
                    if !matches!(answer, Answer::Is(()) | Answer::Rejected(_)) {
                        times += 1;
                        node += 1;
                        tokio::time::sleep(ENQUEUE_EVERY).await;
                    }
                    let what = What::Ack { id: id.clone(), token, answer };
                    self.history.record(begin, what);
                }
            }
            if failed {
                tokio::time::sleep(ENQUEUE_EVERY).await;
            }
            node = if failed || dice.once_in(10) { dice.below(nodes.len()) } else { node };
        }
    }

    /// Reads tasks on any node, new ones more often.
    async fn look(self, mut dice: Dice, until: watch::Receiver<bool>) {
        let nodes = self.plain();
        let mut pace = pace(LOOK_EVERY);
        while *until.borrow() {
            pace.tick().await;
            let known = {
                let known = self.known.lock().unwrap();
                let back = dice.below(known.len().max(1));
                let back = if dice.once_in(3) { back } else { back % 20 };
                known.iter().rev().nth(back).cloned()
            };
            let Some(id) = known else { continue };
            let begin = self.history.now();
            let answer: Answer<Seen> = nodes[dice.below(nodes.len())].look(&id).await;
            self.history.record(begin, What::Look { id, answer });
        }
    }
}

/// Handles a task and returns the token of its claim.
async fn handle(history: &History, worker: String, context: &TaskContext) -> Result<u64, Fail> {
    let (id, token) = (context.id().to_string(), context.claim_token());
    let parents = context.parents().len();
    let claimed = Claimed { id: id.clone(), token, parents };
    history.record(history.now(), What::Handle { worker, claimed });
    // Most tasks are short; some are long enough for a fault to interrupt them.
    let work = if token % 20 == 0 { Duration::from_millis(300) } else { Duration::ZERO };
    tokio::time::sleep(work).await;
    history.record(history.now(), What::Ack { id, token, answer: Answer::Unknown });
    Ok(token)
}

async fn spread(client: &Client, number: usize, shards: u32) -> Result<(), taskyard::Error> {
    let settings = QueueSettings { spread: Some(shards), ..kept() };
    client.queue(queue(number)).set(settings).await.map(drop)
}

/// Settings that retain finished tasks until the check has read them.
fn kept() -> QueueSettings {
    QueueSettings { retention_count: Some(RETENTION_COUNT), ..QueueSettings::default() }
}

fn pace(every: Duration) -> tokio::time::Interval {
    let mut pace = tokio::time::interval(every);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

pub(crate) fn queue(number: usize) -> String {
    format!("chaos-{}", number % QUEUES)
}

/// Callbacks come first, because flows wait for them.
pub(crate) fn all_queues() -> Vec<String> {
    let named = [CALLBACKS, TICKS].map(str::to_owned);
    named.into_iter().chain((0..QUEUES).map(queue)).collect()
}
