//! The driver's turn: a ready of every replica and one frame for all of them; after its sync, the
//! messages that waited for it.

use super::{Effect, Node, Peer, group_of};
use crate::clock::RUN_BEGINS_AT_MS;
use crate::disk::Write;
use crate::invariants::Violation;
use crate::sabotage::Sabotage;
use taskyard_replica::Ready;
use taskyard_replica::eraftpb::Message;

impl Node {
    /// Takes a ready of every group, writes them as one frame, and goes on at once where no sync is
    /// needed.
    pub(super) fn write_ready(&mut self, now: u64) -> Result<bool, Violation> {
        let readies = self.readies();
        if readies.is_empty() {
            return Ok(false);
        }
        let mut writes = Vec::new();
        let mut at_once = Vec::new();
        let mut after_sync = Vec::new();
        for (group, mut ready) in readies {
            self.send(group, std::mem::take(&mut ready.messages_now));
            let reset = ready.snapshot.is_some();
            if let Some(snapshot) = ready.snapshot.take() {
                self.install(group, &snapshot)?;
            }
            if reset || !ready.entries.is_empty() || ready.hard_state.is_some() {
                let (entries, hard_state) = (ready.entries, ready.hard_state);
                writes.push(Write { group, reset, entries, hard_state, ..Write::default() });
            }
            let early = self.config.sabotage == Sabotage::AnswerBeforeSync;
            let ready_list = if ready.must_sync && !early { &mut after_sync } else { &mut at_once };
            ready_list.push((group, ready.number));
        }
        if !writes.is_empty() {
            let frame = self.disk.write(&writes);
            let delay = self.sync_delay(now);
            self.output.effects.push((delay, Effect::Synced { frame }));
            if let (Some(process), false) = (&mut self.process, after_sync.is_empty()) {
                process.in_flight.push_back((frame, after_sync));
            }
        }
        for (group, number) in at_once {
            self.persisted(group, number, now)?;
        }
        Ok(true)
    }

    fn readies(&mut self) -> Vec<(u64, Ready)> {
        let Some(process) = &mut self.process else { return Vec::new() };
        let control = process.control.iter_mut();
        let control = control.filter_map(|control| Some((0, control.replica.ready()?)));
        let shards = process.hosts.iter_mut();
        let shards =
            shards.filter_map(|(&shard, host)| Some((group_of(shard), host.replica.ready()?)));
        control.chain(shards).collect()
    }

    fn sync_delay(&mut self, now: u64) -> u64 {
        let stalls = self.rng.chance(20);
        let (least, most) = match () {
            () if now < self.slow_until => (150, 1_200),
            () if stalls => (20, 200),
            () => self.sync_ms,
        };
        self.rng.between(least, most)
    }

    fn send(&mut self, group: u64, messages: Vec<Message>) {
        for message in messages {
            let to = self.route(group, message.to);
            let peer = Peer::Raft { group, message: Box::new(message) };
            self.output.peers.extend(to.map(|to| (to, peer)));
        }
    }

    pub(super) fn persisted(&mut self, group: u64, number: u64, now: u64) -> Result<(), Violation> {
        let wall = (RUN_BEGINS_AT_MS + now).saturating_add_signed(self.wall_offset);
        let Some(process) = &mut self.process else { return Ok(()) };
        let Some(shard) = group.checked_sub(1).map(|shard| shard as u16) else {
            let Some(control) = &mut process.control else { return Ok(()) };
            let mut progress = control.replica.persisted(number);
            let messages = std::mem::take(&mut progress.messages);
            self.map_changed |= control.take(progress, now, &mut self.output);
            self.send(group, messages);
            return Ok(());
        };
        let Some(host) = process.hosts.get_mut(&shard) else { return Ok(()) };
        let mut progress = host.replica.persisted(number);
        let messages = std::mem::take(&mut progress.messages);
        host.take(shard, progress, wall, now, &mut self.output)?;
        self.send(group, messages);
        for (shard, leader, command) in std::mem::take(&mut self.output.attests) {
            let to = self.route(group_of(shard), leader);
            self.output.peers.extend(to.map(|to| (to, Peer::Attest { shard, command })));
        }
        Ok(())
    }
}
