//! Sabotage: deliberate bugs. A check that finds none of them proves nothing.

use taskyard_machine::limits::RETENTION_COUNT_DEFAULT;
use taskyard_machine::{Command, Delivered, SetQueue, ShardId};
use taskyard_replica::Seen;

/// A deliberate bug, to show that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests break things on purpose"))]
pub(crate) enum Sabotage {
    None,
    /// The driver reports writes as persisted before they are synced.
    AnswerBeforeSync,
    /// Disks report a sync that they have not made.
    LyingDisks,
    /// A reload forgets a record of its checkpoint.
    ForgetfulCheckpoint,
    /// One replica skips an entry from time to time.
    DeafReplica,
    /// One replica sometimes makes a queue without a command, which no client can see.
    SecretQueue,
    /// One replica misses the effect of each term's first entry.
    MissedTerm,
    /// One replica keeps one finished task more than each queue's settings allow.
    OneKeptMore,
    /// Every machine allows each queue one claim more than its concurrency.
    OneClaimMore,
    /// Every machine allows each key one claim more than its concurrency.
    OneClaimMorePerKey,
    /// No machine obeys the rate of a queue.
    QueueRateIgnored,
    /// No machine obeys the rate of a key.
    KeyRateIgnored,
    /// A node forgets which replicas it has had, and starts with an old map.
    ReplicaIdsReused,
    /// Nodes report newer rules than they know, so that rules are raised too early.
    RulesTooEarly,
    /// The planner takes every member as caught up.
    NobodyLags,
}

/// The node whose replicas have the bug, if only one node has it.
pub(crate) const ASTRAY: usize = 1;

impl Sabotage {
    /// The bug of a node's replicas.
    pub(crate) fn of_replica(self, node: usize) -> Sabotage {
        let of_one = self == Sabotage::DeafReplica || self.leads_astray();
        if of_one && node != ASTRAY { Sabotage::None } else { self }
    }

    /// Whether one replica silently gets another state, which the others must find out.
    pub(crate) fn leads_astray(self) -> bool {
        use Sabotage::*;
        matches!(self, SecretQueue | MissedTerm | OneKeptMore)
    }

    /// The rules that a node reports.
    pub(crate) fn of_reported_rules(self, rules_max: u16) -> u16 {
        rules_max + u16::from(self == Sabotage::RulesTooEarly)
    }

    /// Changes the facts for the planner.
    pub(crate) fn of_sight(self, seen: &mut Seen) {
        if self == Sabotage::NobodyLags {
            for group in seen.groups.values_mut() {
                let members = group.members.voters.iter().chain(&group.members.learners);
                group.lags = members.map(|replica| (*replica, 0)).collect();
            }
        }
    }

    /// Changes a command for the machine; the oracle sees the original.
    pub(crate) fn mishear(self, command: &mut Command<'_>) {
        if let (Sabotage::MissedTerm, Command::BeginTerm) = (self, &command) {
            *command = Command::Delivered(Delivered { to: ShardId(0), up_to: 0 });
        }
        let Command::SetQueue(SetQueue { settings, .. }) = command else { return };
        let per_key = settings.per_key.as_mut();
        match self {
            Sabotage::OneKeptMore => {
                let kept = settings.retention_count.unwrap_or(RETENTION_COUNT_DEFAULT);
                settings.retention_count = Some(kept + 1);
            }
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
            | Sabotage::SecretQueue
            | Sabotage::MissedTerm
            | Sabotage::ReplicaIdsReused
            | Sabotage::RulesTooEarly
            | Sabotage::NobodyLags => {}
        }
    }
}
