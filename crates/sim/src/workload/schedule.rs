//! Schedules with a few names: set, changed, set again without a change, paused, resumed,
//! triggered, backfilled and removed. The client computes the next occurrence by its own clock, as
//! a gateway does; the leader of the shard fires it.

use super::new_task::new_task;
use super::{Purpose, Request, Workload, ask};
use crate::every::Every;
use crate::invariants::Oracle;
use crate::rng::Rng;
use taskyard_machine::{
    BackfillSchedule, CatchUp, Command, Enqueue, NewTask, Occurrences, Overlap, PauseSchedule,
    RemoveSchedule, ResumeSchedule, Rhythm, ScheduleSpec, SetSchedule, Timestamp, TriggerSchedule,
    When, home_shard,
};

/// Only a few, so that actions on the same schedule meet.
const NAMES: [&str; 4] = ["beat-0", "beat-1", "beat-2", "beat-3"];

/// The seed of a schedule's rules: the same seed gives the same rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    seed: u64,
    at: u64,
    overlap: Overlap,
}

impl Workload {
    pub(super) fn set_schedule(&mut self, rng: &mut Rng) -> (Request, Purpose, bool) {
        let name = *rng.pick(&NAMES);
        let overlap =
            *rng.pick(&[Overlap::Skip, Overlap::BufferOne, Overlap::Allow, Overlap::CancelOther]);
        let new = Drawn { seed: rng.next(), at: self.wall, overlap };
        let drawn = match self.drawn.get(name).copied() {
            Some(drawn) if rng.chance(250) => drawn,
            Some(drawn) if rng.chance(500) => Drawn { overlap, ..drawn },
            _ => new,
        };
        let first = |drawn| Every::of(&self.spec(drawn)).next_after(Timestamp(self.wall));
        // Rules that have ended are rejected before they reach a shard.
        let drawn = if first(drawn).is_some() { drawn } else { new };
        let next_run_at = first(drawn).expect("new rules begin before they end");
        self.drawn.insert(name, drawn);
        let spec = self.spec(drawn);
        let from = Timestamp(self.wall);
        let set = Command::SetSchedule(SetSchedule { name, spec, from, next_run_at });
        (ask(self.shard_of(name), &set), Purpose::Interfere, true)
    }

    fn spec(&self, drawn: Drawn) -> ScheduleSpec<'_> {
        let mut rng = Rng::new(drawn.seed);
        let queue = rng.pick(&self.queues);
        let task =
            NewTask { run_at: When::Now, expires_at: None, unique: None, ..new_task(&mut rng) };
        // Runs that may overlap start no faster than a queue's lowest rate hands them out.
        let ms = if drawn.overlap == Overlap::Allow { 2_000 } else { 1_000 };
        ScheduleSpec {
            rhythm: Rhythm::Every { ms: ms + 250 * rng.below(8) },
            home: home_shard(queue, self.shards),
            enqueue: Enqueue { queue, task },
            overlap: drawn.overlap,
            catch_up: *rng.pick(&[CatchUp::None, CatchUp::Last, CatchUp::All]),
            catch_up_window_ms: *rng.pick(&[0, 12_000, 20_000]),
            jitter_ms: if rng.chance(300) { 1_500 } else { 0 },
            start_at: rng.chance(200).then(|| Timestamp(drawn.at + rng.below(3_000))),
            end_at: rng.chance(150).then(|| Timestamp(drawn.at + rng.between(4_000, 20_000))),
            remaining_runs: rng.chance(150).then(|| rng.between(1, 8)),
        }
    }

    /// An operator's action on a schedule.
    pub(super) fn schedule_operation(
        &self,
        rng: &mut Rng,
        oracle: &Oracle,
    ) -> Option<(Request, Purpose, bool)> {
        let name = *rng.pick(&NAMES);
        let known = oracle.schedule(name);
        let wall = Timestamp(self.wall);
        // An action with an unknown outcome is not repeated if a repetition would start runs.
        let (command, identified) = match rng.below(100) {
            0..20 => (Command::PauseSchedule(PauseSchedule { name, note: "sim" }), true),
            20..55 => {
                let (every, revision) = known?;
                let next_run_at = every.next_after(wall);
                let resume = ResumeSchedule { name, revision, from: wall, next_run_at };
                (Command::ResumeSchedule(resume), true)
            }
            55..75 => (Command::TriggerSchedule(TriggerSchedule { name }), false),
            75..88 => {
                let from = Timestamp(self.wall.saturating_sub(10_000));
                let (every, revision) = known?;
                let past = every.after(from).take_while(|at| *at <= wall);
                let occurrences = past.take(rng.between(1, 4) as usize).collect();
                let backfill = BackfillSchedule { name, revision, occurrences };
                (Command::BackfillSchedule(backfill), false)
            }
            _ => (Command::RemoveSchedule(RemoveSchedule { name }), true),
        };
        Some((ask(self.shard_of(name), &command), Purpose::Interfere, identified))
    }

    /// Pauses a schedule, so that nothing new starts. Called after all schedules have kept firing.
    pub(super) fn pause_schedule(&self, name: &str) -> (Request, Purpose, bool) {
        let pause = Command::PauseSchedule(PauseSchedule { name, note: "the run is over" });
        (ask(self.shard_of(name), &pause), Purpose::Interfere, true)
    }
}
