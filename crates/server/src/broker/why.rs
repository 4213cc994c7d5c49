//! Why a task waits: from its shard, and whether a worker listens on its queue.

use super::Broker;
use crate::{Error, cluster::did_not_answer, moment::InWords, sessions::Heard};
use std::fmt;
use taskyard_machine::{Reason, Rejection, ScheduledFor, TaskId, Timestamp, WhyView, ask};
use taskyard_replica::NodeId;

/// One reason why a task waits, as fronts show it. Fields that do not belong to the code are
/// `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitReason {
    /// A stable code.
    pub code: &'static str,
    /// The reason in words.
    pub message: String,
    /// The fairness key that is the reason.
    pub key: Option<String>,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// The number of running tasks.
    pub claimed: Option<u32>,
    /// The most tasks that may run at a time.
    pub limit: Option<u32>,
    /// The number of tasks that come first.
    pub ahead: Option<u64>,
    /// The worker that runs it.
    pub worker: Option<String>,
    /// Nodes of its flow that it waits for; the first of many.
    pub parents: Vec<String>,
}

/// The most parents that are named; the others are counted.
const PARENTS_NAMED: u32 = 10;

impl Broker {
    /// Why a task waits; the reason to solve first comes first.
    pub async fn why(&self, task: TaskId) -> Result<Vec<WaitReason>, Error> {
        let shard = self.shard_of_task(task)?;
        let found = self.shards().ask(shard, ask::Why { task }).await?;
        let WhyView { queue, task_type, now, reasons } =
            found.ok_or(Rejection::TaskNotFound { task })?;
        let mut told = Vec::with_capacity(reasons.len() + 1);
        for reason in reasons {
            if let Reason::Parents { flow, node } = reason {
                told.push(self.waits_for(flow, node).await?);
                continue;
            }
            let ready = matches!(reason, Reason::Ahead { .. });
            if ready {
                let (heard, missing) = self.0.cluster.heard(queue.as_str(), &task_type).await;
                told.extend(no_worker_reason(queue.as_str(), &task_type, heard, &missing));
            }
            let is_next = told.is_empty();
            told.push(match reason {
                Reason::Ahead { tasks: 0, .. } if is_next => WaitReason {
                    message: "no task is ahead of it: the next free worker gets it".into(),
                    ..ahead_reason(0, false)
                },
                reason => wait_reason(reason, queue.as_str(), now),
            });
        }
        Ok(told)
    }

    /// The unfinished parents of a node, which the flow's own shard knows.
    async fn waits_for(&self, flow: TaskId, node: Box<str>) -> Result<WaitReason, Error> {
        let shard = self.shard_of_task(flow)?;
        let asked = ask::UnfinishedParents { flow, node, limit: PARENTS_NAMED };
        let (parents, total) = self.shards().ask(shard, asked).await?.unwrap_or_default();
        let names = parents.join(", ");
        let message = match total.saturating_sub(parents.len() as u32) {
            _ if parents.is_empty() => format!("it waits until flow {flow} releases it"),
            0 => format!("it waits for its parents: {names}"),
            more => format!("it waits for its parents: {names} and {more} more"),
        };
        Ok(WaitReason { code: "parents", message, parents, ..WaitReason::default() })
    }
}

fn wait_reason(reason: Reason, queue: &str, now: Timestamp) -> WaitReason {
    let plain = |code, message| WaitReason { code, message, ..WaitReason::default() };
    match reason {
        Reason::Parents { .. } => unreachable!("the flow's own shard was asked"),
        Reason::QueuePaused => plain("queue_paused", format!("queue {queue} is paused")),
        Reason::Scheduled { until, reason } => scheduled_reason(until, reason, now),
        Reason::QueueConcurrency { claimed, limit } => {
            let who = format!("queue {queue}");
            concurrency_reason("queue_concurrency", &who, claimed, limit)
        }
        Reason::KeyConcurrency { key, claimed, limit } => {
            let who = format!("key {key}");
            let told = concurrency_reason("key_concurrency", &who, claimed, limit);
            WaitReason { key: Some(key), ..told }
        }
        Reason::QueueRate { opens_at } => {
            rate_reason("queue_rate", &format!("queue {queue}"), opens_at, now)
        }
        Reason::KeyRate { key, opens_at } => {
            let told = rate_reason("key_rate", &format!("key {key}"), opens_at, now);
            WaitReason { key: Some(key), ..told }
        }
        Reason::KeyHeld { key, until } => pushed_back_reason(key, until, queue, now),
        Reason::Ahead { tasks, at_least } => ahead_reason(tasks, at_least),
        Reason::Running { worker, since } => {
            let who = if worker.is_empty() { "a worker" } else { &*worker };
            let message = format!("it does not wait: {who} runs it since {}", InWords(since));
            let worker = (!worker.is_empty()).then(|| worker.to_string());
            WaitReason { worker, ..plain("running", message) }
        }
        Reason::Finished { state } => plain("finished", format!("it does not wait: it is {state}")),
    }
}

fn no_worker_reason(
    queue: &str,
    task_type: &str,
    heard: Heard,
    missing: &[NodeId],
) -> Option<WaitReason> {
    let (code, nobody) = match heard {
        Heard::Yes => return None,
        Heard::Nobody => ("no_worker", format!("no worker listens on queue {queue} now")),
        Heard::OtherTypes => {
            let nobody = format!(
                "workers listen on queue {queue}, but none of them takes tasks of type {task_type}"
            );
            ("no_worker_for_type", nobody)
        }
    };
    let message = match missing {
        [] => nobody,
        missing => format!("{nobody}, as far as is known: {}", did_not_answer(missing)),
    };
    Some(WaitReason { code, message, ..WaitReason::default() })
}

fn scheduled_reason(until: Timestamp, reason: ScheduledFor, now: Timestamp) -> WaitReason {
    let why = match reason {
        ScheduledFor::Delay => "it was enqueued for later",
        ScheduledFor::Retry => "its last attempt failed",
        ScheduledFor::Loss => "its last worker was lost",
        ScheduledFor::Snooze => "its last worker snoozed it",
    };
    WaitReason {
        code: "scheduled",
        message: format!("it may run in {}: {why}", FromNow { until, now }),
        until: Some(until),
        ..WaitReason::default()
    }
}

fn concurrency_reason(code: &'static str, who: &str, claimed: u32, limit: u32) -> WaitReason {
    WaitReason {
        code,
        message: match claimed {
            1 => format!("{who} runs 1 task; its limit is {limit}"),
            _ => format!("{who} runs {claimed} tasks; its limit is {limit}"),
        },
        claimed: Some(claimed),
        limit: Some(limit),
        ..WaitReason::default()
    }
}

fn rate_reason(code: &'static str, who: &str, until: Timestamp, now: Timestamp) -> WaitReason {
    let refills = FromNow { until, now };
    WaitReason {
        code,
        message: format!("{who} has used up its rate; its bucket refills in {refills}"),
        until: Some(until),
        ..WaitReason::default()
    }
}

fn pushed_back_reason(
    key: Option<String>,
    until: Timestamp,
    queue: &str,
    now: Timestamp,
) -> WaitReason {
    let who = match &key {
        Some(key) => format!("key {key} is"),
        None => format!("the tasks of queue {queue} without a key are"),
    };
    let left = FromNow { until, now };
    WaitReason {
        code: "key_held",
        message: format!("{who} paused for another {left}: a handler has pushed back"),
        key,
        until: Some(until),
        ..WaitReason::default()
    }
}

fn ahead_reason(tasks: u64, at_least: bool) -> WaitReason {
    let message = match (tasks, at_least) {
        (0, _) => "no task is ahead of it".to_owned(),
        (1, false) => "1 task is ahead of it".to_owned(),
        (_, false) => format!("{tasks} tasks are ahead of it"),
        (1, true) => "at least 1 task is ahead of it".to_owned(),
        (_, true) => format!("at least {tasks} tasks are ahead of it"),
    };
    WaitReason { code: "ahead", message, ahead: Some(tasks), ..WaitReason::default() }
}

/// The time until a moment, for people.
struct FromNow {
    until: Timestamp,
    now: Timestamp,
}

impl fmt::Display for FromNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.until.ms_since(self.now);
        match ms {
            0..1_000 => write!(f, "{ms} ms"),
            1_000..60_000 => write!(f, "{}.{} s", ms / 1_000, ms % 1_000 / 100),
            60_000..3_600_000 => write!(f, "{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
            _ => write!(f, "{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_counts_read_well() {
        let now = Timestamp(1_000_000);
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (3_249, "3.2 s"),
            (61_000, "1 min 1 s"),
            (7_260_000, "2 h 1 min"),
        ] {
            assert_eq!(FromNow { until: now.plus_ms(ms), now }.to_string(), text);
        }
        for (tasks, at_least, text) in [
            (0, false, "no task is ahead of it"),
            (1, false, "1 task is ahead of it"),
            (1, true, "at least 1 task is ahead of it"),
            (10_000, true, "at least 10000 tasks are ahead of it"),
        ] {
            assert_eq!(ahead_reason(tasks, at_least).message, text);
        }
        let past = FromNow { until: Timestamp(5), now };
        assert_eq!(past.to_string(), "0 ms");
    }
}
