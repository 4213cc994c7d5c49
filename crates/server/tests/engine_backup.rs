//! Backups: a consistent copy while the node works, restored into a new directory, or refused.

use crate::engine::{Bench, config, start};
use std::{fs, path::Path, time::Duration};
use taskyard_machine::{
    Ack, Command, EncodedCommand, QueueSettings, SetQueue, TaskId, TaskStateName,
};
use taskyard_server::{restore, shard::Shards};

async fn back_up(shards: &Shards, file: &Path) {
    let mut parts = shards.backup().await.unwrap();
    let mut bytes = Vec::new();
    let mut shards_done = 0;
    while let Some(part) = parts.recv().await {
        let part = part.unwrap();
        bytes.extend_from_slice(&part.data);
        assert!(part.shards_done >= shards_done);
        shards_done = part.shards_done;
    }
    assert_eq!(shards_done, shards.count());
    fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_restored_backup_has_everything_acknowledged_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(&dir.path().join("old")));
    let bench = Bench(engine.shards());
    let mail = bench.enqueue_many("mail", 700, b"letter").await;
    let large = bench.enqueue("video", &[7; 900_000]).await;
    let done = bench.claim("mail", 100, Duration::ZERO).await;
    for task in &done {
        bench.ack(task.task.id, task.task.token).await.unwrap();
    }
    let file = dir.path().join("backup");
    back_up(&bench.0, &file).await;
    bench.enqueue_many("mail", 10, b"too late").await;
    // The node goes on, and a second backup works.
    back_up(&bench.0, &dir.path().join("second")).await;
    engine.stop();

    let new = dir.path().join("new");
    let mut steps = 0;
    let restored = restore(&file, &new, |_| steps += 1).unwrap();
    assert_eq!(restored.tasks, 701);
    assert_eq!(restored.bytes_read, restored.bytes_total);
    assert!(steps > 4);
    let engine = start(&config(&new));
    let bench = Bench(engine.shards());
    assert_eq!(bench.ready("mail").await, 600);
    assert_eq!(bench.task(mail[3]).await.unwrap().state, TaskStateName::Succeeded);
    assert_eq!(bench.payload(large).await.unwrap(), [7; 900_000]);
    let claimed = bench.claim("mail", 600, Duration::ZERO).await;
    let ids: Vec<_> = claimed.iter().map(|task| task.task.id).collect();
    assert_eq!(ids, mail[100..]);
    let new = bench.enqueue("mail", b"new").await;
    assert_ne!(new.incarnation, mail[0].incarnation, "new ids can't meet old ones");
}

/// Tasks of the backup end and are removed before the backup reaches them.
#[tokio::test]
async fn a_backup_taken_while_tasks_end_has_the_body_of_every_task_in_it() {
    const TASKS: usize = 6_000;
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(&dir.path().join("old")));
    let bench = Bench(engine.shards());
    let settings = QueueSettings { retention_count: Some(0), ..QueueSettings::default() };
    bench.command("mail", &Command::SetQueue(SetQueue { queue: "mail", settings })).await.unwrap();
    bench.enqueue_many("mail", TASKS, b"letter").await;
    let mut claimed = Vec::new();
    while claimed.len() < TASKS {
        claimed.extend(bench.claim("mail", 1_000, Duration::ZERO).await);
    }
    let all: Vec<TaskId> = claimed.iter().map(|handed| handed.task.id).collect();
    let file = dir.path().join("backup");
    let acks = async {
        // The newest tasks end first, because they come last in the backup.
        for part in claimed.rchunks(100) {
            let acks = part.iter().map(|handed| {
                let (task, token) = (handed.task.id, handed.task.token);
                let ack = Ack { task, token, result: None, follow_ups: Vec::new() };
                (task.home, EncodedCommand::new(&Command::Ack(ack)))
            });
            for outcome in bench.0.propose_all(acks.collect(), false).await {
                outcome.unwrap();
            }
        }
    };
    tokio::join!(back_up(&bench.0, &file), acks);
    assert!(bench.task(all[0]).await.is_none(), "nothing is retained");
    engine.stop();

    let new = dir.path().join("new");
    restore(&file, &new, |_| {}).unwrap();
    let engine = start(&config(&new));
    let bench = Bench(engine.shards());
    let mut found = 0;
    for task in all {
        if bench.task(task).await.is_some() {
            assert_eq!(bench.payload(task).await.as_deref(), Some(&b"letter"[..]), "{task}");
            found += 1;
        }
    }
    assert!(found > TASKS / 2, "the backup was taken when {found} tasks were left");
}

#[tokio::test]
async fn an_empty_node_is_backed_up_too() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(&dir.path().join("old")));
    let file = dir.path().join("backup");
    back_up(&engine.shards(), &file).await;
    drop(engine);
    restore(&file, &dir.path().join("new"), |_| {}).unwrap();
    let engine = start(&config(&dir.path().join("new")));
    assert_eq!(engine.shards().count(), 4);
}

#[tokio::test]
async fn a_bad_file_or_directory_is_refused_in_plain_words() {
    let dir = tempfile::tempdir().unwrap();
    let engine = start(&config(&dir.path().join("old")));
    let bench = Bench(engine.shards());
    bench.enqueue_many("mail", 50, b"letter").await;
    let good = dir.path().join("backup");
    back_up(&bench.0, &good).await;
    drop(engine);
    let bytes = fs::read(&good).unwrap();
    let bad = dir.path().join("bad");
    let new = dir.path().join("new");
    let error = |expected: &str| {
        let error = restore(&bad, &new, |_| {}).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!new.exists(), "nothing is left of it");
    };
    for length in (0..bytes.len()).step_by(bytes.len() / 40) {
        fs::write(&bad, &bytes[..length]).unwrap();
        error("is cut off after");
    }
    for offset in (0..bytes.len()).step_by(bytes.len() / 40) {
        let mut broken = bytes.clone();
        broken[offset] ^= 0x10;
        fs::write(&bad, broken).unwrap();
        error("bad");
    }
    fs::write(&bad, b"some other file that is long enough").unwrap();
    error("is not a backup of taskyard");

    fs::create_dir(&new).unwrap();
    fs::write(new.join("thesis.txt"), "x").unwrap();
    let refused = restore(&good, &new, |_| {}).unwrap_err().to_string();
    assert!(refused.contains("is not empty, it has thesis.txt"), "{refused}");
    assert!(new.join("thesis.txt").exists());
}
