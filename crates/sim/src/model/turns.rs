//! Turns: the next task of a queue in the model, and the number that its limits let through.
//!
//! The highest priority comes first, raised by age if the queue's settings say so. Within a
//! priority the waiting keys take turns of `weight` tasks each, and within a key the oldest task
//! comes first. The room of a key is counted from all tasks each time. A claim that names types
//! skips tasks of other types and does not change the turns.

use super::{Model, Queue, State, Task};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use taskyard_machine::limits::PRIORITY_MAX;
use taskyard_machine::{PerKey, QueueSettings, Rate, TaskId, TaskStateName};

/// Billionths of one token.
const TOKEN: u128 = 1_000_000_000;

/// The memory of a queue besides its tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// The waiting keys, one line for each of their priorities.
    lines: Vec<Line>,
    /// The turns of the tasks without a key, by priority. Their place is that of their first task,
    /// but not before the turn that they had while a key waited.
    unkeyed: BTreeMap<u8, Turn>,
    bucket: Bucket,
    pushed_back_until: u64,
    keys: BTreeMap<String, Key>,
}

#[derive(Clone, Debug)]
struct Line {
    key: String,
    priority: u8,
    turn: Turn,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Smaller comes first.
    place: i64,
    /// The number of tasks served in this turn.
    served: u32,
}

#[derive(Clone, Debug, Default)]
struct Key {
    bucket: Bucket,
    pushed_back_until: u64,
}

/// The level and its time; full if no token was taken yet.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Option<(u128, u64)>);

impl Bucket {
    fn level(self, rate: Rate, now: u64) -> u128 {
        let full = u128::from(rate.burst) * TOKEN;
        let Bucket(Some((left, at))) = self else { return full };
        (left + u128::from(now - at) * u128::from(rate.per_second_millionths)).min(full)
    }

    fn tokens(self, rate: Option<Rate>, now: u64) -> u64 {
        rate.map_or(u64::MAX, |rate| (self.level(rate, now) / TOKEN) as u64)
    }

    fn take(&mut self, rate: Rate, now: u64) {
        *self = Bucket(Some((self.level(rate, now) - TOKEN, now)));
    }

    fn give(&mut self, rate: Rate, now: u64) {
        self.0 = Some((self.level(rate, now) + TOKEN, now));
        self.settle(rate, now);
    }

    /// Fixes the level under this rate, so that a later rate does not change it.
    fn settle(&mut self, rate: Rate, now: u64) {
        let level = self.level(rate, now);
        let is_full = level == u128::from(rate.burst) * TOKEN;
        self.0 = (!is_full).then_some((level, now));
    }

    /// When the bucket has one token more than now.
    fn next_token_at(self, rate: Rate, now: u64) -> Option<u64> {
        let level = self.level(rate, now);
        let missing = (level / TOKEN + 1) * TOKEN - level;
        let waits = missing.div_ceil(rate.per_second_millionths.into()) as u64;
        (level < u128::from(rate.burst) * TOKEN).then_some(now + waits)
    }
}

impl Queue {
    fn weight(&self, key: &str) -> u32 {
        self.settings.weights.get(key).copied().unwrap_or(1)
    }

    fn per_key(&self) -> PerKey {
        self.settings.per_key.unwrap_or_default()
    }
}

impl Model {
    fn in_queue<'a, 'b>(&'a self, queue: &'b str) -> impl Iterator<Item = &'a Task> + use<'a, 'b> {
        self.tasks.iter().filter(move |task| task.queue == queue)
    }

    fn ready<'a, 'b>(
        &'a self,
        queue: &'b str,
        key: Option<&'b str>,
    ) -> impl Iterator<Item = &'a Task> + use<'a, 'b> {
        let stands = move |task: &&Task| {
            task.key.as_deref() == key && task.state_name() == TaskStateName::Ready
        };
        self.in_queue(queue).filter(stands)
    }

    /// The oldest ready task of these types of a key, or of those without one, at a priority.
    fn head(&self, queue: &str, key: Option<&str>, priority: u8, types: &[&str]) -> Option<&Task> {
        let fits = |task: &&Task| task.priority == priority && is_of(task, types);
        self.ready(queue, key).filter(fits).min_by_key(|task| task.order)
    }

    /// The number of tasks that a queue's own limits let through now.
    fn queue_room(&self, name: &str) -> u64 {
        let Some(queue) = self.queues.get(name).filter(|queue| !queue.paused) else { return 0 };
        let claimed = self.in_queue(name).filter(|task| task.held().is_some()).count() as u64;
        let slots = queue.settings.concurrency.map_or(u64::MAX, u64::from).saturating_sub(claimed);
        slots.min(queue.turns.bucket.tokens(queue.settings.rate, self.now))
    }

    /// The number of tasks of a key, or without one, that the key's limits let through now.
    fn key_room(&self, name: &str, key: Option<&str>) -> u64 {
        let Some(queue) = self.queues.get(name) else { return 0 };
        let Some(key) = key else {
            return if queue.turns.pushed_back_until > self.now { 0 } else { u64::MAX };
        };
        let known = queue.turns.keys.get(key).cloned().unwrap_or_default();
        if known.pushed_back_until > self.now {
            return 0;
        }
        let PerKey { concurrency, rate } = queue.per_key();
        let mine = |task: &&Task| task.key.as_deref() == Some(key) && task.held().is_some();
        let claimed = self.in_queue(name).filter(mine).count() as u64;
        let slots = concurrency.map_or(u64::MAX, u64::from).saturating_sub(claimed);
        slots.min(known.bucket.tokens(rate, self.now))
    }

    fn keys_of(&self, queue: &str) -> Vec<Option<String>> {
        let mut keys: Vec<_> = self.in_queue(queue).map(|task| task.key.clone()).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// The number of tasks of these types that could be claimed from a queue now.
    pub(super) fn room(&self, queue: &str, types: &[&str]) -> u64 {
        let of_key = |key: Option<String>| {
            let key = key.as_deref();
            let ready = self.ready(queue, key).filter(|task| is_of(task, types));
            (ready.count() as u64).min(self.key_room(queue, key))
        };
        let there: u64 = self.keys_of(queue).into_iter().map(of_key).sum();
        there.min(self.queue_room(queue))
    }

    /// Whether a ready task is past its expiry, so that a claim would end it.
    pub(super) fn has_stale(&self, queue: &str) -> bool {
        self.in_queue(queue).any(|task| {
            task.state_name() == TaskStateName::Ready
                && task.expires_at.is_some_and(|at| at <= self.now)
        })
    }

    /// The task of these types to claim next. Expired tasks that come first end.
    pub(super) fn best_ready(&mut self, queue: &str, types: &[&str]) -> Option<TaskId> {
        loop {
            if self.queue_room(queue) == 0 {
                return None;
            }
            let best = self.first_in_turn(queue, types)?;
            let id = best.id;
            if best.expires_at.is_none_or(|at| at > self.now) {
                return Some(id);
            }
            self.finish(id, TaskStateName::Expired);
        }
    }

    fn first_in_turn(&self, queue: &str, types: &[&str]) -> Option<&Task> {
        let ageing_ms = self.queues.get(queue)?.settings.ageing_ms;
        let fronts = (0..=PRIORITY_MAX).filter_map(|priority| self.front(queue, priority, types));
        fronts.max_by_key(|task| {
            let State::Ready { since } = task.state else { unreachable!("only ready ones stand") };
            match ageing_ms {
                None => (u64::from(task.priority), Reverse(0), Reverse(0)),
                Some(ageing_ms) => {
                    let raised = u64::from(task.priority) + (self.now - since) / ageing_ms;
                    (raised.min(PRIORITY_MAX.into()), Reverse(since), Reverse(task.order))
                }
            }
        })
    }

    /// The first task of these types at a priority.
    fn front(&self, name: &str, priority: u8, types: &[&str]) -> Option<&Task> {
        let queue = self.queues.get(name)?;
        let open = |line: &&Line| {
            line.priority == priority
                && self.key_room(name, Some(&line.key)) > 0
                && self.head(name, Some(&line.key), priority, types).is_some()
        };
        let keyed = queue.turns.lines.iter().filter(open).min_by_key(|line| line.turn.place);
        let unkeyed = self.head(name, None, priority, types);
        let unkeyed = unkeyed.filter(|_| self.key_room(name, None) > 0);
        let oldest = self.head(name, None, priority, &[]);
        match (unkeyed, oldest, keyed) {
            (Some(head), Some(oldest), Some(line))
                if self.unkeyed_place(name, oldest) < line.turn.place =>
            {
                Some(head)
            }
            (_, _, Some(line)) => self.head(name, Some(&line.key), priority, types),
            (unkeyed, _, None) => unkeyed,
        }
    }

    fn unkeyed_place(&self, queue: &str, head: &Task) -> i64 {
        let turn = self.queues[queue].turns.unkeyed.get(&head.priority);
        turn.map_or(head.order, |turn| turn.place.max(head.order))
    }

    /// Counts a claim, before it is made.
    pub(super) fn serve(&mut self, id: TaskId) {
        let Some(task) = self.find(id).cloned() else { return };
        let (now, priority, name) = (self.now, task.priority, task.queue.as_str());
        let alone =
            self.ready(name, task.key.as_deref()).filter(|t| t.priority == priority).count();
        let keys_wait = self.queues[name]
            .turns
            .lines
            .iter()
            .any(|line| line.priority == priority && self.key_room(name, Some(&line.key)) > 0);
        let back = self.next_order(false);
        let queue = self.queues.get_mut(name).expect("a task has a queue");
        if let Some(rate) = queue.settings.rate {
            queue.turns.bucket.take(rate, now);
        }
        let weight = queue.weight(task.key.as_deref().unwrap_or(""));
        let Some(key) = task.key else {
            // No other key waits, so that there are no turns to count.
            if keys_wait {
                let none_yet = Turn { place: i64::MIN, served: 0 };
                queue.turns.unkeyed.entry(priority).or_insert(none_yet).pass(weight, back);
            }
            return;
        };
        if let Some(rate) = queue.per_key().rate {
            queue.turns.keys.entry(key.clone()).or_default().bucket.take(rate, now);
        }
        let line = queue.turns.lines.iter_mut();
        for line in line.filter(|line| line.key == key && line.priority == priority) {
            let place = if alone > 1 { back } else { line.turn.place };
            line.turn.pass(weight, place);
        }
    }

    /// Puts a ready task into its line; a task at the front keeps the turn.
    pub(super) fn join_line(&mut self, id: TaskId, front: bool) {
        let Some(task) = self.find(id).cloned() else { return };
        if task.state_name() != TaskStateName::Ready {
            return;
        }
        let priority = task.priority;
        let turns = &mut self.queues.get_mut(&task.queue).expect("a task has a queue").turns;
        let turn = Turn { place: task.order, served: 0 };
        let Some(key) = task.key else {
            if front {
                turns.unkeyed.remove(&priority);
            }
            return;
        };
        let mut lines = turns.lines.iter_mut();
        match lines.find(|line| line.key == key && line.priority == priority) {
            Some(line) if front => line.turn = turn,
            Some(_) => {}
            None => turns.lines.push(Line { key, priority, turn }),
        }
    }

    /// Drops empty lines and unneeded keys.
    pub(super) fn leave_lines(&mut self) {
        let now = self.now;
        for (name, queue) in &mut self.queues {
            let mine = || self.tasks.iter().filter(|task| task.queue == *name);
            queue.turns.lines.retain(|line| {
                mine().any(|task| {
                    task.priority == line.priority
                        && task.state_name() == TaskStateName::Ready
                        && task.key.as_ref() == Some(&line.key)
                })
            });
            let rate = queue.per_key().rate;
            let is_full = |bucket: Bucket| {
                rate.is_none_or(|rate| bucket.tokens(Some(rate), now) == u64::from(rate.burst))
            };
            queue.turns.keys.retain(|_, key| !is_full(key.bucket) || key.pushed_back_until > now);
            if queue.turns.keys.is_empty() && mine().all(|task| task.key.is_none()) {
                queue.turns.unkeyed.clear();
            }
        }
    }

    /// Returns the tokens of a claim whose attempt does not count.
    pub(super) fn refund(&mut self, id: TaskId) {
        let Some(task) = self.find(id).cloned() else { return };
        let now = self.now;
        let queue = self.queues.get_mut(&task.queue).expect("a task has a queue");
        if let Some(rate) = queue.settings.rate {
            queue.turns.bucket.give(rate, now);
        }
        if let (Some(key), Some(rate)) = (task.key, queue.per_key().rate) {
            queue.turns.keys.entry(key).or_default().bucket.give(rate, now);
        }
    }

    /// Pushes back all tasks of a task's key, or all without one.
    pub(super) fn push_back(&mut self, id: TaskId, until: u64) {
        let Some(task) = self.find(id).cloned() else { return };
        let turns = &mut self.queues.get_mut(&task.queue).expect("a task has a queue").turns;
        let pushed_back_until = match task.key {
            Some(key) => &mut turns.keys.entry(key).or_default().pushed_back_until,
            None => &mut turns.pushed_back_until,
        };
        *pushed_back_until = until.max(*pushed_back_until);
    }

    /// Applies new settings at once. A bucket keeps its level; a queue that was not limited before
    /// starts full.
    pub(super) fn set_limits(&mut self, name: &str, settings: &QueueSettings) {
        let now = self.now;
        let queue = self.queues.entry(name.to_owned()).or_default();
        match (queue.settings.rate, settings.rate) {
            (Some(old), Some(_)) => queue.turns.bucket.settle(old, now),
            _ => queue.turns.bucket = Bucket::default(),
        }
        queue.settings = settings.clone();
        if queue.per_key().rate.is_none() {
            queue.turns.keys.values_mut().for_each(|key| key.bucket = Bucket::default());
        }
        self.leave_lines();
    }

    /// Tasks without a key are held back no longer.
    pub(super) fn lift_hold(&mut self, name: &str) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.turns.pushed_back_until = 0;
        }
    }

    /// Moments after now at which time alone may open a limit.
    pub(super) fn limits_open_at(&self) -> Vec<u64> {
        let mut moments = Vec::new();
        for queue in self.queues.values() {
            let next = |bucket: Bucket, rate: Option<Rate>| {
                rate.and_then(|rate| bucket.next_token_at(rate, self.now))
            };
            moments.push(queue.turns.pushed_back_until);
            moments.extend(next(queue.turns.bucket, queue.settings.rate));
            for key in queue.turns.keys.values() {
                moments.push(key.pushed_back_until);
                moments.extend(next(key.bucket, queue.per_key().rate));
            }
        }
        moments
    }
}

/// Whether a claim of these types may have a task; no types are all types.
fn is_of(task: &Task, types: &[&str]) -> bool {
    types.is_empty() || types.contains(&task.task_type.as_str())
}

impl Turn {
    /// Counts one more served task; when the share is used up, the next place is `place`.
    fn pass(&mut self, weight: u32, place: i64) {
        self.served += 1;
        if self.served >= weight {
            *self = Turn { place, served: 0 };
        }
    }
}
