//! The bytes of a handshake, as every version of it says them.

use crate::peer::handshake::{Challenging, Dialing, Identity, PeerHello, Refusal, RefusalCode};
use taskyard_replica::{NodeId, Start};

fn identity(cluster: u128, node: NodeId, secret: &str) -> Identity {
    let build = "test".to_string();
    let start = Start { count: 5, boot: u128::from(node) + 100 };
    let hello = PeerHello { cluster, node, start, build, rules: 3 };
    Identity { hello, secret: secret.as_bytes().to_vec() }
}

/// Nodes of two versions meet during an upgrade: what is here never changes.
#[test]
fn the_layout_of_version_1_stays() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (one, two) = (identity(9, 1, "s"), identity(9, 2, "s"));
    let (dialing, hello) = Dialing::start(&one, Some(2), &[1; 32]);
    let (_, challenge) = Challenging::start(&two, &hello, &[2; 32]).unwrap();
    let (_, proof) = dialing.challenged(&challenge).unwrap();
    let refused = Refusal::new(RefusalCode::NotAMember, "no").frame();
    for (frame, expected) in [
        (
            hello,
            "010001000900000000000000000000000000000001000000000000006500000000000000\
             000000000000000001010101010101010101010101010101010101010101010101010101\
             0101010104007465737403000500000000000000",
        ),
        (
            challenge,
            "d86c637a1d3e244893f39246b5e53e8ddd63f943dad5c811039f4942f0bec44901000900\
             000000000000000000000000000002000000000000006600000000000000000000000000\
             000002020202020202020202020202020202020202020202020202020202020202020400\
             7465737403000500000000000000",
        ),
        (proof, "53571847e67749ed2f6d522d1c4604907aa486290b2c9a9e53dc585c7bb1d336"),
        (refused, "0502006e6f"),
    ] {
        assert_eq!(hex(&frame.body), expected, "{:?}", frame.kind);
    }
}
