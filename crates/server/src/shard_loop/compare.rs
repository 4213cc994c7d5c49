//! Comparing replicas: this node attests its digests, and stops if a majority differs.
//!
//! Invariant: a replica whose state differs from a majority of its group stops its node, because
//! its answers and its snapshots are wrong.

use super::{ShardLoop, Waiting};
use crate::checkpoint::Failure;
use taskyard_machine::{Attest, Command, EncodedCommand, Event, EventKind};
use taskyard_replica::Verdict;

impl ShardLoop {
    /// Handles marks and attests among a shard's events.
    pub(super) fn compare(&mut self, number: usize, events: &[Event]) -> Result<(), Failure> {
        for event in events {
            match event.kind {
                EventKind::DigestMarked { mark, digest } => {
                    let shard = &self.shards[number];
                    if shard.leading.is_some() && shard.has_peers {
                        self.attest(number, mark, digest);
                    }
                }
                EventKind::DigestAttested { attest, own: Some(own) } => {
                    self.hear_attest(number, attest, own)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn hear_attest(&mut self, number: usize, attest: Attest, own: u64) -> Result<(), Failure> {
        let shard = &mut self.shards[number];
        let (me, members) = (shard.replica.id(), shard.replica.members());
        match shard.comparison.judge(me, own, attest, &members) {
            Verdict::Agreed => Ok(()),
            Verdict::Speak => {
                let Attest { mark, replica, digest } = attest;
                tracing::error!(
                    "replicas of shard {} differ: at mark {mark}, replica {replica} had {digest:016x} and replica \
                     {me} on this node had {own:016x}; the replica that differs from a majority will stop its \
                     node",
                    shard.id,
                );
                self.attest(number, mark, own);
                Ok(())
            }
            Verdict::Wrong { others, digest } => {
                let (shard, applied) = (shard.id, shard.replica.applied());
                let (mark, node) = (attest.mark, self.format.node);
                Err(Failure(format!(
                    "the state of shard {shard} on this node is wrong: at mark {mark}, before entry {applied}, \
                     replica {me} here had the digest {own:016x}, and a majority, replicas {others:?}, had \
                     {digest:016x}; trust nothing that this node says: run \
                     `taskyard cluster remove {node} --force` on another node, start this node with a new data \
                     directory and --join, and keep the old directory for a report"
                )))
            }
        }
    }

    /// Proposes this replica's digest at a mark. A lost attest is harmless, because the next mark
    /// comes.
    fn attest(&mut self, number: usize, mark: u64, digest: u64) {
        let shard = &self.shards[number];
        let (id, replica) = (shard.id, shard.replica.id());
        let command = Command::Attest(Attest { mark, replica, digest });
        if shard.leading.is_some() {
            self.command(number, &command, Waiting::Nobody);
        } else if let Some(runtime) = &self.runtime {
            let (handle, command) = (self.handle.clone(), EncodedCommand::new(&command));
            runtime.spawn(async move { handle.propose(id, command, false).await });
        }
    }
}

#[cfg(test)]
mod tests;
