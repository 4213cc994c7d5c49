//! `taskyard import faktory`: every job is moved once and unchanged, or reported.

mod brokers;
use crate::yard;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    time::Duration,
};

use crate::faktory::Fake;
use crate::yard::{Process, Ran, until};
use rustix::process::Signal;
use serde_json::{Value, json};

fn job(number: usize) -> String {
    // Numbers that a parser would change, and fields that no server knows.
    format!(
        r#"{{"jid":"job-{number:08}","jobtype":"t", "args":[{number},12345678901234567890123,1.50],"Ünknown":{{"a":1e400}},"retry":3}}"#
    )
}

fn jobs(queue: &'static str, count: usize) -> impl Iterator<Item = (&'static str, String)> {
    (0..count).map(move |number| (queue, job(number)))
}

fn command(old: &Fake, target: &Fake, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskyard"));
    command.args(["import", "faktory", &old.url(), "--into", &target.url()]).args(more);
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    command
}

fn import(old: &Fake, target: &Fake, more: &[&str]) -> Ran {
    Ran::of(command(old, target, more), more)
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

#[test]
fn jobs_move_as_they_are_and_what_is_left_is_told() {
    let other = r#"{"jid":"other-00000001","queue":"mail","args":[]}"#.to_owned();
    let old = Fake::with_jobs(jobs("default", 100).chain([("mail", other.clone())]));
    old.state().sets = [("scheduled", 4), ("retries", 5), ("dead", 6), ("working", 0)].into();
    let target = Fake::target();
    let ran = import(&old, &target, &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let expected: Vec<String> = (0..100).map(job).chain([other]).collect();
    assert_eq!(sorted(target.state().pushed.clone()), sorted(expected));
    assert_eq!(old.acked_and_reserved(), (101, 0));
    assert_eq!(ran.stdout, "QUEUE    JOBS\ndefault   100\nmail        1\nmoved 101 jobs\n");
    for words in ["4 scheduled and 5 waiting for a retry", "--follow", "6 dead", "schedule add"] {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("reserved"), "{}", ran.stderr);
}

#[test]
fn only_named_queues_move_and_a_dry_run_moves_nothing() {
    let old = Fake::with_jobs(jobs("a", 3).chain([("b", job(7)), ("c", job(8))]));
    let target = Fake::target();
    let ran = import(&old, &target, &["--dry-run", "--json", "--queues", "a,b"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let plan: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&plan["would_move"], &plan["dry_run"]), (&4.into(), &true.into()), "{plan}");
    assert!(old.state().acked.is_empty() && target.state().pushed.is_empty());
    let ran = import(&old, &target, &["--json", "--queues", "a,b"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let expected = json!({"moved": 4, "queues": {"default": 4}, "refused": 0, "left": {
        "queues": {}, "scheduled": 0, "retries": 0, "dead": 0, "working": 0}});
    assert_eq!(report, expected);
    assert_eq!(old.state().queues["c"].len(), 1);
    assert_eq!(ran.stderr, "");
}

#[test]
fn refused_jobs_are_told_kept_and_stay_reserved() {
    let refused = [
        (
            r#"{"jid":"twice-00001","queue":"mail","args":[],"retry":0}"#,
            "-NOTUNIQUE Job not unique\r\n",
        ),
        (
            r#"{"jid":"batch-00001","args":[],"custom":{"bid":"b-77"}}"#,
            "-ERR no such batch b-77\r\n",
        ),
        (
            r#"{"jid":"large-00001","args":[],"reserve_for":90}"#,
            "-ERR the payload is too large\r\n",
        ),
    ];
    let all = refused.map(|(job, _)| ("default", job.to_owned())).into_iter();
    let old = Fake::with_jobs(all.chain(jobs("default", 20)));
    let target = Fake::target();
    target.state().refuses = refused.map(|(job, reply)| (&job[8..19], reply)).to_vec();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refused");
    let ran = import(&old, &target, &["--refused", file.to_str().unwrap()]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    for words in [
        "job twice-00001 of queue mail was refused: another job with the same type and arguments",
        "(the old server keeps it reserved for 30m and drops it then)",
        "job batch-00001 of queue default was refused: it belongs to batch b-77: no such batch b-77; batches",
        "job large-00001 of queue default was refused: the payload is too large",
        "(the old server keeps it reserved for 1m30s)",
        "3 jobs were refused",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    assert_eq!((target.state().pushed.len(), old.state().acked.len()), (20, 20));
    let reserved: Vec<String> = old.state().reserved.keys().cloned().collect();
    assert_eq!(reserved, ["batch-00001", "large-00001", "twice-00001"]);
    let kept: Vec<String> = fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(sorted(kept), sorted(refused.map(|(job, _)| job.to_owned()).to_vec()));
}

#[test]
fn a_target_that_takes_nothing_is_given_up_before_all_is_reserved() {
    let old = Fake::with_jobs(jobs("default", 200));
    let target = Fake::target();
    target.state().refuses = vec![("jid", "-ERR the disk is almost full\r\n")];
    let ran = import(&old, &target, &["--json"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let complaints: Vec<Value> =
        ran.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, told) = complaints.split_last().unwrap();
    assert!(told.iter().all(|one| one["code"] == "refused"), "{}", ran.stderr);
    assert!(last["detail"].as_str().unwrap().contains("refused 20 jobs in a row"), "{last}");
    let reserved = old.state().reserved.len();
    assert_eq!(reserved, told.len());
    assert!((20..28).contains(&reserved), "{reserved}");
}

#[test]
fn jobs_that_are_refused_for_their_own_sake_do_not_stop_the_others() {
    let old = Fake::with_jobs(jobs("default", 120));
    let target = Fake::target();
    target.state().refuses = vec![
        ("job-0000000", "-NOTUNIQUE Job not unique\r\n"),
        (
            "job-0000001",
            "-ERR expires_at 2020-01-01T00:00:00Z is not after the time it may run\r\n",
        ),
        ("job-0000002", "-ERR invalid timestamp for 'at': \"x\"\r\n"),
    ];
    let ran = import(&old, &target, &["--connections", "1"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("30 jobs were refused"), "{}", ran.stderr);
    assert_eq!((target.state().pushed.len(), old.acked_and_reserved()), (90, (90, 30)));
}

#[test]
fn refused_jobs_of_an_earlier_run_stay() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refused");
    for number in [1, 2] {
        let old = Fake::with_jobs([("default", job(number))]);
        let target = Fake::target();
        target.state().refuses = vec![("jid", "-NOTUNIQUE Job not unique\r\n")];
        let ran = import(&old, &target, &["--refused", file.to_str().unwrap()]);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{}\n{}\n", job(1), job(2)));
}

#[test]
fn a_refused_job_that_comes_back_counts_once_and_not_at_all_when_it_is_taken() {
    let [stays, passes] = [job(1), job(2)];
    let old = Fake::with_jobs([("default", stays.clone()), ("default", passes.clone())]);
    // The old server hands both jobs out again, because their reservations ended.
    old.state().scheduled = vec![stays, passes.clone()];
    old.state().due_after = 4;
    let target = Fake::target();
    let no = "-NOTUNIQUE Job not unique\r\n";
    target.state().refuses = vec![("job-00000001", no), ("job-00000002", no)];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("refused");
    let more = ["--follow", "--refused", file.to_str().unwrap()];
    let mut command = command(&old, &target, &more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    until("both jobs are refused", || {
        fs::read_to_string(&file).is_ok_and(|kept| kept.lines().count() == 2)
    });
    target.state().refuses.pop();
    let mut said = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(process.code(), Some(1), "{said}");
    assert_eq!(said.matches("job-00000001").count(), 1, "{said}");
    assert!(said.contains("1 job was refused"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 2);
    assert_eq!(target.state().pushed, [passes]);
}

#[test]
fn a_target_that_takes_no_connection_for_a_while_is_waited_for() {
    let old = Fake::with_jobs(jobs("default", 2));
    old.state().scheduled = vec![job(50)];
    old.state().due_after = 4;
    let target = Fake::target();
    target.state().unanswered = 1;
    target.state().full_for = 2;
    let ran = import(&old, &target, &["--follow", "--connections", "1"]);
    assert_eq!(ran.code, 0, "a lost answer, then a refused connection: {}", ran.stderr);
    let state = target.state();
    assert_eq!((state.pushed.len(), state.full_for), (3, 0));

    let old = Fake::with_jobs(jobs("default", 2));
    old.state().scheduled = vec![job(50)];
    old.state().due_after = 4;
    let target = Fake::target();
    target.state().full_for = 2;
    let ran = import(&old, &target, &["--follow", "--connections", "1"]);
    assert_eq!(ran.code, 0, "refused connections in a later round: {}", ran.stderr);
    let state = target.state();
    assert_eq!((state.pushed.len(), state.full_for), (3, 0));
}

#[test]
fn a_connection_that_the_old_server_refuses_leaves_no_job_half_way() {
    let old = Fake::with_jobs(jobs("default", 500));
    old.state().connections_max = Some(6);
    let ran = import(&old, &Fake::target(), &[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("the old server: too many connections"), "{}", ran.stderr);
    assert_eq!(old.acked_and_reserved(), (0, 0));
}

#[test]
fn paused_queues_do_not_hide_the_others() {
    let old = Fake::with_jobs([("z", job(0))]);
    for number in 0..40 {
        let name = format!("paused-{number:02}");
        old.state().paused.insert(name.clone());
        old.state().queues.insert(name, [job(100 + number)].into());
    }
    let target = Fake::target();
    let ran = import(&old, &target, &["--connections", "1"]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("hands out none"), "{}", ran.stderr);
    assert_eq!(target.state().pushed, [job(0)]);
}

#[test]
fn a_queue_that_the_old_server_does_not_have_is_warned_of() {
    let old = Fake::with_jobs([("mail", job(0)), ("default", job(1))]);
    let target = Fake::target();
    let ran = import(&old, &target, &["--queues", "mial"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "moved 0 jobs\n"), "{}", ran.stderr);
    let words = "warning: the old server has no queue mial; it has default, mail\n";
    assert!(ran.stderr.starts_with(words), "{}", ran.stderr);
    let ran = import(&old, &target, &["--queues", "mial,mail", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let warned: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(warned["code"], "no_such_queue");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["moved"], 1);
}

#[test]
fn a_url_that_is_none_is_refused_without_its_password() {
    for url in ["tcp+tls://:secret@old:7419", "tcp://:secret", "tcp://:secret@old:port", "secret"] {
        let mut by_variable = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        by_variable.args(["import", "faktory"]).env("FAKTORY_URL", url);
        let mut typed = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        typed.args(["import", "faktory", url]);
        let mut into = Command::new(env!("CARGO_BIN_EXE_taskyard"));
        into.args(["import", "faktory", "tcp://127.0.0.1:1", "--into", url]);
        for (command, words) in
            [(by_variable, "FAKTORY_URL"), (typed, "FAKTORY_URL"), (into, "--into")]
        {
            let ran = Ran::of(command, &[url]);
            assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
            assert!(ran.stderr.contains(words), "{}", ran.stderr);
            assert!(!ran.stderr.contains("secret"), "{}", ran.stderr);
        }
    }
}

#[test]
fn a_lost_answer_is_asked_for_again() {
    let old = Fake::with_jobs(jobs("default", 60));
    let target = Fake::target();
    target.state().unanswered = 30;
    let ran = import(&old, &target, &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(sorted(target.state().pushed.clone()), sorted((0..60).map(job).collect()));
    assert_eq!(old.acked_and_reserved(), (60, 0));
}

#[test]
fn a_queue_that_gives_nothing_is_not_waited_for_forever() {
    let old = Fake::with_jobs(jobs("default", 3));
    old.state().paused.insert("default".to_owned());
    let ran = import(&old, &Fake::target(), &[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("has jobs in default and hands out none; resume"),
        "{}",
        ran.stderr
    );
}

#[test]
fn follow_moves_scheduled_jobs_when_they_are_due() {
    let old = Fake::with_jobs(jobs("default", 2));
    old.state().scheduled = vec![job(50), job(51)];
    old.state().due_after = 4;
    let target = Fake::target();
    let ran = import(&old, &target, &["--follow"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("2 jobs scheduled or waiting"), "{}", ran.stderr);
    assert_eq!(target.state().pushed.len(), 4);
}

#[test]
fn an_interrupt_finishes_what_is_under_way() {
    let old = Fake::with_jobs(jobs("default", 5_000));
    let target = Fake::target();
    target.state().push_for = Duration::from_millis(10);
    let mut command = command(&old, &target, &["--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    until("some jobs are moved", || old.state().acked.len() > 20);
    process.signal(Signal::INT);
    let mut said = String::new();
    process.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(process.code(), Some(1));
    let report: Value = serde_json::from_str(&said).unwrap();
    let acked = old.state().acked.len();
    assert_eq!((report["moved"].as_u64(), acked < 5_000), (Some(acked as u64), true), "{report}");
    assert_eq!((target.state().pushed.len(), old.state().reserved.len()), (acked, 0));
}

/// An import whose stderr is read line by line.
fn talking(old: &Fake, target: &Fake, more: &[&str]) -> (Process, impl FnMut(&str) + use<>) {
    let mut command = command(old, target, more);
    let mut process = Process(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(process.0.stderr.take().unwrap()).lines();
    let until_said = move |words: &str| {
        let said = lines.find(|line| line.as_ref().unwrap().contains(words));
        assert!(said.is_some(), "no line contains: {words}");
    };
    (process, until_said)
}

#[test]
fn a_second_interrupt_is_heeded_while_a_server_hangs() {
    let old = Fake::with_jobs([]);
    old.state().scheduled = vec![job(0)];
    old.state().due_after = u32::MAX;
    let (mut process, mut until_said) = talking(&old, &Fake::target(), &["--follow"]);
    until_said("moving each when it is due");
    old.state().holds_info = true;
    until("the import waits for an answer", || old.state().infos_held > 0);
    process.signal(Signal::INT);
    until_said("another signal stops at once");
    process.signal(Signal::INT);
    until_said("stopped at once");
    assert_eq!(process.code(), Some(1));
    old.state().holds_info = false;
}

#[test]
fn an_order_of_the_old_server_does_not_make_the_first_interrupt_a_second_one() {
    let old = Fake::with_jobs(jobs("default", 50));
    old.state().orders = Some(r#"{"state":"quiet"}"#);
    let target = Fake::target();
    target.state().holds_pushes = true;
    let (mut process, mut until_said) = talking(&old, &target, &[]);
    until_said("the old server orders a stop");
    process.signal(Signal::INT);
    until_said("another signal stops at once");
    target.state().holds_pushes = false;
    until_said("stopped before the end");
    assert_eq!(process.code(), Some(1));
    let (acked, reserved) = old.acked_and_reserved();
    assert_eq!((target.state().pushed.len(), reserved), (acked, 0));
}

#[test]
fn an_order_of_the_old_server_ends_the_import() {
    let old = Fake::with_jobs(jobs("default", 5_000));
    old.state().orders = Some(r#"{"state":"terminate"}"#);
    let ran = import(&old, &Fake::target(), &[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("by the old server"), "{}", ran.stderr);
    assert_eq!(old.state().reserved.len(), 0);
}

#[test]
fn servers_that_do_not_fit_are_refused_before_a_job_is_touched() {
    let old = Fake::with_jobs(jobs("default", 3));
    let not_taskyard = Fake::with_jobs([]);
    for (target, code, words) in
        [(&not_taskyard, 2, "is \"Faktory\" and not Taskyard"), (&old, 2, "not Taskyard")]
    {
        let ran = import(&old, target, &[]);
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    let both = Fake::target();
    let ran = import(&both, &both, &[]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("are the same server"), "{}", ran.stderr);
    let nobody = yard::taskyard(&["import", "faktory", "tcp://:sesame@127.0.0.1:1"]);
    assert_eq!(nobody.code, 1, "{}", nobody.stderr);
    assert!(
        nobody.stderr.contains("the old server: no answer from tcp://127.0.0.1:1: "),
        "{}",
        nobody.stderr
    );
    assert_eq!(old.state().queues["default"].len(), 3);
}
