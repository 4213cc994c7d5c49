//! Flows over several shards: how they are submitted, end, fail, are cancelled, retried and
//! forgotten.

mod retries;

use crate::testing::yards::Yards;
use crate::testing::{Yard, new_task, tried};
use crate::*;
use std::collections::BTreeMap;

/// The flow's shard.
const HOME: ShardId = ShardId(1);

type Row<'a> = (&'a str, u16, &'a [(&'a str, OnFailure)]);

use OnFailure::{Fail as F, Ignore as I, Run as R};

fn node<'a>((name, home, depends_on): Row<'a>) -> FlowNode<'a> {
    let depends_on = depends_on.iter().map(|&(name, on_failure)| Dependency { name, on_failure });
    FlowNode {
        name,
        home: ShardId(home),
        enqueue: Enqueue { queue: name, task: tried(1) },
        depends_on: depends_on.collect(),
        on_failure: OnFailure::Fail,
    }
}

fn submission<'a>(rows: &[Row<'a>]) -> SubmitFlow<'a> {
    let nodes = rows.iter().map(|&row| node(row)).collect();
    SubmitFlow { batch_id: None, name: "flow", retention_ms: None, nodes }
}

impl Yards {
    /// Submits a flow whose nodes have queues of their own names; returns its id, and its tasks by
    /// name.
    fn submit<'a>(&mut self, rows: &[Row<'a>]) -> (TaskId, BTreeMap<&'a str, TaskId>) {
        let answer = self.on(HOME).send(Command::SubmitFlow(submission(rows)));
        let Ok(Outcome::FlowSubmitted { flow, tasks, duplicate: false }) = answer else {
            panic!("{answer:?}")
        };
        self.carry();
        (flow, rows.iter().map(|row| row.0).zip(tasks).collect())
    }

    fn ack(&mut self, held: &ClaimedTask, result: Option<&str>) {
        let result = result.map(str::as_bytes);
        let ack = Ack { task: held.id, token: held.token, result, follow_ups: vec![] };
        self.on(held.id.home).send(Command::Ack(ack)).unwrap();
        self.carry();
    }

    fn run(&mut self, task: TaskId, result: &str) -> ClaimedTask {
        let held = self.claim(task);
        self.ack(&held, Some(result));
        held
    }

    fn flow(&self, flow: TaskId) -> FlowView {
        self.yards[&HOME].machine.flow(flow).expect("the flow is kept")
    }

    fn flow_state(&self, flow: TaskId) -> FlowState {
        self.flow(flow).state
    }

    fn send(&mut self, command: Command<'_>) -> Result<Outcome, Rejection> {
        let answer = self.on(HOME).send(command);
        self.carry();
        answer
    }

    /// Compares the states of all tasks on their own shards and in the flow.
    fn check(&self, flow: TaskId, expected: &[(&str, TaskStateName)]) {
        let view = self.flow(flow);
        let found: Vec<(&str, TaskStateName)> =
            view.nodes.iter().map(|node| (node.name.as_str(), self.state(node.task))).collect();
        assert_eq!(found, expected);
        for node in &view.nodes {
            let real = self.state(node.task);
            let same =
                node.state == real || node.state == TaskStateName::Ready && !real.is_finished();
            assert!(same, "{} is {real} and {} in its flow", node.name, node.state);
        }
    }
}

fn told(held: &ClaimedTask) -> Vec<(&str, TaskStateName, Option<&str>)> {
    let text = |bytes: &'_ [u8]| std::str::from_utf8(bytes).unwrap().to_owned();
    let told = held.parents.iter().map(|parent| {
        let result = parent.result.as_deref().map(|bytes| &*text(bytes).leak());
        (&*parent.name, parent.state, result)
    });
    told.collect()
}

use TaskStateName::{
    Blocked, Cancelled, Claimed, Dead, Expired, Failed, Ready, Scheduled, Succeeded,
};

const DIAMOND: &[Row<'static>] =
    &[("a", 1, &[]), ("b", 2, &[("a", F)]), ("c", 3, &[("a", F)]), ("d", 1, &[("b", F), ("c", F)])];

#[test]
fn children_run_after_their_parents_with_their_results() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(DIAMOND);
    yards.check(flow, &[("a", Ready), ("b", Blocked), ("c", Blocked), ("d", Blocked)]);
    assert_eq!(yards.on(ShardId(2)).counts("b").blocked, 1);
    let first = yards.run(tasks["a"], "1");
    assert_eq!((told(&first), &*first.flow.as_ref().unwrap().node), (vec![], "a"));
    yards.check(flow, &[("a", Succeeded), ("b", Ready), ("c", Ready), ("d", Blocked)]);
    let b = yards.run(tasks["b"], "2");
    assert_eq!(told(&b), [("a", Succeeded, Some("1"))]);
    assert_eq!(yards.state(tasks["d"]), Blocked, "it waits for both");
    let home = &yards.yards[&HOME].machine;
    let waits_for = Reason::Parents { flow, node: "d".into() };
    assert_eq!(home.why(tasks["d"], home.now()), Some(vec![waits_for]));
    assert_eq!(home.unfinished_parents(flow, "d", 9), Some((vec!["c".to_owned()], 1)));
    assert_eq!(home.unfinished_parents(flow, "e", 9), None);
    yards.run(tasks["c"], "3");
    let d = yards.run(tasks["d"], "4");
    assert_eq!(told(&d), [("b", Succeeded, Some("2")), ("c", Succeeded, Some("3"))]);
    let view = yards.flow(flow);
    assert_eq!((view.state, view.nodes_done, view.nodes_failed), (FlowState::Succeeded, 4, 0));
    assert_eq!(view.results, [("d".to_owned(), b"4".to_vec())], "of the node without dependents");
    assert!(yards.on(HOME).events().contains(&EventKind::FlowEnded(flow, FlowState::Succeeded)));
}

#[test]
fn a_flow_is_made_whole_or_not_at_all() {
    let mut yards = Yards::new();
    let cyclic: &[Row<'_>] = &[("a", 1, &[("b", F)]), ("b", 2, &[("a", F)])];
    let far: &[Row<'_>] = &[("a", 9, &[])];
    for (rows, text) in
        [(cyclic, "cycle: a -> b -> a"), (far, "node \"a\": shard 9 does not exist")]
    {
        let rejection = yards.send(Command::SubmitFlow(submission(rows))).unwrap_err();
        assert_eq!(rejection.code(), "invalid_argument");
        assert!(rejection.to_string().contains(text), "{rejection}");
    }
    let mut late = submission(DIAMOND);
    late.nodes[2].enqueue.task.expires_at = Some(Timestamp(1));
    let rejection = yards.send(Command::SubmitFlow(late)).unwrap_err();
    assert!(rejection.to_string().starts_with("node \"c\": expires_at 1"), "{rejection}");
    assert!(yards.yards.values().all(|yard| yard.machine.task_count() == 0));
    let page = yards.yards[&HOME].machine.flows(&FlowFilter::default(), None, 10);
    assert_eq!(page.flows, []);
}

#[test]
fn a_repeated_submission_makes_nothing_twice() {
    let mut yards = Yards::new();
    let submit = || SubmitFlow { batch_id: Some(7), ..submission(DIAMOND) };
    let first = yards.send(Command::SubmitFlow(submit())).unwrap();
    let Outcome::FlowSubmitted { flow, tasks, .. } = first else { panic!("{first:?}") };
    let again = yards.send(Command::SubmitFlow(submit()));
    assert_eq!(again, Ok(Outcome::FlowSubmitted { flow, tasks, duplicate: true }));
    assert_eq!(yards.on(ShardId(2)).counts("b").enqueued_total, 1);
}

#[test]
fn a_staged_flow_is_invisible_until_committed() {
    let mut yards = Yards::new();
    let part = |part, rows: &[Row<'static>]| {
        let nodes = rows.iter().map(|&row| node(row)).collect();
        Command::StageFlow(StageFlow { batch_id: 7, part, nodes })
    };
    let commit = |parts| {
        Command::CommitFlow(CommitFlow { batch_id: 7, parts, name: "big", retention_ms: None })
    };
    assert_eq!(yards.send(commit(2)).unwrap_err().code(), "not_found");
    assert!(yards.send(part(1, &DIAMOND[..2])).is_err(), "in order");
    // A part may depend on a later part.
    assert_eq!(yards.send(part(0, &DIAMOND[2..])), Ok(Outcome::Staged));
    assert!(yards.send(commit(2)).is_err());
    assert_eq!(yards.send(commit(1)).unwrap_err().code(), "invalid_argument", "b is missing");
    assert_eq!(yards.send(part(1, &DIAMOND[..2])), Ok(Outcome::Staged));
    assert_eq!(yards.send(part(1, &DIAMOND[..2])), Ok(Outcome::Staged), "sent again");
    let made = yards.send(commit(2)).unwrap();
    let Outcome::FlowSubmitted { flow, ref tasks, .. } = made else { panic!("{made:?}") };
    assert_eq!(tasks.len(), 4);
    assert_eq!(yards.flow(flow).name, "big");
    assert!(matches!(yards.send(commit(2)), Ok(Outcome::FlowSubmitted { duplicate: true, .. })));
    // A staged flow that is never committed expires.
    assert_eq!(
        yards.send(Command::StageFlow(StageFlow { batch_id: 8, part: 0, nodes: vec![] })),
        Ok(Outcome::Staged)
    );
    yards.on(HOME).wait_ms(limits::BATCH_STAGED_FOR_MS);
    let gone = CommitFlow { batch_id: 8, parts: 1, name: "", retention_ms: None };
    assert_eq!(yards.send(Command::CommitFlow(gone)).unwrap_err().code(), "not_found");
}

#[test]
fn a_failed_parent_takes_its_dependents_down_at_once() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(DIAMOND);
    yards.run(tasks["a"], "1");
    yards.fail(tasks["b"]);
    yards.check(flow, &[("a", Succeeded), ("b", Dead), ("c", Ready), ("d", Failed)]);
    assert_eq!(yards.flow_state(flow), FlowState::Running, "c still runs");
    let member = yards.on(HOME).task(tasks["d"]).flow.unwrap();
    assert_eq!(member.failed_parent.as_deref(), Some("b"));
    yards.run(tasks["c"], "3");
    assert_eq!(yards.flow_state(flow), FlowState::Failed);
    let view = yards.flow(flow);
    let errors: Vec<_> = view.nodes.iter().filter_map(|node| node.error.clone()).collect();
    let error = |kind: &str, text: &str| (kind.to_owned(), text.to_owned());
    assert_eq!(errors, [error("io", "no route"), error("parent_failed", "parent b failed")]);
}

#[test]
fn every_bad_end_of_a_parent_counts_as_its_failure() {
    let rows: &[Row<'_>] = &[("a", 2, &[]), ("b", 3, &[("a", F)])];
    type Act = fn(&mut Yards, TaskId);
    let acts: [(Act, bool); 4] = [
        (|yards, task| yards.fail(task), true),
        (|yards, task| drop(yards.on(task.home).cancel(task).unwrap()), true),
        (
            |yards, task| {
                let purge = crate::testing::purge("a");
                yards.on(task.home).send(purge).unwrap();
            },
            false,
        ),
        (
            |yards, task| {
                let settings =
                    QueueSettings { dead_retention_count: Some(0), ..QueueSettings::default() };
                yards.on(task.home).set("a", settings);
                yards.fail(task);
            },
            true,
        ),
    ];
    for (act, is_kept) in acts {
        let mut yards = Yards::new();
        let (flow, tasks) = yards.submit(rows);
        act(&mut yards, tasks["a"]);
        yards.carry();
        assert_eq!(yards.state(tasks["b"]), Failed);
        assert_eq!(yards.flow_state(flow), FlowState::Failed);
        assert_eq!(yards.on(ShardId(2)).machine.task(tasks["a"]).is_some(), is_kept);
    }
}

#[test]
fn an_ignored_failure_does_not_count() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(&[("a", 2, &[]), ("b", 3, &[("a", I)])]);
    yards.fail(tasks["a"]);
    let b = yards.run(tasks["b"], "2");
    assert_eq!(told(&b), [("a", Dead, None)]);
    let error = b.parents[0].error.as_ref().unwrap();
    assert_eq!((&*error.0, &*error.1), ("io", "no route"));
    let view = yards.flow(flow);
    assert_eq!((view.state, view.nodes_failed), (FlowState::Succeeded, 1));
}

#[test]
fn a_dependent_that_runs_anyway_sees_the_error_and_the_flow_fails() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(&[("a", 2, &[]), ("b", 3, &[("a", R)])]);
    yards.fail(tasks["a"]);
    let b = yards.run(tasks["b"], "2");
    let error = b.parents[0].error.as_ref().unwrap();
    assert_eq!((&*error.0, &*error.1), ("io", "no route"));
    assert_eq!(yards.flow_state(flow), FlowState::Failed);
}

#[test]
fn a_delay_counts_from_the_release_and_an_expiry_does_not() {
    let mut yards = Yards::new();
    let mut submit = submission(&[("a", 1, &[]), ("b", 1, &[("a", F)]), ("c", 1, &[("a", I)])]);
    submit.nodes[1].enqueue.task.run_at = When::After { ms: 5_000 };
    submit.nodes[2].enqueue.task.expires_at = Some(Timestamp(testing::START + 60_000));
    let Ok(Outcome::FlowSubmitted { flow, tasks, .. }) = yards.send(Command::SubmitFlow(submit))
    else {
        panic!("it is a flow")
    };
    yards.on(HOME).wait_ms(60_000);
    yards.check(flow, &[("a", Ready), ("b", Blocked), ("c", Expired)]);
    yards.run(tasks[0], "1");
    assert_eq!(yards.state(tasks[1]), Scheduled);
    yards.on(HOME).wait_ms(4_999);
    assert_eq!(yards.state(tasks[1]), Scheduled);
    yards.on(HOME).wait_ms(1);
    assert_eq!(yards.state(tasks[1]), Ready);
    yards.run(tasks[1], "2");
    assert_eq!(yards.flow_state(flow), FlowState::Failed, "c had nobody to excuse it");
}

#[test]
fn a_cancelled_flow_ends_when_its_workers_have_yielded() {
    let mut yards = Yards::new();
    let rows: &[Row<'_>] =
        &[("a", 1, &[]), ("b", 2, &[]), ("c", 3, &[("a", F)]), ("d", 2, &[("c", F), ("b", R)])];
    let (flow, tasks) = yards.submit(rows);
    let a = yards.claim(tasks["a"]);
    let cancel = || Command::CancelFlow(CancelFlow { flow });
    assert_eq!(yards.send(cancel()), Ok(Outcome::FlowState(FlowState::Running)));
    yards.check(flow, &[("a", Claimed), ("b", Cancelled), ("c", Cancelled), ("d", Cancelled)]);
    assert!(yards.flow(flow).cancel_requested);
    let retry = Command::RetryFlow(RetryFlow { flow });
    assert!(yards.send(retry).unwrap_err().to_string().contains("is being cancelled"));
    yards.on(HOME).release(&a).unwrap();
    yards.carry();
    assert_eq!(yards.flow_state(flow), FlowState::Cancelled);
    assert_eq!(yards.send(cancel()), Ok(Outcome::FlowState(FlowState::Cancelled)), "again");
}

#[test]
fn a_cancelled_flow_whose_last_task_succeeded_all_the_same_has_succeeded() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(&[("a", 2, &[])]);
    let a = yards.claim(tasks["a"]);
    yards.send(Command::CancelFlow(CancelFlow { flow })).unwrap();
    yards.ack(&a, None);
    assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
    let again = yards.send(Command::CancelFlow(CancelFlow { flow })).unwrap_err();
    assert_eq!(
        (again.code(), again.to_string()),
        ("already_finished", format!("flow {flow} is already succeeded"))
    );
}

fn add<'a>(flow: TaskId, parent: &'a str, nodes: Vec<FlowNode<'a>>) -> Command<'a> {
    Command::AddFlowTasks(AddFlowTasks { flow, parent, nodes })
}

fn added(answer: Result<Outcome, Rejection>) -> Vec<TaskId> {
    match answer {
        Ok(Outcome::FlowTasksAdded(tasks)) => tasks.iter().map(|task| task.id).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_running_task_adds_tasks_and_counts_as_done_with_them() {
    let mut yards = Yards::new();
    let (flow, tasks) = yards.submit(&[("a", 2, &[]), ("z", 3, &[("a", F)])]);
    let parts = || {
        vec![node(("p1", 1, &[])), node(("p2", 3, &[])), node(("sum", 2, &[("p1", F), ("p2", F)]))]
    };
    let unborn = yards.send(add(flow, "z", parts())).unwrap_err();
    assert_eq!(unborn, Rejection::ClaimLost { task: tasks["z"] });
    let a = yards.claim(tasks["a"]);
    let made = added(yards.send(add(flow, "a", parts())));
    // A retried attempt adds nothing twice, and may add more.
    let mut more = parts();
    more.push(node(("p3", 1, &[])));
    let again = added(yards.send(add(flow, "a", more)));
    assert_eq!(again[..3], made);
    yards.ack(&a, Some("a"));
    yards.check(
        flow,
        &[
            ("a", Succeeded),
            ("z", Blocked),
            ("p1", Ready),
            ("p2", Ready),
            ("sum", Blocked),
            ("p3", Ready),
        ],
    );
    let view = yards.flow(flow);
    assert_eq!((view.nodes_done, view.nodes[0].added_open), (0, 4));
    assert_eq!(view.nodes[2].added_by, Some(0));
    let waits_for = |yards: &Yards, node: &str, limit: usize| {
        let home = &yards.yards[&HOME].machine;
        home.unfinished_parents(flow, node, limit).map(|(names, count)| (names.join(" "), count))
    };
    assert_eq!(waits_for(&yards, "z", 9), Some(("a p1 p2 sum p3".to_owned(), 5)));
    assert_eq!(waits_for(&yards, "z", 2), Some(("a p1".to_owned(), 5)));
    assert_eq!(waits_for(&yards, "sum", 9), Some(("p1 p2".to_owned(), 2)));
    yards.run(made[0], "1");
    assert_eq!(waits_for(&yards, "sum", 9), Some(("p2".to_owned(), 1)));
    yards.run(made[1], "2");
    yards.run(again[3], "3");
    assert_eq!(waits_for(&yards, "z", 9), Some(("a sum".to_owned(), 2)));
    assert_eq!(yards.state(tasks["z"]), Blocked);
    let sum = yards.run(made[2], "sum");
    assert_eq!(told(&sum), [("p1", Succeeded, Some("1")), ("p2", Succeeded, Some("2"))]);
    let z = yards.run(tasks["z"], "z");
    assert_eq!(told(&z), [("a", Succeeded, Some("a"))]);
    assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
    let late = yards.send(add(flow, "a", vec![node(("p4", 1, &[]))])).unwrap_err();
    assert_eq!(late.code(), "already_finished");
    assert_eq!(added(yards.send(add(flow, "a", parts()))), made, "what is known stays known");
}

#[test]
fn added_tasks_fail_their_adder_as_they_say() {
    for (on_failure, state, z) in [
        (F, FlowState::Failed, Failed),
        (I, FlowState::Succeeded, Ready),
        (R, FlowState::Failed, Ready),
    ] {
        let mut yards = Yards::new();
        let (flow, tasks) = yards.submit(&[("a", 2, &[]), ("z", 3, &[("a", F)])]);
        let a = yards.claim(tasks["a"]);
        let part = FlowNode { on_failure, ..node(("p", 1, &[])) };
        let made = added(yards.send(add(flow, "a", vec![part])));
        yards.ack(&a, None);
        yards.fail(made[0]);
        assert_eq!(yards.state(tasks["z"]), z, "{on_failure:?}");
        if z == Ready {
            yards.run(tasks["z"], "z");
        }
        assert_eq!(yards.flow_state(flow), state, "{on_failure:?}");
        if state == FlowState::Failed {
            yards.send(Command::RetryFlow(RetryFlow { flow })).unwrap();
            assert_eq!(yards.flow_state(flow), FlowState::Running);
            yards.run(made[0], "p");
            if z == Failed {
                assert_eq!(yards.state(tasks["z"]), Ready, "it waited again");
                yards.run(tasks["z"], "z");
            }
            assert_eq!(yards.flow_state(flow), FlowState::Succeeded, "{on_failure:?}");
        }
    }
}

#[test]
fn an_added_task_must_not_wait_for_its_adder() {
    let mut yards = Yards::new();
    let rows: &[Row<'_>] =
        &[("other", 1, &[]), ("a", 2, &[]), ("z", 3, &[("a", F)]), ("failed", 1, &[])];
    let (flow, tasks) = yards.submit(rows);
    let a = yards.claim(tasks["a"]);
    yards.fail(tasks["failed"]);
    for (nodes, text) in [
        (vec![node(("p", 1, &[("a", F)]))], "\"p\" depends on \"a\", which waits for it"),
        (vec![node(("p", 1, &[("z", F)]))], "\"p\" depends on \"z\", which waits for it"),
        (vec![node(("z", 1, &[]))], "two nodes of the flow are named \"z\""),
        (vec![node(("p", 1, &[("q", F)]))], "\"q\", which is no node"),
        (vec![node(("p", 1, &[("q", F)])), node(("q", 1, &[("p", F)]))], "cycle: p -> q -> p"),
        (vec![node(("p", 1, &[])); 1_001], "added tasks is 1001; at most 1000"),
    ] {
        let rejection = yards.send(add(flow, "a", nodes)).unwrap_err();
        assert!(rejection.to_string().contains(text), "{rejection}");
    }
    let unknown = yards.send(add(flow, "nobody", vec![node(("p", 1, &[]))])).unwrap_err();
    assert!(unknown.to_string().contains("has no node \"nobody\""), "{unknown}");
    let nodes = vec![
        node(("after", 1, &[("other", F)])),
        node(("doomed", 2, &[("failed", F)])),
        node(("below", 3, &[("doomed", F)])),
        node(("anyway", 3, &[("failed", I)])),
    ];
    let made = added(yards.send(add(flow, "a", nodes)));
    let states: Vec<_> = made.iter().map(|&task| yards.state(task)).collect();
    assert_eq!(states, [Blocked, Failed, Failed, Ready]);
    yards.ack(&a, None);
    assert_eq!(yards.state(tasks["z"]), Blocked);
}

#[test]
fn a_large_result_is_left_with_its_task() {
    let mut yards = Yards::new();
    let (_, tasks) = yards.submit(&[("a", 2, &[]), ("b", 3, &[("a", F)])]);
    let large = "x".repeat(limits::PARENT_RESULT_BYTES_MAX + 1);
    yards.run(tasks["a"], &large);
    let b = yards.claim(tasks["b"]);
    assert_eq!((b.parents[0].omitted, b.parents[0].result.as_deref()), (true, None));
    assert_eq!(b.parents[0].task, tasks["a"]);
    assert_eq!(yards.on(ShardId(2)).task(tasks["a"]).result, Some(large.into_bytes()));
}

#[test]
fn results_beyond_their_bound_in_all_are_left_with_their_tasks() {
    let mut yards = Yards::new();
    let parents = limits::PARENTS_BYTES_MAX / limits::PARENT_RESULT_BYTES_MAX + 1;
    let names: Vec<String> = (0..parents).map(|number| format!("p{number}")).collect();
    let edges: Vec<_> = names.iter().map(|name| (name.as_str(), F)).collect();
    let mut rows: Vec<Row<'_>> = names.iter().map(|name| (name.as_str(), 1, &[][..])).collect();
    rows.push(("all", 1, &edges));
    let (_, tasks) = yards.submit(&rows);
    let result = "x".repeat(limits::PARENT_RESULT_BYTES_MAX);
    for name in &names {
        let held = yards.claim(tasks[name.as_str()]);
        let (task, token) = (held.id, held.token);
        let ack = Ack { task, token, result: Some(result.as_bytes()), follow_ups: vec![] };
        yards.on(HOME).send(Command::Ack(ack)).unwrap();
    }
    let all = yards.claim(tasks["all"]);
    let omitted: Vec<bool> = all.parents.iter().map(|parent| parent.omitted).collect();
    assert_eq!(omitted.iter().filter(|&&omitted| omitted).count(), 1);
    assert!(omitted[parents - 1] && all.parents[parents - 1].result.is_none());
}

/// What lets the last task go must fit into one message to its shard, whatever its parents came to.
#[test]
fn errors_beyond_the_bound_of_all_results_are_left_with_their_tasks() {
    let mut yards = Yards::new();
    let parents = 1 + limits::PARENTS_BYTES_MAX / limits::PARENT_RESULT_BYTES_MAX;
    let names: Vec<String> = (0..parents + 17).map(|number| format!("p{number:02}")).collect();
    let edges: Vec<_> = names.iter().map(|name| (name.as_str(), R)).collect();
    let mut rows: Vec<Row<'_>> = names.iter().map(|name| (name.as_str(), 1, &[][..])).collect();
    rows.push(("all", 2, &edges));
    let (_, tasks) = yards.submit(&rows);
    // The first fails with a few words, the last ones with many. What the others return leaves room
    // for some of those.
    let result = "x".repeat(limits::PARENT_RESULT_BYTES_MAX);
    let many = "x".repeat(limits::PARENT_ERROR_BYTES_MAX);
    for (number, name) in names.iter().enumerate() {
        let held = yards.claim(tasks[name.as_str()]);
        let (task, token) = (held.id, held.token);
        let message = match number {
            0 => Some("no"),
            _ if number >= parents => Some(many.as_str()),
            _ => None,
        };
        let command = match message {
            None => Command::Ack(Ack {
                task,
                token,
                result: Some(result.as_bytes()),
                follow_ups: vec![],
            }),
            Some(message) => {
                let error = TaskError { error_type: "E", message, backtrace: "" };
                Command::Fail(Fail { task, token, error, retry_at: None, retryable: false })
            }
        };
        yards.on(HOME).send(command).unwrap();
    }
    let owed = yards.on(HOME).machine.outgoing(1).remove(0);
    let bound = limits::PARENTS_BYTES_MAX + 64 * names.len();
    assert!(owed.command.len() <= bound, "{} bytes are owed", owed.command.len());
    yards.carry();
    let all = yards.claim(tasks["all"]);
    let is_told = |number: usize| all.parents[number].error.is_some();
    assert!(is_told(0), "there is room for it");
    let told: Vec<usize> = (parents..names.len()).filter(|&number| is_told(number)).collect();
    assert_eq!(told, (parents..parents + 15).collect::<Vec<_>>());
    assert!(all.parents[parents..].iter().all(|parent| parent.state == Dead));
}

#[test]
fn tasks_are_kept_with_their_flow_and_forgotten_with_it() {
    let mut yards = Yards::new();
    let settings = QueueSettings { retention_count: Some(0), ..QueueSettings::default() };
    yards.on(ShardId(2)).set("b", settings);
    let mut submit = submission(DIAMOND);
    submit.retention_ms = Some(1_000);
    submit.nodes[2].enqueue.task.retention_ms = Some(1);
    let answer = yards.send(Command::SubmitFlow(submit));
    let Ok(Outcome::FlowSubmitted { flow, tasks, .. }) = answer else { panic!("{answer:?}") };
    for &task in &tasks[..3] {
        yards.run(task, "x");
    }
    yards.fail(tasks[3]);
    for yard in yards.yards.values_mut() {
        yard.wait_ms(999);
    }
    yards.check(flow, &[("a", Succeeded), ("b", Succeeded), ("c", Succeeded), ("d", Dead)]);
    yards.on(HOME).wait_ms(1);
    yards.carry();
    assert_eq!(yards.on(HOME).machine.flow(flow), None);
    let rejection = yards.send(Command::RetryFlow(RetryFlow { flow })).unwrap_err();
    assert_eq!(rejection.code(), "not_found");
    let kept: Vec<bool> =
        tasks.iter().map(|task| yards.on(task.home).machine.task(*task).is_some()).collect();
    assert_eq!(kept, [false, false, false, true], "a dead letter stays one");
    assert_eq!(yards.on(HOME).task(tasks[3]).flow, None);
    yards.on(HOME).retry(tasks[3]).unwrap();
    yards.run(tasks[3], "x");
}

#[test]
fn a_large_flow_is_forgotten_a_bounded_number_at_a_time() {
    let mut yard = Yard::of_shard(HOME);
    let names: Vec<String> = (0..2_500).map(|number| number.to_string()).collect();
    let nodes = names.iter().map(|name| {
        let enqueue = Enqueue { queue: "q", task: new_task() };
        FlowNode { enqueue, ..node((name, 1, &[])) }
    });
    let nodes = nodes.collect();
    let submit = SubmitFlow { batch_id: None, name: "", retention_ms: Some(0), nodes };
    let answer = yard.send(Command::SubmitFlow(submit));
    let Ok(Outcome::FlowSubmitted { flow, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(yard.counts("q").ready, 2_500);
    yard.send(Command::CancelFlow(CancelFlow { flow })).unwrap();
    assert_eq!(yard.machine.flow(flow).unwrap().state, FlowState::Cancelled);
    let counts: Vec<u32> = (0..4).map(|_| yard.expire()).collect();
    assert_eq!(counts, [1_000, 1_000, 501, 0]);
    assert_eq!((yard.machine.task_count(), yard.machine.next_due()), (0, None));
    assert!(yard.machine.flow(flow).is_none());
}

#[test]
fn a_thousand_children_release_their_callback_once() {
    let mut yards = Yards::new();
    let names: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
    let edges: Vec<_> = names.iter().map(|name| (name.as_str(), F)).collect();
    let mut rows: Vec<Row<'_>> =
        (0..).zip(&names).map(|(at, name)| (name.as_str(), at % 4, &[][..])).collect();
    rows.push(("callback", 3, &edges));
    let (flow, tasks) = yards.submit(&rows);
    // All tasks are claimed, then all end, and only then do messages travel.
    let held: Vec<ClaimedTask> =
        names.iter().map(|name| yards.claim(tasks[name.as_str()])).collect();
    for held in &held {
        let (task, token) = (held.id, held.token);
        let ack = Ack { task, token, result: Some(b"1"), follow_ups: vec![] };
        yards.on(task.home).send(Command::Ack(ack)).unwrap();
    }
    yards.carry();
    let callback = yards.run(tasks["callback"], "done");
    assert_eq!((callback.parents.len(), callback.attempt), (100, 1));
    assert_eq!(yards.on(ShardId(3)).counts("callback").enqueued_total, 1);
    assert_eq!(yards.flow_state(flow), FlowState::Succeeded);
}

#[test]
fn a_chain_longer_than_any_stack_fails_in_one_step() {
    let mut yard = Yard::of_shard(HOME);
    let names: Vec<String> = (0..limits::FLOW_NODES_MAX).map(|n| format!("n{n}")).collect();
    let mut nodes: Vec<FlowNode<'_>> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let enqueue = Enqueue { queue: "q", task: tried(1) };
        let depends_on = names[at.saturating_sub(1)..at].iter();
        let depends_on =
            depends_on.map(|name| Dependency { name, on_failure: OnFailure::Fail }).collect();
        nodes.push(FlowNode { enqueue, depends_on, ..node((name, 1, &[])) });
    }
    let submit = SubmitFlow { batch_id: None, name: "", retention_ms: None, nodes };
    let answer = yard.send(Command::SubmitFlow(submit));
    let Ok(Outcome::FlowSubmitted { flow, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!((yard.counts("q").ready, yard.counts("q").blocked), (1, 9_999));
    let held = yard.claim_one("q");
    yard.fail(&held).unwrap();
    let view = yard.machine.flow(flow).unwrap();
    assert_eq!((view.state, view.nodes_failed), (FlowState::Failed, 10_000));
    yard.send(Command::RetryFlow(RetryFlow { flow })).unwrap();
    assert_eq!((yard.counts("q").ready, yard.counts("q").blocked), (1, 9_999));
}

#[test]
fn flows_are_listed_by_name_and_state_with_a_cursor() {
    let mut yards = Yards::new();
    let (done, tasks) = yards.submit(&[("a", 2, &[])]);
    yards.run(tasks["a"], "1");
    let (open, _) = yards.submit(&[("b", 2, &[])]);
    let list = |filter: FlowFilter, after, limit| {
        let page = yards.yards[&HOME].machine.flows(&filter, after, limit);
        (page.flows.iter().map(|flow| flow.id).collect::<Vec<_>>(), page.next)
    };
    let all = FlowFilter::default;
    assert_eq!(list(all(), None, 10), (vec![done, open], None));
    assert_eq!(list(all(), None, 1), (vec![done], Some(done)));
    assert_eq!(list(all(), Some(done), 1), (vec![open], None));
    let state = Some(FlowState::Running);
    assert_eq!(list(FlowFilter { state, ..all() }, None, 10).0, [open]);
    assert_eq!(list(FlowFilter { name: Some("x".into()), ..all() }, None, 10).0, []);
    assert_eq!(list(FlowFilter { name: Some("flow".into()), ..all() }, None, 10).0, [done, open]);
}

#[test]
fn blocked_tasks_count_against_a_queues_length() {
    let mut yards = Yards::new();
    yards.submit(&[("a", 2, &[]), ("b", 2, &[("a", F)])]);
    let settings = QueueSettings { max_length: Some(1), ..QueueSettings::default() };
    yards.on(ShardId(2)).set("b", settings);
    let full = yards.on(ShardId(2)).enqueue_task("b", new_task()).unwrap_err();
    assert_eq!(full.code(), "queue_full");
}
