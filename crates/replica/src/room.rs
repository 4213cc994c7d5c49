//! Room: whether the disk of each replica takes more entries.
//!
//! A replica whose disk is full takes no entries and does not campaign. The replica still votes and
//! answers heartbeats, because both need hardly any space, and each answer reports its room. A
//! leader sends a full replica no entries until an answer reports room again. Otherwise each
//! heartbeat would be followed by a megabyte of entries that the replica drops.

use crate::eraftpb::{Message, MessageType};
use crate::{Replica, StateMachine};
use raft::ProgressState;

/// The room on the disk of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// No entry fits.
    Full,
    /// Little space is left, so that another replica should lead.
    Low,
    /// Enough space, as far as is known.
    #[default]
    Enough,
}

impl Room {
    /// The room as `reject_hint` of an answer to a heartbeat, where raft does not use this field.
    fn to_hint(self) -> u64 {
        match self {
            Room::Enough => 0,
            Room::Low => 1,
            Room::Full => 2,
        }
    }

    fn from_hint(hint: u64) -> Room {
        match hint {
            1 => Room::Low,
            2 => Room::Full,
            _ => Room::Enough,
        }
    }
}

impl<M: StateMachine> Replica<M> {
    /// Sets the room on this replica's disk. A lone voter with a full disk may lead, because no
    /// other replica can, and its driver proposes nothing.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// The room on a member's disk, as last reported to this replica.
    pub fn room_of(&self, id: u64) -> Room {
        if id == self.id() {
            return self.room;
        }
        self.rooms.get(&id).copied().unwrap_or_default()
    }

    /// Whether a majority of the voters has room for an entry. Otherwise a new proposal is not
    /// committed before there is more room.
    pub fn can_commit(&self) -> bool {
        let members = self.members();
        let with_room = |voters: &[u64]| {
            let full = voters.iter().filter(|id| self.room_of(**id) == Room::Full).count();
            2 * (voters.len() - full) > voters.len()
        };
        with_room(&members.voters) && (members.outgoing.is_empty() || with_room(&members.outgoing))
    }

    /// Ends this replica's leadership without a successor, because its disk is so full that the
    /// replica could not even store a new term.
    pub fn abdicate(&mut self) {
        if self.node.raft.state == raft::StateRole::Leader {
            let term = self.term();
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.update_leadership();
        }
    }

    /// Drops the entries of an append if this replica has no room.
    pub(crate) fn drop_unstorable(&self, message: &mut Message) {
        if self.room == Room::Full && message.get_msg_type() == MessageType::MsgAppend {
            // An append without entries is normal in raft: the answer acknowledges what is there.
            message.entries.clear();
        }
    }

    /// Adds this replica's room to each answer to a heartbeat.
    pub(crate) fn report_room(&self, messages: &mut [Message]) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgHeartbeatResponse {
                message.reject_hint = self.room.to_hint();
            }
        }
    }

    /// Handles the room that a member reports in its answer to a heartbeat. A full member gets no
    /// entries, because the leader marks the member as one that is installing a snapshot, and raft
    /// sends no entries to such a member.
    pub(crate) fn note_room(&mut self, from: u64, hint: u64) {
        let Some(progress) = self.node.raft.mut_prs().get_mut(from) else { return };
        let room = Room::from_hint(hint);
        let before = self.rooms.insert(from, room).unwrap_or_default();
        if room == Room::Full && progress.state != ProgressState::Snapshot {
            progress.become_snapshot(progress.matched);
        } else if before == Room::Full && room != Room::Full {
            // The member may have been offered a real snapshot too, and has not installed it.
            progress.snapshot_failure();
            progress.become_probe();
        }
    }
}
