//! History: the calls of clients, their times and their answers. Nothing here knows the promises.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// A moment, as time since the history began.
pub(crate) type At = Duration;

/// A call of a client. Its effect came between `begin` and `end`, or later if the outcome is
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
    /// A claim by its lease alone. No two have the same worker's name.
    Claim {
        worker: String,
        lease: Duration,
        answer: Answer<Vec<Claimed>>,
    },
    /// A handler of a worker with a session began: the claim was some time before.
    Handle {
        worker: String,
        claimed: Claimed,
    },
    /// An ack whose result is its token. Of a worker with a session nobody hears the answer.
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

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer<T> {
    Is(T),
    /// A refusal, with the stable code.
    Rejected(String),
    /// The call changed nothing: `unavailable` or `no_quorum`.
    Refused(String),
    /// The outcome is unknown: the call may have an effect now or later.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) id: String,
    /// It says that this call made the task. Not said of one that a lost try of the same call had
    /// made.
    pub(crate) first: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) id: String,
    pub(crate) token: u64,
    /// How many parents its flow told it of.
    pub(crate) parents: usize,
}

/// How a reader found a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) state: String,
    /// Who holds it.
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
            "unavailable" | "no_quorum" => Answer::Refused(code.to_owned()),
            "outcome_unknown" => Answer::Unknown,
            code => Answer::Rejected(code.to_owned()),
        }
    }

    /// Sorts what the SDK returned.
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
