//! Gateways: the work of nodes for clients and workers: they pass calls to leaders, queue them
//! while there is none, hand out tasks, and send lists of live sessions to leaders once a second.

use super::{Happening, World};
use crate::scale::commands;
use crate::scale::host::{Answer, Ask, Call, Host};
use crate::scale::node::{Input, Outgoing};
use crate::scale::params::{MILLI, Micros, Named, SECOND};
use crate::scale::traffic::Kind;
use std::collections::BTreeMap;
use taskyard_machine::{ClaimToken, TaskId};
use taskyard_replica::CONTROL_GROUP;

/// The bytes of a claim and an ack in a call.
const CLAIM_BYTES: usize = 50;
const ACK_BYTES: usize = 30;

impl World {
    /// Passes a gateway's calls to the leader, or queues them until there is one.
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

    pub(super) fn enqueue(&mut self) {
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

    pub(super) fn finish(&mut self, worker: u32, task: TaskId, token: ClaimToken) {
        self.workers.finish(worker, task, token);
        let (gateway, group) = {
            let worker = self.workers.get(worker);
            (worker.gateway, worker.group)
        };
        self.traffic.arrives(gateway, Kind::ClientIn, commands::CLIENT_BYTES + ACK_BYTES);
        let calls = self.workers.calls(worker, self.now, false);
        self.call(gateway, group, calls, self.now);
    }

    pub(super) fn answer(&mut self, node: usize, group: u64, answer: Answer) {
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
            // Its worker asks the next leader, or no longer waits for it.
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

    /// Repeats all waiting calls of the gateways at a new leader.
    pub(super) fn ask_leader(&mut self, group: u64) {
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

    pub(super) fn ask_again(&mut self, worker: u32, at: Micros) {
        let calls = self.workers.calls(worker, self.now, true);
        let (gateway, group) = {
            let worker = self.workers.get(worker);
            (worker.gateway, worker.group)
        };
        if self.leaders[group as usize].is_some_and(|leader| self.nodes[leader].up) {
            self.call(gateway, group, calls, at);
        }
    }

    /// The work of a node once a second beside its loop.
    pub(super) fn second(&mut self, node: usize) {
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

    /// Repeats calls that were refused during a hand-over of leadership that failed.
    fn release(&mut self) {
        for (group, calls) in std::mem::take(&mut self.held) {
            for call in calls {
                if self.workers.waits_for(call.ask) {
                    self.call(call.gateway, group, vec![call], self.now);
                }
            }
        }
    }
}
