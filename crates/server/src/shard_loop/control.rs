//! LocalControl: this node's replica of the control group, owned by the loop's thread.
//!
//! The group's state is small: it is written whole into the log beside its entries, and sent whole
//! inside a snapshot's message. Each change is published to this node's router.

use crate::{
    Error,
    data_dir::Format,
    limits::COMMAND_BYTES_MAX,
    log::{Batch, FIRST_REPLICA, GroupState, Log},
    node::StartError,
    shard::inbox::Answer,
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};
use taskyard_replica::{
    CONTROL_GROUP, Config, Control, ControlOutcome, ControlRejection, NodeId, ProposeRefused,
    Replica, Restored, SnapshotSource, SnapshotState,
    eraftpb::{ConfState, HardState, Snapshot},
};

/// Entries between two writes of the state; then the log before is dropped.
const CHECKPOINT_ENTRIES: u64 = 512;

/// A state of the control group, and where it stands in the group's log.
#[derive(Clone, Debug, Default, PartialEq)]
struct Saved {
    index: u64,
    term: u64,
    conf_state: ConfState,
    control: Control,
}

pub(super) struct LocalControl {
    pub(super) replica: Replica<Control>,
    /// A commit index to be written with the next entries; it needs no sync of its own.
    pub(super) hard_state: Option<HardState>,
    /// By replica: the node that it was heard from, for a node that has no map yet.
    pub(super) heard: BTreeMap<u64, NodeId>,
    /// The replica is new: the next write must store its id.
    pub(super) is_new: bool,
    /// The group has members besides this replica.
    pub(super) has_peers: bool,
    /// This node leads the group and has proposed the initial state of a new cluster.
    pub(super) founded: bool,
    offered: Offered,
    stored: u64,
    next_number: u64,
    waiting: VecDeque<(u64, Option<Answer<()>>)>,
}

/// The state that lagging peers are sent: the one at the last applied entry.
#[derive(Clone, Default)]
struct Offered(Arc<Mutex<Option<SnapshotState>>>);

impl SnapshotSource for Offered {
    fn snapshot(&self, index_min: u64, _to: u64) -> Option<SnapshotState> {
        let offered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        offered.clone().filter(|state| state.index >= index_min)
    }
}

impl LocalControl {
    /// Recovers the replica from disk; `None` if this node has none.
    pub(super) fn recover(log: &Arc<Log>, seed: u64) -> Result<Option<LocalControl>, StartError> {
        let damaged = |what: String| {
            StartError(format!(
                "the control group can't be recovered: {what}; restore a backup into a new directory"
            ))
        };
        let held = log.group(CONTROL_GROUP)?;
        let Some(id) = held.replica else { return Ok(None) };
        let saved = log.control().map(|bytes| decode(&bytes).ok_or("its state is damaged"));
        let saved = saved.transpose().map_err(|what| damaged(what.into()))?;
        if saved.as_ref().map_or(0, |saved| saved.index) < held.cut {
            return Err(damaged(format!("its log begins after {}", held.cut)));
        }
        let saved =
            saved.unwrap_or_else(|| Saved { conf_state: first_members(id), ..Saved::default() });
        LocalControl::new(log, id, seed, saved, &held)
            .map(Some)
            .map_err(|error| damaged(error.to_string()))
    }

    /// A new, empty replica.
    pub(super) fn joining(log: &Arc<Log>, id: u64, seed: u64) -> LocalControl {
        let made = LocalControl::new(log, id, seed, Saved::default(), &GroupState::default());
        let mut made = made.expect("an empty replica fits together");
        made.is_new = true;
        made
    }

    fn new(
        log: &Arc<Log>,
        id: u64,
        seed: u64,
        saved: Saved,
        held: &GroupState,
    ) -> Result<LocalControl, taskyard_replica::Error> {
        let stored = saved.index;
        let (first_index, last_index) = match held.entries {
            Some((first, last)) if first <= stored => (first, last.max(stored)),
            Some((_, last)) => (0, last.max(stored)),
            None => (0, stored),
        };
        let restored = Restored {
            hard_state: held.hard_state.clone().unwrap_or_default(),
            conf_state: saved.conf_state,
            applied: stored,
            applied_term: saved.term,
            first_index,
            last_index,
        };
        let reader = Box::new(log.reader(CONTROL_GROUP));
        let mut replica = Replica::new(
            &replica_config(CONTROL_GROUP, id, seed),
            restored,
            reader,
            saved.control,
        )?;
        let offered = Offered::default();
        replica.set_snapshot_source(Box::new(offered.clone()));
        let mut this = LocalControl {
            replica,
            hard_state: None,
            heard: BTreeMap::new(),
            is_new: false,
            has_peers: false,
            founded: false,
            offered,
            stored,
            next_number: 0,
            waiting: VecDeque::new(),
        };
        this.note_members();
        this.offer();
        Ok(this)
    }

    /// The applied state.
    pub(super) fn control(&self) -> &Control {
        self.replica.machine()
    }

    pub(super) fn note_members(&mut self) {
        self.has_peers = has_others(self.replica.conf_state(), self.replica.id());
    }

    /// Proposes a command; `answer` is sent once the command is applied.
    pub(super) fn propose(&mut self, command: Vec<u8>, answer: Option<Answer<()>>) {
        self.next_number += 1;
        match self.replica.propose(command, self.next_number) {
            Ok(()) => self.waiting.push_back((self.next_number, answer)),
            Err(refused) => {
                let error = match refused {
                    ProposeRefused::NotLeader(_) => not_leader(),
                    ProposeRefused::TooLarge { bytes, bytes_max } => {
                        Error::CommandTooLarge { bytes, bytes_max }
                    }
                };
                match answer {
                    Some(answer) => drop(answer.send(Err(error))),
                    None => tracing::debug!("a proposal to the control group was refused: {error}"),
                }
            }
        }
    }

    /// Answers the caller of a proposal.
    pub(super) fn answer(&mut self, number: u64, outcome: Result<ControlOutcome, Error>) {
        let position = self.waiting.iter().position(|(other, _)| *other == number);
        let waiting = position.and_then(|position| self.waiting.remove(position));
        let Some((_, answer)) = waiting else { return };
        let answered = outcome.and_then(|outcome| outcome.map_err(refused));
        match answer {
            Some(answer) => drop(answer.send(answered)),
            None => {
                if let Err(error) = answered {
                    tracing::warn!("the control group rejected a proposal of this node: {error}");
                }
            }
        }
    }

    /// Offers the newest state to peers that need a snapshot.
    pub(super) fn offer(&mut self) {
        if self.has_peers {
            let state = SnapshotState {
                index: self.replica.applied(),
                term: self.replica.applied_term(),
                conf_state: self.replica.conf_state().clone(),
                data: Bytes::from(self.control().encode()),
            };
            *self.offered.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        }
    }

    /// Writes the state once its log has grown enough.
    pub(super) fn checkpoint(&mut self, batch: &mut Batch) {
        let applied = self.replica.applied();
        if applied < self.stored + CHECKPOINT_ENTRIES {
            return;
        }
        // Keeps the log from the checkpoint before, for peers that are a little behind.
        let up_to = self.stored;
        batch.control(encode(&Saved {
            index: applied,
            term: self.replica.applied_term(),
            conf_state: self.replica.conf_state().clone(),
            control: self.control().clone(),
        }));
        self.stored = applied;
        // Elections grow the log without commands. An offer older than the log's start helps no
        // peer.
        self.offer();
        if up_to >= self.replica.first_index() {
            self.replica.compact(up_to);
            batch.cut(CONTROL_GROUP, up_to);
        }
    }

    /// Installs a snapshot from the leader in place of state and log.
    pub(super) fn install(&mut self, snapshot: &Snapshot, format: Format, batch: &mut Batch) {
        let metadata = snapshot.get_metadata();
        let control = Control::decode(&snapshot.data).unwrap_or_else(|error| {
            panic!(
                "the control group's state was received and can't be read: {error}; upgrade this node"
            )
        });
        let (id, hard_state) = (self.replica.id(), self.replica.hard_state());
        batch.reset(CONTROL_GROUP, id, metadata.index, &hard_state);
        batch.mark(format);
        batch.control(encode(&Saved {
            index: metadata.index,
            term: metadata.term,
            conf_state: metadata.get_conf_state().clone(),
            control: control.clone(),
        }));
        self.stored = metadata.index;
        self.replica.install(control);
    }
}

/// The configuration of a replica; a tick is 50 ms, see `peers.rs`.
pub(super) fn replica_config(group: u64, id: u64, seed: u64) -> Config {
    // Groups draw differently, so that the shards of a dead node do not all elect the same node.
    let seed = seed ^ (group + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let entry_bytes_max = COMMAND_BYTES_MAX;
    Config { id, seed, heartbeat_ticks: 2, election_ticks: 10, entry_bytes_max }
}

/// The members of a group before its first entry; none unless `id` is the founding replica.
pub(super) fn first_members(id: u64) -> ConfState {
    let voters = if id == FIRST_REPLICA { vec![id] } else { Vec::new() };
    ConfState { voters, ..ConfState::default() }
}

/// Whether a group has members besides `id`.
pub(super) fn has_others(state: &ConfState, id: u64) -> bool {
    let lists = [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next];
    lists.into_iter().flatten().any(|member| *member != id)
}

pub(super) fn not_leader() -> Error {
    Error::NotLeader { shard: 0, leader: None }
}

fn refused(rejection: ControlRejection) -> Error {
    match rejection {
        ControlRejection::NotFounded => Error::Unavailable(rejection.to_string()),
        other => other.into(),
    }
}

/// Version of a saved control state.
const SAVED_VERSION: u8 = 1;

fn encode(saved: &Saved) -> Vec<u8> {
    let Saved { index, term, conf_state, control } = saved;
    let cut = crate::checkpoint::Cut { index: *index, term: *term, conf_state: conf_state.clone() };
    let cut = crate::checkpoint::encode_cut(&cut);
    let mut bytes = vec![SAVED_VERSION];
    bytes.extend_from_slice(&(cut.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&cut);
    bytes.extend_from_slice(&control.encode());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Saved> {
    let (&[SAVED_VERSION], rest) = bytes.split_first_chunk()? else { return None };
    let (length, rest) = rest.split_first_chunk()?;
    let (cut, control) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let cut = crate::checkpoint::decode_cut(cut)?;
    let control = Control::decode(control).ok()?;
    Some(Saved { index: cut.index, term: cut.term, conf_state: cut.conf_state, control })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_state_survives_and_a_torn_one_is_noticed() {
        let conf_state =
            ConfState { voters: vec![1, 4], learners: vec![7], ..ConfState::default() };
        let saved = Saved { index: 9, term: 3, conf_state, control: Control::default() };
        let bytes = encode(&saved);
        assert_eq!(decode(&bytes), Some(saved));
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None, "cut to {length} bytes");
        }
    }
}
