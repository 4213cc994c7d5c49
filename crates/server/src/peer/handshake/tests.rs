//! Whole handshakes, and what goes wrong in them.

use super::*;

fn identity(cluster: u128, node: NodeId, secret: &str) -> Identity {
    let build = "test".to_string();
    let start = Start { count: 5, boot: u128::from(node) + 100 };
    let hello = PeerHello { cluster, node, start, build, rules: 3 };
    Identity { hello, secret: secret.as_bytes().to_vec() }
}

/// Runs a whole handshake. Returns what the dialer learns, then the acceptor.
fn shake(dialer: &Identity, acceptor: &Identity) -> Result<(PeerHello, PeerHello), HandshakeError> {
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
        // A proof of one answer must not prove another.
        let (dialer, answering) = proved();
        let forged = Frame { kind: Kind::Welcome, ..answering.refuse(&refusal) };
        assert_eq!(code(dialer.welcomed(&forged)), RefusalCode::Secret);
    }
}

/// Guesses of the secret could be checked against a proof of the acceptor.
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
    // A Challenge that was changed on its way is refused by the dialer, or fails the proof.
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
    // The same for the Hello, which the acceptor may refuse at once.
    for at in 0..hello.body.len() {
        let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
        let Ok((challenging, challenge)) = Challenging::start(&two, &flipped(&hello, at), &[2; 32])
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
    let refused =
        |answering: &Answering<'_>| answering.refuse(&Refusal::new(RefusalCode::Full, "no room"));
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
