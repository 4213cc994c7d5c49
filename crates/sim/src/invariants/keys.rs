//! Unique keys: one holder at a time, and none that has ended.

use super::{Phase, ShardAccount, Violation, enqueued};
use std::collections::{BTreeMap, BTreeSet};
use taskyard_machine::{Command, Outcome, Rejection, TaskId, UniqueUntil};

impl ShardAccount {
    /// Checks that a task which has ended no longer has a key that it had until done.
    pub(super) fn judge_refusals(
        &self,
        outcomes: &[Result<Outcome, Rejection>],
        revived: &BTreeSet<TaskId>,
    ) -> Result<(), Violation> {
        for holder in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()?.holder()) {
            let Some(task) = self.tasks.get(&holder) else { continue };
            let ended = matches!(task.phase, Phase::Finished(_) | Phase::Removed);
            if ended && task.key.is_some() && !revived.contains(&holder) {
                return Err(format!("a key is held by {holder}, which is {:?}", task.phase));
            }
        }
        Ok(())
    }

    /// Checks that only one living task has a key until it is done.
    pub(super) fn judge_keys(
        &mut self,
        commands: &[Command<'_>],
        outcomes: &[Result<Outcome, Rejection>],
    ) -> Result<(), Violation> {
        for (queue, task, id, known) in enqueued(commands, outcomes) {
            let Some(unique) = task.unique.as_ref().filter(|_| !known) else { continue };
            let until_done = unique.until != Some(UniqueUntil::Start)
                && unique.window_ms.is_none()
                && unique.debounce_ms.is_none();
            if let Some(account) = self.tasks.get_mut(&id).filter(|_| until_done) {
                account.key = Some((queue.to_owned(), unique.key.to_string()));
            }
        }
        let mut holders = BTreeMap::new();
        for (id, task) in &self.tasks {
            let live = matches!(task.phase, Phase::Waiting | Phase::Claimed { .. });
            let Some(key) = task.key.as_ref().filter(|_| live) else { continue };
            if let Some(other) = holders.insert(key, id) {
                return Err(format!("tasks {other} and {id} both hold key {key:?}"));
            }
        }
        Ok(())
    }
}
