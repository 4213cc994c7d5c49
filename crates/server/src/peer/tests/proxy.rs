//! A proxy whose line can be cut, stalled, or turned into a black hole.

use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// What the line does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Passes,
    /// Reads nothing, so that the sender's buffers fill.
    Stalls,
    /// Reads nothing of what comes back from the target.
    HoldsAnswers,
    /// Reads everything and delivers nothing. A connection that lost bytes stays silent until it is
    /// cut.
    Swallows,
}

#[derive(Clone, Copy, Debug)]
struct State {
    line: Line,
    /// Connections that are older than this are cut.
    cuts: u64,
}

/// Stands before one address.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: watch::Sender<State>,
    task: AbortHandle,
}

impl Proxy {
    pub(crate) async fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = watch::Sender::new(State { line: Line::Passes, cuts: 0 });
        let watched = state.clone();
        let task = tokio::spawn(async move {
            let mut lines = JoinSet::new();
            loop {
                let Ok((near, _)) = listener.accept().await else { continue };
                while lines.try_join_next().is_some() {}
                lines.spawn(carry(near, target, watched.subscribe()));
            }
        });
        Proxy { address, state, task: task.abort_handle() }
    }

    pub(crate) fn set(&self, line: Line) {
        self.state.send_modify(|state| state.line = line);
    }

    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(near: TcpStream, target: SocketAddr, mut state: watch::Receiver<State>) {
    let cuts = state.borrow().cuts;
    let Ok(far) = TcpStream::connect(target).await else { return };
    let (near_reader, near_writer) = near.into_split();
    let (far_reader, far_writer) = far.into_split();
    let there = pump(near_reader, far_writer, &[Line::Stalls], state.clone());
    let back = pump(far_reader, near_writer, &[Line::Stalls, Line::HoldsAnswers], state.clone());
    tokio::select! {
        () = there => {}
        () = back => {}
        _ = state.wait_for(|state| state.cuts != cuts) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    stalls: &[Line],
    mut state: watch::Receiver<State>,
) {
    let mut buffer = vec![0; 16 << 10];
    let mut swallowed = false;
    loop {
        let line = state.borrow_and_update().line;
        let moved = async {
            match line {
                line if stalls.contains(&line) && !swallowed => std::future::pending().await,
                _ => from.read(&mut buffer).await,
            }
        };
        let count = tokio::select! {
            read = moved => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => count,
            },
            _ = state.changed() => continue,
        };
        swallowed |= line == Line::Swallows;
        if !swallowed && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
