//! Layout: checks the store's files before fjall opens them, so that a missing file is an error.
//!
//! fjall takes a keyspace without its file `current` for an unfinished one: it deletes the folder
//! and begins an empty keyspace. Without the list of keyspaces it deletes them all. A file that a
//! bad disk or a wrong command removed would then cost all other data, without a message.
//!
//! The layout is version 3 of fjall's. An empty folder is a store that does not exist yet.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The required files. Keyspaces have numbers, in the order in which `Store::open` names them.
const FILES: [(&str, &str); 6] = [
    ("version", "its version"),
    ("lock", "its lock"),
    ("keyspaces/0/current", "the list of its parts"),
    ("keyspaces/1/current", "the tasks"),
    ("keyspaces/2/current", "the bodies of the tasks"),
    ("keyspaces/3/current", "queues and all other records"),
];

/// Checks that all files exist; the error names the missing one.
pub(super) fn check(dir: &Path) -> Result<(), String> {
    let unreadable = |error: io::Error| error.to_string();
    if fs::read_dir(dir).map_err(unreadable)?.next().is_none() {
        return Ok(());
    }
    for (file, holds) in FILES {
        if !dir.join(file).try_exists().map_err(unreadable)? {
            return Err(format!("{file} is missing, with {holds}"));
        }
    }
    let journals = journals(dir).map_err(unreadable)?;
    if journals.is_empty() {
        return Err("its journal, a file like 0.jnl, is missing".into());
    }
    // Journals have consecutive numbers, and the oldest is deleted first.
    match journals.windows(2).find(|pair| pair[1].0 != pair[0].0 + 1) {
        Some(pair) => Err(format!("its journal {}.jnl is missing", pair[0].0 + 1)),
        None => Ok(()),
    }
}

/// All journals, oldest first.
pub(super) fn journals(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(".jnl")?.parse().ok());
        journals.extend(number.map(|number| (number, path)));
    }
    journals.sort_unstable();
    Ok(journals)
}
