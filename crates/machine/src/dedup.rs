//! Dedup: a `request_id` makes at most one task in its queue within the queue's window.
//!
//! Only a 128-bit hash of queue and request_id is kept, with the task's id. A record outlives its
//! task and is never forgotten early.

use crate::kept::Keep;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::wire::{decode, wire_struct};
use crate::{Command, EncodedCommand, Machine, TaskId, Timestamp};
use std::collections::BTreeSet;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

#[derive(Debug, PartialEq)]
pub(crate) struct DedupRecord {
    pub(crate) id: TaskId,
    pub(crate) expires_at: Timestamp,
}

wire_struct!(DedupRecord { id, expires_at });

impl Keep for DedupRecord {
    type Key = u128;
    const KIND: u8 = 3;

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.expires_at)
    }
}

impl Turn<'_> {
    /// The task that this request made before.
    pub(crate) fn known_request(&self, queue: &str, request_id: Option<&str>) -> Option<TaskId> {
        self.shard.made_by_request(queue, request_id)
    }

    /// Remembers for the queue's window that this request made `id`.
    pub(crate) fn remember_request(&mut self, queue: Slot, request_id: Option<&str>, id: TaskId) {
        let Some(request_id) = request_id else { return };
        let queue = self.shard.queues.get(queue);
        let key = request_key(queue.name.as_str(), request_id);
        let record = DedupRecord { id, expires_at: self.now.plus_ms(queue.dedup_window_ms()) };
        self.shard.dedup.insert(key, record);
    }
}

impl Machine {
    pub(crate) fn made_by_request(&self, queue: &str, request_id: Option<&str>) -> Option<TaskId> {
        let record = self.dedup.get(request_key(queue, request_id?))?;
        (record.expires_at > self.counters.now).then_some(record.id)
    }

    /// The tasks that a request id made, over all queues, each once.
    pub(crate) fn made_in_any_queue(&self, request_id: &str) -> Vec<TaskId> {
        let queues = self.queues.by_name.keys();
        let made = queues.filter_map(|name| self.made_by_request(name.as_str(), Some(request_id)));
        let made: BTreeSet<TaskId> = made.collect();
        made.into_iter().collect()
    }

    /// Whether every task of a command was made before, so that the command adds nothing. A node
    /// without room for new tasks still accepts such a command, so that a producer learns a lost
    /// answer.
    pub fn is_repetition(&self, command: &EncodedCommand) -> bool {
        let is_made = |queue, request_id| self.made_by_request(queue, request_id).is_some();
        let batch = |id: Option<u128>| id.and_then(|id| self.batches.get(id));
        match decode(command.as_bytes()) {
            Ok(Command::Enqueue(enqueue)) => is_made(enqueue.queue, enqueue.task.request_id),
            Ok(Command::EnqueueMany(many)) => {
                // Rejected tasks are judged again.
                let mut answers = batch(many.batch_id).map_or(Vec::new(), |batch| batch.answers());
                answers.resize(many.items.len(), None);
                answers.iter().zip(&many.items).all(|(answer, item)| {
                    answer.is_some() || is_made(item.queue, item.task.request_id)
                })
            }
            Ok(Command::EnqueueBatch(all)) => {
                batch(all.batch_id).is_some()
                    || all.tasks.iter().all(|task| is_made(all.queue, task.request_id))
            }
            Ok(Command::StageBatch(part)) => batch(Some(part.batch_id)).is_some(),
            Ok(Command::CommitBatch(commit)) => batch(Some(commit.batch_id)).is_some(),
            Ok(Command::SubmitFlow(submit)) => batch(submit.batch_id).is_some(),
            Ok(Command::StageFlow(part)) => batch(Some(part.batch_id)).is_some(),
            Ok(Command::CommitFlow(commit)) => batch(Some(commit.batch_id)).is_some(),
            Ok(Command::OpenTally(open)) => batch(open.batch_id).is_some(),
            Ok(Command::AddToTally(add)) => batch(add.batch_id).is_some(),
            _ => false,
        }
    }
}

/// The queue's hash is the seed, so that the same request id in two queues makes two tasks.
fn request_key(queue: &str, request_id: &str) -> u128 {
    xxh3_128_with_seed(request_id.as_bytes(), xxh3_64(queue.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::{Ask, MadeByRequest};
    use crate::testing::{Yard, new_task};
    use crate::{
        CommitFlow, Enqueue, EnqueueBatch, EnqueueMany, FlowNode, NewTask, OnFailure,
        QueueSettings, ShardId, StageFlow, SubmitFlow,
        limits::{DEDUP_WINDOW_MS_DEFAULT, DEDUP_WINDOW_MS_MIN},
    };

    fn request(request_id: &str) -> NewTask<'_> {
        NewTask { request_id: Some(request_id), ..new_task() }
    }

    #[test]
    fn a_known_request_gets_the_first_id_in_its_queue_alone() {
        let mut yard = Yard::new();
        let first = yard.enqueue_task("mail", request("r")).unwrap();
        let again = yard.enqueue_task("mail", request("r")).unwrap();
        assert_eq!((again.id, again.duplicate), (first.id, true));
        assert!(!yard.enqueue_task("video", request("r")).unwrap().duplicate);
        assert!(!yard.enqueue_task("mail", request("R")).unwrap().duplicate);
    }

    #[test]
    fn the_tasks_of_a_request_are_found_without_its_queue() {
        let mut yard = Yard::new();
        let made =
            ["mail", "video"].map(|queue| yard.enqueue_task(queue, request("r")).unwrap().id);
        yard.enqueue_task("mail", request("other")).unwrap();
        let found = |yard: &Yard, request_id: &str| {
            MadeByRequest { request_id: request_id.into() }.ask(&yard.machine, yard.now())
        };
        assert_eq!(found(&yard, "r"), made);
        assert_eq!(found(&yard, "unknown"), []);
        yard.wait_ms(DEDUP_WINDOW_MS_DEFAULT);
        assert_eq!(found(&yard, "r"), [], "its window is over");
    }

    #[test]
    fn a_known_request_is_answered_even_when_full_ended_or_removed() {
        let mut yard = Yard::new();
        let settings = QueueSettings {
            max_length: Some(1),
            retention_count: Some(0),
            ..QueueSettings::default()
        };
        yard.set("mail", settings);
        let first = yard.enqueue_task("mail", request("r")).unwrap().id;
        assert_eq!(yard.enqueue_task("mail", request("r")).unwrap().id, first, "full");
        let held = yard.claim_one("mail");
        yard.ack(&held).unwrap();
        assert_eq!(yard.machine.task(first), None);
        assert_eq!(yard.enqueue_task("mail", request("r")).unwrap().id, first, "removed");
    }

    #[test]
    fn a_request_is_a_repetition_if_all_its_tasks_exist() {
        let mut yard = Yard::new();
        let item = |request_id| Enqueue { queue: "mail", task: request(request_id) };
        let plain = || Enqueue { queue: "mail", task: new_task() };
        let many = |batch_id, items| Command::EnqueueMany(EnqueueMany { batch_id, items });
        let all = |batch_id, tasks| {
            Command::EnqueueBatch(EnqueueBatch { batch_id, queue: "mail", tasks })
        };
        let is_repetition =
            |yard: &Yard, command| yard.machine.is_repetition(&EncodedCommand::new(&command));
        assert!(!is_repetition(&yard, Command::Enqueue(item("a"))));
        for command in [
            Command::Enqueue(item("a")),
            many(Some(1), vec![item("b"), plain()]),
            all(Some(2), vec![request("c"), new_task()]),
        ] {
            yard.send(command.clone()).unwrap();
            assert!(is_repetition(&yard, command.clone()), "{command:?}");
        }
        assert!(is_repetition(&yard, many(Some(7), vec![item("a"), item("b"), item("c")])));
        assert!(is_repetition(&yard, all(None, vec![request("a"), request("b")])));
        for command in [
            Command::Enqueue(plain()),
            many(None, vec![item("a"), plain()]),
            many(None, vec![item("a"), item("d")]),
            all(Some(3), vec![request("a"), new_task()]),
        ] {
            assert!(!is_repetition(&yard, command.clone()), "{command:?}");
        }
    }

    #[test]
    fn the_shortest_window_is_long_enough_to_send_a_request_again() {
        let mut yard = Yard::new();
        let dedup_window_ms = Some(DEDUP_WINDOW_MS_MIN);
        yard.set("mail", QueueSettings { dedup_window_ms, ..QueueSettings::default() });
        let first = yard.enqueue_task("mail", request("r")).unwrap().id;
        yard.wait_ms(DEDUP_WINDOW_MS_MIN - 1);
        let again = yard.enqueue_task("mail", request("r")).unwrap();
        assert_eq!((again.id, again.duplicate), (first, true));
        yard.wait_ms(1);
        assert!(!yard.enqueue_task("mail", request("r")).unwrap().duplicate);
    }

    #[test]
    fn a_request_is_remembered_for_its_window_and_no_longer() {
        let mut yard = Yard::new();
        let first = yard.enqueue_task("mail", request("r")).unwrap().id;
        yard.wait_ms(DEDUP_WINDOW_MS_DEFAULT - 1);
        assert_eq!(yard.enqueue_task("mail", request("r")).unwrap().id, first);
        yard.pass_ms(1);
        let second = yard.enqueue_task("mail", request("r")).unwrap();
        assert!(!second.duplicate, "even before ExpireDue has removed the record");
        assert_eq!(yard.enqueue_task("mail", request("r")).unwrap().id, second.id);
    }

    /// Without room for new tasks, a producer must still get the lost answer of a flow that was
    /// made.
    #[test]
    fn a_flow_that_was_made_is_known_as_a_repetition_and_no_other() {
        let mut yard = Yard::new();
        let nodes = || {
            let enqueue = Enqueue { queue: "mail", task: new_task() };
            let (name, home, on_failure) = ("a", ShardId(0), OnFailure::Fail);
            vec![FlowNode { name, home, enqueue, depends_on: Vec::new(), on_failure }]
        };
        let submit = |batch_id| {
            let submit = SubmitFlow { batch_id, name: "flow", retention_ms: None, nodes: nodes() };
            Command::SubmitFlow(submit)
        };
        let stage = |batch_id| Command::StageFlow(StageFlow { batch_id, part: 0, nodes: nodes() });
        let commit = |batch_id| {
            Command::CommitFlow(CommitFlow { batch_id, parts: 1, name: "flow", retention_ms: None })
        };
        for command in [submit(Some(1)), stage(2), commit(2)] {
            yard.send(command).unwrap();
        }
        let is_repetition = |command| yard.machine.is_repetition(&EncodedCommand::new(&command));
        for id in [1, 2, 3] {
            for command in [submit(Some(id)), stage(id), commit(id)] {
                assert_eq!(is_repetition(command.clone()), id < 3, "{command:?}");
            }
        }
        assert!(!is_repetition(submit(None)));
    }
}
