//! Raft between nodes: messages in and out, ticks, who leads, and who is to.
//!
//! A message is lost without harm; one that a replica sends after a write is handed to the network
//! only when that write is synced.

use super::{LocalShard, ShardLoop, control};
use crate::{
    Error,
    checkpoint::Failure,
    cluster::{GroupStatus, MemberStatus, name_of},
    limits::{COMMAND_BYTES_MAX, PEER_FRAME_BYTES_MAX},
    shard::inbox::Answer,
};
use bytes::Bytes;
use std::time::Duration;
use taskyard_replica::{
    CONTROL_GROUP, Change, ChangeRefused, NodeId, Replica, Role, StateMachine, decode_message,
    encode_message,
    eraftpb::{Message, MessageType},
    message_bytes,
};

/// The longest message between replicas that a frame carries, beside the frame's own head.
const RAFT_MESSAGE_BYTES_MAX: usize = PEER_FRAME_BYTES_MAX - 64;
// A message carries at least one whole entry, in an envelope of a few numbers.
const _: () = assert!(COMMAND_BYTES_MAX + 1_024 <= RAFT_MESSAGE_BYTES_MAX);

/// One tick: a leader is heard of every second one, and given up after ten to twenty.
pub(super) const TICK: Duration = Duration::from_millis(50);

impl ShardLoop {
    /// Takes a message of a peer's replica. One for a replica that is not here is ignored: it is
    /// not here yet, or no longer.
    pub(super) fn accept_raft(&mut self, from: NodeId, group: u64, bytes: &Bytes) {
        if self.is_shut {
            return;
        }
        let message = match decode_message(bytes) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!("node {from} has sent what is no message: {error}");
                return;
            }
        };
        if group == CONTROL_GROUP {
            if !self.stands_still() {
                self.accept_control(from, message);
            }
            return;
        }
        let number = usize::try_from(group - 1).unwrap_or(usize::MAX);
        let is_here = |shard: &LocalShard| shard.replica.id() == message.to;
        // Only what will be written takes room.
        if !self.shards.get(number).is_some_and(is_here) || !self.has_room_for(number, &message) {
            return;
        }
        self.shards[number].heard.insert(message.from, from);
        if message.get_msg_type() == MessageType::MsgSnapshot {
            self.order_snapshot(number, message);
            return;
        }
        self.shards[number].hear(message);
        self.activate(number);
    }

    /// The same for the control group. A node that has just joined gets its replica with the first
    /// message to it.
    fn accept_control(&mut self, from: NodeId, message: Message) {
        if self.control.is_none() && message.to > 0 {
            tracing::info!("this node has replica {} of the control group now", message.to);
            self.control = Some(self.join_control(message.to));
        }
        let Some(control) = &mut self.control else { return };
        if message.to != control.replica.id() {
            return;
        }
        control.heard.insert(message.from, from);
        control.replica.step(message);
    }

    /// Sends messages of a group to the nodes of those that they are for.
    pub(super) fn send(&mut self, group: u64, messages: Vec<Message>) {
        for message in messages {
            let to = message.to;
            let bytes = message_bytes(&message);
            if bytes > RAFT_MESSAGE_BYTES_MAX {
                self.cannot_send(group, &message, bytes);
                continue;
            }
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            let is_sent = match (self.network.get(), self.node_of(group, to)) {
                (Some(network), Some(node)) if !self.is_shut => {
                    network.raft(node, group, Bytes::from(encode_message(&message)))
                }
                _ => false,
            };
            if is_snapshot {
                self.note_snapshot(group, to, is_sent);
            } else if !is_sent {
                self.unreachable(group, to);
            }
        }
    }

    /// No frame can carry this message, now or later. A leader of the group would keep its
    /// followers waiting for ever, so its leadership ends: another replica, which does not have the
    /// entry, leads and replaces it. An entry that is committed is not in the way of the others:
    /// only replica `to` lacks it, until it gets a snapshot.
    fn cannot_send(&mut self, group: u64, message: &Message, bytes: usize) {
        let (to, node) = (message.to, self.format.node);
        let first = message.entries.first().map(|entry| entry.index);
        if self.told_unsendable.replace((group, to, first)) != Some((group, to, first)) {
            tracing::error!(
                "node {node} can't send replica {to} of group {group} a message of {bytes} bytes, for \
                 the log's entry at index {first:?}: nodes send each other {RAFT_MESSAGE_BYTES_MAX} bytes \
                 at most; if this node leads the group and the entry is not committed, its leadership \
                 ends here"
            );
        }
        match message.get_msg_type() {
            MessageType::MsgSnapshot => self.note_snapshot(group, to, false),
            _ => self.unreachable(group, to),
        }
        let Some(first) = first else { return };
        match group.checked_sub(1) {
            None => {
                if let Some(control) = &mut self.control {
                    control.replica.resign(first);
                }
            }
            Some(number) => {
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                if let Some(shard) = self.shards.get_mut(number) {
                    shard.replica.resign(first);
                    self.activate(number);
                }
            }
        }
    }

    /// The node of a replica: by the map, or else where it was heard from.
    pub(super) fn node_of(&self, group: u64, replica: u64) -> Option<NodeId> {
        let control = self.control.as_ref()?;
        control.control().node_of(group, replica).or_else(|| {
            let heard = match group {
                CONTROL_GROUP => &control.heard,
                _ => &self.shards.get(usize::try_from(group - 1).ok()?)?.heard,
            };
            heard.get(&replica).copied()
        })
    }

    fn unreachable(&mut self, group: u64, to: u64) {
        match group.checked_sub(1) {
            None => {
                if let Some(control) = &mut self.control {
                    control.replica.unreachable(to);
                }
            }
            Some(number) => {
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                if let Some(shard) = self.shards.get_mut(number) {
                    shard.replica.unreachable(to);
                }
            }
        }
    }

    /// A peer can't be sent to any more: what leaders sent it is lost.
    pub(super) fn peer_down(&mut self, node: NodeId) {
        let Some(control) = &mut self.control else { return };
        let map = control.replica.machine();
        if let Some(replica) = map.replica_on(CONTROL_GROUP, node) {
            control.replica.unreachable(replica);
        }
        let map = control.replica.machine();
        for shard in self.shards.iter_mut() {
            if let Some(replica) = map.replica_on(shard.group, node) {
                shard.replica.unreachable(replica);
            }
        }
    }

    /// Whether any replica needs to hear that time passes: one that is alone leads for ever.
    pub(super) fn ticks(&self) -> bool {
        self.control.as_ref().is_none_or(|control| control.has_peers)
            || self.shards.iter().any(|shard| shard.has_peers)
    }

    /// Lets time pass for replicas with peers. After a pause of the process one tick counts: what
    /// its peers have sent meanwhile is heard first.
    pub(super) fn tick(&mut self) -> Result<(), Failure> {
        if self.real < self.next_tick {
            return Ok(());
        }
        self.next_tick = self.real + TICK;
        if self.is_shut || self.stands_still() {
            // An election is a vote, which may not fit.
            return Ok(());
        }
        if let Some(control) = &mut self.control
            && control.has_peers
            && tick_one(&mut control.replica)
        {
            self.forget_sent(CONTROL_GROUP);
        }
        for number in self.shards.numbers() {
            let shard = &mut self.shards[number];
            if shard.has_peers {
                if tick_one(&mut shard.replica) {
                    let group = shard.group;
                    self.forget_sent(group);
                }
                let shard = &mut self.shards[number];
                // What is pending waits for the end of a transfer, which only ticks can bring.
                if shard.replica.has_ready() || !shard.pending.is_empty() {
                    self.activate(number);
                }
            }
        }
        let control_rests = self.control.as_ref().is_some_and(|control| control.replica.rests());
        self.routes
            .set_slow(control_rests || self.shards.iter().any(|shard| shard.replica.rests()));
        self.look_at_snapshots();
        self.remove_doomed()
    }

    /// This node does not lead a group any more, because what it sent did not arrive. What is left
    /// of it must not make the followers believe that their leader is still there.
    fn forget_sent(&self, group: u64) {
        tracing::warn!(
            "this node leaves leading {} to other nodes: what it sent did not reach them in time, though they \
             answer; look at the network of this node",
            name_of(group)
        );
        if let Some(network) = self.network.get() {
            network.forget_raft(group);
        }
    }

    /// Tells everybody on this node who leads a group now.
    pub(super) fn publish_leader(&self, group: u64, role: Role) {
        let node = match role {
            Role::Leader { .. } => Some(self.format.node),
            Role::Follower { leader, .. } => {
                leader.and_then(|replica| self.node_of(group, replica))
            }
        };
        self.routes.set_leader(group, node);
    }

    /// Tells it for all groups: the map may name nodes that it did not name before.
    pub(super) fn publish_leaders(&self) {
        if let Some(control) = &self.control {
            self.publish_leader(CONTROL_GROUP, control.replica.role());
        }
        for shard in self.shards.iter() {
            self.publish_leader(shard.group, shard.replica.role());
        }
    }

    pub(super) fn groups(&self) -> Vec<GroupStatus> {
        let control = self.control.iter().map(|control| status(CONTROL_GROUP, &control.replica));
        let shards = self.shards.iter().map(|shard| GroupStatus {
            installing: self.installing(shard.id),
            ..status(shard.group, &shard.replica)
        });
        control.chain(shards).collect()
    }

    /// Proposes a change of members.
    pub(super) fn accept_change(
        &mut self,
        group: u64,
        fence: (u64, u64),
        changes: &[Change],
        answer: Answer<()>,
    ) {
        let changed = match self.leader_of_group(group) {
            None => Err(self.not_leader(group)),
            Some(Led::Control(control)) => change(&mut control.replica, fence, changes),
            Some(Led::Shard(number)) => {
                let changed = change(&mut self.shards[number].replica, fence, changes);
                self.activate(number);
                changed
            }
        };
        let _ = answer.send(changed);
    }

    /// Begins to hand a group over.
    pub(super) fn accept_transfer(&mut self, group: u64, to: u64, answer: Answer<()>) {
        let handed = self.transfer(group, to);
        let _ = answer.send(handed);
    }

    fn transfer(&mut self, group: u64, to: u64) -> Result<(), Error> {
        if self.routes.is_leaving() {
            let what = "the node that leads it stops, and hands it over by itself";
            return Err(Error::Unavailable(what.into()));
        }
        let node = self.node_of(group, to);
        let is_reached = |node| self.network.get().is_some_and(|network| network.is_reached(node));
        if let Some(node) = node.filter(|node| *node != self.format.node && !is_reached(*node)) {
            let what = format!("node {node} can't be reached from the node that leads it");
            return Err(Error::Unavailable(what));
        }
        match self.leader_of_group(group) {
            None => Err(self.not_leader(group)),
            Some(Led::Control(control)) => transfer(&mut control.replica, to),
            Some(Led::Shard(number)) => {
                let handed = transfer(&mut self.shards[number].replica, to);
                self.activate(number);
                handed
            }
        }
    }

    /// The error for whoever asks this node about a group that it does not lead.
    pub(super) fn not_leader(&self, group: u64) -> Error {
        match group.checked_sub(1) {
            None => control::not_leader(),
            Some(shard) => {
                let leader = self.routes.leader_of(group).filter(|node| *node != self.format.node);
                Error::NotLeader { shard: u16::try_from(shard).unwrap_or(u16::MAX), leader }
            }
        }
    }

    pub(super) fn leader_of_group(&mut self, group: u64) -> Option<Led<'_>> {
        match group.checked_sub(1) {
            None => {
                let control = self.control.as_mut()?;
                matches!(control.replica.role(), Role::Leader { .. })
                    .then_some(Led::Control(control))
            }
            Some(number) => {
                let number = usize::try_from(number).ok()?;
                self.shards.get(number)?.leading.as_ref().map(|_| Led::Shard(number))
            }
        }
    }
}

/// A group that this node leads.
pub(super) enum Led<'a> {
    Control(&'a mut control::LocalControl),
    Shard(usize),
}

/// Lets a tick pass. Says whether the replica stepped down because its entries do not arrive.
fn tick_one<M: StateMachine>(replica: &mut Replica<M>) -> bool {
    let rested = replica.rests();
    replica.tick();
    replica.rests() && !rested
}

/// Proposes a change, unless the group has moved on since it was planned.
fn change<M: StateMachine>(
    replica: &mut Replica<M>,
    fence: (u64, u64),
    changes: &[Change],
) -> Result<(), Error> {
    if (replica.term(), replica.members_since()) != fence {
        let what = "the group's members or its leader have changed since this was planned";
        return Err(Error::Unavailable(what.into()));
    }
    replica.propose_conf_change(changes).map_err(|refused| match refused {
        ChangeRefused::NotLeader(_) | ChangeRefused::InProgress => {
            Error::Unavailable(refused.to_string())
        }
        ChangeRefused::Invalid => Error::Invalid(refused.to_string()),
    })
}

fn transfer<M: StateMachine>(replica: &mut Replica<M>, to: u64) -> Result<(), Error> {
    if !replica.members().voters.contains(&to) {
        let what = format!("replica {to} has no vote in the group; only a voter can lead it");
        return Err(Error::Invalid(what));
    }
    replica.transfer_leader(to);
    Ok(())
}

fn status<M: StateMachine>(group: u64, replica: &Replica<M>) -> GroupStatus {
    let members = replica.members();
    let (serves, leader) = match replica.role() {
        Role::Leader { .. } => (true, Some(replica.id())),
        Role::Follower { leader, .. } => (false, leader),
    };
    let peers = replica.peers().into_iter().map(|peer| MemberStatus {
        replica: peer.id,
        matched: peer.matched,
        lag: peer.lag,
        active: peer.active,
    });
    GroupStatus {
        group,
        replica: replica.id(),
        term: replica.term(),
        leader,
        serves,
        persisted: replica.last_index(),
        applied: replica.applied(),
        committed: replica.commit(),
        voters: members.voters,
        learners: members.learners,
        outgoing: members.outgoing,
        members_since: replica.members_since(),
        members: peers.collect(),
        installing: None,
    }
}
