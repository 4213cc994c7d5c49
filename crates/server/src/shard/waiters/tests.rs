//! Which claims are served when a queue has tasks, in which order, and which are skipped.

use super::*;
use crate::shard::{ClaimRequest, HandedTask};
use taskyard_machine::{
    ClaimNumber, Command, EncodedCommand, Enqueue, Entry, EntryBuilder, Identity, NewTask,
    NoPayloads, SessionId, ShardId,
};
use tokio::sync::oneshot;

const NOW: Timestamp = Timestamp(1_000);
type Answered = oneshot::Receiver<Result<Vec<HandedTask>, Error>>;

fn machine(tasks: &[(&str, usize)]) -> Machine {
    let tasks: Vec<_> = tasks.iter().map(|(queue, count)| (*queue, "t", *count)).collect();
    machine_of(&tasks)
}

fn machine_of(tasks: &[(&str, &str, usize)]) -> Machine {
    let identity = Identity { incarnation: 1, shard: ShardId(0), shards: 1 };
    let mut machine = Machine::new(identity);
    let mut entry = EntryBuilder::new(NOW);
    for (queue, task_type, count) in tasks {
        for _ in 0..*count {
            let task = NewTask { task_type, ..NewTask::default() };
            entry.push(&EncodedCommand::new(&Command::Enqueue(Enqueue { queue, task })));
        }
    }
    let entry = entry.finish();
    let entry = Entry::decode(&entry).unwrap();
    machine.apply(&entry, &mut NoPayloads, &mut Vec::new());
    machine
}

fn claim(ticket: u64, queues: &[&str], tasks_max: u32) -> (Waiter, Answered) {
    let (answer, answered) = oneshot::channel();
    let request = ClaimRequest {
        queues: queues.iter().map(|queue| ((*queue).to_owned(), 1)).collect(),
        ..ClaimRequest::of_queue("", tasks_max)
    };
    (Waiter { ticket: TicketId(ticket), request, parks: true, answer }, answered)
}

/// Parks claims of one task each.
fn park(waiters: &mut Waiters, tickets: std::ops::Range<u64>, queues: &[&str]) -> Vec<Answered> {
    let park = |ticket| {
        let (waiter, answered) = claim(ticket, queues, 1);
        waiters.park(waiter);
        answered
    };
    tickets.map(park).collect()
}

/// The machine, after a session has claimed once under a number.
fn claimed(mut machine: Machine, queue: &str, session: SessionId, sequence: u64) -> Machine {
    let mut entry = EntryBuilder::new(NOW.plus_ms(1));
    let number = Some(ClaimNumber { sequence, sending: 0 });
    let claim = Claim { session: Some(session), number, ..look(queue, &TaskTypes::ANY) };
    entry.push(&EncodedCommand::new(&Command::Claim(claim)));
    let entry = entry.finish();
    let entry = Entry::decode(&entry).unwrap();
    machine.apply(&entry, &mut NoPayloads, &mut Vec::new());
    machine
}

fn serve(waiters: &mut Waiters, machine: &Machine) -> (Vec<u64>, Vec<Served>) {
    let served = waiters.serve(machine, NOW, Instant::now());
    (served.iter().map(|served| served.waiter.ticket.0).collect(), served)
}

#[test]
fn a_wake_takes_as_many_as_there_are_tasks_from_the_front() {
    let mut waiters = Waiters::default();
    let _answered = park(&mut waiters, 0..5, &["mail"]);
    assert_eq!(serve(&mut waiters, &machine(&[("mail", 2)])).0, [0, 1]);
    assert_eq!(waiters.len(), 3);
    assert!(!waiters.is_woken());
    waiters.wake("other");
    assert!(!waiters.is_woken(), "nobody stands there");
    waiters.wake("mail");
    let (tickets, served) = serve(&mut waiters, &machine(&[("mail", 3)]));
    assert_eq!(tickets, [2], "two of the three are promised to those before");
    waiters.claim_decided(&served[0].promised, 1);
    waiters.wake("mail");
    assert_eq!(serve(&mut waiters, &machine(&[("mail", 4)])).0, [3, 4]);
}

/// A limit that lets one more task through causes no event if the queue was open before.
#[test]
fn claims_behind_a_promise_are_woken_when_the_promise_ends() {
    let mut waiters = Waiters::default();
    let _answered = park(&mut waiters, 0..2, &["mail"]);
    let (tickets, served) = serve(&mut waiters, &machine(&[("mail", 1)]));
    assert_eq!(tickets, [0]);
    waiters.claim_decided(&served[0].promised, 1);
    assert_eq!(serve(&mut waiters, &machine(&[("mail", 1)])).0, [1]);
    assert!(!waiters.is_woken());
}

#[test]
fn a_large_claim_takes_all_ready_tasks_and_the_next_one_waits() {
    let mut waiters = Waiters::default();
    let (first, _first) = claim(1, &["mail"], 100);
    let (second, _second) = claim(2, &["mail"], 100);
    waiters.park(first);
    waiters.park(second);
    assert_eq!(serve(&mut waiters, &machine(&[("mail", 3)])).0, [1]);
}

#[test]
fn claims_that_left_are_skipped_and_claims_that_got_nothing_keep_their_place() {
    let mut waiters = Waiters::default();
    let mut answered = park(&mut waiters, 0..4, &["mail"]);
    drop(answered.remove(0));
    waiters.unpark(TicketId(1));
    let (tickets, served) = serve(&mut waiters, &machine(&[("mail", 1)]));
    assert_eq!(tickets, [2]);
    for served in served {
        waiters.claim_decided(&served.promised, 0);
        waiters.park_again(served.waiter);
    }
    assert!(serve(&mut waiters, &machine(&[])).0.is_empty(), "somebody else has taken it");
    waiters.wake("mail");
    assert_eq!(serve(&mut waiters, &machine(&[("mail", 2)])).0, [2, 3]);
}

#[test]
fn tasks_that_a_promised_claim_left_go_to_the_next_in_line() {
    let mut waiters = Waiters::default();
    let _first = park(&mut waiters, 1..2, &["a", "b"]);
    let _second = park(&mut waiters, 2..3, &["b"]);
    let (tickets, served) = serve(&mut waiters, &machine(&[("b", 1)]));
    assert_eq!(tickets, [1]);
    // A task for `a` was enqueued in the same entry, and the claim took that one.
    waiters.claim_decided(&served[0].promised, 0);
    assert_eq!(serve(&mut waiters, &machine(&[("b", 1)])).0, [2]);
}

fn types(names: &[&str]) -> TaskTypes {
    TaskTypes::new(names.iter().map(|name| (*name).to_owned()).collect())
}

fn park_typed(
    waiters: &mut Waiters,
    ticket: u64,
    queue: &str,
    names: &[&str],
    tasks_max: u32,
) -> Answered {
    let (mut waiter, answered) = claim(ticket, &[queue], tasks_max);
    waiter.request.types = types(names);
    waiters.park(waiter);
    answered
}

#[test]
fn a_task_wakes_the_claims_that_name_its_type_and_no_others() {
    let mut waiters = Waiters::default();
    let _a = park_typed(&mut waiters, 1, "mail", &["a"], 1);
    let _ab = park_typed(&mut waiters, 2, "mail", &["a", "b"], 1);
    let _b = park_typed(&mut waiters, 3, "mail", &["b"], 1);
    let foreign = machine_of(&[("mail", "c", 1_000)]);
    assert!(serve(&mut waiters, &foreign).0.is_empty(), "nobody takes them");
    waiters.wake_for("mail", "c");
    waiters.wake_for("other", "a");
    assert!(!waiters.is_woken(), "a type that nobody waits for wakes nobody");
    waiters.wake_for("mail", "b");
    let (tickets, served) =
        serve(&mut waiters, &machine_of(&[("mail", "c", 1_000), ("mail", "b", 1)]));
    assert_eq!(tickets, [2], "the first that fits");
    waiters.wake_for("mail", "b");
    let two = machine_of(&[("mail", "b", 2)]);
    let (tickets, _served) = serve(&mut waiters, &two);
    assert_eq!(tickets, [3], "one of the two is promised");
    waiters.claim_decided(&served[0].promised, 1);
    assert!(serve(&mut waiters, &machine_of(&[("mail", "b", 1)])).0.is_empty());
    waiters.wake_for("mail", "a");
    let both = machine_of(&[("mail", "a", 1), ("mail", "b", 1)]);
    assert_eq!(serve(&mut waiters, &both).0, [1], "what is promised is of another type");
    let _any = park(&mut waiters, 4..5, &["mail"]);
    assert!(serve(&mut waiters, &machine(&[])).0.is_empty());
    waiters.wake_for("mail", "c");
    assert_eq!(serve(&mut waiters, &foreign).0, [4], "a claim of any type");
}

#[test]
fn claims_of_all_types_are_served_in_the_order_in_which_they_came() {
    let mut waiters = Waiters::default();
    let _answered: Vec<_> = [(1, &["a"][..]), (2, &[]), (3, &["a", "b"]), (4, &["a"])]
        .map(|(ticket, names)| park_typed(&mut waiters, ticket, "mail", names, 1))
        .into();
    let some = machine_of(&[("mail", "a", 2), ("mail", "b", 1)]);
    let (tickets, served) = serve(&mut waiters, &some);
    assert_eq!(tickets, [1, 2, 3], "one of type a is left, and claim 2 may take it");
    for served in &served {
        waiters.claim_decided(&served.promised, 1);
    }
    assert_eq!(serve(&mut waiters, &machine_of(&[("mail", "a", 1)])).0, [4]);
}

#[test]
fn lists_of_types_are_bounded_and_those_that_left_make_room() {
    let mut waiters = Waiters::default();
    let lists = PARKED_TYPE_LISTS_MAX as u64;
    let mut answered: Vec<_> = (0..lists)
        .map(|ticket| park_typed(&mut waiters, ticket, "mail", &[&format!("t{ticket}")], 1))
        .collect();
    let mut refused = park_typed(&mut waiters, lists, "mail", &["one more"], 1);
    assert_eq!(refused.try_recv().unwrap().unwrap_err().code(), "limit_exceeded");
    answered.push(park_typed(&mut waiters, lists + 1, "mail", &["t7"], 1));
    assert_eq!(waiters.len() as u64, lists + 1, "a list that is there may grow");
    waiters.unpark(TicketId(3));
    answered.push(park_typed(&mut waiters, lists + 2, "mail", &["one more"], 1));
    assert_eq!(waiters.len() as u64, lists + 1);
    waiters.wake_for("mail", "t3");
    waiters.woken.clear();
    waiters.wake_for("mail", "t3");
    assert!(!waiters.is_woken(), "its list is gone");
    let (mut not_waiting, mut answered) = claim(lists + 3, &["mail"], 1);
    (not_waiting.parks, not_waiting.request.types) = (false, types(&["another"]));
    waiters.park(not_waiting);
    assert!(answered.try_recv().is_err(), "a claim that does not wait takes no place");
    assert_eq!(serve(&mut waiters, &machine_of(&[("mail", "another", 1)])).0, [lists + 3]);
}

#[test]
fn promises_outlive_the_end_of_the_lines() {
    let mut waiters = Waiters::default();
    let _leaving = park(&mut waiters, 1..3, &["mail"]);
    let (_, served) = serve(&mut waiters, &machine(&[("mail", 1)]));
    waiters.end(None);
    assert_eq!(waiters.len(), 0);
    let _answered = park(&mut waiters, 3..6, &["mail"]);
    assert_eq!(serve(&mut waiters, &machine(&[("mail", 2)])).0, [3], "one is promised");
    waiters.claim_decided(&served[0].promised, 1);
    waiters.wake("mail");
    assert_eq!(serve(&mut waiters, &machine(&[("mail", 2)])).0, [4], "the other still is");
}

#[test]
fn a_claim_of_many_queues_is_served_once() {
    let mut waiters = Waiters::default();
    let _answered = park(&mut waiters, 0..300, &["a", "b", "c"]);
    let (tickets, _) = serve(&mut waiters, &machine(&[("a", 1), ("c", 1)]));
    assert_eq!(tickets, [0, 1]);
    for ticket in 2..300 {
        waiters.unpark(TicketId(ticket));
    }
    assert_eq!(waiters.len(), 0);
    let lines = waiters.queues.values().flat_map(|lines| lines.by_types.values());
    let held: usize = lines.map(|line| line.claims.len()).sum();
    assert!(held <= 128, "lines are cleaned of {held}");
}

#[test]
fn a_claim_that_does_not_wait_is_told_at_once() {
    let mut waiters = Waiters::default();
    for (ticket, queues) in [(1, &["mail"][..]), (2, &[])] {
        let (mut waiter, mut answered) = claim(ticket, queues, 1);
        waiter.parks = false;
        waiters.park(waiter);
        assert!(waiters.is_woken());
        assert!(serve(&mut waiters, &machine(&[])).0.is_empty());
        assert!(answered.try_recv().unwrap().unwrap().is_empty());
    }
    assert_eq!(waiters.len(), 0);
}

/// A claim without queues may come from a node of another version; the machine rejects it.
#[test]
fn a_repeated_claim_is_served_and_promised_nothing_even_without_queues() {
    let session = SessionId(7);
    let machine = claimed(machine(&[("mail", 1)]), "mail", session, 3);
    for (ticket, queues) in [(1, &["mail"][..]), (2, &["other", "mail"]), (3, &[])] {
        let mut waiters = Waiters::default();
        let (mut waiter, _answered) = claim(ticket, queues, 1);
        waiter.parks = false;
        (waiter.request.session, waiter.request.number) =
            (Some(session), Some(ClaimNumber { sequence: 3, sending: 1 }));
        waiters.park(waiter);
        let (tickets, served) = serve(&mut waiters, &machine);
        assert_eq!(tickets, [ticket], "{queues:?}");
        waiters.claim_decided(&served[0].promised, 0);
        let mut lines = waiters.queues.values().flat_map(|lines| lines.by_types.values());
        assert!(lines.all(|line| line.promised == 0));
    }
}

#[test]
fn the_bound_is_a_named_answer() {
    let mut waiters = Waiters::default();
    let _answered = park(&mut waiters, 0..PARKED_MAX as u64, &["mail"]);
    let (waiter, mut answered) = claim(u64::MAX, &["mail"], 1);
    waiters.park(waiter);
    let error = answered.try_recv().unwrap().unwrap_err();
    assert_eq!(error.code(), "limit_exceeded");
    assert_eq!(waiters.len(), PARKED_MAX);
}
