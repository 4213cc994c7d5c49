//! A random history: commands for the machine, for one that is reloaded from time to time, and for
//! the model. After each command, everything visible of the machine is compared.

use super::commands::{Terms, draw, pause};
use super::wakes::Watch;
use super::{Difference, Model, State};
use crate::clock::RUN_BEGINS_AT_MS;
use crate::rng::Rng;
use crate::shard::first_difference;
use std::collections::BTreeMap;
use taskyard_machine::{
    ClaimToken, Command, EncodedCommand, Entry, EntryBuilder, Event, Identity, Machine, NoPayloads,
    Outcome, Payloads, Rejection, ShardId, TaskId, Timestamp,
};

const IDENTITY: Identity = Identity { incarnation: 1, shard: ShardId(0), shards: 1 };

/// Commands of one history.
const COMMANDS: u64 = 100;

/// One random history of tasks; the first difference, in words.
pub(super) fn check(seed: u64) -> Result<(), Difference> {
    let mut rng = Rng::new(seed);
    let terms = Terms::new(&mut rng);
    let mut run = Run {
        rng,
        terms,
        machine: Machine::new(IDENTITY),
        reloaded: Machine::new(IDENTITY),
        model: Model { now: RUN_BEGINS_AT_MS, ..Model::default() },
        watch: Watch::default(),
        bodies: Bodies::default(),
        handed_out: Vec::new(),
    };
    for number in 1..=COMMANDS {
        run.model.now += pause(&mut run.rng, &run.terms);
        run.expire_if_prompt().map_err(|what| format!("before command {number}: {what}"))?;
        let command = draw(&mut run.rng, &run.terms, &run.model, &run.handed_out);
        run.step(&command).map_err(|what| format!("command {number} {command:?}: {what}"))?;
    }
    Ok(())
}

/// The bodies of the machine's tasks.
#[derive(Default)]
struct Bodies(BTreeMap<TaskId, Vec<u8>>);

impl Payloads for Bodies {
    fn put(&mut self, task: TaskId, body: &[u8]) {
        self.0.insert(task, body.to_vec());
    }

    fn remove(&mut self, task: TaskId) {
        self.0.remove(&task);
    }
}

/// A history in progress.
struct Run {
    rng: Rng,
    terms: Terms,
    machine: Machine,
    reloaded: Machine,
    model: Model,
    watch: Watch,
    bodies: Bodies,
    handed_out: Vec<(TaskId, ClaimToken)>,
}

impl Run {
    /// Expires as a leader would whose timer is never late.
    fn expire_if_prompt(&mut self) -> Result<(), Difference> {
        let is_due = |run: &Run| run.machine.next_due().is_some_and(|at| at.0 <= run.model.now);
        for _ in 0..10 {
            if !self.terms.prompt || !is_due(self) {
                return Ok(());
            }
            self.step(&Command::ExpireDue)?;
        }
        Err("something stays due after every expiry".into())
    }

    fn step(&mut self, command: &Command<'_>) -> Result<(), Difference> {
        let entry = encode(command, self.model.now);
        let (answer, events) = apply(&mut self.machine, &entry, &mut self.bodies);
        let (answer_too, events_too) = apply(&mut self.reloaded, &entry, &mut NoPayloads);
        if answer_too != answer || events_too != events {
            return Err("the reloaded machine answered differently".into());
        }
        let answer = answer.into_iter().next().ok_or("a command was not answered")?;
        self.model.follow(command, &answer)?;
        compare(&self.model, &self.machine, &self.bodies)?;
        self.watch.look(&self.model, &self.machine, &events)?;
        self.model.check_claimable(&self.machine, &self.watch)?;
        if let Ok(Outcome::Claimed(tasks)) = &answer {
            self.handed_out.extend(tasks.iter().map(|task| (task.id, task.token)));
        }
        self.model.check_why(&self.machine)?;
        if self.rng.chance(50) {
            self.model.check_deadline(&self.machine)?;
        }
        if self.rng.chance(30) {
            self.reload()?;
        }
        Ok(())
    }

    fn reload(&mut self) -> Result<(), Difference> {
        self.machine.check()?;
        let (left, right) = (self.machine.records(), self.reloaded.records());
        if left != right || self.machine.state_hash() != self.reloaded.state_hash() {
            return Err(format!("a reload differs: {}", first_difference(&left, &right)));
        }
        self.reloaded = Machine::load(IDENTITY, left).map_err(|error| error.to_string())?;
        Ok(())
    }
}

pub(super) fn encode(command: &Command<'_>, now: u64) -> Vec<u8> {
    let mut builder = EntryBuilder::new(Timestamp(now));
    builder.push(&EncodedCommand::new(command));
    builder.finish()
}

pub(super) fn apply(
    machine: &mut Machine,
    entry: &[u8],
    payloads: &mut dyn Payloads,
) -> (Vec<Result<Outcome, Rejection>>, Vec<Event>) {
    let entry = Entry::decode(entry).expect("it was encoded just now");
    let mut events = Vec::new();
    let answers = machine.apply(&entry, payloads, &mut events);
    (answers, events)
}

/// Compares every task and every count with the model.
fn compare(model: &Model, machine: &Machine, bodies: &Bodies) -> Result<(), Difference> {
    for task in &model.tasks {
        let view = machine.task(task.id).ok_or_else(|| format!("{} is missing", task.id))?;
        let (run_at, claim) = match &task.state {
            State::Scheduled { run_at } => (Some(*run_at), None),
            State::Claimed(held) => {
                let lease_ends_at = held.lease_ends_at + (model.put_off_ms - held.put_off_ms);
                (None, Some((held.token, lease_ends_at, held.cancel_requested)))
            }
            State::Ready { .. } | State::Finished { .. } => (None, None),
        };
        let expected = (task.state_name(), task.attempt, task.losses, run_at, claim);
        let seen_claim = view
            .claim
            .as_ref()
            .map(|claim| (claim.token.0, claim.lease_expires_at.0, claim.cancel_requested));
        let seen_run_at = view.run_at.map(|at| at.0);
        let seen = (view.state, view.attempt, view.losses, seen_run_at, seen_claim);
        if expected != seen {
            return Err(format!("{} must be {expected:?}, is {seen:?}", task.id));
        }
        let (holds, seen) = (model.holds_key(task), view.unique.map(|unique| unique.held));
        if holds != seen {
            return Err(format!("{} must hold its key: {holds:?}, does: {seen:?}", task.id));
        }
        let body = bodies.0.get(&task.id).map_or(&[][..], Vec::as_slice);
        if !body.ends_with(&task.payload) {
            return Err(format!("{} must have the payload {:?}", task.id, task.payload));
        }
    }
    if machine.task_count() != model.tasks.len() as u64 {
        return Err(format!(
            "{} tasks must be there, not {}",
            model.tasks.len(),
            machine.task_count()
        ));
    }
    let listed: Vec<String> =
        machine.queues().iter().map(|queue| queue.name.as_str().to_owned()).collect();
    let known: Vec<String> =
        model.queues.keys().filter(|name| model.has_queue(name)).cloned().collect();
    if listed != known {
        return Err(format!("the queues must be {known:?}, and are {listed:?}"));
    }
    for queue in machine.queues() {
        let name = queue.name.as_str();
        let count = |wanted: fn(&State) -> bool| {
            model.tasks.iter().filter(|task| task.queue == name && wanted(&task.state)).count()
                as u64
        };
        let expected = [
            count(|state| matches!(state, State::Ready { .. })),
            count(|state| matches!(state, State::Scheduled { .. })),
            count(|state| matches!(state, State::Claimed(_))),
            count(|state| matches!(state, State::Finished { .. })),
        ];
        let counts = queue.counts;
        let seen = [counts.ready, counts.scheduled, counts.claimed, counts.finished + counts.dead];
        if expected != seen {
            return Err(format!("queue {name} must count {expected:?}, counts {seen:?}"));
        }
    }
    Ok(())
}
