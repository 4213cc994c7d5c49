//! Claim: which tasks a worker gets, in which order, and under which terms.
//!
//! Queues come in strict order or are drawn by weight, one draw per task; in a queue the highest
//! priority comes first, and the oldest in it.

use crate::draw::Draw;
use crate::enqueue::at_most_bytes;
use crate::life::{ClaimState, Ending, State};
use crate::limits::*;
use crate::rejection::at_most;
use crate::slab::Slot;
use crate::transition::Place;
use crate::turn::Turn;
use crate::{
    Claim, ClaimQueue, ClaimToken, Claimable, ClaimedTask, EventKind, Machine, Outcome, Rejection,
    Timestamp,
};

impl Turn<'_> {
    pub(crate) fn claim(&mut self, claim: &Claim<'_>) -> Result<Outcome, Rejection> {
        claim.check()?;
        if let Some(answer) = self.replayed(claim) {
            return Ok(Outcome::Claimed(answer));
        }
        let answer = match claim.weighted_seed {
            None => self.claim_strict(claim),
            Some(seed) => self.claim_weighted(claim, seed),
        };
        self.remember_claim(claim, &answer);
        Ok(Outcome::Claimed(answer))
    }

    fn claim_strict(&mut self, claim: &Claim<'_>) -> Vec<ClaimedTask> {
        let mut taken = Vec::new();
        for queue in &claim.queues {
            while taken.len() < claim.tasks_max as usize {
                let Some(slot) = self.next_runnable(queue.name) else { break };
                taken.push(self.take(slot, claim));
            }
        }
        taken
    }

    fn claim_weighted(&mut self, claim: &Claim<'_>, seed: u64) -> Vec<ClaimedTask> {
        let mut taken = Vec::new();
        let mut draw = Draw::new(seed);
        let mut open: Vec<&ClaimQueue<'_>> = claim.queues.iter().collect();
        while taken.len() < claim.tasks_max as usize && !open.is_empty() {
            let position = draw_by_weight(&open, &mut draw);
            match self.next_runnable(open[position].name) {
                Some(slot) => taken.push(self.take(slot, claim)),
                // An empty queue leaves the draw, and the rest keep their shares.
                None => drop(open.remove(position)),
            }
        }
        taken
    }

    /// The task to claim next in a queue. Those past their `expires_at` end on the way, up to the
    /// entry's bound; `ExpireDue` ends the rest.
    fn next_runnable(&mut self, queue: &str) -> Option<Slot> {
        let number = self.shard.queues.find(queue)?;
        loop {
            let queue = self.shard.queues.get(number);
            let slot = queue.first_ready().filter(|_| !queue.paused)?;
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
        let token = ClaimToken(self.shard.counters.next_token);
        self.shard.counters.next_token += 1;
        let worker = self.shard.names.intern(claim.worker);
        let timeout_ms = self.shard.timeout_ms(slot);
        let mut state = ClaimState {
            token,
            worker,
            session: claim.session,
            claimed_at: self.now,
            lease_ms: claim.lease_ms,
            lease_expires_at: self.now.plus_ms(claim.lease_ms),
            timeout_at: timeout_ms.map(|ms| self.now.plus_ms(ms.saturating_add(TIMEOUT_GRACE_MS))),
            ends_at: self.now,
            ready_since: since,
            engaged: false,
            cancel_requested: false,
        };
        state.set_end(self.shard.counters.lease_floor);
        self.shard.edit(slot, |task| task.attempt += 1);
        self.transition(slot, State::Claimed(Box::new(state)), Place::Back);
        let name = self.shard.names.get(worker).clone();
        self.emit_task(slot, |task| EventKind::TaskClaimed(task, name));
        self.shard.claimed_task(slot)
    }
}

impl ClaimState {
    /// Sets when the claim ends by itself.
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

/// The position of a queue, each as likely as its share of the weights.
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
    /// Whether a claim would get something at `now`. Empty claims never enter the log.
    pub fn claimable(&self, claim: &Claim<'_>, now: Timestamp) -> Claimable {
        let replays = claim.session.and_then(|session| self.replays.get(session));
        let repeated = |sequence| replays.is_some_and(|replays| replays.find(sequence).is_some());
        if claim.claim_sequence.is_some_and(repeated) {
            return Claimable::Now(1);
        }
        let found = claim.queues.iter().filter_map(|queue| self.queues.find(queue.name));
        let open: Vec<_> =
            found.map(|number| self.queues.get(number)).filter(|queue| !queue.paused).collect();
        let ready: u64 = open.iter().map(|queue| queue.ready()).sum();
        if ready > 0 {
            return Claimable::Now(ready);
        }
        // The shard's first deadline comes no later than that of these queues.
        let timed = open.iter().any(|queue| queue.has_timed());
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
            timeout_ms: self.timeout_ms(slot),
            enqueued_at: task.enqueued_at,
            resume_state: task.extra.as_ref().and_then(|extra| extra.resume_state.clone()),
        }
    }

    /// Longest run time of one attempt: the task's own, or its queue's.
    pub(crate) fn timeout_ms(&self, slot: Slot) -> Option<u64> {
        let task = self.tasks.get(slot);
        let own = task.extra.as_ref().and_then(|extra| extra.timeout_ms);
        own.or(self.queues.get(task.queue).settings.timeout_ms)
    }
}
