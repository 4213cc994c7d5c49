//! A leader that has dropped its log, and a follower that begins with nothing.

use super::*;
use crate::{
    checkpoint::{Change, Checkpointer, Cut, Report, Store},
    clock,
    cluster::Snapshots,
    data_dir::DataDir,
    log::{Log, group_of},
    shard_loop::{
        checkpoints::{At, Checkpoint, Checkpoints},
        load,
        local::Waiting,
        recover::{check_they_meet, finish_install, restored},
    },
};
use std::sync::{Arc, mpsc};
use taskyard_machine::{
    Body, Command, EncodedCommand, Enqueue, Identity, Machine, NewTask, RULES_CURRENT, ShardId,
    TaskId, Timestamp,
};
use taskyard_replica::{
    Config, Restored,
    eraftpb::{ConfState, MessageType},
};

const SHARD: ShardId = ShardId(2);
const IDENTITY: Identity = Identity { incarnation: 1, shard: SHARD, shards: 4 };
const LEADER: u64 = 1;
const FOLLOWER: u64 = 2;

struct Node {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    log: Arc<Log>,
    shard: LocalShard,
}

impl Node {
    fn new(id: u64, restored: Restored) -> Node {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["state", "log"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        let store = Store::open(&dir.path().join("state")).unwrap();
        let log = Arc::new(Log::open(&dir.path().join("log")).unwrap());
        let shard = start(id, restored, &log, Machine::new(IDENTITY), 0);
        Node { dir, store, log, shard }
    }

    /// Kills the process and starts it again.
    fn restart(self) -> Node {
        let Node { dir, store, log, shard } = self;
        let id = shard.replica.id();
        drop((store, log, shard));
        let store = Store::open(&dir.path().join("state")).unwrap();
        let log = Arc::new(Log::open(&dir.path().join("log")).unwrap());
        let view = store.view();
        let cut = view.cut(SHARD).unwrap().expect("there is a checkpoint");
        if view.is_installed(SHARD).unwrap() {
            finish_install(&log, group_of(SHARD), id, &cut).unwrap();
        }
        let held = log.group(group_of(SHARD)).unwrap();
        check_they_meet(Some(&cut), &held).unwrap();
        let machine = load(IDENTITY, view.records(SHARD)).unwrap();
        let index = cut.index;
        let shard = start(id, restored(id, Some(cut), &held), &log, machine, index);
        drop(view);
        Node { dir, store, log, shard }
    }

    /// Writes and applies everything pending; returns the messages to send.
    fn drive(&mut self) -> Vec<Message> {
        let (mut batch, mut messages) = (Batch::default(), Vec::new());
        while let Some(ready) = self.shard.replica.ready() {
            self.shard.install(&ready, &mut batch);
            batch.append(self.shard.group, &ready.entries);
            if let Some(hard_state) = &ready.hard_state {
                batch.hard_state(self.shard.group, hard_state);
            }
            messages.extend(ready.messages_now);
            self.log.write(&mut batch).unwrap();
            messages.extend(self.shard.replica.persisted(ready.number).messages);
        }
        messages
    }

    /// Takes a fetched snapshot, with all jobs that follow.
    fn take(&mut self, fetched: Box<Fetched>) {
        let job = self.shard.fetched(fetched);
        self.work(job);
    }

    /// Does the job as the store's thread would.
    fn work(&mut self, job: Option<Job>) {
        match job {
            None | Some(Job::Drop(_)) => {}
            Some(Job::Discard(shard, id)) => self.store.discard_install(shard, id),
            Some(Job::Switch(shard, id, cut)) => {
                let is_switched = self.store.switch(shard, id, &cut).unwrap();
                let next = self.shard.switched(id, is_switched);
                self.work(next);
            }
            Some(_) => panic!("that is no job of a snapshot"),
        }
    }

    fn enqueue(&mut self, count: u64) {
        for number in 0..count {
            let payload = number.to_le_bytes();
            let body = Body { payload: &payload, ..Body::default() };
            let task = NewTask { task_type: "test", body, ..NewTask::default() };
            let command = Command::Enqueue(Enqueue { queue: "mail", task });
            self.shard.pending.push((EncodedCommand::new(&command), Waiting::Nobody));
        }
        let now = self.shard.machine().now().0 + 1;
        assert!(self.shard.propose(RULES_CURRENT, Timestamp(now)).is_empty(), "it leads");
    }

    /// Stores the whole state and drops the log up to it.
    fn checkpoint(&mut self) -> Cut {
        let (index, term) = (self.shard.replica.applied(), self.shard.replica.applied_term());
        let cut = Cut { index, term, conf_state: self.shard.replica.conf_state().clone() };
        let state = self.shard.state();
        let mut changes = Vec::new();
        for (key, value) in state.machine.records() {
            if let taskyard_machine::RecordKey::Task(task) = key {
                changes.extend(state.bodies.get(task).map(|body| Change::Body(task, body)));
            }
            changes.push(Change::Record(key, Some(value)));
        }
        self.store.write(SHARD, &cut, changes).unwrap();
        self.shard.replica.compact(index);
        let mut batch = Batch::default();
        batch.cut(self.shard.group, index);
        self.log.write(&mut batch).unwrap();
        cut
    }

    /// Fetches the whole snapshot, as the fetcher would.
    fn fetch(&mut self, from: &Node, message: Message) -> Box<Fetched> {
        let order = self.shard.offered(message).expect("it is wanted");
        self.fetch_ordered(from, order)
    }

    fn fetch_ordered(&self, from: &Node, order: SnapshotOrder) -> Box<Fetched> {
        let id = order.id();
        let view = from.store.view();
        let mut arrived = self.store.begin_install(SHARD, id).unwrap();
        while !arrived.position.is_end() {
            let part = view.part(SHARD, &arrived.position, 1_000).unwrap();
            arrived = self.store.put_part(SHARD, id, &part).unwrap();
        }
        let machine = load(IDENTITY, self.store.view().installed_records(SHARD)).unwrap();
        Box::new(Fetched { order, machine })
    }

    fn hash(&self) -> u64 {
        self.shard.machine().state_hash()
    }
}

fn start(id: u64, restored: Restored, log: &Arc<Log>, machine: Machine, stored: u64) -> LocalShard {
    let config =
        Config { id, seed: 1, heartbeat_ticks: 2, election_ticks: 10, entry_bytes_max: 1 << 20 };
    let reader = Box::new(log.reader(group_of(SHARD)));
    let replica = Replica::new(&config, restored, reader, State::new(machine)).unwrap();
    LocalShard::new(SHARD, group_of(SHARD), replica, Checkpoint::new(stored, 0))
}

/// A leader with a hundred tasks that has dropped its whole log, and an empty follower.
fn cluster() -> (Node, Node) {
    let conf_state =
        ConfState { voters: vec![LEADER], learners: vec![FOLLOWER], ..Default::default() };
    let mut leader = Node::new(LEADER, Restored { conf_state, ..Default::default() });
    leader.drive();
    leader.enqueue(100);
    leader.drive();
    leader.checkpoint();
    let source = Snapshots::new(1, &leader.store).source(SHARD);
    leader.shard.replica.set_snapshot_source(source);
    (leader, Node::new(FOLLOWER, Restored::default()))
}

/// Exchanges messages until a snapshot is offered or none are left.
fn talk(leader: &mut Node, follower: &mut Node) -> Option<Message> {
    for _ in 0..50 {
        leader.shard.replica.tick();
        for message in leader.drive() {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                return Some(message);
            }
            follower.shard.replica.step(message);
        }
        for message in follower.drive() {
            leader.shard.replica.step(message);
        }
    }
    None
}

#[test]
fn a_follower_takes_a_snapshot_and_goes_on_from_the_log() {
    let (mut leader, mut follower) = cluster();
    let offered = talk(&mut leader, &mut follower).expect("its log is gone");
    leader.enqueue(10);
    leader.drive();
    let fetched = follower.fetch(&leader, offered.clone());
    let index = fetched.order.index();
    assert_eq!(follower.shard.replica.applied(), 0, "nothing counts yet");
    follower.take(fetched);
    for message in follower.drive() {
        leader.shard.replica.step(message);
    }
    assert_eq!(follower.shard.replica.applied(), index);
    assert!(follower.shard.offered(offered).is_none(), "it is there");
    assert!(talk(&mut leader, &mut follower).is_none(), "one is enough");
    assert_eq!(follower.shard.replica.applied(), leader.shard.replica.applied());
    assert_eq!(follower.hash(), leader.hash());
    let held = follower.log.group(group_of(SHARD)).unwrap();
    assert_eq!((held.cut, held.entries.map(|(first, _)| first)), (index, Some(index + 1)));
    // Bodies from before the snapshot are on disk, later ones in memory.
    let task = |sequence| TaskId { incarnation: 1, home: SHARD, origin: SHARD, sequence };
    let tasks: Vec<TaskId> = (0..200).map(task).collect();
    let stored = tasks.iter().filter(|task| follower.store.body(**task).unwrap().is_some());
    assert_eq!(stored.count(), 100);
    let in_memory = tasks.iter().filter(|task| follower.shard.state().bodies.get(**task).is_some());
    assert_eq!(in_memory.count(), 10);

    let mut follower = follower.restart();
    follower.drive();
    talk(&mut leader, &mut follower);
    assert_eq!(follower.hash(), leader.hash());
}

#[test]
fn a_crash_between_the_switch_and_the_log_loses_nothing() {
    let (mut leader, mut follower) = cluster();
    let offered = talk(&mut leader, &mut follower).unwrap();
    let fetched = follower.fetch(&leader, offered);
    let index = fetched.order.index();
    follower.take(fetched);
    let ready = follower.shard.replica.ready().unwrap();
    let mut never_written = Batch::default();
    follower.shard.install(&ready, &mut never_written);
    let mut follower = follower.restart();
    assert_eq!(follower.shard.replica.applied(), index);
    assert_eq!(follower.hash(), leader.hash());
    // The leader was not told; it finds out when the peer is back.
    leader.shard.replica.snapshot_sent(FOLLOWER, true);
    leader.enqueue(10);
    assert!(talk(&mut leader, &mut follower).is_none(), "it has all of it");
    assert_eq!(follower.hash(), leader.hash());
}

#[test]
fn a_second_snapshot_replaces_the_first_and_all_of_the_log() {
    let (mut leader, mut follower) = cluster();
    for _ in 0..3 {
        if let Some(offered) = talk(&mut leader, &mut follower) {
            let fetched = follower.fetch(&leader, offered);
            follower.take(fetched);
            for message in follower.drive() {
                leader.shard.replica.step(message);
            }
        }
        talk(&mut leader, &mut follower);
        assert_eq!(follower.hash(), leader.hash());
        // The follower hears of these only after they are gone from the log.
        leader.enqueue(50);
        leader.drive();
        leader.checkpoint();
    }
    while follower.store.sweep().unwrap() {}
    assert_eq!(follower.store.view().bodies(SHARD).count(), 200);
}

#[test]
fn a_snapshot_waits_for_the_checkpoint_under_way() {
    let (mut leader, mut follower) = cluster();
    let offered = talk(&mut leader, &mut follower).unwrap();
    let fetched = follower.fetch(&leader, offered);
    follower.take(fetched);
    for message in follower.drive() {
        leader.shard.replica.step(message);
    }
    leader.enqueue(5);
    talk(&mut leader, &mut follower);
    let (written, reports) = mpsc::channel();
    let lock = tempfile::tempdir().unwrap();
    let data = Arc::new(DataDir::open(lock.path(), None).unwrap());
    let report = move |report| drop(written.send(report));
    let (store, log) = (&follower.store, &follower.log);
    let checkpointer = Checkpointer::start(&data, store, log, report).unwrap();
    let mut checkpoints = Checkpoints::default();
    Checkpoints::want(&mut follower.shard);
    let at = At { now: clock::real_now(), log: 0 };
    checkpoints.step_alone(&mut follower.shard, &checkpointer, at);
    assert!(!follower.shard.checkpoint.is_idle());

    leader.enqueue(5);
    leader.drive();
    leader.checkpoint();
    let offered = talk(&mut leader, &mut follower).unwrap();
    let newer = follower.fetch(&leader, offered);
    let index = newer.order.index();
    follower.take(newer);
    assert!(follower.shard.replica.pending_snapshot().is_none(), "a cut is frozen");
    while checkpoints.has_bites() {
        checkpoints.step_alone(&mut follower.shard, &checkpointer, at);
    }
    let Ok(Report::Written(_, cut)) = reports.recv() else { panic!("it is not written") };
    checkpoints.written(&mut follower.shard, &cut);
    Checkpoints::want(&mut follower.shard);
    checkpoints.step_alone(&mut follower.shard, &checkpointer, at);
    assert!(follower.shard.checkpoint.is_idle(), "no new one begins");
    let job = follower.shard.order_switch();
    follower.work(job);
    follower.drive();
    assert_eq!(follower.shard.replica.applied(), index);
    assert_eq!(follower.hash(), leader.hash());
}

#[test]
fn a_snapshot_that_the_log_has_overtaken_is_thrown_away() {
    let (mut leader, mut follower) = cluster();
    let offered = talk(&mut leader, &mut follower).unwrap();
    let fetched = follower.fetch(&leader, offered.clone());
    follower.take(fetched);
    for message in follower.drive() {
        leader.shard.replica.step(message);
    }
    leader.enqueue(5);
    talk(&mut leader, &mut follower);
    let applied = follower.shard.replica.applied();
    let late = SnapshotOrder::read(SHARD, offered).unwrap();
    let late = follower.fetch_ordered(&leader, late);
    follower.take(late);
    follower.drive();
    assert_eq!(follower.shard.replica.applied(), applied);
    assert_eq!(follower.hash(), leader.hash());
    while follower.store.sweep().unwrap() {}
    assert_eq!(follower.store.view().installed_records(SHARD).count(), 0);
    assert_eq!(follower.store.view().bodies(SHARD).count(), 100);
}

#[test]
fn a_snapshot_outlives_the_leader_that_offered_it() {
    let (mut leader, mut follower) = cluster();
    let offered = talk(&mut leader, &mut follower).unwrap();
    let term = offered.term + 3;
    let fetched = follower.fetch(&leader, offered);
    let index = fetched.order.index();
    let mut heartbeat = Message { from: 3, to: FOLLOWER, term, ..Default::default() };
    heartbeat.set_msg_type(MessageType::MsgHeartbeat);
    follower.shard.replica.step(heartbeat);
    follower.drive();
    follower.take(fetched);
    let told = follower.drive();
    assert_eq!(follower.shard.replica.applied(), index);
    assert_eq!(follower.hash(), leader.hash());
    let told: Vec<_> = told.iter().map(|answer| (answer.to, answer.term, answer.index)).collect();
    assert_eq!(told, [(3, term, index)], "the new leader learns of it");
}

/// A vote request of a candidate in a later term, as an heir sends it.
fn vote_request(follower: &Node, term: u64) -> Message {
    let mut request = Message { from: 3, to: FOLLOWER, term, ..Default::default() };
    request.set_msg_type(MessageType::MsgRequestVote);
    request.context = (&b"CampaignTransfer"[..]).into();
    (request.index, request.log_term) = (follower.shard.replica.last_index() + 1_000, term - 1);
    request
}

/// While the store switches, the replica confirms no append, and it keeps a vote that it gives,
/// whenever the process is killed.
#[test]
fn a_crash_between_the_switch_and_raft_keeps_the_vote_and_loses_nothing() {
    let (mut leader, mut follower) = cluster();
    let offered = talk(&mut leader, &mut follower).unwrap();
    let fetched = follower.fetch(&leader, offered);
    let index = fetched.order.index();
    let Some(Job::Switch(shard, id, cut)) = follower.shard.fetched(fetched) else {
        panic!("the store is to switch")
    };
    let term = follower.shard.replica.term() + 5;
    follower.shard.hear(vote_request(&follower, term));
    assert_eq!(follower.drive().len(), 1, "it votes meanwhile");
    assert!(follower.store.switch(shard, id, &cut).unwrap());
    // The replica was not told yet that the store has switched.
    let mut append = Message { from: LEADER, to: FOLLOWER, term, ..Default::default() };
    append.set_msg_type(MessageType::MsgAppend);
    follower.shard.hear(append);
    assert!(follower.drive().is_empty(), "it confirms nothing on a log that is void");
    let mut follower = follower.restart();
    assert_eq!(follower.shard.replica.applied(), index);
    assert_eq!(follower.hash(), leader.hash());
    let held = follower.shard.replica.hard_state();
    assert_eq!((held.term, held.vote, held.commit), (term, 3, index));
    follower.drive();
}

#[test]
fn a_snapshot_that_was_switched_to_without_a_leader_is_taken_when_there_is_one() {
    let (mut leader, mut follower) = cluster();
    let offered = talk(&mut leader, &mut follower).unwrap();
    let fetched = follower.fetch(&leader, offered);
    let index = fetched.order.index();
    let term = follower.shard.replica.term() + 5;
    follower.shard.hear(vote_request(&follower, term));
    follower.drive();
    follower.take(fetched);
    follower.drive();
    assert!(follower.shard.has_switched(), "nobody leads in its term");
    assert_eq!(follower.shard.replica.applied(), 0);
    let mut heartbeat = Message { from: 3, to: FOLLOWER, term, ..Default::default() };
    heartbeat.set_msg_type(MessageType::MsgHeartbeat);
    follower.shard.hear(heartbeat);
    follower.shard.take_switched();
    follower.drive();
    assert_eq!(follower.shard.replica.applied(), index);
    assert_eq!(follower.hash(), leader.hash());
    assert!(follower.shard.replica.take_replaced().is_some(), "for somebody else to drop");
}

#[test]
fn a_snapshot_whose_place_was_taken_is_not_switched_to_and_the_old_state_goes_on() {
    let (mut leader, mut follower) = cluster();
    let offered = talk(&mut leader, &mut follower).unwrap();
    let fetched = follower.fetch(&leader, offered.clone());
    let newer = SnapshotId { index: fetched.order.index() + 1, ..fetched.order.id() };
    follower.store.begin_install(SHARD, newer).unwrap();
    follower.take(fetched);
    assert!(follower.shard.install.is_none());
    follower.drive();
    assert_eq!(follower.shard.replica.applied(), 0);
    // The snapshot is offered again, and taken.
    let fetched = follower.fetch(&leader, offered);
    let second = Box::new(Fetched {
        order: fetched.order.clone(),
        machine: load(IDENTITY, follower.store.view().installed_records(SHARD)).unwrap(),
    });
    let job = follower.shard.fetched(fetched);
    assert!(matches!(follower.shard.fetched(second), Some(Job::Drop(_))), "one is enough");
    follower.work(job);
    follower.drive();
    assert_eq!(follower.hash(), leader.hash());
}
