//! What a history asks of tallies.

use crate::history::{Author, IDENTITY, QUEUES};
use taskyard_machine::*;

impl Author {
    /// A tally, at times below another, or something about one.
    pub(crate) fn tally(&mut self) -> Command<'static> {
        let tally = self.tallies.get(self.random.below(3) as usize).copied();
        let known = tally.unwrap_or_else(|| self.any());
        let batch_id = self.random.chance(20).then(|| self.batch_id());
        match self.random.below(10) {
            0..=1 => Command::OpenTally(OpenTally {
                batch_id,
                description: "tally",
                parent: tally.filter(|_| self.random.chance(50)),
                success: self.random.chance(60).then(|| Box::new(self.counted())),
                complete: self.random.chance(60).then(|| Box::new(self.counted())),
            }),
            2..=6 => Command::AddToTally(AddToTally {
                tally: known,
                batch_id,
                tasks: (0..self.random.below(5)).map(|_| self.counted()).collect(),
            }),
            7 => Command::ReopenTally(ReopenTally { tally: known }),
            _ => Command::CommitTally(CommitTally { tally: known }),
        }
    }

    /// A task that is added to a tally or follows from one, mostly on this shard.
    fn counted(&mut self) -> FollowUp<'static> {
        let home = if self.random.chance(90) { IDENTITY.shard } else { ShardId(3) };
        // One bad task would have all of them refused.
        let task = NewTask { task_type: "count", priority: None, lease_ms: None, ..self.task() };
        FollowUp { home, enqueue: Enqueue { queue: self.random.pick(&QUEUES), task } }
    }
}
