//! Calls between nodes about the cluster itself, as bytes, and back.
//!
//! Bytes come from another node, perhaps of another version: what can't be read is answered with
//! words, and nothing panics. What only the control group's leader decides is sent to it by
//! `Cluster::ask_leader`; the rest is answered by whoever is asked.

use super::{
    GroupStatus, call_kind,
    join::{Candidate, JoinAnswer},
    workers::{WorkerCall, WorkerReply},
};
use crate::{
    Error,
    checkpoint::{Part, Position},
};
use bytes::Bytes;
use taskyard_machine::{
    DecodeError, ShardId,
    wire::{Reader, decode_from_node, encode_for_node, wire_enum, wire_struct},
};
use taskyard_replica::{Change, NodeId};

/// The byte after the kind: how the rest is laid out.
const VERSION: u8 = 1;

/// The second byte of [`ClusterReply::Unread`], and its words after it: the same in every version.
const UNREAD: u8 = 0;

/// What one node asks of another about the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterCall {
    /// How the node and its replicas stand.
    Report,
    /// A group that the node leads is to change its members.
    Change { group: u64, fence: (u64, u64), changes: Vec<MemberChange> },
    /// A group that the node leads is to be led by another replica.
    Transfer { group: u64, to: u64 },
    /// Shards are to send each other nothing for so long, for a backup, and to keep what they have
    /// delivered; 0 ends it.
    Hold { backup: u64, hold_ms: u64 },
    /// No checkpoint is to begin for so long, or until a backup comes; answered when none is under way.
    Quiet { quiet_ms: u64 },
    /// All replicas of the node are to be frozen at one moment and kept for a backup, once these have come
    /// as far as this; answered when they are.
    Freeze { backup: u64, shards: Vec<(ShardId, u64)> },
    /// Where the replicas stand that the node keeps for a backup. Whoever asks keeps them longer.
    Copied { backup: u64 },
    /// They are not needed any more.
    LetGo { backup: u64 },
    /// A part of one of them.
    CopiedPart { backup: u64, shard: ShardId, from: Position },
    /// Of the control group's leader: a node asks for a place.
    Join(Candidate),
    /// Of the control group's leader: what a node says about itself.
    Announce { node: NodeId, about: About, starts: u64, boot: u128 },
    /// Of the control group's leader: what an operator wants.
    Operate(Operation),
    /// About the workers that are connected to the node.
    Worker(WorkerCall),
}

/// The answer to a [`ClusterCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterReply {
    /// The call could not be read there, for the other node is of another version. Nothing was done.
    Unread(String),
    /// To `Report`.
    Report(Report),
    /// To `Join`.
    Joined(JoinAnswer),
    /// To `Freeze`: shards that have come as far as was asked.
    Frozen(Vec<ShardId>),
    /// To `Copied`: the cut of each, encoded; `None` until they are on the disk.
    Copied(Option<Vec<(ShardId, Vec<u8>)>>),
    /// To `CopiedPart`.
    Part(Part),
    /// To `Worker`.
    Worker(WorkerReply),
    /// To all others: it is done.
    Done,
    /// It is not done.
    Failed(Error),
}

/// How a node stands, as it says itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// What it runs.
    pub(crate) build: String,
    /// Its replicas, by group.
    pub(crate) groups: Vec<GroupStatus>,
    /// It stops: it is to be given nothing to lead.
    pub(crate) leaving: bool,
    /// Its disk has no room, or soon none, for new tasks: it is to be given neither leaders nor replicas.
    pub(crate) disk_low: bool,
    /// What it sends reaches the other nodes too slowly: it is to be given no leaders.
    pub(crate) slow: bool,
    /// What is wrong with it, for people.
    pub(crate) problem: Option<String>,
}

/// What a node says about itself: see `taskyard_replica::Node`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) address: String,
    pub(crate) serves: String,
    pub(crate) zone: String,
    pub(crate) rules_max: u16,
}

/// What an operator may ask of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Empty a node, or use it again.
    Drain {
        /// Its number.
        node: NodeId,
        /// Whether it is to be emptied.
        drains: bool,
    },
    /// Forget a node.
    Remove {
        /// Its number.
        node: NodeId,
        /// It is lost with all that it held: place that anew.
        force: bool,
    },
    /// Have a shard led by a node.
    Transfer {
        /// Which shard.
        shard: ShardId,
        /// The node.
        node: NodeId,
    },
    /// Have so many replicas of each shard.
    SetReplication {
        /// 1, 3 or 5.
        factor: u8,
    },
}

/// A change of one member, as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    AddVoter(u64),
    AddLearner(u64),
    Remove(u64),
}

impl From<Change> for MemberChange {
    fn from(change: Change) -> MemberChange {
        match change {
            Change::AddVoter(id) => MemberChange::AddVoter(id),
            Change::AddLearner(id) => MemberChange::AddLearner(id),
            Change::Remove(id) => MemberChange::Remove(id),
        }
    }
}

impl From<MemberChange> for Change {
    fn from(change: MemberChange) -> Change {
        match change {
            MemberChange::AddVoter(id) => Change::AddVoter(id),
            MemberChange::AddLearner(id) => Change::AddLearner(id),
            MemberChange::Remove(id) => Change::Remove(id),
        }
    }
}

impl ClusterCall {
    /// Its bytes, after the one that says who answers it.
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = vec![call_kind::CLUSTER];
        bytes.extend(encode_for_node(VERSION, self));
        bytes.into()
    }

    /// The reverse of [`ClusterCall::encode`], without its first byte.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ClusterCall, DecodeError> {
        decode_from_node(VERSION, bytes)
    }
}

impl From<Result<(), Error>> for ClusterReply {
    fn from(done: Result<(), Error>) -> ClusterReply {
        match done {
            Ok(()) => ClusterReply::Done,
            Err(error) => ClusterReply::Failed(error),
        }
    }
}

impl ClusterReply {
    /// What was frozen, of an answer to `Freeze`.
    pub(crate) fn frozen(self) -> Result<Vec<ShardId>, Error> {
        match self {
            ClusterReply::Frozen(shards) => Ok(shards),
            other => other.done().and(Err(Error::OutcomeUnknown)),
        }
    }

    /// What became of something that has no other answer.
    pub(crate) fn done(self) -> Result<(), Error> {
        match self {
            ClusterReply::Done => Ok(()),
            ClusterReply::Failed(error) => Err(error),
            ClusterReply::Unread(_)
            | ClusterReply::Report(_)
            | ClusterReply::Joined(_)
            | ClusterReply::Frozen(_)
            | ClusterReply::Copied(_)
            | ClusterReply::Part(_)
            | ClusterReply::Worker(_) => Err(Error::OutcomeUnknown),
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        encode_for_node(VERSION, self).into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ClusterReply, DecodeError> {
        if let [_, UNREAD, words @ ..] = bytes {
            let mut reader = Reader::foreign(words);
            let unread = reader.read().map(ClusterReply::Unread)?;
            reader.finish()?;
            return Ok(unread);
        }
        decode_from_node(VERSION, bytes)
    }
}

wire_enum!(ClusterCall {
    1 => Report,
    2 => Change { group, fence, changes },
    3 => Transfer { group, to },
    4 => Join(candidate),
    5 => Announce { node, about, starts, boot },
    6 => Operate(operation),
    7 => Hold { backup, hold_ms },
    8 => Quiet { quiet_ms },
    9 => Freeze { backup, shards },
    10 => Copied { backup },
    11 => CopiedPart { backup, shard, from },
    12 => LetGo { backup },
    13 => Worker(call),
});
wire_enum!(ClusterReply {
    0 => Unread(words),
    1 => Report(report),
    2 => Joined(answer),
    3 => Done,
    4 => Failed(error),
    5 => Frozen(shards),
    6 => Copied(cuts),
    7 => Part(part),
    8 => Worker(reply),
});
wire_enum!(Operation {
    1 => Drain { node, drains },
    2 => Remove { node, force },
    3 => Transfer { shard, node },
    4 => SetReplication { factor },
});
wire_enum!(MemberChange {
    1 => AddVoter(replica),
    2 => AddLearner(replica),
    3 => Remove(replica),
});
wire_struct!(Report { build, groups, leaving, disk_low, slow, problem });
wire_struct!(About { address, serves, zone, rules_max });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{
        MemberStatus,
        join::{JoinCall, Welcome},
    };
    use std::collections::BTreeMap;

    #[test]
    fn calls_and_replies_survive_the_wire_and_rubbish_does_not_pass() {
        let about = About { address: "a:1".into(), zone: "z".into(), ..About::default() };
        for call in [
            ClusterCall::Report,
            ClusterCall::Change {
                fence: (7, 40),
                group: 3,
                changes: vec![Change::AddVoter(1).into(), Change::Remove(2).into()],
            },
            ClusterCall::Transfer { group: 1, to: 9 },
            ClusterCall::Hold { backup: 7, hold_ms: 300 },
            ClusterCall::Quiet { quiet_ms: 300 },
            ClusterCall::Freeze { backup: 7, shards: vec![(ShardId(2), 40), (ShardId(3), 1)] },
            ClusterCall::Copied { backup: u64::MAX },
            ClusterCall::LetGo { backup: 7 },
            ClusterCall::CopiedPart { backup: 1, shard: ShardId(2), from: Position::default() },
            ClusterCall::Join(Candidate::default()),
            ClusterCall::Announce { node: 2, about, starts: 4, boot: 7 },
            ClusterCall::Operate(Operation::Remove { node: 3, force: true }),
        ] {
            let bytes = call.encode();
            assert_eq!(bytes[0], call_kind::CLUSTER);
            assert_eq!(ClusterCall::decode(&bytes[1..]), Ok(call));
            for length in 1..bytes.len() {
                assert!(ClusterCall::decode(&bytes[1..length]).is_err(), "cut to {length}");
            }
        }
        for reply in [
            ClusterReply::Unread("what?".into()),
            ClusterReply::Report(Report {
                build: "1".into(),
                groups: vec![],
                leaving: true,
                disk_low: true,
                slow: true,
                problem: Some("why".into()),
            }),
            ClusterReply::Joined(JoinAnswer::Later("soon".into())),
            ClusterReply::Frozen(vec![ShardId(2)]),
            ClusterReply::Copied(None),
            ClusterReply::Copied(Some(vec![(ShardId(2), vec![1, 2, 3])])),
            ClusterReply::Done,
            ClusterReply::Failed(Error::NoControl),
        ] {
            assert_eq!(ClusterReply::decode(&reply.encode()), Ok(reply));
        }
        assert!(ClusterReply::decode(&[VERSION, 77]).is_err());
    }

    /// Nodes of two versions ask each other during an upgrade: what is here never changes.
    #[test]
    fn the_layout_of_version_1_stays() {
        let hex = |bytes: Bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let candidate = Candidate {
            format: 5,
            instance: 0x1122,
            address: "a:1".into(),
            serves: "b:2".into(),
            zone: "z".into(),
            rules_max: 3,
            shards: Some(32),
        };
        let about =
            About { address: "a:1".into(), serves: "b:2".into(), zone: "z".into(), rules_max: 3 };
        let changes =
            vec![MemberChange::AddVoter(1), MemberChange::AddLearner(2), MemberChange::Remove(3)];
        let shard = ShardId(300);
        for (call, expected) in [
            (ClusterCall::Report, "020101"),
            (
                ClusterCall::Change { group: 3, fence: (7, 40), changes },
                "02010203072803010102020303",
            ),
            (ClusterCall::Transfer { group: 1, to: 9 }, "0201030109"),
            (
                ClusterCall::Join(candidate.clone()),
                "020104050000000000000000000000000000112203613a3103623a32017a030120",
            ),
            (
                ClusterCall::Announce { node: 2, about, starts: 4, boot: 7 },
                "0201050203613a3103623a32017a030400000000000000000000000000000007",
            ),
            (ClusterCall::Operate(Operation::Drain { node: 3, drains: true }), "020106010301"),
            (ClusterCall::Operate(Operation::Remove { node: 3, force: true }), "020106020301"),
            (ClusterCall::Operate(Operation::Transfer { shard, node: 3 }), "02010603ac0203"),
            (ClusterCall::Operate(Operation::SetReplication { factor: 3 }), "0201060403"),
            (ClusterCall::Hold { backup: 7, hold_ms: 300 }, "02010707ac02"),
            (ClusterCall::Quiet { quiet_ms: 300 }, "020108ac02"),
            (ClusterCall::Freeze { backup: 7, shards: vec![(shard, 40)] }, "0201090701ac0228"),
            (ClusterCall::Copied { backup: 7 }, "02010a07"),
            (ClusterCall::LetGo { backup: 7 }, "02010c07"),
        ] {
            assert_eq!(hex(call.encode()), expected, "{call:?}");
        }
        let member = MemberStatus { replica: 1, matched: 300, lag: 2, active: true };
        let status = GroupStatus {
            group: 3,
            replica: 1,
            term: 4,
            leader: Some(1),
            serves: true,
            persisted: 302,
            applied: 301,
            committed: 300,
            voters: vec![1, 2],
            learners: vec![3],
            outgoing: vec![4],
            members_since: 5,
            members: vec![member],
            installing: Some(6),
        };
        let (build, groups) = ("0.1".to_owned(), vec![status]);
        let problem = Some("no".to_owned());
        let report = Report { build, groups, leaving: true, disk_low: false, slow: true, problem };
        let peers = BTreeMap::from([(1, "a:1".to_owned())]);
        let welcome = Welcome { cluster: 1, incarnation: 2, shards: 32, node: 3, peers };
        for (reply, expected) in [
            (ClusterReply::Unread("new".into()), "0100036e6577"),
            (
                ClusterReply::Report(report),
                "010103302e3101030104010101ae02ad02ac0202010201030104050101ac020201010601\
                 000101026e6f",
            ),
            (
                ClusterReply::Joined(JoinAnswer::Welcome(welcome)),
                "01020100000000000000000000000000000001022003010103613a31",
            ),
            (ClusterReply::Joined(JoinAnswer::Refused("no".into())), "010202026e6f"),
            (ClusterReply::Done, "0103"),
            (ClusterReply::Failed(Error::Refused("no".into())), "01040f026e6f"),
            (ClusterReply::Frozen(vec![shard]), "010501ac02"),
        ] {
            assert_eq!(hex(reply.encode()), expected, "{reply:?}");
        }
        assert_eq!(
            hex(JoinCall::Join(candidate).encode()),
            "0101050000000000000000000000000000112203613a3103623a32017a030120"
        );
        assert_eq!(hex(JoinCall::Look.encode()), "0102");
    }
}
