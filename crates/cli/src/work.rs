//! `taskyard work`: runs a worker that runs a command for each task.

mod parents;
mod report;
mod trial;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use rustix::process::geteuid;
use taskyard::{
    CancelReason, Cancelled, Client, Fail, RawResult, TaskContext, TaskRequest, Worker,
};
use taskyard_cli::exec::{
    Cgroups, Job, Limits, Runner, Verdict, try_pid_namespace, user_threads_max,
};
use tokio::sync::oneshot;

use self::report::ReportPipe;
use crate::{
    args::{Common, WorkArgs},
    log,
    remote::{self, usage},
    signals::Signals,
};

/// The running binary, even if another file has taken its name since.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// The program that runs a command line.
const SHELL: [&str; 2] = ["/bin/sh", "-c"];
/// The time between two tries to reach a broker.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The number of tries between two log lines about it.
const COMPLAIN_EVERY: u32 = 15;

pub(crate) fn run(args: &WorkArgs, common: &Common) -> Result<()> {
    log::start(&args.log)?;
    if args.user.is_some() && !geteuid().is_root() {
        return Err(usage("--user needs a worker that runs as root, which may change the user"));
    }
    Runner::adopt_orphans().context("cannot adopt the orphaned processes of tasks")?;
    let runner = runner(args);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let worked = runtime.block_on(work(args, common, runner));
    // The supervisors kill remaining commands, so that nothing is left to wait for.
    runtime.shutdown_background();
    worked
}

async fn work(args: &WorkArgs, common: &Common, runner: Runner) -> Result<()> {
    let mut signals = Signals::listen()?;
    let folder = match &runner.user {
        Some(user) => trial::try_user(&runner, user).await?,
        None => std::env::temp_dir(),
    };
    let client = tokio::select! {
        client = connect(common) => client?,
        () = signals.next() => return Ok(()),
    };
    let worker = worker(args, client, Exec { runner, folder })?;
    let names: Vec<&str> = args.queue.iter().map(|(name, _)| name.as_str()).collect();
    tracing::info!(queues = names.join(","), "waiting for tasks");
    let (stop, stopped) = oneshot::channel::<()>();
    let mut running = std::pin::pin!(worker.run_until(stopped));
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        () = signals.next() => {}
    }
    tracing::info!(grace = ?args.shutdown_grace, "stopping; a second signal stops at once");
    drop(stop);
    Ok(signals.or_at_once(running).await?)
}

/// Connects to the broker, and waits until it is up, because services start in any order.
async fn connect(common: &Common) -> Result<Client> {
    let mut asked = 0_u32;
    loop {
        let error = match remote::connect(common).await {
            Err(error) => error,
            connected => return connected,
        };
        let is_down = error.downcast_ref().is_some_and(taskyard::Error::is_retryable);
        if !is_down {
            return Err(error);
        }
        if asked.is_multiple_of(COMPLAIN_EVERY) {
            let servers = common.server.join(", ");
            tracing::warn!(servers, "{error}; waiting until a broker is there");
        }
        asked += 1;
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Runs the command of each task.
struct Exec {
    runner: Runner,
    /// The folder for files of commands.
    folder: PathBuf,
}

/// The worker of the command line.
fn worker(args: &WorkArgs, client: Client, exec: Exec) -> Result<Worker> {
    let exec = Arc::new(exec);
    let mut builder =
        Worker::builder(client).concurrency(concurrency(args)).shutdown_grace(args.shutdown_grace);
    for (queue, weight) in &args.queue {
        builder = match weight {
            Some(weight) => builder.queue_weighted(queue, *weight),
            None => builder.queue(queue),
        };
    }
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    if let Some(timeout) = args.timeout {
        builder = builder.timeout(timeout);
    }
    let handler = move |request: TaskRequest| handle(Arc::clone(&exec), request);
    let types: BTreeSet<&String> = args.types.iter().collect();
    let builder = match types.is_empty() {
        true => builder.fallback(handler),
        false => types
            .into_iter()
            .fold(builder, |builder, name| builder.handler(name.as_str(), handler.clone())),
    };
    Ok(builder.build()?)
}

fn concurrency(args: &WorkArgs) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    args.concurrency.map_or_else(processors, |count| count as usize)
}

fn runner(args: &WorkArgs) -> Runner {
    let argv = match &args.exec {
        Some(command) => {
            SHELL.iter().copied().chain([command.as_str()]).map(str::to_owned).collect()
        }
        None => args.argv.clone(),
    };
    let mut limits = Limits {
        memory_bytes: args.memory,
        cpu_seconds: args.cpu_seconds,
        processes_max: Some(args.max_processes).filter(|&max| max > 0),
        user_threads_max: None,
    };
    let cgroups = match Cgroups::find(Path::new(OWN_PROGRAM)) {
        Ok(cgroups) => {
            tracing::debug!(folder = %cgroups.base().display(), "each task gets a cgroup");
            Some(cgroups)
        }
        Err(why) => {
            bound_without_cgroups(&mut limits, concurrency(args), &why);
            None
        }
    };
    Runner {
        program: OWN_PROGRAM.into(),
        argv,
        limits,
        cgroups,
        pid_namespace: pid_namespace(args),
        user: args.user.clone(),
        grace: args.kill_grace,
    }
}

/// Whether each task gets a pid namespace; otherwise logs which processes commands may signal.
fn pid_namespace(args: &WorkArgs) -> bool {
    let why = match args.no_pid_namespace {
        true => "--no-pid-namespace was given".to_owned(),
        false => match try_pid_namespace(Path::new(OWN_PROGRAM)) {
            Ok(()) => {
                tracing::debug!("each task gets a pid namespace");
                return true;
            }
            Err(why) => why.to_string(),
        },
    };
    match (&args.user, geteuid().is_root()) {
        (Some(_), _) => tracing::info!(
            why,
            "tasks get no pid namespaces: a command may signal other tasks, because all run as one \
             user"
        ),
        (None, true) => tracing::warn!(
            why,
            "commands run as root and may kill every process of this machine, also this worker: \
             run the worker as another user, or commands with --user NAME, or give the worker \
             CAP_SYS_ADMIN, so that each task gets a pid namespace"
        ),
        (None, false) => tracing::debug!(why, "tasks get no pid namespaces"),
    }
    false
}

/// Adds the weaker bounds of the kernel that need no cgroup, and logs that they are weaker.
fn bound_without_cgroups(limits: &mut Limits, concurrency: usize, why: &std::io::Error) {
    let Some(max) = limits.processes_max.map(u64::from) else { return };
    limits.user_threads_max = user_threads_max(max.saturating_mul(concurrency as u64));
    let counted = "tasks get no cgroups: their processes are counted every 50 ms";
    match limits.user_threads_max {
        Some(backstop) => tracing::info!(%why, "{counted}, and RLIMIT_NPROC is {backstop}"),
        None => tracing::info!(%why, "{counted}, which a fast fork bomb may outrun"),
    }
}

/// Runs the command in its own async task, which keeps the request, and with it the worker's slot,
/// until no process is left. If the caller is dropped (at the task's timeout, or when its lease is
/// lost), the command is stopped, and its end is still logged.
async fn handle(exec: Arc<Exec>, request: TaskRequest) -> Result<RawResult, Fail> {
    let (keep, dropped) = oneshot::channel::<()>();
    let running = tokio::spawn(async move {
        let Exec { runner, folder } = &*exec;
        let context = request.context().clone();
        let (timeout, started) = (context.time_left(), Instant::now());
        let stop = async {
            tokio::select! {
                _ = context.cancelled() => {}
                _ = dropped => {}
            }
        };
        let parents = match parents::variables(&context, runner.user.as_ref(), folder).await {
            Ok(parents) => parents,
            Err(error) => {
                let message = format!("cannot get the results of the task's parents: {error:#}");
                return Err(Fail::new(message).kind("not started"));
            }
        };
        let mut job = job(&context, request.payload());
        job.environment.extend(parents.environment.iter().cloned());
        let report = match ReportPipe::make(runner.user.as_ref(), folder) {
            Ok(pipe) => {
                job.environment.push(("TASKYARD_REPORT", pipe.path().display().to_string()));
                job.folder = Some(pipe.folder().to_owned());
                pipe.during(&context, runner.run(job, stop)).await
            }
            Err(error) => {
                let id = context.id();
                tracing::warn!(%id, %error, "cannot create TASKYARD_REPORT: the command gets none");
                runner.run(job, stop).await
            }
        };
        drop(parents);
        let verdict = report.map(|report| report.verdict(timeout, &runner.limits));
        log_end(&context, started.elapsed(), &verdict);
        let answer = answer(verdict, context.cancel_reason());
        drop(request);
        answer
    });
    let answer = running.await;
    drop(keep);
    answer.unwrap_or_else(|panicked| Err(Fail::new(panicked)))
}

/// The answer for the broker.
fn answer(
    verdict: std::io::Result<Verdict>,
    stopped: Option<CancelReason>,
) -> Result<RawResult, Fail> {
    match verdict {
        Ok(Verdict::Ack(result)) => {
            Ok(RawResult(result.unwrap_or_else(|| b"null".to_vec()).into()))
        }
        Ok(Verdict::Fail(failure)) => {
            let fail = match failure.retryable {
                true => Fail::new(failure.message),
                false => Fail::permanent(failure.message),
            };
            Err(fail.kind(failure.error_type).backtrace(failure.backtrace))
        }
        Ok(Verdict::Stopped) if stopped == Some(CancelReason::Timeout) => {
            Err(Fail::new("ran longer than its timeout").kind("timeout"))
        }
        Ok(Verdict::Stopped) => Err(Cancelled.into()),
        Err(error) => Err(Fail::new(error).kind("not started")),
    }
}

/// Logs one line for each attempt.
fn log_end(context: &TaskContext, took: Duration, verdict: &std::io::Result<Verdict>) {
    let (id, kind, attempt) = (context.id(), context.kind(), context.attempt());
    match verdict {
        Ok(Verdict::Ack(_)) => {
            tracing::info!(%id, "type" = kind, attempt, ?took, "succeeded");
        }
        Ok(Verdict::Fail(failure)) if failure.retryable => {
            let error = &failure.message;
            tracing::warn!(%id, "type" = kind, attempt, ?took, error, "failed");
        }
        Ok(Verdict::Fail(failure)) => {
            let error = &failure.message;
            tracing::warn!(%id, "type" = kind, attempt, ?took, error, "failed for good");
        }
        Ok(Verdict::Stopped) => match context.cancel_reason() {
            Some(CancelReason::Timeout) => {
                tracing::warn!(%id, "type" = kind, attempt, ?took, "killed at its timeout");
            }
            Some(CancelReason::Requested) => {
                tracing::info!(%id, "type" = kind, attempt, ?took, "killed: the task was cancelled");
            }
            Some(CancelReason::Shutdown) => {
                tracing::info!(%id, "type" = kind, attempt, ?took, "killed and released");
            }
            _ => {
                let why = "killed: the lease was lost, and the task may run elsewhere";
                tracing::warn!(%id, "type" = kind, attempt, ?took, "{why}");
            }
        },
        Err(error) => {
            tracing::error!(%id, "type" = kind, attempt, %error, "the command was not started");
        }
    }
}

fn job(context: &TaskContext, payload: &[u8]) -> Job {
    let timeout = context.time_left();
    let mut environment = vec![
        ("TASKYARD_ID", context.id().to_string()),
        ("TASKYARD_TYPE", context.kind().to_owned()),
        ("TASKYARD_QUEUE", context.queue().to_owned()),
        ("TASKYARD_ATTEMPT", context.attempt().to_string()),
    ];
    environment.extend(timeout.and_then(deadline).map(|moment| ("TASKYARD_DEADLINE", moment)));
    environment.extend(context.resume_bytes().map(resume_state));
    // Any producer may send a header of this name. A variable cannot have a zero byte.
    let schedule = context.schedule().filter(|name| !name.contains('\0'));
    environment.extend(schedule.map(|name| ("TASKYARD_SCHEDULE", name.to_owned())));
    let occurrence = context.occurrence_at();
    environment.extend(occurrence.map(|at| ("TASKYARD_OCCURRENCE_AT", at.to_string())));
    Job { payload: payload.to_vec(), environment, timeout, folder: None }
}

/// The moment `left` from now, as RFC 3339.
fn deadline(left: Duration) -> Option<String> {
    let moment = jiff::Timestamp::try_from(SystemTime::now().checked_add(left)?).ok()?;
    Some(format!("{moment:.3}"))
}

/// Text is passed unchanged. Other bytes, and text with zero bytes, which a variable cannot have,
/// become base64.
fn resume_state(bytes: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => ("TASKYARD_RESUME_STATE", text.to_owned()),
        _ => ("TASKYARD_RESUME_STATE_BASE64", BASE64_STANDARD.encode(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resume_state_is_text_where_it_can_be() {
        assert_eq!(resume_state(b"{\"at\": 3}"), ("TASKYARD_RESUME_STATE", "{\"at\": 3}".into()));
        for bytes in [&b"\xff\x00"[..], b"a\0b"] {
            assert_eq!(resume_state(bytes).0, "TASKYARD_RESUME_STATE_BASE64");
        }
        assert_eq!(resume_state(b"\xff\x00").1, "/wA=");
    }

    #[test]
    fn a_deadline_is_rfc_3339() {
        let moment = deadline(Duration::from_secs(60)).unwrap();
        assert!(crate::values::moment(&moment).is_ok() && moment.ends_with('Z'), "{moment}");
        assert_eq!(deadline(Duration::MAX), None);
    }
}
