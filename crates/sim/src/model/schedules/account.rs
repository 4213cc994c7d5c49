//! The account of schedules: every decided occurrence, and every run that is waited for.

use super::{Asked, HOME, said};
use crate::model::{Difference, expect};
use crate::rng::Rng;
use std::collections::VecDeque;
use taskyard_machine::{
    CatchUp, Event, Machine, Overlap, Rhythm, ScheduleSpec, TaskId, TaskStateName, Timestamp,
};

/// An occurrence that is later than this is missed without a catch-up.
const LATE_MS_MAX: u64 = 10_000;

/// A fact about a schedule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    Fired(String, u64),
    Skipped(String, u64),
    Missed(String, u64),
}

/// The state of a run's task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    OnItsWay,
    Waits,
    Runs,
    Ended,
}

#[derive(Clone, Debug)]
struct RunTask {
    id: TaskId,
    place: Place,
    watched: bool,
    /// The earliest and the latest start.
    starts: (u64, u64),
}

#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) name: &'static str,
    pub(super) spec: ScheduleSpec<'static>,
    pub(super) revision: u64,
    pub(super) next: Option<u64>,
    remaining: Option<u64>,
    paused: bool,
    last: Option<(u64, TaskId)>,
    live: Vec<TaskId>,
    buffered: Option<u64>,
    fired: u64,
    skipped: u64,
    missed: u64,
    /// Every decided occurrence.
    decided: Vec<u64>,
}

/// The visible state of a schedule.
type Shown = (
    (u64, Option<u64>, bool, Option<u64>),
    (Option<u64>, Option<TaskId>, Vec<TaskId>, Option<u64>),
    (u64, u64, u64),
);

impl Schedule {
    pub(super) fn shown(&self) -> Shown {
        let last = self.last;
        (
            (self.revision, self.remaining, self.paused, self.next),
            (last.map(|last| last.0), last.map(|last| last.1), self.live.clone(), self.buffered),
            (self.fired, self.skipped, self.missed),
        )
    }

    fn is_spent(&self) -> bool {
        self.remaining == Some(0)
    }
}

#[derive(Default)]
pub(super) struct Account {
    now: u64,
    pub(super) schedules: Vec<Schedule>,
    runs: Vec<RunTask>,
    asked: Vec<Asked>,
    /// Runs on the schedules' own shard that this entry cancels.
    cancelled: Vec<TaskId>,
    /// The facts that this entry must report, and those that it reported.
    must_say: Vec<Said>,
    said: Vec<Said>,
    /// The tasks of the runs that the entry reports as started.
    started: VecDeque<TaskId>,
}

impl Account {
    /// Begins a new entry.
    pub(super) fn begin(&mut self, now: u64, events: &[Event]) {
        let all = said(events);
        self.now = now;
        self.started = all.iter().filter_map(|(_, task)| *task).collect();
        self.said = all.into_iter().map(|(said, _)| said).collect();
        self.must_say.clear();
    }

    pub(super) fn compare_said(&mut self) -> Result<(), Difference> {
        expect(&self.must_say, &self.said)
    }

    pub(super) fn take_asked(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.asked)
    }

    pub(super) fn find(&self, name: &str) -> Option<&Schedule> {
        self.schedules.iter().find(|known| known.name == name)
    }

    fn change<R>(&mut self, name: &str, change: impl FnOnce(&mut Schedule) -> R) -> R {
        let known = self.schedules.iter_mut().find(|known| known.name == name);
        change(known.expect("the caller has found it"))
    }

    pub(super) fn pick(&self, rng: &mut Rng) -> Option<TaskId> {
        let newest = &self.runs[self.runs.len().saturating_sub(6)..];
        (!newest.is_empty()).then(|| rng.pick(newest).id)
    }

    /// Records a new state of a run's task; returns whether the run has just ended.
    pub(super) fn moved(&mut self, task: TaskId, place: Place) -> bool {
        let Some(run) = self.runs.iter_mut().find(|run| run.id == task) else { return false };
        let was = std::mem::replace(&mut run.place, place);
        was != Place::Ended && place == Place::Ended
    }

    pub(super) fn is_watched(&self, task: TaskId) -> bool {
        self.runs.iter().any(|run| run.id == task && run.watched)
    }

    /// Checks that a run's task starts at its occurrence, or later by up to the jitter.
    pub(super) fn check_start(&self, task: TaskId, machine: &Machine) -> Result<(), Difference> {
        let run = self.runs.iter().find(|run| run.id == task).ok_or("an unknown run")?;
        let view = machine.task(task).ok_or("a run without a task")?;
        let (from, to) = run.starts;
        let right = match (view.state, view.run_at) {
            (TaskStateName::Scheduled, Some(at)) => (from..=to).contains(&at.0) && at.0 > self.now,
            (TaskStateName::Ready, _) => from <= self.now,
            _ => false,
        };
        if right { Ok(()) } else { Err(format!("a run of {from} to {to} is {view:?}")) }
    }

    /// Whether these rules are refused for now: they have another rhythm, and occurrences of the
    /// present one are due and not decided.
    pub(super) fn keeps_rhythm_of(&self, name: &str, spec: &ScheduleSpec<'static>) -> bool {
        self.find(name).is_some_and(|known| {
            let is_due = known.next.is_some_and(|next| next <= self.now);
            is_due && timing(&known.spec) != timing(spec)
        })
    }

    /// Sets a schedule; returns whether it is new, and whether anything changed.
    pub(super) fn set(
        &mut self,
        name: &'static str,
        spec: ScheduleSpec<'static>,
        next: u64,
    ) -> (bool, bool) {
        let Some(known) = self.find(name) else {
            self.schedules.push(Schedule {
                name,
                remaining: spec.remaining_runs,
                spec,
                revision: 1,
                next: Some(next),
                paused: false,
                last: None,
                live: Vec::new(),
                buffered: None,
                fired: 0,
                skipped: 0,
                missed: 0,
                decided: Vec::new(),
            });
            return (true, true);
        };
        if known.spec == spec {
            return (false, false);
        }
        self.change(name, |known| {
            if known.spec.remaining_runs != spec.remaining_runs {
                known.remaining = spec.remaining_runs;
            }
            // An occurrence that is due and has not fired stays due.
            if timing(&known.spec) != timing(&spec) || known.next.is_none() {
                known.next = Some(next);
            }
            if known.paused || known.is_spent() {
                known.next = None;
            }
            known.revision += 1;
            known.spec = spec;
        });
        (false, true)
    }

    /// Decides occurrences; returns the numbers of fired, skipped and missed ones.
    pub(super) fn fire(
        &mut self,
        name: &'static str,
        carried: &[u64],
        left_out: u64,
        next: Option<u64>,
    ) -> Result<(u64, u64, u64), Difference> {
        let now = self.now;
        let before = self.find(name).cloned().ok_or("it was found before")?;
        let spec = &before.spec;
        self.change(name, |known| known.next = next);
        let last = carried[carried.len() - 1];
        let newest = next.is_none_or(|next| next > now).then_some(last);
        let window_ms = spec.catch_up_window_ms.max(LATE_MS_MAX);
        let in_time = |at: u64| match spec.catch_up {
            CatchUp::None => now - at <= LATE_MS_MAX,
            CatchUp::Last => newest == Some(at) && now - at <= window_ms,
            CatchUp::All => now - at <= window_ms,
        };
        let mut missed = left_out;
        for &at in carried {
            if before.decided.contains(&at) {
                return Err(format!("{name} is asked for {at} again"));
            }
            self.change(name, |known| known.decided.push(at));
            if in_time(at) {
                self.occur(name, at)?;
            } else {
                missed += 1;
            }
        }
        if missed > 0 {
            self.change(name, |known| known.missed += missed);
            self.must_say.push(Said::Missed(name.to_owned(), missed));
        }
        let after = self.find(name).ok_or("it is still there")?;
        Ok((after.fired - before.fired, after.skipped - before.skipped, missed))
    }

    fn occur(&mut self, name: &'static str, at: u64) -> Result<(), Difference> {
        let known = self.find(name).cloned().ok_or("it fires")?;
        if known.is_spent() {
            return Ok(());
        }
        let overlap = known.spec.overlap;
        if known.live.is_empty() || overlap == Overlap::Allow {
            return self.start(name, at);
        }
        let passed_over = match overlap {
            Overlap::Skip | Overlap::Allow => Some(at),
            Overlap::BufferOne | Overlap::CancelOther => {
                self.change(name, |known| known.buffered.replace(at))
            }
        };
        if let Some(passed_over) = passed_over {
            self.change(name, |known| known.skipped += 1);
            self.must_say.push(Said::Skipped(name.to_owned(), passed_over));
        }
        if overlap == Overlap::CancelOther {
            known.live.into_iter().for_each(|task| self.cancel(task));
        }
        Ok(())
    }

    /// Requests the end of a run. On this shard it happens when the command is done, and is checked
    /// then.
    fn cancel(&mut self, task: TaskId) {
        if usize::from(task.home.0) == HOME {
            self.cancelled.push(task);
        } else {
            self.asked.push(Asked::Cancel);
        }
    }

    /// Checks that a cancelled run no longer waits.
    pub(super) fn check_cancelled(&mut self) -> Result<(), Difference> {
        for task in std::mem::take(&mut self.cancelled) {
            if self.runs.iter().any(|run| run.id == task && run.place == Place::Waits) {
                return Err(format!("{task} was to be cancelled, and waits"));
            }
        }
        Ok(())
    }

    /// Starts the run of an occurrence.
    fn start(&mut self, name: &'static str, at: u64) -> Result<(), Difference> {
        self.must_say.push(Said::Fired(name.to_owned(), at));
        let task = self.started.pop_front().ok_or_else(|| format!("{name} must fire {at}"))?;
        let jitter_ms = self.change(name, |known| {
            known.fired += 1;
            known.last = Some((at, task));
            known.remaining = known.remaining.map(|runs| runs - 1);
            known.spec.jitter_ms
        });
        self.add_run(name, task, (at, at + jitter_ms));
        self.change(name, |known| {
            if known.is_spent() {
                (known.next, known.buffered) = (None, None);
            }
        });
        Ok(())
    }

    fn add_run(&mut self, name: &'static str, id: TaskId, starts: (u64, u64)) {
        let here = usize::from(id.home.0) == HOME;
        let watched = self.change(name, |known| {
            let watched = known.spec.overlap != Overlap::Allow;
            if watched {
                known.live.push(id);
            }
            watched
        });
        let place = if here { Place::Waits } else { Place::OnItsWay };
        self.runs.push(RunTask { id, place, watched, starts });
        if !here {
            self.asked.push(Asked::Run(Some(id)));
        }
    }

    pub(super) fn trigger(&mut self, name: &'static str, id: TaskId) {
        let now = self.now;
        self.add_run(name, id, (now, now));
        self.change(name, |known| known.last = Some((now, id)));
    }

    /// Handles the end of a run: an occurrence that waits for the last one starts.
    pub(super) fn run_ended(&mut self, task: TaskId) -> Result<(), Difference> {
        let Some(name) = self.schedules.iter().find(|known| known.live.contains(&task)) else {
            return Ok(());
        };
        let name = name.name;
        self.change(name, |known| known.live.retain(|live| *live != task));
        self.start_buffered(name)
    }

    fn start_buffered(&mut self, name: &'static str) -> Result<(), Difference> {
        let at = self.change(name, |known| {
            let free = !known.paused && known.live.is_empty();
            if free { known.buffered.take() } else { None }
        });
        at.map_or(Ok(()), |at| self.start(name, at))
    }

    pub(super) fn pause(&mut self, name: &str) -> bool {
        let found = self.find(name).is_some();
        if found {
            self.change(name, |known| (known.paused, known.next) = (true, None));
        }
        found
    }

    pub(super) fn resume(
        &mut self,
        name: &'static str,
        next: Option<u64>,
    ) -> Result<bool, Difference> {
        let Some(known) = self.find(name) else { return Ok(false) };
        if known.paused {
            self.change(name, |known| {
                known.paused = false;
                known.next = next.filter(|_| !known.is_spent());
            });
            self.start_buffered(name)?;
        }
        Ok(true)
    }

    pub(super) fn remove(&mut self, name: &str) -> bool {
        let before = self.schedules.len();
        self.schedules.retain(|known| known.name != name);
        self.schedules.len() < before
    }
}

/// The rules that say when a schedule has occurrences.
fn timing(spec: &ScheduleSpec<'static>) -> (Rhythm<'static>, Option<Timestamp>, Option<Timestamp>) {
    (spec.rhythm, spec.start_at, spec.end_at)
}

/// All occurrences of a schedule from one moment to another, both included.
pub(super) fn occurrences(spec: &ScheduleSpec<'_>, from: u64, to: u64) -> Vec<u64> {
    let Rhythm::Every { ms } = spec.rhythm else { return Vec::new() };
    let start = spec.start_at.map_or(0, |at| at.0);
    let from = from.max(start);
    let first = start + (from - start).div_ceil(ms) * ms;
    let to = spec.end_at.map_or(to, |end| end.0.min(to));
    (first..=to.max(first)).step_by(ms as usize).filter(|at| *at <= to).collect()
}

/// The first occurrence after a moment.
pub(super) fn next_occurrence(spec: &ScheduleSpec<'_>, after: u64) -> Option<u64> {
    let Rhythm::Every { ms } = spec.rhythm else { return None };
    let start = spec.start_at.map_or(0, |at| at.0);
    occurrences(spec, after + 1, (after + ms).max(start)).first().copied()
}
