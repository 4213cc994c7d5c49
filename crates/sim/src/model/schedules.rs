//! Schedules, against a plain account of every occurrence: each is decided once, by its policies.
//!
//! The schedules are on one shard, and their tasks there or on another one, so that the end of a
//! run is known at once or when its message arrives.

mod account;

use super::commands::purge;
use super::shards::{Answer, Shards};
use super::wakes::claim_of;
use super::{Difference, expect, expect_code};
use crate::rng::Rng;
use account::{Account, Place, Said, next_occurrence, occurrences};
use std::collections::VecDeque;
use taskyard_machine::{
    Ack, BackfillSchedule, Cancel, CatchUp, Claim, ClaimToken, Command, Enqueue, Event, EventKind,
    Fail, FireSchedule, NewTask, Outcome, Overlap, PauseSchedule, Rejection, RemoveSchedule,
    ResumeSchedule, Retry, RetryPolicy, Rhythm, ScheduleSpec, SetSchedule, ShardId, TaskError,
    TaskId, Timestamp, TriggerSchedule,
};

/// Steps of a history.
const STEPS: u64 = 90;
const NAMES: [&str; 2] = ["tick", "tock"];
const QUEUE: &str = "runs";
/// The shard of the schedules.
const HOME: usize = 0;

struct Run {
    rng: Rng,
    shards: Shards,
    account: Account,
    held: Vec<(TaskId, ClaimToken)>,
    /// Ends of runs on their way from the other shard, one message for each entry there.
    ends: VecDeque<Vec<TaskId>>,
    /// Messages on their way to the other shard, one for each entry.
    asked: VecDeque<Vec<Asked>>,
}

/// A request of the schedules' shard to the other one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Run(Option<TaskId>),
    Cancel,
}

/// One random history of schedules; the first difference, in words.
pub(super) fn check(seed: u64) -> Result<(), Difference> {
    let mut run = Run {
        rng: Rng::new(seed ^ 0x5c4e),
        shards: Shards::new(2),
        account: Account::default(),
        held: Vec::new(),
        ends: VecDeque::new(),
        asked: VecDeque::new(),
    };
    for step in 1..=STEPS {
        run.shards.now += match run.rng.below(20) {
            0 => run.rng.between(5_000, 60_000),
            1..6 => 0,
            _ => run.rng.below(1_200),
        };
        run.step().map_err(|what| format!("schedules, step {step}: {what}"))?;
    }
    Ok(())
}

impl Run {
    fn step(&mut self) -> Result<(), Difference> {
        let name = *self.rng.pick(&NAMES);
        let shard = self.rng.below(2) as usize;
        match self.rng.below(100) {
            0..30 => self.fire_due(name),
            30..38 => self.set(name),
            38..41 => self.pause(name),
            41..45 => self.resume(name),
            45..49 => self.trigger(name),
            49..51 => self.backfill(name),
            51 => self.remove(name),
            52..65 => self.carry(),
            65..78 => self.claim(shard),
            78..92 => self.end_attempt(),
            92..95 => self.by_hand(),
            _ => self.send(shard, &Command::ExpireDue).map(drop),
        }
    }

    /// Sends a command that is not about schedules, or whose effects are already in the account.
    fn send(&mut self, shard: usize, command: &Command<'_>) -> Result<Answer, Difference> {
        let (answer, events) = self.shards.send(shard, command);
        self.account.begin(self.shards.now, &events);
        self.note(shard, &events).map_err(|what| format!("{command:?}: {what}"))?;
        Ok(answer)
    }

    /// Records the states of runs, then compares everything about schedules.
    fn note(&mut self, shard: usize, events: &[Event]) -> Result<(), Difference> {
        let mut ends = Vec::new();
        for event in events {
            let (task, place) = match &event.kind {
                EventKind::TaskEnqueued(task)
                | EventKind::TaskReady(task)
                | EventKind::TaskRetrying(task, _)
                | EventKind::TaskLost(task) => (task.id, Place::Waits),
                EventKind::TaskClaimed(task, _) => (task.id, Place::Runs),
                EventKind::TaskSucceeded(task, _)
                | EventKind::TaskFailed(task)
                | EventKind::TaskDied(task, _)
                | EventKind::TaskCancelled(task)
                | EventKind::TaskExpired(task)
                | EventKind::TaskRemoved(task) => (task.id, Place::Ended),
                _ => continue,
            };
            let ended_now = self.account.moved(task, place);
            if ended_now && shard == HOME {
                self.account.run_ended(task)?;
            } else if ended_now && self.account.is_watched(task) {
                ends.push(task);
            }
        }
        let asked = self.account.take_asked();
        self.asked.extend((!asked.is_empty()).then_some(asked));
        self.ends.extend((!ends.is_empty()).then_some(ends));
        if shard == HOME {
            self.account.check_cancelled()?;
            self.account.compare_said()?;
            self.compare()?;
        }
        if self.rng.chance(30) {
            self.shards.reload(shard)?;
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), Difference> {
        let machine = self.shards.machine(HOME);
        expect(&self.account.schedules.len(), &machine.all_schedules().len())?;
        for known in &self.account.schedules {
            let view = machine.schedule(known.name).ok_or("a schedule is missing")?;
            let live: Vec<TaskId> = view.live.clone();
            let at = |at: Option<Timestamp>| at.map(|at| at.0);
            let seen = (
                (view.revision, view.remaining_runs, view.paused, at(view.next_run_at)),
                (at(view.last_run_at), view.last_task, live, at(view.buffered)),
                (view.fired, view.skipped, view.missed),
            );
            expect(&known.shown(), &seen).map_err(|what| format!("{}: {what}", known.name))?;
        }
        let next = self.account.schedules.iter().filter_map(|known| known.next).min();
        expect(&next, &machine.next_schedule().map(|at| at.0))?;
        let now = Timestamp(self.shards.now);
        let due = machine.schedules_due(now).count();
        let is_due = |next: u64| next <= self.shards.now;
        let known = self.account.schedules.iter().filter(|known| known.next.is_some_and(is_due));
        expect(&known.count(), &due)
    }

    fn draw_spec(&mut self) -> ScheduleSpec<'static> {
        let rng = &mut self.rng;
        let now = self.shards.now;
        let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        ScheduleSpec {
            rhythm: Rhythm::Every { ms: *rng.pick(&[1_000, 1_500, 4_000]) },
            home: ShardId(rng.below(2) as u16),
            enqueue: Enqueue {
                queue: QUEUE,
                task: NewTask { task_type: "run", retry: Some(retry), ..NewTask::default() },
            },
            overlap: *rng.pick(&[
                Overlap::Skip,
                Overlap::BufferOne,
                Overlap::Allow,
                Overlap::CancelOther,
            ]),
            catch_up: *rng.pick(&[CatchUp::None, CatchUp::Last, CatchUp::All]),
            catch_up_window_ms: *rng.pick(&[0, 12_000, 20_000]),
            jitter_ms: if rng.chance(300) { 2_000 } else { 0 },
            start_at: rng.chance(150).then(|| Timestamp(now + rng.below(5_000))),
            end_at: rng.chance(150).then(|| Timestamp(now + rng.between(6_000, 40_000))),
            remaining_runs: rng.chance(250).then(|| rng.between(1, 5)),
        }
    }

    fn set(&mut self, name: &'static str) -> Result<(), Difference> {
        let spec = match self.account.find(name) {
            Some(known) if self.rng.chance(300) => known.spec.clone(),
            // One rule changes, or all.
            Some(known) if self.rng.chance(500) => {
                let old = known.spec.clone();
                ScheduleSpec { overlap: self.draw_spec().overlap, ..old }
            }
            _ => self.draw_spec(),
        };
        let Some(next) = next_occurrence(&spec, self.shards.now) else { return Ok(()) };
        let from = Timestamp(self.shards.now);
        let set = SetSchedule { name, spec: spec.clone(), from, next_run_at: Timestamp(next) };
        let (answer, events) = self.shards.send(HOME, &Command::SetSchedule(set));
        self.account.begin(self.shards.now, &events);
        if self.account.keeps_rhythm_of(name, &spec) {
            let changed = Rejection::ScheduleChanged { name: name.into() };
            expect(&Err(changed), &answer)?;
        } else {
            let (is_new, is_changed) = self.account.set(name, spec, next);
            expect(&Ok(Outcome::ScheduleSet { is_new, is_changed }), &answer)?;
        }
        self.note(HOME, &events)
    }

    /// Fires a due schedule as a leader does; sometimes late or wrong.
    fn fire_due(&mut self, name: &'static str) -> Result<(), Difference> {
        let now = self.shards.now;
        let Some(known) = self.account.find(name).cloned() else {
            let occurrences = vec![Timestamp(now)];
            let fire =
                FireSchedule { name, revision: 1, occurrences, left_out: 0, next_run_at: None };
            let answer = self.send(HOME, &Command::FireSchedule(fire))?;
            return expect_code(Some("not_found"), &answer);
        };
        let due = known.next.map_or(Vec::new(), |next| occurrences(&known.spec, next, now));
        if due.is_empty() {
            return Ok(());
        }
        let (carried, left_out) = self.choose(&known.spec, &due);
        let last = *carried.last().expect("there is one");
        let next_run_at = next_occurrence(&known.spec, last).map(Timestamp);
        let stamps = |times: &[u64]| times.iter().copied().map(Timestamp).collect();
        let mut fire = FireSchedule {
            name,
            revision: known.revision,
            occurrences: stamps(&carried),
            left_out,
            next_run_at,
        };
        if self.rng.chance(100) {
            match self.rng.below(4) {
                0 => fire.revision += 1,
                1 => fire.occurrences[0] = Timestamp(carried[0] - 1),
                2 => fire.occurrences.push(Timestamp(now + 1)),
                _ => fire.next_run_at = Some(Timestamp(last)),
            }
            let answer = self.send(HOME, &Command::FireSchedule(fire))?;
            return expect_code(Some("invalid_argument"), &answer);
        }
        let again = Command::FireSchedule(fire.clone());
        let (answer, events) = self.shards.send(HOME, &again);
        self.account.begin(now, &events);
        let counts = self.account.fire(name, &carried, left_out, next_run_at.map(|at| at.0))?;
        let (fired, skipped, missed) = counts;
        expect(&Ok(Outcome::ScheduleFired { fired, skipped, missed }), &answer)?;
        self.note(HOME, &events)?;
        // The same fires are rejected, because each occurrence is decided once.
        if self.rng.chance(200) {
            return expect_code(Some("invalid_argument"), &self.send(HOME, &again)?);
        }
        Ok(())
    }

    /// Chooses the due occurrences for one entry, and the number of those that are only counted.
    fn choose(&mut self, spec: &ScheduleSpec<'_>, due: &[u64]) -> (Vec<u64>, u64) {
        if spec.catch_up == CatchUp::All {
            let count = due.len().min(self.rng.between(1, 5) as usize);
            return (due[..count].to_vec(), 0);
        }
        if due.len() > 2 && (due.len() > 30 || self.rng.chance(600)) {
            return (vec![due[0], due[due.len() - 1]], due.len() as u64 - 2);
        }
        (due.to_vec(), 0)
    }

    fn pause(&mut self, name: &'static str) -> Result<(), Difference> {
        let answer =
            self.shards.send(HOME, &Command::PauseSchedule(PauseSchedule { name, note: "n" }));
        self.account.begin(self.shards.now, &answer.1);
        let found = self.account.pause(name);
        self.done_or_not_found(found, answer)
    }

    fn resume(&mut self, name: &'static str) -> Result<(), Difference> {
        let known = self.account.find(name);
        let revision = known.map_or(1, |known| known.revision);
        let next = known.and_then(|known| next_occurrence(&known.spec, self.shards.now));
        let next_run_at = next.map(Timestamp);
        let from = Timestamp(self.shards.now);
        let command = Command::ResumeSchedule(ResumeSchedule { name, revision, from, next_run_at });
        let answer = self.shards.send(HOME, &command);
        self.account.begin(self.shards.now, &answer.1);
        let found = self.account.resume(name, next)?;
        self.done_or_not_found(found, answer)
    }

    fn remove(&mut self, name: &'static str) -> Result<(), Difference> {
        let answer = self.shards.send(HOME, &Command::RemoveSchedule(RemoveSchedule { name }));
        self.account.begin(self.shards.now, &answer.1);
        let found = self.account.remove(name);
        self.done_or_not_found(found, answer)
    }

    fn done_or_not_found(
        &mut self,
        found: bool,
        (answer, events): (Answer, Vec<Event>),
    ) -> Result<(), Difference> {
        if found {
            expect(&Ok(Outcome::Done), &answer)?;
        } else {
            expect_code(Some("not_found"), &answer)?;
        }
        self.note(HOME, &events)
    }

    fn trigger(&mut self, name: &'static str) -> Result<(), Difference> {
        let (answer, events) =
            self.shards.send(HOME, &Command::TriggerSchedule(TriggerSchedule { name }));
        self.account.begin(self.shards.now, &events);
        match (self.account.find(name).is_some(), &answer) {
            (false, answer) => expect_code(Some("not_found"), answer)?,
            (true, Ok(Outcome::Enqueued(made))) => self.account.trigger(name, made.id),
            (true, answer) => return Err(format!("a trigger was answered {answer:?}")),
        }
        self.note(HOME, &events)
    }

    fn backfill(&mut self, name: &'static str) -> Result<(), Difference> {
        let now = self.shards.now;
        let Some(known) = self.account.find(name).cloned() else { return Ok(()) };
        let mut past = occurrences(&known.spec, now - 10_000, now);
        past.truncate(4);
        if past.is_empty() {
            return Ok(());
        }
        let fired = past.len() as u64;
        let occurrences = past.into_iter().map(Timestamp).collect();
        // Outdated rules have other occurrences.
        let is_stale = self.rng.chance(150);
        let revision = known.revision - u64::from(is_stale);
        let command = Command::BackfillSchedule(BackfillSchedule { name, revision, occurrences });
        let (answer, events) = self.shards.send(HOME, &command);
        self.account.begin(now, &events);
        if is_stale {
            expect_code(Some("invalid_argument"), &answer)?;
            return self.note(HOME, &events);
        }
        expect(&Ok(Outcome::ScheduleFired { fired, skipped: 0, missed: 0 }), &answer)?;
        // Backfilled runs run side by side with all others, and nothing waits for their end.
        if usize::from(known.spec.home.0) == HOME {
            let made =
                events.iter().filter(|event| matches!(event.kind, EventKind::TaskEnqueued(_)));
            expect(&fired, &(made.count() as u64))?;
        } else {
            self.asked.push_back(vec![Asked::Run(None); fired as usize]);
        }
        self.note(HOME, &events)
    }

    /// Delivers a message to or from the other shard; its content follows from the earlier request.
    fn carry(&mut self) -> Result<(), Difference> {
        let Some(carried) = self.shards.carry(&mut self.rng)? else { return Ok(()) };
        self.account.begin(self.shards.now, &carried.events);
        if carried.again {
            expect(&0, &carried.events.len())?;
            return Ok(());
        }
        if carried.from != HOME {
            let ended =
                self.ends.pop_front().ok_or("the end of a run arrived, and none was expected")?;
            ended.into_iter().try_for_each(|task| self.account.run_ended(task))?;
            return self.note(carried.to, &carried.events);
        }
        let asked = self.asked.pop_front().ok_or("a message arrived, and none was expected")?;
        let runs = asked.iter().filter_map(|asked| match asked {
            Asked::Run(task) => Some(*task),
            Asked::Cancel => None,
        });
        let runs: Vec<Option<TaskId>> = runs.collect();
        let cancels = runs.len() < asked.len();
        let enqueued: Vec<TaskId> = carried.events.iter().filter_map(enqueued).collect();
        expect(&runs.len(), &enqueued.len())?;
        for (run, task) in runs.into_iter().zip(enqueued) {
            let Some(known) = run else { continue };
            expect(&known, &task)?;
            if !cancels {
                self.account.check_start(task, self.shards.machine(carried.to))?;
            }
        }
        self.note(carried.to, &carried.events)
    }

    fn claim(&mut self, shard: usize) -> Result<(), Difference> {
        let claim = Claim { tasks_max: 2, lease_ms: 20_000, ..claim_of(QUEUE) };
        if let Ok(Outcome::Claimed(taken)) = self.send(shard, &Command::Claim(claim))? {
            self.held.extend(taken.iter().map(|task| (task.id, task.token)));
        }
        Ok(())
    }

    fn end_attempt(&mut self) -> Result<(), Difference> {
        let count = self.held.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let (task, token) = self.held.remove(self.rng.below(count) as usize);
        let error = TaskError { error_type: "E", message: "m", backtrace: "" };
        let command = if self.rng.chance(600) {
            Command::Ack(Ack { task, token, result: None, follow_ups: vec![] })
        } else {
            Command::Fail(Fail { task, token, error, retry_at: None, retryable: true })
        };
        self.send(task.home.0.into(), &command).map(drop)
    }

    fn by_hand(&mut self) -> Result<(), Difference> {
        let Some(task) = self.account.pick(&mut self.rng) else { return Ok(()) };
        let command = match self.rng.below(10) {
            0..5 => Command::Cancel(Cancel { task }),
            5..8 => Command::Retry(Retry { task, body: None }),
            _ => purge(QUEUE),
        };
        self.send(task.home.0.into(), &command).map(drop)
    }
}

fn enqueued(event: &Event) -> Option<TaskId> {
    match &event.kind {
        EventKind::TaskEnqueued(task) => Some(task.id),
        _ => None,
    }
}

/// The facts about schedules in the events of one entry, in order.
fn said(events: &[Event]) -> Vec<(Said, Option<TaskId>)> {
    let one = |event: &Event| match &event.kind {
        EventKind::ScheduleFired { name, occurrence_at, task } => {
            Some((Said::Fired(name.to_string(), occurrence_at.0), Some(*task)))
        }
        EventKind::ScheduleSkipped(name, at) => Some((Said::Skipped(name.to_string(), at.0), None)),
        EventKind::ScheduleMissed(name, count) => {
            Some((Said::Missed(name.to_string(), *count), None))
        }
        _ => None,
    };
    events.iter().filter_map(one).collect()
}
