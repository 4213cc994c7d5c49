//! Waiters: claims of one shard, parked until an event wakes them.
//!
//! A parked claim costs only memory: no log entry, no timer. It stands in one line per queue, with
//! the claims that name the same types. A wake of a queue serves the queue's lines, the oldest
//! claim first. It serves as many claims as there are tasks of their types that are not promised to
//! claims on their way through the log. A wake never looks at other queues. A ready task of a type
//! that no line names wakes no claim.

use super::{
    Hint, Sought, TaskTypes,
    inbox::{TicketId, Waiter},
};
use crate::{
    Error,
    limits::{PARKED_MAX, PARKED_TYPE_LISTS_MAX},
};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};
use taskyard_machine::{Claim, ClaimQueue, Claimable, Machine, ShardId, Timestamp};
use tokio::sync::mpsc;

/// The pause before the next hint about tasks that the last hinted caller did not claim.
const HINT_AGAIN_AFTER: Duration = Duration::from_millis(100);

enum Parked {
    Claim(Waiter),
    Hint { sought: Sought, answer: HintAnswer },
}

impl Parked {
    fn is_gone(&self) -> bool {
        match self {
            Parked::Claim(waiter) => waiter.answer.is_closed(),
            Parked::Hint { answer, .. } => answer.is_closed(),
        }
    }

    /// The number of lines that it stands in.
    fn lines(&self) -> usize {
        match self {
            Parked::Claim(waiter) => waiter.request.queues.len(),
            Parked::Hint { sought, .. } => sought.queues.len(),
        }
    }
}

/// Where a shard sends its one hint, to a caller that waits for several shards.
pub(crate) struct HintAnswer {
    shard: ShardId,
    told: mpsc::UnboundedSender<Hint>,
}

impl HintAnswer {
    pub(crate) fn new(shard: ShardId, told: mpsc::UnboundedSender<Hint>) -> HintAnswer {
        HintAnswer { shard, told }
    }

    /// Sends the hint; `false` if the caller is gone.
    pub(crate) fn send(self, hint: Result<u64, Error>) -> bool {
        self.told.send((self.shard, hint)).is_ok()
    }

    fn is_closed(&self) -> bool {
        self.told.is_closed()
    }
}

/// The claims and hints for the same types at one queue. Tickets that are no longer parked are
/// skipped.
#[derive(Default)]
struct Line {
    claims: VecDeque<TicketId>,
    hints: VecDeque<TicketId>,
    /// Tasks that claims on their way through the log will probably take.
    promised: u64,
}

impl Line {
    fn side(&mut self, hints: bool) -> &mut VecDeque<TicketId> {
        if hints { &mut self.hints } else { &mut self.claims }
    }

    fn is_waited_in(&self) -> bool {
        !self.claims.is_empty() || !self.hints.is_empty()
    }
}

/// The lines of one queue, by types.
#[derive(Default)]
struct Lines {
    by_types: HashMap<TaskTypes, Line>,
    /// By type: how many lines name it.
    naming: HashMap<String, usize>,
}

impl Lines {
    /// The line of these types; makes it if needed.
    fn line(&mut self, types: &TaskTypes) -> &mut Line {
        if !self.by_types.contains_key(types) {
            for name in types.names() {
                *self.naming.entry(name.clone()).or_default() += 1;
            }
            self.by_types.insert(types.clone(), Line::default());
        }
        self.by_types.get_mut(types).expect("just made")
    }

    /// Whether a line of these types exists or may be made. Empty lines are removed to make room.
    fn has_room_for(&mut self, types: &TaskTypes, parked: &HashMap<TicketId, Parked>) -> bool {
        let is_full = |lines: &Lines| lines.by_types.len() >= PARKED_TYPE_LISTS_MAX;
        if !is_full(self) || self.by_types.contains_key(types) {
            return true;
        }
        self.retain(|line| {
            let is_there = |ticket: &TicketId| parked.contains_key(ticket);
            line.claims.iter().any(is_there) || line.hints.iter().any(is_there) || line.promised > 0
        });
        !is_full(self)
    }

    fn wants(&self, task_type: &str) -> bool {
        self.naming.contains_key(task_type) || self.by_types.contains_key(&TaskTypes::ANY)
    }

    fn retain(&mut self, mut keep: impl FnMut(&mut Line) -> bool) {
        let naming = &mut self.naming;
        self.by_types.retain(|types, line| {
            let kept = keep(line);
            for name in types.names().iter().filter(|_| !kept) {
                if let Some(count) = naming.get_mut(name) {
                    *count -= 1;
                    if *count == 0 {
                        naming.remove(name);
                    }
                }
            }
            kept
        });
    }

    /// The tasks promised to lines that overlap these types.
    fn promised(&self, types: &TaskTypes) -> u64 {
        let promised = self.by_types.iter().filter(|(_, line)| line.promised > 0);
        let overlapping = promised.filter(|(other, _)| other.overlaps(types));
        overlapping.map(|(_, line)| line.promised).sum()
    }

    /// How many tasks of any type a claim could get now, beyond those promised. The queue's limits
    /// count tasks of all types together.
    fn left(&self, queue: &str, machine: &Machine, now: Timestamp) -> u64 {
        let of_all = claimable(queue, &TaskTypes::ANY, machine, now);
        of_all.saturating_sub(self.promised(&TaskTypes::ANY))
    }

    /// How many tasks of these types a claim could get now; at most `left`.
    fn free(
        &self,
        left: u64,
        queue: &str,
        types: &TaskTypes,
        machine: &Machine,
        now: Timestamp,
    ) -> u64 {
        if types.is_any() || left == 0 {
            return left;
        }
        left.min(claimable(queue, types, machine, now).saturating_sub(self.promised(types)))
    }
}

/// The tasks of one queue that are promised to a claim on its way.
#[derive(Default)]
pub(crate) struct Promise {
    pub queue: String,
    types: TaskTypes,
    count: u64,
}

/// A claim to propose, and what is promised to it.
pub(crate) struct Served {
    pub waiter: Waiter,
    pub promised: Promise,
}

#[derive(Default)]
pub(crate) struct Waiters {
    parked: HashMap<TicketId, Parked>,
    queues: HashMap<String, Lines>,
    /// Queues to serve in this turn.
    woken: Vec<String>,
    /// Queues whose hints are served again later, because a hinted caller may be gone.
    hints_again: BTreeSet<(Instant, String)>,
    /// Claims that do not wait: they are answered after the next serving.
    not_waiting: Vec<TicketId>,
    /// Tickets left in lines after they were served or removed.
    stale: usize,
}

impl Waiters {
    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }

    /// Parks a claim at the end of its lines, or refuses it.
    pub(crate) fn park(&mut self, waiter: Waiter) {
        let queues = waiter.request.queues.iter().map(|(queue, _)| queue.as_str());
        // A claim that does not wait is gone after the next serving, and takes no place.
        if waiter.parks
            && let Err(error) = self.check_room(queues, &waiter.request.types)
        {
            let _ = waiter.answer.send(Err(error));
            return;
        }
        for (queue, _) in &waiter.request.queues {
            self.line(queue, &waiter.request.types).claims.push_back(waiter.ticket);
            self.woken.push(queue.clone());
        }
        if !waiter.parks {
            self.not_waiting.push(waiter.ticket);
        }
        self.parked.insert(waiter.ticket, Parked::Claim(waiter));
    }

    /// Parks a claim that got nothing at the front of its lines, where it stood before.
    pub(crate) fn park_again(&mut self, waiter: Waiter) {
        if waiter.answer.is_closed() || !waiter.parks {
            let _ = waiter.answer.send(Ok(Vec::new()));
            return;
        }
        for (queue, _) in &waiter.request.queues {
            self.line(queue, &waiter.request.types).claims.push_front(waiter.ticket);
        }
        self.parked.insert(waiter.ticket, Parked::Claim(waiter));
    }

    /// Parks a hint, which is sent when one of its queues has tasks.
    pub(crate) fn park_hint(&mut self, ticket: TicketId, sought: Sought, answer: HintAnswer) {
        let queues = sought.queues.iter().map(String::as_str);
        if let Err(error) = self.check_room(queues, &sought.types) {
            let _ = answer.send(Err(error));
            return;
        }
        for queue in &sought.queues {
            self.line(queue, &sought.types).hints.push_back(ticket);
            self.woken.push(queue.clone());
        }
        self.parked.insert(ticket, Parked::Hint { sought, answer });
    }

    /// Removes a claim or a hint.
    pub(crate) fn unpark(&mut self, ticket: TicketId) {
        if let Some(parked) = self.parked.remove(&ticket) {
            self.note_stale(&parked);
        }
    }

    /// Wakes a queue that may have tasks.
    pub(crate) fn wake(&mut self, queue: &str) {
        if !self.parked.is_empty()
            && self.queues.contains_key(queue)
            && self.woken.last().is_none_or(|last| last != queue)
        {
            self.woken.push(queue.to_owned());
        }
    }

    /// Wakes a queue that has a task of this type.
    pub(crate) fn wake_for(&mut self, queue: &str, task_type: &str) {
        if self.queues.get(queue).is_some_and(|lines| lines.wants(task_type)) {
            self.wake(queue);
        }
    }

    /// How many tasks of these types in a queue a claim could get now, beyond those promised.
    pub(crate) fn free(
        &self,
        queue: &str,
        types: &TaskTypes,
        machine: &Machine,
        now: Timestamp,
    ) -> u64 {
        match self.queues.get(queue) {
            Some(lines) => lines.free(lines.left(queue, machine, now), queue, types, machine, now),
            None => claimable(queue, types, machine, now),
        }
    }

    /// Whether [`Waiters::serve`] has work.
    pub(crate) fn is_woken(&self) -> bool {
        !self.woken.is_empty() || !self.not_waiting.is_empty()
    }

    /// A proposed claim was decided and took `taken` tasks of the queue, or it will never be
    /// decided. Wakes the claims behind it, because no event may tell them of tasks that it left,
    /// or that came while they were promised.
    pub(crate) fn claim_decided(&mut self, promised: &Promise, taken: u64) {
        let Promise { queue, types, count } = promised;
        let Some(lines) = self.queues.get_mut(queue) else { return };
        if let Some(line) = lines.by_types.get_mut(types) {
            line.promised = line.promised.saturating_sub(*count);
        }
        if taken < *count || lines.by_types.values().any(Line::is_waited_in) {
            self.woken.push(queue.clone());
        }
    }

    /// When the next queue must be served without an event, in real time.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.hints_again.first().map(|(at, _)| *at)
    }

    /// Wakes queues whose time has come.
    pub(crate) fn wake_due(&mut self, real: Instant) {
        while self.hints_again.first().is_some_and(|(at, _)| *at <= real) {
            let (_, queue) = self.hints_again.pop_first().expect("the loop has just looked at it");
            self.woken.push(queue);
        }
    }

    /// Removes the claims that can get tasks from the woken queues' lines, and sends hints for the
    /// rest.
    pub(crate) fn serve(
        &mut self,
        machine: &Machine,
        now: Timestamp,
        real: Instant,
    ) -> Vec<Served> {
        let mut woken = std::mem::take(&mut self.woken);
        woken.sort_unstable();
        woken.dedup();
        let mut served = Vec::new();
        for queue in &woken {
            self.serve_queue(queue, machine, now, real, &mut served);
        }
        for ticket in std::mem::take(&mut self.not_waiting) {
            if let Some(parked) = self.parked.remove(&ticket) {
                self.note_stale(&parked);
                match parked {
                    // A repetition of a decided claim needs no ready task, so that nothing is
                    // promised to it. Its list of queues may even be empty, if it comes from
                    // another node.
                    Parked::Claim(waiter) if is_repeated(machine, &waiter, now) => {
                        served.push(Served { waiter, promised: Promise::default() });
                    }
                    Parked::Claim(waiter) => drop(waiter.answer.send(Ok(Vec::new()))),
                    Parked::Hint { .. } => {}
                }
            }
        }
        self.sweep();
        served
    }

    /// Ends all waits: each gets an empty answer, or the error.
    pub(crate) fn end(&mut self, why: Option<&Error>) {
        for (_, parked) in self.parked.drain() {
            let failed = why.cloned();
            match parked {
                Parked::Claim(waiter) => {
                    let _ = waiter.answer.send(failed.map_or(Ok(Vec::new()), Err));
                }
                Parked::Hint { answer, .. } => {
                    let _ = answer.send(failed.map_or(Ok(0), Err));
                }
            }
        }
        // Claims on their way are still decided: their promises stay until then.
        let mut queues = std::mem::take(&mut self.queues);
        queues.retain(|_, lines| {
            lines.retain(|line| {
                line.claims.clear();
                line.hints.clear();
                line.promised > 0
            });
            !lines.by_types.is_empty()
        });
        *self = Waiters { queues, ..Waiters::default() };
    }

    fn serve_queue(
        &mut self,
        queue: &str,
        machine: &Machine,
        now: Timestamp,
        real: Instant,
        served: &mut Vec<Served>,
    ) {
        let Some(lines) = self.queues.get_mut(queue) else { return };
        let mut left = lines.left(queue, machine, now);
        if left == 0 {
            return;
        }
        let waited_in = lines.by_types.iter().filter(|(_, line)| line.is_waited_in());
        let types: Vec<TaskTypes> = waited_in.map(|(types, _)| types.clone()).collect();
        let mut room: Vec<Room> = types
            .into_iter()
            .map(|types| Room { free: lines.free(left, queue, &types, machine, now), types })
            .filter(|room| room.free > 0)
            .collect();
        let (parked, stale) = (&mut self.parked, &mut self.stale);
        while left > 0
            && let Some((position, ticket)) = first_in_line(lines, &room, parked, stale, false)
        {
            let Some(Parked::Claim(waiter)) = parked.remove(&ticket) else {
                unreachable!("hints stand in their own line")
            };
            let types = room[position].types.clone();
            lines.line(&types).claims.pop_front();
            *stale += waiter.request.queues.len() - 1;
            if waiter.answer.is_closed() {
                continue;
            }
            let count = u64::from(waiter.request.tasks_max).min(room[position].free).min(left);
            lines.line(&types).promised += count;
            left -= count;
            take(&mut room, &types, count);
            let promised = Promise { queue: queue.to_owned(), types, count };
            served.push(Served { waiter, promised });
        }
        let mut told = false;
        while left > 0
            && let Some((position, ticket)) = first_in_line(lines, &room, parked, stale, true)
        {
            let Some(Parked::Hint { sought, answer }) = parked.remove(&ticket) else {
                unreachable!("claims stand in their own line")
            };
            let types = room[position].types.clone();
            lines.line(&types).hints.pop_front();
            *stale += sought.queues.len() - 1;
            if answer.send(Ok(room[position].free.min(left))) {
                left -= 1;
                take(&mut room, &types, 1);
                told = true;
            }
        }
        if told && lines.by_types.values().any(|line| !line.hints.is_empty()) {
            self.hints_again.insert((real + HINT_AGAIN_AFTER, queue.to_owned()));
        }
    }

    fn line(&mut self, queue: &str, types: &TaskTypes) -> &mut Line {
        if !self.queues.contains_key(queue) {
            self.queues.insert(queue.to_owned(), Lines::default());
        }
        self.queues.get_mut(queue).expect("just made").line(types)
    }

    fn check_room<'a>(
        &mut self,
        mut queues: impl Iterator<Item = &'a str>,
        types: &TaskTypes,
    ) -> Result<(), Error> {
        if self.parked.len() >= PARKED_MAX {
            return Err(Error::LimitExceeded(format!(
                "{PARKED_MAX} claims are parked on this shard; claim without waiting, or later"
            )));
        }
        let (lines, parked) = (&mut self.queues, &self.parked);
        let is_full = |queue: &&str| {
            lines.get_mut(*queue).is_some_and(|lines| !lines.has_room_for(types, parked))
        };
        match queues.find(is_full) {
            None => Ok(()),
            Some(queue) => Err(Error::LimitExceeded(format!(
                "claims that wait on queue {queue} name {PARKED_TYPE_LISTS_MAX} different lists of \
                 types; let workers share lists, or claim later"
            ))),
        }
    }

    fn note_stale(&mut self, parked: &Parked) {
        self.stale += parked.lines();
        self.sweep();
    }

    /// Cleans the lines once more tickets are stale than parked, so that each ticket costs a
    /// constant share.
    fn sweep(&mut self) {
        if self.stale <= 64 + self.parked.len() {
            return;
        }
        self.stale = 0;
        let parked = &mut self.parked;
        parked.retain(|_, parked| !parked.is_gone());
        self.queues.retain(|_, lines| {
            lines.retain(|line| {
                line.claims.retain(|ticket| parked.contains_key(ticket));
                line.hints.retain(|ticket| parked.contains_key(ticket));
                line.is_waited_in() || line.promised > 0
            });
            !lines.by_types.is_empty()
        });
    }
}

/// What is left for the claims of one line.
struct Room {
    types: TaskTypes,
    free: u64,
}

/// Subtracts tasks of these types from all lines that may want them.
fn take(room: &mut [Room], types: &TaskTypes, count: u64) {
    for other in room.iter_mut().filter(|other| other.types.overlaps(types)) {
        other.free = other.free.saturating_sub(count);
    }
}

/// The line with room whose first ticket is the oldest, and that ticket, which stays in its line.
fn first_in_line(
    lines: &mut Lines,
    room: &[Room],
    parked: &HashMap<TicketId, Parked>,
    stale: &mut usize,
    hints: bool,
) -> Option<(usize, TicketId)> {
    let mut first: Option<(usize, TicketId)> = None;
    for (position, Room { types, .. }) in room.iter().enumerate().filter(|(_, it)| it.free > 0) {
        let side = lines.line(types).side(hints);
        while let Some(ticket) = side.front().copied() {
            if parked.contains_key(&ticket) {
                if first.is_none_or(|(_, other)| ticket < other) {
                    first = Some((position, ticket));
                }
                break;
            }
            side.pop_front();
            *stale = stale.saturating_sub(1);
        }
    }
    first
}

/// How many tasks of these types in a queue a claim would get.
fn claimable(queue: &str, types: &TaskTypes, machine: &Machine, now: Timestamp) -> u64 {
    match machine.claimable(&look(queue, types), now) {
        Claimable::Now(ready) => ready,
        // A task that becomes due causes an event.
        Claimable::At(_) | Claimable::OnEvent => 0,
    }
}

/// A claim for any task of these types in one queue, to ask whether there is one.
fn look<'a>(queue: &'a str, types: &'a TaskTypes) -> Claim<'a> {
    Claim {
        queues: vec![ClaimQueue { name: queue, weight: 1 }],
        types: types.borrowed(),
        weighted_seed: None,
        tasks_max: 1,
        bytes_max: u32::MAX,
        lease_ms: taskyard_machine::limits::LEASE_MS_DEFAULT,
        session: None,
        number: None,
        begun: false,
        worker: "",
    }
}

/// Whether the shard has answered this claim before.
fn is_repeated(machine: &Machine, waiter: &Waiter, now: Timestamp) -> bool {
    waiter.request.number.is_some()
        && matches!(machine.claimable(&waiter.request.command(0), now), Claimable::Now(_))
}

#[cfg(test)]
mod tests;
