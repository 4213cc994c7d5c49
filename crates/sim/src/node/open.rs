//! The start of a node's replicas: from their checkpoints and the log after them.

use super::{Node, NodeConfig, group_of};
use crate::control::{ControlHost, Directory};
use crate::disk::{Checkpoint, Write};
use crate::host::Host;
use crate::invariants::Violation;
use crate::shard::{Shard, first_difference};
use std::sync::Arc;
use taskyard_machine::{Identity, RecordKey, ShardId};
use taskyard_replica::eraftpb::{HardState, Snapshot};
use taskyard_replica::{Config, Control, Replica, Restored, StateMachine};

/// The key of the only record in the control group's checkpoint.
const CONTROL_RECORD: &[u8] = b"control";

impl Node {
    pub(super) fn identity(&self, shard: u16) -> Identity {
        Identity { incarnation: 7, shard: ShardId(shard), shards: self.config.shards }
    }

    pub(super) fn open(&mut self, shard: u16, now: u64) -> Result<Host, Violation> {
        let id = self.config.id;
        let wrong = |what: String| format!("node {id} can't open shard {shard}: {what}");
        let (restored, checkpoint) = self.restore(group_of(shard));
        let mut state = match checkpoint {
            Some(checkpoint) => Shard::load(self.identity(shard), &checkpoint)
                .map_err(|error| wrong(error.to_string()))?,
            None => Shard::new(self.identity(shard)),
        };
        state.sabotage = self.config.sabotage.of_replica(id);
        state.rules_max = self.rules_max;
        state.before_crash = self.before_crash.remove(&shard);
        if let Some((_, records)) =
            state.before_crash.take_if(|(index, _)| *index == state.last_index && *index > 0)
        {
            let now = state.machine.records();
            if now != records {
                let difference = first_difference(&records, &now);
                return Err(wrong(format!("the checkpoint differs from the state: {difference}")));
            }
        }
        Ok(Host::new(self.replica(group_of(shard), restored, state).map_err(wrong)?, now))
    }

    pub(super) fn open_control(&mut self) -> Result<ControlHost, Violation> {
        let (restored, checkpoint) = self.restore(0);
        let state = checkpoint.map_or(Ok(Directory::default()), |found| directory(&found))?;
        let replica = self.replica(0, restored, state)?;
        let NodeConfig { shards, sabotage, .. } = self.config;
        Ok(ControlHost::new(replica, shards, self.rules_max, sabotage))
    }

    fn replica<M: StateMachine>(
        &self,
        group: u64,
        restored: Restored,
        state: M,
    ) -> Result<Replica<M>, String> {
        let config = Config {
            id: self.disk.replica(group).ok_or("it is not here")?,
            seed: self.config.seed ^ group,
            heartbeat_ticks: 2,
            election_ticks: 10,
            entry_bytes_max: usize::MAX,
        };
        let disk = self.disk.reader(group);
        let mut replica = Replica::new(&config, restored, Box::new(disk.clone()), state)
            .map_err(|error| error.to_string())?;
        replica.set_snapshot_source(Box::new(disk));
        Ok(replica)
    }

    /// The stored parts of a group.
    fn restore(&self, group: u64) -> (Restored, Option<Arc<Checkpoint>>) {
        // The first replica founds its group; a later one learns the members from a snapshot.
        let founds = self.disk.replica(group) == Some(1);
        let mut restored = if founds { Restored::first(&[1]) } else { Restored::default() };
        let log = self.disk.log(group);
        if log.hard_state != HardState::default() {
            restored.hard_state = log.hard_state;
        }
        let checkpoint = self.disk.checkpoint(group);
        if let Some(checkpoint) = &checkpoint {
            restored.applied = checkpoint.index;
            restored.applied_term = checkpoint.term;
            restored.conf_state = checkpoint.conf_state.clone();
        }
        let applied = restored.applied;
        // A crash may come between a snapshot's checkpoint and the reset of the log that it
        // replaces. Then the log does not connect to the checkpoint, and must go before anything is
        // written behind it.
        let first = log.entries.keys().next().copied().unwrap_or(u64::MAX);
        let at_applied = log.entries.get(&applied).map(|entry| entry.term);
        let connects = first == applied + 1 || at_applied == Some(restored.applied_term);
        restored.last_index = applied;
        if connects {
            restored.first_index = first;
            restored.last_index = log.entries.keys().next_back().copied().unwrap_or(applied);
        } else if !log.entries.is_empty() {
            let frame = self.disk.write(&[Write { group, reset: true, ..Write::default() }]);
            self.disk.sync(frame);
        }
        restored.hard_state.term = restored.hard_state.term.max(restored.applied_term);
        (restored, checkpoint)
    }

    /// Replaces a group's state by its leader's snapshot: first the checkpoint, then the log.
    pub(super) fn install(&mut self, group: u64, snapshot: &Snapshot) -> Result<(), Violation> {
        let metadata = snapshot.get_metadata();
        let mut checkpoint = Checkpoint {
            index: metadata.index,
            term: metadata.term,
            conf_state: metadata.get_conf_state().clone(),
            ..Checkpoint::default()
        };
        checkpoint.decode_state(&snapshot.data).ok_or("a snapshot came damaged")?;
        self.snapshots += 1;
        let Some(shard) = group.checked_sub(1).map(|shard| shard as u16) else {
            let state = directory(&checkpoint)?;
            self.disk.store_checkpoint(0, checkpoint);
            let process = self.process.as_mut();
            if let Some(control) = process.and_then(|process| process.control.as_mut()) {
                control.checkpointed = metadata.index;
                control.replica.install(state);
            }
            return Ok(());
        };
        let mut state =
            Shard::load(self.identity(shard), &checkpoint).map_err(|error| error.to_string())?;
        state.sabotage = self.config.sabotage.of_replica(self.config.id);
        state.rules_max = self.rules_max;
        self.disk.store_checkpoint(group, checkpoint);
        if let Some(host) = self.host_mut(shard) {
            host.checkpointing = None;
            host.checkpointed = metadata.index;
            host.replica.install(state);
        }
        Ok(())
    }
}

/// The control group's state as a checkpoint's record.
pub(super) fn control_record(control: &Control) -> (RecordKey, Box<[u8]>) {
    (RecordKey::Rest(CONTROL_RECORD.into()), control.encode().into())
}

fn directory(checkpoint: &Checkpoint) -> Result<Directory, Violation> {
    let record = checkpoint.records.get(&RecordKey::Rest(CONTROL_RECORD.into()));
    let bytes = record.ok_or("a checkpoint holds no control state")?;
    Control::decode(bytes).map(Directory).map_err(|error| error.to_string())
}
