//! Many tasks from a file, one per line: each gets its own answer, or with `--batch` all are one
//! atomic batch.
//!
//! Memory is bounded by the lines in flight, whatever the size of the file. Each line is accepted,
//! or its number is reported and, with `--refused`, the line itself is kept.

mod lines;
mod sending;
mod tally;

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use self::{
    lines::Lines,
    sending::Sending,
    tally::{Counts, Tally},
};
use super::{in_doubt, line};
use crate::{args::EnqueueArgs, output, remote::Remote, values::count};

/// The default patience while the broker is full and accepts nothing.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn run(remote: &Remote, args: &EnqueueArgs, file: &Path) -> Result<()> {
    let (lines, total) = lines::open(file)?;
    let bar = output::progress(remote.output, total, "bytes");
    let done = if args.batch {
        send_batch(remote, args, file, lines, &bar).await.map(|counts| (counts, None))
    } else {
        send_each(remote, args, file, lines, &bar).await
    };
    bar.finish_and_clear();
    let (counts, stopped) = done?;
    remote.output.value(&counts, |counts| {
        let Counts { accepted, duplicate, refused, .. } = counts;
        format!("accepted {accepted}, duplicate {duplicate}, refused {refused}")
    })?;
    let left = not_enqueued(&counts, args.refused.as_deref());
    match stopped {
        Some(error) if left.is_empty() => Err(error),
        Some(error) => Err(error.context(left)),
        None if left.is_empty() => Ok(()),
        None => anyhow::bail!("{left}; the others are enqueued"),
    }
}

/// Names exactly the lines that were not enqueued; empty if all were.
fn not_enqueued(counts: &Counts, kept_in: Option<&Path>) -> String {
    let mut parts = Vec::new();
    if counts.refused > 0 {
        let lines = count(counts.refused, "line");
        let verb = if counts.refused == 1 { "was" } else { "were" };
        parts.push(format!("{lines} {verb} refused ({})", counts.refused_lines));
    }
    if let Some(first) = counts.not_sent_from {
        parts.push(format!("line {first} and all lines after it were not sent"));
    }
    if let (Some(file), false) = (kept_in, parts.is_empty()) {
        parts.push(format!("they are in {}: send that file again", file.display()));
    }
    if !counts.in_doubt_lines.is_empty() {
        parts.push(format!(
            "these may or may not be enqueued: lines {}; those with a request_id can safely be sent \
             again",
            counts.in_doubt_lines
        ));
    }
    parts.join("; ")
}

async fn send_each(
    remote: &Remote,
    args: &EnqueueArgs,
    file: &Path,
    mut lines: Lines,
    bar: &ProgressBar,
) -> Result<(Counts, Option<anyhow::Error>)> {
    let tally = Tally::new(remote.output, bar, args.refused.as_deref())?;
    let patience = args.patience.unwrap_or(PATIENCE);
    let mut sending = Sending::new(remote.client.clone(), tally, patience);
    let mut unreadable = None;
    while sending.stopped.is_none()
        && let Some(line) = lines.recv().await
    {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                unreadable = Some(cannot_read(error, file));
                break;
            }
        };
        if line.is_empty() {
            sending.tally.advance(&line);
            continue;
        }
        match line.text().and_then(|text| line::parse(text, args)) {
            Ok(parsed) => sending.send(line, parsed.task).await?,
            Err(error) => {
                sending.tally.advance(&line);
                sending.tally.refuse(&line, format_args!("{error:#}"))?;
            }
        }
    }
    sending.settle().await?;
    let Sending { mut tally, stopped, .. } = sending;
    if stopped.is_some() {
        skip_rest(&mut tally, &mut lines).await?;
    }
    Ok((tally.finish(), stopped.or(unreadable)))
}

/// Reports the first unsent line, and keeps the unsent lines if a file for them was given.
async fn skip_rest(tally: &mut Tally<'_>, lines: &mut Lines) -> Result<()> {
    while let Some(Ok(line)) = lines.recv().await {
        if line.is_empty() {
            continue;
        }
        tally.leave(&line)?;
        if !tally.keeps_refused() {
            break;
        }
    }
    Ok(())
}

fn cannot_read(error: std::io::Error, file: &Path) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("cannot read {}", file.display()))
}

async fn send_batch(
    remote: &Remote,
    args: &EnqueueArgs,
    file: &Path,
    mut lines: Lines,
    bar: &ProgressBar,
) -> Result<Counts> {
    let mut tally = Tally::new(remote.output, bar, None)?;
    let mut tasks = Vec::new();
    let mut queue: Option<String> = None;
    while let Some(line) = lines.recv().await {
        let line = line.map_err(|error| cannot_read(error, file)).context(NOTHING_ENQUEUED)?;
        tally.advance(&line);
        if line.is_empty() {
            continue;
        }
        match line.text().and_then(|text| line::parse(text, args)) {
            Ok(parsed) => {
                let first = queue.get_or_insert_with(|| parsed.queue.clone());
                if *first == parsed.queue {
                    tasks.push(parsed.task);
                } else {
                    let why =
                        format!("it is for queue {}, earlier lines for {first}", parsed.queue);
                    tally.refuse(&line, format_args!("{why}: a batch has one queue"))?;
                }
            }
            Err(error) => tally.refuse(&line, format_args!("{error:#}"))?,
        }
    }
    if tally.counts.refused > 0 {
        let refused = count(tally.counts.refused, "bad line");
        let lines = &tally.counts.refused_lines;
        anyhow::bail!("the batch has {refused} ({lines}); {NOTHING_ENQUEUED}");
    }
    let Some(queue) = queue else { return Ok(tally.finish()) };
    let sent = remote.patiently(remote.client.batch(queue).extend(tasks).send()).await;
    for enqueued in sent.map_err(|error| in_doubt(error, false))? {
        tally.accept(&enqueued);
    }
    Ok(tally.finish())
}

const NOTHING_ENQUEUED: &str = "nothing was enqueued";
