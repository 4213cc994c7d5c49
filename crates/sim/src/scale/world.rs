//! World: the run of a large cluster: virtual time, one queue of events, and the nodes, links,
//! gateways and workers of these events. Every random number comes from the seed.

mod gateways;
mod kills;

use super::commands::Commands;
use super::host::{Call, Host, Milestone};
use super::layout::Layout;
use super::node::{Input, Node, Outgoing, Output};
use super::outages::Outages;
use super::params::{Micros, Params, SECOND, TICK, WARM_UP};
use super::state::State;
use super::traffic::{Kind, Traffic};
use super::workers::Workers;
use crate::rng::Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use taskyard_machine::{ClaimToken, TaskId};

/// No client sends anything before this moment, because leaders are being elected.
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
    /// Gateways send their lists of live sessions; logs are cut.
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

/// The counters of tasks and calls since counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) enqueued: u64,
    pub(crate) acked: u64,
    /// Enqueues that were lost with their leader, which a client would send again.
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
    /// When the last message of each link arrives, because a connection keeps the order.
    links: Vec<Micros>,
    workers: Workers,
    /// The leading node of each group, as gateways know it.
    pub(crate) leaders: Vec<Option<usize>>,
    homes: Vec<usize>,
    /// Calls that wait at gateways for a leader.
    held: BTreeMap<u64, Vec<Call>>,
    pub(crate) outages: Outages,
    pub(crate) tally: Tally,
    /// The times from a client's enqueue to the gateway's answer.
    pub(crate) enqueue_spans: Vec<Micros>,
    next_enqueue: f64,
    counts: bool,
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
            // Nodes did not start at the same time.
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

    /// Lets the cluster start; counting begins afterwards.
    pub(crate) fn warm_up(&mut self) {
        self.run_until(WARM_UP);
        self.counts = true;
    }

    /// Handles all events up to a moment.
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

    /// Handles an input from the node itself.
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

    /// Begins a turn, unless one is in progress.
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

    /// The frames that are on their way, by kind.
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
