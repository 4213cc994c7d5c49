//! Transfer: a leader hands its leadership to an heir, and keeps it if the heir does not take over.
//!
//! Raft refuses proposals while it waits for the heir, for up to an election timeout. An heir that
//! cannot or may not lead therefore sends a refusal. A leader that gets one, or cannot reach its
//! heir, goes on at once.

use crate::eraftpb::{Message, MessageType};
use crate::{Replica, Room, StateMachine};
use raft::StateRole;

impl<M: StateMachine> Replica<M> {
    /// Hands leadership to `to` once it has the whole log. The leader gives up after an election
    /// timeout, or at once if `to` refuses or is unreachable. Proposals are refused meanwhile.
    pub fn transfer_leader(&mut self, to: u64) {
        self.node.transfer_leader(to);
        self.update_leadership();
    }

    /// The replica that leadership is being handed to.
    pub fn heir(&self) -> Option<u64> {
        self.node.raft.lead_transferee
    }

    /// Whether leadership is being handed over, so that proposals are refused. The hand-over may
    /// fail.
    pub fn is_handing_over(&self) -> bool {
        self.heir().is_some()
    }

    /// Whether this replica is elected but has not yet applied all entries of earlier terms. It
    /// will lead in a moment, or lose the election.
    pub fn is_becoming_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.leading.is_none()
    }

    /// Makes this replica stop seeking leadership and refuse it as an heir. It still votes for
    /// others. If it leads, it keeps leading until its driver hands over.
    pub fn decline(&mut self) {
        self.declines = true;
    }

    /// Ends this replica's leadership, because no message can carry the entry at `index`. While the
    /// entry is in the log and uncommitted, this replica does not campaign, because its group could
    /// not go on under it. It votes for others, whose log replaces the entry.
    pub fn resign(&mut self, index: u64) {
        let Ok(term) = self.node.raft.raft_log.term(index) else { return };
        if self.node.raft.state != StateRole::Leader || index <= self.commit() {
            return;
        }
        self.unsendable = Some((index, term));
        let term = self.term();
        self.node.raft.become_follower(term, raft::INVALID_ID);
        self.update_leadership();
    }

    /// Whether this replica must leave leadership to others.
    pub(crate) fn may_not_lead(&mut self) -> bool {
        if let Some((index, term)) = self.unsendable
            && (index <= self.commit() || self.node.raft.raft_log.term(index) != Ok(term))
        {
            self.unsendable = None;
        }
        let is_full = self.room == Room::Full;
        let is_unfit = (is_full || self.rests()) && !self.is_alone();
        self.declines || self.unsendable.is_some() || is_unfit
    }

    /// Reports that peer `to` is unreachable: raft probes it instead of streaming appends, and an
    /// attempt to hand leadership to it ends.
    pub fn unreachable(&mut self, to: u64) {
        self.node.report_unreachable(to);
        self.end_transfer_to(to);
    }

    /// Campaigns at the leader's request, or sends the leader a refusal.
    pub(crate) fn take_over(&mut self, message: Message) {
        let (leader, term) = (message.from, message.term);
        // Raft reads everything unapplied before it campaigns, and a snapshot may just have
        // replaced that.
        if !self.may_not_lead() && self.may_campaign() {
            let _ = self.node.step(message);
        }
        let stands = matches!(self.node.raft.state, StateRole::Candidate | StateRole::Leader);
        if !stands && self.term() <= term {
            let mut refusal =
                Message { from: self.id(), to: leader, term, reject: true, ..Message::default() };
            refusal.set_msg_type(MessageType::MsgTransferLeader);
            self.node.raft.msgs.push(refusal);
        }
    }

    /// Handles the refusal of an heir, see [`Replica::take_over`].
    pub(crate) fn refused_by(&mut self, refusal: &Message) {
        if refusal.term == self.term() {
            self.end_transfer_to(refusal.from);
        }
    }

    /// Counts one tick of a replica that declines, so that it may vote for others once their leader
    /// is silent.
    pub(crate) fn count_tick(&mut self) {
        let elapsed = &mut self.node.raft.election_elapsed;
        *elapsed = (*elapsed + 1).min(self.election_ticks);
    }

    fn end_transfer_to(&mut self, heir: u64) {
        if self.heir() == Some(heir) {
            self.node.raft.abort_leader_transfer();
        }
    }
}
