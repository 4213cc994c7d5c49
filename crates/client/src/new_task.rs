//! NewTask: a task with its options, before it is enqueued.
//!
//! A payload that cannot be encoded is an error only when the task is sent, so that the methods can
//! be chained.

use crate::{Error, RetryPolicy, Task, Timestamp, Unique, timestamp::millis};
use bytes::Bytes;
use serde::Serialize;
use std::time::Duration;
use taskyard_proto::v1;

/// A task before it is enqueued.
///
/// The queue and the broker decide options that are not set: priority 5, at once, the default retry
/// policy, no timeout, no expiry.
///
/// ```
/// use std::time::Duration;
/// use taskyard::NewTask;
///
/// let task = NewTask::new("send_mail", &"ada@example.com")
///     .queue("mail")
///     .priority(9)
///     .delay(Duration::from_secs(60));
/// # let _ = task;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a task does nothing until it is enqueued"]
pub struct NewTask {
    wire: v1::NewTask,
    /// Why the task cannot be sent; the first problem found.
    problem: Option<Error>,
}

impl NewTask {
    /// A task of a type that is known only by name. The payload is encoded as JSON.
    pub fn new(kind: impl Into<String>, payload: &impl Serialize) -> NewTask {
        let kind = kind.into();
        match serde_json::to_vec(payload) {
            Ok(payload) => NewTask::raw(kind, payload),
            Err(error) => {
                let problem = format!("the payload of {kind} cannot be encoded as JSON: {error}");
                NewTask { problem: Some(Error::Invalid(problem)), ..NewTask::raw(kind, "") }
            }
        }
    }

    /// A task with these bytes as its payload: JSON, unless `content_type` names another type.
    pub fn raw(kind: impl Into<String>, payload: impl Into<Bytes>) -> NewTask {
        let wire =
            v1::NewTask { r#type: kind.into(), payload: payload.into(), ..v1::NewTask::default() };
        NewTask { wire, problem: None }
    }

    /// A task of a declared type, with the options of that type.
    pub fn of<T: Task>(task: &T) -> NewTask {
        task.configure(NewTask::new(T::NAME, task).queue(T::QUEUE))
    }

    pub(crate) fn into_wire(self) -> Result<v1::NewTask, Error> {
        match self.problem {
            Some(problem) => Err(problem),
            None => Ok(self.wire),
        }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut v1::NewTask)) -> NewTask {
        self.edit(change);
        self
    }

    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut v1::NewTask)) {
        change(&mut self.wire);
    }

    pub(crate) fn kind(&self) -> &str {
        &self.wire.r#type
    }
}

impl<T: Task> From<T> for NewTask {
    fn from(task: T) -> NewTask {
        NewTask::of(&task)
    }
}

/// Defines the options of a task once, for `NewTask` and for the builders that contain one.
macro_rules! task_options {
    ($builder:ty, |$self:ident, $change:ident| $apply:expr) => {
        /// Sets the queue; `default` by default.
        pub fn queue(self, queue: impl Into<String>) -> $builder {
            let queue = queue.into();
            self.change(|task| task.queue = queue)
        }

        /// Sets the priority, 0 to 9, 9 first; 5 by default. Tasks of one priority run in order of
        /// arrival.
        pub fn priority(self, priority: u8) -> $builder {
            self.change(|task| task.priority = Some(priority.into()))
        }

        /// Runs the task after this long at the earliest, by the broker's clock.
        pub fn delay(self, delay: Duration) -> $builder {
            self.change(|task| {
                task.delay_ms = Some(millis(delay));
                task.run_at = None;
            })
        }

        /// Runs the task at this moment at the earliest.
        pub fn at(self, run_at: impl Into<Timestamp>) -> $builder {
            let run_at = run_at.into().as_millis();
            self.change(|task| {
                task.run_at = Some(run_at);
                task.delay_ms = None;
            })
        }

        /// Expires the task if it has not started by this moment. Never by default.
        pub fn expires_at(self, expires_at: impl Into<Timestamp>) -> $builder {
            let expires_at = expires_at.into().as_millis();
            self.change(|task| task.expires_at = Some(expires_at))
        }

        /// Sets your own name for this enqueue. Within the queue's dedup window (24 h by default),
        /// the same name returns the task that it made first.
        pub fn request_id(self, request_id: impl Into<String>) -> $builder {
            let request_id = request_id.into();
            self.change(|task| task.request_id = Some(request_id))
        }

        /// Sets a key that one task of the queue has at a time.
        pub fn unique(self, unique: Unique) -> $builder {
            self.change(|task| task.unique = Some(unique.into()))
        }

        /// Sets the retry policy.
        pub fn retry(self, policy: RetryPolicy) -> $builder {
            self.change(|task| task.retry = Some(policy.into()))
        }

        /// Sets the longest run time of one attempt. No limit by default, because the broker
        /// watches a worker's beats and not the clock.
        pub fn timeout(self, timeout: Duration) -> $builder {
            self.change(|task| task.timeout_ms = Some(millis(timeout)))
        }

        /// Sets how long the task can be looked up after it has ended.
        pub fn retention(self, retention: Duration) -> $builder {
            self.change(|task| task.retention_ms = Some(millis(retention)))
        }

        /// Adds a word by which the task can be found. May be called several times.
        pub fn tag(self, tag: impl Into<String>) -> $builder {
            let tag = tag.into();
            self.change(|task| task.tags.push(tag))
        }

        /// Sets the customer, or another key, that the task is for. The keys of a queue take turns,
        /// and have limits of their own.
        pub fn fairness_key(self, key: impl Into<String>) -> $builder {
            let key = key.into();
            self.change(|task| task.fairness_key = Some(key))
        }

        /// Adds a header, such as a trace id, which the worker receives with the task.
        pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> $builder {
            let (name, value) = (name.into(), value.into());
            self.change(|task| {
                task.headers.insert(name, value);
            })
        }

        /// Sets the media type of the payload; `application/json` by default.
        pub fn content_type(self, content_type: impl Into<String>) -> $builder {
            let content_type = content_type.into();
            self.change(|task| task.content_type = content_type)
        }

        fn change($self, $change: impl FnOnce(&mut v1::NewTask)) -> $builder {
            $apply
        }
    };
}
pub(crate) use task_options;

impl NewTask {
    task_options!(NewTask, |self, change| self.with(change));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn options_end_up_on_the_wire() {
        let task = NewTask::new("send_mail", &7)
            .queue("mail")
            .priority(9)
            .delay(Duration::from_millis(1_500))
            .expires_at(Timestamp::from_millis(10))
            .request_id("r")
            .unique(Unique::key("k"))
            .retry(RetryPolicy::never())
            .timeout(Duration::from_secs(2))
            .retention(Duration::from_secs(3))
            .tag("a")
            .tag("b")
            .fairness_key("acme")
            .header("trace", "x");
        let wire = task.into_wire().unwrap();
        assert_eq!((wire.queue.as_str(), wire.r#type.as_str()), ("mail", "send_mail"));
        assert_eq!(wire.payload, "7");
        assert_eq!((wire.priority, wire.delay_ms, wire.run_at), (Some(9), Some(1_500), None));
        assert_eq!((wire.expires_at, wire.request_id.as_deref()), (Some(10), Some("r")));
        assert_eq!(wire.unique.unwrap().key.as_deref(), Some("k"));
        assert_eq!(wire.retry.unwrap().max_attempts, Some(1));
        assert_eq!((wire.timeout_ms, wire.retention_ms), (Some(2_000), Some(3_000)));
        assert_eq!(wire.tags, ["a", "b"]);
        assert_eq!(wire.fairness_key.as_deref(), Some("acme"));
        assert_eq!(wire.headers["trace"], "x");
    }

    #[test]
    fn the_last_of_delay_and_moment_counts() {
        let at = Timestamp::from_millis(5);
        let wire = NewTask::new("a", &()).delay(Duration::from_secs(1)).at(at).into_wire().unwrap();
        assert_eq!((wire.delay_ms, wire.run_at), (None, Some(5)));
    }

    #[test]
    fn a_payload_that_is_no_json_is_reported_when_sent() {
        let keys_are_no_text = BTreeMap::from([((1, 2), 3)]);
        let error = NewTask::new("a", &keys_are_no_text).queue("q").into_wire().unwrap_err();
        assert_eq!(error.code(), "invalid_argument");
        assert!(error.to_string().contains("payload of a"), "{error}");
    }
}
