//! BatchMemory: the answer to a batch with an id, kept for ten minutes so that a repeated batch
//! enqueues nothing twice.

use crate::kept::Keep;
use crate::limits::{BATCH_ID_KEPT_FOR_MS, BATCH_IDS_MAX};
use crate::turn::Turn;
use crate::wire::{Reader, Wire, wire_struct};
use crate::{DecodeError, Enqueued, Rejection, TaskId, Timestamp};

/// The answers to the tasks of one batch.
#[derive(Debug, PartialEq)]
pub(crate) struct BatchMemory {
    answers: Vec<Answer>,
    expires_at: Timestamp,
}

/// The answers to neighbouring tasks of a batch. New tasks have consecutive ids, so that most
/// batches need a single answer.
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

impl TaskId {
    /// The id that the same shard makes `count` ids later for the same home shard.
    fn following(self, count: u32) -> TaskId {
        TaskId { sequence: self.sequence + u64::from(count), ..self }
    }
}

impl BatchMemory {
    /// Packs answers; `None` stands for a rejection.
    fn new(answers: impl Iterator<Item = Option<Enqueued>>, expires_at: Timestamp) -> BatchMemory {
        let mut packed: Vec<Answer> = Vec::new();
        for answer in answers {
            match (packed.last_mut(), answer) {
                (Some(Answer::Rejected { count }), None) => *count += 1,
                (_, None) => packed.push(Answer::Rejected { count: 1 }),
                (_, Some(Enqueued { id, duplicate: true })) => packed.push(Answer::Known(id)),
                (Some(Answer::Made { first, count }), Some(Enqueued { id, .. }))
                    if id == first.following(*count) =>
                {
                    *count += 1;
                }
                (_, Some(Enqueued { id, .. })) => packed.push(Answer::Made { first: id, count: 1 }),
            }
        }
        packed.shrink_to_fit();
        BatchMemory { answers: packed, expires_at }
    }

    /// Unpacks the answers; `None` stands for a rejection.
    pub(crate) fn answers(&self) -> Vec<Option<Enqueued>> {
        let unpack = |answer: &Answer| -> Vec<Option<Enqueued>> {
            match *answer {
                Answer::Made { first, count } => (0..count)
                    .map(|n| first.following(n))
                    .map(|id| Some(Enqueued { id, duplicate: false }))
                    .collect(),
                Answer::Known(id) => vec![Some(Enqueued { id, duplicate: true })],
                Answer::Rejected { count } => vec![None; count as usize],
            }
        };
        self.answers.iter().flat_map(unpack).collect()
    }
}

impl Turn<'_> {
    /// The answers that this batch got before; `None` for a task stands for a rejection.
    pub(crate) fn batch_answers(
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

    pub(crate) fn remember_batch(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    fn made(sequence: u64, duplicate: bool) -> Option<Enqueued> {
        let id = TaskId { incarnation: 1, home: ShardId(1), origin: ShardId(1), sequence };
        Some(Enqueued { id, duplicate })
    }

    #[test]
    fn answers_are_packed_and_come_back_in_order() {
        let answers = vec![
            made(5, false),
            made(6, false),
            made(2, true),
            made(7, false),
            None,
            None,
            made(9, false),
        ];
        let memory = BatchMemory::new(answers.iter().copied(), Timestamp(1));
        assert_eq!(memory.answers.len(), 5);
        assert_eq!(memory.answers(), answers);
    }

    #[test]
    fn tasks_for_several_shards_keep_their_own() {
        let on = |home, answer: Option<Enqueued>| {
            answer.map(|made| Enqueued { id: TaskId { home: ShardId(home), ..made.id }, ..made })
        };
        let answers = vec![
            on(1, made(5, false)),
            on(2, made(6, false)),
            on(2, made(7, false)),
            on(1, made(8, false)),
        ];
        let memory = BatchMemory::new(answers.iter().copied(), Timestamp(1));
        assert_eq!(memory.answers.len(), 3);
        assert_eq!(memory.answers(), answers);
    }
}
