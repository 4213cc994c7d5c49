//! Several machines that send each other messages, in any order between links and with repetitions,
//! while machines are reloaded from their records.

use super::Difference;
use super::history::{apply, encode};
use crate::clock::RUN_BEGINS_AT_MS;
use crate::rng::Rng;
use crate::shard::first_difference;
use std::collections::BTreeMap;
use taskyard_machine::{
    Command, Delivered, Event, Identity, Machine, NoPayloads, Outcome, Outgoing, Rejection,
    ShardId, Timestamp,
};

/// Machines of one cluster.
pub(super) struct Shards {
    pub(super) now: u64,
    machines: Vec<Machine>,
    /// For each link, the number of the last taken message.
    taken: BTreeMap<(usize, usize), u64>,
}

/// The answer to a command, with its events.
pub(super) type Answer = Result<Outcome, Rejection>;

/// A delivered message.
pub(super) struct Carried {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Whether the message came before, so that it must change nothing.
    pub(super) again: bool,
    pub(super) events: Vec<Event>,
}

impl Shards {
    pub(super) fn new(count: u16) -> Shards {
        let identity = |shard| Identity { incarnation: 1, shard: ShardId(shard), shards: count };
        let machines = (0..count).map(|shard| Machine::new(identity(shard))).collect();
        Shards { now: RUN_BEGINS_AT_MS, machines, taken: BTreeMap::new() }
    }

    pub(super) fn machine(&self, shard: usize) -> &Machine {
        &self.machines[shard]
    }

    pub(super) fn len(&self) -> usize {
        self.machines.len()
    }

    pub(super) fn send(&mut self, shard: usize, command: &Command<'_>) -> (Answer, Vec<Event>) {
        let entry = encode(command, self.now);
        let (mut answers, events) = apply(&mut self.machines[shard], &entry, &mut NoPayloads);
        (answers.pop().expect("one command has one answer"), events)
    }

    fn owed(&self) -> Vec<(usize, Outgoing)> {
        let of = |(from, machine): (usize, &Machine)| {
            machine.outgoing(1_000).into_iter().map(move |owed| (from, owed)).collect::<Vec<_>>()
        };
        self.machines.iter().enumerate().flat_map(of).collect()
    }

    pub(super) fn is_quiet(&self) -> bool {
        let new = |(from, owed): &(usize, Outgoing)| {
            owed.sequence > self.taken_of(*from, usize::from(owed.to.0))
        };
        !self.owed().iter().any(new)
    }

    fn taken_of(&self, from: usize, to: usize) -> u64 {
        self.taken.get(&(from, to)).copied().unwrap_or(0)
    }

    /// Delivers one message: the next of its link, or an earlier one.
    pub(super) fn carry(&mut self, rng: &mut Rng) -> Result<Option<Carried>, Difference> {
        let mut owed = self.owed();
        owed.retain(|(from, owed)| {
            owed.sequence <= self.taken_of(*from, usize::from(owed.to.0)) + 1
        });
        if owed.is_empty() {
            return Ok(None);
        }
        let (from, owed) = rng.pick(&owed);
        let (from, to) = (*from, usize::from(owed.to.0));
        let sequence = owed.sequence;
        let again = sequence <= self.taken_of(from, to);
        let before = again.then(|| self.machines[to].state_hash());
        let deliver = owed.deliver(ShardId(from as u16), Timestamp(self.now));
        let (answer, events) = self.send(to, &Command::Deliver(deliver));
        if answer != Ok(Outcome::Taken) {
            return Err(format!("message {sequence} of {from} to {to} was answered {answer:?}"));
        }
        // Every entry changes the time, which is a part of the state.
        if again && !events.is_empty() && before != Some(self.machines[to].state_hash()) {
            return Err(format!("message {sequence} of {from} to {to} was applied twice"));
        }
        if !again {
            self.taken.insert((from, to), sequence);
        }
        if rng.chance(500) {
            let delivered = Delivered { to: ShardId(to as u16), up_to: self.taken_of(from, to) };
            self.send(from, &Command::Delivered(delivered)).0.map_err(|no| no.to_string())?;
        }
        Ok(Some(Carried { from, to, again, events }))
    }

    /// Checks a machine, and replaces it by one that is loaded from its records.
    pub(super) fn reload(&mut self, shard: usize) -> Result<(), Difference> {
        let machine = &self.machines[shard];
        machine.check()?;
        let records = machine.records();
        let loaded = Machine::load(machine.identity(), records.clone())
            .map_err(|error| error.to_string())?;
        loaded.check()?;
        if loaded.records() != records || loaded.state_hash() != machine.state_hash() {
            let difference = first_difference(&records, &loaded.records());
            return Err(format!("shard {shard} differs after a reload: {difference}"));
        }
        self.machines[shard] = loaded;
        Ok(())
    }
}
