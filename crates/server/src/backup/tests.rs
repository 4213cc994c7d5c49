//! Backups: copies that are lost during the backup, and what the file then contains.

use super::*;
use crate::checkpoint::{Change, Store};
use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};
use taskyard_machine::{RecordKey, TaskId};
use taskyard_replica::eraftpb::ConfState;

const SHARD: ShardId = ShardId(1);

/// The stores of the nodes; a store loses its parts after the given number.
struct Nodes {
    stores: Vec<(tempfile::TempDir, Arc<Store>)>,
    parts_left: Vec<AtomicUsize>,
}

fn task(sequence: u64) -> TaskId {
    TaskId { incarnation: 1, home: SHARD, origin: SHARD, sequence }
}

/// A store with the given number of tasks.
fn store(tasks: u64) -> (tempfile::TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut changes = vec![Change::Record(
        RecordKey::Rest(Box::from(*b"queue")),
        Some(tasks.to_le_bytes().into()),
    )];
    for sequence in 0..tasks {
        let key = RecordKey::Task(task(sequence));
        changes.push(Change::Record(key, Some(vec![sequence as u8; 50].into())));
        changes.push(Change::Body(task(sequence), vec![9; 70].into()));
    }
    let conf_state = ConfState { voters: vec![4, 5], ..ConfState::default() };
    store.write(SHARD, &Cut { index: 100 + tasks, term: 3, conf_state }, changes).unwrap();
    (dir, store)
}

impl Nodes {
    /// Nodes whose stores have the given numbers of tasks and lose their parts after the given
    /// numbers.
    fn new(nodes: &[(u64, usize)]) -> Nodes {
        Nodes {
            stores: nodes.iter().map(|(tasks, _)| store(*tasks)).collect(),
            parts_left: nodes.iter().map(|(_, parts)| AtomicUsize::new(*parts)).collect(),
        }
    }
}

impl Copies for Nodes {
    async fn of(&self, shard: ShardId) -> Result<Vec<ShardCopy>, Error> {
        let cuts = self.stores.iter().map(|(_, store)| store.view().cut(shard).unwrap());
        let copies = cuts
            .enumerate()
            .filter_map(|(node, cut)| Some(ShardCopy { node: node as u64, cut: cut? }));
        Ok(copies.collect())
    }

    async fn part(&self, shard: ShardId, copy: &ShardCopy, from: &Position) -> Result<Part, Error> {
        let node = copy.node as usize;
        let one_less = |left: usize| left.checked_sub(1);
        let left = &self.parts_left[node];
        if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return Err(Error::Unavailable(format!("node {node} does not answer")));
        }
        Ok(self.stores[node].1.view().part(shard, from, 500).unwrap())
    }
}

/// The file, or the error of the stream.
async fn write(nodes: Nodes) -> Result<Vec<u8>, Error> {
    let mut parts = stream(Format::random(3), nodes);
    let mut file = Vec::new();
    while let Some(part) = parts.recv().await {
        file.extend_from_slice(&part?.data);
    }
    Ok(file)
}

type State = (BTreeMap<RecordKey, Box<[u8]>>, BTreeMap<TaskId, Bytes>);

fn state(store: &Arc<Store>) -> State {
    let view = store.view();
    let bodies = view.bodies(SHARD).map(Result::unwrap).collect();
    (view.records(SHARD).map(Result::unwrap).collect(), bodies)
}

#[tokio::test]
async fn a_shard_whose_copy_is_lost_on_the_way_begins_again_from_another() {
    // The copy is lost before the first part, after a few parts, among the bodies, or never.
    for parts in [0, 1, 3, 12, usize::MAX] {
        let dir = tempfile::tempdir().unwrap();
        let (path, data) = (dir.path().join("file"), dir.path().join("data"));
        fs::write(&path, write(Nodes::new(&[(60, parts), (7, usize::MAX)])).await.unwrap())
            .unwrap();
        let restored = restore(&path, &data, |_| {}).unwrap();
        let tasks = if parts == usize::MAX { 60 } else { 7 };
        assert_eq!(restored.tasks, tasks, "lost after {parts} parts");
        let found = Store::open(&data.join("state")).unwrap();
        assert_eq!(state(&found), state(&store(tasks).1), "lost after {parts} parts");
        let cut = found.view().cut(SHARD).unwrap().unwrap();
        assert_eq!((cut.index, cut.conf_state.voters), (100 + tasks, vec![1]));
    }
}

#[tokio::test]
async fn a_backup_whose_copies_are_all_lost_is_no_backup_and_says_why() {
    let error = write(Nodes::new(&[(60, 2), (60, 5)])).await.unwrap_err();
    assert_eq!(error.to_string(), "the backup is incomplete: node 1 does not answer");
}

/// Frames in a wrong order, with sound checksums, are never taken for a backup.
#[tokio::test]
async fn a_file_whose_shards_are_out_of_order_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let file = write(Nodes::new(&[(3, usize::MAX)])).await.unwrap();
    let (header, mut rest) = file.split_at(16 + 4 + 16 + 2 + 8);
    let mut frames = Vec::new();
    while let Some(length) = rest.first_chunk() {
        let (frame, after) = rest.split_at(12 + u32::from_le_bytes(*length) as usize);
        frames.push(frame.to_vec());
        rest = after;
    }
    let [shard, tasks, others, bodies, end] = &frames[..] else { panic!("{}", frames.len()) };
    let mut again = shard.clone();
    again[12] = KIND_AGAIN;
    let checksum = xxh3_64(&again[12..]).to_le_bytes();
    again[4..12].copy_from_slice(&checksum);
    for (frames, is_sound) in [
        (vec![shard, tasks, others, bodies, end], true),
        (vec![shard, tasks, &again, tasks, others, bodies, end], true),
        (vec![shard, tasks, shard, tasks, others, bodies, end], false),
        (vec![&again, tasks, others, bodies, end], false),
        (vec![tasks, others, bodies, end], false),
    ] {
        let frames: Vec<u8> = frames.into_iter().flatten().copied().collect();
        fs::write(&path, [header, &frames].concat()).unwrap();
        let data = dir.path().join("data");
        let restored = restore(&path, &data, |_| {});
        assert_eq!(restored.is_ok(), is_sound, "{restored:?}");
        let _ = fs::remove_dir_all(&data);
    }
}
