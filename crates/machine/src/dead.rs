//! Dead letters in bulk: retry or discard by id, or all that match, a bounded number per entry.

use crate::limits::{BULK_PER_ENTRY_MAX, SCAN_TASKS_MAX};
use crate::rejection::at_most;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::{
    BulkProgress, DeadAction, DeadCommand, Outcome, Rejection, Selection, TaskFilter, TaskId,
    Timestamp,
};
use std::ops::Bound;

impl Turn<'_> {
    pub(crate) fn dead(&mut self, command: &DeadCommand<'_>) -> Result<Outcome, Rejection> {
        let (slots, skipped, next) = match &command.selection {
            Selection::Ids(ids) => {
                at_most("the number of ids", ids.len() as u64, BULK_PER_ENTRY_MAX as u64)?;
                let mut slots: Vec<Slot> =
                    ids.iter().filter_map(|id| self.shard.dead.get(id).copied()).collect();
                slots.sort_unstable_by_key(|&slot| self.task(slot).id);
                slots.dedup();
                let skipped = (ids.len() - slots.len()) as u32;
                (slots, skipped, None)
            }
            Selection::Filter { filter, after, dead_before } => {
                let (slots, next) = self.matching_dead(filter, *after, *dead_before);
                (slots, 0, next)
            }
        };
        for &slot in &slots {
            match command.action {
                DeadAction::Retry => self.revive(slot),
                DeadAction::Discard => self.remove_task(slot),
            }
        }
        let changed = slots.len() as u32;
        Ok(Outcome::Bulk(BulkProgress { changed, skipped, next }))
    }

    /// Dead letters that match, in id order, and where to go on.
    fn matching_dead(
        &self,
        filter: &TaskFilter<'_>,
        after: Option<TaskId>,
        dead_before: Option<Timestamp>,
    ) -> (Vec<Slot>, Option<TaskId>) {
        let filter = TaskFilter { state: None, ..filter.clone() };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = Vec::new();
        let mut last = None;
        for (looked_at, (&id, &slot)) in
            self.shard.dead.range((start, Bound::Unbounded)).enumerate()
        {
            if looked_at == SCAN_TASKS_MAX || found.len() == BULK_PER_ENTRY_MAX {
                return (found, last);
            }
            let task = self.task(slot);
            let in_time = dead_before.is_none_or(|before| task.finished_at() < Some(before));
            if in_time && self.shard.matches(task, &filter) {
                found.push(slot);
            }
            last = Some(id);
        }
        (found, None)
    }
}
