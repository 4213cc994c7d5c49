//! JSON about flows: requests and answers.

use super::{
    Moment, Ms, NewTask, TaskError,
    bytes::{Shown, shown},
    lists::tasks,
};
use crate::{
    Broker, Error,
    broker::{FoundFlow, QUEUE_DEFAULT, SubmittedFlow, in_node},
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, fmt};
use taskyard_machine::{
    Dependency as MachineDependency, Enqueue, FlowMember as MachineMember, FlowNode, FlowView,
    NodeView, OnFailure as MachineOnFailure, ParentResult, TaskId, TaskSketch,
};
use utoipa::{IntoParams, ToSchema};

/// What the failure of a node means for a node that depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::front) enum OnFailure {
    /// The dependent fails too, without running.
    #[default]
    Fail,
    /// The dependent runs and gets the error. The flow does not fail because of this node if all
    /// its dependents ignore it.
    Ignore,
    /// The dependent runs and gets the error; the flow fails in the end.
    Run,
}

impl From<OnFailure> for MachineOnFailure {
    fn from(on_failure: OnFailure) -> MachineOnFailure {
        match on_failure {
            OnFailure::Fail => MachineOnFailure::Fail,
            OnFailure::Ignore => MachineOnFailure::Ignore,
            OnFailure::Run => MachineOnFailure::Run,
        }
    }
}

impl From<MachineOnFailure> for OnFailure {
    fn from(on_failure: MachineOnFailure) -> OnFailure {
        match on_failure {
            MachineOnFailure::Fail => OnFailure::Fail,
            MachineOnFailure::Ignore => OnFailure::Ignore,
            MachineOnFailure::Run => OnFailure::Run,
        }
    }
}

/// A node that another node depends on.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "its variants are what the document shows; see Deserialize below")]
pub(in crate::front) enum Dependency {
    /// Its name; if the node fails, so does the dependent.
    Name(String),
    /// Its name, and what its failure means.
    WithPolicy(NamedDependency),
}

/// A node that another node depends on, and what its failure means.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct NamedDependency {
    /// Its name.
    name: String,
    /// Default `fail`.
    #[serde(default)]
    on_failure: OnFailure,
}

impl<'de> Deserialize<'de> for Dependency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dependency, D::Error> {
        struct DependencyVisitor;
        impl<'de> Visitor<'de> for DependencyVisitor {
            type Value = Dependency;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a node's name, or {\"name\", \"on_failure\"}")
            }

            fn visit_str<E>(self, name: &str) -> Result<Dependency, E> {
                Ok(Dependency::Name(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Dependency, A::Error> {
                NamedDependency::deserialize(MapAccessDeserializer::new(map))
                    .map(Dependency::WithPolicy)
            }
        }
        deserializer.deserialize_any(DependencyVisitor)
    }
}

impl Dependency {
    fn machine(&self) -> MachineDependency<'_> {
        match self {
            Dependency::Name(name) => {
                MachineDependency { name, on_failure: MachineOnFailure::Fail }
            }
            Dependency::WithPolicy(NamedDependency { name, on_failure }) => {
                MachineDependency { name, on_failure: (*on_failure).into() }
            }
        }
    }
}

/// A flow to submit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct NewFlow<'a> {
    /// For people.
    #[serde(default)]
    pub(in crate::front) name: String,
    /// Its tasks, each with a `name`.
    #[serde(borrow, deserialize_with = "tasks")]
    pub(in crate::front) nodes: Vec<NewTask<'a>>,
    /// How long the flow and its tasks are kept after its end. Default 24 h.
    pub(in crate::front) retention_ms: Option<Ms>,
}

/// Tasks that a running task adds to its flow.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::front) struct AddedTasks<'a> {
    /// The node whose task adds them. It is done once it and all added tasks are.
    pub(in crate::front) parent: String,
    /// The token of the task's claim.
    pub(in crate::front) claim_token: u64,
    /// The tasks, each with a `name`. A name that the same node added before is the same task.
    #[serde(borrow, deserialize_with = "tasks")]
    pub(in crate::front) nodes: Vec<NewTask<'a>>,
}

/// Decodes base64 in nodes; call this before `flow_nodes`.
pub(in crate::front) fn decode_nodes(nodes: &mut [NewTask<'_>]) -> Result<(), Error> {
    for (index, node) in nodes.iter_mut().enumerate() {
        let decoded = node.decode_node();
        let name = node.name.as_deref();
        let name = name.ok_or_else(|| Error::Invalid(format!("nodes[{index}] has no name")))?;
        decoded.map_err(|error| in_node(name, error))?;
    }
    Ok(())
}

/// The nodes, borrowed, checked and routed.
pub(in crate::front) fn flow_nodes<'a>(
    broker: &Broker,
    nodes: &'a [NewTask<'_>],
) -> Result<Vec<FlowNode<'a>>, Error> {
    let node = |new: &'a NewTask<'_>| {
        let name = new.name.as_deref().unwrap_or_default();
        let task = new.task(broker).map_err(|error| in_node(name, error))?;
        let queue = new.queue.as_deref().unwrap_or(QUEUE_DEFAULT);
        let depends_on = new.depends_on.iter().flatten().map(Dependency::machine).collect();
        let on_failure = new.on_failure.unwrap_or_default().into();
        broker.flow_node(name, Enqueue { queue, task }, depends_on, on_failure)
    };
    nodes.iter().map(node).collect()
}

/// A flow that was accepted.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct FlowSubmitted {
    id: String,
    /// Task ids by node.
    tasks: BTreeMap<String, String>,
}

impl From<SubmittedFlow> for FlowSubmitted {
    fn from(flow: SubmittedFlow) -> FlowSubmitted {
        FlowSubmitted { id: flow.id.to_string(), tasks: ids(flow.tasks) }
    }
}

/// Tasks that were added to a flow.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct FlowTasksAdded {
    /// Task ids by node.
    tasks: BTreeMap<String, String>,
}

impl From<BTreeMap<String, TaskId>> for FlowTasksAdded {
    fn from(tasks: BTreeMap<String, TaskId>) -> FlowTasksAdded {
        FlowTasksAdded { tasks: ids(tasks) }
    }
}

fn ids(tasks: BTreeMap<String, TaskId>) -> BTreeMap<String, String> {
    tasks.into_iter().map(|(name, id)| (name, id.to_string())).collect()
}

/// One flow.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct Flow<'a> {
    id: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    /// `running`, `succeeded`, `failed` or `cancelled`.
    state: &'static str,
    /// Whether the flow was cancelled, or is being cancelled while its running tasks are asked to
    /// stop.
    cancel_requested: bool,
    created_at: Moment,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Moment>,
    nodes_total: u32,
    /// The nodes that are done, with all tasks that they added.
    nodes_done: u32,
    /// The nodes among them that did not succeed.
    nodes_failed: u32,
    /// In the order of the submitted flow. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<FlowNodeShown<'a>>>,
    /// After its end: JSON results of the nodes on which no node depends.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    results: BTreeMap<&'a str, &'a RawValue>,
    /// Results of those nodes that are not JSON.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    results_base64: BTreeMap<&'a str, String>,
    /// Whether some results are too large for this answer; get them from their tasks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    results_omitted: bool,
}

impl<'a> Flow<'a> {
    /// A flow in a list.
    pub(in crate::front) fn summary(flow: &'a FlowView) -> Flow<'a> {
        let mut results = BTreeMap::new();
        let mut results_base64 = BTreeMap::new();
        for (name, result) in &flow.results {
            match shown(result) {
                Shown { json: Some(json), .. } => drop(results.insert(name.as_str(), json)),
                Shown { base64, .. } => {
                    results_base64.insert(name.as_str(), base64.unwrap_or_default());
                }
            }
        }
        Flow {
            id: flow.id.to_string(),
            name: &flow.name,
            state: flow.state.as_str(),
            cancel_requested: flow.cancel_requested,
            created_at: flow.created_at.into(),
            ended_at: flow.ended_at.map(Moment),
            nodes_total: flow.nodes_total,
            nodes_done: flow.nodes_done,
            nodes_failed: flow.nodes_failed,
            nodes: None,
            results,
            results_base64,
            results_omitted: flow.results_omitted,
        }
    }

    /// A flow with its nodes.
    pub(in crate::front) fn new(found: &'a FoundFlow) -> Flow<'a> {
        let flow = &found.flow;
        let nodes = flow.nodes.iter().zip(&found.tasks);
        let nodes = nodes.map(|(node, task)| FlowNodeShown::new(flow, node, task.as_ref()));
        Flow { nodes: Some(nodes.collect()), ..Flow::summary(flow) }
    }
}

/// One node of a flow.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct FlowNodeShown<'a> {
    name: &'a str,
    task_id: String,
    /// The state of its task; `cancelled` if the task was purged.
    state: &'static str,
    /// Absent if its task is no longer kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    task_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    depends_on: Vec<NamedDependency>,
    /// The node whose task added it.
    #[serde(skip_serializing_if = "Option::is_none")]
    added_by: Option<&'a str>,
    /// The number of tasks that it added and that are not done. The node is done with the last of
    /// them.
    #[serde(skip_serializing_if = "is_zero")]
    added_open: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<TaskError<'a>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl<'a> FlowNodeShown<'a> {
    fn new(flow: &'a FlowView, node: &'a NodeView, task: Option<&'a TaskSketch>) -> Self {
        let name_of = |number: u32| flow.nodes.get(number as usize).map(|node| node.name.as_str());
        let dependency = |&(number, on_failure): &(u32, MachineOnFailure)| NamedDependency {
            name: name_of(number).unwrap_or_default().to_owned(),
            on_failure: on_failure.into(),
        };
        FlowNodeShown {
            name: &node.name,
            task_id: node.task.to_string(),
            state: task.map_or(node.state, |task| task.state).as_str(),
            queue: task.map(|task| task.queue.as_str()),
            task_type: task.map(|task| &*task.task_type),
            depends_on: node.depends_on.iter().map(dependency).collect(),
            added_by: node.added_by.and_then(name_of),
            added_open: node.added_open,
            error: node.error.as_ref().map(|(error_type, message)| TaskError {
                error_type: error_type.into(),
                message: message.into(),
                backtrace: "".into(),
            }),
        }
    }
}

/// A page of flows.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct FlowList<'a> {
    /// In id order, without their nodes.
    pub(in crate::front) flows: Vec<Flow<'a>>,
    /// Where to continue; absent at the end. A page may be short, even empty, and still have a
    /// cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::front) cursor: Option<&'a str>,
}

/// The page of flows that is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::front) struct FlowsQuery {
    /// The name of the flows.
    pub(in crate::front) name: Option<String>,
    /// The state of the flows.
    pub(in crate::front) state: Option<String>,
    /// The cursor of the previous page.
    pub(in crate::front) cursor: Option<String>,
    /// The most flows on the page, up to 1000. Default 50.
    pub(in crate::front) limit: Option<u32>,
}

/// A task's place in a flow.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct FlowMember<'a> {
    /// The flow.
    id: String,
    /// The name of the task's node.
    node: &'a str,
    /// The parent whose failure ended the task before it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_parent: Option<&'a str>,
}

impl<'a> FlowMember<'a> {
    pub(in crate::front) fn new(member: &'a MachineMember) -> FlowMember<'a> {
        FlowMember {
            id: member.flow.to_string(),
            node: &member.node,
            failed_parent: member.failed_parent.as_deref(),
        }
    }
}

/// What a task gets about a parent that did not succeed.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::front) struct ParentError<'a> {
    /// `failed`, `dead`, `cancelled` or `expired`.
    state: &'static str,
    #[serde(rename = "type", skip_serializing_if = "str::is_empty")]
    error_type: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
}

/// What a task gets about its parents, as claims carry it.
#[derive(Debug, Default)]
pub(in crate::front) struct Parents<'a> {
    pub(in crate::front) json: BTreeMap<&'a str, &'a RawValue>,
    pub(in crate::front) base64: BTreeMap<&'a str, String>,
    pub(in crate::front) omitted: BTreeMap<&'a str, String>,
    pub(in crate::front) errors: BTreeMap<&'a str, ParentError<'a>>,
}

impl<'a> Parents<'a> {
    pub(in crate::front) fn new(parents: &'a [ParentResult]) -> Parents<'a> {
        let mut results = Parents::default();
        for parent in parents {
            let name = &*parent.name;
            if parent.state != taskyard_machine::TaskStateName::Succeeded {
                let (error_type, message) =
                    parent.error.as_ref().map_or(("", ""), |(kind, text)| (&**kind, &**text));
                let state = parent.state.as_str();
                results.errors.insert(name, ParentError { state, error_type, message });
                continue;
            }
            if parent.omitted {
                results.omitted.insert(name, parent.task.to_string());
                continue;
            }
            // A parent without a result is `null`, because its success is information.
            match shown(parent.result.as_deref().unwrap_or(b"null")) {
                Shown { json: Some(json), .. } => drop(results.json.insert(name, json)),
                Shown { base64, .. } => {
                    results.base64.insert(name, base64.unwrap_or_default());
                }
            }
        }
        results
    }
}
