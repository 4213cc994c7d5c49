//! Host: one shard on one node: its replica, and the work of its leader. The leader packs commands
//! into entries, expires what is due, fires schedules, delivers its outbox, and answers.
//!
//! Invariant: a leader answers every request once, with an outcome or with the reason why there is
//! none.

use crate::checkpointing::Checkpointing;
use crate::clock::LeaderClock;
use crate::every::Every;
use crate::invariants::Violation;
use crate::node::{Output, Peer, group_of};
use crate::rng::Rng;
use crate::shard::{Applied, Shard};
use crate::workload::Answer;
use std::collections::{BTreeMap, VecDeque};
use taskyard_machine::{
    Attest, Claimable, Command, Delivered, EncodedCommand, Entry, EntryBuilder, Event, EventKind,
    Outcome, Rejection, ShardId, Timestamp,
};
use taskyard_replica::{Jury, Progress, Replica, Role, Statement, Verdict};

/// How long an outbox waits for an answer.
const OWED_MS_MAX: u64 = 400;

/// How many of its fires a leader may propose again.
const FIRES_KEPT_MAX: usize = 6;

/// The number of entries between two comparisons of states, far fewer than on a real node.
const COMPARE_ENTRIES: u64 = 12;

/// The receiver of a command's outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Client { client: usize, number: u64 },
    Outbox { node: usize, from: u16, sequence: u64 },
    Expiry,
    Firing,
    Mark,
    Nobody,
}

/// One shard on one node.
pub(crate) struct Host {
    pub(crate) replica: Replica<Shard>,
    pub(crate) clock: LeaderClock,
    pub(crate) inbox: VecDeque<(EncodedCommand, Waiting)>,
    pub(crate) proposals: BTreeMap<u64, Vec<Waiting>>,
    pub(crate) next_number: u64,
    /// For each read: the client, its number, the task, and the index that must be visible.
    pub(crate) reads: BTreeMap<u64, (usize, u64, taskyard_machine::TaskId, u64)>,
    pub(crate) expiring: bool,
    /// The number of undecided fires of schedules.
    pub(crate) firing: usize,
    /// The last proposed fires, which are outdated as soon as they are decided.
    pub(crate) fires: VecDeque<EncodedCommand>,
    /// For each target of the outbox: when to try again, and at which node.
    pub(crate) owed: BTreeMap<u16, (u64, usize)>,
    pub(crate) checkpointing: Option<Checkpointing>,
    pub(crate) checkpointed: u64,
    pub(crate) wants_checkpoint: bool,
    /// The attestations of the replicas.
    pub(crate) jury: Jury,
    pub(crate) marking: bool,
}

impl Host {
    pub(crate) fn new(replica: Replica<Shard>, now: u64) -> Host {
        Host {
            checkpointed: replica.applied(),
            wants_checkpoint: false,
            replica,
            clock: LeaderClock::begin(0, 0, now),
            inbox: VecDeque::new(),
            proposals: BTreeMap::new(),
            next_number: 0,
            reads: BTreeMap::new(),
            expiring: false,
            firing: 0,
            fires: VecDeque::new(),
            owed: BTreeMap::new(),
            checkpointing: None,
            jury: Jury::default(),
            marking: false,
        }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// `None` if it leads; else the known leader.
    pub(crate) fn not_leading(&self) -> Option<Option<u64>> {
        match self.replica.role() {
            Role::Leader { .. } => None,
            Role::Follower { leader, .. } => Some(leader),
        }
    }

    pub(crate) fn leads(&self) -> bool {
        self.not_leading().is_none()
    }

    pub(crate) fn expire(&mut self, stamp: u64) {
        let due = self.replica.machine().machine.next_due();
        if !self.expiring && due.is_some_and(|due| due.0 <= stamp) {
            self.expiring = true;
            self.inbox.push_back((EncodedCommand::new(&Command::ExpireDue), Waiting::Expiry));
        }
    }

    /// Proposes due occurrences of schedules, and sometimes repeats an earlier proposal.
    pub(crate) fn fire(&mut self, stamp: u64, rng: &mut Rng) {
        if self.firing > 0 {
            return;
        }
        let now = Timestamp(stamp);
        let machine = &self.replica.machine().machine;
        let due = machine.schedules_due(now).map(|due| due.fire(&Every::of(&due.spec), now));
        let fires: Vec<EncodedCommand> =
            due.map(|fire| EncodedCommand::new(&Command::FireSchedule(fire))).collect();
        self.firing = fires.len();
        for fire in fires {
            if let (true, Some(stale)) = (rng.chance(150), self.fires.front()) {
                self.inbox.push_back((stale.clone(), Waiting::Nobody));
            }
            if rng.chance(100) {
                self.inbox.push_back((fire.clone(), Waiting::Nobody));
            }
            self.inbox.push_back((fire.clone(), Waiting::Firing));
            self.fires.push_back(fire);
        }
        while self.fires.len() > FIRES_KEPT_MAX {
            self.fires.pop_front();
        }
    }

    /// Lets the replicas compare their states from time to time.
    pub(crate) fn mark(&mut self) {
        let members = self.replica.members();
        let alone = members.voters.len() + members.learners.len() == 1;
        if !alone && !self.marking && self.replica.machine().unmarked >= COMPARE_ENTRIES {
            self.marking = true;
            self.inbox.push_back((EncodedCommand::new(&Command::Mark), Waiting::Mark));
        }
    }

    /// Attests this replica's digest, and judges the attestations of others.
    fn compare(&mut self, shard: u16, events: Vec<Event>, output: &mut Output) {
        for event in events {
            let (mark, digest) = match event.kind {
                EventKind::DigestMarked { mark, digest } if self.not_leading().is_none() => {
                    (mark, digest)
                }
                EventKind::DigestAttested { attest, own: Some(own) } => {
                    match self.judge(attest, own) {
                        Verdict::Agreed => continue,
                        Verdict::Speak => (attest.mark, own),
                        Verdict::Wrong { others, .. } => {
                            let me = self.replica.id();
                            let mark = attest.mark;
                            output.stopped = Some(format!(
                                "shard {shard}: at mark {mark} replicas {others:?} agree on what {me} has not"
                            ));
                            continue;
                        }
                    }
                }
                _ => continue,
            };
            let replica = self.replica.id();
            let command = EncodedCommand::new(&Command::Attest(Attest { mark, replica, digest }));
            match self.not_leading() {
                None => self.inbox.push_back((command, Waiting::Nobody)),
                Some(leader) => output.attests.extend(leader.map(|to| (shard, to, command))),
            }
        }
    }

    fn judge(&mut self, attest: Attest, own: u64) -> Verdict {
        let Attest { mark, replica, digest } = attest;
        let (me, members) = (self.replica.id(), self.replica.members());
        self.jury.judge(me, own, Statement { mark, replica, digest }, &members)
    }

    /// Sends the first message for each target of the outbox.
    pub(crate) fn deliver(
        &mut self,
        shard: u16,
        (now, stamp): (u64, u64),
        places: &[usize],
        rng: &mut Rng,
        output: &mut Output,
    ) {
        for outgoing in self.replica.machine().machine.outgoing(64) {
            let to = outgoing.to.0;
            let first = self.owed.get(&to).is_none_or(|(until, _)| *until <= now);
            if first {
                let node = self.owed.get(&to).map_or(places[0], |(_, node)| *node);
                // A node that did not answer may be down.
                self.owed.insert(to, (now + OWED_MS_MAX, *rng.pick(places)));
                let deliver = outgoing.deliver(ShardId(shard), Timestamp(stamp));
                let command = EncodedCommand::new(&Command::Deliver(deliver));
                let sequence = outgoing.sequence;
                output.peers.push((node, Peer::Owed { from: shard, to, sequence, command }));
            }
        }
    }

    pub(crate) fn owed_answered(
        &mut self,
        to: u16,
        sequence: u64,
        answer: &Answer,
        now: u64,
        from: usize,
    ) {
        if self.not_leading().is_some() {
            return;
        }
        match answer {
            Answer::Decided(outcome) if outcome.is_ok() => {
                let delivered = Delivered { to: ShardId(to), up_to: sequence };
                let command = EncodedCommand::new(&Command::Delivered(delivered));
                self.inbox.push_back((command, Waiting::Nobody));
                // The next message waits until this one has left the outbox.
                self.owed.insert(to, (now + 20, from));
            }
            Answer::NotLeader { leader: Some(node) } => {
                self.owed.insert(to, (now + 5, *node));
            }
            _ => {}
        }
    }

    /// Packs waiting commands into entries. A claim that would get no task is answered without an
    /// entry.
    pub(crate) fn propose(
        &mut self,
        rules: u16,
        stamp: u64,
        commands_max: u64,
        output: &mut Output,
    ) {
        while !self.inbox.is_empty() {
            let mut builder = EntryBuilder::under(rules, Timestamp(stamp));
            let mut waiting = Vec::new();
            while let Some((command, who)) = self.inbox.pop_front() {
                if let (true, Waiting::Client { client, number }) =
                    (self.gets_nothing(&command, stamp), who)
                {
                    output.answers.push((client, number, Answer::Nothing));
                    continue;
                }
                let is_alone = changes_schedules(&command);
                if (is_alone && !waiting.is_empty()) || !builder.push(&command) {
                    self.inbox.push_front((command, who));
                    break;
                }
                waiting.push(who);
                if is_alone || waiting.len() as u64 >= commands_max {
                    break;
                }
            }
            if waiting.is_empty() {
                return;
            }
            let number = self.number();
            match self.replica.propose(builder.finish(), number) {
                Ok(()) => {
                    self.proposals.insert(number, waiting);
                }
                Err(_) => self.answer_all(&waiting, &Answer::NotLeader { leader: None }, output),
            }
        }
    }

    fn gets_nothing(&self, command: &EncodedCommand, stamp: u64) -> bool {
        let now = Timestamp(stamp);
        looks(command, |command| match command {
            Command::Claim(claim) => {
                let claimable = self.replica.machine().machine.claimable(claim, now);
                !matches!(claimable, Claimable::Now(_))
            }
            _ => false,
        })
    }

    fn answer_all(&mut self, waiting: &[Waiting], answer: &Answer, output: &mut Output) {
        for who in waiting {
            self.answer(*who, answer.clone(), output);
        }
    }

    fn answer(&mut self, who: Waiting, answer: Answer, output: &mut Output) {
        match who {
            Waiting::Client { client, number } => output.answers.push((client, number, answer)),
            Waiting::Outbox { node, from, sequence } => {
                let to = self.replica.machine().machine.identity().shard.0;
                output.peers.push((node, Peer::Taken { from, to, sequence, answer }));
            }
            Waiting::Expiry => self.expiring = false,
            Waiting::Firing => self.firing = self.firing.saturating_sub(1),
            Waiting::Mark => self.marking = false,
            Waiting::Nobody => {}
        }
    }

    pub(crate) fn take(
        &mut self,
        shard: u16,
        progress: Progress<Applied>,
        wall: u64,
        now: u64,
        output: &mut Output,
    ) -> Result<(), Violation> {
        let mut compared = Vec::new();
        for applied in progress.applied {
            let is_compared = |event: &&Event| {
                use EventKind::{DigestAttested, DigestMarked};
                matches!(event.kind, DigestMarked { .. } | DigestAttested { .. })
            };
            compared.extend(applied.outcome.events.iter().filter(is_compared).cloned());
            let (index, term) = (applied.index, applied.term);
            let waiting = applied.proposal.and_then(|number| self.proposals.remove(&number));
            if let Some(waiting) = waiting {
                output.answered.push((shard, index, term));
                for (who, outcome) in waiting.iter().zip(&applied.outcome.outcomes) {
                    check_delivery(*who, outcome)?;
                    self.answer(*who, Answer::Decided(Box::new(outcome.clone())), output);
                }
            }
            output.applied.push((shard, index, term, applied.outcome));
        }
        for number in progress.dropped {
            let waiting = self.proposals.remove(&number).unwrap_or_default();
            self.answer_all(&waiting, &Answer::Unknown, output);
        }
        for number in progress.reads {
            let Some((client, call, task, floor)) = self.reads.remove(&number) else { continue };
            let applied = self.replica.applied();
            if applied < floor {
                return Err(format!(
                    "a read on shard {shard} saw {applied}, although {floor} was answered before"
                ));
            }
            let view = self.replica.machine().machine.task(task).map(Box::new);
            output.answers.push((client, call, Answer::View(view)));
        }
        for number in progress.reads_dropped {
            let read = self.reads.remove(&number);
            output.answers.extend(read.map(|(client, call, ..)| (client, call, Answer::Unknown)));
        }
        if progress.members_changed {
            // A new member needs a checkpoint that names it.
            self.wants_checkpoint = true;
            output.members.push((group_of(shard), self.replica.applied(), self.replica.members()));
        }
        if let Some(role) = progress.role {
            self.took_role(role, wall, now, output);
            output.roles.push((group_of(shard), self.replica.id(), role));
        }
        self.compare(shard, compared, output);
        Ok(())
    }

    fn took_role(&mut self, role: Role, wall: u64, now: u64, output: &mut Output) {
        let waiting: Vec<Waiting> = self.inbox.drain(..).map(|(_, who)| who).collect();
        self.answer_all(&waiting, &Answer::NotLeader { leader: None }, output);
        self.expiring = false;
        self.firing = 0;
        self.marking = false;
        self.owed.clear();
        if let Role::Leader { .. } = role {
            let state_now = self.replica.machine().machine.now().0;
            self.clock = LeaderClock::begin(state_now, wall, now);
            self.inbox.push_back((EncodedCommand::new(&Command::BeginTerm), Waiting::Nobody));
            // The fires are from an earlier term; other leaders may have fired since.
            let fires = self.fires.iter().cloned().map(|fire| (fire, Waiting::Nobody));
            self.inbox.extend(fires);
        }
    }
}

fn looks<T>(command: &EncodedCommand, look: impl FnOnce(&Command<'_>) -> T) -> T {
    let mut builder = EntryBuilder::new(Timestamp(0));
    builder.push(command);
    let bytes = builder.finish();
    let entry = Entry::decode(&bytes).expect("it was encoded just now");
    look(&entry.commands[0])
}

/// Such a command gets an entry of its own, because the oracle must know the rules for each event.
fn changes_schedules(command: &EncodedCommand) -> bool {
    looks(command, |command| {
        matches!(
            command,
            Command::SetSchedule(_)
                | Command::PauseSchedule(_)
                | Command::ResumeSchedule(_)
                | Command::RemoveSchedule(_)
                | Command::TriggerSchedule(_)
                | Command::BackfillSchedule(_)
        )
    })
}

/// The machine itself makes the messages of an outbox, so that a target that rejects one has lost
/// data.
fn check_delivery(who: Waiting, outcome: &Result<Outcome, Rejection>) -> Result<(), Violation> {
    match (who, outcome) {
        (Waiting::Outbox { from, sequence, .. }, Err(rejection)) => {
            Err(format!("delivery {sequence} of shard {from} was refused: {rejection}"))
        }
        _ => Ok(()),
    }
}
