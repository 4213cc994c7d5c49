//! Outbox: what a leader has sent of what its machine owes other shards.
//!
//! Messages are delivered in order, once per target and number: the target dedups. So whatever is
//! forgotten here (a restart, a change of leader) is simply sent again.
//!
//! Invariant: each target that is owed something has a share of what may be on its way, and no
//! other target can use it up. A target that does not answer delays its own messages alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use taskyard_machine::{Command, EncodedCommand, Machine, ShardId, Timestamp};

/// Messages on their way at once, per shard. Each target that is owed something may have one,
/// however many targets there are.
const IN_FLIGHT_MAX: usize = 256;

/// Bytes sent at once, about. The rest follows when what was sent is answered.
const BYTES_AT_ONCE_MAX: usize = 4 << 20;

/// How long a target that has refused something is left alone: every try is a write of its log.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// One message on its way to its target.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) to: ShardId,
    pub(crate) sequence: u64,
    pub(crate) command: EncodedCommand,
}

/// What is on its way from one shard.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Something may have to be sent.
    stirred: bool,
    /// Sent up to this number, by target.
    sent: BTreeMap<ShardId, u64>,
    /// Taken up to this number, by target.
    taken: BTreeMap<ShardId, u64>,
    /// Targets of which the machine is to be told what they have taken.
    untold: BTreeSet<ShardId>,
    /// Targets that have refused something, and when they are tried again.
    refused: BTreeMap<ShardId, Instant>,
    /// Targets on other nodes that have something on its way: the next goes when it was answered,
    /// so that messages arrive in order.
    away: BTreeSet<ShardId>,
}

impl Outbox {
    /// The machine owes something.
    pub(crate) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Whether there is something to send or to tell.
    pub(crate) fn is_stirred(&self) -> bool {
        self.stirred || !self.untold.is_empty()
    }

    /// What to deliver next. What was sent before is not looked at again.
    pub(crate) fn take_unsent(&mut self, machine: &Machine, now: Timestamp) -> Vec<Delivery> {
        if !std::mem::take(&mut self.stirred) {
            return Vec::new();
        }
        // What was taken counts no more, whenever the machine may drop it.
        let first = |to| {
            let taken = self.taken.get(&to).copied().unwrap_or_default();
            machine.owed_to(to, taken, now).next().map(|owed| (to, owed.sequence))
        };
        let owed: Vec<(ShardId, u64)> = machine.targets().filter_map(first).collect();
        let (share, share_bytes) = match owed.len() {
            0 => return Vec::new(),
            targets => (IN_FLIGHT_MAX.div_ceil(targets) as u64, BYTES_AT_ONCE_MAX / targets),
        };
        let mut unsent = Vec::new();
        for (to, first) in owed {
            if self.refused.contains_key(&to) || self.away.contains(&to) {
                continue;
            }
            let sent = self.sent.entry(to).or_default();
            let mut bytes = 0;
            for deliver in machine.owed_to(to, (*sent).max(first - 1), now) {
                let sequence = deliver.sequence;
                if sequence >= first + share || bytes > share_bytes {
                    break;
                }
                bytes += deliver.command.len();
                *sent = sequence;
                let command = EncodedCommand::new(&Command::Deliver(deliver));
                unsent.push(Delivery { to, sequence, command });
            }
        }
        unsent
    }

    /// Something is on its way to a target on another node.
    pub(crate) fn sent_away(&mut self, to: ShardId) {
        self.away.insert(to);
    }

    /// What was on its way there is answered.
    pub(crate) fn returned(&mut self, to: ShardId) {
        self.away.remove(&to);
        self.stirred = true;
    }

    /// The target has taken this one.
    pub(crate) fn taken(&mut self, to: ShardId, sequence: u64) {
        let taken = self.taken.entry(to).or_default();
        *taken = sequence.max(*taken);
        self.untold.insert(to);
    }

    /// The target has not taken it: all that it did not take is sent again, after a while.
    pub(crate) fn refused(&mut self, to: ShardId, real: Instant) {
        self.sent.remove(&to);
        self.refused.insert(to, real + AGAIN_AFTER);
    }

    /// When refused targets are tried again, in real time.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.refused.values().min().copied()
    }

    /// Tries those again whose time has come; `true` if there are some.
    pub(crate) fn wake_due(&mut self, real: Instant) -> bool {
        let before = self.refused.len();
        self.refused.retain(|_, at| *at > real);
        let is_woken = self.refused.len() < before;
        self.stirred |= is_woken;
        is_woken
    }

    /// What the machine may drop: per target, all up to this number.
    pub(crate) fn take_delivered(&mut self) -> BTreeMap<ShardId, u64> {
        let untold = std::mem::take(&mut self.untold);
        untold.into_iter().filter_map(|to| Some((to, *self.taken.get(&to)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_machine::{
        Ack, Claim, ClaimQueue, Command, EncodedCommand, Enqueue, Entry, EntryBuilder, FollowUp,
        Identity, NewTask, NoPayloads, Outcome, limits,
    };

    const NOW: Timestamp = Timestamp(1_000);

    fn apply(machine: &mut Machine, command: &Command<'_>) -> Outcome {
        let mut entry = EntryBuilder::new(NOW);
        entry.push(&EncodedCommand::new(command));
        let entry = entry.finish();
        let entry = Entry::decode(&entry).unwrap();
        machine.apply(&entry, &mut NoPayloads, &mut Vec::new()).remove(0).unwrap()
    }

    /// A machine that owes one task to each of these shards.
    fn owing(targets: &[u16]) -> Machine {
        let mut machine = Machine::new(Identity { incarnation: 1, shard: ShardId(0), shards: 512 });
        owe(&mut machine, targets);
        machine
    }

    /// The same for one that owes something already.
    fn owe(machine: &mut Machine, targets: &[u16]) {
        let task = || NewTask { task_type: "t", ..NewTask::default() };
        apply(machine, &Command::Enqueue(Enqueue { queue: "q", task: task() }));
        let claim = Claim {
            queues: vec![ClaimQueue { name: "q", weight: 1 }],
            types: vec![],
            weighted_seed: None,
            tasks_max: 1,
            lease_ms: limits::LEASE_MS_DEFAULT,
            session: None,
            number: None,
            begun: false,
            worker: "",
        };
        let Outcome::Claimed(held) = apply(machine, &Command::Claim(claim)) else {
            panic!("a claim is answered with tasks")
        };
        let follow_up = |&home| FollowUp {
            home: ShardId(home),
            enqueue: Enqueue { queue: "next", task: task() },
        };
        let follow_ups = targets.iter().map(follow_up).collect();
        let ack = Ack { task: held[0].id, token: held[0].token, result: None, follow_ups };
        apply(machine, &Command::Ack(ack));
    }

    #[test]
    fn a_target_that_refuses_is_left_alone_for_a_while() {
        let machine = owing(&[1, 2]);
        let real = Instant::now();
        let mut outbox = Outbox::default();
        let sent = |outbox: &mut Outbox| -> Vec<u16> {
            outbox.take_unsent(&machine, NOW).iter().map(|outgoing| outgoing.to.0).collect()
        };
        outbox.stir();
        assert_eq!(sent(&mut outbox), [1, 2]);
        outbox.refused(ShardId(1), real);
        assert!(!outbox.is_stirred());
        outbox.stir();
        assert_eq!(sent(&mut outbox), [0u16; 0], "something else is owed");
        assert_eq!(outbox.next_look(), Some(real + AGAIN_AFTER));
        assert!(!outbox.wake_due(real + AGAIN_AFTER / 2));
        assert!(outbox.wake_due(real + AGAIN_AFTER));
        assert_eq!(sent(&mut outbox), [1]);
        assert_eq!(outbox.next_look(), None);
    }

    /// A backup keeps what was delivered for a while; and what the machine is told may get lost.
    #[test]
    fn what_was_taken_and_not_dropped_yet_holds_up_nothing() {
        let mut machine = owing(&[1]);
        // More targets, so that each has a part of what is sent at once.
        owe(&mut machine, &[2, 3, 4, 5, 6, 7]);
        let share = IN_FLIGHT_MAX.div_ceil(7);
        for _ in 0..2 * share {
            owe(&mut machine, &[1]);
        }
        let mut outbox = Outbox::default();
        let sent = |outbox: &mut Outbox| -> Vec<u64> {
            outbox.stir();
            let unsent = outbox.take_unsent(&machine, NOW).into_iter();
            unsent.filter(|outgoing| outgoing.to == ShardId(1)).map(|o| o.sequence).collect()
        };
        let first = sent(&mut outbox);
        assert_eq!(first, (1..=share as u64).collect::<Vec<_>>());
        assert_eq!(sent(&mut outbox), [0; 0], "as much as may be on its way is");
        first.iter().for_each(|&sequence| outbox.taken(ShardId(1), sequence));
        let taken = BTreeMap::from([(ShardId(1), share as u64)]);
        assert_eq!(outbox.take_delivered(), taken);
        assert_eq!(sent(&mut outbox).first(), Some(&(share as u64 + 1)));
        // It got lost: it is told again.
        assert!(!outbox.is_stirred());
        outbox.taken(ShardId(1), share as u64);
        assert!(outbox.is_stirred());
        assert_eq!(outbox.take_delivered(), taken);
    }

    /// Of many targets, those with low numbers do not answer.
    #[test]
    fn targets_that_do_not_answer_take_nothing_from_the_others() {
        let (stuck, well) = (1..=IN_FLIGHT_MAX as u16, IN_FLIGHT_MAX as u16 + 1..=400);
        let mut machine = owing(&[]);
        for first in (1..=400).step_by(100) {
            owe(&mut machine, &(first..first + 100).collect::<Vec<_>>());
        }
        let mut outbox = Outbox::default();
        let mut reached = BTreeSet::new();
        for _ in 0..3 {
            outbox.stir();
            for outgoing in outbox.take_unsent(&machine, NOW) {
                reached.insert(outgoing.to.0);
                match stuck.contains(&outgoing.to.0) {
                    true => outbox.sent_away(outgoing.to),
                    false => outbox.taken(outgoing.to, outgoing.sequence),
                }
            }
        }
        let missed: Vec<u16> = well.filter(|target| !reached.contains(target)).collect();
        assert_eq!(missed, [0u16; 0]);
    }
}
