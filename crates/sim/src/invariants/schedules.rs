//! The invariants of schedules: each occurrence starts at most one run, even after crashes. A run
//! never starts early, never while its schedule is paused, spent or removed, and never beside a run
//! for which its policy waits. A live schedule keeps firing.

use super::Violation;
use crate::every::Every;
use crate::shard::Applied;
use std::collections::{BTreeMap, BTreeSet};
use taskyard_machine::{
    Command, Entry, EventKind, Machine, Occurrences, Outcome, Overlap, Rejection, ScheduleSpec,
    SetSchedule, ShardId, TaskId, Timestamp,
};

/// The number of fires after the faults that prove a schedule alive: each time the earlier run has
/// ended.
const GOES_ON: u64 = 3;

/// A schedule's name and an occurrence, as in the headers of its run.
pub(crate) type Occurrence = (String, String);

#[derive(Debug)]
struct Schedule {
    /// The number of its life: a schedule that was removed and set again is another one.
    life: u64,
    every: Every,
    /// All rules that it ever had, because waiting occurrences may come from earlier ones.
    everies: Vec<Every>,
    revision: u64,
    overlap: Overlap,
    paused: bool,
    runs_asked: Option<u64>,
    runs_left: Option<u64>,
    /// Runs for which its policy waits, until all are known to have ended.
    watched: BTreeSet<TaskId>,
    fired: u64,
    skipped: u64,
    /// How often it has fired since the faults ended.
    went_on: u64,
}

impl Schedule {
    fn new(spec: &ScheduleSpec<'_>, life: u64) -> Schedule {
        Schedule {
            life,
            every: Every::of(spec),
            everies: vec![Every::of(spec)],
            revision: 1,
            overlap: spec.overlap,
            paused: false,
            runs_asked: spec.remaining_runs,
            runs_left: spec.remaining_runs,
            watched: BTreeSet::new(),
            fired: 0,
            skipped: 0,
            went_on: 0,
        }
    }

    fn change(&mut self, spec: &ScheduleSpec<'_>) {
        self.every = Every::of(spec);
        self.everies.push(self.every);
        self.revision += 1;
        self.overlap = spec.overlap;
        if self.runs_asked != spec.remaining_runs {
            self.runs_left = spec.remaining_runs;
        }
        self.runs_asked = spec.remaining_runs;
    }

    /// Whether the schedule must keep firing.
    fn is_going(&self) -> bool {
        !self.paused && self.runs_left != Some(0) && !self.every.has_end()
    }
}

/// The account of the schedules of one run.
#[derive(Debug, Default)]
pub(super) struct Schedules {
    known: BTreeMap<String, Schedule>,
    lives: u64,
    /// Occurrences, by life, that have fired or were skipped.
    decided: BTreeSet<(u64, Timestamp)>,
    /// How many runs each occurrence may have: by its time, by hand, by backfills.
    promised: BTreeMap<Occurrence, u64>,
    made: BTreeMap<Occurrence, u64>,
    /// Runs that were gone by the end of the entry that made them, so that their occurrence is
    /// unknown.
    vanished: u64,
    /// When each run may first start.
    starts: BTreeMap<TaskId, Timestamp>,
    /// Runs on other shards than their schedules' that have not ended.
    elsewhere: BTreeSet<TaskId>,
    /// Tasks that have ended at least once.
    ended: BTreeSet<TaskId>,
}

impl Schedules {
    /// Follows an entry of any shard, and returns the runs that it promises. A command that changes
    /// rules has an entry of its own, so that the rules are known for each event.
    pub(super) fn judge(
        &mut self,
        shard: u16,
        entry: &Entry<'_>,
        applied: &Applied,
        seen: &mut BTreeMap<&'static str, u64>,
    ) -> Result<Vec<TaskId>, Violation> {
        let mut promised = Vec::new();
        for (command, outcome) in entry.commands.iter().zip(&applied.outcomes) {
            if let Ok(outcome) = outcome {
                self.judge_next(command, outcome, entry.now)?;
            }
            if let Some(word) = self.learn(command, outcome, entry.now, &mut promised) {
                *seen.entry(word).or_default() += 1;
            }
        }
        for event in &applied.events {
            match &event.kind {
                EventKind::ScheduleFired { name, occurrence_at, task } => {
                    self.fired(name, *occurrence_at, *task, entry.now)?;
                    promised.push(*task);
                    if task.home.0 != shard {
                        self.elsewhere.insert(*task);
                    }
                    if !entry.commands.iter().any(|command| carries(command, *occurrence_at)) {
                        *seen.entry("waiting occurrence fired").or_default() += 1;
                    }
                }
                EventKind::ScheduleSkipped(name, at) => self.skipped(name, *at, ShardId(shard))?,
                EventKind::TaskSucceeded(task, _)
                | EventKind::TaskFailed(task)
                | EventKind::TaskDied(task, _)
                | EventKind::TaskCancelled(task)
                | EventKind::TaskExpired(task)
                | EventKind::TaskRemoved(task) => {
                    self.ended.insert(task.id);
                    if self.elsewhere.remove(&task.id) {
                        *seen.entry("run ended elsewhere").or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        self.judge_made(applied)?;
        Ok(promised)
    }

    /// Checks that new rules, and a schedule after a pause, begin with their first occurrence after
    /// the shard's time. The clock of the client does not count.
    fn judge_next(
        &self,
        command: &Command<'_>,
        outcome: &Outcome,
        now: Timestamp,
    ) -> Result<(), Violation> {
        let (name, every, next) = match (command, outcome) {
            (Command::SetSchedule(set), Outcome::ScheduleSet { is_changed: true, .. }) => {
                (set.name, Every::of(&set.spec), Some(set.next_run_at))
            }
            (Command::ResumeSchedule(resume), _) => match self.known.get(resume.name) {
                Some(known) if known.paused => (resume.name, known.every, resume.next_run_at),
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        let first = every.next_after(now);
        if first.is_some_and(|first| next.is_none_or(|next| next > first)) {
            return Err(format!("{name} continues at {next:?}, its next occurrence is {first:?}"));
        }
        Ok(())
    }

    /// Takes in what a command has changed, and says it in words.
    fn learn(
        &mut self,
        command: &Command<'_>,
        outcome: &Result<Outcome, Rejection>,
        now: Timestamp,
        promised: &mut Vec<TaskId>,
    ) -> Option<&'static str> {
        if let (Command::FireSchedule(_), Err(Rejection::ScheduleChanged { .. })) =
            (command, outcome)
        {
            return Some("stale fire");
        }
        match (command, outcome.as_ref().ok()?) {
            (Command::SetSchedule(set), Outcome::ScheduleSet { is_new, is_changed }) => {
                Some(self.set(set, *is_new, *is_changed))
            }
            (Command::PauseSchedule(pause), _) => {
                self.known.get_mut(pause.name)?.paused = true;
                Some("schedule paused")
            }
            (Command::ResumeSchedule(resume), _) => {
                let known = self.known.get_mut(resume.name)?;
                std::mem::take(&mut known.paused).then_some("schedule resumed")
            }
            (Command::RemoveSchedule(remove), _) => {
                self.known.remove(remove.name);
                Some("schedule removed")
            }
            (Command::TriggerSchedule(trigger), Outcome::Enqueued(made)) => {
                let known = self.known.get_mut(trigger.name)?;
                if known.overlap != Overlap::Allow {
                    known.watched.insert(made.id);
                }
                self.promise(trigger.name, now);
                promised.push(made.id);
                Some("schedule triggered")
            }
            (Command::BackfillSchedule(backfill), _) => {
                backfill.occurrences.iter().for_each(|at| self.promise(backfill.name, *at));
                Some("schedule backfilled")
            }
            _ => None,
        }
    }

    fn set(&mut self, set: &SetSchedule<'_>, is_new: bool, is_changed: bool) -> &'static str {
        match self.known.get_mut(set.name) {
            Some(known) if is_changed && !is_new => {
                known.change(&set.spec);
                "schedule changed"
            }
            _ if is_new => {
                self.lives += 1;
                self.known.insert(set.name.to_owned(), Schedule::new(&set.spec, self.lives));
                "schedule set"
            }
            _ => "schedule set again",
        }
    }

    fn promise(&mut self, name: &str, at: Timestamp) {
        *self.promised.entry((name.to_owned(), at.to_rfc3339())).or_default() += 1;
    }

    fn fired(
        &mut self,
        name: &str,
        at: Timestamp,
        task: TaskId,
        now: Timestamp,
    ) -> Result<(), Violation> {
        self.promise(name, at);
        self.starts.insert(task, at);
        let what = format!("occurrence {} of {name}", at.to_rfc3339());
        let known = self.known.get_mut(name).ok_or_else(|| format!("{what} of no schedule"))?;
        if !self.decided.insert((known.life, at)) {
            return Err(format!("{what} fires and was decided before"));
        }
        if at > now {
            return Err(format!("{what} fires {} ms early", at.ms_since(now)));
        }
        if !known.everies.iter().any(|every| every.names(at)) {
            return Err(format!("{what} fires and is none of its occurrences"));
        }
        if known.paused {
            return Err(format!("{what} fires while it is paused"));
        }
        known.runs_left = match known.runs_left {
            Some(0) => return Err(format!("{what} fires and no runs are left")),
            left => left.map(|left| left - 1),
        };
        if known.overlap != Overlap::Allow {
            if let Some(run) = known.watched.iter().find(|run| !self.ended.contains(*run)) {
                return Err(format!("{what} fires beside {run}, which has not ended"));
            }
            known.watched = BTreeSet::from([task]);
        }
        known.fired += 1;
        known.went_on += 1;
        Ok(())
    }

    /// Checks a skip: the shard may not know of an end on another shard yet, but it knows of one on
    /// its own.
    fn skipped(&mut self, name: &str, at: Timestamp, shard: ShardId) -> Result<(), Violation> {
        let what = format!("occurrence {} of {name}", at.to_rfc3339());
        let known = self.known.get_mut(name).ok_or_else(|| format!("{what} of no schedule"))?;
        if !self.decided.insert((known.life, at)) {
            return Err(format!("{what} is skipped and was decided before"));
        }
        let mut watched = known.watched.iter();
        if !watched.any(|run| run.home != shard || !self.ended.contains(run)) {
            return Err(format!("{what} is skipped and all runs have ended"));
        }
        known.skipped += 1;
        Ok(())
    }

    /// Checks that every enqueued run was promised.
    fn judge_made(&mut self, applied: &Applied) -> Result<(), Violation> {
        for (task, occurrence) in &applied.runs {
            let Some(occurrence) = occurrence else {
                self.vanished += 1;
                continue;
            };
            let made = self.made.entry(occurrence.clone()).or_default();
            *made += 1;
            let promised = self.promised.get(occurrence).copied().unwrap_or(0);
            if *made > promised {
                let (name, at) = occurrence;
                return Err(format!(
                    "{task} is run {made} of occurrence {at} of {name}, {promised} were promised"
                ));
            }
            let start = self.starts.get(task).map(|at| at.to_rfc3339());
            if start.is_some_and(|start| start != occurrence.1) {
                return Err(format!("{task} says that it is of {occurrence:?}"));
            }
        }
        Ok(())
    }

    /// When a run may first start.
    pub(super) fn starts_at(&self, task: TaskId) -> Option<Timestamp> {
        self.starts.get(&task).copied()
    }

    /// A schedule as a gateway sees it: its occurrences, and the version of its rules.
    pub(super) fn find(&self, name: &str) -> Option<(Every, u64)> {
        self.known.get(name).map(|known| (known.every, known.revision))
    }

    /// Ends the faults.
    pub(super) fn heal(&mut self) {
        self.known.values_mut().for_each(|known| known.went_on = 0);
    }

    /// The first live schedule that has not fired enough since the faults ended.
    pub(super) fn stuck(&self) -> Option<&str> {
        let mut all = self.known.iter();
        all.find(|(_, known)| known.is_going() && known.went_on < GOES_ON)
            .map(|(name, _)| name.as_str())
    }

    /// The first schedule that is not paused.
    pub(super) fn unpaused(&self) -> Option<&str> {
        self.known.iter().find(|(_, known)| !known.paused).map(|(name, _)| name.as_str())
    }

    /// Checks at the end that every promised run was made.
    pub(super) fn check_end(&self) -> Result<(), Violation> {
        let promised: u64 = self.promised.values().sum();
        let made = self.made.values().sum::<u64>() + self.vanished;
        if made < promised {
            return Err(format!("{promised} runs of schedules were promised, {made} were made"));
        }
        Ok(())
    }

    /// Checks at the end, when no run is left, that the machine's counts equal this account's and
    /// that no schedule waits.
    pub(super) fn check_machine(&self, shard: u16, machine: &Machine) -> Result<(), Violation> {
        for view in machine.all_schedules() {
            let name = &view.name;
            let known = self.known.get(name).ok_or_else(|| format!("schedule {name} is back"))?;
            if let Some(run) = view.live.first() {
                return Err(format!("schedule {name} on shard {shard} waits for {run} for ever"));
            }
            let shown = (view.revision, view.paused, view.remaining_runs, view.fired, view.skipped);
            let expected =
                (known.revision, known.paused, known.runs_left, known.fired, known.skipped);
            if shown != expected {
                return Err(format!("schedule {name} is {shown:?}, not {expected:?}"));
            }
        }
        Ok(())
    }
}

/// Whether a leader proposes this occurrence here.
fn carries(command: &Command<'_>, at: Timestamp) -> bool {
    matches!(command, Command::FireSchedule(fire) if fire.occurrences.contains(&at))
}
