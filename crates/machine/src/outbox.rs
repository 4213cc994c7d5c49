//! Outbox: messages to other shards, and the record of messages taken from them.
//!
//! A message is stored in the entry of its cause and numbered per target. The leader delivers the
//! message as a command on the target, which takes each number once and in order. The sender drops
//! the message after the target's answer. So each message is taken exactly once, even if it is sent
//! again.
//!
//! The clocks of shards may be far apart. A delay travels as a delay, with the time that the
//! message has waited by its sender's clock. Only a moment that a client has named travels as a
//! moment.

#[cfg(test)]
mod tests;

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
    TaskId, Timestamp, When,
};
use std::collections::{BTreeMap, VecDeque};

/// The messages of one entry to one shard share deliveries of up to this size. A larger message has
/// a delivery of its own.
const DELIVERY_BYTES_MAX: usize = 128 << 10;

/// A message in the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The target.
    pub to: ShardId,
    /// The number of the message, from 1, per target.
    pub sequence: u64,
    /// When it was stored, by the sender's time.
    pub stored_at: Timestamp,
    /// The encoded message, for [`Deliver::command`].
    pub command: Box<[u8]>,
}

impl Outgoing {
    /// The message as the leader of its sender, `from`, sends it at `now`.
    pub fn deliver(&self, from: ShardId, now: Timestamp) -> Deliver<'_> {
        let waited_ms = now.ms_since(self.stored_at);
        Deliver { from, sequence: self.sequence, waited_ms, command: &self.command }
    }
}

/// A message that waits for its target.
#[derive(Debug, PartialEq)]
pub(crate) struct Owed {
    stored_at: Timestamp,
    message: Box<[u8]>,
}

wire_struct!(Owed { stored_at, message });

impl Keep for Owed {
    type Key = (ShardId, u64);
    const KIND: u8 = 7;

    fn heap_bytes(&self) -> usize {
        self.message.len()
    }
}

/// The progress of messages between this shard and another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Link {
    /// The number of the last message to the other shard.
    sent: u64,
    /// The number of the last message taken from the other shard.
    taken: u64,
}

wire_struct!(Link { sent, taken });

/// The progress of messages between a shard and another, each counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkView {
    /// The last message from the shard to the other, taken or not.
    pub sent: u64,
    /// The last message that the shard has taken from the other.
    pub taken: u64,
}

wire_struct!(LinkView { sent, taken });

impl Keep for Link {
    type Key = ShardId;
    const KIND: u8 = 8;
}

/// A message from one shard to another. The sender has checked the message and answered its client,
/// so the target may not reject it.
#[derive(Debug, PartialEq)]
pub(crate) enum Message<'a> {
    /// Adds a task under an id that the sender made.
    Enqueue { id: TaskId, enqueue: Enqueue<'a>, watch: Option<Watch> },
    /// A task has ended whose watcher is on the target.
    TaskEnded(TaskEnded<'a>),
    /// Adds a task of a flow.
    FlowTask(FlowTask<'a>),
    /// All parents of a blocked task allow it to run.
    Release { task: TaskId, run: u32, parents: Vec<ParentResult> },
    /// A parent of a blocked task failed.
    FailBlocked { task: TaskId, run: u32, parent: &'a str },
    /// Cancels a task.
    Cancel { task: TaskId },
    /// Runs a task of a flow again.
    Revive { task: TaskId, run: u32, flow: TaskId, node: u32 },
    /// Makes a task of a flow wait for its parents again.
    BlockAgain { task: TaskId, run: u32, flow: TaskId, node: u32 },
    /// The flow of a task no longer keeps it.
    Forget { task: TaskId },
    /// A node's task was retried by hand.
    NodeRevived { flow: TaskId, node: u32, run: u32 },
    /// The rules of a queue that is spread to the target.
    QueueRules(QueueRules<'a>),
    /// The standing of a task of a tally has changed.
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

/// The messages of one entry, until they are stored or applied.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Messages to this shard itself, applied after the command that sends them.
    here: VecDeque<Box<[u8]>>,
    /// The deliveries to other shards; many messages to one shard share few deliveries.
    elsewhere: BTreeMap<ShardId, Vec<Vec<u8>>>,
}

impl Turn<'_> {
    /// Sends a message to a shard. A message to this shard is applied after the command, so that
    /// the state does not change in the middle of it.
    pub(crate) fn owe(&mut self, to: ShardId, message: &Message<'_>) {
        self.owe_encoded(to, message.encode());
    }

    /// Like `owe`, for a message that borrows from the state.
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

    /// Applies the messages of the last command to this shard, and the messages that follow.
    pub(crate) fn apply_own_messages(&mut self) {
        while let Some(message) = self.asked.here.pop_front() {
            self.take_message(&decode(&message).expect("it was encoded in this entry"), 0);
        }
    }

    /// Stores the entry's messages to other shards.
    pub(crate) fn store_owed(&mut self) {
        let stored_at = self.now;
        for (to, deliveries) in std::mem::take(&mut self.asked.elsewhere) {
            let mut link = self.link(to);
            for message in deliveries {
                link.sent += 1;
                let owed = Owed { stored_at, message: message.into_boxed_slice() };
                self.shard.outbox.insert((to, link.sent), owed);
            }
            self.shard.links.insert(to, link);
            self.emit(EventKind::OutgoingQueued(to));
        }
    }

    /// Sends a task to its shard, under an id that was made here.
    pub(crate) fn owe_enqueue(&mut self, id: TaskId, enqueue: &Enqueue<'_>, watch: Option<Watch>) {
        self.owe(id.home, &Message::Enqueue { id, enqueue: enqueue.clone(), watch });
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
            self.take_message(message, deliver.waited_ms);
        }
        link.taken += 1;
        self.shard.links.insert(deliver.from, link);
        Ok(Outcome::Taken)
    }

    /// Checks that a message is for this shard. Limits are not checked again, because the sender,
    /// perhaps of an earlier version, has accepted it.
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

    /// Applies a checked message that has waited for `waited_ms`.
    fn take_message(&mut self, message: &Message<'_>, waited_ms: u64) {
        match message {
            Message::Enqueue { id, enqueue, watch } => {
                self.take_enqueue(*id, &enqueue.after_waiting(waited_ms), *watch);
            }
            Message::TaskEnded(ended) => self.take_ended(ended),
            Message::FlowTask(task) => self.take_flow_task(task, waited_ms),
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

    /// Adds a task that another shard has accepted for this one. If its request or its unique key
    /// already has a task, the watcher learns that the task was not made.
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
            (true, Some(watch)) => self.notify_not_made(watch, id),
            (true, None) => {}
        }
    }

    /// The queue of an accepted task, made if it does not exist. No limit applies any more.
    pub(crate) fn queue_for_accepted(&mut self, queue: &str) -> Result<Slot, Rejection> {
        match self.shard.queues.find(queue) {
            Some(number) => {
                self.shard.undelete(number);
                Ok(number)
            }
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

impl<'a> Enqueue<'a> {
    /// The task after the message has waited for `waited_ms`. Its delay and its debounce count from
    /// the sender's entry, not from the delivery.
    pub(crate) fn after_waiting(&self, waited_ms: u64) -> Enqueue<'a> {
        let mut enqueue = self.clone();
        let delay_ms = match (enqueue.task.run_at, enqueue.task.debounce_ms()) {
            (When::After { ms }, _) | (When::Now, Some(ms)) => ms,
            (When::Now | When::At(_), _) => return enqueue,
        };
        enqueue.task.run_at = When::After { ms: delay_ms.saturating_sub(waited_ms) };
        enqueue
    }
}

fn check_name(queue: &str) -> Result<(), Rejection> {
    match QueueName::accepted(queue) {
        Ok(_) => Ok(()),
        Err(invalid) => Err(Rejection::invalid(invalid.to_string())),
    }
}

impl Machine {
    /// The progress of messages with each of these shards. Once `taken` here has reached `sent`
    /// there, all messages up to that point have arrived.
    pub fn link_views(&self, shards: &[ShardId]) -> Vec<LinkView> {
        let view = |&shard: &ShardId| {
            let Link { sent, taken } = self.links.get(shard).copied().unwrap_or_default();
            LinkView { sent, taken }
        };
        shards.iter().map(view).collect()
    }

    /// The shards to which this one has ever sent a message, in their order.
    pub fn targets(&self) -> impl Iterator<Item = ShardId> {
        self.links.iter().map(|(shard, _)| shard)
    }

    /// The messages to one target after a number, in order, as the leader sends them at `now`.
    pub fn owed_to(
        &self,
        to: ShardId,
        after: u64,
        now: Timestamp,
    ) -> impl Iterator<Item = Deliver<'_>> {
        let owed = self.outbox.range((to, after.saturating_add(1))..=(to, u64::MAX));
        owed.map(move |((_, sequence), owed)| Deliver {
            from: self.identity().shard,
            sequence,
            waited_ms: now.ms_since(owed.stored_at),
            command: &owed.message,
        })
    }

    /// About `limit` messages of the outbox, in order per target. Targets share the limit.
    pub fn outgoing(&self, limit: usize) -> Vec<Outgoing> {
        let owed_to = |to| self.outbox.range((to, 0)..=(to, u64::MAX));
        let targets: Vec<ShardId> =
            self.targets().filter(|to| owed_to(*to).next().is_some()).collect();
        let share = limit.div_ceil(targets.len().max(1));
        let outgoing = targets.into_iter().flat_map(|to| {
            owed_to(to).take(share).map(|((to, sequence), owed)| Outgoing {
                to,
                sequence,
                stored_at: owed.stored_at,
                command: owed.message.clone(),
            })
        });
        outgoing.collect()
    }
}
