//! Raft between nodes: messages in and out, ticks, who leads, and who is to.
//!
//! A message is lost without harm; one that a replica sends after a write is handed to the network only
//! when that write is synced.

use super::{ShardLoop, control};
use crate::{
    Error,
    checkpoint::Failure,
    cluster::{GroupStatus, MemberStatus},
    shard::inbox::Answer,
};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use taskyard_replica::{
    CONTROL_GROUP, Change, ChangeRefused, NodeId, Replica, Role, StateMachine, decode_message,
    encode_message,
    eraftpb::{Message, MessageType},
};

/// One tick: a leader is heard of every second one, and given up after ten to twenty.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// Leadership that is on its way to other nodes.
pub(super) struct HandOver {
    until: Instant,
    /// What was not taken by then is offered again, perhaps to another.
    again_at: Instant,
    answer: Answer<()>,
}

/// A transfer that is not done by then is given up by raft.
const HAND_OVER_AGAIN_AFTER: Duration = Duration::from_millis(600);

impl ShardLoop {
    /// Takes a message of a peer's replica. One for a replica that is not here is ignored: it is not
    /// here yet, or no longer.
    pub(super) fn accept_raft(&mut self, from: NodeId, group: u64, bytes: &Bytes) {
        let message = match decode_message(bytes) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!("node {from} has sent what is no message: {error}");
                return;
            }
        };
        if group == CONTROL_GROUP {
            self.accept_control(from, message);
            return;
        }
        let number = usize::try_from(group - 1).unwrap_or(usize::MAX);
        let Some(shard) = self.shards.get_mut(number) else { return };
        if message.to != shard.replica.id() {
            return;
        }
        shard.heard.insert(message.from, from);
        if self.is_unwelcome(&message) {
            return;
        }
        if message.get_msg_type() == MessageType::MsgSnapshot {
            self.order_snapshot(number, message);
            return;
        }
        self.shards[number].replica.step(message);
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
        if !self.is_unwelcome(&message)
            && let Some(control) = &mut self.control
        {
            control.replica.step(message);
        }
    }

    /// Whether a message asks a node that stops to lead.
    fn is_unwelcome(&self, message: &Message) -> bool {
        message.get_msg_type() == MessageType::MsgTimeoutNow && self.routes.is_leaving()
    }

    /// Sends messages of a group to the nodes of those that they are for.
    pub(super) fn send(&mut self, group: u64, messages: Vec<Message>) {
        for message in messages {
            let to = message.to;
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            let is_sent = match (self.network.get(), self.node_of(group, to)) {
                (Some(network), Some(node)) => {
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

    /// Lets time pass for replicas with peers. After a pause of the process one tick counts: what its
    /// peers have sent meanwhile is heard first.
    pub(super) fn tick(&mut self) -> Result<(), Failure> {
        if self.real < self.next_tick {
            return Ok(());
        }
        self.next_tick = self.real + TICK;
        if let Some(control) = &mut self.control
            && control.has_peers
        {
            control.replica.tick();
        }
        for number in self.shards.numbers() {
            let shard = &mut self.shards[number];
            if shard.has_peers {
                shard.replica.tick();
                // What is pending waits for the end of a transfer, which only ticks can bring.
                if shard.replica.has_ready() || !shard.pending.is_empty() {
                    self.activate(number);
                }
            }
        }
        self.look_at_snapshots();
        self.remove_doomed()
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
        let handed = match self.leader_of_group(group) {
            None => Err(self.not_leader(group)),
            Some(Led::Control(control)) => transfer(&mut control.replica, to),
            Some(Led::Shard(number)) => {
                let handed = transfer(&mut self.shards[number].replica, to);
                self.activate(number);
                handed
            }
        };
        let _ = answer.send(handed);
    }

    /// Hands over all that this node leads and another could.
    pub(super) fn accept_hand_over(&mut self, until: Instant, answer: Answer<()>) {
        self.routes.leave();
        let again_at = self.real + HAND_OVER_AGAIN_AFTER;
        self.hand_over = Some(HandOver { until, again_at, answer });
        self.hand_over_all();
    }

    fn hand_over_all(&mut self) {
        // Each goes to the node that was given least so far.
        let mut given: BTreeMap<NodeId, usize> = BTreeMap::new();
        let groups = std::iter::once(CONTROL_GROUP).chain(self.shards.iter().map(|s| s.group));
        for group in groups.collect::<Vec<_>>() {
            let peers = match self.leader_of_group(group) {
                None => continue,
                Some(Led::Control(control)) => successors(&control.replica),
                Some(Led::Shard(number)) => successors(&self.shards[number].replica),
            };
            let network = self.network.get();
            let is_there = |node| network.is_some_and(|network| network.is_connected(node));
            let nodes = peers.into_iter().filter_map(|to| Some((self.node_of(group, to)?, to)));
            let nodes = nodes.filter(|(node, _)| is_there(*node));
            let next = nodes.min_by_key(|(node, _)| given.get(node).copied().unwrap_or(0));
            let Some((node, to)) = next else { continue };
            *given.entry(node).or_default() += 1;
            match self.leader_of_group(group) {
                Some(Led::Control(control)) => control.replica.transfer_leader(to),
                Some(Led::Shard(number)) => {
                    self.shards[number].replica.transfer_leader(to);
                    self.activate(number);
                }
                None => {}
            }
        }
    }

    /// Tells who waits for it that others lead now what this node led, or that it takes too long.
    pub(super) fn look_at_hand_over(&mut self) {
        let Some(hand_over) = &mut self.hand_over else { return };
        let (until, is_late) = (hand_over.until, self.real >= hand_over.again_at);
        if is_late {
            hand_over.again_at = self.real + HAND_OVER_AGAIN_AFTER;
        }
        // Until another is heard to lead, its election may need this node's vote.
        let is_led = |role: Role| matches!(role, Role::Follower { leader: Some(_), .. });
        let leads = |has_peers: bool, role: Role| has_peers && !is_led(role);
        let left = self.control.as_ref().is_some_and(|c| leads(c.has_peers, c.replica.role()))
            || self.shards.iter().any(|shard| leads(shard.has_peers, shard.replica.role()));
        if left && self.real < until {
            if is_late {
                self.hand_over_all();
            }
            return;
        }
        if let Some(HandOver { answer, .. }) = self.hand_over.take() {
            let _ = answer.send(Ok(()));
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

    fn leader_of_group(&mut self, group: u64) -> Option<Led<'_>> {
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
enum Led<'a> {
    Control(&'a mut control::LocalControl),
    Shard(usize),
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

/// Voters that could lead instead of this replica, those that lack least first. Raft forgets whom it has
/// heard each time it looks for its majority, so one that is not active may be all the same.
fn successors<M: StateMachine>(replica: &Replica<M>) -> Vec<u64> {
    let voters = replica.members().voters;
    let mut peers = replica.peers();
    peers.retain(|peer| peer.id != replica.id() && voters.contains(&peer.id));
    peers.sort_by_key(|peer| (!peer.active, peer.lag));
    peers.into_iter().map(|peer| peer.id).collect()
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
