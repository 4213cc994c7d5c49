//! Disk faults in a cluster of three. A node with a damaged log ends with the reason and is rebuilt
//! from the others. A node with a nearly full disk gives up leadership. A node with a full disk
//! stays up, and follows again once its disk has room.

use crate::{
    cluster::{
        history::Answer,
        load::{QUEUES, queue},
        namespaces::{Namespaces, with_namespaces},
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
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A disk and a large reserve for it.
const ROOMY: &str = "96m";
const ROOMY_RESERVE: &str = "24M";
/// Free space below that reserve, and below a quarter of that reserve.
const BELOW_RESERVE: u64 = 20 << 20;
const BELOW_FLOOR: u64 = 4 << 20;
/// A reserve larger than any disk.
const RESERVE_OF_ALL: &str = "1000000G";

/// Enqueues one task on every queue through a node, with retries.
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

/// Removes a stopped node by force and starts a new node in its place.
fn rebuild(nodes: &mut Nodes, place: usize, lost: u64, disk: Option<&'static str>) {
    nodes.give_up(0, lost);
    nodes.renew(place, disk);
    nodes.start(place);
    nodes.until_settled();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_damaged_log_ends_and_is_rebuilt_while_the_others_go_on() {
    let mut nodes = Nodes::form(NODES);
    write_everywhere(&nodes, 1, "well").await;

    let lost = nodes.number(2);
    nodes.stop(2);
    damage(&newest_log(&nodes, 2));
    nodes.start(2);
    let said = nodes.until_failed(2);
    assert!(said.contains("is damaged at byte"), "{said}");
    let how = format!(
        "`taskyard cluster remove {lost} --force` on another node, then start this node with a new"
    );
    assert!(said.contains(&how) && said.contains("--join"), "{said}");
    write_everywhere(&nodes, 1, "damaged").await;
    rebuild(&mut nodes, 2, lost, None);
    write_everywhere(&nodes, 2, "rebuilt").await;
}

/// Leaves `left` free bytes on the disk of a folder, in one step.
fn leave(folder: &Path, left: u64) {
    let filler = OpenOptions::new().create(true).append(true).open(folder.join("filler")).unwrap();
    let found = rustix::fs::statvfs(folder).unwrap();
    let held = filler.metadata().unwrap().len();
    let free = found.f_bavail * found.f_frsize;
    match free.checked_sub(left) {
        Some(more) => {
            rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), held, more)
                .unwrap();
        }
        None => filler.set_len(held.saturating_sub(left - free)).unwrap(),
    }
}

/// Regression test: a full disk once ended the node, and each restart too.
#[test]
fn a_node_whose_disk_is_full_stays_up_starts_again_and_follows_when_there_is_room() {
    let name = "cluster::disks::a_node_whose_disk_is_full_stays_up_starts_again_and_follows_when_there_is_room";
    with_namespaces(name, async {
        let mut nodes = Nodes::form_on_disks(Box::new(Namespaces::new()), NODES, ROOMY);
        nodes.stop(2);
        nodes.set_reserve(2, Some(ROOMY_RESERVE));
        nodes.start(2);
        nodes.until_settled();
        let data = nodes.nodes[2].data();
        let until_said = |nodes: &Nodes, words: &str, times: usize| {
            until(&format!("node 2 has said: {words}"), || nodes.nodes[2].said(words) >= times);
        };
        let (full, still) = ("takes nothing more into its log", "this node stands still");

        leave(&data, BELOW_FLOOR);
        until_said(&nodes, full, 1);
        for place in 0..nodes.len() {
            write_everywhere(&nodes, place, &format!("full-{place}")).await;
        }
        nodes.fill_disk(2);
        until_said(&nodes, still, 1);
        write_everywhere(&nodes, 0, "no-room-at-all").await;

        // A node that starts on a full disk waits instead of failing half-way.
        nodes.kill(2);
        nodes.start(2);
        until_said(&nodes, "this node starts as soon as", 1);
        write_everywhere(&nodes, 1, "waiting").await;
        leave(&data, BELOW_FLOOR);
        until_said(&nodes, full, 2);
        write_everywhere(&nodes, 1, "full-again").await;

        fs::remove_file(data.join("filler")).unwrap();
        nodes.until_settled();
        until_low(&nodes, 2, false);
        write_everywhere(&nodes, 2, "room-again").await;
        nodes.stop(2);
    });
}

/// Enqueues through a node until `is_over`. Returns whether the node refused any task with
/// `disk_full`.
async fn was_refused(url: String, is_over: Arc<AtomicBool>) -> bool {
    let node = Plain::to(&url);
    let mut refused = false;
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        let answer = node.enqueue(&queue(number % QUEUES), &format!("{url}-{number}")).await;
        refused |= answer == Answer::Refused("disk_full".into());
        number += 1;
    }
    refused
}

/// Whether a node is low on disk, and how many groups it leads, by the view of the first node.
fn low_and_leads(nodes: &Nodes, place: usize) -> Option<(bool, u64)> {
    let (view, url) = (nodes.nodes[0].view(), nodes.nodes[place].url());
    let is_it = |node: &&Value| node["address"].as_str().is_some_and(|at| url.ends_with(at));
    let found = view["nodes"].as_array()?.iter().find(is_it)?;
    let leads_control = view["control"]["leader"] == found["id"];
    Some((found["disk_low"].as_bool()?, found["leads"].as_u64()? + u64::from(leads_control)))
}

/// Waits until a node is low on disk and leads no group, or is not low and leads some.
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
    let is_over = Arc::new(AtomicBool::new(false));
    let clients = nodes.urls().into_iter().map(|url| was_refused(url, Arc::clone(&is_over)));
    let clients: Vec<_> = clients.map(tokio::spawn).collect();
    // One step from much room to below the reserve: no check of the disk sees a middle value.
    leave(&data, BELOW_RESERVE);
    until_low(&nodes, 2, true);
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(!client.await.unwrap(), "a task was refused though two disks had room");
    }
    for place in 0..nodes.len() {
        write_everywhere(&nodes, place, &format!("low-{place}")).await;
    }
    assert_eq!(low_and_leads(&nodes, 2), Some((true, 0)));
    fs::remove_file(data.join("filler")).unwrap();
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
            assert_eq!(answer, Answer::Refused("disk_full".into()), "queue {number}");
            // A request from before still gets the answer of its task.
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

/// The newest log file.
fn newest_log(nodes: &Nodes, place: usize) -> PathBuf {
    let files = fs::read_dir(nodes.nodes[place].data().join("log")).unwrap().flatten();
    let files = files.map(|file| file.path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|end| end == "raftlog");
    files.filter(is_log).max().unwrap()
}

/// Inverts byte 1000 of a file, well before the end of the file.
fn damage(file: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1_000).unwrap();
    file.write_all_at(&[!byte[0]], 1_000).unwrap();
}
