//! Sabotage: bugs put in on purpose. A check that finds none of them shows nothing.

use taskyard_machine::{Command, SetQueue};
use taskyard_replica::Seen;

/// A bug put in on purpose, to see that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests break things on purpose"))]
pub(crate) enum Sabotage {
    None,
    /// The driver reports writes as persisted before they are synced.
    AnswerBeforeSync,
    /// Disks say that they have synced and have not.
    LyingDisks,
    /// A reload forgets a record of its checkpoint.
    ForgetfulCheckpoint,
    /// One replica passes over an entry now and then.
    DeafReplica,
    /// Every machine allows each queue one claim more than its concurrency.
    OneClaimMore,
    /// Every machine allows each key one claim more than its concurrency.
    OneClaimMorePerKey,
    /// No machine keeps to the rate of a queue.
    QueueRateIgnored,
    /// No machine keeps to the rate of a key.
    KeyRateIgnored,
    /// A node does not remember which replicas have lived on it, and starts with an old map.
    ReplicaIdsReused,
    /// The planner takes every member for one that has caught up.
    NobodyLags,
}

impl Sabotage {
    /// What is wrong with the replicas of a node.
    pub(crate) fn of_replica(self, node: usize) -> Sabotage {
        if self == Sabotage::DeafReplica && node != 1 { Sabotage::None } else { self }
    }

    /// Changes what the planner sees.
    pub(crate) fn of_sight(self, seen: &mut Seen) {
        if self == Sabotage::NobodyLags {
            for group in seen.groups.values_mut() {
                let members = group.members.voters.iter().chain(&group.members.learners);
                group.lags = members.map(|replica| (*replica, 0)).collect();
            }
        }
    }

    /// Changes what a machine takes a command for; the oracle sees what was asked.
    pub(crate) fn mishear(self, command: &mut Command<'_>) {
        let Command::SetQueue(SetQueue { settings, .. }) = command else { return };
        let per_key = settings.per_key.as_mut();
        match self {
            Sabotage::OneClaimMore => {
                settings.concurrency = settings.concurrency.map(|max| max + 1)
            }
            Sabotage::OneClaimMorePerKey => {
                if let Some(max) = per_key.and_then(|per_key| per_key.concurrency.as_mut()) {
                    *max += 1;
                }
            }
            Sabotage::QueueRateIgnored => settings.rate = None,
            Sabotage::KeyRateIgnored => {
                if let Some(per_key) = per_key {
                    per_key.rate = None;
                }
            }
            Sabotage::None
            | Sabotage::AnswerBeforeSync
            | Sabotage::LyingDisks
            | Sabotage::ForgetfulCheckpoint
            | Sabotage::DeafReplica
            | Sabotage::ReplicaIdsReused
            | Sabotage::NobodyLags => {}
        }
    }
}
