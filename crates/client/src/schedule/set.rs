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

/// What happens at an occurrence while an earlier run has not ended. A dead letter has ended; a task
/// that is to be retried has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlap {
    /// It is skipped, and counted.
    #[default]
    Skip,
    /// The newest one waits for the end of the run.
    BufferOne,
    /// It runs beside the others.
    Allow,
    /// The run is cancelled, and the newest one waits for its end.
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

    /// The word used on every front.
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
    /// They are missed if they are more than ten seconds late.
    None,
    /// The last one fires, if it is not older than the window.
    #[default]
    Last,
    /// All that are not older than the window fire.
    All,
    /// A policy that this version of the crate does not know.
    Unknown,
}

impl CatchUp {
    const WORDS: [(&'static str, CatchUp); 3] =
        [("none", CatchUp::None), ("last", CatchUp::Last), ("all", CatchUp::All)];

    /// The word used on every front.
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

/// A schedule being set: say more about it, then await it. Made by
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

    /// The IANA zone that the cron expression is in, such as `Europe/Berlin`; UTC if not said. An
    /// interval has none.
    pub fn timezone(self, timezone: impl Into<String>) -> SetSchedule {
        let timezone = timezone.into();
        self.change(|rules| rules.timezone = timezone)
    }

    /// What happens at an occurrence while an earlier run has not ended; it is skipped if not said.
    pub fn overlap(self, overlap: Overlap) -> SetSchedule {
        self.change(|rules| rules.overlap = overlap.as_str().into())
    }

    /// What happens to occurrences that passed while the broker was down; the last one fires if not
    /// said.
    pub fn catch_up(self, catch_up: CatchUp) -> SetSchedule {
        self.change(|rules| rules.catch_up = catch_up.as_str().into())
    }

    /// How old an occurrence may be and still be caught up with; one hour if not said. Up to ten
    /// seconds late is on time under a shorter one too. Refused with [`CatchUp::None`].
    pub fn catch_up_window(self, window: Duration) -> SetSchedule {
        self.change(|rules| rules.catch_up_window_ms = Some(millis(window)))
    }

    /// Each run starts up to this long after its occurrence, always the same for the same occurrence:
    /// many schedules of one moment spread by it.
    pub fn jitter(self, jitter: Duration) -> SetSchedule {
        self.change(|rules| rules.jitter_ms = millis(jitter))
    }

    /// No occurrence is before this moment; one that falls on it counts.
    pub fn start_at(self, start_at: impl Into<Timestamp>) -> SetSchedule {
        let start_at = start_at.into().as_millis();
        self.change(|rules| rules.start_at = Some(start_at))
    }

    /// No occurrence is after this moment; one that falls on it counts.
    pub fn end_at(self, end_at: impl Into<Timestamp>) -> SetSchedule {
        let end_at = end_at.into().as_millis();
        self.change(|rules| rules.end_at = Some(end_at))
    }

    /// How many occurrences fire before it ends; no bound if not said.
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
            // The same rules again change nothing.
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
    /// There was none of this name before. If the answer was lost and the call repeated, it may say
    /// that there was one: the one that this call has made.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The schedule as it stands, with what comes next.
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
    async fn what_is_said_ends_up_on_the_wire() {
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
