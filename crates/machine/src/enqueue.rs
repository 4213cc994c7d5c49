//! Enqueue: checks a new task and adds it to the state.

use crate::claim::check_lease;
use crate::flow::Membership;
use crate::life::{Extra, KeySlot, State, Task, Terms};
use crate::limits::*;
use crate::rejection::at_most;
use crate::slab::{NO_SLOT, Slot};
use crate::turn::Turn;
use crate::unique::Verdict;
use crate::watch::Watch;
use crate::{
    Body, Enqueue, Enqueued, EventKind, Machine, NewTask, Outcome, QueueName, Rejection, ShardId,
    TaskId, Timestamp, When,
};
use xxhash_rust::xxh3::xxh3_64;

/// The priority of a task that names none.
pub(crate) const PRIORITY_DEFAULT: u8 = 5;

impl Turn<'_> {
    pub(crate) fn enqueue(&mut self, enqueue: &Enqueue<'_>) -> Result<Outcome, Rejection> {
        self.enqueue_one(enqueue).map(Outcome::Enqueued)
    }

    /// Adds one task, or finds the task that its request_id made before. The search comes first,
    /// because a repeated request must get its answer even when the queue is full or the task's
    /// time has passed.
    pub(crate) fn enqueue_one(&mut self, enqueue: &Enqueue<'_>) -> Result<Enqueued, Rejection> {
        let Enqueue { queue, task } = enqueue;
        if let Some(id) = self.known_request(queue, task.request_id) {
            return Ok(Enqueued { id, duplicate: true });
        }
        self.check_place(queue, task)?;
        task.check(self.now)?;
        let verdict = self.judge(queue, task)?;
        if verdict == Verdict::New {
            self.check_room(queue, 1)?;
        }
        let queue = self.queue_or_new(queue)?;
        Ok(self.insert_judged(queue, task, verdict))
    }

    /// Adds a checked task under this shard's next id, unless its request_id is known or another
    /// task has its unique key.
    pub(crate) fn insert_new(&mut self, queue: Slot, task: &NewTask<'_>) -> Enqueued {
        let name = self.shard.queues.get(queue).name.clone();
        if let Some(id) = self.known_request(name.as_str(), task.request_id) {
            return Enqueued { id, duplicate: true };
        }
        let verdict = self.judge_accepted(name.as_str(), task);
        self.insert_judged(queue, task, verdict)
    }

    fn insert_judged(&mut self, queue: Slot, task: &NewTask<'_>, verdict: Verdict) -> Enqueued {
        if let Some(holder) = self.settle_conflict(queue, task, verdict) {
            return holder;
        }
        let id = self.next_id(self.shard.identity.shard);
        self.insert_task(queue, id, task, None);
        Enqueued { id, duplicate: false }
    }

    /// A new id for a task whose home is the shard `home`.
    pub(crate) fn next_id(&mut self, home: ShardId) -> TaskId {
        let sequence = self.shard.counters.next_sequence;
        self.shard.counters.next_sequence += 1;
        let identity = self.shard.identity;
        TaskId { incarnation: identity.incarnation, home, origin: identity.shard, sequence }
    }

    /// Adds a checked task under `id`.
    pub(crate) fn insert_task(
        &mut self,
        queue: Slot,
        id: TaskId,
        new: &NewTask<'_>,
        watch: Option<Watch>,
    ) {
        let state = self.first_state(new);
        self.insert_in(queue, id, new, state, watch, None);
    }

    /// Adds a checked task of a flow under `id`.
    pub(crate) fn insert_member(
        &mut self,
        queue: Slot,
        id: TaskId,
        new: &NewTask<'_>,
        watch: Watch,
        membership: Membership,
    ) {
        let state = match membership.released {
            true => self.first_state(new),
            false => State::Blocked,
        };
        self.insert_in(queue, id, new, state, Some(watch), Some(Box::new(membership)));
    }

    fn first_state(&self, new: &NewTask<'_>) -> State {
        let run_at = new.first_run_at(self.now);
        if run_at > self.now {
            State::Scheduled { run_at }
        } else {
            State::Ready { since: self.now }
        }
    }

    fn insert_in(
        &mut self,
        queue: Slot,
        id: TaskId,
        new: &NewTask<'_>,
        state: State,
        watch: Option<Watch>,
        flow: Option<Box<Membership>>,
    ) {
        let ready = matches!(state, State::Ready { .. });
        let (body_bytes, body_checksum) = self.put_body(id, &new.body);
        let task_type = self.shard.names.intern(new.task_type);
        let key = new.fairness_key.map(|text| KeySlot::new(self.shard.key_or_new(queue, text)));
        let slot = self.add_task(Task {
            id,
            queue,
            task_type,
            previous: NO_SLOT,
            next: NO_SLOT,
            order: 0,
            enqueued_at: self.now,
            state,
            body_bytes,
            body_checksum,
            attempt: 0,
            failures: 0,
            losses: 0,
            priority: new.priority.unwrap_or(PRIORITY_DEFAULT),
            last_attempt: None,
            extra: new.extra(self.now, watch, key, flow),
        });
        self.remember_request(queue, new.request_id, id);
        self.emit_task(slot, EventKind::TaskEnqueued);
        if ready {
            self.emit_task(slot, EventKind::TaskReady);
        }
    }

    /// Writes a body to the store beside the state; returns its length and checksum.
    pub(crate) fn put_body(&mut self, id: TaskId, body: &Body<'_>) -> (u32, u32) {
        self.scratch.clear();
        body.encode_into(&mut self.scratch);
        self.payloads.put(id, &self.scratch);
        body_mark(&self.scratch)
    }

    /// Checks that a queue, which may not exist yet, has room for `count` more tasks.
    pub(crate) fn check_room(&self, queue: &str, count: u64) -> Result<(), Rejection> {
        let Some(number) = self.shard.queues.find(queue) else { return Ok(()) };
        let queue = self.shard.queues.get(number);
        match queue.settings.max_length {
            Some(limit) if queue.waiting() + count > limit => {
                Err(Rejection::QueueFull { queue: queue.name.clone(), limit })
            }
            _ => Ok(()),
        }
    }

    /// The number of a queue; creates the queue if the shard has room for it. A deleted queue is an
    /// ordinary one again.
    pub(crate) fn queue_or_new(&mut self, queue: &str) -> Result<Slot, Rejection> {
        if let Some(number) = self.shard.queues.find(queue) {
            self.shard.undelete(number);
            return Ok(number);
        }
        let name = parse_queue(queue)?;
        if self.shard.queues.by_name.len() >= QUEUES_PER_SHARD_MAX {
            return Err(Rejection::LimitExceeded {
                what: format!(
                    "this shard holds its limit of {QUEUES_PER_SHARD_MAX} queues; \
                     use an existing queue instead of {queue}"
                ),
            });
        }
        Ok(self.shard.queues.add(name))
    }
}

/// Parses a queue's name.
pub(crate) fn parse_queue(queue: &str) -> Result<QueueName, Rejection> {
    QueueName::parse(queue).map_err(|invalid| Rejection::invalid(invalid.to_string()))
}

impl NewTask<'_> {
    /// Checks everything about the task that does not depend on its queue.
    pub(crate) fn check(&self, now: Timestamp) -> Result<(), Rejection> {
        self.check_shape()?;
        self.check_times(now)
    }

    /// Checks what depends neither on the time nor on the state, so that the sender of a batch in
    /// parts can check all tasks before sending the first part.
    pub fn check_shape(&self) -> Result<(), Rejection> {
        if self.task_type.is_empty() {
            return Err(Rejection::invalid("type is empty; give the name of a function"));
        }
        at_most_bytes("type", self.task_type.len(), TYPE_BYTES_MAX)?;
        no_controls("type", self.task_type)?;
        if let Some(priority) = self.priority {
            at_most("priority", priority.into(), PRIORITY_MAX.into())?;
        }
        if let Some(request_id) = self.request_id {
            if request_id.is_empty() {
                return Err(Rejection::invalid("request_id is empty; leave it out or give a text"));
            }
            at_most_bytes("request_id", request_id.len(), REQUEST_ID_BYTES_MAX)?;
            no_controls("request_id", request_id)?;
        }
        self.body.check()?;
        at_most("the number of tags", self.tags.len() as u64, TAGS_MAX as u64)?;
        for tag in &self.tags {
            if tag.is_empty() {
                return Err(Rejection::invalid("a tag is empty; leave it out or give a word"));
            }
            at_most_bytes("a tag", tag.len(), TAG_BYTES_MAX)?;
            no_controls("a tag", tag)?;
        }
        if let Some(key) = self.fairness_key {
            if key.is_empty() {
                return Err(Rejection::invalid(
                    "fairness_key is empty; leave it out or give a text",
                ));
            }
            check_key("fairness_key", key)?;
        }
        if let Some(retry) = &self.retry {
            retry.check()?;
        }
        if let Some(unique) = &self.unique {
            unique.check()?;
        }
        if self.debounce_ms().is_some() && self.run_at != When::Now {
            return Err(Rejection::invalid(
                "unique.debounce_ms and a delay or run_at exclude each other; send one",
            ));
        }
        check_timeout(self.timeout_ms)?;
        if let Some(lease_ms) = self.lease_ms {
            check_lease(lease_ms)?;
        }
        at_most("retention_ms", self.retention_ms.unwrap_or(0), HORIZON_MS_MAX)
    }

    /// Checks that the task can run within the horizon and before it expires.
    pub(crate) fn check_times(&self, now: Timestamp) -> Result<(), Rejection> {
        self.run_at.check("run_at", now)?;
        let Some(expires_at) = self.expires_at else { return Ok(()) };
        When::At(expires_at).check("expires_at", now)?;
        if expires_at <= self.first_run_at(now).max(now) {
            return Err(Rejection::NeverRuns { expires_at });
        }
        Ok(())
    }

    /// The rare parts of a task; most tasks have none.
    fn extra(
        &self,
        now: Timestamp,
        watch: Option<Watch>,
        key: Option<KeySlot>,
        flow: Option<Box<Membership>>,
    ) -> Option<Box<Extra>> {
        let terms = self.terms();
        let unique = self.unique.as_ref().map(|unique| Box::new(unique.hold(now)));
        let plain = terms.is_none() && watch.is_none() && unique.is_none() && key.is_none();
        let watch = watch.map(Box::new);
        (!plain).then(|| Box::new(Extra { terms, left: None, watch, unique, key, flow }))
    }

    fn terms(&self) -> Option<Box<Terms>> {
        let plain = self.expires_at.is_none()
            && self.timeout_ms.is_none()
            && self.lease_ms.is_none()
            && !self.discard_dead
            && self.retention_ms.is_none()
            && self.retry.is_none()
            && self.tags.is_empty();
        (!plain).then(|| {
            Box::new(Terms {
                expires_at: self.expires_at,
                timeout_ms: self.timeout_ms,
                lease_ms: self.lease_ms,
                discard_dead: self.discard_dead,
                retention_ms: self.retention_ms,
                retry: self.retry.clone().map(Box::new),
                tags: self.tags.iter().map(|&tag| tag.into()).collect(),
            })
        })
    }
}

impl Body<'_> {
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        at_most_bytes("payload", self.payload.len(), PAYLOAD_BYTES_CEILING)?;
        at_most_bytes("content_type", self.content_type.len(), CONTENT_TYPE_BYTES_MAX)?;
        at_most("the number of headers", self.headers.len() as u64, HEADERS_MAX as u64)?;
        for (name, _) in &self.headers {
            no_controls("a header's name", name)?;
        }
        let bytes = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        at_most_bytes("headers", bytes, HEADERS_BYTES_MAX)
    }
}

/// Length and checksum of an encoded body: what the state has of it.
fn body_mark(body: &[u8]) -> (u32, u32) {
    (body.len() as u32, xxh3_64(body) as u32)
}

impl Machine {
    /// Whether these bytes are the body of a task, as far as length and checksum say.
    pub fn is_body(&self, task: TaskId, body: &[u8]) -> bool {
        let task = self.ids.get(task).map(|slot| self.tasks.get(slot));
        task.is_some_and(|task| body_mark(body) == (task.body_bytes, task.body_checksum))
    }
}

impl When {
    /// The moment that this value means at `now`.
    pub(crate) fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            When::Now => now,
            When::After { ms } => now.plus_ms(ms),
            When::At(at) => at,
        }
    }

    /// Rejects a moment past the horizon.
    pub(crate) fn check(self, what: &str, now: Timestamp) -> Result<(), Rejection> {
        let at = self.moment(now);
        if at.ms_since(now) <= HORIZON_MS_MAX {
            return Ok(());
        }
        Err(Rejection::invalid(format!(
            "{what} {at} is {} ms ahead; at most {HORIZON_MS_MAX} ms are allowed",
            at.ms_since(now)
        )))
    }
}

pub(crate) fn check_timeout(timeout_ms: Option<u64>) -> Result<(), Rejection> {
    match timeout_ms {
        Some(0) => Err(Rejection::invalid("timeout_ms is 0; leave it out for no timeout")),
        _ => at_most("timeout_ms", timeout_ms.unwrap_or(0), HORIZON_MS_MAX),
    }
}

pub(crate) fn check_key(what: &str, key: &str) -> Result<(), Rejection> {
    at_most_bytes(what, key.len(), FAIRNESS_KEY_BYTES_MAX)?;
    no_controls(what, key)
}

/// Rejects control characters, which would garble logs, tables and terminals.
pub(crate) fn no_controls(what: &str, text: &str) -> Result<(), Rejection> {
    match text.chars().find(|c| c.is_control()) {
        Some(found) => Err(Rejection::invalid(format!(
            "{what} has the control character {found:?}; leave it out"
        ))),
        None => Ok(()),
    }
}

/// Rejects a text or bytes over their bound.
pub(crate) fn at_most_bytes(what: &str, bytes: usize, max: usize) -> Result<(), Rejection> {
    if bytes <= max {
        return Ok(());
    }
    Err(Rejection::invalid(format!("{what} has {bytes} bytes; at most {max} are allowed")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{START, Yard, new_task};
    use crate::{QueueSettings, RetryPolicy, TaskStateName};

    #[test]
    fn a_task_is_ready_at_once_or_scheduled() {
        let mut yard = Yard::new();
        for (run_at, state) in [
            (When::Now, TaskStateName::Ready),
            (When::After { ms: 0 }, TaskStateName::Ready),
            (When::After { ms: 1 }, TaskStateName::Scheduled),
            (When::At(Timestamp(START - 1)), TaskStateName::Ready),
            (When::At(Timestamp(START + 1)), TaskStateName::Scheduled),
            (When::After { ms: HORIZON_MS_MAX }, TaskStateName::Scheduled),
        ] {
            let id = yard.enqueue_task("mail", NewTask { run_at, ..new_task() }).unwrap().id;
            assert_eq!(yard.state(id), state, "{run_at:?}");
        }
        let counts = yard.counts("mail");
        assert_eq!((counts.ready, counts.scheduled, counts.enqueued_total), (3, 3, 6));
    }

    #[test]
    fn the_body_is_kept_beside_the_state() {
        let mut yard = Yard::new();
        let body = Body { content_type: "text/plain", headers: vec![("a", "b")], payload: b"hi" };
        let task = NewTask { body: body.clone(), ..new_task() };
        let id = yard.enqueue_task("mail", task).unwrap().id;
        assert_eq!(yard.body(id), Some(body.clone()));
        assert_eq!(yard.task(id).body_bytes as usize, body.encode().len());
    }

    #[test]
    fn every_bound_is_an_invalid_argument_that_names_it() {
        let long = "x".repeat(300);
        let large = vec![0; PAYLOAD_BYTES_CEILING + 1];
        let many = vec!["t"; TAGS_MAX + 1];
        let body = |body| NewTask { body, ..new_task() };
        let horizon = HORIZON_MS_MAX + 1;
        let cases: Vec<(NewTask<'_>, &str)> = vec![
            (NewTask { task_type: "", ..new_task() }, "type is empty"),
            (NewTask { task_type: &long, ..new_task() }, "type has 300 bytes"),
            (NewTask { task_type: "a\nb", ..new_task() }, "type has the control character '\\n'"),
            (NewTask { tags: vec!["a\u{1b}"], ..new_task() }, "a tag has the control character"),
            (NewTask { priority: Some(12), ..new_task() }, "priority is 12; at most 9"),
            (NewTask { tags: vec!["a", ""], ..new_task() }, "a tag is empty"),
            (NewTask { request_id: Some(""), ..new_task() }, "request_id is empty"),
            (NewTask { request_id: Some("a\0"), ..new_task() }, "request_id has the control"),
            (
                body(Body { headers: vec![("a\r\n", "b")], ..Body::default() }),
                "a header's name has the control",
            ),
            (NewTask { request_id: Some(&long), ..new_task() }, "request_id has 300 bytes"),
            (NewTask { tags: many, ..new_task() }, "number of tags is 17"),
            (NewTask { tags: vec![&long], ..new_task() }, "a tag has 300 bytes"),
            (NewTask { fairness_key: Some(""), ..new_task() }, "fairness_key is empty"),
            (NewTask { fairness_key: Some(&long), ..new_task() }, "fairness_key has 300 bytes"),
            (NewTask { fairness_key: Some("a\0"), ..new_task() }, "fairness_key has the control"),
            (NewTask { lease_ms: Some(999), ..new_task() }, "lease_ms"),
            (NewTask { lease_ms: Some(LEASE_MS_MAX + 1), ..new_task() }, "lease_ms"),
            (NewTask { timeout_ms: Some(0), ..new_task() }, "timeout_ms is 0"),
            (NewTask { retention_ms: Some(horizon), ..new_task() }, "retention_ms is"),
            (NewTask { run_at: When::After { ms: horizon }, ..new_task() }, "ms ahead; at most"),
            (
                // The year 9999.
                NewTask { run_at: When::At(Timestamp(253_402_300_799_000)), ..new_task() },
                "run_at 253402300799000 is 253401300799000 ms ahead; at most 315576000000 ms",
            ),
            (
                NewTask { expires_at: Some(Timestamp(u64::MAX)), ..new_task() },
                "expires_at 18446744073709551615 is",
            ),
            (
                NewTask {
                    retry: Some(RetryPolicy { max_attempts: 0, ..RetryPolicy::default() }),
                    ..new_task()
                },
                "max_attempts is 0",
            ),
            (body(Body { payload: &large, ..Body::default() }), "payload has 8388609 bytes"),
            (body(Body { content_type: &long, ..Body::default() }), "content_type has 300"),
            (body(Body { headers: vec![("a", "b"); 65], ..Body::default() }), "headers is 65"),
        ];
        let mut yard = Yard::new();
        for (task, text) in cases {
            let rejection = yard.enqueue_task("mail", task).unwrap_err();
            assert_eq!(rejection.code(), "invalid_argument");
            assert!(rejection.to_string().contains(text), "{rejection} lacks {text}");
        }
        let rejection = yard.enqueue_task("no spaces", new_task()).unwrap_err();
        assert!(rejection.to_string().contains("' '"), "{rejection}");
        assert_eq!(yard.machine.task_count(), 0);
        assert!(yard.machine.queues().is_empty(), "a rejected task makes no queue");
    }

    #[test]
    fn a_task_that_would_expire_before_it_runs_is_refused() {
        let mut yard = Yard::new();
        for (run_at, expires_at, accepted) in [
            (When::Now, START, false),
            (When::Now, START + 1, true),
            (When::After { ms: 10 }, START + 10, false),
            (When::After { ms: 10 }, START + 11, true),
            (When::At(Timestamp(0)), START, false),
        ] {
            let expires_at = Some(Timestamp(expires_at));
            let task = NewTask { run_at, expires_at, ..new_task() };
            let answer = yard.enqueue_task("mail", task);
            assert_eq!(answer.is_ok(), accepted, "{run_at:?} {expires_at:?}: {answer:?}");
        }
    }

    #[test]
    fn a_full_queue_refuses_new_tasks_until_one_leaves() {
        let mut yard = Yard::new();
        yard.set("mail", QueueSettings { max_length: Some(2), ..QueueSettings::default() });
        yard.enqueue("mail");
        yard.enqueue_task("mail", NewTask { run_at: When::After { ms: 9 }, ..new_task() }).unwrap();
        let full = yard.enqueue_task("mail", new_task()).unwrap_err();
        assert_eq!(full.code(), "queue_full");
        yard.claim_one("mail");
        yard.enqueue("mail");
    }

    #[test]
    fn time_never_goes_back() {
        let mut yard = Yard::new();
        yard.enqueue("mail");
        let entry = crate::Entry {
            rules: crate::RULES_CURRENT,
            now: Timestamp(START - 3_600_000),
            commands: vec![crate::Command::Enqueue(Enqueue { queue: "mail", task: new_task() })],
        };
        yard.machine.apply(&entry, &mut crate::NoPayloads, &mut Vec::new());
        assert_eq!(yard.machine.now(), Timestamp(START));
    }
}
