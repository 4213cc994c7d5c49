//! `taskyard flow`: runs flows from a file, shows, cancels and retries them.

mod file;
mod fold;
mod lanes;
mod picture;

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::ProgressBar;
use serde::Serialize;
use taskyard::{
    Flow, FlowHandle, FlowId,
    flow::{FlowDetails, FlowState},
};

use crate::{
    args::{FlowListArgs, FlowOperation, FlowRunArgs},
    output::{self, Colour, Output, Table, now, plain, relative, shorten},
    remote::{Remote, about},
    signals::Signals,
    stalled::Stalled,
    values,
};

/// How often progress is shown. The end of a flow is noticed at once.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Reads the flow of a file, and reports its mistakes without a broker.
pub(crate) use file::read;

pub(crate) async fn run(remote: &Remote, command: FlowOperation) -> Result<()> {
    let Remote { client, output, .. } = remote;
    match command {
        FlowOperation::Status { id, all } => {
            let flow = client.flow(id).status().await?;
            output.value(&flow, |flow| picture::show(flow, *output, all))?;
        }
        FlowOperation::List(args) => list(remote, &args).await?,
        FlowOperation::Cancel { ids } => {
            for id in ids {
                let cancelled = client.flow(&*id).cancel().await;
                let state = cancelled.map_err(|error| about(error, "flow", &id))?;
                output.value(&Changed { id, state }, |Changed { id, state }| match state {
                    FlowState::Running => format!("{id} will be cancelled when its workers yield"),
                    state => format!("{id} is {}", paint(*output, *state)),
                })?;
            }
        }
        FlowOperation::Retry { ids } => {
            for id in ids {
                let retried = client.flow(&*id).retry().await;
                let state = retried.map_err(|error| about(error, "flow", &id))?;
                output.value(&Changed { id, state }, |Changed { id, state }| {
                    format!("{id} is {}", paint(*output, *state))
                })?;
            }
        }
        FlowOperation::Wait { id, wait_for } => {
            finish(remote, &client.flow(id), wait_for).await?;
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct Changed {
    id: String,
    state: FlowState,
}

fn paint(output: Output, state: FlowState) -> String {
    output.paint(picture::flow_colour(state), state)
}

/// Submits a flow, and waits for its end unless it is detached.
pub(crate) async fn submit(remote: &Remote, args: &FlowRunArgs, flow: Flow) -> Result<()> {
    let handle = remote.patiently(remote.client.submit(flow)).await.map_err(in_doubt)?;
    if args.detach {
        let id = handle.id();
        return Ok(remote.output.value(&Submitted { id }, |_| id.to_string())?);
    }
    remote.output.say(format_args!("submitted {}", handle.id()));
    finish(remote, &handle, args.wait_for).await
}

#[derive(Serialize)]
struct Submitted<'a> {
    id: &'a FlowId,
}

/// Adds advice to the error of a submission with an unknown outcome.
fn in_doubt(error: taskyard::Error) -> anyhow::Error {
    let in_doubt = error.is_outcome_unknown();
    let error = anyhow::Error::new(error);
    let advice = "it may have been submitted; look with taskyard flow list before running it again";
    if in_doubt { error.context(advice) } else { error }
}

/// Waits for a flow's end and shows it. This command fails if the flow did not succeed.
async fn finish(remote: &Remote, flow: &FlowHandle, patience: Option<Duration>) -> Result<()> {
    let id = flow.id();
    let mut signals = Signals::listen()?;
    let waited = tokio::select! {
        ended = follow(remote, flow, patience) => ended?,
        () = signals.next() => false,
    };
    if !waited {
        anyhow::bail!(
            "flow {id} goes on; show it with taskyard flow status {id}, wait for it with \
             taskyard flow wait {id}, cancel it with taskyard flow cancel {id}"
        );
    }
    let ended = flow.status().await?;
    remote.output.value(&ended, |ended| picture::show(ended, remote.output, false))?;
    match ended.state {
        FlowState::Succeeded => Ok(()),
        FlowState::Failed => anyhow::bail!(
            "flow {id} failed; repair the cause, then go on with taskyard flow retry {id}"
        ),
        state => anyhow::bail!("flow {id} ended as {state}"),
    }
}

/// Shows the progress of a flow until it has ended; `false` if that takes longer than `patience`.
async fn follow(remote: &Remote, flow: &FlowHandle, patience: Option<Duration>) -> Result<bool> {
    let output = remote.output;
    let mut stalled = Stalled::new();
    let started = Instant::now();
    // Without a terminal nothing is shown before the end.
    let watched = !output.is_json() && std::io::stderr().is_terminal();
    let each = if watched { LOOK_EVERY } else { Duration::from_secs(30) };
    let mut bar: Option<ProgressBar> = None;
    loop {
        let left = patience.map_or(each, |patience| patience.saturating_sub(started.elapsed()));
        let now = flow.progress(left.min(each).min(stalled.due_in())).await?;
        if watched {
            let total = u64::from(now.nodes_total);
            let bar = bar.get_or_insert_with(|| output::progress(output, Some(total), "nodes"));
            show(bar, &now);
        }
        if now.state.is_finished() || left.is_zero() {
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
            return Ok(now.state.is_finished());
        }
        for words in stalled.look_at_flow(remote, flow).await {
            match &bar {
                Some(bar) => bar.suspend(|| output.say_waiting(&words)),
                None => output.say_waiting(&words),
            }
        }
    }
}

fn show(bar: &ProgressBar, flow: &FlowDetails) {
    bar.set_length(flow.nodes_total.into());
    bar.set_position(flow.nodes_done.into());
    let mut message = String::new();
    if flow.nodes_failed > 0 {
        message += &format!("{} failed", flow.nodes_failed);
    }
    if flow.cancel_requested && !flow.state.is_finished() {
        message += " being cancelled";
    }
    bar.set_message(message);
}

async fn list(remote: &Remote, args: &FlowListArgs) -> Result<()> {
    let mut flows = remote.client.flows();
    if let Some(name) = &args.name {
        flows = flows.name(name);
    }
    if let Some(state) = args.state {
        flows = flows.state(state);
    }
    if let Some(cursor) = &args.cursor {
        flows = flows.after(cursor);
    }
    // A page is never larger than the rest of the list, so that its cursor is the end of the list.
    let mut found: Vec<FlowDetails> = Vec::new();
    let mut ended = false;
    while found.len() < args.limit && !ended {
        let wanted = (args.limit - found.len()).min(1_000);
        flows = flows.page_size(u32::try_from(wanted).unwrap_or(u32::MAX));
        match flows.page().await? {
            Some(page) => found.extend(page),
            None => ended = true,
        }
    }
    let output = remote.output;
    if output.is_json() {
        for flow in &found {
            output.json_line(flow)?;
        }
    } else if found.is_empty() {
        output.say("no flows match");
    } else {
        output.line(&table(&found).render(output))?;
    }
    if let Some(cursor) = flows.cursor().filter(|_| !ended) {
        eprintln!("there may be more: continue with --cursor {cursor}");
    }
    Ok(())
}

fn table(flows: &[FlowDetails]) -> Table {
    let now = now();
    let mut table = Table::new(&["id", "name", "state", "nodes", "submitted", "took"]);
    for flow in flows {
        let took = flow.ended_at.map(|ended_at| ended_at.since(flow.created_at));
        table.row(vec![
            plain(&flow.id),
            plain(shorten(&flow.name, 40)),
            (picture::flow_colour(flow.state), flow.state.to_string()),
            plain(picture::counts(flow)),
            plain(relative(flow.created_at, now)),
            (Colour::Grey, took.map(values::show_roughly).unwrap_or_default()),
        ]);
    }
    table
}
