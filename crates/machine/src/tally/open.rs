//! Open: creates a tally, adds tasks to it, and commits or reopens it.

use crate::batch::in_batch;
use crate::enqueue::at_most_bytes;
use crate::limits::{
    TALLY_ADD_TASKS_MAX, TALLY_CALLBACK_BYTES_MAX, TALLY_CHILDREN_MAX, TALLY_DEPTH_MAX,
    TALLY_DESCRIPTION_BYTES_MAX,
};
use crate::rejection::at_most;
use crate::tally::{Callback, CallbackState, Counts, Stage, Standing, Tally};
use crate::turn::Turn;
use crate::watch::Watch;
use crate::wire::encode;
use crate::{
    AddToTally, CommitTally, Enqueued, FollowUp, OpenTally, Outcome, Rejection, ReopenTally, TaskId,
};

impl Turn<'_> {
    pub(crate) fn open_tally(&mut self, open: &OpenTally<'_>) -> Result<Outcome, Rejection> {
        if let Some(tally) = self.known_tally(open.batch_id)? {
            return Ok(Outcome::TallyOpened { tally });
        }
        let bytes = open.description.len();
        at_most_bytes("description", bytes, TALLY_DESCRIPTION_BYTES_MAX)?;
        let depth = open.parent.map_or(Ok(0), |parent| self.depth_below(parent))?;
        let complete = self.callback("complete", open.complete.as_deref())?;
        let success = self.callback("success", open.success.as_deref())?;
        let tally = self.next_id(self.shard.identity.shard);
        let made = Enqueued { id: tally, duplicate: false };
        self.remember_batch(open.batch_id, [Some(made)].into_iter());
        let opened = Tally {
            description: open.description.into(),
            parent: open.parent,
            depth,
            created_at: self.now,
            stage: Stage::Open,
            counts: Counts::default(),
            children: 0,
            children_running: 0,
            children_unsucceeded: 0,
            complete,
            success,
            touched_at: self.now,
        };
        self.shard.tallies.insert(tally, opened);
        if let Some(parent) = open.parent {
            let now = self.now;
            self.edit_tally(parent, |parent| {
                parent.children += 1;
                parent.children_running += 1;
                parent.children_unsucceeded += 1;
                parent.touched_at = now;
            });
        }
        Ok(Outcome::TallyOpened { tally })
    }

    /// Counts the tasks and sends them to the shards of their queues. This entry accepts them, so
    /// that a full queue does not reject them. A task whose request or unique key another task has
    /// is reported back, and is no longer counted.
    pub(crate) fn add_to_tally(&mut self, add: &AddToTally<'_>) -> Result<Outcome, Rejection> {
        let AddToTally { tally, batch_id, ref tasks } = *add;
        if let Some(answers) = self.batch_answers(batch_id, tasks.len())? {
            let ids = answers.into_iter().flatten().map(|answer| answer.id).collect();
            return Ok(Outcome::TallyAdded { ids });
        }
        self.tally(tally)?;
        at_most("the number of added tasks", tasks.len() as u64, TALLY_ADD_TASKS_MAX as u64)?;
        for (index, task) in (0..).zip(tasks) {
            self.check_follow_up(task).map_err(|rejection| in_batch(index, rejection))?;
        }
        let ids: Vec<TaskId> = tasks.iter().map(|task| self.next_id(task.home)).collect();
        let answers = ids.iter().map(|&id| Some(Enqueued { id, duplicate: false }));
        self.remember_batch(batch_id, answers);
        let (now, reported) = (self.now, Standing::NotRun);
        self.edit_tally(tally, |tally| {
            tasks.iter().for_each(|_| tally.counts.add(reported.counts()));
            tally.touched_at = now;
        });
        for (&id, task) in ids.iter().zip(tasks) {
            self.owe_enqueue(id, &task.enqueue, Some(Watch::Tally { tally, reported }));
        }
        Ok(Outcome::TallyAdded { ids })
    }

    /// Delays the callbacks that are not enqueued yet. An enqueued one is neither withdrawn nor
    /// repeated.
    pub(crate) fn reopen_tally(&mut self, reopen: ReopenTally) -> Result<Outcome, Rejection> {
        let was = self.tally(reopen.tally)?.stage;
        let stage = if was == Stage::Open { Stage::Open } else { Stage::Reopened };
        self.set_stage(reopen.tally, stage)
    }

    pub(crate) fn commit_tally(&mut self, commit: CommitTally) -> Result<Outcome, Rejection> {
        let outcome = self.set_stage(commit.tally, Stage::Committed)?;
        self.advance(commit.tally);
        Ok(outcome)
    }

    fn set_stage(&mut self, tally: TaskId, stage: Stage) -> Result<Outcome, Rejection> {
        self.tally(tally)?;
        let now = self.now;
        self.edit_tally(tally, |tally| (tally.stage, tally.touched_at) = (stage, now));
        Ok(Outcome::Done)
    }

    /// The tally that was opened with this id before.
    fn known_tally(&self, batch_id: Option<u128>) -> Result<Option<TaskId>, Rejection> {
        let Some(answers) = self.batch_answers(batch_id, 1)? else { return Ok(None) };
        let tally = answers.into_iter().flatten().next().map(|answer| answer.id);
        match tally.filter(|&id| self.shard.tallies.get(id).is_some()) {
            Some(tally) => Ok(Some(tally)),
            None => Err(Rejection::invalid(
                "the batch_id was used for something else; give the tally its own",
            )),
        }
    }

    /// The depth of a new tally below `parent`, if there is room for one.
    fn depth_below(&self, parent: TaskId) -> Result<u32, Rejection> {
        let shard = self.shard.identity.shard;
        if parent.home != shard {
            return Err(Rejection::invalid(format!(
                "tally {parent} lives on shard {}, not on {shard}; what is below it lies with it",
                parent.home
            )));
        }
        let found = self.tally(parent)?;
        let depth = found.depth + 1;
        if found.children as usize >= TALLY_CHILDREN_MAX {
            let what = format!(
                "tally {parent} has its limit of {TALLY_CHILDREN_MAX} tallies below it; \
                 add tasks to one of them"
            );
            return Err(Rejection::LimitExceeded { what });
        }
        if depth > TALLY_DEPTH_MAX {
            let what = format!(
                "tally {parent} has {TALLY_DEPTH_MAX} tallies above it, which is the limit; \
                 open the new one below another"
            );
            return Err(Rejection::LimitExceeded { what });
        }
        Ok(depth)
    }

    fn callback(
        &self,
        name: &str,
        follow_up: Option<&FollowUp<'_>>,
    ) -> Result<Callback, Rejection> {
        let state = CallbackState::Waiting;
        let Some(follow_up) = follow_up else { return Ok(Callback { follow_up: None, state }) };
        self.check_follow_up(follow_up)?;
        let bytes = encode(follow_up);
        at_most_bytes(name, bytes.len(), TALLY_CALLBACK_BYTES_MAX)?;
        Ok(Callback { follow_up: Some(bytes), state })
    }
}
