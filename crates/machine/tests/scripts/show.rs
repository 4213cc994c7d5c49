//! From answers, events and views to the words of a story.

use crate::scripts::parse::{START, flow, tally, task};
use taskyard_machine::*;

pub(crate) fn answer(answer: &Result<Outcome, Rejection>) -> Vec<String> {
    match answer {
        Ok(outcome) => outcome_lines(outcome),
        Err(rejection) => vec![refusal(rejection)],
    }
}

fn outcome_lines(outcome: &Outcome) -> Vec<String> {
    match outcome {
        Outcome::Enqueued(made) => vec![enqueued(made)],
        Outcome::EnqueuedMany(answers) => {
            answers.iter().map(|answer| answer.as_ref().map_or_else(refusal, enqueued)).collect()
        }
        Outcome::EnqueuedBatch(made) => {
            vec![made.iter().map(enqueued).collect::<Vec<_>>().join(" ")]
        }
        Outcome::Staged => vec!["staged".into()],
        Outcome::Claimed(tasks) if tasks.is_empty() => vec!["nothing".into()],
        Outcome::Claimed(tasks) => tasks.iter().map(claimed).collect(),
        Outcome::Acked { follow_ups } => {
            let ids: Vec<String> =
                follow_ups.iter().map(|task| format!(" then {}", id(*task))).collect();
            vec![format!("acked{}", ids.concat())]
        }
        Outcome::Failed(after) => vec![match after {
            AfterFailure::Retry { run_at } => format!("retry at {}", time(*run_at)),
            AfterFailure::Dead => "dead".into(),
            AfterFailure::Failed => "failed".into(),
            AfterFailure::Cancelled => "cancelled".into(),
        }],
        Outcome::Extended { lease_expires_at, cancel_requested, .. } => {
            vec![held(*lease_expires_at, *cancel_requested)]
        }
        Outcome::Renewed(renewals) => renewals
            .iter()
            .map(|renewal| match renewal {
                Renewal::Held { lease_expires_at, cancel_requested, .. } => {
                    held(*lease_expires_at, *cancel_requested)
                }
                Renewal::Lost => "lost".into(),
            })
            .collect(),
        Outcome::Released { state }
        | Outcome::CancelRequested { state }
        | Outcome::Killed { state } => vec![state.to_string()],
        Outcome::Snoozed { run_at, state: TaskStateName::Scheduled } => {
            vec![format!("until {}", time(*run_at))]
        }
        Outcome::Snoozed { state, .. } => vec![state.to_string()],
        Outcome::Retried => vec!["retried".into()],
        Outcome::Bulk(progress) => {
            let more = progress.next.map(|next| format!(", more after {}", id(next)));
            let more = more.unwrap_or_default();
            vec![format!("{} changed, {} skipped{more}", progress.changed, progress.skipped)]
        }
        Outcome::ScheduleSet { is_new, is_changed } => vec![match (is_new, is_changed) {
            (true, _) => "new".into(),
            (false, true) => "changed".into(),
            (false, false) => "as it was".into(),
        }],
        Outcome::ScheduleFired { fired, skipped, missed } => {
            vec![format!("{fired} fired, {skipped} skipped, {missed} missed")]
        }
        Outcome::Done => vec!["done".into()],
        Outcome::Expired { count } => vec![format!("{count} due")],
        Outcome::FlowSubmitted { flow, tasks, duplicate } => {
            let known = if *duplicate { " (known)" } else { "" };
            let tasks: Vec<String> = tasks.iter().map(|&task| at_home(task)).collect();
            vec![format!("f{}{known}: {}", flow.sequence, tasks.join(" "))]
        }
        Outcome::FlowTasksAdded(made) => {
            let known = |made: &Enqueued| if made.duplicate { " (known)" } else { "" };
            let made = made.iter().map(|made| format!("{}{}", at_home(made.id), known(made)));
            vec![made.collect::<Vec<_>>().join(" ")]
        }
        Outcome::FlowState(state) => vec![state.to_string()],
        Outcome::Taken => vec!["taken".into()],
        Outcome::TallyOpened { tally } => vec![format!("y{}", tally.sequence)],
        Outcome::TallyAdded { ids } => {
            vec![ids.iter().map(|&task| at_home(task)).collect::<Vec<_>>().join(" ")]
        }
    }
}

fn enqueued(made: &Enqueued) -> String {
    let known = if made.duplicate { " (known)" } else { "" };
    format!("{}{known}", id(made.id))
}

fn claimed(task: &ClaimedTask) -> String {
    let resume = task
        .resume_state
        .as_deref()
        .map(|state| format!(", resumes {:?}", String::from_utf8_lossy(state)));
    let parents = task.parents.iter().map(|parent| {
        let result = parent.result.as_deref().map(String::from_utf8_lossy);
        format!(", {} {} {}", parent.name, parent.state, result.unwrap_or_default())
    });
    format!(
        "{} #{} from {}, attempt {}, until {}{}{}",
        id(task.id),
        task.token.0,
        task.queue,
        task.attempt,
        time(task.lease_expires_at),
        resume.unwrap_or_default(),
        parents.collect::<String>().trim_end()
    )
}

fn held(until: Timestamp, cancel_requested: bool) -> String {
    let stop = if cancel_requested { ", asked to stop" } else { "" };
    format!("held until {}{stop}", time(until))
}

/// With task ids as stories name them.
fn refusal(rejection: &Rejection) -> String {
    let text = rejection.to_string();
    let words = text.split(' ').map(|word| word.parse().map_or_else(|_| word.to_owned(), id));
    format!("no, {}: {}", rejection.code(), words.collect::<Vec<_>>().join(" "))
}

pub(crate) fn event(event: &Event) -> String {
    match &event.kind {
        EventKind::TaskEnqueued(task) => format!("enqueued {}", id(task.id)),
        EventKind::TaskReady(task) => format!("ready {}", id(task.id)),
        EventKind::TaskBlocked(task) => format!("blocked {}", id(task.id)),
        EventKind::TaskClaimed(task, worker) => format!("claimed {} by {worker}", id(task.id)),
        EventKind::TaskProgressed(task, percent) => {
            format!("progressed {} {percent}%", id(task.id))
        }
        EventKind::TaskSucceeded(task, ms) => format!("succeeded {} after {ms} ms", id(task.id)),
        EventKind::TaskRetrying(task, at) => format!("retrying {} at {}", id(task.id), time(*at)),
        EventKind::TaskSnoozed(task, at) => format!("snoozed {} until {}", id(task.id), time(*at)),
        EventKind::TaskFailed(task) => format!("failed {}", id(task.id)),
        EventKind::TaskDied(task, reason) => format!("died {}: {}", id(task.id), reason.as_str()),
        EventKind::TaskLost(task) => format!("lost {}", id(task.id)),
        EventKind::TaskCancelRequested(task) => format!("asked to stop {}", id(task.id)),
        EventKind::TaskCancelled(task) => format!("cancelled {}", id(task.id)),
        EventKind::TaskExpired(task) => format!("expired {}", id(task.id)),
        EventKind::TaskReplaced(task, None) => format!("replaced {}", id(task.id)),
        EventKind::TaskReplaced(task, Some(at)) => {
            format!("replaced {}, runs at {}", id(task.id), time(*at))
        }
        EventKind::TaskRemoved(task) => format!("removed {}", id(task.id)),
        EventKind::QueuePaused(queue) => format!("paused {queue}"),
        EventKind::QueueResumed(queue) => format!("resumed {queue}"),
        EventKind::QueueOpened(queue) => format!("opened {queue}"),
        EventKind::QueueSet(queue) => format!("set {queue}"),
        EventKind::QueueDeleted(queue) => format!("deleted {queue}"),
        EventKind::SessionEnded(session) => format!("session {} ended", session.0),
        EventKind::FlowSubmitted(flow) => format!("submitted f{}", flow.sequence),
        EventKind::FlowEnded(flow, state) => format!("f{} {state}", flow.sequence),
        EventKind::ScheduleFired { name, occurrence_at, task } => {
            format!("{name} fired {} for {}", id(*task), time(*occurrence_at))
        }
        EventKind::ScheduleSkipped(name, at) => format!("{name} skipped {}", time(*at)),
        EventKind::ScheduleMissed(name, count) => format!("{name} missed {count}"),
        EventKind::OutgoingQueued(shard) => format!("owes shard {shard}"),
        EventKind::DigestMarked { mark, .. } => format!("mark {mark}"),
        EventKind::DigestAttested { attest: Attest { mark, replica, .. }, .. } => {
            format!("replica {replica} attests mark {mark}")
        }
    }
}

/// A task, a flow, a queue or `schedule:NAME`.
pub(crate) fn what(machine: &Machine, what: &str) -> String {
    if what.starts_with('f') && what[1..].starts_with(|c: char| c.is_ascii_digit()) {
        let found = machine.flow(flow(what, machine.identity().shard.0));
        return found.map_or("not kept".into(), |flow| flow_line(&flow));
    }
    if what.starts_with('y') && what[1..].starts_with(|c: char| c.is_ascii_digit()) {
        let found = machine.tally(tally(what, machine.identity().shard.0));
        return found.map_or("not kept".into(), |tally| tally_line(&tally));
    }
    if let Some(name) = what.strip_prefix("schedule:") {
        return machine.schedule(name).map_or("no such schedule".into(), |s| schedule_line(&s));
    }
    if what.starts_with('t') && what[1..].starts_with(|c: char| c.is_ascii_digit()) {
        let found = machine.task(task(what, machine.identity().shard.0));
        return found.map_or("not kept".into(), |task| task_line(&task));
    }
    let name = QueueName::parse(what).expect("a queue's name");
    machine.queue(&name).map_or("no such queue".into(), |queue| queue_line(&queue))
}

fn flow_line(flow: &FlowView) -> String {
    let nodes: Vec<String> =
        flow.nodes.iter().map(|node| format!("{} {}", node.name, node.state)).collect();
    let is_stopping = flow.cancel_requested && flow.state == FlowState::Running;
    let stopping = if is_stopping { " (being cancelled)" } else { "" };
    format!("{}{stopping}: {}", flow.state, nodes.join(", "))
}

fn tally_line(tally: &TallyView) -> String {
    let word = |state| match state {
        CallbackState::Waiting => "waiting",
        CallbackState::Enqueued => "enqueued",
        CallbackState::Succeeded => "succeeded",
    };
    format!(
        "{}{}: {} tasks, {} pending, {} failed; complete {}, success {}",
        if tally.committed { "committed" } else { "open" },
        tally.parent.map(|parent| format!(" below y{}", parent.sequence)).unwrap_or_default(),
        tally.total,
        tally.pending,
        tally.failed,
        word(tally.complete),
        word(tally.success)
    )
}

fn task_line(task: &TaskView) -> String {
    let mut parts = vec![format!("{} {}", task.state, task.task_type)];
    parts.push(format!("attempt {} of {}", task.attempt, task.max_attempts));
    if task.losses > 0 {
        parts.push(format!("losses {}", task.losses));
    }
    parts.extend(task.run_at.map(|at| format!("runs at {}", time(at))));
    if let Some(unique) = &task.unique {
        let held = if unique.held { "holds" } else { "held" };
        parts.push(format!("{held} key {}", unique.key));
    }
    parts.extend(task.death.map(|reason| format!("died: {}", reason.as_str())));
    parts.extend(task.progress.as_ref().map(|(percent, _)| format!("{percent}%")));
    let result = task.result.as_deref();
    parts.extend(result.map(|result| format!("result {}", String::from_utf8_lossy(result))));
    for attempt in &task.attempts {
        let outcome = attempt.outcome.as_str();
        let error = attempt.error.as_ref().map(|[kind, message, _]| format!(" {kind}: {message}"));
        parts.push(format!(
            "{}. {outcome} by {} at {}{}",
            attempt.attempt,
            attempt.worker,
            time(attempt.ended_at),
            error.unwrap_or_default()
        ));
    }
    parts.join(", ")
}

/// What a task waits for.
pub(crate) fn why(machine: &Machine, what: &str, now: Timestamp) -> String {
    let reasons = machine.why(task(what, machine.identity().shard.0), now);
    let reasons = reasons.unwrap_or_default();
    let words = reasons.iter().map(|reason| match reason {
        Reason::QueuePaused => "its queue is paused".into(),
        Reason::Scheduled { until, reason } => {
            format!("scheduled until {} ({})", time(*until), reason.as_str())
        }
        Reason::QueueConcurrency { claimed, limit } => format!("its queue is at {claimed}/{limit}"),
        Reason::QueueRate { opens_at } => format!("its queue opens at {}", time(*opens_at)),
        Reason::KeyConcurrency { key, claimed, limit } => {
            format!("key {key} is at {claimed}/{limit}")
        }
        Reason::KeyRate { key, opens_at } => format!("key {key} opens at {}", time(*opens_at)),
        Reason::KeyHeld { key, until } => {
            let key = key.as_ref().map_or("no key".into(), |key| format!("key {key}"));
            format!("{key} is held until {}", time(*until))
        }
        Reason::Ahead { tasks, at_least } => {
            format!("{}{tasks} ahead", if *at_least { "at least " } else { "" })
        }
        Reason::Running { worker, since } => format!("runs on {worker} since {}", time(*since)),
        Reason::Finished { state } => format!("{state}"),
        Reason::Parents { node, .. } => format!("parents of {node}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn schedule_line(schedule: &ScheduleView) -> String {
    let mut parts = Vec::new();
    if schedule.paused {
        parts.push(format!("paused {:?}", schedule.note));
    }
    parts
        .push(schedule.next_run_at.map_or("no next run".into(), |at| format!("next {}", time(at))));
    parts.extend(schedule.last_run_at.map(|at| format!("last {}", time(at))));
    let live: Vec<String> = schedule.live.iter().map(|task| id(*task)).collect();
    parts.extend((!live.is_empty()).then(|| format!("live {}", live.join(" "))));
    parts.extend(schedule.buffered.map(|at| format!("buffered {}", time(at))));
    parts.extend(schedule.remaining_runs.map(|runs| format!("{runs} runs remain")));
    for (word, count) in
        [("fired", schedule.fired), ("skipped", schedule.skipped), ("missed", schedule.missed)]
    {
        parts.extend((count > 0).then(|| format!("{word} {count}")));
    }
    parts.join(", ")
}

fn queue_line(queue: &QueueView) -> String {
    let counts = &queue.counts;
    let named = [
        ("ready", counts.ready),
        ("blocked", counts.blocked),
        ("scheduled", counts.scheduled),
        ("retrying", counts.retrying),
        ("claimed", counts.claimed),
        ("dead", counts.dead),
        ("finished", counts.finished),
        ("ever enqueued", counts.enqueued_total),
        ("succeeded", counts.succeeded_total),
        ("failed", counts.failed_total),
        ("died", counts.dead_total),
        ("lost", counts.lost_total),
        ("expired", counts.expired_total),
        ("cancelled", counts.cancelled_total),
    ];
    let told = named.iter().filter(|(_, count)| *count > 0);
    let told: Vec<String> = told.map(|(name, count)| format!("{name} {count}")).collect();
    let paused = if queue.paused { "paused, " } else { "" };
    if told.is_empty() { format!("{paused}empty") } else { format!("{paused}{}", told.join(", ")) }
}

/// With the shard that it lives on.
fn at_home(task: TaskId) -> String {
    format!("t{} on {}", task.sequence, task.home)
}

fn id(task: TaskId) -> String {
    match task.home == task.origin {
        true => format!("t{}", task.sequence),
        false => format!("t{}@{}", task.sequence, task.origin),
    }
}

/// Seconds since the story began.
fn time(at: Timestamp) -> String {
    let ms = at.0 - START;
    match ms % 1_000 {
        0 => (ms / 1_000).to_string(),
        rest => format!("{}.{rest:03}", ms / 1_000),
    }
}
