//! Error: why a call failed, with the broker's stable code.
//!
//! Three kinds matter to a caller. `Rejected`: the broker said no, and sending the call again
//! changes nothing. `Unavailable`: nothing was decided, and the call is safe to send again.
//! `OutcomeUnknown`: the call may have taken effect; look first, or repeat it only with an id.

use crate::{
    TaskError, TaskId, TaskState,
    flow::{FlowId, FlowState},
};
use std::{error::Error as StdError, time::Duration};
use taskyard_proto::v1;
use tonic::{Code, ConnectError, Status};

/// The metadata key under which the broker sends the stable code of a refusal.
const CODE_KEY: &str = "taskyard-code";
/// The metadata key of the task that holds a unique key.
const HOLDER_KEY: &str = "taskyard-holder";

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker said no. Nothing changed.
    #[error("{message}")]
    Rejected {
        /// The stable code, such as `not_found` or `queue_full`.
        code: String,
        /// What is wrong and what to do next.
        message: String,
    },
    /// Another task has the unique key. Nothing changed.
    #[error("{message}")]
    NotUnique {
        /// The task with the key; `None` if it is another task of the same batch.
        holder: Option<TaskId>,
        /// Why the call was rejected.
        message: String,
    },
    /// No server accepted the call. Nothing changed; the call is safe to send again.
    #[error("{message}")]
    Unavailable {
        /// `unavailable` or `no_quorum`.
        code: String,
        /// The servers that were tried, and the last answer of each.
        message: String,
        /// Whether a broker answered; if not, no server was reached.
        answered: bool,
    },
    /// The call was sent and no answer came back, so that it may have taken effect.
    #[error("the outcome is unknown: {message}; look before sending it again")]
    OutcomeUnknown {
        /// How the answer was lost.
        message: String,
    },
    /// The arguments make no sense; nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// A value from the broker does not have the requested type.
    #[error("{what} is not of the expected type: {problem}")]
    Decode {
        /// The value.
        what: String,
        /// The decoder's message.
        problem: String,
    },
    /// The awaited task has ended without success.
    #[error("task {task} ended as {state}{}", because(.error.as_ref()))]
    NotSucceeded {
        /// The task.
        task: TaskId,
        /// The final state of the task.
        state: TaskState,
        /// The error of the last attempt, if there is one.
        error: Option<TaskError>,
    },
    /// The task whose result was waited for has not ended in time.
    #[error(
        "task {task} is still {state} after {waited:?}; wait longer, look at its queue, or move the clock of a test"
    )]
    NotFinished {
        /// The task.
        task: TaskId,
        /// The state of the task.
        state: TaskState,
        /// How long the call waited.
        waited: Duration,
    },
    /// The flow whose end was waited for has not ended in time.
    #[error(
        "flow {flow} is still {state} after {waited:?}; look at its nodes, or move the clock of a test"
    )]
    FlowNotFinished {
        /// The flow.
        flow: FlowId,
        /// The state of the flow.
        state: FlowState,
        /// How long the call waited.
        waited: Duration,
    },
    /// The flow whose result was waited for has ended, but did not succeed.
    #[error("flow {flow} ended as {state}{}", by_node(.node.as_deref(), .error.as_deref()))]
    FlowNotSucceeded {
        /// The flow.
        flow: FlowId,
        /// The final state of the flow.
        state: FlowState,
        /// The first node that did not succeed.
        node: Option<String>,
        /// The error of that node.
        error: Option<Box<TaskError>>,
    },
}

fn by_node(node: Option<&str>, error: Option<&TaskError>) -> String {
    let node = node.map(|node| format!(" by node {node}")).unwrap_or_default();
    node + &because(error)
}

fn because(error: Option<&TaskError>) -> String {
    error.map(|error| format!(": {error}")).unwrap_or_default()
}

impl Error {
    /// The stable code: one of those in `docs/protocol.md`, or one that only this crate makes:
    /// `not_succeeded`, `not_finished`, `decode`, and `unimplemented` (the server does not know the
    /// call).
    pub fn code(&self) -> &str {
        match self {
            Error::Rejected { code, .. } | Error::Unavailable { code, .. } => code,
            Error::NotUnique { .. } => "not_unique",
            Error::OutcomeUnknown { .. } => "outcome_unknown",
            Error::Invalid(_) => "invalid_argument",
            Error::Decode { .. } => "decode",
            Error::NotSucceeded { .. } | Error::FlowNotSucceeded { .. } => "not_succeeded",
            Error::NotFinished { .. } | Error::FlowNotFinished { .. } => "not_finished",
        }
    }

    /// Whether nothing was decided, so that the same call is safe to send again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }

    /// Whether the call may have taken effect. Enqueues repeat themselves safely until their
    /// deadline, so that they end this way only if an answer was lost and no server gave another
    /// one in all that time.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Error::OutcomeUnknown { .. })
    }

    /// Whether the task, queue, schedule or worker does not exist, or was removed by its retention.
    pub fn is_not_found(&self) -> bool {
        self.code() == "not_found"
    }

    /// The error that the broker put into the answer for one item.
    pub(crate) fn from_item(error: v1::Error) -> Error {
        Error::from_code(error.code, error.message, &error.holder)
    }

    fn from_code(code: String, message: String, holder: &str) -> Error {
        match code.as_str() {
            "not_unique" => {
                let holder = (!holder.is_empty()).then(|| TaskId::from(holder.to_string()));
                Error::NotUnique { holder, message }
            }
            "unavailable" | "no_quorum" => Error::Unavailable { code, message, answered: true },
            "outcome_unknown" => Error::OutcomeUnknown { message },
            _ => Error::Rejected { code, message },
        }
    }

    /// The error for a gRPC status. A status without the broker's own code came from the transport
    /// or from a proxy; then only a connection that was never established is known to have changed
    /// nothing.
    pub(crate) fn from_status(server: &str, status: &Status) -> Error {
        let told = |key: &str| status.metadata().get(key).and_then(|value| value.to_str().ok());
        if let Some(code) = told(CODE_KEY) {
            let holder = told(HOLDER_KEY).unwrap_or_default();
            return Error::from_code(code.to_string(), status.message().to_string(), holder);
        }
        if never_connected(status) {
            let why = innermost(status);
            let message = format!("cannot reach {server}: {why}; see that a broker listens there");
            return Error::unavailable(message);
        }
        if never_sent(status) {
            let message =
                format!("{server} closed the connection before the call was sent; send it again");
            return Error::unavailable(message);
        }
        if let Some(limit) = message_limit(status.message()) {
            return Error::Rejected {
                code: "payload_too_large".to_string(),
                message: format!(
                    "{server}: one message would have more than {limit} bytes; send less at once, or \
                     ask for less, such as a shorter page"
                ),
            };
        }
        let message = match status.message() {
            "" => status.code().description(),
            message => message,
        };
        let refused = |code: &str| Error::Rejected {
            code: code.to_string(),
            message: format!("{server}: {message}"),
        };
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => {
                refused("invalid_argument")
            }
            Code::NotFound => refused("not_found"),
            Code::Unauthenticated => refused("unauthenticated"),
            Code::PermissionDenied => refused("permission_denied"),
            Code::ResourceExhausted => refused("limit_exceeded"),
            Code::Unimplemented => Error::Rejected {
                code: "unimplemented".to_string(),
                message: format!(
                    "{server} does not know this call: {message}; is it a Taskyard of this version"
                ),
            },
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::AlreadyExists
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => Error::OutcomeUnknown { message: format!("{server}: {message}") },
        }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Error {
        let (code, message) = ("unavailable".to_string(), message.into());
        Error::Unavailable { code, message, answered: false }
    }

    /// The final error of a call whose last try got this error. If the answer of an earlier try was
    /// lost (`unknown`), a refusal of the last try does not prove that nothing happened.
    pub(crate) fn after(&self, unknown: bool) -> Error {
        match self {
            Error::Unavailable { message, .. } | Error::Rejected { message, .. }
                if unknown && !self.knows_earlier_tries() =>
            {
                let message = format!("the answer of an earlier try was lost, then {message}");
                Error::OutcomeUnknown { message }
            }
            error => error.clone(),
        }
    }

    /// Whether the broker has checked for earlier tries before this refusal; some refusals come
    /// before that check.
    fn knows_earlier_tries(&self) -> bool {
        let early = ["disk_full", "limit_exceeded", "unauthenticated", "permission_denied"];
        matches!(self, Error::Rejected { code, .. } if !early.contains(&code.as_str()))
    }

    /// The final error of a call that changes nothing: if its answer is lost, nothing happened.
    pub(crate) fn of_a_read(&self) -> Error {
        match self {
            Error::OutcomeUnknown { message } => Error::unavailable(message),
            error => error.clone(),
        }
    }

    /// Whether the broker is full for now (`queue_full`, `limit_exceeded`, `disk_full`). Nothing
    /// changed; the call is worth sending again later, because other work makes room.
    pub fn may_pass(&self) -> bool {
        matches!(self.code(), "disk_full" | "limit_exceeded" | "queue_full")
    }

    /// Whether a later answer could differ, so that a harmless call is worth repeating.
    pub(crate) fn is_undecided(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::OutcomeUnknown { .. })
    }
}

fn never_connected(status: &Status) -> bool {
    causes(status).any(|error| error.is::<ConnectError>())
}

/// Whether the call waited for its turn on a connection that ended, as when a broker stops. Nothing
/// of it was sent.
fn never_sent(status: &Status) -> bool {
    let error = causes(status).find_map(|error| error.downcast_ref::<hyper::Error>());
    error.is_some_and(hyper::Error::is_canceled)
}

/// The exceeded size limit of a message, if the gRPC library reports one. The library reports it in
/// its own words, for sent and for received messages.
fn message_limit(message: &str) -> Option<u64> {
    let (_, rest) = message.split_once("message length too large")?;
    let (_, limit) = rest.split_once("limit is: ")?;
    limit.split(' ').next()?.parse().ok()
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(status.source(), |error| (*error).source())
}

/// The last error of a chain: "connection refused" rather than "transport error".
fn innermost(status: &Status) -> String {
    causes(status).last().map_or_else(|| status.message().to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tonic::{codegen::http, metadata::MetadataMap};

    fn status(code: Code, own_code: Option<&str>) -> Status {
        let mut metadata = MetadataMap::new();
        if let Some(own_code) = own_code {
            metadata.insert(CODE_KEY, own_code.parse().unwrap());
        }
        Status::with_metadata(code, "why", metadata)
    }

    #[test]
    fn the_brokers_code_decides_the_kind() {
        for (own_code, retryable, unknown) in [
            ("not_found", false, false),
            ("queue_full", false, false),
            ("unavailable", true, false),
            ("no_quorum", true, false),
            ("outcome_unknown", false, true),
        ] {
            let error = Error::from_status("here", &status(Code::Unknown, Some(own_code)));
            assert_eq!(error.code(), own_code);
            assert_eq!(error.is_retryable(), retryable, "{own_code}");
            assert_eq!(error.is_outcome_unknown(), unknown, "{own_code}");
        }
    }

    #[test]
    fn a_server_that_does_not_know_the_call_is_no_mistake_of_the_caller() {
        let error = Error::from_status("here", &status(Code::Unimplemented, None));
        assert_eq!(error.code(), "unimplemented");
        assert!(error.to_string().contains("here does not know this call"), "{error}");
    }

    #[test]
    fn a_message_that_is_too_large_is_told_in_words() {
        for verb in ["decoded", "encoded"] {
            let words = format!(
                "Error, {verb} message length too large: found 99 bytes, the limit is: 64 bytes"
            );
            let error = Error::from_status("here", &Status::new(Code::OutOfRange, words));
            assert_eq!(error.code(), "payload_too_large");
            let text = error.to_string();
            assert!(text.starts_with("here: one message would have more than 64 bytes;"), "{text}");
        }
    }

    #[test]
    fn a_held_key_names_its_holder() {
        let mut refused = status(Code::AlreadyExists, Some("not_unique"));
        refused.metadata_mut().insert(HOLDER_KEY, "task-1".parse().unwrap());
        let error = Error::from_status("here", &refused);
        assert_eq!(error.code(), "not_unique");
        let Error::NotUnique { holder, .. } = error else { panic!("{error:?}") };
        assert_eq!(holder, Some(TaskId::from("task-1".to_string())));
    }

    #[test]
    fn without_a_code_only_a_refused_connection_is_safe_to_repeat() {
        let broken = Error::from_status("here", &status(Code::Unavailable, None));
        assert!(broken.is_outcome_unknown(), "{broken:?}");
        let refused = ConnectError("connection refused".into());
        let refused = Error::from_status("here", &Status::from_error(Box::new(refused)));
        assert!(refused.is_retryable(), "{refused:?}");
        assert_eq!(
            refused.to_string(),
            "cannot reach here: connection refused; see that a broker listens there"
        );
    }
    #[tokio::test]
    async fn a_call_that_was_never_sent_is_safe_to_repeat() {
        let (ours, _theirs) = tokio::io::duplex(1 << 16);
        let (mut requests, connection) =
            hyper::client::conn::http2::Builder::new(TokioExecutor::new())
                .handshake(TokioIo::new(ours))
                .await
                .unwrap();
        drop(connection);
        let request = http::Request::new(tonic::body::Body::empty());
        let canceled = requests.send_request(request).await.unwrap_err();
        let error = Error::from_status("here", &Status::from_error(Box::new(canceled)));
        assert!(error.is_retryable(), "{error:?}");
        assert_eq!(
            error.to_string(),
            "here closed the connection before the call was sent; send it again"
        );
    }
}
