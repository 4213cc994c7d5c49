//! Wakes: waiting claims must be woken when there is a task for them.
//!
//! The machine promises: `claimable` says `Now` with the number of tasks that a claim would get, or
//! else `At` or `OnEvent`. A task that becomes claimable by time alone has a deadline; a task that
//! becomes claimable by a command has an event. This holds for claims that name types, too.

use super::{Difference, Model};
use taskyard_machine::{
    Claim, ClaimQueue, Claimable, Event, EventKind, Machine, Outcome, Timestamp,
};

/// The interval at which a bucket is looked at.
const GRID_MS: u64 = 10;

/// A claim of all tasks of a queue.
pub(super) fn claim_of(queue: &str) -> Claim<'_> {
    Claim {
        queues: vec![ClaimQueue { name: queue, weight: 1 }],
        types: vec![],
        weighted_seed: None,
        tasks_max: 1_000,
        bytes_max: u32::MAX,
        lease_ms: 5_000,
        session: None,
        number: None,
        begun: false,
        worker: "worker",
    }
}

/// Types that claims wait for: any, one, and several.
const WAITED_FOR: [&[&str]; 4] = [&[], &["work"], &["other"], &["third", "other"]];

/// The number of claimable tasks for each queue and set of types, at the last look.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    rooms: Vec<(String, [u64; WAITED_FOR.len()])>,
}

impl Watch {
    /// Looks at all queues, and checks that a claim which found nothing before was woken.
    pub(super) fn look(
        &mut self,
        model: &Model,
        machine: &Machine,
        events: &[Event],
    ) -> Result<(), Difference> {
        let before = std::mem::take(self);
        let due_soon = machine.next_due().is_some_and(|at| at.0 <= model.now + GRID_MS);
        for name in model.queues.keys() {
            let rooms = WAITED_FOR.map(|types| model.room(name, types));
            let had = before.rooms(name);
            for (types, (room, had)) in WAITED_FOR.iter().zip(rooms.into_iter().zip(had)) {
                let is_woken = || events.iter().any(|event| wakes(event, name, types));
                if had == 0 && room > 0 && !due_soon && !is_woken() {
                    let what = format!("{room} of types {types:?} to claim");
                    return Err(format!("queue {name} has {what}, and no event woke the claims"));
                }
            }
            self.rooms.push((name.clone(), rooms));
        }
        Ok(())
    }
}

impl Watch {
    fn rooms(&self, name: &str) -> [u64; WAITED_FOR.len()] {
        self.rooms.iter().find(|(queue, _)| queue == name).map_or_else(Default::default, |it| it.1)
    }
}

/// Whether an event wakes the claims of these types that are parked at a queue.
fn wakes(event: &Event, name: &str, types: &[&str]) -> bool {
    match &event.kind {
        EventKind::TaskReady(task) => {
            task.queue.as_str() == name && (types.is_empty() || types.contains(&&*task.task_type))
        }
        EventKind::TaskExpired(task) => task.queue.as_str() == name,
        EventKind::QueueResumed(queue)
        | EventKind::QueueOpened(queue)
        | EventKind::QueueSet(queue) => queue.as_str() == name,
        _ => false,
    }
}

impl Model {
    /// Compares the machine's answer about a claim with the model's. Only while nothing is due,
    /// because a change by time counts from the entry that records it.
    pub(super) fn check_claimable(
        &self,
        machine: &Machine,
        watch: &Watch,
    ) -> Result<(), Difference> {
        let now = Timestamp(self.now);
        if machine.next_due().is_some_and(|at| at <= now) {
            return Ok(());
        }
        for (name, queue) in self.queues.iter().filter(|(name, _)| !self.has_stale(name)) {
            for (types, room) in WAITED_FOR.iter().zip(watch.rooms(name)) {
                let claim = Claim { types: types.to_vec(), ..claim_of(name) };
                let said = match machine.claimable(&claim, now) {
                    Claimable::Now(count) => count,
                    Claimable::At(at) if at > now => 0,
                    Claimable::At(at) => return Err(format!("queue {name}: at {at:?}, not now")),
                    Claimable::OnEvent => 0,
                };
                // A token that came in for a key that is open anyway is counted when the key is
                // next looked at.
                let drips = queue.settings.per_key.is_some_and(|per_key| per_key.rate.is_some());
                let at_least = if drips { room.min(1) } else { room };
                // The room of a limited key counts for each of its types.
                let limited = !types.is_empty() && queue.settings.per_key.is_some();
                let at_most = if limited && room > 0 { u64::MAX } else { room };
                if !(at_least..=at_most).contains(&said) {
                    let has = format!("{room} of types {types:?} to claim");
                    return Err(format!("queue {name} has {has}, the machine says {said}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that every change by time alone is a deadline of the machine, so that none is missed.
    pub(super) fn check_deadline(&self, machine: &Machine) -> Result<(), Difference> {
        let mut moments = self.limits_open_at();
        moments.extend(self.tasks.iter().filter_map(super::Task::due_at));
        moments.retain(|at| *at > self.now);
        moments.sort_unstable();
        moments.dedup();
        let closed: Vec<&String> =
            self.queues.keys().filter(|name| self.room(name, &[]) == 0).collect();
        for at in moments {
            let mut later = Model { now: at, ..self.clone() };
            later.expire(&Ok(Outcome::Expired { count: 0 }))?;
            let Some(name) = closed.iter().find(|name| later.room(name, &[]) > 0) else { continue };
            let latest = Timestamp(at.next_multiple_of(GRID_MS));
            let due = machine.next_due();
            if due.is_none_or(|due| due > latest) {
                return Err(format!("queue {name} opens at {at}, the machine looks at {due:?}"));
            }
            if machine.claimable(&claim_of(name), Timestamp(self.now)) == Claimable::OnEvent {
                return Err(format!("queue {name} opens at {at}, a claim waits for an event"));
            }
            return Ok(());
        }
        Ok(())
    }
}
