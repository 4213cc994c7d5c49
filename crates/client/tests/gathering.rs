//! Concurrent enqueues share requests, and a request without an answer is repeated unchanged.

use crate::fake::{FakeBroker, PATIENCE, ids, status};
use std::{future::IntoFuture, time::Duration};
use taskyard::{Client, Error};
use taskyard_proto::v1;
use tonic::{Code, Status};

fn client(brokers: &[&FakeBroker]) -> Client {
    let urls = brokers.iter().map(|broker| broker.url());
    Client::builder(urls).timeout(PATIENCE).build().unwrap()
}

/// An address where nobody listens.
fn closed_port() -> String {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", closed.local_addr().unwrap())
}

/// Enqueues `payload` and returns the id of its task.
async fn enqueue(client: &Client, payload: usize) -> Result<String, Error> {
    client.task("count", &payload).await.map(|task| task.id().to_string())
}

#[tokio::test]
async fn concurrent_enqueues_share_requests_and_each_gets_its_own_id() {
    let broker = FakeBroker::start();
    broker.shut_gate();
    let client = client(&[&broker]);
    let first = tokio::spawn(client.task("count", &0).into_future());
    broker.requests(1).await;
    let rest: Vec<_> =
        (1..500).map(|n| tokio::spawn(client.task("count", &n).into_future())).collect();
    // The enqueues were spawned earlier, so each of them runs once before this task runs again.
    tokio::task::yield_now().await;
    broker.open_gate();
    assert_eq!(first.await.unwrap().unwrap().id().as_str(), "id-0");
    for (n, enqueue) in rest.into_iter().enumerate() {
        assert_eq!(enqueue.await.unwrap().unwrap().id().as_str(), format!("id-{}", n + 1));
    }
    let requests = broker.requests(2).await;
    let sizes: Vec<usize> = requests.iter().map(|request| request.tasks.len()).collect();
    assert_eq!(sizes, [1, 499]);
    assert_ne!(requests[0].batch_id, requests[1].batch_id);
}

#[tokio::test]
async fn a_full_request_goes_beside_the_one_in_flight() {
    let broker = FakeBroker::start();
    broker.shut_gate();
    let client = client(&[&broker]);
    let enqueues: Vec<_> =
        (0..1_500).map(|n| tokio::spawn(client.task("count", &n).into_future())).collect();
    let sizes = |requests: &[v1::EnqueueManyRequest]| -> Vec<usize> {
        requests.iter().map(|request| request.tasks.len()).collect()
    };
    // The first request took the tasks that waited at its start; the second one waited until it was
    // full.
    let requests = broker.requests(2).await;
    assert!(sizes(&requests)[1] >= 499, "{:?}", sizes(&requests));
    broker.open_gate();
    for enqueue in enqueues {
        enqueue.await.unwrap().unwrap();
    }
    let requests = broker.requests(2).await;
    assert!(requests.len() <= 4, "{:?}", sizes(&requests));
    assert_eq!(sizes(&requests).iter().sum::<usize>(), 1_500);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_the_same_batch_id() {
    let broker = FakeBroker::answering(|number, request| match number {
        0 => Err(Status::unavailable("the connection broke")),
        1 => Err(status(Code::Unavailable, "outcome_unknown")),
        2 => Err(status(Code::Unavailable, "no_quorum")),
        _ => Ok(ids(request)),
    });
    let id = enqueue(&client(&[&broker]), 7).await.unwrap();
    assert_eq!(id, "id-7");
    let requests = broker.requests(4).await;
    assert_eq!(requests[0].batch_id.len(), 16);
    assert!(requests.iter().all(|request| *request == requests[0]), "{requests:?}");
}

#[tokio::test]
async fn one_refused_task_does_not_hurt_its_companions() {
    let refusal =
        |code: &str| v1::Error { code: code.into(), message: "no".into(), ..v1::Error::default() };
    let broker = FakeBroker::answering(move |_, request| {
        let mut reply = ids(request);
        for (task, result) in request.tasks.iter().zip(&mut reply.results) {
            if task.payload == "2" {
                *result = v1::EnqueueResult {
                    error: Some(refusal("queue_full")),
                    ..v1::EnqueueResult::default()
                };
            }
        }
        Ok(reply)
    });
    let client = client(&[&broker]);
    let (one, two, three) =
        tokio::join!(enqueue(&client, 1), enqueue(&client, 2), enqueue(&client, 3));
    assert_eq!(one.unwrap(), "id-1");
    assert_eq!(two.unwrap_err().code(), "queue_full");
    assert_eq!(three.unwrap(), "id-3");
}

#[tokio::test]
async fn undecided_tasks_are_repeated_with_their_whole_request() {
    let undecided =
        v1::Error { code: "no_quorum".into(), message: "wait".into(), ..v1::Error::default() };
    let broker = FakeBroker::answering(move |number, request| {
        let mut reply = ids(request);
        if number == 1 {
            reply.results[0] =
                v1::EnqueueResult { error: Some(undecided.clone()), ..Default::default() };
        }
        Ok(reply)
    });
    broker.shut_gate();
    let client = client(&[&broker]);
    let first = tokio::spawn(client.task("count", &0).into_future());
    broker.requests(1).await;
    let both = async { tokio::join!(enqueue(&client, 1), enqueue(&client, 2)) };
    let opened = async {
        tokio::task::yield_now().await;
        broker.open_gate();
    };
    let ((one, two), ()) = tokio::join!(both, opened);
    first.await.unwrap().unwrap();
    assert_eq!((one.unwrap(), two.unwrap()), ("id-1".to_string(), "id-2".to_string()));
    let requests = broker.requests(3).await;
    assert_eq!(requests[1].tasks.len(), 2);
    assert_eq!(requests[1], requests[2]);
}

#[tokio::test]
async fn a_refused_request_is_not_repeated() {
    let broker =
        FakeBroker::answering(|_, _| Err(status(Code::PermissionDenied, "permission_denied")));
    let error = enqueue(&client(&[&broker]), 1).await.unwrap_err();
    assert_eq!(error.code(), "permission_denied");
    assert_eq!(broker.requests(1).await.len(), 1);
}

#[tokio::test]
async fn the_next_server_is_asked_when_one_is_gone() {
    let gone = FakeBroker::start();
    let there = FakeBroker::start();
    let client = client(&[&gone, &there]);
    assert_eq!(enqueue(&client, 1).await.unwrap(), "id-1");
    assert_eq!(gone.requests(1).await.len(), 1);
    drop(gone);
    assert_eq!(enqueue(&client, 2).await.unwrap(), "id-2");
    assert_eq!(there.requests(1).await.len(), 1);
}

#[tokio::test]
async fn an_enqueue_that_nobody_answers_ends_with_its_deadline() {
    let broker = FakeBroker::start();
    broker.shut_gate();
    let timeout = Duration::from_millis(200);
    let client = Client::builder([broker.url()]).timeout(timeout).build().unwrap();
    let error = enqueue(&client, 1).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    // The unanswered request does not delay later enqueues.
    broker.open_gate();
    assert_eq!(enqueue(&client, 2).await.unwrap(), "id-2");
}

#[tokio::test]
async fn a_lost_answer_is_not_forgotten_when_the_server_then_goes_away() {
    let broker = FakeBroker::start();
    broker.shut_gate();
    let timeout = Duration::from_millis(1_500);
    let client = Client::builder([broker.url()]).timeout(timeout).build().unwrap();
    let enqueued = tokio::spawn(client.task("count", &0).into_future());
    // The request has arrived and may have been carried out; then the port is closed for good.
    broker.requests(1).await;
    drop(broker);
    let error = enqueued.await.unwrap().unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    assert!(error.to_string().contains("look before"), "{error}");
}

#[tokio::test]
async fn refused_connections_alone_mean_that_nothing_happened() {
    let client = Client::builder([closed_port()]).timeout(Duration::from_millis(300));
    let client = client.build().unwrap();
    let error = enqueue(&client, 0).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn an_unreachable_server_does_not_hide_the_answer_of_a_live_one() {
    let living = FakeBroker::answering(|_, _| Err(status(Code::Unavailable, "no_quorum")));
    let servers = [closed_port(), living.url(), closed_port()];
    let client = Client::builder(servers.clone()).timeout(Duration::from_secs(1)).build().unwrap();
    let error = enqueue(&client, 0).await.unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), ("no_quorum", "as the test says"));

    // A caller that does not wait for a majority gets the answer long before the timeout.
    let builder = Client::builder(servers).timeout(Duration::from_secs(500));
    let client = builder.no_quorum_timeout(Duration::from_millis(100)).build().unwrap();
    let error = tokio::time::timeout(PATIENCE, enqueue(&client, 0)).await.unwrap().unwrap_err();
    assert_eq!(error.code(), "no_quorum", "{error}");
}

#[tokio::test]
async fn an_enqueue_that_gives_up_before_it_is_sent_is_not_sent() {
    let broker = FakeBroker::start();
    broker.shut_gate();
    let client = client(&[&broker]);
    let first = tokio::spawn(client.task("count", &0).into_future());
    broker.requests(1).await;
    let mut given_up = Box::pin(enqueue(&client, 1));
    assert!(futures_util::poll!(&mut given_up).is_pending());
    let mut kept = Box::pin(enqueue(&client, 2));
    assert!(futures_util::poll!(&mut kept).is_pending());
    drop(given_up);
    broker.open_gate();
    assert_eq!(kept.await.unwrap(), "id-2");
    first.await.unwrap().unwrap();
    let requests = broker.requests(2).await;
    assert_eq!(requests[1].tasks.len(), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let url = closed_port();
    let client = Client::builder([url.clone()]).connect_timeout(Duration::from_millis(200));
    let error = client.connect().await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains(&url), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}
