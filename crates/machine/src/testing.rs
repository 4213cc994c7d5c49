//! A shard for tests of rules: commands go through the log encoding, every invariant is checked
//! after each command, and the test moves the clock.

pub(crate) mod drawn;
pub(crate) mod yards;

use crate::*;
use std::collections::BTreeMap;

pub(crate) const SHARD: ShardId = ShardId(1);

/// The moment at which a test begins.
pub(crate) const START: u64 = 1_000_000_000;

#[derive(Default)]
struct Bodies(BTreeMap<TaskId, Vec<u8>>);

impl Payloads for Bodies {
    fn put(&mut self, task: TaskId, body: &[u8]) {
        self.0.insert(task, body.to_vec());
    }

    fn remove(&mut self, task: TaskId) {
        self.0.remove(&task).expect("a body is removed once");
    }
}

pub(crate) struct Yard {
    pub(crate) machine: Machine,
    now: Timestamp,
    bodies: Bodies,
    events: Vec<Event>,
}

impl Yard {
    pub(crate) fn new() -> Yard {
        Yard::of_shard(SHARD)
    }

    pub(crate) fn of_shard(shard: ShardId) -> Yard {
        Yard {
            machine: Machine::new(Identity { incarnation: 7, shard, shards: 4 }),
            now: Timestamp(START),
            bodies: Bodies::default(),
            events: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// Lets time pass.
    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    /// Lets time pass and applies what became due.
    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.pass_ms(ms);
        self.expire();
    }

    #[expect(clippy::needless_pass_by_value, reason = "tests read better without a borrow")]
    pub(crate) fn send(&mut self, command: Command<'_>) -> Result<Outcome, Rejection> {
        let mut builder = EntryBuilder::new(self.now);
        assert!(builder.push(&EncodedCommand::new(&command)));
        let bytes = builder.finish();
        let entry = Entry::decode(&bytes).unwrap();
        let before = self.machine.records();
        let answer = self.machine.apply(&entry, &mut self.bodies, &mut self.events).remove(0);
        self.machine.check().unwrap_or_else(|broken| panic!("after {command:?}: {broken}"));
        if answer.is_err() {
            let changed = |record: &&(RecordKey, _)| record.0 != image::counters_key();
            let after = self.machine.records();
            assert!(
                before.iter().filter(changed).eq(after.iter().filter(changed)),
                "{command:?} was rejected and changed something"
            );
        }
        answer
    }

    /// Sends a command without a check of the state after it.
    fn send_unchecked(&mut self, command: Command<'_>) -> Outcome {
        let entry = Entry { rules: RULES_CURRENT, now: self.now, commands: vec![command] };
        let answer = self.machine.apply(&entry, &mut self.bodies, &mut self.events).remove(0);
        answer.expect("a sensible command")
    }

    pub(crate) fn enqueue_unchecked(&mut self, queue: &str, task: NewTask<'_>) {
        self.send_unchecked(Command::Enqueue(Enqueue { queue, task }));
    }

    /// Makes a dead letter.
    pub(crate) fn bury_unchecked(&mut self, queue: &str) {
        self.enqueue_unchecked(queue, tried(1));
        match self.send_unchecked(Command::Claim(claim(queue))) {
            Outcome::Claimed(tasks) => self.send_unchecked(Command::Fail(fail(&tasks[0]))),
            other => panic!("{other:?}"),
        };
    }

    pub(crate) fn expire(&mut self) -> u32 {
        match self.send(Command::ExpireDue) {
            Ok(Outcome::Expired { count }) => count,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn set(&mut self, queue: &str, settings: QueueSettings) {
        let set = Command::SetQueue(SetQueue { queue, settings });
        assert_eq!(self.send(set), Ok(Outcome::Done));
    }

    pub(crate) fn enqueue(&mut self, queue: &str) -> TaskId {
        self.enqueue_task(queue, new_task()).unwrap().id
    }

    pub(crate) fn enqueue_task(
        &mut self,
        queue: &str,
        task: NewTask<'_>,
    ) -> Result<Enqueued, Rejection> {
        match self.send(Command::Enqueue(Enqueue { queue, task }))? {
            Outcome::Enqueued(enqueued) => Ok(enqueued),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn claim(&mut self, queue: &str, tasks_max: u32) -> Vec<ClaimedTask> {
        self.claim_with(Claim { tasks_max, ..claim(queue) })
    }

    pub(crate) fn claim_with(&mut self, claim: Claim<'_>) -> Vec<ClaimedTask> {
        match self.send(Command::Claim(claim)) {
            Ok(Outcome::Claimed(tasks)) => tasks,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn claim_one(&mut self, queue: &str) -> ClaimedTask {
        self.claim(queue, 1).pop().expect("a task is ready")
    }

    pub(crate) fn ack(&mut self, held: &ClaimedTask) -> Result<Outcome, Rejection> {
        let (task, token) = (held.id, held.token);
        self.send(Command::Ack(Ack { task, token, result: None, follow_ups: vec![] }))
    }

    pub(crate) fn fail(&mut self, held: &ClaimedTask) -> Result<AfterFailure, Rejection> {
        self.fail_with(Fail { ..fail(held) })
    }

    pub(crate) fn fail_with(&mut self, fail: Fail<'_>) -> Result<AfterFailure, Rejection> {
        match self.send(Command::Fail(fail))? {
            Outcome::Failed(after) => Ok(after),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn extend(&mut self, held: &ClaimedTask) -> Result<Outcome, Rejection> {
        self.send(Command::Extend(extend(held)))
    }

    pub(crate) fn release(&mut self, held: &ClaimedTask) -> Result<Outcome, Rejection> {
        self.send(Command::Release(Release { task: held.id, token: held.token }))
    }

    pub(crate) fn cancel(&mut self, task: TaskId) -> Result<Outcome, Rejection> {
        self.send(Command::Cancel(Cancel { task }))
    }

    pub(crate) fn retry(&mut self, task: TaskId) -> Result<Outcome, Rejection> {
        self.send(Command::Retry(Retry { task, body: None }))
    }

    pub(crate) fn task(&self, task: TaskId) -> TaskView {
        self.machine.task(task).expect("the task is kept")
    }

    pub(crate) fn state(&self, task: TaskId) -> TaskStateName {
        self.task(task).state
    }

    pub(crate) fn counts(&self, queue: &str) -> QueueCounts {
        self.machine.queue(&QueueName::parse(queue).unwrap()).expect("the queue exists").counts
    }

    pub(crate) fn body(&self, task: TaskId) -> Option<Body<'_>> {
        self.bodies.0.get(&task).map(|bytes| Body::decode(bytes).unwrap())
    }

    /// The events since the last call.
    pub(crate) fn events(&mut self) -> Vec<EventKind> {
        std::mem::take(&mut self.events).into_iter().map(|event| event.kind).collect()
    }
}

pub(crate) fn new_task() -> NewTask<'static> {
    NewTask { task_type: "send", ..NewTask::default() }
}

/// A task with `max_attempts` attempts and no wait between them.
pub(crate) fn tried(max_attempts: u32) -> NewTask<'static> {
    let backoff = Backoff::Fixed { delay_ms: 0 };
    let retry = RetryPolicy { backoff, max_attempts, jitter_thousandths: 0 };
    NewTask { retry: Some(retry), ..new_task() }
}

pub(crate) fn claim(queue: &str) -> Claim<'_> {
    Claim {
        queues: vec![ClaimQueue { name: queue, weight: 1 }],
        types: vec![],
        weighted_seed: None,
        tasks_max: 1,
        bytes_max: u32::MAX,
        lease_ms: 30_000,
        session: None,
        number: None,
        begun: false,
        worker: "ann",
    }
}

/// Removes all waiting tasks.
pub(crate) fn purge(queue: &str) -> Command<'_> {
    let before = EnqueueCut { next_sequence: u64::MAX, now: Timestamp(u64::MAX) };
    Command::PurgeQueue(PurgeQueue { queue, before, after: None })
}

pub(crate) fn fail(held: &ClaimedTask) -> Fail<'static> {
    Fail {
        task: held.id,
        token: held.token,
        error: TaskError { error_type: "io", message: "no route", backtrace: "" },
        retry_at: None,
        retryable: true,
    }
}

pub(crate) fn extend(held: &ClaimedTask) -> Extend<'static> {
    Extend { task: held.id, token: held.token, lease_ms: None, progress: None, resume_state: None }
}

/// Rules of a schedule whose runs go to queue `mail` of this shard.
pub(crate) fn spec() -> ScheduleSpec<'static> {
    ScheduleSpec {
        rhythm: Rhythm::Cron { expression: "0 3 * * *", timezone: "Europe/Berlin" },
        home: SHARD,
        enqueue: Enqueue { queue: "mail", task: new_task() },
        overlap: Overlap::Skip,
        catch_up: CatchUp::Last,
        catch_up_window_ms: limits::CATCH_UP_WINDOW_MS_DEFAULT,
        jitter_ms: 0,
        start_at: None,
        end_at: None,
        remaining_runs: None,
    }
}
