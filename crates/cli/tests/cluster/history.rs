//! History: the calls of clients, their times and their answers. Nothing here knows the promises.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// A moment, as time since the history began.
pub(crate) type At = Duration;

/// A call of a client. It took effect between `begin` and `end`, or later if its outcome is
/// unknown.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) begin: At,
    pub(crate) end: At,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A task whose payload is its request id.
    Enqueue {
        request: String,
        answer: Answer<Made>,
    },
    /// A claim by lease, without a session. Each such claim has its own worker name.
    Claim {
        worker: String,
        lease: Duration,
        answer: Answer<Vec<Claimed>>,
    },
    /// A handler of a worker with a session began. The claim came some time before.
    Handle {
        worker: String,
        claimed: Claimed,
    },
    /// An ack whose result is its token. The answer to a worker with a session is unknown here.
    Ack {
        id: String,
        token: u64,
        answer: Answer<()>,
    },
    Look {
        id: String,
        answer: Answer<Seen>,
    },
    /// A flow by its name.
    Submit {
        flow: String,
        answer: Answer<String>,
    },
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer<T> {
    Is(T),
    /// A refusal, with the stable code.
    Rejected(String),
    /// The node could not take the call, which changed nothing and says nothing about the task.
    Refused(String),
    /// The outcome is unknown: the call may have an effect now or later.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) id: String,
    /// Whether the answer says that this call made the task. False if an earlier try, whose answer
    /// was lost, made it.
    pub(crate) first: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) id: String,
    pub(crate) token: u64,
    /// The number of parents in the claim.
    pub(crate) parents: usize,
}

/// How a reader found a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) state: String,
    /// The worker with the claim.
    pub(crate) worker: Option<String>,
}

impl<T> Answer<T> {
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Answer::Is(value) => Answer::Is(change(value)),
            Answer::Rejected(code) => Answer::Rejected(code),
            Answer::Refused(code) => Answer::Refused(code),
            Answer::Unknown => Answer::Unknown,
        }
    }

    pub(crate) fn known(&self) -> Option<&T> {
        match self {
            Answer::Is(value) => Some(value),
            Answer::Rejected(_) | Answer::Refused(_) | Answer::Unknown => None,
        }
    }

    /// Sorts an answer by the broker's stable code.
    pub(crate) fn no(code: &str) -> Answer<T> {
        match code {
            "unavailable" | "no_quorum" | "disk_full" | "limit_exceeded" => {
                Answer::Refused(code.to_owned())
            }
            "outcome_unknown" => Answer::Unknown,
            code => Answer::Rejected(code.to_owned()),
        }
    }

    /// Sorts a result of the SDK.
    pub(crate) fn of(result: Result<T, taskyard::Error>) -> Answer<T> {
        result.map_or_else(|error| Answer::no(error.code()), Answer::Is)
    }
}

/// The record of all calls. Cheap to clone; clones share it.
#[derive(Clone)]
pub(crate) struct History {
    began: Instant,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl History {
    pub(crate) fn begin() -> History {
        History { began: Instant::now(), calls: Arc::default() }
    }

    pub(crate) fn now(&self) -> At {
        self.began.elapsed()
    }

    /// Records a call that began at `begin` and has just ended.
    pub(crate) fn record(&self, begin: At, what: What) {
        let end = self.now();
        self.calls.lock().unwrap().push(Call { begin, end, what });
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }
}
