//! Seen: the last start of each peer that this node has let in, on disk.
//!
//! Invariant: a peer's start is on disk before any message of the peer is taken. So once a peer has
//! told this node anything, such as a vote or an acknowledgement, this node recognizes older copies
//! of the peer's data. That holds after a restart too, and without news from the control group.

use super::{SEEN_FILE, sync_dir, unusable, write_synced};
use crate::node::StartError;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use taskyard_replica::{NodeId, Start};

/// The known starts of peers.
#[derive(Debug)]
pub(crate) struct Seen {
    path: PathBuf,
    starts: Mutex<BTreeMap<NodeId, Start>>,
}

/// The name of the file until it is complete.
const SEEN_FILE_NEW: &str = "SEEN.new";

impl Seen {
    pub(super) fn open(path: &Path) -> Result<Seen, StartError> {
        let file = path.join(SEEN_FILE);
        let starts = match fs::read_to_string(&file) {
            Ok(text) => text.lines().skip(1).map(parse).collect::<Option<_>>().ok_or_else(|| {
                StartError(format!(
                    "{} is damaged; rebuild this node from the others of its cluster: remove it there with \
                     --force, then start it with a new data directory and --join",
                    file.display()
                ))
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(unusable(&file, &error)),
        };
        Ok(Seen { path: path.to_path_buf(), starts: Mutex::new(starts) })
    }

    /// The last start of a peer that was let in.
    pub(crate) fn start(&self, node: NodeId) -> Option<Start> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner).get(&node).copied()
    }

    /// Stores the start of a peer, synced. If the start is older than the known one, returns the
    /// known one instead. Waits for the disk.
    pub(crate) fn note(&self, node: NodeId, start: Start) -> io::Result<Result<(), Start>> {
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        match starts.get(&node) {
            Some(known) if *known == start => return Ok(Ok(())),
            Some(known) if !start.may_follow(*known) => return Ok(Err(*known)),
            _ => {}
        }
        let mut next = starts.clone();
        next.insert(node, start);
        let mut text =
            "# The last start of each peer that this node has let in. Don't edit.\n".to_owned();
        for (node, Start { count, boot }) in &next {
            let _ = writeln!(text, "{node} {count} {boot:032x}");
        }
        let new = self.path.join(SEEN_FILE_NEW);
        write_synced(&new, &text)?;
        fs::rename(new, self.path.join(SEEN_FILE))?;
        sync_dir(&self.path)?;
        *starts = next;
        Ok(Ok(()))
    }
}

fn parse(line: &str) -> Option<(NodeId, Start)> {
    let mut parts = line.split(' ');
    let (node, count, boot) = (parts.next()?, parts.next()?, parts.next()?);
    let boot = u128::from_str_radix(boot, 16).ok()?;
    Some((node.parse().ok()?, Start { count: count.parse().ok()?, boot }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_was_let_in_is_known_after_a_restart_and_an_older_one_is_not_noted() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Seen::open(dir.path()).unwrap();
        let start = |count, boot| Start { count, boot };
        assert_eq!(open().start(2), None);
        open().note(2, start(4, 77)).unwrap().unwrap();
        open().note(3, start(1, u128::MAX)).unwrap().unwrap();
        assert_eq!(open().start(2), Some(start(4, 77)));
        assert_eq!(open().start(3), Some(start(1, u128::MAX)));
        let refused = open().note(2, start(4, 78)).unwrap();
        assert_eq!(refused, Err(start(4, 77)));
        open().note(2, start(5, 78)).unwrap().unwrap();
        assert_eq!(open().start(2), Some(start(5, 78)));
        for text in ["\n2 4", "\n2 4 x", "\nx 4 7", "\n\n"] {
            fs::write(dir.path().join(SEEN_FILE), text).unwrap();
            let refused = Seen::open(dir.path()).unwrap_err().0;
            assert!(refused.contains("SEEN is damaged; rebuild this node"), "{text:?}: {refused}");
        }
    }
}
