//! Flows that run again: which nodes are retried, which wait, and which stay.

use super::*;

#[test]
fn a_retried_flow_goes_on_from_what_failed() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(DIAMOND);
    yards.run(tasks["a"], "1");
    yards.fail(tasks["b"]);
    yards.run(tasks["c"], "3");
    assert_eq!(yards.flow_state(flow), FlowState::Failed);
    let retry = || Command::RetryFlow(RetryFlow { flow });
    assert_eq!(yards.send(retry()), Ok(Outcome::FlowState(FlowState::Running)));
    yards.check(flow, &[("a", Succeeded), ("b", Ready), ("c", Succeeded), ("d", Blocked)]);
    yards.run(tasks["b"], "two");
    let d = yards.run(tasks["d"], "4");
    assert_eq!(told(&d), [("b", Succeeded, Some("two")), ("c", Succeeded, Some("3"))]);
    assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
    let late = yards.send(retry()).unwrap_err();
    assert_eq!(
        late.to_string(),
        format!("flow {flow} is succeeded; submit it again to run it once more")
    );
}

#[test]
fn a_dependent_that_ran_anyway_and_succeeded_stays_when_its_flow_is_retried() {
    for policy in [R, I] {
        let mut yards = Yards::new();
        let rows: &[Row<'_>] = &[("a", 2, &[]), ("b", 3, &[("a", policy)]), ("c", 1, &[("a", F)])];
        let (flow, tasks) = yards.submit(rows);
        yards.fail(tasks["a"]);
        yards.run(tasks["b"], "2");
        yards.check(flow, &[("a", Dead), ("b", Succeeded), ("c", Failed)]);
        yards.send(Command::RetryFlow(RetryFlow { flow })).unwrap();
        yards.check(flow, &[("a", Ready), ("b", Succeeded), ("c", Blocked)]);
        yards.run(tasks["a"], "1");
        yards.run(tasks["c"], "3");
        assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
    }
}

#[test]
fn a_dependent_that_ran_anyway_and_failed_waits_for_its_parents_when_its_flow_is_retried() {
    for policy in [R, I] {
        let mut yards = Yards::new();
        // Between the two nodes that failed by themselves is one that failed because of the first.
        let rows: &[Row<'_>] = &[
            ("d", 2, &[("c", F)]),
            ("c", 3, &[("b", policy), ("a", policy)]),
            ("b", 1, &[("a", F)]),
            ("a", 2, &[]),
        ];
        let (flow, tasks) = yards.submit(rows);
        yards.fail(tasks["a"]);
        yards.fail(tasks["c"]);
        yards.check(flow, &[("d", Failed), ("c", Dead), ("b", Failed), ("a", Dead)]);
        yards.send(Command::RetryFlow(RetryFlow { flow })).unwrap();
        yards.check(flow, &[("d", Blocked), ("c", Blocked), ("b", Blocked), ("a", Ready)]);
        yards.run(tasks["a"], "1");
        yards.run(tasks["b"], "2");
        let c = yards.run(tasks["c"], "3");
        let parents = [("b", Succeeded, Some("2")), ("a", Succeeded, Some("1"))];
        assert_eq!(told(&c), parents, "of this run");
        yards.run(tasks["d"], "4");
        assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
    }
}

/// The child comes before its parent in the flow, and neither was released.
#[test]
fn a_cancelled_flow_can_be_taken_up_again() {
    for policy in [F, R, I] {
        let mut yards = Yards::new();
        let rows: &[Row<'_>] = &[("d", 1, &[("c", policy)]), ("c", 3, &[("a", F)]), ("a", 2, &[])];
        let (flow, tasks) = yards.submit(rows);
        yards.run(tasks["a"], "1");
        yards.send(Command::CancelFlow(CancelFlow { flow })).unwrap();
        yards.check(flow, &[("d", Cancelled), ("c", Cancelled), ("a", Succeeded)]);
        assert_eq!(yards.flow_state(flow), FlowState::Cancelled);
        yards.send(Command::RetryFlow(RetryFlow { flow })).unwrap();
        yards.check(flow, &[("d", Blocked), ("c", Ready), ("a", Succeeded)]);
        yards.run(tasks["c"], "2");
        yards.run(tasks["d"], "3");
        assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
    }
}

#[test]
fn a_task_that_is_retried_by_hand_takes_its_flow_along() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(DIAMOND);
    yards.run(tasks["a"], "1");
    yards.fail(tasks["b"]);
    yards.fail(tasks["c"]);
    let unfit = yards.on(HOME).retry(tasks["d"]).unwrap_err();
    assert!(unfit.to_string().contains("retry its flow"), "{unfit}");
    yards.on(ShardId(2)).retry(tasks["b"]).unwrap();
    yards.carry();
    yards.check(flow, &[("a", Succeeded), ("b", Ready), ("c", Dead), ("d", Failed)]);
    assert_eq!(yards.flow_state(flow), FlowState::Running);
    let dead =
        DeadCommand { action: DeadAction::Retry, selection: Selection::Ids(vec![tasks["c"]]) };
    yards.on(ShardId(3)).send(Command::Dead(dead)).unwrap();
    yards.carry();
    yards.check(flow, &[("a", Succeeded), ("b", Ready), ("c", Ready), ("d", Blocked)]);
    let blocked = yards.on(HOME).retry(tasks["d"]).unwrap_err();
    assert!(blocked.to_string().contains("runs when its parents have ended"), "{blocked}");
    for name in ["b", "c", "d"] {
        yards.run(tasks[name], "x");
    }
    assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
}

#[test]
fn a_discarded_task_can_not_be_retried_and_the_flow_says_so() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(&[("a", 2, &[]), ("b", 3, &[("a", F)])]);
    yards.fail(tasks["a"]);
    let dead =
        DeadCommand { action: DeadAction::Discard, selection: Selection::Ids(vec![tasks["a"]]) };
    yards.on(ShardId(2)).send(Command::Dead(dead)).unwrap();
    yards.send(Command::RetryFlow(RetryFlow { flow })).unwrap();
    assert_eq!(yards.flow_state(flow), FlowState::Failed, "it failed again");
    assert_eq!(yards.state(tasks["b"]), Failed);
}

#[test]
fn what_crosses_with_a_retry_is_known_as_old() {
    let mut yards = Yards::new();
    let rows: &[Row<'_>] = &[("a", 1, &[]), ("b", 2, &[("a", F)])];
    let (flow, tasks) = yards.submit(rows);
    // The flow fails and is retried before shard 2 receives either message.
    let held = yards.claim(tasks["a"]);
    yards.on(HOME).fail(&held).unwrap();
    assert_eq!(yards.flow_state(flow), FlowState::Failed);
    yards.on(HOME).send(Command::RetryFlow(RetryFlow { flow })).unwrap();
    yards.carry();
    yards.check(flow, &[("a", Ready), ("b", Blocked)]);
    yards.run(tasks["a"], "1");
    yards.run(tasks["b"], "2");
    assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
}

#[test]
fn a_task_cancelled_while_its_release_is_on_its_way_is_retried_with_its_parents_results() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(&[("a", 2, &[]), ("b", 3, &[("a", F)])]);
    let held = yards.claim(tasks["a"]);
    let ack = Ack { task: held.id, token: held.token, result: Some(b"1"), follow_ups: vec![] };
    yards.on(ShardId(2)).send(Command::Ack(ack)).unwrap();
    // The flow releases b, but b is cancelled before the message arrives.
    let told = yards.on(ShardId(2)).machine.outgoing(1).remove(0);
    let deliver = told.deliver(ShardId(2), told.stored_at);
    yards.on(HOME).send(Command::Deliver(deliver)).unwrap();
    yards.on(ShardId(3)).cancel(tasks["b"]).unwrap();
    yards.carry();
    assert_eq!(yards.flow_state(flow), FlowState::Failed);
    yards.send(Command::RetryFlow(RetryFlow { flow })).unwrap();
    let held = yards.claim(tasks["b"]);
    let results: Vec<Option<&[u8]>> =
        held.parents.iter().map(|parent| parent.result.as_deref()).collect();
    assert_eq!(results, [Some(&b"1"[..])]);
}
