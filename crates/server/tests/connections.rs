//! Connections are bounded by the files that the process may open. Open connections live on,
//! further ones are refused, and the engine keeps its files.
//!
//! The limit belongs to the process, so these tests run one after the other.

use crate::common::{Broker, DEADLINE, eventually, http::get};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
    time::timeout,
};

static LIMIT: Mutex<()> = Mutex::const_new(());

/// Parks a long poll on its own connection.
async fn park(broker: &Broker) -> TcpStream {
    let body = r#"{"queues": ["q"], "wait_ms": 60000}"#;
    let length = body.len();
    let request = format!(
        "POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut socket = TcpStream::connect(broker.address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

async fn wait_for_parked(broker: &Broker, count: usize) {
    eventually("parked claims", async || {
        let metrics = get(broker.address, "/metrics").await.text;
        metrics.contains(&format!("\ntaskyard_claims_parked {count}\n")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_low_limit_of_open_files_is_raised_at_start() {
    let _alone = LIMIT.lock().await;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum }).unwrap();
    let broker = Broker::start().await;
    assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    let mut parked = Vec::new();
    for _ in 0..400 {
        parked.push(park(&broker).await);
    }
    wait_for_parked(&broker, 400).await;
    assert_eq!(get(broker.address, "/healthz").await.status, 200);
    drop(parked);
    broker.stop().await;
}

#[tokio::test]
async fn connections_over_the_limit_are_refused_and_others_live() {
    let _alone = LIMIT.lock().await;
    let broker = Broker::with(|config| config.connections_max = 21).await;
    let mut parked = Vec::new();
    for _ in 0..20 {
        parked.push(park(&broker).await);
    }
    wait_for_parked(&broker, 20).await;
    parked.push(TcpStream::connect(broker.address).await.unwrap());
    // More connections than get a refusal at a time; none of them reads.
    let mut over = Vec::new();
    for _ in 0..500 {
        over.push(TcpStream::connect(broker.address).await.unwrap());
    }
    eventually("a refusal names the limit", async || {
        let mut socket = TcpStream::connect(broker.address).await.unwrap();
        let mut answer = String::new();
        let read = timeout(DEADLINE, socket.read_to_string(&mut answer)).await;
        // While too many refusals are under way, the broker closes without an answer.
        let _ = read.expect("closed at once");
        let told = answer.starts_with("HTTP/1.1 429") && answer.contains("all 21 connections");
        told.then_some(())
    })
    .await;

    // Health checks are answered even now, and no other request on their connections is.
    for path in ["/healthz", "/readyz", "/metrics"] {
        eventually(path, async || {
            let mut socket = TcpStream::connect(broker.address).await.unwrap();
            let request = format!(
                "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/queues HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            );
            let _ = socket.write_all(request.as_bytes()).await;
            let mut answer = String::new();
            let _ = timeout(DEADLINE, socket.read_to_string(&mut answer)).await.expect("closed");
            let answered = answer.starts_with("HTTP/1.1 200");
            assert!(!answered || answer.contains("HTTP/1.1 429"), "{answer}");
            answered.then_some(())
        })
        .await;
    }

    // The next client takes a place that is free again, and every parked claim is still there.
    drop(parked.pop());
    eventually("a place", async || {
        let mut socket = TcpStream::connect(broker.address).await.unwrap();
        let body = vec![r#"{"type": "t"}"#; 20].join(",");
        let request = format!(
            "POST /v1/queues/q/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n[{body}]",
            body.len() + 2
        );
        let _ = socket.write_all(request.as_bytes()).await;
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer).await;
        answer.starts_with("HTTP/1.1 201").then_some(())
    })
    .await;
    for mut socket in parked {
        let mut start = [0; 15];
        timeout(DEADLINE, socket.read_exact(&mut start)).await.expect("woken").unwrap();
        assert_eq!(&start, b"HTTP/1.1 200 OK");
    }
    drop(over);
    broker.stop().await;
}

/// The node accepts no connection here, because the test blocks the only thread of the runtime.
#[tokio::test]
async fn a_thousand_clients_may_connect_at_once_to_each_port() {
    const CLIENTS: usize = 1_000;
    let _alone = LIMIT.lock().await;
    let broker = Broker::with(|config| {
        config.peer = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.faktory = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    })
    .await;
    let node = &broker.node;
    let ports = [node.address(), node.faktory_address(), node.peer_address()];
    for address in ports.map(Option::unwrap) {
        let mut waiting = Vec::new();
        for client in 0..CLIENTS {
            // A full backlog drops the client's first packet, and no thread empties it.
            let connected = std::net::TcpStream::connect_timeout(&address, DEADLINE);
            waiting.push(connected.unwrap_or_else(|error| panic!("{address} {client}: {error}")));
        }
    }
    assert_eq!(get(broker.address, "/healthz").await.status, 200);
    broker.stop().await;
}
