//! Handlers and the outcomes of their tasks, against the real broker.

use serde::{Deserialize, Serialize};
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    task::{Context, Poll},
    time::Duration,
};
use taskyard::{
    BoxError, Cancelled, Enqueued, Error, Fail, Flow, NewTask, RetryPolicy, Snooze, State, Task,
    TaskContext, TaskDetails, TaskRequest, TaskResponse, TaskState, testing::TestBroker,
};
use tokio::sync::Semaphore;
use tower::{Layer, Service};

/// Longer than any wait of these tests, unless something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize)]
struct Add(i64, i64);

impl Task for Add {
    const NAME: &'static str = "add";
    const QUEUE: &'static str = "math";
    type Output = i64;

    fn configure(&self, task: NewTask) -> NewTask {
        task.priority(7).tag("sum")
    }
}

async fn add(Add(left, right): Add) -> Result<i64, Fail> {
    Ok(left + right)
}

async fn broker() -> TestBroker {
    TestBroker::start().await.unwrap()
}

async fn ended<Output>(broker: &TestBroker, task: &Enqueued<Output>) -> TaskDetails {
    broker.client().outcome(task.id(), PATIENCE).await.unwrap();
    broker.client().get(task.id()).await.unwrap()
}

/// The error of the only attempt, as "kind: message".
fn error(details: &TaskDetails) -> String {
    assert_eq!(details.attempts.len(), 1, "{details:?}");
    details.attempts[0].error.as_ref().unwrap().to_string()
}

/// Waits until a task meets a condition.
async fn until(
    broker: &TestBroker,
    task: &Enqueued,
    wanted: impl Fn(&TaskDetails) -> bool,
) -> TaskDetails {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let details = broker.client().get(task.id()).await.unwrap();
        if wanted(&details) {
            return details;
        }
        assert!(tokio::time::Instant::now() < deadline, "{details:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_declared_task_makes_the_round_trip() {
    let broker = broker().await;
    let _worker = broker.run(broker.worker().task(add)).unwrap();
    let task = broker.client().enqueue(Add(2, 3)).await.unwrap();
    assert_eq!(task.result().within(PATIENCE).await.unwrap(), 5);
    let details = broker.client().get(task.id()).await.unwrap();
    assert_eq!((details.queue.as_str(), details.kind.as_str()), ("math", "add"));
    assert_eq!((details.priority, details.attempt), (7, 1));
    assert_eq!(details.tags, ["sum"]);
    assert_eq!(details.payload_as::<Add>().unwrap().1, 3);
    assert_eq!(details.result_as::<i64>().unwrap(), 5);
}

#[tokio::test]
async fn uncaught_errors_and_panics_are_failures() {
    let broker = broker().await;
    let worker = broker
        .worker()
        .handler("panic", || async { if true { panic!("no way") } else { Ok::<_, Fail>(()) } })
        .handler("number", |_: u32| async { Ok::<_, Fail>(()) })
        .handler("fail", || async { Err::<(), _>(std::io::Error::other("disk on fire")) })
        .handler("hang", || async { std::future::pending::<Result<(), Fail>>().await })
        .blocking_handler("panic_blocking", || {
            if true { panic!("no way either") } else { Ok::<_, Fail>(()) }
        });
    let _worker = broker.run(worker).unwrap();
    let client = broker.client();
    for (kind, expected) in [
        ("panic", "panic: no way"),
        ("panic_blocking", "panic: no way either"),
        ("number", "bad_payload: the payload is no u32: invalid type: null, expected u32 at"),
        ("fail", "std::io::error::Error: disk on fire"),
        ("hang", "timeout: the attempt ran longer than its timeout of 50ms"),
    ] {
        let task = client.task(kind, &()).retry(RetryPolicy::never());
        let task = task.timeout(Duration::from_millis(50)).await.unwrap();
        let details = ended(&broker, &task).await;
        assert_eq!(details.state, TaskState::Dead, "{kind}");
        assert!(error(&details).starts_with(expected), "{}", error(&details));
    }
}

#[tokio::test]
async fn a_panic_says_where_it_was() {
    let broker = broker().await;
    let panics = || async { if true { panic!("no way") } else { Ok::<_, Fail>(()) } };
    let _worker = broker.run(broker.worker().handler("panic", panics)).unwrap();
    let task = broker.client().task("panic", &()).retry(RetryPolicy::never()).await.unwrap();
    let details = ended(&broker, &task).await;
    let backtrace = &details.attempts[0].error.as_ref().unwrap().backtrace;
    assert!(backtrace.starts_with(file!()), "{backtrace}");
}

#[tokio::test]
async fn a_failure_says_what_happens_next() {
    let broker = broker().await;
    let start = broker.now();
    let later = taskyard::Timestamp::from_millis(start.as_millis() + 90_000);
    let worker = broker
        .worker()
        .handler("permanent", || async { Err::<(), _>(Fail::permanent("no").kind("hopeless")) })
        .handler("after", || async {
            Err::<(), _>(Fail::retry_after(Duration::from_secs(60), "wait"))
        })
        .handler("at", move || async move { Err::<(), _>(Fail::retry_at(later, "wait")) })
        .handler("snooze", || async {
            Err::<(), Fail>(Snooze::after(Duration::from_secs(30)).into())
        })
        .handler("until", move || async move { Err::<(), Fail>(Snooze::until(later).into()) });
    let _worker = broker.run(worker).unwrap();
    for (kind, state, wakes_after) in [
        ("permanent", TaskState::Dead, None),
        ("after", TaskState::Scheduled, Some(60)),
        ("at", TaskState::Scheduled, Some(90)),
        ("snooze", TaskState::Scheduled, Some(30)),
        ("until", TaskState::Scheduled, Some(90)),
    ] {
        let task = broker.client().task(kind, &()).await.unwrap();
        let details = until(&broker, &task, |details| details.state == state).await;
        let after = details.run_at.map(|at| at.since(start).as_secs());
        assert_eq!(after, wakes_after, "{kind}");
    }
}

#[tokio::test]
async fn every_retry_and_delay_runs_in_its_time_while_days_pass() {
    const DAY: Duration = Duration::from_secs(86_400);
    let broker = broker().await;
    let began_at = broker.now();
    let _worker = broker
        .run(broker.worker().handler("flaky", |context: TaskContext| async move {
            match context.attempt() {
                11 => Ok(11),
                _ => Err(Fail::new("not yet")),
            }
        }))
        .unwrap();
    let policy = RetryPolicy::fixed(DAY).jitter(0.0);
    let task = broker.client().task("flaky", &()).retry(policy).await.unwrap();
    until(&broker, &task, |details| details.state == TaskState::Scheduled).await;
    broker.advance(10 * DAY).await.unwrap();
    broker.settle().await.unwrap();
    assert_eq!(task.result().await.unwrap(), 11);
    assert_eq!(broker.now().since(began_at), 10 * DAY);
}

/// The clock stands still until the test moves it, so that a retry in a day never runs by itself.
#[tokio::test]
async fn a_wait_for_a_result_that_never_comes_fails() {
    let patience = Duration::from_millis(300);
    let broker = broker().await.patience(patience);
    let client = broker.client();
    let task = client.task("later", &()).delay(Duration::from_secs(86_400)).await.unwrap();
    let error = task.result().await.unwrap_err();
    assert_eq!(error.code(), "not_finished");
    assert!(error.to_string().contains("is still scheduled after 300ms"), "{error}");
    let flow = Flow::new("");
    let node = flow.add("later", NewTask::new("later", &()));
    let flow = client.submit(flow).await.unwrap();
    assert_eq!(flow.wait().await.unwrap_err().code(), "not_finished");
    assert_eq!(flow.result_of(&node).await.unwrap_err().code(), "not_finished");
}

#[tokio::test]
async fn a_retry_comes_when_the_clock_says_so() {
    let broker = broker().await;
    let handler = |context: TaskContext| async move {
        match context.attempt() {
            1 | 2 => Err(Fail::new("not yet")),
            attempt => Ok(attempt),
        }
    };
    let _worker = broker.run(broker.worker().handler("flaky", handler)).unwrap();
    let policy = RetryPolicy::fixed(Duration::from_secs(3_600)).jitter(0.0);
    let task = broker.client().task("flaky", &()).retry(policy).await.unwrap();
    for attempt in [1, 2] {
        until(&broker, &task, |details| details.state == TaskState::Scheduled).await;
        broker.advance(Duration::from_secs(3_599)).await.unwrap();
        let details = broker.client().get(task.id()).await.unwrap();
        assert_eq!((details.state, details.attempt), (TaskState::Scheduled, attempt));
        broker.advance(Duration::from_secs(1)).await.unwrap();
        broker.settle().await.unwrap();
    }
    assert_eq!(task.result().within(PATIENCE).await.unwrap(), 3);
}

#[tokio::test]
async fn a_worker_never_claims_more_tasks_than_it_has_slots() {
    let broker = broker().await;
    let client = broker.client();
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let gate = Arc::new(Semaphore::new(0));
    let handler = {
        let (running, most, gate) = (running.clone(), most.clone(), gate.clone());
        move || {
            let (running, most, gate) = (running.clone(), most.clone(), gate.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                gate.acquire().await?.forget();
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Fail>(())
            }
        }
    };
    let tasks = (0..20).map(|number| NewTask::new("wait", &number));
    client.batch("default").extend(tasks).send().await.unwrap();
    let worker = broker.worker().concurrency(3).handler("wait", handler);
    let _worker = broker.run(worker).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while running.load(Ordering::SeqCst) < 3 {
        assert!(tokio::time::Instant::now() < deadline, "three should run");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // All claimed tasks run; the others are still free for other workers.
    let queue = client.queue("default").details().await.unwrap();
    assert_eq!((queue.claimed, queue.ready), (3, 17));
    gate.add_permits(20);
    broker.settle().await.unwrap();
    assert_eq!(client.queue("default").details().await.unwrap().succeeded_total, 20);
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn follow_ups_come_with_success_and_only_then() {
    let broker = broker().await;
    let handler = |fails: bool, context: TaskContext| async move {
        context.enqueue(NewTask::new("receipt", &1).queue("mail"))?;
        context.enqueue(Add(1, 2))?;
        if fails { Err(Fail::permanent("no")) } else { Ok(()) }
    };
    let worker = broker.worker().queue("default").handler("buy", handler);
    let _worker = broker.run(worker).unwrap();
    let client = broker.client();
    let failed = client.task("buy", &true).await.unwrap();
    assert_eq!(ended(&broker, &failed).await.state, TaskState::Dead);
    assert!(client.queue("mail").details().await.unwrap_err().is_not_found());
    let bought = client.task("buy", &false).await.unwrap();
    assert_eq!(ended(&broker, &bought).await.state, TaskState::Succeeded);
    // Follow-ups may belong to other shards, where they arrive a moment later.
    for queue in ["mail", "math"] {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while client.tasks().queue(queue).collect(10).await.unwrap().len() != 1 {
            assert!(tokio::time::Instant::now() < deadline, "{queue} should have one task");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test]
async fn a_result_that_is_refused_shows_as_a_failure() {
    let broker = broker().await;
    let too_large = || async { Ok::<_, Fail>("x".repeat(2 << 20)) };
    let _worker = broker.run(broker.worker().handler("large", too_large)).unwrap();
    let task = broker.client().task("large", &()).retry(RetryPolicy::never()).await.unwrap();
    let details = ended(&broker, &task).await;
    assert_eq!(details.state, TaskState::Dead);
    assert!(error(&details).contains("the broker refused the result"), "{}", error(&details));
}

#[tokio::test]
async fn the_next_attempt_resumes_where_the_last_one_saved() {
    let broker = broker().await;
    let handler = |context: TaskContext| async move {
        let from = context.resume_state::<u32>()?.unwrap_or(0);
        context.checkpoint(&(from + 10)).await?;
        context.checkpoint(&(from + 20)).await?;
        if from < 40 {
            return Err(Fail::retry_after(Duration::from_secs(1), "again"));
        }
        Ok(from)
    };
    let _worker = broker.run(broker.worker().handler("steps", handler)).unwrap();
    let task = broker.client().task("steps", &()).await.unwrap();
    for _ in 0..2 {
        until(&broker, &task, |details| details.state == TaskState::Scheduled).await;
        broker.advance(Duration::from_secs(1)).await.unwrap();
        broker.settle().await.unwrap();
    }
    assert_eq!(task.result().within(PATIENCE).await.unwrap(), 40);
}

#[tokio::test]
async fn progress_is_seen_while_the_task_runs() {
    let broker = broker().await;
    let gate = Arc::new(Semaphore::new(0));
    let open = gate.clone();
    let handler = move |context: TaskContext| {
        let gate = gate.clone();
        async move {
            context.progress(250, "nearly");
            gate.acquire().await?.forget();
            Ok::<_, Fail>(())
        }
    };
    let _worker = broker.run(broker.worker().handler("slow", handler)).unwrap();
    let task = broker.client().task("slow", &()).await.unwrap();
    let details = until(&broker, &task, |details| details.progress.is_some()).await;
    let progress = details.progress.unwrap();
    assert_eq!((progress.percent, progress.message.as_str()), (100, "nearly"));
    assert_eq!(details.state, TaskState::Claimed);
    open.add_permits(1);
    task.result().within(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_running_task_can_be_cancelled() {
    let broker = broker().await;
    let handler = |context: TaskContext| async move {
        context.cancelled().await;
        Err::<(), Fail>(Cancelled.into())
    };
    let _worker = broker.run(broker.worker().handler("endless", handler)).unwrap();
    let task = broker.client().task("endless", &()).await.unwrap();
    until(&broker, &task, |details| details.state == TaskState::Claimed).await;
    assert_eq!(broker.client().cancel(task.id()).await.unwrap(), TaskState::Claimed);
    assert_eq!(ended(&broker, &task).await.state, TaskState::Cancelled);
}

#[tokio::test]
async fn a_handler_that_ignores_a_cancellation_is_dropped() {
    let broker = broker().await;
    let (dropped, gone) = mpsc::channel::<()>();
    let handler = move || {
        let dropped = dropped.clone();
        async move {
            // Dropped with the future. It never gets a value.
            let _dropped = dropped;
            std::future::pending::<Result<(), Fail>>().await
        }
    };
    let worker = broker.worker().handler("deaf", handler).build().unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    let task = broker.client().task("deaf", &()).await.unwrap();
    until(&broker, &task, |details| details.state == TaskState::Claimed).await;
    broker.client().cancel(task.id()).await.unwrap();
    assert_eq!(ended(&broker, &task).await.state, TaskState::Cancelled);
    handle.stop();
    running.await.unwrap().unwrap();
    assert!(gone.try_recv().is_err());
}

#[tokio::test]
async fn a_stopping_worker_releases_unfinished_tasks() {
    let broker = broker().await;
    let saved = Arc::new(Semaphore::new(0));
    let handler = {
        let saved = saved.clone();
        move |context: TaskContext| {
            let saved = saved.clone();
            async move {
                context.checkpoint(&7).await?;
                saved.add_permits(1);
                context.cancelled().await;
                Err::<(), Fail>(Cancelled.into())
            }
        }
    };
    let worker = broker.worker().shutdown_grace(Duration::from_millis(50));
    let worker = broker.run(worker.handler("endless", handler)).unwrap();
    let task = broker.client().task("endless", &()).retry(RetryPolicy::never()).await.unwrap();
    saved.acquire().await.unwrap().forget();
    worker.stop().await.unwrap();
    let details = broker.client().get(task.id()).await.unwrap();
    assert_eq!((details.state, details.losses), (TaskState::Ready, 0));
    assert!(
        broker
            .client()
            .workers()
            .await
            .unwrap()
            .workers
            .iter()
            .all(|worker| worker.state != "running")
    );
    // The task keeps its only attempt, so the next worker resumes the task.
    let resumed = |context: TaskContext| async move { context.resume_state::<u8>() };
    let _worker = broker.run(broker.worker().handler("endless", resumed)).unwrap();
    assert_eq!(task.result().within(PATIENCE).await.unwrap(), 7);
}

#[tokio::test]
async fn a_stopping_worker_lets_handlers_finish() {
    let broker = broker().await;
    let (began, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let (began, gate) = (began.clone(), gate.clone());
        move || {
            let (began, gate) = (began.clone(), gate.clone());
            async move {
                began.add_permits(1);
                gate.acquire().await?.forget();
                Ok::<_, Fail>("finished")
            }
        }
    };
    let worker = broker.run(broker.worker().handler("slow", handler)).unwrap();
    let client = broker.client();
    let first = client.task("slow", &()).await.unwrap();
    let second = client.task("slow", &()).await.unwrap();
    began.acquire_many(2).await.unwrap().forget();
    worker.handle().stop();
    // The worker is stopping and claims nothing more.
    let stopping = async || client.workers().await.unwrap().workers[0].state == "stopping";
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !stopping().await {
        assert!(tokio::time::Instant::now() < deadline, "the worker should say that it stops");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let third = client.task("slow", &()).await.unwrap();
    gate.add_permits(2);
    worker.stop().await.unwrap();
    for task in [first, second] {
        assert_eq!(task.result().within(PATIENCE).await.unwrap(), "finished");
    }
    assert_eq!(client.get(third.id()).await.unwrap().state, TaskState::Ready);
}

#[tokio::test]
async fn a_thread_keeps_its_slot_until_it_returns() {
    let broker = broker().await;
    let client = broker.client();
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let saw_cancel = Arc::new(AtomicU32::new(0));
    let handler = {
        let saw_cancel = saw_cancel.clone();
        move |wait: bool, context: TaskContext| {
            if wait {
                blocked.lock().unwrap().recv()?;
                saw_cancel.store(context.is_cancelled().into(), Ordering::SeqCst);
            }
            Ok::<_, Fail>(())
        }
    };
    let worker = broker.worker().concurrency(1).blocking_handler("block", handler);
    let _worker = broker.run(worker).unwrap();
    let stuck = client.task("block", &true).retry(RetryPolicy::never());
    let stuck = stuck.timeout(Duration::from_millis(50)).await.unwrap();
    let details = ended(&broker, &stuck).await;
    assert!(error(&details).starts_with("timeout: "), "{}", error(&details));
    // The thread can't be stopped, so that the only slot stays taken.
    let next = client.task("block", &false).await.unwrap();
    let outcome = client.outcome(next.id(), Duration::from_millis(100)).await.unwrap();
    assert_eq!(outcome.state, TaskState::Ready);
    release.send(()).unwrap();
    next.result().within(PATIENCE).await.unwrap();
    assert_eq!(saw_cancel.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_blocking_handler_can_save_its_state() {
    let broker = broker().await;
    let handler = |context: TaskContext| {
        let from = context.resume_state::<u8>()?.unwrap_or(0);
        context.blocking_checkpoint(&(from + 1))?;
        if from == 0 { Err(Fail::retry_after(Duration::from_secs(1), "again")) } else { Ok(from) }
    };
    let _worker = broker.run(broker.worker().blocking_handler("steps", handler)).unwrap();
    let task = broker.client().task("steps", &()).await.unwrap();
    until(&broker, &task, |details| details.state == TaskState::Scheduled).await;
    broker.advance(Duration::from_secs(1)).await.unwrap();
    assert_eq!(task.result().within(PATIENCE).await.unwrap(), 1);
}

/// A layer that records when it is entered and left.
#[derive(Clone)]
struct Note(&'static str, Arc<Mutex<Vec<String>>>);

impl<S> Layer<S> for Note {
    type Service = Noted<S>;

    fn layer(&self, inner: S) -> Noted<S> {
        Noted(inner, self.clone())
    }
}

#[derive(Clone)]
struct Noted<S>(S, Note);

impl<S> Service<TaskRequest> for Noted<S>
where
    S: Service<TaskRequest, Response = TaskResponse>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = TaskResponse;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TaskResponse, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: TaskRequest) -> Self::Future {
        let Note(name, notes) = self.1.clone();
        notes.lock().unwrap().push(format!("{name} in {}", request.context().kind()));
        if request.context().header("refuse") == Some(name) {
            return Box::pin(async { Err("refused by a layer".into()) });
        }
        let response = self.0.call(request);
        Box::pin(async move {
            let response = response.await.map_err(Into::into)?;
            notes.lock().unwrap().push(format!("{name} out {}", response.is_success()));
            Ok(response)
        })
    }
}

#[tokio::test]
async fn layers_surround_every_handler_the_first_outermost() {
    let broker = broker().await;
    let notes = Arc::new(Mutex::new(Vec::new()));
    let worker = broker
        .worker()
        .layer(Note("a", notes.clone()))
        .layer(Note("b", notes.clone()))
        .state(notes.clone())
        .handler("work", |State(notes): State<Arc<Mutex<Vec<String>>>>| async move {
            notes.lock().unwrap().push("work".to_string());
            Ok::<_, Fail>(())
        });
    let _worker = broker.run(worker).unwrap();
    let client = broker.client();
    client.task("work", &()).await.unwrap().result().within(PATIENCE).await.unwrap();
    let seen = std::mem::take(&mut *notes.lock().unwrap());
    assert_eq!(seen, ["a in work", "b in work", "work", "b out true", "a out true"]);
    let refused = client.task("work", &()).retry(RetryPolicy::never());
    let refused = refused.header("refuse", "b").await.unwrap();
    assert_eq!(error(&ended(&broker, &refused).await), "error: refused by a layer");
}

#[tokio::test]
async fn a_fallback_takes_what_has_no_handler() {
    let broker = broker().await;
    let worker = broker
        .worker()
        .handler("known", || async { Ok::<_, Fail>("handler".to_string()) })
        .fallback(|context: TaskContext| async move { Ok::<_, Fail>(context.kind().to_string()) });
    let _worker = broker.run(worker).unwrap();
    for (kind, result) in [("known", "handler"), ("unknown", "unknown")] {
        let task = broker.client().task(kind, &()).await.unwrap();
        assert_eq!(task.result().within(PATIENCE).await.unwrap(), result);
    }
}

#[tokio::test]
async fn an_operator_sees_and_stops_workers() {
    let broker = broker().await;
    let worker = broker.worker().queue("a").queue("b").concurrency(5).name("mailer");
    let worker = worker.fallback(|| async { Ok::<_, Fail>(()) }).build().unwrap();
    let running = tokio::spawn(worker.run());
    let client = broker.client();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let listed = loop {
        let workers = client.workers().await.unwrap().workers;
        if let Some(worker) = workers.into_iter().find(|worker| worker.name == "mailer") {
            break worker;
        }
        assert!(tokio::time::Instant::now() < deadline, "the worker should be listed");
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!((listed.slots, listed.busy), (5, 0));
    assert_eq!(listed.queues, ["a", "b"]);
    assert_eq!((listed.pid, listed.state.as_str()), (std::process::id(), "running"));
    client.stop_worker(&listed.id).await.unwrap();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
    assert!(client.quiet_worker(&listed.id).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn mistakes_are_reported_together_before_a_worker_starts() {
    let nothing = || async { Ok::<_, Fail>(()) };
    let needy = |State(_): State<u16>| async { Ok::<_, Fail>(()) };
    let worker = taskyard::Worker::builder("127.0.0.1:7400")
        .queue("a")
        .queue_weighted("a", 0)
        .concurrency(0)
        .lease(Duration::from_millis(1))
        .handler("twice", nothing)
        .handler("twice", nothing)
        .handler("needy", needy);
    let Err(Error::Invalid(problems)) = worker.build() else { panic!("it should not build") };
    for expected in [
        "server address 127.0.0.1:7400: it must start with http://",
        "queue a is named twice",
        "queue a has weight 0",
        "concurrency is 0",
        "lease is 1ms",
        "twice has two handlers",
        "handler needy takes State<u16>",
    ] {
        assert!(problems.contains(expected), "{expected} is not in: {problems}");
    }
}
