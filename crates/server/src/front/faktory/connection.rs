//! Connection: the hello, then one command after another until either side closes.
//!
//! Every wait has an end: for the hello, for the rest of a line, for the client to read its answer.
//! While a fetch waits for a job, the node watches the connection, so that no job goes to a client
//! that has gone.

use super::{
    Shared,
    caller::Caller,
    frame::{LARGE_LINE_BYTES, Lines, Reply, split},
    hello::{Challenge, parse},
};
use crate::{
    buffers::{Buffers, Reserved},
    limits,
};
use bytes::BytesMut;
use std::{
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Semaphore,
    time::{Instant, sleep, timeout, timeout_at},
};

const HELLO_FOR_MAX: Duration = Duration::from_millis(limits::FAKTORY_HELLO_MS_MAX);
const LINE_FOR_MAX: Duration = Duration::from_millis(limits::FAKTORY_LINE_MS_MAX);
const WRITE_FOR_MAX: Duration = Duration::from_millis(limits::WRITE_MS_MAX);
/// The bytes that a client may send ahead while its fetch waits.
const AHEAD_BYTES_MAX: usize = 64 << 10;
/// Larger buffers are freed after their line.
const BUFFER_KEPT_BYTES: usize = 8 << 10;
/// Bytes of a line beyond this are counted, in steps.
const LINE_FREE_BYTES: usize = 8 << 10;
const LINE_STEP_BYTES: usize = 64 << 10;
/// How long a line waits for room, and how often it tries.
const ROOM_FOR_MAX: Duration = Duration::from_millis(limits::FAKTORY_ROOM_MS_MAX);
const ROOM_LOOKED_AT_EVERY: Duration = Duration::from_millis(50);

/// The connection has ended.
pub(super) struct Over;

/// The stream of a connection, with its input and output.
pub(super) struct Wire<S> {
    stream: S,
    lines: Lines,
    out: Vec<u8>,
    /// Memory reserved for the line that is read or answered.
    reserved: Reserved,
}

/// Serves one connection to its end.
pub(super) async fn serve<S>(shared: &Arc<Shared>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut wire = Wire::new(stream, &shared.broker.buffers().of_connection());
    let caller = match timeout(HELLO_FOR_MAX, wire.greet(shared)).await {
        Ok(Ok(caller)) => caller,
        Ok(Err(Over)) | Err(_) => return,
    };
    // The client decides how the connection ends.
    let _ = wire.serve(caller).await;
    let _ = timeout(Duration::from_secs(1), wire.stream.shutdown()).await;
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    fn new(stream: S, buffers: &Buffers) -> Wire<S> {
        Wire { stream, lines: Lines::default(), out: Vec::new(), reserved: buffers.none() }
    }

    async fn greet(&mut self, shared: &Arc<Shared>) -> Result<Caller, Over> {
        if shared.broker.is_stopping() {
            self.send(&Reply::error("shutdown in progress")).await?;
            return Err(Over);
        }
        let challenge = Challenge::new(&shared.password);
        self.out.extend_from_slice(challenge.greeting().as_bytes());
        self.flush().await?;
        let line = loop {
            match self.lines.next(limits::FAKTORY_HELLO_BYTES_MAX) {
                Ok(Some(line)) => break line,
                Ok(None) => self.read().await?,
                Err(_too_long) => return Err(Over),
            }
        };
        // A client of another protocol gets no answer.
        let hello = parse(&line).ok_or(Over)?;
        if !challenge.is_met(&hello, &shared.password) {
            self.send(&Reply::error("Invalid password")).await?;
            return Err(Over);
        }
        match Caller::new(shared, hello) {
            Ok(caller) => {
                self.send(&Reply::Ok).await?;
                Ok(caller)
            }
            Err(error) => {
                self.send(&Reply::error(error.to_string())).await?;
                Err(Over)
            }
        }
    }

    async fn serve(&mut self, mut caller: Caller) -> Result<(), Over> {
        let shared = caller.shared.clone();
        let mut stopping = pin!(shared.broker.stopping());
        loop {
            let line = self.line(&shared.large, stopping.as_mut()).await?;
            shared.commands.fetch_add(1, Ordering::Relaxed);
            caller.heard();
            let Ok(text) = std::str::from_utf8(&line) else {
                self.send(&Reply::error("the line is not UTF-8")).await?;
                continue;
            };
            match split(text) {
                ("END", _) => return Ok(()),
                ("FETCH", queues) => {
                    let queues = queues.to_owned();
                    drop(line);
                    self.fetch(&mut caller, &queues).await?;
                }
                ("MUTATE", mutation) => {
                    let Wire { stream, lines, .. } = self;
                    let reply = tokio::select! {
                        biased;
                        reply = caller.command("MUTATE", mutation) => reply,
                        // A mutation looks through all jobs, which is wasted if the client has
                        // left.
                        () = gone(stream, lines) => return Err(Over),
                    };
                    drop(line);
                    self.send(&reply).await?;
                }
                (verb, rest) => {
                    let reply = caller.command(verb, rest).await;
                    drop(line);
                    self.send(&reply).await?;
                }
            }
        }
    }

    /// The next line, unless the node stops.
    async fn line(
        &mut self,
        large: &Semaphore,
        mut stopping: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<BytesMut, Over> {
        let mut _large = None;
        let mut until = None;
        loop {
            match self.lines.next(limits::FAKTORY_LINE_BYTES_MAX) {
                Ok(Some(line)) => return Ok(line),
                Ok(None) => {}
                Err(_too_long) => {
                    let bytes_max = limits::FAKTORY_LINE_BYTES_MAX;
                    let text = format!("a line has more than {bytes_max} bytes; send less at once");
                    self.send(&Reply::error(text)).await?;
                    return Err(Over);
                }
            }
            let waiting = self.lines.waiting();
            if waiting > LINE_FREE_BYTES {
                self.reserve(waiting).await?;
            }
            if waiting == 0 {
                self.reserved.shrink_to(0);
                if self.lines.buffer().capacity() > BUFFER_KEPT_BYTES {
                    *self.lines.buffer() = BytesMut::new();
                }
                tokio::select! {
                    biased;
                    read = self.read() => read?,
                    () = stopping.as_mut() => return Err(Over),
                }
                continue;
            }
            if waiting > LARGE_LINE_BYTES && _large.is_none() {
                tokio::select! {
                    // The semaphore is never closed, so a permit comes in the end.
                    place = large.acquire() => _large = place.ok(),
                    () = stopping.as_mut() => return Err(Over),
                }
                // The client is not to blame for this wait.
                until = None;
            }
            // The time is for the whole line, even if it comes in small pieces.
            let until = *until.get_or_insert_with(|| Instant::now() + LINE_FOR_MAX);
            let read = tokio::select! {
                biased;
                read = timeout_at(until, self.read()) => read,
                () = stopping.as_mut() => return Err(Over),
            };
            match read {
                Ok(read) => read?,
                Err(_elapsed) => {
                    let text = "the rest of a line did not come; the connection is closed";
                    self.send(&Reply::error(text)).await?;
                    return Err(Over);
                }
            }
        }
    }

    /// Reserves memory for a line with `waiting` bytes so far. Waits a bounded time for room.
    async fn reserve(&mut self, waiting: usize) -> Result<(), Over> {
        let wanted = waiting.next_multiple_of(LINE_STEP_BYTES);
        let more = wanted.saturating_sub(self.reserved.bytes());
        if more == 0 {
            return Ok(());
        }
        let until = Instant::now() + ROOM_FOR_MAX;
        loop {
            let Err(full) = self.reserved.grow(more) else { return Ok(()) };
            if Instant::now() >= until {
                self.send(&Reply::error(full.to_string())).await?;
                return Err(Over);
            }
            sleep(ROOM_LOOKED_AT_EVERY).await;
        }
    }

    /// Fetches a job and sends it. A job that can't be sent is released.
    async fn fetch(&mut self, caller: &mut Caller, queues: &str) -> Result<(), Over> {
        let fetched = {
            let Wire { stream, lines, .. } = self;
            let fetch = caller.fetch(queues);
            tokio::select! {
                biased;
                fetched = fetch => fetched,
                () = gone(stream, lines) => return Err(Over),
            }
        };
        match fetched {
            Ok(None) => self.send(&Reply::Nil).await,
            Err(reply) => self.send(&reply).await,
            Ok(Some(job)) => {
                let sent = self.send(&Reply::Bulk(job.json)).await;
                if sent.is_err() {
                    caller.give_back(&job.jid, job.handed);
                }
                sent
            }
        }
    }

    async fn read(&mut self) -> Result<(), Over> {
        match self.stream.read_buf(self.lines.buffer()).await {
            Ok(0) | Err(_) => Err(Over),
            Ok(_) => Ok(()),
        }
    }

    pub(super) async fn send(&mut self, reply: &Reply) -> Result<(), Over> {
        reply.write(&mut self.out);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), Over> {
        let mut answer = self.reserved.split(0);
        answer.charge(self.out.len());
        let sent = timeout(WRITE_FOR_MAX, async {
            self.stream.write_all(&self.out).await?;
            self.stream.flush().await
        });
        let sent = sent.await;
        self.out.clear();
        if self.out.capacity() > BUFFER_KEPT_BYTES {
            self.out = Vec::new();
        }
        match sent {
            Ok(Ok(())) => Ok(()),
            _ => Err(Over),
        }
    }
}

/// Completes when the client has gone. Keeps what the client sends ahead.
async fn gone<S: AsyncRead + Unpin>(stream: &mut S, lines: &mut Lines) {
    while lines.waiting() < AHEAD_BYTES_MAX {
        match stream.read_buf(lines.buffer()).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};

    fn wire() -> (Wire<DuplexStream>, DuplexStream) {
        let (stream, client) = duplex(1 << 20);
        (Wire::new(stream, &Buffers::new(0)), client)
    }

    async fn line(mut wire: Wire<DuplexStream>) -> Option<BytesMut> {
        let never = pin!(std::future::pending());
        wire.line(&Semaphore::new(1), never).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_has_its_time_however_small_its_pieces_are() {
        let (wire, mut client) = wire();
        let begun = Instant::now();
        let reading = tokio::spawn(line(wire));
        while !reading.is_finished() {
            client.write_all(b"x").await.unwrap();
            tokio::time::sleep(LINE_FOR_MAX / 3).await;
            assert!(begun.elapsed() < 2 * LINE_FOR_MAX);
        }
        assert_eq!(reading.await.unwrap(), None);
        let mut told = String::new();
        client.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("-ERR the rest of a line did not come"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_waits_for_room_and_is_refused_when_there_is_none() {
        let buffers = Buffers::new(0);
        let others = buffers.reserve(48 << 20).unwrap();
        let (stream, mut client) = duplex(1 << 20);
        let reading = tokio::spawn(line(Wire::new(stream, &buffers)));
        client.write_all(&[b'x'; 100_000]).await.unwrap();
        let mut told = String::new();
        client.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("-ERR requests and answers in flight"), "{told}");
        assert_eq!(reading.await.unwrap(), None);
        // The next line waits too, and continues once another request is done.
        let (stream, mut client) = duplex(1 << 20);
        let reading = tokio::spawn(line(Wire::new(stream, &buffers)));
        client.write_all(&[b'x'; 100_000]).await.unwrap();
        sleep(ROOM_FOR_MAX / 2).await;
        assert!(buffers.bytes() < (48 << 20) + 100_000, "it is read no further");
        drop(others);
        sleep(ROOM_LOOKED_AT_EVERY).await;
        assert!(buffers.bytes() >= 100_000);
        client.write_all(b"\n").await.unwrap();
        assert_eq!(reading.await.unwrap().unwrap().len(), 100_000);
        assert_eq!(buffers.bytes(), 0, "counted as long as it is there");
    }

    #[tokio::test]
    async fn half_a_line_ends_with_its_connection() {
        let (wire, mut client) = wire();
        client.write_all(b"PUSH {").await.unwrap();
        drop(client);
        assert_eq!(line(wire).await, None);
    }
}
