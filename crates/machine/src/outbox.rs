//! What this shard owes other shards, and what it has taken from them.
//!
//! A message is stored in the entry of its cause and numbered per target. The leader delivers it as
//! a command on the target, which takes each number once and in order; the sender drops it when the
//! target has answered. So it arrives exactly once, whatever is sent again.

use crate::entry::DecodeError;
use crate::kept::Keep;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::wire::{Reader, Wire, decode, encode, wire_struct};
use crate::{
    Deliver, Delivered, Enqueue, EventKind, Machine, Outcome, QueueName, Rejection, ShardId,
    TaskId, When,
};

/// What the outbox owes another shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// To whom.
    pub to: ShardId,
    /// Its number, from 1, per target.
    pub sequence: u64,
    /// The encoded message, for [`Deliver::command`].
    pub command: Box<[u8]>,
}

/// A message that waits for its target.
#[derive(Debug, PartialEq)]
pub(crate) struct Owed {
    message: Box<[u8]>,
}

wire_struct!(Owed { message });

impl Keep for Owed {
    type Key = (ShardId, u64);
    const KIND: u8 = 7;

    fn heap_bytes(&self) -> usize {
        self.message.len()
    }
}

/// How far this shard and another are with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Link {
    /// The last number that was given to a message for it.
    sent: u64,
    /// The last number that was taken from it.
    taken: u64,
}

wire_struct!(Link { sent, taken });

impl Keep for Link {
    type Key = ShardId;
    const KIND: u8 = 8;
}

/// What one shard asks of another. The sender has checked it and answered for it, so the target may
/// not refuse.
#[derive(Debug, PartialEq)]
enum Message<'a> {
    /// Add this task, whose id the sender made.
    Enqueue { id: TaskId, enqueue: Enqueue<'a> },
}

impl<'a> Wire<'a> for Message<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Message::Enqueue { id, enqueue } => {
                out.push(1);
                id.write(out);
                enqueue.write(out);
            }
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
        match reader.byte()? {
            1 => Ok(Message::Enqueue { id: reader.read()?, enqueue: reader.read()? }),
            other => Err(reader.error(format_args!("unknown message {other}"))),
        }
    }
}

impl Turn<'_> {
    /// Owes another shard a task under an id that was made here.
    pub(crate) fn owe_enqueue(&mut self, id: TaskId, enqueue: &Enqueue<'_>) {
        let mut enqueue = enqueue.clone();
        // A delay counts from this entry, not from the delivery.
        enqueue.task.run_at = When::At(enqueue.task.run_at.moment(self.now));
        let message = encode(&Message::Enqueue { id, enqueue });
        let mut link = self.link(id.home);
        link.sent += 1;
        self.shard.links.insert(id.home, link);
        self.shard.outbox.insert((id.home, link.sent), Owed { message });
        self.emit(EventKind::OutgoingQueued(id.home));
    }

    pub(crate) fn deliver(&mut self, deliver: Deliver<'_>) -> Result<Outcome, Rejection> {
        let mut link = self.link(deliver.from);
        if deliver.sequence <= link.taken {
            return Ok(Outcome::Taken);
        }
        if deliver.sequence != link.taken + 1 {
            return Err(Rejection::invalid(format!(
                "message {} of shard {} came before message {}; deliver in order",
                deliver.sequence,
                deliver.from,
                link.taken + 1
            )));
        }
        match decode(deliver.command) {
            Ok(Message::Enqueue { id, enqueue }) => self.take_enqueue(id, &enqueue)?,
            Err(error) => return Err(Rejection::invalid(error.to_string())),
        }
        link.taken += 1;
        self.shard.links.insert(deliver.from, link);
        Ok(Outcome::Taken)
    }

    /// Adds a task that another shard has accepted for this one. No bound is looked at again: the
    /// sender, perhaps of an earlier version, has answered for it.
    fn take_enqueue(&mut self, id: TaskId, enqueue: &Enqueue<'_>) -> Result<(), Rejection> {
        if id.home != self.shard.identity.shard {
            return Err(Rejection::invalid(format!("task {id} lives on shard {}", id.home)));
        }
        let queue = self.queue_for_accepted(enqueue.queue)?;
        let known = self.known_request(enqueue.queue, enqueue.task.request_id);
        if known.is_none() && self.shard.ids.get(id).is_none() {
            self.insert_task(queue, id, &enqueue.task);
        }
        Ok(())
    }

    /// The queue of a task that is already accepted: no bound refuses it any more.
    pub(crate) fn queue_for_accepted(&mut self, queue: &str) -> Result<Slot, Rejection> {
        match self.shard.queues.find(queue) {
            Some(number) => Ok(number),
            None => match QueueName::accepted(queue) {
                Ok(name) => Ok(self.shard.queues.add(name)),
                Err(invalid) => Err(Rejection::invalid(invalid.to_string())),
            },
        }
    }

    pub(crate) fn delivered(&mut self, delivered: Delivered) -> Outcome {
        let Delivered { to, up_to } = delivered;
        let taken: Vec<_> =
            self.shard.outbox.range((to, 0)..=(to, up_to)).map(|(key, _)| key).collect();
        for key in taken {
            self.shard.outbox.remove(key);
        }
        Outcome::Done
    }

    fn link(&self, shard: ShardId) -> Link {
        self.shard.links.get(shard).copied().unwrap_or_default()
    }
}

impl Machine {
    /// What the outbox owes, in order per target, about `limit` in all. Targets share the limit, so
    /// that one that is away does not hold up the others.
    pub fn outgoing(&self, limit: usize) -> Vec<Outgoing> {
        let targets = || self.links.iter().map(|(shard, _)| shard);
        let share = limit.div_ceil(targets().count().max(1));
        let owed = targets().flat_map(|to| {
            self.outbox.range((to, 0)..=(to, u64::MAX)).take(share).map(|((to, sequence), owed)| {
                Outgoing { to, sequence, command: owed.message.clone() }
            })
        });
        owed.take(limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SHARD, START, Yard, new_task};
    use crate::{Ack, Command, FollowUp, NewTask, QueueSettings, TaskStateName, Timestamp};

    const OTHER: ShardId = ShardId(2);

    /// Acks a task on shard 2 that is followed by one in queue `next` of shard 1.
    fn follow(source: &mut Yard, task: NewTask<'_>) -> TaskId {
        source.enqueue("mail");
        let held = source.claim_one("mail");
        let enqueue = Enqueue { queue: "next", task };
        let follow_ups = vec![FollowUp { home: SHARD, enqueue }];
        let ack = Ack { task: held.id, token: held.token, result: None, follow_ups };
        match source.send(Command::Ack(ack)) {
            Ok(Outcome::Acked { follow_ups }) => follow_ups[0],
            other => panic!("{other:?}"),
        }
    }

    fn deliver(target: &mut Yard, outgoing: &Outgoing) -> Result<Outcome, Rejection> {
        let Outgoing { sequence, command, .. } = outgoing;
        let deliver = Deliver { from: OTHER, sequence: *sequence, command };
        target.send(Command::Deliver(deliver))
    }

    #[test]
    fn a_follow_up_reaches_its_shard_once_however_often_it_is_delivered() {
        let mut source = Yard::of_shard(OTHER);
        let mut target = Yard::new();
        let ids = [follow(&mut source, new_task()), follow(&mut source, new_task())];
        assert!(source.events().contains(&EventKind::OutgoingQueued(SHARD)));
        assert_eq!((ids[0].home, ids[0].origin), (SHARD, OTHER));
        let outgoing = source.machine.outgoing(10);
        assert_eq!(outgoing.iter().map(|o| o.sequence).collect::<Vec<_>>(), [1, 2]);
        assert!(deliver(&mut target, &outgoing[1]).is_err(), "in order");
        for outgoing in [&outgoing[0], &outgoing[1], &outgoing[0], &outgoing[1]] {
            assert_eq!(deliver(&mut target, outgoing), Ok(Outcome::Taken));
        }
        for id in ids {
            assert_eq!(target.state(id), TaskStateName::Ready);
        }
        assert_eq!(target.counts("next").enqueued_total, 2);
    }

    #[test]
    fn what_was_taken_is_dropped_and_the_rest_stays() {
        let mut source = Yard::of_shard(OTHER);
        for _ in 0..3 {
            follow(&mut source, new_task());
        }
        source.send(Command::Delivered(Delivered { to: SHARD, up_to: 2 })).unwrap();
        let left = source.machine.outgoing(10);
        assert_eq!(left.iter().map(|o| (o.to, o.sequence)).collect::<Vec<_>>(), [(SHARD, 3)]);
        assert!(source.machine.outgoing(0).is_empty());
    }

    #[test]
    fn an_accepted_follow_up_is_not_refused_and_its_delay_counts_from_the_ack() {
        let mut source = Yard::of_shard(OTHER);
        let mut target = Yard::new();
        target.set("next", QueueSettings { max_length: Some(0), ..QueueSettings::default() });
        let run_at = When::After { ms: 60_000 };
        let id = follow(&mut source, NewTask { run_at, ..new_task() });
        target.pass_ms(20_000);
        deliver(&mut target, &source.machine.outgoing(1)[0]).unwrap();
        assert_eq!(target.task(id).run_at, Some(Timestamp(START + 60_000)));
    }

    #[test]
    fn what_an_earlier_version_accepted_is_taken() {
        let mut target = Yard::new();
        let long = "x".repeat(1_000);
        let id = TaskId { home: SHARD, origin: OTHER, ..follow(&mut Yard::new(), new_task()) };
        let task = NewTask { task_type: &long, priority: Some(9), ..new_task() };
        let message = Message::Enqueue { id, enqueue: Enqueue { queue: "..", task } };
        let outgoing = Outgoing { to: SHARD, sequence: 1, command: encode(&message) };
        assert_eq!(deliver(&mut target, &outgoing), Ok(Outcome::Taken));
        assert_eq!(target.state(id), TaskStateName::Ready);
    }

    #[test]
    fn a_known_request_is_not_made_twice() {
        let mut source = Yard::of_shard(OTHER);
        let mut target = Yard::new();
        let request = || NewTask { request_id: Some("r"), ..new_task() };
        let known = target.enqueue_task("next", request()).unwrap().id;
        let promised = follow(&mut source, request());
        deliver(&mut target, &source.machine.outgoing(1)[0]).unwrap();
        assert_eq!(target.counts("next").enqueued_total, 1);
        // The sender can't know of the other task, so that the id it gave names none.
        assert_eq!(target.state(known), TaskStateName::Ready);
        assert!(target.machine.task(promised).is_none());
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let mut target = Yard::new();
        for command in [&b""[..], b"\x09", b"{\"task\":1}"] {
            let deliver = Deliver { from: OTHER, sequence: 1, command };
            let rejection = target.send(Command::Deliver(deliver)).unwrap_err();
            assert_eq!(rejection.code(), "invalid_argument");
        }
    }
}
