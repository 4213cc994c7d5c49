//! Accepting: which nodes may connect to this node, and which are connected.
//!
//! Invariants: an unproved connection costs a small buffer and a bounded time. The number of
//! unproved connections is bounded; the oldest is closed first. One live process has a node's
//! number at a time: another process is refused with a reason, and a process that connects again
//! replaces its older connection.

use super::{
    Core,
    connection::{Ended, FrameReader, write_frame},
    dial::nonce,
    frame::{Frame, Kind, PREFACE},
    handshake::{Challenging, HandshakeError, PeerHello, Refusal, RefusalCode},
    serve::serve,
};
use crate::limits;
use bytes::Buf;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use taskyard_replica::NodeId;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};

/// The pause after the system could not accept a connection.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The connections that other processes made to this node.
#[derive(Debug)]
pub(super) struct Accepted {
    /// Unproved connections, oldest first, and how to end them.
    strangers: Mutex<BTreeMap<u64, Arc<Notify>>>,
    peers: Mutex<BTreeMap<NodeId, Place>>,
    joins: Semaphore,
}

/// A peer that is connected here.
#[derive(Debug)]
struct Place {
    connection: u64,
    boot: u128,
    end: Arc<Notify>,
}

/// Why a connection is not let in.
enum NotAdmitted {
    /// The other side speaks another protocol.
    OtherProtocol { kind: &'static str, words: String },
    /// This node refuses the other side with this frame.
    Refused(Refusal, Frame),
    /// The other side has refused this node.
    RefusedUs(Refusal),
    /// The connection ended, or the other side sent no valid frame.
    Ended(Ended),
}

impl NotAdmitted {
    /// A refusal before the other side has proved itself; it carries no proof either.
    fn unproved(refusal: Refusal) -> NotAdmitted {
        let frame = refusal.frame();
        NotAdmitted::Refused(refusal, frame)
    }
}

impl From<Ended> for NotAdmitted {
    fn from(ended: Ended) -> NotAdmitted {
        NotAdmitted::Ended(ended)
    }
}

impl From<HandshakeError> for NotAdmitted {
    fn from(error: HandshakeError) -> NotAdmitted {
        match error {
            HandshakeError::RefusedByUs(refusal) => NotAdmitted::unproved(refusal),
            HandshakeError::RefusedByPeer(refusal) | HandshakeError::Unproved(refusal) => {
                NotAdmitted::RefusedUs(refusal)
            }
        }
    }
}

impl Accepted {
    pub(super) fn new() -> Accepted {
        Accepted {
            strangers: Mutex::default(),
            peers: Mutex::default(),
            joins: Semaphore::new(limits::PEER_JOINS_MAX),
        }
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.peers().contains_key(&node)
    }

    /// Ends the connection of a node that is no longer known.
    pub(super) fn hang_up(&self, node: NodeId) {
        if let Some(place) = self.peers().get(&node) {
            place.end.notify_one();
        }
    }

    fn strangers(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Place>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists an unproved connection; closes the oldest if there are too many.
    fn add_stranger(&self, connection: u64, strangers_max: usize) -> Arc<Notify> {
        let end = Arc::new(Notify::new());
        let mut strangers = self.strangers();
        strangers.insert(connection, end.clone());
        if strangers.len() > strangers_max
            && let Some((_, oldest)) = strangers.pop_first()
        {
            oldest.notify_one();
        }
        end
    }

    /// Gives a peer its place, unless another live process has it.
    fn seat(&self, connection: u64, peer: &PeerHello, end: &Arc<Notify>) -> Result<(), Refusal> {
        let mut peers = self.peers();
        match peers.get(&peer.node) {
            Some(seated) if seated.boot != peer.start.boot => {
                let words = format!(
                    "node {} is connected from another live process; two nodes claim one number: stop \
                     one, and never start a node from a copy of another's data",
                    peer.node
                );
                return Err(Refusal::new(RefusalCode::NodeInUse, words));
            }
            Some(seated) => seated.end.notify_one(),
            None if peers.len() >= limits::PEERS_MAX => {
                let words = format!("{} peers are connected, which is the limit", peers.len());
                return Err(Refusal::new(RefusalCode::Full, words));
            }
            None => {}
        }
        peers.insert(peer.node, Place { connection, boot: peer.start.boot, end: end.clone() });
        Ok(())
    }
}

/// Accepts connections; dropping the future ends them.
pub(super) async fn accept(core: Arc<Core>, listener: TcpListener) {
    let mut tasks = JoinSet::new();
    for connection in 0.. {
        let (socket, from) = loop {
            while tasks.try_join_next().is_some() {}
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => {
                    // Probably no file descriptors are left; connected peers are served meanwhile.
                    core.warnings.warn("connection that can't be accepted", "the system", error);
                    sleep(ACCEPT_AGAIN_AFTER).await;
                }
            }
        };
        let end = core.accepted.add_stranger(connection, core.tuning.strangers_max);
        let listed = Listed { core: core.clone(), connection, node: None };
        tasks.spawn(listed.receive(socket, from, end));
    }
}

/// A connection that is listed as unproved or as a peer, until this is dropped.
struct Listed {
    core: Arc<Core>,
    connection: u64,
    /// The node, once it has its place.
    node: Option<NodeId>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.core.accepted.strangers().remove(&self.connection);
        if let Some(node) = self.node {
            let mut peers = self.core.accepted.peers();
            if peers.get(&node).is_some_and(|place| place.connection == self.connection) {
                peers.remove(&node);
            }
        }
    }
}

impl Listed {
    async fn receive(mut self, socket: TcpStream, from: SocketAddr, end: Arc<Notify>) {
        let core = self.core.clone();
        // A failure only makes the connection slower.
        let _ = socket.set_nodelay(true);
        let (reader, mut writer) = socket.into_split();
        let mut reader = FrameReader::new(reader);
        let within = core.tuning.patience.handshake;
        let shaken = tokio::select! {
            shaken = timeout(within, self.shake(&mut reader, &mut writer, &end)) => shaken,
            () = end.notified() => {
                let words = "too many connections without a handshake; the oldest was closed";
                return core.warnings.warn("too many strangers", from, words);
            }
        };
        let peer = match shaken {
            Ok(Ok(peer)) => peer,
            Ok(Err(turned)) => return turn_away(&core, &mut writer, from, turned).await,
            Err(_elapsed) => {
                let words = format!("no handshake within {} ms", within.as_millis());
                return core.warnings.warn("slow handshake", from, words);
            }
        };
        core.accepted.strangers().remove(&self.connection);
        reader.trust();
        if peer.cluster == 0 {
            return serve_join(&core, reader, writer, from, peer).await;
        }
        let node = peer.node;
        reader.tell(core.heard(node));
        let bounds = (core.tuning.patience, core.tuning.allowance);
        let served =
            serve((reader, writer), node, core.handler.clone(), bounds, core.clock.clone());
        tokio::pin!(served);
        tokio::select! {
            ended = &mut served => match ended {
                Ended::NoFrame(_) | Ended::OutOfTurn(_) | Ended::AnswersUnread => {
                    core.warnings.warn("peer that breaks the protocol", from, ended);
                }
                Ended::Closed | Ended::Broke(_) | Ended::Silent(_) | Ended::Stalled(_) => {
                    tracing::debug!(node, %from, %ended, "the connection of a peer ended");
                }
            },
            () = end.notified() => tracing::debug!(node, %from, "a peer was hung up on"),
        }
    }

    /// The acceptor's side of the handshake. A peer has its place before it is welcomed.
    async fn shake(
        &mut self,
        reader: &mut FrameReader<impl AsyncRead + Unpin>,
        writer: &mut (impl AsyncWrite + Unpin),
        end: &Arc<Notify>,
    ) -> Result<PeerHello, NotAdmitted> {
        let core = self.core.clone();
        preface(reader).await?;
        let hello = reader.frame().await?;
        let (challenging, challenge) =
            Challenging::start(&core.me, &hello, &nonce()).map_err(NotAdmitted::unproved)?;
        write_frame(writer, &challenge).await?;
        let (peer, answering) = challenging.proved(&reader.frame().await?)?;
        let refused = |refusal: Refusal| {
            let frame = answering.refuse(&refusal);
            NotAdmitted::Refused(refusal, frame)
        };
        if peer.cluster != 0 {
            core.handler.admit(&peer).map_err(&refused)?;
            core.accepted.seat(self.connection, &peer, end).map_err(&refused)?;
            self.node = Some(peer.node);
            core.handler.seated(&peer).await.map_err(&refused)?;
        }
        write_frame(writer, &answering.welcome()).await?;
        Ok(peer)
    }
}

/// Reads the bytes before the first frame; fails at the first wrong byte.
async fn preface(reader: &mut FrameReader<impl AsyncRead + Unpin>) -> Result<(), NotAdmitted> {
    loop {
        let unread = reader.unread();
        let common = unread.len().min(PREFACE.len());
        if unread[..common] != PREFACE[..common] {
            return Err(identify_protocol(unread));
        }
        if common == PREFACE.len() {
            unread.advance(common);
            return Ok(());
        }
        reader.fill().await?;
    }
}

fn identify_protocol(found: &[u8]) -> NotAdmitted {
    const METHODS: [&[u8]; 6] = [b"GET ", b"POST", b"HEAD", b"PUT ", b"PRI ", b"OPTI"];
    let (kind, words) = match found {
        [0x16, 3, ..] => ("TLS", "a TLS client; nodes speak plain TCP on this port"),
        _ if METHODS.iter().any(|method| found.starts_with(method)) => {
            ("HTTP", "an HTTP client; clients use the other port")
        }
        _ => ("garbage", "a protocol that is not the one between nodes of this version"),
    };
    NotAdmitted::OtherProtocol { kind, words: words.to_string() }
}

/// Ends a connection that was not let in, and sends the refusal to a peer that can read it.
async fn turn_away(
    core: &Core,
    writer: &mut (impl AsyncWrite + Unpin),
    from: SocketAddr,
    turned: NotAdmitted,
) {
    match turned {
        NotAdmitted::OtherProtocol { kind, words } => core.warnings.warn(kind, from, words),
        NotAdmitted::RefusedUs(refusal) => {
            core.warnings.warn("peer that refused us", from, refusal)
        }
        NotAdmitted::Ended(ended @ Ended::NoFrame(_)) => {
            core.warnings.warn("bad frame", from, ended)
        }
        NotAdmitted::Ended(ended) => core.warnings.warn("cut handshake", from, ended),
        NotAdmitted::Refused(refusal, frame) => {
            core.warnings.warn(named(refusal.code), from, &refusal);
            let told = async {
                let _ = write_frame(writer, &frame).await;
                let _ = writer.shutdown().await;
            };
            let _ = timeout(core.tuning.patience.handshake, told).await;
        }
    }
}

fn named(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::Versions => "versions that do not meet",
        RefusalCode::Cluster => "wrong cluster",
        RefusalCode::Secret => "wrong secret",
        RefusalCode::NodeInUse => "node number in use",
        RefusalCode::NotAMember => "not a member",
        RefusalCode::Malformed => "malformed handshake",
        RefusalCode::Full => "too many peers",
        RefusalCode::WrongNode => "wrong node",
        RefusalCode::NoCluster => "no cluster here",
        RefusalCode::Outdated => "outdated data",
        RefusalCode::Other => "refused",
    }
}

/// Serves a node that asks to join: one call, one answer.
async fn serve_join(
    core: &Core,
    mut reader: FrameReader<impl AsyncRead + Unpin>,
    mut writer: impl AsyncWrite + Unpin,
    from: SocketAddr,
    hello: PeerHello,
) {
    let served = async {
        let asked = timeout(core.tuning.patience.handshake, reader.frame()).await;
        let call = match asked {
            Ok(frame) => frame?,
            Err(_elapsed) => return Err(Ended::Silent(core.tuning.patience.handshake)),
        };
        if call.kind != Kind::Call {
            return Err(Ended::OutOfTurn(format!("a {:?} frame to join with", call.kind)));
        }
        let Ok(_place) = core.accepted.joins.try_acquire() else {
            let words = "too many nodes ask to join; ask again later";
            return write_frame(&mut writer, &Frame::new(Kind::Declined, call.stream, words)).await;
        };
        let answer = tokio::select! {
            answer = core.handler.joined(hello, call.body) => answer,
            // A caller that hangs up needs no answer; one that sends more breaks the protocol.
            read = reader.frame() => {
                let frame = read?;
                return Err(Ended::OutOfTurn(format!("a {:?} frame after the call", frame.kind)));
            }
        };
        write_frame(&mut writer, &Frame::new(Kind::Reply, call.stream, answer)).await
    };
    match timeout(Duration::from_millis(limits::PEER_JOIN_MS_MAX), served).await {
        Ok(Ok(())) => {}
        Ok(Err(ended)) => core.warnings.warn("join that failed", from, ended),
        Err(_elapsed) => core.warnings.warn("join that failed", from, "no answer in time"),
    }
    let _ = writer.shutdown().await;
}
