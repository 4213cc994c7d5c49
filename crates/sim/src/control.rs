//! Control: the control group on one node: its replica, and the work of its leader. The leader
//! founds the cluster, accepts nodes, and carries out the planner's steps from the reports of
//! nodes.
//!
//! Invariant: a plan from old news fails or does no harm. The group decides each command, and a
//! change of members is fenced by the members for which it was planned.

mod watch;

use crate::node::{Output, Peer};
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use taskyard_replica::{
    Control, ControlCommand, ControlOutcome, Node, NodeId, Placement, Progress, Replica, Role,
    StateMachine, Step,
};
use watch::Watch;
pub(crate) use watch::{GroupReport, Status};

/// The control state of one replica, with the data that the checkers need for each entry.
#[derive(Debug, Default)]
pub(crate) struct Directory(pub(crate) Control);

/// The effect of one entry of the control group, as seen on one replica.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) data: Vec<u8>,
    pub(crate) outcome: ControlOutcome,
    /// The state after it.
    pub(crate) after: Control,
}

impl StateMachine for Directory {
    type Outcome = Decided;

    fn apply(&mut self, index: u64, data: &[u8]) -> Decided {
        let outcome = self.0.apply(index, data);
        Decided { data: data.to_vec(), outcome, after: self.0.clone() }
    }
}

/// The control group on one node.
pub(crate) struct ControlHost {
    pub(crate) replica: Replica<Directory>,
    pub(crate) checkpointed: u64,
    pub(crate) wants_checkpoint: bool,
    shards: u16,
    /// The newest rules that this node knows.
    rules_max: u16,
    sabotage: Sabotage,
    watch: Watch,
    plans_at: u64,
    proposals: u64,
}

impl ControlHost {
    pub(crate) fn new(
        replica: Replica<Directory>,
        shards: u16,
        rules_max: u16,
        sabotage: Sabotage,
    ) -> ControlHost {
        ControlHost {
            checkpointed: replica.applied(),
            wants_checkpoint: false,
            replica,
            shards,
            rules_max,
            sabotage,
            watch: Watch::new(0),
            plans_at: 0,
            proposals: 0,
        }
    }

    pub(crate) fn state(&self) -> &Control {
        &self.replica.machine().0
    }

    pub(crate) fn leads(&self) -> bool {
        matches!(self.replica.role(), Role::Leader { .. })
    }

    /// The leading replica, as far as this node knows.
    pub(crate) fn leader(&self) -> Option<u64> {
        match self.replica.role() {
            Role::Leader { .. } => Some(self.replica.id()),
            Role::Follower { leader, .. } => leader,
        }
    }

    /// The place of a node on the network, which is its address.
    pub(crate) fn place_of(&self, node: NodeId) -> Option<usize> {
        self.state().nodes().get(&node).and_then(place)
    }

    /// The places of all nodes that are known here.
    pub(crate) fn places(&self) -> Vec<usize> {
        self.state().nodes().values().filter_map(place).collect()
    }

    pub(crate) fn hear(&mut self, status: Status, now: u64) {
        if self.leads() {
            self.note_rules(&status);
            self.watch.hear(status, now);
        }
    }

    /// Records the rules of a node that runs another build than before.
    fn note_rules(&mut self, status: &Status) {
        let known = self.state().nodes().get(&status.node);
        let changed = known.filter(|node| node.rules_max != status.rules_max).cloned();
        if let Some(known) = changed {
            let node = Node { rules_max: status.rules_max, ..known };
            self.propose(&ControlCommand::SetNode { id: status.node, node });
        }
    }

    /// Proposes a command without waiting, because a lost command is proposed again.
    pub(crate) fn propose(&mut self, command: &ControlCommand) {
        self.proposals += 1;
        let _ = self.replica.propose(command.encode(), self.proposals);
    }

    /// Handles a node's request to join. The leader gives it a number, once, and tells it its
    /// replica of this group when there is one.
    pub(crate) fn let_in(&mut self, at: usize, rules_max: u16, output: &mut Output) {
        if self.next_of_founding().is_some() {
            return;
        }
        let known = self.state().nodes().iter().find(|(_, node)| place(node) == Some(at));
        match known.map(|(&node, _)| node) {
            None => {
                let id = self.state().node_next();
                let node = node_at(at, rules_max);
                self.propose(&ControlCommand::AddNode { id, node });
            }
            Some(node) => {
                let replica = self.state().replica_on(0, node);
                let welcome = replica.map(|replica| Peer::Welcome { node, replica });
                output.peers.extend(welcome.map(|welcome| (at, welcome)));
            }
        }
    }

    /// Whether this node leads and the next plan is due.
    pub(crate) fn plans(&self, now: u64) -> bool {
        self.leads() && now >= self.plans_at
    }

    /// Plans the leader's own next steps; `status` is the report of its own node.
    pub(crate) fn plan(&mut self, status: Status, now: u64, rng: &mut Rng, output: &mut Output) {
        self.plans_at = now + rng.between(60, 250);
        if let Some(command) = self.next_of_founding() {
            self.propose(&command);
            return;
        }
        self.note_rules(&status);
        self.watch.hear(status, now);
        let mut seen = self.watch.seen(self.state(), now);
        self.sabotage.of_sight(&mut seen);
        for step in self.state().next_steps(&seen) {
            self.carry_out(step, output);
        }
    }

    /// The next command that founds the cluster: at first one node, with the first replica of every
    /// group.
    fn next_of_founding(&self) -> Option<ControlCommand> {
        let state = self.state();
        if state.cluster().is_none() {
            let (shards, rules) = (self.shards, self.rules_max);
            return Some(ControlCommand::Found { cluster: 1, incarnation: 7, shards, rules });
        }
        if state.node_next() == 1 {
            let node = node_at(0, self.rules_max);
            return Some(ControlCommand::AddNode { id: 1, node });
        }
        let group = state.groups().find(|&group| state.replica_next(group) == 1)?;
        let replicas = vec![Placement { node: 1, replica: 1 }];
        Some(ControlCommand::Place { group, replicas })
    }

    fn carry_out(&mut self, step: Step, output: &mut Output) {
        let (group, order) = match step {
            Step::Command(command) => return self.propose(&command),
            Step::Change { group, changes } => {
                let Some((term, since)) = self.watch.fence(group) else { return };
                (group, Peer::Change { group, term, since, changes })
            }
            Step::Transfer { group, to } => (group, Peer::Transfer { group, to }),
        };
        let leader = self.watch.leader(group);
        let node = leader.and_then(|leader| self.state().node_of(group, leader));
        let place = node.and_then(|node| self.place_of(node));
        output.peers.extend(place.map(|place| (place, order)));
    }

    /// Handles the results of a write; returns whether the state changed.
    pub(crate) fn take(
        &mut self,
        progress: Progress<Decided>,
        now: u64,
        output: &mut Output,
    ) -> bool {
        let changed = !progress.applied.is_empty() || progress.members_changed;
        for applied in progress.applied {
            output.decided.push((applied.index, applied.term, applied.outcome));
        }
        if progress.members_changed {
            // A new member needs a checkpoint that names it.
            self.wants_checkpoint = true;
            output.members.push((0, self.replica.applied(), self.replica.members()));
        }
        if let Some(role) = progress.role {
            self.watch = Watch::new(now);
            self.plans_at = now;
            output.roles.push((0, self.replica.id(), role));
        }
        changed
    }
}

fn node_at(place: usize, rules_max: u16) -> Node {
    let zone = ["", "a", "b", "c"][place % 4].to_owned();
    Node { address: place.to_string(), zone, rules_max, ..Node::default() }
}

fn place(node: &Node) -> Option<usize> {
    node.address.parse().ok()
}
