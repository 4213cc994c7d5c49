//! When checkpoints begin: shards take turns, and checkpoint before the log is too long.

use super::*;

/// A busy shard that is due again waits until every other due shard has begun.
#[test]
fn every_shard_has_its_turn_however_busy_the_others_are() {
    let mut now = crate::clock::real_now();
    let mut checkpoints = [0; 3].map(|_| Checkpoint::new(0, 0));
    let mut begun = Vec::new();
    for _ in 0..6 {
        for checkpoint in &mut checkpoints {
            now += Duration::from_millis(1);
            checkpoint.wanted = true;
            checkpoint.changed(now);
        }
        let since = |number: &usize| checkpoints[*number].due_since(At { now, log: 0 }, true);
        let next = (0..3).filter(|number| since(number).is_some()).min_by_key(since).unwrap();
        begun.push(next);
        checkpoints[next] = Checkpoint::new(0, 0);
    }
    assert_eq!(begun, [0, 1, 2, 0, 1, 2]);
}

/// When the shards that start together are due for the first time, in order.
fn first_dues(step: impl Fn(u64) -> At) -> Vec<u64> {
    let begun = step(0).now;
    let mut checkpoints: Vec<_> = (0..32).map(|id| Checkpoint::apart(ShardId(id), 0, 0)).collect();
    checkpoints.iter_mut().for_each(|checkpoint| checkpoint.changed(begun));
    let since = |checkpoint: &Checkpoint, at| checkpoint.due_since(at, false).is_some();
    let first = |checkpoint| (0..=64).find(|part| since(checkpoint, step(*part)));
    let mut dues: Vec<_> = checkpoints.iter().map(|one| first(one).unwrap()).collect();
    dues.sort_unstable();
    dues
}

/// Shards that start together must not be due at the same moment, every minute and at every purge.
#[test]
fn shards_that_begin_together_are_checkpointed_apart_by_time_and_by_log() {
    let now = crate::clock::real_now();
    let minute = Duration::from_millis(limits::DIRTY_FOR_MS_MAX);
    let by_time = first_dues(|part| At { now: now + minute * part as u32 / 64, log: 0 });
    let by_log = first_dues(|part| At { now, log: LOG_KEPT_BYTES_MAX * part / 64 });
    assert_eq!(by_time, by_log);
    for dues in [by_time, by_log] {
        for (place, due) in dues.iter().enumerate() {
            // One after the other, with about two parts between them.
            let expected = 2 * (place as u64 + 1);
            assert!(due.abs_diff(expected) <= 2, "{dues:?}");
        }
    }
}

/// raft-engine asks for all shards with old entries at once, when its files reach their bound.
#[test]
fn a_changed_shard_is_checkpointed_before_the_log_has_reached_its_bound() {
    let now = crate::clock::real_now();
    for (has_peers, most) in [(false, LOG_KEPT_BYTES_MAX), (true, LOG_KEPT_BYTES_MAX / 2)] {
        let mut checkpoint = Checkpoint::new(7, 100);
        let is_due = |checkpoint: &Checkpoint, log| {
            checkpoint.due_since(At { now, log }, has_peers).is_some()
        };
        assert!(!is_due(&checkpoint, 100 + most), "it has not changed");
        checkpoint.changed(now);
        assert!(!is_due(&checkpoint, 99 + most));
        assert!(is_due(&checkpoint, 100 + most));
        checkpoint.block();
        assert!(!is_due(&checkpoint, 100 + most));
    }
}

#[test]
fn a_checkpoint_that_is_never_written_is_a_failure_and_a_pause_is_none() {
    let mut now = crate::clock::real_now();
    let mut checkpoints = Checkpoints::default();
    for _ in 0..100 {
        now += LOOK_EVERY;
        checkpoints.look(now).unwrap();
    }
    checkpoints.writing = 1;
    now += 10 * WRITING_FOR_MAX;
    checkpoints.look(now).unwrap();
    let looks = std::iter::from_fn(|| {
        now += LOOK_EVERY;
        Some(checkpoints.look(now))
    });
    let failed = looks.take(100).find_map(Result::err).expect("it is a failure");
    assert!(failed.0.contains("not on the disk after 120 s"), "{}", failed.0);
}
