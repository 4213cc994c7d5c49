//! Firing: a leader proposes `FireSchedule` when occurrences of its shard's schedules are due.
//!
//! The leader computes the due occurrences from the schedule's rules and sends them in the command.
//! A command may be lost or refused (a restart, changed rules): the machine then still has the
//! occurrence as its next, and the leader proposes it again. So each occurrence is decided once.

use crate::{Error, schedule::Timetable};
use taskyard_machine::{
    Command, DueSchedule, EncodedCommand, FireSchedule, Machine, PauseSchedule, Timestamp,
    limits::OCCURRENCES_PER_ENTRY_MAX,
};

/// The pause after a refusal, so that a schedule that stays due does not spin the loop.
const PAUSE_MS: u64 = 20;

/// Schedules proposed at once, because computing their occurrences delays the loop.
const AT_ONCE_MAX: usize = 100;

/// The firing of one shard's schedules, on its leader.
#[derive(Debug, Default)]
pub(crate) struct Firing {
    in_flight: usize,
    not_before: Timestamp,
}

impl Firing {
    /// When to propose next.
    pub(crate) fn next(&self, machine: &Machine) -> Option<Timestamp> {
        if self.in_flight > 0 {
            return None;
        }
        machine.next_schedule().map(|due| due.max(self.not_before))
    }

    /// The commands to propose now; they count as in flight.
    pub(crate) fn take_due(&mut self, machine: &Machine, now: Timestamp) -> Vec<EncodedCommand> {
        if self.next(machine).is_none_or(|due| due > now) {
            return Vec::new();
        }
        let mut occurrences = 0;
        let mut commands = Vec::new();
        for due in machine.schedules_due(now).take(AT_ONCE_MAX) {
            if occurrences >= OCCURRENCES_PER_ENTRY_MAX {
                break;
            }
            commands.push(match fire(&due, now) {
                Ok(fire) => {
                    occurrences += fire.occurrences.len();
                    EncodedCommand::new(&Command::FireSchedule(fire))
                }
                Err(error) => given_up(&due, &error),
            });
        }
        self.in_flight = commands.len();
        commands
    }

    /// A command was decided, refused or lost.
    pub(crate) fn done(&mut self, is_accepted: bool, now: Timestamp) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.not_before = if is_accepted { Timestamp(0) } else { now.plus_ms(PAUSE_MS) };
    }
}

/// The due occurrences of a schedule, if its rules can be read.
fn fire<'m>(due: &DueSchedule<'m>, now: Timestamp) -> Result<FireSchedule<'m>, Error> {
    let spec = &due.spec;
    let timetable = Timetable::new(&spec.rhythm, spec.start_at, spec.end_at)?;
    Ok(due.fire(&timetable, now))
}

/// Pauses a schedule whose rules this version can't read, so that an operator looks at them.
fn given_up(due: &DueSchedule<'_>, error: &Error) -> EncodedCommand {
    tracing::error!("schedule {} is paused, because its rules can't be read: {error}", due.name);
    let note = format!("paused by the broker: {error}");
    EncodedCommand::new(&Command::PauseSchedule(PauseSchedule { name: due.name, note: &note }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_machine::{
        CatchUp, Enqueue, Entry, EntryBuilder, Identity, NewTask, NoPayloads, Outcome, Overlap,
        Rhythm, ScheduleSpec, SetSchedule, ShardId,
    };

    const MINUTE: u64 = 60_000;
    const DAY: u64 = 1_440 * MINUTE;
    /// A whole minute.
    const START: u64 = 1_700_000_040_000;

    fn spec(catch_up: CatchUp, catch_up_window_ms: u64) -> ScheduleSpec<'static> {
        let task = NewTask { task_type: "t", ..NewTask::default() };
        ScheduleSpec {
            rhythm: Rhythm::Cron { expression: "* * * * *", timezone: "UTC" },
            home: ShardId(0),
            enqueue: Enqueue { queue: "q", task },
            overlap: Overlap::Allow,
            catch_up,
            catch_up_window_ms,
            jitter_ms: 0,
            start_at: None,
            end_at: None,
            remaining_runs: None,
        }
    }

    struct Shard(Machine);

    impl Shard {
        fn apply(&mut self, now: u64, command: &EncodedCommand) -> Outcome {
            let mut entry = EntryBuilder::new(Timestamp(now));
            assert!(entry.push(command));
            let entry = entry.finish();
            let entry = Entry::decode(&entry).unwrap();
            self.0.apply(&entry, &mut NoPayloads, &mut Vec::new()).remove(0).unwrap()
        }

        /// A shard with one schedule, due a minute after the start.
        fn with(spec: ScheduleSpec<'_>) -> Shard {
            let identity = Identity { incarnation: 1, shard: ShardId(0), shards: 8 };
            let mut shard = Shard(Machine::new(identity));
            let next_run_at = Timestamp(START + MINUTE);
            let set = SetSchedule { name: "s", spec, from: Timestamp(0), next_run_at };
            shard.apply(START, &EncodedCommand::new(&Command::SetSchedule(set)));
            shard
        }

        /// Fires all that is due. Returns the numbers of entries, fired and missed occurrences.
        fn fire_all(&mut self, now: u64) -> (usize, u64, u64) {
            let mut firing = Firing::default();
            let (mut entries, mut fired, mut missed) = (0, 0, 0);
            loop {
                let commands = firing.take_due(&self.0, Timestamp(now));
                if commands.is_empty() {
                    return (entries, fired, missed);
                }
                assert_eq!(firing.next(&self.0), None, "one round at a time");
                for command in commands {
                    let Outcome::ScheduleFired { fired: some, missed: others, .. } =
                        self.apply(now, &command)
                    else {
                        panic!("a fire is answered with what became of it")
                    };
                    firing.done(true, Timestamp(now));
                    (entries, fired, missed) = (entries + 1, fired + some, missed + others);
                }
            }
        }
    }

    #[test]
    fn an_outage_costs_few_entries_whatever_passed() {
        let hour = 60 * MINUTE;
        for (catch_up, window_ms, outage_ms, expected) in [
            (CatchUp::Last, hour, MINUTE, (1, 1, 0)),
            (CatchUp::Last, hour, 10 * MINUTE, (1, 1, 9)),
            (CatchUp::Last, 0, 10 * MINUTE + 10_000, (1, 1, 9)),
            (CatchUp::Last, 0, 10 * MINUTE + 10_001, (1, 0, 10)),
            (CatchUp::None, hour, 10 * MINUTE, (1, 1, 9)),
            (CatchUp::None, hour, 10 * MINUTE + 30_000, (1, 0, 10)),
            (CatchUp::All, hour, 10 * MINUTE, (1, 10, 0)),
            (CatchUp::All, 5 * MINUTE, 10 * MINUTE, (1, 6, 4)),
            (CatchUp::All, 0, 10 * MINUTE + 10_000, (1, 1, 9)),
            (CatchUp::All, 2 * DAY, 2 * DAY, (3, 2_880, 0)),
            // A year of minutes: all but the last can only be missed, and are counted up to a
            // bound.
            (CatchUp::Last, hour, 365 * DAY, (1, 1, 1_001)),
        ] {
            let mut shard = Shard::with(spec(catch_up, window_ms));
            let told = shard.fire_all(START + outage_ms);
            assert_eq!(told, expected, "{catch_up:?} within {window_ms} after {outage_ms}");
            let after = shard.0.schedule("s").unwrap();
            let next = after.next_run_at.unwrap().0;
            assert!(next > START + outage_ms && next <= START + outage_ms + MINUTE);
        }
    }

    #[test]
    fn an_interval_counts_all_that_passed() {
        let rhythm = Rhythm::Every { ms: 1_000 };
        let mut shard = Shard::with(ScheduleSpec { rhythm, ..spec(CatchUp::Last, 60_000) });
        assert_eq!(shard.fire_all(START + 30 * DAY), (1, 1, 30 * DAY / 1_000 - 60));
    }

    #[test]
    fn rules_that_can_not_be_read_pause_the_schedule() {
        let rhythm = Rhythm::Cron { expression: "* * * * *", timezone: "Mars/Base" };
        let mut shard = Shard::with(ScheduleSpec { rhythm, ..spec(CatchUp::Last, 60_000) });
        let now = Timestamp(START + MINUTE);
        for command in Firing::default().take_due(&shard.0, now) {
            assert_eq!(shard.apply(now.0, &command), Outcome::Done);
        }
        let paused = shard.0.schedule("s").unwrap();
        assert!(paused.paused && paused.note.contains("Mars/Base"), "{}", paused.note);
    }

    #[test]
    fn a_schedule_that_has_its_end_is_not_due_again() {
        let end_at = Some(Timestamp(START + 3 * MINUTE));
        let mut shard = Shard::with(ScheduleSpec { end_at, ..spec(CatchUp::All, DAY) });
        assert_eq!(shard.fire_all(START + DAY), (1, 3, 0));
        assert_eq!(shard.0.next_schedule(), None);
    }

    #[test]
    fn a_refused_fire_is_tried_again_after_a_while() {
        let shard = Shard::with(spec(CatchUp::Last, DAY));
        let now = Timestamp(START + MINUTE);
        let mut firing = Firing::default();
        assert_eq!(firing.take_due(&shard.0, now).len(), 1);
        assert!(firing.take_due(&shard.0, now).is_empty(), "it is in flight");
        firing.done(false, now);
        assert_eq!(firing.next(&shard.0), Some(now.plus_ms(PAUSE_MS)));
        assert_eq!(firing.take_due(&shard.0, now.plus_ms(PAUSE_MS)).len(), 1);
    }
}
