//! The rules of unique keys: every end frees the key, every conflict is answered, windows end in
//! time.

use super::*;
use crate::limits::LOSSES_MAX;
use crate::testing::{SHARD, START, Yard, claim, extend, fail, new_task, purge, tried};
use crate::{
    Ack, Body, Claim, Command, CommitBatch, DeadAction, DeadCommand, Enqueue, EnqueueBatch,
    EnqueueMany, Fail, FollowUp, Outcome, QueueSettings, Retry, Selection, SessionId, ShardId,
    StageBatch, TaskFilter,
};

fn by_key(key: &str) -> Unique<'_> {
    let on_conflict = OnConflict::Existing;
    Unique { key: key.into(), until: None, window_ms: None, on_conflict, debounce_ms: None }
}

fn unique(unique: Unique<'_>) -> NewTask<'_> {
    NewTask { unique: Some(Box::new(unique)), ..new_task() }
}

/// A task that has key `k` until it is done.
fn done() -> NewTask<'static> {
    NewTask { unique: Some(Box::new(by_key("k"))), ..tried(1) }
}

fn start() -> NewTask<'static> {
    unique(Unique { until: Some(UniqueUntil::Start), ..by_key("k") })
}

fn window(ms: u64) -> NewTask<'static> {
    unique(Unique { window_ms: Some(ms), ..by_key("k") })
}

fn on_conflict(on_conflict: OnConflict, payload: &'static [u8]) -> NewTask<'static> {
    let body = Body { payload, ..Body::default() };
    NewTask { body, ..unique(Unique { on_conflict, ..by_key("k") }) }
}

fn debounced(payload: &'static [u8]) -> NewTask<'static> {
    let body = Body { payload, ..Body::default() };
    let on_conflict = OnConflict::Replace;
    NewTask { body, ..unique(Unique { debounce_ms: Some(500), on_conflict, ..by_key("k") }) }
}

fn enqueue(yard: &mut Yard, task: NewTask<'_>) -> Enqueued {
    yard.enqueue_task("mail", task).unwrap()
}

/// Whether key `k` is free. The probe is cancelled at once, so that no claim gets it.
fn is_free(yard: &mut Yard) -> bool {
    let answer = yard.enqueue_task("mail", on_conflict(OnConflict::Reject, b""));
    match answer {
        Ok(made) => {
            yard.cancel(made.id).unwrap();
            true
        }
        Err(rejection) => {
            assert_eq!(rejection.code(), "not_unique");
            false
        }
    }
}

#[track_caller]
fn check_frees(leave: impl FnOnce(&mut Yard, TaskId)) {
    let mut yard = Yard::new();
    let id = enqueue(&mut yard, done()).id;
    assert!(!is_free(&mut yard), "held from the enqueue");
    leave(&mut yard, id);
    assert!(is_free(&mut yard), "freed by its end");
}

#[test]
fn an_ack_frees_the_key() {
    check_frees(|yard, _| {
        let held = yard.claim_one("mail");
        assert!(!is_free(yard), "running");
        yard.ack(&held).unwrap();
    });
}

#[test]
fn a_failure_for_good_frees_the_key_and_a_retry_does_not() {
    check_frees(|yard, _| {
        let held = yard.claim_one("mail");
        yard.fail_with(Fail { retryable: false, ..fail(&held) }).unwrap();
    });
    let mut yard = Yard::new();
    enqueue(&mut yard, NewTask { unique: Some(Box::new(by_key("k"))), ..tried(2) });
    let held = yard.claim_one("mail");
    yard.fail(&held).unwrap();
    assert!(!is_free(&mut yard), "it runs again");
}

#[test]
fn death_by_spent_attempts_frees_the_key() {
    check_frees(|yard, id| {
        let held = yard.claim_one("mail");
        yard.fail(&held).unwrap();
        assert_eq!(yard.state(id), TaskStateName::Dead);
    });
}

#[test]
fn an_end_without_a_dead_letter_frees_the_key() {
    check_frees(|yard, id| {
        yard.set("mail", QueueSettings { dead_retention_count: Some(0), ..Default::default() });
        let held = yard.claim_one("mail");
        yard.fail(&held).unwrap();
        assert_eq!(yard.state(id), TaskStateName::Failed);
    });
}

#[test]
fn quarantine_frees_the_key_and_a_loss_does_not() {
    check_frees(|yard, id| {
        for _ in 0..LOSSES_MAX {
            assert!(!is_free(yard), "lost tasks run again");
            let held = yard.claim_one("mail");
            yard.send(Command::Extend(extend(&held))).unwrap();
            yard.wait_ms(30_000);
            yard.wait_ms(60_000);
        }
        assert_eq!(yard.state(id), TaskStateName::Dead);
    });
}

#[test]
fn a_timeout_of_the_last_attempt_frees_the_key() {
    let mut yard = Yard::new();
    enqueue(&mut yard, NewTask { timeout_ms: Some(1_000), ..done() });
    yard.claim_one("mail");
    yard.wait_ms(30_000);
    assert!(is_free(&mut yard));
}

#[test]
fn a_cancel_frees_the_key_when_the_task_ends() {
    check_frees(|yard, id| drop(yard.cancel(id).unwrap()));
    check_frees(|yard, id| {
        let held = yard.claim_one("mail");
        yard.cancel(id).unwrap();
        assert!(!is_free(yard), "its worker has not yielded");
        yard.release(&held).unwrap();
    });
}

#[test]
fn expiry_frees_the_key_by_time_and_by_a_claim_that_meets_it() {
    let expires_at = Some(Timestamp(START + 1_000));
    let mut yard = Yard::new();
    enqueue(&mut yard, NewTask { expires_at, ..done() });
    yard.wait_ms(1_000);
    assert!(is_free(&mut yard));
    let mut yard = Yard::new();
    enqueue(&mut yard, NewTask { expires_at, ..done() });
    yard.pass_ms(1_000);
    assert!(yard.claim("mail", 1).is_empty());
    assert!(is_free(&mut yard));
}

#[test]
fn a_purge_frees_the_key() {
    check_frees(|yard, _| {
        yard.send(purge("mail")).unwrap();
    });
}

#[test]
fn a_discarded_dead_letter_does_not_free_the_key_of_another_task() {
    let mut yard = Yard::new();
    let dead = enqueue(&mut yard, done()).id;
    let held = yard.claim_one("mail");
    yard.fail(&held).unwrap();
    let holder = enqueue(&mut yard, done()).id;
    let selection = Selection::Ids(vec![dead]);
    yard.send(Command::Dead(DeadCommand { action: DeadAction::Discard, selection })).unwrap();
    assert_eq!(enqueue(&mut yard, done()), Enqueued { id: holder, duplicate: true });
}

#[test]
fn the_end_of_a_session_frees_no_key() {
    let mut yard = Yard::new();
    enqueue(&mut yard, done());
    let session = Some(SessionId(9));
    yard.claim_with(Claim { session, ..claim("mail") });
    let end = crate::EndSession {
        session: SessionId(9),
        reason: crate::SessionEnd::Goodbye,
        not_started: vec![],
        keep: vec![],
    };
    yard.send(Command::EndSession(end)).unwrap();
    assert!(!is_free(&mut yard), "the task waits again");
}

#[test]
fn a_key_until_start_is_freed_by_the_first_claim_for_good() {
    let mut yard = Yard::new();
    let first = enqueue(&mut yard, NewTask { unique: start().unique, ..tried(2) }).id;
    assert_eq!(enqueue(&mut yard, start()), Enqueued { id: first, duplicate: true });
    let held = yard.claim_one("mail");
    let second = enqueue(&mut yard, start());
    assert!(!second.duplicate);
    yard.fail(&held).unwrap();
    assert_eq!(yard.state(first), TaskStateName::Ready, "its retry does not take the key again");
    assert_eq!(enqueue(&mut yard, start()).id, second.id);
    assert_eq!(yard.task(first).unique.map(|unique| unique.held), Some(false));
    yard.cancel(second.id).unwrap();
    assert!(is_free(&mut yard));
}

#[test]
fn a_window_keeps_the_key_even_after_its_task_ends() {
    let leaves: [fn(&mut Yard, TaskId); 4] = [
        |_, _| {},
        |yard, _| {
            let held = yard.claim_one("mail");
            yard.ack(&held).unwrap();
        },
        |yard, id| drop(yard.cancel(id).unwrap()),
        |yard, _| drop(yard.send(purge("mail")).unwrap()),
    ];
    for (number, leave) in leaves.into_iter().enumerate() {
        let mut yard = Yard::new();
        yard.set("mail", QueueSettings { retention_count: Some(0), ..Default::default() });
        let id = enqueue(&mut yard, window(60_000)).id;
        leave(&mut yard, id);
        yard.wait_ms(59_999);
        let again = enqueue(&mut yard, window(60_000));
        assert_eq!(again, Enqueued { id, duplicate: true }, "exit {number}");
        yard.pass_ms(1);
        let next = enqueue(&mut yard, window(60_000));
        assert!(!next.duplicate, "exit {number}: even before ExpireDue has removed the record");
        assert_eq!(enqueue(&mut yard, window(60_000)).id, next.id);
    }
}

#[test]
fn a_window_that_is_over_is_removed_in_time() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { retention_count: Some(0), ..Default::default() });
    enqueue(&mut yard, window(60_000));
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    assert_eq!(yard.machine.next_due(), Some(Timestamp(START + 60_000)));
    let before = yard.machine.memory_bytes();
    yard.wait_ms(60_000);
    assert!(yard.machine.memory_bytes() < before);
    assert_eq!(yard.machine.next_due(), None);
}

#[test]
fn until_and_window_together_end_with_the_first_of_them() {
    let both =
        || unique(Unique { until: Some(UniqueUntil::Done), ..*window(1_000).unique.unwrap() });
    let mut yard = Yard::new();
    enqueue(&mut yard, both());
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    assert!(is_free(&mut yard), "done before the window is over");
    let mut yard = Yard::new();
    let slow = enqueue(&mut yard, both()).id;
    let held = yard.claim_one("mail");
    yard.pass_ms(999);
    assert!(!is_free(&mut yard));
    yard.pass_ms(1);
    let next = enqueue(&mut yard, both());
    assert!(!next.duplicate, "the window is over before it is done");
    yard.ack(&held).unwrap();
    assert_eq!(yard.state(slow), TaskStateName::Succeeded);
    assert_eq!(enqueue(&mut yard, both()).id, next.id, "the late end frees nothing of the other");
}

#[test]
fn keys_are_of_a_queue_and_of_letters() {
    let mut yard = Yard::new();
    enqueue(&mut yard, done());
    assert!(!yard.enqueue_task("video", done()).unwrap().duplicate);
    assert!(!enqueue(&mut yard, unique(by_key("K"))).duplicate);
}

#[test]
fn replace_changes_the_waiting_payload_and_nothing_else() {
    let mut yard = Yard::new();
    let later = When::After { ms: 5_000 };
    let first = on_conflict(OnConflict::Replace, b"one");
    let id = enqueue(&mut yard, NewTask { run_at: later, priority: Some(7), ..first }).id;
    let again = enqueue(&mut yard, on_conflict(OnConflict::Replace, b"two"));
    assert_eq!(again, Enqueued { id, duplicate: true });
    let task = yard.task(id);
    assert_eq!((task.priority, task.run_at), (7, Some(Timestamp(START + 5_000))));
    let body = yard.body(id).unwrap();
    assert_eq!(body.payload, b"two");
    assert_eq!(task.body_bytes as usize, body.encode().len());
    assert!(yard.events().iter().any(|event| matches!(event, EventKind::TaskReplaced(_, None))));
    assert_eq!(yard.counts("mail").enqueued_total, 1);
}

#[test]
fn replace_is_refused_when_there_is_nothing_to_replace() {
    let refused = |yard: &mut Yard, task: NewTask<'_>, id: TaskId, text: &str| {
        let rejection = yard.enqueue_task("mail", task).unwrap_err();
        assert_eq!(rejection.code(), "not_unique");
        let told = rejection.to_string();
        assert!(told.contains(text) && told.contains(&id.to_string()), "{told}");
    };
    let replace = || on_conflict(OnConflict::Replace, b"two");
    let mut yard = Yard::new();
    let id = enqueue(&mut yard, window(60_000)).id;
    let other = NewTask { task_type: "resize", ..replace() };
    refused(&mut yard, other, id, "another type");
    let held = yard.claim_one("mail");
    refused(&mut yard, replace(), id, "no longer waits");
    yard.ack(&held).unwrap();
    refused(&mut yard, replace(), id, "has ended");
    refused(&mut yard, on_conflict(OnConflict::Reject, b""), id, "held by task");
}

#[test]
fn a_debounced_task_runs_after_quiet_with_the_latest_payload() {
    let mut yard = Yard::new();
    let id = enqueue(&mut yard, debounced(b"one")).id;
    assert_eq!(yard.task(id).run_at, Some(Timestamp(START + 500)));
    yard.wait_ms(400);
    assert_eq!(enqueue(&mut yard, debounced(b"two")), Enqueued { id, duplicate: true });
    yard.wait_ms(400);
    assert_eq!(yard.state(id), TaskStateName::Scheduled, "moved on");
    yard.wait_ms(100);
    assert_eq!(yard.state(id), TaskStateName::Ready);
    enqueue(&mut yard, debounced(b"three"));
    assert_eq!(yard.state(id), TaskStateName::Scheduled, "it waits for quiet again");
    assert!(yard.claim("mail", 1).is_empty());
    yard.wait_ms(500);
    assert_eq!(yard.claim_one("mail").id, id);
    assert_eq!(yard.body(id).unwrap().payload, b"three");
    assert!(!enqueue(&mut yard, debounced(b"four")).duplicate, "it has started");
}

#[test]
fn every_contradiction_is_refused_and_named() {
    let long = "x".repeat(UNIQUE_KEY_BYTES_MAX + 1);
    let key = || by_key("k");
    let debounce = || *debounced(b"").unique.unwrap();
    let mut yard = Yard::new();
    for (case, text) in [
        (by_key(""), "unique.key is empty"),
        (by_key(&long), "unique.key has 257 bytes"),
        (by_key("a\nb"), "unique.key has the control character"),
        (Unique { window_ms: Some(0), ..key() }, "unique.window_ms is 0"),
        (Unique { window_ms: Some(UNIQUE_MS_MAX + 1), ..key() }, "unique.window_ms is 2592000001"),
        (Unique { debounce_ms: Some(0), ..debounce() }, "unique.debounce_ms is 0"),
        (Unique { debounce_ms: Some(u64::MAX), ..debounce() }, "unique.debounce_ms is"),
        (Unique { until: Some(UniqueUntil::Done), ..debounce() }, "contradicts until done"),
        (Unique { window_ms: Some(5), ..debounce() }, "contradicts window_ms"),
        (Unique { on_conflict: OnConflict::Reject, ..debounce() }, "contradicts an on_conflict"),
        (Unique { on_conflict: OnConflict::Existing, ..debounce() }, "contradicts an on_conflict"),
    ] {
        let rejection = yard.enqueue_task("mail", unique(case)).unwrap_err();
        assert_eq!(rejection.code(), "invalid_argument");
        assert!(rejection.to_string().contains(text), "{rejection} lacks {text}");
    }
    let delayed = NewTask { run_at: When::After { ms: 1 }, ..debounced(b"") };
    let rejection = yard.enqueue_task("mail", delayed).unwrap_err();
    assert!(rejection.to_string().contains("exclude each other"), "{rejection}");
    let expires_at = Some(Timestamp(START + 500));
    let never = yard.enqueue_task("mail", NewTask { expires_at, ..debounced(b"") });
    assert_eq!(never, Err(Rejection::NeverRuns { expires_at: Timestamp(START + 500) }));
}

#[test]
fn a_request_id_comes_first_and_remembers_the_holder() {
    let mut yard = Yard::new();
    let holder = enqueue(&mut yard, done()).id;
    let request = |task| NewTask { request_id: Some("r"), ..task };
    assert_eq!(enqueue(&mut yard, request(done())).id, holder);
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    let again = enqueue(&mut yard, request(on_conflict(OnConflict::Reject, b"")));
    assert_eq!(again, Enqueued { id: holder, duplicate: true }, "sent again, answered as before");
    assert!(!enqueue(&mut yard, done()).duplicate);
}

#[test]
fn a_full_queue_answers_with_the_holder() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { max_length: Some(1), ..Default::default() });
    let id = enqueue(&mut yard, done()).id;
    assert_eq!(enqueue(&mut yard, done()).id, id);
    let other = yard.enqueue_task("mail", unique(by_key("other")));
    assert_eq!(other.unwrap_err().code(), "queue_full");
}

fn batch(tasks: Vec<NewTask<'_>>) -> Command<'_> {
    Command::EnqueueBatch(EnqueueBatch { batch_id: None, queue: "mail", tasks })
}

fn made(answer: Result<Outcome, Rejection>) -> Vec<Enqueued> {
    match answer {
        Ok(Outcome::EnqueuedBatch(made)) => made,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_batch_follows_the_same_rules_in_its_order() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { max_length: Some(2), ..Default::default() });
    let replace = |payload| on_conflict(OnConflict::Replace, payload);
    let answers = made(yard.send(batch(vec![replace(b"1"), done(), new_task(), replace(b"2")])));
    let duplicates: Vec<bool> = answers.iter().map(|made| made.duplicate).collect();
    assert_eq!(duplicates, [false, true, false, true], "two tasks fit a queue of two");
    assert_eq!(answers[0].id, answers[3].id);
    assert_eq!(yard.body(answers[0].id).unwrap().payload, b"2");
}

#[test]
fn a_reject_in_a_batch_rejects_the_whole_batch() {
    let reject = || on_conflict(OnConflict::Reject, b"");
    let mut yard = Yard::new();
    let told = |answer: Result<Outcome, Rejection>| {
        let rejection = answer.unwrap_err();
        assert_eq!(rejection.code(), "not_unique");
        rejection.to_string()
    };
    let inside = told(yard.send(batch(vec![new_task(), reject(), reject()])));
    assert!(inside.starts_with("task 2 of the batch"), "{inside}");
    assert!(inside.contains("held by task 1 of the same batch"), "{inside}");
    let resize = NewTask { task_type: "resize", ..on_conflict(OnConflict::Replace, b"") };
    let types = told(yard.send(batch(vec![done(), resize])));
    assert!(types.contains("another type"), "{types}");
    let holder = enqueue(&mut yard, done()).id;
    let outside = told(yard.send(batch(vec![new_task(), reject()])));
    assert!(outside.contains(&holder.to_string()), "{outside}");
    assert_eq!(yard.machine.task_count(), 1);
}

#[test]
fn a_staged_batch_is_judged_when_it_is_committed() {
    let mut yard = Yard::new();
    let tasks = vec![on_conflict(OnConflict::Reject, b"")];
    let stage = StageBatch { batch_id: 5, queue: "mail", part: 0, tasks };
    let commit = || Command::CommitBatch(CommitBatch { batch_id: 5, parts: 1 });
    let holder = enqueue(&mut yard, done()).id;
    yard.send(Command::StageBatch(stage)).unwrap();
    assert_eq!(yard.send(commit()).unwrap_err().code(), "not_unique");
    yard.cancel(holder).unwrap();
    assert!(!made(yard.send(commit()))[0].duplicate, "it stayed staged");
}

#[test]
fn many_tasks_are_judged_one_by_one() {
    let mut yard = Yard::new();
    let item = |task| Enqueue { queue: "mail", task };
    let items = vec![item(done()), item(on_conflict(OnConflict::Reject, b"")), item(done())];
    let answer = yard.send(Command::EnqueueMany(EnqueueMany { batch_id: None, items }));
    let Ok(Outcome::EnqueuedMany(answers)) = answer else { panic!("{answer:?}") };
    assert_eq!(answers[1].as_ref().unwrap_err().code(), "not_unique");
    assert_eq!(answers[0].as_ref().unwrap().id, answers[2].as_ref().unwrap().id);
}

#[test]
fn follow_ups_are_never_refused() {
    let mut yard = Yard::new();
    let holder = yard.enqueue_task("next", done()).unwrap().id;
    yard.enqueue("mail");
    let held = yard.claim_one("mail");
    let follow_up = |task| FollowUp { home: SHARD, enqueue: Enqueue { queue: "next", task } };
    let follow_ups = vec![
        follow_up(on_conflict(OnConflict::Reject, b"")),
        follow_up(NewTask { task_type: "resize", ..on_conflict(OnConflict::Replace, b"") }),
        follow_up(on_conflict(OnConflict::Replace, b"new")),
    ];
    let ack = Ack { task: held.id, token: held.token, result: None, follow_ups };
    let answer = yard.send(Command::Ack(ack));
    assert_eq!(answer, Ok(Outcome::Acked { follow_ups: vec![holder; 3] }));
    assert_eq!(yard.body(holder).unwrap().payload, b"new");
}

#[test]
fn deliveries_of_other_shards_are_never_refused() {
    let mut source = Yard::of_shard(ShardId(2));
    let mut target = Yard::new();
    source.enqueue("mail");
    let held = source.claim_one("mail");
    let follow_up = |task| FollowUp { home: SHARD, enqueue: Enqueue { queue: "next", task } };
    let follow_ups = vec![
        follow_up(debounced(b"new")),
        follow_up(on_conflict(OnConflict::Reject, b"")),
        follow_up(debounced(b"newer")),
    ];
    let ack = Ack { task: held.id, token: held.token, result: None, follow_ups };
    let Ok(Outcome::Acked { follow_ups }) = source.send(Command::Ack(ack)) else { panic!() };
    target.pass_ms(200);
    for outgoing in source.machine.outgoing(10) {
        let deliver = outgoing.deliver(ShardId(2), outgoing.stored_at.plus_ms(200));
        assert_eq!(target.send(Command::Deliver(deliver)), Ok(Outcome::Taken));
    }
    assert_eq!(target.counts("next").enqueued_total, 1);
    let first = target.task(follow_ups[0]);
    assert_eq!(first.run_at, Some(Timestamp(START + 500)), "quiet counts from the ack");
    assert_eq!(target.body(first.id).unwrap().payload, b"newer");
}

#[test]
fn a_retry_by_hand_takes_the_key_back_or_is_refused() {
    let mut yard = Yard::new();
    let dead = enqueue(&mut yard, done()).id;
    let held = yard.claim_one("mail");
    yard.fail(&held).unwrap();
    let holder = enqueue(&mut yard, done()).id;
    let body = Some(Body { payload: b"mended", ..Body::default() });
    let refused = yard.send(Command::Retry(Retry { task: dead, body })).unwrap_err();
    assert_eq!(refused.code(), "not_unique");
    assert!(refused.to_string().contains(&holder.to_string()), "{refused}");
    assert_ne!(yard.body(dead).unwrap().payload, b"mended");
    yard.cancel(holder).unwrap();
    assert_eq!(yard.retry(dead), Ok(Outcome::Retried));
    assert_eq!(enqueue(&mut yard, done()).id, dead, "it holds its key again");
    assert_eq!(yard.retry(holder).unwrap_err().code(), "not_unique");
}

#[test]
fn a_bulk_retry_skips_a_task_whose_key_is_taken() {
    let mut yard = Yard::new();
    for _ in 0..3 {
        enqueue(&mut yard, done());
        let held = yard.claim_one("mail");
        yard.fail(&held).unwrap();
    }
    let filter = TaskFilter::default();
    let selection = Selection::Filter { filter, after: None, dead_before: None };
    let answer = yard.send(Command::Dead(DeadCommand { action: DeadAction::Retry, selection }));
    let Ok(Outcome::Bulk(progress)) = answer else { panic!("{answer:?}") };
    assert_eq!((progress.changed, progress.skipped), (1, 2), "one of three fits the key");
    assert_eq!((yard.counts("mail").ready, yard.counts("mail").dead), (1, 2));
}

#[test]
fn a_retry_by_hand_of_a_started_or_windowed_task_asks_for_no_key() {
    let mut yard = Yard::new();
    let id = enqueue(&mut yard, NewTask { unique: start().unique, ..tried(1) }).id;
    let held = yard.claim_one("mail");
    yard.fail(&held).unwrap();
    let holder = enqueue(&mut yard, start()).id;
    assert_eq!(yard.retry(id), Ok(Outcome::Retried), "until start: it had started");
    assert_eq!(enqueue(&mut yard, start()).id, holder);

    let mut yard = Yard::new();
    let id = enqueue(&mut yard, NewTask { unique: window(60_000).unique, ..tried(1) }).id;
    let held = yard.claim_one("mail");
    yard.fail(&held).unwrap();
    assert_eq!(yard.retry(id), Ok(Outcome::Retried), "its window is its own");
    let replaced = enqueue(&mut yard, on_conflict(OnConflict::Replace, b"two"));
    assert_eq!(replaced, Enqueued { id, duplicate: true }, "it waits again");
    yard.cancel(id).unwrap();
    yard.pass_ms(60_000);
    let next = enqueue(&mut yard, window(60_000)).id;
    assert_eq!(yard.retry(id), Ok(Outcome::Retried), "after its window it goes without");
    assert_eq!(enqueue(&mut yard, window(60_000)).id, next);
}

#[test]
fn keys_and_windows_survive_a_checkpoint() {
    let mut yard = Yard::new();
    enqueue(&mut yard, window(60_000));
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    yard.enqueue_task("video", done()).unwrap();
    yard.enqueue_task("audio", start()).unwrap();
    yard.claim_one("audio");
    let records = yard.machine.records();
    let loaded = Machine::load(yard.machine.identity(), records.clone()).unwrap();
    loaded.check().unwrap();
    assert!(loaded.records() == records);
    assert_eq!(loaded.unique, yard.machine.unique);
    assert_eq!(loaded.memory_bytes(), yard.machine.memory_bytes());
    assert_eq!(loaded.next_due(), yard.machine.next_due());
}

#[test]
fn a_view_shows_the_holder_of_a_key() {
    let mut yard = Yard::new();
    let id = enqueue(&mut yard, window(60_000)).id;
    let view = yard.task(id).unique.unwrap();
    let expires_at = Some(Timestamp(START + 60_000));
    let expected =
        UniqueView { key: "k".into(), until: None, expires_at, debounce_ms: None, held: true };
    assert_eq!(view, expected);
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    assert!(yard.task(id).unique.unwrap().held, "its window goes on");
    yard.wait_ms(60_000);
    assert!(!yard.task(id).unique.unwrap().held);
}
