//! A tally counts every task with an earlier answer, on any shard, and its callbacks are enqueued
//! once.

use crate::engine::{Bench, config, start};
use std::{collections::BTreeSet, time::Duration};
use taskyard_machine::{
    CallbackState, Enqueue, Fail, NewTask, ShardId, TallyView, TaskError, TaskId,
};
use taskyard_server::{
    Broker, Error,
    broker::OpenTallyAsked,
    shard::{Engine, HandedTask},
};
use tempfile::TempDir;

/// Longer than any test takes on a busy machine; only a failing test waits this long.
const WAIT: Duration = Duration::from_secs(20);

struct Yard {
    broker: Broker,
    bench: Bench,
    _engine: Engine,
    _dir: TempDir,
}

impl Yard {
    fn new() -> Yard {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let engine = start(&config);
        let (broker, bench) = (Broker::new(engine.shards(), &config), Bench(engine.shards()));
        Yard { broker, bench, _engine: engine, _dir: dir }
    }

    /// A queue on every shard.
    fn queues(&self) -> Vec<String> {
        let shards = (0..self.bench.0.count()).map(ShardId);
        let mut names = (0..).map(|number| format!("queue-{number}"));
        shards.map(|shard| names.find(|name| self.bench.0.home(name) == shard).unwrap()).collect()
    }

    async fn claim(&self, queue: &str) -> HandedTask {
        self.bench.claim(queue, 1, WAIT).await.pop().expect("something is ready in time")
    }

    async fn ack(&self, queue: &str) -> TaskId {
        let task = self.claim(queue).await.task;
        self.bench.ack(task.id, task.token).await.unwrap();
        task.id
    }

    /// The counts of a tally: all tasks, pending tasks (not succeeded), and failed tasks among the
    /// pending ones.
    async fn counts(&self, tally: TaskId) -> [u64; 3] {
        let TallyView { total, pending, failed, .. } = self.broker.tally(tally).await.unwrap();
        [total, pending, failed]
    }

    async fn steps(&self, tally: TaskId) -> [CallbackState; 2] {
        let TallyView { complete, success, .. } = self.broker.tally(tally).await.unwrap();
        [complete, success]
    }
}

fn plain(queue: &str) -> Enqueue<'_> {
    Enqueue { queue, task: NewTask { task_type: "t", ..NewTask::default() } }
}

#[tokio::test]
async fn a_read_shows_every_earlier_answer() {
    let yard = Yard::new();
    let queues = yard.queues();
    let tally = yard.broker.open_tally(OpenTallyAsked::default()).await.unwrap();
    let tasks = queues.iter().cycle().take(80).map(|queue| plain(queue)).collect();
    let ids = yard.broker.add_to_tally(tally, tasks).await.unwrap();
    assert_eq!(ids.iter().map(|id| id.home).collect::<BTreeSet<_>>().len(), queues.len());
    assert_eq!(yard.counts(tally).await, [80, 80, 0]);
    for (queue, done) in queues.iter().cycle().take(80).zip(1..) {
        yard.ack(queue).await;
        assert_eq!(yard.counts(tally).await, [80, 80 - done, 0]);
    }
    // One failure is on the tally's shard, and one on another shard, which reports it.
    for (queue, more) in queues.iter().zip(1..) {
        let mut known = plain(queue);
        known.task.request_id = Some("r");
        let twice = vec![known.clone(), known];
        yard.broker.add_to_tally(tally, twice).await.unwrap();
        assert_eq!(yard.counts(tally).await, [80 + more, more, more - 1]);
        let held = yard.claim(queue).await.task;
        let error = TaskError { error_type: "io", message: "no route", backtrace: "" };
        let (task, token) = (held.id, held.token);
        let fail = Fail { task, token, error, retry_at: None, retryable: true };
        yard.broker.fail(fail).await.unwrap();
        assert_eq!(yard.counts(tally).await, [80 + more, more, more]);
    }
}

#[tokio::test]
async fn the_callbacks_of_tallies_are_enqueued_once_and_in_order() {
    use CallbackState::{Enqueued, Succeeded, Waiting};
    let yard = Yard::new();
    let queues = yard.queues();
    for (complete, success) in queues.iter().zip(queues.iter().rev()) {
        let asked = OpenTallyAsked {
            description: "import",
            complete: Some(plain(complete)),
            success: Some(plain(success)),
            parent: None,
        };
        let tally = yard.broker.open_tally(asked).await.unwrap();
        let below = OpenTallyAsked { parent: Some(tally), ..OpenTallyAsked::default() };
        let below = yard.broker.open_tally(below).await.unwrap();
        assert_eq!(below.home, tally.home);
        yard.broker.add_to_tally(below, vec![plain("work")]).await.unwrap();
        yard.broker.commit_tally(tally).await.unwrap();
        yard.broker.commit_tally(below).await.unwrap();
        yard.broker.reopen_tally(tally).await.unwrap();
        yard.ack("work").await;
        assert_eq!(yard.steps(below).await, [Succeeded, Succeeded]);
        assert_eq!(yard.steps(tally).await, [Waiting, Waiting], "the tally is open again");
        yard.broker.commit_tally(tally).await.unwrap();
        assert_eq!(yard.steps(tally).await, [Enqueued, Waiting]);
        yard.ack(complete).await;
        assert_eq!(yard.steps(tally).await, [Succeeded, Enqueued]);
        yard.ack(success).await;
        assert_eq!(yard.steps(tally).await, [Succeeded, Succeeded]);
        yard.broker.commit_tally(tally).await.unwrap();
        let view = yard.broker.tally(tally).await.unwrap();
        assert_eq!((view.description.as_str(), view.committed), ("import", true));
        for queue in &queues {
            assert_eq!(yard.bench.ready(queue).await, 0, "no callback is enqueued twice");
        }
    }
}

#[tokio::test]
async fn invalid_tallies_are_refused_with_the_reason() {
    let yard = Yard::new();
    let tally = yard.broker.open_tally(OpenTallyAsked::default()).await.unwrap();
    for unknown in [TaskId { sequence: 1 << 30, ..tally }, TaskId { home: ShardId(99), ..tally }] {
        let broker = &yard.broker;
        let below = OpenTallyAsked { parent: Some(unknown), ..OpenTallyAsked::default() };
        let answers = [
            broker.tally(unknown).await.map(drop),
            broker.commit_tally(unknown).await,
            broker.reopen_tally(unknown).await,
            broker.add_to_tally(unknown, vec![plain("work")]).await.map(drop),
            broker.open_tally(below).await.map(drop),
        ];
        for answer in answers {
            assert_eq!(answer.unwrap_err().code(), "not_found");
        }
    }
    let bad = yard.broker.add_to_tally(tally, vec![plain("work"), plain("no name")]).await;
    assert!(matches!(bad, Err(Error::Element { index: 1, .. })), "{bad:?}");
    assert_eq!(yard.counts(tally).await, [0, 0, 0]);
}
