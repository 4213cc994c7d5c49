//! A mistake in the rules stops the shard that meets it, and nothing else: when an entry is
//! applied, when a checkpoint is loaded, and when one is made.

use super::*;
use crate::{
    data_dir::DataDir,
    log::{Log, group_of},
    shard::Engine,
    shard_loop::local::{MISTAKE, MISTAKE_IN_A_BITE, MISTAKE_IN_A_LOAD},
};

fn enqueue_to(queue: &str) -> EncodedCommand {
    let task = NewTask { task_type: "test", ..NewTask::default() };
    EncodedCommand::new(&Command::Enqueue(Enqueue { queue, task }))
}

fn mistake() -> EncodedCommand {
    enqueue_to(str::from_utf8(MISTAKE).unwrap())
}

#[test]
fn a_replica_whose_rules_fail_is_silent_and_its_node_goes_on() {
    let mut node = ByHand::new();
    let (answer, mut answered) = oneshot::channel();
    let (shard, command) = (SHARD, mistake());
    node.take(Input::Propose { shard, command, enqueue: true, answer });
    let mut calls = Calls::begin(&node.shards);
    // A majority has the entry, so that it is applied.
    node.has_all(2);
    assert!(node.inner.shards.get(0).is_none());
    assert_eq!(answered.try_recv().unwrap(), Err(Error::OutcomeUnknown));
    let answers = calls.look();
    assert_eq!(answers[..2], [const { Some(Err(Error::OutcomeUnknown)) }; 2]);
    let problem = node.shards.routes().problem().unwrap();
    assert!(problem.starts_with("shard 0 is stopped on node 1, because entry "), "{problem}");
    assert!(problem.contains(" of its log failed: a rule is wrong; keep the data"), "{problem}");

    // The replica gives no vote, and the map does not make an empty replica in its place.
    node.hear(3, MessageType::MsgRequestVote, 99, |_| ());
    node.control(ControlCommand::SetReplication { factor: 1 });
    assert!(node.inner.shards.get(0).is_none());
    let mut calls = Calls::begin(&node.shards);
    node.turn();
    calls.all_are(&Some(Err(Error::Unavailable(problem))));

    // Other replicas have taken its place: its state is removed.
    node.control(ControlCommand::Place {
        group: GROUP,
        replicas: PEERS.map(|node| Placement { node, replica: node }).to_vec(),
    });
    assert_eq!(node.inner.stopped.count(), 0);
    assert_eq!(node.inner.log.group(GROUP).unwrap().entries, None);
    assert_eq!(node.shards.routes().problem(), None);
}

#[tokio::test]
async fn the_other_shards_are_served_and_so_they_are_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    (config.shards, config.disk_reserve_bytes) = (Some(4), 0);
    let engine = Engine::start(&config).unwrap();
    let shards = engine.shards();
    let stopped = shards.home("mail");
    shards.propose(stopped, enqueue_to("mail"), true).await.unwrap();
    let error = shards.propose(stopped, mistake(), true).await.unwrap_err();
    assert_eq!(error, Error::OutcomeUnknown);
    drop(engine);
    for _ in 0..2 {
        let engine = Engine::start(&config).unwrap();
        let shards = engine.shards();
        for shard in (0..4).map(ShardId).filter(|shard| *shard != stopped) {
            shards.propose(shard, enqueue_to("other"), true).await.unwrap();
        }
        // The shard may serve before it applies the entry.
        let error = loop {
            match shards.propose(stopped, enqueue_to("mail"), true).await {
                Err(error @ Error::Unavailable(_)) => break error,
                Err(Error::OutcomeUnknown | Error::NoQuorum { .. }) => {
                    tokio::task::yield_now().await
                }
                other => panic!("a stopped shard has answered {other:?}"),
            }
        };
        let words = error.to_string();
        assert!(words.starts_with(&format!("shard {stopped} is stopped on node 1")), "{words}");
        // A backup with that shard's last checkpoint would lack acknowledged tasks.
        let refused = shards.backup().await.map(drop).unwrap_err().to_string();
        assert_eq!(refused, format!("a backup would lack the newest data: {words}"));
        engine.stop();
    }
    let data = DataDir::open(dir.path(), None).unwrap();
    let log = Log::open(&data.log()).unwrap();
    let (_, last) = log.group(group_of(stopped)).unwrap().entries.expect("its log is kept");
    assert!(last >= 3, "{last}");
}

/// Four shards, one of which has a task in a queue of this name; and that shard.
async fn four_with(config: &Config, queue: &[u8]) -> (Engine, ShardId) {
    let engine = Engine::start(config).unwrap();
    let queue = str::from_utf8(queue).unwrap();
    let home = engine.shards().home(queue);
    engine.shards().propose(home, enqueue_to(queue), true).await.unwrap();
    (engine, home)
}

/// A shard is stopped here for this reason, and the others serve.
async fn is_stopped_alone(shards: &Shards, stopped: ShardId, doing: &str) {
    for shard in (0..4).map(ShardId).filter(|shard| *shard != stopped) {
        shards.propose(shard, enqueue_to("other"), true).await.unwrap();
    }
    let error = shards.propose(stopped, enqueue_to("mail"), true).await.unwrap_err();
    assert_eq!(error.code(), "unavailable");
    let words = error.to_string();
    let wanted = format!("shard {stopped} is stopped on node 1, because {doing}");
    assert!(words.starts_with(&wanted), "{words}");
    assert!(words.contains(" failed: a rule is wrong; keep the data directory for a"), "{words}");
    let refused = shards.backup().await.map(drop).unwrap_err().to_string();
    assert_eq!(refused, format!("a backup would lack the newest data: {words}"));
}

/// It ended the node, at each start.
#[tokio::test]
async fn a_checkpoint_that_the_rules_fail_to_load_stops_its_shard_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    (config.shards, config.disk_reserve_bytes) = (Some(4), 0);
    let (engine, stopped) = four_with(&config, MISTAKE_IN_A_LOAD).await;
    engine.stop();
    let held = || {
        let data = DataDir::open(dir.path(), None).unwrap();
        Log::open(&data.log()).unwrap().group(group_of(stopped)).unwrap()
    };
    let before = held();
    assert!(before.cut > 0, "it has a checkpoint");
    for _ in 0..2 {
        let engine = Engine::start(&config).unwrap();
        let doing = format!("the load of its checkpoint at entry {}", before.cut);
        is_stopped_alone(&engine.shards(), stopped, &doing).await;
        engine.stop();
    }
    assert_eq!(held(), before, "a version without the mistake goes on from there");
}

/// It ended the node, whenever the checkpoint was due.
#[tokio::test]
async fn a_checkpoint_that_the_rules_fail_to_make_stops_its_shard_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    (config.shards, config.disk_reserve_bytes) = (Some(4), 0);
    for _ in 0..2 {
        // Its log is whole: it serves until the next checkpoint.
        let (engine, stopped) = four_with(&config, MISTAKE_IN_A_BITE).await;
        let refused = engine.shards().backup().await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("because a checkpoint of its state failed"), "{refused}");
        is_stopped_alone(&engine.shards(), stopped, "a checkpoint of its state").await;
        engine.stop();
    }
    // A stop makes checkpoints too: it ends all the same.
    let (engine, _) = four_with(&config, MISTAKE_IN_A_BITE).await;
    engine.stop();
    assert!(Engine::start(&config).is_ok());
}

/// An entry of a newer version may be in every shard: the node waits for that version.
#[test]
fn an_entry_of_another_version_stops_the_node() {
    let mut node = ByHand::new();
    node.replica().propose(vec![0xff], 77).unwrap();
    node.inner.activate(0);
    node.turn();
    let (term, last) = (node.replica().term(), node.replica().last_index());
    let mut message = Message { from: 2, to: ME, term, index: last, ..Message::default() };
    message.set_msg_type(MessageType::MsgAppendResponse);
    let message = Bytes::from(encode_message(&message));
    node.inner.accept(Input::Raft { from: 2, group: GROUP, message }).unwrap();
    let failed = node.inner.turn().unwrap_err();
    assert!(failed.0.contains("start the newer version that wrote it"), "{}", failed.0);
}
