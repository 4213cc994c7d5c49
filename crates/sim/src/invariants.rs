//! Invariants: the properties that must hold under every failure. The oracle sees every applied
//! entry and every answer to a client, and keeps an independent account of each task.
//!
//! Per shard: each term has one leader; a committed entry never changes; replicas that applied the
//! same index did the same and are equal; time never goes back and never stands still. Per task: it
//! is enqueued once; it has one live claim; tokens grow; it never runs before its time, or again
//! after it succeeded. Per queue and key: no claim exceeds its limits. Per client: an acknowledged
//! task is on a majority of disks, stays, and is visible to every later read.

mod control;
mod enqueued;
mod flows;
mod keys;
mod limits;
mod schedules;
mod words;

use crate::clock::LeaderClock;
use crate::every::Every;
use crate::rng::hash;
use crate::sabotage::Sabotage;
use crate::shard::Applied;
pub(crate) use control::ControlAccount;
use enqueued::{born, enqueued};
use flows::Flows;
use limits::Limits;
pub(crate) use schedules::Occurrence;
use schedules::Schedules;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use taskyard_machine::{
    Claim, ClaimedTask, Command, DeadAction, Entry, Event, EventKind, Machine, NewTask, Outcome,
    Rejection, Selection, TaskId, TaskStateName, TaskView, When,
};
use words::{answer_word, word_for};

/// Something that must never happen, in words.
pub(crate) type Violation = String;

/// The part of one entry's effect on which every replica must agree.
#[derive(Debug)]
struct Committed {
    term: u64,
    data: u64,
    fingerprint: u64,
    state_hash: Option<u64>,
}

/// The state of a task in the oracle's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Claimed { token: u64 },
    Finished(TaskStateName),
    Removed,
}

#[derive(Debug)]
struct Task {
    phase: Phase,
    token_last: u64,
    /// The task must not be claimed before this moment.
    runs_from: u64,
    /// The queue and unique key that the task has while it lives.
    key: Option<(String, String)>,
}

/// A task in the answer to a claim.
struct HandedOut<'e> {
    claim: &'e ClaimedTask,
    /// Whether the claim was sent before, and may have got the task then.
    is_repeated: bool,
}

#[derive(Debug, Default)]
struct ShardAccount {
    committed: BTreeMap<u64, Committed>,
    tasks: BTreeMap<TaskId, Task>,
    now: u64,
    /// The highest index whose outcome a client has got.
    answered_index: u64,
    leaders: BTreeMap<u64, u64>,
    /// The leader's last stamp: term, stamp, and its real time.
    stamped: (u64, u64, u64),
    /// Tasks of flows on this shard, which their flows may run again.
    members: BTreeSet<TaskId>,
    limits: Limits,
}

/// The account of one run.
#[derive(Debug)]
pub(crate) struct Oracle {
    shards: Vec<ShardAccount>,
    /// The task of each pair of queue and request id.
    requests: BTreeMap<(String, String), TaskId>,
    /// Tasks that clients know as enqueued.
    acknowledged: BTreeSet<TaskId>,
    /// Tasks that acks, flows and schedules have promised, on this shard or others.
    follow_ups: BTreeSet<TaskId>,
    /// The follow-ups that are due at once, until they are enqueued.
    due_at_once: BTreeSet<TaskId>,
    flows: Flows,
    schedules: Schedules,
    pub(crate) control: ControlAccount,
    /// Whether the oracle leaves it to the replicas to find that they differ.
    trusts: bool,
    pub(crate) entries: u64,
    pub(crate) claims: u64,
    /// The number of facts of each kind.
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

impl Oracle {
    pub(crate) fn new(shards: u16, sabotage: Sabotage) -> Oracle {
        Oracle {
            trusts: sabotage.leads_astray(),
            shards: (0..shards).map(|_| ShardAccount::default()).collect(),
            requests: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            follow_ups: BTreeSet::new(),
            due_at_once: BTreeSet::new(),
            flows: Flows::default(),
            schedules: Schedules::default(),
            control: ControlAccount::default(),
            entries: 0,
            claims: 0,
            seen: BTreeMap::new(),
        }
    }

    /// Checks a replica that becomes leader.
    pub(crate) fn leads(&mut self, shard: u16, term: u64, replica: u64) -> Result<(), Violation> {
        let leader = *self.shards[usize::from(shard)].leaders.entry(term).or_insert(replica);
        if leader != replica {
            return Err(format!(
                "replicas {leader} and {replica} both lead shard {shard} in term {term}"
            ));
        }
        Ok(())
    }

    /// A leader stamps its entries: its time goes on, almost as fast as time passes.
    pub(crate) fn stamped(
        &mut self,
        shard: u16,
        term: u64,
        stamp: u64,
        now: u64,
    ) -> Result<(), Violation> {
        let account = &mut self.shards[usize::from(shard)];
        let (term_last, stamp_last, at) = account.stamped;
        if term_last > term {
            return Ok(());
        }
        if term_last == term && stamp < stamp_last + LeaderClock::advance_min(now - at) {
            let passed = now - at;
            return Err(format!(
                "shard {shard}: time is too slow, from {stamp_last} to {stamp} in {passed} ms"
            ));
        }
        // Measured from the start of the term, so that rounding does not add up.
        if term_last < term {
            account.stamped = (term, stamp, now);
        }
        Ok(())
    }

    /// Checks an applied entry. The first replica to apply it sets its meaning.
    pub(crate) fn applied(
        &mut self,
        shard: u16,
        node: usize,
        index: u64,
        term: u64,
        applied: &Applied,
    ) -> Result<(), Violation> {
        let at = || format!("node {node}, shard {shard}, entry {index}");
        if let Some(fault) = &applied.fault {
            return Err(format!("{}: {fault}", at()));
        }
        let account = &mut self.shards[usize::from(shard)];
        let committed = Committed {
            term,
            data: hash(&applied.data),
            fingerprint: applied.fingerprint(),
            state_hash: applied.state_hash,
        };
        if let Some(first) = account.committed.get(&index) {
            if (first.term, first.data) != (committed.term, committed.data) {
                let terms = (first.term, committed.term);
                return Err(format!("{}: a committed entry changed, terms {terms:?}", at()));
            }
            if self.trusts {
                return Ok(());
            }
            if first.fingerprint != committed.fingerprint {
                return Err(format!("{}: replicas decided differently", at()));
            }
            if first.state_hash != committed.state_hash {
                return Err(format!("{}: replicas' states differ", at()));
            }
            return Ok(());
        }
        if account.committed.keys().next_back().is_some_and(|&last| last > index) {
            return Err(format!("{}: an entry appeared behind the last one", at()));
        }
        account.committed.insert(index, committed);
        self.entries += 1;
        self.judge(shard, applied).map_err(|violation| format!("{}: {violation}", at()))
    }

    /// Follows the effect of an entry on each task.
    fn judge(&mut self, shard: u16, applied: &Applied) -> Result<(), Violation> {
        let entry = Entry::decode(&applied.data).map_err(|error| error.to_string())?;
        for task in self.flows.learn(&entry.commands, &applied.outcomes) {
            self.follow_ups.insert(task);
            self.shards[usize::from(task.home.0)].members.insert(task);
        }
        self.flows.judge(&applied.events)?;
        let runs = self.schedules.judge(shard, &entry, applied, &mut self.seen)?;
        self.follow_ups.extend(runs);
        let account = &mut self.shards[usize::from(shard)];
        let now = entry.now.0;
        if now < account.now {
            return Err(format!("time went back from {} to {now}", account.now));
        }
        account.now = now;
        if entry.commands.len() != applied.outcomes.len() {
            return Err("an entry has one outcome per command".into());
        }
        let mut claims = VecDeque::new();
        for (command, outcome) in entry.commands.iter().zip(&applied.outcomes) {
            if entry.commands.len() == 1 {
                account.judge_token(command, outcome, &applied.events)?;
            }
            if let Ok(Outcome::Claimed(tasks)) = outcome {
                let Command::Claim(Claim { number, .. }) = command else {
                    return Err("only a claim hands out tasks".into());
                };
                let is_repeated = number.is_some_and(|number| number.sending > 0);
                claims.extend(tasks.iter().map(|claim| HandedOut { claim, is_repeated }));
            }
        }
        self.claims += claims.len() as u64;
        for what in
            applied.events.iter().map(word_for).chain(applied.outcomes.iter().map(answer_word))
        {
            *self.seen.entry(what).or_default() += 1;
        }
        let revived = account.revived(&entry.commands, &applied.outcomes);
        let mut born = born(&entry.commands, &applied.outcomes, now);
        // A run on another shard starts by that shard's time, which may be behind.
        for (task, _) in applied.runs.iter().filter(|(task, _)| task.home == task.origin) {
            born.extend(self.schedules.starts_at(*task).map(|at| (*task, at.0)));
        }
        account.judge_refusals(&applied.outcomes, &revived)?;
        for event in &applied.events {
            account.follow(event, &born, &revived, &mut claims, now)?;
        }
        while !claims.is_empty() {
            account.take_over(&mut claims)?;
        }
        account.judge_keys(&entry.commands, &applied.outcomes)?;
        account.limits.judge(&entry.commands, &applied.outcomes, &applied.events)?;
        for (task, view) in &applied.views {
            account.compare(*task, view.as_ref())?;
        }
        self.judge_requests(&entry.commands, &applied.outcomes)?;
        self.judge_delays(applied)
    }

    /// Checks that a follow-up that is due at once does not wait at its target, however far the
    /// clocks of the two shards are apart.
    fn judge_delays(&mut self, applied: &Applied) -> Result<(), Violation> {
        for event in &applied.events {
            let EventKind::TaskEnqueued(task) = &event.kind else { continue };
            if !self.due_at_once.remove(&task.id) {
                continue;
            }
            *self.seen.entry("follow-up due at once").or_default() += 1;
            let view = applied.views.iter().find(|(id, _)| *id == task.id);
            let waits = view
                .and_then(|(_, view)| view.as_ref())
                .filter(|view| view.state == TaskStateName::Scheduled && view.attempt == 0);
            if let Some(view) = waits {
                return Err(format!(
                    "follow-up {} is due at once and waits until {:?}",
                    task.id, view.run_at
                ));
            }
        }
        Ok(())
    }

    /// Checks that a request id always names the same task, and records promised follow-ups by
    /// their ids.
    fn judge_requests(
        &mut self,
        commands: &[Command<'_>],
        outcomes: &[Result<Outcome, Rejection>],
    ) -> Result<(), Violation> {
        for (queue, task, id, _) in enqueued(commands, outcomes) {
            let Some(request_id) = task.request_id else { continue };
            let key = (queue.to_owned(), request_id.to_owned());
            let first = *self.requests.entry(key).or_insert(id);
            if first != id {
                return Err(format!("request {request_id} of {queue} made {first} and {id}"));
            }
        }
        for (command, outcome) in commands.iter().zip(outcomes) {
            if let (Command::Ack(ack), Ok(Outcome::Acked { follow_ups })) = (command, outcome) {
                if follow_ups.len() != ack.follow_ups.len() {
                    return Err(format!("ack of {} lost follow-ups", ack.task));
                }
                self.follow_ups.extend(follow_ups);
                let tasks = ack.follow_ups.iter().map(|follow_up| &follow_up.enqueue.task);
                let planned = follow_ups.iter().zip(tasks);
                let at_once = planned.filter(|(_, task)| is_due_at_once(task));
                self.due_at_once.extend(at_once.map(|(id, _)| id));
            }
        }
        Ok(())
    }

    /// Checks an outcome before a client gets it. `kept` says whether a majority's disks have the
    /// entry.
    pub(crate) fn answered(&mut self, shard: u16, index: u64, kept: bool) -> Result<(), Violation> {
        if !kept {
            return Err(format!(
                "shard {shard}, entry {index} was answered before a majority's disks hold it"
            ));
        }
        let account = &mut self.shards[usize::from(shard)];
        account.answered_index = account.answered_index.max(index);
        Ok(())
    }

    /// The least index that a read beginning now must show.
    pub(crate) fn read_floor(&self, shard: u16) -> u64 {
        self.shards[usize::from(shard)].answered_index
    }

    /// Records that a client knows these tasks as enqueued.
    pub(crate) fn acknowledge(&mut self, tasks: &[TaskId]) -> Result<(), Violation> {
        for &task in tasks {
            if !self.shards[usize::from(task.home.0)].tasks.contains_key(&task) {
                return Err(format!("task {task} was acknowledged and never enqueued"));
            }
            self.acknowledged.insert(task);
        }
        Ok(())
    }

    /// A strong read may miss a task only if it was removed.
    pub(crate) fn check_view(
        &self,
        task: TaskId,
        view: Option<&TaskView>,
    ) -> Result<(), Violation> {
        let account = self.shards[usize::from(task.home.0)].tasks.get(&task);
        let removed = account.is_none_or(|account| account.phase == Phase::Removed);
        // A flow names its tasks before they have reached their shards.
        if view.is_none() && !removed && self.acknowledged.contains(&task) {
            return Err(format!("a read did not see task {task}"));
        }
        Ok(())
    }

    /// Checks that every acknowledged task is in the state of its shard's leader, or left it in an
    /// allowed way.
    pub(crate) fn check_present(&self, shard: u16, machine: &Machine) -> Result<(), Violation> {
        let tasks = &self.shards[usize::from(shard)].tasks;
        for task in self.acknowledged.iter().filter(|task| task.home.0 == shard) {
            let removed = tasks.get(task).is_some_and(|account| account.phase == Phase::Removed);
            if !removed && machine.task(*task).is_none() {
                return Err(format!("acknowledged task {task} is lost"));
            }
        }
        Ok(())
    }

    /// Checks a shard's schedules at rest.
    pub(crate) fn check_schedules(&self, shard: u16, machine: &Machine) -> Result<(), Violation> {
        self.schedules.check_machine(shard, machine)
    }

    /// Checks after the healing that everything has ended, and that every promised follow-up was
    /// enqueued.
    pub(crate) fn check_end(&self) -> Result<(), Violation> {
        let all = || self.shards.iter().flat_map(|account| &account.tasks);
        let open = |phase| matches!(phase, Phase::Waiting | Phase::Claimed { .. });
        if let Some((task, account)) = all().find(|(_, account)| open(account.phase)) {
            return Err(format!("task {task} never ended: {:?}", account.phase));
        }
        let known: BTreeSet<TaskId> = all().map(|(task, _)| *task).collect();
        if let Some(task) = self.follow_ups.difference(&known).next() {
            return Err(format!("follow-up {task} was promised and never enqueued"));
        }
        self.flows.check_end()?;
        self.schedules.check_end()
    }

    /// A schedule as a gateway sees it: its occurrences, and the version of its rules.
    pub(crate) fn schedule(&self, name: &str) -> Option<(Every, u64)> {
        self.schedules.find(name)
    }

    /// Ends the faults: from now on every live schedule must fire.
    pub(crate) fn heal(&mut self) {
        self.schedules.heal();
    }

    /// A schedule that has not fired since the faults ended, although it should have.
    pub(crate) fn stuck_schedule(&self) -> Option<&str> {
        self.schedules.stuck()
    }

    pub(crate) fn unpaused_schedule(&self) -> Option<&str> {
        self.schedules.unpaused()
    }

    pub(crate) fn task_count(&self) -> usize {
        self.shards.iter().map(|account| account.tasks.len()).sum()
    }
}

/// Whether a new task may run as soon as it is there.
fn is_due_at_once(task: &NewTask<'_>) -> bool {
    let waits_for_quiet = task.unique.as_ref().is_some_and(|unique| unique.debounce_ms.is_some());
    task.run_at == When::Now && !waits_for_quiet
}

impl ShardAccount {
    /// Checks that a live claim's token is accepted, and no other. Only for entries of one command,
    /// because an earlier command of a longer entry may have ended the claim.
    fn judge_token(
        &self,
        command: &Command<'_>,
        outcome: &Result<Outcome, Rejection>,
        events: &[Event],
    ) -> Result<(), Violation> {
        let (task, token) = match command {
            Command::Ack(ack) => (ack.task, ack.token),
            Command::Fail(fail) => (fail.task, fail.token),
            Command::Extend(extend) => (extend.task, extend.token),
            Command::Release(release) => (release.task, release.token),
            Command::Snooze(snooze) => (snooze.task, snooze.token),
            _ => return Ok(()),
        };
        let Some(account) = self.tasks.get(&task) else { return Ok(()) };
        let live = account.phase == Phase::Claimed { token: token.0 };
        // A repeated ack or failure may get the same answer, and changes nothing.
        let ends = matches!(command, Command::Ack(_) | Command::Fail(_));
        let repeated = ends && account.token_last == token.0 && events.is_empty();
        match outcome {
            Err(Rejection::ClaimLost { .. }) if live => {
                Err(format!("token {} of {task} is live and was refused", token.0))
            }
            Ok(_) if !live && !repeated => {
                Err(format!("token {} of {task} is not live and was accepted", token.0))
            }
            _ => Ok(()),
        }
    }

    /// Handles a task in a claim's answer that no event confirms: an earlier sending of the same
    /// claim got it, and this sending takes it over.
    fn take_over(&mut self, claims: &mut VecDeque<HandedOut<'_>>) -> Result<(), Violation> {
        let Some(HandedOut { claim, is_repeated }) = claims.pop_front() else { return Ok(()) };
        let (id, token) = (claim.id, claim.token.0);
        if !is_repeated {
            return Err(format!("task {id} was handed out without an event"));
        }
        let task = self.tasks.get_mut(&id).ok_or_else(|| format!("task {id} is unknown"))?;
        if token <= task.token_last {
            return Err(format!("token of {id} went from {} to {token}", task.token_last));
        }
        task.token_last = token;
        // A later command of the entry may have ended the claim.
        if let Phase::Claimed { token: live } = &mut task.phase {
            *live = token;
        }
        Ok(())
    }

    /// Tasks that these commands make ready by hand.
    fn revived(
        &self,
        commands: &[Command<'_>],
        outcomes: &[Result<Outcome, Rejection>],
    ) -> BTreeSet<TaskId> {
        let mut revived = BTreeSet::new();
        for (command, _) in commands.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            match command {
                Command::Retry(retry) => {
                    revived.insert(retry.task);
                }
                Command::Dead(dead) if dead.action == DeadAction::Retry => match &dead.selection {
                    Selection::Ids(ids) => revived.extend(ids),
                    Selection::Filter { .. } => {
                        let dead = Phase::Finished(TaskStateName::Dead);
                        let all = self.tasks.iter().filter(|(_, task)| task.phase == dead);
                        revived.extend(all.map(|(id, _)| *id));
                    }
                },
                _ => {}
            }
        }
        revived
    }

    fn follow(
        &mut self,
        event: &Event,
        born: &BTreeMap<TaskId, u64>,
        revived: &BTreeSet<TaskId>,
        claims: &mut VecDeque<HandedOut<'_>>,
        now: u64,
    ) -> Result<(), Violation> {
        let Some(id) = crate::shard::task_of(event) else { return Ok(()) };
        if let EventKind::TaskClaimed(..) = event.kind {
            while claims.front().is_some_and(|handed| handed.claim.id != id) {
                self.take_over(claims)?;
            }
        }
        if let EventKind::TaskEnqueued(_) = event.kind {
            let runs_from = born.get(&id).copied().unwrap_or(0);
            let task = Task { phase: Phase::Waiting, token_last: 0, runs_from, key: None };
            return match self.tasks.insert(id, task) {
                Some(_) => Err(format!("task {id} was enqueued twice")),
                None => Ok(()),
            };
        }
        let task =
            self.tasks.get_mut(&id).ok_or_else(|| format!("{event:?} of an unknown task"))?;
        let before = task.phase;
        let live = matches!(before, Phase::Claimed { .. });
        let waiting = before == Phase::Waiting;
        let finished = matches!(before, Phase::Finished(_));
        let member = self.members.contains(&id);
        let revived = revived.contains(&id) || (member && finished);
        let (allowed, after) = match &event.kind {
            EventKind::TaskEnqueued(_) => unreachable!("handled above"),
            EventKind::TaskReplaced(_, run_at) => {
                task.runs_from = run_at.map_or(task.runs_from, |at| at.0);
                (waiting, Phase::Waiting)
            }
            EventKind::TaskReady(_) => (waiting || live || (finished && revived), Phase::Waiting),
            EventKind::TaskBlocked(_) => (finished && member, Phase::Waiting),
            EventKind::TaskClaimed(..) => {
                let handed = claims.pop_front();
                let HandedOut { claim, .. } =
                    handed.ok_or_else(|| format!("{event:?} was not answered"))?;
                if claim.token.0 <= task.token_last {
                    let last = task.token_last;
                    return Err(format!("token of {id} went from {last} to {}", claim.token.0));
                }
                if now < task.runs_from {
                    return Err(format!(
                        "task {id} was handed out {} ms early",
                        task.runs_from - now
                    ));
                }
                task.token_last = claim.token.0;
                (waiting, Phase::Claimed { token: claim.token.0 })
            }
            EventKind::TaskProgressed(..) | EventKind::TaskCancelRequested(_) => (live, before),
            EventKind::TaskSucceeded(..) => (live, Phase::Finished(TaskStateName::Succeeded)),
            EventKind::TaskRetrying(_, run_at) | EventKind::TaskSnoozed(_, run_at) => {
                task.runs_from = run_at.0;
                (live, Phase::Waiting)
            }
            EventKind::TaskLost(_) => (live, Phase::Waiting),
            // A task that is lost too often ends right after its loss, in a waiting state.
            EventKind::TaskFailed(_) => (live || waiting, Phase::Finished(TaskStateName::Failed)),
            EventKind::TaskDied(..) => (live || waiting, Phase::Finished(TaskStateName::Dead)),
            EventKind::TaskCancelled(_) => {
                (live || waiting, Phase::Finished(TaskStateName::Cancelled))
            }
            EventKind::TaskExpired(_) => (waiting, Phase::Finished(TaskStateName::Expired)),
            EventKind::TaskRemoved(_) => (waiting || finished, Phase::Removed),
            EventKind::QueuePaused(_)
            | EventKind::QueueResumed(_)
            | EventKind::QueueOpened(_)
            | EventKind::QueueSet(_)
            | EventKind::QueueDeleted(_)
            | EventKind::SessionEnded(_)
            | EventKind::FlowSubmitted(_)
            | EventKind::FlowEnded(..)
            | EventKind::ScheduleFired { .. }
            | EventKind::ScheduleSkipped(..)
            | EventKind::ScheduleMissed(..)
            | EventKind::OutgoingQueued(_)
            | EventKind::DigestMarked { .. }
            | EventKind::DigestAttested { .. } => unreachable!("not about a task"),
        };
        if revived {
            task.runs_from = task.runs_from.min(now);
        }
        if !allowed {
            return Err(format!("{event:?} of a task that is {before:?}"));
        }
        task.phase = after;
        Ok(())
    }

    /// Compares the machine's own view with this account.
    fn compare(&self, id: TaskId, view: Option<&TaskView>) -> Result<(), Violation> {
        let phase = self.tasks.get(&id).map(|task| task.phase);
        let agree = match (phase, view) {
            (Some(Phase::Removed), None) => true,
            (Some(Phase::Waiting), Some(view)) => {
                matches!(
                    view.state,
                    TaskStateName::Blocked | TaskStateName::Ready | TaskStateName::Scheduled
                )
            }
            (Some(Phase::Claimed { token }), Some(view)) => {
                view.state == TaskStateName::Claimed
                    && view.claim.as_ref().is_some_and(|claim| claim.token.0 == token)
            }
            (Some(Phase::Finished(state)), Some(view)) => view.state == state,
            _ => false,
        };
        let shown =
            || view.map(|view| (view.state, view.claim.as_ref().map(|claim| claim.token.0)));
        if agree {
            Ok(())
        } else {
            Err(format!("task {id} is {phase:?}, but shown as {:?}", shown()))
        }
    }
}
