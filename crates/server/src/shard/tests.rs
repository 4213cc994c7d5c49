//! Calls that go to other nodes. Each node here is a whole cluster of its own, and the routes of the
//! first one say that others lead: what it is asked must be done by them. What they answer can be bent.

mod reach;

use super::*;
use crate::{
    Broker, Config,
    broker::ClaimAsked,
    cluster::{ClusterHandler, call_kind},
    peer::{PeerConfig, PeerHandler, PeerHello},
    sessions::{Attached, Hello, Profile},
};
use futures_util::future::BoxFuture;
use remote::ShardReply;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};
use taskyard_machine::{
    Ack, Body, Cancel, Command, Enqueue, EnqueueMany, Enqueued, NewTask, Release, TaskStateName,
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
    /// It says that it does not lead.
    Refuses(Option<NodeId>),
    /// It does it, and its answer gets lost.
    Loses,
}

/// A node, with all that it was asked.
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
    bent: Mutex<VecDeque<Bent>>,
    changed: watch::Sender<u64>,
}

struct BentHandler {
    inner: ClusterHandler,
    line: Arc<Line>,
}

impl PeerHandler for BentHandler {
    fn raft(&self, _: NodeId, _: u64, _: Bytes) {}

    fn call(&self, from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        assert_eq!(request[0], call_kind::SHARD);
        let call = ShardCall::decode(&request[1..]).unwrap();
        self.line.calls.lock().unwrap().push(call.clone());
        self.line.changed.send_modify(|count| *count += 1);
        let bent = self.line.bent.lock().unwrap().pop_front();
        let served = self.inner.call(from, request);
        Box::pin(async move {
            match bent {
                None => served.await,
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

/// What a node that does not lead answers.
fn refusal(call: &ShardCall, leader: Option<NodeId>) -> ShardReply {
    let error = |shard: ShardId| Error::NotLeader { shard: shard.0, leader };
    match call {
        ShardCall::Propose { commands, .. } => {
            ShardReply::Proposed(commands.iter().map(|(shard, _)| Err(error(*shard))).collect())
        }
        ShardCall::Claim { shard, .. } => ShardReply::Claimed(Err(error(*shard))),
        ShardCall::Claimable { shard, .. } => ShardReply::Claimable(Err(error(*shard))),
        ShardCall::Ask { shard, .. } => ShardReply::Found(Box::new(Err(error(*shard)))),
        ShardCall::Bodies { tasks } => ShardReply::Bodies(Err(error(tasks[0].home))),
        ShardCall::Finished { task, .. } => ShardReply::Finished(Err(error(task.home))),
        _ => ShardReply::Told,
    }
}

impl TestNode {
    async fn start(number: NodeId) -> TestNode {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
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
        };
        let network = PeerNetwork::start(&me, listener, Arc::new(handler), Clock::system());
        shards.connect(network.clone());
        TestNode { number, engine: Some(engine), shards, network, address, line, _dir: dir }
    }

    /// What this node does with the next calls; afterwards it serves.
    fn bend(&self, bent: &[Bent]) {
        self.line.bent.lock().unwrap().extend(bent);
    }

    fn calls(&self) -> Vec<ShardCall> {
        self.line.calls.lock().unwrap().clone()
    }

    async fn until_asked(&self, wanted: impl Fn(&ShardCall) -> bool) {
        let mut changes = self.line.changed.subscribe();
        let asked = async {
            while !self.calls().iter().any(&wanted) {
                changes.changed().await.unwrap();
            }
        };
        timeout(WAIT, asked).await.expect("it is asked");
    }

    /// Waits until something of its line has changed so that it holds.
    async fn until(&self, holds: impl Fn(&TestNode) -> bool) {
        let mut changes = self.line.changed.subscribe();
        let held = async {
            while !holds(self) {
                changes.changed().await.unwrap();
            }
        };
        timeout(WAIT, held).await.expect("it comes to hold");
    }

    fn leads(&self, shard: ShardId, node: Option<NodeId>) {
        self.shards.routes().set_leader(u64::from(shard.0) + 1, node);
    }
}

/// The first of three nodes, connected to the others. By its map each shard has replicas on `holders`.
async fn three(holders: &[NodeId]) -> [TestNode; 3] {
    let nodes = [TestNode::start(1).await, TestNode::start(2).await, TestNode::start(3).await];
    let addresses = nodes.iter().map(|node| (node.number, node.address.clone())).collect();
    connect(nodes, &addresses, holders).await
}

async fn connect(
    nodes: [TestNode; 3],
    addresses: &BTreeMap<NodeId, String>,
    holders: &[NodeId],
) -> [TestNode; 3] {
    nodes[0].network.set_peers(addresses);
    nodes[0].until(|node| [2, 3].iter().all(|peer| node.network.is_reached(*peer))).await;
    nodes[0].shards.routes().set_control(Arc::new(control(holders)));
    (0..SHARDS).for_each(|shard| nodes[0].leads(ShardId(shard), None));
    nodes
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
    ClaimRequest {
        queues: vec![(queue.into(), 1)],
        weighted: false,
        tasks_max: 10,
        lease_ms: 30_000,
        session,
        sequence: None,
        worker: "test".into(),
    }
}

async fn count(shards: &Shards, queue: &str) -> usize {
    let read = shards.read(shards.home(queue), |machine| machine.task_count());
    read.await.unwrap() as usize
}

/// A queue for each shard.
fn queue_on(shards: &Shards, shard: ShardId) -> String {
    (0..).map(|n| format!("q{n}")).find(|name| shards.home(name) == shard).unwrap()
}

#[tokio::test]
async fn whatever_is_asked_is_done_by_the_leader() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    let id = enqueue(shards, "mail", None).await.unwrap().id;
    assert_eq!((count(shards, "mail").await, count(&there.shards, "mail").await), (0, 1));

    assert!(shards.claimable(home, vec!["mail".into()], WAIT).await.unwrap());
    let handed = shards.claim(home, request("mail", None), WAIT).await.unwrap();
    assert_eq!(Body::decode(&handed[0].body).unwrap().payload, b"letter");
    let bodies = shards.bodies(vec![id, TaskId { sequence: 99, ..id }]).await.unwrap();
    assert_eq!(bodies, [Some(handed[0].body.clone()), None]);
    assert!(!shards.finished(id, Duration::from_millis(1)).await.unwrap());

    let watching = tokio::spawn({
        let shards = shards.clone();
        async move { shards.finished(id, WAIT).await }
    });
    there.until_asked(|call| matches!(call, ShardCall::Finished { wait_ms: 1_000.., .. })).await;
    let ack = Ack { task: id, token: handed[0].task.token, result: None, follow_ups: vec![] };
    let ack = EncodedCommand::new(&Command::Ack(ack));
    shards.propose(home, ack, false).await.unwrap();
    assert!(watching.await.unwrap().unwrap());
    let view = shards.ask(home, ask::Task { task: id }).await.unwrap().unwrap();
    assert_eq!(view.state, TaskStateName::Succeeded);
    // A "no" of the machine comes back as it was said there.
    let cancel = EncodedCommand::new(&Command::Cancel(Cancel { task: id }));
    let no = shards.propose(home, cancel, false).await.unwrap_err();
    assert_eq!(no.code(), "already_finished");
    let elsewhere = EncodedCommand::new(&Command::Cancel(Cancel { task: id }));
    assert_eq!(
        shards.propose(ShardId(99), elsewhere, false).await.unwrap_err().code(),
        "not_found"
    );
}

#[tokio::test]
async fn a_stale_route_is_followed_to_the_leader_and_remembered() {
    let [here, stale, leader] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    stale.bend(&[Bent::Refuses(Some(3))]);
    enqueue(&here.shards, "mail", None).await.unwrap();
    assert_eq!(count(&leader.shards, "mail").await, 1);
    assert_eq!(here.shards.routes().leader(home), Some(3));

    // Nobody knows: whoever has a replica is asked.
    here.leads(home, None);
    stale.bend(&[Bent::Refuses(None)]);
    enqueue(&here.shards, "mail", None).await.unwrap();
    assert_eq!(count(&leader.shards, "mail").await, 2);
    assert_eq!((stale.calls().len(), leader.calls().len()), (2, 2));
}

#[tokio::test]
async fn a_call_waits_for_an_election_and_goes_on_with_its_end() {
    let [here, _there, _] = three(&[1, 2, 3]).await;
    let home = here.shards.home("mail");
    let shards = here.shards.clone();
    let waiting = tokio::spawn(async move { enqueue(&shards, "mail", None).await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    here.leads(home, Some(2));
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_node_that_is_cut_off_says_so_at_once() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    here.network.set_peers(&BTreeMap::new());
    let begun = crate::clock::real_now();
    let error = enqueue(&here.shards, "mail", None).await.unwrap_err();
    assert_eq!(error, Error::NoQuorum { shard: here.shards.home("mail").0 });
    let request = request("mail", None);
    let claimed = here.shards.claim(here.shards.home("mail"), request, WAIT).await;
    assert_eq!(claimed.unwrap_err().code(), "no_quorum");
    assert!(begun.elapsed() < route::PATIENCE);
    assert!(there.calls().is_empty() && other.calls().is_empty());
}

#[tokio::test]
async fn a_lost_outcome_is_asked_for_again_only_by_an_identity() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    there.bend(&[Bent::Loses]);
    assert_eq!(enqueue(shards, "mail", None).await.unwrap_err(), Error::OutcomeUnknown);
    assert_eq!(count(&there.shards, "mail").await, 1);

    there.bend(&[Bent::Loses]);
    let enqueued = enqueue(shards, "mail", Some("r1")).await.unwrap();
    assert!(enqueued.duplicate, "it was made the first time");
    assert_eq!(count(&there.shards, "mail").await, 2);

    let handed = shards.claim(home, request("mail", None), WAIT).await.unwrap();
    assert_eq!(handed.len(), 2);
    let (task, token) = (handed[0].task.id, handed[0].task.token);
    there.bend(&[Bent::Loses]);
    let ack = Ack { task, token, result: None, follow_ups: vec![] };
    let ack = EncodedCommand::new(&Command::Ack(ack));
    assert!(shards.propose(home, ack, false).await.is_ok(), "the same ack gets the same answer");

    // It may be the first one that has given it back, or the claim was lost before: nobody knows.
    let (task, token) = (handed[1].task.id, handed[1].task.token);
    let release = EncodedCommand::new(&Command::Release(Release { task, token }));
    there.bend(&[Bent::Loses]);
    let released = shards.propose(home, release.clone(), false).await;
    assert_eq!(released, Err(Error::OutcomeUnknown));
    let released = shards.propose(home, release, false).await;
    assert_eq!(released.unwrap_err().code(), "claim_lost");
}

#[tokio::test]
async fn a_batch_goes_to_each_leader_once_and_only_what_was_refused_goes_on() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    let shards = &here.shards;
    let queues: Vec<String> = (0..SHARDS).map(|n| queue_on(shards, ShardId(n))).collect();
    for (shard, leader) in [(0, 1), (1, 2), (2, 2), (3, 3)] {
        here.leads(ShardId(shard), Some(leader));
    }
    // The leader of shard 1 and 2 has lost them to the third node.
    there.bend(&[Bent::Refuses(Some(3))]);
    let command = |number: usize| {
        let queue = &queues[number % queues.len()];
        let items = vec![Enqueue { queue, task: task(None) }; number + 1];
        let command = Command::EnqueueMany(EnqueueMany { batch_id: None, items });
        (shards.home(queue), EncodedCommand::new(&command))
    };
    let mut commands: Vec<_> = (0..8).map(command).collect();
    commands.push((ShardId(99), commands[0].1.clone()));
    let answers = shards.propose_all(commands, true).await;
    for (number, answer) in answers[..8].iter().enumerate() {
        match answer {
            Ok(Outcome::EnqueuedMany(made)) => assert_eq!(made.len(), number + 1),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(answers[8].clone().unwrap_err().code(), "not_found");
    let sizes = |node: &TestNode| {
        let mut sizes = Vec::new();
        for call in node.calls() {
            match call {
                ShardCall::Propose { commands, .. } => sizes.push(commands.len()),
                other => panic!("{other:?}"),
            }
        }
        sizes
    };
    assert_eq!(sizes(&there), [4], "one call for both shards");
    assert_eq!(sizes(&other), [2, 2, 2], "its own, and those of each shard that came to it");
    assert_eq!(count(shards, &queues[0]).await, 1 + 5);
    assert_eq!(count(&other.shards, &queues[1]).await, 2 + 6);
}

#[tokio::test]
async fn a_parked_claim_follows_its_shard_to_the_next_leader() {
    let [here, mut first, second] = three(&[1, 2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    let shards = here.shards.clone();
    let parked = tokio::spawn(async move { shards.claim(home, request("mail", None), WAIT).await });
    first.until_asked(|call| matches!(call, ShardCall::Claim { .. })).await;
    // A node that stops ends what is parked there, and takes nothing more.
    let engine = first.engine.take().unwrap();
    tokio::task::spawn_blocking(move || engine.stop()).await.unwrap();
    here.leads(home, Some(3));
    second.until_asked(|call| matches!(call, ShardCall::Claim { .. })).await;
    enqueue(&here.shards, "mail", None).await.unwrap();
    assert_eq!(parked.await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn a_session_gets_the_tasks_of_a_claim_whose_answer_was_lost() {
    let [here, there, _] = three(&[2, 3]).await;
    let (shards, home) = (&here.shards, here.shards.home("mail"));
    here.leads(home, Some(2));
    let id = enqueue(shards, "mail", None).await.unwrap().id;
    there.bend(&[Bent::Loses]);
    let session = Some(SessionId(7));
    let handed = shards.claim(home, request("mail", session), WAIT).await.unwrap();
    assert_eq!(handed.iter().map(|handed| handed.task.id).collect::<Vec<_>>(), [id]);
    let view = there.shards.ask(home, ask::Task { task: id }).await.unwrap().unwrap();
    assert_eq!((view.attempt, view.claim.unwrap().token), (1, handed[0].task.token));

    // One that had got nothing goes on waiting.
    there.bend(&[Bent::Loses]);
    let none = shards.claim(home, request("mail", session), Duration::from_millis(300)).await;
    assert!(none.unwrap().is_empty());
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_claim_behind() {
    let [here, there, _] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    here.leads(home, Some(2));
    let shards = here.shards.clone();
    let parked = tokio::spawn(async move { shards.claim(home, request("mail", None), WAIT).await });
    there.until_asked(|call| matches!(call, ShardCall::Claim { .. })).await;
    parked.abort();
    assert!(parked.await.unwrap_err().is_cancelled());
    enqueue(&here.shards, "mail", None).await.unwrap();
    // Whether or not it was handed to the first one in the meantime.
    let handed = here.shards.claim(home, request("mail", None), WAIT).await.unwrap();
    assert_eq!(handed.len(), 1);
}

#[tokio::test]
async fn a_shard_without_a_leader_keeps_no_work_of_others_from_a_claim() {
    let [here, there, _] = three(&[1, 2, 3]).await;
    let shards = &here.shards;
    let [dead, live] = [ShardId(0), ShardId(1)].map(|shard| queue_on(shards, shard));
    here.leads(ShardId(1), Some(2));
    let config = Config::new(here._dir.path());
    let broker = Broker::new(shards.clone(), &config);
    let places = broker.places(&[(dead, 0), (live.clone(), 0)]).unwrap();
    let asked = ClaimAsked { tasks_max: 5, lease_ms: 30_000, session: None, worker: "test".into() };
    enqueue(shards, &live, None).await.unwrap();
    for wait in [Duration::ZERO, WAIT] {
        let handed = broker.claim(&places, &asked, wait).await.unwrap();
        assert_eq!(handed.len(), 1, "what is there is handed out");
        let release =
            |handed: &HandedTask| Release { task: handed.task.id, token: handed.task.token };
        let release = EncodedCommand::new(&Command::Release(release(&handed[0])));
        shards.propose(ShardId(1), release, false).await.unwrap();
    }
    let handed = broker.claim(&places, &asked, Duration::ZERO).await.unwrap();
    let parked = tokio::spawn({
        let (broker, places, asked) = (broker.clone(), places.clone(), asked.clone());
        async move { broker.claim(&places, &asked, WAIT).await }
    });
    there.until_asked(|call| matches!(call, ShardCall::Claimable { .. })).await;
    enqueue(shards, &live, None).await.unwrap();
    assert_eq!(parked.await.unwrap().unwrap().len(), 1, "what comes is handed out");
    drop(handed);
}

#[tokio::test]
async fn what_is_told_of_sessions_reaches_every_node_in_order() {
    let [here, there, other] = three(&[1, 2, 3]).await;
    let session = SessionId(7);
    let told = [
        ShardCall::SessionsAlive(vec![session]),
        ShardCall::SessionNotStarted(session, vec![]),
        ShardCall::SessionCut(session),
        ShardCall::SessionsAlive(vec![session]),
    ];
    here.shards.sessions_alive(vec![session]);
    here.shards.session_not_started(session, vec![]);
    here.shards.session_cut(session);
    here.shards.sessions_alive(vec![session]);
    for node in [&there, &other] {
        let mut changes = node.line.changed.subscribe();
        let all = async {
            while node.calls().len() < told.len() {
                changes.changed().await.unwrap();
            }
        };
        timeout(WAIT, all).await.expect("it is told");
        assert_eq!(node.calls(), told);
    }
}

#[tokio::test]
async fn metrics_show_what_this_node_leads_alone() {
    let [here, there, _] = three(&[2, 3]).await;
    here.leads(here.shards.home("mail"), Some(2));
    enqueue(&here.shards, "mail", None).await.unwrap();
    assert!(!here.shards.metrics().await.unwrap().contains("queue=\"mail\""));
    assert!(there.shards.metrics().await.unwrap().contains("queue=\"mail\""));
}

/// A worker's session goes on at another node when its own is gone: what it lists stays its own, what
/// was handed to it and never arrived goes back.
#[tokio::test]
async fn a_session_is_resumed_on_a_node_that_never_saw_it() {
    let [here, there, _] = three(&[2, 3]).await;
    let home = here.shards.home("mail");
    (0..SHARDS).for_each(|shard| here.leads(ShardId(shard), Some(2)));
    let config = Config::new(here._dir.path());
    let [first, second] = [0, 1].map(|_| Broker::new(here.shards.clone(), &config));
    let hello = |resumed, held| Hello {
        resumed,
        held,
        profile: Profile { slots: 5, ..Profile::default() },
        queues: vec![("mail".into(), 1)],
        lease_ms: 30_000,
        ..Hello::default()
    };
    let (attached, _) = Attached::open(&first, hello(None, vec![])).await.unwrap();
    let session = attached.id();
    for _ in 0..2 {
        enqueue(&here.shards, "mail", None).await.unwrap();
    }
    let handed = attached.claim(5).await.unwrap();
    let [kept, lost] = [0, 1].map(|n| (handed[n].task.id, handed[n].task.token));
    attached.leave();

    let gone = (TaskId { sequence: 999, ..kept.0 }, kept.1);
    let resumed = hello(Some(session), vec![kept, gone]);
    let (attached, orders) = Attached::open(&second, resumed).await.unwrap();
    assert_eq!((attached.id(), orders.lost), (session, vec![gone]));
    let state = async |task| {
        let view = there.shards.ask(home, ask::Task { task }).await.unwrap().unwrap();
        (view.state, view.attempt)
    };
    assert_eq!(state(kept.0).await, (TaskStateName::Claimed, 1));
    assert_eq!(state(lost.0).await, (TaskStateName::Ready, 0));
    let again = attached.claim(5).await.unwrap();
    assert_eq!(again.iter().map(|handed| handed.task.id).collect::<Vec<_>>(), [lost.0]);
    let ack = Ack { task: kept.0, token: kept.1, result: None, follow_ups: vec![] };
    assert!(attached.finish(vec![Ok(Command::Ack(ack))]).await[0].is_ok());
}
