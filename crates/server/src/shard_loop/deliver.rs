//! What a shard owes others: proposed here where this node leads the target, else sent to the node
//! that does. The target dedups by number, so whatever has an unknown outcome is sent again.
//!
//! While a backup freezes the shards of all nodes, nothing is sent and nothing dropped: no copy of
//! a shard may know of a message that its sender's copy does not, nor miss one that its sender's
//! has forgotten.

use super::{ShardLoop, local::Waiting};
use crate::{
    Error,
    shard::{
        inbox::{Answer, Input},
        outbox::Delivery,
    },
};
use std::{collections::BTreeMap, sync::Arc, time::Instant};
use taskyard_machine::{Command, Delivered, EncodedCommand, Outcome, ShardId};

/// What is on its way to one target, by number.
type Owed = Vec<(u64, EncodedCommand)>;

impl ShardLoop {
    /// Delivers what this shard owes, and tells it what its targets have taken.
    pub(super) fn deliver(&mut self, number: usize) {
        if !self.pauses.is_empty() || self.is_shut {
            return;
        }
        let reading = self.reading;
        let shard = &mut self.shards[number];
        let Some(now) = shard.leading.as_mut().map(|clock| clock.now(reading)) else { return };
        let from = shard.id;
        for (to, up_to) in shard.outbox.take_delivered() {
            let command = EncodedCommand::new(&Command::Delivered(Delivered { to, up_to }));
            shard.pending.push((command, Waiting::Delivered { to, up_to }));
        }
        let mut away: BTreeMap<ShardId, Owed> = BTreeMap::new();
        for delivery in shard.outbox.take_unsent(&shard.replica.machine().machine, now) {
            let Delivery { to, sequence, command } = delivery;
            let target = usize::from(to.0);
            match self.shards.get_mut(target).filter(|target| target.leading.is_some()) {
                Some(leads) => {
                    leads.pending.push((command, Waiting::Deliver { from, sequence }));
                    self.activate(target);
                }
                None => away.entry(to).or_default().push((sequence, command)),
            }
        }
        for (to, owed) in away {
            self.send_away(number, to, owed);
        }
    }

    /// Sends and drops nothing for a backup until then; a moment that is over ends it. What is on
    /// its way is on its way: whoever asks waits for what is committed by now.
    pub(super) fn accept_pause(&mut self, backup: u64, until: Instant, answer: Answer<()>) {
        self.pauses.insert(backup, until);
        self.end_pauses();
        let _ = answer.send(Ok(()));
    }

    /// Resumes delivery once every pause has ended.
    pub(super) fn end_pauses(&mut self) {
        if self.pauses.is_empty() {
            return;
        }
        self.pauses.retain(|_, until| *until > self.real);
        if self.pauses.is_empty() {
            self.shards.numbers().into_iter().for_each(|number| self.activate(number));
        }
    }

    fn send_away(&mut self, number: usize, to: ShardId, owed: Owed) {
        let shard = &mut self.shards[number];
        let from = shard.id;
        let Some(runtime) = &self.runtime else {
            shard.outbox.refused(to, self.real);
            return;
        };
        shard.outbox.sent_away(to);
        let (handle, inbox) = (self.handle.clone(), Arc::clone(&self.inbox));
        runtime.spawn(async move {
            let (numbers, commands): (Vec<u64>, Vec<_>) =
                owed.into_iter().map(|(number, command)| (number, (to, command))).unzip();
            let answers = handle.propose_all(commands, false).await;
            let answers = numbers.into_iter().zip(answers).collect();
            let _ = inbox.push(Input::Owed { from, to, answers });
        });
    }

    /// What a target on another node has answered.
    pub(super) fn accept_owed(
        &mut self,
        from: ShardId,
        to: ShardId,
        answers: Vec<(u64, Result<Outcome, Error>)>,
    ) {
        let number = usize::from(from.0);
        let Some(shard) = self.shards.get_mut(number) else { return };
        shard.outbox.returned(to);
        for (sequence, answer) in answers {
            match answer {
                Ok(_) => shard.outbox.taken(to, sequence),
                Err(error) => {
                    if let Error::Rejected(_) = error {
                        tracing::error!(
                            "shard {to} has refused message {sequence} of shard {from}: {error}; it is sent again"
                        );
                    }
                    shard.outbox.refused(to, self.real);
                }
            }
        }
        self.activate(number);
    }
}
