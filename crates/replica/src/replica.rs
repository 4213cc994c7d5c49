//! Replica: one group's consensus without I/O: a raft-rs `RawNode` and a state machine.
//!
//! Inputs: proposals, peer messages, ticks, "persisted". Outputs: entries to persist, messages to
//! send before and after the sync, outcomes. The replica never waits, so it cannot deadlock.
//!
//! A group's history begins at index 1, term 1, which sets the first voters and has no entry. A
//! later member therefore starts behind the log and gets a snapshot, which names the voters.

use crate::log::{Log, LogReader, SnapshotSource};
use crate::reads::Reads;
use crate::restored::{Error, Restored};
use crate::role::{NotLeader, ProposeRefused, Role};
use crate::room::Room;
use crate::stall::Stall;
use crate::{eraftpb, message};
use bytes::Bytes;
use eraftpb::{ConfChangeV2, EntryType, MessageType};
use protobuf::Message as _;
use raft::{RawNode, ReadOnlyOption, SnapshotStatus, StateRole, Storage};
use std::collections::{BTreeMap, VecDeque};

/// The state on which a group agrees.
pub trait StateMachine {
    type Outcome;
    /// Applies one committed entry. Every replica calls it with the same entries in the same order.
    fn apply(&mut self, index: u64, data: &[u8]) -> Self::Outcome;
}

#[derive(Clone, Debug)]
pub struct Config {
    /// The replica's id in its group, from 1; never used again after a disk is lost.
    pub id: u64,
    /// The seed of the election timeouts, together with replica and term, so that a simulation can
    /// be repeated.
    pub seed: u64,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// The fewest ticks of silence before an election; the most is twice that.
    pub election_ticks: usize,
    /// The most bytes of one entry that a message can carry. A larger entry is never appended,
    /// because no peer could get it and every entry behind it would wait for ever.
    pub entry_bytes_max: usize,
}

#[derive(Debug)]
pub struct Applied<O> {
    pub index: u64,
    pub term: u64,
    /// The number of its proposal, if this replica proposed it in this term.
    pub proposal: Option<u64>,
    pub outcome: O,
}

/// The work for the driver, in this order: send `messages_now`; install `snapshot`, if there is one
/// ([`Replica::install`]); persist `entries` and `hard_state` (syncing if `must_sync`); call
/// [`Replica::persisted`] with `number`.
///
/// Several of them may be in progress at once, and are persisted in the order of their numbers.
#[derive(Debug)]
pub struct Ready {
    pub number: u64,
    /// Entries to append. They replace the log from the index of the first one on.
    pub entries: Vec<eraftpb::Entry>,
    pub hard_state: Option<eraftpb::HardState>,
    /// Whether term, vote or entries must be durable before the driver goes on. If false,
    /// `hard_state` has only a new commit index, which may wait for the next synced write.
    pub must_sync: bool,
    /// Messages that may leave before the sync (a leader's appends).
    pub messages_now: Vec<eraftpb::Message>,
    /// A snapshot from the leader to install. It replaces the state and the whole log.
    pub snapshot: Option<eraftpb::Snapshot>,
}

/// The results of a persisted [`Ready`].
#[derive(Debug)]
pub struct Progress<O> {
    /// Messages that may leave now that the sync is done.
    pub messages: Vec<eraftpb::Message>,
    /// Committed entries that were applied, in order.
    pub applied: Vec<Applied<O>>,
    /// Numbers of proposals that will not be answered, because leadership was lost. The outcome is
    /// unknown: their entries may still be applied.
    pub dropped: Vec<u64>,
    /// Numbers of reads (see [`Replica::read`]) that the state may now answer.
    pub reads: Vec<u64>,
    /// Reads that were lost with leadership.
    pub reads_dropped: Vec<u64>,
    /// The new role, if it changed. The driver handles it after `applied`, `dropped` and
    /// `reads_dropped`.
    pub role: Option<Role>,
    /// Whether voters or learners changed: see [`Replica::members`].
    pub members_changed: bool,
}

/// The most bytes in one append to a peer, so that a lost one is cheap to send again.
const APPEND_BYTES_MAX: u64 = 1 << 20;
/// The most appends to one peer that are in flight at once.
const APPENDS_IN_FLIGHT_MAX: usize = 64;
/// The most bytes of entries to apply in one step, so that a long replay leaves time for other
/// shards.
const APPLY_BYTES_MAX: u64 = 4 << 20;
/// Bytes of applied entries in memory for peers that are a little behind; older ones come from
/// disk.
const CACHE_BYTES_MAX: usize = 4 << 20;

/// A ready that is not yet persisted, or that waits for an earlier one.
struct Outstanding {
    number: u64,
    persisted: bool,
    snapshot: Option<eraftpb::SnapshotMetadata>,
    messages: Vec<eraftpb::Message>,
}

/// A proposal of this leader, waiting to be applied.
struct Proposal {
    index: u64,
    number: u64,
}

/// One replica of one group: a raft node and the state machine it feeds.
pub struct Replica<M: StateMachine> {
    pub(crate) node: RawNode<Log>,
    machine: M,
    pub(crate) seed: u64,
    pub(crate) election_ticks: usize,
    entry_bytes_max: usize,
    pub(crate) declines: bool,
    /// Index and term of an entry in this log that no message can carry, see [`Replica::resign`].
    pub(crate) unsendable: Option<(u64, u64)>,
    pub(crate) stall: Stall,
    /// The room on this replica's disk, and on the disks of others as last reported.
    pub(crate) room: Room,
    pub(crate) rooms: BTreeMap<u64, Room>,
    applied: u64,
    applied_term: u64,
    pub(crate) conf_state: eraftpb::ConfState,
    /// The index at which the members last changed; after a start or a snapshot, its index.
    pub(crate) members_since: u64,
    /// Committed entries from raft that the machine has not applied yet.
    pending: VecDeque<eraftpb::Entry>,
    /// The last committed index that raft has returned. It may be behind `applied`, because a
    /// finished write is applied without waiting for the next ready.
    handed_out: u64,
    /// The commit index at the start: the replica campaigns only after applying up to here.
    replay_until: u64,
    outstanding: VecDeque<Outstanding>,
    /// The machines of snapshots that are being persisted, in their order.
    installed: VecDeque<M>,
    /// The machine that the last snapshot replaced.
    pub(crate) replaced: Option<M>,
    /// The term that this replica leads, once it has applied all entries of earlier terms.
    pub(crate) leading: Option<u64>,
    role_reported: Role,
    pub(crate) members_changed: bool,
    proposals: VecDeque<Proposal>,
    dropped: Vec<u64>,
    reads: Reads,
}

impl<M: StateMachine> Replica<M> {
    /// A replica restored from its disk. `machine` is the state at `restored.applied`. A lone voter
    /// campaigns at once, or as soon as it has applied what it knows to be committed.
    pub fn new(
        config: &Config,
        restored: Restored,
        log: Box<dyn LogReader>,
        machine: M,
    ) -> Result<Replica<M>, Error> {
        let restored = restored.at_its_beginning();
        let hard_state = restored.checked_hard_state(config.id)?;
        let start = restored.readable_from(config.id, log.as_ref())?;
        let conf_state = restored.conf_state.clone();
        let storage = Log::new(hard_state.clone(), conf_state, start, restored.last_index, log);
        if storage.term(restored.last_index).is_err() {
            let what = format!("its last entry, {}, can't be read", restored.last_index);
            return Err(Error::BrokenLog { id: config.id, what });
        }
        let raft_config = raft::Config {
            id: config.id,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            applied: restored.applied,
            max_size_per_msg: APPEND_BYTES_MAX,
            max_inflight_msgs: APPENDS_IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            max_committed_size_per_ready: APPLY_BYTES_MAX,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&raft_config, storage, &logger)
            .map_err(|error| Error::Config { what: error.to_string() })?;
        let role_reported = Role::Follower { term: hard_state.term, leader: None };
        let mut replica = Replica {
            node,
            machine,
            seed: config.seed,
            election_ticks: config.election_ticks,
            entry_bytes_max: config.entry_bytes_max,
            declines: false,
            unsendable: None,
            stall: Stall::default(),
            room: Room::default(),
            rooms: BTreeMap::new(),
            applied: restored.applied,
            applied_term: restored.applied_term,
            conf_state: restored.conf_state,
            members_since: restored.applied,
            pending: VecDeque::new(),
            handed_out: restored.applied,
            replay_until: hard_state.commit,
            outstanding: VecDeque::new(),
            installed: VecDeque::new(),
            replaced: None,
            leading: None,
            role_reported,
            members_changed: false,
            proposals: VecDeque::new(),
            dropped: Vec::new(),
            reads: Reads::default(),
        };
        replica.campaign_if_alone();
        Ok(replica)
    }

    /// Sets the source of checkpoints for peers that are behind the start of the log. Without a
    /// source these peers wait.
    pub fn set_snapshot_source(&mut self, source: Box<dyn SnapshotSource>) {
        self.node.mut_store().set_snapshots(source);
    }

    /// Appends an entry to the log, if this replica leads and a message can carry the entry. Every
    /// proposal of every group comes through here. `number` comes back with the outcome, or among
    /// the dropped proposals.
    ///
    /// # Panics
    /// If `data` is empty, because such entries belong to raft.
    pub fn propose(&mut self, data: impl Into<Bytes>, number: u64) -> Result<(), ProposeRefused> {
        let data = data.into();
        assert!(
            !data.is_empty(),
            "proposal {number} is empty; entries without data are raft's own"
        );
        let term = self.leading.ok_or(NotLeader { leader: self.leader() })?;
        if data.len() > self.entry_bytes_max {
            let (bytes, bytes_max) = (data.len(), self.entry_bytes_max);
            return Err(ProposeRefused::TooLarge { bytes, bytes_max });
        }
        let mut message = eraftpb::Message { from: self.id(), ..Default::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.mut_entries().push(eraftpb::Entry { data, ..Default::default() });
        // Raft rejects this during a hand-over of leadership, or after this replica lost its vote.
        self.node.raft.step(message).map_err(|_| NotLeader { leader: None })?;
        debug_assert_eq!(term, self.term(), "a proposal does not change the term");
        self.proposals.push_back(Proposal { index: self.last_index(), number });
        Ok(())
    }

    /// Confirms that this replica still leads. `number` comes back in [`Progress::reads`] once the
    /// state shows everything that was acknowledged before this call.
    pub fn read(&mut self, number: u64) -> Result<(), NotLeader> {
        if self.leading.is_none() {
            return Err(NotLeader { leader: self.leader() });
        }
        let context = self.reads.ask(number);
        self.node.read_index(context);
        Ok(())
    }

    /// Handles a message from a peer. A message that is malformed, stale or for another replica is
    /// ignored.
    ///
    /// # Panics
    /// If it proves that a committed entry differs or was lost here: going on would diverge.
    pub fn step(&mut self, mut message: eraftpb::Message) {
        if !message::is_sound(&message, self.id(), self.last_index()) {
            return;
        }
        self.drop_unstorable(&mut message);
        if message.get_msg_type() == MessageType::MsgHeartbeatResponse {
            self.note_room(message.from, message.reject_hint);
        }
        match message.get_msg_type() {
            MessageType::MsgTimeoutNow => self.take_over(message),
            MessageType::MsgTransferLeader => self.refused_by(&message),
            // An error says that the sender is no member any more; such a message is ignored as
            // well.
            _ => drop(self.node.step(message)),
        }
        self.update_leadership();
    }

    /// Reports whether a snapshot message reached `to`. The replica sends nothing else to `to`
    /// before this report.
    pub fn snapshot_sent(&mut self, to: u64, delivered: bool) {
        let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(to, status);
    }

    /// Whether [`Replica::ready`] would return work.
    pub fn has_ready(&self) -> bool {
        self.node.has_ready()
            || self.applied < self.appliable()
            || self.role() != self.role_reported
            || !self.dropped.is_empty()
            || self.reads.any_dropped()
    }

    pub fn ready(&mut self) -> Option<Ready> {
        if !self.has_ready() {
            return None;
        }
        let mut ready = self.node.ready();
        let number = ready.number();
        let read_states = ready.take_read_states();
        self.reads.confirm(read_states);
        let entries = ready.take_entries();
        let committed = ready.take_committed_entries();
        let snapshot = Some(ready.snapshot().clone()).filter(|snapshot| !snapshot.is_empty());
        let mut messages_now = ready.take_messages();
        let mut messages = ready.take_persisted_messages();
        self.report_room(&mut messages_now);
        self.report_room(&mut messages);
        let hard_state = ready.hs().cloned();
        let must_sync = ready.must_sync();
        let metadata = snapshot.as_ref().map(|snapshot| snapshot.get_metadata().clone());
        if let Some(metadata) = &metadata {
            self.pending.clear();
            self.handed_out = metadata.index;
            self.node.mut_store().restart_at(metadata.index, metadata.term);
        }
        self.node.mut_store().append(&entries);
        // Raft may read the entries from now on; the cache has them.
        self.node.advance_append_async(ready);
        self.handed_out = committed.last().map_or(self.handed_out, |entry| entry.index);
        let seen = self.pending.back().map_or(self.applied, |entry| entry.index);
        self.pending.extend(committed.into_iter().filter(|entry| entry.index > seen));
        self.outstanding.push_back(Outstanding {
            number,
            persisted: false,
            snapshot: metadata,
            messages,
        });
        Some(Ready { number, entries, hard_state, must_sync, messages_now, snapshot })
    }

    /// Takes the state of the snapshot in a [`Ready`]. The driver calls this before it reports the
    /// ready as persisted.
    pub fn install(&mut self, machine: M) {
        assert!(self.installs(), "a snapshot was installed that no ready asked for");
        self.installed.push_back(machine);
    }

    /// Reports the write of a ready as done, and as durable if it had to be. Applies some of the
    /// committed entries; [`Replica::has_ready`] stays true while there are more.
    ///
    /// # Panics
    /// If no such ready is in progress, or its snapshot was not installed.
    pub fn persisted(&mut self, number: u64) -> Progress<M::Outcome> {
        let ready = self.outstanding.iter_mut().find(|ready| ready.number == number);
        ready.expect("a ready is reported persisted once").persisted = true;
        let mut messages = Vec::new();
        let mut persisted_up_to = None;
        let mut snapshot = None;
        // A ready without a write of its own may be done before an earlier one. Its messages wait,
        // because they must not leave before the earlier write is durable.
        while let Some(ready) = pop_front_if(&mut self.outstanding, |ready| ready.persisted) {
            persisted_up_to = Some(ready.number);
            if ready.snapshot.is_some() {
                let machine = self.installed.pop_front();
                let machine = machine.expect("a snapshot is installed before it counts");
                self.replaced = Some(std::mem::replace(&mut self.machine, machine));
                snapshot = ready.snapshot;
            }
            messages.extend(ready.messages);
        }
        if let Some(number) = persisted_up_to {
            self.node.on_persist_ready(number);
        }
        if let Some(mut metadata) = snapshot {
            (self.applied, self.applied_term) = (metadata.index, metadata.term);
            self.members_have_changed(metadata.take_conf_state());
            self.node.advance_apply_to(metadata.index);
        }
        let applied = self.apply_bite();
        self.evict_applied();
        self.campaign_if_alone();
        self.leave_joint();
        self.update_leadership();
        let read_states = std::mem::take(&mut self.node.raft.read_states);
        self.reads.confirm(read_states);
        let role = self.role();
        let role_changed = role != self.role_reported;
        self.role_reported = role;
        Progress {
            messages,
            applied,
            dropped: std::mem::take(&mut self.dropped),
            reads: self.reads.take_servable(self.applied),
            reads_dropped: self.reads.take_dropped(),
            role: role_changed.then_some(role),
            members_changed: std::mem::take(&mut self.members_changed),
        }
    }

    pub fn role(&self) -> Role {
        match self.leading {
            Some(term) => Role::Leader { term },
            None => Role::Follower { term: self.term(), leader: self.leader() },
        }
    }

    /// Whether all that was known to be committed when it started is applied.
    pub fn has_replayed(&self) -> bool {
        self.applied >= self.replay_until
    }

    /// This replica's id in its group.
    pub fn id(&self) -> u64 {
        self.node.raft.id
    }

    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// Term, vote and commit index as of now, for the start of a new log.
    pub fn hard_state(&self) -> eraftpb::HardState {
        self.node.raft.hard_state()
    }

    /// The last index known to be committed.
    pub fn commit(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// The last index that the state machine has applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    pub fn applied_term(&self) -> u64 {
        self.applied_term
    }

    /// The last index of the log, persisted or not.
    pub fn last_index(&self) -> u64 {
        self.node.raft.raft_log.last_index()
    }

    /// The first index that can still be sent to a peer.
    pub fn first_index(&self) -> u64 {
        self.node.store().first()
    }

    /// Voters and learners as of [`Replica::applied`]: part of a checkpoint there.
    pub fn conf_state(&self) -> &eraftpb::ConfState {
        &self.conf_state
    }

    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The state, for changes that the group need not agree on, such as a checkpoint's cut and its
    /// bites. Commands go through [`Replica::propose`].
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// Forgets the log up to `up_to`, which a synced checkpoint covers. The driver calls this
    /// before it deletes these entries.
    ///
    /// # Panics
    /// If `up_to` is not applied yet.
    pub fn compact(&mut self, up_to: u64) {
        assert!(up_to <= self.applied, "log compacted to {up_to}, applied is {}", self.applied);
        if up_to >= self.first_index() {
            let term = self.node.store().term(up_to).expect("what is after the start has a term");
            self.node.mut_store().compact(up_to, term);
        }
    }

    /// Drops applied entries from memory until `bytes_max` are left; a lagging peer then gets them
    /// from the driver's log. The replica itself does so at 4 MiB, and at 0 for a lone voter.
    pub fn evict_cache(&mut self, bytes_max: usize) {
        // Raft applies only persisted entries, and reads each once more to return it as committed.
        let unused_up_to = self.applied.min(self.handed_out);
        self.node.mut_store().evict(unused_up_to, bytes_max);
    }

    pub fn cache_bytes(&self) -> usize {
        self.node.store().cache_bytes()
    }

    fn leader(&self) -> Option<u64> {
        let leader = self.node.raft.leader_id;
        // A replica that is elected but has not applied everything is no leader to redirect callers
        // to.
        (leader != raft::INVALID_ID && leader != self.id()).then_some(leader)
    }

    /// The last index that is both committed and persisted here. While a snapshot is being written,
    /// no entry counts, because the snapshot has replaced all entries before it.
    fn appliable(&self) -> u64 {
        let log = &self.node.raft.raft_log;
        if self.installs() { self.applied } else { log.committed.min(log.persisted) }
    }

    fn installs(&self) -> bool {
        self.outstanding.iter().any(|ready| ready.snapshot.is_some())
    }

    /// Whether this replica may campaign. A campaign makes raft read all committed entries that are
    /// not applied, which fails if a snapshot has replaced them. A lone voter wins at once, so that
    /// its log must be durable before.
    pub(crate) fn may_campaign(&self) -> bool {
        let log = &self.node.raft.raft_log;
        self.applied >= self.replay_until
            && !self.installs()
            && (!self.is_alone() || log.persisted == log.last_index())
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.node.raft.prs().is_singleton() && self.node.raft.promotable()
    }

    fn campaign_if_alone(&mut self) {
        if self.is_alone()
            && self.node.raft.state != StateRole::Leader
            && self.applied >= self.commit()
        {
            self.campaign();
        }
    }

    /// Follows raft's role: the proposals and reads of a leader end with its term.
    pub(crate) fn update_leadership(&mut self) {
        let raft = &self.node.raft;
        let elected = (raft.state == StateRole::Leader).then_some(raft.term);
        if self.leading.is_some() && self.leading != elected {
            self.dropped.extend(self.proposals.drain(..).map(|proposal| proposal.number));
            self.reads.drop_all();
        }
        self.leading = elected.filter(|&term| self.applied_term == term);
    }

    fn apply_bite(&mut self) -> Vec<Applied<M::Outcome>> {
        if self.pending.is_empty() {
            let log = &self.node.raft.raft_log;
            let next = log.next_entries_since(self.applied, Some(APPLY_BYTES_MAX));
            self.pending.extend(next.unwrap_or_default());
        }
        let mut applied = Vec::with_capacity(self.pending.len());
        while let Some(entry) = self.pending.pop_front() {
            assert_eq!(entry.index, self.applied + 1, "entries are applied without gaps");
            applied.extend(self.apply(&entry));
        }
        if self.node.raft.raft_log.applied < self.applied {
            self.node.advance_apply_to(self.applied);
        }
        applied
    }

    fn apply(&mut self, entry: &eraftpb::Entry) -> Option<Applied<M::Outcome>> {
        let (index, term) = (entry.index, entry.term);
        (self.applied, self.applied_term) = (index, term);
        let outcome = match entry.get_entry_type() {
            EntryType::EntryNormal if entry.data.is_empty() => None,
            EntryType::EntryNormal => Some(self.machine.apply(index, &entry.data)),
            EntryType::EntryConfChangeV2 => {
                let change = ConfChangeV2::parse_from_bytes(&entry.data);
                self.apply_members(&change.expect("a committed change of members can be read"));
                None
            }
            EntryType::EntryConfChange => {
                panic!("entry {index} is of a kind that is never proposed")
            }
        };
        let proposal = pop_front_if(&mut self.proposals, |proposal| proposal.index == index)
            .map(|proposal| proposal.number);
        outcome.map(|outcome| Applied { index, term, proposal, outcome })
    }

    fn evict_applied(&mut self) {
        self.evict_cache(if self.is_alone() { 0 } else { CACHE_BYTES_MAX });
    }
}

fn pop_front_if<T>(queue: &mut VecDeque<T>, holds: impl Fn(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(holds) { queue.pop_front() } else { None }
}
