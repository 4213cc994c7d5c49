//! A client that had to leave its first server returns to that server, and no call fails.

use crate::fake::{FakeBroker, PATIENCE, claimed};
use std::{net::SocketAddr, path::Path, time::Duration};
use taskyard::{Client, Fail, TaskContext, Worker};
use taskyard_server::{Config, Node};

const SOON: Duration = Duration::from_millis(20);

fn client(first: &FakeBroker, second: &FakeBroker) -> Client {
    let servers = [first.url(), second.url()];
    Client::builder(servers).return_after(SOON).build().unwrap()
}

#[tokio::test]
async fn a_producer_goes_back_to_its_first_server_once_it_answers() {
    let (first, second) = (FakeBroker::start(), FakeBroker::start());
    let client = client(&first, &second);
    client.task("t", &1).await.unwrap();
    first.requests(1).await;
    let address = first.address;
    drop(first);
    client.task("t", &2).await.unwrap();
    assert_eq!(second.requests(1).await.len(), 1);
    // Failed checks of the first server fail no call.
    for _ in 0..50 {
        client.task("t", &3).await.unwrap();
    }
    let first = FakeBroker::at(address).await;
    let back = async {
        while first.count() == 0 {
            client.task("t", &4).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, back).await.expect("the client goes back");
    let before = second.count();
    client.task("t", &5).await.unwrap();
    assert_eq!(second.count(), before, "and stays");
}

#[tokio::test]
async fn a_worker_returns_to_its_first_server_with_its_session_and_tasks() {
    let (mut first, mut second) = (FakeBroker::start(), FakeBroker::start());
    let client = client(&first, &second);
    let wait = |_: TaskContext| async { std::future::pending::<Result<(), Fail>>().await };
    let worker = Worker::builder(&client).handler("wait", wait).build().unwrap();
    let running = tokio::spawn(worker.run());
    let mut stream = first.stream().await;
    stream.welcome(b"session").await;
    stream.beat().await;
    let address = first.address;
    drop(first);
    let mut stream = second.stream().await;
    assert_eq!(stream.hello().await.session_secret, b"session");
    // The silence of the first server is no reason to leave the second one.
    stream.welcome_with(b"session", 50, 600_000).await;
    stream.hand_out(vec![claimed("one", "wait", "null")]).await;
    stream.beat().await;

    let mut first = FakeBroker::at(address).await;
    let mut back = first.stream().await;
    let hello = back.welcome(b"session").await;
    assert_eq!(hello.session_secret, b"session");
    let held: Vec<&str> = hello.held.iter().map(|claim| claim.id.as_str()).collect();
    assert_eq!(held, ["one"]);
    while stream.next_or_end().await.is_some() {}
    back.beat().await;
    running.abort();
}

async fn node(data: &Path, port: u16) -> Node {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], port)));
    let config = Config { listen, shards: Some(1), disk_reserve_bytes: 0, ..Config::new(data) };
    Node::start(config).await.unwrap()
}

/// A real broker answers `/readyz` by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_broker_is_gone_back_to_when_it_is_ready() {
    let directory = tempfile::tempdir().unwrap();
    let first = node(directory.path(), 0).await;
    let (port, second) = (first.address().unwrap().port(), FakeBroker::start());
    let servers = [format!("http://127.0.0.1:{port}"), second.url()];
    let client = Client::builder(servers).return_after(SOON).build().unwrap();
    client.task("t", &1).await.unwrap();
    first.stop().await;
    client.task("t", &2).await.unwrap();
    assert_eq!(second.count(), 1);
    let first = node(directory.path(), port).await;
    let back = async {
        loop {
            let before = second.count();
            client.task("t", &3).await.unwrap();
            if second.count() == before {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, back).await.expect("the client goes back");
    assert!(client.queue("default").details().await.unwrap().enqueued_total >= 2);
    first.stop().await;
}
