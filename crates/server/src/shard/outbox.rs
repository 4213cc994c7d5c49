//! Outbox: which messages of a shard to other shards its leader has sent.
//!
//! Messages are delivered in order, and the target dedups them by number. So a message that is
//! forgotten here (a restart, a change of leader) is sent again.
//!
//! Invariant: each target with waiting messages has its own share of those in flight. A target that
//! does not answer delays only its own messages.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use taskyard_machine::{Command, EncodedCommand, Machine, ShardId, Timestamp};

/// Messages of a shard in flight. Each target may have at least one, however many targets there
/// are.
const IN_FLIGHT_MAX: usize = 256;

/// About the bytes sent at once. The rest follows when these are answered.
const BYTES_AT_ONCE_MAX: usize = 4 << 20;

/// The pause after a target has refused a message, because every try is a write to its log.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) to: ShardId,
    pub(crate) sequence: u64,
    pub(crate) command: EncodedCommand,
}

/// The messages in flight of one shard.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// There may be messages to send.
    woken: bool,
    /// By target: the number of the last message sent.
    sent: BTreeMap<ShardId, u64>,
    /// By target: the number of the last message taken.
    taken: BTreeMap<ShardId, u64>,
    /// Targets whose taken messages the machine has yet to drop.
    unreported: BTreeSet<ShardId>,
    /// Targets that have refused a message, and when to send again.
    refused: BTreeMap<ShardId, Instant>,
    /// Targets on other nodes with messages in flight. The next ones wait for the answer, so that
    /// messages arrive in order.
    away: BTreeSet<ShardId>,
}

impl Outbox {
    /// The machine has new messages.
    pub(crate) fn wake(&mut self) {
        self.woken = true;
    }

    /// Whether there are messages to send or to drop.
    pub(crate) fn is_woken(&self) -> bool {
        self.woken || !self.unreported.is_empty()
    }

    /// The messages to send next: new ones, and those that were refused and have waited.
    pub(crate) fn take_unsent(&mut self, machine: &Machine, now: Timestamp) -> Vec<Delivery> {
        if !std::mem::take(&mut self.woken) {
            return Vec::new();
        }
        // Taken messages do not count, even if the machine still keeps them.
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

    /// Messages to a target on another node are in flight.
    pub(crate) fn sent_remote(&mut self, to: ShardId) {
        self.away.insert(to);
    }

    /// The other node has answered.
    pub(crate) fn remote_answered(&mut self, to: ShardId) {
        self.away.remove(&to);
        self.woken = true;
    }

    /// The target has taken the message, and all before it.
    pub(crate) fn taken(&mut self, to: ShardId, sequence: u64) {
        let taken = self.taken.entry(to).or_default();
        *taken = sequence.max(*taken);
        self.unreported.insert(to);
    }

    /// The target has refused a message: all that it has not taken are sent again after a pause.
    pub(crate) fn refused(&mut self, to: ShardId, real: Instant) {
        self.sent.remove(&to);
        self.refused.insert(to, real + AGAIN_AFTER);
    }

    /// When to send again to a target that has refused, in real time.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.refused.values().min().copied()
    }

    /// Ends the pauses that are over; `true` if there were any.
    pub(crate) fn wake_due(&mut self, real: Instant) -> bool {
        let before = self.refused.len();
        self.refused.retain(|_, at| *at > real);
        let is_woken = self.refused.len() < before;
        self.woken |= is_woken;
        is_woken
    }

    /// By target: the number of the last message that the machine may drop.
    pub(crate) fn take_delivered(&mut self) -> BTreeMap<ShardId, u64> {
        let unreported = std::mem::take(&mut self.unreported);
        unreported.into_iter().filter_map(|to| Some((to, *self.taken.get(&to)?))).collect()
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

    /// A machine with one message for each of these shards.
    fn owing(targets: &[u16]) -> Machine {
        let mut machine = Machine::new(Identity { incarnation: 1, shard: ShardId(0), shards: 512 });
        owe(&mut machine, targets);
        machine
    }

    /// Adds one message for each of these shards.
    fn owe(machine: &mut Machine, targets: &[u16]) {
        let task = || NewTask { task_type: "t", ..NewTask::default() };
        apply(machine, &Command::Enqueue(Enqueue { queue: "q", task: task() }));
        let claim = Claim {
            queues: vec![ClaimQueue { name: "q", weight: 1 }],
            types: vec![],
            weighted_seed: None,
            tasks_max: 1,
            bytes_max: u32::MAX,
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
        outbox.wake();
        assert_eq!(sent(&mut outbox), [1, 2]);
        outbox.refused(ShardId(1), real);
        assert!(!outbox.is_woken());
        outbox.wake();
        assert_eq!(sent(&mut outbox), [0u16; 0], "something else is owed");
        assert_eq!(outbox.next_look(), Some(real + AGAIN_AFTER));
        assert!(!outbox.wake_due(real + AGAIN_AFTER / 2));
        assert!(outbox.wake_due(real + AGAIN_AFTER));
        assert_eq!(sent(&mut outbox), [1]);
        assert_eq!(outbox.next_look(), None);
    }

    /// A backup delays the drop of delivered messages, and the drop's command may be lost.
    #[test]
    fn taken_messages_that_are_not_dropped_yet_delay_no_others() {
        let mut machine = owing(&[1]);
        // More targets, so that each has only a share.
        owe(&mut machine, &[2, 3, 4, 5, 6, 7]);
        let share = IN_FLIGHT_MAX.div_ceil(7);
        for _ in 0..2 * share {
            owe(&mut machine, &[1]);
        }
        let mut outbox = Outbox::default();
        let sent = |outbox: &mut Outbox| -> Vec<u64> {
            outbox.wake();
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
        // The command was lost: it is proposed again.
        assert!(!outbox.is_woken());
        outbox.taken(ShardId(1), share as u64);
        assert!(outbox.is_woken());
        assert_eq!(outbox.take_delivered(), taken);
    }

    /// The targets with low numbers do not answer.
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
            outbox.wake();
            for outgoing in outbox.take_unsent(&machine, NOW) {
                reached.insert(outgoing.to.0);
                match stuck.contains(&outgoing.to.0) {
                    true => outbox.sent_remote(outgoing.to),
                    false => outbox.taken(outgoing.to, outgoing.sequence),
                }
            }
        }
        let missed: Vec<u16> = well.filter(|target| !reached.contains(target)).collect();
        assert_eq!(missed, [0u16; 0]);
    }
}
