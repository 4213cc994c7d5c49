//! Networks on loopback: what peers send each other, and how connections end.

mod hostile;
mod layout;
pub(crate) mod proxy;
mod storm;

use super::*;
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};
use tokio::{sync::watch, time::timeout};

const CLUSTER: u128 = 0xc1;
const WAIT: Duration = Duration::from_secs(60);

/// Ends a test that hangs, and says where; no test passes or fails by its duration.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(WAIT * 2, future).await.unwrap_or_else(|_| panic!("waited for: {what}"))
}

/// A handler that records what it receives.
#[derive(Debug, Default)]
struct Recorder {
    seen: Mutex<Seen>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Seen {
    raft: Vec<(NodeId, u64, Bytes)>,
    told: Vec<Bytes>,
    /// How often each call was executed.
    executed: BTreeMap<Bytes, u64>,
    /// The number of calls dropped before their end.
    dropped: u64,
    /// Ups and downs, in order.
    turns: Vec<(NodeId, bool)>,
    /// Changes of hearing, in order.
    heard: Vec<(NodeId, bool)>,
    removed: Vec<NodeId>,
    /// Calls that wait at the gate may be answered.
    is_open: bool,
}

impl Recorder {
    fn note<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        let changed = change(&mut self.seen.lock().unwrap());
        self.changed.send_modify(|count| *count += 1);
        changed
    }

    /// Waits until the record is as wanted.
    async fn until<T>(&self, what: &str, wanted: impl Fn(&Seen) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        within(what, async {
            loop {
                changes.borrow_and_update();
                let found = wanted(&self.seen.lock().unwrap());
                match found {
                    Some(found) => return found,
                    None => changes.changed().await.unwrap(),
                }
            }
        })
        .await
    }

    async fn until_up(&self, node: NodeId) {
        let is_up = |seen: &Seen| last_turn(seen, node).filter(|up| *up).map(drop);
        self.until(&format!("node {node} up"), is_up).await;
    }

    async fn until_down(&self, node: NodeId) {
        let is_down = |seen: &Seen| last_turn(seen, node).filter(|up| !*up).map(drop);
        self.until(&format!("node {node} down"), is_down).await;
    }

    fn turns(&self, node: NodeId) -> Vec<bool> {
        let seen = self.seen.lock().unwrap();
        seen.turns.iter().filter(|(of, _)| *of == node).map(|(_, up)| *up).collect()
    }
}

fn last_turn(seen: &Seen, node: NodeId) -> Option<bool> {
    seen.turns.iter().rev().find(|(of, _)| *of == node).map(|(_, up)| *up)
}

/// Records a call that is dropped before its end.
struct Unfinished(Arc<Recorder>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.note(|seen| seen.dropped += 1);
    }
}

/// The handler of a node: a call's first word says what it does.
struct Handler(Arc<Recorder>);

impl PeerHandler for Handler {
    fn raft(&self, from: NodeId, group: u64, message: Bytes) {
        self.0.note(|seen| seen.raft.push((from, group, message)));
    }

    fn told(&self, _: NodeId, message: Bytes) {
        self.0.note(|seen| seen.told.push(message));
    }

    fn call(&self, from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        let recorder = self.0.clone();
        Box::pin(async move {
            recorder.note(|seen| *seen.executed.entry(request.clone()).or_default() += 1);
            match request.split(|byte| *byte == b' ').next() {
                Some(b"hang") => {
                    let _unfinished = Unfinished(recorder);
                    std::future::pending().await
                }
                Some(b"gate") => {
                    let opened = |seen: &Seen| seen.is_open.then_some(());
                    recorder.until("the gate", opened).await;
                    Bytes::from(vec![b'x'; 1 << 20])
                }
                Some(b"panic") => panic!("a handler that panics, as the test wants"),
                Some(b"large") => Bytes::from(vec![b'x'; 1 << 20]),
                Some(b"huge") => Bytes::from(vec![b'x'; limits::PEER_FRAME_BYTES_MAX]),
                _ => Bytes::from(format!("{from}:{}", String::from_utf8_lossy(&request))),
            }
        })
    }

    fn joined(&self, hello: PeerHello, request: Bytes) -> BoxFuture<'static, Bytes> {
        let answer = format!("{} {:?}: welcome", hello.build, request);
        Box::pin(async move { Bytes::from(answer) })
    }

    fn admit(&self, hello: &PeerHello) -> Result<(), Refusal> {
        match self.0.seen.lock().unwrap().removed.contains(&hello.node) {
            true => Err(Refusal::new(
                RefusalCode::NotAMember,
                format!("node {} was removed from the cluster", hello.node),
            )),
            false => Ok(()),
        }
    }

    fn peer_up(&self, node: NodeId) {
        self.0.note(|seen| seen.turns.push((node, true)));
    }

    fn peer_down(&self, node: NodeId) {
        self.0.note(|seen| seen.turns.push((node, false)));
    }

    fn peer_heard(&self, node: NodeId, is_heard: bool) {
        self.0.note(|seen| seen.heard.push((node, is_heard)));
    }
}

struct TestNode {
    node: NodeId,
    network: PeerNetwork,
    recorder: Arc<Recorder>,
    address: SocketAddr,
}

fn config(node: NodeId) -> PeerConfig {
    let build = format!("test {node}");
    PeerConfig { cluster: CLUSTER, node, secret: b"sesame".to_vec(), build, rules: 7, start: None }
}

impl TestNode {
    async fn start(node: NodeId) -> TestNode {
        TestNode::with(config(node).identity(), TUNING, Clock::system()).await
    }

    async fn with(me: Identity, tuning: Tuning, clock: Clock) -> TestNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (node, recorder) = (me.hello.node, Arc::<Recorder>::default());
        let handler = Arc::new(Handler(recorder.clone()));
        let network = PeerNetwork::tuned(me, listener, handler, clock, tuning);
        TestNode { node, network, recorder, address }
    }

    fn dials(&self, peers: &[(NodeId, SocketAddr)]) {
        let peers = peers.iter().map(|(node, address)| (*node, address.to_string()));
        self.network.set_peers(&peers.collect());
    }

    async fn connects_to(&self, other: &TestNode) {
        self.dials(&[(other.node, other.address)]);
        self.recorder.until_up(other.node).await;
    }

    async fn asks(&self, node: NodeId, request: &'static str) -> Result<Bytes, CallError> {
        within(request, self.network.call(node, Bytes::from(request), WAIT)).await
    }

    fn executed(&self, request: &'static str) -> u64 {
        let seen = self.recorder.seen.lock().unwrap();
        seen.executed.get(request.as_bytes()).copied().unwrap_or_default()
    }
}

fn is_not_sent(result: &Result<Bytes, CallError>) -> bool {
    matches!(result, Err(CallError::NotSent { .. }))
}

#[tokio::test]
async fn three_nodes_send_messages_and_calls_to_each_other() {
    let nodes = [TestNode::start(1).await, TestNode::start(2).await, TestNode::start(3).await];
    let all: Vec<_> = nodes.iter().map(|node| (node.node, node.address)).collect();
    for node in &nodes {
        node.dials(&all);
    }
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let (from, to) = (&nodes[from], &nodes[to]);
        from.recorder.until_up(to.node).await;
        assert!(from.network.raft(to.node, 5, Bytes::from("vote")));
        let answer = from.asks(to.node, "hello").await;
        assert_eq!(answer, Ok(Bytes::from(format!("{}:hello", from.node))));
        let message = (from.node, 5, Bytes::from("vote"));
        let arrived = |seen: &Seen| seen.raft.contains(&message).then_some(());
        to.recorder.until("a Raft message", arrived).await;
    }
    for node in &nodes {
        assert_eq!(node.recorder.seen.lock().unwrap().turns.len(), 2);
        let status = node.network.status();
        assert_eq!(status.len(), 2);
        for peer in status {
            assert!(peer.connected_since_ms.is_some() && peer.connects_here, "{peer:?}");
            assert!(peer.round_trip.is_some() && peer.clock_skew_ms.is_some(), "{peer:?}");
            assert_eq!((peer.rules, peer.build), (Some(7), Some(format!("test {}", peer.node))));
            assert_eq!((peer.last_error, peer.raft_dropped), (None, 0));
        }
        assert_eq!(node.network.refused(), BTreeMap::new());
    }
}

#[tokio::test]
async fn a_peer_whose_clock_is_an_hour_ahead_shows_in_the_status() {
    let here = Clock::manual(10_000_000);
    let ahead = Clock::manual(10_000_000 + 3_600_000);
    let one = TestNode::with(config(1).identity(), TUNING, here).await;
    let two = TestNode::with(config(2).identity(), TUNING, ahead).await;
    one.connects_to(&two).await;
    // The first ping is written before any call, and answered before it.
    one.asks(2, "hello").await.unwrap();
    assert_eq!(one.network.status()[0].clock_skew_ms, Some(3_600_000));
}

#[tokio::test]
async fn calls_that_can_not_be_sent_are_not_executed() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    assert!(is_not_sent(&one.asks(2, "unknown").await));
    assert!(!one.network.raft(2, 1, Bytes::new()));
    // A port that is bound and does not accept.
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    one.dials(&[(2, nobody)]);
    assert!(is_not_sent(&one.asks(2, "nobody").await));
    assert!(!one.network.raft(2, 1, Bytes::new()));
    assert_eq!(one.network.status()[0].raft_dropped, 1);
    assert!(!one.network.raft(2, 1, Bytes::from(vec![0; limits::PEER_FRAME_BYTES_MAX])));

    // The peer has moved, and is dialled at its new address, during a pause or not.
    one.connects_to(&two).await;
    assert!(one.asks(2, "here").await.is_ok());
    assert_eq!((two.executed("unknown"), two.executed("nobody"), two.executed("here")), (0, 0, 1));
}

#[tokio::test]
async fn a_peer_that_moves_is_dialled_at_its_new_address() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    one.connects_to(&two).await;
    let door = proxy::Proxy::to(two.address).await;
    one.dials(&[(2, door.address)]);
    let turned = |seen: &Seen| (seen.turns.len() == 3).then_some(());
    one.recorder.until("up, down, up", turned).await;
    assert_eq!(one.recorder.turns(2), [true, false, true]);
    assert!(one.asks(2, "hello").await.is_ok());
    // The same address again changes nothing.
    one.dials(&[(2, door.address)]);
    assert!(one.asks(2, "again").await.is_ok());
    assert_eq!(one.recorder.turns(2), [true, false, true]);
}

/// The connection would be given up after five seconds, which is too long for a leader.
#[tokio::test]
async fn a_peer_behind_a_dead_line_is_not_counted_on_and_heard_again_when_it_lives() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    assert!(!one.network.is_heard(2), "nobody has named it");
    let door = proxy::Proxy::to(two.address).await;
    one.dials(&[(2, door.address)]);
    one.recorder.until_up(2).await;
    assert!(one.network.is_heard(2) && one.network.is_reached(2));
    door.set(proxy::Line::Stalls);
    let heard =
        |wanted: Vec<(NodeId, bool)>| move |seen: &Seen| (seen.heard == wanted).then_some(());
    one.recorder.until("it falls silent", heard(vec![(2, false)])).await;
    assert!(one.network.is_connected(2), "and nobody has hung up");
    assert!(!one.network.is_heard(2) && !one.network.is_reached(2));
    door.set(proxy::Line::Passes);
    let again = vec![(2, false), (2, true)];
    one.recorder.until("it is heard again", heard(again)).await;
    assert!(one.network.is_heard(2) && one.network.is_reached(2));
    assert_eq!(one.recorder.turns(2), [true]);
    // A closed connection is no silence at first, because it may be made again.
    two.network.stop();
    one.recorder.until_down(2).await;
    assert!(!one.network.is_reached(2));
    let gone = vec![(2, false), (2, true), (2, false)];
    one.recorder.until("it stays away", heard(gone)).await;
    assert!(!one.network.is_heard(2));
}

/// Messages on the connection that the peer dialled count as well.
#[tokio::test]
async fn a_peer_is_heard_on_either_connection() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    let door = proxy::Proxy::to(two.address).await;
    one.dials(&[(2, door.address)]);
    one.recorder.until_up(2).await;
    two.connects_to(&one).await;
    door.set(proxy::Line::Stalls);
    // The peer's own connection lives, so that the peer is heard during the other's silence.
    one.recorder.until_down(2).await;
    let seen = one.recorder.seen.lock().unwrap().heard.clone();
    assert_eq!(seen, [], "it was heard all the time");
}

/// A handshake takes long on a busy machine.
#[tokio::test]
async fn a_peer_is_not_given_up_while_it_is_first_dialled() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    let door = proxy::Proxy::to(two.address).await;
    door.set(proxy::Line::Stalls);
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    one.dials(&[(2, door.address), (3, nobody)]);
    let silent = |seen: &Seen| seen.heard.contains(&(3, false)).then_some(());
    one.recorder.until("who is not there falls silent", silent).await;
    assert!(one.network.is_heard(2), "it was not given a chance");
    door.set(proxy::Line::Passes);
    one.recorder.until_up(2).await;
    let seen = one.recorder.seen.lock().unwrap().heard.clone();
    assert_eq!(seen, [(3, false)]);
}

/// A peer dials as soon as it can, and may be named here a little later.
#[tokio::test]
async fn a_peer_that_has_dialled_before_it_was_named_is_heard_all_the_same() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    two.connects_to(&one).await;
    let door = proxy::Proxy::to(two.address).await;
    door.set(proxy::Line::Stalls);
    one.dials(&[(2, door.address)]);
    assert!(one.network.is_heard(2) && !one.network.is_reached(2), "it has a moment");
    // No connection is made while several checks pass.
    until_error(&one, |error| error.contains("no handshake")).await;
    assert!(one.network.is_heard(2));
    assert_eq!(one.recorder.seen.lock().unwrap().heard, []);
    two.network.stop();
    let silent = |seen: &Seen| (seen.heard == [(2, false)]).then_some(());
    one.recorder.until("it falls silent", silent).await;
}

#[tokio::test]
async fn another_node_at_a_peers_address_is_not_taken_for_it() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    one.dials(&[(3, two.address)]);
    // The other side is told too.
    let words = until_error(&one, |error| error.contains("node 3 was expected")).await;
    assert!(words.contains("this is node 2"), "{words}");
    assert!(is_not_sent(&one.asks(3, "hello").await));
    assert!(one.recorder.turns(3).is_empty());
}

/// Waits until the last error of the only peer is as wanted; attempts repeat.
async fn until_error(node: &TestNode, wanted: impl Fn(&str) -> bool) -> String {
    let peer = node.network.status().remove(0).node;
    let mut errors = node.network.link(peer).unwrap().last_error.subscribe();
    let told = errors.wait_for(|error| error.as_deref().is_some_and(&wanted));
    within("an error", told).await.unwrap().clone().unwrap()
}

#[tokio::test]
async fn a_peer_that_is_taken_out_is_hung_up_on_and_may_come_back() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    one.connects_to(&two).await;
    two.connects_to(&one).await;
    one.recorder.note(|seen| seen.removed.push(2));
    one.dials(&[]);
    one.recorder.until_down(2).await;
    assert!(is_not_sent(&one.asks(2, "gone").await));
    assert!(one.network.status().is_empty());
    // The connection that the peer dialled is closed too; its next attempt is refused with the
    // reason.
    two.recorder.until_down(1).await;
    until_error(&two, |error| error.contains("node 2 was removed from the cluster")).await;
    assert!(one.network.refused()["not a member"] > 0);
    let verdict = two.network.status().remove(0).verdict.expect("it is node 1 that says so");
    assert_eq!(verdict.code, RefusalCode::NotAMember);

    one.recorder.note(|seen| seen.removed.clear());
    one.connects_to(&two).await;
    two.recorder.until_up(1).await;
    assert_eq!(one.recorder.turns(2), [true, false, true]);
    assert!(two.asks(1, "back").await.is_ok());
}

#[tokio::test]
async fn two_processes_that_claim_one_number_are_told() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    two.connects_to(&one).await;
    let copy = TestNode::start(2).await;
    copy.dials(&[(1, one.address)]);
    let words = until_error(&copy, |error| error.contains("claim one number")).await;
    assert!(words.contains("node 2 is connected from another live process"), "{words}");
    assert!(two.asks(1, "still here").await.is_ok());
    assert_eq!(two.recorder.turns(1), [true]);
    // Once the first process is gone, the number is free.
    two.network.stop();
    copy.recorder.until_up(1).await;
}

#[tokio::test]
async fn a_process_that_comes_again_takes_the_place_of_its_old_connection() {
    let one = TestNode::start(1).await;
    let me = config(2).identity();
    let within_ms = TUNING.patience.handshake;
    let address = one.address.to_string();
    let (mut old, _old_writer, _) = dial::dial(&address, &me, Some(1), within_ms).await.unwrap();
    let (_new, mut writer, _) = dial::dial(&address, &me, Some(1), within_ms).await.unwrap();
    // The old connection ends, whatever was sent on it before.
    let ended = async {
        while let Ok(frame) = old.frame().await {
            assert_eq!(frame.kind, Kind::Ping);
        }
    };
    within("the end of the old connection", ended).await;
    let message = Frame::new(Kind::Raft, 3, &b"new"[..]);
    connection::write_frame(&mut writer, &message).await.unwrap();
    one.recorder.until("a message", |seen| (seen.raft.len() == 1).then_some(())).await;
    assert_eq!(one.network.refused(), BTreeMap::new());
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_the_work_on_the_other_side() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    one.connects_to(&two).await;
    let call = tokio::spawn(one.network.call(2, Bytes::from("hang"), WAIT));
    let began = |seen: &Seen| seen.executed.contains_key(&b"hang"[..]).then_some(());
    two.recorder.until("the call", began).await;
    call.abort();
    two.recorder.until("its end", |seen| (seen.dropped == 1).then_some(())).await;
    let late = one.network.call(2, Bytes::from("hang on"), Duration::from_millis(50)).await;
    assert!(matches!(late, Err(CallError::TimedOut) | Err(CallError::NotSent { .. })), "{late:?}");
    assert!(one.asks(2, "hello").await.is_ok());
    assert_eq!(one.network.status()[0].calls_under_way, 0);
}

#[tokio::test]
async fn calls_beyond_the_allowance_are_declined_and_not_executed() {
    let tuning = Tuning { allowance: Allowance { calls_max: 2, ..ALLOWANCE }, ..TUNING };
    let one = TestNode::start(1).await;
    let two = TestNode::with(config(2).identity(), tuning, Clock::system()).await;
    one.connects_to(&two).await;
    let hang = |request| tokio::spawn(one.network.call(2, Bytes::from(request), WAIT));
    let hanging = [hang("hang 1"), hang("hang 2")];
    two.recorder.until("both", |seen| (seen.executed.len() == 2).then_some(())).await;
    assert!(is_not_sent(&one.asks(2, "third").await));
    assert_eq!(two.executed("third"), 0);
    hanging[0].abort();
    // The cancellation is written before the next call.
    two.recorder.until("its end", |seen| (seen.dropped == 1).then_some(())).await;
    assert!(one.asks(2, "fourth").await.is_ok());
}

/// As when a queue is resumed, and every waiting worker gets tasks.
#[tokio::test]
async fn a_burst_of_answers_waits_for_its_reader() {
    const CALLS: usize = 30;
    let allowance =
        Allowance { answer_bytes_soft_max: 1 << 20, answer_bytes_max: 4 << 20, ..ALLOWANCE };
    let one = TestNode::start(1).await;
    let tuning = Tuning { allowance, ..TUNING };
    let two = TestNode::with(config(2).identity(), tuning, Clock::system()).await;
    one.connects_to(&two).await;
    let call = |number| tokio::spawn(one.network.call(2, format!("gate {number}").into(), WAIT));
    let calls: Vec<_> = (0..CALLS).map(call).collect();
    two.recorder.until("all wait", |seen| (seen.executed.len() == CALLS).then_some(())).await;
    two.recorder.note(|seen| seen.is_open = true);
    for call in calls {
        let answer = within("an answer", call).await.unwrap();
        assert_eq!(answer.map(|answer| answer.len()), Ok(1 << 20));
    }
    assert_eq!(one.recorder.turns(2), [true], "the connection holds");
    assert!(one.asks(2, "hello").await.is_ok());
}

#[tokio::test]
async fn messages_without_answers_arrive_in_order_however_many_calls_are_under_way() {
    let tuning = Tuning { allowance: Allowance { calls_max: 2, ..ALLOWANCE }, ..TUNING };
    let dialer = Tuning { calls_max: CallsMax { all: 2, parked: 1 }, ..TUNING };
    let one = TestNode::with(config(1).identity(), dialer, Clock::system()).await;
    let two = TestNode::with(config(2).identity(), tuning, Clock::system()).await;
    one.network.tell(2, Bytes::from("to nobody yet"));
    one.connects_to(&two).await;
    let hang = |request| tokio::spawn(one.network.call(2, Bytes::from(request), WAIT));
    let _hanging = [hang("hang 1"), hang("hang 2")];
    two.recorder.until("both", |seen| (seen.executed.len() == 2).then_some(())).await;
    assert!(is_not_sent(&one.asks(2, "third").await));
    let words: Vec<Bytes> = (0..100).map(|number| Bytes::from(format!("{number}"))).collect();
    words.iter().for_each(|word| one.network.tell(2, word.clone()));
    one.network.tell(2, Bytes::from(vec![0; limits::PEER_FRAME_BYTES_MAX]));
    let all = |seen: &Seen| (seen.told.len() == words.len()).then(|| seen.told.clone());
    assert_eq!(two.recorder.until("all that was told", all).await, words);
}

#[tokio::test]
async fn a_handler_that_fails_leaves_no_caller_waiting() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    one.connects_to(&two).await;
    assert_eq!(one.asks(2, "panic").await, Err(CallError::Lost));
    assert_eq!(one.asks(2, "huge").await, Err(CallError::Lost));
    assert_eq!(one.asks(2, "large").await.map(|answer| answer.len()), Ok(1 << 20));
    assert_eq!(one.recorder.turns(2), [true]);
}

#[tokio::test]
async fn stopping_ends_calls_and_tells_the_handler() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    one.connects_to(&two).await;
    let call = tokio::spawn(one.network.call(2, Bytes::from("hang"), WAIT));
    let began = |seen: &Seen| seen.executed.contains_key(&b"hang"[..]).then_some(());
    two.recorder.until("the call", began).await;
    one.network.stop();
    assert_eq!(within("its end", call).await.unwrap(), Err(CallError::Lost));
    one.recorder.until_down(2).await;
    two.recorder.until("the work's end", |seen| (seen.dropped == 1).then_some(())).await;
    one.dials(&[(2, two.address)]);
    assert!(is_not_sent(&one.asks(2, "late").await));
    assert_eq!(one.recorder.turns(2), [true, false]);
}

#[tokio::test]
async fn a_node_that_asks_to_join_is_answered() {
    let one = TestNode::start(1).await;
    let address = one.address.to_string();
    let request = Bytes::from("take me");
    let mut new = config(0);
    new.cluster = 0;
    let (peer, answer) = join(&new, &address, request.clone(), WAIT).await.unwrap();
    assert_eq!((peer.cluster, peer.node), (CLUSTER, 1));
    assert_eq!(answer, "test 0 b\"take me\": welcome");

    new.secret = b"guess".to_vec();
    let refused = join(&new, &address, request.clone(), WAIT).await.unwrap_err();
    assert!(refused.to_string().contains("secrets differ"), "{refused}");
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let refused = join(&new, &nobody, request, WAIT).await.unwrap_err();
    assert!(matches!(refused, JoinError::NoNode { .. }), "{refused}");
}

/// A seeded sequence of numbers.
struct Draws(AtomicU64);

impl Draws {
    fn below(&self, bound: u64) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15;
        let mut mixed = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
