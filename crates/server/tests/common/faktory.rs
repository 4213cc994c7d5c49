//! A minimal Faktory client: it sends lines and reads replies.

use super::{Broker, DEADLINE};
use serde_json::Value;
use std::net::SocketAddr;
use taskyard_server::Config;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Bulk(String),
    Nil,
}

impl Reply {
    /// The JSON of a bulk reply.
    pub(crate) fn json(&self) -> Value {
        match self {
            Reply::Bulk(text) => serde_json::from_str(text).unwrap(),
            other => panic!("no bulk reply: {other:?}"),
        }
    }
}

pub(crate) fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

/// Opens a port for Faktory clients.
pub(crate) fn listens(config: &mut Config) {
    config.faktory = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
}

/// One connection.
pub(crate) struct Client(pub(crate) BufReader<TcpStream>);

impl Client {
    /// Connects, and reads the greeting.
    pub(crate) async fn dial(broker: &Broker) -> (Client, String) {
        let address = broker.node.faktory_address().unwrap();
        let mut client = Client(BufReader::new(TcpStream::connect(address).await.unwrap()));
        match client.reply().await {
            Some(Reply::Simple(greeting)) => (client, greeting),
            other => panic!("no greeting: {other:?}"),
        }
    }

    /// A producer.
    pub(crate) async fn open(broker: &Broker) -> Client {
        let (mut client, _) = Client::dial(broker).await;
        assert_eq!(client.call(r#"HELLO {"v":2}"#).await, ok());
        client
    }

    /// One connection of a worker.
    pub(crate) async fn worker(broker: &Broker, wid: &str) -> Client {
        Client::process(broker, wid, 77).await
    }

    /// A connection of the worker's process with that id.
    pub(crate) async fn process(broker: &Broker, wid: &str, pid: u32) -> Client {
        let (mut client, _) = Client::dial(broker).await;
        let hello = format!(
            r#"HELLO {{"hostname":"here","wid":"{wid}","pid":{pid},"labels":["test"],"v":2}}"#
        );
        assert_eq!(client.call(&hello).await, ok());
        client
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// Sends a line, and reads the reply.
    pub(crate) async fn call(&mut self, line: &str) -> Reply {
        self.send(format!("{line}\r\n").as_bytes()).await;
        self.reply().await.unwrap_or_else(|| panic!("closed after {line:.80}"))
    }

    /// Sends a line to which the reply must be OK.
    pub(crate) async fn done(&mut self, line: &str) {
        assert_eq!(self.call(line).await, ok(), "{line:.200}");
    }

    pub(crate) async fn push(&mut self, jid: &str, queue: &str) {
        let job = format!(r#"PUSH {{"jid":"{jid}","jobtype":"t","queue":"{queue}","args":[1]}}"#);
        self.done(&job).await;
    }

    /// The next reply; `None` if the connection has ended.
    pub(crate) async fn reply(&mut self) -> Option<Reply> {
        timeout(DEADLINE, self.read()).await.expect("an answer in time")
    }

    async fn read(&mut self) -> Option<Reply> {
        let mut line = String::new();
        match self.0.read_line(&mut line).await {
            Ok(read) if read > 0 => {}
            _ => return None,
        }
        let line = line.strip_suffix("\r\n").expect("lines end with CRLF");
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => Some(Reply::Simple(rest.to_owned())),
            "-" => Some(Reply::Error(rest.to_owned())),
            "$" if rest == "-1" => Some(Reply::Nil),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).await.unwrap();
                assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
                Some(Reply::Bulk(String::from_utf8(bytes).unwrap()))
            }
            other => panic!("unknown reply {other}{rest}"),
        }
    }
}
