//! Format: what a data directory was made as, in the file `FORMAT` and as a mark in log and
//! checkpoints.
//!
//! Invariant: the three say the same, or the directory is refused.

use crate::{
    node::StartError,
    random::{random_u64, random_u128},
};
use std::fmt::Write as _;
use taskyard_replica::NodeId;
use xxhash_rust::xxh3::xxh3_64;

/// The layout and encodings that this build writes. Raised when an older build could not read it.
pub(crate) const FORMAT_VERSION: u32 = 8;
/// The number of the node that founds a cluster.
const FIRST_NODE: NodeId = 1;

/// What a data directory was made as. Fixed from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// The cluster it belongs to: random.
    pub cluster: u128,
    /// Part of every task id: random, renewed by a restore.
    pub incarnation: u32,
    /// How many shards there are.
    pub shards: u16,
    /// The node's number in its cluster, from 1; never given to another directory.
    pub node: NodeId,
}

impl Format {
    /// The first node of a new cluster.
    pub(crate) fn random(shards: u16) -> Format {
        let (cluster, incarnation) = (random_u128(), random_u64() as u32);
        Format { cluster, incarnation, shards, node: FIRST_NODE }
    }

    /// Whether this node founded its cluster: it has a replica of every group from the start.
    pub(crate) fn founds(self) -> bool {
        self.node == FIRST_NODE
    }

    pub(super) fn to_text(self) -> String {
        let mut text = String::new();
        let Format { cluster, incarnation, shards, node } = self;
        let _ = writeln!(text, "# Taskyard's data directory. Don't edit.");
        let _ = writeln!(text, "format = {FORMAT_VERSION}");
        let _ = writeln!(text, "cluster = {cluster:032x}");
        let _ = writeln!(text, "incarnation = {incarnation}");
        let _ = writeln!(text, "shards = {shards}");
        let _ = writeln!(text, "node = {node}");
        let checksum = xxh3_64(text.as_bytes());
        let _ = writeln!(text, "checksum = {checksum:016x}");
        text
    }

    pub(super) fn parse(text: &str) -> Result<Format, FormatError> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.ok_or_else(|| FormatError::Damaged(format!("it has no line \"{key} = ...\"")))
        };
        let bad = |key: &str, found: &str| FormatError::Damaged(format!("{key} is {found:?}"));
        let version = value("format")?;
        match version.parse::<u32>() {
            Ok(FORMAT_VERSION) => {}
            Ok(newer) if newer > FORMAT_VERSION => return Err(FormatError::Newer(newer)),
            Ok(older @ 1..) => return Err(FormatError::Older(older)),
            _ => return Err(bad("format", version)),
        }
        let checksum = value("checksum")?;
        let checked = text.find("checksum = ").map_or(text, |end| &text[..end]);
        if u64::from_str_radix(checksum, 16) != Ok(xxh3_64(checked.as_bytes())) {
            return Err(FormatError::Damaged("its checksum does not fit, it was changed".into()));
        }
        let (cluster, incarnation, shards, node) =
            (value("cluster")?, value("incarnation")?, value("shards")?, value("node")?);
        Ok(Format {
            cluster: u128::from_str_radix(cluster, 16).map_err(|_| bad("cluster", cluster))?,
            incarnation: incarnation.parse().map_err(|_| bad("incarnation", incarnation))?,
            shards: match shards.parse() {
                Ok(0) | Err(_) => return Err(bad("shards", shards)),
                Ok(count) => count,
            },
            node: match node.parse() {
                Ok(0) | Err(_) => return Err(bad("node", node)),
                Ok(node) => node,
            },
        })
    }
}

/// What log and checkpoints carry of it.
impl Format {
    pub(crate) fn to_mark(self) -> Vec<u8> {
        let Format { cluster, incarnation, shards, node } = self;
        let mut mark = cluster.to_be_bytes().to_vec();
        mark.extend(incarnation.to_be_bytes());
        mark.extend(node.to_be_bytes());
        mark.extend(shards.to_be_bytes());
        mark
    }

    /// Whether `what` carries the mark of this data directory.
    pub(crate) fn check_mark(self, what: &str, found: Option<&[u8]>) -> Result<(), StartError> {
        let Some(found) = found else {
            return Err(not_ours(&format!("{what} has no mark of this data directory")));
        };
        if found == self.to_mark() {
            return Ok(());
        }
        let shards = found.last_chunk().map_or(0, |shards| u16::from_be_bytes(*shards));
        if shards != self.shards && found.starts_with(&self.cluster.to_be_bytes()) {
            let says = self.shards;
            return Err(not_ours(&format!(
                "{what} was made with {shards} shards, and FORMAT says {says}"
            )));
        }
        Err(not_ours(&format!("{what} belongs to another data directory")))
    }

    /// The error for something of a shard that can't be.
    pub(crate) fn too_many_shards(self, what: &str, shard: u16) -> StartError {
        let shards = self.shards;
        not_ours(&format!(
            "{what} holds something of shard {shard}, and FORMAT says {shards} shards"
        ))
    }
}

fn not_ours(what: &str) -> StartError {
    StartError(format!(
        "{what}; put back what belongs here, or restore a backup into a new directory"
    ))
}

/// Why a `FORMAT` can't be used.
pub(super) enum FormatError {
    Newer(u32),
    Older(u32),
    Damaged(String),
}
