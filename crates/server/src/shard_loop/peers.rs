//! Raft between nodes: messages, ticks, changes of members, and transfers of leadership.
//!
//! A lost message does no harm. A message that a replica sends after a write goes to the network
//! only once that write is synced.

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

/// The longest message between replicas that a frame carries, without the frame's header.
const RAFT_MESSAGE_BYTES_MAX: usize = PEER_FRAME_BYTES_MAX - 64;
// Each message has room for at least one whole entry.
const _: () = assert!(COMMAND_BYTES_MAX + 1_024 <= RAFT_MESSAGE_BYTES_MAX);

/// A leader sends a heartbeat every second tick; followers elect another after 10 to 20 silent
/// ticks.
pub(super) const TICK: Duration = Duration::from_millis(50);

impl ShardLoop {
    /// Steps a message of a peer's replica. A message for a replica that is not on this node,
    /// because it is removed or not made yet, is ignored.
    pub(super) fn accept_raft(&mut self, from: NodeId, group: u64, bytes: &Bytes) {
        if self.waits_at_gate {
            return;
        }
        let message = match decode_message(bytes) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!("node {from} has sent a message that can't be read: {error}");
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
        // Only messages that lead to a write need room on the disk.
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

    /// `accept_raft` for the control group. A node that has just joined makes its replica at the
    /// first message to this replica.
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

    /// Sends a group's messages to the nodes of the receiving replicas.
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
                (Some(network), Some(node)) if !self.waits_at_gate => {
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

    /// Handles a message that is too large for a frame. A leader would keep its followers waiting
    /// for ever, so its leadership ends: a replica without the entry leads and replaces the entry.
    /// A committed entry is not replaced, and does not block the others: only replica `to` lacks
    /// it, until `to` gets a snapshot.
    fn cannot_send(&mut self, group: u64, message: &Message, bytes: usize) {
        let (to, node) = (message.to, self.format.node);
        let first = message.entries.first().map(|entry| entry.index);
        if self.unsendable_logged.replace((group, to, first)) != Some((group, to, first)) {
            tracing::error!(
                "node {node} can't send replica {to} of group {group} a message of {bytes} bytes, for the \
                 log's entry at index {first:?}: a message between nodes has {RAFT_MESSAGE_BYTES_MAX} bytes \
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

    /// The node of a replica: by the map, or else by its last message.
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

    /// Tells leaders that the connection to a peer is down: messages sent to it are lost.
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

    /// Whether any replica needs ticks. A replica without peers leads for ever.
    pub(super) fn ticks(&self) -> bool {
        self.control.as_ref().is_none_or(|control| control.has_peers)
            || self.shards.iter().any(|shard| shard.has_peers)
    }

    /// Ticks replicas with peers. After a pause of the process one tick counts, so that messages
    /// sent meanwhile are heard before an election.
    pub(super) fn tick(&mut self) -> Result<(), Failure> {
        if self.real < self.next_tick {
            return Ok(());
        }
        self.next_tick = self.real + TICK;
        if self.waits_at_gate || self.stands_still() {
            // An election writes a vote, for which the disk may have no room.
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
                // Pending commands wait for the end of a transfer, which only ticks bring.
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

    /// This node leads a group no more, because its entries did not arrive in time. Messages still
    /// in the queue must not make followers believe that the leader is alive.
    fn forget_sent(&self, group: u64) {
        tracing::warn!(
            "this node leaves leading {} to other nodes, because its messages did not reach them in time \
             although they answer; check the network of this node",
            name_of(group)
        );
        if let Some(network) = self.network.get() {
            network.forget_raft(group);
        }
    }

    /// Publishes the leader of a group to this node's router.
    pub(super) fn publish_leader(&self, group: u64, role: Role) {
        let node = match role {
            Role::Leader { .. } => Some(self.format.node),
            Role::Follower { leader, .. } => {
                leader.and_then(|replica| self.node_of(group, replica))
            }
        };
        self.routes.set_leader(group, node);
    }

    /// Publishes all leaders, because the map may name new nodes.
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

    /// Begins to hand over a group.
    pub(super) fn accept_transfer(&mut self, group: u64, to: u64, answer: Answer<()>) {
        let handed = self.transfer(group, to);
        let _ = answer.send(handed);
    }

    fn transfer(&mut self, group: u64, to: u64) -> Result<(), Error> {
        if self.routes.is_stopping() {
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

    /// The error for a caller whose group this node does not lead.
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

/// Ticks a replica. Returns whether it stepped down because its entries do not arrive.
fn tick_one<M: StateMachine>(replica: &mut Replica<M>) -> bool {
    let rested = replica.rests();
    replica.tick();
    replica.rests() && !rested
}

/// Proposes a change of members, unless the group has changed since the change was planned.
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
