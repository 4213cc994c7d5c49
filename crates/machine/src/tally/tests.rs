//! Tallies over several shards: what they count, which callbacks run, and when they are forgotten.

use crate::limits::*;
use crate::testing::yards::Yards;
use crate::testing::{Yard, new_task, purge, tried};
use crate::*;
use CallbackState::{Enqueued as Sent, Succeeded, Waiting};

/// The shard of all tallies.
const HOME: ShardId = ShardId(1);

fn in_queue<'a>(home: u16, queue: &'a str, task: NewTask<'a>) -> FollowUp<'a> {
    FollowUp { home: ShardId(home), enqueue: Enqueue { queue, task } }
}

fn then(follow_up: FollowUp<'_>) -> Option<Box<FollowUp<'_>>> {
    Some(Box::new(follow_up))
}

/// A tally without callbacks.
fn plain<'a>() -> OpenTally<'a> {
    OpenTally { batch_id: None, description: "", parent: None, success: None, complete: None }
}

/// A tally with callbacks for both steps, on two other shards, in queues named after the steps.
fn followed<'a>() -> OpenTally<'a> {
    let complete = then(in_queue(2, "complete", tried(1)));
    let success = then(in_queue(3, "success", tried(1)));
    OpenTally { complete, success, ..plain() }
}

fn try_open(yards: &mut Yards, open: OpenTally<'_>) -> Result<TaskId, Rejection> {
    match yards.on(HOME).send(Command::OpenTally(open))? {
        Outcome::TallyOpened { tally } => Ok(tally),
        other => panic!("{other:?}"),
    }
}

fn open(yards: &mut Yards, open: OpenTally<'_>) -> TaskId {
    try_open(yards, open).unwrap()
}

fn below(yards: &mut Yards, parent: TaskId) -> TaskId {
    open(yards, OpenTally { parent: Some(parent), ..plain() })
}

fn try_add(yards: &mut Yards, add: AddToTally<'_>) -> Result<Vec<TaskId>, Rejection> {
    let answer = yards.on(HOME).send(Command::AddToTally(add));
    yards.carry();
    match answer? {
        Outcome::TallyAdded { ids } => Ok(ids),
        other => panic!("{other:?}"),
    }
}

/// Adds a task to each of these queues, on the shards 0, 1, 2, 3, 0 and so on.
fn add(yards: &mut Yards, tally: TaskId, queues: &[&str]) -> Vec<TaskId> {
    let tasks = (0..).zip(queues).map(|(n, queue)| in_queue(n % 4, queue, tried(2))).collect();
    try_add(yards, AddToTally { tally, batch_id: None, tasks }).unwrap()
}

fn add_one(yards: &mut Yards, tally: TaskId, task: NewTask<'_>) -> TaskId {
    let tasks = vec![in_queue(2, "mail", task)];
    try_add(yards, AddToTally { tally, batch_id: None, tasks }).unwrap()[0]
}

fn change(yards: &mut Yards, command: Command<'_>) -> Result<(), Rejection> {
    let answer = yards.on(HOME).send(command);
    yards.carry();
    answer.map(|outcome| assert_eq!(outcome, Outcome::Done))
}

fn commit(yards: &mut Yards, tally: TaskId) {
    change(yards, Command::CommitTally(CommitTally { tally })).unwrap();
}

fn reopen(yards: &mut Yards, tally: TaskId) {
    change(yards, Command::ReopenTally(ReopenTally { tally })).unwrap();
}

fn succeed(yards: &mut Yards, task: TaskId) {
    let held = yards.claim(task);
    yards.on(task.home).ack(&held).unwrap();
    yards.carry();
}

/// Runs the callback of a step, once it is there.
fn run_callback(yards: &mut Yards, home: u16, queue: &str) -> TaskId {
    let held = yards.on(ShardId(home)).claim_one(queue);
    yards.on(ShardId(home)).ack(&held).unwrap();
    yards.carry();
    held.id
}

fn view(yards: &Yards, tally: TaskId) -> TallyView {
    yards.yards[&HOME].machine.tally(tally).expect("the tally is kept")
}

/// The counts of the tally: all tasks, pending ones, and pending ones that have run.
fn counts(yards: &Yards, tally: TaskId) -> [u64; 3] {
    let TallyView { total, pending, failed, .. } = view(yards, tally);
    [total, pending, failed]
}

fn steps(yards: &Yards, tally: TaskId) -> [CallbackState; 2] {
    let TallyView { complete, success, .. } = view(yards, tally);
    [complete, success]
}

/// The number of callbacks ever enqueued, for both steps.
fn followed_from(yards: &Yards) -> [u64; 2] {
    [(2, "complete"), (3, "success")].map(|(home, queue)| {
        let name = QueueName::parse(queue).unwrap();
        let found = yards.yards[&ShardId(home)].machine.queue(&name);
        found.map_or(0, |queue| queue.counts.enqueued_total)
    })
}

#[test]
fn a_tally_counts_its_tasks_wherever_they_live() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, OpenTally { description: "import", ..followed() });
    let tasks = add(&mut yards, tally, &["a", "b", "c", "d", "e"]);
    assert_eq!(tasks.iter().map(|task| task.home.0).collect::<Vec<_>>(), [0, 1, 2, 3, 0]);
    assert_eq!(counts(&yards, tally), [5, 5, 0]);
    yards.fail(tasks[0]);
    assert_eq!(counts(&yards, tally), [5, 5, 1], "it is tried again");
    yards.fail(tasks[0]);
    assert_eq!(yards.state(tasks[0]), TaskStateName::Dead);
    assert_eq!(counts(&yards, tally), [5, 5, 1], "and is counted once");
    yards.fail(tasks[1]);
    succeed(&mut yards, tasks[1]);
    succeed(&mut yards, tasks[2]);
    assert_eq!(counts(&yards, tally), [5, 3, 1]);
    let seen = view(&yards, tally);
    assert_eq!((seen.description.as_str(), seen.committed, seen.parent), ("import", false, None));
    assert_eq!(steps(&yards, tally), [Waiting, Waiting]);
}

#[test]
fn callbacks_are_enqueued_once_and_in_order() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, followed());
    let tasks = add(&mut yards, tally, &["a", "b"]);
    yards.fail(tasks[0]);
    succeed(&mut yards, tasks[1]);
    assert_eq!(followed_from(&yards), [0, 0], "nobody said that this is all");
    commit(&mut yards, tally);
    assert_eq!((followed_from(&yards), steps(&yards, tally)), ([1, 0], [Sent, Waiting]));
    succeed(&mut yards, tasks[0]);
    assert_eq!(counts(&yards, tally), [2, 0, 0]);
    assert_eq!(followed_from(&yards), [1, 0], "first what follows from the end");
    run_callback(&mut yards, 2, "complete");
    assert_eq!((followed_from(&yards), steps(&yards, tally)), ([1, 1], [Succeeded, Sent]));
    run_callback(&mut yards, 3, "success");
    assert_eq!(steps(&yards, tally), [Succeeded, Succeeded]);
    commit(&mut yards, tally);
    let more = add(&mut yards, tally, &["c"]);
    succeed(&mut yards, more[0]);
    assert_eq!(counts(&yards, tally), [3, 0, 0], "it goes on to count");
    assert_eq!(followed_from(&yards), [1, 1], "never again");
}

#[test]
fn an_empty_tally_completes_and_succeeds_with_its_commit() {
    let mut yards = Yards::new();
    let silent = open(&mut yards, plain());
    assert_eq!(steps(&yards, silent), [Waiting, Waiting]);
    commit(&mut yards, silent);
    assert_eq!(steps(&yards, silent), [Succeeded, Succeeded]);
    let tally = open(&mut yards, followed());
    commit(&mut yards, tally);
    assert_eq!(steps(&yards, tally), [Sent, Waiting]);
    run_callback(&mut yards, 2, "complete");
    assert_eq!(steps(&yards, tally), [Succeeded, Sent]);
    let success = then(in_queue(3, "success", new_task()));
    let direct = open(&mut yards, OpenTally { success, ..plain() });
    commit(&mut yards, direct);
    assert_eq!(steps(&yards, direct), [Succeeded, Sent]);
}

#[test]
fn a_dead_callback_delays_the_next_until_it_is_retried() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, followed());
    commit(&mut yards, tally);
    let held = yards.on(ShardId(2)).claim_one("complete");
    yards.on(ShardId(2)).fail(&held).unwrap();
    yards.carry();
    assert_eq!(
        (yards.state(held.id), steps(&yards, tally)),
        (TaskStateName::Dead, [Sent, Waiting])
    );
    yards.on(ShardId(2)).retry(held.id).unwrap();
    assert_eq!(run_callback(&mut yards, 2, "complete"), held.id);
    assert_eq!(steps(&yards, tally), [Succeeded, Sent]);
    assert_eq!(followed_from(&yards), [1, 1]);
}

#[test]
fn every_end_of_a_task_is_counted() {
    type Act = fn(&mut Yard, TaskId);
    let later = || NewTask { run_at: When::After { ms: 60_000 }, ..new_task() };
    let expiring = |yards: &Yards| {
        let expires_at = Some(yards.yards[&HOME].now().plus_ms(90_000));
        NewTask { expires_at, ..new_task() }
    };
    let timed = NewTask { timeout_ms: Some(1_000), ..tried(3) };
    let table: [(&str, NewTask<'_>, Act); 9] = [
        ("cancelled", later(), |yard, id| drop(yard.cancel(id).unwrap())),
        ("killed", new_task(), |yard, task| {
            yard.send(Command::Kill(Kill { task })).unwrap();
        }),
        ("expired", expiring(&Yards::new()), |yard, _| yard.wait_ms(90_000)),
        ("purged", later(), |yard, _| drop(yard.send(purge("mail")).unwrap())),
        ("lost", new_task(), |yard, _| {
            yard.claim_one("mail");
            yard.wait_ms(30_000);
        }),
        ("timed out", timed, |yard, _| {
            yard.claim_one("mail");
            yard.wait_ms(1_000 + TIMEOUT_GRACE_MS);
        }),
        ("dead", tried(1), |yard, _| {
            let held = yard.claim_one("mail");
            yard.fail(&held).unwrap();
        }),
        ("failed", NewTask { discard_dead: true, ..tried(1) }, |yard, _| {
            let held = yard.claim_one("mail");
            yard.fail(&held).unwrap();
        }),
        ("cancelled while it ran", new_task(), |yard, id| {
            let held = yard.claim_one("mail");
            yard.cancel(id).unwrap();
            yard.release(&held).unwrap();
        }),
    ];
    for (what, task, act) in table {
        let mut yards = Yards::new();
        let tally = open(&mut yards, followed());
        let id = add_one(&mut yards, tally, task);
        commit(&mut yards, tally);
        assert_eq!((counts(&yards, tally), followed_from(&yards)), ([1, 1, 0], [0, 0]), "{what}");
        act(yards.on(id.home), id);
        yards.carry();
        assert_eq!((counts(&yards, tally), followed_from(&yards)), ([1, 1, 1], [1, 0]), "{what}");
    }
}

#[test]
fn a_released_or_snoozed_task_has_not_run() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, followed());
    let id = add_one(&mut yards, tally, new_task());
    commit(&mut yards, tally);
    let held = yards.claim(id);
    yards.on(id.home).release(&held).unwrap();
    let held = yards.claim(id);
    let (task, token, until) = (held.id, held.token, When::After { ms: 5 });
    let snooze = Snooze { task, token, until, push_back_key: false };
    yards.on(id.home).send(Command::Snooze(snooze)).unwrap();
    wait_ms(&mut yards, 5);
    // No worker ever reported that it began.
    let session = Some(SessionId(1));
    let lapses = Claim { session, ..crate::testing::claim("mail") };
    assert_eq!(yards.on(id.home).claim_with(lapses).len(), 1);
    wait_ms(&mut yards, 30_000);
    assert_eq!((counts(&yards, tally), followed_from(&yards)), ([1, 1, 0], [0, 0]));
}

#[test]
fn a_task_that_is_retried_by_hand_is_counted_where_it_ends() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, followed());
    let id = add_one(&mut yards, tally, tried(1));
    commit(&mut yards, tally);
    for _ in 0..2 {
        yards.fail(id);
        assert_eq!(yards.state(id), TaskStateName::Dead);
        yards.on(id.home).retry(id).unwrap();
        yards.carry();
        assert_eq!(counts(&yards, tally), [1, 1, 1], "it has run");
    }
    succeed(&mut yards, id);
    assert_eq!(counts(&yards, tally), [1, 0, 0]);
    run_callback(&mut yards, 2, "complete");
    assert_eq!(followed_from(&yards), [1, 1]);
}

#[test]
fn a_task_that_is_no_longer_kept_stays_counted() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, plain());
    let settings = QueueSettings { retention_count: Some(0), ..QueueSettings::default() };
    yards.on(ShardId(2)).set("mail", settings);
    let done = add_one(&mut yards, tally, new_task());
    succeed(&mut yards, done);
    assert!(yards.yards[&done.home].machine.task(done).is_none());
    let dead = add_one(&mut yards, tally, tried(1));
    yards.fail(dead);
    let (action, selection) = (DeadAction::Discard, Selection::Ids(vec![dead]));
    yards.on(dead.home).send(Command::Dead(DeadCommand { action, selection })).unwrap();
    yards.carry();
    assert!(yards.yards[&dead.home].machine.task(dead).is_none());
    assert_eq!(counts(&yards, tally), [2, 1, 1]);
}

#[test]
fn a_task_replaced_by_another_is_not_counted() {
    let unique = || Unique {
        key: "k".into(),
        until: None,
        window_ms: None,
        on_conflict: OnConflict::Existing,
        debounce_ms: None,
    };
    let known = NewTask { request_id: Some("r"), ..new_task() };
    for task in [known, NewTask { unique: Some(Box::new(unique())), ..new_task() }] {
        let mut yards = Yards::new();
        let tally = open(&mut yards, followed());
        let first = add_one(&mut yards, tally, task.clone());
        let second = add_one(&mut yards, tally, task);
        assert!(yards.yards[&second.home].machine.task(second).is_none());
        assert_eq!(counts(&yards, tally), [1, 1, 0]);
        commit(&mut yards, tally);
        succeed(&mut yards, first);
        assert_eq!((counts(&yards, tally), followed_from(&yards)), ([1, 0, 0], [1, 0]));
    }
}

#[test]
fn a_tally_of_nothing_but_known_tasks_is_an_empty_one() {
    let mut yards = Yards::new();
    let known = || NewTask { request_id: Some("r"), ..new_task() };
    yards.on(ShardId(2)).enqueue_task("mail", known()).unwrap();
    let tally = open(&mut yards, followed());
    let tasks = vec![in_queue(2, "mail", known())];
    let command = AddToTally { tally, batch_id: None, tasks };
    yards.on(HOME).send(Command::AddToTally(command)).unwrap();
    yards.on(HOME).send(Command::CommitTally(CommitTally { tally })).unwrap();
    assert_eq!((counts(&yards, tally), steps(&yards, tally)), ([1, 1, 0], [Waiting, Waiting]));
    yards.carry();
    assert_eq!((counts(&yards, tally), steps(&yards, tally)), ([0, 0, 0], [Sent, Waiting]));
}

#[test]
fn a_tally_waits_for_those_below_it() {
    let mut yards = Yards::new();
    let top = open(&mut yards, followed());
    let middle = below(&mut yards, top);
    let complete = then(in_queue(0, "low", tried(1)));
    let low = open(&mut yards, OpenTally { parent: Some(middle), complete, ..plain() });
    assert_eq!(view(&yards, low).parent, Some(middle));
    let task = add(&mut yards, low, &["a"])[0];
    for tally in [top, middle] {
        commit(&mut yards, tally);
        assert_eq!(steps(&yards, tally), [Waiting, Waiting]);
    }
    yards.fail(task);
    assert_eq!(steps(&yards, middle), [Waiting, Waiting], "the lowest is open");
    commit(&mut yards, low);
    assert_eq!(steps(&yards, low), [Sent, Waiting]);
    assert_eq!(steps(&yards, middle), [Waiting, Waiting], "what follows from it comes first");
    run_callback(&mut yards, 0, "low");
    assert_eq!(steps(&yards, low), [Succeeded, Waiting]);
    assert_eq!(steps(&yards, middle), [Succeeded, Waiting]);
    assert_eq!(steps(&yards, top), [Sent, Waiting]);
    run_callback(&mut yards, 2, "complete");
    assert_eq!(steps(&yards, top), [Succeeded, Waiting]);
    succeed(&mut yards, task);
    assert_eq!(steps(&yards, low), [Succeeded, Succeeded]);
    assert_eq!(steps(&yards, middle), [Succeeded, Succeeded]);
    assert_eq!((steps(&yards, top), followed_from(&yards)), ([Succeeded, Sent], [1, 1]));
}

#[test]
fn a_reopened_tally_delays_callbacks_not_yet_enqueued() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, followed());
    let tasks = add(&mut yards, tally, &["a"]);
    commit(&mut yards, tally);
    reopen(&mut yards, tally);
    succeed(&mut yards, tasks[0]);
    assert_eq!(steps(&yards, tally), [Waiting, Waiting]);
    commit(&mut yards, tally);
    assert_eq!(steps(&yards, tally), [Sent, Waiting]);
    reopen(&mut yards, tally);
    run_callback(&mut yards, 2, "complete");
    assert_eq!(steps(&yards, tally), [Succeeded, Waiting], "what had followed goes on");
    let more = add(&mut yards, tally, &["b"]);
    commit(&mut yards, tally);
    assert_eq!(steps(&yards, tally), [Succeeded, Waiting]);
    succeed(&mut yards, more[0]);
    assert_eq!((steps(&yards, tally), followed_from(&yards)), ([Succeeded, Sent], [1, 1]));
}

#[test]
fn a_repeated_request_opens_and_adds_nothing_twice() {
    let mut yards = Yards::new();
    let named = || OpenTally { batch_id: Some(7), ..followed() };
    let tally = open(&mut yards, named());
    assert_eq!(open(&mut yards, named()), tally);
    let adding = || {
        let tasks = (0..4).map(|home| in_queue(home, "mail", new_task())).collect();
        AddToTally { tally, batch_id: Some(8), tasks }
    };
    let added = try_add(&mut yards, adding()).unwrap();
    assert_eq!(try_add(&mut yards, adding()), Ok(added), "with the shards that they live on");
    assert_eq!(counts(&yards, tally), [4, 4, 0]);
    yards.on(HOME).enqueue("mail");
    let other = OpenTally { batch_id: Some(8), ..plain() };
    assert_eq!(try_open(&mut yards, other).unwrap_err().code(), "invalid_argument");
}

#[test]
fn a_missing_tally_is_not_found() {
    let mut yards = Yards::new();
    let tally = TaskId { incarnation: 7, home: HOME, origin: HOME, sequence: 99 };
    let lost = Err(Rejection::TallyNotFound { tally });
    assert_eq!(change(&mut yards, Command::CommitTally(CommitTally { tally })), lost);
    assert_eq!(change(&mut yards, Command::ReopenTally(ReopenTally { tally })), lost);
    let add = AddToTally { tally, batch_id: None, tasks: vec![in_queue(0, "mail", new_task())] };
    assert_eq!(try_add(&mut yards, add), Err(Rejection::TallyNotFound { tally }));
    let child = OpenTally { parent: Some(tally), ..plain() };
    let rejection = try_open(&mut yards, child).unwrap_err();
    assert_eq!((rejection.code(), &rejection), ("not_found", &Rejection::TallyNotFound { tally }));
    assert_eq!(yards.yards[&HOME].machine.tally(tally), None);
}

#[test]
fn every_bound_is_an_answer() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, plain());
    let text = "x".repeat(TALLY_DESCRIPTION_BYTES_MAX + 1);
    let payload = vec![b'x'; TALLY_CALLBACK_BYTES_MAX];
    let body = Body { payload: &payload, ..Body::default() };
    let large = NewTask { body, ..new_task() };
    let elsewhere = TaskId { home: ShardId(2), ..tally };
    for bad in [
        OpenTally { description: &text, ..plain() },
        OpenTally { success: then(in_queue(2, "mail", large.clone())), ..plain() },
        OpenTally { complete: then(in_queue(2, "mail", large)), ..plain() },
        OpenTally { complete: then(in_queue(9, "mail", new_task())), ..plain() },
        OpenTally { success: then(in_queue(0, "no name", new_task())), ..plain() },
        OpenTally { parent: Some(elsewhere), ..plain() },
    ] {
        assert_eq!(try_open(&mut yards, bad).unwrap_err().code(), "invalid_argument");
    }
    let mut adding = |tasks| {
        let add = AddToTally { tally, batch_id: Some(1), tasks };
        try_add(&mut yards, add).unwrap_err()
    };
    let many = vec![in_queue(0, "mail", new_task()); TALLY_ADD_TASKS_MAX + 1];
    assert_eq!(adding(many).code(), "invalid_argument");
    let nameless = NewTask { task_type: "", ..new_task() };
    let rejection = adding(vec![in_queue(0, "a", new_task()), in_queue(0, "b", nameless)]);
    assert!(matches!(rejection, Rejection::BatchElement { index: 1, .. }), "{rejection}");
    let mut deepest = tally;
    for _ in 0..TALLY_DEPTH_MAX {
        deepest = below(&mut yards, deepest);
    }
    let deeper = OpenTally { parent: Some(deepest), ..plain() };
    assert_eq!(try_open(&mut yards, deeper).unwrap_err().code(), "limit_exceeded");
}

#[test]
fn a_full_queue_refuses_no_task_of_a_tally() {
    let mut yards = Yards::new();
    let full = QueueSettings { max_length: Some(0), ..QueueSettings::default() };
    yards.on(ShardId(2)).set("mail", full);
    let tally = open(&mut yards, plain());
    let id = add_one(&mut yards, tally, new_task());
    assert_eq!(yards.state(id), TaskStateName::Ready);
}

fn wait_ms(yards: &mut Yards, ms: u64) {
    yards.yards.values_mut().for_each(|yard| yard.wait_ms(ms));
    yards.carry();
}

/// Lets time pass; returns whether the tally is still kept.
fn is_kept_after(yards: &mut Yards, ms: u64, tally: TaskId) -> bool {
    wait_ms(yards, ms);
    yards.yards[&HOME].machine.tally(tally).is_some()
}

#[test]
fn a_tally_is_kept_as_long_as_its_state_says() {
    let mut yards = Yards::new();
    let open_one = open(&mut yards, followed());
    assert!(is_kept_after(&mut yards, TALLY_OPEN_FOR_MS - 1, open_one));
    let task = add_one(&mut yards, open_one, new_task());
    assert!(is_kept_after(&mut yards, TALLY_OPEN_FOR_MS - 1, open_one), "it was added to");
    assert!(!is_kept_after(&mut yards, 1, open_one));
    succeed(&mut yards, task);
    assert_eq!(followed_from(&yards), [0, 0], "it tells its end to nobody");

    let succeeded = open(&mut yards, plain());
    commit(&mut yards, succeeded);
    assert!(is_kept_after(&mut yards, TALLY_SUCCEEDED_FOR_MS - 1, succeeded));
    assert!(!is_kept_after(&mut yards, 1, succeeded));

    let running = open(&mut yards, followed());
    add_one(&mut yards, running, new_task());
    commit(&mut yards, running);
    assert!(is_kept_after(&mut yards, 3 * TALLY_KEPT_FOR_MS, running), "a task is to run");
    let held = yards.on(ShardId(2)).claim_one("mail");
    yards.on(ShardId(2)).fail(&held).unwrap();
    yards.carry();
    assert!(is_kept_after(&mut yards, TALLY_KEPT_FOR_MS - 1, running), "it was heard of");
    assert!(!is_kept_after(&mut yards, 1, running));
}

#[test]
fn a_reopened_tally_without_a_commit_continues() {
    let mut yards = Yards::new();
    let top = open(&mut yards, followed());
    let child = below(&mut yards, top);
    let task = add_one(&mut yards, child, tried(1));
    commit(&mut yards, child);
    commit(&mut yards, top);
    let held = yards.claim(task);
    yards.on(task.home).fail(&held).unwrap();
    yards.carry();
    assert_eq!(steps(&yards, top), [Sent, Waiting]);
    run_callback(&mut yards, 2, "complete");
    reopen(&mut yards, child);
    assert!(is_kept_after(&mut yards, TALLY_OPEN_FOR_MS, child));
    assert!(view(&yards, child).committed, "whoever reopened it did not come back");
    assert_eq!(steps(&yards, top), [Succeeded, Waiting], "its task is dead");
    yards.on(task.home).send(Command::Retry(Retry { task, body: None })).unwrap();
    succeed(&mut yards, task);
    assert_eq!(steps(&yards, top), [Succeeded, Sent]);
}

#[test]
fn an_uncommitted_tally_stops_delaying_its_parent() {
    let mut yards = Yards::new();
    let top = open(&mut yards, followed());
    let child = below(&mut yards, top);
    commit(&mut yards, top);
    assert_eq!(steps(&yards, top), [Waiting, Waiting]);
    assert!(!is_kept_after(&mut yards, TALLY_OPEN_FOR_MS, child));
    assert_eq!(steps(&yards, top), [Sent, Waiting]);
}

#[test]
fn a_tally_forgotten_unfinished_keeps_delaying_its_parent() {
    let mut yards = Yards::new();
    let top = open(&mut yards, followed());
    let child = below(&mut yards, top);
    let task = add_one(&mut yards, child, new_task());
    commit(&mut yards, child);
    commit(&mut yards, top);
    assert_eq!(steps(&yards, top), [Waiting, Waiting], "it never ran");
    yards.on(ShardId(2)).cancel(task).unwrap();
    yards.carry();
    assert_eq!(steps(&yards, top), [Sent, Waiting]);
    assert!(!is_kept_after(&mut yards, TALLY_KEPT_FOR_MS, child));
    assert_eq!(steps(&yards, top), [Sent, Waiting], "not all has succeeded");
    assert!(!is_kept_after(&mut yards, TALLY_KEPT_FOR_MS, top));
}

#[test]
fn a_tally_outlasts_those_below_it() {
    let mut yards = Yards::new();
    let top = open(&mut yards, followed());
    let child = below(&mut yards, top);
    for _ in 0..4 {
        let task = add_one(&mut yards, child, new_task());
        assert!(is_kept_after(&mut yards, TALLY_OPEN_FOR_MS / 2, top), "below it is added to");
        succeed(&mut yards, task);
    }
    commit(&mut yards, child);
    commit(&mut yards, top);
    assert_eq!(steps(&yards, top), [Sent, Waiting]);
    assert!(is_kept_after(&mut yards, TALLY_OPEN_FOR_MS, top));
}

#[test]
fn links_show_when_all_messages_have_arrived() {
    let mut yards = Yards::new();
    let tally = open(&mut yards, plain());
    let task = add_one(&mut yards, tally, new_task());
    let held = yards.claim(task);
    yards.on(task.home).ack(&held).unwrap();
    let link = |yards: &Yards, shard: ShardId, with: ShardId| {
        yards.yards[&shard].machine.link_views(&[with])[0]
    };
    let sent = link(&yards, task.home, HOME).sent;
    assert_eq!((sent, link(&yards, HOME, task.home).taken), (1, 0));
    assert_eq!(counts(&yards, tally), [1, 1, 0]);
    yards.carry();
    assert_eq!(link(&yards, HOME, task.home), LinkView { sent: 1, taken: sent });
    assert_eq!(counts(&yards, tally), [1, 0, 0]);
    assert_eq!(link(&yards, HOME, ShardId(0)), LinkView::default());
}
