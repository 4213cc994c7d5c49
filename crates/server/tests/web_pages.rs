//! A foreign web page can make a browser on the same machine or network send requests to the
//! broker. No such request reaches a handler, because the broker requires headers that only
//! programs send.

use crate::common::{
    Broker,
    http::{Answer, get, post, read_answer},
};
use serde_json::Value;
use std::net::SocketAddr;
use tokio::{io::AsyncWriteExt, net::TcpStream};

const JSON: (&str, &str) = ("content-type", "application/json");
const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// Sends one request with these headers and no others.
async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await.unwrap();
    let _ = socket.write_all(body).await;
    read_answer(&mut socket).await
}

async fn queues(broker: &Broker) -> Vec<Value> {
    let queues = get(broker.address, "/v1/queues").await.ok();
    queues["queues"].as_array().unwrap().clone()
}

/// Sends an enqueue with these headers over HTTP and to gRPC's path.
async fn check_enqueue(broker: &Broker, headers: &[(&str, &str)], status: u16) {
    let with = |more| -> Vec<_> { headers.iter().copied().chain([more]).collect() };
    let path = "/v1/queues/q/tasks";
    let answer = send(broker.address, "POST", path, &with(JSON), br#"{"type": "t"}"#).await;
    assert_eq!(answer.status, status, "{headers:?}: {answer:?}");
    if status >= 400 {
        let (_, code, detail) = answer.problem();
        assert_eq!(code, "permission_denied", "{detail}");
    }
    // A message with one field, the type.
    let message = b"\0\0\0\0\x05\x0a\x03\x12\x01t";
    let path = "/taskyard.v1.Taskyard/Enqueue";
    let answer = send(broker.address, "POST", path, &with(GRPC), message).await;
    let expected = if status < 400 { 200 } else { status };
    assert_eq!(answer.status, expected, "{headers:?}: {answer:?}");
    if status >= 400 {
        // PERMISSION_DENIED.
        assert_eq!(answer.header("grpc-status"), "7", "{answer:?}");
        assert_eq!(answer.header("taskyard-code"), "permission_denied", "{answer:?}");
    }
}

#[tokio::test]
async fn a_foreign_origin_or_a_cross_site_request_is_refused_on_every_front() {
    let broker = Broker::start().await;
    let own = broker.address.to_string();
    let host = ("host", own.as_str());
    let own_origin = format!("http://{own}");
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "https://evil.example:7400"),
        ("origin", "null"),
        ("origin", ""),
        // Another server on this machine is another site.
        ("origin", "http://127.0.0.1:3000"),
        ("origin", "http://localhost"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        check_enqueue(&broker, &[host, (name, value)], 403).await;
    }
    let both = [host, ("origin", own_origin.as_str()), ("sec-fetch-site", "cross-site")];
    check_enqueue(&broker, &both, 403).await;
    assert_eq!(queues(&broker).await, Vec::<Value>::new(), "nothing was enqueued");
    let own = [host, ("origin", own_origin.as_str()), ("sec-fetch-site", "same-origin")];
    check_enqueue(&broker, &own, 201).await;
    // A request that a user typed into a browser.
    check_enqueue(&broker, &[host, ("sec-fetch-site", "none")], 201).await;

    let read = |headers: Vec<(&'static str, &'static str)>| {
        let (at, host) = (broker.address, broker.address.to_string());
        async move {
            let headers: Vec<_> = headers.into_iter().chain([("host", host.as_str())]).collect();
            send(at, "GET", "/v1/queues", &headers, b"").await.status
        }
    };
    assert_eq!(read(vec![("origin", "http://evil.example")]).await, 403);
    assert_eq!(read(vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")]).await, 403);
    let link = vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(read(link).await, 200, "a link on another page may lead here");
    broker.stop().await;
}

#[tokio::test]
async fn a_name_that_is_not_the_brokers_is_misdirected() {
    let broker = Broker::with(|config| {
        config.allowed_hosts = vec!["queue.internal".into(), ".cluster.local".into()];
        config.advertise_clients = Some("public.example:80".into());
    })
    .await;
    for host in [
        "evil.example",
        "evil.example:7400",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "queue.internal.evil.example",
        "a.queue.internal",
        "cluster.local",
        "evilcluster.local",
        "local",
        "",
        "[::1",
        "a b",
    ] {
        check_enqueue(&broker, &[("host", host)], 421).await;
    }
    assert_eq!(queues(&broker).await, Vec::<Value>::new(), "nothing was enqueued");
    for host in [
        "127.0.0.1",
        "10.1.2.3:7400",
        "[::1]:7400",
        "localhost",
        "LocalHost:7400",
        "localhost.:7400",
        "queue.internal:7400",
        "QUEUE.internal",
        "one.cluster.local",
        "one.two.cluster.local:1",
        "public.example",
    ] {
        check_enqueue(&broker, &[("host", host)], 201).await;
    }
    // A rebound name is refused whatever the other headers say.
    let rebound = [
        ("host", "evil.example:7400"),
        ("origin", "http://evil.example:7400"),
        ("sec-fetch-site", "same-origin"),
    ];
    check_enqueue(&broker, &rebound, 421).await;
    // An address in the request line counts too, and so does each of several hosts.
    let line = "http://evil.example/v1/queues";
    let answer = send(broker.address, "GET", line, &[("host", "localhost")], b"").await;
    assert_eq!(answer.status, 421);
    let twice = [("host", "localhost"), ("host", "evil.example")];
    assert!(send(broker.address, "GET", "/v1/queues", &twice, b"").await.status >= 400);
    broker.stop().await;
}

/// Each POST and PUT in the document, with a value for each of its parameters.
async fn writes(broker: &Broker) -> Vec<(String, String)> {
    let document = get(broker.address, "/openapi.json").await.ok();
    let mut writes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path: Vec<&str> =
            path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect();
        for method in ["post", "put"].iter().filter(|method| item.get(**method).is_some()) {
            writes.push((method.to_uppercase(), path.join("/")));
        }
    }
    writes
}

#[tokio::test]
async fn every_post_and_put_must_say_its_content_type() {
    let broker = Broker::start().await;
    let writes = writes(&broker).await;
    assert!(writes.len() > 25, "{writes:?}");
    // All that a form or a fetch without a preflight can send, with and without a body.
    let simple = [
        None,
        Some(""),
        Some("text/plain"),
        Some("text/plain; charset=application/json"),
        Some("application/x-www-form-urlencoded"),
        Some("multipart/form-data; boundary=x"),
    ];
    for (method, path) in &writes {
        for (content_type, body) in simple.iter().flat_map(|one| [(one, &b""[..]), (one, b"{}")]) {
            let mut headers = vec![("host", "localhost")];
            headers.extend(content_type.map(|media| ("content-type", media)));
            let answer = send(broker.address, method, path, &headers, body).await;
            let (status, code, detail) = answer.problem();
            assert_eq!(status, 415, "{method} {path} {headers:?}: {answer:?}");
            assert_eq!(code, "invalid_argument");
            assert!(detail.contains("application/json"), "{detail}");
        }
    }
    let path = "/v1/queues/q/tasks";
    post(broker.address, path, r#"{"type": "t"}"#).await.ok();
    let headers = [("host", "localhost"), JSON];
    let pause = send(broker.address, "POST", "/v1/queues/q/pause", &headers, b"").await;
    assert_eq!(pause.status, 200, "a body is not required: {pause:?}");
    broker.stop().await;
}

#[tokio::test]
async fn grpc_is_a_post_of_grpcs_content_type_alone() {
    let broker = Broker::start().await;
    let path = "/taskyard.v1.Taskyard/Enqueue";
    let message = b"\0\0\0\0\x05\x0a\x03\x12\x01t";
    let simple =
        [None, Some("text/plain"), Some("application/json"), Some("text/application/grpc")];
    for content_type in simple {
        let mut headers = vec![("host", "localhost")];
        headers.extend(content_type.map(|media| ("content-type", media)));
        let answer = send(broker.address, "POST", path, &headers, message).await;
        assert_eq!(answer.status, 415, "{content_type:?}: {answer:?}");
    }
    let answer = send(broker.address, "GET", path, &[("host", "localhost"), GRPC], message).await;
    assert_eq!(answer.status, 405, "{answer:?}");
    assert_eq!(queues(&broker).await, Vec::<Value>::new(), "nothing was enqueued");
    for content_type in ["application/grpc", "application/grpc+proto"] {
        let headers = [("host", "localhost"), ("content-type", content_type)];
        let answer = send(broker.address, "POST", path, &headers, message).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(queues(&broker).await.len(), 1);
    broker.stop().await;
}

#[tokio::test]
async fn a_client_that_uses_an_unknown_name_learns_how_to_allow_it() {
    let broker = Broker::start().await;
    let uri: tonic::codegen::http::Uri = "http://queue.internal:7400".parse().unwrap();
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", broker.address));
    let channel = endpoint.unwrap().origin(uri).connect().await.unwrap();
    let mut client = taskyard_proto::v1::taskyard_client::TaskyardClient::new(channel);
    let request = taskyard_proto::v1::ListQueuesRequest::default();
    let status = client.list_queues(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status:?}");
    assert_eq!(crate::common::code(&status), "permission_denied", "{status:?}");
    for words in ["queue.internal", "--allowed-hosts"] {
        assert!(status.message().contains(words), "{status:?}");
    }
    broker.stop().await;
}
