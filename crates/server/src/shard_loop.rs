//! The thread that drives this node's replicas: drain, propose, persist once, apply, answer.
//!
//! A turn takes all inputs, lets shards propose, sends messages that need no sync, writes the
//! entries of all shards as one record with one sync, sends the other messages, applies committed
//! entries, and answers. While the sync runs, the next batch gathers in the inbox. A turn touches
//! only shards with work.
//!
//! Invariant: no answer leaves before its entry is synced. If this thread ends early, the answers
//! that it owes are dropped, and each caller learns that the outcome is unknown.

mod accept;
mod checkpoints;
mod compare;
mod control;
mod deliver;
mod gate;
mod hand_over;
mod install;
mod local;
mod local_shards;
mod log_age;
mod memory;
mod outcomes;
mod peers;
mod recover;
mod replicas;
mod room;
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
use checkpoints::{At, Checkpoints, Panicked};
use control::LocalControl;
use hand_over::HandOver;
use local::{LocalShard, Waiting};
use local_shards::LocalShards;
use memory::MemoryBudget;
use outcomes::PartialAnswers;
use room::DiskRoom;
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

/// How long a close after a failure waits for the threads that use the log and the store.
const FAIL_FOR_MAX: Duration = Duration::from_secs(5);
/// A shard's time that is further ahead of the wall clock is logged.
const TIME_AHEAD_LOGGED: Duration = Duration::from_secs(2);
/// The shortest wait of a close after a stop whose time is over; idle threads end sooner.
const CLOSE_FOR_MIN: Duration = Duration::from_millis(100);
/// How long a close waits when the node was dropped in a process that goes on.
const HALT_FOR_MAX: Duration = Duration::from_secs(60);

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

pub(crate) struct Parts {
    pub format: Format,
    pub recovered: Recovered,
    /// Reaches the shards that other nodes lead.
    pub handle: Shards,
    /// Runs calls to other nodes; `None` on a node that has none.
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
    /// Signalled once every single-replica shard has a leader here.
    pub up: mpsc::SyncSender<()>,
}

/// Whether the loop goes on, and if not, how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Going,
    /// Calls are ended and last checkpoints are written. These only shorten the next start, so that
    /// the stop waits for them no longer than `until`.
    Stopping {
        until: Instant,
    },
    /// The loop ends now, as in a crash.
    Halted,
}

/// All shards of this node and what their thread works with.
pub(crate) struct ShardLoop {
    format: Format,
    shards: LocalShards,
    /// This node's replica of the control group. A node that joins has none before the first
    /// message to this replica.
    control: Option<LocalControl>,
    /// The version of the rules that new entries are written for; every node knows this version.
    rules: u16,
    routes: Arc<Routes>,
    network: Arc<OnceLock<PeerNetwork>>,
    handle: Shards,
    runtime: Option<tokio::runtime::Handle>,
    next_tick: Instant,
    /// Replicas to remove once no checkpoint of them is under way.
    doomed: BTreeSet<usize>,
    /// Shards taken out of service because their rules failed here.
    stopped: Stopped,
    /// Shards whose replica was removed and whose stored state may not be removed yet.
    leaving: BTreeSet<ShardId>,
    /// By group: the last replica that was removed from this node.
    gone: BTreeMap<u64, u64>,
    /// This node waits at the gate: it takes no part in its groups yet.
    waits_at_gate: bool,
    hand_over: Option<HandOver>,
    /// The last message too large for a frame, so that it is logged once: group, receiver, first
    /// entry.
    unsendable_logged: Option<(u64, u64, Option<u64>)>,
    /// Bytes of commands that wait for shards which this node is about to lead.
    queued_bytes: usize,
    /// By backup: until when shards send each other no messages and drop none that were taken.
    pauses: BTreeMap<u64, Instant>,
    /// Shards with work for the next turn, each once.
    active: Vec<usize>,
    inbox: Arc<Inbox>,
    log: Arc<Log>,
    /// Checkpoints that other nodes may fetch.
    snapshots: Arc<Snapshots>,
    /// Fetches the checkpoints that other nodes offer.
    fetcher: Fetcher,
    batch: Batch,
    checkpointer: Checkpointer,
    checkpoints: Checkpoints,
    clock: Clock,
    /// The clock as read at the start of this turn.
    reading: Reading,
    real: Instant,
    standstill: Standstill,
    /// How far the time of the shards that this node leads is ahead of the wall clock, at most.
    time_ahead: Duration,
    /// Whether the log says that shards are ahead.
    time_ahead_logged: bool,
    sessions: Sessions,
    partial: Vec<Option<PartialAnswers>>,
    /// Slots of `partial` that are empty.
    partial_free: Vec<usize>,
    disk: DiskGuard,
    disk_room: DiskRoom,
    memory: MemoryBudget,
    /// Log bytes written since the last purge of the log.
    log_bytes_untidy: u64,
    /// A checkpoint was written. Files may be freed once its cut of the log is synced.
    is_untidy: bool,
    turn_events: Vec<Event>,
    events: broadcast::Sender<Arc<Vec<Event>>>,
    telemetry: Arc<Telemetry>,
    up: Option<mpsc::SyncSender<()>>,
    course: Course,
    /// The seed for weighted draws of claims.
    seed: u64,
}

impl ShardLoop {
    pub(crate) fn new(parts: Parts) -> ShardLoop {
        let Parts { format, recovered, inbox, log, checkpointer, clock, disk, .. } = parts;
        let buffers = parts.handle.buffers().clone();
        let reading = clock.reading();
        let real = clock::real_now();
        let waits_at_gate = parts.routes.gate() != Gate::Open;
        let mut this = ShardLoop {
            format,
            shards: LocalShards::new(format.shards, recovered.shards),
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
            waits_at_gate,
            hand_over: None,
            unsendable_logged: None,
            queued_bytes: 0,
            pauses: BTreeMap::new(),
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
            time_ahead_logged: false,
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
        for unloaded in recovered.unloaded {
            this.stop_unloaded(unloaded);
        }
        for number in this.shards.numbers() {
            let source = this.snapshots.source(this.shards[number].id);
            this.shards[number].replica.set_snapshot_source(source);
            this.activate(number);
        }
        this.look_at_disk();
        this
    }

    /// Ends every call that is owed an answer, then closes the log and the checkpoints. Returns
    /// `false` if threads still use them; those threads are then left to end by themselves. Report
    /// a failure before this call, because it may wait for the disk.
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

    /// Runs until the loop is stopped or fails.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        self.follow_control()?;
        let mut inputs = Taken::default();
        loop {
            let wait = self.wait();
            self.inbox.take(&mut inputs, wait, TURN_LOG_BYTES_MAX);
            self.reading = self.clock.reading();
            self.real = clock::real_now();
            // First, so that the time of a standstill does not count as lateness.
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
                self.signal_startup();
            }
            self.publish();
            let at = At { now: self.reading.monotonic, log: self.log.position() };
            self.step_checkpoints(at)?;
            self.checkpoints.look(self.real)?;
            if self.has_stopped() {
                return Ok(());
            }
        }
    }

    /// Goes on with checkpoints. A shard whose state can't be encoded is stopped, as one whose
    /// entries can't be applied.
    fn step_checkpoints(&mut self, at: At) -> Result<(), Failure> {
        let ShardLoop { checkpoints, shards, checkpointer, snapshots, .. } = self;
        match checkpoints.step(shards, checkpointer, snapshots, at) {
            Ok(()) => Ok(()),
            Err(Panicked { number, panic }) => {
                self.stop_shard(number, "a checkpoint of its state", panic.as_ref())
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

    /// How long the loop may sleep without an input; `None` means for ever.
    fn wait(&self) -> Option<Duration> {
        let control_has_ready = self.control.as_ref().is_some_and(|c| c.replica.has_ready());
        if !self.active.is_empty() || self.checkpoints.has_bites() || control_has_ready {
            return Some(Duration::ZERO);
        }
        // Wakes regularly, because a late wake-up shows that the process stood still.
        let mut wait = (!self.clock.is_manual()).then_some(LOOK_EVERY);
        let mut until = |left: Duration, by_the_clock: bool| {
            // A manual clock stands still: only a deadline that has passed counts.
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
        for end in self.pauses.values() {
            until(end.saturating_duration_since(self.real), false);
        }
        let now = self.reading.monotonic;
        for shard in self.shards.iter() {
            if let (Some(clock), Some(due)) = (&shard.leading, shard.due) {
                until(clock.until(due, self.reading), true);
            }
            // Not what a follower remembers of its time as a leader: `look_at_time` skips
            // followers, and the loop would wake for nothing.
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

    /// Activates the shards with something due since the last turn.
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
        self.end_pauses();
        self.end_silent();
        self.look_at_clocks();
    }

    /// Logs when shards are ahead of the wall clock, and when they no longer are.
    fn look_at_clocks(&mut self) {
        let leading = self.shards.iter().filter_map(|shard| shard.leading.as_ref());
        let ahead = leading.map(|clock| clock.ahead(self.reading)).max().unwrap_or_default();
        self.time_ahead = ahead;
        if !self.time_ahead_logged && ahead > TIME_AHEAD_LOGGED {
            self.time_ahead_logged = true;
            tracing::warn!(
                "the time of this node's shards is up to {ahead:.1?} ahead of its wall clock, because the clock \
                 was set back or an earlier leader's clock was ahead. Shards run 3 % slower until both are \
                 level; until then, schedules and delayed tasks run early by that much"
            );
        } else if self.time_ahead_logged && ahead.is_zero() {
            self.time_ahead_logged = false;
            tracing::info!("the time of all shards is level with this node's wall clock again");
        }
    }

    /// Extends sessions and claims by the time in which this node stood still.
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
        let is_kept_out = self.is_kept_out();
        for number in self.shards.numbers() {
            let shard = &mut self.shards[number];
            let Some(clock) = &mut shard.leading else { continue };
            let ahead = clock.step(self.reading);
            // The term that begins when a node is let in gives claims their time.
            if is_kept_out || shard.replica.machine().machine.next_due().is_none() {
                continue;
            }
            let claims_ms = u64::try_from((stood + ahead).as_millis()).unwrap_or(u64::MAX);
            let put_off = EncodedCommand::new(&Command::PutOff(PutOff { claims_ms }));
            // Before any command that this turn finds due.
            shard.pending.insert(0, (put_off, Waiting::Nobody));
            self.activate(number);
        }
    }

    /// Ends the claims of sessions that have been silent for too long.
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

    /// Queues a command of the loop itself.
    fn command(&mut self, number: usize, command: &Command<'_>, waiting: Waiting) {
        // A shard without a replica here has its leader on another node, which sees to this.
        if let Some(shard) = self.shards.get_mut(number) {
            shard.pending.push((EncodedCommand::new(command), waiting));
            self.activate(number);
        }
    }

    fn role_changed(&mut self, number: usize, role: Role) {
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
                // A new leader does not know which messages were sent, or which sessions are alive.
                shard.outbox.wake();
                shard
                    .pending
                    .insert(0, (EncodedCommand::new(&Command::BeginTerm), Waiting::Nobody));
                // Nobody is heard before the node is let in.
                if !self.is_kept_out() {
                    self.note_sessions(number);
                }
                self.activate(number);
            }
            Role::Follower { .. } => {
                let (id, unproposed) = (shard.id, shard.end_all(&not_leader));
                self.refuse(number, unproposed, Vec::new());
                self.sessions.forget(id);
            }
        }
    }

    /// Signals startup once every single-replica shard leads.
    fn signal_startup(&mut self) {
        let must_lead = |shard: &LocalShard| {
            !shard.has_peers && shard.replica.id() == FIRST_REPLICA && shard.leading.is_none()
        };
        let control_must_lead = self.control.as_ref().is_some_and(|control| {
            !control.has_peers && control.control().nodes().is_empty() && self.format.founds()
        });
        if control_must_lead || self.shards.iter().any(must_lead) {
            return;
        }
        if let Some(up) = self.up.take() {
            let _ = up.send(());
        }
    }

    /// Hands this turn's events to metrics and subscribers.
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

    fn stopping_error() -> Error {
        Error::Unavailable("this node is stopping; send it to another node, or again later".into())
    }

    fn full_disk_error() -> Error {
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
        // A leader that has lost its peers may never finish its calls.
        let is_over = self.real >= until;
        // What a kept-out node would append waits for the next start.
        let is_quiet = is_quiet || self.is_kept_out();
        (is_quiet && (is_written || is_over)) || (is_over && self.ticks())
    }
}
