//! Runs tasks as child processes: `taskyard work --exec`.
//!
//! ```text
//! taskyard work ── taskyard __supervise ── taskyard __child, which becomes the command ── ...
//!   (worker)         (one per task)           (own process group, limits, user)
//! ```
//! If it may, the supervisor puts the command into a pid namespace (see `namespace.rs`).
//!
//! A cgroup bounds the processes of a task where one can be created; elsewhere RLIMIT_NPROC, which
//! is far higher, and counting do.
//!
//! Invariant: when [`Runner::run`] returns, no process of the task is left. The supervisor kills
//! them; if the supervisor itself is killed, the worker inherits its orphans and kills them.

mod cgroup;
mod kept;
mod launcher;
mod namespace;
mod nproc;
mod supervisor;
mod tree;
mod user;
mod verdict;
mod wire;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    future::Future,
    io,
    path::PathBuf,
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    sync::oneshot,
};

use self::cgroup::Cgroup;
pub use self::{
    cgroup::Cgroups,
    launcher::{SUBCOMMAND as LAUNCHER, main as launcher_main},
    namespace::{SUBCOMMAND as INIT, main as init_main, try_pid_namespace},
    nproc::user_threads_max,
    supervisor::{SUBCOMMAND as SUPERVISOR, main as supervisor_main},
    user::User,
    verdict::{Failure, Verdict},
    wire::{Ending, Limits, Report},
};

/// The running supervisors: every other child of this process is an orphan of a killed supervisor.
/// Children belong to the process, so this list does too.
static SUPERVISORS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// The time between two sweeps of a killed supervisor's orphans.
const SWEEP_EVERY: Duration = Duration::from_millis(5);
/// A process that SIGKILL does not end within this time is stuck in the kernel.
const SWEEP_FOR_MAX: Duration = Duration::from_secs(5);

/// Runs one command for every task.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The binary that implements `__supervise`: this one.
    pub program: PathBuf,
    /// Program and arguments.
    pub argv: Vec<String>,
    pub limits: Limits,
    /// The place for a cgroup per task. Without it, the processes of tasks are counted.
    pub cgroups: Option<Cgroups>,
    /// Whether each task gets a pid namespace of its own, so that it can signal nothing else.
    pub pid_namespace: bool,
    /// The user of the tasks, if it is not the user of this process.
    pub user: Option<User>,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// One task to run.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Written to stdin.
    pub payload: Vec<u8>,
    /// Added to the worker's own environment, without the variables of Taskyard itself except for
    /// `TASKYARD_URL`.
    pub environment: Vec<(&'static str, String)>,
    /// The task is killed after this.
    pub timeout: Option<Duration>,
    /// A folder for this task alone. Its supervisor removes the folder at the end, because the
    /// worker may be dead by then.
    pub folder: Option<PathBuf>,
}

impl Runner {
    /// Makes this process inherit the orphans of its tasks. Call it once, before the first task.
    pub fn adopt_orphans() -> io::Result<()> {
        Ok(set_child_subreaper(Some(getpid()))?)
    }

    /// Runs `job` to its end, or until `stop` is ready or this future is dropped. Both of these
    /// kill its processes; only `stop` waits for their end.
    pub async fn run(&self, job: Job, stop: impl Future<Output = ()>) -> io::Result<Report> {
        let request = wire::Request {
            argv: self.argv.clone(),
            timeout_ms: job
                .timeout
                .map(|timeout| timeout.as_millis().try_into().unwrap_or(u64::MAX)),
            grace_ms: self.grace.as_millis().try_into().unwrap_or(u64::MAX),
            limits: self.limits,
            cgroups: self.cgroups.clone(),
            pid_namespace: self.pid_namespace,
            user: self.user.clone(),
            folder: job.folder,
            payload_bytes: job.payload.len(),
        };
        let request = request.encode(&job.payload)?;
        let child = self.spawn(&job.environment).map_err(explained)?;
        let (keep, stopped) = oneshot::channel::<()>();
        // An async task of its own: a dropped caller drops `keep`, and the task still finishes.
        let mut exchange = tokio::spawn(exchange(child, request, stopped, self.cgroups.clone()));
        let result = tokio::select! {
            result = &mut exchange => result,
            () = stop => {
                drop(keep);
                exchange.await
            }
        };
        result.map_err(io::Error::other)?
    }

    fn spawn(&self, environment: &[(&'static str, String)]) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg0("taskyard").arg(supervisor::SUBCOMMAND);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_private(name)) {
            command.env_remove(name);
        }
        command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            // In a process group of its own, because the worker handles Ctrl-C on its terminal.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut supervisors = supervisors();
        let child = command.spawn()?;
        supervisors.extend(child.id().and_then(|id| i32::try_from(id).ok()));
        Ok(child)
    }
}

/// Whether a variable is for the worker alone: a token, a password, a setting, or a variable of an
/// outer worker about its own task. The broker's address is no secret, and a command that enqueues
/// needs it.
fn is_private(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"TASKYARD_") && name != "TASKYARD_URL"
}

/// Sends the request, keeps the supervisor's stdin open until `stopped`, and reads the report.
async fn exchange(
    mut child: Child,
    request: Vec<u8>,
    stopped: oneshot::Receiver<()>,
    cgroups: Option<Cgroups>,
) -> io::Result<Report> {
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let hold = async {
        if let Some(mut stdin) = stdin
            && stdin.write_all(&request).await.is_ok()
        {
            let _ = stopped.await;
        }
        // This closes stdin, which stops the task.
        std::future::pending::<()>().await;
    };
    let receive = async {
        let mut bytes = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(wire::REPORT_BYTES_MAX).read_to_end(&mut bytes).await?;
        }
        io::Result::Ok(bytes)
    };
    let bytes = tokio::select! {
        bytes = receive => bytes,
        () = hold => Ok(Vec::new()),
    };
    child.wait().await?;
    if let Some(id) = id {
        supervisors().remove(&id);
    }
    match Report::decode(&bytes?) {
        Ok(report) => Ok(report),
        Err(_) => {
            let cgroup = cgroups.zip(id).map(|(cgroups, id)| cgroups.left_by(id));
            sweep(cgroup.as_ref()).await;
            Ok(Report::silent(Ending::Unsupervised))
        }
    }
}

/// Kills every process of a killed supervisor, those of its cgroup first. It waits without a thread
/// of its own, because a task that has filled the machine leaves no thread to start.
async fn sweep(cgroup: Option<&Cgroup>) {
    let deadline = Instant::now() + SWEEP_FOR_MAX;
    loop {
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        let orphans: Vec<Pid> = {
            let supervisors = supervisors();
            let known = |pid: &Pid| supervisors.contains(&pid.as_raw_pid());
            tree::children(getpid()).into_iter().filter(|pid| !known(pid)).collect()
        };
        if orphans.is_empty() || deadline <= Instant::now() {
            return;
        }
        for orphan in orphans {
            tree::kill_with_descendants(orphan);
            // This process inherits its children when it is gone, and the next round kills them.
            let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
        }
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}

/// Explains the kernel's error when no process or thread can be started.
fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            let why = format!("no more processes or threads can be started here now ({error})");
            io::Error::new(error.kind(), why)
        }
        _ => error,
    }
}

fn supervisors() -> MutexGuard<'static, BTreeSet<i32>> {
    SUPERVISORS.lock().unwrap_or_else(PoisonError::into_inner)
}
