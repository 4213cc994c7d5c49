//! Fail: the error of an attempt, and the next step for its task.

use crate::{TaskError, Timestamp, timestamp::millis};
use std::{error::Error as StdError, time::Duration};

/// Any error, boxed.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Why an attempt did not succeed, and the next step for its task.
///
/// Any error becomes a `Fail` with `?`, and is then retried by the task's policy. The constructors
/// here choose another step:
///
/// ```
/// use std::time::Duration;
/// use taskyard::{Fail, Snooze};
///
/// async fn fetch(url: String) -> Result<String, Fail> {
///     if url.is_empty() {
///         return Err(Fail::permanent("the address is empty"));
///     }
///     if url.ends_with("/busy") {
///         return Err(Fail::retry_after(Duration::from_secs(90), "the site asked us to wait"));
///     }
///     if url.ends_with("/tomorrow") {
///         return Err(Snooze::after(Duration::from_secs(86_400)).into());
///     }
///     let text = std::fs::read_to_string(url)?;
///     Ok(text)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Fail {
    pub(crate) error: TaskError,
    pub(crate) then: Then,
}

/// The next step for a task whose attempt did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The retry policy decides.
    Policy,
    /// The task becomes a dead letter.
    Never,
    /// Another attempt, at this moment or later.
    RetryAt(Timestamp),
    /// Another attempt, after this long.
    RetryAfter(Duration),
    /// The task is scheduled for later; the attempt does not count.
    Snooze(Snooze),
    /// The task is scheduled for later, and all tasks of its fairness key wait with it.
    PushBackKey(Snooze),
    /// The handler yielded because it was asked to stop.
    Cancelled,
}

impl Then {
    /// The moment of the next attempt, or the delay until it in milliseconds, in the wire's form.
    pub(crate) fn retry_wire(self) -> (Option<u64>, Option<u64>) {
        match self {
            Then::RetryAt(moment) => (Some(moment.as_millis()), None),
            Then::RetryAfter(delay) => (None, Some(millis(delay))),
            Then::Policy
            | Then::Never
            | Then::Snooze(_)
            | Then::PushBackKey(_)
            | Then::Cancelled => (None, None),
        }
    }
}

impl Fail {
    /// A failure that is retried by the task's policy. Errors turn into this with `?`.
    pub fn new(error: impl Into<BoxError>) -> Fail {
        Fail::from(error)
    }

    /// A failure that no retry can repair: the task becomes a dead letter at once.
    pub fn permanent<E: Into<BoxError>>(error: E) -> Fail {
        Fail { then: Then::Never, ..Fail::from(error) }
    }

    /// A failure with the next attempt at this moment, if attempts are left.
    pub fn retry_at<E: Into<BoxError>>(at: impl Into<Timestamp>, error: E) -> Fail {
        Fail { then: Then::RetryAt(at.into()), ..Fail::from(error) }
    }

    /// A failure with the next attempt after this delay, if attempts are left.
    pub fn retry_after<E: Into<BoxError>>(delay: Duration, error: E) -> Fail {
        Fail { then: Then::RetryAfter(delay), ..Fail::from(error) }
    }

    /// Sets the kind of error, by which dead letters are grouped and found. The default is the name
    /// of the error's Rust type.
    pub fn kind(mut self, kind: impl Into<String>) -> Fail {
        self.error.kind = kind.into();
        self
    }

    /// Sets the place of the error.
    pub fn backtrace(mut self, backtrace: impl Into<String>) -> Fail {
        self.error.backtrace = backtrace.into();
        self
    }

    /// The error that the broker will keep with the attempt.
    pub fn error(&self) -> &TaskError {
        &self.error
    }

    /// Whether no retry can repair the failure.
    pub fn is_permanent(&self) -> bool {
        self.then == Then::Never
    }

    /// Whether this is no failure, and the task is only scheduled for later.
    pub fn is_snooze(&self) -> bool {
        matches!(self.then, Then::Snooze(_) | Then::PushBackKey(_))
    }
}

impl<E: Into<BoxError>> From<E> for Fail {
    fn from(error: E) -> Fail {
        let kind = kind_of::<E>();
        let message = with_causes(&*error.into());
        let error = TaskError { kind, message, backtrace: String::new() };
        Fail { error, then: Then::Policy }
    }
}

/// Schedules a task for later without counting the attempt: it was too early, nothing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a snooze does nothing until it is returned as an error"]
pub enum Snooze {
    /// For this long.
    For(Duration),
    /// Until this moment.
    Until(Timestamp),
}

impl Snooze {
    /// Runs the task again after this long.
    pub fn after(delay: Duration) -> Snooze {
        Snooze::For(delay)
    }

    /// Runs the task again at this moment.
    pub fn until(moment: impl Into<Timestamp>) -> Snooze {
        Snooze::Until(moment.into())
    }
}

impl Snooze {
    /// The delay in milliseconds, or the moment, in the wire's form.
    pub(crate) fn into_wire(self) -> (Option<u64>, Option<u64>) {
        match self {
            Snooze::For(delay) => (Some(millis(delay)), None),
            Snooze::Until(moment) => (None, Some(moment.as_millis())),
        }
    }
}

impl From<Snooze> for Fail {
    fn from(snooze: Snooze) -> Fail {
        Fail { error: TaskError::default(), then: Then::Snooze(snooze) }
    }
}

/// Pushes back a whole fairness key: "too many requests, later". The task is scheduled for later as
/// by [`Snooze`], and no other task of its key is handed out before then, for at most 24 h. For a
/// task without a key, this holds for all tasks of its queue without a key.
///
/// ```
/// use std::time::Duration;
/// use taskyard::{Fail, Throttled};
///
/// async fn call(customer: String) -> Result<(), Fail> {
///     if customer == "acme" {
///         return Err(Throttled::after(Duration::from_secs(30)).into());
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it does nothing until it is returned as an error"]
pub struct Throttled(Snooze);

impl Throttled {
    /// For this long.
    pub fn after(delay: Duration) -> Throttled {
        Throttled(Snooze::after(delay))
    }

    /// Until this moment.
    pub fn until(moment: impl Into<Timestamp>) -> Throttled {
        Throttled(Snooze::until(moment))
    }
}

impl From<Throttled> for Fail {
    fn from(Throttled(snooze): Throttled) -> Fail {
        Fail { error: TaskError::default(), then: Then::PushBackKey(snooze) }
    }
}

/// Reports that a handler yielded because of
/// [`TaskContext::cancelled`](crate::TaskContext::cancelled). A cancelled task is then Cancelled; a
/// task whose worker shuts down is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl From<Cancelled> for Fail {
    fn from(_: Cancelled) -> Fail {
        let error = TaskError {
            kind: "cancelled".to_string(),
            message: "the handler yielded because it was asked to".to_string(),
            backtrace: String::new(),
        };
        Fail { error, then: Then::Cancelled }
    }
}

/// The name by which failures are grouped: the error's type, unless that type is a mere container.
fn kind_of<E>() -> String {
    let name = std::any::type_name::<E>();
    let bare =
        ["&", "alloc::string::String", "alloc::borrow::Cow", "alloc::boxed::Box", "anyhow::"];
    if bare.iter().any(|start| name.starts_with(start)) {
        return "error".to_string();
    }
    // A name without type parameters says the same and stays short.
    name.split('<').next().unwrap_or(name).to_string()
}

/// The error's text and that of its causes, each once.
fn with_causes(error: &dyn StdError) -> String {
    let mut message = error.to_string();
    for cause in std::iter::successors(error.source(), |error| (*error).source()) {
        let cause = cause.to_string();
        if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot send mail")]
    struct SendFailed(#[source] io::Error);

    #[test]
    fn any_error_turns_into_a_failure_that_is_retried() {
        fn fails() -> Result<(), Fail> {
            Err(SendFailed(io::Error::other("the server hung up")))?;
            Ok(())
        }
        let fail = fails().unwrap_err();
        assert_eq!(fail.error.kind, "taskyard::fail::tests::SendFailed");
        assert_eq!(fail.error.message, "cannot send mail: the server hung up");
        assert_eq!(fail.then, Then::Policy);
    }

    #[test]
    fn text_is_an_error_of_no_particular_kind() {
        for fail in
            [Fail::from("no"), Fail::from("no".to_string()), Fail::new(BoxError::from("no"))]
        {
            assert_eq!(fail.error.to_string(), "error: no");
        }
        assert_eq!(Fail::permanent("no").kind("quota").error.to_string(), "quota: no");
    }

    #[test]
    fn each_constructor_says_what_happens_next() {
        let (at, delay) = (Timestamp::from_millis(9), Duration::from_secs(1));
        for (fail, then) in [
            (Fail::permanent("x"), Then::Never),
            (Fail::retry_at(at, "x"), Then::RetryAt(at)),
            (Fail::retry_after(delay, "x"), Then::RetryAfter(delay)),
            (Snooze::after(delay).into(), Then::Snooze(Snooze::For(delay))),
            (Snooze::until(at).into(), Then::Snooze(Snooze::Until(at))),
            (Throttled::after(delay).into(), Then::PushBackKey(Snooze::For(delay))),
            (Throttled::until(at).into(), Then::PushBackKey(Snooze::Until(at))),
            (Cancelled.into(), Then::Cancelled),
        ] {
            assert_eq!(fail.then, then);
        }
    }
}
