//! Disks of a cluster of three. One is damaged or really full: the node on it ends and says why, the others
//! go on, and the node is rebuilt from them. One is nearly full: the others lead, until all are.

use crate::{
    cluster::{
        history::Answer,
        load::{QUEUES, queue},
        nodes::{NODES, Nodes},
        plain::Plain,
    },
    yard::{
        needs::{self, Need},
        until,
    },
};
use serde_json::Value;
use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};
use taskyard_proto::v1::{EnqueueRequest, NewTask};

/// Enough for a node to start, little enough to be filled.
const DISK: &str = "24m";
/// What fills it.
const LARGE_BYTES: usize = 512 << 10;
/// A disk that a node keeps a good part of free.
const ROOMY: &str = "96m";
const ROOMY_RESERVE: &str = "24M";
/// A reserve that no disk has.
const RESERVE_OF_ALL: &str = "1000000G";

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
    if let Err(why) = needs::disks() {
        Need::Disks.skip(why);
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

/// Whether the node at a place is low on disk, and how many groups it leads, as the first one says.
fn low_and_leads(nodes: &Nodes, place: usize) -> Option<(bool, u64)> {
    let (view, url) = (nodes.nodes[0].view(), nodes.nodes[place].url());
    let is_it = |node: &&Value| node["address"].as_str().is_some_and(|at| url.ends_with(at));
    let found = view["nodes"].as_array()?.iter().find(is_it)?;
    let leads_control = view["control"]["leader"] == found["id"];
    Some((found["disk_low"].as_bool()?, found["leads"].as_u64()? + u64::from(leads_control)))
}

/// Waits until a node is known to be low on disk and leads nothing, or the other way round.
fn until_low(nodes: &Nodes, place: usize, is_low: bool) {
    until(
        &format!("node {place} is {}low on disk", if is_low { "" } else { "no longer " }),
        || {
            let found = low_and_leads(nodes, place);
            found.is_some_and(|(low, leads)| low == is_low && (leads == 0) == is_low)
        },
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_fills_up_hands_over_and_leads_again_when_it_has_room() {
    if let Err(why) = needs::disks() {
        return Need::Disks.skip(why);
    }
    let mut nodes = Nodes::form(NODES);
    let lost = nodes.number(2);
    nodes.stop(2);
    nodes.set_reserve(2, Some(ROOMY_RESERVE));
    rebuild(&mut nodes, 2, lost, Some(ROOMY));
    until_low(&nodes, 2, false);
    let data = nodes.nodes[2].data_inside();
    let mut filler = File::create(data.join("filler")).unwrap();
    let free_bytes = || {
        let found = rustix::fs::statvfs(&data).unwrap();
        found.f_bavail * found.f_frsize
    };
    while free_bytes() > 20 << 20 {
        filler.write_all(&[0; 1 << 16]).unwrap();
    }
    until_low(&nodes, 2, true);
    for place in 0..nodes.len() {
        write_everywhere(&nodes, place, &format!("low-{place}")).await;
    }
    assert_eq!(low_and_leads(&nodes, 2), Some((true, 0)));
    fs::remove_file(data.join("filler")).unwrap();
    drop(filler);
    until_low(&nodes, 2, false);
    write_everywhere(&nodes, 2, "roomy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_taken_while_one_node_has_room_and_refused_when_none_has() {
    let mut nodes = Nodes::form(NODES);
    for place in 0..nodes.len() {
        nodes.stop(place);
        nodes.set_reserve(place, Some(RESERVE_OF_ALL));
        nodes.start(place);
        nodes.until_settled();
        if place + 1 < nodes.len() {
            until_low(&nodes, place, true);
            write_everywhere(&nodes, place, &format!("one-has-room-{place}")).await;
        }
    }
    for place in 0..nodes.len() {
        let node = Plain::to(&nodes.nodes[place].url());
        for number in 0..QUEUES {
            let answer = node.enqueue(&queue(number), &format!("none-{place}-{number}")).await;
            assert_eq!(answer, Answer::Rejected("disk_full".into()), "queue {number}");
            // What was taken before is still known.
            let known = node.enqueue(&queue(number), &format!("one-has-room-0-{number}")).await;
            assert!(known.known().is_some(), "{known:?}");
        }
    }
    nodes.stop(1);
    nodes.set_reserve(1, None);
    nodes.start(1);
    nodes.until_settled();
    write_everywhere(&nodes, 0, "room-again").await;
    for place in [0, 2] {
        until_low(&nodes, place, true);
    }
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
