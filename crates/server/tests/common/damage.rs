//! Damage: finds bodies on a disk, and makes a bad block under one of them.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

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
    damage_one_body(&[dir]).expect("a body is in a table")
}

/// Damages a byte of the first body that is in a table of every one of these data directories.
/// Returns its number, or `None` if there is no such body yet: the store writes tables in the
/// background.
pub(crate) fn damage_one_body(dirs: &[&Path]) -> Option<usize> {
    let is_in_all = |number: &usize| dirs.iter().all(|dir| place(dir, *number).is_some());
    let number = (0..BODIES).find(is_in_all)?;
    for dir in dirs {
        let (table, at) = place(dir, number).expect("it was just found");
        let mut bytes = fs::read(&table).unwrap();
        bytes[at + 1_000] ^= 0x55;
        fs::write(&table, bytes).unwrap();
    }
    Some(number)
}

/// The table with a body, and where the body begins.
fn place(dir: &Path, number: usize) -> Option<(PathBuf, usize)> {
    let marker = marker(number).into_bytes();
    let tables = fs::read_dir(dir.join("state/keyspaces/2/tables")).unwrap();
    tables.map(|entry| entry.unwrap().path()).find_map(|table| {
        let bytes = fs::read(&table).ok()?;
        let at = bytes.windows(marker.len()).position(|found| found == marker)?;
        Some((table, at))
    })
}
