//! Many tasks from a file, one per line: each gets its own answer, or with `--batch` all go in as one.
//!
//! Memory is bounded by what is in flight, whatever the size of the file.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use taskyard::{Enqueued, Error, NewTask};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
};

use super::{in_doubt, line};
use crate::{
    args::EnqueueArgs,
    output::{self, Output},
    remote::Remote,
    values::count,
};

/// Bytes of lines that are read and not yet answered.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// Each task costs some memory beside its line.
const TASK_BYTES: usize = 1 << 10;
/// The largest payload and what may stand around it.
const LINE_BYTES_MAX: usize = 12 << 20;
/// Bad lines that are shown one by one; the rest is counted.
const COMPLAINTS_MAX: u64 = 20;

#[derive(Default, Serialize)]
struct Counts {
    accepted: u64,
    duplicate: u64,
    refused: u64,
}

pub(super) async fn run(remote: &Remote, args: &EnqueueArgs, file: &Path) -> Result<()> {
    let (lines, total) = open(file)?;
    let bar = output::progress(remote.output, total, "bytes");
    let counts = if args.batch {
        send_batch(remote, args, lines, &bar).await
    } else {
        send_each(remote, args, lines, &bar).await
    };
    bar.finish_and_clear();
    let counts = counts?;
    remote.output.value(&counts, |counts| {
        let Counts { accepted, duplicate, refused } = counts;
        format!("accepted {accepted}, duplicate {duplicate}, refused {refused}")
    })?;
    match counts.refused {
        0 => Ok(()),
        1 => anyhow::bail!("1 line was refused; the others are enqueued"),
        refused => anyhow::bail!("{refused} lines were refused; the others are enqueued"),
    }
}

/// A line with its number, from 1.
struct Numbered {
    number: u64,
    text: Result<String>,
    bytes: usize,
}

/// The lines of a file or of stdin, read on a thread of their own, and how many bytes there will be.
fn open(file: &Path) -> Result<(mpsc::Receiver<Numbered>, Option<u64>)> {
    let (source, total): (Box<dyn Read + Send>, _) = if file.as_os_str() == "-" {
        (Box::new(std::io::stdin()), None)
    } else {
        let open = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        let total = open.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len());
        (Box::new(open), total)
    };
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        let mut source = BufReader::new(source);
        for number in 1.. {
            let mut bytes = Vec::new();
            let limit = LINE_BYTES_MAX as u64 + 1;
            let text = match source.by_ref().take(limit).read_until(b'\n', &mut bytes) {
                Ok(0) => return,
                Ok(read) if read > LINE_BYTES_MAX => {
                    let _ = source.skip_until(b'\n');
                    Err(anyhow::anyhow!("longer than {LINE_BYTES_MAX} bytes"))
                }
                Ok(_) => String::from_utf8(bytes.clone()).context("not UTF-8"),
                Err(error) => Err(anyhow::Error::new(error).context("cannot read on")),
            };
            // A thread of its own may wait: that is what bounds the reading.
            if sender.blocking_send(Numbered { number, text, bytes: bytes.len() }).is_err() {
                return;
            }
        }
    });
    Ok((receiver, total))
}

type Answers = JoinSet<(u64, usize, Result<Enqueued, Error>)>;

async fn send_each(
    remote: &Remote,
    args: &EnqueueArgs,
    mut lines: mpsc::Receiver<Numbered>,
    bar: &ProgressBar,
) -> Result<Counts> {
    let mut tally = Tally::new(remote.output, bar);
    let room = Arc::new(Semaphore::new(IN_FLIGHT_BYTES_MAX));
    let mut answers: Answers = JoinSet::new();
    while let Some(line) = lines.recv().await {
        if let Some(task) = tally.parse(&line, args) {
            let permit = make_room(&room, line.bytes, &mut answers, &mut tally).await?;
            let enqueue = remote.client.enqueue_new(task);
            answers.spawn(async move {
                let answer = enqueue.await;
                drop(permit);
                (line.number, line.bytes, answer)
            });
        }
        while let Some(answer) = answers.try_join_next() {
            tally.take(answer?)?;
        }
    }
    while let Some(answer) = answers.join_next().await {
        tally.take(answer?)?;
    }
    Ok(tally.counts)
}

/// Waits until there is room for a line, taking answers meanwhile.
async fn make_room(
    room: &Arc<Semaphore>,
    bytes: usize,
    answers: &mut Answers,
    tally: &mut Tally<'_>,
) -> Result<OwnedSemaphorePermit> {
    let cost = u32::try_from((bytes + TASK_BYTES).min(IN_FLIGHT_BYTES_MAX)).unwrap_or(u32::MAX);
    let permit = Arc::clone(room).acquire_many_owned(cost);
    tokio::pin!(permit);
    loop {
        tokio::select! {
            permit = &mut permit => return Ok(permit?),
            Some(answer) = answers.join_next() => tally.take(answer?)?,
        }
    }
}

async fn send_batch(
    remote: &Remote,
    args: &EnqueueArgs,
    mut lines: mpsc::Receiver<Numbered>,
    bar: &ProgressBar,
) -> Result<Counts> {
    let mut tally = Tally::new(remote.output, bar);
    let mut tasks = Vec::new();
    let mut queue: Option<String> = None;
    while let Some(line) = lines.recv().await {
        tally.bar.inc(line.bytes as u64);
        let text = match &line.text {
            Ok(text) if text.trim().is_empty() => continue,
            Ok(text) => text,
            Err(error) => {
                tally.refuse(line.number, format_args!("{error:#}"));
                continue;
            }
        };
        match line::parse(text, args) {
            Ok(parsed) => {
                let first = queue.get_or_insert_with(|| parsed.queue.clone());
                if *first == parsed.queue {
                    tasks.push(parsed.task);
                } else {
                    let why =
                        format!("it is for queue {}, earlier lines for {first}", parsed.queue);
                    tally.refuse(line.number, format_args!("{why}: a batch has one queue"));
                }
            }
            Err(error) => tally.refuse(line.number, format_args!("{error:#}")),
        }
    }
    if tally.counts.refused > 0 {
        let refused = count(tally.counts.refused, "bad line");
        anyhow::bail!("the batch has {refused}; nothing was enqueued");
    }
    let Some(queue) = queue else { return Ok(tally.counts) };
    let sent = remote.patiently(remote.client.batch(queue).extend(tasks).send()).await;
    for enqueued in sent.map_err(|error| in_doubt(error, false))? {
        tally.count(&enqueued);
    }
    Ok(tally.counts)
}

/// What became of the lines so far.
struct Tally<'a> {
    output: Output,
    bar: &'a ProgressBar,
    counts: Counts,
}

impl Tally<'_> {
    fn new(output: Output, bar: &ProgressBar) -> Tally<'_> {
        Tally { output, bar, counts: Counts::default() }
    }

    /// The task of a line; a bad line is counted, an empty one is none.
    fn parse(&mut self, line: &Numbered, args: &EnqueueArgs) -> Option<NewTask> {
        let parsed = match &line.text {
            Ok(text) if text.trim().is_empty() => {
                self.bar.inc(line.bytes as u64);
                return None;
            }
            Ok(text) => line::parse(text, args),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        match parsed {
            Ok(parsed) => Some(parsed.task),
            Err(error) => {
                self.bar.inc(line.bytes as u64);
                self.refuse(line.number, format_args!("{error:#}"));
                None
            }
        }
    }

    fn take(
        &mut self,
        (number, bytes, answer): (u64, usize, Result<Enqueued, Error>),
    ) -> Result<()> {
        self.bar.inc(bytes as u64);
        match answer {
            Ok(enqueued) => self.count(&enqueued),
            // Every later line would end the same way.
            Err(error) if error.is_retryable() || error.is_outcome_unknown() => {
                let accepted = self.counts.accepted + self.counts.duplicate;
                return Err(anyhow::Error::new(error).context(format!(
                    "gave up at line {number}, with {} accepted; with a request_id on each line the \
                     whole file can safely be sent again",
                    count(accepted, "line")
                )));
            }
            Err(error) => self.refuse(number, format_args!("{error}")),
        }
        Ok(())
    }

    fn count(&mut self, enqueued: &Enqueued) {
        if enqueued.is_duplicate() {
            self.counts.duplicate += 1;
        } else {
            self.counts.accepted += 1;
        }
        if self.output.is_json() {
            return;
        }
        self.bar.set_message(format!("{} accepted", self.counts.accepted));
    }

    fn refuse(&mut self, number: u64, why: std::fmt::Arguments<'_>) {
        self.counts.refused += 1;
        match self.counts.refused {
            1..=COMPLAINTS_MAX => self.bar.suspend(|| eprintln!("line {number}: {why}")),
            refused if refused == COMPLAINTS_MAX + 1 => {
                self.bar.suspend(|| {
                    eprintln!("line {number}: {why}; further bad lines are only counted")
                });
            }
            _ => {}
        }
    }
}
