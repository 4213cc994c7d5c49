//! `taskyard task`: shows, cancels and retries tasks.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use taskyard::{
    TaskDetails, TaskId, TaskOutcome, TaskState, Tasks, Timestamp, UniqueDetails, UniqueUntil,
    WaitReason,
};

use crate::{
    args::{FilterArgs, PageArgs, TaskCommand},
    output::{Colour, Output, Table, indented, now, plain, relative, shorten},
    payload,
    remote::{Remote, about},
    stalled::Stalled,
    values,
};

/// The length of a payload in a list. `task get` shows more of it, and `--json` all.
const PAYLOAD_SHOWN: usize = 80;

/// The longest poll; a longer wait is several polls.
const WAIT_EACH: Duration = Duration::from_secs(30);

pub(crate) async fn run(remote: &Remote, command: TaskCommand) -> Result<()> {
    let Remote { client, output, .. } = remote;
    match command {
        TaskCommand::Get { id } => {
            let task = client.get(id.as_str()).await?;
            output.value(&task, |task| describe(task, *output))?;
        }
        TaskCommand::List { filter, state, page } => {
            let mut tasks = filter_tasks(client.tasks(), &filter);
            if let Some(state) = state {
                tasks = tasks.state(state);
            }
            list(*output, tasks, &page).await?;
        }
        TaskCommand::Why { id } => {
            let reasons = client.why(id.as_str()).await?;
            output.value(&Why { id, reasons }, |why| {
                let reasons = why.reasons.iter();
                let messages: Vec<_> = reasons.map(|reason| indented(&reason.message, 2)).collect();
                messages.join("\n")
            })?;
        }
        TaskCommand::Cancel { ids } => {
            change_each(
                remote,
                ids,
                async |id| client.cancel(id).await,
                |changed| match changed.state {
                    TaskState::Claimed => {
                        format!("{} will be cancelled when its worker yields", changed.id)
                    }
                    state => format!("{} is {}", changed.id, output.state(state)),
                },
            )
            .await?;
        }
        TaskCommand::Retry { ids, payload } => {
            let payload = payload.as_deref().map(payload::read_json).transpose()?;
            let retry = async |id: &str| client.retry_edited(id, payload.clone()).await;
            change_each(remote, ids, retry, |changed| {
                format!("{} is {}", changed.id, output.state(changed.state))
            })
            .await?;
        }
        TaskCommand::Result { id, wait, wait_for } => {
            let patience = wait.then_some(wait_for.unwrap_or(Duration::MAX));
            result(remote, &TaskId::from(id), patience).await?;
        }
    }
    Ok(())
}

/// Changes each task, even if others fail; reports each, and fails if one failed.
async fn change_each(
    remote: &Remote,
    ids: Vec<String>,
    change: impl AsyncFn(&str) -> Result<TaskState, taskyard::Error>,
    show: impl Fn(&Changed) -> String,
) -> Result<()> {
    let named = ids.len();
    let mut failed = Vec::new();
    for id in ids {
        match change(&id).await {
            Ok(state) => remote.output.value(&Changed { id, state }, &show)?,
            Err(error) => failed.push(about(error, "task", &id)),
        }
    }
    let Some(last) = failed.pop() else { return Ok(()) };
    if named == 1 {
        return Err(last);
    }
    let count = failed.len() + 1;
    for error in failed.iter().chain([&last]) {
        remote.complain(error);
    }
    anyhow::bail!("{count} of {named} tasks could not be changed; the others were changed")
}

#[derive(Serialize)]
struct Why {
    id: String,
    reasons: Vec<WaitReason>,
}

#[derive(Serialize)]
struct Changed {
    id: String,
    state: TaskState,
}

#[derive(Serialize)]
struct Ended<'a> {
    id: &'a TaskId,
    #[serde(flatten)]
    outcome: &'a TaskOutcome,
}

/// Prints the result of a task, after waiting for its end up to `patience`. This command fails if
/// the task did not succeed.
pub(crate) async fn result(remote: &Remote, id: &TaskId, patience: Option<Duration>) -> Result<()> {
    let outcome = outcome(remote, id, patience).await?;
    if remote.output.is_json() {
        remote.output.json_line(&Ended { id, outcome: &outcome })?;
    }
    if outcome.state == TaskState::Succeeded {
        if !remote.output.is_json() {
            let result = outcome.result.as_deref().unwrap_or(b"null");
            remote.output.data(result)?;
        }
        return Ok(());
    }
    if !outcome.state.is_finished() {
        match patience {
            None => anyhow::bail!("task {id} is {}; wait for its end with --wait", outcome.state),
            Some(waited) => anyhow::bail!(
                "task {id} is still {} after {}; wait longer or look at its queue",
                outcome.state,
                values::show_duration(waited)
            ),
        }
    }
    match &outcome.error {
        Some(error) => anyhow::bail!("task {id} ended as {}: {error}", outcome.state),
        None => anyhow::bail!("task {id} ended as {}", outcome.state),
    }
}

async fn outcome(remote: &Remote, id: &TaskId, patience: Option<Duration>) -> Result<TaskOutcome> {
    let started = Instant::now();
    let mut stalled = Stalled::new();
    loop {
        let left = patience.unwrap_or_default().saturating_sub(started.elapsed());
        let wait = left.min(WAIT_EACH).min(stalled.due_in());
        let outcome = remote.client.outcome(id, wait).await?;
        if outcome.state.is_finished() || left <= wait {
            return Ok(outcome);
        }
        for words in stalled.look_at_task(remote, id).await {
            remote.output.say_waiting(&words);
        }
    }
}

/// Applies the filters to a list.
pub(crate) fn filter_tasks(mut tasks: Tasks, filter: &FilterArgs) -> Tasks {
    if let Some(queue) = &filter.queue {
        tasks = tasks.queue(queue);
    }
    if let Some(kind) = &filter.kind {
        tasks = tasks.kind(kind);
    }
    if let Some(error) = &filter.error {
        tasks = tasks.error(error);
    }
    if let Some(tag) = &filter.tag {
        tasks = tasks.tag(tag);
    }
    if let Some(flow) = &filter.flow {
        tasks = tasks.flow(flow.as_str());
    }
    tasks
}

/// Prints up to `page.limit` tasks, and the cursor of the rest.
pub(crate) async fn list(output: Output, mut tasks: Tasks, page: &PageArgs) -> Result<()> {
    if let Some(cursor) = &page.cursor {
        tasks = tasks.after(cursor);
    }
    tasks = match page.since {
        Some(since) => tasks.since(since.moment(now())),
        None => tasks.newest_first(),
    };
    if page.payload {
        tasks = tasks.with_payload();
    }
    // A page is never larger than the rest of the list, so that its cursor is the end of the list.
    let mut found: Vec<TaskDetails> = Vec::new();
    let mut ended = false;
    while found.len() < page.limit && !ended {
        let wanted = (page.limit - found.len()).min(1_000);
        tasks = tasks.page_size(u32::try_from(wanted).unwrap_or(u32::MAX));
        match tasks.page().await? {
            Some(next) => found.extend(next),
            None => ended = true,
        }
    }
    let cursor = if ended { None } else { tasks.cursor() };
    if output.is_json() {
        for task in &found {
            output.json_line(task)?;
        }
    } else if found.is_empty() {
        output.say("no tasks match");
    } else {
        output.value(&(), |()| table(&found, page.payload).render(output))?;
    }
    if let Some(cursor) = cursor {
        eprintln!("there may be more: continue with --cursor {cursor}");
    }
    Ok(())
}

fn table(tasks: &[TaskDetails], with_payload: bool) -> Table {
    let now = now();
    let columns = ["id", "queue", "type", "state", ">attempt", "when", "last error", "payload"];
    let mut table = Table::new(if with_payload { &columns } else { &columns[..7] });
    for task in tasks {
        let error = last_error(task).map(|error| shorten(&error, 60)).unwrap_or_default();
        let mut row = vec![
            plain(&task.id),
            plain(&task.queue),
            plain(&task.kind),
            (crate::output::state_colour(task.state), task.state.to_string()),
            plain(format!("{}/{}", task.attempt, task.max_attempts)),
            plain(relative(moment_of(task), now)),
            (Colour::Grey, error),
        ];
        if with_payload {
            let payload = task.payload.as_deref().map(show_bytes).unwrap_or_default();
            row.push(plain(shorten(&payload, PAYLOAD_SHOWN)));
        }
        table.row(row);
    }
    table
}

/// The most useful moment of a task in its state.
fn moment_of(task: &TaskDetails) -> Timestamp {
    let claimed = task.claim.as_ref().map(|claim| claim.claimed_at);
    task.finished_at.or(claimed).or(task.run_at).unwrap_or(task.enqueued_at)
}

fn last_error(task: &TaskDetails) -> Option<String> {
    let attempt = task.attempts.iter().rfind(|attempt| attempt.error.is_some())?;
    attempt.error.as_ref().map(ToString::to_string)
}

fn describe(task: &TaskDetails, output: Output) -> String {
    let now = now();
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| {
        lines.push(match name {
            "state" => output.painted_field(name, &value),
            _ => output.field(name, &value),
        });
    };
    let when = |moment: Timestamp| format!("{moment} ({})", relative(moment, now));
    line("id", task.id.to_string());
    line("type", format!("{} in queue {}", task.kind, task.queue));
    line("state", output.state(task.state));
    if !task.death_reason.is_empty() {
        line("why", task.death_reason.clone());
    }
    line("attempt", format!("{} of {}", task.attempt, task.max_attempts));
    if task.losses > 0 {
        line("losses", format!("{} of its workers died", task.losses));
    }
    line("priority", task.priority.to_string());
    line("enqueued", when(task.enqueued_at));
    for (name, moment) in
        [("runs", task.run_at), ("expires", task.expires_at), ("finished", task.finished_at)]
    {
        if let Some(moment) = moment {
            line(name, when(moment));
        }
    }
    if let Some(claim) = &task.claim {
        let cancel = if claim.cancel_requested { ", asked to stop" } else { "" };
        line(
            "worker",
            match claim.worker.as_str() {
                "" => {
                    format!(
                        "a worker without a name, since {}{cancel}",
                        relative(claim.claimed_at, now)
                    )
                }
                worker => format!("{worker} since {}{cancel}", relative(claim.claimed_at, now)),
            },
        );
    }
    if let Some(flow) = &task.flow {
        let parent = flow.failed_parent.as_ref();
        let parent = parent.map(|parent| format!(", ended because {parent} failed"));
        line("flow", format!("node {} of {}{}", flow.node, flow.flow, parent.unwrap_or_default()));
    }
    if let Some(schedule) = &task.schedule {
        line("schedule", format!("a run of {schedule}"));
    }
    if let Some(progress) = &task.progress {
        line("progress", format!("{} % {}", progress.percent, progress.message));
    }
    if let Some(timeout) = task.timeout {
        line("timeout", values::show_duration(timeout));
    }
    if let Some(key) = &task.fairness_key {
        line("key", key.clone());
    }
    if !task.tags.is_empty() {
        line("tags", task.tags.join(", "));
    }
    if let Some(unique) = &task.unique {
        line("unique", show_unique(unique));
    }
    for (name, value) in &task.headers {
        line("header", format!("{name}={value}"));
    }
    for (name, bytes) in [("payload", &task.payload), ("result", &task.result)] {
        if let Some(bytes) = bytes {
            line(name, show_bytes(bytes));
        }
    }
    for attempt in &task.attempts {
        let took = values::show_roughly(attempt.ended_at.since(attempt.claimed_at));
        let error = attempt.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        // An attempt that was claimed over HTTP, or whose worker was never heard, has no name.
        let worker = match attempt.worker.as_str() {
            "" => String::new(),
            worker => format!(" on {worker}"),
        };
        line(
            &format!("  #{}", attempt.attempt),
            format!("{} after {took}{worker}{error}", attempt.outcome),
        );
    }
    lines.join("\n")
}

fn show_unique(unique: &UniqueDetails) -> String {
    let held = if unique.held { "holds" } else { "gave up" };
    let until = match (unique.until, unique.expires_at) {
        (Some(UniqueUntil::Start), _) => ", until it starts".to_owned(),
        (Some(UniqueUntil::Done), _) => ", until it is done".to_owned(),
        (None, Some(at)) => format!(", until {at}"),
        (None, None) => String::new(),
    };
    format!("{held} key {}{until}", unique.key)
}

/// Text, cut to a few lines; other bytes as their size.
pub(crate) fn show_bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => {
            shorten(text.trim_end(), 2_000)
        }
        _ => format!("{} of bytes; see --json", values::show_size(bytes.len() as u64)),
    }
}
