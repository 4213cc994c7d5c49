//! Node: one machine of the cluster: its disk, its clock, and the driver of its replicas, which
//! does what the server's shard loop does: drain, step, write once, send, apply, answer.
//!
//! Invariant: a client is answered, and a peer told, only after the write that it depends on is
//! synced (unless the run is sabotaged to see that this matters).

mod checkpoints;
mod moves;

use crate::clock::{LeaderClock, RUN_BEGINS_AT_MS};
use crate::disk::{Checkpoint, Disk, Write};
use crate::host::{Host, Waiting};
use crate::invariants::Violation;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::shard::{Applied, Records, Shard};
use crate::workload::{Answer, Asked, Call};
use std::collections::{BTreeMap, VecDeque};
use taskyard_machine::{Command, Deliver, EncodedCommand, Identity, Machine, ShardId};
use taskyard_replica::eraftpb::{HardState, Message};
use taskyard_replica::{Config, Members, Ready, Replica, Restored, Role};

/// Who a node is in its run.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    pub(crate) id: usize,
    /// All nodes of the cluster.
    pub(crate) nodes: usize,
    /// The first so many hold every shard from the start.
    pub(crate) voters: usize,
    pub(crate) shards: u16,
    pub(crate) seed: u64,
    pub(crate) sabotage: Sabotage,
}

/// Replica ids are the node's number from 1, plus this for every replica that lived there before.
const REPLICAS_PER_GENERATION: u64 = 1_000;

/// The node on which a replica lives.
pub(crate) fn node_of(replica: u64) -> usize {
    ((replica - 1) % REPLICAS_PER_GENERATION) as usize
}

/// What nodes send each other.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    Raft {
        shard: u16,
        message: Box<Message>,
    },
    /// What the outbox of `from` owes shard `to`.
    Owed {
        from: u16,
        to: u16,
        sequence: u64,
        command: Box<[u8]>,
    },
    /// What became of it.
    Taken {
        from: u16,
        to: u16,
        sequence: u64,
        answer: Answer,
    },
}

/// Something of a node's own that happens later.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Synced {
        frame: usize,
    },
    /// The next bite of a checkpoint.
    Bite {
        shard: u16,
        cut: u64,
    },
    /// A checkpoint is on disk.
    Stored {
        shard: u16,
        cut: u64,
    },
    SnapshotSent {
        shard: u16,
        to: u64,
        arrived: bool,
    },
}

/// What came of a turn.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Shard, index, term, what it did.
    pub(crate) applied: Vec<(u16, u64, u64, Applied)>,
    pub(crate) roles: Vec<(u16, Role)>,
    /// Shard, index, who is in its group from there on.
    pub(crate) members: Vec<(u16, u64, Members)>,
    /// Entries (shard, index, term) whose outcome is told to somebody.
    pub(crate) told: Vec<(u16, u64, u64)>,
    pub(crate) effects: Vec<(u64, Effect)>,
    pub(crate) peers: Vec<(usize, Peer)>,
    pub(crate) answers: Vec<(usize, u64, Answer)>,
}

/// A running process: gone with a crash.
struct Process {
    hosts: BTreeMap<u16, Host>,
    /// Written and not yet synced: frame, then (shard, ready).
    in_flight: VecDeque<(usize, Vec<(u16, u64)>)>,
}

pub(crate) struct Node {
    config: NodeConfig,
    rng: Rng,
    pub(crate) disk: Disk,
    process: Option<Process>,
    /// Raised by every start and crash: events of earlier lives are void.
    pub(crate) boot: u64,
    pub(crate) wall_offset: i64,
    pub(crate) tick_ms: u64,
    /// Whether it goes on while a write is being synced.
    pipelined: bool,
    /// How long a sync takes, at least and at most, but for a stall now and then.
    sync_ms: (u64, u64),
    commands_max: u64,
    checkpoint_every: u64,
    output: Output,
    /// The state of each shard when it crashed, with the index it was at.
    before_crash: BTreeMap<u16, (u64, Records)>,
    next_cut: u64,
    /// How many replicas have lived here: ids are never used twice.
    generation: u64,
    pub(crate) snapshots: u64,
    pub(crate) checkpoints: u64,
}

impl Node {
    pub(crate) fn new(config: NodeConfig, mut rng: Rng) -> Node {
        let lies = config.sabotage == Sabotage::LyingDisks;
        let slow = rng.chance(150) || config.sabotage == Sabotage::AnswerBeforeSync;
        let disk = if lies { Disk::lying() } else { Disk::default() };
        if config.id < config.voters {
            (0..config.shards).for_each(|shard| disk.assign(shard, config.id as u64 + 1));
        }
        Node {
            disk,
            process: None,
            boot: 0,
            wall_offset: rng.between(0, 4_000) as i64 - 2_000,
            tick_ms: rng.between(47, 53),
            pipelined: rng.chance(500),
            sync_ms: if slow { (50, 300) } else { (1, 5) },
            commands_max: *rng.pick(&[1, 4, 32]),
            checkpoint_every: rng.between(15, 150),
            output: Output::default(),
            before_crash: BTreeMap::new(),
            next_cut: 0,
            generation: 0,
            snapshots: 0,
            checkpoints: 0,
            config,
            rng,
        }
    }

    pub(crate) fn id(&self) -> usize {
        self.config.id
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts the process on what the disk holds.
    pub(crate) fn start(&mut self, now: u64) -> Result<(), Violation> {
        self.boot += 1;
        self.disk.recover();
        let mut hosts = BTreeMap::new();
        for shard in 0..self.config.shards {
            if self.disk.replica(shard).is_some() {
                hosts.insert(shard, self.open(shard, now)?);
            }
        }
        self.process = Some(Process { hosts, in_flight: VecDeque::new() });
        Ok(())
    }

    fn identity(&self, shard: u16) -> Identity {
        Identity { incarnation: 7, shard: ShardId(shard), shards: self.config.shards }
    }

    fn open(&mut self, shard: u16, now: u64) -> Result<Host, Violation> {
        let id = self.config.id;
        let wrong = |what: String| format!("node {id} can't open shard {shard}: {what}");
        let replica_id = self.disk.replica(shard).ok_or_else(|| wrong("it is not here".into()))?;
        let voters: Vec<u64> = (1..=self.config.voters as u64).collect();
        // Whoever joins later learns the members from a snapshot.
        let joins = replica_id > REPLICAS_PER_GENERATION;
        let mut restored = if joins { Restored::default() } else { Restored::first(&voters) };
        let mut state = Shard::new(self.identity(shard));
        let log = self.disk.log(shard);
        if log.hard_state != HardState::default() {
            restored.hard_state = log.hard_state;
        }
        if let Some(checkpoint) = self.disk.checkpoint(shard) {
            state = Shard::load(self.identity(shard), &checkpoint)
                .map_err(|error| wrong(error.to_string()))?;
            restored.applied = checkpoint.index;
            restored.applied_term = checkpoint.term;
            restored.conf_state = checkpoint.conf_state.clone();
        }
        let applied = restored.applied;
        // A crash may come between a snapshot's checkpoint and the reset of the log that it
        // replaces: then the log does not lead up to the checkpoint, and must go before anything
        // is written behind it.
        let first = log.entries.keys().next().copied().unwrap_or(u64::MAX);
        let at_applied = log.entries.get(&applied).map(|entry| entry.term);
        let connects = first == applied + 1 || at_applied == Some(restored.applied_term);
        restored.last_index = applied;
        if connects {
            restored.first_index = first;
            restored.last_index = log.entries.keys().next_back().copied().unwrap_or(applied);
        } else if !log.entries.is_empty() {
            let frame = self.disk.write(&[Write { shard, reset: true, ..Write::default() }]);
            self.disk.sync(frame);
        }
        restored.hard_state.term = restored.hard_state.term.max(restored.applied_term);
        state.sabotage = self.config.sabotage.of_replica(id);
        state.before_crash = self.before_crash.remove(&shard);
        if let Some((_, records)) =
            state.before_crash.take_if(|(index, _)| *index == state.last_index && *index > 0)
        {
            let now = state.machine.records();
            if now != records {
                let difference = crate::shard::first_difference(&records, &now);
                return Err(wrong(format!("the checkpoint differs from the state: {difference}")));
            }
        }
        let config = Config {
            id: replica_id,
            seed: self.config.seed ^ u64::from(shard),
            heartbeat_ticks: 2,
            election_ticks: 10,
        };
        let disk = self.disk.reader(shard);
        let mut replica = Replica::new(&config, restored, Box::new(disk.clone()), state)
            .map_err(|error| wrong(error.to_string()))?;
        replica.set_snapshot_source(Box::new(disk));
        Ok(Host {
            replica,
            clock: LeaderClock::begin(0, 0, now),
            inbox: VecDeque::new(),
            proposals: BTreeMap::new(),
            next_number: 0,
            reads: BTreeMap::new(),
            expiring: false,
            firing: 0,
            fires: VecDeque::new(),
            owed: BTreeMap::new(),
            checkpointing: None,
            checkpointed: applied,
        })
    }

    /// The process ends; half of the time the power goes with it.
    pub(crate) fn crash(&mut self) {
        self.boot += 1;
        self.output = Output::default();
        let process = self.process.take();
        for (shard, host) in process.iter().flat_map(|process| &process.hosts) {
            let state = host.replica.machine();
            self.before_crash.insert(*shard, (state.last_index, state.machine.records()));
        }
        if self.rng.chance(500) || self.config.sabotage != Sabotage::None {
            self.disk.crash(&mut self.rng);
        }
    }

    pub(crate) fn tick(&mut self) {
        for host in self.process.iter_mut().flat_map(|process| process.hosts.values_mut()) {
            host.replica.tick();
        }
    }

    fn host_mut(&mut self, shard: u16) -> Option<&mut Host> {
        self.process.as_mut()?.hosts.get_mut(&shard)
    }

    pub(crate) fn transfer(&mut self, shard: u16, to: u64) {
        if let Some(host) = self.host_mut(shard) {
            host.replica.transfer_leader(to);
        }
    }

    /// A client's request arrives. A node that is down answers nothing.
    pub(crate) fn call(&mut self, call: Call) {
        let Some(process) = &mut self.process else { return };
        let Some(host) = process.hosts.get_mut(&call.request.shard) else {
            let answer = Answer::NotLeader { leader: None };
            self.output.answers.push((call.client, call.number, answer));
            return;
        };
        if let Some(leader) = host.not_leading() {
            self.output.answers.push((call.client, call.number, Answer::NotLeader { leader }));
            return;
        }
        match call.request.asked {
            Asked::Command(command) => {
                let waiting = Waiting::Client { client: call.client, number: call.number };
                host.inbox.push_back((command, waiting));
            }
            Asked::Read { task, floor } => {
                let number = host.number();
                if host.replica.read(number).is_ok() {
                    host.reads.insert(number, (call.client, call.number, task, floor));
                }
            }
        }
    }

    pub(crate) fn peer(&mut self, from: usize, peer: Peer, now: u64) {
        let Some(process) = &mut self.process else { return };
        match peer {
            Peer::Raft { shard, message } => {
                if let Some(host) = process.hosts.get_mut(&shard) {
                    host.replica.step(*message);
                }
            }
            Peer::Owed { from: source, to, sequence, command } => {
                let Some(host) = process.hosts.get_mut(&to) else { return };
                if let Some(leader) = host.not_leading() {
                    let answer = Answer::NotLeader { leader };
                    self.output
                        .peers
                        .push((from, Peer::Taken { from: source, to, sequence, answer }));
                    return;
                }
                let deliver = Deliver { from: ShardId(source), sequence, command: &command };
                let command = EncodedCommand::new(&Command::Deliver(deliver));
                host.inbox
                    .push_back((command, Waiting::Outbox { node: from, from: source, sequence }));
            }
            Peer::Taken { from: source, to, sequence, answer } => {
                if let Some(host) = process.hosts.get_mut(&source) {
                    host.owed_answered(to, sequence, &answer, now, from);
                }
            }
        }
    }

    pub(crate) fn effect(&mut self, effect: &Effect, now: u64) -> Result<(), Violation> {
        match *effect {
            Effect::Synced { frame } => {
                self.disk.sync(frame);
                let Some(process) = &mut self.process else { return Ok(()) };
                let mut done = Vec::new();
                while process.in_flight.front().is_some_and(|(written, _)| *written <= frame) {
                    done.extend(process.in_flight.pop_front().map(|(_, readies)| readies));
                }
                for (shard, number) in done.into_iter().flatten() {
                    self.persisted(shard, number, now)?;
                }
                Ok(())
            }
            Effect::Bite { shard, cut } => {
                self.bite(shard, cut);
                Ok(())
            }
            Effect::Stored { shard, cut } => self.stored(shard, cut),
            Effect::SnapshotSent { shard, to, arrived } => {
                if let Some(host) = self.host_mut(shard) {
                    host.replica.snapshot_sent(to, arrived);
                }
                Ok(())
            }
        }
    }

    /// Does all there is to do now.
    pub(crate) fn turn(&mut self, now: u64) -> Result<Output, Violation> {
        loop {
            self.lead(now);
            let syncing =
                self.process.as_ref().is_some_and(|process| !process.in_flight.is_empty());
            if (syncing && !self.pipelined) || !self.write_ready(now)? {
                break;
            }
        }
        self.begin_checkpoints();
        Ok(std::mem::take(&mut self.output))
    }

    /// What every leader of a shard does: packs what was asked, expires, delivers its outbox.
    fn lead(&mut self, now: u64) {
        let wall = (RUN_BEGINS_AT_MS + now).saturating_add_signed(self.wall_offset);
        let Some(process) = &mut self.process else { return };
        for (&shard, host) in &mut process.hosts {
            if host.not_leading().is_some() {
                continue;
            }
            let stamp = host.clock.stamp(wall, now);
            host.expire(stamp);
            host.fire(stamp, &mut self.rng);
            host.deliver(shard, now, self.config.nodes, &mut self.rng, &mut self.output);
            host.propose(stamp, self.commands_max, &mut self.output);
        }
    }

    /// Takes a ready of every shard, writes them as one frame, and goes on where no sync is needed.
    fn write_ready(&mut self, now: u64) -> Result<bool, Violation> {
        let Some(process) = &mut self.process else { return Ok(false) };
        let mut readies: Vec<(u16, Ready)> = Vec::new();
        for (&shard, host) in &mut process.hosts {
            readies.extend(host.replica.ready().map(|ready| (shard, ready)));
        }
        if readies.is_empty() {
            return Ok(false);
        }
        let mut writes = Vec::new();
        let mut at_once = Vec::new();
        let mut after_sync = Vec::new();
        for (shard, mut ready) in readies {
            self.send(shard, std::mem::take(&mut ready.messages_now));
            let reset = ready.snapshot.is_some();
            if let Some(snapshot) = ready.snapshot.take() {
                self.install(shard, &snapshot)?;
            }
            if reset || !ready.entries.is_empty() || ready.hard_state.is_some() {
                let (entries, hard_state) = (ready.entries, ready.hard_state);
                writes.push(Write { shard, reset, entries, hard_state, ..Write::default() });
            }
            let early = self.config.sabotage == Sabotage::AnswerBeforeSync;
            let ready_list = if ready.must_sync && !early { &mut after_sync } else { &mut at_once };
            ready_list.push((shard, ready.number));
        }
        if !writes.is_empty() {
            let frame = self.disk.write(&writes);
            let (least, most) = if self.rng.chance(20) { (20, 200) } else { self.sync_ms };
            let delay = self.rng.between(least, most);
            self.output.effects.push((delay, Effect::Synced { frame }));
            if let (Some(process), false) = (&mut self.process, after_sync.is_empty()) {
                process.in_flight.push_back((frame, after_sync));
            }
        }
        for (shard, number) in at_once {
            self.persisted(shard, number, now)?;
        }
        Ok(true)
    }

    fn send(&mut self, shard: u16, messages: Vec<Message>) {
        for message in messages {
            let to = node_of(message.to);
            self.output.peers.push((to, Peer::Raft { shard, message: Box::new(message) }));
        }
    }

    /// Replaces a shard's state by a snapshot of its leader's: first the checkpoint, then the log.
    fn install(
        &mut self,
        shard: u16,
        snapshot: &taskyard_replica::eraftpb::Snapshot,
    ) -> Result<(), Violation> {
        let metadata = snapshot.get_metadata();
        let mut checkpoint = Checkpoint {
            index: metadata.index,
            term: metadata.term,
            conf_state: metadata.get_conf_state().clone(),
            ..Checkpoint::default()
        };
        checkpoint.decode_state(&snapshot.data).ok_or("a snapshot came damaged")?;
        let mut state =
            Shard::load(self.identity(shard), &checkpoint).map_err(|error| error.to_string())?;
        state.sabotage = self.config.sabotage.of_replica(self.config.id);
        self.disk.store_checkpoint(shard, checkpoint);
        self.snapshots += 1;
        if let Some(host) = self.host_mut(shard) {
            host.checkpointing = None;
            host.checkpointed = metadata.index;
            host.replica.install(state);
        }
        Ok(())
    }

    fn persisted(&mut self, shard: u16, number: u64, now: u64) -> Result<(), Violation> {
        let wall = (RUN_BEGINS_AT_MS + now).saturating_add_signed(self.wall_offset);
        let hosts = self.process.as_mut().map(|process| &mut process.hosts);
        let Some(host) = hosts.and_then(|hosts| hosts.get_mut(&shard)) else { return Ok(()) };
        let mut progress = host.replica.persisted(number);
        let messages = std::mem::take(&mut progress.messages);
        host.take(shard, progress, wall, now, &mut self.output)?;
        self.send(shard, messages);
        Ok(())
    }

    pub(crate) fn machine(&self, shard: u16) -> Option<&Machine> {
        self.host(shard).map(|host| &host.replica.machine().machine)
    }

    fn host(&self, shard: u16) -> Option<&Host> {
        self.process.as_ref()?.hosts.get(&shard)
    }

    pub(crate) fn leads(&self, shard: u16) -> bool {
        self.host(shard).is_some_and(|host| host.not_leading().is_none())
    }

    pub(crate) fn applied(&self, shard: u16) -> u64 {
        self.host(shard).map_or(0, |host| host.replica.applied())
    }

    pub(crate) fn check(&self, shard: u16) -> Result<(), Violation> {
        self.host(shard).map_or(Ok(()), |host| host.replica.machine().check())
    }

    /// What keeps a shard here from being at rest; empty if nothing does.
    pub(crate) fn unrest(&self, shard: u16) -> String {
        let Some(host) = self.host(shard) else { return "it is down".into() };
        let machine = &host.replica.machine().machine;
        for queue in machine.queues() {
            let counts = queue.counts;
            if counts.ready + counts.scheduled + counts.claimed + counts.blocked > 0 {
                return format!("{} is not empty: {counts:?}", queue.name);
            }
        }
        if machine.next_schedule().is_some() {
            return "a schedule goes on".into();
        }
        if !machine.outgoing(1).is_empty() {
            return "its outbox is not empty".into();
        }
        if !host.proposals.is_empty() || !host.inbox.is_empty() {
            return "something is still asked of it".into();
        }
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_replica::eraftpb::{ConfState, Entry};

    /// Seed 1021 found this: the old entries stayed on disk, new ones were written behind the
    /// snapshot, and the log between them was missing at the next start.
    #[test]
    fn a_log_that_a_snapshot_replaced_is_dropped_on_disk_too() {
        let config =
            NodeConfig { id: 0, nodes: 3, voters: 3, shards: 1, seed: 1, sabotage: Sabotage::None };
        let mut node = Node::new(config, Rng::new(1));
        let records = Shard::new(node.identity(0)).machine.records().into_iter().collect();
        let conf_state = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
        let checkpoint =
            Checkpoint { index: 93, term: 10, conf_state, records, ..Checkpoint::default() };
        let entry = |index| Entry { index, term: 10, ..Entry::default() };
        let entries = (58..=74).map(entry).collect();
        let frame = node.disk.write(&[Write { shard: 0, entries, ..Write::default() }]);
        node.disk.sync(frame);
        node.disk.store_checkpoint(0, checkpoint);
        node.start(0).unwrap();
        assert_eq!(node.applied(0), 93);
        node.crash();
        node.start(0).unwrap();
        assert_eq!(node.disk.log(0).entries.len(), 0);
    }
}
