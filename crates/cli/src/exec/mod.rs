//! Runs tasks as child processes: `taskyard work --exec`.
//!
//! ```text
//! taskyard work ── taskyard __supervise ── taskyard __child, which becomes the command ── ...
//!   (worker)         (one per task)           (own process group, limits, user)
//! ```
//! Where it may, the supervisor puts the command into a pid namespace (see `namespace.rs`).
//!
//! What a task starts is bounded by a cgroup where one can be made, else by RLIMIT_NPROC (far off)
//! and by counting.
//!
//! Invariant: when [`Runner::run`] returns, no process of that task is left. The supervisor sees to
//! it; should the supervisor itself be killed, its orphans fall to the worker, which sweeps them.

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

/// Supervisors that run now: every other child of this process is an orphan of a killed one.
/// Children belong to the process, so this list does too.
static SUPERVISORS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Between two looks at what a killed supervisor left behind.
const SWEEP_EVERY: Duration = Duration::from_millis(5);
/// A process that SIGKILL does not end within this sits in the kernel.
const SWEEP_FOR_MAX: Duration = Duration::from_secs(5);

/// Runs one command for every task.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The binary that answers to `__supervise`: this one.
    pub program: PathBuf,
    /// Program and arguments.
    pub argv: Vec<String>,
    pub limits: Limits,
    /// Where each task gets a cgroup of its own. Without, its processes are counted.
    pub cgroups: Option<Cgroups>,
    /// Whether each task gets a pid namespace of its own, so that it can signal nothing else.
    pub pid_namespace: bool,
    /// As whom tasks run, if not as the user of this process.
    pub user: Option<User>,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// One task to run.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Written to stdin.
    pub payload: Vec<u8>,
    /// Added to the worker's own environment, of which the variables of Taskyard itself are left
    /// out but for `TASKYARD_URL`.
    pub environment: Vec<(&'static str, String)>,
    /// Killed after this.
    pub timeout: Option<Duration>,
    /// A folder for this task alone, which its supervisor removes in the end: the worker may not
    /// live to do it.
    pub folder: Option<PathBuf>,
}

impl Runner {
    /// Makes this process the one that orphans fall to. Call it once, before the first task.
    pub fn adopt_orphans() -> io::Result<()> {
        Ok(set_child_subreaper(Some(getpid()))?)
    }

    /// Runs `job` to its end, or until `stop` is ready or this future is dropped. In both of these
    /// cases its processes are killed; only the first waits for it.
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
        // A task of its own: a dropped caller drops `keep`, and the rest still happens.
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
            // Its own group: Ctrl-C on the worker's terminal is the worker's to handle.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut supervisors = supervisors();
        let child = command.spawn()?;
        supervisors.extend(child.id().and_then(|id| i32::try_from(id).ok()));
        Ok(child)
    }
}

/// Whether a variable is between the worker and its broker: a token, a password, a setting, or what
/// an outer worker told this one about a task of its own. The broker's address is no secret, and a
/// command that enqueues needs it.
fn is_private(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"TASKYARD_") && name != "TASKYARD_URL"
}

/// Sends the request, holds the line open until `stopped`, and takes the report.
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
        // Here stdin is closed, which stops the task.
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

/// Kills every process that a killed supervisor left behind, those of its cgroup first. It waits
/// without a thread of its own: where a task has filled the machine, there would be none.
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
            // Its own children fall to us when it is gone: the next round takes them.
            let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
        }
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}

/// Says what the kernel means when it has no process or thread left to give.
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
