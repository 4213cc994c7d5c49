//! Checkpoints: when each shard's state is written to disk, and in which bites.
//!
//! One shard after the other: its cut is frozen between two turns, then each turn encodes one bite
//! for the writing thread, so that no turn takes long. Once the checkpoint is synced, the log up to
//! the cut is dropped. A backup freezes all shards in the same turn, so that messages between them
//! fit together.
//!
//! A checkpoint is due by time, by the bytes that its shard has written, and by the bytes that all
//! shards have written since: so the log stays shorter than the size at which raft-engine asks for
//! checkpoints. The first checkpoint of each shard is due earlier, at a different time per shard,
//! so that not all come at once.

#[cfg(test)]
mod tests;

use super::{local::LocalShard, local_shards::LocalShards, log_age::LogAge, stopped::guarded};
use crate::{
    Error,
    checkpoint::{Change, Checkpointer, Cut, Failure, Job, View},
    cluster::Snapshots,
    limits::{
        self, CHECKPOINT_LOG_BYTES_MAX, DIRTY_RECORDS_MAX, LOG_KEPT_BYTES_MAX, LOG_PINNED_BYTES_MAX,
    },
    log::PURGE_BYTES,
    shard::inbox::{Answer, BackupOrder},
};
use std::{
    any::Any,
    collections::VecDeque,
    time::{Duration, Instant},
};
use taskyard_machine::{RecordKey, ShardId, TaskId};
use taskyard_replica::Room;

/// A whole share of the usual wait; the wait for a shard's first checkpoint is less.
const WHOLE: u64 = 1 << 16;
// raft-engine asks for checkpoints of shards with entries in the oldest fifth of a log of
// `PURGE_BYTES`.
const _: () = assert!(LOG_KEPT_BYTES_MAX <= PURGE_BYTES * 3 / 4);
/// Log bytes between two checks of how much log each shard keeps.
const LOOK_EVERY_BYTES: u64 = 1 << 20;
/// Records encoded per turn: about half a millisecond.
const BITE_RECORDS: usize = 512;
/// How long the writing thread may take for one checkpoint. A failed disk may block it for ever
/// without an error.
const WRITING_FOR_MAX: Duration = Duration::from_secs(120);
/// How often the writing thread is checked. A pause of the whole process counts as one check.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// The cut is frozen, and not all of its records are handed to the writing thread.
    Frozen,
    Writing,
}

/// The state of one shard's checkpoints.
pub(crate) struct Checkpoint {
    stage: Stage,
    /// The last entry in the last synced checkpoint.
    stored: u64,
    /// A checkpoint was asked for; it need not wait until it is due.
    wanted: bool,
    /// A snapshot is about to replace the state: no new cut may begin.
    is_blocked: bool,
    /// When the oldest change must be checkpointed.
    due_at: Option<Instant>,
    /// The cut under way, and the bodies that go with it.
    cut: Option<Cut>,
    bodies: Vec<TaskId>,
    /// What the shard keeps of the log.
    log: LogAge,
    /// The part of the usual wait before the next checkpoint, in units of 1 / [`WHOLE`].
    share: u64,
}

/// A moment: by the clock, and by bytes written to the log since the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub now: Instant,
    pub log: u64,
}

impl Checkpoint {
    /// For a shard whose last checkpoint is at `stored`, and whose log begins at position `log` or
    /// later.
    pub(crate) fn new(stored: u64, log: u64) -> Checkpoint {
        Checkpoint {
            stage: Stage::Idle,
            stored,
            wanted: false,
            is_blocked: false,
            due_at: None,
            cut: None,
            bodies: Vec::new(),
            log: LogAge::new(stored, log),
            share: WHOLE,
        }
    }

    /// The last entry in the last synced checkpoint.
    pub(crate) fn stored(&self) -> u64 {
        self.stored
    }

    /// Like `new`, for one of many shards that start together: spreads their first checkpoints.
    pub(crate) fn apart(shard: ShardId, stored: u64, log: u64) -> Checkpoint {
        // Multiples of the golden ratio's fraction are spread evenly, whatever the number of
        // shards.
        let share = WHOLE - u64::from(shard.0.wrapping_mul(40_503));
        Checkpoint { share, ..Checkpoint::new(stored, log) }
    }

    /// When the next checkpoint is due by time; `None` if there is no change or one is under way.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.due_at.filter(|_| self.stage == Stage::Idle && !self.is_blocked)
    }

    /// Notes a change. The first change after a checkpoint sets when the next is due.
    fn changed(&mut self, now: Instant) {
        let wait = Duration::from_millis(limits::DIRTY_FOR_MS_MAX * self.share / WHOLE);
        self.due_at.get_or_insert(now + wait);
    }

    /// Since when a checkpoint is to begin; `None` if none is due.
    fn due_since(&self, at: At, has_peers: bool) -> Option<Instant> {
        let may_begin = self.stage == Stage::Idle && !self.is_blocked;
        // With peers, the log is kept from the last checkpoint but one.
        let kept_max = if has_peers { LOG_KEPT_BYTES_MAX / 2 } else { LOG_KEPT_BYTES_MAX };
        let log_is_long = self.log.since_checkpoint(at.log) >= kept_max * self.share / WHOLE;
        let is_due =
            self.wanted || self.due_at.is_some_and(|due_at| log_is_long || due_at <= at.now);
        // A checkpoint that was asked for takes its turn by its first change, like all others.
        (may_begin && is_due).then_some(self.due_at.unwrap_or(at.now))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Whether one is to begin before the node ends. Not if a snapshot is about to replace the
    /// state.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted && !self.is_blocked
    }

    /// Lets no new cut begin until `unblock`; a cut under way goes on.
    pub(crate) fn block(&mut self) {
        self.is_blocked = true;
    }

    pub(crate) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// A snapshot has replaced the state: all up to `index` is stored, with no change since.
    pub(crate) fn installed(&mut self, index: u64) {
        assert!(self.is_idle(), "a snapshot at {index} was installed under a checkpoint");
        *self = Checkpoint::new(index, self.log.checkpointed_at());
    }
}

/// A shard whose cut could not be frozen or encoded, and what its panic said.
#[derive(Debug)]
pub(crate) struct Panicked {
    pub number: usize,
    pub panic: Box<dyn Any + Send>,
}

/// The checkpoints under way on this node.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Numbers of frozen shards, in the order in which their bites are taken.
    frozen: VecDeque<usize>,
    writing: usize,
    /// Jobs other than checkpoints that the writing thread has not reported as done.
    ordered: usize,
    /// The log's position at the last check of how much each shard keeps.
    log_looked_at: u64,
    /// Bytes that the next checkpoint may take of the disk, and the disk's room for others.
    room_bytes: u64,
    room: Room,
    /// When the writing thread was last checked, and for how long it had finished nothing by then.
    looked_at: Option<Instant>,
    writing_for: Duration,
    /// Backups that wait for the checkpoints under way.
    backups_asked: Vec<BackupOrder>,
    /// Backups for which all shards were frozen in one turn.
    backups_frozen: Vec<Answer<View>>,
    /// No checkpoint begins before this moment, unless asked for: a backup is about to begin, and
    /// must not wait for one.
    quiet_until: Option<Instant>,
    /// Answered once no checkpoint is under way.
    quiet_asked: Vec<Answer<()>>,
}

impl Checkpoints {
    /// Asks for a view of all shards at one moment.
    pub(crate) fn backup(&mut self, order: BackupOrder) {
        self.quiet_until = None;
        self.backups_asked.push(order);
    }

    /// Ends the backups that are under way with this error.
    pub(crate) fn refuse_backups(&mut self, error: &Error) {
        let asked = self.backups_asked.drain(..).map(|order| order.written);
        let answers = asked.chain(self.backups_frozen.drain(..));
        answers.for_each(|answer| drop(answer.send(Err(error.clone()))));
    }

    /// Begins no checkpoint before `until`, unless a backup comes. Answers once none is under way.
    pub(crate) fn keep_quiet(&mut self, until: Instant, answer: Answer<()>) {
        self.quiet_until = self.quiet_until.max(Some(until));
        self.quiet_asked.push(answer);
    }

    /// Lifts `keep_quiet`, because the node ends and wants its last checkpoints.
    pub(crate) fn end_quiet(&mut self) {
        self.quiet_until = None;
        self.quiet_asked.clear();
    }

    /// Whether a turn without inputs has something to do here.
    pub(crate) fn has_bites(&self) -> bool {
        let is_asked = self.has_backups() || !self.quiet_asked.is_empty();
        !self.frozen.is_empty() || (self.writing == 0 && is_asked)
    }

    fn has_backups(&self) -> bool {
        !self.backups_asked.is_empty() || !self.backups_frozen.is_empty()
    }

    /// Whether a due checkpoint can begin. At most two are under way, one being written and one
    /// being encoded, because their records wait in memory.
    pub(crate) fn may_begin(&self) -> bool {
        self.writing < 2 && !self.has_backups() && self.quiet_until.is_none()
    }

    pub(crate) fn set_room(&mut self, bytes: u64, room: Room) {
        (self.room_bytes, self.room) = (bytes, room);
    }

    /// Whether the disk has room for a checkpoint of `shard`. It takes about as much as the log
    /// since the last one.
    pub(crate) fn has_room_for(&self, shard: &LocalShard) -> bool {
        shard.state().log_bytes < self.room_bytes
    }

    /// Whether `shard` wants a checkpoint before the node ends, and the disk has room for it.
    pub(crate) fn wants(&self, shard: &LocalShard) -> bool {
        shard.checkpoint.is_wanted() && self.has_room_for(shard)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.frozen.is_empty() && self.writing == 0 && !self.has_backups()
    }

    /// How soon the writing thread is to be checked again.
    pub(crate) fn look_in(&self) -> Option<Duration> {
        let is_busy = self.writing > 0 || self.ordered > 0 || self.quiet_until.is_some();
        is_busy.then_some(LOOK_EVERY)
    }

    /// Fails if the writing thread has made no progress for too long. `real` is never a manual
    /// clock's time.
    pub(crate) fn look(&mut self, real: Instant) -> Result<(), Failure> {
        self.quiet_until = self.quiet_until.filter(|until| *until > real);
        let before = self.looked_at.replace(real);
        if self.writing == 0 && self.ordered == 0 {
            self.writing_for = Duration::ZERO;
        } else if let Some(before) = before {
            self.writing_for += real.saturating_duration_since(before).min(LOOK_EVERY);
        }
        if self.writing_for < WRITING_FOR_MAX {
            return Ok(());
        }
        let seconds = WRITING_FOR_MAX.as_secs();
        Err(Failure(format!(
            "a checkpoint is not on the disk after {seconds} s; check the disk, then start again"
        )))
    }

    /// The writing thread was given a job other than a checkpoint.
    pub(crate) fn ordered(&mut self) {
        self.ordered += 1;
    }

    /// The writing thread has done that job.
    pub(crate) fn done(&mut self) {
        self.ordered -= 1;
        self.writing_for = Duration::ZERO;
    }

    /// Notes that entries were applied on `shard`, and asks for a checkpoint if it has grown
    /// enough.
    pub(crate) fn note_change(shard: &mut LocalShard, now: Instant) {
        let state = shard.replica.machine();
        let grown = state.log_bytes >= CHECKPOINT_LOG_BYTES_MAX
            || state.machine.dirty_records() >= DIRTY_RECORDS_MAX;
        shard.checkpoint.wanted |= grown;
        shard.checkpoint.changed(now);
    }

    /// Asks for a checkpoint of `shard` as soon as possible.
    pub(crate) fn want(shard: &mut LocalShard) {
        shard.checkpoint.wanted = true;
    }

    /// Frees files of the log that hold old entries of `shard`, by a checkpoint if need be. A
    /// checkpoint under way frees them by itself.
    pub(crate) fn shorten_log(&self, shard: &mut LocalShard, log: u64, snapshots: &Snapshots) {
        if shard.checkpoint.is_idle() && self.drop_log(shard, log, snapshots) {
            Checkpoints::want(shard);
        }
    }

    /// Drops log that was kept for peers that are down or too far behind; they get a snapshot
    /// instead.
    fn look_at_log(&mut self, shards: &mut LocalShards, log: u64, snapshots: &Snapshots) {
        if log < self.log_looked_at + LOOK_EVERY_BYTES {
            return;
        }
        self.log_looked_at = log;
        for shard in shards.iter_mut() {
            if shard.checkpoint.log.kept(log) >= LOG_KEPT_BYTES_MAX {
                self.drop_log(shard, log, snapshots);
            }
        }
    }

    /// Drops the log before the last checkpoint, or before what a peer needs that is catching up.
    /// Returns `false` if log was kept for such a peer.
    fn drop_log(&self, shard: &mut LocalShard, log: u64, snapshots: &Snapshots) -> bool {
        let may_keep =
            self.room == Room::Enough && shard.checkpoint.log.kept(log) < LOG_PINNED_BYTES_MAX;
        let stored = shard.checkpoint.stored;
        let needed = needed_after(shard, snapshots).filter(|index| may_keep && *index < stored);
        cut_log(shard, needed.unwrap_or(stored));
        snapshots.overtaken(shard.id, shard.replica.first_index() - 1);
        needed.is_none()
    }

    /// Begins a checkpoint that is due, and encodes one bite. The caller stops a shard that panics
    /// here; the other shards continue with the next step.
    pub(crate) fn step(
        &mut self,
        shards: &mut LocalShards,
        checkpointer: &Checkpointer,
        snapshots: &Snapshots,
        at: At,
    ) -> Result<(), Panicked> {
        self.look_at_log(shards, at.log, snapshots);
        if self.frozen.is_empty() {
            if self.writing == 0 && self.backups_frozen.is_empty() {
                self.quiet_asked.drain(..).for_each(|answer| drop(answer.send(Ok(()))));
            }
            self.begin(shards, checkpointer, at)?;
        }
        match self.frozen.front() {
            Some(&number) => self.hand_out(&mut shards[number], checkpointer),
            None => Ok(()),
        }
    }

    /// Like `step`, for a test's only shard.
    #[cfg(test)]
    pub(crate) fn step_alone(
        &mut self,
        shard: &mut LocalShard,
        checkpointer: &Checkpointer,
        at: At,
    ) {
        let is_due = shard.checkpoint.due_since(at, shard.has_peers).is_some();
        if self.frozen.is_empty() && is_due && freeze(shard, at.log) {
            self.frozen.push_back(usize::from(shard.id.0));
        }
        if !self.frozen.is_empty() {
            self.hand_out(shard, checkpointer).expect("its state can be encoded");
        }
    }

    /// Encodes one bite of the shard that was frozen first.
    fn hand_out(
        &mut self,
        shard: &mut LocalShard,
        checkpointer: &Checkpointer,
    ) -> Result<(), Panicked> {
        if !guarded_step(shard, |shard| bite(shard, checkpointer))? {
            shard.checkpoint.stage = Stage::Writing;
            let cut = shard.checkpoint.cut.clone().expect("a frozen checkpoint has a cut");
            checkpointer.job(Job::Write(shard.id, cut));
            self.frozen.pop_front();
            self.writing += 1;
        }
        Ok(())
    }

    /// The checkpoint of `shard` is synced: drops its log up to the cut.
    pub(crate) fn written(&mut self, shard: &mut LocalShard, cut: &Cut) {
        let state = shard.replica.machine_mut();
        for task in std::mem::take(&mut shard.checkpoint.bodies) {
            state.bodies.checkpointed(task);
        }
        let before = std::mem::replace(&mut shard.checkpoint.stored, cut.index);
        shard.checkpoint.stage = Stage::Idle;
        shard.checkpoint.cut = None;
        cut_log(shard, log_needed_after(shard, before));
        self.writing -= 1;
        self.writing_for = Duration::ZERO;
    }

    /// Forgets the bites of a shard that is about to be removed. Returns whether its checkpoint is
    /// being written; then `abandoned` must follow.
    pub(crate) fn abandon(&mut self, shard: &LocalShard) -> bool {
        self.frozen.retain(|number| *number != usize::from(shard.id.0));
        shard.checkpoint.stage == Stage::Writing
    }

    /// The checkpoint of a removed shard is written.
    pub(crate) fn abandoned(&mut self) {
        self.writing -= 1;
        self.writing_for = Duration::ZERO;
    }

    fn begin(
        &mut self,
        shards: &mut LocalShards,
        checkpointer: &Checkpointer,
        at: At,
    ) -> Result<(), Panicked> {
        if self.has_backups() {
            return match self.writing {
                0 => self.back_up(shards, checkpointer, at.log),
                _ => Ok(()),
            };
        }
        while self.may_begin()
            && self.frozen.is_empty()
            && let Some(shard) = longest_due(shards, at, self.room_bytes)
        {
            if guarded_step(shard, |shard| freeze(shard, at.log))? {
                self.frozen.push_back(usize::from(shard.id.0));
            }
        }
        Ok(())
    }

    /// With no checkpoint under way: freezes all shards, or takes the view once they are written.
    /// If one shard panics, the shards frozen by then are written, and the others begin anew.
    fn back_up(
        &mut self,
        shards: &mut LocalShards,
        checkpointer: &Checkpointer,
        log: u64,
    ) -> Result<(), Panicked> {
        let frozen = std::mem::take(&mut self.backups_frozen);
        if !frozen.is_empty() {
            checkpointer.job(Job::Look(Box::new(move |store| {
                for answer in frozen {
                    let _ = answer.send(Ok(store.view()));
                }
            })));
            return Ok(());
        }
        for shard in shards.iter_mut() {
            if guarded_step(shard, |shard| freeze(shard, log))? {
                self.frozen.push_back(usize::from(shard.id.0));
            }
        }
        for BackupOrder { frozen, written } in self.backups_asked.drain(..) {
            let _ = frozen.send(());
            self.backups_frozen.push(written);
        }
        Ok(())
    }
}

/// Runs a step of one shard's checkpoint; returns a panic with the shard's number.
fn guarded_step<T>(
    shard: &mut LocalShard,
    step: impl FnOnce(&mut LocalShard) -> T,
) -> Result<T, Panicked> {
    let number = usize::from(shard.id.0);
    guarded(|| step(shard)).map_err(|panic| Panicked { number, panic })
}

/// The shard whose checkpoint has been due for longest, so that busy shards never starve the
/// others.
fn longest_due(shards: &mut LocalShards, at: At, room_bytes: u64) -> Option<&mut LocalShard> {
    let since = |shard: &LocalShard| shard.checkpoint.due_since(at, shard.has_peers);
    let fits = |shard: &LocalShard| shard.state().log_bytes < room_bytes;
    let due = shards.iter_mut().filter(|shard| since(shard).is_some() && fits(shard));
    due.min_by_key(|shard| since(shard))
}

/// Up to where the log may be dropped after a checkpoint. A leader keeps what its peers lack. Any
/// replica may lead next, so each keeps the log from the checkpoint `before`.
fn log_needed_after(shard: &LocalShard, before: u64) -> u64 {
    if !shard.has_peers {
        return shard.checkpoint.stored;
    }
    let matched = shard.replica.peers().into_iter().map(|peer| peer.matched);
    matched.min().map_or(before, |matched| matched.min(before))
}

/// The index after which a peer that makes progress needs the log: to append it, or to follow a
/// snapshot that it fetches.
fn needed_after(shard: &LocalShard, snapshots: &Snapshots) -> Option<u64> {
    let first = shard.replica.first_index();
    let follows = shard
        .replica
        .peers()
        .into_iter()
        .filter(|peer| peer.active && peer.room != Room::Full && peer.matched + 1 >= first);
    follows.map(|peer| peer.matched).chain(snapshots.pinned(shard.id)).min()
}

/// Drops the log up to `up_to`, with the next write to the log.
fn cut_log(shard: &mut LocalShard, up_to: u64) {
    if up_to >= shard.replica.first_index() {
        shard.replica.compact(up_to);
        shard.log_cut = Some(up_to);
        shard.checkpoint.log.cut(up_to);
    }
}

/// Freezes the cut of a checkpoint; `false` if nothing has changed since the last.
fn freeze(shard: &mut LocalShard, log: u64) -> bool {
    if shard.checkpoint.is_blocked {
        return false;
    }
    let index = shard.replica.applied();
    shard.checkpoint.wanted = false;
    shard.checkpoint.due_at = None;
    shard.checkpoint.share = WHOLE;
    if index == shard.checkpoint.stored {
        return false;
    }
    let term = shard.replica.applied_term();
    let conf_state = shard.replica.conf_state().clone();
    let state = shard.replica.machine_mut();
    state.machine.freeze();
    state.bodies.freeze();
    state.log_bytes = 0;
    shard.checkpoint.cut = Some(Cut { index, term, conf_state });
    shard.checkpoint.stage = Stage::Frozen;
    shard.checkpoint.log.checkpoint(index, log);
    true
}

/// Encodes the next records of a frozen cut; `false` if none are left.
fn bite(shard: &mut LocalShard, checkpointer: &Checkpointer) -> bool {
    let state = shard.replica.machine_mut();
    let records = state.machine.frozen_bite(BITE_RECORDS);
    if records.is_empty() {
        state.bodies.thaw();
        return false;
    }
    #[cfg(test)]
    for record in &records {
        let value = record.value.as_deref().unwrap_or_default();
        super::local::meet(super::local::MISTAKE_IN_A_BITE, value);
    }
    let mut changes = Vec::with_capacity(records.len());
    for record in records {
        if let (RecordKey::Task(task), Some(_)) = (&record.key, &record.value)
            && let Some(body) = state.bodies.take_unstored(*task)
        {
            shard.checkpoint.bodies.push(*task);
            changes.push(Change::Body(*task, body));
        }
        changes.push(Change::Record(record.key, record.value));
    }
    checkpointer.job(Job::Changes(shard.id, changes));
    true
}
