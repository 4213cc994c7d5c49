//! Handshake: how two nodes find out that they belong together, without any I/O.
//!
//! Hello, Challenge, Proof, Welcome, or Refused with the reason at any step. Each side draws a
//! nonce, and proves with an HMAC over everything that both have said, and its own role, that it
//! knows the cluster's secret: a proof that was recorded or sent back is worth nothing. Each step
//! takes the one before by value, so that no frame is taken out of turn.
//!
//! The dialer proves first: a stranger that dials gets nothing that was made with the secret, which
//! it could try guesses on. The acceptor's proof is in its answer to the dialer's, a Welcome or a
//! Refused.
//!
//! The handshake says who opened a connection. It neither hides nor seals what follows on it: the
//! network between nodes must be private.

use super::frame::{Frame, Kind};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use taskyard_replica::{NodeId, Start};

/// The versions of the protocol that this build speaks.
const VERSIONS: (u16, u16) = (1, 1);

const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;

/// Longest text of a handshake; longer ones are cut.
const TEXT_BYTES_MAX: usize = 512;

/// Who a node says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// The cluster it belongs to; 0 while it asks to join one.
    pub cluster: u128,
    /// Its number in the cluster; 0 if it has none yet.
    pub node: NodeId,
    /// Which start of its data it is. What its process drew then tells a node that came back from
    /// two that claim one number; the count tells older data from newer.
    pub start: Start,
    /// What it runs, for people.
    pub build: String,
    /// The newest rules of the machine that it knows.
    pub rules: u16,
}

/// What the other side is told when it is not let in, or tells us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people.
    pub words: String,
}

/// Why two nodes do not connect. The numbers are the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalCode {
    /// They speak no common version of the protocol.
    Versions = 1,
    /// They belong to two clusters.
    Cluster = 2,
    /// They do not have the same secret.
    Secret = 3,
    /// Another live process has this node's number.
    NodeInUse = 4,
    /// The cluster does not know this node, or no longer.
    NotAMember = 5,
    /// What was said is no handshake.
    Malformed = 6,
    /// There are too many connections; later there may be room.
    Full = 7,
    /// Another node than the expected one lives at the address.
    WrongNode = 8,
    /// The node that was asked belongs to no cluster itself.
    NoCluster = 9,
    /// The node's data is older than what it was last started with.
    Outdated = 10,
    /// A reason that a newer version has.
    Other = 255,
}

impl RefusalCode {
    fn parse(byte: u8) -> RefusalCode {
        match byte {
            1 => RefusalCode::Versions,
            2 => RefusalCode::Cluster,
            3 => RefusalCode::Secret,
            4 => RefusalCode::NodeInUse,
            5 => RefusalCode::NotAMember,
            6 => RefusalCode::Malformed,
            7 => RefusalCode::Full,
            8 => RefusalCode::WrongNode,
            9 => RefusalCode::NoCluster,
            10 => RefusalCode::Outdated,
            _ => RefusalCode::Other,
        }
    }
}

impl Refusal {
    pub(super) fn new(code: RefusalCode, words: impl Into<String>) -> Refusal {
        Refusal { code, words: words.into() }
    }

    /// How the other side is told.
    pub(super) fn frame(&self) -> Frame {
        let mut body = BytesMut::new();
        body.put_u8(self.code as u8);
        put_text(&mut body, &self.words);
        Frame::new(Kind::Refused, 0, body)
    }

    fn read(body: &[u8]) -> Result<Refusal, Refusal> {
        let mut reader = Reader(body);
        let code = RefusalCode::parse(reader.u8()?);
        Ok(Refusal { code, words: reader.text()? })
    }
}

/// What this side brings to every handshake.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) hello: PeerHello,
    /// Empty without a secret: then only clusters and numbers are checked.
    pub(super) secret: Vec<u8>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret stays out of logs.
        f.debug_struct("Identity").field("hello", &self.hello).finish_non_exhaustive()
    }
}

/// A number that is used once.
pub(super) type Nonce = [u8; NONCE_BYTES];

/// How a handshake ended without a connection, seen from the dialer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    /// The other side said no, after it has proved the secret and its place in the cluster.
    #[error("refused by the other side: {0}")]
    RefusedByPeer(Refusal),
    /// Whoever is there said no, and has proved nothing: for people to read, and nothing to act
    /// upon.
    #[error("refused by the other side, which has proved nothing: {0}")]
    Unproved(Refusal),
    /// This side says no, and tells the other.
    #[error("{0}")]
    RefusedByUs(Refusal),
}

impl From<Refusal> for HandshakeError {
    fn from(refusal: Refusal) -> HandshakeError {
        HandshakeError::RefusedByUs(refusal)
    }
}

/// All that both sides have said before the proofs, and the secret that they prove.
#[derive(Debug)]
struct Said<'a> {
    me: &'a Identity,
    hello: Bytes,
    challenge: Bytes,
}

impl Said<'_> {
    /// The dialer's proof.
    fn dialers(&self) -> Hmac<Sha256> {
        self.sealed(&[DIALER])
    }

    /// The acceptor's proof, which seals its answer too: a refusal is no welcome.
    fn acceptors(&self, kind: Kind, answer: &[u8]) -> Hmac<Sha256> {
        self.sealed(&[ACCEPTOR, &[kind as u8], answer])
    }

    /// Each part carries its length, so that none can borrow from the next.
    fn sealed(&self, more: &[&[u8]]) -> Hmac<Sha256> {
        let secret = &self.me.secret;
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key may have any length");
        for part in [&self.hello, &self.challenge]
            .into_iter()
            .map(|said| &said[..])
            .chain(more.iter().copied())
        {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

/// The dialer has said hello.
#[derive(Debug)]
pub(super) struct Dialing<'a> {
    me: &'a Identity,
    /// Who is expected at the address; anyone if the dialer asks to join.
    expected: Option<NodeId>,
    hello: Bytes,
}

impl<'a> Dialing<'a> {
    pub(super) fn start(
        me: &'a Identity,
        expected: Option<NodeId>,
        nonce: &Nonce,
    ) -> (Dialing<'a>, Frame) {
        let mut body = BytesMut::new();
        body.put_u16_le(VERSIONS.0);
        body.put_u16_le(VERSIONS.1);
        put_hello(&mut body, &me.hello, nonce);
        let hello = body.freeze();
        let frame = Frame::new(Kind::Hello, 0, hello.clone());
        (Dialing { me, expected, hello }, frame)
    }

    /// Looks at who says it answers, which nothing proves yet. The frame that comes out proves who
    /// dialled.
    pub(super) fn challenged(self, frame: &Frame) -> Result<(Proved<'a>, Frame), HandshakeError> {
        expect(Kind::Challenge, frame)?;
        let mut reader = Reader(&frame.body);
        let version = reader.u16()?;
        let peer = reader.hello()?;
        if !(VERSIONS.0..=VERSIONS.1).contains(&version) {
            return Err(versions_apart((version, version)).into());
        }
        if self.me.hello.cluster != 0 && peer.cluster != self.me.hello.cluster {
            return Err(wrong_cluster(peer.cluster, self.me.hello.cluster).into());
        }
        if let Some(expected) = self.expected.filter(|expected| *expected != peer.node) {
            let words =
                format!("node {expected} was expected here, and this is node {}", peer.node);
            return Err(Refusal::new(RefusalCode::WrongNode, words).into());
        }
        let said = Said { me: self.me, hello: self.hello, challenge: frame.body.clone() };
        let proof = said.dialers().finalize().into_bytes();
        Ok((Proved { peer, said }, Frame::new(Kind::Proof, 0, proof.to_vec())))
    }
}

/// The dialer has proved who it is.
#[derive(Debug)]
pub(super) struct Proved<'a> {
    peer: PeerHello,
    said: Said<'a>,
}

impl Proved<'_> {
    /// The connection is open, to the node that comes out.
    pub(super) fn welcomed(self, frame: &Frame) -> Result<PeerHello, HandshakeError> {
        let split = frame.body.len().saturating_sub(PROOF_BYTES);
        let (answer, proof) = frame.body.split_at(split);
        let is_proved = self.said.acceptors(frame.kind, answer).verify_slice(proof).is_ok();
        match frame.kind {
            Kind::Welcome if is_proved => Ok(self.peer),
            Kind::Welcome => Err(wrong_secret().into()),
            Kind::Refused if is_proved => {
                Err(HandshakeError::RefusedByPeer(Refusal::read(answer)?))
            }
            // One of a node that has another secret, or of anybody.
            Kind::Refused => Err(HandshakeError::Unproved(Refusal::read(&frame.body)?)),
            found => Err(out_of_turn(found, Kind::Welcome).into()),
        }
    }
}

/// The acceptor has heard who dials, and asks for the proof.
#[derive(Debug)]
pub(super) struct Challenging<'a> {
    peer: PeerHello,
    said: Said<'a>,
}

impl<'a> Challenging<'a> {
    /// Takes the dialer's hello. The frame that comes out says who answers, and proves nothing.
    pub(super) fn start(
        me: &'a Identity,
        frame: &Frame,
        nonce: &Nonce,
    ) -> Result<(Challenging<'a>, Frame), Refusal> {
        if frame.kind != Kind::Hello {
            return Err(out_of_turn(frame.kind, Kind::Hello));
        }
        let mut reader = Reader(&frame.body);
        let theirs = (reader.u16()?, reader.u16()?);
        let version = VERSIONS.1.min(theirs.1);
        if version < VERSIONS.0.max(theirs.0) {
            return Err(versions_apart(theirs));
        }
        let peer = reader.hello()?;
        me.hello.meets(&peer)?;

        let mut body = BytesMut::new();
        body.put_u16_le(version);
        put_hello(&mut body, &me.hello, nonce);
        let challenge = body.freeze();
        let answer = Frame::new(Kind::Challenge, 0, challenge.clone());
        let said = Said { me, hello: frame.body.clone(), challenge };
        Ok((Challenging { peer, said }, answer))
    }

    /// Checks the dialer's proof. The node that comes out is who it says it is, as far as the
    /// secret tells; whether it is let in is for others to say.
    pub(super) fn proved(
        self,
        frame: &Frame,
    ) -> Result<(PeerHello, Answering<'a>), HandshakeError> {
        expect(Kind::Proof, frame)?;
        match self.said.dialers().verify_slice(&frame.body) {
            Ok(()) => Ok((self.peer, Answering(self.said))),
            Err(_differs) => Err(wrong_secret().into()),
        }
    }
}

/// The dialer has proved itself to the acceptor, whose answer proves the acceptor.
#[derive(Debug)]
pub(super) struct Answering<'a>(Said<'a>);

impl Answering<'_> {
    /// Opens the connection.
    pub(super) fn welcome(&self) -> Frame {
        self.prove(&Frame::new(Kind::Welcome, 0, Bytes::new()))
    }

    /// Refuses the dialer, which may act on it: the words are a peer's.
    pub(super) fn refuse(&self, refusal: &Refusal) -> Frame {
        self.prove(&refusal.frame())
    }

    fn prove(&self, frame: &Frame) -> Frame {
        let proof = self.0.acceptors(frame.kind, &frame.body).finalize().into_bytes();
        let mut body = BytesMut::from(&frame.body[..]);
        body.put_slice(&proof);
        Frame { body: body.freeze(), ..frame.clone() }
    }
}

impl PeerHello {
    /// Whether the node that dials may be a peer of this one, before anything is proved.
    fn meets(&self, peer: &PeerHello) -> Result<(), Refusal> {
        if peer.cluster == 0 {
            return Ok(());
        }
        if self.cluster == 0 {
            let words = "this node belongs to no cluster yet; join one that does";
            return Err(Refusal::new(RefusalCode::NoCluster, words));
        }
        if peer.cluster != self.cluster {
            return Err(wrong_cluster(peer.cluster, self.cluster));
        }
        if peer.node == 0 {
            let words = "a node of a cluster without a number";
            return Err(Refusal::new(RefusalCode::Malformed, words));
        }
        if peer.node == self.node {
            let words = match peer.start.boot == self.start.boot {
                true => format!("this is node {} itself", self.node),
                false => format!(
                    "node {} is this live process already; two nodes claim one number: stop one, and \
                     never start a node from a copy of another's data",
                    self.node
                ),
            };
            return Err(Refusal::new(RefusalCode::NodeInUse, words));
        }
        Ok(())
    }
}

/// What keeps one side's proof from being sent back as the other's.
const ACCEPTOR: &[u8] = b"taskyard peer 1 acceptor";
const DIALER: &[u8] = b"taskyard peer 1 dialer";

/// Takes a frame of somebody who has proved nothing yet.
fn expect(kind: Kind, frame: &Frame) -> Result<(), HandshakeError> {
    match frame.kind {
        found if found == kind => Ok(()),
        Kind::Refused => Err(HandshakeError::Unproved(Refusal::read(&frame.body)?)),
        found => Err(out_of_turn(found, kind).into()),
    }
}

fn out_of_turn(found: Kind, wanted: Kind) -> Refusal {
    let words = format!("a {found:?} frame where the handshake wants {wanted:?}");
    Refusal::new(RefusalCode::Malformed, words)
}

fn versions_apart(theirs: (u16, u16)) -> Refusal {
    let words = format!(
        "protocol versions do not meet: {} to {} here, {} to {} there; upgrade the older node",
        VERSIONS.0, VERSIONS.1, theirs.0, theirs.1
    );
    Refusal::new(RefusalCode::Versions, words)
}

fn wrong_cluster(theirs: u128, ours: u128) -> Refusal {
    let words = format!("cluster {theirs:032x} is not this one, {ours:032x}; check the address");
    Refusal::new(RefusalCode::Cluster, words)
}

fn wrong_secret() -> Refusal {
    let words = "the cluster secrets differ; give every node the same --cluster-secret-file";
    Refusal::new(RefusalCode::Secret, words)
}

fn put_hello(out: &mut BytesMut, hello: &PeerHello, nonce: &Nonce) {
    out.put_u128_le(hello.cluster);
    out.put_u64_le(hello.node);
    out.put_u128_le(hello.start.boot);
    out.put_slice(nonce);
    put_text(out, &hello.build);
    out.put_u16_le(hello.rules);
    out.put_u64_le(hello.start.count);
}

fn put_text(out: &mut BytesMut, text: &str) {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.put_u16_le(end as u16);
    out.put_slice(&text.as_bytes()[..end]);
}

/// Reads a handshake's fields. What a newer version adds behind them is not looked at; the proofs
/// cover it.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let Some((taken, left)) = self.0.split_at_checked(count) else {
            return Err(Refusal::new(RefusalCode::Malformed, "a handshake that is cut short"));
        };
        self.0 = left;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, Refusal> {
        Ok(self.take(1)?.get_u8())
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        Ok(self.take(2)?.get_u16_le())
    }

    /// A text of the other side, made fit for a log: one line, and no more than we would send.
    fn text(&mut self) -> Result<String, Refusal> {
        let count = self.u16()?;
        let raw = String::from_utf8_lossy(self.take(count.into())?);
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        Ok(raw.chars().take(TEXT_BYTES_MAX).map(printable).collect())
    }

    fn hello(&mut self) -> Result<PeerHello, Refusal> {
        let cluster = self.take(16)?.get_u128_le();
        let node = self.take(8)?.get_u64_le();
        let boot = self.take(16)?.get_u128_le();
        // The nonce is in the proofs, with every other byte; nothing else is done with it.
        self.take(NONCE_BYTES)?;
        let build = self.text()?;
        let rules = self.u16()?;
        let count = self.take(8)?.get_u64_le();
        Ok(PeerHello { cluster, node, start: Start { count, boot }, build, rules })
    }
}

#[cfg(test)]
mod tests;
