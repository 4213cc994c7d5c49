//! Lists of flows: filters and pages.

use super::{FlowDetails, FlowState};
use crate::{Client, Error, connection::Repeat};
use std::collections::VecDeque;
use taskyard_proto::v1;

impl Client {
    /// Lists flows without their nodes, all or those that match the filters, page by page.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// use taskyard::flow::FlowState;
    ///
    /// let mut failed = client.flows().state(FlowState::Failed);
    /// while let Some(flow) = failed.next().await? {
    ///     println!("{} {}: {} nodes failed", flow.id, flow.name, flow.nodes_failed);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn flows(&self) -> Flows {
        let request = v1::ListFlowsRequest::default();
        Flows { client: self.clone(), request, ended: false, fetched: VecDeque::new() }
    }
}

/// A list of flows, fetched page by page as it is read. Made by [`Client::flows`].
#[derive(Debug)]
#[must_use = "a list is not fetched until it is read"]
pub struct Flows {
    client: Client,
    /// The request for the next page; its cursor moves.
    request: v1::ListFlowsRequest,
    ended: bool,
    fetched: VecDeque<FlowDetails>,
}

impl Flows {
    /// Only flows with this name.
    pub fn name(mut self, name: impl Into<String>) -> Flows {
        self.request.name = name.into();
        self
    }

    /// Only flows in this state.
    pub fn state(mut self, state: FlowState) -> Flows {
        self.request.state = state.to_string();
        self
    }

    /// Sets the number of flows per page; by default the broker decides.
    pub fn page_size(mut self, flows: u32) -> Flows {
        self.request.limit = flows;
        self
    }

    /// Continues at the [`cursor`](Flows::cursor) of an earlier list.
    pub fn after(mut self, cursor: impl Into<String>) -> Flows {
        self.request.cursor = cursor.into();
        self
    }

    /// The next flow; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<FlowDetails>, Error> {
        loop {
            if let Some(flow) = self.fetched.pop_front() {
                return Ok(Some(flow));
            }
            match self.page().await? {
                Some(page) => self.fetched.extend(page),
                None => return Ok(None),
            }
        }
    }

    /// The next page, which may be short or even empty; `None` at the end.
    pub async fn page(&mut self) -> Result<Option<Vec<FlowDetails>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let reply = self
            .client
            .call(self.request.clone(), Repeat::Read, |mut wire, request| async move {
                wire.list_flows(request).await
            })
            .await?;
        self.ended = reply.cursor.is_empty();
        self.request.cursor = reply.cursor;
        Ok(Some(reply.flows.into_iter().map(FlowDetails::from).collect()))
    }

    /// Where the next page starts; `None` at the end.
    pub fn cursor(&self) -> Option<&str> {
        (!self.ended).then_some(self.request.cursor.as_str())
    }
}
