//! What a history asks of flows.

use crate::history::random::Random;
use crate::history::{Author, IDENTITY, QUEUES};
use taskyard_machine::*;

const NODES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const ADDED: [&str; 3] = ["added-1", "added-2", "added-3"];

impl Author {
    /// A flow of a few nodes, mostly of this shard, or something about one.
    pub(crate) fn flow(&mut self) -> Command<'static> {
        let flow = self.flows.get(self.random.below(10) as usize).copied();
        let flow = flow.unwrap_or_else(|| self.any());
        match self.random.below(10) {
            0..=4 => Command::SubmitFlow(SubmitFlow {
                batch_id: self.random.chance(20).then(|| self.batch_id()),
                name: "flow",
                retention_ms: self.random.chance(70).then(|| self.random.below(60_000)),
                nodes: self.nodes(&NODES, &NODES),
            }),
            5 => Command::CancelFlow(CancelFlow { flow }),
            6..=7 => Command::RetryFlow(RetryFlow { flow }),
            8 => Command::AddFlowTasks(AddFlowTasks {
                flow,
                parent: self.random.pick(&NODES),
                nodes: self.nodes(&ADDED, &["a", "b", "added-1"]),
            }),
            _ if self.random.chance(50) => Command::StageFlow(StageFlow {
                batch_id: self.batch_id(),
                part: 0,
                nodes: self.nodes(&NODES, &NODES),
            }),
            _ => Command::CommitFlow(CommitFlow {
                batch_id: self.batch_id(),
                parts: 1,
                name: "staged",
                retention_ms: Some(5_000),
            }),
        }
    }

    /// Nodes that depend on earlier ones, now and then on any.
    fn nodes(
        &mut self,
        names: &[&'static str],
        parents: &[&'static str],
    ) -> Vec<FlowNode<'static>> {
        let count = 1 + self.random.below(names.len() as u64) as usize;
        let mut nodes = Vec::new();
        for (at, &name) in names[..count].iter().enumerate() {
            let reach = if self.random.chance(2) { parents.len() } else { at.min(parents.len()) };
            let depends_on = parents[..reach].iter().filter(|_| self.random.chance(50));
            let depends_on: Vec<&str> = depends_on.copied().collect();
            let policy = |random: &mut Random| random.pick(&OnFailure::ALL);
            let depends_on = depends_on
                .into_iter()
                .map(|name| Dependency { name, on_failure: policy(&mut self.random) });
            let depends_on = depends_on.collect();
            let home = if self.random.chance(95) { IDENTITY.shard } else { ShardId(3) };
            let task = NewTask { request_id: None, ..self.task() };
            let enqueue = Enqueue { queue: self.random.pick(&QUEUES), task };
            let on_failure = policy(&mut self.random);
            nodes.push(FlowNode { name, home, enqueue, depends_on, on_failure });
        }
        nodes
    }
}
