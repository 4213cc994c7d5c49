//! Reads: a read waits until a majority confirms that this replica still leads, and then until the
//! state reaches the index that was committed when the read arrived.
//!
//! Invariant: every read ends once, served or dropped.

use std::collections::{BTreeMap, VecDeque};

/// The reads of one leader, by the numbers that the driver gave them.
#[derive(Default)]
pub(crate) struct Reads {
    /// Unconfirmed reads, by raft's context.
    asked: BTreeMap<u64, u64>,
    /// Confirmed reads, as (index to apply first, number).
    confirmed: VecDeque<(u64, u64)>,
    dropped: Vec<u64>,
    next_context: u64,
}

impl Reads {
    /// Takes a read; returns the context for raft.
    pub(crate) fn ask(&mut self, number: u64) -> Vec<u8> {
        let context = self.next_context;
        self.next_context += 1;
        self.asked.insert(context, number);
        context.to_be_bytes().to_vec()
    }

    pub(crate) fn confirm(&mut self, states: Vec<raft::ReadState>) {
        for state in states {
            let context = state.request_ctx.try_into().map(u64::from_be_bytes);
            let number = context.ok().and_then(|context| self.asked.remove(&context));
            self.confirmed.extend(number.map(|number| (state.index, number)));
        }
    }

    /// Drops every read that was not served, because leadership is lost.
    pub(crate) fn drop_all(&mut self) {
        self.dropped.extend(std::mem::take(&mut self.asked).into_values());
        self.dropped.extend(self.confirmed.drain(..).map(|(_, number)| number));
    }

    pub(crate) fn any_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    pub(crate) fn take_dropped(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.dropped)
    }

    /// The reads that the state at index `applied` may answer.
    pub(crate) fn take_servable(&mut self, applied: u64) -> Vec<u64> {
        let servable = self.confirmed.iter().take_while(|(index, _)| *index <= applied).count();
        self.confirmed.drain(..servable).map(|(_, number)| number).collect()
    }
}
