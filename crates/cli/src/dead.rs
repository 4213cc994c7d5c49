//! `taskyard dead`: lists, retries and discards dead letters.

use anyhow::Result;
use serde::Serialize;
use taskyard::{Bulk, DeadLetters, TaskState};

use crate::{
    args::{DeadCommand, DeadSelection, FilterArgs},
    confirm::{confirm, confirm_removal},
    output, queue,
    remote::{Remote, usage},
    task, values,
};

pub(crate) async fn run(remote: &Remote, command: DeadCommand) -> Result<()> {
    match command {
        DeadCommand::List { filter, page } => {
            check_queue(remote, &filter).await?;
            let tasks = remote.client.tasks().state(TaskState::Dead);
            task::list(remote.output, task::filter_tasks(tasks, &filter), &page).await
        }
        DeadCommand::Retry(selection) => {
            check_queue(remote, &selection.filter).await?;
            // A retry of all dead letters is a large load.
            let chosen = select(remote, &selection)?;
            if selection.all {
                confirm(selection.yes, "run all dead letters again?")?;
            }
            change(remote, chosen.retry(), "retried").await
        }
        DeadCommand::Discard(selection) => {
            check_queue(remote, &selection.filter).await?;
            let chosen = select(remote, &selection)?;
            if selection.ids.is_empty() {
                confirm_removal(selection.yes, &format!("remove {} for good?", name(&selection)))?;
            }
            change(remote, chosen.discard(), "discarded").await
        }
    }
}

/// A queue that does not exist is a typing error, and not a queue without dead letters.
async fn check_queue(remote: &Remote, filter: &FilterArgs) -> Result<()> {
    match &filter.queue {
        Some(queue) => Ok(queue::check_there(remote, queue).await?),
        None => Ok(()),
    }
}

/// The selected dead letters. An empty selection is an error, and does not mean all.
fn select(remote: &Remote, selection: &DeadSelection) -> Result<DeadLetters> {
    let mut dead = remote.client.dead();
    let filter = &selection.filter;
    if !selection.ids.is_empty() {
        return Ok(dead.ids(selection.ids.iter().map(String::as_str)));
    }
    if let Some(queue) = &filter.queue {
        dead = dead.queue(queue);
    }
    if let Some(kind) = &filter.kind {
        dead = dead.kind(kind);
    }
    if let Some(error) = &filter.error {
        dead = dead.error(error);
    }
    if let Some(tag) = &filter.tag {
        dead = dead.tag(tag);
    }
    if let Some(flow) = &filter.flow {
        dead = dead.flow(flow.as_str());
    }
    let narrowed = [&filter.queue, &filter.kind, &filter.error, &filter.tag, &filter.flow];
    if !selection.all && narrowed.iter().all(|part| part.is_none()) {
        return Err(usage(
            "name the dead letters: by ids, --queue, --type, --error, --tag, --flow, or --all",
        ));
    }
    Ok(dead)
}

fn name(selection: &DeadSelection) -> String {
    if selection.all {
        return "all dead letters".to_owned();
    }
    let filter = &selection.filter;
    let parts = [
        filter.queue.as_ref().map(|queue| format!("of queue {queue}")),
        filter.kind.as_ref().map(|kind| format!("of type {kind}")),
        filter.error.as_ref().map(|error| format!("whose error contains {error:?}")),
        filter.tag.as_ref().map(|tag| format!("with tag {tag}")),
        filter.flow.as_ref().map(|flow| format!("of flow {flow}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("dead letters {}", parts.join(" and "))
}

#[derive(Serialize)]
struct Changed {
    changed: u64,
    skipped: u64,
}

async fn change(remote: &Remote, mut bulk: Bulk, word: &str) -> Result<()> {
    let bar = output::progress(remote.output, None, "dead letters");
    let mut last = Changed { changed: 0, skipped: 0 };
    while let Some(progress) = bulk.next().await? {
        last = Changed { changed: progress.changed, skipped: progress.skipped };
        bar.set_position(progress.changed);
    }
    bar.finish_and_clear();
    remote.output.value(&last, |last| {
        let skipped = match last.skipped {
            0 => String::new(),
            skipped => format!(", skipped {skipped} that were no dead letters any more"),
        };
        format!("{word} {}{skipped}", values::count(last.changed, "dead letter"))
    })?;
    Ok(())
}
