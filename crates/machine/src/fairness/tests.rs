//! Keys, turns and limits, one rule at a time.

use super::*;
use crate::testing::{Yard, claim, new_task, purge};
use crate::{
    Claimable, ClaimedTask, Command, NewTask, PerKey, QueueSettings, Rate, RecordKey, Snooze,
    TaskId, When,
};
use std::collections::BTreeMap;

fn keyed(key: &str) -> NewTask<'_> {
    NewTask { fairness_key: Some(key), ..new_task() }
}

fn per_key(concurrency: Option<u32>, rate: Option<Rate>) -> QueueSettings {
    QueueSettings {
        per_key: Some(PerKey { concurrency, rate }),
        retention_count: Some(0),
        ..QueueSettings::default()
    }
}

fn rate(per_second: u64, burst: u32) -> Option<Rate> {
    Some(Rate { per_second_millionths: per_second * 1_000_000, burst })
}

fn keys(taken: &[ClaimedTask]) -> String {
    taken.iter().map(|task| task.fairness_key.as_deref().unwrap_or("-")).collect()
}

fn claimable(yard: &Yard) -> Claimable {
    yard.machine.claimable(&claim("mail"), yard.now())
}

fn opened(yard: &mut Yard) -> usize {
    let events = yard.events().into_iter();
    events.filter(|event| matches!(event, EventKind::QueueOpened(_))).count()
}

#[test]
fn a_key_with_many_tasks_does_not_delay_one_with_few() {
    let mut yard = Yard::new();
    for _ in 0..20_000 {
        yard.enqueue_unchecked("mail", keyed("a"));
    }
    for _ in 0..10 {
        yard.enqueue_unchecked("mail", keyed("b"));
    }
    assert_eq!(keys(&yard.claim("mail", 21)), "ababababababababababa");
    assert_eq!(yard.machine.room(0, yard.now(), &Wanted::Any), 19_989);
}

#[test]
fn types_share_the_turns_of_their_key() {
    let mut yard = Yard::new();
    let enqueue = |yard: &mut Yard, tasks: &[(&'static str, &'static str)]| {
        for &(key, task_type) in tasks {
            yard.enqueue_task("mail", NewTask { task_type, ..keyed(key) }).unwrap();
        }
    };
    let of = |types: &[&'static str], tasks_max| {
        let types = types.to_vec();
        crate::Claim { types, tasks_max, ..claim("mail") }
    };
    enqueue(&mut yard, &[("a", "x"), ("a", "y"), ("b", "x"), ("a", "x"), ("b", "x"), ("a", "y")]);
    enqueue(&mut yard, &[("a", "z"), ("c", "z")]);
    assert_eq!(keys(&yard.claim_with(of(&["x", "y"], 9))), "ababaa", "two types have one turn");
    assert_eq!(keys(&yard.claim_with(of(&["z"], 9))), "ca", "a had its turns");
    enqueue(&mut yard, &[("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]);
    let taken = ["y", "x", "y", "x"].map(|name| keys(&yard.claim_with(of(&[name], 1))));
    assert_eq!(taken.concat(), "abba", "types share the turn of their key");
    let records = yard.machine.records();
    yard.machine = Machine::load(yard.machine.identity(), records).unwrap();
    yard.machine.check().unwrap();
}

#[test]
fn a_new_key_waits_one_round_and_no_more() {
    let mut yard = Yard::new();
    for key in ["a", "a", "a", "b", "b", "b"] {
        yard.enqueue_task("mail", keyed(key)).unwrap();
    }
    assert_eq!(keys(&yard.claim("mail", 1)), "a");
    yard.enqueue_task("mail", keyed("c")).unwrap();
    yard.enqueue("mail");
    assert_eq!(keys(&yard.claim("mail", 9)), "bac-bab");
}

/// Claims all remaining tasks, also from a machine loaded from its records, and compares both.
fn drain_reloaded(yard: &mut Yard) -> String {
    let reloaded = Machine::load(yard.machine.identity(), yard.machine.records()).unwrap();
    let live = std::mem::replace(&mut yard.machine, reloaded);
    let again = keys(&yard.claim("mail", 100));
    yard.machine = live;
    let taken = keys(&yard.claim("mail", 100));
    assert_eq!(taken, again, "a reloaded machine continues the turns of the live one");
    taken
}

#[test]
fn turns_survive_a_checkpoint() {
    let mut yard = Yard::new();
    let weights = [("a".into(), 3), ("".into(), 2)].into();
    yard.set("mail", QueueSettings { weights, ..QueueSettings::default() });
    for key in ["a", "b", "c"] {
        for _ in 0..7 {
            yard.enqueue_task("mail", keyed(key)).unwrap();
        }
    }
    for _ in 0..5 {
        yard.enqueue("mail");
    }
    // In the middle of a turn, with turns that differ from every other order.
    assert_eq!(keys(&yard.claim("mail", 9)), "aaabc--aa");
    assert_eq!(drain_reloaded(&mut yard), "abc--abc-bcbcbcbc");
}

#[test]
fn tokens_survive_a_checkpoint() {
    let mut yard = Yard::new();
    let settings = QueueSettings { rate: rate(10, 4), ..per_key(Some(3), rate(1, 2)) };
    yard.set("mail", settings);
    for key in ["a", "a", "a", "b", "b", "b"] {
        yard.enqueue_task("mail", keyed(key)).unwrap();
    }
    assert_eq!(keys(&yard.claim("mail", 3)), "aba");
    yard.pass_ms(55);
    assert_eq!(drain_reloaded(&mut yard), "b", "one token was left, and b has had one");
}

#[test]
fn unneeded_keys_are_removed() {
    let mut yard = Yard::new();
    yard.set("mail", per_key(None, rate(1, 2)));
    let before = yard.machine.memory_bytes();
    yard.enqueue_task("mail", keyed("a")).unwrap();
    yard.enqueue_task("mail", keyed("b")).unwrap();
    let held = yard.claim("mail", 1);
    yard.ack(&held[0]).unwrap();
    let left: Vec<TaskId> = yard.claim("mail", 1).iter().map(|task| task.id).collect();
    assert_eq!(yard.machine.keys.slab.len(), 2, "the bucket of the first is not full yet");
    yard.wait_ms(1_000);
    assert_eq!(yard.machine.keys.slab.len(), 1, "the second runs");
    yard.cancel(left[0]).unwrap();
    yard.wait_ms(60_000);
    assert_eq!(yard.machine.keys.slab.len(), 0);
    assert!(yard.machine.queues.get(0).rings.is_none());
    assert_eq!((yard.machine.memory_bytes(), yard.machine.next_due()), (before, None));
}

#[test]
fn a_key_made_again_between_two_cuts_counts_as_changed() {
    let mut yard = Yard::new();
    let mut stored: BTreeMap<RecordKey, Box<[u8]>> = BTreeMap::new();
    let mut cut = |machine: &mut Machine| {
        machine.freeze();
        loop {
            let bite = machine.frozen_bite(1);
            let Some(record) = bite.into_iter().next() else { break };
            match record.value {
                Some(value) => drop(stored.insert(record.key, value)),
                None => assert!(stored.remove(&record.key).is_some(), "{:?}", record.key),
            }
        }
        assert!(machine.records() == stored.clone().into_iter().collect::<Vec<_>>());
    };
    let first = yard.enqueue_task("mail", keyed("a")).unwrap().id;
    cut(&mut yard.machine);
    yard.send(purge("mail")).unwrap();
    assert!(yard.machine.task(first).is_none());
    yard.enqueue_task("mail", keyed("a")).unwrap();
    cut(&mut yard.machine);
    yard.send(purge("mail")).unwrap();
    cut(&mut yard.machine);
    yard.enqueue_task("mail", keyed("a")).unwrap();
    yard.send(purge("mail")).unwrap();
    cut(&mut yard.machine);
}

#[test]
fn new_limits_reach_every_key_in_bounded_steps_and_none_runs_beyond_them() {
    let mut yard = Yard::new();
    yard.set("mail", per_key(Some(1), None));
    let count = EXPIRIES_PER_ENTRY_MAX + 500;
    let names: Vec<String> = (0..count).map(|number| format!("k{number}")).collect();
    for name in names.iter().chain(&names).chain(&names) {
        yard.enqueue_unchecked("mail", keyed(name));
    }
    let mut taken = yard.claim("mail", 1_000).len() + yard.claim("mail", 1_000).len();
    assert_eq!(taken, count);
    assert!(!matches!(claimable(&yard), Claimable::Now(_)), "all are at their limit");
    yard.set("mail", per_key(Some(2), None));
    assert_eq!(claimable(&yard), Claimable::Now(EXPIRIES_PER_ENTRY_MAX as u64));
    assert!(yard.machine.next_due().is_some_and(|at| at <= yard.now()));
    yard.events();
    yard.expire();
    assert_eq!(opened(&mut yard), 1);
    assert_eq!(claimable(&yard), Claimable::Now(count as u64));
    taken += yard.claim("mail", 1_000).len();
    // A limit below the number of claims ends no claim, and allows no new one.
    yard.set("mail", per_key(Some(1), None));
    assert_eq!(yard.claim("mail", 1_000).len(), 0);
    assert_eq!(yard.counts("mail").claimed as usize, taken);
    yard.set("mail", QueueSettings::default());
    yard.expire();
    assert_eq!(claimable(&yard), Claimable::Now(3 * count as u64 - taken as u64));
}

#[test]
fn lowered_limits_apply_before_they_reach_every_key() {
    let mut yard = Yard::new();
    let count = EXPIRIES_PER_ENTRY_MAX + 200;
    let names: Vec<String> = (0..count).map(|number| format!("k{number}")).collect();
    for name in names.iter().chain(&names) {
        yard.enqueue_unchecked("mail", keyed(name));
    }
    let taken = yard.claim("mail", 1_000).len() + yard.claim("mail", 200).len();
    assert_eq!(taken, count, "one of each");
    yard.set("mail", per_key(Some(1), None));
    assert!(yard.machine.queues.get(0).sweep.is_some(), "some have not heard of it");
    assert_eq!(yard.claim("mail", 1_000).len(), 0);
}

#[test]
fn claimable_counts_the_tasks_that_limits_let_through() {
    let mut yard = Yard::new();
    let settings = QueueSettings { concurrency: Some(5), ..per_key(Some(2), None) };
    yard.set("mail", settings);
    for key in ["a", "a", "a", "b"] {
        yard.enqueue_task("mail", keyed(key)).unwrap();
    }
    assert_eq!(claimable(&yard), Claimable::Now(3), "two of a and one of b");
    for _ in 0..4 {
        yard.enqueue("mail");
    }
    assert_eq!(claimable(&yard), Claimable::Now(5), "the queue's own limit");
    let held = yard.claim("mail", 9);
    assert_eq!((held.len(), claimable(&yard)), (5, Claimable::At(yard.now().plus_ms(30_000))));
    yard.events();
    yard.ack(&held[0]).unwrap();
    assert_eq!((opened(&mut yard), claimable(&yard)), (1, Claimable::Now(1)));
    yard.set("mail", QueueSettings { rate: rate(2, 3), ..QueueSettings::default() });
    assert_eq!(claimable(&yard), Claimable::Now(3), "its bucket");
}

#[test]
fn new_tokens_open_the_queue_for_waiters() {
    let of_queue = QueueSettings { rate: rate(10, 5), ..QueueSettings::default() };
    // A key that was open does not open, because each claim from it looks for more tasks.
    for (settings, told) in [(per_key(None, rate(10, 5)), 0), (of_queue, 1)] {
        let mut yard = Yard::new();
        yard.set("mail", settings);
        for _ in 0..9 {
            yard.enqueue_task("mail", keyed("a")).unwrap();
        }
        assert_eq!(yard.claim("mail", 3).len(), 3);
        yard.pass_ms(200);
        yard.events();
        yard.claim("mail", 2);
        assert_eq!(opened(&mut yard), told, "two more than were promised before");
        assert_eq!(claimable(&yard), Claimable::Now(2));
        yard.claim("mail", 2);
        yard.events();
        assert_eq!(yard.machine.next_due(), Some(yard.now().plus_ms(100)));
        yard.wait_ms(100);
        assert_eq!((opened(&mut yard), claimable(&yard)), (1, Claimable::Now(1)));
    }
}

#[test]
fn only_a_release_returns_its_token() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { rate: rate(1, 1), ..per_key(None, rate(1, 1)) });
    for _ in 0..3 {
        yard.enqueue_task("mail", keyed("a")).unwrap();
    }
    for _ in 0..3 {
        let held = yard.claim_one("mail");
        yard.release(&held).unwrap();
    }
    let held = yard.claim_one("mail");
    yard.fail(&held).unwrap();
    assert!(yard.claim("mail", 1).is_empty(), "a failed call is a call");
}

#[test]
fn tasks_of_a_pushed_back_key_are_cancelled_purged_and_shown() {
    let mut yard = Yard::new();
    for key in ["a", "a", "a"] {
        yard.enqueue_task("mail", keyed(key)).unwrap();
    }
    let held = yard.claim_one("mail");
    let until = When::After { ms: 5_000 };
    let snooze = Snooze { task: held.id, token: held.token, until, push_back_key: true };
    yard.send(Command::Snooze(snooze)).unwrap();
    assert_eq!(claimable(&yard), Claimable::At(yard.now().plus_ms(5_000)));
    let counts = yard.counts("mail");
    assert_eq!((counts.ready, counts.scheduled), (2, 1));
    yard.send(purge("mail")).unwrap();
    assert_eq!(yard.counts("mail").ready, 0);
    yard.enqueue_task("mail", keyed("a")).unwrap();
    assert!(yard.claim("mail", 1).is_empty(), "the push-back outlives the tasks of its key");
    yard.wait_ms(5_000);
    assert_eq!(yard.claim("mail", 1).len(), 1);
}

#[test]
fn age_raises_a_priority_and_the_older_wins_among_equals() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { ageing_ms: Some(1_000), ..QueueSettings::default() });
    let enqueue = |yard: &mut Yard, priority, key| {
        let task = NewTask { priority: Some(priority), ..keyed(key) };
        yard.enqueue_task("mail", task).unwrap();
    };
    enqueue(&mut yard, 3, "a");
    yard.pass_ms(1_999);
    enqueue(&mut yard, 5, "b");
    assert_eq!(keys(&yard.claim("mail", 1)), "b", "4 is below 5");
    enqueue(&mut yard, 5, "c");
    yard.pass_ms(1);
    assert_eq!(keys(&yard.claim("mail", 1)), "a", "as high, and older");
    enqueue(&mut yard, 9, "d");
    enqueue(&mut yard, 0, "e");
    yard.pass_ms(20_000);
    assert_eq!(keys(&yard.claim("mail", 9)), "cde", "none is above 9");
}

#[test]
fn a_million_keys_take_turns() {
    let count = 1_000_000;
    let mut yard = Yard::new();
    yard.set("mail", per_key(Some(1), rate(1, 1)));
    for number in 0..count {
        yard.enqueue_unchecked("mail", keyed(&format!("k{number}")));
    }
    for _ in 0..10 {
        yard.enqueue_unchecked("mail", keyed("late"));
    }
    let machine = &mut yard.machine;
    let bytes = machine.keys.memory_bytes() / (count + 1);
    assert!(bytes < 200, "{bytes} bytes a key");
    // The first keys have reached their limits, and claims skip them.
    let mut order = Vec::new();
    for _ in 0..1_000 {
        let slot = machine.first_in_turn(0, &Wanted::Any).expect("a key may run");
        order.push(machine.tasks.get(slot).id.sequence);
        let mut events = Vec::new();
        let commands = vec![Command::Claim(claim("mail"))];
        let entry = crate::Entry { rules: crate::RULES_CURRENT, now: machine.now(), commands };
        machine.apply(&entry, &mut crate::NoPayloads, &mut events);
    }
    assert!(order.is_sorted(), "each in its turn");
    assert_eq!(machine.room(0, machine.now(), &Wanted::Any), count + 1 - 1_000);
}
