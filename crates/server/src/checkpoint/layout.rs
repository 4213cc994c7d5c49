//! The store's files, before fjall sees them: what is missing is said, and nothing is made anew.
//!
//! fjall takes a keyspace without its file `current` for one whose making was interrupted: it deletes the
//! folder and begins an empty one. Without the list of keyspaces it deletes them all. So a file that a bad
//! disk or a wrong command took away would cost the rest, in silence.
//!
//! The layout is fjall's, version 3. An empty folder is a store that is yet to be made.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// What must be there. Keyspaces have numbers, given in the order in which `Store::open` names them.
const FILES: [(&str, &str); 6] = [
    ("version", "its version"),
    ("lock", "its lock"),
    ("keyspaces/0/current", "the list of its parts"),
    ("keyspaces/1/current", "the tasks"),
    ("keyspaces/2/current", "the bodies of the tasks"),
    ("keyspaces/3/current", "queues and all other records"),
];

/// Whether all files are there; what is missing, in words.
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
    // They are made one after the other, and go oldest first.
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
