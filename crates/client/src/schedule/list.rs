//! Lists of schedules, page by page.

use super::ScheduleDetails;
use crate::{Client, Error, connection::Repeat};
use std::collections::VecDeque;
use taskyard_proto::v1;

impl Client {
    /// Lists all schedules by name, page by page.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// let mut schedules = client.schedules();
    /// while let Some(schedule) = schedules.next().await? {
    ///     println!("{}: next {:?}", schedule.name, schedule.next_run_at);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn schedules(&self) -> Schedules {
        let request = v1::ListSchedulesRequest::default();
        Schedules { client: self.clone(), request, ended: false, fetched: VecDeque::new() }
    }
}

/// A list of schedules, fetched page by page as it is read. Made by [`Client::schedules`].
#[derive(Debug)]
#[must_use = "a list is not fetched until it is read"]
pub struct Schedules {
    client: Client,
    /// The request for the next page; its cursor moves.
    request: v1::ListSchedulesRequest,
    ended: bool,
    fetched: VecDeque<ScheduleDetails>,
}

impl Schedules {
    /// Sets the number of schedules per page; by default the broker decides.
    pub fn page_size(mut self, schedules: u32) -> Schedules {
        self.request.limit = schedules;
        self
    }

    /// Continues at the [`cursor`](Schedules::cursor) of an earlier list.
    pub fn after(mut self, cursor: impl Into<String>) -> Schedules {
        self.request.cursor = cursor.into();
        self
    }

    /// The next schedule; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<ScheduleDetails>, Error> {
        loop {
            if let Some(schedule) = self.fetched.pop_front() {
                return Ok(Some(schedule));
            }
            match self.page().await? {
                Some(page) => self.fetched.extend(page),
                None => return Ok(None),
            }
        }
    }

    /// The next page; `None` at the end.
    pub async fn page(&mut self) -> Result<Option<Vec<ScheduleDetails>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let reply = self
            .client
            .call(self.request.clone(), Repeat::Read, |mut wire, request| async move {
                wire.list_schedules(request).await
            })
            .await?;
        self.ended = reply.cursor.is_empty();
        self.request.cursor = reply.cursor;
        Ok(Some(reply.schedules.into_iter().map(ScheduleDetails::from).collect()))
    }

    /// Where the next page starts; `None` at the end.
    pub fn cursor(&self) -> Option<&str> {
        (!self.ended).then_some(self.request.cursor.as_str())
    }
}
