//! Traffic: messages and bytes by kind, sent and received by each node, and on each link.
//!
//! Invariant: every message between nodes was received, was lost on a dead node, or is on its way.

use serde::Serialize;
use std::collections::BTreeMap;
use taskyard_replica::eraftpb::{Message, MessageType};

/// The purpose of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Entries for a follower.
    Append,
    /// An append without entries, which carries the commit index.
    Commit,
    AppendAnswer,
    Heartbeat,
    HeartbeatAnswer,
    /// Votes and pre-votes.
    Election,
    /// Calls of a gateway to a leader.
    Enqueue,
    Claim,
    Ack,
    /// Answers to enqueues and acks.
    Answer,
    /// Answers to claims, with the task's payload.
    Task,
    /// Lists of live sessions.
    Alive,
    /// Pings between two nodes.
    Ping,
    /// Messages of clients and workers to their gateway, without beats.
    ClientIn,
    /// Messages of gateways to clients and workers.
    ClientOut,
    /// A worker's beat.
    Beat,
}

pub(crate) const KINDS: [Kind; 16] = [
    Kind::Append,
    Kind::Commit,
    Kind::AppendAnswer,
    Kind::Heartbeat,
    Kind::HeartbeatAnswer,
    Kind::Election,
    Kind::Enqueue,
    Kind::Claim,
    Kind::Ack,
    Kind::Answer,
    Kind::Task,
    Kind::Alive,
    Kind::Ping,
    Kind::ClientIn,
    Kind::ClientOut,
    Kind::Beat,
];

impl Kind {
    pub(crate) fn of(message: &Message) -> Kind {
        match message.get_msg_type() {
            MessageType::MsgAppend if message.entries.is_empty() => Kind::Commit,
            MessageType::MsgAppend => Kind::Append,
            MessageType::MsgAppendResponse => Kind::AppendAnswer,
            MessageType::MsgHeartbeat => Kind::Heartbeat,
            MessageType::MsgHeartbeatResponse => Kind::HeartbeatAnswer,
            _ => Kind::Election,
        }
    }

    /// Whether the message goes between nodes, not between a node and its clients.
    pub(crate) fn is_between_nodes(self) -> bool {
        !matches!(self, Kind::ClientIn | Kind::ClientOut | Kind::Beat)
    }

    pub(crate) fn is_raft(self) -> bool {
        self <= Kind::Election
    }
}

/// A number of messages, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Count {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, messages: u64, bytes: usize) {
        self.messages += messages;
        self.bytes += bytes as u64;
    }

    pub(crate) fn plus(self, other: Count) -> Count {
        Count { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }
}

pub(crate) type Counts = [Count; KINDS.len()];

/// All counters of sent and received messages.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    pub(crate) sent: Vec<Counts>,
    pub(crate) received: Vec<Counts>,
    pub(crate) lost: Counts,
    /// The counters from node to node, at `from * nodes + to`.
    pub(crate) links: Vec<Count>,
}

impl Traffic {
    pub(crate) fn new(nodes: usize) -> Traffic {
        let none = [Count::default(); KINDS.len()];
        Traffic {
            sent: vec![none; nodes],
            received: vec![none; nodes],
            lost: none,
            links: vec![Count::default(); nodes * nodes],
        }
    }

    pub(crate) fn sends(&mut self, from: usize, to: usize, kind: Kind, bytes: usize) {
        self.sent[from][kind as usize].add(1, bytes);
        let nodes = self.sent.len();
        self.links[from * nodes + to].add(1, bytes);
    }

    pub(crate) fn arrives(&mut self, to: usize, kind: Kind, bytes: usize) {
        self.received[to][kind as usize].add(1, bytes);
    }

    pub(crate) fn is_lost(&mut self, kind: Kind, bytes: usize) {
        self.lost[kind as usize].add(1, bytes);
    }

    /// Counts a message without a link: it arrives if its receiver is alive.
    pub(crate) fn passes(&mut self, from: usize, to: usize, kind: Kind, bytes: usize, up: bool) {
        if from == to {
            return;
        }
        self.sends(from, to, kind, bytes);
        match up {
            true => self.arrives(to, kind, bytes),
            false => self.is_lost(kind, bytes),
        }
    }

    /// The sums over all nodes, by kind: sent, received, lost.
    pub(crate) fn totals(&self) -> BTreeMap<Kind, [Count; 3]> {
        let sum = |side: &[Counts], kind: Kind| {
            side.iter().fold(Count::default(), |sum, node| sum.plus(node[kind as usize]))
        };
        let total = |kind| [sum(&self.sent, kind), sum(&self.received, kind)];
        KINDS
            .into_iter()
            .map(|kind| {
                let [sent, received] = total(kind);
                (kind, [sent, received, self.lost[kind as usize]])
            })
            .collect()
    }
}
