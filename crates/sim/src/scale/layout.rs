//! Layout: a large cluster on paper, as the control group knows it. The steps of the real planner
//! are carried out at once, so that the planner is content with the places of replicas and leaders.

use super::params::Params;
use std::collections::BTreeMap;
use taskyard_replica::{
    CONTROL_GROUP, Change, Control, ControlCommand, GroupSeen, Members, Node, NodeId, Placement,
    Seen, StateMachine, Step,
};

/// The number of replicas of a shard.
const REPLICAS: usize = 3;

pub(crate) struct Layout {
    pub(crate) control: Control,
    pub(crate) seen: Seen,
    pub(crate) steps: Steps,
}

/// The number of steps of each kind in plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) commands: u64,
    pub(crate) changes: u64,
    pub(crate) transfers: u64,
}

impl Layout {
    /// An even layout, with each replica of a shard in another zone, and then the planner's
    /// changes.
    pub(crate) fn new(params: &Params) -> Layout {
        let mut layout =
            Layout { control: Control::default(), seen: Seen::default(), steps: Steps::default() };
        let found =
            ControlCommand::Found { cluster: 7, incarnation: 1, shards: params.shards, rules: 1 };
        layout.command(&found);
        for id in 1..=params.nodes as NodeId {
            let node = Node {
                address: format!("10.0.0.{id}:7401"),
                serves: format!("10.0.0.{id}:7400"),
                zone: format!("zone-{}", params.zone(id as usize - 1)),
                rules_max: 1,
                instance: id.into(),
            };
            layout.command(&ControlCommand::AddNode { id, node });
            layout.seen.alive.insert(id);
        }
        layout.place_control(params);
        (0..params.shards).for_each(|shard| layout.place_shard(shard, params));
        layout
    }

    /// The control group has three voters; all other nodes follow.
    fn place_control(&mut self, params: &Params) {
        let replicas = (1..=params.nodes as NodeId).map(|node| Placement { node, replica: node });
        self.command(&ControlCommand::Place { group: CONTROL_GROUP, replicas: replicas.collect() });
        let voters: Vec<NodeId> = (1..=REPLICAS as NodeId).collect();
        self.command(&ControlCommand::SetTarget { group: CONTROL_GROUP, nodes: voters.clone() });
        let learners = (1 + REPLICAS as u64..=params.nodes as u64).collect();
        let members = Members { voters, learners, outgoing: Vec::new() };
        self.seen.groups.insert(CONTROL_GROUP, seen(1, members));
    }

    fn place_shard(&mut self, shard: u16, params: &Params) {
        let number = usize::from(shard);
        let nodes = (0..REPLICAS).map(|replica| {
            let zone = (number + replica) % params.zones;
            let in_zone = (params.nodes - zone).div_ceil(params.zones);
            // Each round takes another neighbour, so that the shards of a node fail over to many
            // nodes.
            let place = (number + zone * (number / in_zone)) % in_zone;
            (place * params.zones + zone + 1) as NodeId
        });
        let replicas: Vec<Placement> =
            nodes.zip(1..).map(|(node, replica)| Placement { node, replica }).collect();
        let group = u64::from(shard) + 1;
        self.command(&ControlCommand::Place { group, replicas });
        let voters = (1..=REPLICAS as u64).collect();
        self.seen.groups.insert(group, seen(1, Members { voters, ..Members::default() }));
    }

    fn command(&mut self, command: &ControlCommand) {
        let outcome = self.control.apply(2, &command.encode());
        outcome.unwrap_or_else(|refused| panic!("{command:?}: {refused}"));
    }

    /// Makes a plan and carries it out; returns whether there was anything to do.
    pub(crate) fn round(&mut self) -> bool {
        let steps = self.control.next_steps(&self.seen);
        let any = !steps.is_empty();
        for step in steps {
            match step {
                Step::Command(command) => {
                    self.steps.commands += 1;
                    self.command(&command);
                }
                Step::Change { group, changes } => {
                    self.steps.changes += 1;
                    self.change(group, &changes);
                }
                Step::Transfer { group, to } => {
                    self.steps.transfers += 1;
                    self.group(group).leader = to;
                }
            }
        }
        any
    }

    /// Plans until nothing is left to do, or the allowed number is reached; returns the number of
    /// plans.
    pub(crate) fn settle(&mut self, rounds_max: u64) -> u64 {
        (0..rounds_max).take_while(|_| self.round()).count() as u64
    }

    /// Marks a node as silent for so long that it is replaced.
    pub(crate) fn lose(&mut self, node: NodeId) {
        self.seen.alive.remove(&node);
        self.seen.gone.insert(node);
        for group in self.control.groups() {
            let Some(replica) = self.control.replica_on(group, node) else { continue };
            let found = self.group(group);
            found.lags.remove(&replica);
            let successor = found.members.voters.iter().copied().find(|&voter| voter != replica);
            if found.leader == replica {
                found.leader = successor.expect("a group has several voters");
            }
        }
    }

    fn group(&mut self, group: u64) -> &mut GroupSeen {
        self.seen.groups.get_mut(&group).expect("every group has a leader")
    }

    fn change(&mut self, group: u64, changes: &[Change]) {
        let found = self.group(group);
        let members = &mut found.members;
        for &change in changes {
            let (Change::AddVoter(id) | Change::AddLearner(id) | Change::Remove(id)) = change;
            members.voters.retain(|voter| *voter != id);
            members.learners.retain(|learner| *learner != id);
            found.lags.remove(&id);
            match change {
                Change::AddVoter(_) => members.voters.push(id),
                Change::AddLearner(_) => members.learners.push(id),
                Change::Remove(_) => continue,
            }
            found.lags.insert(id, 0);
        }
        members.voters.sort_unstable();
        members.learners.sort_unstable();
    }

    /// The number of shards that each node leads, by node from 0.
    pub(crate) fn leads(&self, nodes: usize) -> Vec<usize> {
        let mut leads = vec![0; nodes];
        for (&group, found) in self.seen.groups.iter().filter(|(group, _)| **group > 0) {
            let node = self.control.node_of(group, found.leader).expect("leaders are placed");
            leads[node as usize - 1] += 1;
        }
        leads
    }

    /// The number of shards with a replica on each node, by node from 0.
    pub(crate) fn holds(&self, nodes: usize) -> Vec<usize> {
        let mut holds = vec![0; nodes];
        for group in self.control.groups().skip(1) {
            for at in self.control.replicas(group) {
                holds[at.node as usize - 1] += 1;
            }
        }
        holds
    }
}

fn seen(leader: u64, members: Members) -> GroupSeen {
    let all = members.voters.iter().chain(&members.learners);
    let lags: BTreeMap<u64, u64> = all.map(|&replica| (replica, 0)).collect();
    GroupSeen { leader, members, lags }
}
