//! Two nodes on loopback: a shard's snapshot arrives completely, or not at all.

use super::*;
use crate::{
    Clock,
    checkpoint::Change,
    cluster::{Snapshots, call_kind},
    payloads::Bodies,
    peer::{
        PeerConfig, PeerHandler, PeerHello,
        tests::proxy::{self, Proxy},
    },
    shard::inbox::Taken,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};
use taskyard_machine::{
    Body, Command, EncodedCommand, Enqueue, Entry, EntryBuilder, NewTask, RecordKey, TaskId,
    Timestamp,
};
use taskyard_replica::eraftpb::{ConfState, MessageType};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};

const SHARD: ShardId = ShardId(1);
const REPLICA: u64 = 5;
const WAIT: Duration = Duration::from_secs(120);

/// Serves parts, and damages some.
#[derive(Default)]
struct Handler {
    snapshots: OnceLock<Arc<Snapshots>>,
    served: watch::Sender<u64>,
    /// How many more replies to damage.
    damages: AtomicU64,
    ups: watch::Sender<u64>,
}

/// The handler of a node, shared with the test.
struct Shown(Arc<Handler>);

impl PeerHandler for Shown {
    fn raft(&self, _from: NodeId, _group: u64, _message: Bytes) {}

    fn told(&self, _: NodeId, _: Bytes) {}

    fn call(&self, _from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        let handler = Arc::clone(&self.0);
        Box::pin(async move {
            assert_eq!(request[0], call_kind::SNAPSHOT);
            let snapshots = handler.snapshots.get().expect("only the source is asked");
            let reply = Arc::clone(snapshots).serve(request.slice(1..)).await;
            handler.served.send_modify(|served| *served += 1);
            let spoil = |left: u64| left.checked_sub(1);
            let damages = &handler.damages;
            // Damages parts only, and not the reply that names the snapshot.
            if reply.len() < 1_000
                || damages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spoil).is_err()
            {
                return reply;
            }
            let mut spoilt = reply.to_vec();
            let middle = spoilt.len() / 2;
            spoilt[middle] ^= 1;
            spoilt.into()
        })
    }

    fn joined(&self, _hello: PeerHello, _request: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(async { Bytes::new() })
    }

    fn peer_up(&self, _node: NodeId) {
        self.0.ups.send_modify(|ups| *ups += 1);
    }

    fn peer_down(&self, _node: NodeId) {}
}

struct TestNode {
    _dir: tempfile::TempDir,
    data: Arc<DataDir>,
    store: Arc<Store>,
    network: PeerNetwork,
    address: SocketAddr,
    handler: Arc<Handler>,
}

impl TestNode {
    async fn start(node: NodeId) -> TestNode {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open(dir.path(), Some(4)).unwrap());
        let store = Store::open(&data.state()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = PeerConfig {
            cluster: 1,
            node,
            secret: Vec::new(),
            build: "test".into(),
            rules: 1,
            start: None,
        };
        let handler = Arc::new(Handler::default());
        let shown = Arc::new(Shown(Arc::clone(&handler)));
        let network = PeerNetwork::start(&config, listener, shown, Clock::system());
        TestNode { _dir: dir, data, store, network, address, handler }
    }

    async fn dials(&self, node: NodeId, address: SocketAddr) {
        self.network.set_peers(&BTreeMap::from([(node, address.to_string())]));
        let mut ups = self.handler.ups.subscribe();
        ups.wait_for(|ups| *ups > 0).await.unwrap();
    }
}

/// A source with `tasks` tasks in a checkpoint, a receiver, and raft's message.
struct Pair {
    source: TestNode,
    receiver: TestNode,
    line: Proxy,
    fetcher: Fetcher,
    inputs: mpsc::UnboundedReceiver<Input>,
    message: Message,
}

impl Pair {
    async fn with(tasks: u64) -> Pair {
        let (source, receiver) = (TestNode::start(1).await, TestNode::start(2).await);
        let line = Proxy::to(source.address).await;
        receiver.dials(1, line.address).await;
        let incarnation = receiver.data.format().incarnation;
        fill(&source.store, Identity { incarnation, shard: SHARD, shards: 4 }, tasks);
        let snapshots = Snapshots::new(1, &source.store);
        let offered = snapshots.source(SHARD).snapshot(0, REPLICA).expect("there is a checkpoint");
        let _ = source.handler.snapshots.set(snapshots);
        let mut message = Message { from: 4, to: REPLICA, term: 9, ..Default::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        message.mut_snapshot().data = offered.data;
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (offered.index, offered.term);
        metadata.set_conf_state(offered.conf_state);
        let (fetcher, inputs) = fetcher(&receiver);
        Pair { source, receiver, line, fetcher, inputs, message }
    }

    fn order(&self) -> SnapshotOrder {
        SnapshotOrder::read(SHARD, self.message.clone()).unwrap()
    }

    async fn input(&mut self) -> Input {
        let input = tokio::time::timeout(WAIT, self.inputs.recv()).await;
        input.expect("an input comes in time").expect("the inbox is open")
    }

    /// Waits until the source has served `count` requests.
    async fn served(&self, count: u64) {
        let mut served = self.source.handler.served.subscribe();
        served.wait_for(|served| *served >= count).await.unwrap();
    }

    /// Takes the fetched snapshot and checks that it is complete.
    async fn check_fetched(&mut self) {
        let fetched = match self.input().await {
            Input::Fetched(fetched) => fetched,
            Input::FetchFailed { index, .. } => panic!("the snapshot at {index} did not come"),
            _ => panic!("another input came"),
        };
        // A repeated order before the loop has taken the snapshot does not fetch it again.
        self.fetcher.fetch(fetched.order.clone());
        self.fetcher.taken(SHARD, fetched.order.id());
        assert_eq!(self.fetcher.installing(SHARD), None);
        let (here, there) = (self.source.store.view(), &self.receiver.store);
        assert!(there.switch(SHARD, fetched.order.id(), &fetched.order.cut()).unwrap());
        let there = there.view();
        assert_eq!(there.cut(SHARD).unwrap(), here.cut(SHARD).unwrap());
        assert!(
            there.records(SHARD).map(Result::unwrap).eq(here.records(SHARD).map(Result::unwrap))
        );
        assert!(there.bodies(SHARD).map(Result::unwrap).eq(here.bodies(SHARD).map(Result::unwrap)));
        let mut records: Vec<_> = there.records(SHARD).map(Result::unwrap).collect();
        records.sort_unstable();
        assert_eq!(fetched.machine.records(), records);
    }
}

/// A fetcher with an inbox that the test reads.
fn fetcher(node: &TestNode) -> (Fetcher, mpsc::UnboundedReceiver<Input>) {
    let inbox = Arc::new(Inbox::default());
    let network = Arc::new(OnceLock::from(node.network.clone()));
    let fetcher = Fetcher::new(&node.data, &node.store, &network, &inbox);
    let (sender, inputs) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut taken = Taken::default();
        while !sender.is_closed() {
            inbox.take(&mut taken, Some(Duration::from_millis(100)), 0);
            while let Some(input) = taken.next() {
                let _ = sender.send(input);
            }
        }
    });
    (fetcher, inputs)
}

/// Writes a checkpoint of a machine with so many tasks, each with a body of a kilobyte.
fn fill(store: &Store, identity: Identity, tasks: u64) {
    let mut machine = Machine::new(identity);
    let mut bodies = Bodies::default();
    for number in 0..tasks {
        let payload = number.to_le_bytes().repeat(128);
        let body = Body { payload: &payload, ..Body::default() };
        let task = NewTask { task_type: "test", body, ..NewTask::default() };
        let command = Command::Enqueue(Enqueue { queue: "mail", task });
        let mut entry = EntryBuilder::new(Timestamp(number + 1));
        assert!(entry.push(&EncodedCommand::new(&command)));
        let entry = entry.finish();
        machine.apply(&Entry::decode(&entry).unwrap(), &mut bodies, &mut Vec::new());
    }
    let conf_state = ConfState { voters: vec![4], learners: vec![REPLICA], ..Default::default() };
    let cut = Cut { index: 40, term: 3, conf_state };
    let body = |task: &TaskId| Change::Body(*task, bodies.get(*task).unwrap());
    for records in machine.records().chunks(20_000) {
        let changes = records.iter().flat_map(|(key, value)| {
            let body = if let RecordKey::Task(task) = key { Some(body(task)) } else { None };
            body.into_iter().chain([Change::Record(key.clone(), Some(value.clone()))])
        });
        store.write(SHARD, &cut, changes.collect()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_comes_whole_though_the_line_is_cut_again_and_again() {
    let mut pair = Pair::with(12_000).await;
    pair.fetcher.fetch(pair.order());
    pair.fetcher.fetch(pair.order());
    for count in 1..=4 {
        pair.served(count).await;
        pair.line.cut();
    }
    pair.check_fetched().await;
    assert!(pair.inputs.try_recv().is_err(), "the same order again changed nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_starts_again_goes_on_where_it_was() {
    let mut pair = Pair::with(12_000).await;
    pair.fetcher.fetch(pair.order());
    pair.served(4).await;
    (pair.fetcher, pair.inputs) = fetcher(&pair.receiver);
    let before = *pair.source.handler.served.borrow();
    pair.fetcher.fetch(pair.order());
    pair.check_fetched().await;
    let parts = *pair.source.handler.served.borrow() - before;
    assert!(parts <= 6, "{parts} parts of 12 MiB were fetched again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_part_is_noticed_and_the_transfer_begins_anew() {
    let mut pair = Pair::with(6_000).await;
    pair.source.handler.damages.store(1, Ordering::Relaxed);
    pair.fetcher.fetch(pair.order());
    pair.check_fetched().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_gone_is_told_and_a_newer_order_takes_its_place() {
    let mut pair = Pair::with(100).await;
    let order = pair.order();
    let mut gone = order.clone();
    gone.message.mut_snapshot().mut_metadata().index = 39;
    pair.fetcher.fetch(gone.clone());
    let Input::FetchFailed { shard, index } = pair.input().await else { panic!("it is gone") };
    assert_eq!((shard, index), (SHARD, 39));
    pair.fetcher.fetch(gone);
    pair.fetcher.fetch(order);
    pair.check_fetched().await;
}

/// Other transfers come first, and meanwhile there is a newer checkpoint, which the log follows for
/// longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_begins_with_the_newest_checkpoint_when_its_turn_comes() {
    let mut pair = Pair::with(100).await;
    let turns = Arc::clone(&pair.fetcher.0);
    let others = turns.turns.acquire_many(TRANSFERS_MAX as u32).await.unwrap();
    pair.fetcher.fetch(pair.order());
    let here = pair.source.store.view().cut(SHARD).unwrap().unwrap();
    pair.source.store.write(SHARD, &Cut { index: 70, ..here }, Vec::new()).unwrap();
    drop(others);
    pair.check_fetched().await;
    assert_eq!(pair.receiver.store.view().cut(SHARD).unwrap().unwrap().index, 70);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_for_a_removed_replica_ends_silently() {
    let mut pair = Pair::with(12_000).await;
    // Otherwise the transfer might be complete before it is ended.
    pair.line.set(proxy::Line::HoldsAnswers);
    pair.fetcher.fetch(pair.order());
    pair.served(1).await;
    pair.fetcher.forget(SHARD);
    pair.receiver.store.remove(SHARD).unwrap();
    assert_eq!(pair.fetcher.installing(SHARD), None);
    assert!(pair.inputs.try_recv().is_err());
    // The replica comes back.
    pair.line.set(proxy::Line::Passes);
    pair.fetcher.fetch(pair.order());
    pair.check_fetched().await;
}

#[tokio::test]
async fn an_order_must_name_its_own_shard_and_index() {
    let pair = Pair::with(1).await;
    assert_eq!(pair.order().cut().index, 40);
    assert!(SnapshotOrder::read(ShardId(2), pair.message.clone()).is_err());
    let mut other = pair.message.clone();
    other.mut_snapshot().mut_metadata().index = 41;
    assert!(SnapshotOrder::read(SHARD, other).is_err());
    let mut stranger = pair.message.clone();
    stranger.to = REPLICA + 1;
    assert!(SnapshotOrder::read(SHARD, stranger).is_err());
    let mut empty = pair.message;
    empty.mut_snapshot().data = Bytes::new();
    assert!(SnapshotOrder::read(SHARD, empty).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_state_streams_in_parts_and_shows_how_far_it_is() {
    let mut pair = Pair::with(100_000).await;
    pair.fetcher.fetch(pair.order());
    pair.served(20).await;
    assert!(pair.fetcher.installing(SHARD).is_some_and(|bytes| bytes > 10 << 20));
    pair.check_fetched().await;
    let sent = pair.source.handler.snapshots.get().unwrap().bytes_sent();
    assert_eq!(pair.fetcher.bytes_fetched(), sent, "each part came once");
}

#[tokio::test]
async fn parts_come_no_faster_than_their_rate() {
    let pair = Pair::with(1).await;
    let shared = &pair.fetcher.0;
    assert_eq!(shared.pace(BYTES_PER_SECOND), Duration::ZERO, "nothing came before it");
    let wait = shared.pace(BYTES_PER_SECOND);
    assert!(wait > Duration::from_millis(1) && wait <= Duration::from_secs(1), "{wait:?}");
    let longer = shared.pace(1);
    assert!(longer > Duration::from_secs(1) && longer <= Duration::from_secs(2), "{longer:?}");
}
