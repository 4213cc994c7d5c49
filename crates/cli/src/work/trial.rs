//! The trial of `work --user`: whether commands can run as that user here, found out before the
//! first task is claimed. What is wrong would spend the attempts of every task otherwise.

use std::{
    env,
    fmt::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use taskyard_cli::exec::{Ending, Job, Report, Runner, User};

use super::{SHELL, report::ReportPipe};
use crate::remote::usage;

/// Runs as the user, with the program of the tasks as `$1`. It starts nothing of the tasks' own.
const SCRIPT: &str = r#"
    test -x . || exit 93
    { true > "$TASKYARD_REPORT"; } 2> /dev/null || exit 94
    case $1 in
    */*) test -f "$1" && test -x "$1" ;;
    *) command -v "$1" > /dev/null ;;
    esac || exit 95"#;
const CLOSED_WORKING_DIRECTORY: i32 = 93;
const CLOSED_REPORT: i32 = 94;
const NO_PROGRAM: i32 = 95;

/// Longer than a shell takes on a busy machine.
const TRIAL_FOR_MAX: Duration = Duration::from_secs(30);
/// Where files for commands may be, after the folder for temporary files of the worker.
const COMMON_FOLDER: &str = "/tmp";

/// Runs a command as the user, as tasks will; returns the folder in which files for commands are
/// made: the first one that the user can reach.
pub(super) async fn try_user(runner: &Runner, user: &User) -> Result<PathBuf> {
    let (own, common) = (env::temp_dir(), PathBuf::from(COMMON_FOLDER));
    let folders = if own == common { vec![own] } else { vec![own, common] };
    let mut closed = String::new();
    for folder in folders {
        let pipe = match ReportPipe::make(Some(user), &folder) {
            Ok(pipe) => pipe,
            Err(error) => {
                let _ = write!(closed, "{}: {error}; ", folder.display());
                continue;
            }
        };
        match run(runner, &pipe).await?.ending {
            Ending::Exited(CLOSED_REPORT) => {
                let _ = write!(closed, "{}: {user} cannot reach it; ", folder.display());
            }
            _ => return Ok(folder),
        }
    }
    Err(usage(format!(
        "--user: no folder for the files of commands ({}); open a folder to {user}, and name it in \
         TMPDIR",
        closed.trim_end_matches("; ")
    )))
}

/// The report of the trial, if it ended well or for want of a report pipe.
async fn run(runner: &Runner, pipe: &ReportPipe) -> Result<Report> {
    let user = runner.user.as_ref().map(ToString::to_string).unwrap_or_default();
    let program = runner.argv.first().cloned().unwrap_or_default();
    let mut argv: Vec<String> = SHELL.map(str::to_owned).to_vec();
    argv.extend([SCRIPT.to_owned(), "sh".to_owned(), program.clone()]);
    let trial = Runner { argv, ..runner.clone() };
    let job = Job {
        environment: vec![("TASKYARD_REPORT", pipe.path().display().to_string())],
        timeout: Some(TRIAL_FOR_MAX),
        ..Job::default()
    };
    let report = trial.run(job, std::future::pending()).await?;
    let why = match &report.ending {
        Ending::Exited(0 | CLOSED_REPORT) => return Ok(report),
        Ending::Exited(CLOSED_WORKING_DIRECTORY) => {
            let here = env::current_dir().unwrap_or_else(|_| Path::new(".").to_owned());
            format!(
                "{user} cannot enter the working directory {}; start the worker in another one",
                here.display()
            )
        }
        Ending::Exited(NO_PROGRAM) => {
            format!("{user} cannot run {program}; check its path, and who may read and run it")
        }
        Ending::NotStarted(why) => {
            format!("no command can be started as {user}: {why}; {WHAT_TO_DO}")
        }
        other => {
            let said = String::from_utf8_lossy(&report.stderr);
            format!("a trial as {user} ended with {other:?}: {}; {WHAT_TO_DO}", said.trim())
        }
    };
    Err(usage(format!("--user: {why}")))
}

const WHAT_TO_DO: &str =
    "a worker in a container needs CAP_SETUID and CAP_SETGID, or name another user";
