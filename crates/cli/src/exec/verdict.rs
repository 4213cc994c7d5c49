//! Verdict: turns the exit code, stdout and stderr of a task's command into a result or an error.

use std::time::Duration;

use taskyard_server::RESULT_BYTES_MAX;

use super::wire::{Ending, Limits, Report};

/// sysexits' EX_DATAERR: the payload is bad, so that no retry can help.
const BAD_DATA: i32 = 65;
/// An error's message is one line; the rest of stderr becomes its backtrace.
const MESSAGE_CHARS_MAX: usize = 500;

/// The answer for a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The task succeeded with this result: JSON, or bytes that are no text.
    Ack(Option<Vec<u8>>),
    /// The task failed.
    Fail(Failure),
    /// The worker stopped the task, and knows the answer.
    Stopped,
}

/// The error of a failed task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub error_type: String,
    /// The last line of stderr, or a description.
    pub message: String,
    /// The tail of stderr.
    pub backtrace: String,
    pub retryable: bool,
}

impl Report {
    /// Reads the report of a job that had `timeout` and `limits`.
    pub fn verdict(&self, timeout: Option<Duration>, limits: &Limits) -> Verdict {
        let (error_type, happened) = match &self.ending {
            Ending::Exited(0) => return self.success(),
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
                    "the supervisor of this task was killed; all processes of the task were killed"
                        .to_owned(),
                );
            }
        };
        let last_line = self.last_line();
        self.fail(error_type, last_line.unwrap_or(happened))
    }

    /// The command's output is its result, unless it is larger than a result may be.
    fn success(&self) -> Verdict {
        let encoded = result(&self.stdout);
        let bytes = encoded.as_ref().map_or(0, Vec::len);
        let is_whole = self.stdout.len() as u64 == self.stdout_total;
        if is_whole && bytes <= RESULT_BYTES_MAX {
            return Verdict::Ack(encoded);
        }
        let printed = match is_whole {
            true => format!("{} bytes, {bytes} as JSON", self.stdout_total),
            false => format!("{} bytes", self.stdout_total),
        };
        let message = format!(
            "it exited with code 0 but printed {printed}, and a result has at most \
             {RESULT_BYTES_MAX}: store it elsewhere and print where, and print what is no result \
             to stderr"
        );
        // The work is done, and a retry would print the same.
        let failure = self.failure("result too large".to_owned(), message);
        Verdict::Fail(Failure { retryable: false, ..failure })
    }

    fn fail(&self, error_type: String, message: String) -> Verdict {
        Verdict::Fail(self.failure(error_type, message))
    }

    fn failure(&self, error_type: String, message: String) -> Failure {
        Failure {
            error_type,
            message,
            backtrace: String::from_utf8_lossy(&self.stderr).into_owned(),
            retryable: self.ending != Ending::Exited(BAD_DATA),
        }
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

/// The result for a stdout: JSON stays JSON, other text becomes a JSON string without its last line
/// end, and other bytes stay bytes. An empty stdout is no result.
fn result(stdout: &[u8]) -> Option<Vec<u8>> {
    if stdout.trim_ascii().is_empty() {
        return None;
    }
    if serde_json::from_slice::<serde::de::IgnoredAny>(stdout).is_ok() {
        return Some(stdout.trim_ascii().to_vec());
    }
    let Ok(text) = std::str::from_utf8(stdout) else { return Some(stdout.to_vec()) };
    let text = text.strip_suffix('\n').unwrap_or(text);
    Some(serde_json::Value::from(text).to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(ending: Ending, stdout: &str, stderr: &str) -> Verdict {
        let stdout_total = stdout.len() as u64;
        let report = Report { ending, stdout: stdout.into(), stdout_total, stderr: stderr.into() };
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
    fn bytes_that_are_no_text_are_the_result_as_they_are() {
        for bytes in [&b"\xff\x00\n"[..], b"a\xc3", b"\x89PNG\r\n"] {
            let stdout_total = bytes.len() as u64;
            let mut report = Report::silent(Ending::Exited(0));
            (report.stdout, report.stdout_total) = (bytes.to_vec(), stdout_total);
            let acked = Verdict::Ack(Some(bytes.to_vec()));
            assert_eq!(report.verdict(None, &Limits::default()), acked, "{bytes:?}");
        }
    }

    #[test]
    fn a_result_is_whole_or_an_error() {
        let max = RESULT_BYTES_MAX;
        for (byte, length, total, refused) in [
            // As JSON, text has two quotes around it.
            (b'x', max - 2, max - 2, None),
            (
                b'x',
                max - 1,
                max - 1,
                Some(format!("printed {} bytes, {} as JSON", max - 1, max + 1)),
            ),
            (
                b'"',
                max / 2,
                max / 2,
                Some(format!("printed {} bytes, {} as JSON", max / 2, max + 2)),
            ),
            (b'1', max, max, None),
            (0xff, max, max, None),
            (0xff, max + 1, max + 1, Some(format!("printed {} bytes, ", max + 1))),
            (0xff, max + 1, 1 << 40, Some(format!("printed {} bytes, and", 1_u64 << 40))),
        ] {
            let mut report = Report::silent(Ending::Exited(0));
            (report.stdout, report.stdout_total) = (vec![byte; length], total as u64);
            report.stderr = b"noise".to_vec();
            let verdict = report.verdict(None, &Limits::default());
            match (verdict, refused) {
                (Verdict::Ack(result), None) => assert!(result.unwrap().len() <= max, "{length}"),
                (Verdict::Fail(failure), Some(part)) => {
                    assert!(failure.message.contains(&part), "{part}: {}", failure.message);
                    assert_eq!(failure.error_type, "result too large");
                    assert!(!failure.retryable && failure.backtrace == "noise", "{failure:?}");
                }
                (verdict, refused) => panic!("{length}, {refused:?}: {verdict:?}"),
            }
        }
    }

    #[test]
    fn json_that_may_go_on_is_no_result() {
        let mut report = Report::silent(Ending::Exited(0));
        report.stdout = [b"1".to_vec(), vec![b' '; RESULT_BYTES_MAX]].concat();
        report.stdout_total = report.stdout.len() as u64;
        let verdict = |report: &Report| report.verdict(None, &Limits::default());
        assert_eq!(verdict(&report), Verdict::Ack(Some(b"1".to_vec())));
        report.stdout_total += 1;
        assert!(matches!(verdict(&report), Verdict::Fail(_)));
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
