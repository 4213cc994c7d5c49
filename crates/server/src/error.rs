//! Error: why an operation failed, with the stable code that every front uses.

use crate::moment::InWords;
use std::fmt;
use taskyard_machine::{Rejection, TaskId};
use taskyard_replica::ControlRejection;

/// Why an operation did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The machine rejected the command. Nothing changed.
    #[error("{}", ForPeople(.0))]
    Rejected(#[from] Rejection),
    /// The request is invalid; found before it reached a shard. Nothing changed.
    #[error("{0}")]
    Invalid(String),
    /// The sender may not use this node. Nothing changed.
    #[error("{0}")]
    Forbidden(String),
    /// The worker, session or route does not exist. Nothing changed.
    #[error("{0}")]
    NotFound(String),
    /// The payload is larger than this node takes. Nothing changed.
    #[error(
        "payload has {bytes} bytes, this broker takes {bytes_max}; store it elsewhere and send a reference"
    )]
    PayloadTooLarge {
        /// Its length.
        bytes: usize,
        /// The node's limit.
        bytes_max: usize,
    },
    /// The command is larger than the log takes. Nothing changed.
    #[error(
        "the request comes to {bytes} bytes in the log, and one command may have {bytes_max}; send less \
         in one request, or store large data elsewhere and send a reference"
    )]
    CommandTooLarge {
        /// Its length, encoded.
        bytes: usize,
        /// The limit of every node.
        bytes_max: usize,
    },
    /// The request, or the answer to a read, is larger than this node's budget for one. Nothing
    /// changed.
    #[error(
        "the request or its answer takes {bytes} bytes of memory or more, and this node has \
         {bytes_max} for one; send or ask for less at once, or raise memory_bytes_max"
    )]
    RequestTooLarge {
        /// What is known of it so far.
        bytes: usize,
        /// The node's limit.
        bytes_max: usize,
    },
    /// One element of an atomic batch is bad. Nothing changed.
    #[error("task {index} of the batch: {error}; nothing was enqueued")]
    Element {
        /// Position in the batch, from 0.
        index: usize,
        /// What is wrong with it.
        error: Box<Error>,
    },
    /// One node of a flow is bad. Nothing changed.
    #[error("node {node:?}: {error}")]
    Node {
        /// Its name.
        node: String,
        /// What is wrong with it.
        error: Box<Error>,
    },
    /// A backfill failed before its end. Tasks enqueued by then stay.
    #[error("{error}; {enqueued} of {total} occurrences were enqueued before that")]
    HalfWay {
        /// How many were enqueued.
        enqueued: usize,
        /// How many there are.
        total: usize,
        /// Why it ended.
        error: Box<Error>,
    },
    /// A budget of this node is used up (memory, parked claims, connections). Nothing changed.
    #[error("{0}")]
    LimitExceeded(String),
    /// The disk is close to full: the node refuses enqueues and serves other calls. Nothing
    /// changed.
    #[error("{0}")]
    DiskFull(String),
    /// The shard has no leader with a majority. Nothing changed; the call is safe to repeat.
    #[error("no quorum for shard {shard}; try again when a majority of its nodes is up")]
    NoQuorum {
        /// Which shard.
        shard: u16,
    },
    /// The control group has no leader with a majority. Nothing changed; the call is safe to
    /// repeat.
    #[error(
        "the control group has no leader; try again when a majority of its nodes is up, and look with \
         `taskyard cluster status`"
    )]
    NoControl,
    /// The state of the cluster does not allow the operation. Nothing changed.
    #[error("{0}")]
    Refused(String),
    /// Another node leads the shard, or none does. Nothing changed. Only nodes get this error: they
    /// redirect the call to the leader.
    #[error("this node does not lead shard {shard}; send it again")]
    NotLeader {
        /// Which shard.
        shard: u16,
        /// The node that leads it, if this node knows it.
        leader: Option<u64>,
    },
    /// The shard gave no answer: the operation may or may not have happened.
    #[error(
        "the outcome is unknown: the shard gave no answer in time; look before sending it again without a request_id"
    )]
    OutcomeUnknown,
    /// This node is starting or stopping. Nothing changed; the call is safe to repeat.
    #[error("{0}")]
    Unavailable(String),
}

impl From<ControlRejection> for Error {
    fn from(rejection: ControlRejection) -> Error {
        match rejection {
            ControlRejection::UnknownNode { node } => Error::NotFound(format!(
                "there is no node {node}; `taskyard cluster status` lists them"
            )),
            ControlRejection::Invalid { what } => Error::Invalid(what),
            other => Error::Refused(other.to_string()),
        }
    }
}

/// Shows a rejection to people, with moments as dates: the machine has only their numbers.
struct ForPeople<'a>(&'a Rejection);

impl fmt::Display for ForPeople<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Rejection::NeverRuns { expires_at } => write!(
                f,
                "expires_at {} is not after the time it may run; leave it out or choose a later one",
                InWords(*expires_at)
            ),
            Rejection::BatchElement { index, rejection } => {
                write!(
                    f,
                    "task {index} of the batch: {}; nothing was enqueued",
                    ForPeople(rejection)
                )
            }
            Rejection::InNode { node, rejection } => {
                write!(f, "node {node:?}: {}", ForPeople(rejection))
            }
            other => other.fmt(f),
        }
    }
}

impl Error {
    /// The position and the error of the element that is at fault, if one is.
    pub(crate) fn element(&self) -> Option<(usize, Error)> {
        match self {
            Error::Element { index, error } => Some((*index, (**error).clone())),
            Error::Rejected(Rejection::BatchElement { index, rejection }) => {
                Some((*index as usize, Error::Rejected((**rejection).clone())))
            }
            _ => None,
        }
    }

    /// For `not_unique`: the task that holds the key.
    pub fn holder(&self) -> Option<TaskId> {
        match self {
            Error::Rejected(rejection) => rejection.holder(),
            Error::Element { error, .. } => error.holder(),
            _ => None,
        }
    }

    /// The stable code, the same on every front.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Rejected(rejection) => rejection.code(),
            Error::Invalid(_) => "invalid_argument",
            Error::Forbidden(_) => "permission_denied",
            Error::Refused(_) => "conflict",
            Error::NotFound(_) => "not_found",
            Error::PayloadTooLarge { .. }
            | Error::CommandTooLarge { .. }
            | Error::RequestTooLarge { .. } => "payload_too_large",
            Error::Element { error, .. } | Error::Node { error, .. } => error.code(),
            // Most codes say that nothing changed, and clients repeat such a call by themselves.
            Error::HalfWay { error, .. } => match error.code() {
                code @ ("invalid_argument" | "conflict" | "not_found") => code,
                _ => "outcome_unknown",
            },
            Error::LimitExceeded(_) => "limit_exceeded",
            Error::DiskFull(_) => "disk_full",
            Error::NoQuorum { .. } | Error::NoControl | Error::NotLeader { .. } => "no_quorum",
            Error::OutcomeUnknown => "outcome_unknown",
            Error::Unavailable(_) => "unavailable",
        }
    }
}
