//! A connection to a server: a greeting, then one command at a time.
//!
//! A call that is dropped early leaves its reply in the stream, and the connection is useless then:
//! callers finish their calls, or drop the connection.

use std::{fmt, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{
    Error, Info, Url, password,
    reply::{self, Reply},
};

/// Well below the minute of silence after which a server gives up a worker.
pub const BEAT_EVERY: Duration = Duration::from_secs(10);
/// A reachable server accepts a connection within this time.
const CONNECT_FOR_MAX: Duration = Duration::from_secs(5);
/// Longer than any answer takes, because FETCH waits two seconds.
const ANSWER_FOR_MAX: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 8 << 10;
/// The version of the protocol.
const VERSION: u32 = 2;

/// The client's name for the server.
#[derive(Clone, Debug, Default)]
pub struct Who {
    /// The worker id, with which a client may fetch and must beat. A producer has none.
    pub wid: Option<String>,
    /// Labels, which people see beside the id.
    pub labels: Vec<String>,
}

/// A server's order in its answer to a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orders {
    /// Go on.
    GoOn,
    /// Fetch nothing more.
    Quiet,
    /// Fetch nothing more and end.
    Terminate,
}

/// One connection.
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    server: String,
    /// Received bytes of the next reply.
    read: Vec<u8>,
    line: Vec<u8>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection to {}", self.server)
    }
}

#[derive(Deserialize)]
struct Hi {
    v: u32,
    #[serde(default)]
    i: Option<u32>,
    #[serde(default)]
    s: Option<String>,
}

#[derive(Serialize)]
struct Hello<'a> {
    hostname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    wid: Option<&'a str>,
    pid: u32,
    labels: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pwdhash: Option<String>,
    v: u32,
}

impl Connection {
    /// Connects and says hello.
    pub async fn open(url: &Url, who: &Who) -> Result<Connection, Error> {
        let server = url.to_string();
        let lost = |problem: String| Error::Lost { server: server.clone(), problem };
        let stream = timeout(CONNECT_FOR_MAX, TcpStream::connect(url.host_and_port())).await;
        let stream =
            stream.map_err(|_| lost(format!("no connection within {CONNECT_FOR_MAX:?}")))?;
        let stream = stream.map_err(|error| lost(error.to_string()))?;
        let peer = stream.peer_addr().map_err(|error| lost(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| lost(error.to_string()))?;
        let mut this = Connection { stream, peer, server, read: Vec::new(), line: Vec::new() };
        this.greet(url.password(), who).await?;
        Ok(this)
    }

    /// The address of the server.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    async fn greet(&mut self, password: Option<&str>, who: &Who) -> Result<(), Error> {
        let reply = timeout(ANSWER_FOR_MAX, self.reply()).await;
        let hi = match reply.map_err(|_| self.silent())?? {
            Reply::Simple(text) => {
                let hi =
                    text.strip_prefix("HI ").and_then(|hi| serde_json::from_str::<Hi>(hi).ok());
                hi.ok_or_else(|| self.strange(format!("{text:?} instead of HI")))?
            }
            other => return Err(self.unexpected(other)),
        };
        if hi.v != VERSION {
            let problem = format!("version {} of the protocol; this client speaks {VERSION}", hi.v);
            return Err(self.strange(problem));
        }
        let pwdhash = match (hi.s, password) {
            (None, _) => None,
            (Some(salt), Some(password)) => {
                let iterations = hi.i.unwrap_or(1);
                let hash = password::hash(password, &salt, iterations);
                Some(hash.map_err(|problem| self.strange(problem))?)
            }
            (Some(_), None) => {
                let problem =
                    "the wish for a password; put it into the URL: tcp://:PASSWORD@host:port";
                return Err(self.strange(problem.to_owned()));
            }
        };
        let hello = Hello {
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            wid: who.wid.as_deref(),
            pid: std::process::id(),
            labels: &who.labels,
            pwdhash,
            v: VERSION,
        };
        self.ok("HELLO", &json(&hello)).await
    }

    /// Pushes a job, unchanged.
    pub async fn push(&mut self, job: &[u8]) -> Result<(), Error> {
        self.ok("PUSH", job).await
    }

    /// The next job of the first of these queues that has one; waits two seconds for it.
    pub async fn fetch(&mut self, queues: &[String]) -> Result<Option<Vec<u8>>, Error> {
        match self.ask("FETCH", queues.join(" ").as_bytes()).await? {
            Reply::Bulk(job) => Ok(Some(job)),
            Reply::Nil => Ok(None),
            other => Err(self.unexpected(other)),
        }
    }

    /// Acknowledges a job.
    pub async fn ack(&mut self, jid: &str) -> Result<(), Error> {
        self.ok("ACK", &json(&serde_json::json!({ "jid": jid }))).await
    }

    /// Sends a beat.
    pub async fn beat(&mut self, wid: &str) -> Result<Orders, Error> {
        #[derive(Deserialize)]
        struct Wanted {
            state: String,
        }
        let reply = self.ask("BEAT", &json(&serde_json::json!({ "wid": wid }))).await?;
        let wanted = match &reply {
            Reply::Simple(text) if text == "OK" => return Ok(Orders::GoOn),
            Reply::Simple(text) => self.read_json::<Wanted>(text.as_bytes())?,
            Reply::Bulk(text) => self.read_json::<Wanted>(text)?,
            _ => return Err(self.unexpected(reply)),
        };
        match wanted.state.as_str() {
            "quiet" => Ok(Orders::Quiet),
            "terminate" => Ok(Orders::Terminate),
            other => Err(self.strange(format!("the state {other:?}, which no worker knows"))),
        }
    }

    /// The server's counts.
    pub async fn info(&mut self) -> Result<Info, Error> {
        let json = self.value("INFO", b"").await?;
        Info::read(&json).map_err(|error| self.strange(format!("an INFO without counts: {error}")))
    }

    async fn ok(&mut self, verb: &str, rest: &[u8]) -> Result<(), Error> {
        match self.ask(verb, rest).await? {
            Reply::Simple(text) if text == "OK" => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    async fn value(&mut self, verb: &str, rest: &[u8]) -> Result<Vec<u8>, Error> {
        match self.ask(verb, rest).await? {
            Reply::Bulk(value) => Ok(value),
            other => Err(self.unexpected(other)),
        }
    }

    async fn ask(&mut self, verb: &str, rest: &[u8]) -> Result<Reply, Error> {
        self.line.clear();
        write_line(&mut self.line, verb, rest);
        let answer = timeout(ANSWER_FOR_MAX, async {
            let sent = self.stream.write_all(&self.line).await;
            sent.map_err(|error| self.lost(error.to_string()))?;
            self.reply().await
        });
        match answer.await {
            Ok(Ok(Reply::Error { word, message })) => Err(Error::Refused { word, message }),
            Ok(reply) => reply,
            Err(_elapsed) => Err(self.silent()),
        }
    }

    async fn reply(&mut self) -> Result<Reply, Error> {
        loop {
            match reply::parse(&self.read) {
                Ok(Some((reply, length))) => {
                    self.read.drain(..length);
                    return Ok(reply);
                }
                Ok(None) => {}
                Err(problem) => return Err(self.strange(problem)),
            }
            self.read.reserve(READ_BYTES);
            match self.stream.read_buf(&mut self.read).await {
                Ok(0) => return Err(self.lost("it closed the connection".to_owned())),
                Ok(_) => {}
                Err(error) => return Err(self.lost(error.to_string())),
            }
        }
    }

    fn read_json<'a, T: Deserialize<'a>>(&self, json: &'a [u8]) -> Result<T, Error> {
        serde_json::from_slice(json).map_err(|error| self.strange(format!("strange JSON: {error}")))
    }

    fn unexpected(&self, reply: Reply) -> Error {
        match reply {
            Reply::Error { word, message } => Error::Refused { word, message },
            other => {
                let shown: String = format!("{other:?}").chars().take(80).collect();
                self.strange(format!("{shown}, which was not asked for"))
            }
        }
    }

    fn silent(&self) -> Error {
        self.lost(format!("nothing came within {ANSWER_FOR_MAX:?}"))
    }

    fn lost(&self, problem: String) -> Error {
        Error::Lost { server: self.server.clone(), problem }
    }

    fn strange(&self, problem: String) -> Error {
        Error::Strange { server: self.server.clone(), problem }
    }
}

/// A command is one line. A line end in JSON is between values, where a space means the same.
fn write_line(line: &mut Vec<u8>, verb: &str, rest: &[u8]) {
    line.extend_from_slice(verb.as_bytes());
    if !rest.is_empty() {
        line.push(b' ');
        line.extend(
            rest.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }),
        );
    }
    line.extend_from_slice(b"\r\n");
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are JSON")
}

#[cfg(test)]
mod tests;
