//! Disks of a cluster of three: one is full, one is damaged. The node on it ends and says why, the others
//! go on, and the node is rebuilt from them.

use crate::{
    load::{QUEUES, queue},
    nodes::{NODES, Nodes, can_mount},
    plain::Plain,
};
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};
use taskyard_proto::v1::{EnqueueRequest, NewTask};

/// Enough for a node to start, little enough to be filled.
const DISK: &str = "24m";
/// What fills it.
const LARGE_BYTES: usize = 512 << 10;

/// Writes to every queue, through a node, until each has taken a task.
async fn write_everywhere(nodes: &Nodes, place: usize, name: &str) {
    let node = Plain::to(&nodes.nodes[place].url());
    for number in 0..QUEUES {
        let mut count = 0;
        while node.enqueue(&queue(number), &format!("{name}-{number}")).await.known().is_none() {
            count += 1;
            assert!(count < 1_000, "queue {number} takes nothing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Gives up the node at a place and starts one anew there.
fn rebuild(nodes: &mut Nodes, place: usize, lost: u64, disk: Option<&'static str>) {
    nodes.give_up(0, lost);
    nodes.renew(place, disk);
    nodes.start(place);
    nodes.until_settled();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_a_damaged_log_or_a_full_disk_end_and_are_rebuilt_while_the_others_go_on() {
    let mut nodes = Nodes::form(NODES);
    write_everywhere(&nodes, 1, "well").await;

    let lost = nodes.number(2);
    nodes.stop(2);
    damage(&newest_log(&nodes, 2));
    nodes.start(2);
    let said = nodes.until_failed(2);
    assert!(said.contains("is damaged at byte"), "{said}");
    let how =
        format!("`taskyard cluster remove {lost} --force`, then start this one with a new data");
    assert!(said.contains(&how) && said.contains("--join"), "{said}");
    write_everywhere(&nodes, 1, "damaged").await;
    if !can_mount() {
        eprintln!("SKIPPED: a full disk, since no small one can be mounted here");
        return rebuild(&mut nodes, 2, lost, None);
    }
    rebuild(&mut nodes, 2, lost, Some(DISK));

    let lost = nodes.number(2);
    let full = tokio::spawn(fill(nodes.nodes[0].url()));
    let said = nodes.until_failed(2);
    full.abort();
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.contains("nothing unsynced was acknowledged; check the disk"), "{said}");
    write_everywhere(&nodes, 1, "full").await;
    rebuild(&mut nodes, 2, lost, None);
    write_everywhere(&nodes, 2, "rebuilt").await;
}

/// The file of the log that is written to.
fn newest_log(nodes: &Nodes, place: usize) -> PathBuf {
    let files = fs::read_dir(nodes.nodes[place].data().join("log")).unwrap().flatten();
    let files = files.map(|file| file.path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|end| end == "raftlog");
    files.filter(is_log).max().unwrap()
}

/// Changes a byte with much behind it.
fn damage(file: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1_000).unwrap();
    file.write_all_at(&[!byte[0]], 1_000).unwrap();
}

/// Writes large tasks to all queues, for ever.
async fn fill(url: String) {
    let mut client = Plain::to(&url).0;
    for number in (0..QUEUES).cycle() {
        let (queue, payload) = (queue(number), vec![0; LARGE_BYTES].into());
        let task = NewTask { queue, payload, r#type: "large".into(), ..NewTask::default() };
        // The full node takes none of those that it leads any more, for as long as it lives.
        let _ = client.enqueue(EnqueueRequest { task: Some(task) }).await;
    }
}
