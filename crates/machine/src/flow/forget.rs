//! The end of a flow's retention: removes the flow and its tasks, a bounded number per entry.

use crate::flow::name_key;
use crate::outbox::Message;
use crate::turn::Turn;

impl Turn<'_> {
    /// Forgets up to `count_max` nodes and flows whose retention is over; returns how many.
    pub(crate) fn forget_flows(&mut self, count_max: usize) -> usize {
        let mut count = 0;
        while count < count_max {
            let first = self.shard.flows.first_to_expire();
            let Some((_, flow)) = first.filter(|&(at, _)| at <= self.now) else { break };
            let nodes = self.shard.nodes_of(flow).take(count_max - count);
            let nodes: Vec<_> =
                nodes.map(|(number, node)| (number, node.task, node.name.clone())).collect();
            count += nodes.len().max(1);
            if nodes.is_empty() {
                self.shard.flows.remove(flow);
                continue;
            }
            self.edit_flow(flow, |flow| flow.forgetting = true);
            for (number, task, name) in nodes {
                self.shard.nodes.remove((flow, number));
                self.shard.node_names.remove(&name_key(flow, &name));
                self.shard.ended_nodes -= 1;
                self.owe(task.home, &Message::Forget { task });
            }
        }
        count
    }
}
