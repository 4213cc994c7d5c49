//! Schedules: tasks that the broker enqueues by itself, by cron or at an interval.
//!
//! A schedule has a name, a rhythm and a task. The broker decides each occurrence once, whatever
//! crashes, and no process of yours has to be up for it. Setting the same rules again changes
//! nothing, so that a program may set its schedules each time it starts.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use std::time::Duration;
//! use taskyard::{Fail, Task, TaskContext, testing::TestBroker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Report {
//!     full: bool,
//! }
//!
//! impl Task for Report {
//!     const NAME: &'static str = "report";
//!     type Output = String;
//! }
//!
//! async fn report(_: Report, context: TaskContext) -> Result<String, Fail> {
//!     let at = context.occurrence_at().ok_or("not a run of a schedule")?;
//!     Ok(format!("the report of {at}"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), taskyard::Error> {
//! let broker = TestBroker::start().await?;
//! let _worker = broker.run(broker.worker().task(report))?;
//!
//! let nightly = broker.client().schedule("nightly");
//! nightly.cron("0 3 * * *", Report { full: true }).timezone("Europe/Berlin").await?;
//!
//! // The clock of a test stands still until it is moved.
//! broker.advance(Duration::from_secs(24 * 60 * 60)).await?;
//! broker.settle().await?;
//! assert_eq!(nightly.details().await?.fired_total, 1);
//! # Ok(()) }
//! ```

mod details;
mod list;
mod set;

pub use details::{ScheduleDetails, ScheduleTask};
pub use list::Schedules;
pub use set::{CatchUp, Overlap, ScheduleSet, SetSchedule};

use crate::{Client, Enqueued, Error, NewTask, Timestamp, connection::Repeat, timestamp::millis};
use std::time::Duration;
use taskyard_proto::v1;

/// The headers of a schedule's tasks: its name, and the occurrence.
pub(crate) const SCHEDULE_HEADER: &str = "taskyard-schedule";
pub(crate) const OCCURRENCE_HEADER: &str = "taskyard-occurrence-at";

impl Client {
    /// One schedule, to set, to look at or to change. Nothing is asked until one of its methods is.
    ///
    /// ```no_run
    /// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
    /// use std::time::Duration;
    /// use taskyard::NewTask;
    ///
    /// let ping = NewTask::new("ping", &"example.com").queue("probes");
    /// let set = client.schedule("ping").every(Duration::from_secs(30), ping).await?;
    /// println!("first at {:?}", set.details().next_run_at);
    ///
    /// client.schedule("ping").pause("the site moves").await?;
    /// # Ok(()) }
    /// ```
    pub fn schedule(&self, name: impl Into<String>) -> Schedule {
        Schedule { client: self.clone(), name: name.into() }
    }
}

/// One schedule, to set, to look at or to change. Made by [`Client::schedule`].
#[derive(Clone, Debug)]
pub struct Schedule {
    client: Client,
    name: String,
}

impl Schedule {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes it, or gives it new rules: at the times that a cron expression names. Say more, then
    /// await it.
    ///
    /// The expression has five fields (minute, hour, day, month, weekday) or six (second first), or is
    /// a macro such as `@daily`. The task is a declared one or a [`NewTask`]; without a moment of its
    /// own, an expiry, a `request_id` or a unique key.
    pub fn cron(&self, cron: impl Into<String>, task: impl Into<NewTask>) -> SetSchedule {
        let rules = v1::Schedule { cron: cron.into(), ..self.rules() };
        SetSchedule::new(self.client.clone(), rules, task.into())
    }

    /// Makes it, or gives it new rules: once per interval of at least a second, counted from
    /// `start_at` or else from 1970, so that all of a minute fall on full minutes. Say more, then await
    /// it.
    pub fn every(&self, interval: Duration, task: impl Into<NewTask>) -> SetSchedule {
        let rules = v1::Schedule { every_ms: Some(millis(interval)), ..self.rules() };
        SetSchedule::new(self.client.clone(), rules, task.into())
    }

    /// Its rules, what comes next, and what it did so far.
    pub async fn details(&self) -> Result<ScheduleDetails, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::Read, |mut wire, request| async move {
                wire.get_schedule(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Lets occurrences pass without firing, until it is resumed. The note is for people: why.
    pub async fn pause(&self, note: impl Into<String>) -> Result<ScheduleDetails, Error> {
        let request = v1::PauseScheduleRequest { name: self.name.clone(), note: note.into() };
        let reply = self
            .client
            .call(request, Repeat::Always, |mut wire, request| async move {
                wire.pause_schedule(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Fires again, from the next occurrence on. What passed meanwhile stays undone; see
    /// [`backfill`](Schedule::backfill).
    pub async fn resume(&self) -> Result<ScheduleDetails, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::Always, |mut wire, request| async move {
                wire.resume_schedule(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Starts a run now, whatever the others do, paused or not.
    pub async fn trigger(&self) -> Result<Enqueued, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::IfNotTaken, |mut wire, request| async move {
                wire.trigger_schedule(request).await
            })
            .await?;
        Ok(Enqueued::new(self.client.clone(), reply))
    }

    /// Runs every occurrence of a past range now, both ends included and up to 10,000; returns how many
    /// there were. A range that is backfilled twice runs twice; an error half-way says how many of its
    /// first occurrences were enqueued.
    pub async fn backfill(
        &self,
        from: impl Into<Timestamp>,
        to: impl Into<Timestamp>,
    ) -> Result<u64, Error> {
        let request = v1::BackfillScheduleRequest {
            name: self.name.clone(),
            from: from.into().as_millis(),
            to: to.into().as_millis(),
        };
        let reply = self
            .client
            .call(request, Repeat::IfNotTaken, |mut wire, request| async move {
                wire.backfill_schedule(request).await
            })
            .await?;
        Ok(reply.enqueued)
    }

    /// Forgets it. The tasks that it fired are left alone.
    pub async fn remove(&self) -> Result<(), Error> {
        // Again it would find nothing, and say so.
        self.client
            .call(self.request(), Repeat::IfNotTaken, |mut wire, request| async move {
                wire.remove_schedule(request).await
            })
            .await?;
        Ok(())
    }

    fn request(&self) -> v1::ScheduleRequest {
        v1::ScheduleRequest { name: self.name.clone() }
    }

    fn rules(&self) -> v1::Schedule {
        v1::Schedule { name: self.name.clone(), ..v1::Schedule::default() }
    }
}
