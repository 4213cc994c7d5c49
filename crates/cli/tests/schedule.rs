//! `taskyard schedule` as people and scripts use it, against a real broker. One test kills the
//! broker with `kill -9` while schedules fire every second.

use std::{collections::BTreeMap, thread::sleep, time::Duration};

use crate::yard::{Yard, until};
use serde_json::{Value, json};

/// The next runs in a text, without the parts that change from run to run.
fn next_runs(text: &str) -> Vec<&str> {
    let runs = text.lines().skip_while(|line| *line != "Next runs:").skip(1);
    runs.map(str::trim).collect()
}

fn schedule(yard: &Yard, name: &str) -> Value {
    yard.json(&["schedule", "get", name]).remove(0)
}

#[test]
fn a_schedule_is_set_shown_and_set_again() {
    let yard = Yard::start();
    assert!(yard.run(&["schedule", "list"]).stderr.contains("taskyard schedule add"));
    let add = |more: &[&str]| {
        let arguments = ["schedule", "add", "nightly", "report", r#"{"full": true}"#];
        let mut arguments = arguments.to_vec();
        arguments.extend(["--cron", "0 3 1 * *", "--timezone", "Europe/Berlin", "-q", "reports"]);
        arguments.extend(more);
        yard.ok(&arguments)
    };
    let text = add(&[]);
    assert!(
        text.starts_with("nightly is set: 0 3 1 * * in Europe/Berlin, report in queue reports\n"),
        "{text}"
    );
    let runs = next_runs(&text);
    assert_eq!(runs.len(), 5, "{text}");
    for run in &runs {
        assert!(run.contains("-01 03:00:00 CE") && run.contains("  in "), "{text}");
    }

    // Every option.
    let options = [
        ("--overlap", "buffer-one"),
        ("--catch-up", "all"),
        ("--catch-up-window", "2h"),
        ("--jitter", "30s"),
        ("--start", "2031-05-01T00:00:00Z"),
        ("--end", "2031-07-15T00:00:00Z"),
        ("--runs", "2"),
        ("--priority", "8"),
        ("--timeout", "5m"),
        ("--retention", "1h"),
        ("--fairness-key", "acme"),
        ("--tag", "new"),
        ("--header", "trace=x"),
        ("--max-attempts", "3"),
    ];
    let more: Vec<&str> = options.iter().flat_map(|(name, value)| [*name, *value]).collect();
    let text = add(&more);
    assert!(text.starts_with("nightly has these rules now: "), "{text}");
    let shown = schedule(&yard, "nightly");
    for (name, value) in [
        ("name", json!("nightly")),
        ("cron", json!("0 3 1 * *")),
        ("timezone", json!("Europe/Berlin")),
        ("queue", json!("reports")),
        ("overlap", json!("buffer_one")),
        ("catch_up", json!("all")),
        ("catch_up_window_ms", json!(7_200_000)),
        ("jitter_ms", json!(30_000)),
        ("start_at", json!("2031-05-01T00:00:00.000Z")),
        ("end_at", json!("2031-07-15T00:00:00.000Z")),
        ("remaining_runs", json!(2)),
        ("paused", json!(false)),
        ("next_runs", json!(["2031-05-01T01:00:00.000Z", "2031-06-01T01:00:00.000Z"])),
    ] {
        assert_eq!(shown[name], value, "{name} of {shown}");
    }
    let task = &shown["task"];
    assert_eq!((&task["type"], &task["payload"]), (&json!("report"), &json!({"full": true})));
    assert_eq!((&task["priority"], &task["fairness_key"]), (&json!(8), &json!("acme")));
    assert_eq!((&task["timeout_ms"], &task["retry"]["max_attempts"]), (&json!(300_000), &json!(3)));
    let text = yard.ok(&["schedule", "get", "nightly"]);
    for part in [
        "0 3 1 * * in Europe/Berlin",
        "active",
        "report in queue reports",
        "all, if not older than 2h",
        "up to 30s",
        "Thu 2031-05-01 02:00:00 CEST",
        "0 fired, 0 skipped, 0 missed",
        "Sun 2031-06-01 03:00:00 CEST  in ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let set = yard.json(&["schedule", "add", "ping", "probe", "--every", "1h30m"]).remove(0);
    assert_eq!((&set["created"], &set["every_ms"]), (&json!(true), &json!(5_400_000)));
    let text = yard.ok(&["schedule", "list"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("nightly  0 3 1 * * in Europe/Berlin  report  reports  in "));
    assert!(lines[2].starts_with("ping     every 1h30m "), "{text}");
    assert_eq!(yard.json(&["schedule", "list"]).len(), 2);
    let first = yard.run(&["schedule", "list", "--limit", "1", "--json"]);
    let cursor = first.stderr.split("--cursor ").nth(1).expect("there is more").trim();
    assert_eq!(yard.json(&["schedule", "list", "--cursor", cursor])[0]["name"], "ping");
}

#[test]
fn a_schedule_is_paused_resumed_triggered_backfilled_and_removed() {
    let yard = Yard::start();
    let _worker = yard.work(
        "default",
        r#"printf '"%s %s"' "$TASKYARD_SCHEDULE" "$TASKYARD_OCCURRENCE_AT""#,
        &[],
    );
    yard.ok(&["schedule", "add", "daily", "report", "--cron", "@daily"]);

    let paused = yard.run(&["schedule", "pause", "daily", "--note", "the warehouse moves"]);
    assert_eq!((paused.code, paused.stdout.as_str()), (0, ""), "{}", paused.stderr);
    assert!(paused.stderr.contains("daily is paused"), "{}", paused.stderr);
    assert!(yard.ok(&["schedule", "list"]).ends_with("paused (the warehouse moves)"));
    assert_eq!(schedule(&yard, "daily")["note"], "the warehouse moves");

    // A paused schedule can still be triggered by hand.
    let id = yard.ok(&["schedule", "trigger", "daily"]);
    let result = yard.ok(&["task", "result", &id, "--wait"]);
    assert_eq!(result, format!("\"daily {}\"", occurrence(&yard.task(&id))));
    let text = yard.ok(&["task", "get", &id]);
    assert!(text.contains("a run of daily"), "{text}");
    assert!(text.contains("taskyard-occurrence-at="), "{text}");

    let resumed = yard.ok(&["schedule", "resume", "daily"]);
    assert!(resumed.starts_with("daily runs: @daily in UTC"), "{resumed}");
    assert_eq!(next_runs(&resumed).len(), 5, "{resumed}");

    let range = ["--from", "2024-02-27T12:00:00Z", "--to", "2024-03-01T00:00:00Z"];
    let mut backfill = vec!["schedule", "backfill", "daily"];
    backfill.extend(range);
    assert_eq!(yard.ok(&backfill), "enqueued 3 runs of schedule daily");
    assert_eq!(yard.json(&backfill), [json!({"name": "daily", "enqueued": 3})]);
    let runs = || yard.json(&["task", "list", "--payload"]);
    until("the backfilled runs are there", || runs().len() == 7);
    let mut occurrences: Vec<String> = runs().iter().map(occurrence).collect();
    occurrences.sort();
    assert_eq!(occurrences[0], "2024-02-28T00:00:00.000Z");
    assert_eq!(occurrences[5], "2024-03-01T00:00:00.000Z");

    let kept = yard.run(&["schedule", "remove", "daily"]);
    assert_eq!(kept.code, 2, "{}", kept.stderr);
    assert!(kept.stderr.contains("--yes"), "{}", kept.stderr);
    assert_eq!(yard.json(&["schedule", "list"]).len(), 1);
    // A command removes all of its schedules or none.
    assert_eq!(yard.run(&["schedule", "remove", "daily", "other", "--yes"]).code, 1);
    assert_eq!(yard.json(&["schedule", "list"]).len(), 1);
    let removed = yard.json(&["schedule", "remove", "daily", "--yes"]);
    assert_eq!(removed, [json!({"name": "daily", "removed": true})]);
    assert!(yard.json(&["schedule", "list"]).is_empty());
    assert_eq!(yard.task(&id)["state"], "succeeded", "its tasks are left alone");
}

#[test]
fn invalid_rules_are_refused_and_set_nothing() {
    let yard = Yard::start();
    let add = |options: &[&str]| {
        let mut arguments = vec!["schedule", "add", "nightly", "report"];
        arguments.extend(options);
        yard.run(&arguments)
    };
    for (options, part) in [
        (&["--cron", "0 0 30 2 *"][..], "does not fire within ten years"),
        (&["--cron", "61 * * * *"], "cron \"61 * * * *\""),
        (&["--cron", "*/5 * * *"], "it has 4 fields; give 5"),
        (&["--cron", "@fortnightly"], "unknown macro"),
        (&["--cron", "@daily", "-z", "Europe/Berln"], "did you mean Europe/Berlin?"),
        (&["--cron", "@daily", "--every", "5s"], "cannot be used with"),
        (&[], "--cron <EXPRESSION>|--every <DURATION>"),
        (&["--every", "5s", "--timezone", "UTC"], "cannot be used with"),
        (&["--every", "10ms"], "--every 10ms is too short: the minimum is 1s"),
        (&["--every", "often"], "\"often\" is not a duration"),
        (&["--cron", "@daily", "--jitter", "25h"], "--jitter 1d1h is too long: the maximum is 24h"),
        (&["--cron", "@daily", "--end", "2020-01-01T00:00:00Z"], "no occurrence up to its end_at"),
        (&["--cron", "@daily", "--start", "tomorrow"], "\"tomorrow\" is not a moment"),
        (&["--cron", "@daily", "--runs", "0"], "0 is not in 1.."),
        (&["--cron", "@daily", "--overlap", "often"], "buffer-one"),
        (&["--cron", "@daily", "--queue", "no queue"], "queue \"no queue\""),
        (&["{bad", "--cron", "@daily"], "is not JSON"),
    ] {
        let ran = add(options);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{options:?}: {}", ran.stderr);
    }
    let ran = yard.run(&["schedule", "add", "no name", "t", "--cron", "@daily"]);
    assert!(ran.code == 2 && ran.stderr.contains("character ' '"), "{}", ran.stderr);
    assert!(yard.json(&["schedule", "list"]).is_empty());

    assert_eq!(add(&["--cron", "@daily"]).code, 0);
    for command in ["get", "pause", "resume", "trigger", "remove"] {
        let ran = yard.run(&["schedule", command, "nightli"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{command}: {}", ran.stderr);
        let told = "error: schedule nightli does not exist; did you mean nightly?\n";
        assert_eq!(ran.stderr, told, "{command}");
    }
    let ran = yard.run(&["schedule", "get", "payroll", "--json"]);
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!((ran.code, &error["code"]), (1, &json!("not_found")));
    assert!(error["detail"].as_str().unwrap().ends_with("see taskyard schedule list"), "{error}");
    for (from, to, part) in [
        ("2024-03-01T00:00:00Z", "2024-02-01T00:00:00Z", "is after to"),
        ("2024-03-01T00:00:00Z", "2099-02-01T00:00:00Z", "is not in the past"),
        ("1970-01-01T00:00:00Z", "2024-02-01T00:00:00Z", "more than 10000 occurrences; split it"),
    ] {
        let ran = yard.run(&["schedule", "backfill", "nightly", "--from", from, "--to", to]);
        assert!(ran.code == 2 && ran.stderr.contains(part), "{}", ran.stderr);
    }
    assert!(yard.json(&["task", "list"]).is_empty());
}

fn occurrence(task: &Value) -> String {
    task["headers"]["taskyard-occurrence-at"].as_str().expect("a run has its occurrence").to_owned()
}

/// The milliseconds since 1970 of a timestamp.
fn moment(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Kills the broker with -9, and starts a new one on its directory after `down_for`.
fn kill_and_restart(yard: Yard, down_for: Duration) -> (Yard, Outage) {
    let Yard { mut broker, folder, .. } = yard;
    broker.0.kill().unwrap();
    broker.0.wait().unwrap();
    let from = now();
    // The length of the outage is what this test is about.
    sleep(down_for);
    let to = now();
    (Yard::start_in(folder), Outage { from, to })
}

/// An outage of the broker: from the last moment at which the killed broker can have fired to the
/// first moment at which the new broker can fire.
struct Outage {
    from: i64,
    to: i64,
}

/// The occurrences of a schedule with a task, after a check that each has only one. No worker
/// claims these tasks.
fn fired(yard: &Yard, name: &str) -> Vec<i64> {
    let seen = schedule(yard, name);
    let total = usize::try_from(seen["fired_total"].as_u64().unwrap()).unwrap();
    let list = || yard.json(&["task", "list", "--queue", name, "--payload", "--limit", "1000"]);
    // The last runs may still be on their way to the queue.
    until("the runs are in their queue", || list().len() >= total);
    let mut times: BTreeMap<i64, u32> = BTreeMap::new();
    for task in list() {
        *times.entry(moment(&occurrence(&task))).or_default() += 1;
    }
    assert!(times.values().all(|count| *count == 1), "{name} fired twice: {times:?}");
    assert_eq!(times.len(), total, "{name}: {seen}");
    times.into_keys().collect()
}

#[test]
fn after_kill_9_and_an_outage_each_policy_fires_what_it_says_and_nothing_twice() {
    // For each queue: the options of its policy, and how late an occurrence may be and still run.
    let policies: [(&str, &[&str], i64); 4] = [
        ("none", &["--catch-up", "none"], 10_000),
        ("last", &["--catch-up", "last"], 999),
        ("all", &["--catch-up", "all"], 3_600_000),
        ("window", &["--catch-up", "all", "--catch-up-window", "12s"], 12_000),
    ];
    let mut yard = Yard::start();
    for (index, (name, options, _)) in policies.iter().enumerate() {
        let rhythm: &[&str] = match index % 2 {
            0 => &["--every", "1s"],
            _ => &["--cron", "* * * * * *", "--timezone", "Asia/Kathmandu"],
        };
        let mut arguments = vec!["schedule", "add", name, "tick", "--queue", name];
        arguments.extend(["--overlap", "allow"]);
        arguments.extend(rhythm);
        arguments.extend(*options);
        yard.ok(&arguments);
    }
    let all_ran_since = |yard: &Yard, since: i64| {
        until("all schedules fire", || {
            let ran_since = |seen: &Value| seen["last_run_at"].as_str().map(moment) >= Some(since);
            yard.json(&["schedule", "list"]).iter().all(ran_since)
        });
    };
    let mut outages = Vec::new();
    for down_for_ms in [0, 300, 13_500] {
        all_ran_since(&yard, now());
        let (restarted, outage) = kill_and_restart(yard, Duration::from_millis(down_for_ms));
        yard = restarted;
        all_ran_since(&yard, outage.to);
        // By now the schedules have decided every occurrence of the outage.
        outages.push((outage, now()));
    }
    for (name, ..) in policies {
        yard.ok(&["schedule", "pause", name]);
    }
    for (name, _, late_max) in policies {
        let fired = fired(&yard, name);
        let (first, last) = (fired[0], *fired.last().unwrap());
        let is_missed = |at: &i64| fired.binary_search(at).is_err();
        let missed: Vec<i64> = (first..=last).step_by(1_000).filter(is_missed).collect();
        let seen = schedule(&yard, name);
        assert_eq!(seen["missed_total"], json!(missed.len()), "{name}: {seen}");
        assert_eq!(seen["skipped_total"], 0, "{name}: {seen}");
        for (outage, decided_by) in &outages {
            let Outage { from, to } = *outage;
            for at in (first..=last).step_by(1_000).filter(|at| *at > from && *at <= *decided_by) {
                if at < to - late_max {
                    assert!(missed.contains(&at), "{name} fired {at}, too old at {to}");
                }
                if at >= decided_by - late_max {
                    assert!(fired.contains(&at), "{name} missed {at}, seen by {decided_by}");
                }
            }
        }
        let outside = |at: &&i64| {
            outages.iter().all(|(outage, decided_by)| **at <= outage.from || *at > decided_by)
        };
        assert_eq!(missed.iter().find(outside), None, "{name}: it misses nothing but in outages");
        match name {
            "all" => assert_eq!(missed, [0; 0]),
            // The longest outage lasts 13.5 s.
            "none" => assert!(missed.len() >= 3, "{missed:?}"),
            "last" => assert!(missed.len() >= 12, "{missed:?}"),
            _ => assert!(!missed.is_empty()),
        }
    }
}

#[test]
fn a_kill_9_right_after_a_fire_neither_repeats_it_nor_loses_the_next() {
    let mut yard = Yard::start();
    yard.ok(&[
        "schedule",
        "add",
        "ticks",
        "tick",
        "--queue",
        "ticks",
        "--every",
        "1s",
        "--overlap",
        "allow",
        "--catch-up",
        "all",
    ]);
    for _ in 0..5 {
        let before = schedule(&yard, "ticks")["fired_total"].clone();
        until("the schedule fires", || schedule(&yard, "ticks")["fired_total"] != before);
        yard = kill_and_restart(yard, Duration::ZERO).0;
        let seen = schedule(&yard, "ticks");
        let (last, next) = (&seen["last_run_at"], &seen["next_run_at"]);
        assert!(moment(next.as_str().unwrap()) > moment(last.as_str().unwrap()), "{seen}");
        assert!(seen["fired_total"].as_u64() > before.as_u64(), "{seen}");
    }
    yard.ok(&["schedule", "pause", "ticks"]);
    let fired = fired(&yard, "ticks");
    assert!(fired.len() >= 5, "{fired:?}");
    for pair in fired.windows(2) {
        assert_eq!(pair[1] - pair[0], 1_000, "{fired:?}");
    }
}
