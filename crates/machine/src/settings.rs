//! QueueSettings: what a queue decides for its tasks. What is `None` is the default of `limits.rs`.

use crate::enqueue::check_timeout;
use crate::limits::{DEDUP_WINDOW_MS_MAX, HORIZON_MS_MAX};
use crate::queue::LaneId;
use crate::rejection::at_most;
use crate::turn::Turn;
use crate::{EventKind, Outcome, Rejection, RetryPolicy, SetQueue};

/// A queue's own rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// Most waiting tasks (ready, scheduled, blocked); no bound by default.
    pub max_length: Option<u64>,
    /// How long a request_id is remembered.
    pub dedup_window_ms: Option<u64>,
    /// How long finished tasks are kept at most.
    pub retention_ms: Option<u64>,
    /// How many finished tasks are kept at most.
    pub retention_count: Option<u32>,
    /// How long dead letters are kept.
    pub dead_retention_ms: Option<u64>,
    /// How many dead letters are kept at most; no bound by default. 0 ends tasks as Failed instead.
    pub dead_retention_count: Option<u32>,
    /// For tasks that bring none.
    pub retry: Option<RetryPolicy>,
    /// For tasks that bring none.
    pub timeout_ms: Option<u64>,
}

impl QueueSettings {
    fn check(&self) -> Result<(), Rejection> {
        at_most("dedup_window_ms", self.dedup_window_ms.unwrap_or(0), DEDUP_WINDOW_MS_MAX)?;
        at_most("retention_ms", self.retention_ms.unwrap_or(0), HORIZON_MS_MAX)?;
        at_most("dead_retention_ms", self.dead_retention_ms.unwrap_or(0), HORIZON_MS_MAX)?;
        check_timeout(self.timeout_ms)?;
        self.retry.as_ref().map_or(Ok(()), |retry| retry.check())
    }
}

impl Turn<'_> {
    /// Takes hold at once, also of tasks that are kept: what the new retention no longer keeps is
    /// due for removal.
    pub(crate) fn set_queue(&mut self, set: &SetQueue<'_>) -> Result<Outcome, Rejection> {
        set.settings.check()?;
        let number = self.queue_or_new(set.queue)?;
        self.shard.edit_queue(number, |queue| queue.settings = set.settings.clone());
        for lane in LaneId::RETAINED {
            self.shard.refresh_retention(number, lane);
        }
        let name = self.shard.queues.get(number).name.clone();
        self.emit(EventKind::QueueSet(name));
        Ok(Outcome::Done)
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
