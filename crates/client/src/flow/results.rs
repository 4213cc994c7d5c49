//! The results of a flow: by the names of its nodes, and as the result type of a shape.

use super::{FlowId, Node};
use crate::{
    Error,
    inspect::{decode, result_bytes},
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::fmt;

/// Results of the nodes without dependents, in the order of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowResults {
    pub(crate) flow: FlowId,
    pub(crate) results: Vec<(String, Option<Bytes>)>,
}

impl FlowResults {
    /// The result of this node.
    pub fn of<Output: DeserializeOwned>(&self, node: &Node<Output>) -> Result<Output, Error> {
        self.get(node.name())
    }

    /// The result of the node with this name.
    pub fn get<T: DeserializeOwned>(&self, node: &str) -> Result<T, Error> {
        let found = self.results.iter().find(|(name, _)| name == node);
        let Some((name, result)) = found else {
            let names: Vec<&str> = self.names().collect();
            let (flow, names) = (&self.flow, names.join(", "));
            return Err(Error::Invalid(format!(
                "flow {flow} has no result of node {node}: other tasks depend on it, or it is no \
                 node; there are results of {names}"
            )));
        };
        self.decode(name, result.as_ref())
    }

    /// The names of the nodes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.results.iter().map(|(name, _)| name.as_str())
    }

    /// All results, in order.
    pub fn all<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        self.results.iter().map(|(name, result)| self.decode(name, result.as_ref())).collect()
    }

    pub(crate) fn only<T: DeserializeOwned>(&self) -> Result<T, Error> {
        match &*self.results {
            [(name, result)] => self.decode(name, result.as_ref()),
            // The broker rejects a chain without steps.
            other => Err(Error::Invalid(format!(
                "flow {} has {} results and not one",
                self.flow,
                other.len()
            ))),
        }
    }

    fn decode<T: DeserializeOwned>(&self, name: &str, result: Option<&Bytes>) -> Result<T, Error> {
        let bytes = result_bytes(result.map(|bytes| &**bytes));
        decode(bytes, || format!("the result of node {name} of flow {}", self.flow))
    }
}

/// How to read the result of a flow.
#[doc(hidden)]
pub struct Reading<Output> {
    /// The nodes with the result; `None` stands for all nodes without dependents.
    pub(crate) nodes: Option<Vec<String>>,
    pub(crate) read: fn(&FlowResults) -> Result<Output, Error>,
}

impl<Output> Reading<Output> {
    pub(crate) fn of(
        nodes: Vec<String>,
        read: fn(&FlowResults) -> Result<Output, Error>,
    ) -> Reading<Output> {
        Reading { nodes: Some(nodes), read }
    }
}

impl Reading<FlowResults> {
    pub(crate) fn of_all() -> Reading<FlowResults> {
        Reading { nodes: None, read: |results| Ok(results.clone()) }
    }
}

impl<Output> fmt::Debug for Reading<Output> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reading").field(&self.nodes).finish()
    }
}
