//! The messages of a worker on its stream: how it resumes, repeats, detects silence and leaves.

use crate::fake::{FakeBroker, PATIENCE, WorkerStream, claimed, status};
use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};
use taskyard::{CancelReason, Cancelled, Fail, TaskContext, Worker, WorkerBuilder, WorkerHandle};
use taskyard_proto::v1::{self, answer::Answer, worker_message::Message};
use tokio::{sync::Semaphore, task::JoinHandle};
use tonic::Code;

/// A worker whose handler `wait` waits for a permit of the test.
struct Waiting {
    handle: WorkerHandle,
    running: JoinHandle<Result<(), taskyard::Error>>,
    go_on: Arc<Semaphore>,
    stopped: Arc<Mutex<Vec<CancelReason>>>,
}

fn waiting(broker: &FakeBroker, configure: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Waiting {
    let go_on = Arc::new(Semaphore::new(0));
    let stopped = Arc::new(Mutex::new(Vec::new()));
    let (permits, reasons) = (Arc::clone(&go_on), Arc::clone(&stopped));
    let wait = move |context: TaskContext| {
        let (permits, reasons) = (Arc::clone(&permits), Arc::clone(&reasons));
        async move {
            tokio::select! {
                permit = permits.acquire() => permit?.forget(),
                reason = context.cancelled() => {
                    reasons.lock().unwrap().push(reason);
                    return Err(Cancelled.into());
                }
            }
            Ok::<_, Fail>(context.id().to_string())
        }
    };
    let builder = Worker::builder(broker.url()).concurrency(4).handler("wait", wait);
    let worker = configure(builder).build().unwrap();
    let handle = worker.handle();
    Waiting { handle, running: tokio::spawn(worker.run()), go_on, stopped }
}

async fn finished(running: JoinHandle<Result<(), taskyard::Error>>) -> Result<(), taskyard::Error> {
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap()
}

async fn goodbye(stream: &mut WorkerStream) {
    stream.until(|message| matches!(message, Message::Goodbye(_)).then_some(())).await;
}

#[tokio::test]
async fn a_worker_asks_for_its_free_slots_and_answers_with_the_result() {
    let mut broker = FakeBroker::start();
    let worker = waiting(&broker, |builder| builder.queue("a").queue_weighted("b", 3).name("me"));
    let mut stream = broker.stream().await;
    let hello = stream.welcome(b"s1").await;
    let queues: Vec<_> =
        hello.queues.iter().map(|queue| (queue.name.as_str(), queue.weight)).collect();
    assert_eq!(queues, [("a", 1), ("b", 3)]);
    assert_eq!((hello.name.as_str(), hello.slots, hello.session_secret.len()), ("me", 4, 0));
    assert_eq!(stream.credits().await, v1::Credits { free: 4, tasks_received: 0 });
    stream.hand_out(vec![claimed("t1", "wait", "null")]).await;
    let started = stream.until(|message| match message {
        Message::Started(started) => Some(started.claims),
        _ => None,
    });
    assert_eq!(started.await, [v1::HeldClaim { id: "t1".into(), claim_token: 1 }]);
    worker.go_on.add_permits(1);
    let answer = stream.answer().await;
    let Some(Answer::Ack(ack)) = answer.answer else { panic!("not an ack: {answer:?}") };
    assert_eq!((ack.id.as_str(), ack.claim_token), ("t1", 1));
    assert_eq!(ack.result.unwrap(), "\"t1\"");
    assert_eq!(stream.credits().await, v1::Credits { free: 4, tasks_received: 1 });
    stream.accept(answer.number).await;
    worker.handle.stop();
    goodbye(&mut stream).await;
    drop(stream);
    finished(worker.running).await.unwrap();
}

#[tokio::test]
async fn a_broken_stream_is_resumed_with_its_claims_and_its_answers() {
    let mut broker = FakeBroker::start();
    let worker = waiting(&broker, |builder| builder);
    let mut first = broker.stream().await;
    first.welcome(b"s1").await;
    first.hand_out(vec![claimed("t1", "wait", "1"), claimed("t2", "wait", "2")]).await;
    worker.go_on.add_permits(1);
    let unconfirmed = first.answer().await;
    drop(first);
    let mut second = broker.stream().await;
    let hello = second.welcome(b"s1").await;
    assert_eq!(hello.session_secret, b"s1");
    let mut held: Vec<_> = hello.held.iter().map(|claim| claim.id.as_str()).collect();
    held.sort_unstable();
    assert_eq!(held, ["t1", "t2"]);
    assert_eq!(second.answer().await, unconfirmed);
    second.accept(unconfirmed.number).await;
    // The handler kept running and still has its claim.
    worker.go_on.add_permits(1);
    let answer = second.answer().await;
    assert!(matches!(answer.answer, Some(Answer::Ack(_))), "{answer:?}");
    second.accept(answer.number).await;
    assert!(worker.stopped.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_session_that_the_broker_forgot_is_opened_anew() {
    let mut broker = FakeBroker::start();
    let worker = waiting(&broker, |builder| builder);
    let mut first = broker.stream().await;
    first.welcome(b"s1").await;
    first.hand_out(vec![claimed("t1", "wait", "1")]).await;
    first.until(|message| matches!(message, Message::Started(_)).then_some(())).await;
    first.refuse(status(Code::NotFound, "not_found")).await;
    let mut second = broker.stream().await;
    let hello = second.welcome(b"s2").await;
    assert!(hello.session_secret.is_empty());
    assert_eq!(hello.held.len(), 1);
    drop(worker);
}

#[tokio::test]
async fn a_silent_broker_is_left() {
    let mut broker = FakeBroker::start();
    let _worker = waiting(&broker, |builder| builder);
    let mut first = broker.stream().await;
    first.hello().await;
    first.welcome_with(b"s1", 50, 300).await;
    first.beat().await;
    // The stream stays open but silent, so the worker must not wait for ever.
    let mut second = broker.stream().await;
    assert_eq!(second.hello().await.session_secret, b"s1");
    // Orders, even empty ones, show that the broker is alive.
    second.welcome_with(b"s1", 50, 2_000).await;
    for _ in 0..10 {
        second.beat().await;
        second.order(v1::Orders::default()).await;
    }
}

#[tokio::test]
async fn a_handler_that_hogs_the_runtime_does_not_stop_the_beats() {
    let mut broker = FakeBroker::start();
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let hog = move || {
        let blocked = Arc::clone(&blocked);
        // The handler wrongly blocks the only thread of its runtime.
        async move { blocked.lock().unwrap().recv().map_err(Fail::new) }
    };
    let worker = Worker::builder(broker.url()).handler("hog", hog).build().unwrap();
    let handle = worker.handle();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(worker.run())
    });
    let mut stream = broker.stream().await;
    stream.hello().await;
    stream.welcome_with(b"s1", 20, 15_000).await;
    stream.hand_out(vec![claimed("t1", "hog", "null")]).await;
    stream.until(|message| matches!(message, Message::Started(_)).then_some(())).await;
    for _ in 0..5 {
        assert_eq!(stream.beat().await.held.len(), 1);
    }
    release.send(()).unwrap();
    let answer = stream.answer().await;
    stream.accept(answer.number).await;
    handle.stop();
    goodbye(&mut stream).await;
    drop(stream);
    thread.join().unwrap().unwrap();
}

#[tokio::test]
async fn orders_stop_the_handlers_they_name() {
    let mut broker = FakeBroker::start();
    let worker = waiting(&broker, |builder| builder);
    let mut stream = broker.stream().await;
    stream.welcome(b"s1").await;
    stream.hand_out(vec![claimed("t1", "wait", "1"), claimed("t2", "wait", "2")]).await;
    let claim = |id: &str| v1::HeldClaim { id: id.into(), claim_token: 1 };
    stream.order(v1::Orders { cancel: vec![claim("t1")], ..v1::Orders::default() }).await;
    let answer = stream.answer().await;
    let Some(Answer::Fail(fail)) = answer.answer else { panic!("not a fail: {answer:?}") };
    assert_eq!((fail.id.as_str(), fail.error.unwrap().r#type.as_str()), ("t1", "cancelled"));
    stream.accept(answer.number).await;
    assert_eq!(*worker.stopped.lock().unwrap(), [CancelReason::Requested]);
    // A lost claim needs no answer: its handler is dropped without one.
    stream.order(v1::Orders { lost: vec![claim("t2")], ..v1::Orders::default() }).await;
    let all_free = |message| matches!(message, Message::Credits(c) if c.free == 4).then_some(());
    stream.until(all_free).await;
    worker.handle.stop();
    goodbye(&mut stream).await;
    drop(stream);
    finished(worker.running).await.unwrap();
}

#[tokio::test]
async fn a_stopping_worker_finishes_then_releases_then_says_goodbye() {
    let mut broker = FakeBroker::start();
    let worker = waiting(&broker, |builder| builder.shutdown_grace(Duration::from_millis(100)));
    let mut stream = broker.stream().await;
    stream.welcome(b"s1").await;
    stream.hand_out(vec![claimed("t1", "wait", "1"), claimed("t2", "wait", "2")]).await;
    stream.until(|message| matches!(message, Message::Started(_)).then_some(())).await;
    worker.go_on.add_permits(1);
    let answer = stream.answer().await;
    assert!(matches!(answer.answer, Some(Answer::Ack(_))), "{answer:?}");
    stream.accept(answer.number).await;
    worker.handle.stop();
    stream
        .until(|message| matches!(message, Message::Credits(c) if c.free == 0).then_some(()))
        .await;
    let answer = stream.answer().await;
    assert!(matches!(answer.answer, Some(Answer::Release(_))), "{answer:?}");
    assert_eq!(*worker.stopped.lock().unwrap(), [CancelReason::Shutdown]);
    stream.accept(answer.number).await;
    goodbye(&mut stream).await;
    assert_eq!(stream.next_or_end().await, None);
    drop(stream);
    finished(worker.running).await.unwrap();
}

#[tokio::test]
async fn an_operator_can_quiet_and_stop_a_worker() {
    let mut broker = FakeBroker::start();
    let worker = waiting(&broker, |builder| builder);
    let mut stream = broker.stream().await;
    stream.welcome(b"s1").await;
    assert_eq!(stream.credits().await.free, 4);
    let order =
        |state: v1::WorkerState| v1::Orders { state: state.into(), ..v1::Orders::default() };
    stream.order(order(v1::WorkerState::Quiet)).await;
    assert_eq!(stream.credits().await.free, 0);
    let quiet = |message| match message {
        Message::Beat(beat) => (beat.state() == v1::WorkerState::Quiet).then_some(()),
        _ => None,
    };
    stream.until(quiet).await;
    stream.order(order(v1::WorkerState::Stopping)).await;
    goodbye(&mut stream).await;
    drop(stream);
    finished(worker.running).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_is_refused_says_so() {
    let mut broker = FakeBroker::start();
    let worker = waiting(&broker, |builder| builder);
    let stream = broker.stream().await;
    stream.refuse(status(Code::Unauthenticated, "unauthenticated")).await;
    let error = finished(worker.running).await.unwrap_err();
    assert_eq!(error.code(), "unauthenticated");
}

#[tokio::test]
async fn a_worker_names_its_types_and_fails_what_it_is_handed_beyond_them() {
    let mut broker = FakeBroker::start();
    let _worker =
        waiting(&broker, |builder| builder.handler("other", || async { Ok::<_, Fail>(()) }));
    let mut stream = broker.stream().await;
    assert_eq!(stream.welcome(b"s1").await.types, ["other", "wait"]);
    // This broker ignores the types.
    stream.hand_out(vec![claimed("t1", "unknown", "1")]).await;
    let Some(Answer::Fail(fail)) = stream.answer().await.answer else { panic!("it must fail") };
    assert_eq!(fail.error.unwrap_or_default().r#type, "no_handler");
}

#[tokio::test]
async fn handlers_are_bounded_unless_there_is_a_fallback() {
    let broker = FakeBroker::start();
    let many = || {
        (0..257).fold(Worker::builder(broker.url()), |builder, number| {
            builder.handler(format!("t{number}"), || async { Ok::<_, Fail>(()) })
        })
    };
    let error = many().build().unwrap_err().to_string();
    assert!(error.contains("handlers for 257 types; one worker names 256 at most"), "{error}");
    assert!(many().fallback(|| async { Ok::<_, Fail>(()) }).build().is_ok());
}

#[tokio::test]
async fn a_dropped_worker_releases_all_its_tasks() {
    let mut broker = FakeBroker::start();
    let worker = waiting(&broker, |builder| builder);
    let mut stream = broker.stream().await;
    stream.welcome(b"s1").await;
    stream.hand_out(vec![claimed("t1", "wait", "1")]).await;
    stream.until(|message| matches!(message, Message::Started(_)).then_some(())).await;
    worker.running.abort();
    goodbye(&mut stream).await;
}

#[tokio::test]
async fn a_token_is_shown_on_every_stream() {
    let mut broker = FakeBroker::start();
    let client = taskyard::Client::builder([broker.url()]).token("secret").build().unwrap();
    let worker = Worker::builder(client).fallback(|| async { Ok::<_, Fail>(()) }).build().unwrap();
    let _running = tokio::spawn(worker.run());
    let stream = broker.stream().await;
    assert_eq!(stream.metadata.get("authorization").unwrap(), "Bearer secret");
}
