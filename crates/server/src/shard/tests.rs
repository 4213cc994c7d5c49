//! Calls to other nodes. Each node here is a whole cluster of its own, and the first node's routes
//! name the others as leaders, so that they must serve its calls. A test can bend their answers.

mod claims;
mod hearing;
mod proposals;
mod routes;
mod sessions;

use super::{route, *};
use crate::{
    Broker, Clock, Config,
    broker::ClaimAsked,
    cluster::{ClusterHandler, call_kind},
    limits,
    peer::{
        PeerConfig, PeerHandler, PeerHello,
        tests::proxy::{self, Proxy},
    },
};
use futures_util::future::BoxFuture;
use remote::{ShardCall, ShardReply};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};
use taskyard_machine::{
    Ack, Body, Cancel, Command, Enqueue, EnqueueMany, Enqueued, NewTask, QueueSettings, Release,
    SetQueue, TaskStateName,
};
use taskyard_replica::{
    Control, ControlCommand, Node as ClusterNode, NodeId, Placement, StateMachine,
};
use tokio::{net::TcpListener, sync::watch, time::timeout};

const CLUSTER: u128 = 0xc1;
const SHARDS: u16 = 4;
const WAIT: Duration = Duration::from_secs(60);

/// What a node does with the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bent {
    /// Answers "not the leader".
    Refuses(Option<NodeId>),
    /// Does the call, and its answer is lost.
    Loses,
    /// Does the call and answers.
    Serves,
    /// Does nothing and never answers.
    Hangs,
    /// Refuses commands, because it has no room.
    IsFull,
    /// Does the call once a second such call has come.
    Meets,
}

/// A node, and a record of its calls.
struct TestNode {
    number: NodeId,
    engine: Option<Engine>,
    shards: Shards,
    network: PeerNetwork,
    address: String,
    line: Arc<Line>,
    _dir: tempfile::TempDir,
}

#[derive(Default)]
struct Line {
    calls: Mutex<Vec<ShardCall>>,
    news: Mutex<Vec<SessionNews>>,
    bent: Mutex<VecDeque<Bent>>,
    met: watch::Sender<u64>,
    changed: watch::Sender<u64>,
}

struct BentHandler {
    inner: ClusterHandler,
    line: Arc<Line>,
}

impl PeerHandler for BentHandler {
    fn raft(&self, _: NodeId, _: u64, _: Bytes) {}

    fn told(&self, from: NodeId, message: Bytes) {
        let news = SessionNews::decode(&message).unwrap();
        self.inner.told(from, message);
        self.line.news.lock().unwrap().push(news);
        self.line.changed.send_modify(|count| *count += 1);
    }

    fn call(&self, from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        assert_eq!(request[0], call_kind::SHARD);
        let call = ShardCall::decode(&request[1..]).unwrap();
        self.line.calls.lock().unwrap().push(call.clone());
        self.line.changed.send_modify(|count| *count += 1);
        let bent = self.line.bent.lock().unwrap().pop_front();
        let served = self.inner.call(from, request);
        let line = Arc::clone(&self.line);
        Box::pin(async move {
            match bent {
                Some(Bent::Meets) => {
                    line.met.send_modify(|met| *met += 1);
                    line.met.subscribe().wait_for(|met| *met == 2).await.unwrap();
                    served.await
                }
                None | Some(Bent::Serves) => served.await,
                Some(Bent::Hangs) => std::future::pending().await,
                Some(Bent::IsFull) => full(&call).encode().into(),
                Some(Bent::Refuses(leader)) => refusal(&call, leader).encode().into(),
                Some(Bent::Loses) => {
                    served.await;
                    panic!("an answer that gets lost, as the test wants");
                }
            }
        })
    }

    fn joined(&self, _: PeerHello, _: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(async { Bytes::new() })
    }

    fn peer_up(&self, _: NodeId) {
        self.line.changed.send_modify(|count| *count += 1);
    }

    fn peer_down(&self, _: NodeId) {
        self.line.changed.send_modify(|count| *count += 1);
    }

    fn peer_heard(&self, node: NodeId, is_heard: bool) {
        self.inner.peer_heard(node, is_heard);
        self.line.changed.send_modify(|count| *count += 1);
    }
}

/// The answer of a node that does not lead.
fn refusal(call: &ShardCall, leader: Option<NodeId>) -> ShardReply {
    let error = |shard: ShardId| Error::NotLeader { shard: shard.0, leader };
    match call {
        ShardCall::Propose { commands, .. } => {
            ShardReply::Proposed(commands.iter().map(|(shard, _)| Err(error(*shard))).collect())
        }
        ShardCall::Claim { shard, .. } => ShardReply::Claimed(Err(error(*shard))),
        ShardCall::Claimable { looks, .. } => {
            let hint = |(shard, _): &(ShardId, _)| (*shard, Err(error(*shard)));
            ShardReply::Claimable(Ok(looks.iter().map(hint).collect()))
        }
        ShardCall::Ask { shard, .. } => ShardReply::Found(Box::new(Err(error(*shard)))),
        ShardCall::Bodies { tasks } => ShardReply::Bodies(Err(error(tasks[0].home))),
        ShardCall::Finished { task, .. } => ShardReply::Finished(Err(error(task.home))),
        ShardCall::Spare { .. } | ShardCall::Status | ShardCall::SetSpread(_) => {
            panic!("{call:?} is asked of no leader")
        }
    }
}

/// The answer of a node without room for commands.
fn full(call: &ShardCall) -> ShardReply {
    let ShardCall::Propose { commands, .. } = call else { panic!("{call:?} is no proposal") };
    ShardReply::Proposed(vec![Err(Error::LimitExceeded("full".into())); commands.len()])
}

impl TestNode {
    /// Starts a node with bounds for calls to each other node, and for parked ones there.
    async fn start(number: NodeId, clock: Clock, calls_max: (usize, usize)) -> TestNode {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        config.clock = clock;
        (config.shards, config.disk_reserve_bytes) = (Some(SHARDS), 0);
        let engine = Engine::start(&config).unwrap();
        let shards = engine.shards();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let line = Arc::new(Line::default());
        let inner = ClusterHandler::new(shards.clone());
        let handler = BentHandler { inner, line: line.clone() };
        let me = PeerConfig {
            cluster: CLUSTER,
            node: number,
            secret: b"sesame".to_vec(),
            build: "test".into(),
            rules: 1,
            start: None,
        };
        let network = PeerNetwork::start_bounded(&me, listener, Arc::new(handler), calls_max);
        shards.connect(network.clone());
        TestNode { number, engine: Some(engine), shards, network, address, line, _dir: dir }
    }

    /// Sets what this node does with the next calls; then it serves again.
    fn bend(&self, bent: &[Bent]) {
        self.line.bent.lock().unwrap().extend(bent);
    }

    fn calls(&self) -> Vec<ShardCall> {
        self.line.calls.lock().unwrap().clone()
    }

    fn news(&self) -> Vec<SessionNews> {
        self.line.news.lock().unwrap().clone()
    }

    async fn until_asked(&self, wanted: impl Fn(&ShardCall) -> bool) {
        self.until(|node| node.calls().iter().any(&wanted)).await;
    }

    /// Waits until the recorded calls and news are as wanted.
    async fn until(&self, wanted: impl Fn(&TestNode) -> bool) {
        let mut changes = self.line.changed.subscribe();
        let heard = async {
            while !wanted(self) {
                changes.changed().await.unwrap();
            }
        };
        timeout(WAIT, heard).await.expect("it is asked or told");
    }

    fn leads(&self, shard: ShardId, node: Option<NodeId>) {
        self.shards.routes().set_leader(u64::from(shard.0) + 1, node);
    }
}

/// The first of three connected nodes. By its map, each shard has replicas on `holders`.
async fn three(holders: &[NodeId]) -> [TestNode; 3] {
    among(started().await, holders).await
}

/// Three nodes that are not connected.
async fn started() -> [TestNode; 3] {
    start(&Clock::system(), (limits::PEER_CALLS_MAX, limits::PEER_PARKED_CALLS_MAX)).await
}

async fn start(clock: &Clock, calls_max: (usize, usize)) -> [TestNode; 3] {
    let start = |number| TestNode::start(number, clock.clone(), calls_max);
    [start(1).await, start(2).await, start(3).await]
}

async fn among(nodes: [TestNode; 3], holders: &[NodeId]) -> [TestNode; 3] {
    let addresses = nodes.iter().map(|node| (node.number, node.address.clone())).collect();
    connect(&nodes, &addresses, holders).await;
    nodes
}

/// `three`, with a proxy in front of the second node.
async fn three_by_proxy(holders: &[NodeId]) -> ([TestNode; 3], Proxy) {
    let nodes = started().await;
    let proxy = Proxy::to(nodes[1].address.parse().unwrap()).await;
    let addresses = [(2, proxy.address.to_string()), (3, nodes[2].address.clone())].into();
    connect(&nodes, &addresses, holders).await;
    (nodes, proxy)
}

async fn connect(nodes: &[TestNode; 3], addresses: &BTreeMap<NodeId, String>, holders: &[NodeId]) {
    nodes[0].network.set_peers(addresses);
    nodes[0].until(|node| [2, 3].iter().all(|peer| node.network.is_reached(*peer))).await;
    nodes[0].shards.routes().set_control(Arc::new(control(holders)));
    (0..SHARDS).for_each(|shard| nodes[0].leads(ShardId(shard), None));
}

fn control(holders: &[NodeId]) -> Control {
    let mut control = Control::default();
    let mut commands =
        vec![ControlCommand::Found { cluster: CLUSTER, incarnation: 1, shards: SHARDS, rules: 1 }];
    for id in 1..=3 {
        let node = ClusterNode { rules_max: 1, ..ClusterNode::default() };
        commands.push(ControlCommand::AddNode { id, node });
    }
    for group in 1..=u64::from(SHARDS) {
        let replicas = holders.iter().map(|&node| Placement { node, replica: node }).collect();
        commands.push(ControlCommand::Place { group, replicas });
    }
    for command in commands {
        control.apply(1, &command.encode()).unwrap();
    }
    control
}

fn task<'a>(request_id: Option<&'a str>) -> NewTask<'a> {
    let body = Body { payload: b"letter", ..Body::default() };
    NewTask { task_type: "test", body, request_id, ..NewTask::default() }
}

async fn enqueue(
    shards: &Shards,
    queue: &str,
    request_id: Option<&str>,
) -> Result<Enqueued, Error> {
    let command = Command::Enqueue(Enqueue { queue, task: task(request_id) });
    let command = EncodedCommand::new(&command);
    match shards.propose(shards.home(queue), command, true).await? {
        Outcome::Enqueued(enqueued) => Ok(enqueued),
        other => panic!("{other:?}"),
    }
}

fn request(queue: &str, session: Option<SessionId>) -> ClaimRequest {
    ClaimRequest { session, ..ClaimRequest::of_queue(queue, 10) }
}

async fn count(shards: &Shards, queue: &str) -> usize {
    let read = shards.read(shards.home(queue), |machine| machine.task_count());
    read.await.unwrap() as usize
}

async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let poll = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(WAIT, poll).await.unwrap_or_else(|_| panic!("waited for: {what}"));
}

fn queue_on(shards: &Shards, shard: ShardId) -> String {
    (0..).map(|n| format!("q{n}")).find(|name| shards.home(name) == shard).unwrap()
}
