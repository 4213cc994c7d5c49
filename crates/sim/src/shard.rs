//! Shard: the real machine as a replica's state, with its bodies and the data that the checkers
//! need at the moment when an entry is applied.

use crate::disk::Checkpoint;
use crate::invariants::Occurrence;
use crate::rng::hash;
use crate::sabotage::Sabotage;
use std::collections::{BTreeMap, BTreeSet};
use taskyard_machine::{
    Body, Command, Entry, Event, EventKind, Identity, ImageError, Machine, Outcome, Payloads,
    QueueSettings, RULES_CURRENT, RecordKey, Rejection, SCHEDULE_HEADERS, SetQueue, TaskId,
    TaskView,
};
use taskyard_replica::StateMachine;

/// Replicas compare the hash of their state at multiples of this index.
const STATE_HASH_EVERY: u64 = 8;

/// A sabotaged replica changes its state at multiples of this index, late enough for its group to
/// have three voters, because fewer cannot decide which state is right.
const ASTRAY_EVERY: u64 = 150;

/// All records of a state, in order.
pub(crate) type Records = Vec<(RecordKey, Box<[u8]>)>;

/// One replica's state.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) machine: Machine,
    pub(crate) bodies: Bodies,
    /// The index of the last entry that the machine has applied, 0 before the first.
    pub(crate) last_index: u64,
    /// The entries since the last comparison of states.
    pub(crate) unmarked: u64,
    /// The state before a crash, which the reloaded replica must reach again.
    pub(crate) before_crash: Option<(u64, Records)>,
    /// The newest rules of this node's build.
    pub(crate) rules_max: u16,
    /// A deliberate bug.
    pub(crate) sabotage: Sabotage,
}

/// The bodies of tasks, by task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bodies(pub(crate) BTreeMap<TaskId, Box<[u8]>>);

impl Bodies {
    /// New tasks that are runs of schedules, with their headers; `None` for a task that is already
    /// gone.
    fn runs(&self, events: &[Event]) -> Vec<(TaskId, Option<Occurrence>)> {
        let mut runs = Vec::new();
        for event in events {
            let EventKind::TaskEnqueued(task) = &event.kind else { continue };
            let Some(bytes) = self.0.get(&task.id) else {
                runs.push((task.id, None));
                continue;
            };
            let body = Body::decode(bytes).expect("bodies are written by this build");
            let said = SCHEDULE_HEADERS.map(|header| {
                let found = body.headers.iter().find(|(name, _)| *name == header);
                found.map(|(_, value)| (*value).to_owned())
            });
            if let [Some(name), Some(at)] = said {
                runs.push((task.id, Some((name, at))));
            }
        }
        runs
    }
}

impl Payloads for Bodies {
    fn put(&mut self, task: TaskId, body: &[u8]) {
        self.0.insert(task, body.into());
    }

    fn remove(&mut self, task: TaskId) {
        self.0.remove(&task);
    }
}

/// The effect of one entry, as seen on one replica.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) data: Vec<u8>,
    pub(crate) outcomes: Vec<Result<Outcome, Rejection>>,
    pub(crate) events: Vec<Event>,
    /// The tasks of the events, as of now.
    pub(crate) views: Vec<(TaskId, Option<TaskView>)>,
    /// The runs of schedules that it made.
    pub(crate) runs: Vec<(TaskId, Option<Occurrence>)>,
    pub(crate) state_hash: Option<u64>,
    /// A violation inside this replica.
    pub(crate) fault: Option<String>,
}

impl Applied {
    /// The part that is equal on every replica.
    pub(crate) fn fingerprint(&self) -> u64 {
        hash(format!("{:?}{:?}", self.outcomes, self.events).as_bytes())
    }
}

impl StateMachine for Shard {
    type Outcome = Applied;

    fn apply(&mut self, index: u64, data: &[u8]) -> Applied {
        let mut entry = Entry::decode(data).expect("entries are written by this build");
        let unknown = self.unknown_rules(&entry);
        // One build stands for several versions, whose rules are all equal.
        entry.rules = RULES_CURRENT;
        let mut events = Vec::new();
        self.unmarked = entry.unmarked_after(self.unmarked);
        entry.commands.iter_mut().for_each(|command| self.sabotage.mishear(command));
        let deaf = self.sabotage == Sabotage::DeafReplica;
        let outcomes = if deaf && index.is_multiple_of(50) {
            Vec::new()
        } else {
            self.machine.apply(&entry, &mut self.bodies, &mut events)
        };
        if self.sabotage == Sabotage::SecretQueue && index.is_multiple_of(ASTRAY_EVERY) {
            let set = SetQueue { queue: "secret", settings: QueueSettings::default() };
            let commands = vec![Command::SetQueue(set)];
            let secret = Entry { commands, ..entry };
            self.machine.apply(&secret, &mut self.bodies, &mut Vec::new());
        }
        self.last_index = index;
        let touched: BTreeSet<TaskId> = events.iter().filter_map(task_of).collect();
        let views = touched.into_iter().map(|task| (task, self.machine.task(task))).collect();
        let runs = self.bodies.runs(&events);
        let hashed = index.is_multiple_of(STATE_HASH_EVERY);
        Applied {
            data: data.to_vec(),
            outcomes,
            events,
            views,
            runs,
            state_hash: hashed.then(|| self.machine.state_hash()),
            fault: unknown.or_else(|| self.compare_before_crash(index)),
        }
    }
}

impl Shard {
    pub(crate) fn new(identity: Identity) -> Shard {
        Shard {
            machine: Machine::new(identity),
            bodies: Bodies::default(),
            last_index: 0,
            unmarked: 0,
            before_crash: None,
            rules_max: RULES_CURRENT,
            sabotage: Sabotage::None,
        }
    }

    pub(crate) fn load(identity: Identity, checkpoint: &Checkpoint) -> Result<Shard, ImageError> {
        let records = checkpoint.records.iter().map(|(key, value)| (key.clone(), value.clone()));
        Ok(Shard {
            machine: Machine::load(identity, records)?,
            bodies: Bodies(checkpoint.bodies.clone()),
            last_index: checkpoint.index,
            unmarked: 0,
            before_crash: None,
            rules_max: RULES_CURRENT,
            sabotage: Sabotage::None,
        })
    }

    /// Checks that a replica never gets an entry of rules that its build does not know.
    fn unknown_rules(&self, entry: &Entry<'_>) -> Option<String> {
        let (rules, known) = (entry.rules, self.rules_max);
        (rules > known).then(|| format!("it follows rules {rules} and this node knows {known}"))
    }

    /// Checks that a reload and replay reach the state before the crash, byte for byte.
    fn compare_before_crash(&mut self, index: u64) -> Option<String> {
        let (expected, records) = self.before_crash.take_if(|(expected, _)| *expected <= index)?;
        // A snapshot may have passed over that index.
        let now = (expected == index).then(|| self.machine.records())?;
        (now != records).then(|| {
            let difference = first_difference(&records, &now);
            format!("the state at {index} differs after a restart: {difference}")
        })
    }

    /// Checks the machine's own parts, and its bodies.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.machine.check()?;
        let known = self.bodies.0.keys().find(|task| self.machine.task(**task).is_none());
        if let Some(task) = known {
            return Err(format!("the body of {task} outlived its task"));
        }
        Ok(())
    }
}

/// The task of an event.
pub(crate) fn task_of(event: &Event) -> Option<TaskId> {
    match &event.kind {
        EventKind::TaskEnqueued(task)
        | EventKind::TaskReplaced(task, _)
        | EventKind::TaskReady(task)
        | EventKind::TaskBlocked(task)
        | EventKind::TaskClaimed(task, _)
        | EventKind::TaskProgressed(task, _)
        | EventKind::TaskSucceeded(task, _)
        | EventKind::TaskRetrying(task, _)
        | EventKind::TaskSnoozed(task, _)
        | EventKind::TaskFailed(task)
        | EventKind::TaskDied(task, _)
        | EventKind::TaskLost(task)
        | EventKind::TaskCancelRequested(task)
        | EventKind::TaskCancelled(task)
        | EventKind::TaskExpired(task)
        | EventKind::TaskRemoved(task) => Some(task.id),
        EventKind::QueuePaused(_)
        | EventKind::QueueResumed(_)
        | EventKind::QueueOpened(_)
        | EventKind::QueueSet(_)
        | EventKind::QueueDeleted(_)
        | EventKind::SessionEnded(_)
        | EventKind::FlowSubmitted(_)
        | EventKind::FlowEnded(..)
        | EventKind::ScheduleFired { .. }
        | EventKind::ScheduleSkipped(..)
        | EventKind::ScheduleMissed(..)
        | EventKind::OutgoingQueued(_)
        | EventKind::DigestMarked { .. }
        | EventKind::DigestAttested { .. } => None,
    }
}

/// The first difference between two states, in words.
pub(crate) fn first_difference(left: &Records, right: &Records) -> String {
    let left: BTreeMap<_, _> = left.iter().map(|(key, value)| (key, value)).collect();
    let right: BTreeMap<_, _> = right.iter().map(|(key, value)| (key, value)).collect();
    for (key, value) in &left {
        match right.get(key) {
            None => return format!("{key:?} is gone"),
            Some(other) if other != value => {
                return format!("{key:?} was {value:02x?} and is {other:02x?}");
            }
            Some(_) => {}
        }
    }
    let new = right.keys().find(|key| !left.contains_key(*key));
    format!("{new:?} is new")
}
