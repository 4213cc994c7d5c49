//! The thread that drives replicas: drain, propose, persist once, apply, answer.
//!
//! Each turn takes all inputs, lets the shards that have work propose, sends what may go before the
//! sync, writes the entries of all of them as one record with one sync, sends the rest, applies
//! what is committed, and answers. While the sync runs the next batch gathers in the inbox. Only
//! shards with work are touched.
//!
//! Invariant: nothing is answered before it is synced. Whatever ends this thread early drops every
//! answer that is owed, and its caller learns that the outcome is unknown.

mod accept;
mod checkpoints;
mod compare;
mod control;
mod deliver;
mod hand_over;
mod held;
mod install;
mod local;
mod log_age;
mod memory;
mod peers;
mod recover;
mod replicas;
mod room;
mod settle;
mod snapshots;
mod spares;
mod stopped;
#[cfg(test)]
mod tests;
mod turn;

use crate::{
    Clock, Error,
    checkpoint::{Checkpointer, Failure},
    clock::{self, Reading},
    cluster::{Fetcher, Gate, Routes, Snapshots},
    data_dir::Format,
    disk::DiskGuard,
    limits::TURN_LOG_BYTES_MAX,
    log::{Batch, FIRST_REPLICA, Log},
    peer::PeerNetwork,
    shard::{
        Shards,
        inbox::{Inbox, Taken},
        leader_clock::LeaderClock,
        sessions::Sessions,
        standstill::{LOOK_EVERY, Lost, Standstill},
    },
    telemetry::Telemetry,
};
use checkpoints::{At, Checkpoints};
use control::LocalControl;
use hand_over::HandOver;
use held::Held;
use local::{LocalShard, Waiting};
use memory::MemoryBudget;
use room::DiskRoom;
use settle::PartialAnswers;
use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock, mpsc},
    time::{Duration, Instant},
};
use stopped::Stopped;
use taskyard_machine::{
    Command, EncodedCommand, EndSession, Event, PutOff, RULES_CURRENT, SessionEnd, SessionId,
    ShardId,
};
use taskyard_replica::Role;
use tokio::sync::broadcast;

pub(crate) use recover::{Recovered, load, recover_all};
pub(crate) use spares::{SoughtBody, Spare, Unread};

/// How long the threads beside it are waited for after a failure.
const FAIL_FOR_MAX: Duration = Duration::from_secs(5);
/// Shards that are further ahead of the wall clock are told of.
const TIME_AHEAD_TOLD: Duration = Duration::from_secs(2);
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
    pub format: Format,
    pub recovered: Recovered,
    /// How it reaches shards that other nodes lead.
    pub handle: Shards,
    /// For what waits on other nodes; none where there can't be any.
    pub runtime: Option<tokio::runtime::Handle>,
    pub inbox: Arc<Inbox>,
    pub log: Arc<Log>,
    pub snapshots: Arc<Snapshots>,
    pub fetcher: Fetcher,
    pub checkpointer: Checkpointer,
    pub clock: Clock,
    pub disk: DiskGuard,
    pub memory_bytes_max: u64,
    pub events: broadcast::Sender<Arc<Vec<Event>>>,
    pub telemetry: Arc<Telemetry>,
    pub routes: Arc<Routes>,
    pub network: Arc<OnceLock<PeerNetwork>>,
    /// Told once all shards serve that this node leads alone.
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
    format: Format,
    shards: Held,
    /// This node's replica of the control group; none before the first message to it in a node that
    /// joins.
    control: Option<LocalControl>,
    /// The rules that every node knows: what entries are written for.
    rules: u16,
    routes: Arc<Routes>,
    network: Arc<OnceLock<PeerNetwork>>,
    handle: Shards,
    runtime: Option<tokio::runtime::Handle>,
    next_tick: Instant,
    /// Replicas that are to go.
    doomed: BTreeSet<usize>,
    /// Shards whose rules failed here.
    stopped: Stopped,
    /// Shards whose replica has left, and of which something may be stored still.
    leaving: BTreeSet<ShardId>,
    /// By group: the last replica that this node had and has no more.
    gone: BTreeMap<u64, u64>,
    /// This node does not take part in its groups yet.
    is_shut: bool,
    hand_over: Option<HandOver>,
    /// The last message that no frame could carry: its group, its receiver, its first entry.
    told_unsendable: Option<(u64, u64, Option<u64>)>,
    /// Bytes of commands that wait for shards which this node is about to lead.
    held_bytes: usize,
    /// By backup: until then shards send each other nothing, and drop nothing that was taken.
    holds: BTreeMap<u64, Instant>,
    /// Shards with work for the next turn, each once.
    active: Vec<usize>,
    inbox: Arc<Inbox>,
    log: Arc<Log>,
    /// Offered to other nodes.
    snapshots: Arc<Snapshots>,
    /// Gets those that other nodes offer.
    fetcher: Fetcher,
    batch: Batch,
    checkpointer: Checkpointer,
    checkpoints: Checkpoints,
    clock: Clock,
    /// The clock as this turn has read it.
    reading: Reading,
    real: Instant,
    standstill: Standstill,
    /// How far the time of a shard that it leads is ahead of the wall clock, at most.
    time_ahead: Duration,
    /// Whether that was told.
    told_ahead: bool,
    sessions: Sessions,
    partial: Vec<Option<PartialAnswers>>,
    /// Slots of `partial` that are empty.
    partial_free: Vec<usize>,
    disk: DiskGuard,
    disk_room: DiskRoom,
    memory: MemoryBudget,
    /// Log written since files were last freed.
    log_bytes_untidy: u64,
    /// A checkpoint was written: once its cut of the log is synced, files may be freed.
    is_untidy: bool,
    turn_events: Vec<Event>,
    events: broadcast::Sender<Arc<Vec<Event>>>,
    telemetry: Arc<Telemetry>,
    up: Option<mpsc::SyncSender<()>>,
    course: Course,
    /// Seeds of weighted draws.
    seed: u64,
}

impl ShardLoop {
    pub(crate) fn new(parts: Parts) -> ShardLoop {
        let Parts { format, recovered, inbox, log, checkpointer, clock, disk, .. } = parts;
        let buffers = parts.handle.buffers().clone();
        let reading = clock.reading();
        let real = clock::real_now();
        let is_shut = parts.routes.gate() != Gate::Open;
        let mut this = ShardLoop {
            format,
            shards: Held::new(format.shards, recovered.shards),
            control: recovered.control,
            rules: RULES_CURRENT,
            routes: parts.routes,
            network: parts.network,
            snapshots: parts.snapshots,
            fetcher: parts.fetcher,
            handle: parts.handle,
            runtime: parts.runtime,
            next_tick: real,
            doomed: BTreeSet::new(),
            stopped: Stopped::default(),
            leaving: BTreeSet::new(),
            gone: recovered.gone,
            is_shut,
            hand_over: None,
            told_unsendable: None,
            held_bytes: 0,
            holds: BTreeMap::new(),
            active: Vec::new(),
            inbox,
            log,
            batch: Batch::default(),
            checkpointer,
            checkpoints: Checkpoints::default(),
            clock,
            reading,
            real,
            standstill: Standstill::new(reading),
            time_ahead: Duration::ZERO,
            told_ahead: false,
            sessions: Sessions::default(),
            partial: Vec::new(),
            partial_free: Vec::new(),
            disk,
            disk_room: DiskRoom::default(),
            memory: MemoryBudget::new(parts.memory_bytes_max, buffers),
            log_bytes_untidy: 0,
            is_untidy: false,
            turn_events: Vec::new(),
            events: parts.events,
            telemetry: parts.telemetry,
            up: Some(parts.up),
            course: Course::Going,
            seed: reading.wall_ms,
        };
        for number in this.shards.numbers() {
            let source = this.snapshots.source(this.shards[number].id);
            this.shards[number].replica.set_snapshot_source(source);
            this.activate(number);
        }
        this.look_at_disk();
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
        self.snapshots.close();
        let ShardLoop { shards, control, partial, checkpoints, checkpointer, fetcher, .. } = self;
        drop((shards, control, partial, checkpoints, fetcher));
        checkpointer.finish(until)
    }

    /// Runs until it is stopped, or can't go on.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        self.follow_control()?;
        let mut inputs = Taken::default();
        loop {
            let wait = self.wait();
            self.inbox.take(&mut inputs, wait, TURN_LOG_BYTES_MAX);
            self.reading = self.clock.reading();
            self.real = clock::real_now();
            // Before anything is taken for late.
            self.make_up(wait);
            self.look_at_disk();
            while let Some(input) = inputs.next() {
                self.accept(input)?;
            }
            if self.course == Course::Halted {
                return Ok(());
            }
            self.look_at_gate();
            self.tick()?;
            self.look_at_time();
            self.turn()?;
            self.look_at_hand_over();
            if self.up.is_some() {
                self.look_if_up();
            }
            self.publish();
            let at = At { now: self.reading.monotonic, log: self.log.position() };
            self.checkpoints.step(&mut self.shards, &self.checkpointer, &self.snapshots, at);
            self.checkpoints.look(self.real)?;
            if self.has_stopped() {
                return Ok(());
            }
        }
    }

    fn activate(&mut self, number: usize) {
        let Some(shard) = self.shards.get_mut(number) else { return };
        if !shard.is_active {
            shard.is_active = true;
            self.active.push(number);
        }
    }

    /// How long there is nothing to do without an input. `None`: for ever.
    fn wait(&self) -> Option<Duration> {
        let control_has_ready = self.control.as_ref().is_some_and(|c| c.replica.has_ready());
        if !self.active.is_empty() || self.checkpoints.has_bites() || control_has_ready {
            return Some(Duration::ZERO);
        }
        // A look that comes late shows that the process stood still.
        let mut wait = (!self.clock.is_manual()).then_some(LOOK_EVERY);
        let mut until = |left: Duration, by_the_clock: bool| {
            // A manual clock stands still: only what is already due counts.
            if !by_the_clock || !self.clock.is_manual() || left.is_zero() {
                wait = Some(wait.map_or(left, |wait| wait.min(left)));
            }
        };
        if let Course::Stopping { until: end } = self.course {
            until(end.saturating_duration_since(self.real), false);
        }
        if self.ticks() {
            until(self.next_tick.saturating_duration_since(self.real), false);
        }
        if let Some(soon) = self.checkpoints.look_in() {
            until(soon, false);
        }
        for end in self.holds.values() {
            until(end.saturating_duration_since(self.real), false);
        }
        let now = self.reading.monotonic;
        for shard in self.shards.iter() {
            if let (Some(clock), Some(due)) = (&shard.leading, shard.due) {
                until(clock.until(due, self.reading), true);
            }
            // What a follower remembers of its time as a leader is not looked at, see
            // `look_at_time`: it must not be waited for either.
            let looks = [shard.waiters.next_look(), shard.outbox.next_look()];
            for at in looks.into_iter().flatten().filter(|_| shard.leading.is_some()) {
                until(at.saturating_duration_since(self.real), false);
            }
            if let Some(at) = shard.compares_at()
                && self.may_append(usize::from(shard.id.0))
            {
                until(at.saturating_duration_since(now), true);
            }
            if self.checkpoints.may_begin()
                && self.checkpoints.has_room_for(shard)
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
        let (reading, real) = (self.reading, self.real);
        let looked = self.shards.iter_mut().filter_map(|shard| {
            let compares = shard.compares_at().is_some_and(|at| at <= reading.monotonic);
            let clock = shard.leading.as_mut()?;
            let is_due = shard.due.is_some_and(|due| due <= clock.now(reading));
            let hints = shard.waiters.next_look().is_some_and(|at| at <= real);
            let sends = shard.outbox.wake_due(real);
            (is_due || hints || sends || compares).then_some(usize::from(shard.id.0))
        });
        for number in looked.collect::<Vec<_>>() {
            self.activate(number);
        }
        self.end_holds();
        self.end_silent();
        self.look_at_clocks();
    }

    /// Says when shards run ahead of the wall clock, and when they no longer do.
    fn look_at_clocks(&mut self) {
        let leading = self.shards.iter().filter_map(|shard| shard.leading.as_ref());
        let ahead = leading.map(|clock| clock.ahead(self.reading)).max().unwrap_or_default();
        self.time_ahead = ahead;
        if !self.told_ahead && ahead > TIME_AHEAD_TOLD {
            self.told_ahead = true;
            tracing::warn!(
                "the time of shards is up to {ahead:.1?} ahead of this node's wall clock: the clock was set \
                 back, or that of an earlier leader was ahead. Shards go on, slower by 3 %, until both are \
                 level; schedules and moments come early by that much until then"
            );
        } else if self.told_ahead && ahead.is_zero() {
            self.told_ahead = false;
            tracing::info!("the time of all shards is level with this node's wall clock again");
        }
    }

    /// Takes part once the gate is open: from then on time passes for replicas, and messages are
    /// taken.
    fn look_at_gate(&mut self) {
        if !self.is_shut {
            return;
        }
        if self.control.as_ref().is_none_or(|control| control.replica.has_replayed()) {
            self.routes.set_replayed();
        }
        if self.routes.gate() == Gate::Open {
            self.is_shut = false;
            self.next_tick = self.real + peers::TICK;
            self.shards.numbers().into_iter().for_each(|number| self.activate(number));
        }
    }

    /// Gives sessions and claims the time that their workers did not have.
    fn make_up(&mut self, waited: Option<Duration>) {
        let lost = self.standstill.look(self.reading, waited.unwrap_or_default());
        if lost.is_none() {
            return;
        }
        let Lost { stood, jumped } = lost;
        self.telemetry.note_standstill();
        tracing::warn!(
            "this node stood still for {stood:.1?}, and its wall clock went ahead by {jumped:.1?}: \
             workers get that time again"
        );
        self.sessions.make_up(lost, self.reading.monotonic);
        for number in self.shards.numbers() {
            let shard = &mut self.shards[number];
            let Some(clock) = &mut shard.leading else { continue };
            let ahead = clock.step(self.reading);
            if shard.replica.machine().machine.next_due().is_none() {
                continue;
            }
            let claims_ms = u64::try_from((stood + ahead).as_millis()).unwrap_or(u64::MAX);
            let put_off = EncodedCommand::new(&Command::PutOff(PutOff { claims_ms }));
            // Ahead of whatever this turn finds due.
            shard.pending.insert(0, (put_off, Waiting::Nobody));
            self.activate(number);
        }
    }

    /// Ends sessions that have been silent too long, where they hold claims.
    fn end_silent(&mut self) {
        let silent = self.sessions.take_silent(self.reading.monotonic);
        let mut holding: BTreeMap<ShardId, BTreeSet<SessionId>> = BTreeMap::new();
        for (session, shard, not_started) in silent {
            let number = usize::from(shard.0);
            if self.shards.get(number).is_none_or(|shard| shard.leading.is_none()) {
                self.sessions.ended(session, shard);
                continue;
            }
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
        // What is not here any more is another node's business by now.
        if let Some(shard) = self.shards.get_mut(number) {
            shard.pending.push((EncodedCommand::new(command), waiting));
            self.activate(number);
        }
    }

    fn rise(&mut self, number: usize, role: Role) {
        let group = self.shards[number].group;
        self.publish_leader(group, role);
        let leader = self.routes.leader_of(group);
        tracing::debug!(shard = %self.shards[number].id, ?role, node = leader, "who leads a shard");
        let not_leader = self.not_leader(group);
        let shard = &mut self.shards[number];
        match role {
            Role::Leader { .. } => {
                if shard.has_peers {
                    tracing::info!(
                        "this node leads shard {} in term {}",
                        shard.id,
                        shard.replica.term()
                    );
                }
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
                self.activate(number);
            }
            Role::Follower { .. } => {
                let (id, unproposed) = (shard.id, shard.end_all(&not_leader));
                self.refuse(number, unproposed, Vec::new());
                self.sessions.forget(id);
            }
        }
    }

    /// Tells who waits for it that all is up which needs nobody else.
    fn look_if_up(&mut self) {
        let is_rising = |shard: &LocalShard| {
            !shard.has_peers && shard.replica.id() == FIRST_REPLICA && shard.leading.is_none()
        };
        let control_rises = self.control.as_ref().is_some_and(|control| {
            !control.has_peers && control.control().nodes().is_empty() && self.format.founds()
        });
        if control_rises || self.shards.iter().any(is_rising) {
            return;
        }
        if let Some(up) = self.up.take() {
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

    fn still_error() -> Error {
        Error::Unavailable("the disk of this node is full; free some space, then ask again".into())
    }

    fn has_stopped(&self) -> bool {
        let Course::Stopping { until } = self.course else { return false };
        let is_quiet = self.active.is_empty()
            && self.shards.iter().all(|shard| shard.is_quiet() || shard.leading.is_none());
        let is_written = self.checkpoints.is_idle()
            && self
                .shards
                .iter()
                .all(|shard| shard.checkpoint.is_idle() && !self.checkpoints.wants(shard));
        // Without its peers a leader's calls may never end.
        let is_over = self.real >= until;
        (is_quiet && (is_written || is_over)) || (is_over && self.ticks())
    }
}
