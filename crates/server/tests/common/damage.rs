//! Damage: finds bodies on a disk again, and makes a bad block under one of them.

use std::{fmt::Write, fs, path::Path};

/// The size of a payload: forty of them are more than the store keeps in memory.
const PAYLOAD_BYTES: usize = 512 << 10;
/// The number of bodies.
pub(crate) const BODIES: usize = 40;

fn marker(number: usize) -> String {
    format!("the body with the number {number:04}: ")
}

/// A text that begins with its number, and that does not compress well.
pub(crate) fn payload(number: usize) -> String {
    let mut payload = marker(number);
    let mut state = number as u64 + 1;
    while payload.len() < PAYLOAD_BYTES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        write!(payload, "{:016x}", state ^ state >> 29).unwrap();
    }
    payload
}

/// Damages a byte of the first body that is in a table of a data directory. Returns its number.
pub(crate) fn damage_a_body(dir: &Path) -> usize {
    let tables = fs::read_dir(dir.join("state/keyspaces/2/tables")).unwrap();
    for table in tables.map(|entry| entry.unwrap().path()) {
        let mut bytes = fs::read(&table).unwrap();
        for number in 0..BODIES {
            let marker = marker(number).into_bytes();
            if let Some(at) = bytes.windows(marker.len()).position(|found| found == marker) {
                bytes[at + 1_000] ^= 0x55;
                fs::write(&table, bytes).unwrap();
                return number;
            }
        }
    }
    panic!("no body stands in a table");
}
