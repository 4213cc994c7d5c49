//! The thread that drives replicas: drain, propose, persist once, apply, answer.
//!
//! Each turn takes all inputs, lets the shards that have work propose, writes the entries of all of them
//! as one record with one sync, applies what is committed, and answers. While the sync runs the next
//! batch gathers in the inbox. Only shards with work are touched.
//!
//! Invariant: nothing is answered before it is synced. Whatever ends this thread early drops every
//! answer that is owed, and its caller learns that the outcome is unknown.

mod accept;
mod checkpoints;
#[cfg_attr(not(test), expect(dead_code, reason = "the loop takes snapshots once it has peers"))]
mod install;
mod local;
mod memory;
mod recover;
mod settle;

use crate::{
    Clock, Error,
    checkpoint::{Checkpointer, Failure},
    clock,
    cluster::Routes,
    disk::DiskGuard,
    limits::TURN_LOG_BYTES_MAX,
    log::{Batch, Log},
    peer::PeerNetwork,
    shard::{
        inbox::Inbox,
        leader_clock::{LeaderClock, Reading},
        sessions::Sessions,
    },
    telemetry::{NodeGauges, Telemetry},
};
use checkpoints::Checkpoints;
use local::{LocalShard, Waiting};
use memory::MemoryBudget;
use settle::PartialAnswers;
use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, OnceLock, mpsc},
    time::{Duration, Instant},
};
use taskyard_machine::{
    Command, Deliver, Delivered, EncodedCommand, EndSession, Event, SessionEnd, SessionId, ShardId,
    Timestamp,
};
use taskyard_replica::Role;
use tokio::sync::broadcast;

pub(crate) use recover::{load, recover_all};

/// After so many bytes of log, files that nothing needs any more are looked for.
const TIDY_AFTER_LOG_BYTES: u64 = 128 << 20;

/// How long the threads beside it are waited for after a failure.
const FAIL_FOR_MAX: Duration = Duration::from_secs(5);
/// The same at a stop whose time is over: those that have nothing to do end in no time.
const CLOSE_FOR_MIN: Duration = Duration::from_millis(100);
/// And when it was dropped in a process that goes on.
const HALT_FOR_MAX: Duration = Duration::from_secs(60);

/// What a panic said.
pub(crate) fn words_of(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

/// What the loop works with.
pub(crate) struct Parts {
    pub shards: Vec<LocalShard>,
    pub inbox: Arc<Inbox>,
    pub log: Arc<Log>,
    pub checkpointer: Checkpointer,
    pub clock: Clock,
    pub disk: DiskGuard,
    pub memory_bytes_max: u64,
    pub events: broadcast::Sender<Arc<Vec<Event>>>,
    pub telemetry: Arc<Telemetry>,
    pub routes: Arc<Routes>,
    pub network: Arc<OnceLock<PeerNetwork>>,
    /// Told once all shards serve.
    pub up: mpsc::SyncSender<()>,
}

/// Whether and how the thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Going,
    /// Calls are ended; checkpoints are on their way. They only make the next start quicker, so
    /// that nobody waits for them for long.
    Stopping {
        until: Instant,
    },
    /// Ends now, as a crash would.
    Halted,
}

/// All shards of this node, on their thread.
pub(crate) struct ShardLoop {
    shards: Vec<LocalShard>,
    /// Shards with work for the next turn, each once.
    active: Vec<usize>,
    inbox: Arc<Inbox>,
    log: Arc<Log>,
    batch: Batch,
    checkpointer: Checkpointer,
    checkpoints: Checkpoints,
    clock: Clock,
    /// The clock as this turn has read it.
    reading: Reading,
    real: Instant,
    sessions: Sessions,
    partial: Vec<Option<PartialAnswers>>,
    /// Slots of `partial` that are empty.
    partial_free: Vec<usize>,
    disk: DiskGuard,
    memory: MemoryBudget,
    /// Log written since files were last freed.
    log_bytes_untidy: u64,
    turn_events: Vec<Event>,
    events: broadcast::Sender<Arc<Vec<Event>>>,
    telemetry: Arc<Telemetry>,
    /// Shards that do not serve yet.
    rising: usize,
    up: Option<mpsc::SyncSender<()>>,
    course: Course,
    /// Seeds of weighted draws.
    seed: u64,
}

impl ShardLoop {
    pub(crate) fn new(parts: Parts) -> ShardLoop {
        let Parts { shards, inbox, log, checkpointer, clock, disk, .. } = parts;
        let reading = Reading { wall_ms: clock.wall_ms(), monotonic: clock.monotonic() };
        let mut this = ShardLoop {
            active: Vec::new(),
            inbox,
            log,
            batch: Batch::default(),
            checkpointer,
            checkpoints: Checkpoints::default(),
            clock,
            reading,
            real: clock::real_now(),
            sessions: Sessions::default(),
            partial: Vec::new(),
            partial_free: Vec::new(),
            disk,
            memory: MemoryBudget::new(parts.memory_bytes_max),
            log_bytes_untidy: 0,
            turn_events: Vec::new(),
            events: parts.events,
            telemetry: parts.telemetry,
            rising: shards.len(),
            up: Some(parts.up),
            course: Course::Going,
            seed: reading.wall_ms,
            shards,
        };
        (0..this.shards.len()).for_each(|number| this.activate(number));
        this
    }

    /// Ends every call that is owed an answer, then closes log and checkpoints; `false` if threads
    /// still use them, which are left to themselves then. Whoever is to learn of a failure was told
    /// before: this may wait for the disk.
    pub(crate) fn close(self) -> bool {
        let until = match self.course {
            Course::Stopping { until } => until.max(clock::real_now() + CLOSE_FOR_MIN),
            Course::Going => clock::real_now() + FAIL_FOR_MAX,
            Course::Halted => clock::real_now() + HALT_FOR_MAX,
        };
        let ShardLoop { shards, partial, checkpoints, checkpointer, .. } = self;
        drop((shards, partial, checkpoints));
        checkpointer.finish(until)
    }

    /// Runs until it is stopped, or can't go on.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let mut inputs = Vec::new();
        // What did not fit into the last turn comes first.
        let mut backlog = VecDeque::new();
        loop {
            let wait = if backlog.is_empty() { self.wait() } else { Some(Duration::ZERO) };
            self.inbox.take(&mut inputs, wait);
            self.reading =
                Reading { wall_ms: self.clock.wall_ms(), monotonic: self.clock.monotonic() };
            self.real = clock::real_now();
            backlog.extend(inputs.drain(..));
            let mut log_bytes = 0;
            while log_bytes < TURN_LOG_BYTES_MAX
                && let Some(input) = backlog.pop_front()
            {
                log_bytes += input.log_bytes();
                self.accept(input)?;
            }
            if self.course == Course::Halted {
                return Ok(());
            }
            self.look_at_time();
            self.turn()?;
            self.publish();
            self.checkpoints.step(&mut self.shards, &self.checkpointer, self.reading.monotonic);
            self.checkpoints.look(self.real)?;
            if self.has_stopped() {
                return Ok(());
            }
        }
    }

    fn activate(&mut self, number: usize) {
        if !self.shards[number].is_active {
            self.shards[number].is_active = true;
            self.active.push(number);
        }
    }

    /// How long there is nothing to do without an input. `None`: for ever.
    fn wait(&self) -> Option<Duration> {
        if !self.active.is_empty() || self.checkpoints.has_bites() {
            return Some(Duration::ZERO);
        }
        let mut wait: Option<Duration> = None;
        let mut until = |left: Duration, by_the_clock: bool| {
            // A manual clock stands still: only what is already due counts.
            if !by_the_clock || !self.clock.is_manual() || left.is_zero() {
                wait = Some(wait.map_or(left, |wait| wait.min(left)));
            }
        };
        if let Course::Stopping { until: end } = self.course {
            until(end.saturating_duration_since(self.real), false);
        }
        if let Some(soon) = self.checkpoints.look_in() {
            until(soon, false);
        }
        let now = self.reading.monotonic;
        for shard in &self.shards {
            if let (Some(clock), Some(due)) = (&shard.leading, shard.due) {
                until(clock.until(due, self.reading), true);
            }
            for at in [shard.waiters.next_look(), shard.outbox.next_look()].into_iter().flatten() {
                until(at.saturating_duration_since(self.real), false);
            }
            if self.checkpoints.may_begin()
                && let Some(at) = shard.checkpoint.due_at()
            {
                until(at.saturating_duration_since(now), true);
            }
        }
        if let Some(at) = self.disk.next_look() {
            until(at.saturating_duration_since(self.real), false);
        }
        if let Some(at) = self.sessions.next_end_at() {
            until(at.saturating_duration_since(now), true);
        }
        wait
    }

    /// Finds out what has become due since the last turn.
    fn look_at_time(&mut self) {
        for number in 0..self.shards.len() {
            let shard = &mut self.shards[number];
            let Some(clock) = &mut shard.leading else { continue };
            let is_due = shard.due.is_some_and(|due| due <= clock.now(self.reading));
            let hints = shard.waiters.next_look().is_some_and(|at| at <= self.real);
            let sends = shard.outbox.wake_due(self.real);
            if is_due || hints || sends {
                self.activate(number);
            }
        }
        self.end_silent();
    }

    /// Ends sessions that have been silent too long, where they hold claims.
    fn end_silent(&mut self) {
        let silent = self.sessions.take_silent(self.reading.monotonic);
        let mut holding: BTreeMap<ShardId, BTreeSet<SessionId>> = BTreeMap::new();
        for (session, shard, not_started) in silent {
            let number = usize::from(shard.0);
            let holding = holding
                .entry(shard)
                .or_insert_with(|| self.shards[number].machine().sessions().into_iter().collect());
            if holding.contains(&session) {
                let reason = SessionEnd::Silence;
                let end = EndSession { session, reason, not_started, keep: Vec::new() };
                self.command(number, &Command::EndSession(end), Waiting::SessionEnd(session));
            } else {
                self.sessions.ended(session, shard);
            }
        }
    }

    /// Adds a command of the loop's own.
    fn command(&mut self, number: usize, command: &Command<'_>, waiting: Waiting) {
        self.shards[number].pending.push((EncodedCommand::new(command), waiting));
        self.activate(number);
    }

    /// One round over the shards that have work.
    fn turn(&mut self) -> Result<(), Failure> {
        let mut round = std::mem::take(&mut self.active);
        for &number in &round {
            self.shards[number].is_active = false;
        }
        for &number in &round {
            self.prepare(number);
        }
        let mut persisting: Vec<(usize, u64)> = Vec::new();
        let all = round.clone();
        while !round.is_empty() {
            for &number in &round {
                self.gather(number, &mut persisting);
            }
            self.write()?;
            for (number, ready) in persisting.drain(..) {
                let was_leading = self.shards[number].leading.is_some();
                let progress = self.shards[number].replica.persisted(ready);
                self.settle(number, progress, was_leading);
            }
            let shards = &self.shards;
            round.retain(|&number| shards[number].replica.has_ready());
        }
        for number in all {
            let shard = &mut self.shards[number];
            shard.due = shard.next_due();
        }
        self.memory.enforce(&mut self.shards);
        self.disk.check();
        self.measure();
        Ok(())
    }

    fn measure(&self) {
        self.telemetry.set_gauges(NodeGauges {
            memory_bytes: self.memory.bytes(),
            memory_bytes_max: self.memory.bytes_max(),
            memory_full: self.memory.is_full(),
            disk_free_bytes: self.disk.free_bytes(),
            disk_full: self.disk.is_full(),
            claims_parked: self.shards.iter().map(|shard| shard.waiters.len() as u64).sum(),
            shards_serving: self.shards.iter().filter(|shard| shard.leading.is_some()).count()
                as u64,
        });
    }

    /// Lets a leader propose what is waiting, due or owed.
    fn prepare(&mut self, number: usize) {
        let shard = &mut self.shards[number];
        let Some(clock) = &mut shard.leading else {
            let refused = shard.propose(Timestamp(0));
            let reads = shard.ask_reads();
            self.refuse(number, refused, reads);
            return;
        };
        let now = clock.now(self.reading);
        if shard.timer.fires(&shard.replica.machine().machine, now) {
            shard.pending.push((EncodedCommand::new(&Command::ExpireDue), Waiting::Expiry));
        }
        for command in shard.firing.take_due(&shard.replica.machine().machine, now) {
            shard.pending.push((command, Waiting::Firing));
        }
        shard.waiters.wake_due(self.real);
        if shard.waiters.is_woken() {
            let state = shard.replica.machine();
            for served in shard.waiters.serve(&state.machine, now, self.real) {
                self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let request = &served.waiter.request;
                let command = EncodedCommand::new(&Command::Claim(request.command(self.seed)));
                shard.pending.push((command, Waiting::Claim(served)));
            }
        }
        if shard.outbox.is_stirred() {
            self.deliver(number);
        }
        let shard = &mut self.shards[number];
        let refused = shard.propose(now);
        let reads = shard.ask_reads();
        self.refuse(number, refused, reads);
    }

    /// Proposes what this shard owes on its targets, and tells it what they have taken.
    fn deliver(&mut self, number: usize) {
        let shard = &mut self.shards[number];
        let from = shard.id;
        for (to, up_to) in shard.outbox.take_delivered() {
            let command = EncodedCommand::new(&Command::Delivered(Delivered { to, up_to }));
            shard.pending.push((command, Waiting::Delivered));
        }
        for outgoing in shard.outbox.take_unsent(&shard.replica.machine().machine) {
            let sequence = outgoing.sequence;
            let deliver = Deliver { from, sequence, command: &outgoing.command };
            let waiting = Waiting::Deliver { from, sequence };
            let target = usize::from(outgoing.to.0);
            self.command(target, &Command::Deliver(deliver), waiting);
        }
    }

    /// Adds what one shard has to write to the batch.
    fn gather(&mut self, number: usize, persisting: &mut Vec<(usize, u64)>) {
        let shard = &mut self.shards[number];
        if let Some(index) = shard.log_cut.take() {
            self.batch.cut(shard.group, index);
        }
        let Some(ready) = shard.replica.ready() else { return };
        assert!(
            ready.messages_now.is_empty() && ready.snapshot.is_none(),
            "shard {} has no peers to talk to",
            shard.id
        );
        persisting.push((number, ready.number));
        shard.hard_state = ready.hard_state.or(shard.hard_state.take());
        if ready.entries.is_empty() && !ready.must_sync {
            // A new commit index alone rides in the next write: the log is what counts.
            return;
        }
        self.batch.append(shard.group, &ready.entries);
        if let Some(hard_state) = shard.hard_state.take() {
            self.batch.hard_state(shard.group, &hard_state);
        }
    }

    fn write(&mut self) -> Result<(), Failure> {
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

    /// Frees what no checkpoint and no log needs any more, on another thread.
    fn tidy(&mut self) {
        self.log_bytes_untidy = 0;
        let tasks_live = self.shards.iter().map(|shard| shard.machine().task_count());
        self.checkpointer.tidy(tasks_live.sum());
    }

    fn rise(&mut self, number: usize, role: Role) {
        let shard = &mut self.shards[number];
        match role {
            Role::Leader { .. } => {
                let state = shard.replica.machine();
                shard.leading = Some(LeaderClock::new(state.machine.now(), self.reading));
                // All that is owed may not have been sent; nobody has been heard of yet.
                shard.outbox.stir();
                for session in state.machine.sessions() {
                    self.sessions.holds(session, shard.id, self.reading.monotonic);
                }
                shard
                    .pending
                    .insert(0, (EncodedCommand::new(&Command::BeginTerm), Waiting::Nobody));
                self.rising = self.rising.saturating_sub(1);
                self.activate(number);
            }
            Role::Follower { .. } => {
                let error = shard.no_quorum();
                shard.leading = None;
                shard.waiters.end(Some(&error));
                shard.watchers.end();
                self.sessions.forget(shard.id);
            }
        }
        if self.rising == 0
            && let Some(up) = self.up.take()
        {
            let _ = up.send(());
        }
    }

    /// Feeds what happened in this turn to whoever watches.
    fn publish(&mut self) {
        if self.turn_events.is_empty() {
            return;
        }
        self.telemetry.observe(&self.turn_events);
        if self.events.receiver_count() > 0 {
            let events = std::mem::take(&mut self.turn_events);
            let _ = self.events.send(Arc::new(events));
        }
        self.turn_events.clear();
    }

    fn stopped_error() -> Error {
        Error::Unavailable("this node is stopping; send it to another one, or again later".into())
    }

    fn has_stopped(&self) -> bool {
        let Course::Stopping { until } = self.course else { return false };
        let is_quiet = self.active.is_empty() && self.shards.iter().all(LocalShard::is_quiet);
        let is_written = self.checkpoints.is_idle()
            && self
                .shards
                .iter()
                .all(|shard| shard.checkpoint.is_idle() && !shard.checkpoint.is_wanted());
        is_quiet && (is_written || self.real >= until)
    }
}
