//! The steps of a random history of flows.

use super::Run;
use super::account::{Flow, Node, Seen};
use crate::model::commands::purge;
use crate::model::shards::Answer;
use crate::model::wakes::claim_of;
use crate::model::{Difference, expect, expect_code};
use crate::rng::Rng;
use taskyard_machine::{
    Ack, AddFlowTasks, Backoff, Cancel, CancelFlow, Claim, ClaimToken, Command, CommitFlow,
    DeadAction, DeadCommand, Dependency, Enqueue, Fail, FlowNode, FlowState, NewTask, OnFailure,
    Outcome, Retry, RetryFlow, RetryPolicy, Selection, ShardId, StageFlow, SubmitFlow, TaskError,
    TaskId, TaskStateName, Timestamp, When,
};

const QUEUE: &str = "work";
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const ADDED: [&str; 6] = ["x1", "x2", "x3", "x4", "x5", "x6"];

/// Edges by position, `None` for a name that does not exist.
type Edges = Vec<(Option<usize>, OnFailure)>;

impl Run {
    pub(super) fn random_step(&mut self) -> Result<(), Difference> {
        let shard = self.rng.below(self.shards.len() as u64) as usize;
        if self.flows.is_empty() {
            return self.submit();
        }
        match self.rng.below(100) {
            0..4 if self.flows.len() < 3 => self.submit(),
            0..45 => self.carry(),
            45..57 => self.claim(shard, 2),
            57..68 => match self.pick_held() {
                Some((task, token)) => self.ack(task, token),
                None => Ok(()),
            },
            68..74 => match self.pick_held() {
                Some((task, token)) => self.fail(task, token),
                None => Ok(()),
            },
            74..78 => self.add_tasks(),
            78..81 => self.by_hand(),
            81..83 => self.cancel_flow(),
            83..86 => self.retry_flow(),
            86..91 => {
                let long = self.rng.chance(100);
                self.shards.now += self.rng.below(if long { 20_000 } else { 1_500 });
                self.expire(shard)
            }
            91..95 => self.expire(shard),
            _ => self.quiet(),
        }
    }

    fn send(&mut self, shard: usize, command: &Command<'_>) -> Result<Answer, Difference> {
        let (answer, events) = self.shards.send(shard, command);
        self.note(shard, &events).map_err(|what| format!("{command:?}: {what}"))?;
        Ok(answer)
    }

    /// A random node, more likely a later one.
    fn pick_node(&mut self) -> (usize, usize) {
        let flow = self.rng.below(self.flows.len() as u64) as usize;
        (flow, self.rng.below(self.flows[flow].nodes.len() as u64) as usize)
    }

    fn pick_held(&mut self) -> Option<(TaskId, ClaimToken)> {
        let count = self.held.len() as u64;
        (count > 0).then(|| self.held.remove(self.rng.below(count) as usize))
    }

    fn submit(&mut self) -> Result<(), Difference> {
        let count = self.rng.between(1, 7) as usize;
        let edges: Vec<Edges> =
            (0..count).map(|node| draw_edges(&mut self.rng, node, count)).collect();
        let home = self.rng.below(self.shards.len() as u64) as usize;
        let shards = self.shards.len() as u64;
        let names: Vec<&'static str> = (0..count)
            .map(|node| if self.rng.chance(990) { NAMES[node] } else { NAMES[0] })
            .collect();
        let node = |(number, edges): (usize, &Edges)| {
            let depends_on = edges.iter().map(|&(parent, on_failure)| {
                let name = parent.map_or("nobody", |parent| names[parent]);
                Dependency { name, on_failure }
            });
            let depends_on = depends_on.collect();
            flow_node(&mut self.rng, names[number], depends_on, shards, self.shards.now)
        };
        let nodes: Vec<FlowNode<'_>> = edges.iter().enumerate().map(node).collect();
        let retention_ms = self.rng.chance(500).then(|| self.rng.below(10_000));
        let batch_id = self.rng.chance(300).then(|| u128::from(self.rng.next()));
        let submit = match batch_id {
            Some(batch_id) if self.rng.chance(500) => {
                let parts = self.stage(home, batch_id, &nodes)?;
                Command::CommitFlow(CommitFlow { batch_id, parts, name: "flow", retention_ms })
            }
            _ => Command::SubmitFlow(SubmitFlow { batch_id, name: "flow", retention_ms, nodes }),
        };
        let answer = self.send(home, &submit)?;
        if !is_flow(&names, &edges) {
            return expect_code(Some("invalid_argument"), &answer);
        }
        let Ok(Outcome::FlowSubmitted { flow, tasks, duplicate: false }) = answer else {
            return Err(format!("{submit:?} was answered {answer:?}"));
        };
        expect(&count, &tasks.len())?;
        let nodes = (0..count).map(|number| {
            let parents = edges[number].iter().filter_map(|&(parent, on)| Some((parent?, on)));
            Node::new(names[number], tasks[number], parents.collect(), None)
        });
        self.flows.push(Flow {
            id: flow,
            nodes: nodes.collect(),
            retention_ms: retention_ms.unwrap_or(86_400_000),
            cancel_requested: false,
            ended_at: None,
            ended_by_cancel: false,
            forgotten_step: None,
        });
        if batch_id.is_some() {
            let again = self.send(home, &submit)?;
            expect(&Ok(Outcome::FlowSubmitted { flow, tasks, duplicate: true }), &again)?;
        }
        // Tasks that this entry made here are visible from now on.
        self.note(home, &[])
    }

    /// Stages the nodes of a flow in parts, some of them twice; returns the number of parts.
    fn stage(
        &mut self,
        home: usize,
        batch_id: u128,
        nodes: &[FlowNode<'_>],
    ) -> Result<u32, Difference> {
        let size = self.rng.between(1, 3) as usize;
        for (part, nodes) in (0..).zip(nodes.chunks(size)) {
            let stage = Command::StageFlow(StageFlow { batch_id, part, nodes: nodes.to_vec() });
            for _ in 0..self.rng.between(1, 2) {
                expect(&Ok(Outcome::Staged), &self.send(home, &stage)?)?;
            }
        }
        Ok(nodes.len().div_ceil(size) as u32)
    }

    pub(super) fn claim(&mut self, shard: usize, tasks_max: u32) -> Result<(), Difference> {
        let claim = Claim { tasks_max, lease_ms: 10_000, ..claim_of(QUEUE) };
        let (answer, events) = self.shards.send(shard, &Command::Claim(claim));
        let Ok(Outcome::Claimed(taken)) = answer else {
            return Err(format!("a claim was answered {answer:?}"));
        };
        for claimed in &taken {
            self.held.push((claimed.id, claimed.token));
            for flow in self.flows.iter().filter(|flow| flow.forgotten_step.is_none()) {
                let found = flow.nodes.iter().position(|node| node.task == claimed.id);
                let Some(number) = found else { continue };
                let member = claimed.flow.as_ref().map(|member| member.flow);
                expect(&Some(flow.id), &member)?;
                flow.check_claim(number, claimed)?;
            }
        }
        self.note(shard, &events)
    }

    pub(super) fn ack(&mut self, task: TaskId, token: ClaimToken) -> Result<(), Difference> {
        self.acks += 1;
        let result = format!("result {}", self.acks).into_bytes();
        let ack = Ack { task, token, result: Some(&result), follow_ups: vec![] };
        let (answer, events) = self.shards.send(task.home.0.into(), &Command::Ack(ack));
        if answer.is_ok() {
            let nodes = self.flows.iter_mut().flat_map(|flow| &mut flow.nodes);
            nodes
                .filter(|node| node.task == task)
                .for_each(|node| node.results.push(result.clone()));
        }
        self.note(task.home.0.into(), &events)
    }

    fn fail(&mut self, task: TaskId, token: ClaimToken) -> Result<(), Difference> {
        let error = TaskError { error_type: "E", message: "m", backtrace: "" };
        let fail = Fail { task, token, error, retry_at: None, retryable: !self.rng.chance(300) };
        self.send(task.home.0.into(), &Command::Fail(fail)).map(drop)
    }

    pub(super) fn expire(&mut self, shard: usize) -> Result<(), Difference> {
        self.send(shard, &Command::ExpireDue).map(drop)
    }

    /// Cancels or retries one task, purges its queue, or discards dead letters.
    fn by_hand(&mut self) -> Result<(), Difference> {
        let (flow, node) = self.pick_node();
        let task = self.flows[flow].nodes[node].task;
        let command = match self.rng.below(10) {
            0..4 => Command::Cancel(Cancel { task }),
            4..8 => Command::Retry(Retry { task, body: None }),
            8 => purge(QUEUE),
            _ => {
                let selection = Selection::Ids(vec![task]);
                Command::Dead(DeadCommand { action: DeadAction::Discard, selection })
            }
        };
        self.send(task.home.0.into(), &command).map(drop)
    }

    fn cancel_flow(&mut self) -> Result<(), Difference> {
        let (flow, _) = self.pick_node();
        let id = self.flows[flow].id;
        // Marked first, because the flow may end in the entry that cancels it.
        let before = self.flows[flow].clone();
        self.flows[flow].cancel_requested = true;
        let answer = self.send(id.home.0.into(), &Command::CancelFlow(CancelFlow { flow: id }))?;
        match answer {
            Ok(Outcome::FlowState(FlowState::Running)) => Ok(()),
            Ok(Outcome::FlowState(FlowState::Cancelled)) if before.ended_at.is_none() => Ok(()),
            _ => {
                // The flow had ended before, so that the command changed nothing.
                let flow = &mut self.flows[flow];
                flow.cancel_requested = before.cancel_requested;
                let ended_now = matches!(answer, Ok(Outcome::FlowState(_)));
                if ended_now || matches!(&answer, Err(no) if no.code() != "internal") {
                    return Ok(());
                }
                Err(format!("a cancel was answered {answer:?}"))
            }
        }
    }

    fn retry_flow(&mut self) -> Result<(), Difference> {
        let (number, _) = self.pick_node();
        let asked_in_peace = self.rng.chance(600);
        if asked_in_peace {
            self.quiet()?;
        }
        let flow = self.flows[number].clone();
        let id = flow.id;
        let answer = self.send(id.home.0.into(), &Command::RetryFlow(RetryFlow { flow: id }))?;
        if !asked_in_peace || flow.forgotten_step.is_some() {
            return Ok(());
        }
        let all = || 0..flow.nodes.len();
        let failed = all().any(|node| flow.is_settled(node) && !flow.is_well(node));
        if flow.cancel_requested || !failed {
            return expect_code(Some("conflict"), &answer);
        }
        self.quiet()?;
        let after = &self.flows[number];
        for node in all() {
            let Seen::Ended(state) = flow.nodes[node].seen else { continue };
            let minded = flow.is_culpable(node) || state == TaskStateName::Cancelled;
            let failed = state != TaskStateName::Succeeded;
            let possible =
                !after.nodes.iter().any(|node| node.gone) && !after.has_late_opinions(node);
            let runs = matches!(after.nodes[node].seen, Seen::Live | Seen::Blocked);
            if failed && minded && possible && !runs {
                let name = flow.nodes[node].name;
                return Err(format!("{name} was {state} and is not retried with its flow"));
            }
            let mut parents = after.nodes[node].parents.iter().map(|(parent, _)| *parent);
            let open = parents.find(|parent| !after.is_settled(*parent));
            if let (Seen::Live, Some(parent)) = (after.nodes[node].seen, open) {
                let (name, parent) = (flow.nodes[node].name, flow.nodes[parent].name);
                return Err(format!("{name} runs again with its flow before {parent} is done"));
            }
        }
        Ok(())
    }

    /// A running task adds tasks to its flow.
    fn add_tasks(&mut self) -> Result<(), Difference> {
        let (number, adder) = self.pick_node();
        let flow = &self.flows[number];
        let runs = flow.nodes[adder].seen == Seen::Live && flow.forgotten_step.is_none();
        if !runs || flow.nodes.len() > 9 {
            return Ok(());
        }
        let (id, parent) = (flow.id, flow.nodes[adder].name);
        let shards = self.shards.len() as u64;
        let first = self.rng.below(ADDED.len() as u64 - 1) as usize;
        let names = &ADDED[first..first + self.rng.between(1, 2) as usize];
        let known = |name: &str| flow.nodes.iter().position(|node| node.name == name);
        let mut edges: Vec<Vec<(usize, OnFailure)>> = Vec::new();
        let mut nodes = Vec::new();
        for (position, name) in names.iter().enumerate() {
            let mut depends_on = Vec::new();
            if position > 0 && self.rng.chance(400) {
                let (name, on_failure) = (names[0], draw_policy(&mut self.rng));
                depends_on.push(Dependency { name, on_failure });
            }
            if self.rng.chance(250) {
                let (other, on_failure) =
                    (self.rng.pick(&flow.nodes).name, draw_policy(&mut self.rng));
                if !depends_on.iter().any(|known| known.name == other) {
                    depends_on.push(Dependency { name: other, on_failure });
                }
            }
            edges.push(
                depends_on
                    .iter()
                    .map(|edge| {
                        let new = names.iter().position(|name| *name == edge.name);
                        let added = |position| flow.nodes.len() + position;
                        (known(edge.name).or(new.map(added)).unwrap_or(usize::MAX), edge.on_failure)
                    })
                    .collect(),
            );
            let mut node = flow_node(&mut self.rng, name, depends_on, shards, self.shards.now);
            node.on_failure = draw_policy(&mut self.rng);
            nodes.push(node);
        }
        let mine = |name: &&str| known(name).map(|node| flow.nodes[node].added_by.map(|by| by.0));
        let owners: Vec<Option<Option<usize>>> = names.iter().map(mine).collect();
        let policies: Vec<OnFailure> = nodes.iter().map(|node| node.on_failure).collect();
        let add = Command::AddFlowTasks(AddFlowTasks { flow: id, parent, nodes });
        let (answer, events) = self.shards.send(id.home.0.into(), &add);
        if owners.iter().all(|owner| *owner == Some(Some(adder))) && answer.is_err() {
            return Err(format!("what was added before was answered {answer:?}"));
        }
        if owners.iter().any(|owner| owner.is_some_and(|by| by != Some(adder))) && answer.is_ok() {
            return Err(format!("names of others were answered {answer:?}"));
        }
        if let Ok(Outcome::FlowTasksAdded(made)) = &answer {
            let flow = &mut self.flows[number];
            // Names that exist already shift the numbers of the new ones.
            let before = flow.nodes.len();
            let news: Vec<usize> = (0..names.len()).filter(|at| !made[*at].duplicate).collect();
            for &position in &news {
                let renumber = |(parent, on): &(usize, OnFailure)| match parent.checked_sub(before)
                {
                    Some(at) => {
                        let place = news.iter().position(|new| *new == at);
                        (before + place.expect("a new node"), *on)
                    }
                    None => (*parent, *on),
                };
                let parents = edges[position].iter().map(renumber).collect();
                let added_by = Some((adder, policies[position]));
                flow.nodes.push(Node::new(names[position], made[position].id, parents, added_by));
            }
            for (position, enqueued) in made.iter().enumerate().filter(|(_, made)| made.duplicate) {
                let node = flow.nodes.iter().find(|node| node.name == names[position]);
                let expected = node.map(|node| (node.task, node.added_by.map(|(by, _)| by)));
                expect(&expected, &Some((enqueued.id, Some(adder))))?;
            }
        }
        self.note(id.home.0.into(), &events)
    }
}

fn draw_policy(rng: &mut Rng) -> OnFailure {
    *rng.pick(&OnFailure::ALL)
}

/// The parents of a node: mostly earlier nodes, sometimes any node.
fn draw_edges(rng: &mut Rng, node: usize, count: usize) -> Edges {
    let mut edges: Edges = Vec::new();
    for parent in 0..count {
        let chance = if parent < node { 350 } else { 4 };
        if rng.chance(chance) {
            edges.push((Some(parent), draw_policy(rng)));
        }
    }
    if rng.chance(4) {
        edges.push((None, OnFailure::Fail));
    }
    edges
}

/// Whether these nodes are a flow: each name once, each parent known, no cycle.
fn is_flow(names: &[&str], edges: &[Edges]) -> bool {
    let unique = (0..names.len()).all(|node| !names[..node].contains(&names[node]));
    let known = edges.iter().flatten().all(|(parent, _)| parent.is_some());
    // The nodes that remain while nodes without remaining parents are removed.
    let mut left: Vec<usize> = (0..names.len()).collect();
    loop {
        let free = |node: &usize| {
            !edges[*node].iter().any(|(parent, _)| parent.is_some_and(|p| left.contains(&p)))
        };
        let rest: Vec<usize> = left.iter().copied().filter(|node| !free(node)).collect();
        if rest.len() == left.len() {
            return unique && known && left.is_empty();
        }
        left = rest;
    }
}

fn flow_node<'a>(
    rng: &mut Rng,
    name: &'a str,
    depends_on: Vec<Dependency<'a>>,
    shards: u64,
    now: u64,
) -> FlowNode<'a> {
    let task = NewTask {
        task_type: "work",
        run_at: if rng.chance(150) { When::After { ms: rng.below(2_000) } } else { When::Now },
        expires_at: rng.chance(60).then(|| Timestamp(now + rng.between(3_000, 20_000))),
        retry: Some(RetryPolicy {
            backoff: Backoff::Fixed { delay_ms: 0 },
            max_attempts: rng.between(1, 2) as u32,
            jitter_thousandths: 0,
        }),
        ..NewTask::default()
    };
    FlowNode {
        name,
        home: ShardId(rng.below(shards) as u16),
        enqueue: Enqueue { queue: QUEUE, task },
        depends_on,
        on_failure: OnFailure::Fail,
    }
}
