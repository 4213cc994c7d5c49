//! The decisions about occurrences and runs, policy by policy.

use super::*;
use crate::testing::{SHARD, START, Yard, new_task, spec};
use crate::*;

const MINUTE: u64 = 60_000;
const OTHER: ShardId = ShardId(2);

/// A schedule with an occurrence each minute, the first one a minute after the start.
fn scheduled(spec: ScheduleSpec<'_>) -> Yard {
    let mut yard = Yard::new();
    let next_run_at = Timestamp(START + MINUTE);
    let set = SetSchedule { name: "nightly", spec, from: Timestamp(0), next_run_at };
    yard.send(Command::SetSchedule(set)).unwrap();
    yard
}

fn view(yard: &Yard) -> ScheduleView {
    yard.machine.schedule("nightly").expect("it is set")
}

fn minute(number: u64) -> Timestamp {
    Timestamp(START + number * MINUTE)
}

/// Fires these minutes now; returns how many were fired, skipped and missed.
fn fire(yard: &mut Yard, minutes: &[u64]) -> Result<(u64, u64, u64), Rejection> {
    let occurrences: Vec<Timestamp> = minutes.iter().map(|&number| minute(number)).collect();
    let next_run_at = minutes.last().map(|&last| minute(last + 1));
    fire_exactly(yard, occurrences, next_run_at)
}

fn fire_exactly(
    yard: &mut Yard,
    occurrences: Vec<Timestamp>,
    next_run_at: Option<Timestamp>,
) -> Result<(u64, u64, u64), Rejection> {
    let revision = yard.machine.schedule("nightly").map_or(0, |view| view.revision);
    let fire = FireSchedule { name: "nightly", revision, occurrences, left_out: 0, next_run_at };
    match yard.send(Command::FireSchedule(fire))? {
        Outcome::ScheduleFired { fired, skipped, missed } => Ok((fired, skipped, missed)),
        other => panic!("{other:?}"),
    }
}

/// Advances to this minute, and fires only the occurrence of that minute.
fn fire_at(yard: &mut Yard, number: u64) -> (u64, u64, u64) {
    yard.pass_ms(minute(number).ms_since(yard.now()));
    fire(yard, &[number]).unwrap()
}

fn trigger(yard: &mut Yard) -> TaskId {
    match yard.send(Command::TriggerSchedule(TriggerSchedule { name: "nightly" })) {
        Ok(Outcome::Enqueued(Enqueued { id, duplicate: false })) => id,
        other => panic!("{other:?}"),
    }
}

fn header(yard: &Yard, task: TaskId, name: &str) -> String {
    let body = yard.body(task).expect("it has a body");
    let found = body.headers.iter().find(|(header, _)| *header == name);
    found.expect("the header is there").1.into()
}

#[test]
fn an_occurrence_fires_once_and_its_task_names_it() {
    let mut yard = scheduled(spec());
    assert_eq!(fire_at(&mut yard, 1), (1, 0, 0));
    let after = view(&yard);
    let task = after.last_task.unwrap();
    assert_eq!(yard.state(task), TaskStateName::Ready);
    assert_eq!(header(&yard, task, "taskyard-schedule"), "nightly");
    assert_eq!(header(&yard, task, "taskyard-occurrence-at"), minute(1).to_rfc3339());
    assert_eq!((after.last_run_at, after.next_run_at), (Some(minute(1)), Some(minute(2))));
    assert_eq!((after.fired, after.live.as_slice()), (1, &[task][..]));
    let fired = EventKind::ScheduleFired { name: "nightly".into(), occurrence_at: minute(1), task };
    assert!(yard.events().contains(&fired));
    let again = fire(&mut yard, &[1]).unwrap_err();
    assert_eq!(again, Rejection::ScheduleChanged { name: "nightly".into() });
    assert_eq!(yard.counts("mail").enqueued_total, 1);
}

#[test]
fn an_invalid_fire_changes_nothing() {
    let mut yard = scheduled(spec());
    yard.pass_ms(2 * MINUTE);
    let many: Vec<Timestamp> =
        (0..=OCCURRENCES_PER_ENTRY_MAX as u64).map(|ms| Timestamp(START + ms)).collect();
    for (occurrences, next_run_at) in [
        (vec![], Some(minute(2))),
        (vec![minute(2)], Some(minute(3))),
        (vec![minute(1), minute(1)], Some(minute(2))),
        (vec![minute(1), minute(3)], Some(minute(4))),
        (vec![minute(1)], Some(minute(1))),
        (many, None),
    ] {
        let told = fire_exactly(&mut yard, occurrences, next_run_at).unwrap_err();
        assert_eq!(told.code(), "invalid_argument");
    }
    let stale = FireSchedule {
        name: "nightly",
        revision: 7,
        occurrences: vec![minute(1)],
        left_out: 0,
        next_run_at: None,
    };
    assert!(yard.send(Command::FireSchedule(stale)).is_err());
    yard.send(Command::PauseSchedule(PauseSchedule { name: "nightly", note: "" })).unwrap();
    assert!(fire(&mut yard, &[1]).is_err(), "it is paused");
    assert_eq!(yard.machine.task_count(), 0);
}

#[test]
fn new_rules_do_not_decide_an_occurrence_again() {
    let mut yard = scheduled(spec());
    fire_at(&mut yard, 1);
    // A gateway whose clock is behind computes an occurrence that has fired.
    let rhythm = Rhythm::Every { ms: MINUTE };
    let changed = ScheduleSpec { rhythm, overlap: Overlap::Allow, ..spec() };
    let set =
        SetSchedule { name: "nightly", spec: changed, from: Timestamp(0), next_run_at: minute(1) };
    yard.send(Command::SetSchedule(set)).unwrap();
    assert_eq!(fire(&mut yard, &[1]), Ok((0, 0, 0)));
    assert_eq!(fire_at(&mut yard, 2), (1, 0, 0));
    assert_eq!(yard.counts("mail").enqueued_total, 2);
}

/// Whatever was due by the old rhythm is fired, skipped or missed, and counted.
#[test]
fn a_new_rhythm_waits_until_what_is_due_by_the_old_one_is_decided() {
    let mut yard = scheduled(ScheduleSpec { overlap: Overlap::Allow, ..spec() });
    yard.pass_ms(3 * MINUTE);
    let changed =
        |overlap| ScheduleSpec { rhythm: Rhythm::Every { ms: 5 * MINUTE }, overlap, ..spec() };
    let set = |yard: &mut Yard, spec| {
        let (from, next_run_at) = (yard.now(), minute(5));
        yard.send(Command::SetSchedule(SetSchedule { name: "nightly", spec, from, next_run_at }))
    };
    let refused = Rejection::ScheduleChanged { name: "nightly".into() };
    assert_eq!(set(&mut yard, changed(Overlap::Allow)), Err(refused));
    assert_eq!((view(&yard).revision, view(&yard).next_run_at), (1, Some(minute(1))));
    // Other rules change at once: what is due stays due.
    set(&mut yard, ScheduleSpec { overlap: Overlap::Skip, jitter_ms: 1, ..spec() }).unwrap();
    assert_eq!(view(&yard).next_run_at, Some(minute(1)));
    let (fired, skipped, missed) = fire(&mut yard, &[1, 2, 3]).unwrap();
    assert_eq!((fired, skipped, missed), (1, 0, 2));
    set(&mut yard, changed(Overlap::Allow)).unwrap();
    let changed = view(&yard);
    assert_eq!((changed.next_run_at, changed.fired, changed.missed), (Some(minute(5)), 1, 2));
    // One that is paused has nothing due.
    yard.pass_ms(3 * MINUTE);
    yard.send(Command::PauseSchedule(PauseSchedule { name: "nightly", note: "" })).unwrap();
    set(&mut yard, spec()).unwrap();
}

#[test]
fn each_policy_catches_up_as_it_promises() {
    // Minutes 1 to 5 have passed, seen two seconds after the last.
    for (catch_up, catch_up_window_ms, fired) in [
        (CatchUp::None, 0, vec![5]),
        (CatchUp::Last, 4 * MINUTE, vec![5]),
        (CatchUp::Last, 0, vec![5]),
        (CatchUp::All, 3_600_000, vec![1, 2, 3, 4, 5]),
        (CatchUp::All, 2 * MINUTE + 2_000, vec![3, 4, 5]),
        (CatchUp::All, 0, vec![5]),
    ] {
        let overlap = Overlap::Allow;
        let mut yard = scheduled(ScheduleSpec { catch_up, catch_up_window_ms, overlap, ..spec() });
        yard.pass_ms(5 * MINUTE + 2_000);
        let count = fired.len() as u64;
        assert_eq!(fire(&mut yard, &[1, 2, 3, 4, 5]), Ok((count, 0, 5 - count)), "{catch_up:?}");
        let found: Vec<String> = yard
            .claim("mail", 10)
            .iter()
            .map(|task| header(&yard, task.id, "taskyard-occurrence-at"))
            .collect();
        let expected: Vec<String> =
            fired.iter().map(|&number| minute(number).to_rfc3339()).collect();
        assert_eq!(found, expected, "{catch_up:?} within {catch_up_window_ms} ms");
        assert_eq!((view(&yard).fired, view(&yard).missed), (count, 5 - count));
    }
}

#[test]
fn the_last_occurrence_of_an_entry_is_not_the_latest_while_more_is_due() {
    let mut yard = scheduled(ScheduleSpec { overlap: Overlap::Allow, ..spec() });
    yard.pass_ms(3 * MINUTE);
    assert_eq!(fire(&mut yard, &[1, 2]), Ok((0, 0, 2)));
    assert_eq!(fire(&mut yard, &[3]), Ok((1, 0, 0)));
    let missed = EventKind::ScheduleMissed("nightly".into(), 2);
    assert!(yard.events().contains(&missed));
}

#[test]
fn occurrences_left_out_count_as_missed() {
    let mut yard = scheduled(spec());
    yard.pass_ms(100 * MINUTE);
    let fire = FireSchedule {
        name: "nightly",
        revision: 1,
        occurrences: vec![minute(1), minute(100)],
        left_out: 98,
        next_run_at: Some(minute(101)),
    };
    let told = yard.send(Command::FireSchedule(fire));
    assert_eq!(told, Ok(Outcome::ScheduleFired { fired: 1, skipped: 0, missed: 99 }));
    assert_eq!(view(&yard).missed, 99);
}

#[test]
fn a_fire_leaves_out_only_occurrences_that_are_missed() {
    let now = Timestamp(START);
    let late = SCHEDULE_LATE_MS_MAX;
    for (catch_up, catch_up_window_ms, from) in [
        (CatchUp::None, 60_000, START - late),
        (CatchUp::Last, 60_000, START - 60_000),
        (CatchUp::All, 60_000, START - 60_000),
        // A window is never shorter than the delay of a healthy leader.
        (CatchUp::Last, 0, START - late),
        (CatchUp::All, late - 1, START - late),
    ] {
        let spec = ScheduleSpec { catch_up, catch_up_window_ms, ..spec() };
        assert_eq!(spec.fires_from(now), Timestamp(from));
        assert!(spec.misses(Timestamp(from - 1), now, true));
        assert!(!spec.misses(Timestamp(from), now, true));
    }
}

#[test]
fn skip_waits_for_the_end_of_the_run() {
    let mut yard = scheduled(spec());
    fire_at(&mut yard, 1);
    let held = yard.claim_one("mail");
    assert_eq!(fire_at(&mut yard, 2), (0, 1, 0));
    let skipped = EventKind::ScheduleSkipped("nightly".into(), minute(2));
    assert!(yard.events().contains(&skipped));
    yard.ack(&held).unwrap();
    assert_eq!(view(&yard).live, []);
    assert_eq!(fire_at(&mut yard, 3), (1, 0, 0));
    assert_eq!((view(&yard).fired, view(&yard).skipped), (2, 1));
}

#[test]
fn every_end_of_a_run_lets_the_next_one_fire() {
    type End = fn(&mut Yard, TaskId);
    let ends: [(&str, End); 6] = [
        ("ack", |yard, _| {
            let held = yard.claim_one("mail");
            yard.ack(&held).unwrap();
        }),
        ("death", |yard, _| {
            let held = yard.claim_one("mail");
            yard.fail_with(Fail { retryable: false, ..testing::fail(&held) }).unwrap();
        }),
        ("cancel", |yard, id| drop(yard.cancel(id).unwrap())),
        ("cancel of a claimed one", |yard, id| {
            let held = yard.claim_one("mail");
            yard.cancel(id).unwrap();
            assert_eq!(view(yard).live, [id], "it has not yielded");
            yard.release(&held).unwrap();
        }),
        ("purge", |yard, _| {
            yard.send(crate::testing::purge("mail")).unwrap();
        }),
        ("end of a session", |yard, id| {
            let claim = Claim { session: Some(SessionId(1)), ..testing::claim("mail") };
            yard.claim_with(claim);
            yard.cancel(id).unwrap();
            let (session, reason) = (SessionId(1), SessionEnd::Silence);
            let end = EndSession { session, reason, not_started: vec![], keep: vec![] };
            yard.send(Command::EndSession(end)).unwrap();
        }),
    ];
    for (name, end) in ends {
        let mut yard = scheduled(spec());
        fire_at(&mut yard, 1);
        let id = view(&yard).live[0];
        end(&mut yard, id);
        assert_eq!(view(&yard).live, [], "{name}");
        assert_eq!(fire_at(&mut yard, 2), (1, 0, 0), "{name}");
    }
}

#[test]
fn a_retry_is_the_same_run() {
    let mut yard = scheduled(spec());
    fire_at(&mut yard, 1);
    let held = yard.claim_one("mail");
    yard.fail(&held).unwrap();
    assert_eq!(fire_at(&mut yard, 2), (0, 1, 0));
}

#[test]
fn buffer_one_keeps_the_newest_for_the_end_of_the_run() {
    let mut yard = scheduled(ScheduleSpec { overlap: Overlap::BufferOne, ..spec() });
    fire_at(&mut yard, 1);
    let held = yard.claim_one("mail");
    assert_eq!(fire_at(&mut yard, 2), (0, 0, 0));
    assert_eq!(view(&yard).buffered, Some(minute(2)));
    assert_eq!(fire_at(&mut yard, 3), (0, 1, 0));
    assert_eq!(view(&yard).buffered, Some(minute(3)));
    yard.ack(&held).unwrap();
    let after = view(&yard);
    assert_eq!((after.buffered, after.fired, after.skipped), (None, 2, 1));
    let held = yard.claim_one("mail");
    assert_eq!(after.live, [held.id]);
    assert_eq!(header(&yard, held.id, "taskyard-occurrence-at"), minute(3).to_rfc3339());
}

#[test]
fn a_buffered_run_waits_for_the_end_of_a_pause() {
    let mut yard = scheduled(ScheduleSpec { overlap: Overlap::BufferOne, ..spec() });
    fire_at(&mut yard, 1);
    let held = yard.claim_one("mail");
    fire_at(&mut yard, 2);
    yard.send(Command::PauseSchedule(PauseSchedule { name: "nightly", note: "" })).unwrap();
    yard.ack(&held).unwrap();
    assert_eq!((view(&yard).buffered, view(&yard).fired), (Some(minute(2)), 1));
    let resume = ResumeSchedule {
        name: "nightly",
        revision: 1,
        from: Timestamp(0),
        next_run_at: Some(minute(3)),
    };
    yard.send(Command::ResumeSchedule(resume)).unwrap();
    assert_eq!((view(&yard).buffered, view(&yard).fired), (None, 2));
}

#[test]
fn cancel_other_cancels_the_run_and_then_runs() {
    let mut yard = scheduled(ScheduleSpec { overlap: Overlap::CancelOther, ..spec() });
    fire_at(&mut yard, 1);
    let waiting = view(&yard).live[0];
    assert_eq!(fire_at(&mut yard, 2), (0, 0, 0));
    assert_eq!(yard.state(waiting), TaskStateName::Cancelled, "nobody held it");
    assert_eq!(view(&yard).fired, 2, "the next one has followed at once");
    let held = yard.claim_one("mail");
    fire_at(&mut yard, 3);
    assert_eq!(view(&yard).buffered, Some(minute(3)), "its worker is asked first");
    assert!(yard.task(held.id).claim.unwrap().cancel_requested);
    yard.release(&held).unwrap();
    let third = yard.claim_one("mail");
    assert_eq!(header(&yard, third.id, "taskyard-occurrence-at"), minute(3).to_rfc3339());
}

#[test]
fn allow_runs_side_by_side_and_watches_nothing() {
    let mut yard = scheduled(ScheduleSpec { overlap: Overlap::Allow, ..spec() });
    fire_at(&mut yard, 1);
    assert_eq!(fire_at(&mut yard, 2), (1, 0, 0));
    assert_eq!((view(&yard).live, yard.counts("mail").ready), (vec![], 2));
}

#[test]
fn jitter_delays_a_run_within_its_bound_and_always_by_the_same() {
    let jittered = || {
        let mut yard =
            scheduled(ScheduleSpec { jitter_ms: 30_000, overlap: Overlap::Allow, ..spec() });
        (1..=20)
            .map(|number| {
                fire_at(&mut yard, number);
                let task = yard.task(view(&yard).last_task.unwrap());
                task.run_at.map_or(0, |at| at.ms_since(minute(number)))
            })
            .collect::<Vec<u64>>()
    };
    let waits = jittered();
    assert!(waits.iter().all(|&ms| ms <= 30_000), "{waits:?}");
    assert!(waits.iter().any(|&ms| ms > 15_000) && waits.iter().any(|&ms| ms < 15_000));
    assert_eq!(jittered(), waits);
}

#[test]
fn a_schedule_ends_after_its_last_run() {
    let overlap = Overlap::BufferOne;
    let mut yard = scheduled(ScheduleSpec { remaining_runs: Some(2), overlap, ..spec() });
    fire_at(&mut yard, 1);
    trigger(&mut yard);
    assert_eq!(view(&yard).remaining_runs, Some(1), "a trigger is no occurrence");
    fire_at(&mut yard, 2);
    assert_eq!((view(&yard).remaining_runs, view(&yard).buffered), (Some(1), Some(minute(2))));
    for held in yard.claim("mail", 2) {
        yard.ack(&held).unwrap();
    }
    let ended = view(&yard);
    assert_eq!((ended.remaining_runs, ended.next_run_at), (Some(0), None));
    assert_eq!((ended.fired, yard.machine.next_schedule()), (2, None));
    let more = ScheduleSpec { remaining_runs: Some(5), overlap, ..spec() };
    let set =
        SetSchedule { name: "nightly", spec: more, from: Timestamp(0), next_run_at: minute(3) };
    yard.send(Command::SetSchedule(set)).unwrap();
    assert_eq!(view(&yard).next_run_at, Some(minute(3)));
}

#[test]
fn catching_up_stops_at_the_last_run() {
    let (catch_up, overlap) = (CatchUp::All, Overlap::Allow);
    let mut yard = scheduled(ScheduleSpec { remaining_runs: Some(2), catch_up, overlap, ..spec() });
    yard.pass_ms(5 * MINUTE);
    assert_eq!(fire(&mut yard, &[1, 2, 3, 4, 5]), Ok((2, 0, 0)));
    assert_eq!((view(&yard).next_run_at, view(&yard).fired), (None, 2));
}

#[test]
fn a_trigger_runs_beside_other_runs_and_delays_the_next_occurrence() {
    let mut yard = scheduled(spec());
    fire_at(&mut yard, 1);
    let asked_at = yard.now();
    let id = trigger(&mut yard);
    assert_eq!(yard.counts("mail").ready, 2);
    assert_eq!(header(&yard, id, "taskyard-occurrence-at"), asked_at.to_rfc3339());
    assert_eq!((view(&yard).last_task, view(&yard).fired), (Some(id), 1));
    let held = yard.claim_one("mail");
    yard.ack(&held).unwrap();
    assert_eq!(fire_at(&mut yard, 2), (0, 1, 0), "the triggered run goes on");
    let paused = PauseSchedule { name: "nightly", note: "" };
    yard.send(Command::PauseSchedule(paused)).unwrap();
    trigger(&mut yard);
    let live = vec![id; SCHEDULE_LIVE_RUNS_MAX];
    yard.machine.schedules.update(schedule_key("nightly"), |schedule| schedule.live = live);
    let beyond = Command::TriggerSchedule(TriggerSchedule { name: "nightly" });
    assert_eq!(yard.send(beyond).unwrap_err().code(), "limit_exceeded");
}

#[test]
fn a_backfill_runs_the_past_side_by_side_and_changes_nothing_else() {
    let mut yard = scheduled(spec());
    yard.pass_ms(30_000);
    let before = view(&yard);
    let past: Vec<Timestamp> = (1..=3).map(|number| Timestamp(START - number * 10)).rev().collect();
    let by = |revision, occurrences| {
        Command::BackfillSchedule(BackfillSchedule { name: "nightly", revision, occurrences })
    };
    let backfill = |occurrences| by(before.revision, occurrences);
    let told = yard.send(backfill(past.clone()));
    assert_eq!(told, Ok(Outcome::ScheduleFired { fired: 3, skipped: 0, missed: 0 }));
    assert_eq!(view(&yard), before);
    let found: Vec<String> = yard
        .claim("mail", 10)
        .iter()
        .map(|task| header(&yard, task.id, "taskyard-occurrence-at"))
        .collect();
    assert_eq!(found, past.iter().map(|at| at.to_rfc3339()).collect::<Vec<_>>());
    assert!(yard.send(backfill(vec![minute(1)])).is_err(), "the future is no past");
    // The occurrences were computed from other rules.
    let stale = yard.send(by(before.revision + 1, past)).unwrap_err();
    assert_eq!(stale, Rejection::ScheduleChanged { name: "nightly".into() });
    assert!(yard.claim("mail", 10).is_empty());
}

#[test]
fn a_run_on_another_shard_is_enqueued_cancelled_and_reported_through_the_outbox() {
    let overlap = Overlap::CancelOther;
    let mut source = scheduled(ScheduleSpec { home: OTHER, overlap, ..spec() });
    let mut target = Yard::of_shard(OTHER);
    fn carry(from: &mut Yard, from_id: ShardId, to: &mut Yard, to_id: ShardId) {
        for outgoing in from.machine.outgoing(10) {
            let deliver = outgoing.deliver(from_id, from.now());
            assert_eq!(to.send(Command::Deliver(deliver)), Ok(Outcome::Taken));
            let delivered = Delivered { to: to_id, up_to: outgoing.sequence };
            from.send(Command::Delivered(delivered)).unwrap();
        }
    }
    fire_at(&mut source, 1);
    target.pass_ms(MINUTE);
    carry(&mut source, SHARD, &mut target, OTHER);
    let held = target.claim_one("mail");
    assert_eq!(view(&source).live, [held.id]);
    fire_at(&mut source, 2);
    target.pass_ms(MINUTE);
    carry(&mut source, SHARD, &mut target, OTHER);
    assert!(target.task(held.id).claim.unwrap().cancel_requested);
    target.release(&held).unwrap();
    carry(&mut target, OTHER, &mut source, SHARD);
    assert_eq!((view(&source).fired, view(&source).buffered), (2, None));
    carry(&mut source, SHARD, &mut target, OTHER);
    assert_eq!(target.counts("mail").ready, 1);
    // The target takes a cancellation even if its task no longer exists.
    fire_at(&mut source, 3);
    let second = target.claim_one("mail");
    target.ack(&second).unwrap();
    carry(&mut source, SHARD, &mut target, OTHER);
    carry(&mut target, OTHER, &mut source, SHARD);
    assert_eq!(view(&source).fired, 3);
}

#[test]
fn the_end_of_a_run_of_a_removed_schedule_is_ignored() {
    let mut yard = scheduled(ScheduleSpec { overlap: Overlap::BufferOne, ..spec() });
    fire_at(&mut yard, 1);
    let first = yard.claim_one("mail");
    fire_at(&mut yard, 2);
    yard.send(Command::RemoveSchedule(RemoveSchedule { name: "nightly" })).unwrap();
    assert_eq!(yard.state(first.id), TaskStateName::Claimed, "its task is left alone");
    let set =
        SetSchedule { name: "nightly", spec: spec(), from: Timestamp(0), next_run_at: minute(3) };
    yard.send(Command::SetSchedule(set)).unwrap();
    fire_at(&mut yard, 3);
    let live = view(&yard).live;
    yard.ack(&first).unwrap();
    assert_eq!(view(&yard).live, live, "the old run belongs to the removed schedule");
}

#[test]
fn a_full_queue_does_not_refuse_a_run() {
    let mut yard = scheduled(spec());
    yard.set("mail", QueueSettings { max_length: Some(0), ..QueueSettings::default() });
    assert_eq!(fire_at(&mut yard, 1), (1, 0, 0));
    assert_eq!(yard.counts("mail").ready, 1);
    assert!(yard.enqueue_task("mail", new_task()).is_err());
}
