//! Node: one machine of the cluster: its disk, its clock, and the driver of its replicas, which
//! works like the server's shard loop: drain, step, write once, send, apply, answer.
//!
//! Invariant: an answer to a client or peer leaves only after the write on which it depends is
//! synced (unless the run is sabotaged to show that this matters).

mod checkpoints;
mod drive;
mod open;
mod replicas;
#[cfg(test)]
mod tests;

use crate::clock::RUN_BEGINS_AT_MS;
use crate::control::{ControlHost, Decided, Status};
use crate::disk::Disk;
use crate::host::{Host, Waiting};
use crate::invariants::Violation;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::shard::{Applied, Records};
use crate::workload::{Answer, Asked, Call};
use std::collections::{BTreeMap, VecDeque};
use taskyard_machine::{EncodedCommand, Machine, RULES_CURRENT};
use taskyard_replica::eraftpb::Message;
use taskyard_replica::{Change, ControlCommand, Members, NodeId, Role};

/// The identity of a node in its run.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    /// The node's place on the network, which is its address. The first node founds the cluster.
    pub(crate) id: usize,
    pub(crate) shards: u16,
    pub(crate) seed: u64,
    pub(crate) sabotage: Sabotage,
}

/// The consensus group of a shard; group 0 is the control group.
pub(crate) fn group_of(shard: u16) -> u64 {
    u64::from(shard) + 1
}

/// The least and the longest time of a sync on a good disk.
const SYNC_MS: (u64, u64) = (1, 5);

/// A message between nodes.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    Raft {
        group: u64,
        message: Box<Message>,
    },
    /// A message from the outbox of `from` to shard `to`.
    Owed {
        from: u16,
        to: u16,
        sequence: u64,
        command: EncodedCommand,
    },
    /// The answer to such a message.
    Taken {
        from: u16,
        to: u16,
        sequence: u64,
        answer: Answer,
    },
    /// A replica's attestation, for the leader of its shard to propose.
    Attest {
        shard: u16,
        command: EncodedCommand,
    },
    /// A new node asks to join.
    Join {
        place: usize,
        rules_max: u16,
    },
    /// A node has joined: with this number, and this replica of the control group.
    Welcome {
        node: NodeId,
        replica: u64,
    },
    /// A node's report about itself.
    Status(Box<Status>),
    /// The receiver was removed and does not know.
    Removed {
        node: NodeId,
    },
    /// The planner wants to change a group's members, which were reported with this term and index.
    Change {
        group: u64,
        term: u64,
        since: u64,
        changes: Vec<Change>,
    },
    /// The planner wants another leader.
    Transfer {
        group: u64,
        to: u64,
    },
}

/// An event of the node itself that happens later.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Synced {
        frame: usize,
    },
    /// The next bite of a checkpoint is due.
    Bite {
        shard: u16,
        cut: u64,
    },
    /// A checkpoint is on disk.
    Stored {
        shard: u16,
        cut: u64,
    },
    SnapshotSent {
        group: u64,
        to: u64,
        arrived: bool,
    },
}

/// What the map makes a node do with a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It was created.
    Begun,
    /// It was removed with all its data.
    Ended,
}

/// The results of a turn.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Applied entries: shard, index, term, effect.
    pub(crate) applied: Vec<(u16, u64, u64, Applied)>,
    /// Applied entries of the control group: index, term, effect.
    pub(crate) decided: Vec<(u64, u64, Decided)>,
    /// New roles: group, replica, role.
    pub(crate) roles: Vec<(u64, u64, Role)>,
    /// New members: group, index, members from there on.
    pub(crate) members: Vec<(u64, u64, Members)>,
    /// Replicas that were created or removed, in the order in which that happened: a node that
    /// follows the map through several entries may do both with one replica.
    pub(crate) lives: Vec<(u64, u64, Life)>,
    /// The stamp of a leader's next entries: shard, term, stamp.
    pub(crate) stamped: Vec<(u16, u64, u64)>,
    /// Entries (shard, index, term) whose outcome a client gets.
    pub(crate) answered: Vec<(u16, u64, u64)>,
    pub(crate) effects: Vec<(u64, Effect)>,
    /// Attestations of replicas here: shard, its leading replica, command.
    pub(crate) attests: Vec<(u16, u64, EncodedCommand)>,
    /// Why this node must stop: its state differs from the others.
    pub(crate) stopped: Option<String>,
    pub(crate) peers: Vec<(usize, Peer)>,
    pub(crate) answers: Vec<(usize, u64, Answer)>,
}

/// A running process, which a crash ends.
#[derive(Default)]
struct Process {
    /// `None` until the node has joined.
    control: Option<ControlHost>,
    hosts: BTreeMap<u16, Host>,
    /// Frames that are written and not yet synced: frame, then (group, ready).
    in_flight: VecDeque<(usize, Vec<(u64, u64)>)>,
    /// The places of replicas (by group) that have sent a message; the map may not have them yet.
    learned: BTreeMap<(u64, u64), usize>,
    reports_at: u64,
}

pub(crate) struct Node {
    config: NodeConfig,
    rng: Rng,
    pub(crate) disk: Disk,
    process: Option<Process>,
    /// Raised by every start and crash; events of earlier lives are void.
    pub(crate) boot: u64,
    /// The newest rules of the node's build. A new build takes effect with a new process.
    pub(crate) rules_max: u16,
    pub(crate) wall_offset: i64,
    pub(crate) tick_ms: u64,
    /// Whether the node goes on while a write is being synced.
    pipelined: bool,
    /// The least and the longest time of a sync, apart from stalls.
    sync_ms: (u64, u64),
    /// Until this moment syncs take much longer.
    pub(crate) slow_until: u64,
    /// Whether the next sync fails, which stops the process.
    pub(crate) disk_fails: bool,
    /// Until this moment nothing happens here; then everything that has piled up.
    pub(crate) paused_until: u64,
    /// The number of places on the network; a node may ask to join at any of them.
    pub(crate) places_max: usize,
    /// Whether the node was removed from the cluster for good.
    pub(crate) retired: bool,
    commands_max: u64,
    checkpoint_every: u64,
    map_changed: bool,
    output: Output,
    /// The state and index of each shard at its crash.
    before_crash: BTreeMap<u16, (u64, Records)>,
    next_cut: u64,
    pub(crate) snapshots: u64,
    pub(crate) checkpoints: u64,
}

impl Node {
    pub(crate) fn new(config: NodeConfig, mut rng: Rng) -> Node {
        let lies = config.sabotage == Sabotage::LyingDisks;
        let slow = rng.chance(150) || config.sabotage == Sabotage::AnswerBeforeSync;
        let disk = if lies { Disk::lying() } else { Disk::default() };
        if config.id == 0 {
            disk.enter(1);
            disk.assign(0, 1);
        }
        Node {
            disk,
            process: None,
            boot: 0,
            rules_max: RULES_CURRENT,
            wall_offset: rng.between(0, 4_000) as i64 - 2_000,
            tick_ms: rng.between(47, 53),
            pipelined: rng.chance(500),
            sync_ms: if slow { (50, 300) } else { SYNC_MS },
            slow_until: 0,
            disk_fails: false,
            paused_until: 0,
            places_max: 1,
            retired: false,
            commands_max: *rng.pick(&[1, 4, 32]),
            checkpoint_every: rng.between(15, 150),
            map_changed: false,
            output: Output::default(),
            before_crash: BTreeMap::new(),
            next_cut: 0,
            snapshots: 0,
            checkpoints: 0,
            config,
            rng,
        }
    }

    pub(crate) fn id(&self) -> usize {
        self.config.id
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts the process from the disk.
    pub(crate) fn start(&mut self, now: u64) -> Result<(), Violation> {
        self.boot += 1;
        self.disk.recover();
        let mut process = Process::default();
        for shard in 0..self.config.shards {
            if self.disk.replica(group_of(shard)).is_some() {
                process.hosts.insert(shard, self.open(shard, now)?);
            }
        }
        if self.disk.replica(0).is_some() {
            process.control = Some(self.open_control()?);
        }
        self.process = Some(process);
        self.map_changed = true;
        Ok(())
    }

    /// Ends the process; half of the time the power fails too.
    pub(crate) fn crash(&mut self) {
        let power = self.rng.chance(500) || self.config.sabotage != Sabotage::None;
        self.stop(power);
    }

    fn stop(&mut self, power: bool) {
        self.boot += 1;
        self.output = Output::default();
        let process = self.process.take();
        for (shard, host) in process.iter().flat_map(|process| &process.hosts) {
            let state = host.replica.machine();
            self.before_crash.insert(*shard, (state.last_index, state.machine.records()));
        }
        if power {
            self.disk.crash(&mut self.rng);
        }
    }

    /// From now on clock, disk and process work properly.
    pub(crate) fn heal(&mut self) {
        // A shard whose time is ahead stays so for long: it goes on a little slower until level.
        self.wall_offset = 0;
        self.sync_ms = SYNC_MS;
        self.slow_until = 0;
        self.disk_fails = false;
        self.paused_until = 0;
    }

    pub(crate) fn tick(&mut self, now: u64) {
        if let Some(process) = &mut self.process {
            process.hosts.values_mut().for_each(|host| host.replica.tick());
            process.control.iter_mut().for_each(|control| control.replica.tick());
        }
        self.report(now);
    }

    fn host_mut(&mut self, shard: u16) -> Option<&mut Host> {
        self.process.as_mut()?.hosts.get_mut(&shard)
    }

    fn control_mut(&mut self) -> Option<&mut ControlHost> {
        self.process.as_mut()?.control.as_mut()
    }

    pub(crate) fn transfer(&mut self, group: u64, to: u64) {
        match group.checked_sub(1) {
            None => self.control_mut().into_iter().for_each(|it| it.replica.transfer_leader(to)),
            Some(shard) => {
                let host = self.host_mut(shard as u16);
                host.into_iter().for_each(|host| host.replica.transfer_leader(to));
            }
        }
    }

    /// The place of a replica, as far as is known here.
    fn route(&self, group: u64, replica: u64) -> Option<usize> {
        let process = self.process.as_ref()?;
        let mapped = process.control.as_ref().and_then(|control| {
            let node = control.state().node_of(group, replica)?;
            control.place_of(node)
        });
        mapped.or_else(|| process.learned.get(&(group, replica)).copied())
    }

    /// All known nodes, or at least this one.
    fn places(&self) -> Vec<usize> {
        let process = self.process.as_ref();
        let control = process.and_then(|process| process.control.as_ref());
        let places = control.map(ControlHost::places).unwrap_or_default();
        if places.is_empty() { vec![self.config.id] } else { places }
    }

    /// The answer for a shard that is not led here; `None` if it is.
    fn not_leading(&self, shard: u16) -> Option<Answer> {
        let Some(host) = self.host(shard) else { return Some(Answer::NotLeader { leader: None }) };
        let leader = host.not_leading()?;
        let leader = leader.and_then(|replica| self.route(group_of(shard), replica));
        Some(Answer::NotLeader { leader })
    }

    /// Handles a client's request. A node that is down does not answer.
    pub(crate) fn call(&mut self, call: Call) {
        if !self.is_up() {
            return;
        }
        if let Some(answer) = self.not_leading(call.request.shard) {
            self.output.answers.push((call.client, call.number, answer));
            return;
        }
        let Some(host) = self.host_mut(call.request.shard) else { return };
        match call.request.asked {
            Asked::Command(command) => {
                let waiting = Waiting::Client { client: call.client, number: call.number };
                host.inbox.push_back((command, waiting));
            }
            Asked::Read { task, floor } => {
                let number = host.number();
                if host.replica.read(number).is_ok() {
                    host.reads.insert(number, (call.client, call.number, task, floor));
                }
            }
        }
    }

    /// Handles an operator's command to the control group; only its leader proposes it.
    pub(crate) fn order(&mut self, command: &ControlCommand) {
        self.control_mut().into_iter().for_each(|control| control.propose(command));
    }

    pub(crate) fn peer(&mut self, from: usize, peer: Peer, now: u64) -> Result<(), Violation> {
        let Some(process) = &mut self.process else { return Ok(()) };
        match peer {
            Peer::Raft { group, message } => {
                process.learned.insert((group, message.from), from);
                let shard = group.checked_sub(1).map(|shard| shard as u16);
                if let Some(shard) = shard {
                    if let Some(host) = process.hosts.get_mut(&shard) {
                        host.replica.step(*message);
                    }
                } else if let Some(control) = &mut process.control {
                    control.replica.step(*message);
                }
            }
            Peer::Owed { from: source, to, sequence, command } => {
                self.owed(from, source, to, sequence, command);
            }
            Peer::Taken { from: source, to, sequence, answer } => {
                if let Some(host) = process.hosts.get_mut(&source) {
                    host.owed_answered(to, sequence, &answer, now, from);
                }
            }
            Peer::Attest { shard, command } => {
                if let Some(host) = process.hosts.get_mut(&shard).filter(|it| it.leads()) {
                    host.inbox.push_back((command, Waiting::Nobody));
                }
            }
            Peer::Join { place, rules_max } => self.let_in(place, rules_max),
            Peer::Welcome { node, replica } => self.welcome(node, replica)?,
            Peer::Status(status) => self.hear(from, *status, now),
            Peer::Removed { node } if self.disk.node() == Some(node) => self.retire(),
            Peer::Removed { .. } => {}
            Peer::Change { group, term, since, changes } => {
                self.change_members(group, (term, since), &changes);
            }
            Peer::Transfer { group, to } => self.transfer(group, to),
        }
        Ok(())
    }

    fn owed(&mut self, from: usize, source: u16, to: u16, sequence: u64, command: EncodedCommand) {
        if let Some(answer) = self.not_leading(to) {
            self.output.peers.push((from, Peer::Taken { from: source, to, sequence, answer }));
            return;
        }
        let waiting = Waiting::Outbox { node: from, from: source, sequence };
        if let Some(host) = self.host_mut(to) {
            host.inbox.push_back((command, waiting));
        }
    }

    pub(crate) fn effect(&mut self, effect: &Effect, now: u64) -> Result<(), Violation> {
        match *effect {
            Effect::Synced { .. } if self.disk_fails => {
                self.disk_fails = false;
                self.stop(true);
                Ok(())
            }
            Effect::Synced { frame } => {
                self.disk.sync(frame);
                let Some(process) = &mut self.process else { return Ok(()) };
                let mut done = Vec::new();
                while process.in_flight.front().is_some_and(|(written, _)| *written <= frame) {
                    done.extend(process.in_flight.pop_front().map(|(_, readies)| readies));
                }
                for (group, number) in done.into_iter().flatten() {
                    self.persisted(group, number, now)?;
                }
                Ok(())
            }
            Effect::Bite { shard, cut } => {
                self.bite(shard, cut);
                Ok(())
            }
            Effect::Stored { shard, cut } => self.stored(shard, cut),
            Effect::SnapshotSent { group, to, arrived } => {
                match group.checked_sub(1) {
                    None => {
                        let control = self.control_mut().into_iter();
                        control.for_each(|it| it.replica.snapshot_sent(to, arrived));
                    }
                    Some(shard) => {
                        let host = self.host_mut(shard as u16).into_iter();
                        host.for_each(|host| host.replica.snapshot_sent(to, arrived));
                    }
                }
                Ok(())
            }
        }
    }

    /// Does all present work.
    pub(crate) fn turn(&mut self, now: u64) -> Result<Output, Violation> {
        loop {
            if std::mem::take(&mut self.map_changed) {
                self.follow_map(now)?;
            }
            self.lead(now);
            let syncing =
                self.process.as_ref().is_some_and(|process| !process.in_flight.is_empty());
            if (syncing && !self.pipelined) || !self.write_ready(now)? {
                break;
            }
        }
        self.begin_checkpoints();
        Ok(std::mem::take(&mut self.output))
    }

    /// Does the work of every leader: a shard's leader packs commands, expires and delivers its
    /// outbox; the control group's leader plans.
    fn lead(&mut self, now: u64) {
        let wall = (RUN_BEGINS_AT_MS + now).saturating_add_signed(self.wall_offset);
        let places = self.places();
        let node = self.disk.node();
        let plans = |process: &Process| process.control.as_ref().is_some_and(|it| it.plans(now));
        let plans = self.process.as_ref().is_some_and(plans);
        let status = node.filter(|_| plans).map(|node| self.status(node, now));
        let Some(process) = &mut self.process else { return };
        if let (Some(control), Some(status)) = (&mut process.control, status) {
            control.plan(status, now, &mut self.rng, &mut self.output);
        }
        // The rules that the whole cluster knows, as far as is known here.
        let rules = process.control.as_ref().map_or(0, |control| control.state().rules());
        let rules = rules.max(RULES_CURRENT);
        for (&shard, host) in &mut process.hosts {
            let Role::Leader { term } = host.replica.role() else { continue };
            let stamp = host.clock.stamp(wall, now);
            self.output.stamped.push((shard, term, stamp));
            host.expire(stamp);
            host.fire(stamp, &mut self.rng);
            host.mark();
            host.deliver(shard, (now, stamp), &places, &mut self.rng, &mut self.output);
            host.propose(rules, stamp, self.commands_max, &mut self.output);
        }
    }

    pub(crate) fn machine(&self, shard: u16) -> Option<&Machine> {
        self.host(shard).map(|host| &host.replica.machine().machine)
    }

    fn host(&self, shard: u16) -> Option<&Host> {
        self.process.as_ref()?.hosts.get(&shard)
    }

    pub(crate) fn check(&self, shard: u16) -> Result<(), Violation> {
        self.host(shard).map_or(Ok(()), |host| host.replica.machine().check())
    }

    /// Why a shard is not at rest here; empty if it is.
    pub(crate) fn unrest(&self, shard: u16) -> String {
        let Some(host) = self.host(shard) else { return "it is down".into() };
        let machine = &host.replica.machine().machine;
        for queue in machine.queues() {
            let counts = queue.counts;
            if counts.ready + counts.scheduled + counts.claimed + counts.blocked > 0 {
                return format!("{} is not empty: {counts:?}", queue.name);
            }
        }
        if machine.next_schedule().is_some() {
            return "a schedule is not paused".into();
        }
        if !machine.outgoing(1).is_empty() {
            return "its outbox is not empty".into();
        }
        if !host.proposals.is_empty() || !host.inbox.is_empty() {
            return "a command is not decided yet".into();
        }
        String::new()
    }
}
