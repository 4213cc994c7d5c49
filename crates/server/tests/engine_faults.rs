//! Faults of the disk: full, in use, damaged, rolled back. The node refuses them plainly, or
//! survives.

use crate::engine;

use crate::common::copy_all;
use crate::engine::{Bench, config, eventually, start};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command as Process,
    time::Duration,
};
use taskyard_machine::{Ack, Body, Enqueue, NewTask, TaskStateName};
use taskyard_server::{Broker, Error, shard::Engine};

fn start_error(dir: &Path) -> String {
    Engine::start(&config(dir)).expect_err("it must not start").to_string()
}

fn newest_log(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir.join("log")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "raftlog")).max().unwrap()
}

fn used_bytes(file: &Path) -> usize {
    let data = fs::read(file).unwrap();
    data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

#[tokio::test]
async fn a_full_disk_refuses_enqueues_and_serves_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    let engine = start(&config);
    let known = || NewTask { task_type: "t", request_id: Some("r"), ..NewTask::default() };
    let id = Bench(engine.shards()).try_enqueue("mail", known()).await.unwrap();
    drop(engine);
    config.disk_reserve_bytes = u64::MAX;
    let engine = start(&config);
    let bench = Bench(engine.shards());
    assert!(bench.0.metrics().await.unwrap().contains("\ntaskyard_disk_full 1\n"));
    assert_eq!(bench.try_enqueue("mail", known()).await.unwrap(), id, "its answer was lost");
    let refused = bench.try_enqueue("mail", NewTask { task_type: "t", ..NewTask::default() }).await;
    assert!(matches!(&refused, Err(Error::DiskFull(_))), "{refused:?}");
    assert_eq!(bench.task(id).await.unwrap().state, TaskStateName::Ready);
    let claimed = bench.claim("mail", 1, Duration::from_secs(20)).await;
    // A finished task is accepted, with its follow-ups.
    let broker = Broker::new(engine.shards(), &config);
    let task = NewTask { task_type: "t", ..NewTask::default() };
    let follow_ups = vec![broker.follow_up(Enqueue { queue: "next", task }).unwrap()];
    let token = claimed[0].task.token;
    let followed = broker.ack(Ack { task: id, token, result: None, follow_ups }).await.unwrap();
    eventually("it follows", async || bench.task(followed[0]).await.is_some()).await;
}

/// A small file system, if this user may mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf, bytes: u64) -> Option<SmallDisk> {
        fs::create_dir_all(&at).unwrap();
        let size = format!("size={bytes}");
        let mut mount = Process::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at);
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        is_mounted.then_some(SmallDisk(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Process::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test]
async fn enqueues_are_taken_again_when_the_disk_has_room() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("disk"), 128 << 20) else {
        println!("skipped: this user can't mount a tmpfs");
        return;
    };
    let filler = disk.0.join("filler");
    let mut config = config(&disk.0.join("data"));
    config.disk_reserve_bytes = 64 << 20;
    let engine = start(&config);
    let bench = Bench(engine.shards());
    bench.enqueue("mail", b"x").await;
    fs::write(&filler, vec![1; 80 << 20]).unwrap();
    let task = || NewTask { task_type: "t", ..NewTask::default() };
    eventually("the disk is full", async || {
        matches!(bench.try_enqueue("mail", task()).await, Err(Error::DiskFull(_)))
    })
    .await;
    assert!(!bench.claim("mail", 1, Duration::ZERO).await.is_empty());
    fs::remove_file(&filler).unwrap();
    eventually("it has room again", async || bench.try_enqueue("mail", task()).await.is_ok()).await;
    drop(engine);
}

/// Without a reserve the disk fills to its last byte. The node must stop, and lose nothing.
#[tokio::test]
async fn a_write_that_fails_stops_the_node_and_nothing_acknowledged_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("disk"), 24 << 20) else {
        println!("skipped: this user can't mount a tmpfs");
        return;
    };
    let config = config(&disk.0.join("data"));
    let engine = start(&config);
    let bench = Bench(engine.shards());
    let mut acknowledged = Vec::new();
    let payload = vec![3; 200_000];
    let unknown = loop {
        let body = Body { payload: &payload, ..Body::default() };
        let task = NewTask { task_type: "t", body, ..NewTask::default() };
        match bench.try_enqueue("mail", task).await {
            Ok(id) => acknowledged.push(id),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 1000, "the disk never filled");
    };
    assert_eq!(unknown.code(), "outcome_unknown");
    let why = tokio::time::timeout(Duration::from_secs(20), engine.failed()).await.unwrap();
    assert!(why.contains("can't be written"), "{why}");
    let later = bench.0.status().await.unwrap_err();
    assert_eq!(later.code(), "unavailable");
    drop(engine);
    // With more room, everything acknowledged is there.
    copy_all(&disk.0.join("data"), &dir.path().join("copy"));
    let engine = start(&engine::config(&dir.path().join("copy")));
    let bench = Bench(engine.shards());
    for id in acknowledged {
        assert_eq!(bench.payload(id).await.unwrap(), payload);
    }
}

#[tokio::test]
async fn a_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(dir.path()));
    let error = start_error(dir.path());
    assert!(error.contains("is in use by another taskyard process"), "{error}");
    drop(engine);
    drop(start(&config(dir.path())));
}

/// The log is cut at many places, as a power cut would: everything acknowledged by then is there.
#[tokio::test]
async fn a_torn_tail_keeps_everything_acknowledged_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let original = dir.path().join("original");
    let engine = start(&config(&original));
    let bench = Bench(engine.shards());
    let mut acknowledged = Vec::new();
    for n in 0..12u8 {
        let id = bench.enqueue(&format!("queue-{n}"), &[n; 700]).await;
        acknowledged.push((id, used_bytes(&newest_log(&original))));
    }
    drop(engine);
    let log = newest_log(&original);
    let end = used_bytes(&log);
    let begin = acknowledged[5].1;
    for cut in (begin..=end).step_by(263) {
        let torn = dir.path().join("torn");
        copy_all(&original, &torn);
        let file = newest_log(&torn);
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(cut as u64).unwrap();
        let engine = start(&config(&torn));
        let bench = Bench(engine.shards());
        for (n, (id, synced_to)) in acknowledged.iter().enumerate() {
            let found = bench.payload(*id).await;
            if *synced_to <= cut {
                assert_eq!(found.as_deref(), Some(&[n as u8; 700][..]), "cut at {cut}");
            }
            assert_eq!(found.is_some(), bench.task(*id).await.is_some());
        }
        drop(engine);
        fs::remove_dir_all(&torn).unwrap();
    }
}

#[tokio::test]
async fn damage_is_refused_and_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let original = dir.path().join("original");
    let engine = start(&config(&original));
    let bench = Bench(engine.shards());
    bench.enqueue_many("mail", 10, b"x").await;
    drop(bench.0.backup().await.unwrap());
    drop(engine);
    let old_state = dir.path().join("old-state");
    copy_all(&original.join("state"), &old_state);
    let engine = start(&config(&original));
    let bench = Bench(engine.shards());
    bench.enqueue_many("mail", 10, b"y").await;
    engine.stop();
    let engine = start(&config(&original));
    Bench(engine.shards()).enqueue("mail", b"z").await;
    drop(engine);

    let copied = |name: &str| {
        let copied = dir.path().join(name);
        copy_all(&original, &copied);
        copied
    };
    let flipped = copied("flipped");
    let file = newest_log(&flipped);
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert!(start_error(&flipped).contains("is damaged at byte"), "{}", start_error(&flipped));

    let rolled_back = copied("rolled-back");
    fs::remove_dir_all(rolled_back.join("state")).unwrap();
    copy_all(&old_state, &rolled_back.join("state"));
    let error = start_error(&rolled_back);
    assert!(
        error.contains("can't be recovered") && error.contains("but its log begins"),
        "{error}"
    );

    let copied = copied("sound");
    assert_eq!(Bench(start(&config(&copied)).shards()).ready("mail").await, 21);
}
