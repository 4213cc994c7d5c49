//! Faults and bad requests in clusters: impossible requests are refused, and the other nodes go on.

use crate::common::{
    Broker, DEADLINE,
    cluster::{
        ANY_PORT, SHARDS, at, founder, joiner, joining, queues, three, three_with, transfer, voters,
    },
    copy_all,
    damage::{BODIES, damage_a_body, damage_one_body, payload},
    eventually, http,
};
use serde_json::Value;
use std::{
    ops::Range,
    time::{Duration, Instant},
};
use taskyard_machine::{RULES_CURRENT, RULES_CURRENT_AGAIN};
use taskyard_server::{Clock, Config, Node, limits};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const HOUR_MS: i64 = 3_600_000;
/// A delay of tasks, and the most that they may be late on a busy machine.
const DELAY: Duration = Duration::from_millis(100);
const LATE_MAX: Duration = Duration::from_secs(10);

async fn status(broker: &Broker) -> Value {
    http::get(broker.address, "/v1/cluster").await.ok()
}

/// Enqueues a task on each shard; all must accept it.
async fn enqueue_everywhere(broker: &Broker) {
    for queue in queues(broker) {
        enqueue(broker, &queue, Duration::ZERO).await;
    }
}

async fn enqueue(broker: &Broker, queue: &str, delay: Duration) -> Value {
    let delay_ms = delay.as_millis();
    let task = format!(r#"{{"type": "test", "delay_ms": {delay_ms}}}"#);
    let path = format!("/v1/queues/{queue}/tasks");
    let id = http::post(broker.address, &path, &task).await.ok()["id"].clone();
    http::get(broker.address, &format!("/v1/tasks/{}", id.as_str().unwrap())).await.ok()
}

/// The message to an operator whose request is refused.
async fn refused(broker: &Broker, path: &str, body: &str) -> String {
    let path = format!("/v1/cluster/{path}");
    let (status, code, detail) = http::post(broker.address, &path, body).await.problem();
    assert_eq!((status, code.as_str()), (409, "conflict"), "{detail}");
    detail
}

/// Configures a node that stays in the cluster of its directory.
fn again(config: &mut Config) {
    (config.peer, config.shards) = (Some(ANY_PORT), None);
}

async fn until_down(seen_by: &Broker, node: usize) {
    eventually("the others know that a node is down", async || {
        (status(seen_by).await["nodes"][node - 1]["state"] == "down").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_survive_scanners_an_impossible_drain_and_a_copied_directory() {
    let [one, two, three] = three().await;
    for node in [&one, &two] {
        let words = refused(node, "nodes/3/drain", "{}").await;
        let why = "node 3 can't be drained: without it 2 nodes are left in use, and each shard has 3 \
                   replicas; add a node first, or lower the replication";
        assert_eq!(words, why);
        let words = refused(node, "nodes/3/remove", "{}").await;
        assert!(words.contains("node 3 still holds a replica of"), "{words}");
        assert!(words.ends_with("; drain it first"), "{words}");
    }
    assert_eq!(status(&one).await["nodes"][2]["state"], "up");

    scan(&[&one, &two, &three]).await;
    enqueue_everywhere(&one).await;

    // A copy that starts beside its original is refused and ends, and no node takes it for the
    // original.
    let original = three.stop().await;
    let copied = tempfile::tempdir().unwrap();
    copy_all(original.path(), copied.path());
    let three = Broker::on(original, again).await;
    let at = three.node.peer_address().unwrap().to_string();
    let is_back = async |seen_by: &Broker| {
        let node = status(seen_by).await["nodes"][2].clone();
        node["state"] == "up" && node["peer_address"] == at
    };
    for node in [&one, &two] {
        eventually("the original is back", async || is_back(node).await.then_some(())).await;
    }
    let copy = Broker::on(copied, again).await;
    assert_eq!(copy.node.id(), 3);
    let why = until_ended(&copy, &three).await;
    let other = "node 3 was last started with another copy of this data directory (start 2 here, start 2 is known)";
    assert!(why.starts_with(other), "{why}");
    // With another start, the start count of the copy would equal that of the original. So the copy
    // refuses to start.
    let copied = copy.stop().await;
    let mut config = Config::new(copied.path());
    (config.peer, config.listen) = (Some(ANY_PORT), None);
    let refused = Node::start(config).await.expect_err("the copy must not start again").to_string();
    assert_eq!(refused, why);
    assert!(is_back(&one).await && is_back(&two).await);
}

/// Waits until a node ends, and returns its reason. Meanwhile the other nodes take tasks.
async fn until_ended(node: &Broker, works: &Broker) -> String {
    let mut failed = std::pin::pin!(node.node.failed());
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < DEADLINE, "the node goes on");
        enqueue_everywhere(works).await;
        if let Ok(why) = timeout(Duration::from_millis(100), &mut failed).await {
            return why.to_string();
        }
    }
}

/// The copy lacks the later acknowledgements and votes of its node.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_a_node_that_is_down_is_turned_away() {
    let [one, two, three] = three().await;
    let mut original = three.stop().await;
    let older = tempfile::tempdir().unwrap();
    copy_all(original.path(), older.path());
    for _ in 0..2 {
        let three = Broker::on(original, again).await;
        until_back(&one, &three).await;
        enqueue_everywhere(&three).await;
        original = three.stop().await;
        until_down(&one, 3).await;
    }
    // Node 2 saw the last start of node 3 and restarts. The control group also knows that start.
    // Node 2 keeps its address, because with node 3 down no node can learn a new one.
    let at = two.node.peer_address();
    let two =
        Broker::on(two.stop().await, |config| (config.peer, config.shards) = (at, None)).await;
    until_back(&one, &two).await;
    eventually("node 2 is ready", async || {
        (http::get(two.address, "/readyz").await.status == 200).then_some(())
    })
    .await;
    let copy = Broker::on(older, again).await;
    let why = until_ended(&copy, &two).await;
    let words = "this data directory is older than the one that node 3 was last started with (start 2 here, \
                 start 3 is known): ";
    assert!(why.starts_with(words), "{why}");
    assert!(
        why.contains("`taskyard cluster remove 3 --force`, then start it with a new data"),
        "{why}"
    );
    drop(copy);
    let three = Broker::on(original, again).await;
    until_back(&one, &three).await;
}

/// Waits until the others know the address of a node that has started again.
async fn until_back(seen_by: &Broker, node: &Broker) {
    let at = node.node.peer_address().unwrap().to_string();
    eventually("the node is back", async || {
        let status = status(seen_by).await;
        let found =
            status["nodes"].as_array().unwrap().iter().find(|found| found["id"] == node.node.id());
        let found = found?;
        (found["state"] == "up" && found["peer_address"] == at).then_some(())
    })
    .await;
}

/// Sends what scanners send to the peer ports, and frames over the limit: each connection is
/// closed.
async fn scan(nodes: &[&Broker]) {
    let frame = |length: u32| [&b"TASKYARD-PEER 1\n"[..], &length.to_le_bytes()].concat();
    let noise: Vec<u8> = (0..100_000_u32).map(|number| ((number * 7_919) >> 3) as u8).collect();
    let sent = [
        b"GET / HTTP/1.1\r\nhost: here\r\n\r\n".to_vec(),
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
        noise,
        frame(limits::PEER_HANDSHAKE_BYTES_MAX as u32 + 1),
        frame(limits::PEER_FRAME_BYTES_MAX as u32 + 1),
        frame(u32::MAX),
    ];
    for node in nodes {
        for bytes in &sent {
            let mut socket = TcpStream::connect(node.node.peer_address().unwrap()).await.unwrap();
            // The connection may close before everything is written.
            let _ = socket.write_all(bytes).await;
            let mut said = Vec::new();
            let ended = timeout(DEADLINE, socket.read_to_end(&mut said)).await;
            assert!(ended.is_ok(), "it does not hang up on {:?}", &bytes[..8]);
            assert_eq!(said, b"", "a stranger must get no answer");
        }
        enqueue_everywhere(node).await;
    }
}

/// The leaders in turn have clocks that are an hour behind, right, and an hour ahead.
#[tokio::test(flavor = "multi_thread")]
async fn shard_time_goes_on_with_clocks_an_hour_apart() {
    let off_by = |number: u64| Clock::system_off_by((number as i64 - 2) * HOUR_MS);
    let nodes = three_with(|number, config| config.clock = off_by(number)).await;
    let queue = &queues(&nodes[0])[0];
    let mut enqueued_at = String::new();
    for (turn, leader) in [1, 2, 3, 1, 2, 1, 3].into_iter().enumerate() {
        transfer(&nodes[1], 0, leader).await;
        let asked = Instant::now();
        let task = enqueue(&nodes[turn % 3], queue, DELAY).await;
        let now = task["enqueued_at"].as_str().unwrap().to_owned();
        assert!(now > enqueued_at, "{now} under node {leader} comes after {enqueued_at}");
        enqueued_at = now;
        // If time stood still, a task that is due in a moment would be due in an hour or two.
        let claim = format!(r#"{{"queues": ["{queue}"], "wait_ms": {}}}"#, LATE_MAX.as_millis());
        let claimed = http::post(nodes[0].address, "/v1/claims", &claim).await.ok();
        assert_eq!(claimed["tasks"][0]["id"], task["id"], "under node {leader}");
        let took = asked.elapsed();
        assert!((DELAY..LATE_MAX).contains(&took), "{took:?} under node {leader}");
    }
}

/// Node 3 has a clock that is an hour ahead, and so is the time of the shard that it leads.
#[tokio::test(flavor = "multi_thread")]
async fn no_run_and_no_delay_depends_on_the_clock_of_the_node_that_is_asked() {
    let ahead = |number: u64| Clock::system_off_by(if number == 3 { HOUR_MS } else { 0 });
    let nodes = three_with(|number, config| config.clock = ahead(number)).await;
    let queues = queues(&nodes[0]);
    let at = nodes[2].address;
    let (right, hasty) = (&queues[0], &queues[2]);
    let enqueued_at = async |queue: &str| {
        let task = enqueue(&nodes[0], queue, Duration::from_secs(60)).await;
        task["enqueued_at"].as_str().unwrap().to_owned()
    };
    assert!(enqueued_at(right).await < enqueued_at(hasty).await, "shard 2 is ahead");

    // A schedule is at home on the shard of a queue of its name: here shard 0, whose time is right.
    let path = format!("/v1/schedules/{right}");
    let set = async |every_ms: u64| {
        let rules = format!(
            r#"{{"every_ms": {every_ms}, "queue": "runs", "overlap": "allow", "task": {{"type": "run"}}}}"#
        );
        http::put(at, &path, &rules).await.ok()
    };
    let fires = async |what: &str| {
        let fired = async || http::get(at, &path).await.ok()["fired_total"].as_u64().unwrap();
        let before = fired().await;
        eventually(what, async || (fired().await >= before + 2).then_some(())).await;
    };
    set(1_000).await;
    fires("a new schedule fires").await;
    set(1_500).await;
    fires("a schedule with new rules fires").await;
    http::post(at, &format!("{path}/pause"), "{}").await.ok();
    http::post(at, &format!("{path}/resume"), "{}").await.ok();
    fires("a schedule that goes on after a pause fires").await;
    let seen = http::get(at, &path).await.ok();
    assert_eq!(seen["missed_total"], 0, "{seen}");

    // A follow-up of a task here starts at once on that shard, and a delay there is as long as
    // requested.
    for (from, to) in [(hasty, right), (right, hasty)] {
        for delay in [Duration::ZERO, DELAY] {
            let task = enqueue(&nodes[0], from, Duration::ZERO).await;
            let claim = |queue: &str| {
                let wait_ms = LATE_MAX.as_millis();
                let claim = format!(r#"{{"queues": ["{queue}"], "wait_ms": {wait_ms}}}"#);
                async move { http::post(at, "/v1/claims", &claim).await.ok()["tasks"][0].clone() }
            };
            let held = claim(from).await;
            assert_eq!(held["id"], task["id"]);
            let delay_ms = delay.as_millis();
            let ack = format!(
                r#"{{"claim_token": {}, "enqueue": [{{"queue": "{to}", "type": "next", "delay_ms": {delay_ms}}}]}}"#,
                held["claim_token"]
            );
            let asked = Instant::now();
            let path = format!("/v1/tasks/{}/ack", held["id"].as_str().unwrap());
            let acked = http::post(at, &path, &ack).await.ok();
            let followed = claim(to).await;
            assert_eq!(followed["id"], acked["enqueued"][0], "from {from} to {to} after {delay:?}");
            assert!(asked.elapsed() >= delay);
            let done = format!(r#"{{"claim_token": {}}}"#, followed["claim_token"]);
            let path = format!("/v1/tasks/{}/ack", followed["id"].as_str().unwrap());
            http::post(at, &path, &done).await.ok();
        }
    }
}

/// Enqueues bodies with these numbers, and returns the ids of their tasks.
async fn enqueue_bodies(broker: &Broker, queue: &str, numbers: Range<usize>) -> Vec<String> {
    let mut ids = Vec::new();
    for number in numbers {
        let task = format!(r#"{{"type": "test", "payload": "{}"}}"#, payload(number));
        let path = format!("/v1/queues/{queue}/tasks");
        let enqueued = http::post(broker.address, &path, &task).await.ok();
        ids.push(enqueued["id"].as_str().unwrap().to_owned());
    }
    ids
}

/// Claims some of these tasks, checks their payloads, and returns their numbers.
async fn claim_bodies(broker: &Broker, queue: &str, ids: &[String], wait_ms: u64) -> Vec<usize> {
    let claim = format!(
        r#"{{"queues": ["{queue}"], "max": 7, "wait_ms": {wait_ms}, "lease_ms": 3600000}}"#
    );
    let tasks = http::post(broker.address, "/v1/claims", &claim).await.ok();
    let mut claimed = Vec::new();
    for task in tasks["tasks"].as_array().unwrap() {
        let number = ids.iter().position(|id| *id == task["id"]).unwrap();
        assert_eq!(task["payload"], payload(number), "{number}");
        claimed.push(number);
    }
    claimed
}

/// The leader's disk has a bad block under a body; the other replicas have the body.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_one_disk_can_not_give_comes_from_another_replica() {
    let [one, two, _three] = three().await;
    let queue = &queues(&two)[0];
    let ids = enqueue_bodies(&two, queue, 0..BODIES).await;
    let directory = one.stop().await;
    let damaged = damage_a_body(directory.path());
    let one = Broker::on(directory, again).await;
    eventually("node 1 is back", async || {
        (status(&two).await["nodes"][0]["state"] == "up").then_some(())
    })
    .await;
    transfer(&two, 0, 1).await;
    let mut claimed = Vec::new();
    while claimed.len() < BODIES {
        claimed.extend(claim_bodies(&two, queue, &ids, 20_000).await);
    }
    assert!(claimed.contains(&damaged));
    assert_eq!(status(&two).await["shards"][0]["leader"], 1, "it leads all the while");
    drop(one);
}

/// Two of three disks have lost a body, and the node with the third is down. The task must wait for
/// that node and must not become a dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_only_a_node_that_is_down_can_give_waits_for_the_node() {
    let nodes = three().await;
    let [queue, other, ..] = &queues(&nodes[0])[..] else { panic!("there are four shards") };
    let ids = enqueue_bodies(&nodes[0], queue, 0..BODIES).await;
    // Enqueue twice as much on another shard, so that the store writes the first bodies to tables.
    enqueue_bodies(&nodes[0], other, 1_000..1_000 + 2 * BODIES).await;
    let [one, two, three] = nodes;
    let places = [&one, &two, &three].map(|node| node.node.peer_address().unwrap());
    let [one, two, three] = [one.stop().await, two.stop().await, three.stop().await];
    let dirs = [one.path(), two.path()];
    let damaged = eventually("a body stands in tables", async || damage_one_body(&dirs)).await;
    let (one, _two) = tokio::join!(Broker::on(one, at(places[0])), Broker::on(two, at(places[1])));
    let counts = async || {
        let answer = http::get(one.address, &format!("/v1/queues/{queue}")).await;
        (answer.status == 200).then(|| answer.json())
    };
    eventually("the shard has a leader", counts).await;
    let mut claimed = Vec::new();
    while claimed.len() < BODIES - 1 {
        claimed.extend(claim_bodies(&one, queue, &ids, 20_000).await);
    }
    assert!(!claimed.contains(&damaged));
    let waits = eventually("the task is put off", async || {
        assert!(claim_bodies(&one, queue, &ids, 0).await.is_empty());
        counts().await.filter(|counts| counts["scheduled"] == 1)
    });
    let counts = waits.await;
    assert_eq!(counts["claimed"], BODIES - 1, "{counts}");
    assert_eq!(counts["dead"], 0, "{counts}");
    let _three = Broker::on(three, at(places[2])).await;
    let last = eventually("the task is handed out", async || {
        claim_bodies(&one, queue, &ids, 20_000).await.pop()
    });
    assert_eq!(last.await, damaged);
}

/// A drain could never end if no node can take the replicas.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_counts_only_nodes_that_can_take_its_replicas() {
    let [one, two, _three] = three().await;
    let four = joiner(&one, |_| ()).await;
    eventually("the fourth node is up", async || {
        (status(&one).await["nodes"][3]["state"] == "up").then_some(())
    })
    .await;
    let directory = four.stop().await;
    until_down(&one, 4).await;
    for node in [&one, &two] {
        let words = refused(node, "nodes/3/drain", "{}").await;
        let why = "node 3 can't be drained: node 4 is down, so 2 nodes are left that could take what it \
                   holds, and each shard has 3 replicas; start node 4 again, give it up with `taskyard \
                   cluster remove 4 --force`, or add a node first";
        assert_eq!(words, why);
    }
    assert_eq!(status(&one).await["nodes"][2]["state"], "up", "nothing was begun");
    // The node that is down can be drained, because the others have its shards.
    for done in ["drain", "undrain"] {
        let path = format!("/v1/cluster/nodes/4/{done}");
        assert_eq!(http::post(one.address, &path, "{}").await.status, 204, "{done}");
    }
    let _four = Broker::on(directory, again).await;
    eventually("four nodes are up and the drain is possible", async || {
        let drained = http::post(one.address, "/v1/cluster/nodes/3/drain", "{}").await;
        (drained.status == 204).then_some(())
    })
    .await;
    let lone = founder(|_| ()).await;
    let words = refused(&lone, "nodes/1/drain", "{}").await;
    assert_eq!(words, "node 1 can't be drained: it is the only node in use; add a node first");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_replica_of_a_shard_is_not_given_up() {
    let one = founder(|_| ()).await;
    let two = joiner(&one, |_| ()).await;
    // With two nodes each shard has one replica, on either.
    let alone = eventually("node 2 alone holds a shard", async || {
        let shards = status(&one).await["shards"].clone();
        let is_alone = |shard: &&Value| {
            let replicas = shard["replicas"].as_array().unwrap();
            replicas.len() == 1 && replicas[0]["node"] == 2 && shard["moving_to"].is_null()
        };
        shards.as_array().unwrap().iter().position(|shard| is_alone(&shard))
    })
    .await;
    assert!(alone < SHARDS);
    let directory = two.stop().await;
    until_down(&one, 2).await;
    let words = refused(&one, "nodes/2/remove", r#"{"force": true}"#).await;
    assert!(words.contains("node 2 holds the last replica of shard "), "{words}");
    assert!(words.contains("start it again, or restore a backup"), "{words}");
    // The refused removal changed nothing: the node comes back with all its shards.
    let two = Broker::on(directory, again).await;
    eventually("all shards have a leader again", async || {
        (http::get(two.address, "/readyz").await.status == 200).then_some(())
    })
    .await;
    enqueue_everywhere(&one).await;
}

/// One build plays two versions here; the newer version knows newer rules.
#[tokio::test(flavor = "multi_thread")]
async fn the_rules_advance_once_all_nodes_know_them_and_older_nodes_are_then_refused() {
    let older = |config: &mut Config| config.rules_max = RULES_CURRENT;
    let newer = |config: &mut Config| config.rules_max = RULES_CURRENT_AGAIN;
    let restart = async |node: Broker, seen_by: &Broker, change: fn(&mut Config)| {
        let number = node.node.id() as usize;
        let directory = node.stop().await;
        until_down(seen_by, number).await;
        let node = Broker::on(directory, |config| {
            again(config);
            change(config);
        })
        .await;
        until_back(seen_by, &node).await;
        eventually("it is ready", async || {
            (http::get(node.address, "/readyz").await.status == 200).then_some(())
        })
        .await;
        node
    };
    let [one, two, three] = three_with(|_, config| older(config)).await;
    let three = restart(three, &one, newer).await;
    let two = restart(two, &one, newer).await;
    let known = async |seen_by: &Broker| -> Vec<Value> {
        let nodes = status(seen_by).await["nodes"].as_array().unwrap().clone();
        nodes.into_iter().map(|node| node["rules_max"].clone()).collect()
    };
    assert_eq!(known(&one).await, [RULES_CURRENT, RULES_CURRENT_AGAIN, RULES_CURRENT_AGAIN]);
    // The planner checks all nodes many times before it has moved all shards.
    for factor in [1, 3] {
        let body = format!("{{\"factor\": {factor}}}");
        let set = http::post(one.address, "/v1/cluster/replication", &body).await;
        assert_eq!(set.status, 204);
        eventually("all shards have as many voters", async || {
            voters(&one).await?.iter().all(|nodes| nodes.len() == factor).then_some(())
        })
        .await;
    }
    for node in [&one, &two, &three] {
        assert_eq!(status(node).await["rules"], RULES_CURRENT, "node 1 knows no newer ones");
    }
    enqueue_everywhere(&three).await;

    let one = restart(one, &two, newer).await;
    for node in [&one, &two, &three] {
        eventually("the rules have risen", async || {
            (status(node).await["rules"] == RULES_CURRENT_AGAIN).then_some(())
        })
        .await;
        enqueue_everywhere(node).await;
    }
    let words =
        format!("knows rules up to {RULES_CURRENT}, the cluster runs on {RULES_CURRENT_AGAIN}; ");
    // The older version is started again on data that it can't use.
    let directory = three.stop().await;
    until_down(&one, 3).await;
    let three = Broker::on(directory, |config| {
        again(config);
        older(config);
    })
    .await;
    let why = until_ended(&three, &one).await;
    let expected = format!("node 3 {words}start it with the version of the others");
    assert_eq!(why, expected);
    let directory = three.stop().await;
    let three = Broker::on(directory, |config| {
        again(config);
        newer(config);
    })
    .await;
    until_back(&one, &three).await;
    // The older version can't join as a new node either.
    let empty = tempfile::tempdir().unwrap();
    let mut config = Config::new(empty.path());
    joining(&one, &mut config);
    (config.listen, config.disk_reserve_bytes) = (None, 0);
    older(&mut config);
    let refused = Node::start(config).await.unwrap_err().to_string();
    assert!(refused.ends_with(&format!("this node {words}upgrade it")), "{refused}");
}
