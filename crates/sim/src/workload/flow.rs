//! Flows of a few nodes over all queues: submitted, extended by their running tasks, cancelled and
//! retried.

use super::new_task::new_task;
use super::{Purpose, Request, Workload, ask};
use crate::rng::Rng;
use taskyard_machine::{
    AddFlowTasks, CancelFlow, ClaimedTask, Command, Dependency, Enqueue, FlowNode, NewTask,
    OnFailure, RetryFlow, SubmitFlow, TaskId, home_shard,
};

impl Workload {
    pub(super) fn submit_flow(&mut self, rng: &mut Rng) -> (Request, Purpose, bool) {
        let names: Vec<String> = (0..rng.between(1, 8)).map(|n| format!("node-{n}")).collect();
        let nodes = self.nodes(rng, &names);
        let batch_id = Some(u128::from(rng.next()));
        let retention_ms = rng.chance(300).then(|| rng.below(20_000));
        let submit = SubmitFlow { batch_id, name: "sim", retention_ms, nodes };
        let shard = rng.below(u64::from(self.shards)) as u16;
        (ask(shard, &Command::SubmitFlow(submit)), Purpose::Submit, true)
    }

    /// Sometimes a claimed task of a flow adds tasks to it.
    pub(super) fn fan_out(&mut self, client: usize, tasks: &[ClaimedTask]) {
        let mut rng = self.clients[client].rng.clone();
        let members = tasks.iter().filter_map(|task| task.flow.as_ref());
        for member in members {
            if self.draining || !rng.chance(200) {
                continue;
            }
            let parent = &*member.node;
            let names: Vec<String> =
                (0..rng.between(1, 3)).map(|n| format!("{parent}.{n}")).collect();
            let nodes = self.nodes(&mut rng, &names);
            let add = AddFlowTasks { flow: member.flow, parent, nodes };
            let request = ask(member.flow.home.0, &Command::AddFlowTasks(add));
            self.clients[client].script.push_back((request, Purpose::Interfere, true));
        }
        self.clients[client].rng = rng;
    }

    /// Nodes that depend on some of the earlier ones.
    fn nodes<'a>(&'a self, rng: &mut Rng, names: &'a [String]) -> Vec<FlowNode<'a>> {
        let mut nodes = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let mut depends_on = Vec::new();
            for earlier in &names[..at] {
                if rng.chance(400) {
                    let on_failure = *rng.pick(&OnFailure::ALL);
                    depends_on.push(Dependency { name: earlier, on_failure });
                }
            }
            let queue = rng.pick(&self.queues);
            // A node with a unique key is rejected, and its flow with it.
            let task = NewTask { unique: None, ..new_task(rng) };
            let enqueue = Enqueue { queue, task };
            let home = home_shard(queue, self.shards);
            let on_failure = *rng.pick(&OnFailure::ALL);
            nodes.push(FlowNode { name, home, enqueue, depends_on, on_failure });
        }
        nodes
    }
}

/// An operator's action on a flow.
pub(super) fn flow_command(rng: &mut Rng, flow: TaskId) -> Command<'static> {
    match rng.chance(350) {
        true => Command::CancelFlow(CancelFlow { flow }),
        false => Command::RetryFlow(RetryFlow { flow }),
    }
}
