//! Limits: no claim exceeds the concurrency of its queue or key, or comes without a token of each
//! bucket.
//!
//! Live claims are counted exactly. Buckets are upper bounds, because each key may start full while
//! a new rate is applied to the keys of a queue.

use super::Violation;
use crate::shard::task_of;
use std::collections::BTreeMap;
use taskyard_machine::{
    Command, Event, EventKind, Outcome, QueueSettings, Rate, Rejection, SetQueue, TaskId,
};

/// Billionths of one token.
const TOKEN: u128 = 1_000_000_000;

/// The account of the queues of one shard.
#[derive(Debug, Default)]
pub(super) struct Limits {
    queues: BTreeMap<String, Queue>,
    /// The queue and the key of each task that is claimed.
    live: BTreeMap<TaskId, (String, Option<String>)>,
}

#[derive(Debug, Default)]
struct Queue {
    settings: QueueSettings,
    bucket: Bucket,
    buckets: BTreeMap<String, Bucket>,
}

/// The upper bound of a level, and its time; full if no token was taken.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Option<(u128, u64)>);

impl Limits {
    /// Follows the settings, claims and ends of one entry in their order.
    pub(super) fn judge(
        &mut self,
        commands: &[Command<'_>],
        outcomes: &[Result<Outcome, Rejection>],
        events: &[Event],
    ) -> Result<(), Violation> {
        let mut set = accepted_settings(commands, outcomes);
        let keys = claimed_keys(outcomes);
        for event in events {
            let now = event.at.0;
            match &event.kind {
                EventKind::QueueSet(name) => {
                    let settings = set.next().ok_or_else(|| format!("nobody set {name}"))?;
                    self.set(settings, now);
                }
                EventKind::QueueDeleted(name) => {
                    let settings = QueueSettings::default();
                    self.set(&SetQueue { queue: name.as_str(), settings }, now);
                }
                EventKind::TaskClaimed(task, _) => {
                    let key = keys.get(&task.id).copied().flatten();
                    self.claim(task.id, task.queue.as_str(), key, now)?;
                }
                EventKind::TaskProgressed(..) | EventKind::TaskCancelRequested(_) => {}
                kind => {
                    let ended = task_of(event).and_then(|task| self.live.remove(&task));
                    // Released without cost: every other end of a claim has another event.
                    if let (EventKind::TaskReady(_), Some((queue, key))) = (kind, ended) {
                        self.queues.entry(queue).or_default().refund(key, now);
                    }
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, set: &SetQueue<'_>, now: u64) {
        let queue = self.queues.entry(set.queue.to_owned()).or_default();
        queue.bucket = match (queue.settings.rate, set.settings.rate) {
            (Some(old), Some(_)) => queue.bucket.settled(old, now),
            _ => Bucket::default(),
        };
        if queue.settings.per_key.map(|keys| keys.rate) != set.settings.per_key.map(|k| k.rate) {
            queue.buckets.clear();
        }
        queue.settings = set.settings.clone();
    }

    fn claim(
        &mut self,
        task: TaskId,
        name: &str,
        key: Option<&str>,
        now: u64,
    ) -> Result<(), Violation> {
        self.live.insert(task, (name.to_owned(), key.map(str::to_owned)));
        let queue = self.queues.entry(name.to_owned()).or_default();
        let claimed = self.live.values().filter(|(of, _)| of == name);
        let of_key = claimed.clone().filter(|(_, of)| of.as_deref() == key).count();
        let within = |what: &str, live: usize, max: Option<u32>| match max {
            Some(max) if live > max as usize => {
                Err(format!("task {task} is claim {live} of {max} of {what}"))
            }
            _ => Ok(()),
        };
        within(&format!("queue {name}"), claimed.count(), queue.settings.concurrency)?;
        if let Some(rate) = queue.settings.rate {
            queue.bucket = queue.bucket.taken(rate, now).ok_or_else(|| {
                format!("task {task} was claimed without a token of queue {name}")
            })?;
        }
        let (Some(key), Some(limits)) = (key, queue.settings.per_key) else { return Ok(()) };
        within(&format!("key {key} of {name}"), of_key, limits.concurrency)?;
        if let Some(rate) = limits.rate {
            let bucket = queue.buckets.entry(key.to_owned()).or_default();
            *bucket = bucket.taken(rate, now).ok_or_else(|| {
                format!("task {task} was claimed without a token of key {key} of {name}")
            })?;
        }
        Ok(())
    }
}

impl Queue {
    fn refund(&mut self, key: Option<String>, now: u64) {
        if let Some(rate) = self.settings.rate {
            self.bucket = self.bucket.given(rate, now);
        }
        let rate = self.settings.per_key.and_then(|keys| keys.rate);
        if let (Some(key), Some(rate)) = (key, rate) {
            let bucket = self.buckets.entry(key).or_default();
            *bucket = bucket.given(rate, now);
        }
    }
}

impl Bucket {
    fn level(self, rate: Rate, now: u64) -> u128 {
        let full = u128::from(rate.burst) * TOKEN;
        let Bucket(Some((left, at))) = self else { return full };
        (left + u128::from(now - at) * u128::from(rate.per_second_millionths)).min(full)
    }

    /// The bucket with a token less, if it has one.
    fn taken(self, rate: Rate, now: u64) -> Option<Bucket> {
        Some(Bucket(Some((self.level(rate, now).checked_sub(TOKEN)?, now))))
    }

    fn given(self, rate: Rate, now: u64) -> Bucket {
        Bucket(Some((self.level(rate, now) + TOKEN, now))).settled(rate, now)
    }

    /// The bucket with its level under this rate fixed. A full bucket stays full.
    fn settled(self, rate: Rate, now: u64) -> Bucket {
        let level = self.level(rate, now);
        Bucket((level < u128::from(rate.burst) * TOKEN).then_some((level, now)))
    }
}

fn accepted_settings<'c>(
    commands: &'c [Command<'c>],
    outcomes: &'c [Result<Outcome, Rejection>],
) -> impl Iterator<Item = &'c SetQueue<'c>> {
    commands.iter().zip(outcomes).filter_map(|(command, outcome)| match command {
        Command::SetQueue(set) if outcome.is_ok() => Some(set),
        _ => None,
    })
}

/// The key of each task that was handed out.
fn claimed_keys(outcomes: &[Result<Outcome, Rejection>]) -> BTreeMap<TaskId, Option<&str>> {
    let mut keys = BTreeMap::new();
    for outcome in outcomes {
        if let Ok(Outcome::Claimed(tasks)) = outcome {
            keys.extend(tasks.iter().map(|task| (task.id, task.fairness_key.as_deref())));
        }
    }
    keys
}
