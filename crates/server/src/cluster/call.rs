//! Calls between nodes about the cluster itself, and their bytes.
//!
//! The bytes come from another node, perhaps of another version: unreadable bytes get an answer in
//! words, and nothing panics. `Cluster::ask_leader` sends the calls that only the control group's
//! leader decides; any node answers the others.

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

/// The byte after the kind: the version of the layout.
const VERSION: u8 = 1;

/// The second byte of [`ClusterReply::Unread`], before its words: the same in every version.
const UNREAD: u8 = 0;

/// A node's call to another node about the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterCall {
    /// Asks for the state of the node and its replicas.
    Report,
    /// Changes the members of a group that the node leads.
    Change { group: u64, fence: (u64, u64), changes: Vec<MemberChange> },
    /// Hands over a group that the node leads to another replica.
    Transfer { group: u64, to: u64 },
    /// Pauses messages between shards for a backup, and keeps delivered messages in their outboxes;
    /// 0 milliseconds end the pause.
    PauseDelivery { backup: u64, pause_ms: u64 },
    /// Prevents new checkpoints until the time is over or a backup begins; answered when none is in
    /// progress.
    Quiet { quiet_ms: u64 },
    /// Freezes all replicas of the node at one moment and keeps the copies for a backup, once these
    /// shards have applied the given indexes; answered afterwards.
    Freeze { backup: u64, shards: Vec<(ShardId, u64)> },
    /// Asks for the cuts of the copies that the node keeps for a backup, and extends their keeping.
    Copied { backup: u64 },
    /// Ends the keeping of a backup's copies.
    DropCopies { backup: u64 },
    /// Asks for a part of a copy.
    CopiedPart { backup: u64, shard: ShardId, from: Position },
    /// To the control group's leader: a node asks to join.
    Join(Candidate),
    /// To the control group's leader: a node announces itself.
    Announce { node: NodeId, about: About, starts: u64, boot: u128 },
    /// To the control group's leader: an operator's request.
    Operate(Operation),
    /// A call about the workers that are connected to the node.
    Worker(WorkerCall),
}

/// The answer to a [`ClusterCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClusterReply {
    /// The other node cannot read the call, because its version differs. Nothing was done.
    Unread(String),
    /// Answers `Report`.
    Report(Report),
    /// Answers `Join`.
    Joined(JoinAnswer),
    /// Answers `Freeze`: the shards that have applied the requested index.
    Frozen(Vec<ShardId>),
    /// Answers `Copied`: the cut of each copy, encoded; `None` until all are on disk.
    Copied(Option<Vec<(ShardId, Vec<u8>)>>),
    /// Answers `CopiedPart`.
    Part(Part),
    /// Answers `Worker`.
    Worker(WorkerReply),
    /// Answers all other calls: the node has done it.
    Done,
    /// The node has not done it.
    Failed(Error),
}

/// A node's report about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The version that it runs.
    pub(crate) build: String,
    /// The node's replicas, by group.
    pub(crate) groups: Vec<GroupStatus>,
    /// Whether the node stops, so that it must get no leaders.
    pub(crate) leaving: bool,
    /// Whether the node is low on disk, so that it must get neither leaders nor replicas.
    pub(crate) disk_low: bool,
    /// Whether its messages reach other nodes too slowly, so that it must get no leaders.
    pub(crate) slow: bool,
    /// What is wrong with it, for people.
    pub(crate) problem: Option<String>,
}

/// A node's facts about itself: see `taskyard_replica::Node`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) address: String,
    pub(crate) serves: String,
    pub(crate) zone: String,
    pub(crate) rules_max: u16,
}

/// An operator's request to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Drains a node, or puts it back into use.
    Drain {
        /// The node's number.
        node: NodeId,
        /// Whether to drain the node.
        drains: bool,
    },
    /// Removes a node.
    Remove {
        /// The node's number.
        node: NodeId,
        /// Whether the node is lost for good, so that its replicas are placed anew.
        force: bool,
    },
    /// Hands over a shard to a node.
    Transfer {
        /// The shard.
        shard: ShardId,
        /// The node.
        node: NodeId,
    },
    /// Sets the number of replicas of each shard.
    SetReplication {
        /// 1, 3 or 5.
        factor: u8,
    },
}

/// A change of one member, as it is encoded.
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
    /// The call's bytes, after the byte that names the part that answers.
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
    /// The frozen shards in an answer to `Freeze`.
    pub(crate) fn frozen(self) -> Result<Vec<ShardId>, Error> {
        match self {
            ClusterReply::Frozen(shards) => Ok(shards),
            other => other.done().and(Err(Error::OutcomeUnknown)),
        }
    }

    /// The result of a call that has no other answer.
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
    7 => PauseDelivery { backup, pause_ms },
    8 => Quiet { quiet_ms },
    9 => Freeze { backup, shards },
    10 => Copied { backup },
    11 => CopiedPart { backup, shard, from },
    12 => DropCopies { backup },
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
            ClusterCall::PauseDelivery { backup: 7, pause_ms: 300 },
            ClusterCall::Quiet { quiet_ms: 300 },
            ClusterCall::Freeze { backup: 7, shards: vec![(ShardId(2), 40), (ShardId(3), 1)] },
            ClusterCall::Copied { backup: u64::MAX },
            ClusterCall::DropCopies { backup: 7 },
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

    /// Nodes of two versions talk to each other during an upgrade, so that this layout never
    /// changes.
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
            (ClusterCall::PauseDelivery { backup: 7, pause_ms: 300 }, "02010707ac02"),
            (ClusterCall::Quiet { quiet_ms: 300 }, "020108ac02"),
            (ClusterCall::Freeze { backup: 7, shards: vec![(shard, 40)] }, "0201090701ac0228"),
            (ClusterCall::Copied { backup: 7 }, "02010a07"),
            (ClusterCall::DropCopies { backup: 7 }, "02010c07"),
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
