//! What this shard owes other shards, and what it has taken from them.
//!
//! A message is stored in the entry of its cause and numbered per target. The leader delivers it as
//! a command on the target, which takes each number once and in order; the sender drops it when the
//! target has answered. So it arrives exactly once, whatever is sent again.

use crate::entry::DecodeError;
use crate::flow::{FlowTask, ParentResult};
use crate::kept::Keep;
use crate::slab::Slot;
use crate::spread::QueueRules;
use crate::tally::Standing;
use crate::turn::Turn;
use crate::watch::{TaskEnded, Watch};
use crate::wire::{Reader, Wire, decode, encode, wire_struct};
use crate::{
    Deliver, Delivered, Enqueue, EventKind, Machine, Outcome, QueueName, Rejection, ShardId,
    TaskId, When,
};
use std::collections::{BTreeMap, VecDeque};

/// Messages of one entry to one shard travel together up to this; a larger one alone.
const DELIVERY_BYTES_MAX: usize = 128 << 10;

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

/// How far a shard and another are with each other, each counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkView {
    /// The last message that the shard has for the other, taken by it or not.
    pub sent: u64,
    /// The last message that the shard has taken from the other.
    pub taken: u64,
}

wire_struct!(LinkView { sent, taken });

impl Keep for Link {
    type Key = ShardId;
    const KIND: u8 = 8;
}

/// What one shard asks of another. The sender has checked it and answered for it, so the target may
/// not refuse.
#[derive(Debug, PartialEq)]
pub(crate) enum Message<'a> {
    /// Add this task, whose id the sender made.
    Enqueue { id: TaskId, enqueue: Enqueue<'a>, watch: Option<Watch> },
    /// A task has ended that something on the target watches.
    TaskEnded(TaskEnded<'a>),
    /// Add this task of a flow.
    FlowTask(FlowTask<'a>),
    /// Its parents let this task of a flow go.
    Release { task: TaskId, run: u32, parents: Vec<ParentResult> },
    /// A parent of this blocked task failed.
    FailBlocked { task: TaskId, run: u32, parent: &'a str },
    /// Cancel this task.
    Cancel { task: TaskId },
    /// Run this task of a flow again.
    Revive { task: TaskId, run: u32, flow: TaskId, node: u32 },
    /// Let this task of a flow wait for its parents again.
    BlockAgain { task: TaskId, run: u32, flow: TaskId, node: u32 },
    /// The flow of this task no longer keeps it.
    Forget { task: TaskId },
    /// A node's task was retried by hand.
    NodeRevived { flow: TaskId, node: u32, run: u32 },
    /// What holds for a queue that is spread to the target.
    QueueRules(QueueRules<'a>),
    /// A task of a tally stands elsewhere than before.
    TallyTask { tally: TaskId, from: Standing, to: Standing },
}

impl<'a> Wire<'a> for Message<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Message::Enqueue { id, enqueue, watch } => {
                out.push(1);
                id.write(out);
                enqueue.write(out);
                watch.write(out);
            }
            Message::TaskEnded(ended) => {
                out.push(10);
                ended.write(out);
            }
            Message::FlowTask(task) => {
                out.push(11);
                task.write(out);
            }
            Message::Release { task, run, parents } => {
                out.push(12);
                task.write(out);
                run.write(out);
                parents.write(out);
            }
            Message::FailBlocked { task, run, parent } => {
                out.push(13);
                task.write(out);
                run.write(out);
                parent.write(out);
            }
            Message::Cancel { task } => (14u8, *task).write(out),
            Message::Revive { task, run, flow, node } => {
                out.push(15);
                ((*task, *run), (*flow, *node)).write(out);
            }
            Message::BlockAgain { task, run, flow, node } => {
                out.push(16);
                ((*task, *run), (*flow, *node)).write(out);
            }
            Message::Forget { task } => (17u8, *task).write(out),
            Message::NodeRevived { flow, node, run } => {
                out.push(18);
                (*flow, (*node, *run)).write(out);
            }
            Message::QueueRules(rules) => {
                out.push(19);
                rules.write(out);
            }
            Message::TallyTask { tally, from, to } => {
                out.push(20);
                (*tally, (*from, *to)).write(out);
            }
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
        match reader.byte()? {
            1 => {
                let (id, enqueue, watch) = (reader.read()?, reader.read()?, reader.read()?);
                Ok(Message::Enqueue { id, enqueue, watch })
            }
            10 => Ok(Message::TaskEnded(reader.read()?)),
            11 => Ok(Message::FlowTask(reader.read()?)),
            12 => {
                let (task, run, parents) = (reader.read()?, reader.read()?, reader.read()?);
                Ok(Message::Release { task, run, parents })
            }
            13 => {
                let (task, run, parent) = (reader.read()?, reader.read()?, reader.read()?);
                Ok(Message::FailBlocked { task, run, parent })
            }
            14 => Ok(Message::Cancel { task: reader.read()? }),
            15 => {
                let ((task, run), (flow, node)) = reader.read()?;
                Ok(Message::Revive { task, run, flow, node })
            }
            16 => {
                let ((task, run), (flow, node)) = reader.read()?;
                Ok(Message::BlockAgain { task, run, flow, node })
            }
            17 => Ok(Message::Forget { task: reader.read()? }),
            18 => {
                let (flow, (node, run)) = reader.read()?;
                Ok(Message::NodeRevived { flow, node, run })
            }
            19 => Ok(Message::QueueRules(reader.read()?)),
            20 => {
                let (tally, (from, to)) = reader.read()?;
                Ok(Message::TallyTask { tally, from, to })
            }
            other => Err(reader.error(format_args!("unknown message {other}"))),
        }
    }
}

impl Message<'_> {
    pub(crate) fn encode(&self) -> Box<[u8]> {
        encode(self)
    }
}

/// The messages of one delivery, at least one.
pub(crate) fn messages(bytes: &[u8]) -> Result<Vec<Message<'_>>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let mut messages = vec![reader.read()?];
    while !reader.is_empty() {
        messages.push(reader.read()?);
    }
    Ok(messages)
}

/// What the commands of one entry ask of shards, until it is stored or applied.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Of this very shard: applied after the command that asks.
    here: VecDeque<Box<[u8]>>,
    /// Of others: what one entry owes a shard is few deliveries, however many messages it is.
    elsewhere: BTreeMap<ShardId, Vec<Vec<u8>>>,
}

impl Turn<'_> {
    /// Owes a shard a message: to another it is delivered, to this one it is applied when the command
    /// is done, so that nothing changes under the hands of whoever asks.
    pub(crate) fn owe(&mut self, to: ShardId, message: &Message<'_>) {
        self.owe_encoded(to, message.encode());
    }

    /// The same, for a message that borrows from the state.
    pub(crate) fn owe_encoded(&mut self, to: ShardId, message: Box<[u8]>) {
        if to == self.shard.identity.shard {
            self.asked.here.push_back(message);
            return;
        }
        let deliveries = self.asked.elsewhere.entry(to).or_default();
        match deliveries.last_mut() {
            Some(last) if last.len() + message.len() <= DELIVERY_BYTES_MAX => {
                last.extend_from_slice(&message);
            }
            _ => deliveries.push(message.into_vec()),
        }
    }

    /// Applies what the last command asked of this very shard, and what follows from that.
    pub(crate) fn settle(&mut self) {
        while let Some(message) = self.asked.here.pop_front() {
            self.take_message(&decode(&message).expect("it was encoded in this entry"));
        }
    }

    /// Stores what the entry owes other shards.
    pub(crate) fn store_owed(&mut self) {
        for (to, deliveries) in std::mem::take(&mut self.asked.elsewhere) {
            let mut link = self.link(to);
            for message in deliveries {
                link.sent += 1;
                let owed = Owed { message: message.into_boxed_slice() };
                self.shard.outbox.insert((to, link.sent), owed);
            }
            self.shard.links.insert(to, link);
            self.emit(EventKind::OutgoingQueued(to));
        }
    }

    /// Owes another shard a task under an id that was made here.
    pub(crate) fn owe_enqueue(&mut self, id: TaskId, enqueue: &Enqueue<'_>, watch: Option<Watch>) {
        let mut enqueue = enqueue.clone();
        // A delay counts from this entry, not from the delivery.
        enqueue.task.run_at = When::At(enqueue.task.first_run_at(self.now));
        self.owe(id.home, &Message::Enqueue { id, enqueue, watch });
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
        let messages =
            messages(deliver.command).map_err(|error| Rejection::invalid(error.to_string()))?;
        for message in &messages {
            self.check_message(message)?;
        }
        for message in &messages {
            self.take_message(message);
        }
        link.taken += 1;
        self.shard.links.insert(deliver.from, link);
        Ok(Outcome::Taken)
    }

    /// Whether a message is for this shard. No bound is looked at again: the sender, perhaps of an
    /// earlier version, has answered for it.
    fn check_message(&self, message: &Message<'_>) -> Result<(), Rejection> {
        match message {
            Message::Enqueue { id, enqueue, .. } => self.check_accepted(*id, enqueue.queue),
            Message::FlowTask(task) => self.check_accepted(task.id, task.enqueue.queue),
            Message::QueueRules(rules) => check_name(rules.queue),
            Message::TaskEnded(_)
            | Message::Release { .. }
            | Message::FailBlocked { .. }
            | Message::Cancel { .. }
            | Message::Revive { .. }
            | Message::BlockAgain { .. }
            | Message::Forget { .. }
            | Message::NodeRevived { .. }
            | Message::TallyTask { .. } => Ok(()),
        }
    }

    fn check_accepted(&self, id: TaskId, queue: &str) -> Result<(), Rejection> {
        if id.home != self.shard.identity.shard {
            return Err(Rejection::invalid(format!("task {id} lives on shard {}", id.home)));
        }
        check_name(queue)
    }

    /// Does what a checked message asks.
    fn take_message(&mut self, message: &Message<'_>) {
        match message {
            Message::Enqueue { id, enqueue, watch } => self.take_enqueue(*id, enqueue, *watch),
            Message::TaskEnded(ended) => self.take_ended(ended),
            Message::FlowTask(task) => self.take_flow_task(task),
            Message::Release { task, run, parents } => self.take_release(*task, *run, parents),
            Message::FailBlocked { task, run, parent } => {
                self.take_fail_blocked(*task, *run, parent);
            }
            Message::Cancel { task } => self.take_cancel(*task),
            Message::Revive { task, run, flow, node } => {
                self.take_revive(*task, *run, *flow, *node);
            }
            Message::BlockAgain { task, run, flow, node } => {
                self.take_block_again(*task, *run, *flow, *node);
            }
            Message::Forget { task } => self.take_forget(*task),
            Message::NodeRevived { flow, node, run } => self.node_revived(*flow, *node, *run),
            Message::QueueRules(rules) => self.take_queue_rules(rules),
            Message::TallyTask { tally, from, to } => self.take_standing(*tally, *from, *to),
        }
    }

    /// Adds a task that another shard has accepted for this one, unless its request or its unique key
    /// has one already. Whoever watches it is then told that it is gone.
    fn take_enqueue(&mut self, id: TaskId, enqueue: &Enqueue<'_>, watch: Option<Watch>) {
        let queue = self.queue_for_accepted(enqueue.queue).expect("its name was checked");
        if self.shard.ids.get(id).is_some() {
            return;
        }
        let known = self.known_request(enqueue.queue, enqueue.task.request_id).is_some();
        let exists = known || {
            let verdict = self.judge_accepted(enqueue.queue, &enqueue.task);
            self.settle_conflict(queue, &enqueue.task, verdict).is_some()
        };
        match (exists, watch) {
            (false, _) => self.insert_task(queue, id, &enqueue.task, watch),
            (true, Some(watch)) => self.tell_not_made(watch, id),
            (true, None) => {}
        }
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

fn check_name(queue: &str) -> Result<(), Rejection> {
    match QueueName::accepted(queue) {
        Ok(_) => Ok(()),
        Err(invalid) => Err(Rejection::invalid(invalid.to_string())),
    }
}

impl Machine {
    /// How far this shard is with each of these. What one of them had told this one when it said that it
    /// had sent so much has come when so much is taken.
    pub fn link_views(&self, shards: &[ShardId]) -> Vec<LinkView> {
        let view = |&shard: &ShardId| {
            let Link { sent, taken } = self.links.get(shard).copied().unwrap_or_default();
            LinkView { sent, taken }
        };
        shards.iter().map(view).collect()
    }

    /// The shards that this one has ever sent something, in their order.
    pub fn targets(&self) -> impl Iterator<Item = ShardId> {
        self.links.iter().map(|(shard, _)| shard)
    }

    /// What the outbox owes one target after this number, in order: each message's number and
    /// bytes.
    pub fn owed_to(&self, to: ShardId, after: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let owed = self.outbox.range((to, after.saturating_add(1))..=(to, u64::MAX));
        owed.map(|((_, sequence), owed)| (sequence, &*owed.message))
    }

    /// What the outbox owes, in order per target, about `limit` in all. Targets share the limit.
    pub fn outgoing(&self, limit: usize) -> Vec<Outgoing> {
        let owed = |to: &ShardId| self.owed_to(*to, 0).next().is_some();
        let targets: Vec<ShardId> = self.targets().filter(owed).collect();
        let share = limit.div_ceil(targets.len().max(1));
        let outgoing = targets.into_iter().flat_map(|to| {
            let owed = self.owed_to(to, 0).take(share);
            owed.map(move |(sequence, message)| Outgoing { to, sequence, command: message.into() })
        });
        outgoing.collect()
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
        let owed_after = |after| source.machine.owed_to(SHARD, after).map(|(sequence, _)| sequence);
        assert_eq!(owed_after(0).collect::<Vec<_>>(), [3]);
        assert_eq!(owed_after(3).count(), 0, "it is only not dropped yet");
        assert_eq!(source.machine.targets().collect::<Vec<_>>(), [SHARD]);
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
        let message = Message::Enqueue { id, enqueue: Enqueue { queue: "..", task }, watch: None };
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
