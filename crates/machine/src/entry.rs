//! Entry: what one log entry holds: `{ rules, now, commands }`, packed to `ENTRY_BYTES_MAX`.
//!
//! Commands are encoded where they are decoded from the wire, off the shard loop; packing them is a
//! copy.

use crate::{Command, Timestamp};

/// The version of the machine's behaviour that this build proposes.
pub const RULES_CURRENT: u16 = 1;

/// A command in its log encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedCommand(Box<[u8]>);

impl EncodedCommand {
    /// Encodes a command.
    pub fn new(command: &Command<'_>) -> EncodedCommand {
        let _ = command;
        unimplemented!("machine crate")
    }

    /// Takes bytes that were encoded before (an outbox's).
    pub fn from_bytes(bytes: Box<[u8]>) -> EncodedCommand {
        EncodedCommand(bytes)
    }

    /// The encoding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Packs commands into one entry.
#[derive(Debug)]
pub struct EntryBuilder {
    bytes: Vec<u8>,
    commands: u32,
}

impl EntryBuilder {
    /// An empty entry of the current rules at `now`.
    pub fn new(now: Timestamp) -> EntryBuilder {
        let _ = now;
        unimplemented!("machine crate")
    }

    /// Adds a command; `false` if the entry is not empty and would grow past `ENTRY_BYTES_MAX`.
    pub fn push(&mut self, command: &EncodedCommand) -> bool {
        let _ = command;
        unimplemented!("machine crate")
    }

    /// How many commands it holds.
    pub fn commands(&self) -> u32 {
        self.commands
    }

    /// The entry's bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// A log entry, borrowed from its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<'a> {
    /// The version of the machine's behaviour it was written for.
    pub rules: u16,
    /// The leader's time.
    pub now: Timestamp,
    /// What is asked, in order.
    pub commands: Vec<Command<'a>>,
}

/// The bytes are not an entry that this build can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log entry can't be read: {what}")]
pub struct DecodeError {
    /// What was found and where.
    pub what: String,
}

impl<'a> Entry<'a> {
    /// Reads an entry.
    pub fn decode(bytes: &'a [u8]) -> Result<Entry<'a>, DecodeError> {
        let _ = bytes;
        unimplemented!("machine crate")
    }
}
