//! Handshake: how two nodes find out that they belong to one cluster, without any I/O.
//!
//! The steps are Hello, Challenge, Proof and Welcome, or Refused with the reason at any step. Each
//! side draws a nonce. Each side proves the cluster's secret by an HMAC over all that both have
//! said and over its own role: so a proof that was recorded or sent back is worthless. Each step
//! consumes the step before, so that no frame is taken out of order.
//!
//! The dialer proves first, so that a stranger who dials gets nothing made with the secret, on
//! which it could try guesses. The acceptor's proof is in its answer, a Welcome or a Refused.
//!
//! The handshake says which node opened a connection. It neither encrypts nor authenticates what
//! follows: the network between nodes must be private.

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

/// The longest text of a handshake; longer ones are cut.
const TEXT_BYTES_MAX: usize = 512;

/// A node's claims about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// The node's cluster; 0 while it asks to join one.
    pub cluster: u128,
    /// The node's number in the cluster; 0 if it has none yet.
    pub node: NodeId,
    /// The start of the node's data. Its random part tells a node that came back from two nodes
    /// with one number; its count tells older data from newer.
    pub start: Start,
    /// The version that the node runs, for people.
    pub build: String,
    /// The newest rules of the machine that the node knows.
    pub rules: u16,
}

/// Why a node refuses another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct Refusal {
    pub code: RefusalCode,
    /// The reason, for people.
    pub words: String,
}

/// Why two nodes do not connect. The numbers are the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalCode {
    /// They have no common version of the protocol.
    Versions = 1,
    /// They belong to two clusters.
    Cluster = 2,
    /// They have different secrets.
    Secret = 3,
    /// Another live process has this node's number.
    NodeInUse = 4,
    /// The cluster does not know this node, or no longer does.
    NotAMember = 5,
    /// The bytes are no handshake.
    Malformed = 6,
    /// There are too many connections; try again later.
    Full = 7,
    /// Another node than the expected one has the address.
    WrongNode = 8,
    /// The acceptor has no cluster itself.
    NoCluster = 9,
    /// The node's data is older than at its last start.
    Outdated = 10,
    /// A reason of a newer version.
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

    /// The frame that sends the refusal.
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

/// Why a handshake ended without a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    /// The other side refused, after it had proved the secret and its number.
    #[error("refused by the other side: {0}")]
    RefusedByPeer(Refusal),
    /// The other side refused and has proved nothing: for people to read, and not to act on.
    #[error("refused by the other side, which has proved nothing: {0}")]
    Unproved(Refusal),
    /// This side refuses, and tells the other.
    #[error("{0}")]
    RefusedByUs(Refusal),
}

impl From<Refusal> for HandshakeError {
    fn from(refusal: Refusal) -> HandshakeError {
        HandshakeError::RefusedByUs(refusal)
    }
}

/// What both sides have sent before the proofs, and the secret that they prove.
#[derive(Debug)]
struct Transcript<'a> {
    me: &'a Identity,
    hello: Bytes,
    challenge: Bytes,
}

impl Transcript<'_> {
    fn dialer_proof(&self) -> Hmac<Sha256> {
        self.mac_over(&[DIALER])
    }

    /// The acceptor's proof, which also covers its answer, so that a refusal can't become a
    /// welcome.
    fn acceptor_proof(&self, kind: Kind, answer: &[u8]) -> Hmac<Sha256> {
        self.mac_over(&[ACCEPTOR, &[kind as u8], answer])
    }

    /// Each part carries its length, so that the parts can't be cut differently.
    fn mac_over(&self, more: &[&[u8]]) -> Hmac<Sha256> {
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

/// The dialer has sent its Hello.
#[derive(Debug)]
pub(super) struct Dialing<'a> {
    me: &'a Identity,
    /// The node that is expected at the address; `None` if the dialer asks to join.
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

    /// Checks the acceptor's claims, which are unproved so far. Returns the frame with the dialer's
    /// proof.
    pub(super) fn challenged(self, frame: &Frame) -> Result<(Proved<'a>, Frame), HandshakeError> {
        expect(Kind::Challenge, frame)?;
        let mut reader = Reader(&frame.body);
        let version = reader.u16()?;
        let peer = reader.hello()?;
        if !(VERSIONS.0..=VERSIONS.1).contains(&version) {
            return Err(no_common_version((version, version)).into());
        }
        if self.me.hello.cluster != 0 && peer.cluster != self.me.hello.cluster {
            return Err(wrong_cluster(peer.cluster, self.me.hello.cluster).into());
        }
        if let Some(expected) = self.expected.filter(|expected| *expected != peer.node) {
            let words =
                format!("node {expected} was expected here, and this is node {}", peer.node);
            return Err(Refusal::new(RefusalCode::WrongNode, words).into());
        }
        let transcript =
            Transcript { me: self.me, hello: self.hello, challenge: frame.body.clone() };
        let proof = transcript.dialer_proof().finalize().into_bytes();
        Ok((Proved { peer, transcript }, Frame::new(Kind::Proof, 0, proof.to_vec())))
    }
}

/// The dialer has sent its proof.
#[derive(Debug)]
pub(super) struct Proved<'a> {
    peer: PeerHello,
    transcript: Transcript<'a>,
}

impl Proved<'_> {
    /// Checks the acceptor's answer. The connection is then open to the returned node.
    pub(super) fn welcomed(self, frame: &Frame) -> Result<PeerHello, HandshakeError> {
        let split = frame.body.len().saturating_sub(PROOF_BYTES);
        let (answer, proof) = frame.body.split_at(split);
        let is_proved =
            self.transcript.acceptor_proof(frame.kind, answer).verify_slice(proof).is_ok();
        match frame.kind {
            Kind::Welcome if is_proved => Ok(self.peer),
            Kind::Welcome => Err(wrong_secret().into()),
            Kind::Refused if is_proved => {
                Err(HandshakeError::RefusedByPeer(Refusal::read(answer)?))
            }
            // A refusal by a node with another secret, or by any program.
            Kind::Refused => Err(HandshakeError::Unproved(Refusal::read(&frame.body)?)),
            found => Err(out_of_turn(found, Kind::Welcome).into()),
        }
    }
}

/// The acceptor has sent its Challenge.
#[derive(Debug)]
pub(super) struct Challenging<'a> {
    peer: PeerHello,
    transcript: Transcript<'a>,
}

impl<'a> Challenging<'a> {
    /// Takes the dialer's Hello. The returned Challenge names the acceptor, and proves nothing.
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
            return Err(no_common_version(theirs));
        }
        let peer = reader.hello()?;
        me.hello.may_meet(&peer)?;

        let mut body = BytesMut::new();
        body.put_u16_le(version);
        put_hello(&mut body, &me.hello, nonce);
        let challenge = body.freeze();
        let answer = Frame::new(Kind::Challenge, 0, challenge.clone());
        let transcript = Transcript { me, hello: frame.body.clone(), challenge };
        Ok((Challenging { peer, transcript }, answer))
    }

    /// Checks the dialer's proof. The secret then vouches for the returned node; the caller decides
    /// whether the node is let in.
    pub(super) fn proved(
        self,
        frame: &Frame,
    ) -> Result<(PeerHello, Answering<'a>), HandshakeError> {
        expect(Kind::Proof, frame)?;
        match self.transcript.dialer_proof().verify_slice(&frame.body) {
            Ok(()) => Ok((self.peer, Answering(self.transcript))),
            Err(_differs) => Err(wrong_secret().into()),
        }
    }
}

/// The dialer has proved itself; the acceptor's answer carries the acceptor's proof.
#[derive(Debug)]
pub(super) struct Answering<'a>(Transcript<'a>);

impl Answering<'_> {
    pub(super) fn welcome(&self) -> Frame {
        self.prove(&Frame::new(Kind::Welcome, 0, Bytes::new()))
    }

    /// Refuses the dialer. The proof lets the dialer act on the reason.
    pub(super) fn refuse(&self, refusal: &Refusal) -> Frame {
        self.prove(&refusal.frame())
    }

    fn prove(&self, frame: &Frame) -> Frame {
        let proof = self.0.acceptor_proof(frame.kind, &frame.body).finalize().into_bytes();
        let mut body = BytesMut::from(&frame.body[..]);
        body.put_slice(&proof);
        Frame { body: body.freeze(), ..frame.clone() }
    }
}

impl PeerHello {
    /// Whether the dialing node may be a peer of this one, before any proof.
    fn may_meet(&self, peer: &PeerHello) -> Result<(), Refusal> {
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

/// The role, which keeps one side's proof from being sent back as the other's.
const ACCEPTOR: &[u8] = b"taskyard peer 1 acceptor";
const DIALER: &[u8] = b"taskyard peer 1 dialer";

/// Checks the kind of a frame from an unproved node.
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

fn no_common_version(theirs: (u16, u16)) -> Refusal {
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

/// Reads the fields of a handshake. Fields that a newer version appends are ignored; the proofs
/// cover them.
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

    /// Reads a text, made fit for a log: one line, and no longer than this node would send.
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
        // The proofs cover the nonce, which has no other use.
        self.take(NONCE_BYTES)?;
        let build = self.text()?;
        let rules = self.u16()?;
        let count = self.take(8)?.get_u64_le();
        Ok(PeerHello { cluster, node, start: Start { count, boot }, build, rules })
    }
}

#[cfg(test)]
mod tests;
