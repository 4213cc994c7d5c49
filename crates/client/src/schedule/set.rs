//! SetSchedule: the rules of a schedule on their way to the broker.

use super::ScheduleDetails;
use crate::{Client, Error, NewTask, Timestamp, connection::Repeat, timestamp::millis};
use serde::Serialize;
use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};
use taskyard_proto::v1;

/// What happens at an occurrence while an earlier run has not ended. A dead letter has ended; a
/// task that will be retried has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlap {
    /// The occurrence is skipped, and counted.
    #[default]
    Skip,
    /// The newest occurrence waits for the end of the run.
    BufferOne,
    /// The new run starts beside the others.
    Allow,
    /// The run is cancelled, and the newest occurrence waits for its end.
    CancelOther,
    /// A policy that this version of the crate does not know.
    Unknown,
}

impl Overlap {
    const WORDS: [(&'static str, Overlap); 4] = [
        ("skip", Overlap::Skip),
        ("buffer_one", Overlap::BufferOne),
        ("allow", Overlap::Allow),
        ("cancel_other", Overlap::CancelOther),
    ];

    /// The name of the policy, the same on every front.
    pub fn as_str(self) -> &'static str {
        Overlap::WORDS
            .iter()
            .find(|(_, policy)| *policy == self)
            .map_or("unknown", |(word, _)| word)
    }

    pub(super) fn from_wire(word: &str) -> Overlap {
        let known = Overlap::WORDS.iter().find(|(known, _)| *known == word);
        known.map_or(Overlap::Unknown, |(_, policy)| *policy)
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What happens to occurrences that passed while the broker was down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CatchUp {
    /// Occurrences that are more than ten seconds late are missed.
    None,
    /// The last occurrence fires if it is inside the window.
    #[default]
    Last,
    /// All occurrences inside the window fire.
    All,
    /// A policy that this version of the crate does not know.
    Unknown,
}

impl CatchUp {
    const WORDS: [(&'static str, CatchUp); 3] =
        [("none", CatchUp::None), ("last", CatchUp::Last), ("all", CatchUp::All)];

    /// The name of the policy, the same on every front.
    pub fn as_str(self) -> &'static str {
        CatchUp::WORDS
            .iter()
            .find(|(_, policy)| *policy == self)
            .map_or("unknown", |(word, _)| word)
    }

    pub(super) fn from_wire(word: &str) -> CatchUp {
        let known = CatchUp::WORDS.iter().find(|(known, _)| *known == word);
        known.map_or(CatchUp::Unknown, |(_, policy)| *policy)
    }
}

impl fmt::Display for CatchUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A schedule that is being set: set its options, then await it. Made by
/// [`Schedule::cron`](super::Schedule::cron) and [`Schedule::every`](super::Schedule::every).
///
/// Setting a schedule that exists replaces all of its rules and keeps its counts.
#[derive(Clone, Debug)]
#[must_use = "a schedule is not set until it is awaited"]
pub struct SetSchedule {
    client: Client,
    rules: v1::Schedule,
    task: NewTask,
}

impl SetSchedule {
    pub(super) fn new(client: Client, rules: v1::Schedule, task: NewTask) -> SetSchedule {
        SetSchedule { client, rules, task }
    }

    /// Sets the IANA zone of the cron expression, such as `Europe/Berlin`; UTC by default. An
    /// interval has no zone.
    pub fn timezone(self, timezone: impl Into<String>) -> SetSchedule {
        let timezone = timezone.into();
        self.change(|rules| rules.timezone = timezone)
    }

    /// Sets what happens at an occurrence while an earlier run has not ended; by default it is
    /// skipped.
    pub fn overlap(self, overlap: Overlap) -> SetSchedule {
        self.change(|rules| rules.overlap = overlap.as_str().into())
    }

    /// Sets what happens to occurrences that passed while the broker was down; by default the last
    /// one fires.
    pub fn catch_up(self, catch_up: CatchUp) -> SetSchedule {
        self.change(|rules| rules.catch_up = catch_up.as_str().into())
    }

    /// Sets how late an occurrence may still fire; one hour by default. An occurrence at most ten
    /// seconds late is always on time. Rejected together with [`CatchUp::None`].
    pub fn catch_up_window(self, window: Duration) -> SetSchedule {
        self.change(|rules| rules.catch_up_window_ms = Some(millis(window)))
    }

    /// Starts each run up to this long after its occurrence, always with the same delay for the
    /// same occurrence, so that many schedules with the same moment are spread.
    pub fn jitter(self, jitter: Duration) -> SetSchedule {
        self.change(|rules| rules.jitter_ms = millis(jitter))
    }

    /// Allows no occurrence before this moment; the moment itself counts.
    pub fn start_at(self, start_at: impl Into<Timestamp>) -> SetSchedule {
        let start_at = start_at.into().as_millis();
        self.change(|rules| rules.start_at = Some(start_at))
    }

    /// Allows no occurrence after this moment; the moment itself counts.
    pub fn end_at(self, end_at: impl Into<Timestamp>) -> SetSchedule {
        let end_at = end_at.into().as_millis();
        self.change(|rules| rules.end_at = Some(end_at))
    }

    /// Sets how many occurrences fire before the schedule ends; no bound by default.
    pub fn remaining_runs(self, runs: u64) -> SetSchedule {
        self.change(|rules| rules.remaining_runs = Some(runs))
    }

    fn change(mut self, change: impl FnOnce(&mut v1::Schedule)) -> SetSchedule {
        change(&mut self.rules);
        self
    }
}

impl IntoFuture for SetSchedule {
    type Output = Result<ScheduleSet, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let task = Some(self.task.into_wire()?);
            let schedule = Some(v1::Schedule { task, ..self.rules });
            // Equal rules change nothing.
            let reply = self
                .client
                .call(
                    v1::SetScheduleRequest { schedule },
                    Repeat::Always,
                    |mut wire, request| async move { wire.set_schedule(request).await },
                )
                .await?;
            let details = reply.schedule.unwrap_or_default().into();
            Ok(ScheduleSet { details, is_new: reply.created })
        })
    }
}

/// A schedule that the broker has on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleSet {
    details: ScheduleDetails,
    is_new: bool,
}

impl ScheduleSet {
    /// Whether the schedule is new. If an answer was lost and the call was repeated, this may be
    /// `false` although this call has made the schedule.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The details of the schedule.
    pub fn details(&self) -> &ScheduleDetails {
        &self.details
    }
}

impl From<ScheduleSet> for ScheduleDetails {
    fn from(set: ScheduleSet) -> ScheduleDetails {
        set.details
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_option_is_sent() {
        let client = Client::builder(["http://127.0.0.1:1"]).build().unwrap();
        let set = client
            .schedule("s")
            .cron("@daily", NewTask::new("t", &1).queue("q"))
            .timezone("Asia/Tokyo")
            .overlap(Overlap::CancelOther)
            .catch_up(CatchUp::All)
            .catch_up_window(Duration::from_secs(2))
            .jitter(Duration::from_millis(3))
            .start_at(Timestamp::from_millis(4))
            .end_at(Timestamp::from_millis(5))
            .remaining_runs(6);
        let expected = v1::Schedule {
            name: "s".into(),
            cron: "@daily".into(),
            timezone: "Asia/Tokyo".into(),
            overlap: "cancel_other".into(),
            catch_up: "all".into(),
            catch_up_window_ms: Some(2_000),
            jitter_ms: 3,
            start_at: Some(4),
            end_at: Some(5),
            remaining_runs: Some(6),
            ..v1::Schedule::default()
        };
        assert_eq!(set.rules, expected);
        let every = client.schedule("s").every(Duration::from_secs(30), NewTask::new("t", &1));
        assert_eq!((every.rules.every_ms, every.rules.cron.as_str()), (Some(30_000), ""));
    }

    #[test]
    fn words_are_read_as_they_are_said() {
        for (word, policy) in Overlap::WORDS {
            assert_eq!((Overlap::from_wire(word), policy.as_str()), (policy, word));
        }
        for (word, policy) in CatchUp::WORDS {
            assert_eq!((CatchUp::from_wire(word), policy.as_str()), (policy, word));
        }
        assert_eq!(Overlap::from_wire("often"), Overlap::Unknown);
        assert_eq!(CatchUp::from_wire("often").to_string(), "unknown");
    }
}
