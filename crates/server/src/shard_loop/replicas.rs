//! Which replicas this node has: founds a cluster, and follows the control group's map.
//!
//! Invariant: a replica is removed only by a map that knows its id. A node has an old map after a
//! restart, and that map must not remove a newer replica.

use super::{
    ShardLoop,
    checkpoints::Checkpoint,
    control::{LocalControl, first_members, replica_config},
    local::{LocalShard, State},
};
use crate::{
    checkpoint::{Failure, Job},
    log::{FIRST_REPLICA, group_of},
};
use std::sync::Arc;
use taskyard_machine::{Identity, Machine, RULES_CURRENT, ShardId};
use taskyard_replica::{
    CONTROL_GROUP, Control, ControlCommand, Node, Placement, Progress, Replica, Restored, Role,
};

impl ShardLoop {
    pub(super) fn join_control(&self, id: u64) -> LocalControl {
        LocalControl::joining(&self.log, id, self.seed_of_elections())
    }

    fn seed_of_elections(&self) -> u64 {
        u64::from(self.format.incarnation)
    }

    /// Proposes the initial state of a new cluster, as far as it is missing. Only the founder does.
    fn found(&mut self) {
        let format = self.format;
        let Some(control) = &mut self.control else { return };
        if control.founded || !format.founds() {
            return;
        }
        control.founded = true;
        let state = control.control();
        let mut commands = Vec::new();
        if state.cluster().is_none() {
            let (cluster, incarnation, shards) =
                (format.cluster, format.incarnation, format.shards);
            let rules = RULES_CURRENT;
            commands.push(ControlCommand::Found { cluster, incarnation, shards, rules });
        }
        if state.nodes().is_empty() {
            let node = Node { rules_max: RULES_CURRENT, ..Node::default() };
            commands.push(ControlCommand::SetNode { id: format.node, node });
        }
        for group in CONTROL_GROUP..=u64::from(format.shards) {
            if state.replicas(group).is_empty() {
                let replicas = vec![Placement { node: format.node, replica: FIRST_REPLICA }];
                commands.push(ControlCommand::Place { group, replicas });
            }
        }
        for command in commands {
            control.propose(command.encode(), None);
        }
    }

    /// Handles the result of a write of the control group.
    pub(super) fn handle_control_progress(
        &mut self,
        progress: Progress<<Control as taskyard_replica::StateMachine>::Outcome>,
    ) -> Result<(), Failure> {
        self.send(CONTROL_GROUP, progress.messages);
        let Some(control) = &mut self.control else { return Ok(()) };
        let has_changed = !progress.applied.is_empty();
        for applied in progress.applied {
            if let Some(number) = applied.proposal {
                control.answer(number, Ok(applied.outcome));
            }
        }
        for number in progress.dropped {
            control.answer(number, Err(crate::Error::OutcomeUnknown));
        }
        if progress.members_changed {
            control.note_members();
        }
        if has_changed || progress.members_changed {
            control.offer();
            self.follow_control()?;
        }
        if let Some(role) = progress.role {
            self.publish_leader(CONTROL_GROUP, role);
            if matches!(role, Role::Leader { .. }) {
                self.found();
            }
        }
        Ok(())
    }

    /// Publishes the control group's state on this node, and follows it.
    pub(super) fn follow_control(&mut self) -> Result<(), Failure> {
        let Some(control) = &self.control else { return Ok(()) };
        let state = Arc::new(control.control().clone());
        if state.cluster().is_none() {
            return Ok(());
        }
        self.rules = state.rules();
        self.routes.set_control(state);
        self.publish_leaders();
        self.follow_map()
    }

    /// Makes and removes replicas as the map says.
    fn follow_map(&mut self) -> Result<(), Failure> {
        let map = self.routes.control();
        let me = self.format.node;
        if map.was_removed(me) {
            return Err(Failure(format!(
                "node {me} was removed from its cluster; start it with a new data directory to join again"
            )));
        }
        for number in 0..self.shards.count() {
            let shard = ShardId(number as u16);
            let group = group_of(shard);
            let wanted = map.replica_on(group, me);
            let held = self.shards.get(number).map(|shard| shard.replica.id());
            if let Some(held) = held
                && wanted != Some(held)
                && held < map.replica_next(group)
            {
                self.doomed.insert(number);
            }
            if let (Some(id), None) = (wanted, held)
                && !self.leaving.contains(&shard)
                && self.stopped.replica(shard).is_none()
            {
                self.make_replica(shard, id);
            }
        }
        self.remove_stopped()?;
        self.remove_doomed()
    }

    /// Makes an empty replica, which its leader fills. A replica that was removed is not made
    /// again: only an old map still names it.
    fn make_replica(&mut self, shard: ShardId, id: u64) {
        let (format, group) = (self.format, group_of(shard));
        if self.gone.get(&group).is_some_and(|gone| id <= *gone) {
            return;
        }
        let identity = Identity { incarnation: format.incarnation, shard, shards: format.shards };
        let state = State::new(Machine::new(identity));
        let config = replica_config(group, id, self.seed_of_elections());
        let restored = Restored { conf_state: first_members(0), ..Restored::default() };
        let reader = Box::new(self.log.reader(group));
        let replica =
            Replica::new(&config, restored, reader, state).expect("an empty replica fits together");
        tracing::info!("replica {id} of shard {shard} is made on this node");
        let mut local = LocalShard::new(
            shard,
            group,
            replica,
            Checkpoint::apart(shard, 0, self.log.position()),
        );
        local.is_new = true;
        local.replica.set_room(self.room());
        self.offer_snapshots(&mut local);
        self.shards.insert(local);
        self.activate(usize::from(shard.0));
    }

    /// Removes replicas that the map no longer places here, once no checkpoint of them is under
    /// way. Newer replicas may follow in their place. The log forgets a replica first, synced: a
    /// start finishes the rest, while a log without its checkpoint would count as damaged.
    pub(super) fn remove_doomed(&mut self) -> Result<(), Failure> {
        let mut leaving = Vec::new();
        for number in std::mem::take(&mut self.doomed) {
            let Some(shard) = self.shards.get(number) else { continue };
            if !shard.checkpoint.is_idle() {
                self.doomed.insert(number);
                continue;
            }
            self.end_calls(number);
            let Some(mut shard) = self.shards.remove(number) else { continue };
            let id = shard.replica.id();
            tracing::info!("replica {id} of shard {} is gone from this node", shard.id);
            let error = self.not_leader(shard.group);
            drop(shard.end_all(&error));
            self.sessions.forget(shard.id);
            self.memory.forget(&shard);
            self.active.retain(|other| *other != number);
            self.batch.forget(shard.group, id);
            self.gone.insert(shard.group, id);
            leaving.push(shard.id);
            // The state may be large: another thread frees it.
            let LocalShard { replica, .. } = *shard;
            self.order(Some(Job::Drop(Box::new(replica))));
        }
        self.removed(leaving)
    }

    /// Removes the stored state of shards, once the log has forgotten them, synced.
    pub(super) fn removed(&mut self, leaving: Vec<ShardId>) -> Result<(), Failure> {
        if leaving.is_empty() {
            return Ok(());
        }
        self.write()?;
        for shard in leaving {
            self.leaving.insert(shard);
            self.remove_stored(shard);
            self.routes.set_leader(group_of(shard), None);
        }
        Ok(())
    }

    /// The stored state of a removed replica is gone. Only now may a newer replica come, because it
    /// would have found that state.
    pub(super) fn accept_removed(&mut self, shard: ShardId) {
        self.checkpoints.done();
        self.leaving.remove(&shard);
        let wanted = self.routes.control().replica_on(group_of(shard), self.format.node);
        if let Some(id) = wanted {
            self.make_replica(shard, id);
        }
    }
}
