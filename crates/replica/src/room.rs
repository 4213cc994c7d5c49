//! Room: whether the disk of each replica takes more entries.
//!
//! A replica whose disk is full takes no entries and does not campaign. It goes on to vote and to
//! answer heartbeats, which cost next to nothing, and each of those answers says how much room the
//! replica has. A leader sends a full replica no entries until an answer says that there is room
//! again: otherwise each heartbeat would carry a megabyte that the replica throws away.

use crate::eraftpb::{Message, MessageType};
use crate::{Replica, StateMachine};
use raft::ProgressState;

/// How much room the disk of a replica has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// No entry fits.
    Full,
    /// There is little left: another replica is to lead.
    Low,
    /// There is enough, as far as is known.
    #[default]
    Enough,
}

impl Room {
    /// How an answer to a heartbeat says it. Raft has no use for the field there.
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
    /// Says how much room this replica's disk has. A lone voter that is full may lead: there is
    /// nobody else, and its driver proposes nothing.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// How much room a member's disk has, as far as this replica has heard.
    pub fn room_of(&self, id: u64) -> Room {
        if id == self.id() {
            return self.room;
        }
        self.rooms.get(&id).copied().unwrap_or_default()
    }

    /// Whether a majority of the voters has room for an entry. Otherwise nothing that is proposed
    /// now is decided before there is more room.
    pub fn can_commit(&self) -> bool {
        let members = self.members();
        let with_room = |voters: &[u64]| {
            let full = voters.iter().filter(|id| self.room_of(**id) == Room::Full).count();
            2 * (voters.len() - full) > voters.len()
        };
        with_room(&members.voters) && (members.outgoing.is_empty() || with_room(&members.outgoing))
    }

    /// Ends this replica's leadership without a successor: its disk is so full that it can't even
    /// follow an election.
    pub fn abdicate(&mut self) {
        if self.node.raft.state == raft::StateRole::Leader {
            let term = self.term();
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.update_leadership();
        }
    }

    /// What this replica takes of a leader's message: without room, where the log stands and
    /// nothing else.
    pub(crate) fn take_what_fits(&self, message: &mut Message) {
        if self.room == Room::Full && message.get_msg_type() == MessageType::MsgAppend {
            // The leader has already sent an append without entries: what is acknowledged is there.
            message.entries.clear();
        }
    }

    /// Says in each answer to a heartbeat how much room there is.
    pub(crate) fn tell_room(&self, messages: &mut [Message]) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgHeartbeatResponse {
                message.reject_hint = self.room.to_hint();
            }
        }
    }

    /// A member has answered a heartbeat: sends it no entries while it is full. Raft sends none to
    /// a member that gets a snapshot, so that such a member passes for one, with nothing to get.
    pub(crate) fn hear_room(&mut self, from: u64, hint: u64) {
        let Some(progress) = self.node.raft.mut_prs().get_mut(from) else { return };
        let room = Room::from_hint(hint);
        let before = self.rooms.insert(from, room).unwrap_or_default();
        if room == Room::Full && progress.state != ProgressState::Snapshot {
            progress.become_snapshot(progress.matched);
        } else if before == Room::Full && room != Room::Full {
            // It may have been offered a snapshot too, which it has not taken.
            progress.snapshot_failure();
            progress.become_probe();
        }
    }
}
