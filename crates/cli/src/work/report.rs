//! Reports of a running command: lines of JSON in a named pipe, which become progress and resume
//! state.
//!
//! Every process of the task can open a named pipe, whatever files it has closed, and needs no
//! program but `echo`. The worker has the pipe open for reading and writing, so that no writer
//! waits for a reader, and the pipe does not end with its last writer.

use std::{
    fs::File,
    future::Future,
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, chown, mknodat},
    io::ioctl_fionread,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use taskyard::{CancelReason, TaskContext};
use taskyard_cli::exec::User;
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe::{OpenOptions, Receiver},
    sync::oneshot,
};

/// The longest line, so that a line without an end does not grow for ever. The broker itself
/// refuses a resume state over 64 KiB.
const LINE_BYTES_MAX: usize = 256 << 10;
const CHUNK_BYTES: usize = 64 << 10;
const PERCENT_MAX: u32 = 100;

/// A named pipe for one attempt.
pub(super) struct ReportPipe {
    /// Removed with the pipe in it, unless the task's supervisor has removed it before.
    folder: TempDir,
    receiver: Receiver,
}

impl ReportPipe {
    /// Creates a pipe in `within` to which only `user`, or else the worker's own user, may write.
    pub(super) fn make(user: Option<&User>, within: &Path) -> io::Result<ReportPipe> {
        let folder = tempfile::Builder::new().prefix("taskyard-report-").tempdir_in(within)?;
        let path = path_in(&folder);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let receiver = OpenOptions::new().read_write(true).open_receiver(&path)?;
        if let Some(user) = user {
            for path in [&path, folder.path()] {
                chown(path, Some(user.uid()), Some(user.gid()))?;
            }
        }
        Ok(ReportPipe { folder, receiver })
    }

    pub(super) fn path(&self) -> PathBuf {
        path_in(&self.folder)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Passes on reports until `run` has ended, and then all reports that were written before.
    pub(super) async fn during<T>(self, context: &TaskContext, run: impl Future<Output = T>) -> T {
        self.heard_during(Listener { context, has_complained: false }, run).await
    }

    async fn heard_during<T>(self, ear: impl Hear, run: impl Future<Output = T>) -> T {
        let (keep, ended) = oneshot::channel::<()>();
        let run = async {
            let outcome = run.await;
            drop(keep);
            outcome
        };
        tokio::join!(run, self.listen(ear, ended)).0
    }

    async fn listen(mut self, mut ear: impl Hear, mut ended: oneshot::Receiver<()>) {
        let mut lines = Lines::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = tokio::select! {
                biased;
                // First: another process of the user may write without end.
                _ = &mut ended => break,
                read = self.receiver.read(&mut chunk) => read,
            };
            let Ok(count) = read else { break };
            ear.hear(lines.push(&chunk[..count])).await;
        }
        // Reads what is in the pipe at the end of the command, and no more. The pipe is read
        // directly, because the runtime may not know of the rest yet.
        let Ok(pipe) = self.receiver.into_nonblocking_fd() else { return };
        let left = ioctl_fionread(&pipe).unwrap_or(0);
        let mut pipe = File::from(pipe).take(left);
        while let Ok(count @ 1..) = pipe.read(&mut chunk) {
            ear.hear(lines.push(&chunk[..count])).await;
        }
        ear.hear(lines.end()).await;
    }
}

fn path_in(folder: &TempDir) -> PathBuf {
    folder.path().join("report")
}

/// Cuts a stream into lines.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
    /// The unfinished line is too long, and its rest is skipped.
    skips: bool,
}

impl Lines {
    /// The lines that end in `chunk`; `None` stands for a line that is too long.
    fn push(&mut self, chunk: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut lines = Vec::new();
        for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
            if !self.skips {
                self.begun.extend_from_slice(piece);
            }
            if self.begun.len() > LINE_BYTES_MAX {
                self.begun = Vec::new();
                self.skips = true;
            }
            if piece.ends_with(b"\n") {
                lines.extend(self.end());
            }
        }
        lines
    }

    /// The unfinished line, if there is one.
    fn end(&mut self) -> Vec<Option<Vec<u8>>> {
        let line = std::mem::take(&mut self.begun);
        match std::mem::take(&mut self.skips) {
            true => vec![None],
            false if line.trim_ascii().is_empty() => Vec::new(),
            false => vec![Some(line)],
        }
    }
}

/// One report, in the form of an extend over HTTP.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    progress: Option<Progress>,
    #[serde(borrow)]
    resume_state: Option<&'a RawValue>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    percent: u32,
    #[serde(default)]
    message: String,
}

impl<'a> Line<'a> {
    fn read(line: &'a [u8]) -> Result<Line<'a>, String> {
        let read: Line<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        match &read.progress {
            Some(Progress { percent: percent @ 101.., .. }) => {
                Err(format!("progress.percent is {percent}; it must be 0 to {PERCENT_MAX}"))
            }
            None if read.resume_state.is_none() => {
                Err("it has neither progress nor resume_state".to_owned())
            }
            _ => Ok(read),
        }
    }
}

/// Accepts a line; `None` stands for a line that is too long.
trait Hear {
    fn hear(&mut self, lines: Vec<Option<Vec<u8>>>) -> impl Future<Output = ()> + Send;
}

/// Sends reports to the broker.
struct Listener<'a> {
    context: &'a TaskContext,
    has_complained: bool,
}

impl Hear for Listener<'_> {
    /// Only the last of several states matters, and each save takes a sync of the broker's disk. A
    /// command that writes faster waits until its pipe is read.
    async fn hear(&mut self, lines: Vec<Option<Vec<u8>>>) {
        let mut state = None;
        for line in &lines {
            let read = match line {
                Some(line) => Line::read(line),
                None => Err(format!("it has more than {LINE_BYTES_MAX} bytes")),
            };
            match read {
                Ok(Line { progress, resume_state }) => {
                    if let Some(Progress { percent, message }) = progress {
                        self.context.progress(percent, message);
                    }
                    state = resume_state.or(state);
                }
                Err(problem) => self.complain(&format!("has a line that is no report: {problem}")),
            }
        }
        let is_lost = self.context.cancel_reason() == Some(CancelReason::Lost);
        if let Some(state) = state.filter(|_| !is_lost)
            && let Err(error) = self.context.checkpoint(&state).await
        {
            self.complain(&format!("has a resume state that was not saved: {error}"));
        }
    }
}

impl Listener<'_> {
    /// Logs one problem per attempt, because a faulty program may write invalid lines in a loop.
    fn complain(&mut self, problem: &str) {
        if !std::mem::replace(&mut self.has_complained, true) {
            let (id, kind) = (self.context.id(), self.context.kind());
            tracing::warn!(
                %id,
                "type" = kind,
                "TASKYARD_REPORT {problem}; later problems of this attempt are not shown"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, thread};

    struct Heard(Vec<Vec<u8>>);

    impl Hear for &mut Heard {
        async fn hear(&mut self, lines: Vec<Option<Vec<u8>>>) {
            self.0.extend(lines.into_iter().flatten());
        }
    }

    #[test]
    fn a_line_is_progress_or_resume_state_or_both() {
        let check = |text: &str| {
            Line::read(text.as_bytes()).map(|line| {
                let progress =
                    line.progress.map(|Progress { percent, message }| (percent, message));
                (progress, line.resume_state.map(|state| state.get().to_owned()))
            })
        };
        let progress = |percent, message: &str| Some((percent, message.to_owned()));
        for (text, read) in [
            (r#"{"progress": {"percent": 40}}"#, (progress(40, ""), None)),
            (r#"{"progress": {"percent": 0, "message": "a b"}}"#, (progress(0, "a b"), None)),
            (r#"{"resume_state": {"at": 1.50}}"#, (None, Some(r#"{"at": 1.50}"#.to_owned()))),
            (
                r#"{"resume_state": 7, "progress": {"percent": 100}}"#,
                (progress(100, ""), Some("7".to_owned())),
            ),
        ] {
            assert_eq!(check(text), Ok(read), "{text}");
        }
        for (text, part) in [
            ("40", "expected struct Line"),
            ("{}", "neither progress nor resume_state"),
            (r#"{"progres": 1}"#, "unknown field `progres`"),
            (r#"{"progress": {"percent": 101}}"#, "percent is 101; it must be 0 to 100"),
            (r#"{"progress": {"percent": -1}}"#, "invalid value"),
            (r#"{"progress": {"message": "m"}}"#, "missing field `percent`"),
            (r#"{"resume_state": 7"#, "EOF"),
        ] {
            let problem = check(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[tokio::test]
    async fn a_report_right_before_the_end_is_read() {
        let pipe = ReportPipe::make(None, &std::env::temp_dir()).unwrap();
        let path = pipe.path();
        let mut heard = Heard(Vec::new());
        // `run` never waits, so that the runtime has no chance to notice the report.
        let run = async { std::fs::write(&path, "a\nb").unwrap() };
        pipe.heard_during(&mut heard, run).await;
        assert_eq!(heard.0, [b"a\n".to_vec(), b"b".to_vec()]);
        assert!(!path.exists());
    }

    /// A process that has left its task, or another one of the same user.
    #[tokio::test]
    async fn a_stranger_that_writes_without_end_is_not_heard_for_ever() {
        let pipe = ReportPipe::make(None, &std::env::temp_dir()).unwrap();
        let path = pipe.path();
        let mut heard = Heard(Vec::new());
        let (began, begun) = oneshot::channel();
        let stranger = thread::spawn(move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            pipe.write_all(b"a\n").unwrap();
            began.send(()).unwrap();
            // Until nobody reads the pipe any more.
            while pipe.write_all(b"a\n").is_ok() {}
        });
        pipe.heard_during(&mut heard, async { begun.await.unwrap() }).await;
        stranger.join().unwrap();
    }

    #[test]
    fn lines_are_cut_wherever_chunks_end() {
        let text = |lines: Vec<Option<Vec<u8>>>| {
            let shown = |line: Option<Vec<u8>>| {
                line.map_or("too long".to_owned(), |line| String::from_utf8(line).unwrap())
            };
            lines.into_iter().map(shown).collect::<Vec<String>>()
        };
        let mut lines = Lines::default();
        assert_eq!(text(lines.push(b"a\n\nb")), ["a\n"]);
        assert_eq!(text(lines.push(b"c")), [""; 0]);
        assert_eq!(text(lines.push(b"d\ne")), ["bcd\n"]);
        assert_eq!(text(lines.end()), ["e"]);
        assert_eq!(text(lines.end()), [""; 0]);
        assert_eq!(text(lines.push(&vec![b'x'; LINE_BYTES_MAX])), [""; 0]);
        assert_eq!(text(lines.push(b"x")), [""; 0]);
        assert!(lines.begun.is_empty(), "nothing of it is kept");
        assert_eq!(text(lines.push(b"x\nf\n")), ["too long", "f\n"]);
    }
}
