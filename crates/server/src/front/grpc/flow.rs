//! Flows in `taskyard.v1`, converted to and from the machine's types.

use super::wire;
use crate::{
    Broker, Error,
    broker::{FoundFlow, in_node},
};
use std::collections::{BTreeMap, HashMap};
use taskyard_machine::{
    Dependency, FlowMember, FlowNode, FlowView, NodeView, OnFailure, ParentResult, TaskId,
    TaskSketch,
};
use taskyard_proto::v1;

/// The nodes of a request, borrowed, checked and routed.
pub(super) fn nodes<'a>(
    broker: &Broker,
    nodes: &'a [v1::FlowNode],
) -> Result<Vec<FlowNode<'a>>, Error> {
    nodes.iter().map(|node| flow_node(broker, node)).collect()
}

fn flow_node<'a>(broker: &Broker, node: &'a v1::FlowNode) -> Result<FlowNode<'a>, Error> {
    let name = node.name.as_str();
    let Some(task) = &node.task else {
        return Err(in_node(name, Error::Invalid("it has no task".into())));
    };
    let enqueue = wire::enqueue(broker, task).map_err(|error| in_node(name, error))?;
    let dependency = |dependency: &'a v1::Dependency| {
        let on_failure = on_failure(dependency.on_failure)?;
        Ok(Dependency { name: &dependency.name, on_failure })
    };
    let depends_on: Result<_, Error> = node.depends_on.iter().map(dependency).collect();
    let depends_on = depends_on.map_err(|error| in_node(name, error))?;
    let on_failure = on_failure(node.on_failure).map_err(|error| in_node(name, error))?;
    broker.flow_node(name, enqueue, depends_on, on_failure)
}

fn on_failure(number: i32) -> Result<OnFailure, Error> {
    match v1::OnFailure::try_from(number) {
        Ok(v1::OnFailure::Fail) => Ok(OnFailure::Fail),
        Ok(v1::OnFailure::Ignore) => Ok(OnFailure::Ignore),
        Ok(v1::OnFailure::Run) => Ok(OnFailure::Run),
        Err(_) => Err(Error::Invalid(format!("on_failure {number} is not known"))),
    }
}

fn on_failure_reply(on_failure: OnFailure) -> i32 {
    match on_failure {
        OnFailure::Fail => v1::OnFailure::Fail.into(),
        OnFailure::Ignore => v1::OnFailure::Ignore.into(),
        OnFailure::Run => v1::OnFailure::Run.into(),
    }
}

/// Task ids by node.
pub(super) fn ids(tasks: BTreeMap<String, TaskId>) -> HashMap<String, String> {
    tasks.into_iter().map(|(name, id)| (name, id.to_string())).collect()
}

pub(super) fn found(found: FoundFlow) -> v1::Flow {
    let FoundFlow { flow, tasks } = found;
    let nodes = flow.nodes.iter().zip(&tasks);
    let nodes = nodes.map(|(node, task)| node_reply(&flow, node, task.as_ref())).collect();
    v1::Flow { nodes, ..summary(&flow) }
}

pub(super) fn summary(flow: &FlowView) -> v1::Flow {
    v1::Flow {
        id: flow.id.to_string(),
        name: flow.name.clone(),
        state: flow.state.as_str().to_owned(),
        cancel_requested: flow.cancel_requested,
        created_at: flow.created_at.0,
        ended_at: flow.ended_at.map(|at| at.0),
        nodes_total: flow.nodes_total,
        nodes_done: flow.nodes_done,
        nodes_failed: flow.nodes_failed,
        nodes: Vec::new(),
        results: flow.results.iter().cloned().collect(),
        results_omitted: flow.results_omitted,
    }
}

fn node_reply(flow: &FlowView, node: &NodeView, task: Option<&TaskSketch>) -> v1::FlowNodeView {
    let name_of = |number: u32| {
        let found = flow.nodes.get(number as usize);
        found.map(|node| node.name.clone()).unwrap_or_default()
    };
    let dependency = |&(number, on_failure): &(u32, OnFailure)| v1::Dependency {
        name: name_of(number),
        on_failure: on_failure_reply(on_failure),
    };
    v1::FlowNodeView {
        name: node.name.clone(),
        task_id: node.task.to_string(),
        state: task.map_or(node.state, |task| task.state).as_str().to_owned(),
        queue: task.map_or("", |task| task.queue.as_str()).to_owned(),
        r#type: task.map_or("", |task| &*task.task_type).to_owned(),
        depends_on: node.depends_on.iter().map(dependency).collect(),
        added_by: node.added_by.map(name_of).unwrap_or_default(),
        added_open: node.added_open,
        error: node.error.as_ref().map(|(kind, message)| error(kind, message)),
    }
}

fn error(error_type: &str, message: &str) -> v1::TaskError {
    v1::TaskError {
        r#type: error_type.to_owned(),
        message: message.to_owned(),
        backtrace: String::new(),
    }
}

pub(super) fn member(member: &FlowMember) -> v1::FlowMember {
    v1::FlowMember {
        id: member.flow.to_string(),
        node: member.node.to_string(),
        failed_parent: member.failed_parent.as_deref().unwrap_or_default().to_owned(),
    }
}

pub(super) fn parent(parent: ParentResult) -> v1::ParentResult {
    v1::ParentResult {
        name: parent.name.into(),
        task_id: parent.task.to_string(),
        state: parent.state.as_str().to_owned(),
        result: parent.result.map(Vec::from),
        omitted: parent.omitted,
        error: parent.error.map(|(kind, message)| error(&kind, &message)),
    }
}
