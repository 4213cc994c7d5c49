//! World: the run of a large cluster: virtual time, one queue of events, and the nodes, links, gateways
//! and workers that they happen to. Nothing is drawn from outside of the seed.

use super::commands::{self, Commands};
use super::host::{Answer, Ask, Call, Host, Milestone};
use super::layout::Layout;
use super::node::{Input, Node, Outgoing, Output};
use super::outages::{Cause, Outages};
use super::params::{MILLI, Micros, Named, Params, SECOND, TICK, Victim, WARM_UP};
use super::state::State;
use super::traffic::{Kind, Traffic};
use super::workers::Workers;
use crate::rng::Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use taskyard_machine::{ClaimToken, TaskId};
use taskyard_replica::CONTROL_GROUP;

/// How long workers of a killed gateway need to find another.
const RECONNECT: Micros = SECOND;
/// From a node's return until its leaders are handed back to it.
const HOME_AFTER: Micros = 2 * SECOND;
/// Before this nothing is asked: leaders are being elected.
const LOAD_FROM: Micros = SECOND;

#[derive(Debug)]
enum Happening {
    Tick {
        node: usize,
    },
    Arrive {
        from: usize,
        to: usize,
        frames: Vec<Outgoing>,
    },
    TurnOver {
        node: usize,
    },
    /// A gateway tells who lives; logs are cut.
    Second {
        node: usize,
    },
    Enqueue,
    Finish {
        worker: u32,
        task: TaskId,
        token: ClaimToken,
    },
    Kill,
    Revive {
        node: usize,
    },
    GoHome {
        node: usize,
    },
    Reconnect {
        workers: Vec<u32>,
    },
}

/// What happened to tasks and calls since counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) enqueued: u64,
    pub(crate) acked: u64,
    /// Enqueues that were lost with their leader: a client would send them again.
    pub(crate) unknown: u64,
    pub(crate) events: u64,
}

pub(crate) struct World {
    pub(crate) params: Params,
    commands: Commands,
    rng: Rng,
    pub(crate) now: Micros,
    queue: BinaryHeap<Reverse<(Micros, u64, usize)>>,
    happenings: Vec<Option<Happening>>,
    free: Vec<usize>,
    next_place: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) traffic: Traffic,
    /// When the last message of each link arrives: a connection keeps their order.
    links: Vec<Micros>,
    workers: Workers,
    /// The node that leads each group, as gateways know it.
    pub(crate) leaders: Vec<Option<usize>>,
    homes: Vec<usize>,
    /// Calls that wait at gateways for a leader.
    held: BTreeMap<u64, Vec<Call>>,
    pub(crate) outages: Outages,
    pub(crate) tally: Tally,
    /// From a client's enqueue until its gateway has the answer.
    pub(crate) enqueue_spans: Vec<Micros>,
    next_enqueue: f64,
    pub(crate) counts: bool,
}

impl World {
    pub(crate) fn new(params: &Params, layout: &Layout) -> World {
        let groups = usize::from(params.shards) + 1;
        let mut homes = Vec::with_capacity(groups);
        let mut hosts: Vec<Vec<Host>> = (0..params.nodes).map(|_| Vec::new()).collect();
        for (&group, found) in &layout.seen.groups {
            let placed = layout.control.replicas(group);
            let route = placed.iter().map(|at| (at.replica, at.node as usize - 1)).collect();
            for at in placed {
                let state = match group.checked_sub(1) {
                    None => State::Control(Box::new(layout.control.clone())),
                    Some(shard) => State::shard(shard as u16, params.shards),
                };
                let route = std::rc::Rc::clone(&route);
                let host = Host::new(params.seed, group, at.replica, &found.members, route, state);
                hosts[at.node as usize - 1].push(host);
            }
            let home = layout.control.node_of(group, found.leader).expect("leaders are placed");
            homes.push(home as usize - 1);
        }
        let mut world = World {
            params: params.clone(),
            commands: Commands::new(params.payload_bytes),
            rng: Rng::new(params.seed),
            now: 0,
            queue: BinaryHeap::new(),
            happenings: Vec::new(),
            free: Vec::new(),
            next_place: 0,
            nodes: hosts.into_iter().map(Node::new).collect(),
            traffic: Traffic::new(params.nodes),
            links: vec![0; params.nodes * params.nodes],
            workers: Workers::new(params),
            leaders: vec![None; groups],
            homes,
            held: BTreeMap::new(),
            outages: Outages::default(),
            tally: Tally::default(),
            enqueue_spans: Vec::new(),
            next_enqueue: LOAD_FROM as f64,
            counts: false,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for node in 0..self.nodes.len() {
            // Nodes were started at different times.
            let (tick, second) = (self.rng.below(TICK), self.rng.below(SECOND));
            self.at(tick, Happening::Tick { node });
            self.at(second, Happening::Second { node });
        }
        for (group, home) in self.homes.clone().into_iter().enumerate() {
            self.nodes[home].inbox.push(Input::Campaign { group: group as u64 });
        }
        if self.params.tasks_per_second > 0 {
            self.at(LOAD_FROM, Happening::Enqueue);
        }
        for number in 0..self.params.kills {
            self.at(self.params.kill_at(number), Happening::Kill);
        }
    }

    /// Lets everything happen up to a moment.
    pub(crate) fn run_until(&mut self, until: Micros) {
        while let Some(&Reverse((at, _, slot))) = self.queue.peek()
            && at <= until
        {
            self.queue.pop();
            self.now = at;
            self.tally.events += 1;
            let happening = self.happenings[slot].take().expect("each happens once");
            self.free.push(slot);
            self.happen(happening);
        }
        self.now = until;
    }

    fn at(&mut self, at: Micros, happening: Happening) {
        let slot = self.free.pop().unwrap_or(self.happenings.len());
        if slot == self.happenings.len() {
            self.happenings.push(None);
        }
        self.happenings[slot] = Some(happening);
        self.next_place += 1;
        self.queue.push(Reverse((at, self.next_place, slot)));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick { node } => {
                self.at(self.now + TICK, Happening::Tick { node });
                self.bring(node, Input::Tick);
            }
            Happening::Arrive { from, to, frames } => self.arrive(from, to, frames),
            Happening::TurnOver { node } if self.nodes[node].up => self.turn_over(node),
            Happening::TurnOver { node } => self.nodes[node].stalled = true,
            Happening::Second { node } => {
                self.at(self.now + SECOND, Happening::Second { node });
                if self.nodes[node].up {
                    self.second(node);
                }
            }
            Happening::Enqueue => self.enqueue(),
            Happening::Finish { worker, task, token } => self.finish(worker, task, token),
            Happening::Kill => self.kill(),
            Happening::Revive { node } => self.revive(node),
            Happening::GoHome { node } => self.go_home(node),
            Happening::Reconnect { workers } => {
                workers.into_iter().for_each(|worker| self.ask_again(worker, self.now));
            }
        }
    }

    /// An input from the node itself.
    fn bring(&mut self, node: usize, input: Input) {
        if self.nodes[node].up {
            self.nodes[node].inbox.push(input);
            self.turn(node);
        }
    }

    fn arrive(&mut self, from: usize, to: usize, frames: Vec<Outgoing>) {
        let up = self.nodes[to].up;
        for frame in frames {
            if from != to {
                match up {
                    true => self.traffic.arrives(to, frame.kind, frame.bytes),
                    false => self.traffic.is_lost(frame.kind, frame.bytes),
                }
            }
            if up {
                self.nodes[to].inbox.push(frame.input);
            }
        }
        if up {
            self.turn(to);
        }
    }

    /// Begins a turn, unless one is under way.
    fn turn(&mut self, node: usize) {
        if self.nodes[node].busy || !self.nodes[node].has_work() {
            return;
        }
        let output = self.nodes[node].turn(self.now, &self.params, &self.commands);
        let (computed_at, over_at) =
            (self.now + output.computed_for, self.now + output.busy_for.max(1));
        self.nodes[node].busy = true;
        self.carry_out(node, output, computed_at);
        self.at(over_at, Happening::TurnOver { node });
    }

    fn turn_over(&mut self, node: usize) {
        self.nodes[node].busy = false;
        let output = self.nodes[node].written(self.now, &self.commands);
        self.carry_out(node, output, self.now);
        self.turn(node);
    }

    fn carry_out(&mut self, node: usize, output: Output, at: Micros) {
        let mut outgoing = output.outgoing;
        outgoing.sort_by_key(|frame| frame.to);
        let mut outgoing = outgoing.into_iter().peekable();
        while let Some(first) = outgoing.next() {
            let to = first.to;
            let mut frames = vec![first];
            while let Some(next) = outgoing.next_if(|frame| frame.to == to) {
                frames.push(next);
            }
            self.ship(node, to, at, frames);
        }
        for (group, answer) in output.answers {
            self.answer(node, group, answer);
        }
        for (group, milestone) in output.milestones {
            self.pass(node, group, milestone);
        }
    }

    /// Sends frames in one write; they arrive in the order of their link.
    fn ship(&mut self, from: usize, to: usize, at: Micros, frames: Vec<Outgoing>) {
        if from != to {
            for frame in &frames {
                self.traffic.sends(from, to, frame.kind, frame.bytes);
            }
        }
        let latency = self.latency(from, to);
        let link = &mut self.links[from * self.nodes.len() + to];
        *link = (*link).max(at + latency);
        let arrives_at = *link;
        self.at(arrives_at, Happening::Arrive { from, to, frames });
    }

    fn latency(&mut self, from: usize, to: usize) -> Micros {
        let base = match self.params.zone(from) == self.params.zone(to) {
            _ if from == to => return 0,
            true => self.params.in_zone_us,
            false => self.params.across_us,
        };
        base + self.rng.below(base / 5 + 1)
    }

    /// Sends a gateway's calls on to the leader, or holds them until there is one.
    fn call(&mut self, gateway: usize, group: u64, calls: Vec<Call>, at: Micros) {
        let leader = self.leaders[group as usize].filter(|&leader| self.nodes[leader].up);
        let Some(leader) = leader.filter(|_| self.nodes[gateway].up) else {
            self.held.entry(group).or_default().extend(calls);
            return;
        };
        let frames = calls.into_iter().map(|call| {
            let (kind, bytes) = match call.ask {
                Ask::Enqueue => (Kind::Enqueue, self.commands.enqueue.as_bytes().len()),
                Ask::Claim { .. } => (Kind::Claim, CLAIM_BYTES),
                Ask::Ack { .. } => (Kind::Ack, ACK_BYTES),
            };
            let bytes = bytes + commands::CALL_BYTES;
            Outgoing { to: leader, kind, bytes, input: Input::Call { group, call } }
        });
        let frames: Vec<Outgoing> = frames.collect();
        if !frames.is_empty() {
            self.ship(gateway, leader, at, frames);
        }
    }

    fn enqueue(&mut self) {
        let mean = SECOND as f64 / self.params.tasks_per_second as f64;
        let drawn = (self.rng.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
        self.next_enqueue -= drawn.ln() * mean;
        self.at(self.next_enqueue as Micros, Happening::Enqueue);
        let group = 1 + self.rng.below(u64::from(self.params.shards));
        let gateway = self.gateway_up();
        let bytes = commands::CLIENT_BYTES + self.commands.enqueue.as_bytes().len();
        self.traffic.arrives(gateway, Kind::ClientIn, bytes);
        let call = Call { gateway, since: self.now, ask: Ask::Enqueue };
        self.call(gateway, group, vec![call], self.now);
    }

    /// Clients fail over by themselves.
    fn gateway_up(&mut self) -> usize {
        let from = self.rng.below(self.nodes.len() as u64) as usize;
        let nodes = self.nodes.len();
        (0..nodes)
            .map(|step| (from + step) % nodes)
            .find(|&node| self.nodes[node].up)
            .expect("some node is up")
    }

    fn finish(&mut self, worker: u32, task: TaskId, token: ClaimToken) {
        self.workers.finish(worker, task, token);
        let (gateway, group) = {
            let worker = self.workers.get(worker);
            (worker.gateway, worker.group)
        };
        self.traffic.arrives(gateway, Kind::ClientIn, commands::CLIENT_BYTES + ACK_BYTES);
        let calls = self.workers.calls(worker, self.now, false);
        self.call(gateway, group, calls, self.now);
    }

    fn answer(&mut self, node: usize, group: u64, answer: Answer) {
        match answer {
            Answer::Done(call) => self.done(node, call),
            Answer::Claimed { call, task, token } => {
                let bytes = commands::TASK_BYTES + self.params.payload_bytes;
                let up = self.nodes[call.gateway].up;
                self.traffic.passes(node, call.gateway, Kind::Task, bytes, up);
                let Ask::Claim { worker, .. } = call.ask else { return };
                if up && self.workers.waits_for(call.ask) {
                    self.workers.get(worker).claims = false;
                    self.traffic.sent[call.gateway][Kind::ClientOut as usize].add(1, bytes);
                    let there = self.latency(node, call.gateway);
                    let over_at = self.now + there + self.params.run_ms * MILLI;
                    self.at(over_at, Happening::Finish { worker, task, token });
                }
            }
            Answer::Returned(call) if self.workers.waits_for(call.ask) => {
                match self.leaders[group as usize] {
                    Some(leader) if leader != node => {
                        self.call(call.gateway, group, vec![call], self.now);
                    }
                    _ => self.held.entry(group).or_default().push(call),
                }
            }
            Answer::Unknown(Call { ask: Ask::Enqueue, .. }) => self.tally.unknown += 1,
            // Its worker asks the next leader, or does not wait for it any more.
            Answer::Returned(_) | Answer::Unknown(_) => {}
        }
    }

    fn done(&mut self, node: usize, call: Call) {
        let up = self.nodes[call.gateway].up;
        self.traffic.passes(node, call.gateway, Kind::Answer, commands::ANSWER_BYTES, up);
        match call.ask {
            Ask::Ack { worker, task, token } => {
                self.tally.acked += 1;
                self.workers.get(worker).acks.retain(|held| *held != (task, token));
            }
            _ => {
                self.tally.enqueued += 1;
                if self.counts {
                    let there = self.latency(node, call.gateway);
                    self.enqueue_spans.push(self.now + there - call.since);
                }
                let bytes = commands::CLIENT_BYTES + commands::ANSWER_BYTES;
                self.traffic.sent[call.gateway][Kind::ClientOut as usize].add(1, bytes);
            }
        }
    }

    fn pass(&mut self, node: usize, group: u64, milestone: Milestone) {
        match milestone {
            Milestone::Leads => {
                self.leaders[group as usize] = Some(node);
                self.outages.leads(group, self.now);
                self.ask_leader(group);
            }
            Milestone::Writes => self.outages.writes(group, self.now),
            Milestone::StepsDown if self.leaders[group as usize] == Some(node) => {
                self.leaders[group as usize] = None;
            }
            Milestone::StepsDown => {}
        }
    }

    /// Gateways have heard of a new leader: they ask it for what they still wait for.
    fn ask_leader(&mut self, group: u64) {
        let heard_at = self.now + self.params.across_us;
        for call in self.held.remove(&group).unwrap_or_default() {
            if matches!(call.ask, Ask::Enqueue) {
                self.call(call.gateway, group, vec![call], heard_at);
            }
        }
        if group != CONTROL_GROUP {
            for worker in self.workers.of_group(group).to_vec() {
                self.ask_again(worker, heard_at);
            }
        }
    }

    fn ask_again(&mut self, worker: u32, at: Micros) {
        let calls = self.workers.calls(worker, self.now, true);
        let (gateway, group) = {
            let worker = self.workers.get(worker);
            (worker.gateway, worker.group)
        };
        if self.leaders[group as usize].is_some_and(|leader| self.nodes[leader].up) {
            self.call(gateway, group, calls, at);
        }
    }

    /// What a node does once a second beside its loop.
    fn second(&mut self, node: usize) {
        self.nodes[node].hosts.iter_mut().for_each(Host::cut_log);
        let (heard, beats) = self.workers.heard_by(node, self.now);
        let bytes = beats as usize * commands::BEAT_BYTES;
        self.traffic.received[node][Kind::Beat as usize].add(beats, bytes);
        let mut named: BTreeMap<usize, usize> = BTreeMap::new();
        for leader in self.leaders.iter().skip(1).flatten() {
            named.insert(*leader, 0);
        }
        for &worker in &heard {
            let leader = self.leaders[self.workers.get(worker).group as usize];
            if let Some(count) = leader.and_then(|leader| named.get_mut(&leader)) {
                *count += 1;
            }
        }
        for (leader, concerned) in named {
            let sessions = match self.params.named {
                Named::All => heard.len(),
                Named::Concerned => concerned,
            };
            if leader != node && sessions > 0 {
                let bytes = commands::CALL_BYTES + sessions * commands::SESSION_BYTES;
                let input = Input::Alive;
                let frame = Outgoing { to: leader, kind: Kind::Alive, bytes, input };
                self.ship(node, leader, self.now, vec![frame]);
                let up = self.nodes[leader].up;
                if up {
                    self.traffic.passes(leader, node, Kind::Alive, commands::CALL_BYTES, true);
                }
            }
        }
        self.ping(node);
        self.release();
    }

    fn ping(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            let up = self.nodes[other].up;
            self.traffic.passes(node, other, Kind::Ping, commands::PING_BYTES, up);
            if up {
                self.traffic.passes(other, node, Kind::Ping, commands::PING_BYTES, true);
            }
        }
    }

    /// Calls that were refused while leadership was not handed over after all.
    fn release(&mut self) {
        for (group, calls) in std::mem::take(&mut self.held) {
            for call in calls {
                if self.workers.waits_for(call.ask) {
                    self.call(call.gateway, group, vec![call], self.now);
                }
            }
        }
    }

    fn kill(&mut self) {
        let victims: Vec<usize> = match self.params.victim {
            Victim::Node => {
                let leads =
                    |node: &usize| self.leaders.iter().skip(1).any(|leader| *leader == Some(*node));
                let leading: Vec<usize> = (0..self.nodes.len()).filter(leads).collect();
                vec![*self.rng.pick(&leading)]
            }
            Victim::ControlLeader => self.leaders[0].into_iter().collect(),
            Victim::Zone => {
                let zone = self.rng.below(self.params.zones as u64) as usize;
                (0..self.nodes.len()).filter(|&node| self.params.zone(node) == zone).collect()
            }
        };
        for &victim in &victims {
            self.nodes[victim].up = false;
            for group in 0..self.leaders.len() {
                if self.leaders[group] == Some(victim) {
                    let cause = if group == 0 { Cause::ControlKill } else { Cause::Kill };
                    self.outages.begin(group as u64, cause, self.now);
                }
            }
        }
        let up: Vec<usize> = (0..self.nodes.len()).filter(|&node| self.nodes[node].up).collect();
        for victim in victims {
            let workers = self.workers.leave(victim, &up);
            self.at(self.now + RECONNECT, Happening::Reconnect { workers });
            if self.params.victim != Victim::Zone {
                let back_at = self.now + self.params.down_ms * MILLI;
                self.at(back_at, Happening::Revive { node: victim });
            }
        }
    }

    fn revive(&mut self, node: usize) {
        self.nodes[node].up = true;
        self.at(self.now + HOME_AFTER, Happening::GoHome { node });
        if std::mem::take(&mut self.nodes[node].stalled) {
            self.turn_over(node);
        } else {
            self.turn(node);
        }
    }

    /// Hands its leaders back to a node, as the planner would, one by one.
    fn go_home(&mut self, node: usize) {
        for group in 0..self.homes.len() {
            let Some(leader) = self.leaders[group] else { continue };
            if self.homes[group] != node || leader == node {
                continue;
            }
            let host = self.nodes[leader].host(group as u64);
            if let Some(to) = host.and_then(|host| host.replica_on(node)) {
                self.outages.begin(group as u64, Cause::Handover, self.now);
                self.bring(leader, Input::Transfer { group: group as u64, to });
            }
        }
    }

    /// Frames that are on their way, by kind.
    pub(crate) fn under_way(&self) -> BTreeMap<Kind, u64> {
        let mut counts = BTreeMap::new();
        for happening in self.happenings.iter().flatten() {
            let Happening::Arrive { from, to, frames } = happening else { continue };
            for frame in frames.iter().filter(|_| from != to) {
                *counts.entry(frame.kind).or_default() += 1;
            }
        }
        counts
    }
}

/// What a claim and an ack take in a call.
const CLAIM_BYTES: usize = 50;
const ACK_BYTES: usize = 30;

/// Nothing is counted before the cluster has come up.
pub(crate) fn warmed_up(world: &mut World) {
    world.run_until(WARM_UP);
    world.counts = true;
}
