//! Details of a flow: its state, and each of its nodes.

use super::OnFailure;
use crate::{
    TaskError, TaskId, TaskState, Timestamp,
    inspect::{as_json, base64},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use std::{collections::BTreeMap, convert::Infallible, fmt, str::FromStr};
use taskyard_proto::v1;

/// The id of a flow. Opaque: compare it, store it, pass it back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlowId(String);

impl FlowId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl From<String> for FlowId {
    fn from(id: String) -> FlowId {
        FlowId(id)
    }
}

impl From<&str> for FlowId {
    fn from(id: &str) -> FlowId {
        FlowId(id.to_owned())
    }
}

impl From<&FlowId> for FlowId {
    fn from(id: &FlowId) -> FlowId {
        id.clone()
    }
}

impl From<FlowId> for String {
    fn from(id: FlowId) -> String {
        id.0
    }
}

impl FromStr for FlowId {
    type Err = Infallible;

    fn from_str(id: &str) -> Result<FlowId, Infallible> {
        Ok(FlowId::from(id))
    }
}

/// The state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FlowState {
    /// Some of its tasks have not ended.
    Running,
    /// All tasks ended, and no failure counts.
    Succeeded,
    /// All tasks ended, and a failure counts.
    Failed,
    /// The flow was cancelled before it ended.
    Cancelled,
    /// A state that this version of the crate does not know.
    Unknown,
}

impl FlowState {
    const NAMES: [(&'static str, FlowState); 4] = [
        ("running", FlowState::Running),
        ("succeeded", FlowState::Succeeded),
        ("failed", FlowState::Failed),
        ("cancelled", FlowState::Cancelled),
    ];

    /// The name of the state, the same on every front.
    pub fn as_str(self) -> &'static str {
        let known = FlowState::NAMES.iter().find(|(_, state)| *state == self);
        known.map_or("unknown", |(name, _)| name)
    }

    /// Whether the flow has ended; only a retry runs it again.
    pub fn is_finished(self) -> bool {
        match self {
            FlowState::Succeeded | FlowState::Failed | FlowState::Cancelled => true,
            FlowState::Running | FlowState::Unknown => false,
        }
    }

    pub(crate) fn from_wire(name: &str) -> FlowState {
        name.parse().unwrap_or(FlowState::Unknown)
    }
}

impl fmt::Display for FlowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for FlowState {
    type Err = crate::Error;

    fn from_str(name: &str) -> Result<FlowState, crate::Error> {
        let known = FlowState::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, state)| *state).ok_or_else(|| {
            let names: Vec<&str> = FlowState::NAMES.iter().map(|(name, _)| *name).collect();
            crate::Error::Invalid(format!("no state {name}; there are {}", names.join(", ")))
        })
    }
}

/// The details of a flow. Serialized as on the HTTP front.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FlowDetails {
    /// The flow's id.
    pub id: FlowId,
    /// The flow's name; may be empty.
    pub name: String,
    /// The flow's state.
    pub state: FlowState,
    /// Whether the flow is being cancelled and its running tasks are asked to stop.
    pub cancel_requested: bool,
    /// When the flow was submitted.
    pub created_at: Timestamp,
    /// When the flow ended.
    pub ended_at: Option<Timestamp>,
    /// The number of nodes.
    pub nodes_total: u32,
    /// The number of nodes that are done, with all tasks that they added.
    pub nodes_done: u32,
    /// The number of these nodes that did not succeed.
    pub nodes_failed: u32,
    /// The nodes, in the order in which they were given; empty in lists.
    pub nodes: Vec<NodeDetails>,
    /// The results of the nodes without dependents, by name, once the flow has ended; empty in
    /// lists.
    pub results: BTreeMap<String, Bytes>,
    /// Whether some results are too large to be shown here; their own tasks have them.
    pub results_omitted: bool,
}

/// One node of a flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NodeDetails {
    /// The node's name.
    pub name: String,
    /// The node's task.
    pub task_id: TaskId,
    /// The state of the node's task.
    pub state: TaskState,
    /// The queue of the task; empty if the task is no longer kept.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub queue: String,
    /// The type of the task.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The nodes that the node waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Dependency>,
    /// The node whose task added it while it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added_by: Option<String>,
    /// The number of unfinished tasks that its own task added; the node is done after them.
    #[serde(skip_serializing_if = "is_zero")]
    pub added_open: u32,
    /// The error of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TaskError>,
}

/// Another node that a node waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Dependency {
    /// The name of the other node.
    pub name: String,
    /// What a failure of the other node means.
    pub on_failure: OnFailure,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A task's place in a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FlowMember {
    /// The flow.
    #[serde(rename = "id")]
    pub flow: FlowId,
    /// The name of the task's node.
    pub node: String,
    /// The parent whose failure ended the task before it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_parent: Option<String>,
}

impl From<v1::FlowMember> for FlowMember {
    fn from(wire: v1::FlowMember) -> FlowMember {
        FlowMember {
            flow: wire.id.into(),
            node: wire.node,
            failed_parent: Some(wire.failed_parent).filter(|name| !name.is_empty()),
        }
    }
}

impl FlowDetails {
    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&NodeDetails> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

impl Serialize for FlowDetails {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        if !self.name.is_empty() {
            map.serialize_entry("name", &self.name)?;
        }
        map.serialize_entry("state", &self.state)?;
        map.serialize_entry("cancel_requested", &self.cancel_requested)?;
        map.serialize_entry("created_at", &self.created_at)?;
        if let Some(ended_at) = &self.ended_at {
            map.serialize_entry("ended_at", ended_at)?;
        }
        map.serialize_entry("nodes_total", &self.nodes_total)?;
        map.serialize_entry("nodes_done", &self.nodes_done)?;
        map.serialize_entry("nodes_failed", &self.nodes_failed)?;
        if !self.nodes.is_empty() {
            map.serialize_entry("nodes", &self.nodes)?;
        }
        let (json, other): (BTreeMap<_, _>, BTreeMap<_, _>) =
            self.results.iter().partition(|(_, bytes)| as_json(bytes).is_some());
        if !json.is_empty() {
            let json = json.into_iter().map(|(name, bytes)| (name, as_json(bytes)));
            map.serialize_entry("results", &json.collect::<BTreeMap<_, _>>())?;
        }
        if !other.is_empty() {
            let other = other.into_iter().map(|(name, bytes)| (name, base64(bytes)));
            map.serialize_entry("results_base64", &other.collect::<BTreeMap<_, _>>())?;
        }
        if self.results_omitted {
            map.serialize_entry("results_omitted", &true)?;
        }
        map.end()
    }
}

impl From<v1::Flow> for FlowDetails {
    fn from(wire: v1::Flow) -> FlowDetails {
        FlowDetails {
            id: wire.id.into(),
            name: wire.name,
            state: FlowState::from_wire(&wire.state),
            cancel_requested: wire.cancel_requested,
            created_at: Timestamp::from_millis(wire.created_at),
            ended_at: wire.ended_at.map(Timestamp::from_millis),
            nodes_total: wire.nodes_total,
            nodes_done: wire.nodes_done,
            nodes_failed: wire.nodes_failed,
            nodes: wire.nodes.into_iter().map(NodeDetails::from).collect(),
            results: wire.results.into_iter().map(|(name, bytes)| (name, bytes.into())).collect(),
            results_omitted: wire.results_omitted,
        }
    }
}

impl From<v1::FlowNodeView> for NodeDetails {
    fn from(wire: v1::FlowNodeView) -> NodeDetails {
        let dependency = |wire: v1::Dependency| Dependency {
            on_failure: OnFailure::from_wire(wire.on_failure()),
            name: wire.name,
        };
        NodeDetails {
            name: wire.name,
            task_id: wire.task_id.into(),
            state: TaskState::from_wire(&wire.state),
            queue: wire.queue,
            kind: wire.r#type,
            depends_on: wire.depends_on.into_iter().map(dependency).collect(),
            added_by: Some(wire.added_by).filter(|name| !name.is_empty()),
            added_open: wire.added_open,
            error: wire.error.map(TaskError::from).filter(|error| *error != TaskError::default()),
        }
    }
}

impl OnFailure {
    pub(crate) fn from_wire(wire: v1::OnFailure) -> OnFailure {
        match wire {
            v1::OnFailure::Fail => OnFailure::Fail,
            v1::OnFailure::Ignore => OnFailure::Ignore,
            v1::OnFailure::Run => OnFailure::Run,
        }
    }

    pub(crate) fn into_wire(self) -> i32 {
        let wire = match self {
            OnFailure::Fail => v1::OnFailure::Fail,
            OnFailure::Ignore => v1::OnFailure::Ignore,
            OnFailure::Run => v1::OnFailure::Run,
        };
        wire.into()
    }
}
