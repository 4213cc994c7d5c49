//! Host: one replica on one node, and the work of its leader: it packs commands into entries, parks
//! claims until there is a task, and answers.
//!
//! Invariant: a leader answers or returns each call that it has taken, or counts it as unknown.

use super::commands::{self, Commands};
use super::params::{ELECTION_TICKS, HEARTBEAT_TICKS, Micros};
use super::state::State;
use crate::clock::RUN_BEGINS_AT_MS;
use crate::rng::mix;
use std::collections::VecDeque;
use std::rc::Rc;
use taskyard_machine::{
    ClaimNumber, ClaimToken, Claimable, Command, EncodedCommand, EntryBuilder, Outcome, TaskId,
    Timestamp,
};
use taskyard_replica::eraftpb::{ConfState, Entry};
use taskyard_replica::{
    Config, ControlCommand, LogReader, Members, Progress, Replica, Restored, Role,
};

/// A gateway's call to a leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) gateway: usize,
    /// When its client made the request.
    pub(crate) since: Micros,
    pub(crate) ask: Ask,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    Enqueue,
    Claim {
        worker: u32,
        /// The number for repetitions: an earlier leader may have answered the claim before.
        number: ClaimNumber,
    },
    Ack {
        worker: u32,
        task: TaskId,
        token: ClaimToken,
    },
}

/// The result of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Done(Call),
    Claimed {
        call: Call,
        task: TaskId,
        token: ClaimToken,
    },
    /// Not appended, so that the gateway sends it elsewhere.
    Returned(Call),
    /// Appended, and lost with leadership.
    Unknown(Call),
}

/// A milestone of a replica, reported when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Milestone {
    /// The replica leads, and has applied all earlier entries.
    Leads,
    /// The first write of the term is committed.
    Writes,
    StepsDown,
}

#[derive(Clone, Copy, Debug)]
enum Waiting {
    Call(Call),
    /// The first command of a term.
    Begin,
    Expiry,
    Nobody,
}

/// A group's replicas and the nodes that they are on.
pub(crate) type Route = Rc<[(u64, usize)]>;

pub(crate) struct Host {
    pub(crate) group: u64,
    pub(crate) replica: Replica<State>,
    route: Route,
    pub(crate) leads: bool,
    pub(crate) is_active: bool,
    pending: Vec<(EncodedCommand, Waiting)>,
    proposals: VecDeque<(u64, Vec<Waiting>)>,
    next_number: u64,
    waiters: VecDeque<Call>,
    /// The number of claims that are on their way through the log.
    claims_under_way: u64,
    expiring: bool,
    /// The applied index at each of the last few seconds.
    applied_at: VecDeque<u64>,
}

/// Logs are cut this many seconds back, as if checkpoints were taken.
const LOG_KEPT_SECONDS: usize = 7;

/// Logs stay in the replicas' own memory, see `LOG_KEPT_SECONDS`; nothing is ever read back.
struct InMemory;

impl LogReader for InMemory {
    fn entries(&self, _from: u64, _to: u64, _bytes_max: u64) -> Vec<Entry> {
        Vec::new()
    }

    fn term(&self, _index: u64) -> Option<u64> {
        None
    }
}

impl Host {
    /// A replica of a group that has these members from the beginning.
    pub(crate) fn new(
        seed: u64,
        group: u64,
        id: u64,
        members: &Members,
        route: Route,
        state: State,
    ) -> Host {
        let conf_state = ConfState {
            voters: members.voters.clone(),
            learners: members.learners.clone(),
            ..ConfState::default()
        };
        let restored = Restored { conf_state, ..Restored::default() };
        let config = Config {
            id,
            seed: mix(seed ^ mix(group)),
            heartbeat_ticks: HEARTBEAT_TICKS,
            election_ticks: ELECTION_TICKS,
            entry_bytes_max: usize::MAX,
        };
        let replica = Replica::new(&config, restored, Box::new(InMemory), state)
            .expect("a new group begins at its beginning");
        Host {
            group,
            replica,
            route,
            leads: false,
            is_active: false,
            pending: Vec::new(),
            proposals: VecDeque::new(),
            next_number: 0,
            waiters: VecDeque::new(),
            claims_under_way: 0,
            expiring: false,
            applied_at: VecDeque::new(),
        }
    }

    /// The node of a replica of this group.
    pub(crate) fn node_of(&self, replica: u64) -> Option<usize> {
        self.route.iter().find(|(id, _)| *id == replica).map(|(_, node)| *node)
    }

    /// The replica of this group on a node.
    pub(crate) fn replica_on(&self, node: usize) -> Option<u64> {
        self.route.iter().find(|(_, at)| *at == node).map(|(id, _)| *id)
    }

    /// Takes a call, if this replica leads.
    pub(crate) fn take(&mut self, call: Call, now: Micros, commands: &Commands) -> Option<Answer> {
        if !self.leads {
            return Some(Answer::Returned(call));
        }
        match call.ask {
            Ask::Enqueue => self.pending.push((commands.enqueue.clone(), Waiting::Call(call))),
            Ask::Ack { task, token, .. } => {
                let command = EncodedCommand::new(&Command::Ack(commands::ack(task, token)));
                self.pending.push((command, Waiting::Call(call)));
            }
            Ask::Claim { worker, number } => {
                let again = number.sending > 0;
                if again {
                    self.forget_waiter(worker);
                }
                let claim = commands::claim(Some((worker, number)));
                let machine = self.replica.machine().machine().expect("shards are claimed from");
                if again && matches!(machine.claimable(&claim, at(now)), Claimable::Now(_)) {
                    self.push_claim(call, worker, number);
                } else {
                    self.waiters.push_back(call);
                }
            }
        }
        None
    }

    /// Drops the parked claims of a gateway whose connection is gone.
    fn forget_waiter(&mut self, gone: u32) {
        self.waiters
            .retain(|call| !matches!(call.ask, Ask::Claim { worker, .. } if worker == gone));
    }

    fn push_claim(&mut self, call: Call, worker: u32, number: ClaimNumber) {
        let command = Command::Claim(commands::claim(Some((worker, number))));
        self.claims_under_way += 1;
        self.pending.push((EncodedCommand::new(&command), Waiting::Call(call)));
    }

    /// Wakes as many parked claims as there are tasks.
    fn wake(&mut self, now: Micros) {
        if self.waiters.is_empty() || !self.leads {
            return;
        }
        let Some(machine) = self.replica.machine().machine() else { return };
        let Claimable::Now(ready) = machine.claimable(&commands::claim(None), at(now)) else {
            return;
        };
        for _ in self.claims_under_way..ready {
            let Some(call) = self.waiters.pop_front() else { return };
            if let Ask::Claim { worker, number } = call.ask {
                self.push_claim(call, worker, number);
            }
        }
    }

    /// Proposes waiting commands.
    pub(crate) fn propose(&mut self, now: Micros, commands: &Commands) -> Vec<Answer> {
        self.wake(now);
        self.expire(now, commands);
        let mut refused = Vec::new();
        let mut pending = std::mem::take(&mut self.pending).into_iter().peekable();
        while pending.peek().is_some() {
            let mut waiting = Vec::new();
            let mut builder = EntryBuilder::new(at(now));
            while let Some((_, who)) = pending.next_if(|(command, _)| builder.push(command)) {
                waiting.push(who);
            }
            let data = match self.replica.machine() {
                State::Shard { .. } => builder.finish(),
                // The leader accepts commands now; the first one of a term stands for all.
                State::Control(_) => ControlCommand::SetReplication { factor: 3 }.encode(),
            };
            self.next_number += 1;
            match self.replica.propose(data, self.next_number) {
                Ok(()) => self.proposals.push_back((self.next_number, waiting)),
                Err(_) => refused.extend(calls(&waiting).map(Answer::Returned)),
            }
        }
        refused
    }

    fn expire(&mut self, now: Micros, commands: &Commands) {
        let Some(machine) = self.replica.machine().machine() else { return };
        let is_due = machine.next_due().is_some_and(|due| due <= at(now));
        if self.leads && !self.expiring && is_due {
            self.expiring = true;
            self.pending.push((commands.expire.clone(), Waiting::Expiry));
        }
    }

    /// Handles the results of a write: answers and milestones.
    pub(crate) fn settle(
        &mut self,
        progress: Progress<<State as taskyard_replica::StateMachine>::Outcome>,
        now: Micros,
        commands: &Commands,
    ) -> (Vec<Answer>, Vec<Milestone>) {
        let (mut answers, mut milestones) = (Vec::new(), Vec::new());
        for applied in progress.applied {
            let Some(number) = applied.proposal else { continue };
            let Some(waiting) = self.take_proposal(number) else { continue };
            let outcomes = applied.outcome.into_iter().map(Some).chain(std::iter::repeat(None));
            for (who, outcome) in waiting.into_iter().zip(outcomes) {
                match who {
                    Waiting::Call(call) => {
                        let outcome = outcome.expect("each command has an outcome");
                        answers.extend(self.answer(call, outcome.ok()));
                    }
                    Waiting::Begin => milestones.push(Milestone::Writes),
                    Waiting::Expiry => self.expiring = false,
                    Waiting::Nobody => {}
                }
            }
        }
        for number in progress.dropped {
            let waiting = self.take_proposal(number).unwrap_or_default();
            answers.extend(calls(&waiting).map(Answer::Unknown));
        }
        match progress.role {
            Some(Role::Leader { .. }) => {
                self.leads = true;
                self.pending.push((commands.begin_term.clone(), Waiting::Begin));
                self.pending.push((commands.settings.clone(), Waiting::Nobody));
                milestones.push(Milestone::Leads);
            }
            Some(Role::Follower { .. }) if self.leads => {
                answers.extend(self.step_down());
                milestones.push(Milestone::StepsDown);
            }
            _ => {}
        }
        self.wake(now);
        (answers, milestones)
    }

    fn take_proposal(&mut self, number: u64) -> Option<Vec<Waiting>> {
        let position = self.proposals.iter().position(|(known, _)| *known == number)?;
        self.proposals.remove(position).map(|(_, waiting)| waiting)
    }

    fn answer(&mut self, call: Call, outcome: Option<Outcome>) -> Option<Answer> {
        let Ask::Claim { .. } = call.ask else { return Some(Answer::Done(call)) };
        self.claims_under_way -= 1;
        match outcome {
            Some(Outcome::Claimed(tasks)) if !tasks.is_empty() => {
                Some(Answer::Claimed { call, task: tasks[0].id, token: tasks[0].token })
            }
            Some(_) => {
                self.waiters.push_back(call);
                None
            }
            // The claim was sent again, and its first sending was decided before.
            None => None,
        }
    }

    fn step_down(&mut self) -> Vec<Answer> {
        self.leads = false;
        self.expiring = false;
        self.claims_under_way = 0;
        let pending: Vec<Waiting> = self.pending.drain(..).map(|(_, who)| who).collect();
        let waiters = self.waiters.drain(..).map(Answer::Returned);
        calls(&pending).map(Answer::Returned).chain(waiters).collect()
    }

    /// Whether there is more work without a further input.
    pub(crate) fn has_work(&self) -> bool {
        !self.pending.is_empty() || self.replica.has_ready()
    }

    /// The number of parked claims.
    pub(crate) fn parked(&self) -> usize {
        self.waiters.len()
    }

    /// Cuts the log at the index of some seconds ago. Called once a second.
    pub(crate) fn cut_log(&mut self) {
        self.applied_at.push_back(self.replica.applied());
        if self.applied_at.len() > LOG_KEPT_SECONDS
            && let Some(index) = self.applied_at.pop_front()
        {
            self.replica.compact(index);
        }
    }
}

fn calls(waiting: &[Waiting]) -> impl Iterator<Item = Call> {
    waiting.iter().filter_map(|who| match who {
        Waiting::Call(call) => Some(*call),
        Waiting::Begin | Waiting::Expiry | Waiting::Nobody => None,
    })
}

fn at(now: Micros) -> Timestamp {
    Timestamp(RUN_BEGINS_AT_MS + now / 1_000)
}
