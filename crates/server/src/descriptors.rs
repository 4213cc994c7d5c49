//! File descriptors: how many this process may have, and how many of them connections may use.
//!
//! Invariant: connections never use up the files that the log and the checkpoints need. A failed
//! open there stops the node, while a refused client tries again.

use crate::limits::FILES_RESERVED;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Room for fewer connections than this gets a warning: a shell's default limit is often 1,024
/// files.
const FEW: usize = 4_000;

/// Raises this process's limit to the hard one. Returns how many of `wanted` connections fit.
pub(crate) fn connections_max(wanted: usize) -> usize {
    let limit = raise();
    let fit = limit.map_or(wanted, |limit| wanted.min(fitting(limit)));
    if fit < wanted.min(FEW) {
        tracing::warn!(
            "this process may open {} files, so it takes {fit} connections at once; raise it with ulimit -n or LimitNOFILE",
            limit.unwrap_or(0),
        );
    }
    fit
}

/// The limit after it was raised to the hard one; `None` if there is none.
fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files could not be raised");
            current
        }
    }
}

/// Connections within a limit of open files. If the reserve left hardly any, a quarter of the limit
/// is for connections: a small node is better than none.
fn fitting(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(FILES_RESERVED).max(limit / 4)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve() {
        for (limit, connections) in [(1 << 20, 1_048_064), (1_024, 512), (256, 64), (0, 0)] {
            assert_eq!(fitting(limit), connections, "of {limit} files");
        }
    }
}
