//! Tally: the outcomes of the jobs so far, and whether to go on. All movers share it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Write,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use super::{job::Job, refusal::Refusal, report::Left};
use crate::{output::Output, remote::Complaint, values};

/// After this many refusals in a row that are not about the job, the target is at fault.
pub(super) const REFUSED_IN_A_ROW_MAX: u64 = 20;

pub(super) struct Tally {
    output: Output,
    bar: ProgressBar,
    moved: Mutex<BTreeMap<String, u64>>,
    /// The file of refused jobs.
    file: Option<Mutex<File>>,
    fetched: AtomicU64,
    /// Refused jobs by id. A job returns after its reservation, and counts once.
    refused: Mutex<BTreeSet<Vec<u8>>>,
    refused_in_a_row: AtomicU64,
    stopped: AtomicBool,
    ordered: AtomicBool,
    interrupted: AtomicBool,
    waits: AtomicBool,
}

impl Tally {
    /// `file` is the file for refused jobs.
    pub(super) fn new(output: Output, bar: ProgressBar, file: Option<&Path>) -> Result<Tally> {
        let file = file.map(|path| {
            // The file is appended to, because an earlier run may have written the only copy of a
            // job.
            let file = File::options().create(true).append(true).open(path).map(Mutex::new);
            file.with_context(|| format!("cannot write {}", path.display()))
        });
        Ok(Tally {
            output,
            bar,
            moved: Mutex::default(),
            file: file.transpose()?,
            fetched: AtomicU64::new(0),
            refused: Mutex::default(),
            refused_in_a_row: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            ordered: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            waits: AtomicBool::new(false),
        })
    }

    /// Adds the number of jobs that wait to the progress bar.
    pub(super) fn expect(&self, jobs: u64) {
        self.bar.set_length(self.bar.position() + jobs);
    }

    /// Reports once that the import waits for jobs that are not due yet.
    pub(super) fn wait_for(&self, left: &Left) {
        if !self.waits.swap(true, Ordering::Relaxed) {
            let jobs = values::count(left.to_come(), "job");
            self.say(&format!(
                "{jobs} scheduled or waiting for a retry; moving each when it is due"
            ));
        }
    }

    /// Stops the import before the next job.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Stops before the next job, because of a signal.
    pub(super) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Stops before the next job, because of the old server's order.
    pub(super) fn obey(&self) {
        self.ordered.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_ordered_to_stop(&self) -> bool {
        self.ordered.load(Ordering::Relaxed)
    }

    /// Whether too many jobs were refused in a row.
    pub(super) fn gave_up(&self) -> bool {
        self.refused_in_a_row.load(Ordering::Relaxed) >= REFUSED_IN_A_ROW_MAX
    }

    /// Whether another job may be begun.
    pub(super) fn goes_on(&self) -> bool {
        let is_told = self.is_interrupted() || self.is_ordered_to_stop();
        !is_told && !self.stopped.load(Ordering::Relaxed) && !self.gave_up()
    }

    pub(super) fn fetch(&self) {
        self.fetched.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// The number of jobs that were refused and not accepted later.
    pub(super) fn refused(&self) -> usize {
        lock(&self.refused).len()
    }

    /// Counts a job that Taskyard has, and the old server no longer has.
    pub(super) fn moved(&self, job: &Job) {
        *lock(&self.moved).entry(job.queue().to_owned()).or_default() += 1;
        lock(&self.refused).remove(job.jid().as_bytes());
        self.refused_in_a_row.store(0, Ordering::Relaxed);
        self.bar.inc(1);
    }

    pub(super) fn moved_by_queue(&self) -> BTreeMap<String, u64> {
        lock(&self.moved).clone()
    }

    /// Records a refused job, which stays in the old server.
    pub(super) fn refuse(&self, job: &Job, json: &[u8], refusal: &Refusal) -> Result<()> {
        if !lock(&self.refused).insert(job.jid().as_bytes().to_owned()) {
            return Ok(());
        }
        if refusal.is_of_the_server() {
            self.refused_in_a_row.fetch_add(1, Ordering::Relaxed);
        }
        let reserved = values::show_duration(job.reserved_for());
        let then = match job.is_dropped_then() {
            true => format!("the old server keeps it reserved for {reserved} and drops it then"),
            false => format!("the old server keeps it reserved for {reserved}"),
        };
        let (jid, queue, why) = (job.jid(), job.queue(), refusal.text());
        let text = format!("job {jid} of queue {queue} was refused: {why} ({then})");
        self.complain(refusal.code(), text, json)
    }

    /// Records a job that can't even be acknowledged.
    pub(super) fn refuse_unreadable(&self, json: &[u8], problem: &str) -> Result<()> {
        if !lock(&self.refused).insert(json.to_owned()) {
            return Ok(());
        }
        let shown: String = String::from_utf8_lossy(json).chars().take(200).collect();
        self.complain("refused", format!("the old server handed out {problem}: {shown}"), json)
    }

    fn complain(&self, code: &str, text: String, json: &[u8]) -> Result<()> {
        let complaint = Complaint { code: code.to_owned(), text, exit_code: 1 };
        self.bar.suspend(|| complaint.print(self.output.is_json()));
        let Some(file) = &self.file else { return Ok(()) };
        let mut line: Vec<u8> = json
            .iter()
            .map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte })
            .collect();
        line.push(b'\n');
        lock(file).write_all(&line).context("cannot write a refused job to its file")
    }

    /// Prints a message for a person.
    pub(super) fn say(&self, text: &str) {
        self.bar.suspend(|| self.output.say(text));
    }

    pub(super) fn clear_bar(&self) {
        self.bar.finish_and_clear();
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
