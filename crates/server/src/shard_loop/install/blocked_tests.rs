//! Two real nodes. The second gets its shards by snapshots, on a disk whose switches are blocked.

use crate::{
    Config, Node,
    checkpoint::{Job, Store},
    clock,
    shard::{Shards, inbox::Input},
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};
use taskyard_machine::{Command, EncodedCommand, Enqueue, NewTask, ShardId, ask, home_shard};

const SHARDS: u16 = 8;
const TASKS: usize = 20;
const WAIT: Duration = Duration::from_secs(120);

async fn node(dir: &Path, change: impl FnOnce(&mut Config)) -> Node {
    let mut config = Config::new(dir);
    config.peer = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.listen = config.peer;
    (config.shards, config.disk_reserve_bytes) = (Some(SHARDS), 0);
    change(&mut config);
    Node::start(config).await.unwrap()
}

/// The name of a queue that hashes to the shard.
fn queue(shard: ShardId) -> String {
    let mut names = (0..).map(|number| format!("q{number}"));
    names.find(|name| home_shard(name, SHARDS) == shard).unwrap()
}

async fn enqueue(shards: &Shards, shard: ShardId) {
    let (queue, task) = (queue(shard), NewTask { task_type: "test", ..NewTask::default() });
    let command = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: &queue, task }));
    let enqueued = tokio::time::timeout(WAIT, shards.propose(shard, command, true)).await;
    enqueued.expect("the loop answers").unwrap();
}

/// The shards that a node leads.
async fn led(node: &Node) -> Vec<ShardId> {
    let status = tokio::time::timeout(WAIT, node.shards().status()).await;
    let status = status.expect("the loop answers").unwrap();
    status.iter().filter(|shard| shard.serves).map(|shard| shard.shard).collect()
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = clock::real_now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < WAIT, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Blocks switches to snapshots until it is dropped, also by a panic.
struct Shut(Arc<Store>);

impl Shut {
    fn new(store: &Arc<Store>) -> Shut {
        store.gate.shut();
        Shut(Arc::clone(store))
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.gate.open();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_serves_its_other_shards_while_the_switch_to_a_snapshot_waits_for_the_disk() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let first = node(dirs[0].path(), |_| ()).await;
    for shard in (0..SHARDS).map(ShardId) {
        for _ in 0..TASKS {
            enqueue(&first.shards(), shard).await;
        }
    }
    let join = vec![first.peer_address().unwrap().to_string()];
    let second = node(dirs[1].path(), |config| (config.join, config.shards) = (join, None)).await;
    until("the second node leads a shard", async || led(&second).await.first().copied()).await;

    let (tell, told) = mpsc::channel::<Arc<Store>>();
    let look = move |store: &Arc<Store>| tell.send(Arc::clone(store)).unwrap();
    second.shards().push(Input::Job(Job::Look(Box::new(look)))).unwrap();
    let store = told.recv_timeout(WAIT).unwrap();
    // From here on every switch to a snapshot is blocked.
    let shut = Shut::new(&store);
    let served = led(&second).await;
    let waiting = until("a switch waits for the disk", async || {
        let mut whole = store.whole_installs().into_iter();
        whole.find(|shard| !served.contains(shard)).filter(|_| store.gate.is_waited_at())
    })
    .await;

    // Many turns of the loop, each of which would block if the loop waited for the store.
    for _ in 0..50 {
        for shard in &served {
            enqueue(&second.shards(), *shard).await;
        }
        assert!(!led(&second).await.contains(&waiting));
    }
    drop((shut, store));
    until("the snapshot is taken", async || led(&second).await.contains(&waiting).then_some(()))
        .await;
    for shard in (0..SHARDS).map(ShardId) {
        let asked = ask::Queues { after: None, limit: 10 };
        let found = second.shards().ask(shard, asked).await.unwrap().queues;
        let more = if served.contains(&shard) { 50 } else { 0 };
        assert_eq!(
            found.iter().map(|queue| queue.counts.ready).sum::<u64>(),
            (TASKS + more) as u64
        );
    }
    second.stop().await;
    first.stop().await;
}
