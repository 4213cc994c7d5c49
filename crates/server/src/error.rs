//! Error: why an operation got no answer, or a "no", with the stable code of every front.

use crate::moment::InWords;
use std::fmt;
use taskyard_machine::{Rejection, TaskId};
use taskyard_replica::ControlRejection;

/// Why an operation did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The machine decided: no. Nothing changed.
    #[error("{}", Told(.0))]
    Rejected(#[from] Rejection),
    /// The request makes no sense; found before it reached a shard. Nothing changed.
    #[error("{0}")]
    Invalid(String),
    /// The sender may not ask this node for anything. Nothing changed.
    #[error("{0}")]
    Forbidden(String),
    /// No such thing (a worker, a session, a route's object). Nothing changed.
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
    /// What is asked comes to more bytes than the log keeps of one command. Nothing changed.
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
    /// A backfill ended before its end. What was enqueued by then stays.
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
    /// The disk is close to full: enqueues are refused, all else goes on. Nothing changed.
    #[error("{0}")]
    DiskFull(String),
    /// No leader with a majority. Nothing changed; safe to send again.
    #[error("no quorum for shard {shard}; try again when a majority of its nodes is up")]
    NoQuorum {
        /// Which shard.
        shard: u16,
    },
    /// The cluster's own group has no leader with a majority. Nothing changed; safe to send again.
    #[error(
        "the control group has no leader; try again when a majority of its nodes is up, and look with \
         `taskyard cluster status`"
    )]
    NoControl,
    /// The cluster is not in a state that allows it. Nothing changed.
    #[error("{0}")]
    Refused(String),
    /// Another node leads the shard, or none does. Nothing changed. Between nodes alone: whoever
    /// gets it asks the leader instead.
    #[error("this node does not lead shard {shard}; send it again")]
    NotLeader {
        /// Which shard.
        shard: u16,
        /// The node that leads it, as far as is known.
        leader: Option<u64>,
    },
    /// It was sent to the shard and no answer came: it may or may not have happened.
    #[error(
        "the outcome is unknown: the shard gave no answer in time; look before sending it again without a request_id"
    )]
    OutcomeUnknown,
    /// This node is starting or stopping. Nothing changed; safe to send again.
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

/// A rejection for people: the machine knows moments as numbers only.
struct Told<'a>(&'a Rejection);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Rejection::NeverRuns { expires_at } => write!(
                f,
                "expires_at {} is not after the time it may run; leave it out or choose a later one",
                InWords(*expires_at)
            ),
            Rejection::BatchElement { index, rejection } => {
                write!(f, "task {index} of the batch: {}; nothing was enqueued", Told(rejection))
            }
            Rejection::InNode { node, rejection } => {
                write!(f, "node {node:?}: {}", Told(rejection))
            }
            other => other.fmt(f),
        }
    }
}

impl Error {
    /// If it is about one element of what was asked: its position, and what is wrong with it.
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
            // Most codes say that nothing changed, so that clients send it again by themselves.
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
