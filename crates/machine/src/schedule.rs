//! Schedules: their records, and how they are set, paused, resumed and removed.
//!
//! Invariant: `next_run_at` is the first undecided occurrence. It exists exactly while the schedule
//! is not paused, has runs left and has an occurrence ahead. A decided occurrence is never decided
//! again, whatever `next_run_at` is set to.

#[cfg(test)]
mod tests;

use crate::enqueue::{at_most_bytes, parse_queue};
use crate::kept::Keep;
use crate::limits::*;
use crate::rejection::at_most;
use crate::turn::Turn;
use crate::wire::{decode, encode, wire_struct};
use crate::{
    Enqueue, Machine, Outcome, PauseSchedule, QueueName, Rejection, RemoveSchedule, ResumeSchedule,
    Rhythm, ScheduleSpec, SetSchedule, TaskId, Timestamp, When,
};
use xxhash_rust::xxh3::xxh3_128;

/// Headers of every run of a schedule: its name, and the occurrence as RFC 3339.
pub const SCHEDULE_HEADERS: [&str; 2] = ["taskyard-schedule", "taskyard-occurrence-at"];

/// The record of one schedule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule {
    pub(crate) name: Box<str>,
    /// A [`ScheduleSpec`], encoded, so that equal rules are equal bytes.
    pub(crate) spec: Box<[u8]>,
    /// The version of the rules; each change raises it.
    pub(crate) revision: u64,
    pub(crate) remaining_runs: Option<u64>,
    pub(crate) paused: bool,
    pub(crate) note: Box<str>,
    pub(crate) created_at: Timestamp,
    pub(crate) next_run_at: Option<Timestamp>,
    /// All occurrences up to this moment are decided.
    pub(crate) decided_until: Timestamp,
    pub(crate) last_run_at: Option<Timestamp>,
    pub(crate) last_task: Option<TaskId>,
    /// Runs that have not ended. Empty while runs may overlap, because nothing needs it then.
    pub(crate) live: Vec<TaskId>,
    /// The occurrence that waits for the end of the live runs.
    pub(crate) buffered: Option<Timestamp>,
    pub(crate) fired: u64,
    pub(crate) skipped: u64,
    pub(crate) missed: u64,
}

wire_struct!(Schedule {
    name,
    spec,
    revision,
    remaining_runs,
    paused,
    note,
    created_at,
    next_run_at,
    decided_until,
    last_run_at,
    last_task,
    live,
    buffered,
    fired,
    skipped,
    missed,
});

impl Keep for Schedule {
    type Key = u128;
    const KIND: u8 = 22;

    /// The time index sorts schedules by their next occurrence. Time alone never removes a
    /// schedule.
    fn expires_at(&self) -> Option<Timestamp> {
        self.next_run_at
    }

    fn heap_bytes(&self) -> usize {
        self.name.len() + self.spec.len() + self.note.len() + self.live.len() * size_of::<TaskId>()
    }
}

impl Schedule {
    fn new(set: &SetSchedule<'_>, spec: Box<[u8]>, now: Timestamp) -> Schedule {
        Schedule {
            name: set.name.into(),
            spec,
            revision: 1,
            remaining_runs: set.spec.remaining_runs,
            paused: false,
            note: "".into(),
            created_at: now,
            next_run_at: Some(set.next_run_at),
            decided_until: Timestamp(0),
            last_run_at: None,
            last_task: None,
            live: Vec::new(),
            buffered: None,
            fired: 0,
            skipped: 0,
            missed: 0,
        }
    }

    pub(crate) fn spec(&self) -> ScheduleSpec<'_> {
        decode(&self.spec).expect("the rules were encoded here")
    }

    /// Ends the schedule: no occurrence fires any more.
    pub(crate) fn end(&mut self) {
        (self.next_run_at, self.buffered) = (None, None);
    }

    /// Whether the schedule has fired all its runs.
    pub(crate) fn is_spent(&self) -> bool {
        self.remaining_runs == Some(0)
    }
}

/// The key of a schedule's record.
pub(crate) fn schedule_key(name: &str) -> u128 {
    xxh3_128(name.as_bytes())
}

/// Checks a schedule's name, by the grammar of queue names.
pub fn check_schedule_name(name: &str) -> Result<(), Rejection> {
    QueueName::check(name).map_err(|invalid| {
        Rejection::invalid(invalid.to_string().replacen("a queue name", "a schedule name", 1))
    })
}

impl Turn<'_> {
    pub(crate) fn find_schedule(&self, name: &str) -> Result<&Schedule, Rejection> {
        let found = self.shard.schedules.get(schedule_key(name));
        found.ok_or_else(|| Rejection::ScheduleNotFound { name: name.into() })
    }

    /// Creates a schedule, or gives it new rules and keeps its history. Equal rules change nothing.
    /// A new rhythm is refused while occurrences of the old one are due: they are decided first.
    pub(crate) fn set_schedule(&mut self, set: &SetSchedule<'_>) -> Result<Outcome, Rejection> {
        check_schedule_name(set.name)?;
        set.spec.check(self.shard.identity.shards)?;
        let spec = encode(&set.spec);
        at_most_bytes("the schedule", spec.len(), SCHEDULE_BYTES_MAX)?;
        let key = schedule_key(set.name);
        let Some(schedule) = self.shard.schedules.get(key) else {
            self.check_from(set.name, set.from)?;
            return self.add_schedule(set, spec);
        };
        if schedule.spec == spec {
            return Ok(Outcome::ScheduleSet { is_new: false, is_changed: false });
        }
        self.check_from(set.name, set.from)?;
        let old = schedule.spec();
        let timing = |spec: &ScheduleSpec<'_>| (encode(&spec.rhythm), spec.start_at, spec.end_at);
        let keeps_time = timing(&old) == timing(&set.spec);
        // The old rhythm's occurrences up to now are decided by the old rules, or nobody would
        // count them: only the leader's firing knows which those are.
        if !keeps_time && schedule.next_run_at.is_some_and(|next| next <= self.now) {
            return Err(Rejection::ScheduleChanged { name: set.name.into() });
        }
        let keeps_runs = old.remaining_runs == set.spec.remaining_runs;
        self.shard.schedules.update(key, |schedule| {
            schedule.spec = spec;
            schedule.revision += 1;
            if !keeps_runs {
                schedule.remaining_runs = set.spec.remaining_runs;
            }
            // An occurrence that is due and has not fired stays due.
            if !keeps_time || schedule.next_run_at.is_none() {
                schedule.next_run_at = Some(set.next_run_at);
            }
            if schedule.paused || schedule.is_spent() {
                schedule.next_run_at = None;
            }
        });
        Ok(Outcome::ScheduleSet { is_new: false, is_changed: true })
    }

    fn add_schedule(
        &mut self,
        set: &SetSchedule<'_>,
        spec: Box<[u8]>,
    ) -> Result<Outcome, Rejection> {
        if self.shard.schedules.len() >= SCHEDULES_PER_SHARD_MAX {
            return Err(Rejection::LimitExceeded {
                what: format!(
                    "this shard holds its limit of {SCHEDULES_PER_SHARD_MAX} schedules; remove one"
                ),
            });
        }
        let schedule = Schedule::new(set, spec, self.now);
        self.shard.schedules.insert(schedule_key(set.name), schedule);
        Ok(Outcome::ScheduleSet { is_new: true, is_changed: true })
    }

    /// Refuses a next occurrence that was looked for from a moment which this shard has not
    /// reached: it was computed by another leader's time, and occurrences would pass without being
    /// fired or counted.
    fn check_from(&self, name: &str, from: Timestamp) -> Result<(), Rejection> {
        if from <= self.now {
            return Ok(());
        }
        Err(Rejection::ScheduleChanged { name: name.into() })
    }

    /// Forgets a schedule. The tasks that it fired are left alone.
    pub(crate) fn remove_schedule(
        &mut self,
        remove: RemoveSchedule<'_>,
    ) -> Result<Outcome, Rejection> {
        self.find_schedule(remove.name)?;
        self.shard.schedules.remove(schedule_key(remove.name));
        Ok(Outcome::Done)
    }

    /// Lets occurrences pass without runs. An occurrence that waits for the end of a run keeps
    /// waiting.
    pub(crate) fn pause_schedule(
        &mut self,
        pause: PauseSchedule<'_>,
    ) -> Result<Outcome, Rejection> {
        let schedule = self.find_schedule(pause.name)?;
        at_most_bytes("note", pause.note.len(), SCHEDULE_NOTE_BYTES_MAX)?;
        if schedule.paused && *schedule.note == *pause.note {
            return Ok(Outcome::Done);
        }
        self.shard.schedules.update(schedule_key(pause.name), |schedule| {
            schedule.paused = true;
            schedule.note = pause.note.into();
            schedule.next_run_at = None;
        });
        Ok(Outcome::Done)
    }

    /// Continues with the next occurrence. Occurrences that passed during the pause do not run.
    pub(crate) fn resume_schedule(
        &mut self,
        resume: ResumeSchedule<'_>,
    ) -> Result<Outcome, Rejection> {
        let schedule = self.find_schedule(resume.name)?;
        if !schedule.paused {
            return Ok(Outcome::Done);
        }
        schedule.check_revision(resume.revision)?;
        self.check_from(resume.name, resume.from)?;
        let key = schedule_key(resume.name);
        self.shard.schedules.update(key, |schedule| {
            schedule.paused = false;
            schedule.note = "".into();
            schedule.next_run_at = resume.next_run_at.filter(|_| !schedule.is_spent());
        });
        self.run_buffered(key);
        Ok(Outcome::Done)
    }
}

impl Schedule {
    /// Rejects a command that was computed from other rules.
    pub(crate) fn check_revision(&self, revision: u64) -> Result<(), Rejection> {
        if self.revision == revision {
            return Ok(());
        }
        Err(Rejection::ScheduleChanged { name: self.name.clone() })
    }
}

impl ScheduleSpec<'_> {
    fn check(&self, shards: u16) -> Result<(), Rejection> {
        if self.home.0 >= shards {
            let told = format!("shard {} does not exist; the cluster has {shards}", self.home);
            return Err(Rejection::invalid(told));
        }
        match self.rhythm {
            Rhythm::Cron { expression, timezone } => {
                at_most_bytes("cron", expression.len(), CRON_BYTES_MAX)?;
                at_most_bytes("timezone", timezone.len(), TIMEZONE_BYTES_MAX)?;
            }
            Rhythm::Every { ms } if ms < SCHEDULE_EVERY_MS_MIN => {
                return Err(Rejection::invalid(format!(
                    "every_ms is {ms}; at least {SCHEDULE_EVERY_MS_MIN} is allowed"
                )));
            }
            Rhythm::Every { ms } => at_most("every_ms", ms, HORIZON_MS_MAX)?,
        }
        at_most("catch_up_window_ms", self.catch_up_window_ms, HORIZON_MS_MAX)?;
        at_most("jitter_ms", self.jitter_ms, SCHEDULE_JITTER_MS_MAX)?;
        if let (Some(start_at), Some(end_at)) = (self.start_at, self.end_at)
            && end_at <= start_at
        {
            return Err(Rejection::invalid("end_at is not after start_at; choose a later one"));
        }
        if self.remaining_runs == Some(0) {
            let told = "remaining_runs is 0; leave it out for no bound, or remove the schedule";
            return Err(Rejection::invalid(told));
        }
        self.enqueue.check_template()
    }
}

impl Enqueue<'_> {
    /// Checks the task of a schedule's runs, except for the fields that each occurrence sets.
    fn check_template(&self) -> Result<(), Rejection> {
        parse_queue(self.queue)?;
        let task = &self.task;
        let given = [
            ("run_at", task.run_at != When::Now),
            ("expires_at", task.expires_at.is_some()),
            ("request_id", task.request_id.is_some()),
            ("unique", task.unique.is_some()),
        ];
        if let Some((field, _)) = given.iter().find(|(_, given)| *given) {
            return Err(Rejection::invalid(format!(
                "the task of a schedule has {field}; leave it out, the schedule says when a run starts and what it is"
            )));
        }
        task.check_shape()?;
        let headers = &task.body.headers;
        if let Some((name, _)) = headers.iter().find(|(name, _)| SCHEDULE_HEADERS.contains(name)) {
            let told = format!("the header {name} is set by the schedule itself; leave it out");
            return Err(Rejection::invalid(told));
        }
        let headers_max = HEADERS_MAX - SCHEDULE_HEADERS.len();
        at_most("the number of headers of a schedule", headers.len() as u64, headers_max as u64)
    }
}

/// A schedule that is due.
#[derive(Clone, Debug, PartialEq)]
pub struct DueSchedule<'m> {
    /// The schedule's name.
    pub name: &'m str,
    /// The schedule's rules.
    pub spec: ScheduleSpec<'m>,
    /// The version of the rules.
    pub revision: u64,
    /// The next occurrence.
    pub next_run_at: Timestamp,
}

/// A view of one schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleView {
    /// The schedule's name.
    pub name: String,
    /// The rules, encoded; see [`ScheduleView::spec`].
    pub(crate) spec: Box<[u8]>,
    /// The version of the rules.
    pub revision: u64,
    /// The number of runs before the schedule ends.
    pub remaining_runs: Option<u64>,
    /// Whether occurrences pass without runs.
    pub paused: bool,
    /// Why the schedule is paused.
    pub note: String,
    /// When the schedule was first set.
    pub created_at: Timestamp,
    /// The next occurrence; `None` while paused or after the end.
    pub next_run_at: Option<Timestamp>,
    /// The last occurrence that ran, or the last moment at which an operator triggered a run.
    pub last_run_at: Option<Timestamp>,
    /// The task of that run.
    pub last_task: Option<TaskId>,
    /// Runs that have not ended; empty while runs may overlap.
    pub live: Vec<TaskId>,
    /// The occurrence that waits for the end of the live runs.
    pub buffered: Option<Timestamp>,
    /// The number of occurrences that fired.
    pub fired: u64,
    /// The number of occurrences that did not fire because an earlier run had not ended.
    pub skipped: u64,
    /// The number of occurrences that passed while no leader could fire them.
    pub missed: u64,
}

/// One page of a shard's schedules.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulePage {
    /// The schedules, by name.
    pub schedules: Vec<ScheduleView>,
    /// The name after which the next page starts; `None` is the end. A page may be short and still
    /// have a next one.
    pub next: Option<String>,
}

wire_struct!(SchedulePage { schedules, next });
wire_struct!(
    ScheduleView {
        name,
        spec,
        revision,
        remaining_runs,
        paused,
        note,
        created_at,
        next_run_at,
        last_run_at,
        last_task,
        live,
        buffered,
        fired,
        skipped,
        missed,
    },
    ScheduleView::check
);

impl ScheduleView {
    /// Checks that the rules decode, because they may come from another node.
    fn check(&self) -> Result<(), String> {
        let checked = decode::<ScheduleSpec<'_>>(&self.spec).map(drop);
        checked.map_err(|error| format!("rules of a schedule that can't be read: {}", error.what))
    }

    /// The schedule's rules.
    pub fn spec(&self) -> ScheduleSpec<'_> {
        decode(&self.spec)
            .expect("the rules were encoded by a machine, or checked when they were read")
    }
}

impl From<&Schedule> for ScheduleView {
    fn from(schedule: &Schedule) -> ScheduleView {
        ScheduleView {
            name: schedule.name.clone().into(),
            spec: schedule.spec.clone(),
            revision: schedule.revision,
            remaining_runs: schedule.remaining_runs,
            paused: schedule.paused,
            note: schedule.note.clone().into(),
            created_at: schedule.created_at,
            next_run_at: schedule.next_run_at,
            last_run_at: schedule.last_run_at,
            last_task: schedule.last_task,
            live: schedule.live.clone(),
            buffered: schedule.buffered,
            fired: schedule.fired,
            skipped: schedule.skipped,
            missed: schedule.missed,
        }
    }
}

impl Machine {
    /// When the first schedule is due; it may have passed.
    pub fn next_schedule(&self) -> Option<Timestamp> {
        self.schedules.next_due()
    }

    /// Schedules that are due, the most overdue first.
    pub fn schedules_due(&self, now: Timestamp) -> impl Iterator<Item = DueSchedule<'_>> {
        self.schedules.due(now).map(|(next_run_at, schedule)| DueSchedule {
            name: &schedule.name,
            spec: schedule.spec(),
            revision: schedule.revision,
            next_run_at,
        })
    }

    /// One schedule.
    pub fn schedule(&self, name: &str) -> Option<ScheduleView> {
        self.schedules.get(schedule_key(name)).map(ScheduleView::from)
    }

    /// All schedules, ordered by name, whatever that costs.
    pub fn all_schedules(&self) -> Vec<ScheduleView> {
        let mut all: Vec<ScheduleView> =
            self.schedules.iter().map(|(_, schedule)| ScheduleView::from(schedule)).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Schedules after `after`, ordered by name. A page ends early when its rules have
    /// `LOOK_BYTES_MAX`.
    pub fn schedules(&self, after: Option<&str>, limit: usize) -> SchedulePage {
        let limit = limit.clamp(1, PAGE_TASKS_MAX);
        let all = self.schedules.iter().map(|(_, schedule)| schedule);
        let mut found: Vec<&Schedule> =
            all.filter(|schedule| after.is_none_or(|after| *schedule.name > *after)).collect();
        // One more than asked for tells whether there are more.
        if found.len() > limit {
            found.select_nth_unstable_by(limit, |a, b| a.name.cmp(&b.name));
            found.truncate(limit + 1);
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let (mut schedules, mut bytes) = (Vec::new(), 0);
        for schedule in found {
            if schedules.len() == limit || bytes >= LOOK_BYTES_MAX {
                let next = schedules.last().map(|last: &ScheduleView| last.name.clone());
                return SchedulePage { schedules, next };
            }
            bytes += schedule.spec.len();
            schedules.push(ScheduleView::from(schedule));
        }
        SchedulePage { schedules, next: None }
    }

    /// Checks the invariants between the parts of each schedule.
    pub(crate) fn check_schedules(&self) -> Result<(), String> {
        for (key, schedule) in self.schedules.iter() {
            let name = &schedule.name;
            if key != schedule_key(name) {
                return Err(format!("schedule {name} is kept under another name"));
            }
            if decode::<ScheduleSpec<'_>>(&schedule.spec).is_err() {
                return Err(format!("the rules of schedule {name} can't be read"));
            }
            if schedule.next_run_at.is_some() && (schedule.paused || schedule.is_spent()) {
                return Err(format!("schedule {name} has ended or is paused, and would fire"));
            }
            if schedule.buffered.is_some() && schedule.live.is_empty() && !schedule.paused {
                return Err(format!("schedule {name} waits for the end of no run"));
            }
        }
        self.schedules.check()
    }
}
