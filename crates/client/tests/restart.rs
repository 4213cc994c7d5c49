//! Clients and workers do not notice a restart of their broker.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};
use taskyard::{Client, Embedded, Fail, TaskContext, TaskState, Worker};
use taskyard_server::{Config, Node};
use tokio::sync::Semaphore;

const PATIENCE: Duration = Duration::from_secs(30);

async fn node(data: &Path, port: u16) -> Node {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], port)));
    let config = Config { listen, shards: Some(4), disk_reserve_bytes: 0, ..Config::new(data) };
    Node::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_and_workers_go_on_when_the_server_is_back_on_its_port() {
    let directory = tempfile::tempdir().unwrap();
    let first = node(directory.path(), 0).await;
    let port = first.address().unwrap().port();
    let client = Client::connect(format!("http://127.0.0.1:{port}")).await.unwrap();

    let gate = Arc::new(Semaphore::new(0));
    let open = gate.clone();
    let slow = move |context: TaskContext| {
        let gate = gate.clone();
        async move {
            gate.acquire().await?.forget();
            Ok::<_, Fail>(context.attempt())
        }
    };
    let worker = Worker::builder(&client).handler("slow", slow).build().unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let held = client.task("slow", &()).await.unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while client.get(held.id()).await.unwrap().state != TaskState::Claimed {
        assert!(tokio::time::Instant::now() < deadline, "the worker should have claimed it");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    first.stop().await;

    // An enqueue without a server is answered when the server is back.
    let meanwhile = tokio::spawn({
        let client = client.clone();
        async move { client.task("slow", &()).await }
    });
    // The handler ends while the server is down, and its answer must not be lost.
    open.add_permits(1);
    let second = node(directory.path(), port).await;

    // The session was resumed with its claim: the first attempt counts.
    assert_eq!(held.result().within(PATIENCE).await.unwrap(), 1);
    let meanwhile = meanwhile.await.unwrap().unwrap();
    open.add_permits(1);
    assert_eq!(meanwhile.result().within(PATIENCE).await.unwrap(), 1);

    handle.stop();
    running.await.unwrap().unwrap();
    second.stop().await;
}

#[tokio::test]
async fn an_embedded_broker_keeps_its_tasks_and_its_directory_to_itself() {
    let directory = tempfile::tempdir().unwrap();
    let broker = Embedded::open(directory.path()).await.unwrap();
    let client = broker.client();
    let id = client.task("later", &7).await.unwrap().id().clone();
    let refused = Embedded::open(directory.path()).await.unwrap_err();
    assert!(refused.to_string().contains("in use"), "{refused}");
    broker.close().await;
    let closed = Client::clone(&client);
    let broker = Embedded::open(directory.path()).await.unwrap();
    let details = broker.client().get(&id).await.unwrap();
    assert_eq!((details.state, details.payload_as::<u8>().unwrap()), (TaskState::Ready, 7));
    // A client of the closed broker does not reach the new one by accident.
    let gone = tokio::time::timeout(Duration::from_millis(200), closed.info()).await;
    assert!(!matches!(gone, Ok(Ok(_))), "{gone:?}");
    broker.close().await;
}

/// A node that lost its data and starts without `--join` founds a new cluster.
#[tokio::test]
async fn a_client_refuses_a_server_that_has_become_another_cluster() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let first = node(directories[0].path(), 0).await;
    let port = first.address().unwrap().port();
    let connect = || Client::connect(format!("http://127.0.0.1:{port}"));
    let client = connect().await.unwrap();
    client.task("kept", &()).await.unwrap();
    first.stop().await;

    let second = node(directories[1].path(), port).await;
    let refused = client.task("lost", &()).await.unwrap_err();
    assert_eq!(refused.code(), "conflict", "{refused:?}");
    let words = refused.to_string();
    assert!(
        words.contains("or this node lost its data and was started as a new cluster"),
        "{words}"
    );
    assert!(
        client.queue("default").details().await.is_err(),
        "the client must not see the other cluster"
    );
    // The new cluster serves a new client, and the refused task does not exist.
    let other = connect().await.unwrap();
    other.task("new", &()).await.unwrap();
    assert_eq!(other.queue("default").details().await.unwrap().ready, 1);
    second.stop().await;
}
