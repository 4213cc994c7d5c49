//! QueueSettings: the settings of a queue. `None` stands for the default in `limits.rs`.

use crate::bucket::{Bucket, Rate};
use crate::enqueue::{check_key, check_timeout};
use crate::limits::{
    DEDUP_WINDOW_MS_MAX, DEDUP_WINDOW_MS_MIN, EXPIRIES_PER_ENTRY_MAX, HORIZON_MS_MAX, WEIGHT_MAX,
    WEIGHTS_MAX,
};
use crate::queue::LaneId;
use crate::rejection::at_most;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{EventKind, Outcome, Rejection, RetryPolicy, SetQueue};
use std::collections::BTreeMap;

/// The settings of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// The most waiting tasks (ready, scheduled, blocked); no bound by default.
    pub max_length: Option<u64>,
    /// How long a request_id is remembered, at least `DEDUP_WINDOW_MS_MIN`.
    pub dedup_window_ms: Option<u64>,
    /// How long finished tasks are kept at most.
    pub retention_ms: Option<u64>,
    /// How many finished tasks are kept at most.
    pub retention_count: Option<u32>,
    /// How long dead letters are kept.
    pub dead_retention_ms: Option<u64>,
    /// How many dead letters are kept at most; no bound by default. With 0, tasks end as Failed
    /// instead.
    pub dead_retention_count: Option<u32>,
    /// The retry policy for tasks without one.
    pub retry: Option<RetryPolicy>,
    /// The timeout for tasks without one.
    pub timeout_ms: Option<u64>,
    /// The most tasks that are claimed at once; no bound by default.
    pub concurrency: Option<u32>,
    /// How often a task may be claimed; no bound by default.
    pub rate: Option<Rate>,
    /// The limits of every fairness key. Tasks without a key have none.
    pub per_key: Option<PerKey>,
    /// How many tasks a key is served per turn; 1 for all other keys. The empty key stands for the
    /// tasks without a key.
    pub weights: BTreeMap<Box<str>, u32>,
    /// How long a waiting task waits before its priority rises by one; never by default.
    pub ageing_ms: Option<u64>,
    /// The number of shards that the queue is spread over, its home shard included; 1 by default.
    pub spread: Option<u16>,
}

/// The limits of each fairness key of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerKey {
    /// The most tasks of one key that are claimed at once; no bound by default.
    pub concurrency: Option<u32>,
    /// How often a task of one key may be claimed; no bound by default.
    pub rate: Option<Rate>,
}

impl QueueSettings {
    fn check(&self) -> Result<(), Rejection> {
        if let Some(window) = self.dedup_window_ms.filter(|&window| window < DEDUP_WINDOW_MS_MIN) {
            return Err(Rejection::invalid(format!(
                "dedup_window_ms is {window}; give {DEDUP_WINDOW_MS_MIN} or more, or leave it out"
            )));
        }
        at_most("dedup_window_ms", self.dedup_window_ms.unwrap_or(0), DEDUP_WINDOW_MS_MAX)?;
        at_most("retention_ms", self.retention_ms.unwrap_or(0), HORIZON_MS_MAX)?;
        at_most("dead_retention_ms", self.dead_retention_ms.unwrap_or(0), HORIZON_MS_MAX)?;
        check_timeout(self.timeout_ms)?;
        check_concurrency("concurrency", self.concurrency)?;
        self.rate.map_or(Ok(()), |rate| rate.check("rate"))?;
        let PerKey { concurrency, rate } = self.per_key.unwrap_or_default();
        check_concurrency("per_key.concurrency", concurrency)?;
        rate.map_or(Ok(()), |rate| rate.check("per_key.rate"))?;
        self.check_weights()?;
        if self.ageing_ms == Some(0) {
            return Err(Rejection::invalid("ageing_ms is 0; leave it out for no ageing"));
        }
        at_most("ageing_ms", self.ageing_ms.unwrap_or(0), HORIZON_MS_MAX)?;
        self.retry.as_ref().map_or(Ok(()), |retry| retry.check())
    }

    fn check_weights(&self) -> Result<(), Rejection> {
        at_most("the number of weights", self.weights.len() as u64, WEIGHTS_MAX as u64)?;
        for (key, &weight) in &self.weights {
            check_key("a key of weights", key)?;
            if weight == 0 {
                return Err(Rejection::invalid(format!(
                    "the weight of key {key:?} is 0; give 1 to {WEIGHT_MAX}"
                )));
            }
            at_most(&format!("the weight of key {key:?}"), weight.into(), WEIGHT_MAX.into())?;
        }
        Ok(())
    }
}

/// Rejects a limit of 0, because a pause is the clear way to stop a queue.
fn check_concurrency(what: &str, concurrency: Option<u32>) -> Result<(), Rejection> {
    match concurrency {
        Some(0) => Err(Rejection::invalid(format!(
            "{what} is 0; give at least 1, or pause the queue to stop it"
        ))),
        _ => Ok(()),
    }
}

impl Turn<'_> {
    /// Settings apply at once, also to finished tasks: those that the new retention does not keep
    /// are due for removal. New limits end no claim. This entry applies them to the first keys,
    /// `ExpireDue` to the others; until then no key is served beyond them.
    pub(crate) fn set_queue(&mut self, set: &SetQueue<'_>) -> Result<Outcome, Rejection> {
        set.settings.check()?;
        self.check_spread(set.queue, &set.settings)?;
        let number = self.queue_or_new(set.queue)?;
        self.put_settings(number, &set.settings);
        self.tell_spread(number);
        Ok(Outcome::Done)
    }

    /// Gives a queue settings that were checked before.
    pub(crate) fn put_settings(&mut self, number: Slot, settings: &QueueSettings) {
        self.apply_settings(number, settings);
        let name = self.shard.queues.get(number).name.clone();
        self.emit(EventKind::QueueSet(name));
    }

    /// The same without telling.
    pub(crate) fn apply_settings(&mut self, number: Slot, settings: &QueueSettings) {
        let now = self.now;
        self.shard.edit_queue(number, |queue| {
            queue.bucket = match (queue.settings.rate, settings.rate) {
                (Some(old), Some(_)) => queue.bucket.looked_at(old, now),
                _ => Bucket::FULL,
            };
            if queue.settings.per_key != settings.per_key && queue.rings.is_some() {
                queue.sweep = Some((0, 0));
            }
            queue.settings = settings.clone();
        });
        self.shard.digest_settings(number);
        self.shard.sweep_keys(number, EXPIRIES_PER_ENTRY_MAX);
        self.shard.refresh_queue_due(number);
        for lane in LaneId::RETAINED {
            self.shard.refresh_retention(number, lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;
    use crate::testing::Yard;

    #[test]
    fn settings_out_of_bounds_are_refused() {
        let mut yard = Yard::new();
        let none = QueueSettings::default;
        for settings in [
            QueueSettings { dedup_window_ms: Some(DEDUP_WINDOW_MS_MAX + 1), ..none() },
            QueueSettings { dedup_window_ms: Some(DEDUP_WINDOW_MS_MIN - 1), ..none() },
            QueueSettings { dedup_window_ms: Some(0), ..none() },
            QueueSettings { retention_ms: Some(u64::MAX), ..none() },
            QueueSettings { dead_retention_ms: Some(u64::MAX), ..none() },
            QueueSettings { timeout_ms: Some(0), ..none() },
            QueueSettings {
                retry: Some(RetryPolicy { max_attempts: 0, ..RetryPolicy::default() }),
                ..none()
            },
        ] {
            let set = Command::SetQueue(SetQueue { queue: "mail", settings });
            assert_eq!(yard.send(set).unwrap_err().code(), "invalid_argument");
        }
        assert!(yard.machine.queues().is_empty());
    }
}
