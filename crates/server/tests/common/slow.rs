//! A proxy in front of a node that delays every second connection: messages from one peer come
//! late, messages from another do not.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// The proxy, which runs as long as the test's runtime.
pub(crate) struct SlowProxy {
    pub(crate) address: SocketAddr,
    target: Arc<OnceLock<SocketAddr>>,
}

impl SlowProxy {
    /// Opens a proxy with this delay.
    pub(crate) async fn open(delay: Duration) -> SlowProxy {
        let listener = TcpListener::bind(super::cluster::ANY_PORT).await.unwrap();
        let address = listener.local_addr().unwrap();
        let target: Arc<OnceLock<SocketAddr>> = Arc::default();
        let to = Arc::clone(&target);
        tokio::spawn(async move {
            let mut delays = [Duration::ZERO, delay].into_iter().cycle();
            loop {
                let (from, _) = listener.accept().await.unwrap();
                // A peer that dials before the node exists dials again.
                let Some(&to) = to.get() else { continue };
                let Ok(to) = TcpStream::connect(to).await else { continue };
                let (from_read, mut from_write) = from.into_split();
                let (mut to_read, to_write) = to.into_split();
                let delay = delays.next().unwrap_or_default();
                tokio::spawn(carry_late(from_read, to_write, delay));
                tokio::spawn(async move { copy(&mut to_read, &mut from_write).await });
            }
        });
        SlowProxy { address, target }
    }

    /// Sets the node.
    pub(crate) fn set_target(&self, target: SocketAddr) {
        self.target.set(target).unwrap();
    }
}

async fn carry_late(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let (late, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, bytes)) = due.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 || late.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
            return;
        }
    }
}
