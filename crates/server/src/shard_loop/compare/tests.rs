//! Three nodes on real disks and sockets. One node's checkpoint was changed while it was down, with
//! all checksums right.

use super::*;
use crate::{
    Clock, Config, Error, Node,
    checkpoint::{Change, Store},
    clock::real_now,
    log::group_of,
    shard::{Shards, comparison::COMPARE_AFTER},
};
use std::{net::SocketAddr, path::Path, time::Duration};
use taskyard_machine::{
    Enqueue, Entry, Identity, Machine, NewTask, NoPayloads, Outcome, QueueSettings, RULES_CURRENT,
    SetQueue, ShardId,
};
use tokio::time::timeout;

const SHARD: ShardId = ShardId(0);
const WAIT: Duration = Duration::from_secs(60);
const START_MS: u64 = 1_800_000_000_000;

async fn start(dir: &Path, clock: &Clock, join: Option<&Node>) -> Node {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut config = Config::new(dir);
    (config.listen, config.peer) = (None, Some(any_port));
    (config.disk_reserve_bytes, config.clock) = (0, clock.clone());
    config.shards = join.is_none().then_some(1);
    config.join = join.map(|node| node.peer_address().unwrap().to_string()).into_iter().collect();
    Node::start(config).await.unwrap()
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = real_now() + WAIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(real_now() < until, "{what} did not happen within {WAIT:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn enqueue(shards: &Shards) -> Result<Outcome, Error> {
    let task = NewTask { task_type: "test", request_id: Some("same"), ..NewTask::default() };
    let command = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "mail", task }));
    shards.propose(SHARD, command, true).await
}

/// Waits until the shard has three voters and this node knows whether it leads.
async fn until_one_of_three(node: &Node, leads: bool) {
    eventually("the shard has three voters", async || {
        let groups = node.shards().groups().await.ok()?;
        let group = groups.into_iter().find(|group| group.group == group_of(SHARD))?;
        let is_calm = group.voters.len() == 3 && group.outgoing.is_empty();
        (is_calm && group.serves == leads && group.leader.is_some()).then_some(())
    })
    .await;
}

/// Hands leadership of the shard to this node.
async fn lead(node: &Node, others: [&Node; 2]) {
    let to = node.shards().groups().await.unwrap();
    let to = to.iter().find(|group| group.group == group_of(SHARD)).unwrap().replica;
    eventually("it leads", async || {
        for other in others {
            // Only the leader can hand over.
            let _ = other.shards().transfer(group_of(SHARD), to).await;
        }
        let status = node.shards().status().await.ok()?;
        status.iter().any(|status| status.serves).then_some(())
    })
    .await;
}

/// Applies one entry to a node's stored state of the shard, and to no other node's.
fn lead_astray(dir: &Path, incarnation: u32) {
    let store = Store::open(&dir.join("state")).unwrap();
    let view = store.view();
    let cut = view.cut(SHARD).unwrap().expect("a stop takes a checkpoint");
    let identity = Identity { incarnation, shard: SHARD, shards: 1 };
    let mut machine = Machine::load(identity, view.records(SHARD).map(Result::unwrap)).unwrap();
    let set = SetQueue { queue: "nobody-uses-it", settings: QueueSettings::default() };
    let commands = vec![Command::SetQueue(set)];
    let entry = Entry { rules: RULES_CURRENT, now: machine.now(), commands };
    machine.apply(&entry, &mut NoPayloads, &mut Vec::new());
    let records = machine.records().into_iter();
    let changes = records.map(|(key, value)| Change::Record(key, Some(value))).collect();
    store.write(SHARD, &cut, changes).unwrap();
}

/// The third node's state differs, leading or not: it stops with a clear error, and the others go
/// on.
async fn check(astray_leads: bool) {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let clock = Clock::manual(START_MS);
    let first = start(dirs[0].path(), &clock, None).await;
    let second = start(dirs[1].path(), &clock, Some(&first)).await;
    let third = start(dirs[2].path(), &clock, Some(&first)).await;
    for node in [&second, &third] {
        eventually("a node has a replica", async || {
            let groups = node.shards().groups().await.ok()?;
            groups.iter().any(|group| group.group == group_of(SHARD)).then_some(())
        })
        .await;
    }
    lead(&first, [&second, &third]).await;
    until_one_of_three(&first, true).await;
    enqueue(&first.shards()).await.unwrap();
    until_one_of_three(&third, false).await;
    let number = third.id();
    let Outcome::Enqueued(enqueued) = enqueue(&third.shards()).await.unwrap() else {
        panic!("it was enqueued")
    };
    third.stop().await;
    lead_astray(dirs[2].path(), enqueued.id.incarnation);

    let third = start(dirs[2].path(), &clock, None).await;
    until_one_of_three(&third, false).await;
    if astray_leads {
        lead(&third, [&first, &second]).await;
    }
    // The leader must look at the clock before the clock moves on.
    enqueue(&first.shards()).await.unwrap();
    clock.advance(COMPARE_AFTER);
    let why = timeout(WAIT, third.failed()).await.expect("it stops").to_string();
    for words in [
        "the state of shard 0 on this node is wrong: at mark ",
        "a majority, replicas [1, 2], had ",
        &format!("`taskyard cluster remove {number} --force`"),
    ] {
        assert!(why.contains(words), "{words:?} is not in: {why}");
    }
    drop(third);
    for node in [&first, &second] {
        eventually("the others go on", async || enqueue(&node.shards()).await.ok()).await;
    }
    clock.advance(COMPARE_AFTER);
    eventually("the others go on", async || enqueue(&first.shards()).await.ok()).await;
    let failed = async {
        tokio::select! {
            why = first.failed() => why,
            why = second.failed() => why,
        }
    };
    let failed = timeout(Duration::ZERO, failed).await;
    assert!(failed.is_err(), "a node stopped that is right: {failed:?}");
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_went_astray_stops_and_the_others_go_on() {
    check(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_went_astray_stops_and_the_others_go_on() {
    check(true).await;
}
