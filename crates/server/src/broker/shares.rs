//! Shares: the tasks of one wire batch, by the shard that they go to.
//!
//! Each share is one command with an id of its own, derived from the batch's id. A repeated batch
//! therefore makes the same shares, and each shard recognises its own. Tasks of a spread queue are
//! in shares of their own, so that a change of its spread does not alter the shares of other
//! queues.

use super::{
    enqueue::task_bytes,
    place::{Place, Placing, is_moved},
    unexpected,
};
use crate::Error;
use std::collections::BTreeMap;
use taskyard_machine::{
    Command, EncodedCommand, Enqueue, EnqueueMany, Enqueued, Outcome, ShardId, limits,
    wire::{Reader, Wire},
};

/// The approximate size of a command with tasks of one batch for one shard, so that commands fit
/// into log entries and none of them delays the others.
const MANY_BYTES_MAX: usize = limits::ENTRY_BYTES_MAX / 2;

/// The tasks of one wire batch, by shard.
#[derive(Default)]
pub(super) struct Shares<'a> {
    shares: Vec<Share<'a>>,
    /// By shard and salt: the share that is being filled, and the number of full ones before it.
    filling: BTreeMap<(ShardId, Option<u128>), (usize, u32)>,
}

struct Share<'a> {
    shard: ShardId,
    salt: Option<u128>,
    /// The share's number among those of its shard, from 0.
    number: u32,
    items: Vec<Enqueue<'a>>,
    positions: Vec<usize>,
    bytes: usize,
}

/// The part of a share that is kept until its answer arrives.
pub(super) struct Sent {
    positions: Vec<usize>,
    /// The command, if its tasks may have to be placed again.
    command: Option<EncodedCommand>,
}

impl<'a> Shares<'a> {
    pub(super) fn add(&mut self, place: &Place, position: usize, enqueue: Enqueue<'a>) {
        let (shard, salt) = (place.shard, place.salt);
        let bytes = task_bytes(&enqueue.task);
        let full = self.filling.get(&(shard, salt)).copied();
        let index = match full {
            Some((index, _)) if self.shares[index].bytes + bytes <= MANY_BYTES_MAX => index,
            full => {
                let number = full.map_or(0, |(_, number)| number + 1);
                let (items, positions) = (Vec::new(), Vec::new());
                self.shares.push(Share { shard, salt, number, items, positions, bytes: 0 });
                let index = self.shares.len() - 1;
                self.filling.insert((shard, salt), (index, number));
                index
            }
        };
        let share = &mut self.shares[index];
        share.bytes += bytes;
        share.items.push(enqueue);
        share.positions.push(position);
    }

    /// One command per share, and the data that its answer needs.
    pub(super) fn encode(
        self,
        batch_id: Option<u128>,
    ) -> (Vec<(ShardId, EncodedCommand)>, Vec<Sent>) {
        let encode = |share: Share<'_>| {
            let Share { shard, salt, number, items, positions, .. } = share;
            let batch_id = batch_id.zip(salt).map(|(id, salt)| share_id(id ^ salt, number));
            let many = EnqueueMany { batch_id, items };
            let command = EncodedCommand::new(&Command::EnqueueMany(many));
            let kept = (salt != Some(0)).then(|| command.clone());
            ((shard, command), Sent { positions, command: kept })
        };
        self.shares.into_iter().map(encode).unzip()
    }
}

impl Sent {
    /// Distributes the answers of a share; tasks that belong on another shard by now are returned
    /// in `placings`.
    pub(super) fn answer(
        self,
        outcome: Result<Outcome, Error>,
        answers: &mut [Result<Enqueued, Error>],
        placings: &mut Vec<(usize, Placing)>,
    ) {
        let enqueued = match outcome {
            Ok(Outcome::EnqueuedMany(enqueued)) => enqueued,
            Ok(other) => unexpected(&other),
            Err(error) => {
                self.positions.iter().for_each(|&at| answers[at] = Err(error.clone()));
                return;
            }
        };
        let sent =
            self.command.as_ref().map(|sent| Command::read(&mut Reader::new(sent.as_bytes())));
        for (index, (&position, answer)) in self.positions.iter().zip(enqueued).enumerate() {
            answers[position] = answer.map_err(Error::from);
            let moved = answers[position].as_ref().is_err_and(is_moved);
            if let (true, Some(Ok(Command::EnqueueMany(many)))) = (moved, &sent) {
                placings.push((position, Placing::new(many.items[index].clone())));
            }
        }
    }
}

/// The id of one share of a wire batch. The same request gives the same id, so that a repetition is
/// recognised share by share. The ids are far apart even if clients number their batches.
fn share_id(batch_id: u128, number: u32) -> u128 {
    const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    batch_id ^ u128::from(number).wrapping_mul(SPREAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_numbered_batches_never_meet() {
        let mut seen = std::collections::HashSet::new();
        for batch in 0..100 {
            for number in 0..100 {
                assert!(seen.insert(share_id(batch, number)), "batch {batch} share {number}");
            }
        }
    }
}
