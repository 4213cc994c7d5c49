//! Shared by the engine's tests: a data directory, and short forms of commands.

use std::{path::Path, task::Poll, time::Duration};
use taskyard_machine::{
    Ack, Body, ClaimToken, Command, EncodedCommand, Enqueue, NewTask, Outcome, QueueName, TaskId,
    TaskView, ask,
};
use taskyard_server::{
    Clock, Config, Error,
    shard::{ClaimRequest, Engine, HandedTask, Shards},
};

/// The start of manual clocks: far from zero, like real ones.
pub(crate) const START_MS: u64 = 1_700_000_000_000;

pub(crate) fn config(dir: &Path) -> Config {
    let mut config = Config::new(dir);
    config.listen = None;
    config.shards = Some(4);
    config.disk_reserve_bytes = 0;
    config
}

pub(crate) fn manual(dir: &Path) -> (Config, Clock) {
    let mut config = config(dir);
    config.clock = Clock::manual(START_MS);
    let clock = config.clock.clone();
    (config, clock)
}

pub(crate) fn start(config: &Config) -> Engine {
    Engine::start(config).unwrap()
}

/// The calls that tests make to shards.
pub(crate) struct Bench(pub(crate) Shards);

impl Bench {
    pub(crate) async fn command(
        &self,
        queue: &str,
        command: &Command<'_>,
    ) -> Result<Outcome, Error> {
        self.0.propose(self.0.home(queue), EncodedCommand::new(command), false).await
    }

    pub(crate) async fn try_enqueue(
        &self,
        queue: &str,
        task: NewTask<'_>,
    ) -> Result<TaskId, Error> {
        let command = Command::Enqueue(Enqueue { queue, task });
        let command = EncodedCommand::new(&command);
        match self.0.propose(self.0.home(queue), command, true).await? {
            Outcome::Enqueued(enqueued) => Ok(enqueued.id),
            other => panic!("an enqueue was answered with {other:?}"),
        }
    }

    pub(crate) async fn enqueue(&self, queue: &str, payload: &[u8]) -> TaskId {
        let body = Body { payload, ..Body::default() };
        let task = NewTask { task_type: "test", body, ..NewTask::default() };
        self.try_enqueue(queue, task).await.unwrap()
    }

    pub(crate) async fn enqueue_many(
        &self,
        queue: &str,
        count: usize,
        payload: &[u8],
    ) -> Vec<TaskId> {
        let body = || Body { payload, ..Body::default() };
        let task = || NewTask { task_type: "test", body: body(), ..NewTask::default() };
        let command = EncodedCommand::new(&Command::Enqueue(Enqueue { queue, task: task() }));
        let commands = vec![(self.0.home(queue), command); count];
        let outcomes = self.0.propose_all(commands, true).await;
        let ids = outcomes.into_iter().map(|outcome| match outcome.unwrap() {
            Outcome::Enqueued(enqueued) => enqueued.id,
            other => panic!("an enqueue was answered with {other:?}"),
        });
        ids.collect()
    }

    pub(crate) async fn claim(
        &self,
        queue: &str,
        tasks_max: u32,
        wait: Duration,
    ) -> Vec<HandedTask> {
        self.0.claim(self.0.home(queue), request(queue, tasks_max), wait).await.unwrap()
    }

    pub(crate) async fn ack(&self, task: TaskId, token: ClaimToken) -> Result<Outcome, Error> {
        let ack = Ack { task, token, result: None, follow_ups: Vec::new() };
        let command = EncodedCommand::new(&Command::Ack(ack));
        self.0.propose(task.home, command, false).await
    }

    pub(crate) async fn task(&self, task: TaskId) -> Option<TaskView> {
        self.0.ask(task.home, ask::Task { task }).await.unwrap()
    }

    pub(crate) async fn ready(&self, queue: &str) -> u64 {
        let name = QueueName::parse(queue).unwrap();
        let view = self.0.ask(self.0.home(queue), ask::Queue { queue: name });
        view.await.unwrap().map_or(0, |view| view.counts.ready)
    }

    pub(crate) async fn payload(&self, task: TaskId) -> Option<Vec<u8>> {
        let bodies = self.0.bodies(vec![task]).await.unwrap();
        bodies[0].as_ref().map(|body| Body::decode(body).unwrap().payload.to_vec())
    }
}

pub(crate) fn request(queue: &str, tasks_max: u32) -> ClaimRequest {
    ClaimRequest::of_queue(queue, tasks_max)
}

/// Polls until `check` holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !check().await {
        assert!(tokio::time::Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls once. Returns whether the future waits.
pub(crate) async fn waits<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
