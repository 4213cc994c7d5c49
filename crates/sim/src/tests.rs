//! Whole runs: a few seeds of each shape, repetitions, and deliberate bugs.
//!
//! A seed that found something gets a test of its own here, named after the finding.

use crate::cluster::{Failure, Options, Report, run};
use crate::sabotage::Sabotage;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn options(seed: u64) -> Options {
    Options {
        seed,
        steps: 6_000,
        nodes: 3,
        churn: true,
        shards: 2,
        faults: true,
        verbose: false,
        sabotage: Sabotage::None,
        blind: false,
    }
}

fn check(options: &Options) -> Report {
    run(options).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Runs these seeds until one run has the wanted property, because the property of a seed changes
/// with every new random draw.
fn check_until(
    seeds: RangeInclusive<u64>,
    shape: impl Fn(u64) -> Options,
    wanted: impl Fn(&Report) -> bool,
) -> Report {
    let reports = seeds.clone().map(|seed| check(&shape(seed)));
    reports
        .into_iter()
        .find(wanted)
        .unwrap_or_else(|| panic!("no run of {seeds:?} has the wanted property"))
}

/// The finding of a run with a bug: a violation, or a replica that stopped rather than diverge.
fn found(options: &Options) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| run(options))) {
        Ok(Ok(_)) => None,
        Ok(Err(Failure { what, .. })) => Some(what),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Some(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))?)
        }
    }
}

/// Each of these seeds must find the bug, with one of these words.
fn check_found(sabotage: Sabotage, words: &[&str]) {
    for seed in 1..=3 {
        let what = found(&Options { sabotage, churn: false, ..options(seed) });
        let what = what.unwrap_or_else(|| panic!("seed {seed} did not find {sabotage:?}"));
        assert!(
            words.iter().any(|word| what.contains(word)),
            "seed {seed} found something else: {what}"
        );
    }
}

/// At least one of these seeds must find the bug, with these words.
fn check_found_by(seeds: RangeInclusive<u64>, sabotage: Sabotage, words: &str) {
    let run = |seed| found(&Options { sabotage, nodes: 4, steps: 12_000, ..options(seed) });
    let what =
        seeds.into_iter().find_map(run).unwrap_or_else(|| panic!("nobody found {sabotage:?}"));
    assert!(what.contains(words), "{sabotage:?} found something else: {what}");
}

#[test]
fn promises_hold_under_faults() {
    let reports: Vec<Report> = (1..=3).map(|seed| check(&options(seed))).collect();
    for report in &reports {
        assert!(report.tasks > 20 && report.claims > 10, "{report:?}");
    }
    assert!(reports.iter().filter(|report| report.crashes > 0).count() >= 2, "{reports:?}");
}

#[test]
fn promises_hold_on_one_node_that_crashes() {
    for seed in 1..=3 {
        let report = check(&Options { nodes: 1, churn: false, ..options(seed) });
        assert!(report.crashes > 0 && report.checkpoints > 0, "{report:?}");
    }
}

#[test]
fn promises_hold_on_five_nodes_and_many_shards() {
    check(&Options { nodes: 5, shards: 4, ..options(11) });
}

/// Nodes join, are drained, removed and lost, and the replication changes, all under faults.
#[test]
fn promises_hold_while_nodes_come_and_go() {
    for (nodes, first) in [(3, 4), (5, 6), (7, 3)] {
        let shape = |seed| Options { nodes, steps: 20_000, ..options(seed) };
        let is_busy = |report: &Report| {
            report.changes >= 10 && report.snapshots > 0 && report.removed > 0 && report.rules > 2
        };
        check_until(first..=first + 5, shape, is_busy);
    }
}

/// The same runs, until a disk was lost for good, and until a node was given up.
#[test]
fn promises_hold_when_nodes_are_lost_or_given_up() {
    let shape = |seed| Options { steps: 20_000, ..options(seed) };
    check_until(20..=30, shape, |report| report.losses > 0);
    check_until(40..=50, shape, |report| report.given_up > 0);
}

/// A node's replica of the control group was removed from the map although the node stayed: it got
/// another replica, of which it never heard.
#[test]
fn a_node_that_is_put_back_into_use_while_it_leaves_has_the_map() {
    check(&Options { nodes: 7, steps: 20_000, ..options(12) });
}

/// No node was left for the replicas of a given-up node, except a draining one or the given-up node
/// itself, back by mistake. The plan waits for another node, and the simulated operator did not add
/// one.
/// The order is decided seconds after it was sent: until then no other disk is lost.
#[test]
fn no_other_disk_is_lost_before_a_late_order_to_give_up_is_decided() {
    check(&Options { steps: 20_000, ..options(8) });
}

#[test]
fn a_given_up_node_is_removed_once_another_can_take_its_replicas() {
    for first in [86, 93, 108] {
        let shape = |seed| Options { steps: 20_000, ..options(seed) };
        check_until(first..=first + 10, shape, |report| report.given_up > 0);
    }
}

/// A node that was late created a replica and removed it again in one turn, and the simulator saw
/// the two the other way round.
#[test]
fn a_replica_that_is_placed_and_taken_away_in_one_turn_does_not_come_back() {
    check(&Options { steps: 20_000, ..options(147) });
}

/// The planner asked a node, which did not lead any more, to hand over to a replica that had been
/// removed since. The node passed that on in the replica's name.
#[test]
fn a_request_for_a_removed_replica_to_lead_is_no_word_of_that_replica() {
    check(&Options { steps: 20_000, ..options(267) });
}

/// A node stood still with another one's request to join, and passed it on after that one had
/// joined elsewhere and had been removed: the map named a node that never comes, and nobody removed
/// it.
#[test]
fn a_node_whose_request_to_join_outlives_it_is_removed_again() {
    check(&Options { steps: 20_000, ..options(399) });
}

/// A schedule waited for ever for its last run, behind more urgent runs of another schedule that
/// used up the rate of their queue.
#[test]
fn less_urgent_runs_start_once_limits_are_lifted() {
    check(&Options { steps: 20_000, ..options(112) });
}

/// A given-up node that was alive kept leading a shard, and no other node could reach it to change
/// that. Real nodes no longer listen to such a node.
#[test]
fn a_node_that_was_given_up_and_is_alive_leads_nothing_for_long() {
    let shape = |seed| Options { nodes: 5, steps: 20_000, ..options(seed) };
    check_until(90..=100, shape, |report| report.given_up > 0);
}

/// A flow names its tasks before they exist on their shards; a read in between was taken for a lost
/// task.
#[test]
fn a_task_of_a_flow_may_be_read_before_it_is_there() {
    check(&Options { nodes: 7, steps: 8_000, ..options(16) });
}

/// A node that wants to join must not depend on the nodes that were there before it.
#[test]
fn a_node_joins_where_all_earlier_ones_are_gone() {
    check(&Options { nodes: 1, steps: 15_000, ..options(4) });
}

#[test]
fn a_cluster_comes_together_and_changes_without_faults() {
    let report = check(&Options { faults: false, nodes: 5, steps: 20_000, ..options(3) });
    assert!(report.crashes == 0 && report.nodes > 5 && report.changes > 10, "{report:?}");
}

#[test]
fn without_faults_all_goes_well() {
    let report = check(&Options { faults: false, ..options(5) });
    assert_eq!(report.crashes, 0);
    assert!(report.tasks > 100, "{report:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let first = check(&options(7));
    assert_eq!(first, check(&options(7)));
    assert_ne!(first.trace, check(&options(8)).trace);
}

#[test]
fn every_kind_of_fact_about_a_task_occurs() {
    let long = |seed| check(&Options { steps: 12_000, churn: false, ..options(seed) });
    let reports: Vec<Report> = (1..=24).map(long).collect();
    for what in [
        "enqueued",
        "duplicate",
        "replaced",
        "not_unique",
        "claimed",
        "progressed",
        "succeeded",
        "retrying",
        "snoozed",
        "lost",
        "attempts spent",
        "not retryable",
        "its workers died",
        "expired",
        "cancelled",
        "removed",
        "paused",
        "queue_not_empty",
        "opened",
        "session ended",
        "flow submitted",
        "blocked again",
        "flow ended",
        "schedule set",
        "schedule set again",
        "schedule changed",
        "schedule paused",
        "schedule resumed",
        "schedule triggered",
        "schedule backfilled",
        "schedule removed",
        "schedule fired",
        "schedule skipped",
        "schedule missed",
        "waiting occurrence fired",
        "stale fire",
        "run ended elsewhere",
        "outgoing",
        "taken",
        "claim_lost",
        "already_finished",
        "conflict",
        "invalid_argument",
        "queue_full",
    ] {
        assert!(
            reports.iter().any(|report| report.seen.contains_key(what)),
            "no {what}: {reports:#?}"
        );
    }
    assert!(reports.iter().map(|report| report.snapshots).sum::<u64>() > 0, "{reports:?}");
    assert!(reports.iter().all(|report| report.checkpoints > 0), "{reports:?}");
}

#[test]
fn answers_before_the_sync_are_found() {
    check_found(Sabotage::AnswerBeforeSync, &["disks hold it"]);
}

#[test]
fn lying_disks_are_found() {
    check_found(Sabotage::LyingDisks, &["disks hold it"]);
}

/// Without a check of the disks, the findings are: an acknowledged task is gone, a committed entry
/// changed, or a replica saw that its own log lost something.
#[test]
fn lost_writes_are_found_by_their_effects() {
    for sabotage in [Sabotage::LyingDisks, Sabotage::AnswerBeforeSync] {
        let findings: Vec<Option<String>> = (1..=4)
            .map(|seed| {
                found(&Options {
                    sabotage,
                    blind: true,
                    churn: false,
                    steps: 12_000,
                    ..options(seed)
                })
            })
            .collect();
        assert!(findings.iter().filter(|what| what.is_some()).count() >= 2, "{findings:#?}");
    }
}

#[test]
fn a_replica_that_misses_entries_is_found() {
    check_found(
        Sabotage::DeafReplica,
        &["decided differently", "one outcome per command", "states differ"],
    );
}

/// The oracle does not check states, so that the replicas must find the differing one themselves,
/// even if it leads. Only that replica stops; it is replaced, and everything heals.
#[test]
fn a_silently_diverged_replica_stops_and_no_other() {
    for seed in 1..=6 {
        let sabotage = Sabotage::SecretQueue;
        let report = check(&Options { sabotage, churn: false, ..options(seed) });
        assert_eq!(report.stopped, 1, "seed {seed}: {report:?}");
    }
}

/// Clients may see these bugs before the other replicas do, so that not every seed runs to its end.
#[test]
fn a_replica_that_misses_or_miscounts_something_is_found_by_the_others() {
    for sabotage in [Sabotage::MissedTerm, Sabotage::OneKeptMore] {
        let runs = (2..=6).map(|seed| run(&Options { sabotage, churn: false, ..options(seed) }));
        let count = runs.filter(|run| run.as_ref().is_ok_and(|it| it.stopped == 1)).count();
        assert!(count >= 2, "{sabotage:?} was found by {count} seeds");
    }
}

#[test]
fn a_checkpoint_that_lost_a_record_is_found() {
    check_found(
        Sabotage::ForgetfulCheckpoint,
        &["can't open shard", "can't be read", "differ", "is not the state"],
    );
}

/// A claim beyond a limit needs a limit that is set and reached, which not every seed has.
#[test]
fn claims_beyond_a_limit_are_found() {
    for (sabotage, words) in [
        (Sabotage::OneClaimMore, "of queue"),
        (Sabotage::OneClaimMorePerKey, "of key"),
        (Sabotage::QueueRateIgnored, "without a token of queue"),
        (Sabotage::KeyRateIgnored, "without a token of key"),
    ] {
        let run = |seed| found(&Options { sabotage, steps: 12_000, churn: false, ..options(seed) });
        let what = (1..=64).find_map(run).unwrap_or_else(|| panic!("nobody found {sabotage:?}"));
        assert!(what.contains(words), "{sabotage:?} found something else: {what}");
    }
}

#[test]
fn a_replica_id_that_is_used_again_is_found() {
    check_found_by(1..=6, Sabotage::ReplicaIdsReused, "was removed and comes back");
}

#[test]
fn rules_that_are_raised_before_all_know_them_are_found() {
    check_found_by(1..=3, Sabotage::RulesTooEarly, "it follows rules");
}

#[test]
fn a_voter_without_a_state_is_found() {
    check_found_by(2..=4, Sabotage::NobodyLags, "votes and has no state");
}

#[test]
fn a_failure_prints_the_command_that_repeats_it() {
    let options = Options { sabotage: Sabotage::LyingDisks, ..options(1) };
    let failure = run(&options).expect_err("lying disks are found");
    let text = failure.to_string();
    let command = "cargo run -p taskyard-sim -- --seed 1 --steps 6000 --nodes 3 --churn on --shards 2 --faults on";
    assert!(text.contains(command), "{text}");
    assert!(text.starts_with("seed 1 failed at step "), "{text}");
}
