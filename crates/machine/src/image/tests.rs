//! Cuts are exact, bites are short, and damaged records are an error.

use super::*;
use crate::testing::{Yard, extend, new_task, tried};
use crate::{Command, Extend, NewTask, QueueSettings};

/// All records of the frozen cut, removals last.
fn cut(machine: &mut Machine) -> Vec<Record> {
    let mut records = Vec::new();
    loop {
        let bite = machine.frozen_bite(2);
        if bite.is_empty() {
            return records;
        }
        assert!(bite.len() <= 2);
        records.extend(bite);
    }
}

#[test]
fn a_bite_of_large_records_is_short() {
    let mut yard = Yard::new();
    let resume_state = vec![7; 64 << 10];
    for _ in 0..40 {
        yard.enqueue("mail");
        let held = yard.claim_one("mail");
        let extend = Extend { resume_state: Some(&resume_state), ..extend(&held) };
        yard.send(Command::Extend(extend)).unwrap();
    }
    yard.machine.freeze();
    let bites: Vec<usize> = std::iter::from_fn(|| {
        let bite = yard.machine.frozen_bite(512);
        (!bite.is_empty())
            .then(|| bite.iter().flat_map(|r| r.value.as_ref()).map(|v| v.len()).sum())
    })
    .collect();
    assert!(bites.len() >= 3, "{bites:?}");
    assert!(bites.iter().all(|&bytes| bytes < BITE_BYTES_MAX + (65 << 10)), "{bites:?}");
}

fn freeze(machine: &mut Machine) -> Vec<Record> {
    machine.freeze();
    cut(machine)
}

fn tasks_of(records: &[Record]) -> Vec<(TaskId, bool)> {
    let task = |record: &Record| match record.key {
        RecordKey::Task(id) => Some((id, record.value.is_some())),
        RecordKey::Rest(_) => None,
    };
    records.iter().filter_map(task).collect()
}

#[test]
fn a_cut_has_the_changes_since_the_last_one() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { retention_count: Some(0), ..QueueSettings::default() });
    let [first, second] = [(); 2].map(|()| yard.enqueue("mail"));
    assert_eq!(yard.machine.dirty_records(), 3, "two tasks and their queue");
    assert_eq!(tasks_of(&freeze(&mut yard.machine)), [(first, true), (second, true)]);
    assert_eq!(yard.machine.dirty_records(), 0);
    assert_eq!(freeze(&mut yard.machine).len(), 1, "the counters alone");
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    assert_eq!(tasks_of(&freeze(&mut yard.machine)), [(first, false)]);
}

#[test]
fn a_task_that_came_and_went_between_two_cuts_leaves_no_record() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { retention_count: Some(0), ..QueueSettings::default() });
    freeze(&mut yard.machine);
    yard.enqueue("mail");
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    assert_eq!(tasks_of(&freeze(&mut yard.machine)), []);
}

#[test]
fn a_frozen_record_is_that_of_its_cut_even_if_it_changes_before_the_read() {
    let mut yard = Yard::new();
    yard.set("mail", QueueSettings { retention_count: Some(0), ..QueueSettings::default() });
    yard.enqueue("mail");
    yard.enqueue_task("mail", NewTask { request_id: Some("r"), ..new_task() }).unwrap();
    let at_cut = yard.machine.records();
    yard.machine.freeze();
    let held = yard.claim("mail", 2);
    yard.ack(&held[0]).unwrap();
    yard.enqueue("mail");
    let mut records: Vec<(RecordKey, Box<[u8]>)> = cut(&mut yard.machine)
        .into_iter()
        .map(|record| (record.key, record.value.expect("nothing was removed before the cut")))
        .collect();
    records.sort();
    assert!(records == at_cut);
}

#[test]
#[should_panic(expected = "not handed out whole")]
fn a_second_cut_waits_for_the_first() {
    let mut yard = Yard::new();
    yard.enqueue("mail");
    yard.machine.freeze();
    yard.machine.freeze();
}

#[test]
fn a_loaded_machine_is_the_same_and_clean() {
    let mut yard = Yard::new();
    for _ in 0..3 {
        yard.enqueue_task("mail", NewTask { tags: vec!["x"], ..tried(2) }).unwrap();
    }
    let held = yard.claim("mail", 2);
    yard.fail(&held[0]).unwrap();
    yard.extend(&held[1]).unwrap();
    let records = yard.machine.records();
    let loaded = Machine::load(yard.machine.identity(), records.clone()).unwrap();
    assert!(loaded.records() == records);
    assert_eq!(loaded.state_hash(), yard.machine.state_hash());
    assert_eq!(loaded.memory_bytes(), yard.machine.memory_bytes());
    assert_eq!(loaded.dirty_records(), 0);
    loaded.check().unwrap();
    assert_eq!(loaded.task(held[0].id), yard.machine.task(held[0].id));
    let empty = Machine::new(yard.machine.identity());
    let empty = Machine::load(empty.identity(), empty.records()).unwrap();
    assert_eq!(empty.task_count(), 0);
}

/// A cut that lost a whole kind of records, or a single record, must not load as a smaller shard.
#[test]
fn a_cut_that_lost_any_record_is_refused() {
    let mut yard = Yard::new();
    yard.enqueue_task("mail", NewTask { request_id: Some("r"), ..tried(2) }).unwrap();
    yard.enqueue("mail");
    yard.enqueue("letters");
    let identity = yard.machine.identity();
    let records = yard.machine.records();
    let error = |kept: &dyn Fn(&RecordKey) -> bool| {
        let left = records.iter().filter(|(key, _)| kept(key)).cloned();
        Machine::load(identity, left).expect_err("records are missing").what
    };
    for (lost, _) in &records {
        error(&|key| key != lost);
    }
    assert_eq!(
        error(&|key| !matches!(key, RecordKey::Task(_))),
        "it was written with 3 tasks and 3 other records, and 0 and 3 are there"
    );
    assert_eq!(error(&|key| *key != counters_key()), "its counters are missing");
    assert_eq!(error(&|_| false), "its counters are missing");
}

#[test]
fn the_hash_tells_states_apart() {
    let mut yard = Yard::new();
    yard.enqueue("mail");
    let before = yard.machine.state_hash();
    yard.claim_one("mail");
    assert_ne!(yard.machine.state_hash(), before);
}

#[test]
fn damaged_records_are_an_error_never_a_panic() {
    let mut yard = Yard::new();
    yard.enqueue_task("mail", NewTask { request_id: Some("r"), ..tried(2) }).unwrap();
    let held = yard.claim_one("mail");
    yard.fail(&held).unwrap();
    yard.claim_one("mail");
    let identity = yard.machine.identity();
    let records = yard.machine.records();
    for (position, (_, value)) in records.iter().enumerate() {
        for length in 0..value.len() {
            let mut cut = records.clone();
            cut[position].1 = value[..length].into();
            assert!(Machine::load(identity, cut).is_err(), "record {position} cut at {length}");
        }
        for at in 0..value.len() {
            let mut damaged = records.clone();
            damaged[position].1[at] ^= 0x55;
            let _ = Machine::load(identity, damaged);
        }
    }
    let without_queue = records.iter().filter(|(key, _)| *key != queue_key(0)).cloned();
    assert!(Machine::load(identity, without_queue).is_err());
    let unknown = (RecordKey::Rest([99].into()), [].into());
    assert!(Machine::load(identity, [unknown]).is_err());
    let twice = records.iter().chain(&records).cloned();
    assert!(Machine::load(identity, twice).is_err());
}
