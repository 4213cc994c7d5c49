//! The bytes of a handshake, which no version may change.

use crate::peer::handshake::{Challenging, Dialing, Identity, PeerHello, Refusal, RefusalCode};
use taskyard_replica::{NodeId, Start};

fn identity(cluster: u128, node: NodeId, secret: &str) -> Identity {
    let build = "test".to_string();
    let start = Start { count: 5, boot: u128::from(node) + 100 };
    let hello = PeerHello { cluster, node, start, build, rules: 3 };
    Identity { hello, secret: secret.as_bytes().to_vec() }
}

/// Nodes of two versions meet during an upgrade: these bytes never change.
#[test]
fn the_layout_of_version_1_stays() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (one, two) = (identity(9, 1, "s"), identity(9, 2, "s"));
    let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
    let (challenging, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
    let (_, proof) = dialing.challenged(&challenge).unwrap();
    let (_, answering) = challenging.proved(&proof).unwrap();
    let refusal = Refusal::new(RefusalCode::NotAMember, "no");
    for (frame, expected) in [
        (
            hello,
            "010001000900000000000000000000000000000001000000000000006500000000000000\
             000000000000000001010101010101010101010101010101010101010101010101010101\
             0101010104007465737403000500000000000000",
        ),
        (
            challenge,
            "010009000000000000000000000000000000020000000000000066000000000000000000\
             000000000000020202020202020202020202020202020202020202020202020202020202\
             020204007465737403000500000000000000",
        ),
        (proof, "87ab5026eac595b28671e3f4c8c37de2c3be46a89f555063e1f2d9b2c4af96cd"),
        (answering.welcome(), "3d6fdc753f2424a00620e97b3619528c45ad66cc55d5e1e410a7cc249519176c"),
        (refusal.frame(), "0502006e6f"),
        (
            answering.refuse(&refusal),
            "0502006e6f023ce6ac90ce67e959b5bd36b142a00b40e45ab5a29db31521bfea70801354\
             a0",
        ),
    ] {
        assert_eq!(hex(&frame.body), expected, "{:?}", frame.kind);
    }
}
