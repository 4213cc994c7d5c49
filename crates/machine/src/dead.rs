//! Dead letters in bulk: retries or discards ids or all matches, a bounded number per entry.

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
        let (slots, mut skipped, next) = match &command.selection {
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
        let mut held = 0;
        for &slot in &slots {
            match command.action {
                // A retried task may not run beside another task that has its unique key by now.
                DeadAction::Retry if self.check_revival(slot).is_err() => held += 1,
                DeadAction::Retry => self.revive(slot),
                DeadAction::Discard => self.remove_task(slot),
            }
        }
        let changed = slots.len() as u32 - held;
        skipped += held;
        Ok(Outcome::Bulk(BulkProgress { changed, skipped, next }))
    }

    /// Dead letters that match, in id order, and the id after which the next entry goes on.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Yard, fail, tried};
    use crate::{Command, Fail, NewTask, TaskError, TaskStateName};

    fn bury(yard: &mut Yard, queue: &str, error_type: &'static str) -> TaskId {
        let id = yard.enqueue_task(queue, NewTask { tags: vec!["x"], ..tried(1) }).unwrap().id;
        let held = yard.claim_one(queue);
        let error = TaskError { error_type, message: "no route", backtrace: "" };
        yard.fail_with(Fail { error, ..fail(&held) }).unwrap();
        id
    }

    fn send(yard: &mut Yard, action: DeadAction, selection: Selection<'_>) -> BulkProgress {
        match yard.send(Command::Dead(DeadCommand { action, selection })) {
            Ok(Outcome::Bulk(progress)) => progress,
            other => panic!("{other:?}"),
        }
    }

    fn matching(filter: TaskFilter<'_>) -> Selection<'_> {
        Selection::Filter { filter, after: None, dead_before: None }
    }

    #[test]
    fn named_letters_are_changed_and_others_skipped() {
        let mut yard = Yard::new();
        let dead = bury(&mut yard, "mail", "io");
        let ready = yard.enqueue("mail");
        let unknown = TaskId { sequence: 99, ..dead };
        let ids = Selection::Ids(vec![dead, ready, unknown, dead]);
        let progress = send(&mut yard, DeadAction::Retry, ids);
        assert_eq!((progress.changed, progress.skipped, progress.next), (1, 3, None));
        assert_eq!(yard.state(dead), TaskStateName::Ready);
        let many = Selection::Ids(vec![dead; BULK_PER_ENTRY_MAX + 1]);
        let command = DeadCommand { action: DeadAction::Retry, selection: many };
        assert!(yard.send(Command::Dead(command)).is_err());
    }

    #[test]
    fn a_filter_matches_queue_type_error_and_tag() {
        let mut yard = Yard::new();
        bury(&mut yard, "mail", "io");
        bury(&mut yard, "mail", "parse");
        bury(&mut yard, "video", "io");
        let none = TaskFilter::default();
        for (filter, count) in [
            (TaskFilter { queue: Some("unknown"), ..none.clone() }, 0),
            (TaskFilter { task_type: Some("other"), ..none.clone() }, 0),
            (TaskFilter { tag: Some("y"), ..none.clone() }, 0),
            (TaskFilter { error: Some("parse"), queue: Some("mail"), ..none.clone() }, 1),
            (TaskFilter { error: Some("route"), tag: Some("x"), ..none.clone() }, 2),
        ] {
            let progress = send(&mut yard, DeadAction::Discard, matching(filter.clone()));
            assert_eq!(progress.changed, count, "{filter:?}");
        }
        assert_eq!(yard.machine.task_count(), 0);
    }

    #[test]
    fn an_operation_goes_on_from_its_cursor_and_spares_later_deaths() {
        let mut yard = Yard::new();
        let total = BULK_PER_ENTRY_MAX + 5;
        for _ in 0..total {
            yard.bury_unchecked("mail");
        }
        yard.pass_ms(1);
        let dead_before = Some(yard.now());
        let late = bury(&mut yard, "mail", "io");
        let mut after = None;
        let mut changed = 0;
        loop {
            let filter = TaskFilter::default();
            let selection = Selection::Filter { filter, after, dead_before };
            let progress = send(&mut yard, DeadAction::Discard, selection);
            assert!(progress.changed as usize <= BULK_PER_ENTRY_MAX);
            changed += progress.changed as usize;
            match progress.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(changed, total);
        assert_eq!(yard.state(late), TaskStateName::Dead);
    }
}
