//! A cluster of three nodes in one process, called below its fronts.

use crate::{
    Clock, Config, Node,
    cluster::GroupStatus,
    shard::{ClaimRequest, Shards, inbox::Input},
};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use taskyard_machine::{
    Command, EncodedCommand, Enqueue, NewTask, Outcome, SessionId, ShardId, TaskStateName, ask,
};
use tokio::sync::oneshot;

const DEADLINE: Duration = Duration::from_secs(60);
const SHARD: ShardId = ShardId(0);
const GROUP: u64 = 1;

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "{what} did not happen within {DEADLINE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct TestNode {
    node: Node,
    _dir: tempfile::TempDir,
}

impl TestNode {
    async fn start(clock: &Clock, join: Option<&TestNode>) -> TestNode {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        config.clock = clock.clone();
        config.peer = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        (config.listen, config.shards, config.disk_reserve_bytes) = (None, Some(1), 0);
        if let Some(other) = join {
            config.join = vec![other.node.peer_address().unwrap().to_string()];
            config.shards = None;
        }
        TestNode { node: Node::start(config).await.unwrap(), _dir: dir }
    }

    fn shards(&self) -> Shards {
        self.node.shards()
    }

    /// The shard's status on this node.
    async fn status(&self) -> Option<GroupStatus> {
        let (answer, answered) = oneshot::channel();
        self.shards().push(Input::Groups(answer)).unwrap();
        answered.await.unwrap().into_iter().find(|status| status.group == GROUP)
    }
}

/// Three nodes with a voter each; the leader comes first.
async fn three(clock: &Clock) -> [TestNode; 3] {
    let first = TestNode::start(clock, None).await;
    eventually("it says where others reach it", async || {
        let control = first.shards().routes().control();
        control.nodes().values().any(|node| !node.address.is_empty()).then_some(())
    })
    .await;
    let second = TestNode::start(clock, Some(&first)).await;
    let third = TestNode::start(clock, Some(&first)).await;
    let mut nodes = [first, second, third];
    let leader = eventually("three voters and a leader", async || {
        for (position, node) in nodes.iter().enumerate() {
            if let Some(status) = node.status().await
                && status.serves
                && status.voters.len() == 3
                && status.outgoing.is_empty()
            {
                return Some(position);
            }
        }
        None
    })
    .await;
    nodes.swap(0, leader);
    nodes
}

/// The heir never takes over: the leader goes on, and must not have forgotten its own commands.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_is_ended_even_if_that_was_refused_during_a_transfer() {
    let clock = Clock::manual(1_700_000_000_000);
    let nodes = three(&clock).await;
    let shards = nodes[0].shards();
    let task = NewTask { task_type: "test", ..NewTask::default() };
    let enqueue = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "mail", task }));
    let Outcome::Enqueued(enqueued) = shards.propose(SHARD, enqueue, true).await.unwrap() else {
        panic!("another outcome");
    };
    let request = ClaimRequest {
        lease_ms: 86_400_000,
        session: Some(SessionId(7)),
        ..ClaimRequest::of_queue("mail", 1)
    };
    assert_eq!(shards.claim(SHARD, request, Duration::ZERO).await.unwrap().len(), 1);

    let other = nodes[1].shards();
    other.routes().set_stopping();
    let to = shards.routes().control().replica_on(GROUP, other.routes().me()).unwrap();
    let (answer, answered) = oneshot::channel();
    shards.push(Input::Transfer { group: GROUP, to, answer }).unwrap();
    answered.await.unwrap().unwrap();
    clock.advance(Duration::from_secs(16));

    let id = enqueued.id;
    eventually("its claim has ended", async || {
        let view = shards.ask(SHARD, ask::Task { task: id }).await.ok()??;
        if view.state == TaskStateName::Ready {
            return Some(());
        }
        // A new leader gives every session another fifteen seconds.
        clock.advance(Duration::from_millis(100));
        None
    })
    .await;
}
