//! Waiters: claims of one shard, parked until an event wakes them.
//!
//! A parked claim costs its memory and nothing else: no log entry, no timer. It stands in line at each
//! of its queues. A wake of a queue serves its line from the front, as far as there are tasks that are
//! not promised to claims on their way through the log; it never looks at other queues' lines.

use super::{
    Hint,
    inbox::{TicketId, Waiter},
};
use crate::{Error, limits::PARKED_MAX};
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
    Hint { queues: Vec<String>, answer: HintAnswer },
}

impl Parked {
    fn is_gone(&self) -> bool {
        match self {
            Parked::Claim(waiter) => waiter.answer.is_closed(),
            Parked::Hint { answer, .. } => answer.is_closed(),
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

/// Who stands in line at one queue. Entries whose ticket is no longer parked are skipped.
#[derive(Default)]
struct Line {
    claims: VecDeque<TicketId>,
    hints: VecDeque<TicketId>,
    /// Tasks that claims on their way through the log will probably take.
    promised: u64,
}

/// A claim to be proposed, and what was promised to it.
pub(crate) struct Served {
    pub waiter: Waiter,
    pub promised: (String, u64),
}

/// The parked claims of one shard.
#[derive(Default)]
pub(crate) struct Waiters {
    parked: HashMap<TicketId, Parked>,
    lines: HashMap<String, Line>,
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
        if self.parked.len() >= PARKED_MAX {
            let _ = waiter.answer.send(Err(full()));
            return;
        }
        for (queue, _) in &waiter.request.queues {
            self.line(queue).claims.push_back(waiter.ticket);
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
            self.line(queue).claims.push_front(waiter.ticket);
        }
        self.parked.insert(waiter.ticket, Parked::Claim(waiter));
    }

    /// Parks a hint: it is told when one of its queues has something.
    pub(crate) fn park_hint(&mut self, ticket: TicketId, queues: Vec<String>, answer: HintAnswer) {
        if self.parked.len() >= PARKED_MAX {
            let _ = answer.send(Err(full()));
            return;
        }
        for queue in &queues {
            self.line(queue).hints.push_back(ticket);
            self.woken.push(queue.clone());
        }
        self.parked.insert(ticket, Parked::Hint { queues, answer });
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
            && self.lines.contains_key(queue)
            && self.woken.last().is_none_or(|last| last != queue)
        {
            self.woken.push(queue.to_owned());
        }
    }

    /// How many tasks of a queue a claim could have now, beside what is promised.
    pub(crate) fn free(&self, queue: &str, machine: &Machine, now: Timestamp) -> u64 {
        let promised = self.lines.get(queue).map_or(0, |line| line.promised);
        free(queue, promised, machine, now)
    }

    /// Whether [`Waiters::serve`] has something to look at.
    pub(crate) fn is_woken(&self) -> bool {
        !self.woken.is_empty() || !self.hasty.is_empty()
    }

    /// A proposed claim has been decided and took so many tasks of the queue that it was promised, or
    /// it never will be. Whoever waits behind it is looked at again: what it left there, or what came
    /// to a queue that had something promised, may not be told by an event.
    pub(crate) fn settle(&mut self, (queue, promised): &(String, u64), taken: u64) {
        if let Some(line) = self.lines.get_mut(queue) {
            line.promised = line.promised.saturating_sub(*promised);
            if taken < *promised || !line.claims.is_empty() || !line.hints.is_empty() {
                self.woken.push(queue.clone());
            }
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
                        served.push(Served { waiter, promised: (String::new(), 0) });
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
        let mut lines = std::mem::take(&mut self.lines);
        lines.retain(|_, line| {
            line.claims.clear();
            line.hints.clear();
            line.promised > 0
        });
        *self = Waiters { lines, ..Waiters::default() };
    }

    fn serve_queue(
        &mut self,
        queue: &str,
        machine: &Machine,
        now: Timestamp,
        real: Instant,
        served: &mut Vec<Served>,
    ) {
        let Some(line) = self.lines.get_mut(queue) else { return };
        let mut free = free(queue, line.promised, machine, now);
        while free > 0
            && let Some(ticket) = line.claims.pop_front()
        {
            let Some(parked) = self.parked.remove(&ticket) else {
                self.stale = self.stale.saturating_sub(1);
                continue;
            };
            let Parked::Claim(waiter) = parked else {
                unreachable!("hints stand in their own line")
            };
            self.stale += waiter.request.queues.len() - 1;
            if waiter.answer.is_closed() {
                continue;
            }
            let taken = u64::from(waiter.request.tasks_max).min(free);
            line.promised += taken;
            free -= taken;
            served.push(Served { waiter, promised: (queue.to_owned(), taken) });
        }
        let mut told = false;
        while free > 0
            && let Some(ticket) = line.hints.pop_front()
        {
            let Some(parked) = self.parked.remove(&ticket) else {
                self.stale = self.stale.saturating_sub(1);
                continue;
            };
            let Parked::Hint { queues, answer } = parked else {
                unreachable!("claims stand in their own line")
            };
            self.stale += queues.len() - 1;
            if answer.send(Ok(free)) {
                free -= 1;
                told = true;
            }
        }
        if told && !line.hints.is_empty() {
            self.hints_again.insert((real + HINT_AGAIN_AFTER, queue.to_owned()));
        }
    }

    fn line(&mut self, queue: &str) -> &mut Line {
        if !self.lines.contains_key(queue) {
            self.lines.insert(queue.to_owned(), Line::default());
        }
        self.lines.get_mut(queue).expect("just made")
    }

    fn left(&mut self, parked: &Parked) {
        self.stale += match parked {
            Parked::Claim(waiter) => waiter.request.queues.len(),
            Parked::Hint { queues, .. } => queues.len(),
        };
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
        self.lines.retain(|_, line| {
            line.claims.retain(|ticket| parked.contains_key(ticket));
            line.hints.retain(|ticket| parked.contains_key(ticket));
            !line.claims.is_empty() || !line.hints.is_empty() || line.promised > 0
        });
    }
}

fn free(queue: &str, promised: u64, machine: &Machine, now: Timestamp) -> u64 {
    match machine.claimable(&look(queue), now) {
        Claimable::Now(ready) => ready.saturating_sub(promised),
        // What becomes due comes with an event of its own.
        Claimable::At(_) | Claimable::OnEvent => 0,
    }
}

/// A claim of everything in one queue, to ask whether there is something.
fn look(queue: &str) -> Claim<'_> {
    Claim {
        queues: vec![ClaimQueue { name: queue, weight: 1 }],
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

fn full() -> Error {
    Error::LimitExceeded(format!(
        "{PARKED_MAX} claims are parked on this shard; claim without waiting, or later"
    ))
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
        let identity = Identity { incarnation: 1, shard: ShardId(0), shards: 1 };
        let mut machine = Machine::new(identity);
        let mut entry = EntryBuilder::new(NOW);
        for (queue, count) in tasks {
            for _ in 0..*count {
                let task = NewTask { task_type: "t", ..NewTask::default() };
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
        let claim = Claim { session: Some(session), number, ..look(queue) };
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
        let held: usize = waiters.lines.values().map(|line| line.claims.len()).sum();
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
            assert!(waiters.lines.values().all(|line| line.promised == 0));
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
