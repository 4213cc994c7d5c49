//! Starts: the last start of each node, by which an older copy of its data is recognised.
//!
//! Invariant: the known start of a node is never lowered. A copy of the data from before that start
//! lacks votes and entries on which the other nodes count.

use super::codec::{Reader, Writer};
use super::{Control, ControlOutcome, ControlRejection, InvalidControlBytes, NodeId};

/// One start of a node on its data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The count on its disk, raised before each start, and from time to time while it runs.
    pub count: u64,
    /// A random number, drawn by the process.
    pub boot: u128,
}

impl Start {
    /// Whether data with this start may follow the known start: it is the same process, or a later
    /// one.
    pub fn may_follow(self, known: Start) -> bool {
        self.boot == known.boot || self.count > known.count
    }

    /// The message that a node's data is outdated.
    pub fn is_outdated(self, node: NodeId, known: Start) -> String {
        let what = match self.count == known.count {
            true => {
                format!("node {node} was last started with another copy of this data directory")
            }
            false => format!(
                "this data directory is older than the one that node {node} was last started with"
            ),
        };
        format!(
            "{what} (start {} here, start {} is known): it lacks what the node has promised since; start the \
             newest one, or rebuild the node: `taskyard cluster remove {node} --force`, then start it with \
             a new data directory and --join",
            self.count, known.count
        )
    }
}

impl Control {
    /// The last known start of a node.
    pub fn started(&self, id: NodeId) -> Option<Start> {
        self.starts.get(&id).copied()
    }

    pub(super) fn start(&mut self, id: NodeId, start: Start) -> ControlOutcome {
        self.check_known(id)?;
        match self.started(id) {
            Some(known) if !start.may_follow(known) => {
                Err(ControlRejection::Outdated { node: id, start, known })
            }
            Some(known) if known.count >= start.count => Ok(()),
            _ => {
                self.starts.insert(id, start);
                Ok(())
            }
        }
    }

    pub(super) fn write_starts(&self, out: &mut Writer) {
        out.u32(self.starts.len() as u32);
        for (&id, start) in &self.starts {
            out.u64(id);
            start.write(out);
        }
    }

    pub(super) fn read_starts(
        &mut self,
        input: &mut Reader<'_>,
    ) -> Result<(), InvalidControlBytes> {
        for _ in 0..input.u32()? {
            self.starts.insert(input.u64()?, Start::read(input)?);
        }
        Ok(())
    }
}

impl Start {
    pub(super) fn write(self, out: &mut Writer) {
        out.u64(self.count);
        out.u128(self.boot);
    }

    pub(super) fn read(input: &mut Reader<'_>) -> Result<Start, InvalidControlBytes> {
        Ok(Start { count: input.u64()?, boot: input.u128()? })
    }
}
