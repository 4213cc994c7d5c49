//! Checkpoints of a node: when it takes them, and how it then cuts its log.

use super::open::control_record;
use super::{Effect, Node, group_of};
use crate::checkpointing::Checkpointing;
use crate::disk::{Checkpoint, Write};
use crate::invariants::Violation;
use crate::sabotage::Sabotage;

impl Node {
    pub(super) fn begin_checkpoints(&mut self) {
        self.checkpoint_control();
        let Some(process) = &mut self.process else { return };
        for (&shard, host) in &mut process.hosts {
            let due = host.wants_checkpoint
                || host.replica.applied() >= host.checkpointed + self.checkpoint_every;
            let before = self.disk.checkpoint(group_of(shard));
            // A snapshot that is being installed is ahead of the state.
            let ahead = before.as_ref().is_some_and(|one| one.index >= host.replica.applied());
            if due && !ahead && host.checkpointing.is_none() {
                self.next_cut += 1;
                host.wants_checkpoint = false;
                host.checkpointing =
                    Some(Checkpointing::begin(self.next_cut, &mut host.replica, before.as_deref()));
                let bite = Effect::Bite { shard, cut: self.next_cut };
                self.output.effects.push((self.rng.between(1, 20), bite));
            }
        }
    }

    pub(super) fn bite(&mut self, shard: u16, cut: u64) {
        let hosts = self.process.as_mut().map(|process| &mut process.hosts);
        let Some(host) = hosts.and_then(|hosts| hosts.get_mut(&shard)) else { return };
        let Some(checkpointing) = host.checkpointing.as_mut().filter(|one| one.cut == cut) else {
            return;
        };
        let records_max = self.rng.between(1, 40) as usize;
        let more = checkpointing.bite(&mut host.replica.machine_mut().machine, records_max);
        let next = if more { Effect::Bite { shard, cut } } else { Effect::Stored { shard, cut } };
        self.output.effects.push((self.rng.between(1, 20), next));
    }

    /// Stores a finished checkpoint, which must be the exact state at its cut, and cuts the log
    /// behind it.
    pub(super) fn stored(&mut self, shard: u16, cut: u64) -> Result<(), Violation> {
        let hosts = self.process.as_mut().map(|process| &mut process.hosts);
        let Some(host) = hosts.and_then(|hosts| hosts.get_mut(&shard)) else { return Ok(()) };
        let Some(checkpointing) = host.checkpointing.take_if(|one| one.cut == cut) else {
            return Ok(());
        };
        let mut checkpoint = checkpointing
            .finish()
            .map_err(|what| format!("node {}, shard {shard}: {what}", self.config.id))?;
        if self.config.sabotage == Sabotage::ForgetfulCheckpoint {
            checkpoint.records.pop_last();
        }
        let index = checkpoint.index;
        self.disk.store_checkpoint(group_of(shard), checkpoint);
        host.checkpointed = index;
        self.checkpoints += 1;
        let keep = *self.rng.pick(&[0, 0, 5, 40]);
        let compact_to = index.saturating_sub(keep);
        if compact_to >= host.replica.first_index() {
            host.replica.compact(compact_to);
            let group = group_of(shard);
            self.disk.write(&[Write { group, compact_to, ..Write::default() }]);
        }
        Ok(())
    }

    /// Takes a checkpoint of the control group's small state at once.
    fn checkpoint_control(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some(control) = &mut process.control else { return };
        let index = control.replica.applied();
        let stored = self.disk.checkpoint(0).map_or(0, |checkpoint| checkpoint.index);
        let due = control.wants_checkpoint || index >= control.checkpointed + self.checkpoint_every;
        // An old map makes a node take an old replica for a new one.
        let late = self.config.sabotage == Sabotage::ReplicaIdsReused && !control.leads();
        if !due || late || index <= stored {
            return;
        }
        control.wants_checkpoint = false;
        let replica = &mut control.replica;
        self.disk.store_checkpoint(
            0,
            Checkpoint {
                index,
                term: replica.applied_term(),
                conf_state: replica.conf_state().clone(),
                records: [control_record(&replica.machine().0)].into(),
                ..Checkpoint::default()
            },
        );
        control.checkpointed = index;
        self.checkpoints += 1;
        let compact_to = index.saturating_sub(*self.rng.pick(&[0, 0, 5, 40]));
        if compact_to >= replica.first_index() {
            replica.compact(compact_to);
            self.disk.write(&[Write { group: 0, compact_to, ..Write::default() }]);
        }
    }
}
