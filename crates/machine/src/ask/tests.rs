//! Values between nodes survive their encoding; damaged bytes give an error or a value, no panic.

use super::*;
use crate::draw::Draw;
use crate::testing::drawn::Drawn;
use crate::testing::{SHARD, Yard, new_task};
use crate::wire::{Wire, decode_from_node, encode_for_node};
use crate::{
    CatchUp, Command, Dependency, Enqueue, FlowNode, NewTask, NewestAt, OnFailure, Outcome,
    Overlap, Rejection, Rhythm, ScheduleSpec, SetSchedule, SubmitFlow,
};
use std::fmt::Debug;

const VERSION: u8 = 1;

/// The number of random values of each type.
const ROUNDS: usize = 300;

/// Encodes and decodes a value; then cuts its bytes everywhere, and damages them at random.
fn check<T>(value: &T, draw: &mut Draw)
where
    T: for<'a> Wire<'a> + PartialEq + Debug,
{
    let bytes = encode_for_node(VERSION, value);
    assert_eq!(decode_from_node::<T>(VERSION, &bytes).as_ref(), Ok(value));
    for length in 0..bytes.len() {
        let cut = decode_from_node::<T>(VERSION, &bytes[..length]);
        assert!(cut.is_err(), "cut at {length} of {}: {value:?}", bytes.len());
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(decode_from_node::<T>(VERSION, &longer).is_err(), "bytes left over");
    for _ in 0..30 {
        let mut damaged = bytes.clone();
        for _ in 0..=draw.up_to(2) {
            let at = draw.up_to(bytes.len() as u64 - 1) as usize;
            damaged[at] = match draw.up_to(2) {
                0 => 0xff,
                1 => damaged[at] ^ 1 << draw.up_to(7),
                _ => u8::drawn(draw),
            };
        }
        // A value that was read is written and read again unchanged.
        if let Ok(other) = decode_from_node::<T>(VERSION, &damaged) {
            let again = encode_for_node(VERSION, &other);
            assert_eq!(decode_from_node(VERSION, &again), Ok(other));
        }
    }
}

#[test]
fn every_query_and_answer_survives_and_damage_never_panics() {
    let mut draw = Draw::new(1);
    for _ in 0..ROUNDS {
        for (query, found) in drawn_questions(&mut draw) {
            check(&query, &mut draw);
            check(&found, &mut draw);
        }
    }
}

#[test]
fn every_outcome_survives_and_damage_never_panics() {
    let mut draw = Draw::new(2);
    for _ in 0..ROUNDS * 10 {
        check(&Outcome::drawn(&mut draw), &mut draw);
    }
}

#[test]
fn every_rejection_keeps_its_code_and_words() {
    let mut draw = Draw::new(3);
    for _ in 0..ROUNDS * 10 {
        let rejection = Rejection::drawn(&mut draw);
        check(&rejection, &mut draw);
        let bytes = encode_for_node(VERSION, &rejection);
        let told: Rejection = decode_from_node(VERSION, &bytes).unwrap();
        assert_eq!((told.code(), told.to_string()), (rejection.code(), rejection.to_string()));
        assert_eq!(told.holder(), rejection.holder());
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut draw = Draw::new(4);
    for _ in 0..20_000 {
        let length = draw.up_to(80) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| u8::drawn(&mut draw)).collect();
        bytes.insert(0, VERSION);
        let _ = decode_from_node::<Query>(VERSION, &bytes);
        let _ = decode_from_node::<Found>(VERSION, &bytes);
        let _ = decode_from_node::<Result<Outcome, Rejection>>(VERSION, &bytes);
    }
}

#[test]
fn rejections_without_end_are_an_error() {
    // Tag and index of a batch's element, a million times.
    let mut bytes = vec![VERSION];
    bytes.extend([2, 0].repeat(1_000_000));
    let error = decode_from_node::<Rejection>(VERSION, &bytes).unwrap_err();
    assert!(error.what.contains("nested more than 16 deep"), "{error}");
}

#[test]
fn another_version_is_an_error_that_names_both() {
    let bytes = encode_for_node(9, &Query::from(Now {}));
    let error = decode_from_node::<Query>(VERSION, &bytes).unwrap_err();
    assert!(error.what.starts_with("version 9 instead of 1"), "{error}");
}

/// Asks by value and through bytes; both answers must be equal.
fn check_asked<Q: Ask + Clone>(machine: &Machine, asked: &Q) -> Q::Answer
where
    Q::Answer: PartialEq + Debug,
{
    let bytes = encode_for_node(VERSION, &asked.clone().into());
    let query: Query = decode_from_node(VERSION, &bytes).unwrap();
    let bytes = encode_for_node(VERSION, &machine.ask(&query, machine.now()));
    let found = decode_from_node(VERSION, &bytes).unwrap();
    let answer = asked.ask(machine, machine.now());
    assert_eq!(Q::answer(found).as_ref(), Some(&answer));
    answer
}

#[test]
fn a_query_has_the_same_answer_through_bytes() {
    let mut yard = Yard::new();
    let tagged = NewTask { tags: vec!["vip"], ..new_task() };
    let first = yard.enqueue_task("mail", tagged).unwrap().id;
    let second = yard.enqueue("mail");
    let held = yard.claim_one("mail");
    assert_eq!(held.id, first);
    let machine = &yard.machine;

    let task = check_asked(machine, &Task { task: first }).unwrap();
    assert_eq!(task.claim, check_asked(machine, &Holder { task: first }));
    assert_eq!(task.claim.unwrap().token, held.token);
    assert_eq!(check_asked(machine, &Holder { task: second }), None);
    let tasks = Tasks {
        queue: Some("mail".into()),
        state: None,
        task_type: None,
        error: None,
        tag: Some("vip".into()),
        flow: None,
        after: None,
        limit: 10,
    };
    let page = check_asked(machine, &tasks);
    assert_eq!(page.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [first]);
    let all = check_asked(machine, &Tasks { tag: None, limit: 1, ..tasks });
    assert_eq!((all.tasks.len(), all.next), (1, Some(first)));
    let span = NewestSpan { before: None, since: None, limit: 1, scan: 10 };
    let newest = Newest {
        queue: Some("mail".into()),
        state: None,
        task_type: None,
        error: None,
        tag: None,
        flow: None,
        span,
    };
    let page = check_asked(machine, &newest);
    assert_eq!(page.tasks[0].1.id, second);
    assert_eq!(page.next, Some(NewestAt { at: page.tasks[0].0, task: second }));
    let name = || QueueName::parse("mail").unwrap();
    let queue = check_asked(machine, &Queue { queue: name() }).unwrap();
    let page = check_asked(machine, &Queues { after: None, limit: 1 });
    assert_eq!((page.queues, page.next), (vec![queue], None));
    assert!(check_asked(machine, &QueueSettings { queue: name() }).is_some());
    let why = check_asked(machine, &Why { task: second }).unwrap();
    assert_eq!((why.queue, why.now), (name(), machine.now()));
    assert_eq!(check_asked(machine, &Now {}), machine.now());
    assert_eq!(check_asked(machine, &EnqueueCut {}), machine.enqueue_cut());
    assert!(check_asked(
        machine,
        &Claimable { queues: vec!["none".into(), "mail".into()], types: vec![] }
    ));
    assert!(!check_asked(machine, &Claimable { queues: vec!["none".into()], types: vec![] }));
    let sketches = check_asked(machine, &Sketches { tasks: vec![first, TaskId::from_u128(0)] });
    assert_eq!(sketches[0].as_ref().unwrap().state, TaskStateName::Claimed);
    assert_eq!(sketches[1], None);
    assert!(!check_asked(machine, &SessionHolds { session: SessionId(1) }));
    assert_eq!(check_asked(machine, &Tally { tally: first }), None);
    let links = check_asked(machine, &Links { shards: vec![ShardId(2), ShardId(3)] });
    assert_eq!(links, [LinkView::default(); 2]);
}

#[test]
fn flows_and_schedules_are_shown_over_bytes_too() {
    let mut yard = Yard::new();
    let enqueue = || Enqueue { queue: "mail", task: new_task() };
    let node = |name, depends_on| FlowNode {
        name,
        home: SHARD,
        enqueue: enqueue(),
        depends_on,
        on_failure: OnFailure::Fail,
    };
    let on_first = Dependency { name: "first", on_failure: OnFailure::Run };
    let nodes = vec![node("first", vec![]), node("second", vec![on_first])];
    let submit = SubmitFlow { batch_id: None, name: "report", retention_ms: None, nodes };
    let submitted = yard.send(Command::SubmitFlow(submit)).unwrap();
    let Outcome::FlowSubmitted { flow, tasks, .. } = submitted else { panic!("{submitted:?}") };
    let spec = ScheduleSpec {
        rhythm: Rhythm::Every { ms: 60_000 },
        home: SHARD,
        enqueue: enqueue(),
        overlap: Overlap::Skip,
        catch_up: CatchUp::Last,
        catch_up_window_ms: 0,
        jitter_ms: 0,
        start_at: None,
        end_at: None,
        remaining_runs: None,
    };
    let next_run_at = yard.now().plus_ms(1);
    let set = SetSchedule { name: "nightly", spec: spec.clone(), from: Timestamp(0), next_run_at };
    yard.send(Command::SetSchedule(set)).unwrap();
    let machine = &yard.machine;

    let whole = check_asked(machine, &Flow { flow, with_nodes: true }).unwrap();
    assert_eq!(whole.nodes[1].depends_on, [(0, OnFailure::Run)]);
    let summary = check_asked(machine, &Flow { flow, with_nodes: false }).unwrap();
    assert_eq!((summary.nodes_total, summary.nodes.len()), (2, 0));
    let filter = FlowFilter { name: Some("report".into()), state: None };
    let page = check_asked(machine, &Flows { filter, after: None, limit: 10 });
    assert_eq!(page.flows, [summary]);
    let of_node = check_asked(machine, &TaskOfNode { flow, node: "second".into() });
    assert_eq!(of_node, Some(tasks[1]));
    let parents = UnfinishedParents { flow, node: "second".into(), limit: 10 };
    assert_eq!(check_asked(machine, &parents), Some((vec!["first".into()], 1)));
    let schedule = check_asked(machine, &Schedule { name: "nightly".into() }).unwrap();
    assert_eq!(schedule.spec(), spec);
    let page = check_asked(machine, &Schedules { after: None, limit: 10 });
    assert_eq!((page.schedules, page.next), (vec![schedule], None));
}

#[test]
fn every_query_is_answered() {
    let mut yard = Yard::new();
    for queue in 0..20 {
        yard.enqueue(&format!("queue-{queue}"));
    }
    let mut draw = Draw::new(5);
    for _ in 0..ROUNDS {
        for (query, _) in drawn_questions(&mut draw) {
            yard.machine.ask(&query, yard.now());
        }
    }
    assert!(!Claimable { queues: vec![], types: vec![] }.ask(&yard.machine, yard.now()));
}

#[test]
fn an_answer_to_another_query_is_none() {
    let yard = Yard::new();
    let found = yard.machine.ask(&Now {}.into(), yard.now());
    assert_eq!(EnqueueCut::answer(found.clone()), None);
    assert_eq!(Now::answer(found), Some(yard.now()));
}
