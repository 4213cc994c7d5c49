//! A node lacks gigabytes that the logs of its leaders no longer have. It gets its shards by
//! snapshots while writes go on. The test kills the node half-way, checks that the transfer
//! resumes, and prints the time and the memory. It runs only on demand.

use crate::cluster::{
    history::History,
    load::{QUEUES, queue},
    nodes::{NODES, Nodes},
    outage::Writers,
    proxy::Proxies,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use taskyard::{Client, TaskDetails};
use tokio::task::JoinSet;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// The size of each payload.
const PAYLOAD_BYTES: usize = 128 << 10;
/// Concurrent producers.
const PRODUCERS: usize = 16;
/// Far less memory than the written bytes, so that payloads must go to the disk.
const MEMORY: &[&str] = &["--memory-max", "512M"];
/// The limit of a node's peak memory: its budget, buffers and the caches of the log and the store.
const MEMORY_BYTES_MAX: u64 = 2 * GIB;
/// Free disk bytes that the test needs for each written byte: three nodes, each with a log and two
/// copies of the state.
const DISK_FACTOR: u64 = 12;
/// Longer than the whole catch-up takes.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// The longest pause of writes that the test accepts, while leaders also send snapshots.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A part of the log line for each installed snapshot.
const INSTALLED: &str = "by a snapshot";
/// The node that is behind.
const BEHIND: usize = 2;

/// Random letters from a seed, which compress badly.
fn payload(seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let letter = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'a' + (state >> 40) as u8 % 26)
    };
    (0..PAYLOAD_BYTES).map(letter).collect()
}

/// Enqueues `tasks` tasks over all queues. Returns a sample of them: their ids and payload seeds.
async fn fill(client: &Client, tasks: u64) -> Vec<(String, u64)> {
    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS as u64 {
        let client = client.clone();
        producers.spawn(async move {
            let mut samples = Vec::new();
            for seed in (producer..tasks).step_by(PRODUCERS) {
                let payload = payload(seed);
                let id = loop {
                    let to = queue(seed as usize % QUEUES);
                    let name = format!("fill-{seed}");
                    let task = client.task("fill", &payload).queue(to).request_id(name);
                    match task.await {
                        Ok(task) => break task.id().to_string(),
                        // The memory of the broker is full until the next checkpoint.
                        Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    }
                };
                if seed % 97 == 0 {
                    samples.push((id, seed));
                }
            }
            samples
        });
    }
    producers.join_all().await.into_iter().flatten().collect()
}

/// The received bytes of each shard's snapshot, by the view of the first node, and whether the node
/// has caught up.
fn arrived(nodes: &Nodes, number: u64) -> (BTreeMap<u64, u64>, bool) {
    let view = nodes.nodes[0].view();
    let mut bytes = BTreeMap::new();
    let mut is_done = view["shards"].is_array();
    for shard in view["shards"].as_array().into_iter().flatten() {
        let replicas = shard["replicas"].as_array().unwrap();
        let Some(replica) = replicas.iter().find(|replica| replica["node"] == number) else {
            is_done = false;
            continue;
        };
        if let Some(installing) = replica["installing_bytes"].as_u64() {
            bytes.insert(shard["id"].as_u64().unwrap(), installing);
            is_done = false;
        }
        is_done &= is_near(replica);
    }
    (bytes, is_done)
}

/// Whether a voter lags its leader by only a few entries.
fn is_near(replica: &Value) -> bool {
    replica["role"] == "voter" && replica["lag"].as_u64().is_some_and(|lag| lag < 200)
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn mib(bytes: u64) -> u64 {
    bytes / MIB
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it writes gigabytes: SNAPSHOT_GIB=2 cargo nextest run -p taskyard-cli --test cli cluster::snapshot:: \
            --run-ignored only --no-capture"]
async fn a_node_that_is_gigabytes_behind_catches_up_and_goes_on_where_it_was_killed() {
    let gib: f64 = std::env::var("SNAPSHOT_GIB").map_or(1.0, |value| value.parse().unwrap());
    let total = (gib * GIB as f64) as u64;
    let disk = rustix::fs::statvfs(std::env::temp_dir()).unwrap();
    let free = disk.f_bavail * disk.f_frsize;
    assert!(free > total * DISK_FACTOR, "only {} MiB of disk are free", mib(free));
    let mut nodes = Nodes::form_with(Box::new(Proxies::new()), NODES, MEMORY);
    let number = nodes.number(BEHIND);
    nodes.kill(BEHIND);

    let urls = nodes.urls()[..BEHIND].to_vec();
    let client = Client::builder(urls.clone()).timeout(Duration::from_secs(120)).build().unwrap();
    let (begun, tasks) = (Instant::now(), total / PAYLOAD_BYTES as u64);
    let samples = fill(&client, tasks).await;
    let took = begun.elapsed();
    println!("{tasks} tasks, {} MiB, were written in {took:.1?}", mib(total));
    let filled: Vec<u64> = (0..BEHIND).map(|at| nodes.nodes[at].memory_peak_bytes()).collect();

    let before = nodes.nodes[BEHIND].has_said(INSTALLED);
    let history = History::begin();
    let writers = Writers::start("meanwhile", &urls, &history).await;
    let begun = Instant::now();
    nodes.start(BEHIND);
    let (at_kill, killed_after) = loop {
        let (bytes, _) = arrived(&nodes, number);
        if bytes.values().sum::<u64>() >= total / 4 {
            break (bytes, begun.elapsed());
        }
        assert!(begun.elapsed() < PATIENCE, "too few snapshot bytes arrived: {bytes:?}");
        pause().await;
    };
    let mut peak = nodes.nodes[BEHIND].memory_peak_bytes();
    nodes.kill(BEHIND);
    println!("the node was killed after {killed_after:.1?}; bytes of each shard: {at_kill:?}");
    nodes.start(BEHIND);

    // The first byte count of each shard after the restart.
    let mut resumed: BTreeMap<u64, u64> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    loop {
        let (bytes, is_done) = arrived(&nodes, number);
        for (shard, bytes) in bytes.into_iter().filter(|(_, bytes)| *bytes > 0) {
            resumed.entry(shard).or_insert(bytes);
            last.insert(shard, bytes);
        }
        peak = peak.max(nodes.nodes[BEHIND].memory_peak_bytes());
        if is_done {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the node does not catch up: {last:?}");
        pause().await;
    }
    let took = begun.elapsed();
    println!("the node resumed at {resumed:?} and caught up {took:.1?} after its first start");
    println!("the last byte count of each shard: {last:?}");
    let installed = nodes.nodes[BEHIND].has_said(INSTALLED) - before;
    let pause = writers.outage_at(begun).await.into_iter().max().unwrap();
    let peaks: Vec<u64> = (0..BEHIND).map(|at| nodes.nodes[at].memory_peak_bytes()).collect();
    println!("{installed} snapshots were installed; the longest pause of a writer: {pause:.1?}");
    println!(
        "memory at most, in MiB: {} of the node that was behind, {:?} of the others, {:?} before",
        mib(peak),
        peaks.iter().copied().map(mib).collect::<Vec<_>>(),
        filled.into_iter().map(mib).collect::<Vec<_>>(),
    );
    assert!(installed > 0, "the node caught up from the log, without a snapshot");
    for (shard, before) in &at_kill {
        let after = resumed.get(shard);
        assert!(
            after.is_none_or(|after| after >= before),
            "the snapshot of shard {shard} restarted: {after:?}"
        );
    }
    assert!(pause < PAUSE_MAX, "writes stood still for {pause:?}");
    assert!(peak.max(peaks[0]).max(peaks[1]) < MEMORY_BYTES_MAX);

    // The node that caught up must have the payloads that were written.
    nodes.lead(BEHIND);
    let client = Client::builder([nodes.nodes[BEHIND].url()]).build().unwrap();
    for (id, seed) in samples {
        let task: TaskDetails = client.get(id.as_str()).await.unwrap();
        let found: String = serde_json::from_slice(task.payload.as_deref().unwrap()).unwrap();
        assert!(found == payload(seed), "task {id} has another payload");
    }
}
