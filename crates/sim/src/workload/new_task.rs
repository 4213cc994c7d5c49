//! The tasks of clients: small, of all shapes, short enough for a run.

use crate::clock::RUN_BEGINS_AT_MS;
use crate::rng::Rng;
use taskyard_machine::{
    Backoff, Body, NewTask, OnConflict, RetryPolicy, Timestamp, Unique, UniqueUntil, When,
};

/// The type of a task that kills its workers until it is quarantined.
pub(crate) const KILLER: &str = "kill";

pub(crate) fn new_task_now() -> NewTask<'static> {
    NewTask {
        task_type: "follow_up",
        body: Body { payload: b"{}", ..Body::default() },
        ..NewTask::default()
    }
}

/// A unique key that other tasks want too, with any options.
fn unique(rng: &mut Rng) -> Unique<'static> {
    let on_conflict = *rng.pick(&[OnConflict::Existing, OnConflict::Replace, OnConflict::Reject]);
    let debounced = on_conflict == OnConflict::Replace && rng.chance(500);
    let until = match rng.below(3) {
        0 => Some(UniqueUntil::Start),
        1 if !debounced => Some(UniqueUntil::Done),
        _ => None,
    };
    Unique {
        key: (*rng.pick(&["k1", "k2", "k3"])).into(),
        until,
        window_ms: (!debounced && rng.chance(400)).then(|| rng.between(1, 8_000)),
        on_conflict,
        debounce_ms: debounced.then(|| rng.between(1, 2_000)),
    }
}

pub(crate) fn new_task(rng: &mut Rng) -> NewTask<'static> {
    const PAYLOADS: [&[u8]; 4] = [b"", b"1", b"{\"a\": 1}", b"[1, 2, 3, 4, 5, 6, 7, 8, 9]"];
    let unique = rng.chance(150).then(|| Box::new(unique(rng)));
    let debounced = unique.as_ref().is_some_and(|unique| unique.debounce_ms.is_some());
    let run_at = match rng.below(10) {
        _ if debounced => When::Now,
        0..2 => When::After { ms: rng.below(5_000) },
        2 => When::At(Timestamp(RUN_BEGINS_AT_MS + rng.below(60_000))),
        _ => When::Now,
    };
    let retry = rng.chance(700).then(|| RetryPolicy {
        backoff: Backoff::Exponential {
            delay_ms: rng.between(100, 1_000),
            factor_thousandths: 2_000,
            delay_max_ms: 5_000,
        },
        max_attempts: rng.between(1, 4) as u32,
        jitter_thousandths: 250,
    });
    NewTask {
        task_type: if rng.chance(25) { KILLER } else { "work" },
        body: Body { payload: PAYLOADS[rng.below(4) as usize], ..Body::default() },
        priority: rng.chance(500).then(|| rng.below(10) as u8),
        run_at,
        expires_at: rng
            .chance(60)
            .then(|| Timestamp(RUN_BEGINS_AT_MS + rng.between(1_000, 60_000))),
        retry,
        timeout_ms: rng.chance(100).then(|| rng.between(1_000, 10_000)),
        retention_ms: rng.chance(100).then(|| rng.between(100, 5_000)),
        // One customer has most of the tasks.
        fairness_key: rng.chance(600).then(|| *rng.pick(&["acme", "acme", "acme", "bolt", "coil"])),
        tags: if rng.chance(200) { vec!["sim"] } else { vec![] },
        unique,
        ..NewTask::default()
    }
}
