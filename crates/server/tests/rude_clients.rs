//! Clients that misbehave harm no others: they send nothing, half a request or garbage, or never
//! read.

use crate::common::{
    Broker, DEADLINE, eventually,
    http::{get, post, read_answer},
};
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

async fn connect(broker: &Broker) -> TcpStream {
    TcpStream::connect(broker.address).await.unwrap()
}

/// Checks that the broker works, and quickly.
async fn check_served(broker: &Broker) {
    let served = async {
        assert_eq!(
            post(broker.address, "/v1/queues/q/tasks", r#"{"type": "t"}"#).await.status,
            201
        );
        let claimed = post(broker.address, "/v1/claims", r#"{"queues": ["q"]}"#).await.ok();
        assert_eq!(claimed["tasks"].as_array().unwrap().len(), 1);
    };
    timeout(Duration::from_secs(20), served).await.expect("served in time");
}

#[tokio::test]
async fn clients_that_send_nothing_or_half_a_request_delay_no_others() {
    let broker = Broker::start().await;
    let mut sockets = Vec::new();
    for beginning in [
        &b""[..],
        b"GET",
        b"PRI * HTTP/2.0\r\n",
        b"POST /v1/claims HTTP/1.1\r\nhost: localhost\r\n",
        b"POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"queues\"",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x04\x01",
    ] {
        for _ in 0..50 {
            let mut socket = connect(&broker).await;
            socket.write_all(beginning).await.unwrap();
            sockets.push(socket);
        }
    }
    check_served(&broker).await;
    drop(sockets);
    check_served(&broker).await;
    broker.stop().await;
}

#[tokio::test]
async fn half_a_body_that_is_cut_off_does_nothing() {
    let broker = Broker::start().await;
    let mut socket = connect(&broker).await;
    let body = r#"{"type": "t"}"#;
    let head = format!(
        "POST /v1/queues/half/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len() + 1
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(DEADLINE, socket.read_to_end(&mut rest)).await.expect("closed in time");
    assert!(!rest.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&rest));
    assert_eq!(get(broker.address, "/v1/queues/half").await.status, 404);
    broker.stop().await;
}

#[tokio::test]
async fn garbage_is_answered_or_closed() {
    let broker = Broker::start().await;
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"HELLO\r\n\r\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"GET /v1/queues HTTP/1.1\r\nbad header\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage after the preface, more than a frame's head",
    ] {
        let mut socket = connect(&broker).await;
        socket.write_all(garbage).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = timeout(DEADLINE, socket.read_to_end(&mut rest)).await.expect("closed in time");
    }
    let mut socket = connect(&broker).await;
    let many = "x: y\r\n".repeat(20_000);
    let _ = socket.write_all(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()).await;
    let answer = timeout(DEADLINE, async {
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
        rest
    });
    let answer = answer.await.expect("closed in time");
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    check_served(&broker).await;
    broker.stop().await;
}

#[tokio::test]
async fn clients_that_never_read_delay_no_others() {
    // Their connections are still open when the node stops, and are closed with calls in flight.
    let broker = Broker::with(|config| config.shutdown_grace = Duration::from_millis(200)).await;
    let payload = "x".repeat(1 << 20);
    let body = format!(r#"{{"type": "large", "payload": "{}"}}"#, &payload[2..]);
    let id = post(broker.address, "/v1/queues/large/tasks", &body).await.ok();
    let path = format!("/v1/tasks/{}", id["id"].as_str().unwrap());
    let mut sockets = Vec::new();
    for _ in 0..50 {
        let mut socket = connect(&broker).await;
        // The answers are many megabytes, and the clients do not read them.
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(20);
        socket.write_all(request.as_bytes()).await.unwrap();
        sockets.push(socket);
    }
    check_served(&broker).await;
    // A client that reads in the end gets whole answers.
    let mut last = sockets.pop().unwrap();
    let mut start = vec![0; 15];
    timeout(DEADLINE, last.read_exact(&mut start)).await.expect("an answer").unwrap();
    assert_eq!(start, b"HTTP/1.1 200 OK");
    broker.stop().await;
}

#[tokio::test]
async fn large_bodies_that_do_not_end_leave_room_for_the_calls_of_others() {
    let broker = Broker::with(|config| config.memory_bytes_max = 64 << 20).await;
    let head = format!(
        "POST /v1/queues/large/tasks HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n[",
        20 << 20
    );
    // The memory has room for two bodies. The broker refuses the others at once.
    let (mut answers, mut waiting) = (FuturesUnordered::new(), Vec::new());
    for _ in 0..4 {
        let mut socket = connect(&broker).await;
        socket.write_all(head.as_bytes()).await.unwrap();
        let (mut read, write) = socket.into_split();
        waiting.push(write);
        answers.push(async move {
            let mut start = [0; 12];
            read.read_exact(&mut start).await.unwrap();
            String::from_utf8_lossy(&start).into_owned()
        });
    }
    for _ in 0..2 {
        let told = timeout(DEADLINE, answers.next()).await.expect("the broker must answer at once");
        assert_eq!(told.unwrap(), "HTTP/1.1 429");
    }
    check_served(&broker).await;
    assert!(answers.next().now_or_never().is_none(), "the broker must still wait for two bodies");
    drop((answers, waiting));
    // The memory for the two bodies is free again.
    let body = format!(r#"{{"type": "t", "payload": "{}"}}"#, "x".repeat(900_000));
    let served = async || {
        (post(broker.address, "/v1/queues/q/tasks", &body).await.status == 201).then_some(())
    };
    eventually("room", served).await;
    broker.stop().await;
}

#[tokio::test]
async fn requests_can_be_pipelined_on_one_connection() {
    let broker = Broker::start().await;
    let mut socket = connect(&broker).await;
    let keep = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(3);
    let last = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    socket.write_all(format!("{keep}{last}").as_bytes()).await.unwrap();
    let answer = timeout(DEADLINE, read_answer(&mut socket)).await.expect("answers");
    assert_eq!(answer.text.matches("HTTP/1.1 200 OK").count(), 3, "after the first");
    broker.stop().await;
}
