//! Dialling: the connection to one peer, made again for as long as the peer is known.
//!
//! Invariants: `peer_up` and `peer_down` alternate, whatever ends the connection. The newest
//! address is dialled. The pause between two attempts doubles up to a bound, also when connections
//! are made and break at once.

use super::{
    Core, PeerStatus,
    calls::Dialled,
    connection::{Ended, FrameReader, write_frame},
    frame::{Kind, PREFACE},
    handshake::{Dialing, HandshakeError, Identity, Nonce, PeerHello, Refusal},
    hearing::Look,
};
use crate::{clock::real_now, pauses::Pauses, random::random_u64};
use bytes::Bytes;
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use taskyard_replica::NodeId;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

/// The first pause after a connection failed or ended.
const PAUSE_MIN: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("it can't be reached: {0}")]
    Unreachable(io::Error),
    #[error("no handshake: {0}")]
    NoHandshake(#[from] Ended),
    #[error("{0}")]
    Refused(#[from] HandshakeError),
    #[error("no handshake within {} ms", .0.as_millis())]
    TooSlow(Duration),
}

impl DialError {
    /// The refusal of either side.
    pub(super) fn refusal(&self) -> Option<&Refusal> {
        match self {
            DialError::Refused(
                HandshakeError::RefusedByPeer(refusal)
                | HandshakeError::Unproved(refusal)
                | HandshakeError::RefusedByUs(refusal),
            ) => Some(refusal),
            DialError::Unreachable(_) | DialError::NoHandshake(_) | DialError::TooSlow(_) => None,
        }
    }

    /// The refusal of a peer that has proved itself.
    fn verdict(&self) -> Option<&Refusal> {
        match self {
            DialError::Refused(HandshakeError::RefusedByPeer(refusal)) => Some(refusal),
            _ => None,
        }
    }
}

/// An open connection, and the node at its other end.
pub(super) type Opened = (FrameReader<OwnedReadHalf>, OwnedWriteHalf, PeerHello);

/// Opens a connection to the node at `address`, which must be `expected` if that is given.
pub(super) async fn dial(
    address: &str,
    me: &Identity,
    expected: Option<NodeId>,
    within: Duration,
) -> Result<Opened, DialError> {
    let opened = timeout(within, async {
        let socket = TcpStream::connect(address).await.map_err(DialError::Unreachable)?;
        socket.set_nodelay(true).map_err(DialError::Unreachable)?;
        let (reader, mut writer) = socket.into_split();
        let mut reader = FrameReader::new(reader);
        let peer = introduce(&mut reader, &mut writer, me, expected).await?;
        reader.trust();
        Ok((reader, writer, peer))
    });
    opened.await.unwrap_or(Err(DialError::TooSlow(within)))
}

/// The dialer's side of the handshake.
async fn introduce(
    reader: &mut FrameReader<impl AsyncRead + Unpin>,
    writer: &mut (impl AsyncWrite + Unpin),
    me: &Identity,
    expected: Option<NodeId>,
) -> Result<PeerHello, DialError> {
    writer.write_all(PREFACE).await.map_err(Ended::Broke)?;
    let (dialing, hello) = Dialing::start(me, expected, &nonce());
    write_frame(writer, &hello).await?;
    let (proved, proof) = match dialing.challenged(&reader.frame().await?) {
        Ok(proved) => proved,
        Err(error) => {
            if let HandshakeError::RefusedByUs(refusal) = &error {
                // The other node's operator should learn of it too.
                let _ = write_frame(writer, &refusal.frame()).await;
            }
            return Err(error.into());
        }
    };
    write_frame(writer, &proof).await?;
    Ok(proved.welcomed(&reader.frame().await?)?)
}

pub(super) fn nonce() -> Nonce {
    let mut nonce = Nonce::default();
    nonce.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random_u64().to_le_bytes()));
    nonce
}

/// A peer that this node keeps a connection to.
#[derive(Debug)]
pub(super) struct Link {
    node: NodeId,
    /// `None` once the peer was removed. The link stays, so that the end of an old connection is
    /// reported before a new one.
    address: watch::Sender<Option<String>>,
    open: Mutex<Option<Arc<Dialled>>>,
    raft_dropped: AtomicU64,
    pub(super) last_error: watch::Sender<Option<String>>,
    /// Why the peer itself refused the last attempt.
    verdict: Mutex<Option<Refusal>>,
}

impl Link {
    pub(super) fn new(node: NodeId) -> Link {
        Link {
            node,
            address: watch::Sender::new(None),
            open: Mutex::default(),
            raft_dropped: AtomicU64::new(0),
            last_error: watch::Sender::new(None),
            verdict: Mutex::default(),
        }
    }

    /// Sets or removes the peer's address. Returns whether it changed.
    pub(super) fn set_address(&self, address: Option<&str>) -> bool {
        self.address.send_if_modified(|current| {
            let moved = current.as_deref() != address;
            if moved {
                *current = address.map(str::to_string);
            }
            moved
        })
    }

    /// Whether the peer is to be connected.
    pub(super) fn is_known(&self) -> bool {
        self.address.borrow().is_some()
    }

    /// Keeps the peer connected while it has an address. Never ends.
    pub(super) async fn keep(self: Arc<Link>, core: Arc<Core>) {
        let mut address = self.address.subscribe();
        let fresh = || Pauses::between(PAUSE_MIN, core.tuning.patience.redial_max);
        let mut pauses = fresh();
        loop {
            let target = address.borrow_and_update().clone();
            let Some(target) = target else {
                // The link itself has the sender, so that this waits.
                let _ = address.changed().await;
                continue;
            };
            tokio::select! {
                held = self.connect(&core, &target) => pauses.after(held),
                _moved = address.changed() => {
                    pauses = fresh();
                    continue;
                }
            }
            tokio::select! {
                () = sleep(pauses.next()) => {}
                _moved = address.changed() => {
                    pauses = fresh();
                }
            }
        }
    }

    /// Checks regularly whether the peer is heard. Never ends. After a pause of the process one
    /// check counts, so that waiting messages are read first.
    pub(super) async fn listen(self: Arc<Link>, core: Arc<Core>) {
        let hearing = core.listen_for(self.node);
        let mut looks = interval(core.tuning.patience.look_every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            match hearing.look() {
                Look::Heard | Look::Silent => {}
                Look::Waits => {
                    if let Some(dialled) = self.dialled() {
                        dialled.ping();
                    }
                }
                Look::FellSilent => {
                    tracing::debug!(node = self.node, "a peer is no longer heard");
                    core.handler.peer_heard(self.node, false);
                }
            }
        }
    }

    /// Opens a connection and runs it to its end. Returns how long it lasted.
    async fn connect(&self, core: &Arc<Core>, address: &str) -> Duration {
        let dialled = dial(address, &core.me, Some(self.node), core.tuning.patience.handshake);
        // A node that may not connect here is not dialled either, because it may not understand
        // what is sent.
        let dialled = dialled.await.and_then(|opened| match core.handler.admit(&opened.2) {
            Ok(()) => Ok(opened),
            Err(refusal) => Err(HandshakeError::RefusedByUs(refusal).into()),
        });
        core.listen_for(self.node).tried();
        let (mut reader, writer, peer) = match dialled {
            Ok(opened) => opened,
            Err(error) => {
                match &error {
                    DialError::Refused(refused) => {
                        let whom = format_args!("node {} at {address}", self.node);
                        core.warnings.warn("peer that can't be dialled", whom, refused);
                    }
                    error => tracing::debug!(node = self.node, address, %error, "no connection"),
                }
                *self.verdict() = error.verdict().cloned();
                self.failed(error.to_string());
                return Duration::ZERO;
            }
        };
        *self.verdict() = None;
        reader.tell(core.heard(self.node));
        let dialled = Arc::new(Dialled::new(peer, core.clock.clone(), core.tuning.calls_max));
        let opened_at = real_now();
        let _up = Up::new(self, core, dialled.clone());
        tracing::info!(node = self.node, address, "connected to a peer");
        let ended = dialled.run(reader, writer, core.tuning.patience).await;
        tracing::warn!(node = self.node, address, %ended, "the connection to a peer ended");
        self.failed(ended.to_string());
        real_now().duration_since(opened_at)
    }

    fn failed(&self, error: String) {
        self.last_error.send_replace(Some(error));
    }

    /// Queues a Raft message; `false` if the peer is not connected and the message was dropped.
    pub(super) fn raft(&self, frame: super::frame::Frame) -> bool {
        let open = self.open().clone();
        let dropped = match &open {
            Some(dialled) => dialled.queue.push_raft(frame),
            None => 1,
        };
        self.raft_dropped.fetch_add(dropped, Ordering::Relaxed);
        open.is_some()
    }

    /// The connection, while there is one.
    pub(super) fn dialled(&self) -> Option<Arc<Dialled>> {
        self.open().clone()
    }

    fn open(&self) -> MutexGuard<'_, Option<Arc<Dialled>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verdict(&self) -> MutexGuard<'_, Option<Refusal>> {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer's state; `connects_here` says whether the peer has dialled this node.
    pub(super) fn status(&self, connects_here: bool) -> PeerStatus {
        let open = self.dialled();
        let open = open.as_deref();
        let (frames_waiting, bytes_waiting) = open.map(|d| d.queue.waiting()).unwrap_or_default();
        PeerStatus {
            node: self.node,
            address: self.address.borrow().clone().unwrap_or_default(),
            connected_since_ms: open.map(|dialled| dialled.since_ms),
            connects_here,
            build: open.map(|dialled| dialled.peer.build.clone()),
            rules: open.map(|dialled| dialled.peer.rules),
            round_trip: open.and_then(|dialled| dialled.pings().round_trip()),
            clock_skew_ms: open.and_then(|dialled| dialled.pings().clock_skew_ms()),
            frames_waiting,
            bytes_waiting,
            calls_under_way: open.map(Dialled::calls_under_way).unwrap_or_default(),
            raft_dropped: self.raft_dropped.load(Ordering::Relaxed),
            last_error: self.last_error.borrow().clone(),
            verdict: self.verdict().clone(),
        }
    }
}

/// A connection that is up, until this is dropped: by its end, by a new address, or with its link.
struct Up<'a> {
    link: &'a Link,
    core: &'a Core,
    dialled: Arc<Dialled>,
}

impl<'a> Up<'a> {
    fn new(link: &'a Link, core: &'a Core, dialled: Arc<Dialled>) -> Up<'a> {
        *link.open() = Some(dialled.clone());
        // Made before `peer_up`, so that even a handler that panics gets `peer_down`.
        let up = Up { link, core, dialled };
        core.handler.peer_up(link.node);
        up
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        *self.link.open() = None;
        self.dialled.end();
        self.core.handler.peer_down(self.link.node);
    }
}

/// Why a node could not ask a cluster to take it in.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nothing was asked: no node answers at the address.
    #[error("no node answers at {address}: {why}")]
    NoNode {
        /// The address that was dialled.
        address: String,
        /// The reason, for people.
        why: String,
    },
    /// Nothing was asked: the program at the address speaks another protocol.
    #[error(
        "what answers at {address} is not the peer address of a node; give the address that the node has \
         for other nodes (port 7401 by default), not the one for clients"
    )]
    NotAPeer {
        /// The address that was dialled.
        address: String,
    },
    /// The node there, or this one, refused.
    #[error("the node at {address} refuses: {refusal}")]
    Refused {
        /// The address that was dialled.
        address: String,
        /// The reason of either side.
        refusal: Refusal,
    },
    /// The node was asked and did not answer: the cluster may have taken this node in. Asking again
    /// is safe if the request names the asking node.
    #[error("the node at {address} gave no answer: {why}")]
    NoAnswer {
        /// The address that was dialled.
        address: String,
        /// The reason, for people.
        why: String,
    },
}

/// Asks on a connection of its own, and waits for the answer.
pub(super) async fn ask_to_join(
    address: &str,
    me: &Identity,
    request: Bytes,
    wait: Duration,
) -> Result<(PeerHello, Bytes), JoinError> {
    let no_node = |why: String| JoinError::NoNode { address: address.to_string(), why };
    let no_answer = |why: String| JoinError::NoAnswer { address: address.to_string(), why };
    let dialled = dial(address, me, None, wait.min(super::connection::PATIENCE.handshake)).await;
    let (mut reader, mut writer, peer) =
        dialled.map_err(|error| match (&error, error.refusal()) {
            (_, Some(refusal)) => {
                JoinError::Refused { address: address.to_string(), refusal: refusal.clone() }
            }
            (DialError::NoHandshake(Ended::NoFrame(_)), None) => {
                JoinError::NotAPeer { address: address.to_string() }
            }
            (_, None) => no_node(error.to_string()),
        })?;
    let asked = timeout(wait, async {
        write_frame(&mut writer, &super::frame::Frame::new(Kind::Call, 1, request)).await?;
        reader.frame().await
    });
    match asked.await {
        Ok(Ok(frame)) if frame.kind == Kind::Reply => Ok((peer, frame.body)),
        Ok(Ok(frame)) if frame.kind == Kind::Declined => {
            let words = String::from_utf8_lossy(&frame.body).into_owned();
            let refusal = Refusal::new(super::handshake::RefusalCode::Full, words);
            Err(JoinError::Refused { address: address.to_string(), refusal })
        }
        Ok(Ok(frame)) => Err(no_answer(format!("a {:?} frame instead", frame.kind))),
        Ok(Err(ended)) => Err(no_answer(ended.to_string())),
        Err(_elapsed) => Err(no_answer("no answer in time".to_string())),
    }
}
