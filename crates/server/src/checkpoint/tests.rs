//! The store: checkpoints, views, space. Tests of incoming snapshots are in `install`.

mod install;

use super::*;
use std::{collections::BTreeMap, fs};

fn task(sequence: u64) -> TaskId {
    TaskId { incarnation: 1, home: ShardId(2), origin: ShardId(2), sequence }
}

fn cut(index: u64) -> Cut {
    let conf_state = ConfState { voters: vec![1], ..ConfState::default() };
    Cut { index, term: 3, conf_state }
}

fn put(sequence: u64, value: &[u8]) -> Change {
    Change::Record(RecordKey::Task(task(sequence)), Some(value.into()))
}

fn records(store: &Arc<Store>, shard: u16) -> BTreeMap<RecordKey, Box<[u8]>> {
    store.view().records(ShardId(shard)).map(Result::unwrap).collect()
}

fn bytes_in(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_in(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

#[test]
fn cuts_survive_their_encoding() {
    let conf_state = ConfState {
        voters: vec![1, 2, 3],
        learners: vec![u64::MAX],
        voters_outgoing: vec![7],
        learners_next: vec![8, 9],
        auto_leave: true,
        ..ConfState::default()
    };
    let cut = Cut { index: u64::MAX - 1, term: 77, conf_state };
    let bytes = encode_cut(&cut);
    assert_eq!(decode_cut(&bytes), Some(cut));
    for length in 0..bytes.len() {
        assert_eq!(decode_cut(&bytes[..length]), None, "cut to {length} bytes");
    }
}

#[test]
fn a_checkpoint_is_there_after_a_restart_and_shards_are_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.view().cut(ShardId(2)).unwrap(), None);
    let rest = RecordKey::Rest(Box::from(*b"queue"));
    let changes = vec![
        put(1, b"one"),
        put(2, b"two"),
        Change::Body(task(1), Bytes::from_static(b"body")),
        Change::Record(rest.clone(), Some(Box::from(*b"mail"))),
    ];
    store.write(ShardId(2), &cut(10), changes).unwrap();
    store.write(ShardId(3), &cut(4), vec![]).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.view().cut(ShardId(2)).unwrap(), Some(cut(10)));
    assert_eq!(records(&store, 2).len(), 3);
    assert_eq!(records(&store, 2)[&rest], Box::from(*b"mail"));
    assert!(records(&store, 3).is_empty());
    assert_eq!(store.body(task(1)).unwrap().as_deref(), Some(&b"body"[..]));
    let gone = Change::Record(RecordKey::Task(task(1)), None);
    store.write(ShardId(2), &cut(11), vec![gone]).unwrap();
    assert_eq!(store.body(task(1)).unwrap(), None, "a body goes with its task");
    assert_eq!(records(&store, 2).len(), 2);
}

#[test]
fn a_view_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.write(ShardId(2), &cut(1), vec![put(1, b"old")]).unwrap();
    let view = store.view();
    store.write(ShardId(2), &cut(2), vec![put(1, b"new"), put(2, b"new")]).unwrap();
    assert_eq!(view.cut(ShardId(2)).unwrap(), Some(cut(1)));
    assert_eq!(view.records(ShardId(2)).count(), 1);
}

/// Records of request ids and batches come and go like tasks, but the store does not count them.
#[test]
fn space_returns_when_other_records_are_removed_and_no_view_needs_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let change = |id: u64, value: Option<&[u8]>| {
        let key = RecordKey::Rest(Box::from(id.to_be_bytes()));
        Change::Record(key, value.map(Box::from))
    };
    let mut cycle = 0;
    let mut churn = || {
        let ids = cycle * 10_000..(cycle + 1) * 10_000;
        cycle += 1;
        let new = ids.clone().map(|id| change(id, Some(&id.to_le_bytes().repeat(128))));
        store.write(ShardId(2), &cut(cycle), new.collect()).unwrap();
        let gone = ids.map(|id| change(id, None));
        store.write(ShardId(2), &cut(cycle), gone.collect()).unwrap();
    };
    let view = store.view();
    for _ in 0..10 {
        churn();
        assert!(!store.reclaim(0).unwrap(), "a view is open");
    }
    // No further write may tell fjall by chance that the view is closed.
    store.rest.rotate_memtable_and_wait().unwrap();
    drop(view);
    assert!(store.reclaim(0).unwrap());
    assert!(!store.reclaim(0).unwrap(), "nothing has grown since");
    assert!(store.rest.disk_space() < 8 << 20, "{}", store.rest.disk_space());
    assert_eq!(store.view().cut(ShardId(2)).unwrap(), Some(cut(10)));
}

/// Writes and removes ten times the remaining data. The directory must not keep the removed data.
#[test]
fn space_returns_when_tasks_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let per_cycle = 20_000;
    let mut largest = 0;
    for cycle in 0..8u64 {
        let ids = |cycle: u64| cycle * per_cycle..(cycle + 1) * per_cycle;
        for part in 0..4 {
            let part = ids(cycle).skip(part * 5_000).take(5_000);
            let new = part.flat_map(|id| {
                let body = Bytes::from(id.to_le_bytes().repeat(128));
                [put(id, &[1; 100]), Change::Body(task(id), body)]
            });
            store.write(ShardId(2), &cut(cycle + 1), new.collect()).unwrap();
        }
        let gone = ids(cycle).map(|id| Change::Record(RecordKey::Task(task(id)), None));
        store.write(ShardId(2), &cut(cycle + 1), gone.collect()).unwrap();
        store.reclaim(0).unwrap();
        largest = largest.max(bytes_in(dir.path()));
    }
    store.compact(&store.bodies).unwrap();
    let left = bytes_in(dir.path());
    println!("largest {} MiB, left {} MiB", largest >> 20, left >> 20);
    // One cycle is 22 MiB of live data, written once to the journal and once to tables.
    assert!(largest < 256 << 20, "{} MiB", largest >> 20);
    assert!(left < 160 << 20, "{} MiB", left >> 20);
}
