//! Replicas on disks and a network in memory. Every write counts as synced; messages arrive in
//! order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use taskyard_replica::eraftpb::{Entry, HardState, Message, MessageType};
use taskyard_replica::{
    Config, LogReader, Progress, Replica, Restored, Role, SnapshotSource, SnapshotState,
    StateMachine, decode_message, encode_message,
};

pub(crate) const ENTRY_BYTES_MAX: usize = 1 << 20;

/// A state machine that keeps the data of all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words(pub(crate) Vec<String>);

impl StateMachine for Words {
    type Outcome = String;

    fn apply(&mut self, _index: u64, data: &[u8]) -> String {
        assert!(!data.is_empty(), "raft's own entries must not reach the machine");
        self.0.push(String::from_utf8(data.to_vec()).unwrap());
        format!("word {}", self.0.len())
    }
}

/// The data that survives a restart. Every write here counts as synced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) hard_state: HardState,
    pub(crate) entries: BTreeMap<u64, Entry>,
    pub(crate) checkpoint: Option<SnapshotState>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SharedDisk(pub(crate) Arc<Mutex<Disk>>);

impl LogReader for SharedDisk {
    fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Vec<Entry> {
        let disk = self.0.lock().unwrap();
        let mut bytes = 0;
        let entries = disk.entries.range(from..to).map(|(_, entry)| entry.clone());
        entries
            .take_while(|entry| {
                bytes += entry.data.len() as u64;
                bytes <= bytes_max || entry.index == from
            })
            .collect()
    }

    fn term(&self, index: u64) -> Option<u64> {
        self.0.lock().unwrap().entries.get(&index).map(|entry| entry.term)
    }
}

impl SnapshotSource for SharedDisk {
    fn snapshot(&self, index_min: u64, _to: u64) -> Option<SnapshotState> {
        self.0.lock().unwrap().checkpoint.clone().filter(|state| state.index >= index_min)
    }
}

pub(crate) struct Member {
    pub(crate) disk: SharedDisk,
    /// `None` while it is down.
    replica: Option<Replica<Words>>,
    first: Restored,
}

/// Replicas, their disks, and the messages between them.
pub(crate) struct Group {
    pub(crate) members: BTreeMap<u64, Member>,
    network: VecDeque<Message>,
    pub(crate) cut_off: BTreeSet<u64>,
    /// Replicas whose messages with entries are lost.
    pub(crate) saturated: BTreeSet<u64>,
    seed: u64,
    /// The events of a run, to compare runs.
    pub(crate) trace: Vec<String>,
    pub(crate) answers: BTreeMap<u64, String>,
    /// Entries applied per ready.
    pub(crate) bites: Vec<usize>,
    pub(crate) dropped: Vec<u64>,
    pub(crate) reads: Vec<u64>,
    pub(crate) reads_dropped: Vec<u64>,
    /// Entries that each replica was sent.
    pub(crate) entries_sent: BTreeMap<u64, usize>,
}

impl Group {
    pub(crate) fn new(seed: u64, voters: &[u64]) -> Group {
        let mut group = Group {
            members: BTreeMap::new(),
            network: VecDeque::new(),
            cut_off: BTreeSet::new(),
            saturated: BTreeSet::new(),
            seed,
            trace: Vec::new(),
            answers: BTreeMap::new(),
            bites: Vec::new(),
            dropped: Vec::new(),
            reads: Vec::new(),
            reads_dropped: Vec::new(),
            entries_sent: BTreeMap::new(),
        };
        for &id in voters {
            group.add(id, Restored::first(voters));
        }
        group
    }

    pub(crate) fn add(&mut self, id: u64, first: Restored) {
        let member = Member { disk: SharedDisk::default(), replica: None, first };
        self.members.insert(id, member);
        self.start(id);
    }

    /// Starts a replica from its checkpoint and its log.
    pub(crate) fn start(&mut self, id: u64) {
        let seed = self.seed;
        let member = self.members.get_mut(&id).unwrap();
        let disk = member.disk.0.lock().unwrap().clone();
        let mut restored = member.first.clone();
        let mut words = Words::default();
        if let Some(checkpoint) = disk.checkpoint {
            words = decode(&checkpoint.data);
            restored.applied = checkpoint.index;
            restored.applied_term = checkpoint.term;
            restored.conf_state = checkpoint.conf_state;
        }
        if disk.hard_state != HardState::default() {
            restored.hard_state = disk.hard_state;
        }
        let last = disk.entries.keys().next_back().copied().unwrap_or(0);
        restored.first_index = disk.entries.keys().next().copied().unwrap_or(0);
        restored.last_index = last.max(restored.applied);
        let config = Config {
            id,
            seed,
            heartbeat_ticks: 2,
            election_ticks: 10,
            entry_bytes_max: ENTRY_BYTES_MAX,
        };
        let log = Box::new(member.disk.clone());
        let mut replica = Replica::new(&config, restored, log, words).unwrap();
        replica.set_snapshot_source(Box::new(member.disk.clone()));
        member.replica = Some(replica);
    }

    pub(crate) fn stop(&mut self, id: u64) {
        self.members.get_mut(&id).unwrap().replica = None;
    }

    pub(crate) fn replica(&mut self, id: u64) -> &mut Replica<Words> {
        self.members.get_mut(&id).unwrap().replica.as_mut().unwrap()
    }

    pub(crate) fn words(&mut self, id: u64) -> Vec<String> {
        self.replica(id).machine().0.clone()
    }

    pub(crate) fn propose(&mut self, id: u64, word: &str, number: u64) {
        self.replica(id).propose(word.as_bytes().to_vec(), number).unwrap();
    }

    /// Persists and applies until nothing is left to do on `id`.
    fn drive(&mut self, id: u64) -> bool {
        let mut driven = false;
        while let Some(ready) =
            self.members.get_mut(&id).and_then(|member| member.replica.as_mut()?.ready())
        {
            driven = true;
            self.network.extend(ready.messages_now.iter().cloned());
            let member = self.members.get_mut(&id).unwrap();
            let replica = member.replica.as_mut().unwrap();
            let mut disk = member.disk.0.lock().unwrap();
            if let Some(snapshot) = &ready.snapshot {
                let metadata = snapshot.get_metadata();
                disk.entries.clear();
                disk.checkpoint = Some(SnapshotState {
                    index: metadata.index,
                    term: metadata.term,
                    conf_state: metadata.get_conf_state().clone(),
                    data: snapshot.data.clone(),
                });
                replica.install(decode(&snapshot.data));
            }
            if let Some(first) = ready.entries.first() {
                disk.entries.split_off(&first.index);
                disk.entries.extend(ready.entries.iter().map(|entry| (entry.index, entry.clone())));
            }
            if let Some(hard_state) = &ready.hard_state {
                disk.hard_state = hard_state.clone();
            }
            drop(disk);
            let progress = replica.persisted(ready.number);
            self.take(id, progress);
        }
        driven
    }

    fn take(&mut self, id: u64, progress: Progress<String>) {
        if let Some(role) = progress.role {
            self.trace.push(format!("{id} is {role:?}"));
        }
        self.bites.push(progress.applied.len());
        for applied in &progress.applied {
            self.trace.push(format!("{id} applied {} of {}", applied.index, applied.term));
            if let Some(number) = applied.proposal {
                self.answers.insert(number, applied.outcome.clone());
            }
        }
        self.dropped.extend(progress.dropped);
        self.reads.extend(progress.reads);
        self.reads_dropped.extend(progress.reads_dropped);
        self.network.extend(progress.messages);
    }

    /// Delivers all messages, and the messages that follow from them.
    pub(crate) fn settle(&mut self) {
        self.settle_while(|_| true);
    }

    /// Delivers one message at a time while a condition is true.
    pub(crate) fn settle_while(&mut self, condition: impl Fn(&mut Group) -> bool) {
        while condition(self) {
            let ids: Vec<u64> = self.members.keys().copied().collect();
            let driven = ids.into_iter().fold(false, |driven, id| self.drive(id) | driven);
            let Some(message) = self.network.pop_front() else {
                if driven {
                    continue;
                }
                return;
            };
            let (from, to) = (message.from, message.to);
            *self.entries_sent.entry(to).or_default() += message.entries.len();
            let is_lost = self.saturated.contains(&from) && !message.entries.is_empty();
            let reachable =
                !is_lost && !self.cut_off.contains(&from) && !self.cut_off.contains(&to);
            let snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            let message = decode_message(&encode_message(&message)).unwrap();
            let receiver = self.members.get_mut(&to).and_then(|member| member.replica.as_mut());
            let delivered = reachable && receiver.is_some();
            if let (true, Some(receiver)) = (reachable, receiver) {
                receiver.step(message);
            }
            let sender = self.members.get_mut(&from).and_then(|member| member.replica.as_mut());
            if let (true, Some(sender)) = (snapshot, sender) {
                sender.snapshot_sent(to, delivered);
            }
        }
    }

    pub(crate) fn tick(&mut self, ticks: usize) {
        for _ in 0..ticks {
            for member in self.members.values_mut() {
                if let Some(replica) = &mut member.replica {
                    replica.tick();
                }
            }
            self.settle();
        }
    }

    /// Ticks until a reachable replica leads.
    pub(crate) fn elect(&mut self) -> u64 {
        for _ in 0..200 {
            self.tick(1);
            let leaders: Vec<u64> = (self.members.iter())
                .filter(|(id, _)| !self.cut_off.contains(*id))
                .filter_map(|(&id, member)| {
                    let role = member.replica.as_ref()?.role();
                    matches!(role, Role::Leader { .. }).then_some(id)
                })
                .collect();
            if let [leader] = leaders[..] {
                return leader;
            }
        }
        panic!("no leader within 200 ticks: {:#?}", self.trace);
    }

    /// Checkpoints a replica and drops the log behind it.
    pub(crate) fn checkpoint(&mut self, id: u64) {
        let member = self.members.get_mut(&id).unwrap();
        let replica = member.replica.as_mut().unwrap();
        let index = replica.applied();
        let mut disk = member.disk.0.lock().unwrap();
        disk.checkpoint = Some(SnapshotState {
            index,
            term: replica.applied_term(),
            conf_state: replica.conf_state().clone(),
            data: replica.machine().0.join(" ").into(),
        });
        drop(disk);
        replica.compact(index);
        member.disk.0.lock().unwrap().entries.retain(|&at, _| at > index);
    }
}

pub(crate) fn decode(data: &[u8]) -> Words {
    let text = std::str::from_utf8(data).unwrap();
    Words(text.split_whitespace().map(str::to_owned).collect())
}
