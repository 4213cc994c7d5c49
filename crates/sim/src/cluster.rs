//! Cluster: the run itself: virtual time, one queue of events, and the nodes, network and clients
//! that they happen to. Nothing here waits and nothing is drawn from outside of the seed.
//!
//! A run has two parts. First everything may fail and nothing may break; then nothing fails any
//! more and everything must heal: one leader per shard, equal replicas, every task at its end.

use crate::invariants::{Oracle, Violation};
use crate::mover::Group;
use crate::network::{Network, Party};
use crate::node::{Effect, Node, NodeConfig, Peer, node_of};
use crate::rng::{Rng, mix};
use crate::sabotage::Sabotage;
use crate::shard::first_difference;
use crate::workload::{Answer, Call, Workload};
use std::collections::BTreeMap;
use std::fmt;
use taskyard_replica::Role;
use taskyard_replica::eraftpb::MessageType;

/// What a run is made of; equal options make equal runs.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    /// Events of the part in which things fail.
    pub(crate) steps: u64,
    /// Nodes that hold every shard from the start.
    pub(crate) nodes: usize,
    /// Nodes that hold nothing at first: replicas move to and from them.
    pub(crate) spares: usize,
    pub(crate) shards: u16,
    pub(crate) faults: bool,
    pub(crate) verbose: bool,
    pub(crate) sabotage: Sabotage,
    /// The oracle does not look at disks, only at what replicas and clients see.
    pub(crate) blind: bool,
}

/// A run that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) steps: u64,
    /// Virtual time that passed.
    pub(crate) ms: u64,
    pub(crate) entries: u64,
    pub(crate) tasks: usize,
    pub(crate) claims: u64,
    pub(crate) crashes: u64,
    pub(crate) snapshots: u64,
    pub(crate) checkpoints: u64,
    /// Changes of members.
    pub(crate) changes: u64,
    /// How often each kind of thing happened to tasks.
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// A hash over everything that happened.
    pub(crate) trace: u64,
}

/// A run that found something, and how to see it again.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) options: Options,
    pub(crate) step: u64,
    pub(crate) ms: u64,
    pub(crate) what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { seed, .. } = self.options;
        writeln!(f, "seed {seed} failed at step {}, {} ms: {}", self.step, self.ms, self.what)?;
        write!(f, "replay: {}", replay_command(&self.options))
    }
}

/// The command that repeats a run exactly.
pub(crate) fn replay_command(options: &Options) -> String {
    let Options { seed, steps, nodes, spares, shards, faults, .. } = options;
    let faults = if *faults { "on" } else { "off" };
    format!(
        "cargo run -p taskyard-sim -- --seed {seed} --steps {steps} --nodes {nodes} \
         --spares {spares} --shards {shards} --faults {faults}"
    )
}

/// Runs one seed to its end.
pub(crate) fn run(options: &Options) -> Result<Report, Failure> {
    let mut world = World::new(options);
    let result = world.run();
    result.map_err(|what| Failure {
        options: options.clone(),
        step: world.step,
        ms: world.now,
        what,
    })
}

#[derive(Debug)]
enum Happening {
    Tick { node: usize, boot: u64 },
    Peer { from: usize, to: usize, peer: Box<Peer> },
    Called { to: usize, call: Box<Call> },
    Answered { client: usize, number: u64, answer: Answer },
    Effect { node: usize, boot: u64, effect: Box<Effect> },
    Wake { client: usize, wake: u64 },
    Fault,
    Move,
    Restart { node: usize },
}

pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    step: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    next_place: u64,
    pub(crate) nodes: Vec<Node>,
    /// Who is in each shard's group.
    pub(crate) groups: Vec<Group>,
    network: Network,
    workload: Workload,
    wakes: Vec<u64>,
    oracle: Oracle,
    healing: bool,
    crashes: u64,
    trace: u64,
}

/// Checks that look at whole states run once in this many steps.
const CHECK_EVERY_STEPS: u64 = 400;
/// A healed cluster must come to rest within this.
const HEAL_MS_MAX: u64 = 2 * 3_600_000;
const HEAL_STEPS_MAX: u64 = 2_000_000;

impl World {
    fn new(options: &Options) -> World {
        let mut rng = Rng::new(options.seed);
        let network = Network::new(rng.fork(), options.faults);
        let nodes_max = options.nodes + options.spares;
        let workload = Workload::new(&mut rng, options.shards, nodes_max);
        let nodes = (0..nodes_max)
            .map(|id| {
                let config = NodeConfig {
                    id,
                    nodes: nodes_max,
                    voters: options.nodes,
                    shards: options.shards,
                    seed: options.seed,
                    sabotage: options.sabotage,
                };
                Node::new(config, rng.fork())
            })
            .collect();
        let wakes = vec![0; workload.clients()];
        let mut world = World {
            options: options.clone(),
            rng,
            now: 0,
            step: 0,
            queue: BTreeMap::new(),
            next_place: 0,
            nodes,
            groups: (0..options.shards).map(|_| Group::new(options.nodes)).collect(),
            network,
            workload,
            wakes,
            oracle: Oracle::new(options.shards),
            healing: false,
            crashes: 0,
            trace: options.seed,
        };
        for node in 0..nodes_max {
            world.at(0, Happening::Restart { node });
        }
        for client in 0..world.wakes.len() {
            world.wake_in(client, 100 + client as u64);
        }
        if options.faults {
            world.at(500, Happening::Fault);
        }
        if options.spares > 0 {
            world.at(2_000, Happening::Move);
        }
        world
    }

    fn run(&mut self) -> Result<Report, Violation> {
        while self.step < self.options.steps {
            self.one_step()?;
        }
        self.heal();
        let (began_at, began_step) = (self.now, self.step);
        while !self.is_at_rest() {
            for _ in 0..100 {
                self.one_step()?;
            }
            if self.oracle.stuck_schedule().is_none() {
                self.workload.pause_schedules();
            }
            if self.now - began_at > HEAL_MS_MAX || self.step - began_step > HEAL_STEPS_MAX {
                return Err(format!("it did not heal: {}", self.unrest()));
            }
        }
        self.check_end()?;
        Ok(Report {
            steps: self.step,
            ms: self.now,
            entries: self.oracle.entries,
            tasks: self.oracle.task_count(),
            claims: self.oracle.claims,
            crashes: self.crashes,
            snapshots: self.nodes.iter().map(|node| node.snapshots).sum(),
            checkpoints: self.nodes.iter().map(|node| node.checkpoints).sum(),
            changes: self.groups.iter().map(|group| group.changes).sum(),
            seen: self.oracle.seen.clone(),
            trace: self.trace,
        })
    }

    fn at(&mut self, after_ms: u64, happening: Happening) {
        self.next_place += 1;
        self.queue.insert((self.now + after_ms, self.next_place), happening);
    }

    fn wake_in(&mut self, client: usize, after_ms: u64) {
        self.wakes[client] += 1;
        let wake = self.wakes[client];
        self.at(after_ms, Happening::Wake { client, wake });
    }

    pub(crate) fn note(&mut self, what: &str, numbers: [u64; 3]) {
        for number in numbers.into_iter().chain([self.now, what.len() as u64]) {
            self.trace = mix(self.trace ^ number).wrapping_add(1);
        }
        if self.options.verbose {
            println!("{:>6} {:>8} ms  {what} {numbers:?}", self.step, self.now);
        }
    }

    fn one_step(&mut self) -> Result<(), Violation> {
        let Some(((at, _), happening)) = self.queue.pop_first() else {
            return Err("nothing happens any more".into());
        };
        self.now = at;
        self.step += 1;
        self.happen(happening)?;
        if self.step.is_multiple_of(CHECK_EVERY_STEPS) {
            self.check_states()?;
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Tick { node, boot } if self.nodes[node].boot == boot => {
                self.nodes[node].tick();
                let after_ms = self.nodes[node].tick_ms;
                self.at(after_ms, Happening::Tick { node, boot });
                self.turn(node)
            }
            Happening::Peer { from, to, peer } => self.deliver(from, to, *peer),
            Happening::Called { to, call } => {
                self.note("call", [call.client as u64, to as u64, call.number]);
                self.nodes[to].call(*call);
                self.turn(to)
            }
            Happening::Answered { client, number, answer } => {
                self.note("answer", [client as u64, number, 0]);
                let call =
                    self.workload.answer(client, number, answer, self.now, &mut self.oracle)?;
                let pause = self.rng.between(1, 30);
                self.wake_in(client, pause);
                self.send_call(call);
                Ok(())
            }
            Happening::Effect { node, boot, effect } if self.nodes[node].boot == boot => {
                self.nodes[node].effect(&effect, self.now)?;
                self.turn(node)
            }
            Happening::Wake { client, wake } if self.wakes[client] == wake => {
                let (call, wait) = self.workload.wake(client, self.now, &self.oracle);
                self.wake_in(client, wait);
                self.send_call(call);
                Ok(())
            }
            Happening::Fault if !self.healing => {
                self.fault();
                let after_ms = self.rng.between(100, 1_500);
                self.at(after_ms, Happening::Fault);
                Ok(())
            }
            Happening::Move => {
                self.move_replicas()?;
                let after_ms = self.rng.between(50, 400);
                self.at(after_ms, Happening::Move);
                (0..self.nodes.len()).try_for_each(|node| self.turn(node))
            }
            Happening::Restart { node } if !self.nodes[node].is_up() => self.restart(node),
            // Of a node that has crashed since, or of a part of the run that is over.
            Happening::Tick { .. }
            | Happening::Effect { .. }
            | Happening::Wake { .. }
            | Happening::Fault
            | Happening::Restart { .. } => Ok(()),
        }
    }

    fn send_call(&mut self, call: Option<Call>) {
        let Some(call) = call else { return };
        let (client, to) = (call.client, call.to);
        for delay in self.network.send(Party::Client(client), Party::Node(to)) {
            let call = Call { request: call.request.clone(), ..call };
            self.at(delay, Happening::Called { to, call: Box::new(call) });
        }
    }

    fn deliver(&mut self, from: usize, to: usize, peer: Peer) -> Result<(), Violation> {
        self.note("peer", [from as u64, to as u64, peer.kind()]);
        let arrived = self.nodes[to].is_up();
        if let Some((shard, replica)) = peer.snapshot_of() {
            self.report_snapshot(from, replica, shard, arrived);
        }
        if arrived {
            self.nodes[to].peer(from, peer, self.now);
            self.turn(to)?;
        }
        Ok(())
    }

    /// The sender of a snapshot learns what became of it.
    fn report_snapshot(&mut self, from: usize, to: u64, shard: u16, arrived: bool) {
        let boot = self.nodes[from].boot;
        let effect = Box::new(Effect::SnapshotSent { shard, to, arrived });
        self.at(20, Happening::Effect { node: from, boot, effect });
    }

    /// Lets a node do all it can, and carries out what comes of it.
    fn turn(&mut self, node: usize) -> Result<(), Violation> {
        if !self.nodes[node].is_up() {
            return Ok(());
        }
        let output = self.nodes[node].turn(self.now)?;
        let boot = self.nodes[node].boot;
        for (shard, index, term, applied) in &output.applied {
            self.note("applied", [node as u64, u64::from(*shard), *index]);
            self.oracle.applied(*shard, node, *index, *term, applied)?;
        }
        for (shard, role) in output.roles {
            self.took_role(node, shard, role)?;
        }
        for (shard, index, members) in output.members {
            self.groups[usize::from(shard)].changed(index, members);
        }
        for (shard, index, term) in output.told {
            let keeps = |replica| self.keeps(replica, shard, index, term);
            let kept = self.options.blind || self.groups[usize::from(shard)].decides(keeps);
            self.oracle.told(shard, index, kept)?;
        }
        for (after_ms, effect) in output.effects {
            self.at(after_ms, Happening::Effect { node, boot, effect: Box::new(effect) });
        }
        for (to, peer) in output.peers {
            let delays = self.network.send(Party::Node(node), Party::Node(to));
            if let (true, Some((shard, replica))) = (delays.is_empty(), peer.snapshot_of()) {
                self.report_snapshot(node, replica, shard, false);
            }
            for delay in delays {
                let peer = Box::new(peer.clone());
                self.at(delay, Happening::Peer { from: node, to, peer });
            }
        }
        for (client, number, answer) in output.answers {
            for delay in self.network.send(Party::Node(node), Party::Client(client)) {
                let answer = answer.clone();
                self.at(delay, Happening::Answered { client, number, answer });
            }
        }
        Ok(())
    }

    /// Whether a crash now would leave this entry with that replica.
    fn keeps(&self, replica: u64, shard: u16, index: u64, term: u64) -> bool {
        let disk = &self.nodes[node_of(replica)].disk;
        disk.replica(shard) == Some(replica) && disk.keeps(shard, index, term)
    }

    pub(crate) fn is_healing(&self) -> bool {
        self.healing
    }

    fn took_role(&mut self, node: usize, shard: u16, role: Role) -> Result<(), Violation> {
        if let Role::Leader { term } = role {
            self.note("leads", [node as u64, u64::from(shard), term]);
            self.oracle.leads(shard, term, node)?;
            let machine = self.nodes[node].machine(shard);
            machine.map_or(Ok(()), |machine| self.oracle.check_present(shard, machine))?;
        }
        Ok(())
    }

    fn restart(&mut self, node: usize) -> Result<(), Violation> {
        self.note("restart", [node as u64, 0, 0]);
        self.nodes[node].start(self.now)?;
        let boot = self.nodes[node].boot;
        let after_ms = self.nodes[node].tick_ms;
        self.at(after_ms, Happening::Tick { node, boot });
        self.turn(node)
    }

    fn crash(&mut self, node: usize) {
        if self.nodes[node].is_up() {
            self.note("crash", [node as u64, 0, 0]);
            self.crashes += 1;
            self.nodes[node].crash();
            let after_ms = self.rng.between(50, 4_000);
            self.at(after_ms, Happening::Restart { node });
        }
    }

    fn fault(&mut self) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        match self.rng.below(100) {
            0..30 => self.crash(node),
            30..36 => (0..self.nodes.len()).for_each(|node| self.crash(node)),
            36..56 => {
                self.note("cut", [node as u64, 0, 0]);
                self.network.heal_cuts();
                self.network.cut_off(node, self.nodes.len(), self.wakes.len());
            }
            56..76 => self.network.heal_cuts(),
            76..88 => {
                let jump = self.rng.between(0, 3_720_000) as i64 - 3_600_000;
                self.note("clock", [node as u64, jump.unsigned_abs(), 0]);
                self.nodes[node].wall_offset += jump;
            }
            _ => {
                let shard = self.rng.below(u64::from(self.options.shards)) as u16;
                let to = *self.rng.pick(&self.groups[usize::from(shard)].newest().voters);
                self.note("transfer", [node as u64, u64::from(shard), to]);
                self.nodes[node].transfer(shard, to);
            }
        }
    }

    fn heal(&mut self) {
        self.note("heal", [0; 3]);
        self.healing = true;
        self.network.heal();
        self.workload.drain();
        self.oracle.heal();
        for node in 0..self.nodes.len() {
            // A shard whose time is ahead still has to wait for the clocks at half speed.
            self.nodes[node].wall_offset = 0;
            self.at(1, Happening::Restart { node });
        }
    }

    fn check_states(&mut self) -> Result<(), Violation> {
        for node in &self.nodes {
            for shard in 0..self.options.shards {
                node.check(shard)
                    .map_err(|what| format!("node {}, shard {shard}: {what}", node.id()))?;
            }
        }
        Ok(())
    }

    fn is_at_rest(&self) -> bool {
        self.workload.is_quiet() && self.unrest().is_empty()
    }

    /// What is not as it must be in the end, in words; empty if all is.
    fn unrest(&self) -> String {
        if let Some(schedule) = self.oracle.stuck_schedule() {
            return format!("schedule {schedule} does not fire");
        }
        if !self.workload.is_quiet() {
            return "clients still hold tasks".into();
        }
        for shard in 0..self.options.shards {
            let leaders = self.nodes.iter().filter(|node| node.leads(shard)).count();
            if leaders != 1 {
                return format!("shard {shard} has {leaders} leaders");
            }
            let members = self.members(shard);
            if members.is_empty() {
                return format!("shard {shard} is moving");
            }
            for node in &members {
                let unrest = node.unrest(shard);
                if !unrest.is_empty() {
                    return format!("node {}, shard {shard}: {unrest}", node.id());
                }
            }
            let applied: Vec<u64> = members.iter().map(|node| node.applied(shard)).collect();
            if applied.iter().any(|index| *index != applied[0]) {
                return format!("shard {shard} is applied up to {applied:?}");
            }
        }
        String::new()
    }

    /// The nodes with the members of a shard's group; none while it changes.
    fn members(&self, shard: u16) -> Vec<&Node> {
        let members = self.groups[usize::from(shard)].newest();
        if !members.outgoing.is_empty() || !members.learners.is_empty() {
            return Vec::new();
        }
        members.voters.iter().map(|replica| &self.nodes[node_of(*replica)]).collect()
    }

    fn check_end(&mut self) -> Result<(), Violation> {
        self.check_states()?;
        for shard in 0..self.options.shards {
            let members = self.members(shard);
            let first = members[0].machine(shard).ok_or("a node is down")?;
            let records = first.records();
            for node in &members {
                let machine = node.machine(shard).ok_or("a node is down")?;
                self.oracle.check_present(shard, machine)?;
                self.oracle.check_schedules(shard, machine)?;
                let other = machine.records();
                if records != other {
                    let difference = first_difference(&records, &other);
                    let (left, right) = (members[0].id(), node.id());
                    return Err(format!(
                        "nodes {left} and {right} differ on shard {shard}: {difference}"
                    ));
                }
            }
        }
        self.oracle.check_end()
    }
}

impl Peer {
    /// The shard and receiver of a snapshot message, whose sender must learn what became of it.
    fn snapshot_of(&self) -> Option<(u16, u64)> {
        match self {
            Peer::Raft { shard, message } => {
                let snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
                snapshot.then_some((*shard, message.to))
            }
            Peer::Owed { .. } | Peer::Taken { .. } => None,
        }
    }

    fn kind(&self) -> u64 {
        match self {
            Peer::Raft { shard, message } => {
                let shape = [u64::from(*shard), message.term, message.index, message.commit];
                let kind = message.get_msg_type() as u64;
                shape.into_iter().fold(kind, |hash, number| mix(hash ^ number))
            }
            Peer::Owed { sequence, .. } | Peer::Taken { sequence, .. } => *sequence,
        }
    }
}
