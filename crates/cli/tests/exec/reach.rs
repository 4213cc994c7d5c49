//! The reach of a command. In a pid namespace it reaches no process outside of its task. As another
//! user it reaches nothing of its worker.

use super::{PID_NAMESPACE, exists, needs::Need, processes_of, shell, text};

use std::{fs, process::Command};

use rustix::process::{Pid, Signal, getuid, kill_process};
use taskyard_cli::exec::{Ending, User};

/// Prints the processes of `PIDS` that a command may signal. Signal 0 only checks the permission.
const MAY_SIGNAL: &str = "for pid in $PIDS; do kill -0 $pid 2>/dev/null && echo $pid; done; true";

#[tokio::test]
async fn a_command_can_signal_nothing_outside_of_its_task() {
    if !*PID_NAMESPACE {
        return;
    }
    let own = std::process::id();
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let pids = format!("{}\n{own}\n", stranger.id());
    let case = || {
        let mut case = shell(MAY_SIGNAL);
        case.job.environment.push(("PIDS", pids.replace('\n', " ")));
        case
    };
    let (among_all, alone) = (case().among_all().run().await, case().run().await);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(text(&among_all.stdout), pids, "without a namespace");
    assert_eq!(text(&alone.stdout), "");
}

#[tokio::test]
async fn a_command_sees_the_processes_of_its_task_alone() {
    if !*PID_NAMESPACE {
        return;
    }
    let report = shell("sleep 1000 & exec ls /proc").run().await;
    let listed = text(&report.stdout).lines();
    let processes = listed.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    // Our process 1, `ls` (in place of the shell) and `sleep`.
    assert_eq!(processes.collect::<Vec<_>>(), ["1", "2", "3"]);
}

#[tokio::test]
async fn a_command_that_signals_everything_it_can_ends_itself_alone() {
    if !*PID_NAMESPACE {
        return;
    }
    let script = "[ $(readlink /proc/self/ns/pid) != $OUTSIDE ] || exit 9; \
        sleep 1000 & kill -9 $PPID; kill -9 -1; wait; echo alone; exit 3";
    let mut case = shell(script);
    let outside = fs::read_link("/proc/self/ns/pid").unwrap();
    case.job.environment.push(("OUTSIDE", outside.display().to_string()));
    let beside = tokio::spawn(shell("sleep 0.3; echo fine").run());
    let report = case.run().await;
    assert_eq!((report.ending, text(&report.stdout)), (Ending::Exited(3), "alone\n"));
    assert_eq!(text(&beside.await.unwrap().stdout), "fine\n");
}

#[tokio::test]
async fn a_namespace_ends_with_its_process_1() {
    if !*PID_NAMESPACE {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let case = shell("setsid sleep 1000 & touch $READY; wait").environment("READY", &ready);
    let id = case.id.clone();
    let run = tokio::spawn(case.run());
    exists(&ready).await;
    let init = process_1_of(&id).expect("the command has a parent");
    kill_process(init, Signal::KILL).unwrap();
    assert_eq!(run.await.unwrap().ending, Ending::Signalled(9));
}

/// The process 1 of a task, which started the command.
fn process_1_of(id: &str) -> Option<Pid> {
    let is_ours = |pid: &String| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|&byte| byte == 0).any(|argument| argument == b"__init")
    };
    let pid = processes_of(id).into_iter().find(is_ours)?;
    Pid::from_raw(pid.parse().unwrap())
}

#[tokio::test]
async fn commands_run_as_the_user_that_was_named() {
    const SOMEBODY: u32 = 65_532;
    if !getuid().is_root() {
        return Need::Users.skip("only root can become another user");
    }
    if Command::new("setpriv").arg("--dump").output().is_err() {
        return Need::Users.skip("there is no setpriv");
    }
    let own = std::process::id();
    for among_all in [false, true] {
        let mut case = shell(&format!("id -u; id -g; id -G; {MAY_SIGNAL}"));
        case.job.environment.push(("PIDS", own.to_string()));
        let case = case.user(&format!("{SOMEBODY}:{SOMEBODY}"));
        let report = if among_all { case.among_all() } else { case }.run().await;
        let expected = format!("{SOMEBODY}\n{SOMEBODY}\n{SOMEBODY}\n");
        assert_eq!(text(&report.stdout), expected, "{}", text(&report.stderr));
        // The kernel clears the parent death signal of a process that changes its user.
        let case = super::case(&["setpriv", "--dump"]).user(&format!("{SOMEBODY}:{SOMEBODY}"));
        let report = if among_all { case.among_all() } else { case }.run().await;
        let dump = text(&report.stdout);
        assert!(dump.contains("Parent death signal: KILL"), "{dump} {}", text(&report.stderr));
    }
}

#[tokio::test]
async fn a_named_user_has_its_own_home() {
    if !getuid().is_root() {
        return Need::Users.skip("only root can become another user");
    }
    let Ok(nobody) = User::find("nobody") else {
        return Need::Users.skip("there is no user nobody");
    };
    let report =
        shell("id -un; echo $USER $LOGNAME; [ $HOME != /root ] && echo home").user("nobody");
    let report = report.run().await;
    assert_eq!(text(&report.stdout), "nobody\nnobody nobody\nhome\n", "{nobody:?}");
}

#[tokio::test]
async fn a_named_user_may_open_its_streams_by_name() {
    if !getuid().is_root() {
        return Need::Users.skip("only root can become another user");
    }
    let case = shell("cat < /dev/stdin > /dev/stdout; echo oops > /dev/stderr").payload("hello");
    let report = case.user("65532:65532").run().await;
    assert_eq!((text(&report.stdout), text(&report.stderr)), ("hello", "oops\n"));
}
