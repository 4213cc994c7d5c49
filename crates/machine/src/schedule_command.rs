//! Commands for schedules, and the rules of a schedule.
//!
//! The machine parses no cron expression. The proposing leader computes occurrences from the rules
//! and puts them into the command, so that replicas agree even with different time zone data.

use crate::wire::{Reader, Wire, wire_struct, wire_words};
use crate::{DecodeError, Enqueue, ShardId, Timestamp};

/// When a schedule has occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rhythm<'a> {
    /// By a cron expression, in the local time of a zone.
    Cron {
        /// Five or six fields, or a macro.
        expression: &'a str,
        /// The zone's IANA name.
        timezone: &'a str,
    },
    /// At `start_at`, or else at 1970-01-01T00:00:00Z, and at regular intervals from there.
    Every {
        /// The interval.
        ms: u64,
    },
}

/// What happens at an occurrence while an earlier run has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// The occurrence is skipped.
    #[default]
    Skip,
    /// The newest occurrence waits for the end of the run; others are skipped.
    BufferOne,
    /// The new run starts beside the others.
    Allow,
    /// The run is cancelled, and the newest occurrence waits for its end.
    CancelOther,
}

/// What happens to occurrences that passed while no leader could fire them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// All are missed.
    None,
    /// The last one fires if it is inside the window; the others are missed.
    #[default]
    Last,
    /// All inside the window fire; the others are missed.
    All,
}

impl Overlap {
    /// Every policy, with its name, the same on every front.
    pub const WORDS: [(Overlap, &'static str); 4] = [
        (Overlap::Skip, "skip"),
        (Overlap::BufferOne, "buffer_one"),
        (Overlap::Allow, "allow"),
        (Overlap::CancelOther, "cancel_other"),
    ];
}

impl CatchUp {
    /// Every policy, with its name, the same on every front.
    pub const WORDS: [(CatchUp, &'static str); 3] =
        [(CatchUp::None, "none"), (CatchUp::Last, "last"), (CatchUp::All, "all")];
}

/// The rules of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleSpec<'a> {
    /// When it has occurrences.
    pub rhythm: Rhythm<'a>,
    /// The shard of the task's queue.
    pub home: ShardId,
    /// The task of each run, and its queue. The task has no `run_at`, `expires_at`, `request_id` or
    /// `unique`, because the schedule decides when the task runs and how it is identified.
    pub enqueue: Enqueue<'a>,
    /// What happens while an earlier run has not ended.
    pub overlap: Overlap,
    /// What happens to occurrences that passed without a run.
    pub catch_up: CatchUp,
    /// How late an occurrence may still fire, for `Last` and `All`. Under every rule, an occurrence
    /// that is at most `SCHEDULE_LATE_MS_MAX` late counts as on time.
    pub catch_up_window_ms: u64,
    /// Each run starts up to this long after its occurrence; the delay is drawn from name and
    /// occurrence.
    pub jitter_ms: u64,
    /// No occurrence is before this.
    pub start_at: Option<Timestamp>,
    /// No occurrence is after this.
    pub end_at: Option<Timestamp>,
    /// How many occurrences fire before the schedule ends; no bound by default.
    pub remaining_runs: Option<u64>,
}

/// See [`crate::Command::SetSchedule`].
#[derive(Clone, Debug, PartialEq)]
pub struct SetSchedule<'a> {
    /// The schedule's name.
    pub name: &'a str,
    /// The schedule's rules.
    pub spec: ScheduleSpec<'a>,
    /// The leader's time from which `next_run_at` was looked for. A leader that has not got there
    /// yet refuses, or the occurrences up to there would be lost and not counted.
    pub from: Timestamp,
    /// The first occurrence after `from`. Not used while the rhythm stays what it was.
    pub next_run_at: Timestamp,
}

/// See [`crate::Command::FireSchedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FireSchedule<'a> {
    /// The schedule's name.
    pub name: &'a str,
    /// The version of the rules from which the occurrences were computed.
    pub revision: u64,
    /// The due occurrences, in order. The first one is the schedule's next occurrence. Occurrences
    /// after it that can only be missed are left out.
    pub occurrences: Vec<Timestamp>,
    /// The number of occurrences that were left out, as far as they were counted.
    pub left_out: u64,
    /// The occurrence after the last one; `None` if there is none.
    pub next_run_at: Option<Timestamp>,
}

/// See [`crate::Command::RemoveSchedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveSchedule<'a> {
    /// The schedule's name.
    pub name: &'a str,
}

/// See [`crate::Command::PauseSchedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseSchedule<'a> {
    /// The schedule's name.
    pub name: &'a str,
    /// The reason, for people.
    pub note: &'a str,
}

/// See [`crate::Command::ResumeSchedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeSchedule<'a> {
    /// The schedule's name.
    pub name: &'a str,
    /// The version of the rules from which the next occurrence was computed.
    pub revision: u64,
    /// As for [`SetSchedule`].
    pub from: Timestamp,
    /// The first occurrence after `from`; `None` if there is none.
    pub next_run_at: Option<Timestamp>,
}

/// See [`crate::Command::TriggerSchedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriggerSchedule<'a> {
    /// The schedule's name.
    pub name: &'a str,
}

/// See [`crate::Command::BackfillSchedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackfillSchedule<'a> {
    /// The schedule's name.
    pub name: &'a str,
    /// The version of the rules from which the occurrences were computed.
    pub revision: u64,
    /// Past occurrences, in order.
    pub occurrences: Vec<Timestamp>,
}

wire_words!(Overlap { 1 => Skip, 2 => BufferOne, 3 => Allow, 4 => CancelOther });
wire_words!(CatchUp { 1 => None, 2 => Last, 3 => All });
wire_struct!(ScheduleSpec<'a> {
    rhythm,
    home,
    enqueue,
    overlap,
    catch_up,
    catch_up_window_ms,
    jitter_ms,
    start_at,
    end_at,
    remaining_runs,
});
wire_struct!(SetSchedule<'a> { name, spec, from, next_run_at });
wire_struct!(FireSchedule<'a> { name, revision, occurrences, left_out, next_run_at });
wire_struct!(RemoveSchedule<'a> { name });
wire_struct!(PauseSchedule<'a> { name, note });
wire_struct!(ResumeSchedule<'a> { name, revision, from, next_run_at });
wire_struct!(TriggerSchedule<'a> { name });
wire_struct!(BackfillSchedule<'a> { name, revision, occurrences });

impl<'a> Wire<'a> for Rhythm<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Rhythm::Cron { expression, timezone } => {
                out.push(1);
                (expression, timezone).write(out);
            }
            Rhythm::Every { ms } => (2u8, ms).write(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Rhythm<'a>, DecodeError> {
        match reader.byte()? {
            1 => Ok(Rhythm::Cron { expression: reader.read()?, timezone: reader.read()? }),
            2 => Ok(Rhythm::Every { ms: reader.read()? }),
            other => Err(reader.error(format_args!("unknown rhythm {other}"))),
        }
    }
}
