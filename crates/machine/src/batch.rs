//! Many tasks at once: answered one by one, or all or none; in one entry, or staged in parts.
//!
//! A batch with an id is remembered for ten minutes, so that its repetition enqueues nothing twice.

use crate::enqueue::{at_most_bytes, parse_queue};
use crate::entry::EncodedCommand;
use crate::kept::Keep;
use crate::limits::*;
use crate::rejection::at_most;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::wire::{Reader, Wire, wire_struct};
use crate::{
    Command, CommitBatch, DecodeError, EnqueueBatch, EnqueueMany, Enqueued, NewTask, Outcome,
    Rejection, StageBatch, TaskId, Timestamp,
};
use std::collections::BTreeSet;

/// What a batch was answered.
#[derive(Debug, PartialEq)]
pub(crate) struct BatchMemory {
    answers: Vec<Answer>,
    expires_at: Timestamp,
}

/// The answers to neighbouring tasks of a batch. New tasks have consecutive ids, so that a batch is
/// mostly one of these.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Made { first: TaskId, count: u32 },
    Known(TaskId),
    Rejected { count: u32 },
}

wire_struct!(BatchMemory { answers, expires_at });

impl<'a> Wire<'a> for Answer {
    fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Answer::Made { first, count } => {
                out.push(1);
                (first, count).write(out);
            }
            Answer::Known(id) => (2u8, id).write(out),
            Answer::Rejected { count } => (3u8, count).write(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Answer, DecodeError> {
        match reader.byte()? {
            1 => Ok(Answer::Made { first: reader.read()?, count: reader.read()? }),
            2 => Ok(Answer::Known(reader.read()?)),
            3 => Ok(Answer::Rejected { count: reader.read()? }),
            other => Err(reader.error(format_args!("unknown batch answer {other}"))),
        }
    }
}

impl Keep for BatchMemory {
    type Key = u128;
    const KIND: u8 = 5;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }

    fn heap_bytes(&self) -> usize {
        size_of_val(&self.answers[..])
    }
}

impl BatchMemory {
    /// Packs answers; `None` is a rejection.
    fn new(answers: impl Iterator<Item = Option<Enqueued>>, expires_at: Timestamp) -> BatchMemory {
        let mut packed: Vec<Answer> = Vec::new();
        for answer in answers {
            match (packed.last_mut(), answer) {
                (Some(Answer::Rejected { count }), None) => *count += 1,
                (_, None) => packed.push(Answer::Rejected { count: 1 }),
                (_, Some(Enqueued { id, duplicate: true })) => packed.push(Answer::Known(id)),
                (Some(Answer::Made { first, count }), Some(Enqueued { id, .. }))
                    if id.sequence == first.sequence + u64::from(*count) =>
                {
                    *count += 1;
                }
                (_, Some(Enqueued { id, .. })) => packed.push(Answer::Made { first: id, count: 1 }),
            }
        }
        packed.shrink_to_fit();
        BatchMemory { answers: packed, expires_at }
    }

    /// The answers again; `None` is a rejection.
    fn answers(&self) -> Vec<Option<Enqueued>> {
        let unpack = |answer: &Answer| -> Vec<Option<Enqueued>> {
            match *answer {
                Answer::Made { first, count } => (0..u64::from(count))
                    .map(|n| TaskId { sequence: first.sequence + n, ..first })
                    .map(|id| Some(Enqueued { id, duplicate: false }))
                    .collect(),
                Answer::Known(id) => vec![Some(Enqueued { id, duplicate: true })],
                Answer::Rejected { count } => vec![None; count as usize],
            }
        };
        self.answers.iter().flat_map(unpack).collect()
    }
}

/// A batch whose parts are still coming.
#[derive(Debug, PartialEq)]
pub(crate) struct Staged {
    queue: Box<str>,
    /// Each part as its encoded `StageBatch`.
    parts: Vec<Box<[u8]>>,
    tasks: u32,
    bytes: u64,
    expires_at: Timestamp,
}

wire_struct!(Staged { queue, parts, tasks, bytes, expires_at });

impl Keep for Staged {
    type Key = u128;
    const KIND: u8 = 6;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }

    fn heap_bytes(&self) -> usize {
        self.bytes as usize + self.queue.len()
    }
}

impl Turn<'_> {
    /// Answers each task by itself. In a repetition the accepted ones keep their answer; the rejected
    /// ones, which made nothing, are judged again.
    pub(crate) fn enqueue_many(&mut self, many: &EnqueueMany<'_>) -> Result<Outcome, Rejection> {
        let count = many.items.len();
        at_most("the number of tasks", count as u64, BATCH_TASKS_MAX as u64)?;
        let mut known = self.batch_answers(many.batch_id, count)?.unwrap_or_default();
        known.resize(count, None);
        let answers: Vec<Result<Enqueued, Rejection>> = known
            .iter()
            .zip(&many.items)
            .map(|(answer, item)| answer.map_or_else(|| self.enqueue_one(item), Ok))
            .collect();
        let made = answers.iter().map(|answer| answer.as_ref().ok().copied());
        self.remember_batch(many.batch_id, made);
        Ok(Outcome::EnqueuedMany(answers))
    }

    pub(crate) fn enqueue_batch(&mut self, batch: &EnqueueBatch<'_>) -> Result<Outcome, Rejection> {
        if let Some(answers) = self.batch_answers(batch.batch_id, batch.tasks.len())? {
            return Ok(Outcome::EnqueuedBatch(answers.into_iter().flatten().collect()));
        }
        let tasks: Vec<&NewTask<'_>> = batch.tasks.iter().collect();
        self.enqueue_all(batch.batch_id, batch.queue, &tasks)
    }

    pub(crate) fn stage_batch(&mut self, part: &StageBatch<'_>) -> Result<Outcome, Rejection> {
        if self.shard.batches.get(part.batch_id).is_some() {
            return Ok(Outcome::Staged);
        }
        let (queue, parts, tasks, bytes) = match self.shard.staged.get(part.batch_id) {
            Some(staged) => (&*staged.queue, staged.parts.len(), staged.tasks, staged.bytes),
            None => (part.queue, 0, 0, 0),
        };
        if queue != part.queue {
            return Err(Rejection::invalid(format!(
                "a part of the batch is for queue {}; the others are for {queue}",
                part.queue
            )));
        }
        parse_queue(queue)?;
        if (part.part as usize) < parts {
            return Ok(Outcome::Staged);
        }
        if part.part as usize > parts {
            return Err(Rejection::invalid(format!(
                "part {} of the batch came before part {parts}; send parts in order",
                part.part
            )));
        }
        let total = tasks + part.tasks.len() as u32;
        at_most("the number of tasks in the batch", total.into(), BATCH_TASKS_MAX as u64)?;
        for (index, task) in (tasks..).zip(&part.tasks) {
            task.check_shape().map_err(|rejection| in_batch(index, rejection))?;
        }
        let encoded = EncodedCommand::new(&Command::StageBatch(part.clone()));
        let encoded: Box<[u8]> = encoded.as_bytes().into();
        let bytes = bytes + encoded.len() as u64;
        at_most_bytes("the batch", bytes as usize, BATCH_BYTES_MAX)?;
        self.keep_part(part, encoded, total, bytes)?;
        Ok(Outcome::Staged)
    }

    fn keep_part(
        &mut self,
        part: &StageBatch<'_>,
        encoded: Box<[u8]>,
        tasks: u32,
        bytes: u64,
    ) -> Result<(), Rejection> {
        let expires_at = self.now.plus_ms(BATCH_STAGED_FOR_MS);
        let staged = &mut self.shard.staged;
        if part.part == 0 {
            if staged.len() >= BATCHES_STAGED_MAX {
                return Err(Rejection::LimitExceeded {
                    what: format!(
                        "this shard stages its limit of {BATCHES_STAGED_MAX} batches; \
                         send the batch again later"
                    ),
                });
            }
            let queue = part.queue.into();
            let first = Staged { queue, parts: vec![encoded], tasks, bytes, expires_at };
            staged.insert(part.batch_id, first);
        } else {
            staged.update(part.batch_id, |staged| {
                staged.parts.push(encoded);
                (staged.tasks, staged.bytes, staged.expires_at) = (tasks, bytes, expires_at);
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
        // Taken out while its tasks are borrowed from it; put back if it can't be committed now.
        let staged = self.shard.staged.remove(batch_id).expect("it was just found");
        let decoded: Vec<Command<'_>> = staged
            .parts
            .iter()
            .map(|part| Reader::new(part).read().expect("a staged part was encoded here"))
            .collect();
        let tasks: Vec<&NewTask<'_>> = decoded
            .iter()
            .flat_map(|command| match command {
                Command::StageBatch(part) => &part.tasks[..],
                _ => &[],
            })
            .collect();
        let outcome = self.enqueue_all(Some(batch_id), &staged.queue, &tasks);
        drop(tasks);
        drop(decoded);
        if outcome.is_err() {
            self.shard.staged.insert(batch_id, staged);
        }
        outcome
    }

    /// Checks all tasks first, then adds all.
    fn enqueue_all(
        &mut self,
        batch_id: Option<u128>,
        queue: &str,
        tasks: &[&NewTask<'_>],
    ) -> Result<Outcome, Rejection> {
        if tasks.is_empty() {
            return Err(Rejection::invalid("the batch has no tasks; give at least one"));
        }
        at_most("the number of tasks in the batch", tasks.len() as u64, BATCH_TASKS_MAX as u64)?;
        parse_queue(queue)?;
        for (index, task) in (0..).zip(tasks) {
            if self.known_request(queue, task.request_id).is_none() {
                task.check(self.now).map_err(|rejection| in_batch(index, rejection))?;
            }
        }
        self.check_room(queue, self.count_new(queue, tasks))?;
        let queue = self.queue_or_new(queue)?;
        let answers: Vec<Enqueued> =
            tasks.iter().map(|task| self.insert_new(queue, task)).collect();
        self.remember_batch(batch_id, answers.iter().copied().map(Some));
        Ok(Outcome::EnqueuedBatch(answers))
    }

    /// How many tasks a batch will really make: known and repeated request ids make none.
    fn count_new(&self, queue: &str, tasks: &[&NewTask<'_>]) -> u64 {
        let queue_number: Option<Slot> = self.shard.queues.find(queue);
        let window = queue_number.map(|number| self.shard.queues.get(number).dedup_window_ms());
        if window == Some(0) {
            return tasks.len() as u64;
        }
        let mut seen = BTreeSet::new();
        let mut is_new = |request_id: Option<_>| match request_id {
            Some(id) => self.known_request(queue, Some(id)).is_none() && seen.insert(id),
            None => true,
        };
        tasks.iter().map(|task| task.request_id).filter(|&id| is_new(id)).count() as u64
    }

    /// What this batch was answered before; `None` for a task is a rejection.
    fn batch_answers(
        &self,
        batch_id: Option<u128>,
        count: usize,
    ) -> Result<Option<Vec<Option<Enqueued>>>, Rejection> {
        let Some(memory) = batch_id.and_then(|id| self.shard.batches.get(id)) else {
            return Ok(None);
        };
        let answers = memory.answers();
        if answers.len() != count {
            return Err(Rejection::invalid(format!(
                "the batch has {count} tasks and had {} when it was sent before; \
                 give another batch another batch_id",
                answers.len()
            )));
        }
        Ok(Some(answers))
    }

    fn remember_batch(
        &mut self,
        batch_id: Option<u128>,
        answers: impl Iterator<Item = Option<Enqueued>>,
    ) {
        let Some(batch_id) = batch_id else { return };
        let memory = BatchMemory::new(answers, self.now.plus_ms(BATCH_ID_KEPT_FOR_MS));
        self.shard.batches.insert(batch_id, memory);
        if self.shard.batches.len() > BATCH_IDS_MAX {
            self.shard.batches.forget_first();
        }
    }
}

pub(crate) fn in_batch(index: u32, rejection: Rejection) -> Rejection {
    Rejection::BatchElement { index, rejection: Box::new(rejection) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Enqueue;
    use crate::QueueSettings;
    use crate::testing::{Yard, new_task};

    fn batch<'a>(batch_id: Option<u128>, tasks: Vec<NewTask<'a>>) -> Command<'a> {
        Command::EnqueueBatch(EnqueueBatch { batch_id, queue: "mail", tasks })
    }

    fn ids(outcome: Result<Outcome, Rejection>) -> Vec<TaskId> {
        match outcome {
            Ok(Outcome::EnqueuedBatch(made)) => made.into_iter().map(|made| made.id).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_bad_task_refuses_the_batch_and_is_named() {
        let mut yard = Yard::new();
        let bad = NewTask { priority: Some(12), ..new_task() };
        let answer = yard.send(batch(None, vec![new_task(), bad, new_task()]));
        let Err(Rejection::BatchElement { index: 1, rejection }) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(rejection.code(), "invalid_argument");
        assert_eq!(yard.machine.task_count(), 0);
        assert!(yard.send(batch(None, vec![])).is_err(), "an empty batch is a mistake");
    }

    #[test]
    fn a_batch_that_does_not_fit_its_queue_is_refused_whole() {
        let mut yard = Yard::new();
        yard.set("mail", QueueSettings { max_length: Some(2), ..QueueSettings::default() });
        let answer = yard.send(batch(None, vec![new_task(); 3]));
        assert_eq!(answer.unwrap_err().code(), "queue_full");
        let same = NewTask { request_id: Some("r"), ..new_task() };
        let made = ids(yard.send(batch(None, vec![same.clone(), same, new_task()])));
        assert_eq!(made[0], made[1], "repeated request ids are one task, so two fit");
        assert_eq!(yard.counts("mail").ready, 2);
    }

    #[test]
    fn a_batch_that_is_sent_again_enqueues_nothing_twice() {
        let mut yard = Yard::new();
        let first = ids(yard.send(batch(Some(1), vec![new_task(); 3])));
        assert_eq!(ids(yard.send(batch(Some(1), vec![new_task(); 3]))), first);
        assert!(yard.send(batch(Some(1), vec![new_task(); 2])).is_err(), "another batch");
        assert_eq!(yard.counts("mail").enqueued_total, 3);
        yard.wait_ms(BATCH_ID_KEPT_FOR_MS);
        assert_ne!(ids(yard.send(batch(Some(1), vec![new_task(); 3]))), first);
    }

    #[test]
    fn many_tasks_are_answered_one_by_one_and_rejected_ones_are_judged_again() {
        let mut yard = Yard::new();
        yard.set("small", QueueSettings { max_length: Some(1), ..QueueSettings::default() });
        let send = |yard: &mut Yard| {
            let item = |queue| Enqueue { queue, task: new_task() };
            let items = vec![item("small"), item("small"), item("mail")];
            match yard.send(Command::EnqueueMany(EnqueueMany { batch_id: Some(9), items })) {
                Ok(Outcome::EnqueuedMany(answers)) => answers,
                other => panic!("{other:?}"),
            }
        };
        let first = send(&mut yard);
        assert_eq!(first[1].as_ref().unwrap_err().code(), "queue_full");
        yard.claim_one("small");
        let second = send(&mut yard);
        assert_eq!((&second[0], &second[2]), (&first[0], &first[2]));
        assert!(second[1].is_ok(), "there is room for it now");
        assert_eq!(send(&mut yard), second);
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
    fn a_staged_batch_that_nobody_commits_is_dropped() {
        let mut yard = Yard::new();
        yard.send(stage(0, vec![new_task()])).unwrap();
        yard.wait_ms(BATCH_STAGED_FOR_MS);
        let answer = yard.send(commit(1));
        assert_eq!(answer, Err(Rejection::BatchNotFound { batch: 5 }));
    }
}
