//! Transfer: leadership that one replica hands to another, and keeps if the heir does not take it.
//!
//! Raft refuses proposals while it waits for the heir, an election timeout long. So an heir that can't or
//! is not to lead says so, and a leader that hears this, or that its heir can't be reached, goes on at
//! once.

use crate::eraftpb::{Message, MessageType};
use crate::{Replica, Room, StateMachine};
use raft::StateRole;

impl<M: StateMachine> Replica<M> {
    /// Hands leadership to `to` once it has the whole log; given up after an election timeout, and at
    /// once if `to` refuses or can't be reached. Proposals are refused meanwhile.
    pub fn transfer_leader(&mut self, to: u64) {
        self.node.transfer_leader(to);
        self.settle();
    }

    /// To whom leadership is being handed.
    pub fn heir(&self) -> Option<u64> {
        self.node.raft.lead_transferee
    }

    /// Whether leadership is being handed over, so that proposals are refused. It may stay after all.
    pub fn is_handing_over(&self) -> bool {
        self.heir().is_some()
    }

    /// Whether it is elected and has not applied yet what was decided before: it will serve in a moment,
    /// or lose its leadership.
    pub fn is_rising(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.leading.is_none()
    }

    /// From now on this replica does not try to lead, and refuses leadership that it is handed. It
    /// votes for others. What it leads already it goes on to lead: hand it over.
    pub fn decline(&mut self) {
        self.declines = true;
    }

    /// Ends this replica's leadership, because no message can carry the entry at `index`. While that
    /// entry is here and not committed, this replica does not campaign: it would lead a group that can't
    /// go on. It votes for others, whose log replaces the entry.
    pub fn resign(&mut self, index: u64) {
        let Ok(term) = self.node.raft.raft_log.term(index) else { return };
        if self.node.raft.state != StateRole::Leader || index <= self.commit() {
            return;
        }
        self.unsendable = Some((index, term));
        let term = self.term();
        self.node.raft.become_follower(term, raft::INVALID_ID);
        self.settle();
    }

    /// Whether this replica leaves leading to others.
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

    /// Tells that peer `to` can't be reached: appends to it are probed instead of streamed, and
    /// leadership is not handed to it.
    pub fn unreachable(&mut self, to: u64) {
        self.node.report_unreachable(to);
        self.keep_from(to);
    }

    /// The leader asks this replica to campaign now. If it does not, the leader is told.
    pub(crate) fn take_over(&mut self, message: Message) {
        let (leader, term) = (message.from, message.term);
        // Raft reads everything unapplied before it campaigns, which a snapshot has just replaced.
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

    /// The heir does not take over: see [`Replica::take_over`].
    pub(crate) fn refused_by(&mut self, refusal: &Message) {
        if refusal.term == self.term() {
            self.keep_from(refusal.from);
        }
    }

    /// One tick of a replica that declines: others may be voted for once their leader is silent, as
    /// always.
    pub(crate) fn let_time_pass(&mut self) {
        let elapsed = &mut self.node.raft.election_elapsed;
        *elapsed = (*elapsed + 1).min(self.election_ticks);
    }

    fn keep_from(&mut self, heir: u64) {
        if self.heir() == Some(heir) {
            self.node.raft.abort_leader_transfer();
        }
    }
}
