//! Subnet: loopback addresses that no other test uses. On its own address a node can have a fixed
//! port, because no connection of another test takes the port while the node is down.

use std::net::{Ipv4Addr, TcpListener};

/// The host and port that a test binds to reserve its subnet.
const GUARD: (u8, u16) = (254, 7399);

/// A subnet, reserved until dropped.
pub(crate) struct Subnet {
    bytes: [u8; 2],
    _guard: TcpListener,
}

impl Subnet {
    pub(crate) fn free() -> Subnet {
        let own = std::process::id();
        let tries = (0..u32::from(u16::MAX)).map(|number| own.wrapping_add(number) as u16);
        let mut tries = tries.map(u16::to_be_bytes).filter(|bytes| *bytes != [0, 0]);
        let take = |bytes| {
            let guard = TcpListener::bind((address(bytes, GUARD.0), GUARD.1)).ok()?;
            Some(Subnet { bytes, _guard: guard })
        };
        tries.find_map(take).expect("a subnet is free")
    }

    /// The address of a host, from 1.
    pub(crate) fn host(&self, number: u8) -> Ipv4Addr {
        address(self.bytes, number)
    }
}

fn address([high, low]: [u8; 2], host: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, high, low, host)
}
