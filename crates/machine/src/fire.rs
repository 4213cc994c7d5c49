//! Fire: decides each occurrence of a schedule, and follows the runs that fire.
//!
//! Each occurrence is decided and counted once. It fires, is skipped because an earlier run has not
//! ended, waits for that end, or is missed because no leader saw it in time.

#[cfg(test)]
mod tests;

use crate::draw::Draw;
use crate::limits::*;
use crate::outbox::Message;
use crate::rejection::at_most;
use crate::schedule::{SCHEDULE_HEADERS, Schedule, schedule_key};
use crate::turn::Turn;
use crate::watch::Watch;
use crate::wire::decode;
use crate::{
    BackfillSchedule, CatchUp, Enqueued, EventKind, FireSchedule, Outcome, Overlap, Rejection,
    ScheduleSpec, TaskId, Timestamp, TriggerSchedule, When,
};

/// One run of a schedule.
struct Run {
    /// The occurrence, or the moment of the trigger.
    at: Timestamp,
    run_at: When,
    is_watched: bool,
}

impl Turn<'_> {
    pub(crate) fn fire_schedule(&mut self, fire: &FireSchedule<'_>) -> Result<Outcome, Rejection> {
        let schedule = self.find_schedule(fire.name)?;
        schedule.check_fire(fire, self.now)?;
        let key = schedule_key(fire.name);
        let (bytes, before) = (schedule.spec.clone(), (schedule.fired, schedule.skipped));
        let spec: ScheduleSpec<'_> = decode(&bytes).expect("the rules were encoded here");
        let decided_until = schedule.decided_until;
        let last = *fire.occurrences.last().expect("there is at least one");
        self.shard.schedules.update(key, |schedule| {
            schedule.next_run_at = fire.next_run_at;
            schedule.decided_until = last.max(decided_until);
        });
        let is_latest = |at| at == last && fire.next_run_at.is_none_or(|next| next > self.now);
        let (missed, due): (Vec<Timestamp>, Vec<Timestamp>) = fire
            .occurrences
            .iter()
            .filter(|at| **at > decided_until)
            .partition(|at| spec.misses(**at, self.now, is_latest(**at)));
        for at in due {
            self.occur(key, &spec, at);
        }
        let missed = missed.len() as u64 + fire.left_out;
        if missed > 0 {
            self.shard.schedules.update(key, |schedule| schedule.missed += missed);
            self.emit(EventKind::ScheduleMissed(fire.name.into(), missed));
        }
        let schedule = self.find_schedule(fire.name)?;
        Ok(Outcome::ScheduleFired {
            fired: schedule.fired - before.0,
            skipped: schedule.skipped - before.1,
            missed,
        })
    }

    /// Decides a due occurrence by the overlap policy and the runs that have not ended.
    fn occur(&mut self, key: u128, spec: &ScheduleSpec<'_>, at: Timestamp) {
        let schedule = self.shard.schedules.get(key).expect("it fires");
        if schedule.is_spent() {
            return;
        }
        if schedule.live.is_empty() || spec.overlap == Overlap::Allow {
            self.run_occurrence(key, spec, at);
            return;
        }
        let (name, live) = (schedule.name.clone(), schedule.live.clone());
        let passed_over = match spec.overlap {
            Overlap::Skip | Overlap::Allow => Some(at),
            Overlap::BufferOne | Overlap::CancelOther => {
                self.shard.schedules.update(key, |schedule| schedule.buffered.replace(at))
            }
        };
        if let Some(passed_over) = passed_over {
            self.shard.schedules.update(key, |schedule| schedule.skipped += 1);
            self.emit(EventKind::ScheduleSkipped(name.into(), passed_over));
        }
        if spec.overlap == Overlap::CancelOther {
            for task in live {
                self.owe(task.home, &Message::Cancel { task });
            }
        }
    }

    /// Starts the run of an occurrence, and counts it against the remaining runs.
    fn run_occurrence(&mut self, key: u128, spec: &ScheduleSpec<'_>, at: Timestamp) {
        let jitter_ms = Draw::new(key as u64 ^ at.0).up_to(spec.jitter_ms);
        // A delay, because the shard of the queue may have another time.
        let run_at = When::After { ms: at.plus_ms(jitter_ms).ms_since(self.now) };
        let is_watched = spec.overlap != Overlap::Allow;
        let task = self.start_run(key, spec, &Run { at, run_at, is_watched });
        let name = self.shard.schedules.update(key, |schedule| {
            schedule.fired += 1;
            (schedule.last_run_at, schedule.last_task) = (Some(at), Some(task));
            if let Some(runs) = &mut schedule.remaining_runs {
                *runs = runs.saturating_sub(1);
            }
            if schedule.is_spent() {
                schedule.end();
            }
            schedule.name.clone()
        });
        self.emit(EventKind::ScheduleFired { name: name.into(), occurrence_at: at, task });
    }

    /// Enqueues the task of a run on the shard of its queue. A full queue does not reject a run.
    fn start_run(&mut self, key: u128, spec: &ScheduleSpec<'_>, run: &Run) -> TaskId {
        let id = self.next_id(spec.home);
        let name = self.shard.schedules.get(key).expect("it runs").name.clone();
        let occurrence_at = run.at.to_rfc3339();
        let mut enqueue = spec.enqueue.clone();
        let values = [&*name, &*occurrence_at];
        enqueue.task.body.headers.extend(SCHEDULE_HEADERS.into_iter().zip(values));
        enqueue.task.run_at = run.run_at;
        let shard = self.shard.identity.shard;
        let watch = run.is_watched.then_some(Watch::Schedule { shard, key });
        self.owe_enqueue(id, &enqueue, watch);
        if run.is_watched {
            self.shard.schedules.update(key, |schedule| schedule.live.push(id));
        }
        id
    }

    /// Handles the end of a watched run.
    pub(crate) fn run_ended(&mut self, key: u128, task: TaskId) {
        let schedule = self.shard.schedules.get(key);
        // The schedule may have been removed since, and made again.
        if schedule.is_none_or(|schedule| !schedule.live.contains(&task)) {
            return;
        }
        self.shard.schedules.update(key, |schedule| schedule.live.retain(|live| *live != task));
        self.run_buffered(key);
    }

    /// Starts the buffered run unless the schedule is paused or another run has not ended.
    pub(crate) fn run_buffered(&mut self, key: u128) {
        let schedule = self.shard.schedules.get(key).expect("it was just found");
        let Some(at) = schedule.buffered else { return };
        if schedule.paused || !schedule.live.is_empty() {
            return;
        }
        let bytes = schedule.spec.clone();
        let spec: ScheduleSpec<'_> = decode(&bytes).expect("the rules were encoded here");
        self.shard.schedules.update(key, |schedule| schedule.buffered = None);
        self.run_occurrence(key, &spec, at);
    }

    /// Starts a run now, beside runs that have not ended. A trigger is not an occurrence, so its
    /// run does not count against the remaining runs. Later occurrences see the run as an earlier
    /// one.
    pub(crate) fn trigger_schedule(
        &mut self,
        trigger: TriggerSchedule<'_>,
    ) -> Result<Outcome, Rejection> {
        let schedule = self.find_schedule(trigger.name)?;
        if schedule.live.len() >= SCHEDULE_LIVE_RUNS_MAX {
            return Err(Rejection::LimitExceeded {
                what: format!(
                    "{SCHEDULE_LIVE_RUNS_MAX} runs of schedule {} have not ended; wait for them",
                    trigger.name
                ),
            });
        }
        let (key, at) = (schedule_key(trigger.name), self.now);
        let bytes = schedule.spec.clone();
        let spec: ScheduleSpec<'_> = decode(&bytes).expect("the rules were encoded here");
        let is_watched = spec.overlap != Overlap::Allow;
        let id = self.start_run(key, &spec, &Run { at, run_at: When::Now, is_watched });
        self.shard.schedules.update(key, |schedule| {
            (schedule.last_run_at, schedule.last_task) = (Some(at), Some(id));
        });
        Ok(Outcome::Enqueued(Enqueued { id, duplicate: false }))
    }

    /// Runs past occurrences now, side by side, even those that have fired before.
    pub(crate) fn backfill_schedule(
        &mut self,
        backfill: &BackfillSchedule<'_>,
    ) -> Result<Outcome, Rejection> {
        let schedule = self.find_schedule(backfill.name)?;
        schedule.check_revision(backfill.revision)?;
        check_occurrences(&backfill.occurrences, self.now)?;
        let key = schedule_key(backfill.name);
        let bytes = schedule.spec.clone();
        let spec: ScheduleSpec<'_> = decode(&bytes).expect("the rules were encoded here");
        for &at in &backfill.occurrences {
            self.start_run(key, &spec, &Run { at, run_at: When::Now, is_watched: false });
        }
        let fired = backfill.occurrences.len() as u64;
        Ok(Outcome::ScheduleFired { fired, skipped: 0, missed: 0 })
    }
}

impl Schedule {
    /// Checks that these are the next occurrences by the present rules.
    fn check_fire(&self, fire: &FireSchedule<'_>, now: Timestamp) -> Result<(), Rejection> {
        self.check_revision(fire.revision)?;
        check_occurrences(&fire.occurrences, now)?;
        if self.next_run_at != fire.occurrences.first().copied() {
            return Err(Rejection::ScheduleChanged { name: self.name.clone() });
        }
        if fire.next_run_at <= fire.occurrences.last().copied() && fire.next_run_at.is_some() {
            return Err(Rejection::invalid("next_run_at is not after the last occurrence"));
        }
        Ok(())
    }
}

/// Checks that the occurrences of an entry are in order, in the past, and at least one.
fn check_occurrences(occurrences: &[Timestamp], now: Timestamp) -> Result<(), Rejection> {
    let count = occurrences.len() as u64;
    at_most("the number of occurrences", count, OCCURRENCES_PER_ENTRY_MAX as u64)?;
    let Some(last) = occurrences.last() else {
        return Err(Rejection::invalid("there are no occurrences; give at least one"));
    };
    if !occurrences.is_sorted_by(|a, b| a < b) {
        return Err(Rejection::invalid("occurrences are not in order"));
    }
    if *last > now {
        return Err(Rejection::invalid(format!("occurrence {last} is in the future at {now}")));
    }
    Ok(())
}

impl ScheduleSpec<'_> {
    /// Whether an occurrence is too late to fire. `is_latest` means that no later one has passed.
    fn misses(&self, at: Timestamp, now: Timestamp, is_latest: bool) -> bool {
        let is_late = now.ms_since(at) > self.late_ms_max();
        match self.catch_up {
            CatchUp::None | CatchUp::All => is_late,
            CatchUp::Last => is_late || !is_latest,
        }
    }

    /// How late an occurrence may be and still fire. The minimum is the delay that a healthy leader
    /// may have, because a shorter window would lose runs without any outage.
    fn late_ms_max(&self) -> u64 {
        match self.catch_up {
            CatchUp::None => SCHEDULE_LATE_MS_MAX,
            CatchUp::Last | CatchUp::All => self.catch_up_window_ms.max(SCHEDULE_LATE_MS_MAX),
        }
    }

    /// The oldest moment whose occurrence may still fire at `now`. A [`FireSchedule`] may leave out
    /// earlier occurrences.
    pub fn fires_from(&self, now: Timestamp) -> Timestamp {
        Timestamp(now.0.saturating_sub(self.late_ms_max()))
    }
}
