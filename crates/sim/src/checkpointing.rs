//! Checkpointing: a checkpoint in progress: cut at one index, and taken in bites between entries.
//!
//! Invariant: the result is the state at the cut, whatever entries are applied between the bites.

use crate::disk::Checkpoint;
use crate::shard::{Records, Shard, first_difference};
use taskyard_machine::Machine;
use taskyard_replica::Replica;

/// A checkpoint that is being taken.
#[derive(Debug)]
pub(crate) struct Checkpointing {
    pub(crate) cut: u64,
    checkpoint: Checkpoint,
    /// The state at the cut.
    expected: Records,
}

impl Checkpointing {
    /// Marks the cut at the applied index; `before` is the checkpoint to which the changes are
    /// added.
    pub(crate) fn begin(
        cut: u64,
        replica: &mut Replica<Shard>,
        before: Option<&Checkpoint>,
    ) -> Checkpointing {
        let checkpoint = Checkpoint {
            index: replica.applied(),
            term: replica.applied_term(),
            conf_state: replica.conf_state().clone(),
            records: before.map(|before| before.records.clone()).unwrap_or_default(),
            bodies: replica.machine().bodies.0.clone(),
        };
        let machine = &mut replica.machine_mut().machine;
        let expected = machine.records();
        machine.freeze();
        Checkpointing { cut, checkpoint, expected }
    }

    /// Takes the next bite; `false` when none is left.
    pub(crate) fn bite(&mut self, machine: &mut Machine, records_max: usize) -> bool {
        let bite = machine.frozen_bite(records_max);
        let more = !bite.is_empty();
        for record in bite {
            match record.value {
                Some(value) => self.checkpoint.records.insert(record.key, value),
                None => self.checkpoint.records.remove(&record.key),
            };
        }
        more
    }

    /// The finished checkpoint, if it equals the state at the cut, byte for byte.
    pub(crate) fn finish(self) -> Result<Checkpoint, String> {
        let taken: Records = self
            .checkpoint
            .records
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if taken != self.expected {
            let difference = first_difference(&self.expected, &taken);
            return Err(format!(
                "the checkpoint at {} is not the state: {difference}",
                self.checkpoint.index
            ));
        }
        Ok(self.checkpoint)
    }
}
