//! `work --exec` end to end: a broker, a worker and commands as real processes.

use crate::yard;

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    time::Instant,
};

use crate::yard::{LONG, Yard, needs::Need, processes_of, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use taskyard_cli::exec::Cgroups;

#[test]
fn a_command_gets_the_task_and_its_output_is_the_result() {
    let yard = Yard::start();
    let show = r#"printf '{"in": %s, "type": "%s", "queue": "%s", "attempt": %s, "deadline": "%s"}' \
        "$(cat)" "$TASKYARD_TYPE" "$TASKYARD_QUEUE" "$TASKYARD_ATTEMPT" "$TASKYARD_DEADLINE""#;
    let _worker = yard.work("q", show, &[]);
    let options = ["--queue", "q", "--timeout", "1h", "--wait", "--json"];
    let mut arguments = vec!["enqueue", "greet", r#"{"name": "Ada"}"#];
    arguments.extend(options);
    let answer: serde_json::Value = serde_json::from_str(&yard.ok(&arguments)).unwrap();
    let result = &answer["result"];
    assert_eq!(answer["state"], "succeeded");
    assert_eq!(answer["id"].as_str().unwrap().len(), 26);
    assert_eq!(result["in"], json!({"name": "Ada"}));
    assert_eq!((&result["type"], &result["queue"]), (&json!("greet"), &json!("q")));
    assert_eq!(result["attempt"], 1);
    assert!(result["deadline"].as_str().unwrap().ends_with('Z'), "{result}");
}

#[test]
fn a_command_does_not_get_the_secrets_of_its_worker() {
    let yard = Yard::start();
    let mut worker = yard.command(&["work", "-q", "q", "--log", "warn", "--exec", "env"]);
    worker.env("TASKYARD_TOKEN", "sesame").env("TASKYARD_RESUME_STATE", "of an outer task");
    let _worker = yard::Process(worker.env("OTHER", "stays").spawn().unwrap());
    let environment = yard.ok(&["enqueue", "a", "-q", "q", "--wait"]);
    for part in ["OTHER=stays", "TASKYARD_TYPE=a", &format!("TASKYARD_URL={}", yard.url)] {
        assert!(environment.contains(part), "{part}: {environment}");
    }
    for part in ["sesame", "outer task"] {
        assert!(!environment.contains(part), "{part}: {environment}");
    }
}

#[test]
fn a_result_is_what_a_command_printed_to_the_last_byte_or_an_error() {
    let yard = Yard::start();
    let exec = r#"case $TASKYARD_TYPE in
        json) printf '{"text": "'; head -c 1048560 /dev/zero | tr '\0' x; printf '"}\n' ;;
        text) head -c 1048574 /dev/zero | tr '\0' x ;;
        bytes) printf 'a\377\000b\n' ;;
        large) head -c 1048577 /dev/zero | tr '\0' x ;;
    esac"#;
    let _worker = yard.work("q", exec, &[]);
    for (kind, bytes) in [("json", 1_048_572), ("text", 1_048_576)] {
        let result = yard.ok(&["enqueue", kind, "-q", "q", "--wait"]);
        assert_eq!(result.len(), bytes, "{kind}");
        serde_json::from_str::<serde_json::Value>(&result).unwrap();
    }
    let bytes = yard.json(&["enqueue", "bytes", "-q", "q", "--wait"]).remove(0);
    assert_eq!(bytes["result_base64"], "Yf8AYgo=", "{bytes}");
    let id = yard.ok(&["enqueue", "large", "-q", "q"]);
    let task = yard.until_state(&id, "dead");
    let error = &task["attempts"][0]["error"];
    assert_eq!(error["type"], "result too large");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("printed 1048577 bytes, 1048579 as JSON, and a result"), "{error}");
    assert_eq!(task["attempts"].as_array().unwrap().len(), 1, "the task must not be retried");
}

#[test]
fn a_command_reports_progress_and_what_the_next_attempt_goes_on_from() {
    let yard = Yard::start();
    let exec = r#"
        say() { echo "$1" > "$TASKYARD_REPORT"; }
        case $TASKYARD_ATTEMPT in
        1)  say '{"progress": {"percent": 40, "message": "page 4"}}'
            say '{"resume_state": {"page": 3}}'
            until [ -e $FOLDER/seen ]; do sleep 0.01; done
            say 'nonsense'
            say '{"resume_state": {"page": 4}}'
            echo "$TASKYARD_REPORT" > $FOLDER/pipe
            exit 1 ;;
        *)  printf %s "$TASKYARD_RESUME_STATE" ;;
        esac"#;
    let log = fs::File::create(yard.file("log")).unwrap();
    let mut worker = yard.command(&["work", "-q", "q", "--log", "warn", "--exec", exec]);
    worker.env("FOLDER", yard.folder.path()).stderr(log);
    let _worker = yard::Process(worker.spawn().unwrap());
    let retry = ["--retry", "fixed", "--retry-delay", "10ms", "--retry-jitter", "0"];
    let id = yard.ok(&[&["enqueue", "a", "-q", "q"][..], &retry].concat());
    until("progress is seen", || !yard.task(&id)["progress"].is_null());
    assert_eq!(yard.task(&id)["progress"], json!({"percent": 40, "message": "page 4"}));
    fs::write(yard.file("seen"), "").unwrap();
    let result = yard.ok(&["task", "result", &id, "--wait", "--wait-for", "30s"]);
    assert_eq!(result, r#"{"page": 4}"#, "the command wrote this last, right before its end");
    let log = fs::read_to_string(yard.file("log")).unwrap();
    assert_eq!(log.matches("has a line that is no report").count(), 1, "{log}");
    let pipe = fs::read_to_string(yard.file("pipe")).unwrap();
    let folder = Path::new(pipe.trim()).parent().unwrap();
    until("the pipe of the task is gone", || !folder.exists());
}

#[test]
fn a_command_that_is_asked_to_stop_says_where_it_was() {
    let yard = Yard::start();
    let exec = r#"
        [ -z "$TASKYARD_RESUME_STATE" ] || { printf %s "$TASKYARD_RESUME_STATE"; exit; }
        trap 'echo "{\"resume_state\": {\"page\": 7}}" > "$TASKYARD_REPORT"; exit 1' TERM
        touch $FOLDER/ready; while :; do sleep 0.01; done"#;
    let more = ["--shutdown-grace", "100ms", "--kill-grace", "30s"];
    let mut first = yard.work("q", exec, &more);
    let id = yard.ok(&["enqueue", "a", "-q", "q"]);
    until("the command runs", || yard.file("ready").exists());
    first.signal(Signal::TERM);
    assert_eq!(first.code(), Some(0));
    let _second = yard.work("q", exec, &[]);
    let result = yard.ok(&["task", "result", &id, "--wait", "--wait-for", "30s"]);
    assert_eq!(result, r#"{"page": 7}"#);
}

/// The worker checks at its start that the user can run commands, not in each task.
#[test]
fn a_user_that_can_not_run_commands_is_refused_before_the_first_task() {
    const SOMEBODY: &str = "65532:65532";
    if !rustix::process::getuid().is_root() {
        return Need::Users.skip("only root can run commands as others");
    }
    let yard = Yard::start();
    let closed = yard.folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    let own = closed.join("own");
    fs::write(&own, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
    let work = ["work", "-q", "q", "--log", "warn", "--user", SOMEBODY];
    let refused = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let here =
        refused(yard.command(&[&work[..], &["--exec", "true"]].concat()).current_dir(&closed));
    assert!(here.contains("65532:65532 cannot enter the working directory"), "{here}");
    assert!(here.contains("start the worker in another one"), "{here}");
    for program in [own.to_str().unwrap(), "no-such-program"] {
        let mut command = yard.command(&[&work[..], &["--", program]].concat());
        let words = refused(command.current_dir("/"));
        assert!(words.contains(&format!("cannot run {program}; check its path")), "{words}");
    }

    // The user can't enter this folder for temporary files: the worker keeps the files of
    // commands elsewhere.
    let exec =
        r#"echo '{"progress": {"percent": 40}}' > "$TASKYARD_REPORT" && echo "$TASKYARD_REPORT""#;
    let mut worker = yard.command(&[&work[..], &["--exec", exec]].concat());
    worker.current_dir("/").env("TMPDIR", &closed);
    let _worker = yard::Process(worker.spawn().unwrap());
    let pipe = yard.ok(&["enqueue", "a", "-q", "q", "--wait"]);
    assert!(pipe.contains("/tmp/taskyard-report-"), "{pipe}");
}

#[test]
fn a_worker_of_root_says_what_its_commands_may_signal() {
    if !rustix::process::getuid().is_root() {
        return Need::Users.skip("only root can run commands as others");
    }
    let yard = Yard::start();
    let said = |more: &[&str]| {
        let log = yard.file("log");
        let arguments = [&["work", "-q", "q", "--exec", "id -u"], more].concat();
        let mut worker = yard.command(&arguments);
        worker.stderr(fs::File::create(&log).unwrap());
        let mut worker = yard::Process(worker.spawn().unwrap());
        until("the worker waits for tasks", || {
            fs::read_to_string(&log).unwrap().contains("waiting for tasks")
        });
        let user = yard.ok(&["enqueue", "a", "-q", "q", "--wait"]);
        worker.signal(Signal::TERM);
        assert_eq!(worker.code(), Some(0));
        (user, fs::read_to_string(&log).unwrap())
    };
    let (user, log) = said(&["--no-pid-namespace"]);
    assert!(log.contains("commands run as root and may kill every process"), "{log}");
    assert_eq!(user, "0");
    let (user, log) = said(&["--no-pid-namespace", "--user", "65532:65532"]);
    assert!(log.contains("a command may signal other tasks") && !log.contains("as root"), "{log}");
    assert_eq!(user, "65532");
    let ran = yard.run(&["work", "--user", "nobody-at-all", "--exec", "true"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("/etc/passwd has no user \"nobody-at-all\""), "{}", ran.stderr);
}

#[test]
fn a_command_of_another_user_reports_and_reads_what_its_parents_left() {
    if !rustix::process::getuid().is_root() {
        return Need::Users.skip("only root can run commands as others");
    }
    let yard = Yard::start();
    let exec = r#"case $TASKYARD_NODE in
        large) head -c 100000 /dev/zero | tr '\0' x ;;
        last) echo '{"resume_state": 7}' > "$TASKYARD_REPORT" && wc -c < "$TASKYARD_PARENTS_FILE" ;;
    esac"#;
    let _worker = yard.work("q", exec, &["--user", "65532:65532"]);
    fs::write(
        yard.file("flow.yaml"),
        "name: two\nnodes:\n  - {name: large, type: a, queue: q}\n  \
         - {name: last, type: a, queue: q, depends_on: [large]}\n",
    )
    .unwrap();
    let flow = yard.run(&["flow", "run", yard.file("flow.yaml").to_str().unwrap(), "--json"]);
    assert_eq!(flow.code, 0, "{}{}", flow.stdout, flow.stderr);
    assert!(flow.stdout.contains("100012"), "{}", flow.stdout);
}

#[test]
fn work_takes_the_types_that_it_names() {
    let yard = Yard::start();
    let foreign = yard.ok(&["enqueue", "video", "-q", "q"]);
    let _worker = yard.work("q", "printf %s $TASKYARD_TYPE", &["--type", "mail", "-t", "sms"]);
    for name in ["mail", "sms"] {
        assert_eq!(yard.ok(&["enqueue", name, "-q", "q", "--wait"]), format!("\"{name}\""));
    }
    let view: serde_json::Value =
        serde_json::from_str(&yard.ok(&["task", "get", &foreign, "--json"])).unwrap();
    assert_eq!((&view["state"], &view["attempt"]), (&json!("ready"), &json!(0)));
    let why = yard.ok(&["task", "why", &foreign]);
    assert!(why.contains("none of them takes tasks of type video"), "{why}");
    let workers = yard.ok(&["worker", "list"]);
    assert!(workers.contains("mail sms"), "{workers}");
    let _other = yard.work("q", "echo done", &["--type", "video"]);
    yard.ok(&["task", "result", &foreign, "--wait"]);
}

#[test]
fn a_program_after_two_dashes_runs_without_a_shell() {
    let yard = Yard::start();
    let arguments = ["work", "-q", "q", "--log", "warn", "--", "printf", "%s", "$HOME;ls"];
    let _worker = yard::Process(yard.command(&arguments).spawn().unwrap());
    assert_eq!(yard.ok(&["enqueue", "a", "-q", "q", "--wait"]), "\"$HOME;ls\"");
}

#[test]
fn a_failure_is_retried_with_its_error_kept() {
    let yard = Yard::start();
    let _worker = yard.work(
        "q",
        "[ $TASKYARD_ATTEMPT -ge 3 ] || { echo not yet >&2; exit 4; }; echo ok",
        &[],
    );
    let retry = ["--retry", "fixed", "--retry-delay", "10ms", "--retry-jitter", "0"];
    let mut arguments = vec!["enqueue", "a", "-q", "q"];
    arguments.extend(retry);
    let id = yard.ok(&arguments);
    assert_eq!(yard.ok(&["task", "result", &id, "--wait", "--wait-for", "30s"]), "\"ok\"");
    let attempts = yard.task(&id)["attempts"].clone();
    assert_eq!(attempts[0]["error"]["type"], "exit 4");
    assert_eq!(attempts[0]["error"]["message"], "not yet");
    assert_eq!(attempts.as_array().unwrap().len(), 3);
}

#[test]
fn exit_65_is_a_dead_letter_at_once() {
    let yard = Yard::start();
    let _worker = yard.work("q", "echo bad data >&2; exit 65", &[]);
    let ran = yard.run(&["enqueue", "a", "-q", "q", "--wait"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("bad data") && ran.stderr.contains("dead"), "{}", ran.stderr);
}

#[test]
fn a_task_is_killed_at_its_timeout_with_its_children() {
    let yard = Yard::start();
    let _worker = yard.work("q", "setsid sleep 1000 & sleep 1000", &["--kill-grace", "100ms"]);
    let id = yard.ok(&["enqueue", "a", "-q", "q", "--timeout", "300ms", "--max-attempts", "1"]);
    let task = yard.until_state(&id, "dead");
    assert!(task["attempts"][0]["error"].to_string().contains("time"), "{task}");
    until("the processes of the task are gone", || processes_of(&id) == 0);
}

#[test]
fn a_cancelled_task_is_killed_with_its_children() {
    let yard = Yard::start();
    let _worker = yard.work("q", "setsid sleep 1000 & touch $FOLDER/ready; sleep 1000", &[]);
    let id = yard.ok(&["enqueue", "a", "-q", "q"]);
    until("the command runs", || yard.file("ready").exists());
    yard.ok(&["task", "cancel", &id]);
    yard.until_state(&id, "cancelled");
    until("the processes of the task are gone", || processes_of(&id) == 0);
}

#[test]
fn killing_a_worker_kills_its_tasks_and_they_run_elsewhere() {
    let yard = Yard::start();
    let exec = "setsid sleep 1000 & echo $TASKYARD_REPORT > $FOLDER/pipe; touch $FOLDER/ready; \
        sleep 1000";
    let first = yard.work("q", exec, &[]);
    let id = yard.ok(&["enqueue", "a", "-q", "q"]);
    until("the command runs", || yard.file("ready").exists());
    let pipe = fs::read_to_string(yard.file("pipe")).unwrap();
    let folder = Path::new(pipe.trim()).parent().unwrap();
    assert!(folder.exists());
    first.signal(Signal::KILL);
    let killed = Instant::now();
    let _second = yard.work("q", "echo done by another", &[]);
    until("the processes of the task are gone", || processes_of(&id) == 0);
    until("the pipe of the task is gone", || !folder.exists());
    assert_eq!(
        yard.ok(&["task", "result", &id, "--wait", "--wait-for", "30s"]),
        "\"done by another\""
    );
    assert!(killed.elapsed().as_secs() < 20, "it took {:?}", killed.elapsed());
    assert_eq!(yard.task(&id)["losses"], 1);
}

/// The folder for the cgroups of tasks on this machine, if tasks can have cgroups.
fn cgroups() -> Option<Cgroups> {
    let found = Cgroups::find(Path::new(env!("CARGO_BIN_EXE_taskyard")));
    found.map_err(|why| Need::Cgroups.skip(format!("there are no cgroups: {why}"))).ok()
}

#[test]
fn processes_that_survive_worker_and_supervisor_are_killed_by_the_next_worker() {
    if cgroups().is_none() {
        return;
    }
    let yard = Yard::start();
    let stray = "touch $FOLDER/ready; sleep 1000; true";
    let exec = format!("echo $PPID > $FOLDER/supervisor; setsid sh -c '{stray}' & sleep 1000");
    // In a pid namespace, the children of the command would end with process 1.
    let first = yard.work("q", &exec, &["--no-pid-namespace"]);
    let id = yard.ok(&["enqueue", "a", "-q", "q"]);
    until("the command runs", || yard.file("ready").exists());
    assert!(processes_of(&id) > 0);
    let supervisor = fs::read_to_string(yard.file("supervisor")).unwrap().trim().parse().unwrap();
    // The stopped worker can't clean up when its supervisor is killed. The children of the command
    // survive both, until a worker starts.
    first.signal(Signal::STOP);
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    first.signal(Signal::KILL);
    drop(first);
    let _second = yard.work("other", "true", &[]);
    until("the next worker has killed the processes", || processes_of(&id) == 0);
}

#[test]
fn a_worker_on_a_full_machine_fails_tasks_and_lives_on() {
    let Some(cgroups) = cgroups() else { return };
    let yard = Yard::start();
    let worker = yard.work("q", "echo ran", &[]);
    until("the worker is listed", || yard.json(&["worker", "list"]).len() == 1);
    let folder = cgroups.base().join(format!("full-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("pids.max"), "0").unwrap();
    fs::write(folder.join("cgroup.procs"), worker.0.id().to_string()).unwrap();
    let retry = ["--retry", "fixed", "--retry-delay", "10ms", "--max-attempts", "10000"];
    let id = yard.ok(&[&["enqueue", "a", "-q", "q"][..], &retry].concat());
    until("the first attempt has failed", || !yard.task(&id)["attempts"][0]["error"].is_null());
    let error = yard.task(&id)["attempts"][0]["error"].clone();
    assert_eq!(error["type"], "not started");
    assert!(error["message"].as_str().unwrap().starts_with("no more processes"), "{error}");
    fs::write(folder.join("pids.max"), "max").unwrap();
    assert_eq!(yard.ok(&["task", "result", &id, "--wait", "--wait-for", "30s"]), "\"ran\"");
    drop(worker);
    until("the cgroup is empty", || fs::remove_dir(&folder).is_ok());
}

#[test]
fn a_worker_that_is_asked_to_stop_finishes_what_it_has() {
    let yard = Yard::start();
    let slow = "touch $FOLDER/ready; until [ -e $FOLDER/go ]; do sleep 0.01; done; echo finished";
    let mut worker = yard.work("q", slow, &[]);
    let id = yard.ok(&["enqueue", "a", "-q", "q"]);
    until("the command runs", || yard.file("ready").exists());
    worker.signal(Signal::TERM);
    let waiting = yard.ok(&["enqueue", "a", "-q", "q"]);
    fs::write(yard.file("go"), "").unwrap();
    assert_eq!(worker.code(), Some(0));
    assert_eq!(yard.task(&id)["result"], "finished");
    assert_eq!(yard.task(&waiting)["state"], "ready", "nothing more was claimed");
}

#[test]
fn tasks_that_exceed_the_grace_are_released() {
    let yard = Yard::start();
    let more = ["--shutdown-grace", "100ms", "--kill-grace", "100ms"];
    let mut worker = yard.work("q", "touch $FOLDER/ready; sleep 1000", &more);
    let id = yard.ok(&["enqueue", "a", "-q", "q"]);
    until("the command runs", || yard.file("ready").exists());
    worker.signal(Signal::TERM);
    assert_eq!(worker.code(), Some(0));
    yard.until_state(&id, "ready");
    until("the processes of the task are gone", || processes_of(&id) == 0);
}

#[test]
fn a_second_signal_stops_a_worker_at_once_and_leaves_nothing_running() {
    let yard = Yard::start();
    let mut worker =
        yard.work("q", "trap '' TERM; touch $FOLDER/ready; sleep 1000", &["--kill-grace", "100ms"]);
    let id = yard.ok(&["enqueue", "a", "-q", "q"]);
    until("the command runs", || yard.file("ready").exists());
    worker.signal(Signal::TERM);
    // The kernel merges pending signals of one kind, so the second signal is of another kind.
    worker.signal(Signal::INT);
    let asked = Instant::now();
    assert!(worker.code().is_some());
    assert!(asked.elapsed() < LONG / 3, "it waited out its grace");
    until("the processes of the task are gone", || processes_of(&id) == 0);
}

#[test]
fn a_worker_survives_what_its_commands_do() {
    let yard = Yard::start();
    let nasty = r#"case $TASKYARD_TYPE in
        crash) kill -SEGV $$ ;;
        murder) kill -9 $PPID; sleep 1000 ;;
        flood) yes & sleep 0.2; exit 3 ;;
        hog) dd if=/dev/zero of=/dev/null bs=900M count=1 ;;
        good) echo fine ;;
    esac"#;
    let more = ["--memory", "256M", "--concurrency", "4", "--no-pid-namespace"];
    let _worker = yard.work("q", nasty, &more);
    let kinds = ["crash", "murder", "flood", "hog"];
    let ids = kinds.map(|kind| yard.ok(&["enqueue", kind, "-q", "q", "--max-attempts", "1"]));
    for (kind, id) in kinds.iter().zip(&ids) {
        let task = yard.until_state(id, "dead");
        assert!(task["attempts"][0]["error"]["message"].is_string(), "{kind}: {task}");
    }
    assert_eq!(yard.ok(&["enqueue", "good", "-q", "q", "--wait"]), "\"fine\"");
}
