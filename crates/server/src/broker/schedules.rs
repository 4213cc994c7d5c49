//! Schedules: set, show, pause, resume, trigger, backfill, remove.
//!
//! The broker computes the moments of a schedule's rules, outside the shard loop. The command
//! carries them, and the machine only compares. The time of the shard's leader decides which of
//! them are yet to come. The clock of this node may be ahead, which would lose the occurrences in
//! between.

use super::{
    Broker,
    by_name::Look,
    check_queue,
    cursor::{decode_name, encode_name, page_limit},
    unexpected,
};
use crate::{Error, clock::real_now, limits::BACKFILL_MAX, moment::InWords, schedule::Timetable};
use std::time::Duration;
use taskyard_machine::{
    BackfillSchedule, Command, EncodedCommand, Occurrences, Outcome, PauseSchedule, Rejection,
    RemoveSchedule, ResumeSchedule, ScheduleSpec, ScheduleView, SetSchedule, ShardId, TaskId,
    Timestamp, TriggerSchedule, ask, check_schedule_name, limits,
};
use tokio::time::sleep;

/// The number of next occurrences that are shown.
const NEXT_RUNS_SHOWN: usize = 5;

/// Bytes that the runs of one backfill entry may add to the log, approximately.
const BACKFILL_ENTRY_BYTES_MAX: usize = 1 << 20;

/// How often a computation is repeated because the schedule has changed.
const TRIES_MAX: usize = 5;

/// How long new rules are sent again while occurrences by the old rules are due. In this time the
/// occurrences of a long outage fire.
const SETS_FOR_MAX: Duration = Duration::from_secs(2);
/// The first and the longest pause before they are sent again.
const SET_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];

/// A schedule and its next occurrences.
#[derive(Clone, Debug)]
pub struct FoundSchedule {
    /// The schedule.
    pub view: ScheduleView,
    /// Its next occurrences; the first is its `next_run_at`.
    pub next_runs: Vec<Timestamp>,
}

impl FoundSchedule {
    fn new(view: ScheduleView) -> FoundSchedule {
        let runs_max = view.remaining_runs.map_or(NEXT_RUNS_SHOWN, |runs| runs as usize);
        let next_runs = match (view.next_run_at, timetable(&view.spec())) {
            (Some(next), Ok(timetable)) => {
                let following = timetable.after(next);
                std::iter::once(next).chain(following).take(runs_max.min(NEXT_RUNS_SHOWN)).collect()
            }
            (next, _) => next.into_iter().collect(),
        };
        FoundSchedule { view, next_runs }
    }
}

/// One page of schedules.
#[derive(Clone, Debug)]
pub struct SchedulePage {
    /// By name.
    pub schedules: Vec<FoundSchedule>,
    /// Where to continue; `None` at the end. A page may be short, even empty, and still continue.
    pub cursor: Option<String>,
}

impl Broker {
    /// Makes a schedule or gives it new rules; `true` if it is new. The home shard comes from the
    /// queue, whatever `home` the rules name.
    pub async fn set_schedule(
        &self,
        name: &str,
        mut spec: ScheduleSpec<'_>,
    ) -> Result<(FoundSchedule, bool), Error> {
        let shard = self.shard_of_schedule(name)?;
        check_queue(spec.enqueue.queue)?;
        self.check_payload(spec.enqueue.task.body.payload)?;
        for (field, at) in [("start_at", spec.start_at), ("end_at", spec.end_at)] {
            at.map_or(Ok(()), |at| self.check_moment(field, at))?;
        }
        spec.home = self.shards().home(spec.enqueue.queue);
        let timetable = timetable(&spec)?;
        // The same rules again change nothing, even if no occurrence is left.
        if let Some(known) = self.read_schedule(shard, name).await?
            && known.spec() == spec
        {
            return Ok((FoundSchedule::new(known), false));
        }
        let until = real_now() + SETS_FOR_MAX;
        let [mut pause, pause_max] = SET_AGAIN_AFTER;
        loop {
            let from = self.shards().ask(shard, ask::Now {}).await?;
            let next_run_at = timetable.first_after(from)?;
            let set = SetSchedule { name, spec: spec.clone(), from, next_run_at };
            let set = EncodedCommand::new(&Command::SetSchedule(set));
            match self.shards().propose(shard, set, true).await {
                // Occurrences of the old rhythm are due, and their leader fires them first. Or
                // another node leads now, and its clock is behind.
                Err(Error::Rejected(Rejection::ScheduleChanged { .. })) if real_now() < until => {
                    sleep(pause).await;
                    pause = (pause * 2).min(pause_max);
                }
                Ok(Outcome::ScheduleSet { is_new, .. }) => {
                    return Ok((self.schedule(name).await?, is_new));
                }
                Ok(other) => unexpected(&other),
                Err(error) => return Err(error),
            }
        }
    }

    /// One schedule.
    pub async fn schedule(&self, name: &str) -> Result<FoundSchedule, Error> {
        let shard = self.shard_of_schedule(name)?;
        let view = self.read_schedule(shard, name).await?;
        view.map(FoundSchedule::new).ok_or_else(|| not_found(name))
    }

    /// A page of schedules by name, which continues at the cursor.
    pub async fn schedules(
        &self,
        cursor: Option<String>,
        limit: u32,
    ) -> Result<SchedulePage, Error> {
        let after = cursor.as_deref().map(decode_name).transpose()?;
        let look = |shard, after, limit| async move {
            let page = self.shards().ask(shard, ask::Schedules { after, limit }).await?;
            let named = |view: ScheduleView| (view.name.clone(), view);
            Ok(Look { found: page.schedules.into_iter().map(named).collect(), next: page.next })
        };
        let page = self.by_name(after, page_limit(limit)?, look).await?;
        let cursor = page.next.map(|name| encode_name(&name));
        // A schedule lies on one shard.
        let found = page.found.into_iter().flat_map(|(_, views)| views);
        let schedules = found.map(|(_, view)| FoundSchedule::new(view)).collect();
        Ok(SchedulePage { schedules, cursor })
    }

    /// Removes a schedule; tasks that it fired stay.
    pub async fn remove_schedule(&self, name: &str) -> Result<(), Error> {
        self.command_schedule(name, &Command::RemoveSchedule(RemoveSchedule { name })).await
    }

    /// Skips occurrences from now on.
    pub async fn pause_schedule(&self, name: &str, note: &str) -> Result<FoundSchedule, Error> {
        let pause = PauseSchedule { name, note };
        self.command_schedule(name, &Command::PauseSchedule(pause)).await?;
        self.schedule(name).await
    }

    /// Continues with the next occurrence.
    pub async fn resume_schedule(&self, name: &str) -> Result<FoundSchedule, Error> {
        let shard = self.shard_of_schedule(name)?;
        let mut tries = 0;
        loop {
            let view = self.read_schedule(shard, name).await?.ok_or_else(|| not_found(name))?;
            let from = self.shards().ask(shard, ask::Now {}).await?;
            let next_run_at = timetable(&view.spec())?.next_after(from);
            let resume = ResumeSchedule { name, revision: view.revision, from, next_run_at };
            tries += 1;
            match self.command_schedule(name, &Command::ResumeSchedule(resume)).await {
                Err(Error::Rejected(Rejection::ScheduleChanged { .. })) if tries < TRIES_MAX => {}
                answer => {
                    answer?;
                    return self.schedule(name).await;
                }
            }
        }
    }

    /// Starts a run now, whatever its other runs do.
    pub async fn trigger_schedule(&self, name: &str) -> Result<TaskId, Error> {
        let shard = self.shard_of_schedule(name)?;
        let trigger = Command::TriggerSchedule(TriggerSchedule { name });
        match self.shards().propose(shard, EncodedCommand::new(&trigger), true).await? {
            Outcome::Enqueued(enqueued) => Ok(enqueued.id),
            other => unexpected(&other),
        }
    }

    /// Runs every occurrence of a past range, both ends included. Returns their number.
    ///
    /// A large range takes several entries under the same rules: new rules in between stop the
    /// rest. A backfill has no identity, so the same range again enqueues its tasks again.
    pub async fn backfill_schedule(
        &self,
        name: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64, Error> {
        let shard = self.shard_of_schedule(name)?;
        let now = self.shards().ask(shard, ask::Now {}).await?;
        if to > now {
            let text = format!("to {} is not in the past; choose an earlier one", InWords(to));
            return Err(Error::Invalid(text));
        }
        if from > to {
            let text = format!("from {} is after to {}; swap them", InWords(from), InWords(to));
            return Err(Error::Invalid(text));
        }
        let view = self.read_schedule(shard, name).await?.ok_or_else(|| not_found(name))?;
        let spec = view.spec();
        let timetable = timetable(&spec)?;
        let range = timetable.after(Timestamp(from.0.saturating_sub(1)));
        let occurrences: Vec<Timestamp> =
            range.take_while(|at| *at <= to).take(BACKFILL_MAX + 1).collect();
        if occurrences.len() > BACKFILL_MAX {
            return Err(Error::Invalid(format!(
                "the range has more than {BACKFILL_MAX} occurrences; split it"
            )));
        }
        let task_bytes = spec.enqueue.task.body.payload.len().max(1);
        let at_once =
            (BACKFILL_ENTRY_BYTES_MAX / task_bytes).clamp(1, limits::OCCURRENCES_PER_ENTRY_MAX);
        let revision = view.revision;
        in_parts(&occurrences, at_once, |occurrences| {
            let backfill = BackfillSchedule { name, revision, occurrences };
            let command = EncodedCommand::new(&Command::BackfillSchedule(backfill));
            let proposed = self.shards().propose(shard, command, true);
            async {
                match proposed.await? {
                    Outcome::ScheduleFired { .. } => Ok(()),
                    other => unexpected(&other),
                }
            }
        })
        .await
    }

    async fn command_schedule(&self, name: &str, command: &Command<'_>) -> Result<(), Error> {
        let shard = self.shard_of_schedule(name)?;
        match self.propose(shard, command).await? {
            Outcome::Done => Ok(()),
            other => unexpected(&other),
        }
    }

    async fn read_schedule(
        &self,
        shard: ShardId,
        name: &str,
    ) -> Result<Option<ScheduleView>, Error> {
        self.shards().ask(shard, ask::Schedule { name: name.to_owned() }).await
    }

    fn shard_of_schedule(&self, name: &str) -> Result<ShardId, Error> {
        check_schedule_name(name)?;
        Ok(self.shards().home(name))
    }
}

/// Enqueues occurrences part by part, in order. Returns their number. An error half-way says how
/// many were enqueued.
async fn in_parts<F: Future<Output = Result<(), Error>>>(
    occurrences: &[Timestamp],
    at_once: usize,
    mut enqueue: impl FnMut(Vec<Timestamp>) -> F,
) -> Result<u64, Error> {
    let total = occurrences.len();
    let mut enqueued = 0;
    for part in occurrences.chunks(at_once) {
        enqueue(part.to_vec()).await.map_err(|error| match enqueued {
            0 => error,
            _ => Error::HalfWay { enqueued, total, error: Box::new(error) },
        })?;
        enqueued += part.len();
    }
    Ok(total as u64)
}

fn timetable(spec: &ScheduleSpec<'_>) -> Result<Timetable, Error> {
    Timetable::new(&spec.rhythm, spec.start_at, spec.end_at)
}

fn not_found(name: &str) -> Error {
    Rejection::ScheduleNotFound { name: name.into() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;

    #[tokio::test]
    async fn a_backfill_that_fails_half_way_says_what_it_enqueued() {
        let occurrences: Vec<Timestamp> = (0..10).map(Timestamp).collect();
        let changed = || Error::from(Rejection::ScheduleChanged { name: "s".into() });
        let unavailable = || Error::Unavailable("it stops".into());
        type Failure = fn() -> Error;
        for (good_parts, error, code, words) in [
            (0, changed as Failure, "invalid_argument", "schedule s has changed meanwhile"),
            (0, unavailable, "unavailable", "it stops"),
            (2, changed, "invalid_argument", "; 6 of 10 occurrences were enqueued before that"),
            (3, changed, "invalid_argument", "; 9 of 10 occurrences were enqueued before that"),
            // A repeat of the whole would enqueue the first ones twice.
            (2, unavailable, "outcome_unknown", "it stops; 6 of 10 occurrences were enqueued"),
        ] {
            let mut parts = Vec::new();
            let told = in_parts(&occurrences, 3, |part| {
                parts.push(part);
                ready(if parts.len() > good_parts { Err(error()) } else { Ok(()) })
            });
            let told = told.await.unwrap_err();
            assert_eq!(told.code(), code, "{told}");
            assert!(told.to_string().contains(words), "{told}");
            assert_eq!(parts.len(), good_parts + 1, "nothing is sent after a no");
        }
        let mut sent = Vec::new();
        let all = in_parts(&occurrences, 3, |part| {
            sent.extend(part);
            ready(Ok(()))
        });
        assert_eq!(all.await.unwrap(), 10);
        assert_eq!(sent, occurrences);
    }
}
