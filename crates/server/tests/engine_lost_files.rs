//! Missing or foreign parts of a data directory: the node refuses them plainly. It makes nothing
//! new and removes nothing, so that putting the parts back restores everything.
use crate::common::damage::{BODIES, damage_a_body, payload};
use crate::engine::{Bench, config, start};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use taskyard_machine::TaskStateName;
use taskyard_server::{restore, shard::Engine};

const TASKS: usize = 50;

/// A data directory as a crash leaves it, with tasks in its checkpoints and in its log.
async fn filled(dir: &Path) {
    let engine = start(&config(dir));
    Bench(engine.shards()).enqueue_many("mail", TASKS, b"letter").await;
    engine.stop();
    let engine = start(&config(dir));
    Bench(engine.shards()).enqueue("late", b"letter").await;
    drop(engine);
}

/// The files of a directory, except the lock that names the last process.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        }
        found.insert(entry.path());
    }
    found
}

/// Checks that the directory is refused, twice alike, and keeps every file.
fn check_refused(dir: &Path, expected: &str) {
    let before = files(dir);
    for _ in 0..2 {
        let error = Engine::start(&config(dir)).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("restore a backup into a new directory"), "{error}");
        assert!(!error.contains("Error") && !error.contains('{'), "{error}");
        assert_eq!(files(dir), before, "{error}");
    }
}

async fn check_whole(dir: &Path) {
    let engine = start(&config(dir));
    let bench = Bench(engine.shards());
    assert_eq!((bench.ready("mail").await, bench.ready("late").await), (TASKS as u64, 1));
    let first = bench.claim("mail", 1, std::time::Duration::from_secs(20)).await;
    assert!(first[0].body.ends_with(b"letter"), "the bodies are there, too");
}

#[tokio::test]
async fn a_lost_part_of_the_checkpoints_is_refused_and_the_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    filled(&dir).await;
    let aside = folder.path().join("aside");
    for (lost, expected) in [
        ("keyspaces", "keyspaces/0/current is missing"),
        ("keyspaces/0", "keyspaces/0/current is missing, with the list of its parts"),
        ("keyspaces/1", "keyspaces/1/current is missing, with the tasks"),
        ("keyspaces/2", "keyspaces/2/current is missing, with the bodies of the tasks"),
        ("keyspaces/3", "keyspaces/3/current is missing, with queues and all other records"),
        ("keyspaces/0/current", "keyspaces/0/current is missing"),
        ("keyspaces/1/current", "keyspaces/1/current is missing"),
        ("keyspaces/2/current", "keyspaces/2/current is missing"),
        ("keyspaces/3/current", "keyspaces/3/current is missing"),
        ("version", "version is missing"),
        ("lock", "lock is missing"),
        ("0.jnl", "its journal, a file like 0.jnl, is missing"),
    ] {
        let part = dir.join("state").join(lost);
        fs::rename(&part, &aside).unwrap();
        check_refused(&dir, expected);
        fs::rename(&aside, &part).unwrap();
    }
    check_whole(&dir).await;
}

/// A bad block on the disk: its task is a dead letter that says so, and all others are served.
#[tokio::test]
async fn a_body_that_can_not_be_read_ends_its_own_task_alone() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(&config(folder.path()));
    let bench = Bench(engine.shards());
    let mut ids = Vec::new();
    for number in 0..BODIES {
        ids.push(bench.enqueue("mail", payload(number).as_bytes()).await);
    }
    engine.stop();
    let damaged = damage_a_body(folder.path());

    let engine = start(&config(folder.path()));
    let bench = Bench(engine.shards());
    let error = bench.0.bodies(vec![ids[damaged]]).await.unwrap_err();
    assert!(error.to_string().contains("another checksum than when it was written"), "{error}");
    let page = bench.0.bodies(ids.clone()).await.unwrap();
    let missing: Vec<usize> = (0..BODIES).filter(|&number| page[number].is_none()).collect();
    assert_eq!(missing, [damaged], "a page shows all others");
    let wait = std::time::Duration::from_secs(20);
    let mut claimed = BTreeSet::new();
    while claimed.len() < BODIES - 1 {
        for handed in bench.claim("mail", 7, wait).await {
            let number = ids.iter().position(|id| *id == handed.task.id).unwrap();
            assert!(handed.body.ends_with(payload(number).as_bytes()));
            assert!(claimed.insert(number));
            bench.ack(handed.task.id, handed.task.token).await.unwrap();
        }
    }
    let dead = bench.task(ids[damaged]).await.unwrap();
    assert_eq!(dead.state, TaskStateName::Dead);
    let error = &dead.attempts.last().unwrap().error;
    assert!(format!("{error:?}").contains("BodyUnreadable"), "{error:?}");
    assert!(format!("{error:?}").contains("another checksum"), "{error:?}");
    // After a restart, too.
    engine.stop();
    let engine = start(&config(folder.path()));
    let bench = Bench(engine.shards());
    bench.enqueue("mail", b"one more").await;
    assert_eq!(bench.claim("mail", 10, wait).await.len(), 1);
    engine.stop();
}

/// A part of the directory is missing or empty, as if its volume were not mounted.
#[tokio::test]
async fn an_emptied_log_or_state_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    filled(&dir).await;
    let (here, aside) = (|part| dir.join(part), |part| folder.path().join(part));
    for lost in [&["log"][..], &["state"], &["log", "state"]] {
        for part in lost {
            fs::rename(here(part), aside(part)).unwrap();
        }
        check_refused(&dir, &format!("its folder {} is missing", lost[0]));
        for part in lost {
            fs::create_dir(here(part)).unwrap();
        }
        check_refused(&dir, &format!("its folder {} is empty", lost[0]));
        for part in lost {
            fs::remove_dir(here(part)).unwrap();
            fs::rename(aside(part), here(part)).unwrap();
        }
    }
    check_whole(&dir).await;
}

#[tokio::test]
async fn a_part_of_another_data_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, other) = (folder.path().join("data"), folder.path().join("other"));
    filled(&dir).await;
    filled(&other).await;
    let aside = folder.path().join("aside");
    for part in ["log", "state"] {
        fs::rename(dir.join(part), &aside).unwrap();
        fs::rename(other.join(part), dir.join(part)).unwrap();
        let error = Engine::start(&config(&dir)).expect_err("it is refused").to_string();
        assert!(error.contains("belongs to another data directory"), "{error}");
        fs::rename(dir.join(part), other.join(part)).unwrap();
        fs::rename(&aside, dir.join(part)).unwrap();
    }
    check_whole(&dir).await;
}

/// A restored directory is checked like a new one.
#[tokio::test]
async fn a_lost_part_of_a_restored_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let engine = start(&config(&folder.path().join("old")));
    let bench = Bench(engine.shards());
    bench.enqueue_many("mail", TASKS, b"letter").await;
    bench.enqueue("late", b"letter").await;
    let mut parts = bench.0.backup().await.unwrap();
    let mut bytes = Vec::new();
    while let Some(part) = parts.recv().await {
        bytes.extend_from_slice(&part.unwrap().data);
    }
    let file = folder.path().join("backup");
    fs::write(&file, bytes).unwrap();
    let dir = folder.path().join("new");
    restore(&file, &dir, |_| {}).unwrap();
    let current = dir.join("state/keyspaces/1/current");
    fs::rename(&current, folder.path().join("aside")).unwrap();
    check_refused(&dir, "with the tasks");
    fs::rename(folder.path().join("aside"), &current).unwrap();
    check_whole(&dir).await;
}
