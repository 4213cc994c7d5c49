//! Task: a type of work with a name, a payload and an output; also the ids and states of tasks.

use crate::NewTask;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{convert::Infallible, fmt, str::FromStr};
use taskyard_proto::v1;

/// A type of work: the value itself is the payload, and workers find the function by the name.
///
/// Both sides of a queue share the type, so that the compiler checks the payload against the
/// handler, and the result against its reader.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use taskyard::{NewTask, Task};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl Task for SendMail {
///     const NAME: &'static str = "send_mail";
///     const QUEUE: &'static str = "mail";
///     type Output = ();
///
///     fn configure(&self, task: NewTask) -> NewTask {
///         task.priority(7)
///     }
/// }
/// ```
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the function, a part of the contract between producers and workers.
    const NAME: &'static str;

    /// The queue of such tasks, unless the enqueue names another.
    const QUEUE: &'static str = "default";

    /// The handler's result.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// Sets the options of every task of this type: priority, retry policy, timeout and so on. An
    /// enqueue may still override them.
    fn configure(&self, task: NewTask) -> NewTask {
        task
    }
}

/// The id of a task. Opaque: compare it, store it, pass it back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(String);

impl TaskId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for TaskId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<String> for TaskId {
    fn from(id: String) -> TaskId {
        TaskId(id)
    }
}

impl From<&str> for TaskId {
    fn from(id: &str) -> TaskId {
        TaskId(id.to_string())
    }
}

impl From<&TaskId> for TaskId {
    fn from(id: &TaskId) -> TaskId {
        id.clone()
    }
}

impl From<TaskId> for String {
    fn from(id: TaskId) -> String {
        id.0
    }
}

impl FromStr for TaskId {
    type Err = Infallible;

    fn from_str(id: &str) -> Result<TaskId, Infallible> {
        Ok(TaskId::from(id))
    }
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TaskState {
    /// Waits for other tasks.
    Blocked,
    /// Waits for a moment: a delay or a retry.
    Scheduled,
    /// May be claimed now.
    Ready,
    /// A worker holds it.
    Claimed,
    /// Ended with success.
    Succeeded,
    /// Ended without success and without a dead letter.
    Failed,
    /// A dead letter: attempts spent, not retryable, or its workers died.
    Dead,
    /// Cancelled before it succeeded.
    Cancelled,
    /// Its `expires_at` passed before it ran.
    Expired,
    /// A state that this version of the crate does not know.
    Unknown,
}

impl TaskState {
    const NAMES: [(&'static str, TaskState); 9] = [
        ("blocked", TaskState::Blocked),
        ("scheduled", TaskState::Scheduled),
        ("ready", TaskState::Ready),
        ("claimed", TaskState::Claimed),
        ("succeeded", TaskState::Succeeded),
        ("failed", TaskState::Failed),
        ("dead", TaskState::Dead),
        ("cancelled", TaskState::Cancelled),
        ("expired", TaskState::Expired),
    ];

    /// The name of the state, the same on every front.
    pub fn as_str(self) -> &'static str {
        TaskState::NAMES
            .iter()
            .find(|(_, state)| *state == self)
            .map_or("unknown", |(name, _)| name)
    }

    /// Whether the task has ended; only an operator's retry runs it again.
    pub fn is_finished(self) -> bool {
        match self {
            TaskState::Succeeded
            | TaskState::Failed
            | TaskState::Dead
            | TaskState::Cancelled
            | TaskState::Expired => true,
            TaskState::Blocked
            | TaskState::Scheduled
            | TaskState::Ready
            | TaskState::Claimed
            | TaskState::Unknown => false,
        }
    }

    pub(crate) fn from_wire(name: &str) -> TaskState {
        name.parse().unwrap_or(TaskState::Unknown)
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for TaskState {
    type Err = crate::Error;

    fn from_str(name: &str) -> Result<TaskState, crate::Error> {
        let known = TaskState::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, state)| *state).ok_or_else(|| {
            let names: Vec<&str> = TaskState::NAMES.iter().map(|(name, _)| *name).collect();
            crate::Error::Invalid(format!("no state {name}; there are {}", names.join(", ")))
        })
    }
}

/// The error of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskError {
    /// The kind of error: the name of a type, `panic`, `timeout`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The message, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Where the error happened; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub backtrace: String,
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind.as_str(), self.message.as_str()) {
            ("", message) => f.write_str(message),
            (kind, "") => f.write_str(kind),
            (kind, message) => write!(f, "{kind}: {message}"),
        }
    }
}

impl From<v1::TaskError> for TaskError {
    fn from(wire: v1::TaskError) -> TaskError {
        TaskError { kind: wire.r#type, message: wire.message, backtrace: wire.backtrace }
    }
}

impl From<TaskError> for v1::TaskError {
    fn from(error: TaskError) -> v1::TaskError {
        v1::TaskError { r#type: error.kind, message: error.message, backtrace: error.backtrace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_one_name_both_ways() {
        for (name, state) in TaskState::NAMES {
            assert_eq!(name.parse::<TaskState>().unwrap(), state);
            assert_eq!(state.to_string(), name);
            assert_eq!(serde_json::to_value(state).unwrap(), name);
        }
        assert_eq!(TaskState::from_wire("resting"), TaskState::Unknown);
        assert!("resting".parse::<TaskState>().is_err());
    }
}
