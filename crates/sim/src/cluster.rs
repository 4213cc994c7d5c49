//! Cluster: the run itself: virtual time, one queue of events, and the nodes, network and clients
//! of these events. Nothing here waits, and every random number comes from the seed.
//!
//! A run has two parts. In the first, everything may fail and nothing may break. In the second,
//! nothing fails any more and everything must heal: each group has one leader, replicas are in
//! place and equal, and every task has ended.

mod faults;
mod operator;
mod rest;

use crate::groups::Group;
use crate::invariants::{Oracle, Violation};
use crate::network::{Network, Party};
use crate::node::{Effect, Life, Node, Output, Peer, group_of};
use crate::rng::{Rng, mix};
use crate::sabotage::Sabotage;
use crate::workload::{Answer, Call, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use taskyard_replica::eraftpb::MessageType;
use taskyard_replica::{ControlCommand, Members, NodeId, Role};

/// The options of a run; equal options make equal runs.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    /// The number of events before faults end.
    pub(crate) steps: u64,
    /// The number of first nodes: one founds the cluster, the others join.
    pub(crate) nodes: usize,
    /// Whether nodes come and go, and replication changes.
    pub(crate) churn: bool,
    pub(crate) shards: u16,
    pub(crate) faults: bool,
    pub(crate) verbose: bool,
    pub(crate) sabotage: Sabotage,
    /// Whether the oracle ignores disks, and checks only replicas and clients.
    pub(crate) blind: bool,
}

/// The result of a run without a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) steps: u64,
    /// The virtual time of the run.
    pub(crate) ms: u64,
    pub(crate) entries: u64,
    pub(crate) tasks: usize,
    pub(crate) claims: u64,
    pub(crate) crashes: u64,
    pub(crate) snapshots: u64,
    pub(crate) checkpoints: u64,
    /// The number of changes of members.
    pub(crate) changes: u64,
    /// The number of nodes that were ever in the cluster.
    pub(crate) nodes: usize,
    /// The number of nodes that were removed from the cluster.
    pub(crate) removed: usize,
    /// The number of disks that were lost for good.
    pub(crate) losses: u64,
    /// The number of nodes that were given up.
    pub(crate) given_up: usize,
    /// The last rules of the cluster.
    pub(crate) rules: u16,
    /// The number of nodes that stopped because their state differed from the others.
    pub(crate) stopped: u64,
    /// The number of facts of each kind.
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// A hash over everything that happened.
    pub(crate) trace: u64,
}

/// A run with a violation, and the way to repeat it.
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
    let Options { seed, steps, nodes, churn, shards, faults, .. } = options;
    let switch = |on: bool| if on { "on" } else { "off" };
    let (churn, faults) = (switch(*churn), switch(*faults));
    format!(
        "cargo run -p taskyard-sim -- --seed {seed} --steps {steps} --nodes {nodes} \
         --churn {churn} --shards {shards} --faults {faults}"
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
    Operate,
    Ordered { to: usize, command: Box<ControlCommand> },
    Restart { node: usize },
}

impl Happening {
    /// The node of an event.
    fn node(&self) -> Option<usize> {
        match *self {
            Happening::Tick { node, .. }
            | Happening::Effect { node, .. }
            | Happening::Peer { to: node, .. }
            | Happening::Called { to: node, .. }
            | Happening::Ordered { to: node, .. } => Some(node),
            Happening::Answered { .. }
            | Happening::Wake { .. }
            | Happening::Fault
            | Happening::Operate
            | Happening::Restart { .. } => None,
        }
    }
}

struct World {
    options: Options,
    rng: Rng,
    now: u64,
    step: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    next_place: u64,
    nodes: Vec<Node>,
    /// Nodes whose disk is lost for good.
    lost: Vec<bool>,
    /// Nodes that the operator has ordered to give up by mistake. Such an order may be decided long
    /// after it was sent.
    mistaken: BTreeSet<NodeId>,
    losses: u64,
    stopped: u64,
    /// When a group was last planned to have a single voter.
    single_at: u64,
    /// The members of each group.
    groups: Vec<Group>,
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
/// A healed cluster must be at rest within this time.
const HEAL_MS_MAX: u64 = 2 * 3_600_000;
const HEAL_STEPS_MAX: u64 = 2_000_000;

impl World {
    fn new(options: &Options) -> World {
        let mut rng = Rng::new(options.seed);
        let network = Network::new(rng.fork(), options.faults);
        let workload = Workload::new(&mut rng, options.shards, options.nodes);
        let wakes = vec![0; workload.clients()];
        let mut world = World {
            options: options.clone(),
            rng,
            now: 0,
            step: 0,
            queue: BTreeMap::new(),
            next_place: 0,
            nodes: Vec::new(),
            lost: Vec::new(),
            mistaken: BTreeSet::new(),
            losses: 0,
            stopped: 0,
            single_at: 0,
            groups: (0..=options.shards).map(|_| Group::new()).collect(),
            network,
            workload,
            wakes,
            oracle: Oracle::new(options.shards, options.sabotage),
            healing: false,
            crashes: 0,
            trace: options.seed,
        };
        for node in 0..options.nodes as u64 {
            let after_ms = world.rng.below(node * 300 + 1);
            world.add_node(after_ms);
        }
        for client in 0..world.wakes.len() {
            world.wake_in(client, 100 + client as u64);
        }
        if options.faults {
            world.at(500, Happening::Fault);
        }
        if options.churn || options.faults {
            world.at(2_000, Happening::Operate);
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
            nodes: self.nodes.len(),
            removed: self.nodes.iter().filter(|node| node.retired).count(),
            losses: self.losses,
            given_up: self.oracle.control.given_up.len(),
            rules: self.oracle.control.newest().rules(),
            stopped: self.stopped,
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

    fn note(&mut self, what: &str, numbers: [u64; 3]) {
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
        if let Some(node) = happening.node()
            && self.nodes[node].paused_until > self.now
        {
            let after_ms = self.nodes[node].paused_until - self.now;
            self.at(after_ms, happening);
            return Ok(());
        }
        match happening {
            Happening::Tick { node, boot } if self.nodes[node].boot == boot => {
                self.nodes[node].tick(self.now);
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
                // A client that only waits for the end asks less often.
                let (least, most) = if self.healing { (20, 100) } else { (1, 30) };
                let pause = self.rng.between(least, most);
                self.wake_in(client, pause);
                self.send_call(call);
                Ok(())
            }
            Happening::Effect { node, boot, effect } if self.nodes[node].boot == boot => {
                self.nodes[node].effect(&effect, self.now)?;
                if !self.nodes[node].is_up() {
                    self.note("disk failed", [node as u64, 0, 0]);
                    self.went_down(node);
                }
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
            Happening::Operate => {
                self.operate();
                let after_ms = self.rng.between(200, 1_500);
                self.at(after_ms, Happening::Operate);
                Ok(())
            }
            Happening::Ordered { to, command } => {
                self.nodes[to].order(&command);
                self.turn(to)
            }
            Happening::Restart { node } if self.may_start(node) => self.restart(node),
            // The event belongs to a node that has crashed since, or to the first part of the run.
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
        let refused = self.refused(from, to);
        if let Some(node) = refused {
            for delay in self.network.send(Party::Node(to), Party::Node(from)) {
                let peer = Box::new(Peer::Removed { node });
                self.at(delay, Happening::Peer { from: to, to: from, peer });
            }
        }
        let arrived = self.nodes[to].is_up() && refused.is_none();
        if let Some((group, replica)) = peer.snapshot_of() {
            self.report_snapshot(from, replica, group, arrived);
        }
        if arrived {
            self.nodes[to].peer(from, peer, self.now)?;
            self.turn(to)?;
        }
        Ok(())
    }

    /// The sender's number, if the receiver knows that the sender is given up: it ignores the
    /// message and tells the sender.
    fn refused(&self, from: usize, to: usize) -> Option<NodeId> {
        let node = self.nodes[from].disk.node()?;
        self.nodes[to].control()?.has_given_up(node).then_some(node)
    }

    /// Reports to the sender whether its snapshot arrived.
    fn report_snapshot(&mut self, from: usize, to: u64, group: u64, arrived: bool) {
        let boot = self.nodes[from].boot;
        let effect = Box::new(Effect::SnapshotSent { group, to, arrived });
        self.at(20, Happening::Effect { node: from, boot, effect });
    }

    /// Lets a node do all that it can, and carries out the results.
    fn turn(&mut self, node: usize) -> Result<(), Violation> {
        let output = self.nodes[node].turn(self.now)?;
        self.judge(node, &output)?;
        if let Some(why) = output.stopped {
            return self.stopped(node, &why);
        }
        let boot = self.nodes[node].boot;
        for (after_ms, effect) in output.effects {
            self.at(after_ms, Happening::Effect { node, boot, effect: Box::new(effect) });
        }
        for (to, peer) in output.peers {
            let delays = self.network.send(Party::Node(node), Party::Node(to));
            if let (true, Some((group, replica))) = (delays.is_empty(), peer.snapshot_of()) {
                self.report_snapshot(node, replica, group, false);
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

    /// Checks the actions of a node against the invariants.
    fn judge(&mut self, node: usize, output: &Output) -> Result<(), Violation> {
        for (shard, index, term, applied) in &output.applied {
            self.note("applied", [node as u64, u64::from(*shard), *index]);
            self.oracle.applied(*shard, node, *index, *term, applied)?;
        }
        for (index, term, decided) in &output.decided {
            self.note("decided", [node as u64, *index, u64::from(decided.outcome.is_ok())]);
            self.oracle.control.applied(node, *index, *term, decided)?;
            if decided.after.factor() == 1 {
                self.single_at = self.now;
            }
        }
        for &(group, replica, role) in &output.roles {
            self.took_role(node, group, replica, role)?;
        }
        for &(shard, term, stamp) in &output.stamped {
            self.oracle.stamped(shard, term, stamp, self.now)?;
        }
        for (group, index, members) in &output.members {
            self.changed(*group, *index, members)?;
        }
        for &(shard, index, term) in &output.answered {
            let group = group_of(shard);
            let keeps = |replica| self.keeps(replica, group, index, term);
            let kept = self.options.blind || self.groups[group as usize].decides(keeps);
            self.oracle.answered(shard, index, kept)?;
        }
        for (_, peer) in &output.peers {
            if let Peer::Raft { group, message } = peer {
                let said = self.groups[*group as usize].said(message);
                said.map_err(|what| format!("node {node}, group {group}: {what}"))?;
            }
        }
        for &(group, replica, life) in &output.lives {
            match life {
                Life::Begun => {
                    self.note("begun", [node as u64, group, replica]);
                    self.groups[group as usize].begun(replica)?;
                }
                Life::Ended => {
                    self.note("ended", [node as u64, group, replica]);
                    self.groups[group as usize].ended(replica);
                }
            }
        }
        Ok(())
    }

    /// Handles a change of members: each new voter must already have a state.
    fn changed(&mut self, group: u64, index: u64, members: &Members) -> Result<(), Violation> {
        for replica in self.groups[group as usize].changed(index, members.clone()) {
            self.note("votes", [group, replica, index]);
            let place = self.oracle.control.place_of(group, replica);
            let place = place.ok_or_else(|| format!("nobody knows replica {replica}"))?;
            let disk = &self.nodes[place].disk;
            let has_state =
                disk.replica(group) == Some(replica) && disk.checkpoint(group).is_some();
            if !has_state && !self.lost[place] && !self.options.blind {
                return Err(format!("replica {replica} of group {group} votes and has no state"));
            }
        }
        Ok(())
    }

    /// Whether this entry would survive a crash of the replica now. A disk that was lost since
    /// counts, because it kept the entry at the time.
    fn keeps(&self, replica: u64, group: u64, index: u64, term: u64) -> bool {
        let Some(place) = self.oracle.control.place_of(group, replica) else { return false };
        let disk = &self.nodes[place].disk;
        disk.replica(group) == Some(replica) && disk.keeps(group, index, term)
    }

    fn took_role(
        &mut self,
        node: usize,
        group: u64,
        replica: u64,
        role: Role,
    ) -> Result<(), Violation> {
        let Role::Leader { term } = role else { return Ok(()) };
        self.note("leads", [node as u64, group, term]);
        let Some(shard) = group.checked_sub(1).map(|shard| shard as u16) else {
            return self.oracle.control.leads(term, replica);
        };
        self.oracle.leads(shard, term, replica)?;
        let machine = self.nodes[node].machine(shard);
        machine.map_or(Ok(()), |machine| self.oracle.check_present(shard, machine))
    }

    fn may_start(&self, node: usize) -> bool {
        !self.nodes[node].is_up() && !self.nodes[node].retired && !self.lost[node]
    }

    fn restart(&mut self, node: usize) -> Result<(), Violation> {
        self.note("restart", [node as u64, 0, 0]);
        self.nodes[node].start(self.now)?;
        let boot = self.nodes[node].boot;
        let after_ms = self.nodes[node].tick_ms;
        self.at(after_ms, Happening::Tick { node, boot });
        self.turn(node)
    }
}

impl Peer {
    /// The group and receiver of a snapshot message, whose sender must learn whether it arrived.
    fn snapshot_of(&self) -> Option<(u64, u64)> {
        let Peer::Raft { group, message } = self else { return None };
        let snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
        snapshot.then_some((*group, message.to))
    }

    fn kind(&self) -> u64 {
        match self {
            Peer::Raft { group, message } => {
                let shape = [*group, message.term, message.index, message.commit];
                let kind = message.get_msg_type() as u64;
                shape.into_iter().fold(kind, |hash, number| mix(hash ^ number))
            }
            Peer::Owed { sequence, .. } | Peer::Taken { sequence, .. } => *sequence,
            Peer::Attest { shard, .. } => mix(u64::from(*shard)),
            Peer::Join { place, .. } => *place as u64,
            Peer::Welcome { node, replica } => mix(*node) ^ replica,
            Peer::Status(status) => mix(status.node) ^ status.at,
            Peer::Removed { node } => *node,
            Peer::Change { group, since, .. } => mix(*group) ^ since,
            Peer::Transfer { group, to } => mix(*group) ^ to,
        }
    }
}
