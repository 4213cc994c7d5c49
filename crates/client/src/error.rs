//! Error: why a call did not do what was asked, with the broker's stable code.
//!
//! Three kinds matter to a caller: the broker said no (`Rejected`: sending it again changes
//! nothing), nothing was decided (`Unavailable`: safe to send again), and nobody knows
//! (`OutcomeUnknown`: look first, or repeat it only with an identity).

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

/// Why a call did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker understood and said no. Nothing changed.
    #[error("{message}")]
    Rejected {
        /// The stable code, such as `not_found` or `queue_full`.
        code: String,
        /// What is wrong and what to do next.
        message: String,
    },
    /// Another task holds the unique key. Nothing changed.
    #[error("{message}")]
    NotUnique {
        /// The task that holds it; `None` if that is another task of the same batch.
        holder: Option<TaskId>,
        /// Why it was refused.
        message: String,
    },
    /// No server took the call. Nothing changed; it is safe to send it again.
    #[error("{message}")]
    Unavailable {
        /// `unavailable` or `no_quorum`.
        code: String,
        /// Which servers were tried and what each said last.
        message: String,
        /// A broker said so itself; otherwise none was heard.
        answered: bool,
    },
    /// The call was sent and no answer came back: it may or may not have happened.
    #[error("the outcome is unknown: {message}; look before sending it again")]
    OutcomeUnknown {
        /// How the answer was lost.
        message: String,
    },
    /// What was asked makes no sense; found before anything was sent.
    #[error("{0}")]
    Invalid(String),
    /// A value from the broker is not of the type asked for.
    #[error("{what} is not of the expected type: {problem}")]
    Decode {
        /// Which value.
        what: String,
        /// What the decoder says.
        problem: String,
    },
    /// The task whose result was waited for has ended, but did not succeed.
    #[error("task {task} ended as {state}{}", because(.error.as_ref()))]
    NotSucceeded {
        /// The task.
        task: TaskId,
        /// How it ended.
        state: TaskState,
        /// The error of its last attempt, if it had one.
        error: Option<TaskError>,
    },
    /// The task whose result was waited for has not ended in time.
    #[error(
        "task {task} is still {state} after {waited:?}; wait longer, look at its queue, or move the clock of a test"
    )]
    NotFinished {
        /// The task.
        task: TaskId,
        /// Where it is.
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
        /// Where it is.
        state: FlowState,
        /// How long the call waited.
        waited: Duration,
    },
    /// The flow whose result was waited for has ended, but did not succeed.
    #[error("flow {flow} ended as {state}{}", by_node(.node.as_deref(), .error.as_deref()))]
    FlowNotSucceeded {
        /// The flow.
        flow: FlowId,
        /// How it ended.
        state: FlowState,
        /// The first of its nodes that did not succeed.
        node: Option<String>,
        /// What that node failed with.
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
    /// The stable code: one of those in `docs/protocol.md`, or `not_succeeded`, `not_finished`,
    /// `decode` and `unimplemented` (the server does not know the call), which only this crate makes.
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

    /// Nothing was decided, so the same call may be sent again without a second thought.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }

    /// It may or may not have happened. Enqueues repeat themselves safely until their deadline, so
    /// they end this way only when an answer was lost and no server gave another in all that time.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Error::OutcomeUnknown { .. })
    }

    /// There is no such task, queue, schedule or worker, or its retention removed it.
    pub fn is_not_found(&self) -> bool {
        self.code() == "not_found"
    }

    /// Sorts what the broker put into an answer for one item.
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

    /// Sorts a gRPC status. Without the broker's own code it came from the transport, or from a
    /// proxy: then only a connection that never stood is known to have changed nothing.
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

    /// What a call ends with whose last try got this error. If the answer of an earlier try was lost
    /// (`unknown`), then that nothing took the last one does not mean that nothing happened.
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

    /// The broker looked whether it has done the same before; some refusals come earlier than that.
    fn knows_earlier_tries(&self) -> bool {
        let early = ["disk_full", "limit_exceeded", "unauthenticated", "permission_denied"];
        matches!(self, Error::Rejected { code, .. } if !early.contains(&code.as_str()))
    }

    /// What a call that changes nothing ends with: if its answer is lost, nothing happened.
    pub(crate) fn of_a_read(&self) -> Error {
        match self {
            Error::OutcomeUnknown { message } => Error::unavailable(message),
            error => error.clone(),
        }
    }

    /// The broker is full for now (`queue_full`, `limit_exceeded`, `disk_full`). Nothing changed; a
    /// bound stands in the way that other work will move, so it is worth sending again later.
    pub fn may_pass(&self) -> bool {
        matches!(self.code(), "disk_full" | "limit_exceeded" | "queue_full")
    }

    /// No answer that a later one could contradict: worth asking again, if asking is harmless.
    pub(crate) fn is_undecided(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::OutcomeUnknown { .. })
    }
}

fn never_connected(status: &Status) -> bool {
    causes(status).any(|error| error.is::<ConnectError>())
}

/// The call waited for its turn on a connection that ended, as those to a broker that stops do: nothing of
/// it was written.
fn never_sent(status: &Status) -> bool {
    let error = causes(status).find_map(|error| error.downcast_ref::<hyper::Error>());
    error.is_some_and(hyper::Error::is_canceled)
}

/// The bound that a message was over, if that is what the gRPC library says. It says so of what we
/// send and of what we get, and in its own words.
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
    async fn what_never_left_for_a_broker_that_stops_is_safe_to_repeat() {
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
