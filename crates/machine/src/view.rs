//! View: the state as fronts, dashboard and CLI see it. Views take `&self` and change nothing.

use crate::life::{Attempt, State, Task};
use crate::limits::{LOOK_BYTES_MAX, LOOK_TASKS_MAX, PAGE_TASKS_MAX, PRIORITY_MAX};
use crate::queue::Queue;
use crate::retry::RetryPolicy;
use crate::rings::RingLine;
use crate::slab::Slot;
use crate::{
    AttemptOutcome, AttemptView, ClaimToken, ClaimView, Machine, QueueName, QueuePage,
    QueueSettings, QueueView, SessionId, TaskFilter, TaskId, TaskPage, TaskStateName, TaskView,
    Timestamp,
};
use std::ops::Bound;

/// The most lines of keys that a view of a queue reads, because a view blocks the shard loop.
const LINES_LOOKED_AT: usize = 1_000;

impl Machine {
    /// One task with all its details.
    pub fn task(&self, task: TaskId) -> Option<TaskView> {
        self.ids.get(task).map(|slot| self.task_view(slot))
    }

    /// The tasks that match, in id order after `after`. Reads `LOOK_TASKS_MAX` tasks at
    /// most, and ends early after copying `LOOK_BYTES_MAX`.
    pub fn tasks(&self, filter: &TaskFilter<'_>, after: Option<TaskId>, limit: usize) -> TaskPage {
        if filter.state == Some(TaskStateName::Dead) {
            let start = after.map_or(Bound::Unbounded, Bound::Excluded);
            let dead = self.dead.range((start, Bound::Unbounded));
            return self.page(dead.map(|(&id, &slot)| (id, slot)), filter, limit);
        }
        self.page(self.ids.iter_after(after), filter, limit)
    }

    fn page(
        &self,
        candidates: impl Iterator<Item = (TaskId, Slot)>,
        filter: &TaskFilter<'_>,
        limit: usize,
    ) -> TaskPage {
        let limit = limit.clamp(1, PAGE_TASKS_MAX);
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        let mut last = None;
        for (looked_at, (id, slot)) in candidates.enumerate() {
            let is_full = tasks.len() == limit || bytes >= LOOK_BYTES_MAX;
            if looked_at == LOOK_TASKS_MAX || is_full {
                return TaskPage { tasks, next: last };
            }
            if self.matches(self.tasks.get(slot), filter) {
                let view = self.task_view(slot);
                bytes += view.copied_bytes();
                tasks.push(view);
            }
            last = Some(id);
        }
        TaskPage { tasks, next: None }
    }

    /// Whether a task matches all given parts of a filter.
    pub(crate) fn matches(&self, task: &Task, filter: &TaskFilter<'_>) -> bool {
        let in_queue = |name| self.queues.get(task.queue).name.as_str() == name;
        let of_type = |name| &**self.names.get(task.task_type) == name;
        let tagged =
            |tag| task.terms().is_some_and(|terms| terms.tags.iter().any(|own| &**own == tag));
        let failed_with = |text| {
            task.last_error()
                .is_some_and(|error| &*error.error_type == text || error.message.contains(text))
        };
        filter.state.is_none_or(|state| task.state.name() == state)
            && filter.queue.is_none_or(in_queue)
            && filter.task_type.is_none_or(of_type)
            && filter.tag.is_none_or(tagged)
            && filter.error.is_none_or(failed_with)
            && filter.flow.is_none_or(|flow| task.flow_id() == Some(flow))
    }

    /// All queues, by name, as of the last entry, whatever that costs.
    pub fn queues(&self) -> Vec<QueueView> {
        let now = self.now();
        let numbers = self.queues.by_name.values().copied();
        let live = numbers.filter(|&number| !self.queues.get(number).deleted);
        live.map(|number| self.queue_view(number, now).0).collect()
    }

    /// Queues by name after `after`, at `now` by the leader's clock. A page ends early when
    /// `LOOK_TASKS_MAX` queues and lines of keys were looked at.
    pub fn queue_page(&self, after: Option<&QueueName>, limit: usize, now: Timestamp) -> QueuePage {
        let limit = limit.clamp(1, PAGE_TASKS_MAX);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut queues, mut looked_at) = (Vec::new(), 0);
        let mut last: Option<&QueueName> = None;
        for (name, &number) in self.queues.by_name.range::<QueueName, _>((start, Bound::Unbounded))
        {
            if queues.len() == limit || looked_at >= LOOK_TASKS_MAX {
                return QueuePage { queues, next: last.cloned() };
            }
            last = Some(name);
            if self.queues.get(number).deleted {
                looked_at += 1;
                continue;
            }
            let (view, lines) = self.queue_view(number, now);
            queues.push(view);
            looked_at += 1 + lines;
        }
        QueuePage { queues, next: None }
    }

    /// One queue, as of the last entry.
    pub fn queue(&self, queue: &QueueName) -> Option<QueueView> {
        self.queue_at(queue, self.now())
    }

    /// One queue, at `now` by the leader's clock.
    pub fn queue_at(&self, queue: &QueueName, now: Timestamp) -> Option<QueueView> {
        self.queues.find_live(queue.as_str()).map(|number| self.queue_view(number, now).0)
    }

    /// A queue's own settings.
    pub fn queue_settings(&self, queue: &QueueName) -> Option<QueueSettings> {
        let number = self.queues.find_live(queue.as_str())?;
        Some(self.queues.get(number).settings.clone())
    }

    /// Sessions that hold claims here.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.session_claims.keys().copied().collect()
    }

    /// Whether a session holds claims here.
    pub fn session_holds(&self, session: SessionId) -> bool {
        self.session_claims.contains_key(&session)
    }

    /// The claims that a session holds here, oldest first.
    pub(crate) fn claims_of(&self, session: SessionId) -> Vec<(TaskId, ClaimToken)> {
        let held = self.session_claims.get(&session).into_iter().flatten();
        let claim = |(_, &slot): (&u64, &Slot)| {
            let task = self.tasks.get(slot);
            task.claim().map(|claim| (task.id, claim.token))
        };
        held.filter_map(claim).collect()
    }

    /// A queue, and how many lines of keys were looked at for it.
    fn queue_view(&self, number: Slot, now: Timestamp) -> (QueueView, usize) {
        let queue = self.queues.get(number);
        let (oldest, lines) = self.oldest_ready_at(queue);
        let view = QueueView {
            name: queue.name.clone(),
            paused: queue.paused,
            counts: queue.counts(),
            oldest_ready_for_ms: oldest.map(|at| now.ms_since(at)),
        };
        (view, lines)
    }

    /// When the oldest ready task became ready. The first task of a lane or line is its oldest.
    fn oldest_ready_at(&self, queue: &Queue) -> (Option<Timestamp>, usize) {
        let lanes = (0..=PRIORITY_MAX).filter_map(|priority| queue.strands(priority).first());
        let lines = queue.rings.iter().flat_map(|rings| rings.lines());
        let head = |(priority, line): (u8, RingLine)| {
            self.keys.get(line.key).line_of(priority, line.task_type).map(|line| line.tasks.head)
        };
        let heads: Vec<Slot> = lines.take(LINES_LOOKED_AT).filter_map(head).collect();
        let lines = heads.len();
        let since = |head| match self.tasks.get(head).state {
            State::Ready { since } => Some(since),
            _ => None,
        };
        (lanes.chain(heads).filter_map(since).min(), lines)
    }

    pub(crate) fn task_view(&self, slot: Slot) -> TaskView {
        let task = self.tasks.get(slot);
        let queue = self.queues.get(task.queue);
        let (terms, left) = (task.terms(), task.left());
        let mut attempts: Vec<AttemptView> = task.attempts().map(attempt_view).collect();
        attempts.reverse();
        TaskView {
            id: task.id,
            queue: queue.name.clone(),
            task_type: self.names.get(task.task_type).clone(),
            state: task.state.name(),
            priority: task.priority,
            attempt: task.attempt,
            max_attempts: self.max_attempts(slot),
            losses: task.losses.into(),
            enqueued_at: task.enqueued_at,
            run_at: match task.state {
                State::Scheduled { run_at } => Some(run_at),
                _ => None,
            },
            expires_at: task.expires_at(),
            finished_at: task.finished_at(),
            timeout_ms: self.timeout_ms(slot),
            claim: self.claim_view(task),
            progress: left
                .and_then(|left| left.progress.as_ref())
                .map(|(percent, message)| (*percent, message.to_string())),
            resume_state: left.and_then(|left| left.resume_state.as_deref()).map(<[u8]>::to_vec),
            result: left.and_then(|left| left.result.as_deref()).map(<[u8]>::to_vec),
            death: left.and_then(|left| left.death),
            tags: terms
                .map_or(Vec::new(), |terms| terms.tags.iter().map(|tag| tag.to_string()).collect()),
            fairness_key: task.key().map(|key| self.keys.get(key).text.to_string()),
            flow: task.flow_member(),
            attempts,
            unique: self.unique_view(task),
            body_bytes: task.body_bytes,
        }
    }

    /// The number of the last possible attempt: the attempts so far, plus the failures that the
    /// policy still allows. A retry by hand resets the failures. A lost attempt is not a failure.
    fn max_attempts(&self, slot: Slot) -> u32 {
        let task = self.tasks.get(slot);
        let own = task.terms().and_then(|terms| terms.retry.as_deref());
        let policy = own.or(self.queues.get(task.queue).settings.retry.as_ref());
        let allowed = policy.map_or(RetryPolicy::default().max_attempts, |own| own.max_attempts);
        let left = allowed.saturating_sub(task.failures.into());
        // An attempt that runs, or ended without a failure, is part of both numbers.
        let ended = || task.last_attempt.as_ref().map(|last| last.outcome);
        let counted = task.claim().is_some()
            || task.finished_at().is_some()
                && matches!(ended(), Some(AttemptOutcome::Succeeded | AttemptOutcome::Cancelled));
        task.attempt + left.saturating_sub(counted.into())
    }

    fn claim_view(&self, task: &Task) -> Option<ClaimView> {
        task.claim().map(|claim| ClaimView {
            token: claim.token,
            worker: self.names.get(claim.worker).clone(),
            session: claim.session,
            claimed_at: claim.claimed_at,
            lease_expires_at: claim
                .lease_expires_at
                .plus_ms(self.counters.put_off_ms - claim.put_off_ms),
            cancel_requested: claim.cancel_requested,
        })
    }
}

impl TaskView {
    /// Bytes of its parts that may be large.
    pub(crate) fn copied_bytes(&self) -> usize {
        let kept = [&self.result, &self.resume_state];
        let kept: usize = kept.into_iter().flatten().map(Vec::len).sum();
        let errors = self.attempts.iter().filter_map(|attempt| attempt.error.as_ref());
        kept + errors.flatten().map(String::len).sum::<usize>()
    }
}

fn attempt_view(attempt: &Attempt) -> AttemptView {
    AttemptView {
        attempt: attempt.attempt,
        worker: attempt.worker.clone(),
        claimed_at: attempt.claimed_at,
        ended_at: attempt.ended_at,
        outcome: attempt.outcome,
        error: attempt.error.as_ref().map(|error| {
            [&error.error_type, &error.message, &error.backtrace].map(|text| text.to_string())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RESULT_BYTES_MAX;
    use crate::testing::{START, Yard, new_task, tried};
    use crate::{Ack, Command, NewTask, NewestSpan, TaskFilter};

    fn listed(page: &TaskPage) -> Vec<TaskId> {
        page.tasks.iter().map(|task| task.id).collect()
    }

    #[test]
    fn lists_have_pages_by_id_and_an_end() {
        let mut yard = Yard::new();
        let ids: Vec<TaskId> = (0..5).map(|_| yard.enqueue("mail")).collect();
        let all = TaskFilter::default();
        let first = yard.machine.tasks(&all, None, 2);
        assert_eq!((listed(&first), first.next), (ids[..2].to_vec(), Some(ids[1])));
        let second = yard.machine.tasks(&all, first.next, 2);
        let third = yard.machine.tasks(&all, second.next, 2);
        assert_eq!((listed(&third), third.next), (ids[4..].to_vec(), None));
        let exact = yard.machine.tasks(&all, None, 5);
        assert_eq!((exact.tasks.len(), exact.next), (5, None));
    }

    #[test]
    fn every_part_of_a_filter_must_match() {
        let mut yard = Yard::new();
        yard.bury_unchecked("mail");
        let tagged = NewTask { tags: vec!["vip"], ..new_task() };
        let tagged = yard.enqueue_task("mail", tagged).unwrap().id;
        let other = NewTask { task_type: "resize", ..new_task() };
        let other = yard.enqueue_task("video", other).unwrap().id;
        let none = TaskFilter::default();
        for (filter, expected) in [
            (TaskFilter { tag: Some("vip"), ..none.clone() }, vec![tagged]),
            (TaskFilter { task_type: Some("resize"), ..none.clone() }, vec![other]),
            (TaskFilter { queue: Some("video"), ..none.clone() }, vec![other]),
            (TaskFilter { queue: Some("video"), tag: Some("vip"), ..none.clone() }, vec![]),
            (TaskFilter { state: Some(TaskStateName::Ready), ..none.clone() }, vec![tagged, other]),
        ] {
            let page = yard.machine.tasks(&filter, None, 10);
            assert_eq!(listed(&page), expected, "{filter:?}");
        }
        let dead = TaskFilter { state: Some(TaskStateName::Dead), error: Some("io"), ..none };
        assert_eq!(yard.machine.tasks(&dead, None, 10).tasks.len(), 1);
    }

    #[test]
    fn a_long_scan_returns_a_cursor() {
        let mut yard = Yard::new();
        for _ in 0..LOOK_TASKS_MAX + 1 {
            yard.enqueue_unchecked("mail", new_task());
        }
        let nothing = TaskFilter { queue: Some("video"), ..TaskFilter::default() };
        let first = yard.machine.tasks(&nothing, None, 10);
        assert!(first.tasks.is_empty() && first.next.is_some());
        assert_eq!(yard.machine.tasks(&nothing, first.next, 10).next, None);
    }

    /// What one look at tasks costs is bounded by their results too.
    #[test]
    fn a_page_of_large_results_is_short_and_goes_on() {
        let mut yard = Yard::new();
        let result = vec![b'7'; RESULT_BYTES_MAX];
        let large = LOOK_BYTES_MAX.div_ceil(RESULT_BYTES_MAX);
        let ids: Vec<TaskId> = (0..2 * large + 1).map(|_| yard.enqueue("mail")).collect();
        for _ in &ids {
            let held = yard.claim_one("mail");
            let (task, token) = (held.id, held.token);
            let ack = Ack { task, token, result: Some(&result), follow_ups: vec![] };
            yard.send(Command::Ack(ack)).unwrap();
        }
        let all = TaskFilter::default();
        let (mut seen, mut after) = (Vec::new(), None);
        for _ in 0..3 {
            let page = yard.machine.tasks(&all, after, 100);
            assert!((1..=large).contains(&page.tasks.len()));
            seen.extend(listed(&page));
            after = page.next;
        }
        assert_eq!((seen, after), (ids, None));
        let span = NewestSpan { before: None, since: None, limit: 100, scan: 100 };
        let newest = yard.machine.newest(&all, &span);
        assert_eq!((newest.tasks.len(), newest.next.is_some()), (large, true));
    }

    fn named(name: &str) -> QueueName {
        QueueName::parse(name).unwrap()
    }

    fn names(page: &QueuePage) -> Vec<&str> {
        page.queues.iter().map(|queue| queue.name.as_str()).collect()
    }

    #[test]
    fn queues_page_by_name_whatever_comes_between() {
        let mut yard = Yard::new();
        for name in ["d", "b", "c"] {
            yard.enqueue(name);
        }
        let first = yard.machine.queue_page(None, 2, yard.now());
        assert_eq!((names(&first), &first.next), (vec!["b", "c"], &Some(named("c"))));
        yard.enqueue("a");
        yard.enqueue("cc");
        let second = yard.machine.queue_page(first.next.as_ref(), 2, yard.now());
        assert_eq!((names(&second), &second.next), (vec!["cc", "d"], &None));
        let between = yard.machine.queue_page(Some(&named("bb")), 1, yard.now());
        assert_eq!(names(&between), ["c"], "the name need not be one of a queue");
        assert!(yard.machine.queue_page(Some(&named("d")), 2, yard.now()).queues.is_empty());
        assert_eq!(names(&yard.machine.queue_page(None, 0, yard.now())), ["a"], "never stuck");
    }

    /// What one look at queues costs is bounded by the lines of their keys too.
    #[test]
    fn a_page_of_queues_with_many_keys_is_short_and_goes_on() {
        let mut yard = Yard::new();
        let keys: Vec<String> = (0..LINES_LOOKED_AT + 5).map(|key| format!("key-{key}")).collect();
        let queues: Vec<String> = (0..5).map(|queue| format!("q{queue}")).collect();
        for queue in &queues {
            for key in &keys {
                let task = NewTask { fairness_key: Some(key), ..new_task() };
                yard.enqueue_unchecked(queue, task);
            }
        }
        let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = yard.machine.queue_page(after.as_ref(), 1_000, yard.now());
            assert!(page.queues.len() <= LOOK_TASKS_MAX / LINES_LOOKED_AT, "{:?}", names(&page));
            seen.extend(page.queues.iter().map(|queue| queue.name.as_str().to_owned()));
            pages += 1;
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!((seen, pages), (queues, 3));
        let all = yard.machine.queues();
        assert!(all.iter().all(|queue| queue.counts.ready == keys.len() as u64));
    }

    #[test]
    fn a_view_shows_claim_and_history_oldest_first() {
        let mut yard = Yard::new();
        let id = yard.enqueue_task("mail", tried(3)).unwrap().id;
        for _ in 0..2 {
            let held = yard.claim_one("mail");
            yard.fail(&held).unwrap();
        }
        let held = yard.claim_one("mail");
        let task = yard.task(id);
        assert_eq!((task.attempt, task.max_attempts), (3, 3));
        let attempts: Vec<u32> = task.attempts.iter().map(|attempt| attempt.attempt).collect();
        assert_eq!(attempts, [1, 2]);
        let claim = task.claim.unwrap();
        assert_eq!((claim.token, &*claim.worker), (held.token, "ann"));
    }

    #[test]
    fn max_attempts_is_the_last_possible_attempt() {
        let mut yard = Yard::new();
        let id = yard.enqueue_task("mail", tried(2)).unwrap().id;
        let counted = |yard: &Yard| (yard.task(id).attempt, yard.task(id).max_attempts);
        assert_eq!(counted(&yard), (0, 2));
        for attempt in 1..=2 {
            let held = yard.claim_one("mail");
            assert_eq!(counted(&yard), (attempt, 2), "running");
            yard.fail(&held).unwrap();
            assert_eq!(counted(&yard), (attempt, 2), "failed");
        }
        yard.retry(id).unwrap();
        assert_eq!(counted(&yard), (2, 4), "a retry by hand allows two more");
        let held = yard.claim_one("mail");
        assert_eq!(counted(&yard), (3, 4));
        yard.release(&held).unwrap();
        assert_eq!(counted(&yard), (2, 4), "released");
        yard.claim_one("mail");
        yard.wait_ms(30_000);
        assert_eq!(counted(&yard), (3, 5), "a lapse is not a failure");
        let held = yard.claim_one("mail");
        yard.ack(&held).unwrap();
        assert_eq!(counted(&yard), (4, 5));
    }

    #[test]
    fn the_oldest_ready_task_is_that_of_all_priorities() {
        let mut yard = Yard::new();
        let low = NewTask { priority: Some(0), ..new_task() };
        yard.enqueue_task("mail", low).unwrap();
        yard.pass_ms(10);
        yard.enqueue("mail");
        let name = QueueName::parse("mail").unwrap();
        let oldest = yard.machine.queue(&name).unwrap().oldest_ready_for_ms;
        assert_eq!(oldest, Some(yard.now().ms_since(Timestamp(START))));
        let held = yard.claim("mail", 2);
        assert_eq!(yard.machine.queue(&name).unwrap().oldest_ready_for_ms, None);
        yard.pass_ms(10);
        yard.release(&held[1]).unwrap();
        let oldest = yard.machine.queue(&name).unwrap().oldest_ready_for_ms;
        let since = yard.now().ms_since(Timestamp(START));
        assert_eq!(oldest, Some(since), "a released task is as old as before");
    }
}
