//! LocalShard: one shard of this node: its replica, and everything that waits for it.

use super::{checkpoints::Checkpoint, control::has_others, install::Install, stopped::unreadable};
use crate::{
    Error,
    payloads::Bodies,
    shard::{
        comparison::Comparison,
        firing::Firing,
        inbox::{Answer, ReadFn},
        leader_clock::LeaderClock,
        outbox::Outbox,
        timer::Timer,
        waiters::{Served, Waiters},
        watchers::Watchers,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};
use taskyard_machine::{
    EncodedCommand, Entry, EntryBuilder, Event, Machine, Outcome, RULES_CURRENT, Rejection,
    SessionId, ShardId, Timestamp,
};
use taskyard_replica::{NodeId, ProposeRefused, Replica, StateMachine, eraftpb::HardState};

/// The replicated state of a shard, and what this node keeps beside it.
pub(crate) struct State {
    pub machine: Machine,
    pub bodies: Bodies,
    /// Events since they were last taken.
    pub events: Vec<Event>,
    /// Bytes of entries applied since the last checkpoint's cut.
    pub log_bytes: u64,
    /// Entries applied since replicas last compared their states.
    pub unmarked: u64,
}

impl State {
    pub(crate) fn new(machine: Machine) -> State {
        State { machine, bodies: Bodies::default(), events: Vec::new(), log_bytes: 0, unmarked: 0 }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.machine.memory_bytes() + self.bodies.bytes()
    }
}

impl StateMachine for State {
    type Outcome = Vec<Result<Outcome, Rejection>>;

    /// # Panics
    /// If this build can't read the entry or does not know its rules, because skipping it would
    /// make this replica differ from the others.
    fn apply(&mut self, index: u64, data: &[u8]) -> Self::Outcome {
        let shard = self.machine.identity().shard;
        let entry = Entry::decode(data).unwrap_or_else(|error| {
            unreadable(format!(
                "entry {index} of shard {shard}: {error}; start the newer version that wrote it"
            ))
        });
        if !entry.is_known() {
            unreadable(format!(
                "entry {index} of shard {shard} follows rules {}, and this build knows {RULES_CURRENT}; \
                 start the newer version that wrote it",
                entry.rules
            ));
        }
        self.log_bytes += data.len() as u64;
        self.unmarked = entry.unmarked_after(self.unmarked);
        let outcomes = self.machine.apply(&entry, &mut self.bodies, &mut self.events);
        #[cfg(test)]
        meet(MISTAKE, data);
        outcomes
    }
}

/// In tests, an entry with these bytes panics while it is applied.
#[cfg(test)]
pub(crate) const MISTAKE: &[u8] = b"a-mistake-in-a-rule";
/// In tests: a record with these bytes meets one when it is encoded for a checkpoint.
#[cfg(test)]
pub(crate) const MISTAKE_IN_A_BITE: &[u8] = b"a-mistake-in-a-bite";
/// In tests: a record with these bytes meets one when it is loaded.
#[cfg(test)]
pub(crate) const MISTAKE_IN_A_LOAD: &[u8] = b"a-mistake-in-a-load";

/// # Panics
/// If `bytes` have this mistake.
#[cfg(test)]
pub(crate) fn meet(mistake: &[u8], bytes: &[u8]) {
    assert!(!bytes.windows(mistake.len()).any(|found| found == mistake), "a rule is wrong");
}

/// What waits for the outcome of one command.
pub(crate) enum Waiting {
    Call(Answer<Outcome>),
    /// One of several commands of one call.
    Part {
        slot: usize,
        position: usize,
    },
    /// Boxed, because a claim is much larger than the other variants.
    Claim(Box<Served>),
    Expiry,
    Firing,
    /// The mark at which replicas compare their states.
    Mark,
    SessionEnd(SessionId),
    /// A message from the outbox of `from`.
    Deliver {
        from: ShardId,
        sequence: u64,
    },
    /// The outbox of this shard forgets the messages that a target has taken.
    Delivered {
        to: ShardId,
        up_to: u64,
    },
    Nobody,
}

impl Waiting {
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self, Waiting::Call(_) | Waiting::Part { .. } | Waiting::Claim(_))
    }

    /// Whether the loop proposed the command itself. Then no caller would repeat it.
    fn is_own(&self) -> bool {
        match self {
            Waiting::Expiry
            | Waiting::Firing
            | Waiting::Mark
            | Waiting::SessionEnd(_)
            | Waiting::Delivered { .. }
            | Waiting::Nobody => true,
            // Callers repeat these themselves.
            Waiting::Call(_)
            | Waiting::Part { .. }
            | Waiting::Claim(_)
            | Waiting::Deliver { .. } => false,
        }
    }
}

/// Commands that were not appended.
#[derive(Default)]
pub(crate) struct Unproposed {
    /// This node does not lead the shard.
    pub not_leading: Vec<Waiting>,
    /// No message could carry the command to the other replicas.
    pub too_large: Vec<(Waiting, Error)>,
}

impl Unproposed {
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.not_leading.is_empty() && self.too_large.is_empty()
    }
}

pub(crate) struct LocalShard {
    pub id: ShardId,
    pub group: u64,
    pub replica: Replica<State>,
    /// The shard's time; `Some` while this node leads the shard.
    pub leading: Option<LeaderClock>,
    /// Commands to propose in this turn, or once this node leads.
    pub pending: Vec<(EncodedCommand, Waiting)>,
    /// The bytes of pending commands that came before this node led the shard.
    pub queued_bytes: usize,
    /// Reads to confirm in this turn.
    pub reads: Vec<ReadFn>,
    pub waiters: Waiters,
    pub watchers: Watchers,
    pub timer: Timer,
    pub firing: Firing,
    pub comparison: Comparison,
    pub outbox: Outbox,
    pub checkpoint: Checkpoint,
    /// A fetched snapshot that is not installed yet.
    pub install: Option<Install>,
    /// A commit index to be written with the next entries; it needs no sync of its own.
    pub hard_state: Option<HardState>,
    /// The log up to here is to be dropped.
    pub log_cut: Option<u64>,
    pub is_active: bool,
    /// The replica is new: the next write must store its id.
    pub is_new: bool,
    /// The group has members besides this replica.
    pub has_peers: bool,
    /// By replica: the node that it was heard from.
    pub heard: BTreeMap<u64, NodeId>,
    /// When the shard next has something due, as of its last turn.
    pub due: Option<Timestamp>,
    /// What the shard takes of the memory budget, as last noted.
    pub memory_bytes: u64,
    next_number: u64,
    in_flight: VecDeque<(u64, Vec<Waiting>)>,
    reads_in_flight: VecDeque<(u64, Vec<ReadFn>)>,
}

impl LocalShard {
    pub(crate) fn new(
        id: ShardId,
        group: u64,
        replica: Replica<State>,
        checkpoint: Checkpoint,
    ) -> LocalShard {
        let mut shard = LocalShard {
            id,
            group,
            replica,
            leading: None,
            pending: Vec::new(),
            queued_bytes: 0,
            reads: Vec::new(),
            waiters: Waiters::default(),
            watchers: Watchers::default(),
            timer: Timer::default(),
            firing: Firing::default(),
            comparison: Comparison::default(),
            outbox: Outbox::default(),
            checkpoint,
            install: None,
            hard_state: None,
            log_cut: None,
            is_active: false,
            is_new: false,
            has_peers: false,
            heard: BTreeMap::new(),
            due: None,
            memory_bytes: 0,
            next_number: 0,
            in_flight: VecDeque::new(),
            reads_in_flight: VecDeque::new(),
        };
        shard.note_members();
        shard
    }

    pub(crate) fn state(&self) -> &State {
        self.replica.machine()
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.replica.machine().machine
    }

    /// When the shard next has something due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        let machine = self.machine();
        [self.timer.next(machine), self.firing.next(machine)].into_iter().flatten().min()
    }

    /// When replicas are to compare their states; `None` if there are no peers.
    pub(crate) fn compares_at(&self) -> Option<Instant> {
        let compares = self.leading.is_some() && self.has_peers;
        self.comparison.due_at(self.state().unmarked).filter(|_| compares)
    }

    /// Packs the pending commands into entries and appends them. Returns the commands that were not
    /// appended, and why. During a hand-over the loop's own commands stay pending, because the
    /// hand-over may fail and this node lead on.
    pub(crate) fn propose(&mut self, rules: u16, now: Timestamp) -> Unproposed {
        let mut unproposed = Unproposed::default();
        if self.leading.is_some() && self.replica.is_handing_over() {
            let others = self.pending.extract_if(.., |(_, waiting)| !waiting.is_own());
            unproposed.not_leading.extend(others.map(|(_, waiting)| waiting));
            return unproposed;
        }
        let mut pending = self.pending.drain(..).peekable();
        while pending.peek().is_some() {
            let mut entry = EntryBuilder::under(rules, now);
            let mut waiting = Vec::new();
            while let Some((_, waits)) = pending.next_if(|(command, _)| entry.push(command)) {
                waiting.push(waits);
            }
            self.next_number += 1;
            match self.replica.propose(entry.finish(), self.next_number) {
                Ok(()) => self.in_flight.push_back((self.next_number, waiting)),
                Err(ProposeRefused::NotLeader(_)) => unproposed.not_leading.extend(waiting),
                // A command of this length is alone in its entry.
                Err(ProposeRefused::TooLarge { bytes, bytes_max }) => {
                    let error = Error::CommandTooLarge { bytes, bytes_max };
                    let too_large = waiting.into_iter().map(|waiting| (waiting, error.clone()));
                    unproposed.too_large.extend(too_large);
                }
            }
        }
        unproposed
    }

    /// Asks the group to confirm all waiting reads at once. Returns the reads if this node can't
    /// ask.
    pub(crate) fn ask_reads(&mut self) -> Vec<ReadFn> {
        if self.reads.is_empty() {
            return Vec::new();
        }
        let reads = std::mem::take(&mut self.reads);
        self.next_number += 1;
        match self.replica.read(self.next_number) {
            Ok(()) => {
                self.reads_in_flight.push_back((self.next_number, reads));
                Vec::new()
            }
            Err(_) => reads,
        }
    }

    /// What waits for the proposal of this number.
    pub(crate) fn answers_of(&mut self, number: u64) -> Vec<Waiting> {
        take_number(&mut self.in_flight, number)
    }

    /// The reads that were asked under this number.
    pub(crate) fn reads_of(&mut self, number: u64) -> Vec<ReadFn> {
        take_number(&mut self.reads_in_flight, number)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.pending.is_empty()
    }

    /// Takes everything that waits for proposals and reads under way.
    pub(crate) fn take_in_flight(&mut self) -> (Vec<Waiting>, Vec<ReadFn>) {
        let in_flight = std::mem::take(&mut self.in_flight).into_iter();
        let reads = std::mem::take(&mut self.reads_in_flight).into_iter();
        let waiting = in_flight.flat_map(|(_, waiting)| waiting).collect();
        (waiting, reads.flat_map(|(_, reads)| reads).collect())
    }

    /// Ends what only a leader has, because this node no longer leads. Returns what waits for
    /// pending commands, so that none are left when this node leads again.
    pub(crate) fn end_all(&mut self, why: &Error) -> Vec<Waiting> {
        self.leading = None;
        self.waiters.end(Some(why));
        self.watchers.end(Some(why));
        self.timer = Timer::default();
        self.firing = Firing::default();
        self.comparison.end();
        self.outbox = Outbox::default();
        self.pending.drain(..).map(|(_, waiting)| waiting).collect()
    }

    pub(crate) fn note_members(&mut self) {
        self.has_peers = has_others(self.replica.conf_state(), self.replica.id());
    }
}

fn take_number<T>(queue: &mut VecDeque<(u64, Vec<T>)>, number: u64) -> Vec<T> {
    let position = queue.iter().position(|(other, _)| *other == number);
    position.and_then(|position| queue.remove(position)).map(|(_, found)| found).unwrap_or_default()
}

#[cfg(test)]
mod tests;
