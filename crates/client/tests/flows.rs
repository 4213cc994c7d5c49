//! Flows through the SDK, against the real broker: each shape, parents as handlers see them, added
//! tasks, failures, cancel and retry.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use taskyard::{
    Error, Fail, Flow, NewTask, RetryPolicy, State, Task, TaskContext, TaskState, WorkerBuilder,
    flow::{Batch, FlowDetails, FlowState, IntoFlow, OnFailure, chain, chord, group},
    testing::{TestBroker, TestWorker},
};

/// Longer than any wait of these tests, unless something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct Square(u64);

impl Task for Square {
    const NAME: &'static str = "square";
    const QUEUE: &'static str = "math";
    type Output = u64;
}

/// Adds up the results of its parents.
#[derive(Serialize, Deserialize)]
struct Sum;

impl Task for Sum {
    const NAME: &'static str = "sum";
    const QUEUE: &'static str = "sums";
    type Output = u64;
}

async fn square(Square(number): Square) -> Result<u64, Fail> {
    Ok(number * number)
}

async fn sum(_: Sum, context: TaskContext) -> Result<u64, Fail> {
    Ok(context.parent_results::<u64>().await?.into_iter().sum())
}

/// The steps of the handlers, in order.
type Diary = Arc<Mutex<Vec<String>>>;

/// Records its payload and the results of its parents.
async fn note(
    text: String,
    context: TaskContext,
    State(diary): State<Diary>,
) -> Result<String, Fail> {
    let mut line = text.clone();
    for parent in context.parents() {
        let told = match parent.error() {
            Some(error) => format!("{} {error}", parent.state()),
            None => parent.result::<Value>().await?.to_string(),
        };
        line += &format!("; {}: {told}", parent.name());
    }
    diary.lock().unwrap().push(line);
    Ok(text)
}

async fn refuse() -> Result<(), Fail> {
    Err(Fail::permanent("no way").kind("refused"))
}

struct Yard {
    broker: TestBroker,
    diary: Diary,
    _worker: TestWorker,
}

impl Yard {
    async fn start() -> Yard {
        Yard::with(|worker| worker).await
    }

    /// A broker and a worker with the handlers above and more.
    async fn with(more: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Yard {
        let broker = TestBroker::start().await.unwrap();
        let diary = Diary::default();
        let worker = broker.worker().concurrency(16).state(Arc::clone(&diary));
        let worker = worker.task(square).task(sum).handler("note", note);
        let worker = worker.handler("refuse", refuse);
        let worker = worker.queue("default").queue("math").queue("sums");
        let _worker = broker.run(more(worker)).unwrap();
        Yard { broker, diary, _worker }
    }

    async fn result<F: IntoFlow>(&self, flow: F) -> Result<F::Output, Error> {
        let flow = self.broker.client().submit(flow).await.unwrap();
        tokio::time::timeout(PATIENCE, flow.result()).await.expect("it ends")
    }

    async fn ended<F: IntoFlow>(&self, flow: F) -> FlowDetails {
        let flow = self.broker.client().submit(flow).await.unwrap();
        tokio::time::timeout(PATIENCE, flow.wait()).await.expect("it ends").unwrap()
    }

    fn noted(&self) -> Vec<String> {
        self.diary.lock().unwrap().clone()
    }
}

fn noting(text: &str) -> NewTask {
    NewTask::new("note", &text)
}

fn refusing() -> NewTask {
    NewTask::new("refuse", &())
}

/// The states of nodes, as `name state`.
fn states(flow: &FlowDetails) -> Vec<String> {
    flow.nodes.iter().map(|node| format!("{} {}", node.name, node.state)).collect()
}

#[tokio::test]
async fn a_diamond_runs_in_order_over_several_queues() {
    let yard = Yard::start().await;
    let flow = Flow::new("diamond");
    let root = flow.add("root", Square(2));
    let left = flow.add("left", noting("left")).after(&root);
    let right = flow.add("right", Sum).after(&root);
    let end = flow.add("end", noting("end")).after(&left).after(&right);
    assert_eq!(flow.len(), 4);

    let handle = yard.broker.client().submit(flow).await.unwrap();
    let results = tokio::time::timeout(PATIENCE, handle.result()).await.unwrap().unwrap();
    assert_eq!(results.of(&end).unwrap(), json!("end"));
    assert_eq!(results.names().collect::<Vec<_>>(), ["end"]);
    let error = results.of(&root).unwrap_err();
    assert!(error.to_string().contains("no result of node root"), "{error}");
    assert_eq!(handle.result_of(&root).await.unwrap(), 4);
    assert_eq!(yard.noted(), ["left; root: 4", "end; left: \"left\"; right: 4"]);

    let status = handle.status().await.unwrap();
    assert_eq!((status.state, status.name.as_str()), (FlowState::Succeeded, "diamond"));
    assert_eq!((status.nodes_total, status.nodes_done, status.nodes_failed), (4, 4, 0));
    let right = status.node("right").unwrap();
    assert_eq!((right.queue.as_str(), right.kind.as_str()), ("sums", "sum"));
    assert_eq!(right.depends_on[0].name, "root");
    assert_eq!(handle.task_id("right"), Some(&right.task_id));
    let task = yard.broker.client().get(&right.task_id).await.unwrap();
    assert_eq!(
        task.flow.map(|flow| (flow.flow, flow.node)),
        Some((status.id.clone(), "right".into()))
    );

    // As HTTP shows it.
    let shown = serde_json::to_value(&status).unwrap();
    assert_eq!(shown["results"], json!({"end": "end"}));
    assert_eq!(shown["nodes"][1]["depends_on"], json!([{"name": "root", "on_failure": "fail"}]));
}

#[tokio::test]
async fn a_chain_hands_on_its_results() {
    let yard = Yard::start().await;
    let steps = chain("steps").then(Square(3)).then(noting("middle")).then(Square(5)).then(Sum);
    assert_eq!(yard.result(steps).await.unwrap(), 25);
    assert_eq!(yard.noted(), ["middle; square: 9"]);
    let empty = yard.broker.client().submit(chain("empty")).await.unwrap_err();
    assert_eq!(empty.code(), "invalid_argument");
}

#[tokio::test]
async fn a_group_returns_its_results_in_order() {
    let yard = Yard::start().await;
    let squares = group("squares", (1..=20).map(Square));
    let expected: Vec<u64> = (1..=20).map(|number| number * number).collect();
    assert_eq!(yard.result(squares).await.unwrap(), expected);
}

#[tokio::test]
async fn a_chord_calls_back_once_with_all_results() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let yard = Yard::with(|worker| {
        worker.handler("callback", move |context: TaskContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move {
                let results = context.parent_results::<u64>().await?;
                Ok::<_, Fail>(results.into_iter().sum::<u64>())
            }
        })
    })
    .await;
    let flow = chord("sum of squares", (1..=300).map(Square), NewTask::new("callback", &()));
    let expected: u64 = (1..=300).map(|number| number * number).sum();
    assert_eq!(yard.result(flow).await.unwrap(), json!(expected));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn each_policy_says_what_a_failure_means() {
    let yard = Yard::start().await;

    let flow = Flow::new("fail");
    let bad = flow.add("bad", refusing());
    flow.add("next", noting("next")).after(&bad);
    let ended = yard.ended(flow).await;
    assert_eq!(states(&ended), ["bad dead", "next failed"]);
    assert_eq!((ended.state, ended.nodes_failed), (FlowState::Failed, 2));
    assert!(yard.noted().is_empty());
    let next = yard.broker.client().get(&ended.nodes[1].task_id).await.unwrap();
    assert_eq!(next.flow.unwrap().failed_parent.as_deref(), Some("bad"));

    let flow = Flow::new("run");
    let bad = flow.add("bad", refusing());
    flow.add("next", noting("next")).after_any_end(&bad);
    let ended = yard.ended(flow).await;
    assert_eq!(states(&ended), ["bad dead", "next succeeded"]);
    assert_eq!(ended.state, FlowState::Failed);
    assert_eq!(yard.noted(), ["next; bad: dead refused: no way"]);

    let flow = Flow::new("ignore");
    let bad = flow.add("bad", refusing());
    let good = flow.add("good", Square(1));
    flow.add("next", noting("next")).after_optional(&bad).after(&good);
    let ended = yard.ended(flow).await;
    assert_eq!(states(&ended), ["bad dead", "good succeeded", "next succeeded"]);
    assert_eq!(ended.state, FlowState::Succeeded);
    assert_eq!(yard.noted()[1], "next; bad: dead refused: no way; good: 1");
}

#[tokio::test]
async fn a_result_that_never_comes_names_the_node_that_failed() {
    let yard = Yard::start().await;
    let flow = Flow::new("");
    let bad = flow.add("bad", refusing());
    flow.add("end", Sum).after(&bad);
    let error = yard.result(flow).await.unwrap_err();
    assert_eq!(error.code(), "not_succeeded");
    let Error::FlowNotSucceeded { state: FlowState::Failed, node: Some(node), .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(node, "bad");
    assert!(error.to_string().ends_with("failed by node bad: refused: no way"), "{error}");
}

#[tokio::test]
async fn a_retry_goes_on_from_the_failed_nodes() {
    let mended = Arc::new(AtomicBool::new(false));
    let looked_at = Arc::clone(&mended);
    let yard = Yard::with(|worker| {
        worker.handler("fragile", move || {
            let mended = looked_at.load(Ordering::Relaxed);
            async move { if mended { Ok("mended") } else { Err(Fail::permanent("broken")) } }
        })
    })
    .await;
    let flow = Flow::new("retried");
    let first = flow.add("first", noting("first"));
    let fragile = flow.add("fragile", NewTask::new("fragile", &())).after(&first);
    flow.add("end", noting("end")).after(&fragile);
    let flow = yard.broker.client().submit(flow).await.unwrap();
    assert_eq!(flow.wait().await.unwrap().state, FlowState::Failed);

    mended.store(true, Ordering::Relaxed);
    assert_eq!(flow.retry().await.unwrap(), FlowState::Running);
    let ended = tokio::time::timeout(PATIENCE, flow.wait()).await.unwrap().unwrap();
    assert_eq!(ended.state, FlowState::Succeeded, "{ended:?}");
    // Succeeded tasks did not run again.
    assert_eq!(yard.noted(), ["first", "end; fragile: \"mended\""]);
}

#[tokio::test]
async fn a_cancel_ends_the_waiting_tasks_of_a_flow_at_once() {
    let broker = TestBroker::start().await.unwrap();
    let client = broker.client();
    let flow = Flow::new("cancelled");
    let first = flow.add("first", Square(1));
    flow.add("second", Sum).after(&first);
    let flow = client.submit(flow).await.unwrap();
    assert_eq!(flow.progress(Duration::ZERO).await.unwrap().state, FlowState::Running);
    assert_eq!(states(&flow.status().await.unwrap()), ["first ready", "second blocked"]);

    flow.cancel().await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, flow.wait()).await.unwrap().unwrap();
    assert_eq!(ended.state, FlowState::Cancelled);
    assert_eq!(states(&ended), ["first cancelled", "second cancelled"]);
    assert_eq!(client.flow(flow.id()).result().await.unwrap_err().code(), "not_succeeded");
    let again = flow.cancel().await;
    assert!(again.is_err() || again.unwrap() == FlowState::Cancelled);
}

#[tokio::test]
async fn dependents_wait_for_tasks_that_a_running_task_adds() {
    let yard = Yard::with(|worker| {
        worker.handler("split", |parts: u64, context: TaskContext| async move {
            assert_eq!(context.node(), Some("split"));
            let part = |number| (format!("part-{number}"), Square(number));
            let ids = context.add_tasks((1..=parts).map(part)).await?;
            // Adding them again gives the same tasks.
            assert_eq!(context.add_tasks((1..=parts).map(part)).await?, ids);
            let more = Flow::new("");
            let extra = more.add("extra", noting("extra")).after("part-1");
            more.add("last", noting("last")).after(&extra).after("before");
            assert_eq!(context.add_flow(more).await?.len(), 2);
            Ok::<_, Fail>(ids.len())
        })
    })
    .await;
    let flow = Flow::new("dynamic");
    let before = flow.add("before", Square(1));
    let split = flow.add("split", NewTask::new("split", &1_500)).after(&before);
    flow.add("after", noting("after")).after(&split);
    let ended = yard.ended(flow).await;
    assert_eq!(
        ended.state,
        FlowState::Succeeded,
        "{:?}",
        ended.nodes.iter().find(|n| n.error.is_some())
    );
    assert_eq!((ended.nodes_total, ended.nodes_done), (1_505, 1_505));
    assert_eq!(ended.node("part-7").unwrap().added_by.as_deref(), Some("split"));
    assert_eq!(
        yard.noted(),
        ["extra; part-1: 1", "last; extra: \"extra\"; before: 1", "after; split: 1500"]
    );
}

#[tokio::test]
async fn a_failed_added_task_fails_its_adder_unless_ignored() {
    for (on_failure, state) in
        [(OnFailure::Fail, FlowState::Failed), (OnFailure::Ignore, FlowState::Succeeded)]
    {
        let yard = Yard::with(|worker| {
            worker.handler("split", move |context: TaskContext| async move {
                let added = Flow::new("");
                added.add("bad", refusing()).when_it_fails(on_failure);
                context.add_flow(added).await?;
                Ok::<_, Fail>(())
            })
        })
        .await;
        let flow = Flow::new("");
        let split = flow.add("split", NewTask::new("split", &()));
        flow.add("after", noting("after")).after(&split);
        let ended = yard.ended(flow).await;
        assert_eq!(ended.state, state, "{on_failure}");
        assert_eq!(yard.noted().len(), usize::from(state == FlowState::Succeeded), "{on_failure}");
    }
}

#[tokio::test]
async fn only_tasks_of_flows_have_parents_and_add_tasks() {
    let yard = Yard::with(|worker| {
        worker.handler("alone", |context: TaskContext| async move {
            assert!(context.flow().is_none() && context.node().is_none());
            assert!(context.parents().is_empty() && context.parent("a").is_none());
            let missing = context.parent_result::<u64>("a").await.unwrap_err();
            let refused = context.add_tasks([("a", Square(1))]).await.unwrap_err();
            Ok::<_, Fail>([missing.to_string(), refused.to_string()])
        })
    })
    .await;
    let task = yard.broker.client().task("alone", &()).await.unwrap();
    let said: [String; 2] =
        serde_json::from_value(task.result().within(PATIENCE).await.unwrap()).unwrap();
    assert!(said[0].contains("has no parent a"), "{said:?}");
    assert!(said[1].contains("is no task of a flow"), "{said:?}");
}

#[tokio::test]
async fn results_too_large_to_travel_are_fetched() {
    let yard = Yard::with(|worker| {
        worker
            .handler("large", |bytes: usize| async move { Ok::<_, Fail>("x".repeat(bytes)) })
            .handler("measure", |context: TaskContext| async move {
                let large: String = context.parent_result("large").await?;
                let small: String = context.parent_result("small").await?;
                Ok::<_, Fail>([large.len(), small.len()])
            })
    })
    .await;
    let flow = Flow::new("");
    let large = flow.add("large", NewTask::new("large", &900_000));
    let small = flow.add("small", NewTask::new("large", &10));
    let measured = flow.add("measured", NewTask::new("measure", &())).after([&large, &small]);
    // Twelve results of 900 KB are more than the details of a flow include.
    let sinks: Vec<_> = (0..12)
        .map(|number| flow.add(format!("sink-{number}"), NewTask::new("large", &900_000)))
        .collect();
    let results = yard.result(flow).await.unwrap();
    assert_eq!(results.of(&measured).unwrap(), json!([900_000, 10]));
    for sink in &sinks {
        assert_eq!(results.of(sink).unwrap().as_str().unwrap().len(), 900_000);
    }
}

#[tokio::test]
async fn a_batch_calls_back_on_success_and_on_completion() {
    let yard = Yard::start().await;
    let batch = Batch::new("good").jobs((1..=3).map(Square));
    let batch = batch.on_success(noting("success")).on_complete(noting("complete"));
    assert_eq!(batch.len(), 3);
    let ended = yard.ended(batch).await;
    assert_eq!(ended.state, FlowState::Succeeded);
    let mut noted = yard.noted();
    noted.sort();
    let jobs = "square-1: 1; square-2: 4; square-3: 9";
    assert_eq!(noted, [format!("complete; {jobs}"), format!("success; {jobs}")]);
}

#[tokio::test]
async fn a_batch_with_a_failure_completes_without_success() {
    let yard = Yard::start().await;
    let batch = Batch::new("bad").job(Square(2)).job(refusing());
    let ended =
        yard.ended(batch.on_success(noting("success")).on_complete(noting("complete"))).await;
    assert_eq!(ended.state, FlowState::Failed);
    assert_eq!(ended.node(Batch::ON_SUCCESS).unwrap().state, TaskState::Failed);
    assert_eq!(ended.node(Batch::ON_COMPLETE).unwrap().state, TaskState::Succeeded);
    assert_eq!(yard.noted(), ["complete; square-1: 4; refuse-2: dead refused: no way"]);
}

#[tokio::test]
async fn a_batch_without_jobs_calls_back_at_once() {
    let yard = Yard::start().await;
    let ended = yard.ended(Batch::new("empty").on_complete(noting("complete"))).await;
    assert_eq!((ended.state, yard.noted()), (FlowState::Succeeded, vec!["complete".to_owned()]));
}

#[tokio::test]
async fn a_batch_is_reopened_from_inside_a_job() {
    // Each job adds the next until there are five; the callback comes after the last.
    let yard = Yard::with(|worker| {
        worker.handler(
            "next",
            |level: u32, context: TaskContext, State(diary): State<Diary>| async move {
                if level < 5 {
                    let next = (format!("level-{}", level + 1), NewTask::new("next", &(level + 1)));
                    context.add_tasks([next]).await?;
                }
                diary.lock().unwrap().push(level.to_string());
                Ok::<_, Fail>(())
            },
        )
    })
    .await;
    let batch = Batch::new("reopened").job(NewTask::new("next", &1)).on_success(noting("success"));
    let ended = yard.ended(batch).await;
    assert_eq!((ended.state, ended.nodes_total), (FlowState::Succeeded, 6));
    let mut noted = yard.noted();
    assert_eq!(noted.pop().unwrap(), "success; next-1: null");
    noted.sort();
    assert_eq!(noted, ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn a_retried_attempt_that_adds_its_tasks_again_adds_them_once() {
    let yard = Yard::with(|worker| {
        worker.handler("split", |context: TaskContext| async move {
            context.add_tasks([("part", noting("part"))]).await?;
            match context.attempt() {
                1 => Err(Fail::new("lost its way")),
                _ => Ok(()),
            }
        })
    })
    .await;
    let flow = Flow::new("");
    let policy = RetryPolicy::fixed(Duration::from_secs(3_600)).max_attempts(2);
    flow.add("split", NewTask::new("split", &())).retry(policy);
    let flow = yard.broker.client().submit(flow).await.unwrap();
    let split = flow.task_id("split").unwrap().clone();
    while yard.broker.client().get(&split).await.unwrap().state != TaskState::Scheduled {
        tokio::task::yield_now().await;
    }
    yard.broker.settle().await.unwrap();
    yard.broker.advance(Duration::from_secs(2 * 3_600)).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, flow.wait()).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.nodes_total), (FlowState::Succeeded, 2));
    assert_eq!(yard.noted(), ["part"]);
}

#[tokio::test]
async fn a_delay_counts_from_the_parents_end() {
    let yard = Yard::start().await;
    let flow = Flow::new("");
    let first = flow.add("first", Square(1)).delay(Duration::from_secs(600));
    flow.add("second", Sum).delay(Duration::from_secs(600)).after(&first);
    let flow = yard.broker.client().submit(flow).await.unwrap();
    let state = async || states(&flow.status().await.unwrap());
    assert_eq!(state().await, ["first scheduled", "second blocked"]);
    yard.broker.advance(Duration::from_secs(601)).await.unwrap();
    while state().await != ["first succeeded", "second scheduled"] {
        tokio::task::yield_now().await;
    }
    yard.broker.advance(Duration::from_secs(601)).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, flow.wait()).await.unwrap().unwrap();
    assert_eq!(ended.state, FlowState::Succeeded);
}

#[tokio::test]
async fn invalid_flows_are_refused_and_name_the_nodes() {
    let broker = TestBroker::start().await.unwrap();
    let client = broker.client();
    let twice = Flow::new("");
    twice.add("a", Square(1));
    twice.add("a", Square(2));
    let unknown = Flow::new("");
    unknown.add("a", Square(1)).after("b");
    let cycle = Flow::new("");
    let egg = cycle.add("egg", Square(1));
    let hen = cycle.add("hen", Square(1)).after(&egg);
    drop(egg.after(&hen));
    let no_json = Flow::new("");
    no_json.add("map", NewTask::new("a", &std::collections::BTreeMap::from([((1, 2), 3)])));
    for (flow, parts) in [
        (Flow::new("empty"), &["no nodes"][..]),
        (twice, &["\"a\""]),
        (unknown, &["\"a\"", "\"b\""]),
        (cycle, &["egg", "hen", "->"]),
        (no_json, &["node map", "JSON"]),
    ] {
        let error = client.submit(flow).await.unwrap_err();
        assert_eq!(error.code(), "invalid_argument", "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    assert!(client.flows().next().await.unwrap().is_none());
    assert!(client.flow("00000000000000000000000000").status().await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn flows_are_listed_by_name_and_state() {
    let yard = Yard::start().await;
    for number in 0..3 {
        yard.ended(group(format!("name-{}", number % 2), [Square(number)])).await;
    }
    let bad = Flow::new("bad");
    bad.add("bad", refusing());
    yard.ended(bad).await;
    let client = yard.broker.client();
    let count = async |mut flows: taskyard::flow::Flows| {
        let mut count = 0;
        while let Some(flow) = flows.next().await.unwrap() {
            assert!(flow.nodes.is_empty() && flow.nodes_total == 1, "{flow:?}");
            count += 1;
        }
        count
    };
    assert_eq!(count(client.flows().page_size(1)).await, 4);
    assert_eq!(count(client.flows().name("name-0")).await, 2);
    assert_eq!(count(client.flows().state(FlowState::Failed)).await, 1);
}

#[tokio::test]
async fn the_largest_flow_is_submitted_and_runs() {
    let yard = Yard::start().await;
    let flow = chord("largest", (0..9_999).map(|_| Square(1)), Sum);
    assert_eq!(yard.result(flow).await.unwrap(), 9_999);
}

#[tokio::test]
async fn a_program_that_claims_by_itself_sees_parents_too() {
    let broker = TestBroker::start().await.unwrap();
    let client = broker.client();
    client.submit(chain("").then(Square(7)).then(Sum)).await.unwrap();
    let [first] = &*client.claim(["math"]).wait(PATIENCE).await.unwrap() else {
        panic!("one task")
    };
    assert!(first.parents().is_empty());
    first.ack(49).await.unwrap();
    let [second] = &*client.claim(["sums"]).wait(PATIENCE).await.unwrap() else {
        panic!("one task")
    };
    let parents = second.parents();
    assert_eq!((parents.len(), parents[0].name()), (1, "square"));
    assert_eq!(parents[0].task_id(), &first.id());
    assert_eq!(parents[0].result::<u64>().await.unwrap(), 49);
}
