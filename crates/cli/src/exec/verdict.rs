//! What a task's process says about the task: its exit code, stdout and stderr become a result or
//! an error.

use std::time::Duration;

use super::wire::{Ending, Limits, Report};

/// sysexits' EX_DATAERR: the payload is bad, and no retry will make it good.
const BAD_DATA: i32 = 65;
/// An error's message is one line; the rest of stderr stands in its backtrace.
const MESSAGE_CHARS_MAX: usize = 500;

/// What to answer for a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It succeeded, with this JSON text.
    Ack(Option<Vec<u8>>),
    /// It failed.
    Fail(Failure),
    /// It was stopped by us: whoever asked for that knows what to answer.
    Stopped,
}

/// The error of a failed task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub error_type: String,
    /// The last line of stderr, or what happened.
    pub message: String,
    /// The tail of stderr.
    pub backtrace: String,
    pub retryable: bool,
}

impl Report {
    /// Reads the report of a job that had `timeout` and `limits`.
    pub fn verdict(&self, timeout: Option<Duration>, limits: &Limits) -> Verdict {
        let (error_type, happened) = match &self.ending {
            Ending::Exited(0) => return Verdict::Ack(result(&self.stdout)),
            Ending::Stopped => return Verdict::Stopped,
            Ending::Exited(code) => (format!("exit {code}"), format!("exited with code {code}")),
            Ending::Signalled(signal) => signalled(*signal, limits),
            Ending::TimedOut => {
                let after = timeout.unwrap_or_default();
                return self
                    .fail("timeout".to_owned(), format!("killed at its timeout of {after:?}"));
            }
            Ending::TooManyProcesses => {
                let max = limits.processes_max.unwrap_or_default();
                let message = format!(
                    "killed when it needed more than {max} processes at once (each thread is \
                     one where cgroups count them)"
                );
                return self.fail("too many processes".to_owned(), message);
            }
            Ending::NotStarted(error) => {
                return self.fail("not started".to_owned(), format!("cannot start it: {error}"));
            }
            Ending::Unsupervised => {
                return self.fail(
                    "unsupervised".to_owned(),
                    "the process that watched over this task was killed; all of it was ended"
                        .to_owned(),
                );
            }
        };
        let last_line = self.last_line();
        self.fail(error_type, last_line.unwrap_or(happened))
    }

    fn fail(&self, error_type: String, message: String) -> Verdict {
        Verdict::Fail(Failure {
            error_type,
            message,
            backtrace: String::from_utf8_lossy(&self.stderr).into_owned(),
            retryable: self.ending != Ending::Exited(BAD_DATA),
        })
    }

    fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.stderr);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        Some(line.chars().take(MESSAGE_CHARS_MAX).collect())
    }
}

fn signalled(signal: i32, limits: &Limits) -> (String, String) {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        _ => return (format!("signal {signal}"), format!("ended by signal {signal}")),
    };
    let happened = match limits.cpu_seconds {
        Some(seconds) if signal == 24 => format!("used its {seconds} s of processor time ({name})"),
        _ => format!("ended by {name}"),
    };
    (name.to_owned(), happened)
}

/// stdout as JSON: itself if it is JSON, else a string of it without its last line end. Nothing
/// printed is no result.
fn result(stdout: &[u8]) -> Option<Vec<u8>> {
    if stdout.trim_ascii().is_empty() {
        return None;
    }
    if serde_json::from_slice::<serde::de::IgnoredAny>(stdout).is_ok() {
        return Some(stdout.trim_ascii().to_vec());
    }
    let text = String::from_utf8_lossy(stdout);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Some(serde_json::Value::from(text).to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(ending: Ending, stdout: &str, stderr: &str) -> Verdict {
        let report = Report { ending, stdout: stdout.into(), stderr: stderr.into() };
        let limits = Limits { cpu_seconds: Some(2), processes_max: Some(8), ..Limits::default() };
        report.verdict(Some(Duration::from_secs(3)), &limits)
    }

    #[test]
    fn stdout_is_the_result_as_json() {
        for (stdout, result) in [
            ("", None),
            (" \n", None),
            ("{\"a\": 1}\n", Some("{\"a\": 1}")),
            ("12\n", Some("12")),
            ("done\n", Some("\"done\"")),
            ("two\nlines\n", Some("\"two\\nlines\"")),
            ("{\"a\": 1} {}", Some("\"{\\\"a\\\": 1} {}\"")),
        ] {
            let acked = Verdict::Ack(result.map(|json| json.as_bytes().to_vec()));
            assert_eq!(verdict(Ending::Exited(0), stdout, "noise"), acked, "{stdout:?}");
        }
    }

    #[test]
    fn endings_become_errors() {
        for (ending, stderr, error_type, message, retryable) in [
            (Ending::Exited(3), "", "exit 3", "exited with code 3", true),
            (Ending::Exited(3), "a\nboom\n\n", "exit 3", "boom", true),
            (Ending::Exited(65), "bad", "exit 65", "bad", false),
            (Ending::Signalled(11), "", "SIGSEGV", "ended by SIGSEGV", true),
            (Ending::Signalled(40), "", "signal 40", "ended by signal 40", true),
            (
                Ending::Signalled(24),
                "",
                "SIGXCPU",
                "used its 2 s of processor time (SIGXCPU)",
                true,
            ),
            (Ending::TimedOut, "last words", "timeout", "killed at its timeout of 3s", true),
            (
                Ending::TooManyProcesses,
                "",
                "too many processes",
                "killed when it needed more than 8 processes at once (each thread is one where \
                 cgroups count them)",
                true,
            ),
        ] {
            let failure = Failure {
                error_type: error_type.into(),
                message: message.into(),
                backtrace: stderr.into(),
                retryable,
            };
            assert_eq!(verdict(ending.clone(), "", stderr), Verdict::Fail(failure), "{ending:?}");
        }
        assert_eq!(verdict(Ending::Stopped, "", ""), Verdict::Stopped);
    }
}
