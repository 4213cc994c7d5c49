//! Stage: a batch that is too large for one entry is staged in parts, invisible until its commit.

use crate::batch::in_batch;
use crate::enqueue::{at_most_bytes, parse_queue};
use crate::kept::Keep;
use crate::limits::{BATCH_BYTES_MAX, BATCH_STAGED_FOR_MS, BATCH_TASKS_MAX, BATCHES_STAGED_MAX};
use crate::rejection::at_most;
use crate::turn::Turn;
use crate::wire::{Wire, decode, wire_struct};
use crate::{CommitBatch, NewTask, Outcome, Rejection, StageBatch, Timestamp, Unstage};

/// A batch whose parts are still arriving.
#[derive(Debug, PartialEq)]
pub(crate) struct Staged {
    queue: Box<str>,
    /// The tasks of each part, encoded.
    parts: Vec<Box<[u8]>>,
    tasks: u32,
    expires_at: Timestamp,
}

wire_struct!(Staged { queue, parts, tasks, expires_at });

impl Keep for Staged {
    type Key = u128;
    const KIND: u8 = 6;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }

    fn heap_bytes(&self) -> usize {
        self.queue.len() + self.bytes()
    }
}

impl Staged {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }
}

impl Turn<'_> {
    /// Keeps one part. A part that came before is ignored, because it is a repetition.
    pub(crate) fn stage_batch(&mut self, part: &StageBatch<'_>) -> Result<Outcome, Rejection> {
        if self.shard.batches.get(part.batch_id).is_some() {
            return Ok(Outcome::Staged);
        }
        let expires_at = self.now.plus_ms(BATCH_STAGED_FOR_MS);
        let first = || Staged { queue: part.queue.into(), parts: vec![], tasks: 0, expires_at };
        let (parts, tasks, bytes) = match self.shard.staged.get(part.batch_id) {
            Some(staged) if *staged.queue != *part.queue => {
                return Err(Rejection::invalid(format!(
                    "a part of the batch is for queue {}; the others are for {}",
                    part.queue, staged.queue
                )));
            }
            Some(staged) => (staged.parts.len(), staged.tasks, staged.bytes()),
            None => (0, 0, 0),
        };
        if (part.part as usize) < parts {
            return Ok(Outcome::Staged);
        }
        self.check_part(part, parts)?;
        let total = tasks as usize + part.tasks.len();
        at_most("the number of tasks in the batch", total as u64, BATCH_TASKS_MAX as u64)?;
        for (index, task) in (tasks..).zip(&part.tasks) {
            task.check_shape().map_err(|rejection| in_batch(index, rejection))?;
        }
        let mut encoded = Vec::new();
        part.tasks.write(&mut encoded);
        at_most_bytes("the batch", bytes + encoded.len(), BATCH_BYTES_MAX)?;
        if parts == 0 {
            self.shard.staged.insert(part.batch_id, first());
        }
        self.shard.staged.update(part.batch_id, |staged| {
            staged.parts.push(encoded.into_boxed_slice());
            (staged.tasks, staged.expires_at) = (total as u32, expires_at);
        });
        Ok(Outcome::Staged)
    }

    /// Checks that this is the next part, and that the shard has room for its batch.
    fn check_part(&self, part: &StageBatch<'_>, expected: usize) -> Result<(), Rejection> {
        parse_queue(part.queue)?;
        if part.part as usize != expected {
            return Err(Rejection::invalid(format!(
                "part {} of the batch came before part {expected}; send parts in order",
                part.part
            )));
        }
        if expected == 0 && self.shard.staged.len() >= BATCHES_STAGED_MAX {
            return Err(Rejection::LimitExceeded {
                what: format!(
                    "this shard stages its limit of {BATCHES_STAGED_MAX} batches; \
                     send the batch again later"
                ),
            });
        }
        Ok(())
    }

    pub(crate) fn commit_batch(&mut self, commit: CommitBatch) -> Result<Outcome, Rejection> {
        let CommitBatch { batch_id, parts } = commit;
        if let Some(memory) = self.shard.batches.get(batch_id) {
            let answers = memory.answers().into_iter().flatten().collect();
            return Ok(Outcome::EnqueuedBatch(answers));
        }
        let Some(staged) = self.shard.staged.get(batch_id) else {
            return Err(Rejection::BatchNotFound { batch: batch_id });
        };
        if staged.parts.len() != parts as usize {
            return Err(Rejection::invalid(format!(
                "the batch has {} parts staged; {parts} were to be committed",
                staged.parts.len()
            )));
        }
        // The tasks borrow from the staged batch, so that it is taken out, and put back on a
        // rejection.
        let staged = self.shard.staged.remove(batch_id).expect("it was just found");
        let decode_part =
            |part| -> Vec<NewTask<'_>> { decode(part).expect("a staged part was encoded here") };
        let tasks: Vec<NewTask<'_>> =
            staged.parts.iter().flat_map(|part| decode_part(part)).collect();
        let outcome = self.enqueue_all(Some(batch_id), &staged.queue, &tasks);
        drop(tasks);
        if outcome.is_err() {
            self.shard.staged.insert(batch_id, staged);
        }
        outcome
    }

    /// Drops a staged batch or flow, so that it does not take the place of another one.
    pub(crate) fn unstage(&mut self, unstage: Unstage) -> Outcome {
        self.shard.staged.remove(unstage.batch_id);
        self.shard.staged_flows.remove(unstage.batch_id);
        Outcome::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Yard, new_task};
    use crate::{Command, QueueSettings, StageFlow, TaskId};

    fn ids(outcome: Result<Outcome, Rejection>) -> Vec<TaskId> {
        match outcome {
            Ok(Outcome::EnqueuedBatch(made)) => made.into_iter().map(|made| made.id).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn stage(part: u32, tasks: Vec<NewTask<'_>>) -> Command<'_> {
        Command::StageBatch(StageBatch { batch_id: 5, queue: "mail", part, tasks })
    }

    fn commit(parts: u32) -> Command<'static> {
        Command::CommitBatch(CommitBatch { batch_id: 5, parts })
    }

    #[test]
    fn a_staged_batch_is_invisible_until_it_is_committed() {
        let mut yard = Yard::new();
        assert_eq!(yard.send(stage(0, vec![new_task(); 2])), Ok(Outcome::Staged));
        assert_eq!(yard.send(stage(0, vec![new_task(); 2])), Ok(Outcome::Staged), "repeated");
        assert!(yard.send(stage(2, vec![new_task()])).is_err(), "out of order");
        assert_eq!(yard.send(stage(1, vec![new_task()])), Ok(Outcome::Staged));
        assert_eq!(yard.machine.task_count(), 0);
        assert!(yard.send(commit(3)).is_err(), "a part is missing");
        let made = ids(yard.send(commit(2)));
        assert_eq!(made.len(), 3);
        assert_eq!(ids(yard.send(commit(2))), made, "committed again");
        assert_eq!(yard.send(stage(0, vec![new_task()])), Ok(Outcome::Staged), "a late repetition");
        assert_eq!(yard.counts("mail").enqueued_total, 3);
    }

    #[test]
    fn a_bad_part_names_its_place_in_the_whole_batch() {
        let mut yard = Yard::new();
        yard.send(stage(0, vec![new_task(); 2])).unwrap();
        let bad = NewTask { task_type: "", ..new_task() };
        let answer = yard.send(stage(1, vec![new_task(), bad]));
        assert!(matches!(answer, Err(Rejection::BatchElement { index: 3, .. })), "{answer:?}");
    }

    #[test]
    fn an_uncommitted_staged_batch_is_dropped() {
        let mut yard = Yard::new();
        yard.send(stage(0, vec![new_task()])).unwrap();
        yard.wait_ms(BATCH_STAGED_FOR_MS);
        let answer = yard.send(commit(1));
        assert_eq!(answer, Err(Rejection::BatchNotFound { batch: 5 }));
    }

    #[test]
    fn a_batch_that_is_unstaged_is_gone_unless_it_was_committed() {
        let mut yard = Yard::new();
        let unstage = || Command::Unstage(Unstage { batch_id: 5 });
        assert_eq!(yard.send(unstage()), Ok(Outcome::Done), "nothing is there");
        yard.send(stage(0, vec![new_task()])).unwrap();
        assert_eq!(yard.send(unstage()), Ok(Outcome::Done));
        assert_eq!(yard.send(commit(1)), Err(Rejection::BatchNotFound { batch: 5 }));
        yard.send(stage(0, vec![new_task()])).unwrap();
        let made = ids(yard.send(commit(1)));
        assert_eq!(yard.send(unstage()), Ok(Outcome::Done));
        assert_eq!(ids(yard.send(commit(1))), made, "what is committed is remembered");
        assert_eq!(yard.machine.task_count(), 1);
    }

    #[test]
    fn an_unstaged_flow_starts_again() {
        let mut yard = Yard::new();
        let part = |part| Command::StageFlow(StageFlow { batch_id: 5, part, nodes: Vec::new() });
        assert_eq!(yard.send(part(0)), Ok(Outcome::Staged));
        yard.send(Command::Unstage(Unstage { batch_id: 5 })).unwrap();
        assert!(yard.send(part(1)).is_err(), "the first part is gone");
        assert_eq!(yard.send(part(0)), Ok(Outcome::Staged));
        assert_eq!(yard.send(part(1)), Ok(Outcome::Staged));
    }

    #[test]
    fn a_batch_that_does_not_fit_stays_staged() {
        let mut yard = Yard::new();
        let full = QueueSettings { max_length: Some(1), ..QueueSettings::default() };
        yard.set("mail", full);
        yard.send(stage(0, vec![new_task(); 2])).unwrap();
        assert_eq!(yard.send(commit(1)).unwrap_err().code(), "queue_full");
        yard.set("mail", QueueSettings::default());
        assert_eq!(ids(yard.send(commit(1))).len(), 2);
    }

    #[test]
    fn a_shard_stages_a_bounded_number_of_batches() {
        let mut yard = Yard::new();
        let first = |batch_id: usize| {
            let (batch_id, tasks) = (batch_id as u128, vec![new_task()]);
            Command::StageBatch(StageBatch { batch_id, queue: "mail", part: 0, tasks })
        };
        for batch_id in 0..BATCHES_STAGED_MAX {
            yard.send(first(batch_id)).unwrap();
        }
        let rejection = yard.send(first(BATCHES_STAGED_MAX)).unwrap_err();
        assert_eq!(rejection.code(), "limit_exceeded");
    }
}
