//! One node's loop, turned by hand. The test plays its peers, and ticks pass only when the test
//! says so.

mod kept_out;
mod log_kept;
mod own_commands;
mod room;
mod stopped;

use super::*;
use crate::{
    Config,
    limits::COMMAND_BYTES_MAX,
    peer::{PeerConfig, PeerHandler, PeerHello},
    shard::{
        ClaimRequest,
        engine::{Opened, open},
        inbox::Input,
    },
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use taskyard_machine::{Ack, ClaimToken, Enqueue, Enqueued, NewTask, Outcome, TaskId, ask};
use taskyard_replica::{
    Change, ControlCommand, Members, Node, NodeId, Placement, encode_message,
    eraftpb::{Entry as LogEntry, Message, MessageType},
};
use tokio::{net::TcpListener, sync::oneshot};

const SHARD: ShardId = ShardId(0);
const GROUP: u64 = 1;
/// The replica with number N is on node N.
const ME: u64 = 1;
const PEERS: [u64; 2] = [2, 3];
const WAIT: Duration = Duration::from_secs(60);

/// A loop that leads a shard with two followers.
struct ByHand {
    inner: ShardLoop,
    shards: Shards,
    _dir: tempfile::TempDir,
}

impl ByHand {
    fn new() -> ByHand {
        ByHand::with(Change::AddVoter)
    }

    /// The two other replicas join the group by this change.
    fn with(change: impl Fn(u64) -> Change) -> ByHand {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        (config.shards, config.disk_reserve_bytes) = (Some(1), 0);
        let Opened { parts, .. } = open(&config).unwrap();
        let shards = parts.handle.clone();
        let mut inner = ShardLoop::new(parts);
        inner.follow_control().unwrap();
        let mut this = ByHand { inner, shards, _dir: dir };
        this.turn();
        for id in PEERS {
            let node = Node { rules_max: RULES_CURRENT, ..Node::default() };
            this.control(ControlCommand::AddNode { id, node });
            this.control(ControlCommand::Assign { group: GROUP, node: id });
        }
        let (term, since) = (this.replica().term(), this.replica().members_since());
        let changes = PEERS.map(change).to_vec();
        let (answer, mut answered) = oneshot::channel();
        this.take(Input::Change { group: GROUP, fence: (term, since), changes, answer });
        answered.try_recv().unwrap().unwrap();
        let are_in = |members: &Members| {
            members.outgoing.is_empty() && members.voters.len() + members.learners.len() == 3
        };
        while !are_in(&this.replica().members()) {
            PEERS.iter().for_each(|peer| this.has_all(*peer));
        }
        assert!(this.leads());
        this
    }

    fn control(&mut self, command: ControlCommand) {
        let (answer, mut answered) = oneshot::channel();
        self.take(Input::Control { command, answer });
        answered.try_recv().unwrap().unwrap();
    }

    fn take(&mut self, input: Input) {
        self.inner.accept(input).unwrap();
        self.turn();
    }

    /// Takes all inputs, and turns until there is nothing to do.
    fn turn(&mut self) {
        let mut inputs = Taken::default();
        self.inner.inbox.take(&mut inputs, Some(Duration::ZERO), TURN_LOG_BYTES_MAX);
        while let Some(input) = inputs.next() {
            self.inner.accept(input).unwrap();
        }
        for _ in 0..10 {
            self.inner.turn().unwrap();
            self.inner.look_at_hand_over();
        }
    }

    fn replica(&mut self) -> &mut taskyard_replica::Replica<local::State> {
        &mut self.inner.shards[usize::from(SHARD.0)].replica
    }

    fn leads(&self) -> bool {
        self.inner.shards[usize::from(SHARD.0)].leading.is_some()
    }

    /// A peer sends a message in a term.
    fn hear(&mut self, from: u64, kind: MessageType, term: u64, fill: impl FnOnce(&mut Message)) {
        let mut message = Message { from, to: ME, term, ..Message::default() };
        message.set_msg_type(kind);
        fill(&mut message);
        let message = Bytes::from(encode_message(&message));
        self.take(Input::Raft { from, group: GROUP, message });
    }

    /// A follower acknowledges the whole log.
    fn has_all(&mut self, peer: u64) {
        let (term, last) = (self.replica().term(), self.replica().last_index());
        self.hear(peer, MessageType::MsgAppendResponse, term, |message| message.index = last);
    }

    /// Another replica leads in the next term.
    fn is_deposed_by(&mut self, peer: u64) {
        let term = self.replica().term() + 1;
        self.hear(peer, MessageType::MsgHeartbeat, term, |_| ());
        assert!(!self.leads());
    }

    /// Is elected again, and does not serve yet: no follower has its first entry.
    fn wins_an_election(&mut self) {
        self.is_deposed_by(2);
        let term = self.replica().term();
        self.hear(2, MessageType::MsgTimeoutNow, term, |_| ());
        self.hear(2, MessageType::MsgRequestVoteResponse, term + 1, |_| ());
        assert!(self.replica().is_becoming_leader() && !self.leads());
    }

    /// Connects the node with peers that read everything and send nothing.
    async fn connect(&self) -> Vec<PeerNetwork> {
        let mut networks = Vec::new();
        let mut addresses = BTreeMap::new();
        for node in [&[ME][..], &PEERS].concat() {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.insert(node, listener.local_addr().unwrap().to_string());
            let config = PeerConfig {
                cluster: 1,
                node,
                secret: Vec::new(),
                build: "test".into(),
                rules: RULES_CURRENT,
                start: None,
            };
            let handler = Arc::new(Silent);
            networks.push(PeerNetwork::start(&config, listener, handler, Clock::system()));
        }
        networks.iter().for_each(|network| network.set_peers(&addresses));
        let deadline = clock::real_now() + WAIT;
        while !PEERS.iter().all(|peer| networks[0].is_connected(*peer)) {
            assert!(clock::real_now() < deadline, "they connect");
            tokio::task::yield_now().await;
        }
        self.shards.connect(networks[0].clone());
        networks
    }

    /// Begins to hand over; the receiver resolves once that is done.
    fn hand_over(&mut self) -> oneshot::Receiver<Result<(), Error>> {
        let (answer, answered) = oneshot::channel();
        self.take(Input::HandOver { until: clock::real_now() + WAIT, answer });
        answered
    }
}

struct Silent;

impl PeerHandler for Silent {
    fn raft(&self, _: NodeId, _: u64, _: Bytes) {}

    fn told(&self, _: NodeId, _: Bytes) {}

    fn call(&self, _: NodeId, _: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(std::future::pending())
    }

    fn joined(&self, _: PeerHello, _: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(std::future::pending())
    }

    fn peer_up(&self, _: NodeId) {}

    fn peer_down(&self, _: NodeId) {}
}

fn enqueue() -> EncodedCommand {
    let task = NewTask { task_type: "test", ..NewTask::default() };
    EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "mail", task }))
}

fn claim() -> ClaimRequest {
    ClaimRequest::of_queue("mail", 1)
}

/// A call of each kind, and its answer so far.
struct Calls {
    under_way: Vec<BoxFuture<'static, Result<(), Error>>>,
    answers: Vec<Option<Result<(), Error>>>,
}

impl Calls {
    fn begin(shards: &Shards) -> Calls {
        let [one, many, claims, reads] = [(); 4].map(|()| shards.clone());
        let one = async move { one.local().propose(SHARD, enqueue(), true).await.map(drop) };
        let many = async move {
            let mut answers = many.local().propose_all(vec![(SHARD, enqueue())], true).await;
            answers.remove(0).map(drop)
        };
        let claim =
            async move { claims.local().claim(SHARD, claim(), Duration::ZERO).await.map(drop) };
        let read = async move { reads.local().ask(SHARD, ask::Now {}).await.map(drop) };
        let under_way = vec![one.boxed(), many.boxed(), claim.boxed(), read.boxed()];
        let mut calls = Calls { answers: vec![None; under_way.len()], under_way };
        calls.look();
        calls
    }

    /// The answers so far, by the kind of call.
    fn look(&mut self) -> &[Option<Result<(), Error>>] {
        for (call, answer) in self.under_way.iter_mut().zip(&mut self.answers) {
            if answer.is_none() {
                *answer = call.now_or_never();
            }
        }
        &self.answers
    }

    fn all_are(&mut self, wanted: &Option<Result<(), Error>>) {
        assert!(self.look().iter().all(|answer| answer == wanted), "{:?}", self.answers);
    }
}

#[test]
fn a_shard_that_has_nothing_to_do_rests() {
    let mut node = ByHand::new();
    node.inner.activate(0);
    node.inner.turn().unwrap();
    assert!(node.inner.active.is_empty(), "the loop would turn for nothing, and never end");
}

/// The new leader redirected its callers, who came back only after a pause.
#[test]
fn calls_to_an_elected_leader_wait_until_it_serves() {
    let mut node = ByHand::new();
    node.wins_an_election();
    let mut calls = Calls::begin(&node.shards);
    node.turn();
    calls.all_are(&None);
    assert!(node.inner.queued_bytes > 0);
    node.has_all(2);
    assert!(node.leads());
    let term = node.replica().term();
    // The read is confirmed by a heartbeat, the rest by the log.
    node.hear(2, MessageType::MsgHeartbeatResponse, term, |message| {
        message.context = 0_u64.to_be_bytes().to_vec().into();
    });
    node.has_all(2);
    calls.all_are(&Some(Ok(())));
    assert_eq!(node.inner.queued_bytes, 0);
}

#[test]
fn calls_that_wait_for_a_failed_election_are_redirected() {
    let mut node = ByHand::new();
    node.wins_an_election();
    let mut calls = Calls::begin(&node.shards);
    node.turn();
    calls.all_are(&None);
    node.is_deposed_by(3);
    calls.all_are(&Some(Err(Error::NotLeader { shard: 0, leader: Some(3) })));
    // The leader steps down in its own term when it hears no peer: its role stays the same.
    node.wins_an_election();
    let mut calls = Calls::begin(&node.shards);
    node.turn();
    (0..20).for_each(|_| node.replica().tick());
    node.inner.activate(0);
    node.turn();
    assert!(!node.replica().is_becoming_leader());
    calls.all_are(&Some(Err(Error::NotLeader { shard: 0, leader: None })));
    assert_eq!(node.inner.queued_bytes, 0);
}

#[test]
fn calls_that_wait_for_a_removed_replica_are_redirected() {
    let mut node = ByHand::new();
    node.wins_an_election();
    let mut calls = Calls::begin(&node.shards);
    node.turn();
    node.control(ControlCommand::SetTarget { group: GROUP, nodes: PEERS.to_vec() });
    node.control(ControlCommand::Unassign { group: GROUP, replica: ME });
    assert!(node.inner.shards.get(0).is_none(), "the map has another place for it");
    calls.all_are(&Some(Err(Error::NotLeader { shard: 0, leader: None })));
    assert_eq!(node.inner.queued_bytes, 0);
}

/// A leader with one task, and a call that waits for the task's end.
fn watched() -> (ByHand, TaskId, BoxFuture<'static, Result<bool, Error>>) {
    let mut node = ByHand::new();
    let shards = node.shards.clone();
    let mut call = async move { shards.local().propose(SHARD, enqueue(), true).await }.boxed();
    assert!((&mut call).now_or_never().is_none());
    node.turn();
    node.has_all(2);
    let Some(Ok(Outcome::Enqueued(Enqueued { id, .. }))) = call.now_or_never() else {
        panic!("it is enqueued");
    };
    let shards = node.shards.clone();
    let mut wait = async move { shards.local().finished(id, WAIT).await }.boxed();
    assert!((&mut wait).now_or_never().is_none());
    node.turn();
    assert!((&mut wait).now_or_never().is_none(), "it has not ended");
    (node, id, wait)
}

#[tokio::test]
async fn a_wait_for_an_end_is_redirected_when_another_replica_leads() {
    let (mut node, _, wait) = watched();
    node.is_deposed_by(3);
    let sent_on = Err(Error::NotLeader { shard: 0, leader: Some(3) });
    assert_eq!(wait.now_or_never(), Some(sent_on));
}

#[tokio::test]
async fn waits_and_reads_are_redirected_when_the_replica_is_removed() {
    let (mut node, _, wait) = watched();
    // No follower confirms the read.
    let shards = node.shards.clone();
    let mut read = async move { shards.local().ask(SHARD, ask::Now {}).await }.boxed();
    assert!((&mut read).now_or_never().is_none());
    node.turn();
    assert!((&mut read).now_or_never().is_none());
    node.control(ControlCommand::SetTarget { group: GROUP, nodes: PEERS.to_vec() });
    node.control(ControlCommand::Unassign { group: GROUP, replica: ME });
    assert!(node.inner.shards.get(0).is_none(), "the map has another place for it");
    let sent_on = Error::NotLeader { shard: 0, leader: None };
    assert_eq!(wait.now_or_never(), Some(Err(sent_on.clone())));
    assert_eq!(read.now_or_never(), Some(Err(sent_on)));
}

/// A leader that is cut off does not know that another leader has changed the body since.
#[tokio::test]
async fn a_body_is_given_by_a_confirmed_leader_alone() {
    let (mut node, id, _wait) = watched();
    let begin = |node: &mut ByHand| {
        let shards = node.shards.clone();
        let mut bodies = async move { shards.local().bodies(vec![id]).await }.boxed();
        assert!((&mut bodies).now_or_never().is_none());
        node.turn();
        assert!((&mut bodies).now_or_never().is_none(), "no follower has confirmed that it leads");
        bodies
    };
    let mut confirmed = begin(&mut node);
    let term = node.replica().term();
    node.hear(2, MessageType::MsgHeartbeatResponse, term, |message| {
        message.context = 0_u64.to_be_bytes().to_vec().into();
    });
    assert!((&mut confirmed).now_or_never().is_none(), "now it is asked for");
    node.turn();
    let bodies = confirmed.now_or_never().expect("it is in memory").unwrap();
    assert!(matches!(bodies[..], [Some(_)]), "{bodies:?}");

    let deposed = begin(&mut node);
    node.is_deposed_by(3);
    let answer = deposed.now_or_never();
    assert!(matches!(answer, Some(Err(Error::NotLeader { .. }))), "{answer:?}");
}

#[tokio::test]
async fn a_shard_that_its_heir_does_not_take_is_offered_to_the_next_at_once() {
    let mut node = ByHand::new();
    let networks = node.connect().await;
    let term = node.replica().term();
    let mut done = node.hand_over();
    let first = node.replica().heir().expect("one of them");
    let second = 5 - first;
    let refuse = |message: &mut Message| message.reject = true;
    node.hear(first, MessageType::MsgTransferLeader, term, refuse);
    assert_eq!(node.replica().heir(), Some(second));
    // The second heir's node disconnects before it takes over.
    node.take(Input::Peer { node: second, is_up: false });
    assert_eq!(node.replica().heir(), None, "both have had their chance");
    node.inner.real += Duration::from_millis(100);
    node.turn();
    let heir = node.replica().heir().expect("they are asked again");
    assert!(done.try_recv().is_err());
    node.hear(heir, MessageType::MsgRequestVote, term + 1, |message| {
        message.context = b"CampaignTransfer".to_vec().into();
        (message.index, message.log_term) = (u64::MAX, term);
    });
    assert!(done.try_recv().is_err(), "its vote may be needed until another leads");
    node.hear(heir, MessageType::MsgHeartbeat, term + 1, |_| ());
    assert_eq!(done.try_recv().unwrap(), Ok(()));
    drop(networks);
}

/// There is no other leader to wait for.
#[test]
fn a_node_that_alone_has_a_vote_stops_at_once() {
    let mut node = ByHand::with(Change::AddLearner);
    assert_eq!(node.hand_over().try_recv().unwrap(), Ok(()));
    assert!(node.leads());
}

#[tokio::test]
async fn a_node_that_stops_takes_nothing_over_and_is_asked_for_nothing() {
    let mut node = ByHand::new();
    let networks = node.connect().await;
    let mut done = node.hand_over();
    let (answer, mut answered) = oneshot::channel();
    node.take(Input::Transfer { group: GROUP, to: 2, answer });
    let refused = answered.try_recv().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "the node that leads it stops, and hands it over by itself");
    node.is_deposed_by(2);
    assert_eq!(done.try_recv().unwrap(), Ok(()));
    let term = node.replica().term();
    node.hear(2, MessageType::MsgTimeoutNow, term, |_| ());
    assert_eq!(node.replica().term(), term, "it does not campaign");
    drop(networks);
}

#[test]
fn a_leader_that_cannot_reach_a_node_hands_it_nothing() {
    let mut node = ByHand::new();
    let (answer, mut answered) = oneshot::channel();
    node.take(Input::Transfer { group: GROUP, to: 2, answer });
    let refused = answered.try_recv().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "node 2 can't be reached from the node that leads it");
    assert_eq!(node.replica().heir(), None);
    assert!(node.leads());
}

/// A large result makes the ack as large as wanted.
fn large_ack(bytes: usize) -> EncodedCommand {
    let task = TaskId { incarnation: 1, home: SHARD, origin: SHARD, sequence: 1 };
    let payload = vec![0; bytes];
    let ack = Ack { task, token: ClaimToken(1), result: Some(&payload), follow_ups: Vec::new() };
    EncodedCommand::new(&Command::Ack(ack))
}

#[test]
fn a_command_that_is_too_large_is_refused_and_the_others_of_its_call_are_not() {
    let mut node = ByHand::new();
    let last = node.replica().last_index();
    let shards = node.shards.clone();
    let commands =
        vec![(SHARD, enqueue()), (SHARD, large_ack(COMMAND_BYTES_MAX)), (SHARD, enqueue())];
    let mut call = async move { shards.local().propose_all(commands, false).await }.boxed();
    assert!((&mut call).now_or_never().is_none());
    node.turn();
    node.has_all(2);
    let answers = call.now_or_never().expect("all are answered");
    assert!(answers[0].is_ok() && answers[2].is_ok(), "{answers:?}");
    let refused = answers[1].clone().unwrap_err();
    assert_eq!(refused.code(), "payload_too_large", "{refused}");
    assert_eq!(node.replica().last_index(), last + 2, "nothing of it is in the log");
    assert!(node.leads());

    // The loop's own commands are bounded where they come in. An oversized one is still not
    // proposed.
    node.inner.shards[0].pending.push((large_ack(COMMAND_BYTES_MAX), Waiting::Nobody));
    node.inner.activate(0);
    node.turn();
    assert_eq!(node.replica().last_index(), last + 2);
}

/// The bound above keeps such an entry out of the log. If one gets there all the same, a leader
/// that stays in office blocks the shard for ever.
#[test]
fn a_leader_that_can_not_send_its_entry_ends_its_leadership() {
    let mut node = ByHand::new();
    let shards = node.shards.clone();
    let mut call = async move { shards.local().propose(SHARD, enqueue(), true).await }.boxed();
    assert!((&mut call).now_or_never().is_none());
    node.turn();
    let (term, last) = (node.replica().term(), node.replica().last_index());
    let mut append = Message { from: ME, to: 2, term, index: last - 1, ..Message::default() };
    append.set_msg_type(MessageType::MsgAppend);
    let data = vec![0; crate::limits::PEER_FRAME_BYTES_MAX].into();
    append.mut_entries().push(LogEntry { index: last, term, data, ..LogEntry::default() });
    node.inner.send(GROUP, vec![append]);
    node.turn();
    assert!(!node.leads());
    assert_eq!(call.now_or_never(), Some(Err(Error::OutcomeUnknown)));
    (0..100).for_each(|_| node.replica().tick());
    node.turn();
    assert!(!node.leads() && !node.replica().is_becoming_leader());
    assert_eq!(node.replica().term(), term, "it does not even ask for votes");
}

/// Followers answer its heartbeats, and none ever gets its next entry.
#[test]
fn a_leader_whose_entries_do_not_arrive_says_that_it_is_slow_until_it_may_lead_again() {
    let mut node = ByHand::new();
    let (answer, mut answered) = oneshot::channel();
    node.take(Input::Propose { shard: SHARD, command: enqueue(), enqueue: true, answer });
    let term = node.replica().term();
    let mut ticks = 0;
    while node.leads() {
        PEERS
            .iter()
            .for_each(|peer| node.hear(*peer, MessageType::MsgHeartbeatResponse, term, |_| ()));
        node.inner.real += peers::TICK;
        node.inner.tick().unwrap();
        node.turn();
        ticks += 1;
        assert!(ticks < 1_000, "it leads for ever");
    }
    assert_eq!(answered.try_recv().unwrap(), Err(Error::OutcomeUnknown));
    assert!(node.shards.routes().is_slow());
    let problem = node.shards.routes().problem().unwrap();
    assert!(
        problem.starts_with("what this node sends reaches the other nodes too slowly"),
        "{problem}"
    );
    node.is_deposed_by(2);
    let mut ticks = 0;
    while node.shards.routes().is_slow() {
        node.hear(2, MessageType::MsgHeartbeat, term + 1, |_| ());
        node.inner.real += peers::TICK;
        node.inner.tick().unwrap();
        ticks += 1;
        assert!(ticks < 10_000, "it is slow for ever");
    }
    assert_eq!(node.shards.routes().problem(), None);
}
