//! The messages between a worker and the supervisor of one task: a request on the supervisor's
//! stdin, a report on its stdout. Each is one line of JSON followed by raw bytes.
//!
//! The worker keeps the supervisor's stdin open while the task may run. The end of stdin, for
//! whatever reason, means stop.

use std::{
    io::{self, BufRead, Read, Write},
    path::PathBuf,
};

use rustix::process::WaitStatus;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use taskyard_server::RESULT_BYTES_MAX;

use super::{cgroup::Cgroups, user::User};

/// The longest JSON line: a command line and a few numbers.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Far more than the largest payload of a node.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// How much of stdout is kept as the task's result; a larger one is an error. White space around
/// JSON is no part of the result, but counts here.
pub(super) const STDOUT_BYTES_MAX: usize = RESULT_BYTES_MAX + 1;
/// How many of stderr's last bytes become the error's text.
pub(super) const STDERR_BYTES_MAX: usize = 8 << 10;
/// Most bytes of a report.
pub(super) const REPORT_BYTES_MAX: u64 = 1024 + (STDOUT_BYTES_MAX + STDERR_BYTES_MAX) as u64;

/// A request: the command and its bounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// Program and arguments.
    pub(super) argv: Vec<String>,
    pub(super) timeout_ms: Option<u64>,
    /// Between SIGTERM and SIGKILL.
    pub(super) grace_ms: u64,
    pub(super) limits: Limits,
    /// The folder for the cgroup of the task, if it gets one.
    pub(super) cgroups: Option<Cgroups>,
    /// Whether the task gets a pid namespace of its own.
    pub(super) pid_namespace: bool,
    /// The user of the command, if it is not the worker's own.
    pub(super) user: Option<User>,
    /// Removed when the task has ended.
    pub(super) folder: Option<PathBuf>,
    pub(super) payload_bytes: usize,
}

/// The limits of a task's processes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Address space of each process.
    pub memory_bytes: Option<u64>,
    /// Processor time of each process.
    pub cpu_seconds: Option<u64>,
    /// Most processes at once, the command itself included. In a cgroup each thread counts as one;
    /// without a cgroup threads do not count.
    pub processes_max: Option<u32>,
    /// Threads of the whole user at once, for a task without a cgroup (RLIMIT_NPROC).
    pub user_threads_max: Option<u64>,
}

/// How a task's process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The command ended by itself with this code.
    Exited(i32),
    /// A signal ended the command that its supervisor did not send.
    Signalled(i32),
    /// The supervisor killed the task at its timeout.
    TimedOut,
    /// The supervisor killed the task because the worker asked for it, or is gone.
    Stopped,
    /// The supervisor killed the task because it had, or tried to have, too many processes.
    TooManyProcesses,
    /// The command never ran.
    NotStarted(String),
    /// The supervisor ended without a report.
    Unsupervised,
}

#[derive(Serialize, Deserialize)]
struct ReportLine {
    ending: Ending,
    stdout_total: u64,
    stdout_bytes: usize,
    stderr_bytes: usize,
}

/// A report: the end of a task's command.
#[derive(Clone, Debug)]
pub struct Report {
    pub ending: Ending,
    /// The first bytes of stdout, up to one more than a result may have.
    pub stdout: Vec<u8>,
    /// The number of all bytes of stdout.
    pub stdout_total: u64,
    /// The last bytes of stderr.
    pub stderr: Vec<u8>,
}

impl Request {
    pub(super) fn encode(&self, payload: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(payload);
        Ok(bytes)
    }

    pub(super) fn read(from: &mut impl BufRead) -> io::Result<(Request, Vec<u8>)> {
        let request: Request = read_line(from)?;
        if request.payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(io::Error::other(format!("a payload of {} bytes", request.payload_bytes)));
        }
        let mut payload = vec![0; request.payload_bytes];
        from.read_exact(&mut payload)?;
        Ok((request, payload))
    }
}

impl Ending {
    /// The ending of a process that its supervisor did not kill.
    pub(super) fn of(status: WaitStatus) -> Ending {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Ending::Exited(code),
            (None, Some(signal)) => Ending::Signalled(signal),
            (None, None) => Ending::Unsupervised,
        }
    }
}

impl Report {
    /// A report without output.
    pub(super) fn silent(ending: Ending) -> Report {
        Report { ending, stdout: Vec::new(), stdout_total: 0, stderr: Vec::new() }
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let line = ReportLine {
            ending: self.ending.clone(),
            stdout_total: self.stdout_total,
            stdout_bytes: self.stdout.len(),
            stderr_bytes: self.stderr.len(),
        };
        let mut bytes = serde_json::to_vec(&line)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.stdout);
        bytes.extend_from_slice(&self.stderr);
        to.write_all(&bytes)?;
        to.flush()
    }

    pub(super) fn decode(mut bytes: &[u8]) -> io::Result<Report> {
        let line: ReportLine = read_line(&mut bytes)?;
        if bytes.len() != line.stdout_bytes.saturating_add(line.stderr_bytes) {
            return Err(io::Error::other("the report is cut short"));
        }
        let (stdout, stderr) = bytes.split_at(line.stdout_bytes);
        Ok(Report {
            ending: line.ending,
            stdout: stdout.to_vec(),
            stdout_total: line.stdout_total,
            stderr: stderr.to_vec(),
        })
    }
}

fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<T> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_reports_survive_the_pipe() {
        let request = Request {
            argv: vec!["sh".into(), "-c".into(), "echo 'a\nb'".into()],
            timeout_ms: Some(5),
            grace_ms: 10,
            limits: Limits { memory_bytes: Some(1), ..Limits::default() },
            cgroups: None,
            pid_namespace: false,
            user: None,
            folder: None,
            payload_bytes: 3,
        };
        let bytes = request.encode(b"a\nb").unwrap();
        let (read, payload) = Request::read(&mut &bytes[..]).unwrap();
        assert_eq!((read.argv, payload.as_slice()), (request.argv, &b"a\nb"[..]));

        let report = Report {
            ending: Ending::Exited(3),
            stdout: b"1\n2".to_vec(),
            stdout_total: 9,
            stderr: b"\xff".to_vec(),
        };
        let mut bytes = Vec::new();
        report.write(&mut bytes).unwrap();
        let read = Report::decode(&bytes).unwrap();
        assert_eq!(
            (read.ending, read.stdout, read.stdout_total, read.stderr),
            (report.ending, report.stdout, report.stdout_total, report.stderr)
        );
        assert!(Report::decode(&bytes[..bytes.len() - 1]).is_err(), "cut short");
        assert!(Report::decode(b"").is_err(), "nothing at all");
    }
}
