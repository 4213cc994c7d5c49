//! State: the states of the groups of a large cluster: the real machine of a shard, or the real
//! control state. Bodies are dropped, because their bytes are counted in the log and in the
//! messages.

use taskyard_machine::{Entry, Event, Identity, Machine, NoPayloads, Outcome, Rejection, ShardId};
use taskyard_replica::{Control, StateMachine};

pub(crate) enum State {
    Shard { machine: Box<Machine>, events: Vec<Event> },
    Control(Box<Control>),
}

impl State {
    pub(crate) fn shard(shard: u16, shards: u16) -> State {
        let identity = Identity { incarnation: 1, shard: ShardId(shard), shards };
        State::Shard { machine: Box::new(Machine::new(identity)), events: Vec::new() }
    }

    pub(crate) fn machine(&self) -> Option<&Machine> {
        match self {
            State::Shard { machine, .. } => Some(machine),
            State::Control(_) => None,
        }
    }
}

impl StateMachine for State {
    type Outcome = Vec<Result<Outcome, Rejection>>;

    fn apply(&mut self, index: u64, data: &[u8]) -> Self::Outcome {
        match self {
            State::Shard { machine, events } => {
                let entry = Entry::decode(data).expect("entries are written by this build");
                events.clear();
                machine.apply(&entry, &mut NoPayloads, events)
            }
            State::Control(control) => {
                control.apply(index, data).expect("what is written here is accepted");
                Vec::new()
            }
        }
    }
}
