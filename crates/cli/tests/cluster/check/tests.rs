//! Hand-written histories: good ones, and one that breaks each promise.

use super::*;
use crate::cluster::{
    ending::{FlowLeft, TicksLeft},
    history::{Made, Seen},
};

/// A history of calls that do not overlap.
#[derive(Default)]
struct Story {
    calls: Vec<Call>,
    tasks: Vec<Left>,
    flows: Vec<FlowLeft>,
    ticks: u64,
}

impl Story {
    fn then(mut self, what: What) -> Story {
        let begin = At::from_secs(10 * self.calls.len() as u64);
        self.calls.push(Call { begin, end: begin + At::from_secs(1), what });
        self
    }

    fn enqueue(self, request: &str, answer: Answer<&str>) -> Story {
        let answer = answer.map(|id| Made { id: id.into(), first: true });
        self.then(What::Enqueue { request: request.into(), answer })
    }

    fn claim(self, id: &str, token: u64) -> Story {
        let answer = Answer::Is(vec![Claimed { id: id.into(), token, parents: 0 }]);
        let (worker, lease) = (format!("lease-{token}"), At::from_secs(5));
        self.then(What::Claim { worker, lease, answer })
    }

    fn handle(self, id: &str, token: u64, parents: usize) -> Story {
        let claimed = Claimed { id: id.into(), token, parents };
        let ack = What::Ack { id: id.into(), token, answer: Answer::Unknown };
        self.then(What::Handle { worker: "session".into(), claimed }).then(ack)
    }

    fn ack(self, id: &str, token: u64, answer: Answer<()>) -> Story {
        self.then(What::Ack { id: id.into(), token, answer })
    }

    fn look(self, id: &str, state: &str) -> Story {
        let seen = Seen { state: state.into(), worker: None };
        self.then(What::Look { id: id.into(), answer: Answer::Is(seen) })
    }

    /// In the final state, the task of this request has succeeded under this claim.
    fn left(mut self, id: &str, request: &str, token: u64) -> Story {
        self.tasks.push(Left {
            id: id.into(),
            payload: request.into(),
            state: "succeeded".into(),
            token: Some(token),
            ..Left::default()
        });
        self
    }

    /// In the final state, the task of this request is quarantined after claims of these workers.
    fn given_up(mut self, id: &str, request: &str, workers: &[&str]) -> Story {
        self = self.left(id, request, 0);
        let task = self.tasks.last_mut().unwrap();
        (task.state, task.token) = ("dead".into(), None);
        task.death_reason = "its workers died".into();
        task.workers = workers.iter().map(|worker| (*worker).to_owned()).collect();
        self
    }

    /// A claim whose answer was lost.
    fn claim_in_vain(self, worker: &str) -> Story {
        let (worker, lease) = (worker.into(), At::from_secs(5));
        self.then(What::Claim { worker, lease, answer: Answer::Unknown })
    }

    /// In the final state, the schedule has a run for this moment.
    fn ran(mut self, occurrence_at: u64) -> Story {
        let token = occurrence_at;
        let id = format!("tick-{}", self.tasks.len());
        self = self.handle(&id, token, 0).left(&id, "tick", token);
        let run = self.tasks.last_mut().unwrap();
        (run.queue, run.occurrence_at) = (TICKS.into(), Some(occurrence_at));
        self.ticks += 1;
        self
    }

    /// Submits a flow.
    fn submit(mut self) -> Story {
        let (id, name, state) = ("f".to_owned(), "flow".to_owned(), "succeeded".to_owned());
        self.flows.push(FlowLeft { id: id.clone(), name: name.clone(), state });
        self.then(What::Submit { flow: name, answer: Answer::Is(id) })
    }

    /// Runs the callback of the flow with this many parents.
    fn callback(self, id: &str, parents: usize) -> Story {
        let mut story = self.handle(id, 1, parents).left(id, "flow", 1);
        let callback = story.tasks.last_mut().unwrap();
        (callback.queue, callback.flow) = (CALLBACKS.into(), Some("f".into()));
        story
    }

    /// Checks that exactly these promises are broken; each line is named by a part of it.
    fn check(self, expected: &[&str]) {
        let Story { calls, tasks, flows, ticks } = self;
        let ticks = TicksLeft { fired: ticks, skipped: 0, missed: 0 };
        let broken = broken(&calls, &Ending { tasks, flows, ticks });
        assert_eq!(broken.len(), expected.len(), "{broken:#?}");
        for (broken, expected) in broken.iter().zip(expected) {
            assert!(broken.contains(expected), "{expected:?} in {broken:#?}");
        }
    }
}

fn story() -> Story {
    Story::default().enqueue("r", Answer::Is("t"))
}

const ORDER: &str = "no order";

#[test]
fn a_good_history_breaks_nothing() {
    story().claim("t", 1).ack("t", 1, Answer::Is(())).left("t", "r", 1).check(&[]);
    story().handle("t", 1, 0).left("t", "r", 1).check(&[]);
    // The enqueue lost its answer, the claim lapsed, and a late ack was rejected.
    let lost = Story::default().enqueue("r", Answer::Unknown).claim("t", 1).look("t", "ready");
    let stale = lost.claim("t", 2).ack("t", 1, Answer::Rejected("claim_lost".into()));
    stale.ack("t", 2, Answer::Unknown).look("t", "succeeded").left("t", "r", 2).check(&[]);
    // A node whose disk is full could not take the first ack, and the claim goes on.
    let full = story().claim("t", 1).ack("t", 1, Answer::no("disk_full"));
    full.ack("t", 1, Answer::Is(())).left("t", "r", 1).check(&[]);
    Story::default().submit().callback("c", CHILDREN).check(&[]);
    Story::default().ran(1_000).ran(2_000).ran(3_000).check(&[]);
    Story::default().enqueue("r", Answer::Refused("no_quorum".into())).check(&[]);
}

#[test]
fn a_lost_task_is_found() {
    story().check(&["request r was confirmed as {\"t\"} and is lost"]);
    let acked = story().claim("t", 1).ack("t", 1, Answer::Is(()));
    acked.check(&["confirmed", "task t was seen and is lost"]);
}

#[test]
fn a_request_with_two_tasks_is_found() {
    let twice = story().handle("t", 1, 0).handle("u", 2, 0).left("t", "r", 1).left("u", "r", 2);
    twice.check(&["request r made {\"t\", \"u\"}"]);
    let told = story().enqueue("r", Answer::Is("u")).handle("t", 1, 0).left("t", "r", 1);
    told.check(&["clients know {\"t\", \"u\"}", ORDER]);
}

#[test]
fn a_refusal_that_did_it_all_the_same_is_found() {
    let no = || Answer::Refused("no_quorum".into());
    let made = Story::default().enqueue("r", no()).handle("t", 1, 0).left("t", "r", 1);
    made.check(&["was refused and made", ORDER]);
    let ended = story().claim("t", 1).ack("t", 1, Answer::Refused("no_quorum".into()));
    ended.left("t", "r", 1).check(&["no ack of claim 1 can have ended it", ORDER]);
}

#[test]
fn two_accepted_acks_are_found() {
    let both = story().claim("t", 1).ack("t", 1, Answer::Is(()));
    let both = both.claim("t", 2).ack("t", 2, Answer::Is(())).left("t", "r", 2);
    both.check(&["was acked under {1, 2}", ORDER]);
    let other = story().claim("t", 1).ack("t", 1, Answer::Is(())).handle("t", 2, 0);
    other.left("t", "r", 2).check(&["was acked under {1}, not 2", ORDER]);
}

#[test]
fn two_live_claims_are_found() {
    // The second claim comes well before the first can have lapsed.
    let mut early = story().claim("t", 1).claim("t", 2).ack("t", 2, Answer::Is(()));
    early.calls[2].begin = early.calls[1].end;
    early.calls[2].end = early.calls[1].end + At::from_secs(1);
    early.left("t", "r", 2).check(&[ORDER]);
    let shared = story().claim("t", 1).claim("t", 1).ack("t", 1, Answer::Is(()));
    shared.left("t", "r", 1).check(&["claim 1 of task t was given to 2 workers", ORDER]);
}

#[test]
fn a_stale_read_is_found() {
    let acked = || story().claim("t", 1).ack("t", 1, Answer::Is(()));
    for state in ["ready", "claimed", "scheduled"] {
        acked().look("t", state).left("t", "r", 1).check(&[ORDER]);
    }
    let gone = What::Look { id: "t".into(), answer: Answer::Rejected("not_found".into()) };
    acked().then(gone).left("t", "r", 1).check(&[ORDER]);
}

#[test]
fn an_end_by_nobody_is_found() {
    let none = story().left("t", "r", 1);
    none.check(&["claim 1, which nobody had", "no ack of claim 1 can have ended it", ORDER]);
    let mut open = story().handle("t", 1, 0).left("t", "r", 1);
    (open.tasks[0].state, open.tasks[0].token) = ("ready".into(), None);
    open.check(&["task t ended as ready"]);
}

#[test]
fn a_callback_that_is_early_or_twice_is_found() {
    let flow = || Story::default().submit();
    flow().callback("c", CHILDREN - 1).check(&["callback c ran after 3 of 4 parents"]);
    let twice = flow().callback("c", CHILDREN).callback("d", CHILDREN);
    twice.check(&["flow has the callbacks [\"c\", \"d\"]"]);
    flow().check(&["flow has the callbacks []"]);
    let mut lost = flow().callback("c", CHILDREN);
    lost.flows.clear();
    lost.check(&["callbacks of no flow", "flow was confirmed as f and is lost"]);
}

#[test]
fn a_tick_that_is_missed_or_twice_is_found() {
    Story::default().ran(1_000).ran(3_000).check(&["ran for 1000 and next for 3000"]);
    Story::default().ran(1_000).ran(1_000).check(&["ran for 1000 and next for 1000"]);
    let mut uncounted = Story::default().ran(1_000).ran(2_000);
    uncounted.ticks = 3;
    uncounted.check(&["the schedule has 2 runs and says"]);
}

#[test]
fn a_task_that_is_given_up_too_early_is_found() {
    let twice = || story().claim("t", 1).handle("t", 2, 0);
    let workers = ["lease-1", "session", "lease-3"];
    // Abandoned, not heard of again, and never answered.
    twice().claim_in_vain("lease-3").given_up("t", "r", &workers).check(&[]);
    twice().claim("t", 3).given_up("t", "r", &workers).check(&[]);
    let early = "task t was given up after 3 losses, and clients know of 2";
    twice().given_up("t", "r", &workers).check(&[early]);
    // What was not answered was not about this one.
    twice().claim_in_vain("lease-4").given_up("t", "r", &workers).check(&[early]);
    let acked = twice().claim("t", 3).ack("t", 3, Answer::Is(()));
    acked.given_up("t", "r", &workers).check(&["task t ended as dead", ORDER]);
}
