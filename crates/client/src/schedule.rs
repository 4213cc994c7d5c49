//! Schedules: tasks that the broker enqueues by itself, by cron or at an interval.
//!
//! A schedule has a name, a rhythm and a task. The broker decides each occurrence once, even after
//! a crash, and no process of yours has to run for it. Setting equal rules again changes nothing,
//! so that a program may set its schedules each time it starts.
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

/// The headers of a schedule's tasks: the schedule's name, and the occurrence.
pub(crate) const SCHEDULE_HEADER: &str = "taskyard-schedule";
pub(crate) const OCCURRENCE_HEADER: &str = "taskyard-occurrence-at";

impl Client {
    /// One schedule, to set, read or change it. The handle makes no call by itself.
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

/// One schedule, to set, read or change it. Made by [`Client::schedule`].
#[derive(Clone, Debug)]
pub struct Schedule {
    client: Client,
    name: String,
}

impl Schedule {
    /// The schedule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates the schedule or replaces its rules: occurrences at the times of a cron expression.
    /// Set its options, then await it.
    ///
    /// The expression has five fields (minute, hour, day, month, weekday) or six (second first), or
    /// is a macro such as `@daily`. The task is a declared one or a [`NewTask`], without a delay,
    /// an expiry, a `request_id` or a unique key.
    pub fn cron(&self, cron: impl Into<String>, task: impl Into<NewTask>) -> SetSchedule {
        let rules = v1::Schedule { cron: cron.into(), ..self.rules() };
        SetSchedule::new(self.client.clone(), rules, task.into())
    }

    /// Creates the schedule or replaces its rules: one occurrence per interval of at least a
    /// second. Intervals count from `start_at` or else from 1970, so that intervals of a minute
    /// fall on full minutes. Set its options, then await it.
    pub fn every(&self, interval: Duration, task: impl Into<NewTask>) -> SetSchedule {
        let rules = v1::Schedule { every_ms: Some(millis(interval)), ..self.rules() };
        SetSchedule::new(self.client.clone(), rules, task.into())
    }

    /// The schedule's rules, its next occurrences, and its history.
    pub async fn details(&self) -> Result<ScheduleDetails, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::Read, |mut wire, request| async move {
                wire.get_schedule(request).await
            })
            .await?;
        Ok(reply.into())
    }

    /// Lets occurrences pass without runs, until it is resumed. The note tells people why.
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

    /// Starts runs again, from the next occurrence on. Occurrences of the pause do not run; see
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

    /// Starts a run now, even if another run is live or the schedule is paused.
    pub async fn trigger(&self) -> Result<Enqueued, Error> {
        let reply = self
            .client
            .call(self.request(), Repeat::IfNotTaken, |mut wire, request| async move {
                wire.trigger_schedule(request).await
            })
            .await?;
        Ok(Enqueued::new(self.client.clone(), reply))
    }

    /// Runs every occurrence of a past range now, both ends included and up to 10,000; returns
    /// their number. A range that is backfilled twice runs twice. An error in between says how many
    /// of the first occurrences were enqueued.
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

    /// Removes the schedule. Its tasks stay.
    pub async fn remove(&self) -> Result<(), Error> {
        // A repetition would find no schedule, and return an error.
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
