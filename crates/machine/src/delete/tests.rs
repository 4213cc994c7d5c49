//! What a deletion refuses, what it takes with it, and what it leaves.

use super::*;
use crate::testing::{Yard, new_task, tried};
use crate::{
    Command, NewTask, PerKey, QueueCommand, QueueName, Record, RecordKey, Snooze, TaskStateName,
    Unique, When, limits::RETENTION_MS_DEFAULT,
};
use std::collections::BTreeMap;

fn delete(yard: &mut Yard, queue: &str) -> Result<Outcome, Rejection> {
    yard.send(Command::DeleteQueue(DeleteQueue { queue, version: 0 }))
}

fn name(queue: &str) -> QueueName {
    QueueName::parse(queue).unwrap()
}

fn is_listed(yard: &Yard, queue: &str) -> bool {
    let listed = yard.machine.queues().iter().any(|view| view.name.as_str() == queue);
    assert_eq!(listed, yard.machine.queue(&name(queue)).is_some());
    assert_eq!(listed, yard.machine.queue_settings(&name(queue)).is_some());
    listed
}

/// How many queues the shard keeps, deleted ones included.
fn kept(yard: &Yard) -> usize {
    yard.machine.queues.slab.len()
}

fn finish_one(yard: &mut Yard, task: NewTask<'_>) -> crate::TaskId {
    let id = yard.enqueue_task("mail", task).unwrap().id;
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    id
}

#[test]
fn a_queue_with_tasks_is_refused_with_their_counts_and_what_to_do() {
    let mut yard = Yard::new();
    assert_eq!(delete(&mut yard, "mail").unwrap_err().code(), "not_found");
    yard.enqueue("mail");
    let purge = "purge it first: taskyard queue purge mail";
    let discard = "discard the dead ones: taskyard dead discard --queue mail";
    let refusal = |yard: &mut Yard| {
        let refused = delete(yard, "mail").unwrap_err();
        assert_eq!(refused.code(), "queue_not_empty");
        refused.to_string()
    };
    assert_eq!(refusal(&mut yard), format!("queue mail has 1 waiting task; {purge}"));
    yard.enqueue_task("mail", NewTask { run_at: When::After { ms: 9_000 }, ..new_task() }).unwrap();
    yard.enqueue_task("mail", NewTask { priority: Some(9), ..tried(1) }).unwrap();
    let doomed = yard.claim_one("mail");
    let claimed = "let the claimed ones end, or cancel them";
    let text = format!("queue mail has 2 waiting and 1 claimed tasks; {purge}; {claimed}");
    assert_eq!(refusal(&mut yard), text);
    yard.fail(&doomed).unwrap();
    let text = format!("queue mail has 2 waiting and 1 dead tasks; {purge}; {discard}");
    assert_eq!(refusal(&mut yard), text);
    assert!(is_listed(&yard, "mail"));
}

#[test]
fn all_that_was_set_goes_with_a_queue_and_its_number_is_given_away_again() {
    let mut yard = Yard::new();
    for queue in ["first", "mail", "last"] {
        yard.set(queue, QueueSettings { max_length: Some(1), ..QueueSettings::default() });
    }
    yard.send(Command::PauseQueue(QueueCommand { queue: "mail" })).unwrap();
    let number = yard.machine.queues.find("mail").unwrap();
    assert_eq!(delete(&mut yard, "mail"), Ok(Outcome::Done));
    assert_eq!(kept(&yard), 2, "nothing is left of it");
    assert!(!is_listed(&yard, "mail"));
    for command in [
        Command::PauseQueue(QueueCommand { queue: "mail" }),
        Command::DeleteQueue(DeleteQueue { queue: "mail", version: 0 }),
    ] {
        assert_eq!(yard.send(command).unwrap_err().code(), "not_found");
    }
    delete(&mut yard, "first").unwrap();
    let reloaded = Machine::load(yard.machine.identity(), yard.machine.records()).unwrap();
    yard.machine = reloaded;
    yard.enqueue("other");
    assert_eq!(yard.machine.queues.find("other"), Some(0), "the lowest free number, reloaded too");
    let ids = [(); 2].map(|()| yard.enqueue("mail"));
    assert_eq!(yard.machine.queues.find("mail"), Some(number));
    assert_eq!(yard.claim("mail", 9).len(), ids.len(), "neither full nor paused");
    assert_eq!(yard.counts("mail").enqueued_total, 2);
}

#[test]
fn finished_tasks_stay_readable_and_then_nothing_is_left() {
    let mut yard = Yard::new();
    let keyed = NewTask { fairness_key: Some("acme"), ..new_task() };
    let done = finish_one(&mut yard, keyed);
    let stopped = yard.enqueue("mail");
    yard.cancel(stopped).unwrap();
    let own = finish_one(&mut yard, NewTask { retention_ms: Some(5), ..new_task() });
    assert_eq!(delete(&mut yard, "mail"), Ok(Outcome::Done));
    assert!(!is_listed(&yard, "mail"));
    assert_eq!(yard.task(done).queue.as_str(), "mail");
    let refused = yard.retry(stopped).unwrap_err();
    assert_eq!(refused.code(), "conflict");
    assert!(refused.to_string().ends_with("its queue was deleted since; enqueue it again"));
    yard.wait_ms(5);
    assert!(yard.machine.task(own).is_none(), "its own retention holds");
    assert_eq!(kept(&yard), 1);
    yard.wait_ms(RETENTION_MS_DEFAULT);
    assert_eq!((yard.machine.task_count(), kept(&yard)), (0, 0));
    assert_eq!(yard.machine.next_due(), None);
}

#[test]
fn the_first_use_of_the_name_brings_the_queue_back_with_its_finished_tasks() {
    let mut yard = Yard::new();
    let stopped = yard.enqueue("mail");
    yard.cancel(stopped).unwrap();
    delete(&mut yard, "mail").unwrap();
    yard.enqueue("mail");
    assert!(is_listed(&yard, "mail"));
    let counts = yard.counts("mail");
    assert_eq!((counts.ready, counts.finished, counts.enqueued_total), (1, 1, 1));
    yard.retry(stopped).unwrap();
    assert_eq!(yard.state(stopped), TaskStateName::Ready);
    yard.set("video", QueueSettings::default());
    delete(&mut yard, "video").unwrap();
    yard.set("video", QueueSettings::default());
    assert!(is_listed(&yard, "video"));
}

#[test]
fn request_ids_and_unique_windows_outlive_the_queue() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { retention_count: Some(0), ..QueueSettings::default() });
    let request = NewTask { request_id: Some("r"), ..new_task() };
    let unique = Unique {
        key: "k".into(),
        until: None,
        window_ms: Some(60_000),
        on_conflict: Default::default(),
        debounce_ms: None,
    };
    let windowed = NewTask { unique: Some(Box::new(unique)), ..new_task() };
    let made = finish_one(&mut yard, request.clone());
    let holder = finish_one(&mut yard, windowed.clone());
    delete(&mut yard, "mail").unwrap();
    assert_eq!(kept(&yard), 0);
    let again = yard.enqueue_task("mail", request.clone()).unwrap();
    assert_eq!((again.id, again.duplicate), (made, true));
    assert_eq!(kept(&yard), 0, "a repetition makes no task, and so no queue");
    let again = yard.enqueue_task("mail", windowed).unwrap();
    assert_eq!((again.id, again.duplicate), (holder, true));
    assert!(is_listed(&yard, "mail"), "its key was judged, and so the queue used");
    yard.wait_ms(crate::limits::DEDUP_WINDOW_MS_DEFAULT);
    assert!(!yard.enqueue_task("mail", request).unwrap().duplicate, "its window is over");
}

#[test]
fn a_key_that_is_pushed_back_stays_so_over_a_deletion() {
    let mut yard = Yard::new();
    let per_key = Some(PerKey { concurrency: Some(1), rate: None });
    yard.set("mail", QueueSettings { per_key, ..QueueSettings::default() });
    let keyed = NewTask { fairness_key: Some("acme"), ..new_task() };
    yard.enqueue_task("mail", keyed.clone()).unwrap();
    let held = yard.claim_one("mail");
    let until = When::After { ms: 3_600_000 };
    let snooze = Snooze { task: held.id, token: held.token, until, push_back_key: true };
    yard.send(Command::Snooze(snooze)).unwrap();
    yard.cancel(held.id).unwrap();
    delete(&mut yard, "mail").unwrap();
    yard.enqueue_task("mail", keyed).unwrap();
    assert_eq!(yard.claim("mail", 1).len(), 0);
    yard.wait_ms(3_600_000);
    assert_eq!(yard.claim("mail", 1).len(), 1);
}

/// Takes a checkpoint in small bites, with `meanwhile` after the first, and applies it to what
/// earlier ones have stored.
fn checkpoint(
    yard: &mut Yard,
    stored: &mut BTreeMap<RecordKey, Box<[u8]>>,
    meanwhile: impl FnOnce(&mut Yard),
) {
    yard.machine.freeze();
    let expected = yard.machine.records();
    let mut bite = yard.machine.frozen_bite(1);
    meanwhile(yard);
    while !bite.is_empty() {
        for Record { key, value } in bite {
            match value {
                Some(value) => drop(stored.insert(key, value)),
                None => assert!(stored.remove(&key).is_some(), "{key:?} was never stored"),
            }
        }
        bite = yard.machine.frozen_bite(1);
    }
    assert!(stored.iter().map(|(key, value)| (key.clone(), value.clone())).eq(expected));
}

#[test]
fn checkpoints_follow_a_number_through_deletion_and_reuse() {
    let mut yard = Yard::new();
    let mut stored = BTreeMap::new();
    yard.set("mail", QueueSettings::default());
    yard.set("video", QueueSettings::default());
    // Deleted while the cut that has it is not encoded yet, and made again before the next.
    checkpoint(&mut yard, &mut stored, |yard| {
        delete(yard, "mail").unwrap();
        delete(yard, "video").unwrap();
        yard.set("other", QueueSettings::default());
    });
    checkpoint(&mut yard, &mut stored, |yard| {
        delete(yard, "other").unwrap();
        yard.set("third", QueueSettings::default());
        delete(yard, "third").unwrap();
    });
    checkpoint(&mut yard, &mut stored, |yard| yard.set("mail", QueueSettings::default()));
    checkpoint(&mut yard, &mut stored, |_| ());
    assert_eq!(yard.machine.dirty_records(), 0);
}
