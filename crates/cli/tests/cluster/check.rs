//! Check: compares a history and the final state with the promises, from the view of clients.

use crate::cluster::{
    ending::{Ending, Left},
    history::{Answer, At, Call, Claimed, What},
    load::{CALLBACKS, CHILDREN, TICK_EVERY, TICKS},
    task_spec::{self, Found, Step, Timed},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// More than the processes of one machine disagree about the time.
const SLACK: Duration = Duration::from_millis(200);
/// A session lives at least this long after its last message.
const SESSION_LEAST: Duration = Duration::from_secs(1);
/// The number of silent workers after which a task is quarantined.
const LOSSES: usize = 3;

/// A line for each broken promise.
pub(crate) fn broken(calls: &[Call], ending: &Ending) -> Vec<String> {
    let account = Account::of(calls, ending);
    let mut broken = account.requests();
    for task in &ending.tasks {
        broken.extend(account.execution(task));
        broken.extend(account.order(task));
    }
    broken.extend(flows(calls, ending));
    broken.extend(ticks(ending));
    broken
}

/// The number of checked items.
pub(crate) fn summary(calls: &[Call], ending: &Ending) -> String {
    let mut unknown = 0;
    let mut refused = 0;
    let mut stale = 0;
    for call in calls {
        match &call.what {
            What::Enqueue { answer: Answer::Unknown, .. }
            | What::Claim { answer: Answer::Unknown, .. }
            | What::Submit { answer: Answer::Unknown, .. } => unknown += 1,
            What::Enqueue { answer: Answer::Refused(_), .. }
            | What::Claim { answer: Answer::Refused(_), .. }
            | What::Ack { answer: Answer::Refused(_), .. } => refused += 1,
            What::Ack { answer: Answer::Rejected(_), .. } => stale += 1,
            _ => {}
        }
    }
    let again = ending.tasks.iter().filter(|task| task.workers.len() > 1).count();
    let given_up = ending.tasks.iter().filter(|task| is_quarantined(task)).count();
    format!(
        "{} calls, {unknown} without an answer, {refused} refused, {stale} stale acks; {} tasks, \
         {again} of them handed out more than once, {given_up} given up; {} flows, {} ticks",
        calls.len(),
        ending.tasks.len(),
        ending.flows.len(),
        ending.ticks.fired
    )
}

/// The calls about each task.
struct Account<'a> {
    tasks: BTreeMap<&'a str, &'a Left>,
    by_task: BTreeMap<&'a str, Vec<&'a Call>>,
    by_request: BTreeMap<&'a str, Vec<&'a Call>>,
    submissions: BTreeMap<&'a str, &'a Call>,
    /// The workers of claims without an answer.
    unanswered: BTreeSet<&'a str>,
    /// The end of the history.
    end: At,
}

impl<'a> Account<'a> {
    fn of(calls: &'a [Call], ending: &'a Ending) -> Account<'a> {
        let mut account = Account {
            tasks: ending.tasks.iter().map(|task| (task.id.as_str(), task)).collect(),
            by_task: BTreeMap::new(),
            by_request: BTreeMap::new(),
            submissions: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            end: calls.iter().map(|call| call.end).max().unwrap_or_default(),
        };
        for call in calls {
            match &call.what {
                What::Enqueue { request, .. } => {
                    account.by_request.entry(request).or_default().push(call);
                }
                What::Submit { flow, .. } => drop(account.submissions.insert(flow, call)),
                What::Claim { worker, answer: Answer::Unknown, .. } => {
                    account.unanswered.insert(worker);
                }
                What::Claim { answer, .. } => {
                    for claimed in answer.known().into_iter().flatten() {
                        account.by_task.entry(&claimed.id).or_default().push(call);
                    }
                }
                What::Handle { claimed: Claimed { id, .. }, .. }
                | What::Ack { id, .. }
                | What::Look { id, .. } => account.by_task.entry(id).or_default().push(call),
            }
        }
        account
    }

    /// Each request has at most one task: a confirmed request has one, a refused request none.
    fn requests(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for task in self.tasks.values().filter(|task| self.by_request.contains_key(&*task.payload))
        {
            found.entry(&task.payload).or_default().insert(&task.id);
        }
        for (request, calls) in &self.by_request {
            let found = found.remove(request).unwrap_or_default();
            let answers = calls.iter().filter_map(|call| match &call.what {
                What::Enqueue { answer, .. } => Some(answer),
                _ => None,
            });
            let told: BTreeSet<&str> = answers
                .clone()
                .filter_map(|answer| answer.known().map(|made| made.id.as_str()))
                .collect();
            if found.len().max(told.len()) > 1 {
                broken.push(format!("request {request} made {found:?}, and clients know {told:?}"));
            } else if !told.is_subset(&found) {
                broken.push(format!("request {request} was confirmed as {told:?} and is lost"));
            }
            let refused = |answer: &Answer<_>| matches!(answer, Answer::Refused(_));
            if answers.clone().all(refused) && !found.is_empty() {
                broken
                    .push(format!("request {request} was refused and made {found:?} all the same"));
            }
        }
        for (id, calls) in &self.by_task {
            if !self.tasks.contains_key(id) {
                broken.push(format!("task {id} was seen and is lost: {calls:?}"));
            }
        }
        broken
    }

    /// The task ran, and the claim with the accepted ack ended it.
    fn execution(&self, task: &Left) -> Vec<String> {
        let mut broken = Vec::new();
        let id = &task.id;
        let mut claimed = BTreeMap::<u64, usize>::new();
        let (mut accepted, mut open) = (BTreeSet::new(), BTreeSet::new());
        for call in self.calls(task) {
            match &call.what {
                What::Claim { .. } | What::Handle { .. } => {
                    *claimed.entry(token_in(call, id)).or_default() += 1;
                }
                What::Ack { token, answer: Answer::Is(()), .. } => drop(accepted.insert(*token)),
                What::Ack { token, answer: Answer::Unknown, .. } => drop(open.insert(*token)),
                _ => {}
            }
        }
        for (token, times) in claimed.iter().filter(|(_, times)| **times > 1) {
            broken.push(format!("claim {token} of task {id} was given to {times} workers"));
        }
        if accepted.len() > 1 {
            broken.push(format!("task {id} was acked under {accepted:?}"));
        }
        match (task.state.as_str(), task.token) {
            ("succeeded", Some(token)) => {
                if !claimed.contains_key(&token) {
                    broken.push(format!("task {id} was ended by claim {token}, which nobody had"));
                }
                if !accepted.is_empty() && !accepted.contains(&token) {
                    broken.push(format!("task {id} was acked under {accepted:?}, not {token}"));
                }
                if !accepted.contains(&token) && !open.contains(&token) {
                    broken.push(format!("task {id}: no ack of claim {token} can have ended it"));
                }
            }
            // The task is quarantined because three workers fell silent. It may never have run.
            ("dead", _) if is_quarantined(task) && accepted.is_empty() => {
                let silent = claimed.len() + self.unanswered(task);
                if silent < LOSSES {
                    broken.push(format!(
                        "task {id} was given up after {LOSSES} losses, and clients know of {silent}"
                    ));
                }
            }
            (state, token) => {
                broken.push(format!("task {id} ended as {state} with {token:?}: {task:?}"));
            }
        }
        broken
    }

    /// The number of the task's claims by lease whose answers were lost.
    fn unanswered(&self, task: &Left) -> usize {
        let unheard = |worker: &&String| self.unanswered.contains(worker.as_str());
        task.workers.iter().filter(unheard).count()
    }

    /// All answers about the task fit into one order.
    fn order(&self, task: &Left) -> Option<String> {
        let steps = self.steps(task);
        let words = || {
            let steps = task_spec::shown(&steps);
            format!("no order of these makes sense for task {}:\n{steps}    {task:?}", task.id)
        };
        (!task_spec::is_linearizable(&steps)).then(words)
    }

    fn calls(&self, task: &Left) -> impl Iterator<Item = &'a Call> {
        self.by_task.get(&*task.id).into_iter().flatten().copied()
    }

    fn steps(&self, task: &Left) -> Vec<Timed> {
        let mut steps = vec![];
        let made = self.by_request.get(&*task.payload).into_iter().flatten();
        steps.extend(made.filter_map(|call| enqueue_step(call)));
        if task.occurrence_at.is_some() || task.flow.is_some() {
            let submission = task.flow.as_ref().and(self.submissions.get(&*task.payload));
            let begin = submission.map_or(At::ZERO, |call| call.begin);
            steps.push(Timed { begin, end: None, step: Step::Enqueue { first: true } });
        }
        for call in self.calls(task) {
            steps.extend(task_steps(call, task));
        }
        steps.extend(hidden_steps(task, &steps));
        let mut steps = without_repeats(steps);
        // The final state counts as the last look.
        let found = if task.state == "succeeded" { Found::Done } else { Found::Waiting };
        steps.push(Timed { begin: self.end, end: Some(self.end), step: Step::Look(found) });
        steps
    }
}

/// Whether the task is a dead letter because its workers fell silent.
fn is_quarantined(task: &Left) -> bool {
    task.state == "dead" && task.death_reason == "its workers died"
}

fn maybe(begin: At, step: Step) -> Timed {
    Timed { begin, end: None, step: Step::Maybe(Box::new(step)) }
}

fn enqueue_step(call: &Call) -> Option<Timed> {
    let What::Enqueue { answer, .. } = &call.what else { return None };
    match answer {
        Answer::Is(made) => {
            let step = Step::Enqueue { first: made.first };
            Some(Timed { begin: call.begin, end: Some(call.end), step })
        }
        Answer::Unknown => Some(maybe(call.begin, Step::Enqueue { first: false })),
        Answer::Rejected(_) | Answer::Refused(_) => None,
    }
}

/// The steps of a task in a call: one step, or a claim and its end.
fn task_steps(call: &Call, task: &Left) -> Vec<Timed> {
    let timed = |step| Timed { begin: call.begin, end: Some(call.end), step };
    let claim = |worker: &str, begin: At, lapses_from: At| {
        let (worker, token): (Arc<str>, _) = (worker.into(), Some(token_in(call, &task.id)));
        let step = Step::Claim { worker: worker.clone(), token };
        let claim = Timed { begin, end: Some(call.end), step };
        // The claim that ended the task can't have lapsed.
        let lapse =
            (token != task.token).then(|| maybe(lapses_from, Step::Lapse { worker, token }));
        std::iter::once(claim).chain(lapse).collect()
    };
    match &call.what {
        What::Claim { worker, lease, .. } => claim(worker, call.begin, call.begin + *lease - SLACK),
        What::Handle { worker, .. } => claim(worker, At::ZERO, call.end + SESSION_LEAST),
        What::Ack { token, answer, .. } => match answer {
            Answer::Is(()) => vec![timed(Step::Ack { token: *token })],
            Answer::Rejected(code) => {
                let finished = code == "already_finished";
                vec![timed(Step::StaleAck { token: *token, finished })]
            }
            // The answer of this ack was lost, but the result shows that the broker accepted it.
            Answer::Unknown if task.token == Some(*token) => {
                vec![maybe(call.begin, Step::Ack { token: *token })]
            }
            Answer::Unknown | Answer::Refused(_) => vec![],
        },
        What::Look { answer: Answer::Is(seen), .. } => {
            let found = match (seen.state.as_str(), &seen.worker) {
                ("claimed", worker) => Found::HeldBy(worker.as_deref().unwrap_or_default().into()),
                ("succeeded", _) => Found::Done,
                // A dead letter is neither claimed nor done.
                _ => Found::Waiting,
            };
            vec![timed(Step::Look(found))]
        }
        What::Look { answer: Answer::Rejected(_), .. } => vec![timed(Step::Look(Found::Absent))],
        What::Look { .. } | What::Enqueue { .. } | What::Submit { .. } => vec![],
    }
}

/// Claims whose answers were lost: attempts that no client knows, and holders that readers saw.
fn hidden_steps(task: &Left, steps: &[Timed]) -> Vec<Timed> {
    let mut known: Vec<&str> = Vec::new();
    let mut hidden: BTreeSet<&str> = BTreeSet::new();
    for timed in steps {
        match &timed.step {
            Step::Claim { worker, .. } => known.push(worker),
            Step::Look(Found::HeldBy(worker)) => drop(hidden.insert(worker)),
            _ => {}
        }
    }
    // A claim by lease has a worker name that no other claim has. A session can claim many times.
    hidden.retain(|worker| !(worker.starts_with("lease-") && known.contains(worker)));
    let mut hidden: Vec<&str> = hidden.into_iter().collect();
    for worker in &task.workers {
        match known.iter().position(|known| known == worker) {
            Some(index) => drop(known.remove(index)),
            None if hidden.contains(&worker.as_str()) => {}
            None => hidden.push(worker),
        }
    }
    let both = |worker: &str| {
        let worker: Arc<str> = worker.into();
        let claim = Step::Claim { worker: worker.clone(), token: None };
        [maybe(At::ZERO, claim), maybe(At::ZERO, Step::Lapse { worker, token: None })]
    };
    hidden.into_iter().flat_map(both).collect()
}

/// Keeps only the earliest of several optional steps with one effect, because each such step
/// doubles the checker's work.
fn without_repeats(mut steps: Vec<Timed>) -> Vec<Timed> {
    steps.sort_by_key(|timed| timed.begin);
    let mut kept: Vec<Timed> = Vec::new();
    for timed in steps {
        let is_repeat = |earlier: &Timed| earlier.end.is_none() && earlier.step == timed.step;
        if timed.end.is_some() || !kept.iter().any(is_repeat) {
            kept.push(timed);
        }
    }
    kept
}

/// The token under which a call got a task.
fn token_in(call: &Call, id: &str) -> u64 {
    let token = match &call.what {
        What::Claim { answer, .. } => {
            let mut claimed = answer.known().into_iter().flatten();
            claimed.find(|claimed| claimed.id == id).map(|claimed| claimed.token)
        }
        What::Handle { claimed, .. } => Some(claimed.token),
        _ => None,
    };
    token.expect("the call got it")
}

/// Each confirmed flow exists once and has succeeded. Its callback ran once, after all its parents.
fn flows(calls: &[Call], ending: &Ending) -> Vec<String> {
    let mut broken = Vec::new();
    let mut callbacks = BTreeMap::<&str, Vec<&str>>::new();
    for task in ending.tasks.iter().filter(|task| task.queue == CALLBACKS) {
        callbacks.entry(task.flow.as_deref().unwrap_or_default()).or_default().push(&task.id);
    }
    let mut names = BTreeSet::new();
    for flow in &ending.flows {
        if !names.insert(&flow.name) {
            broken.push(format!("{} was submitted once and is there twice", flow.name));
        }
        if flow.state != "succeeded" {
            broken.push(format!("{} is {}", flow.name, flow.state));
        }
        let tasks = callbacks.remove(&*flow.id).unwrap_or_default();
        if tasks.len() != 1 {
            broken.push(format!("{} has the callbacks {tasks:?}", flow.name));
        }
    }
    if !callbacks.is_empty() {
        broken.push(format!("callbacks of no flow: {callbacks:?}"));
    }
    let ids: BTreeSet<&str> = ending.flows.iter().map(|flow| flow.id.as_str()).collect();
    let called_back: BTreeSet<&str> =
        ending.tasks.iter().filter(|task| task.queue == CALLBACKS).map(|task| &*task.id).collect();
    for call in calls {
        let claimed: &[Claimed] = match &call.what {
            What::Submit { flow, answer: Answer::Is(id) } if !ids.contains(id.as_str()) => {
                broken.push(format!("{flow} was confirmed as {id} and is lost"));
                continue;
            }
            What::Claim { answer: Answer::Is(claimed), .. } => claimed,
            What::Handle { claimed, .. } => std::slice::from_ref(claimed),
            _ => continue,
        };
        for early in claimed.iter().filter(|task| called_back.contains(&*task.id)) {
            if early.parents != CHILDREN {
                let (id, parents) = (&early.id, early.parents);
                broken.push(format!("callback {id} ran after {parents} of {CHILDREN} parents"));
            }
        }
    }
    broken
}

/// Every occurrence of the schedule from the first to the last has one run.
fn ticks(ending: &Ending) -> Vec<String> {
    let mut broken = Vec::new();
    let runs = ending.tasks.iter().filter(|task| task.queue == TICKS);
    let mut runs: Vec<u64> = runs.map(|task| task.occurrence_at.unwrap_or_default()).collect();
    runs.sort_unstable();
    let every = u64::try_from(TICK_EVERY.as_millis()).unwrap();
    for pair in runs.windows(2).filter(|pair| pair[1] - pair[0] != every) {
        broken.push(format!("the schedule ran for {} and next for {}", pair[0], pair[1]));
    }
    let left = &ending.ticks;
    if (left.fired, left.skipped, left.missed) != (runs.len() as u64, 0, 0) {
        broken.push(format!("the schedule has {} runs and says {left:?}", runs.len()));
    }
    broken
}

#[cfg(test)]
mod tests;
