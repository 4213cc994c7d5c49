//! Handshake: how two nodes find out that they belong together, without any I/O.
//!
//! Hello, Challenge, Proof, Welcome, or Refused with the reason at any step. Each side draws a nonce, and
//! proves with an HMAC over everything that both have said, and its own role, that it knows the cluster's
//! secret: a proof that was recorded or sent back is worth nothing. Each step takes the one before by
//! value, so that no frame is taken out of turn.
//!
//! The dialer proves first: a stranger that dials gets nothing that was made with the secret, which it could
//! try guesses on. The acceptor's proof is in its answer to the dialer's, a Welcome or a Refused.
//!
//! The handshake says who opened a connection. It neither hides nor seals what follows on it: the network
//! between nodes must be private.

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
    /// Which start of its data it is. What its process drew then tells a node that came back from two that
    /// claim one number; the count tells older data from newer.
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
    /// Whoever is there said no, and has proved nothing: for people to read, and nothing to act upon.
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

    /// Checks the dialer's proof. The node that comes out is who it says it is, as far as the secret
    /// tells; whether it is let in is for others to say.
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
        self.prove(Frame::new(Kind::Welcome, 0, Bytes::new()))
    }

    /// Refuses the dialer, which may act on it: the words are a peer's.
    pub(super) fn refuse(&self, refusal: &Refusal) -> Frame {
        self.prove(refusal.frame())
    }

    fn prove(&self, frame: Frame) -> Frame {
        let proof = self.0.acceptors(frame.kind, &frame.body).finalize().into_bytes();
        let mut body = BytesMut::from(&frame.body[..]);
        body.put_slice(&proof);
        Frame { body: body.freeze(), ..frame }
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

/// Reads a handshake's fields. What a newer version adds behind them is not looked at; the proofs cover it.
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
mod tests {
    use super::*;

    fn identity(cluster: u128, node: NodeId, secret: &str) -> Identity {
        let build = "test".to_string();
        let start = Start { count: 5, boot: u128::from(node) + 100 };
        let hello = PeerHello { cluster, node, start, build, rules: 3 };
        Identity { hello, secret: secret.as_bytes().to_vec() }
    }

    /// Runs a whole handshake: what the dialer learns, then the acceptor.
    fn shake(
        dialer: &Identity,
        acceptor: &Identity,
    ) -> Result<(PeerHello, PeerHello), HandshakeError> {
        let (dialing, hello) = Dialing::start(dialer, Some(acceptor.hello.node), &[1; 32]);
        let (challenging, challenge) = Challenging::start(acceptor, &hello, &[2; 32])?;
        let (proved, proof) = dialing.challenged(&challenge)?;
        let (found_by_acceptor, answering) = challenging.proved(&proof)?;
        Ok((proved.welcomed(&answering.welcome())?, found_by_acceptor))
    }

    fn code(refused: Result<impl fmt::Debug, HandshakeError>) -> RefusalCode {
        match refused.unwrap_err() {
            HandshakeError::RefusedByPeer(refusal)
            | HandshakeError::Unproved(refusal)
            | HandshakeError::RefusedByUs(refusal) => {
                assert!(!refusal.words.is_empty());
                refusal.code
            }
        }
    }

    #[test]
    fn nodes_of_one_cluster_learn_who_the_other_is() {
        for secret in ["", "open sesame"] {
            let (one, two) = (identity(9, 1, secret), identity(9, 2, secret));
            assert_eq!(shake(&one, &two), Ok((two.hello.clone(), one.hello.clone())));
        }
    }

    #[test]
    fn a_node_that_asks_to_join_has_neither_cluster_nor_number() {
        let (new, two) = (identity(0, 0, "s"), identity(9, 2, "s"));
        assert_eq!(shake(&new, &two), Ok((two.hello.clone(), new.hello.clone())));
        let waits = identity(0, 0, "s");
        assert_eq!(shake(&new, &waits), Ok((waits.hello.clone(), new.hello.clone())));
    }

    #[test]
    fn nodes_that_do_not_belong_together_are_told_why() {
        let here = identity(9, 2, "s");
        let same_boot = Identity { hello: here.hello.clone(), secret: b"s".to_vec() };
        let mut other_boot = same_boot.clone();
        other_boot.hello.start.boot += 1;
        for (dialer, acceptor, expected) in [
            (identity(8, 1, "s"), here.clone(), RefusalCode::Cluster),
            (identity(9, 1, "other"), here.clone(), RefusalCode::Secret),
            (identity(9, 1, ""), here.clone(), RefusalCode::Secret),
            (identity(0, 0, "other"), here.clone(), RefusalCode::Secret),
            (identity(9, 0, "s"), here.clone(), RefusalCode::Malformed),
            (identity(9, 1, "s"), identity(0, 2, "s"), RefusalCode::NoCluster),
            (same_boot, here.clone(), RefusalCode::NodeInUse),
            (other_boot, here, RefusalCode::NodeInUse),
        ] {
            assert_eq!(code(shake(&dialer, &acceptor)), expected, "{dialer:?} to {acceptor:?}");
        }
    }

    #[test]
    fn another_node_at_the_address_is_not_taken_for_the_expected_one() {
        let (one, two) = (identity(9, 1, "s"), identity(9, 2, "s"));
        let (dialing, hello) = Dialing::start(&one, Some(3), &[1; 32]);
        let (_, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
        assert_eq!(code(dialing.challenged(&challenge)), RefusalCode::WrongNode);
    }

    #[test]
    fn a_refusal_is_a_peers_only_after_its_proof() {
        let refusal = Refusal::new(RefusalCode::NotAMember, "node 1 was removed");
        for secret in ["", "s"] {
            let (one, two) = (identity(9, 1, secret), identity(9, 2, secret));
            let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
            let early = dialing.challenged(&refusal.frame()).unwrap_err();
            assert_eq!(early, HandshakeError::Unproved(refusal.clone()));

            let proved = || {
                let (dialing, _) = Dialing::start(&one, Some(2), &[1; 32]);
                let (challenging, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
                let (proved, proof) = dialing.challenged(&challenge).unwrap();
                (proved, challenging.proved(&proof).unwrap().1)
            };
            let (dialer, _) = proved();
            let unproved = dialer.welcomed(&refusal.frame()).unwrap_err();
            assert_eq!(unproved, HandshakeError::Unproved(refusal.clone()));
            let (dialer, answering) = proved();
            let refused = dialer.welcomed(&answering.refuse(&refusal)).unwrap_err();
            assert_eq!(refused, HandshakeError::RefusedByPeer(refusal.clone()));
            // A proof of one answer is no proof of another.
            let (dialer, answering) = proved();
            let forged = Frame { kind: Kind::Welcome, ..answering.refuse(&refusal) };
            assert_eq!(code(dialer.welcomed(&forged)), RefusalCode::Secret);
        }
    }

    /// A proof of the acceptor's would be something to try guesses of the secret on.
    #[test]
    fn a_dialer_that_proves_nothing_gets_nothing_made_with_the_secret() {
        let answers = |secret: &str, proof: &[u8]| {
            let (stranger, me) = (identity(9, 2, "a guess"), identity(9, 1, secret));
            let (_, hello) = Dialing::start(&stranger, None, &[1; 32]);
            let (challenging, challenge) = Challenging::start(&me, &hello, &[2; 32]).unwrap();
            let refused = challenging.proved(&Frame::new(Kind::Proof, 0, proof.to_vec()));
            let HandshakeError::RefusedByUs(refusal) = refused.unwrap_err() else {
                panic!("a guess is no proof")
            };
            (challenge, refusal.frame())
        };
        for proof in [&[0; 32][..], &[]] {
            assert_eq!(answers("one secret", proof), answers("another", proof));
        }
    }

    #[test]
    fn versions_that_do_not_meet_are_refused_with_both_ranges() {
        let (one, two) = (identity(9, 1, "s"), identity(9, 2, "s"));
        for (theirs, meets) in [((1, 1), true), ((1, 9), true), ((2, 9), false), ((0, 0), false)] {
            let (_, mut hello) = Dialing::start(&one, None, &[1; 32]);
            let mut body = BytesMut::from(&hello.body[..]);
            body[..2].copy_from_slice(&u16::to_le_bytes(theirs.0));
            body[2..4].copy_from_slice(&u16::to_le_bytes(theirs.1));
            hello.body = body.freeze();
            let started = Challenging::start(&two, &hello, &[2; 32]);
            match started {
                Ok(_) => assert!(meets, "{theirs:?}"),
                Err(refusal) => {
                    assert!(!meets, "{theirs:?}");
                    assert_eq!(refusal.code, RefusalCode::Versions);
                    assert!(refusal.words.contains("1 to 1 here"), "{refusal}");
                }
            }
        }
    }

    #[test]
    fn a_recorded_proof_opens_no_second_connection() {
        let (one, two) = (identity(9, 1, "s"), identity(9, 2, "s"));
        let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
        let (challenging, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
        let (_, proof) = dialing.challenged(&challenge).unwrap();
        challenging.proved(&proof).unwrap();

        let (again, _) = Challenging::start(&two, &hello, &[3; 32]).unwrap();
        assert_eq!(code(again.proved(&proof)), RefusalCode::Secret);
    }

    #[test]
    fn the_dialers_own_proof_sent_back_is_none() {
        let (one, two) = (identity(9, 1, "s"), identity(9, 2, "s"));
        let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
        let (_, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
        let (proved, proof) = dialing.challenged(&challenge).unwrap();
        let reflected = Frame { kind: Kind::Welcome, ..proof };
        assert_eq!(code(proved.welcomed(&reflected)), RefusalCode::Secret);
    }

    #[test]
    fn every_bit_that_was_said_is_covered_by_the_proofs() {
        let (one, two) = (identity(9, 1, "s"), identity(9, 2, "s"));
        let (_, hello) = Dialing::start(&one, Some(2), &[1; 32]);
        let flipped = |frame: &Frame, at: usize| {
            let mut body = BytesMut::from(&frame.body[..]);
            body[at] ^= 1;
            Frame { body: body.freeze(), ..frame.clone() }
        };
        // A challenge that was changed on its way is refused by the dialer, or proved in vain.
        let (_, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
        for at in 0..challenge.body.len() {
            let (challenging, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
            let (dialing, _) = Dialing::start(&one, Some(2), &[1; 32]);
            let refused = match dialing.challenged(&flipped(&challenge, at)) {
                Ok((_, proof)) => challenging.proved(&proof).is_err(),
                Err(_refused) => true,
            };
            assert!(refused, "byte {at} of the challenge");
        }
        // The same of the hello, which the acceptor may refuse at once.
        for at in 0..hello.body.len() {
            let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
            let Ok((challenging, challenge)) =
                Challenging::start(&two, &flipped(&hello, at), &[2; 32])
            else {
                continue;
            };
            let proof = dialing.challenged(&challenge).unwrap().1;
            assert!(challenging.proved(&proof).is_err(), "byte {at} of the hello");
        }
        let answers = |of: fn(&Answering<'_>) -> Frame| {
            let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
            let (challenging, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
            let (proved, proof) = dialing.challenged(&challenge).unwrap();
            (proved, of(&challenging.proved(&proof).unwrap().1))
        };
        let welcomed = |answering: &Answering<'_>| answering.welcome();
        let refused = |answering: &Answering<'_>| {
            answering.refuse(&Refusal::new(RefusalCode::Full, "no room"))
        };
        for of in [welcomed as fn(&Answering<'_>) -> Frame, refused] {
            for at in 0..answers(of).1.body.len() {
                let (proved, answer) = answers(of);
                let error = proved.welcomed(&flipped(&answer, at)).unwrap_err();
                let is_proved = matches!(error, HandshakeError::RefusedByPeer(_));
                assert!(!is_proved, "byte {at} of {:?}", answer.kind);
            }
        }
    }

    #[test]
    fn a_refusal_is_read_back_and_made_fit_for_a_log() {
        let long = "x".repeat(2_000);
        for (words, shown) in [("no\nroom", "no room"), (&*long, &long[..512]), ("", "")] {
            let frame = Refusal::new(RefusalCode::Full, words).frame();
            let read = Refusal::read(&frame.body).unwrap();
            assert_eq!((read.code, &*read.words), (RefusalCode::Full, shown));
        }
        assert_eq!(RefusalCode::parse(77), RefusalCode::Other);
    }

    #[test]
    fn frames_out_of_turn_and_cut_short_are_refused_in_words() {
        let (one, two) = (identity(9, 1, "s"), identity(9, 2, "s"));
        let raft = Frame::new(Kind::Raft, 1, &b"early"[..]);
        let refused = Challenging::start(&two, &raft, &[2; 32]).unwrap_err();
        assert_eq!(refused.code, RefusalCode::Malformed);
        let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
        assert_eq!(code(dialing.challenged(&raft)), RefusalCode::Malformed);
        for end in 0..hello.body.len() {
            let cut = Frame::new(Kind::Hello, 0, hello.body.slice(..end));
            let refused = Challenging::start(&two, &cut, &[2; 32]).unwrap_err();
            assert_eq!(refused.code, RefusalCode::Malformed, "cut at {end}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert!(!format!("{:?}", identity(9, 1, "open sesame")).contains("sesame"));
    }
}
