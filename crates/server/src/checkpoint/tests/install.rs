//! Incoming snapshots: cut anywhere, killed anywhere, and what happens to the previous state.

use super::*;

const SHARD: ShardId = ShardId(2);
const ID: SnapshotId = SnapshotId { source: 7, index: 50, term: 3, replica: 4 };
/// Small, so that a snapshot has many parts.
const PART_BYTES: usize = 300;

fn open(dir: &tempfile::TempDir) -> Arc<Store> {
    Store::open(dir.path()).unwrap()
}

/// A store with a checkpoint of the shard at 50.
fn source(dir: &tempfile::TempDir) -> Arc<Store> {
    let store = open(dir);
    let mut changes: Vec<Change> = (1..=20).map(|id| put(id, &[id as u8; 30])).collect();
    changes.extend((1..=10).map(|id| Change::Body(task(id), Bytes::from(vec![9; 40]))));
    let rest = |name: &str| RecordKey::Rest(name.as_bytes().into());
    changes.push(Change::Record(rest("queue"), Some(Box::from(*b"mail"))));
    // Larger than a part.
    changes.push(Change::Record(rest("schedule"), Some(vec![5; 1_000].into())));
    store.write(SHARD, &cut(ID.index), changes).unwrap();
    // The neighbours' records are not sent.
    store.write(ShardId(1), &cut(9), vec![put(77, b"other")]).unwrap();
    store.write(ShardId(3), &cut(9), vec![put(78, b"other")]).unwrap();
    store
}

/// A store whose shard is behind.
fn behind(dir: &tempfile::TempDir) -> Arc<Store> {
    let store = open(dir);
    let changes =
        vec![put(1, b"old"), put(99, b"old"), Change::Body(task(99), Bytes::from_static(b"old"))];
    store.write(SHARD, &cut(10), changes).unwrap();
    store
}

type State = (BTreeMap<RecordKey, Box<[u8]>>, BTreeMap<TaskId, Bytes>);

fn state(store: &Arc<Store>) -> State {
    let view = store.view();
    let bodies = view.bodies(SHARD).map(Result::unwrap).collect();
    (view.records(SHARD).map(Result::unwrap).collect(), bodies)
}

/// Fetches until all is there or `parts_max` more parts have arrived; returns whether all is there.
fn fetch(from: &Arc<Store>, to: &Store, parts_max: usize) -> bool {
    let view = from.view();
    let mut arrived = to.begin_install(SHARD, ID).unwrap();
    for _ in 0..parts_max {
        if arrived.position.is_end() {
            break;
        }
        let part = view.part(SHARD, &arrived.position, PART_BYTES).unwrap();
        arrived = to.put_part(SHARD, ID, &part).unwrap();
    }
    arrived.position.is_end()
}

/// Switches as the shard loop does.
fn switch(store: &Store, id: SnapshotId) {
    assert!(store.switch(SHARD, id, &cut(id.index)).unwrap());
}

fn sweep_all(store: &Store) {
    while store.sweep().unwrap() {}
}

/// Keys of the shard in all keyspaces, whatever their generation.
fn keys_left(store: &Store) -> usize {
    let keyspaces = store.keyspaces().into_iter();
    keyspaces.map(|keyspace| keyspace.prefix(SHARD.0.to_be_bytes()).count()).sum()
}

#[test]
fn an_install_killed_after_any_part_goes_on_there_and_nothing_counts_before_the_switch() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = source(&here);
    let mut store = behind(&there);
    let old = state(&store);
    let mut parts = 0;
    loop {
        let is_whole = fetch(&source, &store, 1);
        parts += 1;
        assert_eq!(state(&store), old);
        assert_eq!(store.view().cut(SHARD).unwrap(), Some(cut(10)));
        drop(store);
        store = open(&there);
        if is_whole {
            break;
        }
    }
    assert!(parts >= 8, "{parts} parts");
    assert!(fetch(&source, &store, 0), "it is still whole");
    switch(&store, ID);
    assert_eq!(state(&store), state(&source));
    assert_eq!(store.body(task(3)).unwrap().as_deref(), Some(&[9; 40][..]));
    assert_eq!(store.body(task(99)).unwrap(), None, "of the state before");
    drop(store);
    let store = open(&there);
    assert_eq!(state(&store), state(&source));
    assert_eq!(store.view().cut(SHARD).unwrap(), Some(cut(ID.index)));
    assert!(store.view().is_installed(SHARD).unwrap());
    store.write(SHARD, &cut(60), vec![put(200, b"new")]).unwrap();
    assert!(!store.view().is_installed(SHARD).unwrap(), "a checkpoint of its own");
    sweep_all(&store);
    assert_eq!(state(&store).0.len(), state(&source).0.len() + 1);
    assert_eq!(keys_left(&store), 1 + 20 + 10 + 2 + 1, "all of the state before is gone");
}

#[test]
fn a_view_keeps_the_state_before_the_switch() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), behind(&there));
    let view = store.view();
    assert!(fetch(&source, &store, usize::MAX));
    switch(&store, ID);
    sweep_all(&store);
    assert_eq!(view.cut(SHARD).unwrap(), Some(cut(10)));
    assert_eq!(view.records(SHARD).count(), 2);
    assert_eq!(view.bodies(SHARD).count(), 1);
    assert!(!view.is_installed(SHARD).unwrap());
}

#[test]
fn another_snapshot_begins_in_an_empty_place() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), behind(&there));
    assert!(!fetch(&source, &store, 5));
    source.write(SHARD, &cut(51), vec![Change::Record(RecordKey::Task(task(1)), None)]).unwrap();
    let newer = SnapshotId { index: 51, ..ID };
    let arrived = store.begin_install(SHARD, newer).unwrap();
    assert_eq!(arrived, Arrived::default());
    let late = source.view().part(SHARD, &Position::default(), PART_BYTES).unwrap();
    assert!(matches!(store.put_part(SHARD, ID, &late), Err(InstallError::GivenUp)));
    let part = source.view().part(SHARD, &Position::default(), usize::MAX).unwrap();
    assert!(store.put_part(SHARD, newer, &part).unwrap().position.is_end());
    switch(&store, newer);
    assert_eq!(state(&store), state(&source));
}

/// The shard left this node and came back, and gets the same snapshot as its last replica.
#[test]
fn late_messages_of_a_removed_replica_do_not_reach_its_successor() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), behind(&there));
    assert!(!fetch(&source, &store, 5));
    let next = SnapshotId { replica: ID.replica + 1, ..ID };
    assert_eq!(store.begin_install(SHARD, next).unwrap(), Arrived::default());
    let part = source.view().part(SHARD, &Position::default(), usize::MAX).unwrap();
    assert!(matches!(store.put_part(SHARD, ID, &part), Err(InstallError::GivenUp)));
    assert!(store.put_part(SHARD, next, &part).unwrap().position.is_end());
    store.discard_install(SHARD, ID);
    assert!(!store.switch(SHARD, ID, &cut(ID.index)).unwrap());
    switch(&store, next);
    assert_eq!(state(&store), state(&source));
}

#[test]
fn a_part_that_is_damaged_repeated_or_missing_is_refused() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), behind(&there));
    let view = source.view();
    store.begin_install(SHARD, ID).unwrap();
    let first = view.part(SHARD, &Position::default(), PART_BYTES).unwrap();
    for offset in [0, first.records.len() / 2, first.records.len() - 1] {
        let mut damaged = first.clone();
        damaged.records[offset] ^= 1;
        let refused = store.put_part(SHARD, ID, &damaged);
        assert!(matches!(refused, Err(InstallError::Unfit(_))), "{refused:?}");
    }
    let second = view.part(SHARD, &first.next, PART_BYTES).unwrap();
    assert!(matches!(store.put_part(SHARD, ID, &second), Err(InstallError::Unfit(_))), "missing");
    store.put_part(SHARD, ID, &first).unwrap();
    assert!(matches!(store.put_part(SHARD, ID, &first), Err(InstallError::Unfit(_))), "repeated");
    store.put_part(SHARD, ID, &second).unwrap();
    assert_eq!(store.restart_install(SHARD, ID).unwrap(), Arrived::default());
    assert!(fetch(&source, &store, usize::MAX));
    switch(&store, ID);
    assert_eq!(state(&store), state(&source));
}

#[test]
fn half_a_snapshot_or_another_one_is_never_switched_to() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), behind(&there));
    let old = state(&store);
    let other = SnapshotId { index: 51, ..ID };
    assert!(!fetch(&source, &store, 3));
    assert!(!store.switch(SHARD, ID, &cut(ID.index)).unwrap(), "half of it");
    assert!(fetch(&source, &store, usize::MAX));
    assert!(!store.switch(SHARD, other, &cut(other.index)).unwrap(), "another one");
    assert!(!store.switch(ShardId(3), ID, &cut(ID.index)).unwrap(), "another shard");
    assert_eq!(state(&store), old);
    assert_eq!(store.view().cut(SHARD).unwrap(), Some(cut(10)));
    switch(&store, ID);
    assert!(!store.switch(SHARD, ID, &cut(ID.index)).unwrap(), "once");
    assert_eq!(state(&store), state(&source));
}

#[test]
fn an_install_that_was_given_up_leaves_nothing_and_may_be_taken_up_until_then() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), behind(&there));
    let before = keys_left(&store);
    assert!(fetch(&source, &store, usize::MAX));
    store.discard_install(SHARD, SnapshotId { index: 51, ..ID });
    assert_eq!(store.whole_installs(), [SHARD], "another one was meant");
    store.discard_install(SHARD, ID);
    assert!(fetch(&source, &store, 0), "nothing of it was removed yet");
    store.discard_install(SHARD, ID);
    sweep_all(&store);
    assert_eq!(keys_left(&store), before);
    assert!(!fetch(&source, &store, 0));
}

#[test]
fn an_install_that_was_replaced_or_overtaken_is_not_switched_to() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), behind(&there));
    assert!(fetch(&source, &store, usize::MAX));
    let newer = SnapshotId { index: 51, ..ID };
    assert_eq!(store.begin_install(SHARD, newer).unwrap(), Arrived::default());
    assert!(!store.switch(SHARD, ID, &cut(ID.index)).unwrap(), "another one has its place");
    assert!(fetch(&source, &store, usize::MAX));
    store.write(SHARD, &cut(49), vec![]).unwrap();
    switch(&store, ID);
    assert_eq!(state(&store), state(&source));

    assert_eq!(store.begin_install(SHARD, newer).unwrap(), Arrived::default());
    store.write(SHARD, &cut(51), vec![]).unwrap();
    let part = source.view().part(SHARD, &Position::default(), PART_BYTES).unwrap();
    assert!(matches!(store.put_part(SHARD, newer, &part), Err(InstallError::GivenUp)));
    assert!(!store.switch(SHARD, newer, &cut(newer.index)).unwrap(), "it was overtaken");
    sweep_all(&store);
    assert_eq!(state(&store), state(&source));
}

#[test]
fn a_first_checkpoint_and_an_install_do_not_share_a_place() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), open(&there));
    assert!(!fetch(&source, &store, 3));
    store.write(SHARD, &cut(9), vec![put(99, b"old")]).unwrap();
    assert_eq!(state(&store).0.len(), 1);
    assert!(fetch(&source, &store, usize::MAX));
    switch(&store, ID);
    sweep_all(&store);
    assert_eq!(state(&store), state(&source));
}

#[test]
fn a_shard_that_is_removed_leaves_nothing_even_if_a_crash_comes_between() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (source(&here), behind(&there));
    assert!(!fetch(&source, &store, 3));
    store.remove(SHARD).unwrap();
    assert_eq!(store.view().cut(SHARD).unwrap(), None);
    assert_eq!(state(&store), State::default());
    assert!(keys_left(&store) > 0);
    drop(store);
    let store = open(&there);
    sweep_all(&store);
    assert_eq!(keys_left(&store), 0);
    // The shard comes back as a new one.
    assert!(fetch(&source, &store, usize::MAX));
    switch(&store, ID);
    assert_eq!(state(&store), state(&source));
}

#[test]
fn a_shard_that_comes_back_finds_none_of_its_old_state() {
    let dir = tempfile::tempdir().unwrap();
    let store = behind(&dir);
    store.remove(SHARD).unwrap();
    store.write(SHARD, &cut(2), vec![put(5, b"new")]).unwrap();
    assert_eq!(state(&store).0.len(), 1);
    sweep_all(&store);
    assert_eq!(state(&store).0.len(), 1);
    assert_eq!(keys_left(&store), 2);
}

#[test]
fn the_space_of_the_state_before_returns() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (source, store) = (open(&here), open(&there));
    let fill = |store: &Store, index: u64, byte: u8| {
        let bodies = (0..20_000_u64).flat_map(|id| {
            let body = Bytes::from([id.to_le_bytes(), [byte; 8]].concat().repeat(64));
            [put(id, &[byte; 100]), Change::Body(task(id), body)]
        });
        store.write(SHARD, &cut(index), bodies.collect()).unwrap();
    };
    fill(&source, ID.index, 1);
    fill(&store, 10, 2);
    store.rotate(&store.bodies).unwrap();
    let view = source.view();
    let mut arrived = store.begin_install(SHARD, ID).unwrap();
    while !arrived.position.is_end() {
        let part = view.part(SHARD, &arrived.position, 2 << 20).unwrap();
        arrived = store.put_part(SHARD, ID, &part).unwrap();
    }
    switch(&store, ID);
    store.rotate(&store.bodies).unwrap();
    let both = store.bodies.disk_space();
    sweep_all(&store);
    assert!(store.reclaim(20_000).unwrap());
    let left = store.bodies.disk_space();
    assert!(left < both * 3 / 5, "{left} of {both} bytes");
    assert_eq!(state(&store).1.len(), 20_000);
}
