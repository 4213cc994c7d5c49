//! Checkpoints: when a shard's state is written down, and in which bites.
//!
//! One shard after the other: its cut is frozen between two turns, then a bite is taken in each
//! turn and handed to the thread that writes; so the loop is never held for long. When it is
//! synced, the log up to the cut is dropped. A backup freezes all shards in the same turn, so that
//! what they owe each other fits together.
//!
//! A shard's checkpoint is due by time, by what the shard itself has written, and by what all
//! shards have written since: then the log is short enough before raft-engine has to ask for it.
//! The first checkpoint of each shard is due earlier, each shard at a time of its own, so that they
//! never come all at once.

#[cfg(test)]
mod tests;

use super::{held::Held, local::LocalShard, log_age::LogAge, stopped::guarded};
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

/// The usual wait for a checkpoint; the wait for the first one is a share of it.
const WHOLE: u64 = 1 << 16;
// raft-engine asks for checkpoints of shards with entries in the oldest fifth of a log of this
// size.
const _: () = assert!(LOG_KEPT_BYTES_MAX <= PURGE_BYTES * 3 / 4);
/// How much log is written between two looks at how much is kept.
const LOOK_EVERY_BYTES: u64 = 1 << 20;
/// Records encoded per turn, about half a millisecond's work.
const BITE_RECORDS: usize = 512;
/// How long the writing thread may take for one checkpoint. A disk that has failed may hold it for
/// ever, without an error.
const WRITING_FOR_MAX: Duration = Duration::from_secs(120);
/// How often that is looked at. A pause of the whole process counts as one look.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is under way.
    Idle,
    /// The cut is frozen and not all of it is handed to the writing thread.
    Frozen,
    /// It is being written.
    Writing,
}

/// Where one shard is with its checkpoints.
pub(crate) struct Checkpoint {
    stage: Stage,
    /// The last entry in the last synced checkpoint.
    stored: u64,
    /// Asked for, whatever the rules below say.
    wanted: bool,
    /// A snapshot is about to take the state's place: no cut of it may begin.
    held: bool,
    /// When the oldest change must be checkpointed.
    due_at: Option<Instant>,
    /// The cut under way, and the bodies that go with it.
    cut: Option<Cut>,
    bodies: Vec<TaskId>,
    /// What of the log the shard keeps.
    log: LogAge,
    /// How much of the usual wait the next checkpoint has, of [`WHOLE`].
    share: u64,
}

/// A moment: on the clock, and by what was written to the log since the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub now: Instant,
    pub log: u64,
}

impl Checkpoint {
    /// Of a shard whose last checkpoint holds all up to `stored`, and whose log begins at this
    /// position or later.
    pub(crate) fn new(stored: u64, log: u64) -> Checkpoint {
        Checkpoint {
            stage: Stage::Idle,
            stored,
            wanted: false,
            held: false,
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

    /// The same for one of many shards that begin together: their first checkpoints come apart.
    pub(crate) fn apart(shard: ShardId, stored: u64, log: u64) -> Checkpoint {
        // Multiples of the golden ratio's fraction spread evenly, however many there are.
        let share = WHOLE - u64::from(shard.0.wrapping_mul(40_503));
        Checkpoint { share, ..Checkpoint::new(stored, log) }
    }

    /// When it is due, if it is.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.due_at.filter(|_| self.stage == Stage::Idle && !self.held)
    }

    /// Something has changed; the first change since the last checkpoint says when the next is due.
    fn changed(&mut self, now: Instant) {
        let wait = Duration::from_millis(limits::DIRTY_FOR_MS_MAX * self.share / WHOLE);
        self.due_at.get_or_insert(now + wait);
    }

    /// Since when it is to begin, if it is.
    fn due_since(&self, at: At, has_peers: bool) -> Option<Instant> {
        let may_begin = self.stage == Stage::Idle && !self.held;
        // With peers the log is kept from the checkpoint before the last one on.
        let kept_max = if has_peers { LOG_KEPT_BYTES_MAX / 2 } else { LOG_KEPT_BYTES_MAX };
        let log_is_long = self.log.since_checkpoint(at.log) >= kept_max * self.share / WHOLE;
        let is_due =
            self.wanted || self.due_at.is_some_and(|due_at| log_is_long || due_at <= at.now);
        // What is wanted early counts from the change that made it dirty, as all others do.
        (may_begin && is_due).then_some(self.due_at.unwrap_or(at.now))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Whether one is to begin before the node ends. A state that a snapshot replaces is not worth
    /// it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted && !self.held
    }

    /// Lets no new cut begin until `release`; one that is under way goes on.
    pub(crate) fn hold(&mut self) {
        self.held = true;
    }

    pub(crate) fn release(&mut self) {
        self.held = false;
    }

    /// A snapshot has taken the state's place: all up to `index` is stored, and nothing has changed
    /// since.
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
    /// Shards that are frozen, in the order in which they are handed out.
    frozen: VecDeque<usize>,
    writing: usize,
    /// Other things that the thread which writes them is to do, and has not reported done.
    ordered: usize,
    /// Where the log stood when it was last looked at how much of it is kept.
    log_looked_at: u64,
    /// How much the next one may take of the disk, and how much room that has for others.
    room_bytes: u64,
    room: Room,
    /// When the thread that writes was last looked at, and how long it has not ended anything by
    /// then.
    looked_at: Option<Instant>,
    writing_for: Duration,
    /// Backups that wait for the checkpoints under way.
    backups_asked: Vec<BackupOrder>,
    /// Backups for which all shards were frozen in one turn.
    backups_frozen: Vec<Answer<View>>,
    /// Until then none begins of itself: a backup is about to come, and is to find nothing under
    /// way.
    quiet_until: Option<Instant>,
    /// Told when nothing is.
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

    /// Begins nothing until then, unless a backup comes; answers when nothing is under way.
    pub(crate) fn keep_quiet(&mut self, until: Instant, answer: Answer<()>) {
        self.quiet_until = self.quiet_until.max(Some(until));
        self.quiet_asked.push(answer);
    }

    /// The node ends: that is no time to be quiet.
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

    /// Whether one that is due can begin. One is written while the next one's bites are taken, not
    /// more: they wait in memory.
    pub(crate) fn may_begin(&self) -> bool {
        self.writing < 2 && !self.has_backups() && self.quiet_until.is_none()
    }

    /// Says how much the next one may take of the disk.
    pub(crate) fn set_room(&mut self, bytes: u64, room: Room) {
        (self.room_bytes, self.room) = (bytes, room);
    }

    /// Whether the disk has room for a checkpoint: it takes about what the log has taken since the
    /// last.
    pub(crate) fn has_room_for(&self, shard: &LocalShard) -> bool {
        shard.state().log_bytes < self.room_bytes
    }

    /// Whether one is to begin before the node ends, and can.
    pub(crate) fn wants(&self, shard: &LocalShard) -> bool {
        shard.checkpoint.is_wanted() && self.has_room_for(shard)
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.frozen.is_empty() && self.writing == 0 && !self.has_backups()
    }

    /// How soon the writing thread is to be looked at again.
    pub(crate) fn look_in(&self) -> Option<Duration> {
        let is_busy = self.writing > 0 || self.ordered > 0 || self.quiet_until.is_some();
        is_busy.then_some(LOOK_EVERY)
    }

    /// Whether the writing thread gets on; `real` is no manual clock's time.
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

    /// The thread that writes was told to do something else, which it reports.
    pub(crate) fn ordered(&mut self) {
        self.ordered += 1;
    }

    /// It has done it.
    pub(crate) fn done(&mut self) {
        self.ordered -= 1;
        self.writing_for = Duration::ZERO;
    }

    /// Something was applied on `shard`: is a checkpoint due, and by when?
    pub(crate) fn note_change(shard: &mut LocalShard, now: Instant) {
        let state = shard.replica.machine();
        let grown = state.log_bytes >= CHECKPOINT_LOG_BYTES_MAX
            || state.machine.dirty_records() >= DIRTY_RECORDS_MAX;
        shard.checkpoint.wanted |= grown;
        shard.checkpoint.changed(now);
    }

    /// Asks for a checkpoint of `shard` as soon as may be.
    pub(crate) fn want(shard: &mut LocalShard) {
        shard.checkpoint.wanted = true;
    }

    /// Old entries of `shard` keep files of the log from being freed. A checkpoint that is under
    /// way frees them by itself.
    pub(crate) fn shorten_log(&self, shard: &mut LocalShard, log: u64, snapshots: &Snapshots) {
        if shard.checkpoint.is_idle() && self.drop_log(shard, log, snapshots) {
            Checkpoints::want(shard);
        }
    }

    /// Drops what the log has kept for peers that are down or too far behind: they get a snapshot.
    fn look_at_log(&mut self, shards: &mut Held, log: u64, snapshots: &Snapshots) {
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

    /// Drops the log before the last checkpoint, or before what a peer needs that is catching up;
    /// `false` if it is kept for one.
    fn drop_log(&self, shard: &mut LocalShard, log: u64, snapshots: &Snapshots) -> bool {
        let may_keep =
            self.room == Room::Enough && shard.checkpoint.log.kept(log) < LOG_PINNED_BYTES_MAX;
        let stored = shard.checkpoint.stored;
        let needed = needed_after(shard, snapshots).filter(|index| may_keep && *index < stored);
        cut_log(shard, needed.unwrap_or(stored));
        snapshots.overtaken(shard.id, shard.replica.first_index() - 1);
        needed.is_none()
    }

    /// Begins what is due and takes one bite. A shard that panics meanwhile is to be stopped: the
    /// others go on with the next step.
    pub(crate) fn step(
        &mut self,
        shards: &mut Held,
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

    /// The same for a test's only shard.
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

    /// Takes one bite of the shard that was frozen first.
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

    /// The checkpoint of `shard` is synced: its log may go.
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

    /// Ends the bites of a shard that is about to go. Says whether its checkpoint is being written:
    /// then `abandoned` is to follow.
    pub(crate) fn abandon(&mut self, shard: &LocalShard) -> bool {
        self.frozen.retain(|number| *number != usize::from(shard.id.0));
        shard.checkpoint.stage == Stage::Writing
    }

    /// The checkpoint of a shard that has gone is written.
    pub(crate) fn abandoned(&mut self) {
        self.writing -= 1;
        self.writing_for = Duration::ZERO;
    }

    fn begin(
        &mut self,
        shards: &mut Held,
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

    /// Nothing is under way: takes the view of what was frozen, or freezes all for those who ask.
    /// If one of them panics, what is frozen by then is written, and the rest begins anew.
    fn back_up(
        &mut self,
        shards: &mut Held,
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

/// Does a step of one shard's checkpoint; a panic in it comes back with the shard's number.
fn guarded_step<T>(
    shard: &mut LocalShard,
    step: impl FnOnce(&mut LocalShard) -> T,
) -> Result<T, Panicked> {
    let number = usize::from(shard.id.0);
    guarded(|| step(shard)).map_err(|panic| Panicked { number, panic })
}

/// The shard whose checkpoint is to begin next: whoever has waited longest, so that busy shards do
/// not keep the others from ever getting one.
fn longest_due(shards: &mut Held, at: At, room_bytes: u64) -> Option<&mut LocalShard> {
    let since = |shard: &LocalShard| shard.checkpoint.due_since(at, shard.has_peers);
    let fits = |shard: &LocalShard| shard.state().log_bytes < room_bytes;
    let due = shards.iter_mut().filter(|shard| since(shard).is_some() && fits(shard));
    due.min_by_key(|shard| since(shard))
}

/// Up to where the log is not needed after a checkpoint. Peers that are behind get what is kept of
/// it: a leader knows how far they are, and whoever may lead next keeps what follows the checkpoint
/// before.
fn log_needed_after(shard: &LocalShard, before: u64) -> u64 {
    if !shard.has_peers {
        return shard.checkpoint.stored;
    }
    let matched = shard.replica.peers().into_iter().map(|peer| peer.matched);
    matched.min().map_or(before, |matched| matched.min(before))
}

/// After which entry the log is needed by a peer that gets on: with a snapshot that it fetches, or
/// with the log itself.
fn needed_after(shard: &LocalShard, snapshots: &Snapshots) -> Option<u64> {
    let first = shard.replica.first_index();
    let follows = shard
        .replica
        .peers()
        .into_iter()
        .filter(|peer| peer.active && peer.room != Room::Full && peer.matched + 1 >= first);
    follows.map(|peer| peer.matched).chain(snapshots.pinned(shard.id)).min()
}

/// Drops the log up to `up_to`, with the next write.
fn cut_log(shard: &mut LocalShard, up_to: u64) {
    if up_to >= shard.replica.first_index() {
        shard.replica.compact(up_to);
        shard.log_cut = Some(up_to);
        shard.checkpoint.log.cut(up_to);
    }
}

/// Marks the cut of a checkpoint; `false` if there is nothing new.
fn freeze(shard: &mut LocalShard, log: u64) -> bool {
    if shard.checkpoint.held {
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

/// Hands out the next records of a frozen cut; `false` if there are none left.
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
