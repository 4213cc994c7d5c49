//! Several shards that deliver their outboxes to each other.

use crate::testing::Yard;
use crate::*;
use std::collections::BTreeMap;

/// Four shards.
pub(crate) struct Yards {
    pub(crate) yards: BTreeMap<ShardId, Yard>,
}

impl Yards {
    pub(crate) fn new() -> Yards {
        let yards = (0..4).map(ShardId).map(|shard| (shard, Yard::of_shard(shard))).collect();
        Yards { yards }
    }

    pub(crate) fn on(&mut self, shard: ShardId) -> &mut Yard {
        self.yards.get_mut(&shard).expect("there are four")
    }

    /// Delivers until all outboxes are empty. Every message is delivered twice; after each delivery
    /// the state is checked and reloaded from its records.
    pub(crate) fn carry(&mut self) {
        loop {
            let mut owed = Vec::new();
            for (&from, yard) in &self.yards {
                owed.extend(yard.machine.outgoing(10_000).into_iter().map(|out| (from, out)));
            }
            if owed.is_empty() {
                break;
            }
            for (from, out) in owed {
                let deliver = out.deliver(from, self.yards[&from].now());
                for _ in 0..2 {
                    let answer = self.on(out.to).send(Command::Deliver(deliver));
                    assert_eq!(answer, Ok(Outcome::Taken));
                }
                let delivered = Delivered { to: out.to, up_to: out.sequence };
                self.on(from).send(Command::Delivered(delivered)).unwrap();
            }
        }
        for yard in self.yards.values_mut() {
            let records = yard.machine.records();
            let loaded = Machine::load(yard.machine.identity(), records.clone()).unwrap();
            loaded.check().unwrap();
            assert!(loaded.records() == records);
            assert_eq!(loaded.memory_bytes(), yard.machine.memory_bytes());
            yard.machine = loaded;
        }
    }

    pub(crate) fn claim(&mut self, task: TaskId) -> ClaimedTask {
        let yard = self.on(task.home);
        let queue = yard.task(task).queue;
        let held = yard.claim_one(queue.as_str());
        assert_eq!(held.id, task);
        held
    }

    pub(crate) fn fail(&mut self, task: TaskId) {
        let held = self.claim(task);
        self.on(task.home).fail(&held).unwrap();
        self.carry();
    }

    pub(crate) fn state(&self, task: TaskId) -> TaskStateName {
        self.yards[&task.home].state(task)
    }
}
