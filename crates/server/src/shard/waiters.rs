//! Waiters: claims of one shard, parked until an event wakes them.
//!
//! A parked claim costs its memory and nothing else: no log entry, no timer. It stands in line at each
//! of its queues, together with the claims that name the same types. A wake of a queue serves its lines
//! from the front, the claim that came first before others, as far as there are tasks of its types that
//! are not promised to claims on their way through the log; it never looks at other queues. A ready task
//! of a type that no line names wakes nobody.

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

/// How soon the next hint is told of tasks that nobody has claimed after the last one was.
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

    /// How many lines it stands in.
    fn lines(&self) -> usize {
        match self {
            Parked::Claim(waiter) => waiter.request.queues.len(),
            Parked::Hint { sought, .. } => sought.queues.len(),
        }
    }
}

/// Where a shard says, once, that it has something: to somebody who waits for several.
pub(crate) struct HintAnswer {
    shard: ShardId,
    told: mpsc::UnboundedSender<Hint>,
}

impl HintAnswer {
    pub(crate) fn new(shard: ShardId, told: mpsc::UnboundedSender<Hint>) -> HintAnswer {
        HintAnswer { shard, told }
    }

    /// Whether somebody is there to hear it.
    pub(crate) fn send(self, hint: Result<u64, Error>) -> bool {
        self.told.send((self.shard, hint)).is_ok()
    }

    fn is_closed(&self) -> bool {
        self.told.is_closed()
    }
}

/// Who waits for the same types at one queue. Entries whose ticket is no longer parked are skipped.
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

/// The lines at one queue, by types.
#[derive(Default)]
struct Lines {
    by_types: HashMap<TaskTypes, Line>,
    /// How many of them name a type.
    naming: HashMap<String, usize>,
}

impl Lines {
    /// The line of these types, made if there is none.
    fn line(&mut self, types: &TaskTypes) -> &mut Line {
        if !self.by_types.contains_key(types) {
            for name in types.names() {
                *self.naming.entry(name.clone()).or_default() += 1;
            }
            self.by_types.insert(types.clone(), Line::default());
        }
        self.by_types.get_mut(types).expect("just made")
    }

    /// Whether a line of these types is there or may be made. Lines in which nobody stands any more make
    /// room.
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

    /// What is promised of tasks that fit these types.
    fn promised(&self, types: &TaskTypes) -> u64 {
        let overlapping = self.by_types.iter().filter(|(other, _)| other.overlaps(types));
        overlapping.map(|(_, line)| line.promised).sum()
    }

    /// How many tasks of these types a claim could have now, beside what is promised.
    fn free(&self, queue: &str, types: &TaskTypes, machine: &Machine, now: Timestamp) -> u64 {
        // Limits of the queue let through so many of all types together.
        let of_all = claimable(queue, &TaskTypes::ANY, machine, now);
        let left = of_all.saturating_sub(self.promised(&TaskTypes::ANY));
        if types.is_any() || left == 0 {
            return left;
        }
        left.min(claimable(queue, types, machine, now).saturating_sub(self.promised(types)))
    }
}

/// What a claim on its way was promised of one queue.
#[derive(Default)]
pub(crate) struct Promise {
    pub queue: String,
    types: TaskTypes,
    count: u64,
}

/// A claim to be proposed, and what was promised to it.
pub(crate) struct Served {
    pub waiter: Waiter,
    pub promised: Promise,
}

/// The parked claims of one shard.
#[derive(Default)]
pub(crate) struct Waiters {
    parked: HashMap<TicketId, Parked>,
    queues: HashMap<String, Lines>,
    /// Queues to serve in this turn.
    woken: Vec<String>,
    /// Queues whose hints are looked at again: who was told may be gone before it claims.
    hints_again: BTreeSet<(Instant, String)>,
    /// Claims that do not wait: they go after the next serving.
    hasty: Vec<TicketId>,
    /// Tickets left in lines after they were served or taken away.
    stale: usize,
}

impl Waiters {
    /// How many claims and hints are parked.
    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }

    /// Parks a claim at the end of its lines, or refuses it.
    pub(crate) fn park(&mut self, waiter: Waiter) {
        let queues = waiter.request.queues.iter().map(|(queue, _)| queue.as_str());
        if let Err(error) = self.check_room(queues, &waiter.request.types) {
            let _ = waiter.answer.send(Err(error));
            return;
        }
        for (queue, _) in &waiter.request.queues {
            self.line(queue, &waiter.request.types).claims.push_back(waiter.ticket);
            self.woken.push(queue.clone());
        }
        if !waiter.parks {
            self.hasty.push(waiter.ticket);
        }
        self.parked.insert(waiter.ticket, Parked::Claim(waiter));
    }

    /// Parks a claim that got nothing where it stood before.
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

    /// Parks a hint: it is told when one of its queues has something.
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

    /// Nobody waits for this one any more.
    pub(crate) fn unpark(&mut self, ticket: TicketId) {
        if let Some(parked) = self.parked.remove(&ticket) {
            self.left(&parked);
        }
    }

    /// A queue may have something.
    pub(crate) fn wake(&mut self, queue: &str) {
        if !self.parked.is_empty()
            && self.queues.contains_key(queue)
            && self.woken.last().is_none_or(|last| last != queue)
        {
            self.woken.push(queue.to_owned());
        }
    }

    /// A queue has a task of a type.
    pub(crate) fn wake_for(&mut self, queue: &str, task_type: &str) {
        if self.queues.get(queue).is_some_and(|lines| lines.wants(task_type)) {
            self.wake(queue);
        }
    }

    /// How many tasks of a queue and these types a claim could have now, beside what is promised.
    pub(crate) fn free(
        &self,
        queue: &str,
        types: &TaskTypes,
        machine: &Machine,
        now: Timestamp,
    ) -> u64 {
        match self.queues.get(queue) {
            Some(lines) => lines.free(queue, types, machine, now),
            None => claimable(queue, types, machine, now),
        }
    }

    /// Whether [`Waiters::serve`] has something to look at.
    pub(crate) fn is_woken(&self) -> bool {
        !self.woken.is_empty() || !self.hasty.is_empty()
    }

    /// A proposed claim has been decided and took so many tasks of the queue that it was promised, or
    /// it never will be. Whoever waits behind it is looked at again: what it left there, or what came
    /// to a queue that had something promised, may not be told by an event.
    pub(crate) fn settle(&mut self, promised: &Promise, taken: u64) {
        let Promise { queue, types, count } = promised;
        let Some(lines) = self.queues.get_mut(queue) else { return };
        if let Some(line) = lines.by_types.get_mut(types) {
            line.promised = line.promised.saturating_sub(*count);
        }
        if taken < *count || lines.by_types.values().any(Line::is_waited_in) {
            self.woken.push(queue.clone());
        }
    }

    /// When the next queue must be looked at without an event, in real time.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.hints_again.first().map(|(at, _)| *at)
    }

    /// Wakes queues whose moment has come.
    pub(crate) fn wake_due(&mut self, real: Instant) {
        while self.hints_again.first().is_some_and(|(at, _)| *at <= real) {
            let (_, queue) = self.hints_again.pop_first().expect("the loop has just looked at it");
            self.woken.push(queue);
        }
    }

    /// Takes claims that can get something out of the woken queues' lines, and tells hints of the rest.
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
        for ticket in std::mem::take(&mut self.hasty) {
            if let Some(parked) = self.parked.remove(&ticket) {
                self.left(&parked);
                match parked {
                    // It was decided before, and its answer got lost: that needs no task that is ready.
                    // So none is promised to it, whatever its queues are: another node may have named none.
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

    /// Empties all lines; everybody is told that there is nothing, or why.
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
        // Claims on their way are still settled: what they were promised stays taken until then.
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
        let waited_in = lines.by_types.iter().filter(|(_, line)| line.is_waited_in());
        let types: Vec<TaskTypes> = waited_in.map(|(types, _)| types.clone()).collect();
        let mut room: Vec<Room> = types
            .into_iter()
            .map(|types| Room { free: lines.free(queue, &types, machine, now), types })
            .filter(|room| room.free > 0)
            .collect();
        let mut left = lines.free(queue, &TaskTypes::ANY, machine, now);
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

    fn left(&mut self, parked: &Parked) {
        self.stale += parked.lines();
        self.sweep();
    }

    /// Once more tickets are stale than parked, lines are cleaned: each costs a constant share.
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

/// Takes tasks that fit these types from all that may want them.
fn take(room: &mut [Room], types: &TaskTypes, count: u64) {
    for other in room.iter_mut().filter(|other| other.types.overlaps(types)) {
        other.free = other.free.saturating_sub(count);
    }
}

/// Which of the lines with room has the ticket that came first, without taking it out.
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

/// How many tasks of a queue and these types a claim would get.
fn claimable(queue: &str, types: &TaskTypes, machine: &Machine, now: Timestamp) -> u64 {
    match machine.claimable(&look(queue, types), now) {
        Claimable::Now(ready) => ready,
        // What becomes due comes with an event of its own.
        Claimable::At(_) | Claimable::OnEvent => 0,
    }
}

/// A claim of everything of these types in one queue, to ask whether there is something.
fn look<'a>(queue: &'a str, types: &'a TaskTypes) -> Claim<'a> {
    Claim {
        queues: vec![ClaimQueue { name: queue, weight: 1 }],
        types: types.borrowed(),
        weighted_seed: None,
        tasks_max: 1,
        lease_ms: taskyard_machine::limits::LEASE_MS_DEFAULT,
        session: None,
        number: None,
        begun: false,
        worker: "",
    }
}

/// Whether the shard has answered this very claim before.
fn is_repeated(machine: &Machine, waiter: &Waiter, now: Timestamp) -> bool {
    waiter.request.number.is_some()
        && matches!(machine.claimable(&waiter.request.command(0), now), Claimable::Now(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::{ClaimRequest, HandedTask};
    use taskyard_machine::{
        ClaimNumber, Command, EncodedCommand, Enqueue, Entry, EntryBuilder, Identity, NewTask,
        NoPayloads, SessionId, ShardId,
    };
    use tokio::sync::oneshot;

    const NOW: Timestamp = Timestamp(1_000);
    type Answered = oneshot::Receiver<Result<Vec<HandedTask>, Error>>;

    fn machine(tasks: &[(&str, usize)]) -> Machine {
        let tasks: Vec<_> = tasks.iter().map(|(queue, count)| (*queue, "t", *count)).collect();
        machine_of(&tasks)
    }

    /// Tasks by queue and type.
    fn machine_of(tasks: &[(&str, &str, usize)]) -> Machine {
        let identity = Identity { incarnation: 1, shard: ShardId(0), shards: 1 };
        let mut machine = Machine::new(identity);
        let mut entry = EntryBuilder::new(NOW);
        for (queue, task_type, count) in tasks {
            for _ in 0..*count {
                let task = NewTask { task_type, ..NewTask::default() };
                entry.push(&EncodedCommand::new(&Command::Enqueue(Enqueue { queue, task })));
            }
        }
        let entry = entry.finish();
        let entry = Entry::decode(&entry).unwrap();
        machine.apply(&entry, &mut NoPayloads, &mut Vec::new());
        machine
    }

    fn claim(ticket: u64, queues: &[&str], tasks_max: u32) -> (Waiter, Answered) {
        let (answer, answered) = oneshot::channel();
        let request = ClaimRequest {
            queues: queues.iter().map(|queue| ((*queue).to_owned(), 1)).collect(),
            types: TaskTypes::ANY,
            weighted: false,
            tasks_max,
            lease_ms: 30_000,
            session: None,
            number: None,
            begun: false,
            worker: String::new(),
        };
        (Waiter { ticket: TicketId(ticket), request, parks: true, answer }, answered)
    }

    /// Parks claims of one task each.
    fn park(
        waiters: &mut Waiters,
        tickets: std::ops::Range<u64>,
        queues: &[&str],
    ) -> Vec<Answered> {
        let park = |ticket| {
            let (waiter, answered) = claim(ticket, queues, 1);
            waiters.park(waiter);
            answered
        };
        tickets.map(park).collect()
    }

    /// The same machine, after a session has claimed once under a number.
    fn claimed(mut machine: Machine, queue: &str, session: SessionId, sequence: u64) -> Machine {
        let mut entry = EntryBuilder::new(NOW.plus_ms(1));
        let number = Some(ClaimNumber { sequence, sending: 0 });
        let claim = Claim { session: Some(session), number, ..look(queue, &TaskTypes::ANY) };
        entry.push(&EncodedCommand::new(&Command::Claim(claim)));
        let entry = entry.finish();
        let entry = Entry::decode(&entry).unwrap();
        machine.apply(&entry, &mut NoPayloads, &mut Vec::new());
        machine
    }

    fn serve(waiters: &mut Waiters, machine: &Machine) -> (Vec<u64>, Vec<Served>) {
        let served = waiters.serve(machine, NOW, Instant::now());
        (served.iter().map(|served| served.waiter.ticket.0).collect(), served)
    }

    #[test]
    fn a_wake_takes_as_many_as_there_are_tasks_from_the_front() {
        let mut waiters = Waiters::default();
        let _answered = park(&mut waiters, 0..5, &["mail"]);
        assert_eq!(serve(&mut waiters, &machine(&[("mail", 2)])).0, [0, 1]);
        assert_eq!(waiters.len(), 3);
        assert!(!waiters.is_woken());
        waiters.wake("other");
        assert!(!waiters.is_woken(), "nobody stands there");
        waiters.wake("mail");
        let (tickets, served) = serve(&mut waiters, &machine(&[("mail", 3)]));
        assert_eq!(tickets, [2], "two of the three are promised to those before");
        waiters.settle(&served[0].promised, 1);
        waiters.wake("mail");
        assert_eq!(serve(&mut waiters, &machine(&[("mail", 4)])).0, [3, 4]);
    }

    /// A limit that lets one more through says nothing when the queue was open before.
    #[test]
    fn whoever_waits_behind_a_promise_is_looked_at_when_it_is_kept() {
        let mut waiters = Waiters::default();
        let _answered = park(&mut waiters, 0..2, &["mail"]);
        let (tickets, served) = serve(&mut waiters, &machine(&[("mail", 1)]));
        assert_eq!(tickets, [0]);
        waiters.settle(&served[0].promised, 1);
        assert_eq!(serve(&mut waiters, &machine(&[("mail", 1)])).0, [1]);
        assert!(!waiters.is_woken());
    }

    #[test]
    fn a_large_claim_takes_what_there_is_and_the_next_one_waits() {
        let mut waiters = Waiters::default();
        let (first, _first) = claim(1, &["mail"], 100);
        let (second, _second) = claim(2, &["mail"], 100);
        waiters.park(first);
        waiters.park(second);
        assert_eq!(serve(&mut waiters, &machine(&[("mail", 3)])).0, [1]);
    }

    #[test]
    fn who_left_is_passed_over_and_who_got_nothing_keeps_its_place() {
        let mut waiters = Waiters::default();
        let mut answered = park(&mut waiters, 0..4, &["mail"]);
        drop(answered.remove(0));
        waiters.unpark(TicketId(1));
        let (tickets, served) = serve(&mut waiters, &machine(&[("mail", 1)]));
        assert_eq!(tickets, [2]);
        for served in served {
            waiters.settle(&served.promised, 0);
            waiters.park_again(served.waiter);
        }
        assert!(serve(&mut waiters, &machine(&[])).0.is_empty(), "somebody else has taken it");
        waiters.wake("mail");
        assert_eq!(serve(&mut waiters, &machine(&[("mail", 2)])).0, [2, 3]);
    }

    #[test]
    fn what_a_claim_left_of_its_promise_goes_to_the_next_in_line() {
        let mut waiters = Waiters::default();
        let _first = park(&mut waiters, 1..2, &["a", "b"]);
        let _second = park(&mut waiters, 2..3, &["b"]);
        let (tickets, served) = serve(&mut waiters, &machine(&[("b", 1)]));
        assert_eq!(tickets, [1]);
        // A task for `a` was enqueued in the same entry, and the claim took that one.
        waiters.settle(&served[0].promised, 0);
        assert_eq!(serve(&mut waiters, &machine(&[("b", 1)])).0, [2]);
    }

    fn types(names: &[&str]) -> TaskTypes {
        TaskTypes::new(names.iter().map(|name| (*name).to_owned()).collect())
    }

    /// Parks a claim of some types.
    fn park_typed(
        waiters: &mut Waiters,
        ticket: u64,
        queue: &str,
        names: &[&str],
        tasks_max: u32,
    ) -> Answered {
        let (mut waiter, answered) = claim(ticket, &[queue], tasks_max);
        waiter.request.types = types(names);
        waiters.park(waiter);
        answered
    }

    #[test]
    fn a_task_wakes_the_claims_that_name_its_type_and_no_others() {
        let mut waiters = Waiters::default();
        let _a = park_typed(&mut waiters, 1, "mail", &["a"], 1);
        let _ab = park_typed(&mut waiters, 2, "mail", &["a", "b"], 1);
        let _b = park_typed(&mut waiters, 3, "mail", &["b"], 1);
        let foreign = machine_of(&[("mail", "c", 1_000)]);
        assert!(serve(&mut waiters, &foreign).0.is_empty(), "nobody takes them");
        waiters.wake_for("mail", "c");
        waiters.wake_for("other", "a");
        assert!(!waiters.is_woken(), "a type that nobody waits for wakes nobody");
        waiters.wake_for("mail", "b");
        let (tickets, served) =
            serve(&mut waiters, &machine_of(&[("mail", "c", 1_000), ("mail", "b", 1)]));
        assert_eq!(tickets, [2], "the first that fits");
        waiters.wake_for("mail", "b");
        let two = machine_of(&[("mail", "b", 2)]);
        let (tickets, _served) = serve(&mut waiters, &two);
        assert_eq!(tickets, [3], "one of the two is promised");
        waiters.settle(&served[0].promised, 1);
        assert!(serve(&mut waiters, &machine_of(&[("mail", "b", 1)])).0.is_empty());
        waiters.wake_for("mail", "a");
        assert_eq!(serve(&mut waiters, &machine_of(&[("mail", "a", 1)])).0, [1]);
        let _any = park(&mut waiters, 4..5, &["mail"]);
        assert!(serve(&mut waiters, &machine(&[])).0.is_empty());
        waiters.wake_for("mail", "c");
        assert_eq!(serve(&mut waiters, &foreign).0, [4], "a claim of any type");
    }

    #[test]
    fn claims_of_all_types_are_served_in_the_order_in_which_they_came() {
        let mut waiters = Waiters::default();
        let _answered: Vec<_> = [(1, &["a"][..]), (2, &[]), (3, &["a", "b"]), (4, &["a"])]
            .map(|(ticket, names)| park_typed(&mut waiters, ticket, "mail", names, 1))
            .into();
        let some = machine_of(&[("mail", "a", 2), ("mail", "b", 1)]);
        let (tickets, served) = serve(&mut waiters, &some);
        assert_eq!(tickets, [1, 2], "what any type may take is not promised twice");
        for served in &served {
            waiters.settle(&served.promised, 1);
        }
        assert_eq!(serve(&mut waiters, &machine_of(&[("mail", "b", 1)])).0, [3]);
    }

    #[test]
    fn lists_of_types_are_bounded_and_those_that_left_make_room() {
        let mut waiters = Waiters::default();
        let lists = PARKED_TYPE_LISTS_MAX as u64;
        let mut answered: Vec<_> = (0..lists)
            .map(|ticket| park_typed(&mut waiters, ticket, "mail", &[&format!("t{ticket}")], 1))
            .collect();
        let mut refused = park_typed(&mut waiters, lists, "mail", &["one more"], 1);
        assert_eq!(refused.try_recv().unwrap().unwrap_err().code(), "limit_exceeded");
        answered.push(park_typed(&mut waiters, lists + 1, "mail", &["t7"], 1));
        assert_eq!(waiters.len() as u64, lists + 1, "a list that is there may grow");
        waiters.unpark(TicketId(3));
        answered.push(park_typed(&mut waiters, lists + 2, "mail", &["one more"], 1));
        assert_eq!(waiters.len() as u64, lists + 1);
        waiters.wake_for("mail", "t3");
        waiters.woken.clear();
        waiters.wake_for("mail", "t3");
        assert!(!waiters.is_woken(), "its list is gone");
    }

    #[test]
    fn promises_outlive_the_end_of_the_lines() {
        let mut waiters = Waiters::default();
        let _leaving = park(&mut waiters, 1..3, &["mail"]);
        let (_, served) = serve(&mut waiters, &machine(&[("mail", 1)]));
        waiters.end(None);
        assert_eq!(waiters.len(), 0);
        let _answered = park(&mut waiters, 3..6, &["mail"]);
        assert_eq!(serve(&mut waiters, &machine(&[("mail", 2)])).0, [3], "one is promised");
        waiters.settle(&served[0].promised, 1);
        waiters.wake("mail");
        assert_eq!(serve(&mut waiters, &machine(&[("mail", 2)])).0, [4], "the other still is");
    }

    #[test]
    fn a_claim_of_many_queues_is_served_once() {
        let mut waiters = Waiters::default();
        let _answered = park(&mut waiters, 0..300, &["a", "b", "c"]);
        let (tickets, _) = serve(&mut waiters, &machine(&[("a", 1), ("c", 1)]));
        assert_eq!(tickets, [0, 1]);
        for ticket in 2..300 {
            waiters.unpark(TicketId(ticket));
        }
        assert_eq!(waiters.len(), 0);
        let lines = waiters.queues.values().flat_map(|lines| lines.by_types.values());
        let held: usize = lines.map(|line| line.claims.len()).sum();
        assert!(held <= 128, "lines are cleaned of {held}");
    }

    #[test]
    fn a_claim_that_does_not_wait_is_told_at_once() {
        let mut waiters = Waiters::default();
        for (ticket, queues) in [(1, &["mail"][..]), (2, &[])] {
            let (mut waiter, mut answered) = claim(ticket, queues, 1);
            waiter.parks = false;
            waiters.park(waiter);
            assert!(waiters.is_woken());
            assert!(serve(&mut waiters, &machine(&[])).0.is_empty());
            assert!(answered.try_recv().unwrap().unwrap().is_empty());
        }
        assert_eq!(waiters.len(), 0);
    }

    /// As it may come from a node of another version. What is wrong with it is for the machine to say.
    #[test]
    fn a_repeated_claim_is_served_and_promised_nothing_even_without_queues() {
        let session = SessionId(7);
        let machine = claimed(machine(&[("mail", 1)]), "mail", session, 3);
        for (ticket, queues) in [(1, &["mail"][..]), (2, &["other", "mail"]), (3, &[])] {
            let mut waiters = Waiters::default();
            let (mut waiter, _answered) = claim(ticket, queues, 1);
            waiter.parks = false;
            (waiter.request.session, waiter.request.number) =
                (Some(session), Some(ClaimNumber { sequence: 3, sending: 1 }));
            waiters.park(waiter);
            let (tickets, served) = serve(&mut waiters, &machine);
            assert_eq!(tickets, [ticket], "{queues:?}");
            waiters.settle(&served[0].promised, 0);
            let mut lines = waiters.queues.values().flat_map(|lines| lines.by_types.values());
            assert!(lines.all(|line| line.promised == 0));
        }
    }

    #[test]
    fn the_bound_is_a_named_answer() {
        let mut waiters = Waiters::default();
        let _answered = park(&mut waiters, 0..PARKED_MAX as u64, &["mail"]);
        let (waiter, mut answered) = claim(u64::MAX, &["mail"], 1);
        waiters.park(waiter);
        let error = answered.try_recv().unwrap().unwrap_err();
        assert_eq!(error.code(), "limit_exceeded");
        assert_eq!(waiters.len(), PARKED_MAX);
    }
}
