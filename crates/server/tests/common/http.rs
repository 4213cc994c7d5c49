//! A small HTTP/1 client: one request per connection, everything visible.

use serde_json::Value;
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    head: String,
    /// The body, verbatim.
    pub(crate) text: String,
}

impl Answer {
    /// The value of a header; empty if absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.trim()).unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The body of a successful answer.
    pub(crate) fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        assert_eq!(self.content_type, "application/json", "{self:?}");
        self.json()
    }

    /// The status, code and detail of a problem.
    pub(crate) fn problem(&self) -> (u16, String, String) {
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        let body = self.json();
        assert_eq!(body["status"], self.status, "{self:?}");
        for field in ["type", "title"] {
            assert!(body[field].is_string(), "{self:?}");
        }
        let text = |field: &str| body[field].as_str().unwrap().to_owned();
        (self.status, text("code"), text("detail"))
    }
}

/// Sends one request and reads the whole answer.
pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    content_type: Option<&str>,
    body: &[u8],
) -> Answer {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let content_type = content_type.map(|media| format!("content-type: {media}\r\n"));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{}\r\n",
        body.len(),
        content_type.unwrap_or_default(),
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // A broker that refuses a body may answer before it has read the whole body.
    let _ = socket.write_all(body).await;
    read_answer(&mut socket).await
}

pub(crate) async fn read_answer(socket: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes).await;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let content_type = String::new();
    let mut answer = Answer { status, content_type, head: head.to_owned(), text: body.to_owned() };
    answer.content_type = answer.header("content-type").to_owned();
    // An answer of gRPC over HTTP/1 has no length, because its trailers follow.
    if answer.content_type != "application/grpc" {
        assert_ne!(answer.header("transfer-encoding"), "chunked", "answers have a length");
    }
    answer
}

pub(crate) async fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    send(address, "POST", path, Some("application/json"), body.as_bytes()).await
}

pub(crate) async fn put(address: SocketAddr, path: &str, body: &str) -> Answer {
    send(address, "PUT", path, Some("application/json"), body.as_bytes()).await
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, "GET", path, None, b"").await
}
