//! Claim: which tasks a worker gets, in which order, and under which terms.
//!
//! A claim takes its queues in strict order, or draws one by weight for each task. `fairness.rs`
//! picks the next task of a queue within its limits. A claim that names types gets tasks of these
//! types only.

use crate::draw::Draw;
use crate::enqueue::at_most_bytes;
use crate::life::{ClaimState, Ending, State, Task};
use crate::limits::*;
use crate::machine::Counters;
use crate::rejection::at_most;
use crate::slab::Slot;
use crate::strands::Wanted;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{
    Claim, ClaimQueue, ClaimToken, Claimable, ClaimedTask, EventKind, Machine, Outcome,
    ParentResult, Rejection, Timestamp,
};

impl Turn<'_> {
    pub(crate) fn claim(&mut self, claim: &Claim<'_>) -> Result<Outcome, Rejection> {
        claim.check()?;
        if let Some(answer) = self.repeated(claim)? {
            return Ok(Outcome::Claimed(answer));
        }
        let wanted = Wanted::new(&claim.types, &self.shard.names);
        let answer = match claim.weighted_seed {
            None => self.claim_strict(claim, &wanted),
            Some(seed) => self.claim_weighted(claim, &wanted, seed),
        };
        Ok(Outcome::Claimed(answer))
    }

    fn claim_strict(&mut self, claim: &Claim<'_>, wanted: &Wanted) -> Vec<ClaimedTask> {
        let mut taken = Taken::new(claim);
        for queue in &claim.queues {
            while !taken.is_full {
                let Some(slot) = self.next_runnable(queue.name, wanted) else { break };
                taken.count(self.task(slot));
                taken.tasks.push(self.take(slot, claim));
            }
        }
        taken.tasks
    }

    fn claim_weighted(
        &mut self,
        claim: &Claim<'_>,
        wanted: &Wanted,
        seed: u64,
    ) -> Vec<ClaimedTask> {
        let mut taken = Taken::new(claim);
        let mut draw = Draw::new(seed);
        let mut open: Vec<&ClaimQueue<'_>> = claim.queues.iter().collect();
        while !taken.is_full && !open.is_empty() {
            let position = draw_by_weight(&open, &mut draw);
            let Some(slot) = self.next_runnable(open[position].name, wanted) else {
                // An empty queue leaves the draw, and the rest keep their shares.
                open.remove(position);
                continue;
            };
            taken.count(self.task(slot));
            taken.tasks.push(self.take(slot, claim));
        }
        taken.tasks
    }

    /// The task of these types to claim next in a queue. Tasks past their `expires_at` that come
    /// first expire, up to the bound per entry; `ExpireDue` ends the rest.
    fn next_runnable(&mut self, queue: &str, wanted: &Wanted) -> Option<Slot> {
        let number = self.shard.queues.find(queue)?;
        loop {
            let queue = self.shard.queues.get(number);
            if queue.paused || queue.slots() == 0 || queue.tokens(self.now) == 0 {
                return None;
            }
            let slot = self.shard.first_in_turn(number, wanted)?;
            if self.task(slot).expires_at().is_none_or(|at| at > self.now) {
                return Some(slot);
            }
            self.expiries_left = self.expiries_left.checked_sub(1)?;
            self.finish(slot, Ending::Expired, EventKind::TaskExpired);
        }
    }

    /// Gives a ready task to the worker that asks.
    fn take(&mut self, slot: Slot, claim: &Claim<'_>) -> ClaimedTask {
        let State::Ready { since } = self.task(slot).state else {
            panic!("task {} is in a ready lane and not ready", self.task(slot).id);
        };
        let token = self.next_token();
        let worker = self.shard.names.intern(claim.worker);
        let timeout_ms = self.shard.timeout_ms(slot);
        let own_lease = self.task(slot).terms().and_then(|terms| terms.lease_ms);
        let mut state = ClaimState {
            token,
            worker,
            session: claim.session,
            sequence: claim.number.map(|number| number.sequence),
            claimed_at: self.now,
            lease_ms: own_lease.unwrap_or(claim.lease_ms),
            lease_expires_at: self.now,
            timeout_at: None,
            ends_at: self.now,
            put_off_ms: 0,
            ready_since: since,
            // Without a session no worker reports that it begins, so a claim counts as begun.
            engaged: claim.begun || claim.session.is_none(),
            cancel_requested: false,
        };
        state.begin(&self.shard.counters, timeout_ms);
        self.shard.serve(slot);
        self.shard.edit(slot, |task| task.attempt += 1);
        self.transition(slot, State::Claimed(Box::new(state)), Place::Back);
        let name = self.shard.names.get(worker).clone();
        self.emit_task(slot, |task| EventKind::TaskClaimed(task, name));
        self.shard.claimed_task(slot)
    }

    /// A token that no earlier claim of this shard had.
    pub(crate) fn next_token(&mut self) -> ClaimToken {
        let token = ClaimToken(self.shard.counters.next_token);
        self.shard.counters.next_token += 1;
        token
    }
}

/// The tasks that a claim has got so far.
struct Taken {
    tasks: Vec<ClaimedTask>,
    tasks_max: usize,
    bytes: usize,
    bytes_max: usize,
    is_full: bool,
}

impl Taken {
    fn new(claim: &Claim<'_>) -> Taken {
        let tasks_max = claim.tasks_max as usize;
        let bytes_max = CLAIM_BYTES_MAX.min(claim.bytes_max as usize);
        Taken { tasks: Vec::new(), tasks_max, bytes: 0, bytes_max, is_full: tasks_max == 0 }
    }

    /// Counts the next task. The task that reaches the bytes is the claim's last one: a drawn task
    /// is never refused, or large tasks would lose their share to small ones.
    fn count(&mut self, task: &Task) {
        self.bytes = self.bytes.saturating_add(task.handed_bytes());
        self.is_full = self.tasks.len() + 1 >= self.tasks_max || self.bytes >= self.bytes_max;
    }
}

impl Task {
    /// What the task comes to in the hands of a worker.
    fn handed_bytes(&self) -> usize {
        let resume_state = self.left().and_then(|left| left.resume_state.as_ref());
        let result = |parent: &ParentResult| parent.result.as_ref().map_or(0, |bytes| bytes.len());
        let parents: usize = self.parents().iter().map(result).sum();
        self.body_bytes as usize + resume_state.map_or(0, |state| state.len()) + parents
    }
}

impl ClaimState {
    /// Starts the lease and the run time at the shard's time, when the worker gets the task.
    pub(crate) fn begin(&mut self, counters: &Counters, timeout_ms: Option<u64>) {
        let now = counters.now;
        self.claimed_at = now;
        self.lease_expires_at = now.plus_ms(self.lease_ms);
        self.timeout_at = timeout_ms.map(|ms| now.plus_ms(ms.saturating_add(TIMEOUT_GRACE_MS)));
        self.put_off_ms = counters.put_off_ms;
        self.set_end(counters.lease_floor);
    }

    /// Restarts the lease at the shard's time.
    pub(crate) fn renew(&mut self, counters: &Counters, lease_ms: Option<u64>) {
        self.catch_up(counters);
        self.lease_expires_at = counters.now.plus_ms(lease_ms.unwrap_or(self.lease_ms));
        self.set_end(counters.lease_floor);
    }

    /// Moves the lease and the run time by what claims were put off since these times were set.
    pub(crate) fn catch_up(&mut self, counters: &Counters) {
        let ms = counters.put_off_ms - self.put_off_ms;
        self.put_off_ms = counters.put_off_ms;
        self.lease_expires_at = self.lease_expires_at.plus_ms(ms);
        self.timeout_at = self.timeout_at.map(|at| at.plus_ms(ms));
        self.set_end(counters.lease_floor);
    }

    /// Sets the moment at which the claim lapses.
    pub(crate) fn set_end(&mut self, lease_floor: Timestamp) {
        let timeout_at = self.timeout_at.unwrap_or(self.lease_expires_at);
        self.ends_at = self.lease_expires_at.min(timeout_at).max(lease_floor);
    }
}

impl Claim<'_> {
    fn check(&self) -> Result<(), Rejection> {
        if self.queues.is_empty() {
            return Err(Rejection::invalid("queues is empty; name at least one queue"));
        }
        at_most("the number of queues", self.queues.len() as u64, CLAIM_QUEUES_MAX as u64)?;
        if self.tasks_max == 0 {
            return Err(Rejection::invalid("max is 0; ask for at least one task"));
        }
        at_most("max", self.tasks_max.into(), CLAIM_TASKS_MAX as u64)?;
        check_lease(self.lease_ms)?;
        at_most_bytes("worker", self.worker.len(), WORKER_NAME_BYTES_MAX)?;
        at_most("the number of types", self.types.len() as u64, CLAIM_TYPES_MAX as u64)?;
        for name in &self.types {
            at_most_bytes("type", name.len(), TYPE_BYTES_MAX)?;
        }
        for queue in &self.queues {
            if queue.weight == 0 {
                return Err(Rejection::invalid(format!(
                    "the weight of queue {} is 0; give 1 to {WEIGHT_MAX}",
                    queue.name
                )));
            }
            at_most("weight", queue.weight.into(), WEIGHT_MAX.into())?;
        }
        Ok(())
    }
}

pub(crate) fn check_lease(lease_ms: u64) -> Result<(), Rejection> {
    if (LEASE_MS_MIN..=LEASE_MS_MAX).contains(&lease_ms) {
        return Ok(());
    }
    Err(Rejection::invalid(format!(
        "lease_ms is {lease_ms}; {LEASE_MS_MIN} to {LEASE_MS_MAX} are allowed"
    )))
}

/// Draws the position of a queue, with a probability in proportion to its weight.
fn draw_by_weight(queues: &[&ClaimQueue<'_>], draw: &mut Draw) -> usize {
    let total: u64 = queues.iter().map(|queue| u64::from(queue.weight)).sum();
    let mut left = draw.up_to(total - 1);
    for (position, queue) in queues.iter().enumerate() {
        match left.checked_sub(queue.weight.into()) {
            Some(rest) => left = rest,
            None => return position,
        }
    }
    unreachable!("a draw below the total falls on a queue")
}

impl Machine {
    /// Whether a claim would get a task at `now`. The leader asks before it proposes, so that empty
    /// claims do not enter the log.
    pub fn claimable(&self, claim: &Claim<'_>, now: Timestamp) -> Claimable {
        if self.was_sent_before(claim) {
            return Claimable::Now(1);
        }
        let wanted = Wanted::new(&claim.types, &self.names);
        let found = || claim.queues.iter().filter_map(|queue| self.queues.find(queue.name));
        let room = found().map(|number| self.room(number, now, &wanted));
        let room = room.fold(0u64, u64::saturating_add);
        if room > 0 {
            return Claimable::Now(room);
        }
        // The shard's first deadline comes no later than that of these queues.
        let mut open = found().map(|number| self.queues.get(number)).filter(|queue| !queue.paused);
        let timed = open.any(|queue| queue.has_timed());
        match self.deadlines.next_due() {
            Some(at) if timed => Claimable::At(at.max(now)),
            _ => Claimable::OnEvent,
        }
    }

    /// A claimed task as its worker sees it.
    pub(crate) fn claimed_task(&self, slot: Slot) -> ClaimedTask {
        let task = self.tasks.get(slot);
        let claim = task.claim().unwrap_or_else(|| panic!("task {} is not claimed", task.id));
        ClaimedTask {
            id: task.id,
            token: claim.token,
            queue: self.queues.get(task.queue).name.clone(),
            task_type: self.names.get(task.task_type).clone(),
            priority: task.priority,
            attempt: task.attempt,
            lease_expires_at: claim.lease_expires_at,
            lease_ms: claim.lease_ms,
            timeout_ms: self.timeout_ms(slot),
            enqueued_at: task.enqueued_at,
            resume_state: task.left().and_then(|left| left.resume_state.clone()),
            fairness_key: task.key().map(|key| self.keys.get(key).text.clone()),
            flow: task.flow_member(),
            parents: task.parents().into(),
        }
    }

    /// The longest run time of one attempt, set by the task or else by its queue.
    pub(crate) fn timeout_ms(&self, slot: Slot) -> Option<u64> {
        let task = self.tasks.get(slot);
        let own = task.terms().and_then(|terms| terms.timeout_ms);
        own.or(self.queues.get(task.queue).settings.timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, Yard, claim, new_task};
    use crate::{
        Body, Command, NewTask, QueueCommand, QueueSettings, Renew, Renewal, TaskId, TaskStateName,
        When,
    };

    fn prioritised(priority: u8) -> NewTask<'static> {
        NewTask { priority: Some(priority), ..new_task() }
    }

    fn ids(tasks: &[ClaimedTask]) -> Vec<TaskId> {
        tasks.iter().map(|task| task.id).collect()
    }

    #[test]
    fn higher_priorities_come_first_and_older_tasks_in_one() {
        let mut yard = Yard::new();
        let mut enqueue = |priority| yard.enqueue_task("mail", prioritised(priority)).unwrap().id;
        let [low, middle, high, also_high] = [0, 5, 9, 9].map(&mut enqueue);
        assert_eq!(ids(&yard.claim("mail", 10)), [high, also_high, middle, low]);
    }

    #[test]
    fn a_claim_gets_only_the_types_that_it_names() {
        let mut yard = Yard::new();
        let mut enqueue =
            |task_type| yard.enqueue_task("mail", NewTask { task_type, ..new_task() }).unwrap().id;
        let [a, b, c, also_a] = ["a", "b", "c", "a"].map(&mut enqueue);
        let of = |types: &[&'static str]| Claim {
            types: types.to_vec(),
            tasks_max: 10,
            ..claim("mail")
        };
        let claimable = |yard: &Yard, types| yard.machine.claimable(&of(types), yard.now());
        assert_eq!(claimable(&yard, &["nobody"]), Claimable::OnEvent);
        assert_eq!(claimable(&yard, &["a", "c", "a"]), Claimable::Now(3), "each type counts once");
        assert!(yard.claim_with(of(&["nobody"])).is_empty());
        assert_eq!(ids(&yard.claim_with(of(&["c", "nobody", "a"]))), [a, c, also_a]);
        assert_eq!(claimable(&yard, &["a", "c"]), Claimable::At(Timestamp(START + 30_000)));
        assert_eq!(yard.task(b).attempt, 0, "a task of another type spends no attempt");
        assert_eq!(ids(&yard.claim("mail", 10)), [b]);
    }

    /// A worker that asks for many large tasks gets them a few at a time, in order.
    #[test]
    fn a_claim_ends_with_the_task_that_reaches_its_bytes() {
        let mut yard = Yard::new();
        let mut enqueue = |queue, bytes| {
            let payload = vec![b'x'; bytes];
            let body = Body { payload: &payload, ..Body::default() };
            yard.enqueue_task(queue, NewTask { body, ..new_task() }).unwrap().id
        };
        let fifths: Vec<TaskId> = (0..5).map(|_| enqueue("mail", CLAIM_BYTES_MAX / 5)).collect();
        let (small, whole) = (enqueue("mail", 1), enqueue("more", CLAIM_BYTES_MAX));
        let last = enqueue("more", 1);
        let queues = ["mail", "more"].map(|name| ClaimQueue { name, weight: 1 }).to_vec();
        let all = Claim { queues, tasks_max: 100, bytes_max: u32::MAX, ..claim("mail") };
        let of_few = Claim { bytes_max: 1, ..all.clone() };
        assert_eq!(ids(&yard.claim_with(of_few)), fifths[..1], "one task at least");
        assert_eq!(ids(&yard.claim_with(all.clone())), [&fifths[1..], &[small, whole]].concat());
        assert_eq!(ids(&yard.claim_with(all)), [last]);
    }

    /// A drawn task that does not fit must not lose its draw.
    #[test]
    fn large_tasks_keep_their_share_of_a_weighted_claim() {
        let mut yard = Yard::new();
        let payload = vec![b'x'; CLAIM_BYTES_MAX];
        for _ in 0..40 {
            let body = Body { payload: &payload, ..Body::default() };
            yard.enqueue_task("large", NewTask { body, ..new_task() }).unwrap();
            for _ in 0..4 {
                yard.enqueue("small");
            }
        }
        let queues = ["large", "small"].map(|name| ClaimQueue { name, weight: 1 }).to_vec();
        let mut small = 0;
        for seed in 0..30 {
            let (queues, weighted_seed) = (queues.clone(), Some(seed));
            let taken =
                yard.claim_with(Claim { queues, weighted_seed, tasks_max: 100, ..claim("x") });
            let large = taken.iter().filter(|task| task.queue.as_str() == "large").count();
            assert_eq!(large, 1, "it ends each claim");
            small += taken.len() - 1;
        }
        assert!((15..=60).contains(&small), "30 large and {small} small ones");
    }

    #[test]
    fn a_released_task_is_claimed_before_older_tasks_of_all_types() {
        let mut yard = Yard::new();
        let mut enqueue =
            |task_type| yard.enqueue_task("mail", NewTask { task_type, ..new_task() }).unwrap().id;
        let [a, b, also_a] = ["a", "b", "a"].map(&mut enqueue);
        let of = |types: &[&'static str]| Claim { types: types.to_vec(), ..claim("mail") };
        let held = yard.claim_with(of(&["b"])).remove(0);
        yard.release(&held).unwrap();
        yard.machine.check().unwrap();
        assert_eq!(ids(&yard.claim_with(of(&["a", "b"]))), [b], "before older ones");
        assert_eq!(ids(&yard.claim("mail", 2)), [a, also_a]);
    }

    #[test]
    fn many_types_are_claimed_in_order_for_any_set_of_types() {
        let mut yard = Yard::new();
        let names: Vec<String> = (0..40).map(|number| format!("type {number}")).collect();
        let mut all = Vec::new();
        for number in 0..200 {
            let task_type = &names[number * 7 % 40];
            let task = NewTask { task_type, ..new_task() };
            all.push((yard.enqueue_task("mail", task).unwrap().id, task_type));
        }
        let mut last = String::new();
        for (few, many) in [(0..3, 3..40), (5..6, 0..6), (0..40, 0..0)] {
            for range in [few, many] {
                let types: Vec<&str> = names[range].iter().map(String::as_str).collect();
                let first = |all: &[(TaskId, &String)]| {
                    all.iter().position(|(_, of)| types.contains(&of.as_str()))
                };
                for _ in 0..20 {
                    if types.is_empty() {
                        break;
                    }
                    let taken = yard.claim_with(Claim { types: types.clone(), ..claim("mail") });
                    let expected = first(&all).map(|position| all.remove(position));
                    assert_eq!(ids(&taken), Vec::from_iter(expected.map(|(id, _)| id)));
                    last.extend(taken.iter().map(|task| &*task.task_type));
                    yard.machine.check().unwrap();
                }
            }
        }
        assert!(last.contains("type 39"));
    }

    #[test]
    fn strict_queues_are_emptied_in_the_order_given() {
        let mut yard = Yard::new();
        let [a, b] = ["a", "b"].map(|queue| yard.enqueue(queue));
        let queues = ["b", "unknown", "a"].map(|name| ClaimQueue { name, weight: 1 }).to_vec();
        let taken = yard.claim_with(Claim { queues, tasks_max: 10, ..claim("a") });
        assert_eq!(ids(&taken), [b, a]);
        assert_eq!(yard.machine.queues().len(), 2, "an unknown queue is not made");
    }

    #[test]
    fn weighted_queues_share_by_weight_and_the_seed_decides() {
        let mut yard = Yard::new();
        for _ in 0..400 {
            yard.enqueue_unchecked("light", new_task());
            yard.enqueue_unchecked("heavy", new_task());
        }
        let queues = vec![
            ClaimQueue { name: "light", weight: 1 },
            ClaimQueue { name: "empty", weight: 50 },
            ClaimQueue { name: "heavy", weight: 3 },
        ];
        let weighted = Claim { queues, weighted_seed: Some(3), tasks_max: 400, ..claim("x") };
        let taken = yard.claim_with(weighted);
        let heavy = taken.iter().filter(|task| task.queue.as_str() == "heavy").count();
        assert_eq!(taken.len(), 400);
        assert!((270..330).contains(&heavy), "{heavy} of 400");
    }

    #[test]
    fn a_paused_queue_hands_out_nothing() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        yard.send(Command::PauseQueue(QueueCommand { queue: "mail" })).unwrap();
        assert_eq!(yard.machine.claimable(&claim("mail"), Timestamp(START)), Claimable::OnEvent);
        assert!(yard.claim("mail", 1).is_empty());
        yard.send(Command::ResumeQueue(QueueCommand { queue: "mail" })).unwrap();
        assert_eq!(yard.claim("mail", 1).len(), 1);
    }

    #[test]
    fn an_expired_task_is_never_handed_out() {
        let mut yard = Yard::new();
        let expires_at = Some(Timestamp(START + 5));
        let late = yard.enqueue_task("mail", NewTask { expires_at, ..new_task() }).unwrap().id;
        let good = yard.enqueue("mail");
        yard.pass_ms(5);
        assert_eq!(ids(&yard.claim("mail", 2)), [good]);
        assert_eq!(yard.state(late), TaskStateName::Expired);
    }

    #[test]
    fn claimable_says_now_later_or_on_an_event() {
        let mut yard = Yard::new();
        let now = Timestamp(START);
        assert_eq!(yard.machine.claimable(&claim("mail"), now), Claimable::OnEvent);
        let run_at = When::After { ms: 500 };
        yard.enqueue_task("mail", NewTask { run_at, ..new_task() }).unwrap();
        let at = Timestamp(START + 500);
        assert_eq!(yard.machine.claimable(&claim("mail"), now), Claimable::At(at));
        yard.enqueue("mail");
        yard.enqueue("mail");
        assert_eq!(yard.machine.claimable(&claim("mail"), now), Claimable::Now(2));
    }

    #[test]
    fn bad_claims_are_refused() {
        let mut yard = Yard::new();
        let queue = |weight| vec![ClaimQueue { name: "mail", weight }];
        let worker = "w".repeat(300);
        let bad = [
            Claim { queues: vec![], ..claim("mail") },
            Claim { queues: vec![ClaimQueue { name: "q", weight: 1 }; 65], ..claim("mail") },
            Claim { queues: queue(0), ..claim("mail") },
            Claim { queues: queue(1_001), ..claim("mail") },
            Claim { tasks_max: 0, ..claim("mail") },
            Claim { tasks_max: 1_001, ..claim("mail") },
            Claim { lease_ms: 999, ..claim("mail") },
            Claim { lease_ms: LEASE_MS_MAX + 1, ..claim("mail") },
            Claim { worker: &worker, ..claim("mail") },
            Claim { types: vec!["t"; CLAIM_TYPES_MAX + 1], ..claim("mail") },
            Claim { types: vec![&worker], ..claim("mail") },
        ];
        for claim in bad {
            let rejection = yard.send(Command::Claim(claim.clone())).unwrap_err();
            assert_eq!(rejection.code(), "invalid_argument", "{claim:?}");
        }
    }

    #[test]
    fn a_claim_carries_its_terms() {
        let mut yard = Yard::new();
        yard.set("mail", QueueSettings { timeout_ms: Some(70), ..QueueSettings::default() });
        yard.enqueue("mail");
        yard.enqueue_task("mail", NewTask { timeout_ms: Some(7), ..new_task() }).unwrap();
        let taken = yard.claim("mail", 2);
        let timeouts: Vec<_> = taken.iter().map(|task| task.timeout_ms).collect();
        assert_eq!(timeouts, [Some(70), Some(7)], "the queue's, or the task's own");
        assert_eq!(taken[0].attempt, 1);
        assert_eq!(taken[0].lease_expires_at, Timestamp(START + 30_000));
        assert!(taken[1].token > taken[0].token);
    }

    #[test]
    fn the_lease_of_a_task_overrides_the_lease_of_its_claim() {
        let mut yard = Yard::new();
        let task = NewTask { lease_ms: Some(5_000), ..new_task() };
        let id = yard.enqueue_task("mail", task).unwrap().id;
        let held = yard.claim_one("mail");
        assert_eq!(held.lease_expires_at, Timestamp(START + 5_000));
        yard.pass_ms(4_000);
        yard.extend(&held).unwrap();
        let claims = vec![(held.id, held.token)];
        let renewed = yard.send(Command::Renew(Renew { claims }));
        let (lease_expires_at, cancel_requested) = (Timestamp(START + 9_000), false);
        let lease_ms = 5_000;
        let expected = Renewal::Held { lease_expires_at, lease_ms, cancel_requested };
        assert_eq!(renewed, Ok(Outcome::Renewed(vec![expected])));
        let loaded = Machine::load(yard.machine.identity(), yard.machine.records()).unwrap();
        yard.machine = loaded;
        yard.wait_ms(4_999);
        assert_eq!(yard.state(id), TaskStateName::Claimed);
        yard.wait_ms(1);
        assert_eq!(yard.state(id), TaskStateName::Ready);
    }
}
