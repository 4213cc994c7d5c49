//! The specification of one task for its clients, and the check that their answers fit into an
//! order of valid steps: linearizability, by the algorithm of Wing, Gong and Lowe.
//!
//! Some steps are optional: the lapse of a claim, a claim whose answer was lost, and each call with
//! an unknown outcome. Such a step may have happened from some moment on, or never. It is valid
//! anywhere, and has no effect where it does not fit.

use crate::cluster::history::At;
use std::{fmt::Write, sync::Arc};
use todc_utils::{
    linearizability::{
        WGLChecker,
        history::{Action, History},
    },
    specifications::Specification,
};

/// A step of a task's life, with the answer to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An enqueue of the task's request; `first` if the answer said that this call made the task.
    Enqueue { first: bool },
    /// A claim. Its token is unknown if the answer was lost.
    Claim { worker: Arc<str>, token: Option<u64> },
    /// The end of a claim without an ack.
    Lapse { worker: Arc<str>, token: Option<u64> },
    /// An ack was accepted.
    Ack { token: u64 },
    /// An ack was rejected.
    StaleAck { token: u64, finished: bool },
    /// A read of the task.
    Look(Found),
    /// A step that may happen, or not.
    Maybe(Box<Step>),
}

/// How a reader found a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Absent,
    Waiting,
    HeldBy(Arc<str>),
    Done,
}

/// A step and the time in which it can have happened; without an end, at any later time.
#[derive(Clone, Debug)]
pub(crate) struct Timed {
    pub(crate) begin: At,
    pub(crate) end: Option<At>,
    pub(crate) step: Step,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Task {
    life: Life,
    /// The highest token so far.
    newest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Life {
    Absent,
    Waiting,
    Held { worker: Arc<str>, token: Option<u64> },
    Done { token: u64 },
}

/// Whether the steps have an order, each within its time, in which all of them are valid.
pub(crate) fn is_linearizable(steps: &[Timed]) -> bool {
    let mut actions = Vec::new();
    for (number, timed) in steps.iter().enumerate() {
        let step = timed.step.clone();
        // Steps that meet at one moment overlap: calls come before answers.
        actions.push(((timed.begin, 0), (number, Action::Call(step.clone()))));
        let end = timed.end.map_or(At::MAX, |end| end.max(timed.begin));
        actions.push(((end, 1), (number, Action::Response(step))));
    }
    actions.sort_by_key(|(at, _)| *at);
    let actions: Vec<_> = actions.into_iter().map(|(_, action)| action).collect();
    actions.is_empty() || WGLChecker::<TaskSpec>::is_linearizable(History::from_actions(actions))
}

/// The steps as readable lines.
pub(crate) fn shown(steps: &[Timed]) -> String {
    let mut sorted: Vec<&Timed> = steps.iter().collect();
    sorted.sort_by_key(|timed| timed.begin);
    sorted.iter().fold(String::new(), |mut lines, Timed { begin, end, step }| {
        let end = end.map_or("?".to_owned(), |end| format!("{:.3}", end.as_secs_f64()));
        let _ = writeln!(lines, "    {:.3} to {end}: {step:?}", begin.as_secs_f64());
        lines
    })
}

struct TaskSpec;

impl Specification for TaskSpec {
    type State = Task;
    type Operation = Step;

    fn init() -> Task {
        Task { life: Life::Absent, newest: 0 }
    }

    fn apply(step: &Step, task: &Task) -> (bool, Task) {
        let after = match step {
            Step::Maybe(step) => Some(task.after(step).unwrap_or_else(|| task.clone())),
            step => task.after(step),
        };
        (after.is_some(), after.unwrap_or_else(|| task.clone()))
    }
}

impl Task {
    /// The task after a step; `None` if the step is not valid.
    fn after(&self, step: &Step) -> Option<Task> {
        let Task { life, newest } = self;
        let becomes = |life: Life| Some(Task { life, newest: *newest });
        match (step, life) {
            (Step::Enqueue { .. }, Life::Absent) => becomes(Life::Waiting),
            (Step::Enqueue { first: false }, _) => Some(self.clone()),
            (Step::Claim { worker, token }, Life::Waiting)
                if token.is_none_or(|token| token > *newest) =>
            {
                let life = Life::Held { worker: worker.clone(), token: *token };
                Some(Task { life, newest: token.unwrap_or(*newest) })
            }
            (Step::Lapse { worker, token }, Life::Held { worker: by, token: held })
                if worker == by && token == held =>
            {
                becomes(Life::Waiting)
            }
            (Step::Ack { token }, Life::Held { token: Some(held), .. }) if token == held => {
                becomes(Life::Done { token: *token })
            }
            (Step::Ack { token }, Life::Done { token: by }) if token == by => Some(self.clone()),
            (Step::StaleAck { token, finished }, _) if self.is_past(*token, *finished) => {
                Some(self.clone())
            }
            (Step::Look(found), life) if found.is(life) => Some(self.clone()),
            _ => None,
        }
    }

    /// Whether a claim is over; with `finished`, because the task is done.
    fn is_past(&self, token: u64, finished: bool) -> bool {
        match &self.life {
            Life::Absent => false,
            Life::Waiting => !finished,
            Life::Held { token: held, .. } => !finished && *held != Some(token),
            Life::Done { token: by } => *by != token,
        }
    }
}

impl Found {
    fn is(&self, life: &Life) -> bool {
        match (self, life) {
            (Found::Absent, Life::Absent)
            | (Found::Waiting, Life::Waiting)
            | (Found::Done, Life::Done { .. }) => true,
            (Found::HeldBy(worker), Life::Held { worker: by, .. }) => worker == by,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Step::{Ack, Enqueue, Look, Maybe, StaleAck};

    fn claim(token: u64) -> Step {
        Step::Claim { worker: format!("w{token}").into(), token: Some(token) }
    }

    fn lapse(token: u64) -> Step {
        Step::Lapse { worker: format!("w{token}").into(), token: Some(token) }
    }

    fn held(token: u64) -> Step {
        Look(Found::HeldBy(format!("w{token}").into()))
    }

    fn timed(begin: u64, end: u64, step: Step) -> Timed {
        let end = (end != u64::MAX).then(|| At::from_millis(end));
        Timed { begin: At::from_millis(begin), end, step }
    }

    /// Checks steps that happen one after the other.
    fn check(steps: &[Step], is_good: bool) {
        let one_by_one = (0..).map(|n| 10 * n).zip(steps);
        let steps: Vec<Timed> =
            one_by_one.map(|(at, step)| timed(at, at + 5, step.clone())).collect();
        assert_eq!(is_linearizable(&steps), is_good, "{}", shown(&steps));
    }

    #[test]
    fn a_good_life_is_good() {
        let first = Enqueue { first: true };
        let known = Enqueue { first: false };
        let (waits, done) = (Look(Found::Waiting), Look(Found::Done));
        check(&[first.clone(), waits, claim(3), held(3), Ack { token: 3 }, done], true);
        check(&[first.clone(), known.clone(), claim(3), Ack { token: 3 }, Ack { token: 3 }], true);
        let stale = |finished| StaleAck { token: 3, finished };
        check(&[first.clone(), claim(3), lapse(3), stale(false), claim(4), stale(false)], true);
        check(&[first, claim(3), lapse(3), claim(4), Ack { token: 4 }, stale(true), known], true);
    }

    #[test]
    fn forbidden_histories_are_found() {
        let first = Enqueue { first: true };
        let life = |rest: &[Step]| [std::slice::from_ref(&first), rest].concat();
        // Two acks of two claims, two live claims, tokens that do not grow.
        check(&life(&[claim(1), Ack { token: 1 }, Ack { token: 2 }]), false);
        check(&life(&[claim(1), claim(2)]), false);
        check(&life(&[claim(2), lapse(2), claim(1)]), false);
        // The task runs again after its ack, or the ack is lost.
        check(&life(&[claim(1), Ack { token: 1 }, claim(2)]), false);
        check(&life(&[claim(1), Ack { token: 1 }, Look(Found::Waiting)]), false);
        check(&life(&[claim(1), Ack { token: 1 }, held(1)]), false);
        // The task is lost, made twice, or claimed before its enqueue.
        check(&life(&[Look(Found::Absent)]), false);
        check(&life(&[Enqueue { first: true }]), false);
        check(&[claim(1), first.clone()], false);
        // An accepted ack after the end of its claim, a valid ack that is rejected, a wrong worker.
        check(&life(&[claim(1), lapse(1), Ack { token: 1 }]), false);
        check(&life(&[claim(1), StaleAck { token: 1, finished: false }]), false);
        check(&life(&[claim(1), lapse(1), StaleAck { token: 1, finished: true }]), false);
        check(&life(&[claim(1), held(2)]), false);
    }

    #[test]
    fn calls_at_the_same_time_may_have_happened_in_any_order() {
        let steps = |look: (u64, u64)| {
            let look = timed(look.0, look.1, Look(Found::Waiting));
            let enqueue = timed(0, 5, Enqueue { first: true });
            [enqueue, timed(10, 15, claim(1)), timed(20, 30, Ack { token: 1 }), look]
        };
        assert!(is_linearizable(&steps((8, 12))), "before the claim");
        assert!(!is_linearizable(&steps((16, 40))), "after it");
    }

    #[test]
    fn an_unknown_outcome_is_good_either_way_and_no_excuse_before_it_was_asked() {
        let maybe = |step| Maybe(Box::new(step));
        let life = |look: Found, asked: u64| {
            let ack = timed(asked, u64::MAX, maybe(Ack { token: 1 }));
            let enqueue = timed(0, 5, Enqueue { first: true });
            [enqueue, timed(10, 15, claim(1)), ack, timed(40, 45, Look(look))]
        };
        assert!(is_linearizable(&life(Found::Done, 20)));
        assert!(is_linearizable(&life(Found::HeldBy("w1".into()), 20)));
        assert!(!is_linearizable(&life(Found::Done, 50)), "it was not asked yet");
        let lapses = |at: u64| {
            let lapse = timed(at, u64::MAX, maybe(lapse(1)));
            let enqueue = timed(0, 5, Enqueue { first: true });
            [enqueue, timed(10, 15, claim(1)), lapse, timed(40, 45, claim(2))]
        };
        assert!(is_linearizable(&lapses(30)));
        assert!(!is_linearizable(&lapses(50)), "the first claim still lived");
    }
}
