//! One turn of the loop: propose, send early messages, write once, answer.
//!
//! Invariant: answers, and messages that depend on a write, leave only after that write's sync.

use super::{LocalShard, ShardLoop, Waiting, local::Unproposed, stopped::guarded};
use crate::{
    checkpoint::{Failure, Job},
    shard::inbox::ReadFn,
    telemetry::NodeGauges,
};
use taskyard_machine::{Command, EncodedCommand};
use taskyard_replica::{CONTROL_GROUP, Room};

/// Log bytes between two purges of unused files.
const TIDY_AFTER_LOG_BYTES: u64 = 128 << 20;
/// Writes per turn; more work waits for the next turn. A replica that has much to apply, as after a
/// start, must not keep the others from ticks and messages.
const WRITES_PER_TURN_MAX: usize = 16;

impl ShardLoop {
    /// One turn over the shards that have work.
    pub(super) fn turn(&mut self) -> Result<(), Failure> {
        let mut round = std::mem::take(&mut self.active);
        for &number in &round {
            self.shards[number].is_active = false;
        }
        for &number in &round {
            if let Err(panic) = guarded(|| self.prepare(number)) {
                self.stop_shard(number, "a look at its state", panic.as_ref())?;
            }
        }
        let mut persisting: Vec<(usize, u64)> = Vec::new();
        let all = round.clone();
        for _ in 0..WRITES_PER_TURN_MAX {
            let control = self.gather_control();
            for &number in &round {
                self.gather(number, &mut persisting);
            }
            if control.is_none() && persisting.is_empty() && self.batch.is_empty() {
                // No shard has work left, so that none stays for the next turn.
                round.clear();
                break;
            }
            self.write()?;
            for (number, ready) in persisting.drain(..) {
                let Some(shard) = self.shards.get(number) else { continue };
                let was_leading = shard.leading.is_some();
                let replica = &mut self.shards[number].replica;
                let progress = match guarded(|| replica.persisted(ready)) {
                    Ok(progress) => progress,
                    Err(panic) => {
                        let doing = format!("entry {} of its log", replica.applied());
                        self.stop_shard(number, &doing, panic.as_ref())?;
                        continue;
                    }
                };
                if let Some(replaced) = replica.take_replaced() {
                    self.order(Some(Job::Drop(Box::new(replaced))));
                }
                self.handle_progress(number, progress, was_leading)?;
            }
            // After the shards, because the map may remove some of them.
            if let (Some(ready), Some(control)) = (control, &mut self.control) {
                let progress = control.replica.persisted(ready);
                self.handle_control_progress(progress)?;
            }
            let shards = &self.shards;
            let has_ready = |shard: &LocalShard| shard.replica.has_ready();
            round.retain(|&number| shards.get(number).is_some_and(has_ready));
        }
        for number in round {
            self.activate(number);
        }
        for number in all {
            let may_append = self.may_append(number);
            if let Some(shard) = self.shards.get_mut(number) {
                shard.due = shard.next_due().filter(|_| may_append);
            }
        }
        if self.is_untidy && self.room() != Room::Full {
            // This turn's cuts are synced, so that a purge knows what is garbage. A purge needs
            // some space itself.
            self.is_untidy = false;
            self.tidy();
        }
        self.memory.enforce(&mut self.shards);
        self.routes.set_disk_low(self.disk.is_low());
        self.measure();
        Ok(())
    }

    fn measure(&self) {
        self.telemetry.set_gauges(NodeGauges {
            memory_bytes: self.memory.bytes(),
            memory_bytes_max: self.memory.bytes_max(),
            in_flight_bytes: self.memory.in_flight_bytes(),
            memory_full: self.memory.is_full(),
            disk_free_bytes: self.disk.free_bytes(),
            disk_full: self.disk.is_full(),
            claims_parked: self.shards.iter().map(|shard| shard.waiters.len() as u64).sum(),
            shards_stopped: self.stopped.count(),
            shards_serving: self.shards.iter().filter(|shard| shard.leading.is_some()).count()
                as u64,
            time_ahead: self.time_ahead,
            snapshot_bytes_fetched: self.fetcher.bytes_fetched(),
        });
    }

    /// Lets a leader propose commands that are waiting, due or owed.
    fn prepare(&mut self, number: usize) {
        let rules = self.rules;
        let may_append = self.may_append(number);
        let proposes = !self.stands_still() && !self.is_kept_out();
        let Some(shard) = self.shards.get_mut(number) else { return };
        if shard.leading.is_none() && shard.replica.is_becoming_leader() {
            // The leader serves soon: commands that came before wait until then.
            return;
        }
        self.queued_bytes -= std::mem::take(&mut shard.queued_bytes);
        let Some(clock) = &mut shard.leading else {
            let (group, role) = (shard.group, shard.replica.role());
            if shard.waiters.len() > 0 || !shard.pending.is_empty() || !shard.reads.is_empty() {
                // Callers that waited for a failed election are redirected.
                self.publish_leader(group, role);
                let error = self.not_leader(group);
                self.shards[number].waiters.end(Some(&error));
                self.redirect_waiting(number);
            }
            return;
        };
        let now = clock.now(self.reading);
        shard.waiters.wake_due(self.real);
        if !may_append {
            // Due commands wait for room; admitted ones are proposed all the same. A node that is
            // kept out admits nothing, and begins its term when it is let in.
            let unproposed =
                if proposes { shard.propose(rules, now) } else { Unproposed::default() };
            let reads = shard.ask_reads();
            return self.refuse_unproposed(number, unproposed, reads);
        }
        if shard.timer.fires(&shard.replica.machine().machine, now) {
            shard.pending.push((EncodedCommand::new(&Command::ExpireDue), Waiting::Expiry));
        }
        for command in shard.firing.take_due(&shard.replica.machine().machine, now) {
            shard.pending.push((command, Waiting::Firing));
        }
        let unmarked = shard.replica.machine().unmarked;
        if shard.has_peers && shard.comparison.is_due(unmarked, self.reading.monotonic) {
            shard.pending.push((EncodedCommand::new(&Command::Mark), Waiting::Mark));
        }
        if shard.waiters.is_woken() {
            let state = shard.replica.machine();
            for served in shard.waiters.serve(&state.machine, now, self.real) {
                self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let request = &served.waiter.request;
                let command = EncodedCommand::new(&Command::Claim(request.command(self.seed)));
                shard.pending.push((command, Waiting::Claim(Box::new(served))));
            }
        }
        if shard.outbox.is_woken() {
            self.deliver(number);
        }
        let shard = &mut self.shards[number];
        let unproposed = shard.propose(rules, now);
        let reads = shard.ask_reads();
        self.refuse_unproposed(number, unproposed, reads);
    }

    fn refuse_unproposed(&mut self, number: usize, unproposed: Unproposed, reads: Vec<ReadFn>) {
        self.refuse(number, unproposed.not_leading, reads);
        for (waiting, error) in unproposed.too_large {
            self.refuse_large(number, waiting, &error);
        }
    }

    /// Adds one shard's entries to the batch.
    fn gather(&mut self, number: usize, persisting: &mut Vec<(usize, u64)>) {
        let stands_still = self.stands_still();
        let Some(shard) = self.shards.get_mut(number) else { return };
        if std::mem::take(&mut shard.is_new) {
            self.batch.replica(shard.group, shard.replica.id());
        }
        if !stands_still && let Some(index) = shard.log_cut.take() {
            self.batch.cut(shard.group, index);
        }
        let Some(mut ready) = shard.replica.ready() else { return };
        let group = shard.group;
        self.send(group, std::mem::take(&mut ready.messages_now));
        let shard = &mut self.shards[number];
        shard.install(&ready, &mut self.batch);
        persisting.push((number, ready.number));
        shard.hard_state = ready.hard_state.or(shard.hard_state.take());
        if ready.entries.is_empty() && !ready.must_sync {
            // A new commit index alone waits for the next write, because the log can restore it.
            return;
        }
        self.batch.append(shard.group, &ready.entries);
        if let Some(hard_state) = shard.hard_state.take() {
            self.batch.hard_state(shard.group, &hard_state);
        }
    }

    /// `gather` for the control group.
    fn gather_control(&mut self) -> Option<u64> {
        let control = self.control.as_mut()?;
        if std::mem::take(&mut control.is_new) {
            self.batch.replica(CONTROL_GROUP, control.replica.id());
        }
        let ready = control.replica.ready()?;
        self.send(CONTROL_GROUP, ready.messages_now);
        let control = self.control.as_mut()?;
        if let Some(snapshot) = &ready.snapshot {
            control.install(snapshot, self.format, &mut self.batch);
        }
        control.hard_state = ready.hard_state.or(control.hard_state.take());
        if !ready.entries.is_empty() || ready.must_sync {
            self.batch.append(CONTROL_GROUP, &ready.entries);
            control.checkpoint(&mut self.batch);
            if let Some(hard_state) = control.hard_state.take() {
                self.batch.hard_state(CONTROL_GROUP, &hard_state);
            }
        }
        Some(ready.number)
    }

    /// Writes the batch to the log and syncs it.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let written =
            self.log.write(&mut self.batch).map_err(|error| Failure(error.to_string()))?;
        self.disk.note_written(written.bytes as u64);
        self.log_bytes_untidy += written.bytes as u64;
        if self.log_bytes_untidy >= TIDY_AFTER_LOG_BYTES {
            self.tidy();
        }
        self.telemetry.note_write(&written);
        Ok(())
    }

    /// Frees files that no checkpoint and no log entry needs, on another thread.
    pub(super) fn tidy(&mut self) {
        self.log_bytes_untidy = 0;
        let tasks_live = self.shards.iter().map(|shard| shard.machine().task_count());
        self.checkpointer.tidy(tasks_live.sum());
    }
}
