//! Groups: the requests that form and move a cluster, to this node's replicas.
//!
//! The shard loop handles each request, and the local replica answers it. The caller finds the
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

/// The longest pause of messages between shards or of checkpoints, whatever the caller asks.
const PAUSE_MS_MAX: u64 = 60_000;

/// The state of one replica, as its node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The group: 0 is the control group, `shard + 1` a shard's.
    pub group: u64,
    /// This node's replica of the group.
    pub replica: u64,
    /// The replica's term.
    pub term: u64,
    /// The leader, as far as this replica knows; it may be this one.
    pub leader: Option<u64>,
    /// Whether this replica serves: it leads, and has applied the first entry of its term.
    pub serves: bool,
    /// The last entry on this node's disk.
    pub persisted: u64,
    /// The last applied entry.
    pub applied: u64,
    /// The last entry known to be committed.
    pub committed: u64,
    /// The voters, as of `applied`.
    pub voters: Vec<u64>,
    /// The learners.
    pub learners: Vec<u64>,
    /// The old voters while a change of several members is in progress.
    pub outgoing: Vec<u64>,
    /// The index at which the members last changed. Together with the term it fences plans for
    /// these members.
    pub members_since: u64,
    /// The progress of each member; empty unless this replica serves.
    pub members: Vec<MemberStatus>,
    /// The bytes of a snapshot that have arrived, while one is being installed.
    pub installing: Option<u64>,
}

/// The progress of one member, as its leader sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// The replica.
    pub replica: u64,
    /// The last entry that the replica is known to have on disk.
    pub matched: u64,
    /// The number of entries that it lacks.
    pub lag: u64,
    /// Whether it was heard within an election timeout.
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
    /// Proposes to the control group, if this node leads it; returns when the command is applied.
    pub(crate) async fn control(&self, command: ControlCommand) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.push(Input::Control { command, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Proposes a change of a group's members, if this node leads it and the members have not
    /// changed since the plan: `fence` is the plan's term and `members_since`. Returns when the
    /// change is proposed; the group's status shows the result.
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

    /// Begins to hand over a group to replica `to`, if this node leads it.
    pub(crate) async fn transfer(&self, group: u64, to: u64) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.push(Input::Transfer { group, to, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Pauses the messages of shards that this node leads, and the removal of delivered ones, for a
    /// backup; 0 ends the pause. The pause is in force when this returns.
    pub(crate) async fn pause_delivery(&self, backup: u64, pause_ms: u64) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        let until = real_now() + Duration::from_millis(pause_ms.min(PAUSE_MS_MAX));
        self.push(Input::PauseDelivery { backup, until, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Prevents new checkpoints until the time is over or a backup begins. Returns when none is in
    /// progress.
    pub(crate) async fn keep_quiet(&self, quiet_ms: u64) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        let until = real_now() + Duration::from_millis(quiet_ms.min(PAUSE_MS_MAX));
        self.push(Input::Quiet { until, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// The states of this node's replicas, by group.
    pub(crate) async fn groups(&self) -> Result<Vec<GroupStatus>, Error> {
        let (answer, answered) = oneshot::channel();
        self.push(Input::Groups(answer))?;
        answered.await.map_err(|_| crate::shard::gone())
    }

    /// Passes a message to the local replica of a group.
    pub(crate) fn raft(&self, from: NodeId, group: u64, message: Bytes) {
        let _ = self.push(Input::Raft { from, group, message });
    }

    /// Reports that a peer is connected or not.
    pub(crate) fn peer(&self, node: NodeId, is_up: bool) {
        let _ = self.push(Input::Peer { node, is_up });
    }
}
