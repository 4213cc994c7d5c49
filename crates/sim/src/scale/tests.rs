//! A small run of the same code, whose results can be wrong only where those of a large run can.

use super::params::{ELECTION_TICKS, MILLI, TICK};
use super::traffic::Kind;
use super::*;
use outages::Cause;

fn params() -> Params {
    Params {
        seed: 1,
        nodes: 5,
        shards: 20,
        workers: 200,
        zones: 5,
        seconds: 5,
        tasks_per_second: 200,
        payload_bytes: 1_024,
        run_ms: 100,
        in_zone_us: 250,
        across_us: 1_000,
        sync_us: 500,
        cpu_ns_per_input: 5_000,
        cpu_ns_per_tick: 200,
        named: Named::All,
        kills: 0,
        victim: Victim::Node,
        down_ms: 3_000,
    }
}

fn check(params: &Params) -> Report {
    let (report, _) = run(params);
    assert_eq!(report.outages_open, 0, "every group leads and writes again");
    report
}

/// If votes are not split, an election takes at most two timeouts of silence.
fn election_ms_max() -> f64 {
    (2 * ELECTION_TICKS as u64 * TICK / MILLI) as f64
}

#[test]
fn a_cluster_at_rest_sends_at_its_heartbeat_rate() {
    let report = check(&Params { tasks_per_second: 0, ..params() });
    // Twenty shards with two followers each, and the control group with four, ten times a second.
    let heartbeats = report.kinds[&Kind::Heartbeat].messages.mean;
    assert!((heartbeats - 440.0 / 5.0).abs() < 1.0, "{heartbeats} heartbeats per node and second");
    let answers = report.kinds[&Kind::HeartbeatAnswer].messages.mean;
    assert!((answers - heartbeats).abs() < 1.0, "{answers} answers to {heartbeats}");
    assert!(!report.kinds.contains_key(&Kind::Append), "nothing is written at rest");
    assert!(!report.kinds.contains_key(&Kind::Election), "leaders stay");
    assert_eq!(report.loops.syncs.max, 0.0);
    assert_eq!(report.tasks.parked, 200, "every worker's claim is parked once");
}

#[test]
fn every_task_is_acked_and_takes_its_entries() {
    let report = check(&params());
    let (enqueued, acked) = (report.tasks.enqueued_per_second, report.tasks.acked_per_second);
    assert!((150.0..250.0).contains(&enqueued), "{enqueued} enqueued per second");
    assert!((acked - enqueued).abs() < 20.0, "{acked} of {enqueued} acked per second");
    // An enqueue, a claim and an ack, each on three replicas; some share an entry.
    let entries = report.loops.entries.mean * 5.0;
    assert!((6.0..=9.5).contains(&(entries / enqueued)), "{entries} entries for {enqueued} tasks");
    let answered = report.tasks.enqueue_ms.expect("enqueues were answered");
    assert!(answered.min > 1.0 && answered.p99 < 20.0, "{answered:?}");
    assert_eq!(report.tasks.unknown, 0);
}

#[test]
fn shards_of_a_killed_node_are_led_and_written_again_in_time() {
    let report = check(&Params { kills: 1, ..params() });
    let failover = report.outages[&Cause::Kill];
    assert_eq!(failover.to_leader_ms.count, 4, "it led a fifth of the shards");
    let (leader, write) = (failover.to_leader_ms, failover.to_write_ms);
    // The last heartbeat left up to two ticks before the node died.
    assert!(leader.min > election_ms_max() / 2.0 - 150.0, "{leader:?}");
    assert!(leader.max < election_ms_max() + 100.0, "{leader:?}");
    assert!(write.max < leader.max + 20.0, "{write:?} after {leader:?}");
    let handover = report.outages[&Cause::Handover];
    assert!(handover.to_write_ms.max < 100.0, "{handover:?}");
    let (enqueued, acked) = (report.tasks.enqueued_per_second, report.tasks.acked_per_second);
    assert!((acked - enqueued).abs() < 20.0, "work went on: {acked} of {enqueued} acked");
}

#[test]
fn the_control_group_and_a_zone_fail_over() {
    let at_rest = || Params { tasks_per_second: 0, kills: 1, ..params() };
    let report = check(&Params { victim: Victim::ControlLeader, ..at_rest() });
    let failover = report.outages[&Cause::ControlKill];
    assert!(failover.to_write_ms.max < election_ms_max() + 100.0, "{failover:?}");
    let report = check(&Params { nodes: 6, zones: 3, victim: Victim::Zone, ..at_rest() });
    let failover = report.outages[&Cause::Kill];
    assert!(failover.to_leader_ms.count > 4, "two nodes led more than one does: {failover:?}");
}

#[test]
fn gateways_that_name_only_concerned_sessions_send_less() {
    let alive = |named| check(&Params { named, ..params() }).kinds[&Kind::Alive].bytes.mean;
    let (all, concerned) = (alive(Named::All), alive(Named::Concerned));
    assert!(concerned < all * 0.6, "{concerned} of {all} bytes");
}

#[test]
fn equal_seeds_give_equal_reports() {
    let kills = Params { kills: 1, ..params() };
    assert_eq!(check(&kills), check(&kills));
    assert_ne!(check(&kills).events, check(&Params { seed: 2, ..kills }).events);
}

#[test]
fn impossible_parameters_are_rejected() {
    for (params, word) in [
        (Params { nodes: 4, ..params() }, "zones"),
        (Params { kills: 2, victim: Victim::Zone, ..params() }, "for good"),
        (Params { kills: 1, tasks_per_second: 100_000, ..params() }, "lower --rate"),
    ] {
        let what = params.check().unwrap_err();
        assert!(what.contains(word), "{what}");
    }
}
