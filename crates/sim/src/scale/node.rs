//! Node: all replicas of one node on its one loop: it drains what has arrived, steps, sends, writes
//! with one sync for all groups, applies and answers, while the next batch gathers.
//!
//! A killed node is frozen: it sends and receives nothing, which looks like a crash to the others.
//! Its state is still there when it comes back, as on a disk.

use super::commands::{Commands, FRAME_BYTES};
use super::host::{Answer, Call, Host, Milestone};
use super::params::{Micros, Params};
use super::traffic::Kind;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use taskyard_replica::eraftpb::Message;
use taskyard_replica::message_bytes;

/// An input of a node.
#[derive(Debug)]
pub(crate) enum Input {
    Raft {
        group: u64,
        message: Box<Message>,
    },
    Call {
        group: u64,
        call: Call,
    },
    /// A node's list of live sessions, which costs time and changes nothing here.
    Alive,
    Tick,
    Transfer {
        group: u64,
        to: u64,
    },
    /// Makes a replica lead as soon as it can, so that leaders begin in their planned places.
    Campaign {
        group: u64,
    },
}

/// An output of a node for another.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) to: usize,
    pub(crate) kind: Kind,
    pub(crate) bytes: usize,
    pub(crate) input: Input,
}

/// The results of some work.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) answers: Vec<(u64, Answer)>,
    pub(crate) milestones: Vec<(u64, Milestone)>,
    /// The computing time of the loop before its write.
    pub(crate) computed_for: Micros,
    /// The busy time of the loop, with its write.
    pub(crate) busy_for: Micros,
}

/// The counters of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) turns: u64,
    pub(crate) inputs: u64,
    pub(crate) syncs: u64,
    pub(crate) entries: u64,
    pub(crate) written_bytes: u64,
    /// The computing time, by the parameters.
    pub(crate) cpu_ns: u64,
    /// The time of computing and syncing.
    pub(crate) busy: Micros,
}

pub(crate) struct Node {
    pub(crate) up: bool,
    /// Whether the loop works or syncs.
    pub(crate) busy: bool,
    /// Whether the work ended while the node was frozen.
    pub(crate) stalled: bool,
    pub(crate) hosts: Vec<Host>,
    by_group: BTreeMap<u64, usize>,
    pub(crate) inbox: Vec<Input>,
    active: Vec<usize>,
    persisting: Vec<(usize, u64)>,
    pub(crate) work: Work,
    /// The real time in replicas and machines.
    pub(crate) measured: Duration,
}

impl Node {
    pub(crate) fn new(hosts: Vec<Host>) -> Node {
        let by_group = hosts.iter().enumerate().map(|(at, host)| (host.group, at)).collect();
        Node {
            up: true,
            busy: false,
            stalled: false,
            hosts,
            by_group,
            inbox: Vec::new(),
            active: Vec::new(),
            persisting: Vec::new(),
            work: Work::default(),
            measured: Duration::ZERO,
        }
    }

    pub(crate) fn host(&self, group: u64) -> Option<&Host> {
        self.by_group.get(&group).map(|&at| &self.hosts[at])
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.inbox.is_empty() || !self.active.is_empty()
    }

    /// The first half of a turn, up to the write.
    pub(crate) fn turn(&mut self, now: Micros, params: &Params, commands: &Commands) -> Output {
        let started = Instant::now();
        let mut output = Output::default();
        let mut cpu_ns = 0;
        let inputs = std::mem::take(&mut self.inbox);
        for input in inputs {
            cpu_ns += match input {
                Input::Tick => params.cpu_ns_per_tick * self.hosts.len() as u64,
                _ => params.cpu_ns_per_input,
            };
            self.work.inputs += 1;
            self.take(input, now, commands, &mut output);
        }
        let round = std::mem::take(&mut self.active);
        for &at in &round {
            let host = &mut self.hosts[at];
            host.is_active = false;
            let refused = host.propose(now, commands);
            output.answers.extend(refused.into_iter().map(|answer| (host.group, answer)));
        }
        let mut syncs = false;
        for at in round {
            syncs |= self.gather(at, &mut output);
        }
        self.work.turns += 1;
        self.work.syncs += u64::from(syncs);
        self.work.cpu_ns += cpu_ns;
        output.computed_for = cpu_ns.div_ceil(1_000);
        output.busy_for = output.computed_for + if syncs { params.sync_us } else { 0 };
        self.work.busy += output.busy_for;
        self.measured += started.elapsed();
        output
    }

    fn take(&mut self, input: Input, now: Micros, commands: &Commands, output: &mut Output) {
        let group = match input {
            Input::Tick => {
                (0..self.hosts.len()).for_each(|at| self.tick(at));
                return;
            }
            Input::Alive => return,
            Input::Raft { group, .. }
            | Input::Call { group, .. }
            | Input::Transfer { group, .. }
            | Input::Campaign { group } => group,
        };
        let Some(&at) = self.by_group.get(&group) else { return };
        let host = &mut self.hosts[at];
        match input {
            Input::Raft { message, .. } => host.replica.step(*message),
            Input::Call { call, .. } => {
                output.answers.extend(host.take(call, now, commands).map(|answer| (group, answer)));
            }
            Input::Transfer { to, .. } => host.replica.transfer_leader(to),
            Input::Campaign { .. } => host.replica.campaign(),
            Input::Tick | Input::Alive => {}
        }
        self.activate(at);
    }

    fn tick(&mut self, at: usize) {
        self.hosts[at].replica.tick();
        if self.hosts[at].has_work() {
            self.activate(at);
        }
    }

    fn activate(&mut self, at: usize) {
        if !self.hosts[at].is_active {
            self.hosts[at].is_active = true;
            self.active.push(at);
        }
    }

    /// Adds the entries and messages of one replica; returns whether they need a sync.
    fn gather(&mut self, at: usize, output: &mut Output) -> bool {
        let Some(ready) = self.hosts[at].replica.ready() else { return false };
        assert!(ready.snapshot.is_none(), "nobody is behind the logs here");
        self.persisting.push((at, ready.number));
        self.work.entries += ready.entries.len() as u64;
        let bytes = ready.entries.iter().map(|entry| entry.data.len() + ENTRY_BYTES);
        self.work.written_bytes += bytes.sum::<usize>() as u64;
        let must_sync = ready.must_sync || !ready.entries.is_empty();
        self.send(at, ready.messages_now, output);
        must_sync
    }

    fn send(&self, at: usize, messages: Vec<Message>, output: &mut Output) {
        let host = &self.hosts[at];
        for message in messages {
            let Some(to) = host.node_of(message.to) else { continue };
            let (kind, bytes) = (Kind::of(&message), FRAME_BYTES + message_bytes(&message));
            let input = Input::Raft { group: host.group, message: Box::new(message) };
            output.outgoing.push(Outgoing { to, kind, bytes, input });
        }
    }

    /// The second half of a turn, after the write.
    pub(crate) fn written(&mut self, now: Micros, commands: &Commands) -> Output {
        let started = Instant::now();
        let mut output = Output::default();
        for (at, number) in std::mem::take(&mut self.persisting) {
            let host = &mut self.hosts[at];
            let group = host.group;
            let mut progress = host.replica.persisted(number);
            let messages = std::mem::take(&mut progress.messages);
            let (answers, milestones) = host.settle(progress, now, commands);
            output.answers.extend(answers.into_iter().map(|answer| (group, answer)));
            output.milestones.extend(milestones.into_iter().map(|what| (group, what)));
            self.send(at, messages, &mut output);
            if self.hosts[at].has_work() {
                self.activate(at);
            }
        }
        self.measured += started.elapsed();
        output
    }
}

/// The bytes of the log around an entry's data: group, index, term, checksum.
const ENTRY_BYTES: usize = 24;
