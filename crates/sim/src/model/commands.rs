//! The commands of a random history: of all kinds, drawn from the model's state.

use super::Model;
use crate::rng::Rng;
use std::borrow::Cow;
use std::collections::BTreeMap;
use taskyard_machine::{
    Ack, Backoff, Body, Cancel, Claim, ClaimQueue, ClaimToken, Command, DeadAction, DeadCommand,
    DeleteQueue, EndSession, Enqueue, EnqueueBatch, EnqueueCut, Extend, Fail, FollowUp, NewTask,
    OnConflict, PerKey, PurgeQueue, PutOff, QueueCommand, QueueSettings, Rate, Release, Renew,
    Retry, RetryPolicy, Selection, SessionEnd, SessionId, SetQueue, ShardId, Snooze, TaskError,
    TaskFilter, TaskId, Timestamp, Unique, UniqueUntil, When,
};

/// Types of tasks: most have the first.
const TYPES: [&str; 4] = ["work", "work", "other", "third"];

const QUEUES: [&str; 3] = ["mail", "video", "none-yet"];
const REQUESTS: [&str; 8] = ["r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8"];
const PAYLOADS: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];
const KEYS: [&str; 3] = ["a", "b", "c"];
/// No task is of the last type.
const CLAIMED_TYPES: [&[&str]; 6] =
    [&["work"], &["other"], &["third"], &["other", "work"], &["nobody", "third"], &["nobody"]];

/// The terms of a whole history.
pub(super) struct Terms {
    /// Whether due changes come before any other command, or late. Keys that time opens count from
    /// the moment of that change, so that only prompt histories push keys back or limit their rate.
    pub(super) prompt: bool,
    /// Whether queues get limits and tasks get keys.
    limits: bool,
    /// Whether tasks get unique keys.
    unique: bool,
    /// Whether workers often push back keys.
    pushes_back: bool,
    /// Whether claims name types.
    types: bool,
    /// The one rate of each queue's keys. With time in steps of `STEP_MS` their tokens come in on
    /// the grid on which the machine looks at them.
    key_rates: [Rate; 3],
}

/// A purge of all waiting tasks of a queue.
pub(super) fn purge(queue: &str) -> Command<'_> {
    let before = EnqueueCut { next_sequence: u64::MAX, now: Timestamp(u64::MAX) };
    Command::PurgeQueue(PurgeQueue { queue, before, after: None })
}

/// The step of time in a prompt history.
const STEP_MS: u64 = 100;

impl Terms {
    pub(super) fn new(rng: &mut Rng) -> Terms {
        let mut rate = || Rate {
            per_second_millionths: *rng.pick(&[1_000_000, 2_000_000, 5_000_000]),
            burst: rng.between(1, 3) as u32,
        };
        let key_rates = [rate(), rate(), rate()];
        let (prompt, limits) = (rng.chance(600), rng.chance(850));
        let (unique, pushes_back) = (rng.chance(600), prompt && limits && rng.chance(400));
        let types = rng.chance(500);
        Terms { key_rates, prompt, limits, unique, pushes_back, types }
    }

    /// A span in the steps of this history.
    fn span(&self, ms: u64) -> u64 {
        if self.prompt { ms.next_multiple_of(STEP_MS) } else { ms }
    }

    fn rate(rng: &mut Rng) -> Rate {
        let per_second_millionths = *rng.pick(&[300_000, 1_000_000, 7_000_000, 150_000_000]);
        Rate { per_second_millionths, burst: rng.between(1, 4) as u32 }
    }

    fn settings(&self, rng: &mut Rng, queue: usize) -> QueueSettings {
        let retention = QueueSettings {
            max_length: rng.chance(300).then(|| rng.between(2, 20)),
            retention_count: rng.chance(500).then(|| rng.below(6) as u32),
            retention_ms: rng.chance(300).then(|| rng.below(20_000)),
            dead_retention_count: rng.chance(400).then(|| rng.below(4) as u32),
            dead_retention_ms: rng.chance(300).then(|| rng.below(20_000)),
            ..QueueSettings::default()
        };
        if !self.limits {
            return retention;
        }
        let key_rate = rng.chance(500).then_some(self.key_rates[queue]);
        let per_key = PerKey {
            concurrency: rng.chance(500).then(|| rng.between(1, 3) as u32),
            rate: key_rate.filter(|_| self.prompt),
        };
        let weights: BTreeMap<Box<str>, u32> =
            [("a", 3), ("b", 2), ("", 2)].map(|(key, weight)| (key.into(), weight)).into();
        QueueSettings {
            concurrency: rng.chance(250).then(|| rng.between(1, 5) as u32),
            rate: rng.chance(350).then(|| Terms::rate(rng)),
            per_key: rng.chance(500).then_some(per_key),
            weights: if rng.chance(600) { weights } else { BTreeMap::new() },
            ageing_ms: rng.chance(300).then(|| rng.between(50, 2_000)),
            ..retention
        }
    }
}

/// The pause before the next command: mostly short, sometimes so long that everything is due.
pub(super) fn pause(rng: &mut Rng, terms: &Terms) -> u64 {
    terms.span(match rng.below(20) {
        0 => rng.between(1_000, 40_000),
        1..8 => 0,
        _ => rng.below(300),
    })
}

pub(super) fn draw(
    rng: &mut Rng,
    terms: &Terms,
    model: &Model,
    handed_out: &[(TaskId, ClaimToken)],
) -> Command<'static> {
    let number = rng.below(3) as usize;
    let queue = QUEUES[number];
    if terms.limits && model.queues.len() < QUEUES.len() && rng.chance(300) {
        let settings = terms.settings(rng, number);
        return Command::SetQueue(SetQueue { queue, settings });
    }
    let is_used = |task: &super::Task| task.queue == queue && !task.is_over();
    let idle = model.has_queue(queue) && !model.tasks.iter().any(is_used);
    if rng.chance(if idle { 250 } else { 10 }) {
        return Command::DeleteQueue(DeleteQueue { queue, version: 0 });
    }
    let unknown = TaskId::from_u128(u128::from(rng.next()));
    let task = if model.known_ids.is_empty() || rng.chance(20) {
        unknown
    } else {
        // Newer tasks are more likely to be alive.
        let newest = model.known_ids.len().saturating_sub(12);
        let from = if rng.chance(700) { newest } else { 0 };
        *rng.pick(&model.known_ids[from..])
    };
    // Mostly live claims, sometimes one that ended long ago.
    let live: Vec<(TaskId, ClaimToken)> = model
        .tasks
        .iter()
        .filter_map(|task| Some((task.id, ClaimToken(task.held()?.token))))
        .collect();
    let claims = if rng.chance(850) && !live.is_empty() { &live[..] } else { handed_out };
    let (held, token) = if claims.is_empty() { (task, ClaimToken(1)) } else { *rng.pick(claims) };
    let session = SessionId(u128::from(rng.below(3)));
    if terms.pushes_back && rng.chance(200) {
        let until = When::After { ms: terms.span(rng.below(5_000)) };
        return Command::Snooze(Snooze { task: held, token, until, push_back_key: true });
    }
    match rng.below(100) {
        0..22 => {
            let request_id = rng.chance(300).then(|| *rng.pick(&REQUESTS));
            let task = NewTask { request_id, ..new_task(rng, terms, model.now) };
            Command::Enqueue(Enqueue { queue, task })
        }
        22..26 => {
            let count = rng.between(1, 4);
            let tasks = (0..count).map(|_| new_task(rng, terms, model.now)).collect();
            Command::EnqueueBatch(EnqueueBatch { batch_id: None, queue, tasks })
        }
        26..44 => {
            let mut queues: Vec<ClaimQueue<'_>> =
                QUEUES.iter().map(|name| ClaimQueue { name, weight: 1 }).collect();
            queues.rotate_left(rng.below(3) as usize);
            Command::Claim(Claim {
                queues,
                types: if terms.types { rng.pick(&CLAIMED_TYPES).to_vec() } else { vec![] },
                weighted_seed: None,
                tasks_max: rng.between(1, 4) as u32,
                bytes_max: u32::MAX,
                lease_ms: rng.between(1_000, 8_000),
                session: rng.chance(600).then_some(session),
                number: None,
                begun: rng.chance(300),
                worker: "worker",
            })
        }
        44..54 => {
            let result = rng.chance(500).then_some(&b"1"[..]);
            let count = if rng.chance(250) { rng.between(1, 2) } else { 0 };
            let mut follow_up = || {
                let request_id = rng.chance(200).then(|| *rng.pick(&REQUESTS));
                let task = NewTask { request_id, ..new_task(rng, terms, model.now) };
                let queue = *rng.pick(&QUEUES);
                FollowUp { home: ShardId(0), enqueue: Enqueue { queue, task } }
            };
            let follow_ups = (0..count).map(|_| follow_up()).collect();
            Command::Ack(Ack { task: held, token, result, follow_ups })
        }
        54..62 => Command::Fail(Fail {
            task: held,
            token,
            error: TaskError { error_type: "E", message: "m", backtrace: "" },
            retry_at: rng.chance(300).then(|| When::After { ms: rng.below(500) }),
            retryable: !rng.chance(200),
        }),
        62..67 => Command::Extend(Extend {
            task: held,
            token,
            lease_ms: rng.chance(500).then(|| rng.between(1_000, 8_000)),
            progress: None,
            resume_state: rng.chance(300).then_some(&b"half"[..]),
        }),
        67..69 => Command::Renew(Renew { claims: vec![(held, token), (task, token)] }),
        69..72 => Command::Release(Release { task: held, token }),
        72..76 => {
            let until = When::After { ms: terms.span(rng.below(3_000)) };
            let push_back_key = terms.prompt && terms.limits && rng.chance(500);
            Command::Snooze(Snooze { task: held, token, until, push_back_key })
        }
        76..79 => Command::Cancel(Cancel { task }),
        79..83 => {
            let body = rng.chance(300).then(|| Body { payload: b"edited", ..Body::default() });
            Command::Retry(Retry { task, body })
        }
        83..86 => {
            let action = if rng.chance(600) { DeadAction::Retry } else { DeadAction::Discard };
            let selection = if rng.chance(500) {
                Selection::Ids(vec![task, held])
            } else {
                let filter = TaskFilter { queue: Some(queue), ..TaskFilter::default() };
                Selection::Filter { filter, after: None, dead_before: None }
            };
            Command::Dead(DeadCommand { action, selection })
        }
        86 => Command::PauseQueue(QueueCommand { queue }),
        87..89 => Command::ResumeQueue(QueueCommand { queue }),
        89 if rng.chance(700) => {
            let newest = model.known_ids.iter().map(|id| id.sequence).max().unwrap_or(0);
            let next_sequence = newest + 1 - rng.below(20).min(newest);
            let before = EnqueueCut { next_sequence, now: Timestamp(model.now) };
            Command::PurgeQueue(PurgeQueue { queue, before, after: None })
        }
        89..92 => {
            let settings = terms.settings(rng, number);
            Command::SetQueue(SetQueue { queue, settings })
        }
        92..94 => {
            let reason = if rng.chance(500) { SessionEnd::Goodbye } else { SessionEnd::Silence };
            let some = |rng: &mut Rng| if rng.chance(300) { vec![held, task] } else { vec![] };
            let (not_started, keep) = (some(rng), some(rng));
            Command::EndSession(EndSession { session, reason, not_started, keep })
        }
        94 if rng.chance(300) => Command::BeginTerm,
        94 if rng.chance(300) => Command::PutOff(PutOff { claims_ms: rng.below(30_000) }),
        _ => Command::ExpireDue,
    }
}

fn new_task(rng: &mut Rng, terms: &Terms, now: u64) -> NewTask<'static> {
    let backoff = if rng.chance(500) {
        Backoff::Fixed { delay_ms: rng.below(1_000) }
    } else {
        Backoff::Linear { delay_ms: 200, delay_max_ms: 1_000 }
    };
    // Sometimes a priority is too high, so that the task and its whole batch must be rejected.
    let highest = if rng.chance(50) { 13 } else { 9 };
    let lowest = if terms.limits { 7 } else { 0 };
    let payload = *rng.pick(&PAYLOADS);
    let unique = (terms.unique && rng.chance(600)).then(|| unique(rng));
    let debounced = unique.as_ref().is_some_and(|unique| unique.debounce_ms.is_some());
    let task_type = *rng.pick(&TYPES);
    NewTask {
        task_type: match terms.types {
            true => task_type,
            false if rng.chance(900) => "work",
            false => "other",
        },
        body: Body { payload, ..Body::default() },
        priority: rng.chance(500).then(|| rng.between(lowest, highest) as u8),
        run_at: match rng.below(10) {
            // Sometimes the options contradict each other.
            _ if debounced && rng.chance(900) => When::Now,
            0..3 => When::After { ms: rng.below(3_000) },
            3 => When::At(Timestamp((now + rng.below(4_000)).saturating_sub(2_000))),
            _ => When::Now,
        },
        expires_at: rng
            .chance(150)
            .then(|| Timestamp((now + rng.below(10_000)).saturating_sub(500))),
        retry: rng.chance(800).then(|| RetryPolicy {
            backoff,
            max_attempts: rng.between(1, 4) as u32,
            jitter_thousandths: 0,
        }),
        timeout_ms: rng.chance(150).then(|| rng.between(1, 3_000)),
        retention_ms: rng.chance(150).then(|| rng.below(5_000)),
        fairness_key: (terms.limits && rng.chance(700)).then(|| *rng.pick(&KEYS)),
        unique: unique.map(Box::new),
        ..NewTask::default()
    }
}

/// A unique key out of a few, so that tasks often conflict; sometimes an invalid one.
fn unique(rng: &mut Rng) -> Unique<'static> {
    let on_conflict = *rng.pick(&[OnConflict::Existing, OnConflict::Replace, OnConflict::Reject]);
    let key = Cow::Borrowed(if rng.chance(990) { *rng.pick(&["u", "v"]) } else { "" });
    let debounce_ms = rng.chance(250).then(|| rng.between(50, 3_000));
    if debounce_ms.is_some() && rng.chance(900) {
        let on_conflict = OnConflict::Replace;
        return Unique { key, until: None, window_ms: None, on_conflict, debounce_ms };
    }
    let until = *rng.pick(&[None, Some(UniqueUntil::Start), Some(UniqueUntil::Done)]);
    let window_ms = rng.chance(400).then(|| rng.below(10_000));
    Unique { key, until, window_ms, on_conflict, debounce_ms }
}
