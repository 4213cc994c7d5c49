//! How schedules are set, paused, resumed, removed and listed.

use super::*;
use crate::testing::{SHARD, START, Yard, new_task, spec};
use crate::{CatchUp, Command, NewTask, Overlap, ShardId};

fn view(yard: &Yard) -> ScheduleView {
    yard.machine.schedule("nightly").expect("it is set")
}

fn set(yard: &mut Yard, spec: ScheduleSpec<'_>, next_run_at: u64) -> Result<Outcome, Rejection> {
    let next_run_at = Timestamp(next_run_at);
    yard.send(Command::SetSchedule(SetSchedule {
        name: "nightly",
        spec,
        from: Timestamp(0),
        next_run_at,
    }))
}

fn pause(yard: &mut Yard, note: &str) -> Result<Outcome, Rejection> {
    yard.send(Command::PauseSchedule(PauseSchedule { name: "nightly", note }))
}

fn resume(yard: &mut Yard, revision: u64, next_run_at: u64) -> Result<Outcome, Rejection> {
    let next_run_at = Some(Timestamp(next_run_at));
    let resume = ResumeSchedule { name: "nightly", revision, from: Timestamp(0), next_run_at };
    yard.send(Command::ResumeSchedule(resume))
}

#[test]
fn the_same_rules_again_change_nothing() {
    let mut yard = Yard::new();
    let is_new = Outcome::ScheduleSet { is_new: true, is_changed: true };
    assert_eq!(set(&mut yard, spec(), START + 10), Ok(is_new));
    let before = yard.machine.records();
    let unchanged = Outcome::ScheduleSet { is_new: false, is_changed: false };
    assert_eq!(set(&mut yard, spec(), START + 99), Ok(unchanged));
    assert_eq!(yard.machine.records(), before);
    assert_eq!(view(&yard).spec(), spec());
}

#[test]
fn new_rules_keep_the_time_of_an_old_rhythm_and_take_that_of_a_new_one() {
    let mut yard = Yard::new();
    set(&mut yard, spec(), START + 10).unwrap();
    let other_task = NewTask { priority: Some(9), ..new_task() };
    let enqueue = Enqueue { queue: "mail", task: other_task };
    set(&mut yard, ScheduleSpec { enqueue: enqueue.clone(), ..spec() }, START + 20).unwrap();
    assert_eq!(view(&yard).next_run_at, Some(Timestamp(START + 10)), "what is due stays due");
    let rhythm = Rhythm::Every { ms: 5_000 };
    set(&mut yard, ScheduleSpec { rhythm, enqueue, ..spec() }, START + 30).unwrap();
    assert_eq!(view(&yard).next_run_at, Some(Timestamp(START + 30)));
    assert_eq!(view(&yard).revision, 3);
    assert_eq!(yard.machine.next_schedule(), Some(Timestamp(START + 30)));
}

#[test]
fn a_paused_schedule_has_no_next_run_until_it_is_resumed() {
    let mut yard = Yard::new();
    set(&mut yard, spec(), START + 10).unwrap();
    assert_eq!(resume(&mut yard, 1, START + 50), Ok(Outcome::Done), "it goes on anyway");
    assert_eq!(view(&yard).next_run_at, Some(Timestamp(START + 10)));
    assert_eq!(pause(&mut yard, "too loud"), Ok(Outcome::Done));
    assert_eq!(pause(&mut yard, "much too loud"), Ok(Outcome::Done));
    let paused = view(&yard);
    assert_eq!((paused.paused, paused.note.as_str()), (true, "much too loud"));
    assert_eq!((paused.next_run_at, yard.machine.next_schedule()), (None, None));
    let changed = ScheduleSpec { jitter_ms: 5, ..spec() };
    set(&mut yard, changed, START + 60).unwrap();
    assert_eq!(view(&yard).next_run_at, None, "new rules do not resume it");
    let told = resume(&mut yard, 1, START + 70).unwrap_err();
    assert_eq!(told, Rejection::ScheduleChanged { name: "nightly".into() });
    assert_eq!(resume(&mut yard, 2, START + 70), Ok(Outcome::Done));
    let resumed = view(&yard);
    assert_eq!((resumed.paused, resumed.note.as_str()), (false, ""));
    assert_eq!(resumed.next_run_at, Some(Timestamp(START + 70)));
}

/// The node that was asked may have a clock that is ahead, and so may a leader that was deposed
/// meanwhile.
#[test]
fn a_next_run_that_was_looked_for_in_the_future_is_refused() {
    let mut yard = Yard::new();
    let ahead = |next_run_at| SetSchedule {
        name: "nightly",
        spec: spec(),
        from: Timestamp(START + 5_000),
        next_run_at: Timestamp(next_run_at),
    };
    let changed = Rejection::ScheduleChanged { name: "nightly".into() };
    let told = yard.send(Command::SetSchedule(ahead(START + 6_000)));
    assert_eq!(told, Err(changed.clone()));
    assert_eq!(yard.machine.schedules.len(), 0);
    set(&mut yard, ScheduleSpec { jitter_ms: 5, ..spec() }, START + 1_000).unwrap();
    let told = yard.send(Command::SetSchedule(ahead(START + 6_000)));
    assert_eq!(told, Err(changed.clone()));
    assert_eq!(view(&yard).next_run_at, Some(Timestamp(START + 1_000)));
    pause(&mut yard, "").unwrap();
    let resume = ResumeSchedule {
        name: "nightly",
        revision: 1,
        from: Timestamp(START + 5_000),
        next_run_at: Some(Timestamp(START + 6_000)),
    };
    assert_eq!(yard.send(Command::ResumeSchedule(resume)), Err(changed));
    yard.pass_ms(5_000);
    assert_eq!(yard.send(Command::ResumeSchedule(resume)), Ok(Outcome::Done));
    assert_eq!(view(&yard).next_run_at, Some(Timestamp(START + 6_000)));
}

#[test]
fn a_removed_schedule_is_not_found() {
    let mut yard = Yard::new();
    set(&mut yard, spec(), START + 10).unwrap();
    let remove = || Command::RemoveSchedule(RemoveSchedule { name: "nightly" });
    assert_eq!(yard.send(remove()), Ok(Outcome::Done));
    for answer in [
        yard.send(remove()),
        pause(&mut yard, ""),
        resume(&mut yard, 1, START),
        yard.send(Command::TriggerSchedule(crate::TriggerSchedule { name: "nightly" })),
    ] {
        assert_eq!(answer.unwrap_err().code(), "not_found");
    }
    assert_eq!((yard.machine.schedules.len(), yard.machine.next_schedule()), (0, None));
}

#[test]
fn rules_out_of_bounds_are_refused_and_named() {
    let task = |task| Enqueue { queue: "mail", task };
    let many = vec![("k", "v"); HEADERS_MAX - 1];
    let large = vec![b'x'; SCHEDULE_BYTES_MAX];
    let body = |headers, payload| crate::Body { headers, payload, ..crate::Body::default() };
    let long = "x".repeat(CRON_BYTES_MAX + 1);
    for (bad, told) in [
        (ScheduleSpec { home: ShardId(9), ..spec() }, "shard 9 does not exist"),
        (ScheduleSpec { rhythm: Rhythm::Every { ms: 999 }, ..spec() }, "every_ms is 999"),
        (
            ScheduleSpec { rhythm: Rhythm::Every { ms: HORIZON_MS_MAX + 1 }, ..spec() },
            "every_ms is",
        ),
        (
            ScheduleSpec { rhythm: Rhythm::Cron { expression: &long, timezone: "" }, ..spec() },
            "cron has 257 bytes",
        ),
        (
            ScheduleSpec { rhythm: Rhythm::Cron { expression: "", timezone: &long }, ..spec() },
            "timezone has 257 bytes",
        ),
        (ScheduleSpec { catch_up_window_ms: u64::MAX, ..spec() }, "catch_up_window_ms is"),
        (ScheduleSpec { jitter_ms: u64::MAX, ..spec() }, "jitter_ms is"),
        (ScheduleSpec { remaining_runs: Some(0), ..spec() }, "remaining_runs is 0"),
        (
            ScheduleSpec { start_at: Some(Timestamp(5)), end_at: Some(Timestamp(5)), ..spec() },
            "end_at is not after start_at",
        ),
        (
            ScheduleSpec { enqueue: Enqueue { queue: "a b", task: new_task() }, ..spec() },
            "a queue name has the character",
        ),
        (
            ScheduleSpec {
                enqueue: task(NewTask { run_at: When::After { ms: 5 }, ..new_task() }),
                ..spec()
            },
            "has run_at",
        ),
        (
            ScheduleSpec {
                enqueue: task(NewTask { expires_at: Some(Timestamp(9)), ..new_task() }),
                ..spec()
            },
            "has expires_at",
        ),
        (
            ScheduleSpec {
                enqueue: task(NewTask { request_id: Some("r"), ..new_task() }),
                ..spec()
            },
            "has request_id",
        ),
        (
            ScheduleSpec { enqueue: task(NewTask { task_type: "", ..new_task() }), ..spec() },
            "type is empty",
        ),
        (
            ScheduleSpec {
                enqueue: task(NewTask { body: body(many, b""), ..new_task() }),
                ..spec()
            },
            "the number of headers of a schedule is 63",
        ),
        (
            ScheduleSpec {
                enqueue: task(NewTask {
                    body: body(vec![("taskyard-schedule", "x")], b""),
                    ..new_task()
                }),
                ..spec()
            },
            "the header taskyard-schedule is set by the schedule itself",
        ),
        (
            ScheduleSpec {
                enqueue: task(NewTask { body: body(vec![], &large), ..new_task() }),
                ..spec()
            },
            "the schedule has",
        ),
    ] {
        let mut yard = Yard::new();
        let rejection = set(&mut yard, bad, START + 10).unwrap_err();
        assert_eq!(rejection.code(), "invalid_argument");
        assert!(rejection.to_string().contains(told), "{told}: {rejection}");
    }
    let mut yard = Yard::new();
    for name in ["", "a b", "..", &"x".repeat(129)] {
        let set =
            SetSchedule { name, spec: spec(), from: Timestamp(0), next_run_at: Timestamp(START) };
        let rejection = yard.send(Command::SetSchedule(set)).unwrap_err();
        assert!(rejection.to_string().starts_with("a schedule name"), "{rejection}");
    }
    set(&mut yard, spec(), START + 10).unwrap();
    let note = "x".repeat(SCHEDULE_NOTE_BYTES_MAX + 1);
    assert_eq!(pause(&mut yard, &note).unwrap_err().code(), "invalid_argument");
}

#[test]
fn a_shard_holds_a_bounded_number_of_schedules() {
    let mut yard = Yard::new();
    for number in 0..SCHEDULES_PER_SHARD_MAX {
        let name = format!("s{number}");
        let next_run_at = Timestamp(START + 10);
        let set = SetSchedule { name: &name, spec: spec(), from: Timestamp(0), next_run_at };
        let schedule = Schedule::new(&set, encode(&set.spec), Timestamp(START));
        yard.machine.schedules.insert(schedule_key(&name), schedule);
    }
    assert_eq!(set(&mut yard, spec(), START + 10).unwrap_err().code(), "limit_exceeded");
}

#[test]
fn schedules_are_listed_by_name_and_due_ones_by_time() {
    let mut yard = Yard::new();
    for (name, next) in [("c", 30), ("a", 20), ("b", 10)] {
        let set = SetSchedule {
            name,
            spec: spec(),
            from: Timestamp(0),
            next_run_at: Timestamp(START + next),
        };
        yard.send(Command::SetSchedule(set)).unwrap();
    }
    let names = |after, limit| -> Vec<String> {
        let page = yard.machine.schedules(after, limit);
        let names: Vec<String> = page.schedules.into_iter().map(|view| view.name).collect();
        let goes_on = names.last().map(String::as_str) < Some("c");
        assert_eq!(page.next.as_ref(), names.last().filter(|_| goes_on));
        names
    };
    assert_eq!(names(None, 2), ["a", "b"]);
    assert_eq!(names(None, 3), ["a", "b", "c"]);
    assert_eq!(names(Some("b"), 2), ["c"]);
    assert_eq!(names(Some("aa"), 1), ["b"]);
    let due: Vec<_> = yard.machine.schedules_due(Timestamp(START + 20)).collect();
    assert_eq!(due.iter().map(|due| due.name).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!((due[0].spec.home, due[0].revision), (SHARD, 1));
}

/// What one look at schedules costs is bounded by their rules too.
#[test]
fn a_page_of_large_schedules_is_short_and_goes_on() {
    let mut yard = Yard::new();
    let payload = vec![b'x'; SCHEDULE_BYTES_MAX - 1_000];
    let count = 2 * LOOK_BYTES_MAX / payload.len() + 5;
    for number in 0..count {
        let mut spec = spec();
        spec.enqueue.task.body.payload = &payload;
        let (name, next_run_at) = (format!("s{number:03}"), Timestamp(START + 10));
        let set = SetSchedule { name: &name, spec, from: Timestamp(0), next_run_at };
        yard.send(Command::SetSchedule(set)).unwrap();
    }
    let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = yard.machine.schedules(after.as_deref(), 1_000);
        let bytes: usize = page.schedules.iter().map(|view| view.spec.len()).sum();
        assert!(bytes < LOOK_BYTES_MAX + SCHEDULE_BYTES_MAX, "{bytes}");
        seen.extend(page.schedules);
        pages += 1;
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!((seen, pages), (yard.machine.all_schedules(), 3));
}

#[test]
fn a_schedule_survives_a_checkpoint() {
    let mut yard = Yard::new();
    let wanted = ScheduleSpec {
        overlap: Overlap::BufferOne,
        catch_up: CatchUp::All,
        remaining_runs: Some(7),
        ..spec()
    };
    set(&mut yard, wanted, START + 10).unwrap();
    yard.send(Command::TriggerSchedule(crate::TriggerSchedule { name: "nightly" })).unwrap();
    let records = yard.machine.records();
    let loaded = Machine::load(yard.machine.identity(), records.clone()).unwrap();
    loaded.check().unwrap();
    assert!(loaded.records() == records);
    assert_eq!(loaded.schedule("nightly"), yard.machine.schedule("nightly"));
    assert_eq!(loaded.next_schedule(), Some(Timestamp(START + 10)));
    assert_eq!(loaded.memory_bytes(), yard.machine.memory_bytes());
}
