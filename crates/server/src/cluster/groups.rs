//! Groups: what is asked of this node's replicas by those who form and move a cluster.
//!
//! All of it goes to the shard loop, and is answered by the replica that is here: who asks finds the
//! leader by `Routes`.

use crate::{
    Error,
    clock::real_now,
    shard::{Shards, inbox::Input},
};
use bytes::Bytes;
use std::time::Duration;
use taskyard_machine::wire::wire_struct;
use taskyard_replica::{Change, ControlCommand, NodeId};
use tokio::sync::oneshot;

/// Nobody holds messages between shards, or checkpoints, for longer, whatever is asked.
const HOLD_MS_MAX: u64 = 60_000;

/// How one replica stands, as its node tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The group: 0 is the control group, `shard + 1` a shard's.
    pub group: u64,
    /// This node's replica of it.
    pub replica: u64,
    /// Its term.
    pub term: u64,
    /// The replica that leads, as far as this one knows; it may be this one.
    pub leader: Option<u64>,
    /// This replica leads and has applied its own first entry: it serves.
    pub serves: bool,
    /// The last entry on this node's disk.
    pub persisted: u64,
    /// The last entry that was applied.
    pub applied: u64,
    /// The last entry that is known to be committed.
    pub committed: u64,
    /// Those who decide, as of `applied`.
    pub voters: Vec<u64>,
    /// Those who only follow.
    pub learners: Vec<u64>,
    /// The old voters while a change of several members is under way.
    pub outgoing: Vec<u64>,
    /// The entry that made the members what they are. With the term it fences what is planned for them.
    pub members_since: u64,
    /// How far each member has come; empty unless it serves.
    pub members: Vec<MemberStatus>,
    /// It is being sent the whole state: bytes that have arrived.
    pub installing: Option<u64>,
}

/// How far a member has come, as its leader sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// The replica.
    pub replica: u64,
    /// The last entry that it is known to hold on disk.
    pub matched: u64,
    /// How many entries it lacks.
    pub lag: u64,
    /// It was heard of within an election timeout.
    pub active: bool,
}

wire_struct!(GroupStatus {
    group,
    replica,
    term,
    leader,
    serves,
    persisted,
    applied,
    committed,
    voters,
    learners,
    outgoing,
    members_since,
    members,
    installing,
});
wire_struct!(MemberStatus { replica, matched, lag, active });

impl Shards {
    /// Proposes to the control group, if this node leads it: applied when this returns.
    pub(crate) async fn control(&self, command: ControlCommand) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.push(Input::Control { command, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Proposes a change of a group's members, if this node leads it and they are those that the change was
    /// planned for: `fence` is their term and `members_since`. Returns when it is proposed: what became
    /// of it is seen in the group's status.
    pub(crate) async fn change(
        &self,
        group: u64,
        fence: (u64, u64),
        changes: Vec<Change>,
    ) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.push(Input::Change { group, fence, changes, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Begins to hand a group over to replica `to`, if this node leads it.
    pub(crate) async fn transfer(&self, group: u64, to: u64) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.push(Input::Transfer { group, to, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Lets shards that this node leads send others nothing, and drop nothing that those have taken, for so
    /// long, for a backup; 0 ends that. In force when this returns.
    pub(crate) async fn hold(&self, backup: u64, hold_ms: u64) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        let until = real_now() + Duration::from_millis(hold_ms.min(HOLD_MS_MAX));
        self.push(Input::Hold { backup, until, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Lets no checkpoint begin for so long, or until a backup comes. Returns when none is under way.
    pub(crate) async fn keep_quiet(&self, quiet_ms: u64) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        let until = real_now() + Duration::from_millis(quiet_ms.min(HOLD_MS_MAX));
        self.push(Input::Quiet { until, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// How the replicas of this node stand, by group.
    pub(crate) async fn groups(&self) -> Result<Vec<GroupStatus>, Error> {
        let (answer, answered) = oneshot::channel();
        self.push(Input::Groups(answer))?;
        answered.await.map_err(|_| crate::shard::gone())
    }

    /// Takes a message for the replica of a group.
    pub(crate) fn raft(&self, from: NodeId, group: u64, message: Bytes) {
        let _ = self.push(Input::Raft { from, group, message });
    }

    /// Tells that a peer can be sent to, or no longer can.
    pub(crate) fn peer(&self, node: NodeId, is_up: bool) {
        let _ = self.push(Input::Peer { node, is_up });
    }
}
