//! The promise of `work --exec`, with real processes: whatever a task's command does, the worker
//! survives and gets a bounded report, and no process of the task is left.

mod reach;

use crate::yard::needs;

use std::{
    fs::{self, File},
    future::{Future, pending},
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use needs::Need;
use rustix::{
    fs::{FlockOperation, flock},
    process::getuid,
};
use taskyard_cli::exec::{
    Cgroups, Ending, Job, Limits, Report, Runner, User, Verdict, try_pid_namespace,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_taskyard");
const LONG: Duration = Duration::from_secs(30);

/// The folder for the cgroups of tasks on this machine, if tasks can have cgroups.
static CGROUPS: LazyLock<Option<Cgroups>> =
    LazyLock::new(|| match Cgroups::find(PROGRAM.as_ref()) {
        Ok(cgroups) => Some(cgroups),
        Err(why) => {
            Need::Cgroups.skip(format!("there are no cgroups: {why}"));
            None
        }
    });

/// Whether tasks get pid namespaces on this machine.
static PID_NAMESPACE: LazyLock<bool> =
    LazyLock::new(|| match try_pid_namespace(PROGRAM.as_ref()) {
        Ok(()) => true,
        Err(why) => {
            Need::Namespaces.skip(format!("there are no pid namespaces: {why}"));
            false
        }
    });

/// A command under test, with its own task id.
struct Case {
    runner: Runner,
    job: Job,
    id: String,
}

fn shell(script: &str) -> Case {
    case(&["sh", "-c", script])
}

fn case(argv: &[&str]) -> Case {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    Runner::adopt_orphans().unwrap();
    let id = format!("task-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Case {
        runner: Runner {
            program: PROGRAM.into(),
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            limits: Limits::default(),
            cgroups: CGROUPS.clone(),
            pid_namespace: *PID_NAMESPACE,
            user: None,
            grace: Duration::from_millis(200),
        },
        job: Job { environment: vec![("TASKYARD_ID", id.clone())], ..Job::default() },
        id,
    }
}

impl Case {
    fn payload(mut self, payload: impl Into<Vec<u8>>) -> Case {
        self.job.payload = payload.into();
        self
    }

    fn timeout(mut self, ms: u64) -> Case {
        self.job.timeout = Some(Duration::from_millis(ms));
        self
    }

    fn limits(mut self, limits: Limits) -> Case {
        self.runner.limits = limits;
        self
    }

    fn processes(self, max: u32) -> Case {
        self.limits(Limits { processes_max: Some(max), ..Limits::default() })
    }

    /// Runs the command as on a machine without cgroups.
    fn only_counted(mut self) -> Case {
        self.runner.cgroups = None;
        self
    }

    /// Runs the command as on a machine without pid namespaces.
    fn among_all(mut self) -> Case {
        self.runner.pid_namespace = false;
        self
    }

    fn user(mut self, user: &str) -> Case {
        self.runner.user = Some(User::find(user).unwrap());
        self
    }

    /// Starts the supervisor by a script: `text`, then the program and its arguments.
    fn by_script(mut self, script: &Path, text: &str) -> Case {
        fs::write(script, format!("#!/bin/sh\n{text} {PROGRAM} \"$@\"\n")).unwrap();
        fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
        self.runner.program = script.to_owned();
        self
    }

    fn grace(mut self, grace: Duration) -> Case {
        self.runner.grace = grace;
        self
    }

    fn environment(mut self, name: &'static str, value: &Path) -> Case {
        self.job.environment.push((name, value.display().to_string()));
        self
    }

    async fn run(self) -> Report {
        self.run_until(pending()).await
    }

    /// Runs the command to its end, and checks that no process is left.
    async fn run_until(self, stop: impl Future<Output = ()>) -> Report {
        let started = Instant::now();
        let report = self.runner.run(self.job, stop).await.unwrap();
        assert!(started.elapsed() < LONG, "it took {:?}", started.elapsed());
        assert_eq!(processes_of(&self.id), Vec::<String>::new(), "processes are left");
        report
    }
}

/// The live processes that carry the task's id in their environment, zombies aside.
fn processes_of(id: &str) -> Vec<String> {
    let marker = format!("TASKYARD_ID={id}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|&byte| byte == 0).any(|variable| variable == marker.as_bytes()) {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found
}

async fn exists(file: &Path) {
    until(|| file.exists()).await;
}

async fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "the condition was never met");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_command_gets_payload_and_environment_and_answers_on_stdout() {
    let case = shell("cat; printf %s $TASKYARD_ID").payload("in ");
    let expected = format!("in {}", case.id);
    let report = case.run().await;
    assert_eq!(report.ending, Ending::Exited(0));
    assert_eq!(text(&report.stdout), expected);
}

#[tokio::test]
async fn exit_codes_and_stderr_are_reported() {
    for code in [0, 3, 65, 255] {
        let report = shell(&format!("echo why >&2; exit {code}")).run().await;
        assert_eq!(report.ending, Ending::Exited(code));
        assert_eq!(text(&report.stderr), "why\n");
    }
}

#[tokio::test]
async fn a_large_payload_passes_through_without_deadlock() {
    let payload = vec![b'x'; 8 << 20];
    let report = case(&["wc", "-c"]).payload(payload.clone()).run().await;
    assert_eq!(text(&report.stdout).trim(), payload.len().to_string());

    let report = case(&["cat"]).payload(payload.clone()).run().await;
    assert_eq!((report.ending, report.stdout_total), (Ending::Exited(0), payload.len() as u64));
}

#[tokio::test]
async fn output_is_complete_or_known_to_be_cut() {
    let whole: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    let report = case(&["cat"]).payload(whole.clone()).run().await;
    assert!(report.stdout == whole, "{} bytes", report.stdout.len());
    assert_eq!(report.verdict(None, &Limits::default()), Verdict::Ack(Some(whole)));

    let report = shell("head -c 1048577 /dev/zero").run().await;
    assert_eq!((report.stdout_total, report.stdout.len()), ((1 << 20) + 1, (1 << 20) + 1));
    let Verdict::Fail(failure) = report.verdict(None, &Limits::default()) else { panic!() };
    assert_eq!((failure.error_type.as_str(), failure.retryable), ("result too large", false));
}

#[tokio::test]
async fn a_command_may_leave_its_payload_unread() {
    for script in ["exec <&-; echo ok", "echo ok", "head -c 1 >/dev/null; echo ok"] {
        let report = shell(script).payload(vec![b'x'; 4 << 20]).run().await;
        assert_eq!((report.ending, text(&report.stdout)), (Ending::Exited(0), "ok\n"), "{script}");
    }
}

#[tokio::test]
async fn a_command_that_never_reads_its_payload_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let case =
        shell("touch $READY; sleep 1000").payload(vec![b'x'; 4 << 20]).environment("READY", &ready);
    let report = case.run_until(exists(&ready)).await;
    assert_eq!(report.ending, Ending::Stopped);
}

#[tokio::test]
async fn a_crash_is_an_ending_like_any_other() {
    for (signal, number) in [("SEGV", 11), ("KILL", 9), ("ABRT", 6)] {
        let report = shell(&format!("kill -{signal} $$")).run().await;
        assert_eq!(report.ending, Ending::Signalled(number));
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_run_says_why() {
    let report = case(&["/no/such/program"]).run().await;
    assert_eq!(report.ending, Ending::Exited(127));
    assert!(text(&report.stderr).contains("cannot run /no/such/program"), "{:?}", report.stderr);
}

#[tokio::test]
async fn a_command_in_a_name_with_a_zero_byte_is_an_error_and_no_panic() {
    let mut case = shell("true");
    case.job.environment.push(("TASKYARD_TYPE", "a\0b".to_owned()));
    let error = case.runner.run(case.job, pending()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn endless_output_is_kept_to_its_bounds() {
    let script = "yes out & yes err >&2";
    let report = shell(script).timeout(400).run().await;
    assert_eq!(report.ending, Ending::TimedOut);
    assert_eq!(report.stdout.len(), (1 << 20) + 1);
    assert!(report.stdout_total > 1 << 20);
    assert!(report.stderr.len() <= 8 << 10 && text(&report.stderr).contains("err\nerr"));
}

#[tokio::test]
async fn timeout_kills_children_in_the_group_and_outside_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    // A child in the process group, a child in a new session, and an orphan.
    let script =
        "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'touch $READY; sleep 1000' &) ; wait";
    let case = shell(script).timeout(1_500).environment("READY", &ready);
    let report = case.run().await;
    assert_eq!(report.ending, Ending::TimedOut);
    assert!(ready.exists(), "the orphan never ran");
}

#[tokio::test]
async fn stop_ends_all_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let case = shell("setsid sleep 1000 & touch $READY; wait").environment("READY", &ready);
    let report = case.run_until(exists(&ready)).await;
    assert_eq!(report.ending, Ending::Stopped);
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_killed_after_the_grace() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let case = shell("trap '' TERM; touch $READY; while :; do sleep 1000; done")
        .environment("READY", &ready);
    let report = case.run_until(exists(&ready)).await;
    assert_eq!(report.ending, Ending::Stopped);
}

#[tokio::test]
async fn a_command_that_heeds_sigterm_may_say_goodbye() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    // The shell reports its killed `sleep` on stderr, which therefore goes to /dev/null.
    let script = "trap 'echo bye >&3; exit 0' TERM; exec 3>&2 2>/dev/null; touch $READY; while :; do sleep 0.01; done";
    let case = shell(script).grace(LONG).environment("READY", &ready);
    let report = case.run_until(exists(&ready)).await;
    assert_eq!((report.ending, text(&report.stderr)), (Ending::Stopped, "bye\n"));
}

#[tokio::test]
async fn processes_that_a_command_leaves_end_with_it() {
    let report = shell("sleep 1000 & setsid sleep 1000 & echo done").run().await;
    assert_eq!((report.ending, text(&report.stdout)), (Ending::Exited(0), "done\n"));
}

#[tokio::test]
async fn dropping_the_run_ends_the_task() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let case = shell("setsid sleep 1000 & touch $READY; wait").environment("READY", &ready);
    let Case { runner, job, id } = case;
    tokio::select! {
        report = runner.run(job, pending()) => panic!("the command ended: {report:?}"),
        () = exists(&ready) => {}
    }
    until(|| processes_of(&id).is_empty()).await;
}

/// Runs a fork bomb in which `again` says how each process starts two more. Its depth ends it at
/// 255 processes, to spare the machine if the limit does not work.
async fn check_fork_bomb(again: &str) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("bomb");
    let bomb = format!("[ $1 -gt 6 ] && exec sleep 1000; {again} & {again} & wait; sleep 1000");
    fs::write(&script, bomb).unwrap();
    let case = || shell("sh $SCRIPT 0").processes(40).environment("SCRIPT", &script);
    assert_eq!(case().only_counted().run().await.ending, Ending::TooManyProcesses, "counted");
    let alone = case().only_counted().among_all().run().await;
    assert_eq!(alone.ending, Ending::TooManyProcesses, "counted, among all processes");
    if CGROUPS.is_some() {
        assert_eq!(case().run().await.ending, Ending::TooManyProcesses, "in a cgroup");
    }
}

#[tokio::test]
async fn a_fork_bomb_is_ended_at_its_limit() {
    check_fork_bomb("sh $SCRIPT $(($1 + 1))").await;
}

#[tokio::test]
async fn a_fork_bomb_that_leaves_its_group_is_ended_too() {
    check_fork_bomb("setsid sh $SCRIPT $(($1 + 1))").await;
}

/// The cgroup of this process's tasks that has this limit.
fn cgroup_with(processes_max: u32) -> Option<PathBuf> {
    let own = format!("taskyard-{}-", std::process::id());
    let folders = fs::read_dir(CGROUPS.as_ref()?.base()).unwrap().flatten();
    let mut folders =
        folders.filter(|folder| folder.file_name().to_string_lossy().starts_with(&own));
    let has_limit = |folder: &Path| number_in(&folder.join("pids.max")) == Some(processes_max);
    folders.find_map(|folder| Some(folder.path()).filter(|folder| has_limit(folder)))
}

fn number_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[tokio::test]
async fn the_kernel_keeps_the_fastest_fork_bomb_within_its_limit() {
    const MAX: u32 = 207;
    if CGROUPS.is_none() {
        return;
    }
    // Only forks, without loading a program: without the limit, 65,535 processes in a few seconds.
    // Its processes end by themselves after ten seconds.
    let bomb = "b() { [ $1 -gt 14 ] && exec sleep 10; b $(($1 + 1)) & b $(($1 + 1)) & wait; }; b 0; sleep 10";
    let beside = tokio::spawn(shell("sleep 0.5; echo fine").run());
    let bomb = tokio::spawn(shell(bomb).processes(MAX).run());
    let (mut folder, mut peak) = (None, 0);
    while !bomb.is_finished() {
        folder = folder.or_else(|| cgroup_with(MAX));
        let file = folder.as_ref().map(|folder| folder.join("pids.peak"));
        peak = file.and_then(|file| number_in(&file)).unwrap_or(peak);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(bomb.await.unwrap().ending, Ending::TooManyProcesses);
    assert_eq!(peak, MAX, "the bomb must reach the limit and not exceed it");
    assert!(!folder.unwrap().exists(), "the cgroup must be gone");
    assert_eq!(text(&beside.await.unwrap().stdout), "fine\n");
}

#[tokio::test]
async fn a_refused_process_fails_the_task_however_soon_its_command_ends() {
    if CGROUPS.is_none() {
        return;
    }
    let script = "sleep 1000 & sleep 1000 & sleep 1000 & exit 0";
    assert_eq!(shell(script).processes(3).run().await.ending, Ending::TooManyProcesses);
    assert_eq!(shell(script).processes(4).run().await.ending, Ending::Exited(0));
}

#[tokio::test]
async fn a_task_has_a_cgroup_without_a_limit_too() {
    if CGROUPS.is_none() {
        return;
    }
    let report = shell("cat /proc/self/cgroup").run().await;
    assert!(text(&report.stdout).contains(&format!("/taskyard-{}-", std::process::id())));
}

/// A process in its own session and in the cgroup of `folder`, without a supervisor.
fn strand(folder: &Path) -> Child {
    let script = "echo 0 > $0/cgroup.procs && exec setsid sleep 1000";
    Command::new("sh").args(["-c", script]).arg(folder).spawn().unwrap()
}

#[tokio::test]
async fn leftovers_of_killed_workers_are_cleared_by_the_next() {
    let Some(cgroups) = &*CGROUPS else { return };
    // No process can have this id.
    let folder = cgroups.base().join(format!("taskyard-4194305-{}", std::process::id()));
    // A live supervisor locks its folder. Another test may remove the folder before this lock.
    let lock = loop {
        fs::create_dir(&folder).unwrap();
        let Ok(lock) = File::open(&folder) else { continue };
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        if folder.exists() {
            break lock;
        }
    };
    let mut stranded = strand(&folder);
    until(|| !fs::read_to_string(folder.join("cgroup.procs")).unwrap().is_empty()).await;

    Cgroups::find(PROGRAM.as_ref()).unwrap();
    assert_eq!(stranded.try_wait().unwrap(), None, "its supervisor lives");
    assert!(folder.exists(), "its supervisor lives");

    drop(lock);
    Cgroups::find(PROGRAM.as_ref()).unwrap();
    until(|| stranded.try_wait().unwrap().is_some()).await;
    assert!(!folder.exists());
}

/// The supervisor needs six threads, and the command needs a process.
#[tokio::test]
async fn a_full_machine_is_a_reason_to_try_later_and_no_panic() {
    let Some(cgroups) = &*CGROUPS else { return };
    let files = tempfile::tempdir().unwrap();
    let folder = cgroups.base().join(format!("full-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let mut started = 0;
    for processes_max in 1..10 {
        fs::write(folder.join("pids.max"), processes_max.to_string()).unwrap();
        let enter = format!("echo 0 > {}/cgroup.procs; exec", folder.display());
        let case = shell("echo ran").by_script(&files.path().join("script"), &enter);
        let report = case.run().await;
        match &report.ending {
            Ending::Exited(0) => started += 1,
            Ending::NotStarted(why) => {
                assert!(why.contains("no more processes or threads can be started"), "{why}");
                assert_eq!(started, 0, "a limit of {processes_max} failed, a lower one did not");
            }
            other => panic!("with {processes_max}: {other:?}"),
        }
        let Verdict::Fail(failure) = report.verdict(None, &Limits::default()) else { continue };
        assert!(failure.retryable);
    }
    fs::remove_dir(&folder).unwrap();
    assert!((1..9).contains(&started), "{started} of 9 were started");
}

#[tokio::test]
async fn without_a_cgroup_the_kernel_bounds_another_user_than_root() {
    const NOBODY: &str = "setpriv --reuid=65533 --regid=65533 --clear-groups";
    if !getuid().is_root() {
        return Need::Users.skip("only root can become a user that has no other processes");
    }
    let can = Command::new("sh").args(["-c", &format!("{NOBODY} {PROGRAM} --version")]).output();
    if !can.is_ok_and(|ran| ran.status.success()) {
        return Need::Users.skip(format!("another user can't run {PROGRAM} by setpriv"));
    }
    let files = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let script = files.path().join("script");
    // 512 processes without the limit. They end by themselves.
    let bomb = "b() { [ $1 -gt 7 ] && exec sleep 1; b $(($1 + 1)) & b $(($1 + 1)) & wait; }; b 0";
    let limits = Limits { user_threads_max: Some(60), ..Limits::default() };
    let case = || shell(bomb).limits(limits).only_counted();
    let report = case().among_all().by_script(&script, &format!("exec {NOBODY}")).run().await;
    assert!(text(&report.stderr).contains("ork"), "no fork was refused: {report:?}");
    assert_eq!(text(&case().run().await.stderr), "", "the limit must not bind root");
}

#[tokio::test]
async fn a_command_that_kills_its_supervisor_takes_nothing_else_with_it() {
    let other = tokio::spawn(shell("sleep 0.3; echo fine").run());
    let report = shell("setsid sleep 1000 & kill -9 $PPID; sleep 1000").among_all().run().await;
    assert_eq!(report.ending, Ending::Unsupervised);
    assert_eq!(text(&other.await.unwrap().stdout), "fine\n");
}

#[tokio::test]
async fn memory_is_limited() {
    let limits = Limits { memory_bytes: Some(128 << 20), ..Limits::default() };
    let dd = ["dd", "if=/dev/zero", "of=/dev/null", "bs=512M", "count=1"];
    let report = case(&dd).limits(limits).run().await;
    assert_eq!(report.ending, Ending::Exited(1), "{:?}", text(&report.stderr));
    assert_eq!(case(&dd).run().await.ending, Ending::Exited(0), "without the limit");
}

#[tokio::test]
async fn processor_time_is_limited() {
    let limits = Limits { cpu_seconds: Some(1), ..Limits::default() };
    let report = shell("while :; do :; done").limits(limits).run().await;
    assert_eq!(report.ending, Ending::Signalled(24));
    let Verdict::Fail(failure) = report.verdict(None, &limits) else { panic!("{report:?}") };
    assert_eq!(failure.message, "used its 1 s of processor time (SIGXCPU)");
}

#[tokio::test]
async fn many_run_side_by_side() {
    let runs: Vec<_> = (0..24)
        .map(|number| tokio::spawn(shell(&format!("cat; echo {number}")).payload("n").run()))
        .collect();
    for (number, run) in runs.into_iter().enumerate() {
        assert_eq!(text(&run.await.unwrap().stdout), format!("n{number}\n"));
    }
}
