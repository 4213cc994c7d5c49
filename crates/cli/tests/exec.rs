//! `work --exec`'s promise, with real processes: whatever a task's command does, the worker lives
//! on, gets a bounded report, and no process of the task is left.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which the lint does not see as such")]

use std::{
    fs,
    future::{Future, pending},
    io::ErrorKind,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use taskyard_cli::exec::{Ending, Job, Limits, Report, Runner, Verdict};

const LONG: Duration = Duration::from_secs(30);

/// A command under test, its processes marked by a task id of its own.
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
            program: env!("CARGO_BIN_EXE_taskyard").into(),
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            limits: Limits::default(),
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

    /// Runs to the end, and checks that nothing is left.
    async fn run_until(self, stop: impl Future<Output = ()>) -> Report {
        let started = Instant::now();
        let report = self.runner.run(self.job, stop).await.unwrap();
        assert!(started.elapsed() < LONG, "it took {:?}", started.elapsed());
        assert_eq!(processes_of(&self.id), Vec::<String>::new(), "left behind");
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
        assert!(Instant::now() < deadline, "it never happened");
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

    let report = case(&["cat"]).payload(payload).run().await;
    assert_eq!((report.ending, report.stdout.len()), (Ending::Exited(0), 64 << 10));
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
async fn endless_output_is_kept_to_its_tail() {
    let script = "yes out & yes err >&2";
    let report = shell(script).timeout(400).run().await;
    assert_eq!(report.ending, Ending::TimedOut);
    assert_eq!(report.stdout.len(), 64 << 10);
    assert!(report.stderr.len() <= 8 << 10 && text(&report.stderr).contains("err\nerr"));
}

#[tokio::test]
async fn timeout_kills_children_in_the_group_and_outside_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    // A child in the group, one in a session of its own, one whose parent is gone.
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
    // The shell's own word about the sleep that is ended with it goes elsewhere.
    let script = "trap 'echo bye >&3; exit 0' TERM; exec 3>&2 2>/dev/null; touch $READY; while :; do sleep 0.01; done";
    let case = shell(script).grace(LONG).environment("READY", &ready);
    let report = case.run_until(exists(&ready)).await;
    assert_eq!((report.ending, text(&report.stderr)), (Ending::Stopped, "bye\n"));
}

#[tokio::test]
async fn what_a_command_leaves_running_ends_with_it() {
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
        report = runner.run(job, pending()) => panic!("it ended: {report:?}"),
        () = exists(&ready) => {}
    }
    until(|| processes_of(&id).is_empty()).await;
}

/// Every process starts two more, in the way that `again` says, down to a depth (255 processes in all)
/// that spares the machine should the limit not work.
async fn check_fork_bomb(again: &str) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("bomb");
    let bomb = format!("[ $1 -gt 6 ] && exec sleep 1000; {again} & {again} & wait; sleep 1000");
    fs::write(&script, bomb).unwrap();
    let limits = Limits { processes_max: Some(40), ..Limits::default() };
    let case = shell("sh $SCRIPT 0").limits(limits).environment("SCRIPT", &script);
    assert_eq!(case.run().await.ending, Ending::TooManyProcesses);
}

#[tokio::test]
async fn a_fork_bomb_is_ended_at_its_limit() {
    check_fork_bomb("sh $SCRIPT $(($1 + 1))").await;
}

#[tokio::test]
async fn a_fork_bomb_that_leaves_its_group_is_ended_too() {
    check_fork_bomb("setsid sh $SCRIPT $(($1 + 1))").await;
}

#[tokio::test]
async fn a_command_that_kills_its_supervisor_takes_nothing_else_with_it() {
    let other = tokio::spawn(shell("sleep 0.3; echo fine").run());
    let report = shell("setsid sleep 1000 & kill -9 $PPID; sleep 1000").run().await;
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
