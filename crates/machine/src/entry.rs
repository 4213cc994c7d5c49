//! Entry: the content of one log entry: `{ rules, now, commands }`, packed to `ENTRY_BYTES_MAX`.
//!
//! Commands are encoded off the shard loop, where a front decodes them from the wire. Packing an
//! entry is then a copy.

use crate::limits::ENTRY_BYTES_MAX;
use crate::wire::{LIST_CAPACITY_MAX, Reader, Wire, decode, encode, write_varint};
use crate::{Command, Timestamp};

/// The version of the machine's behaviour that this build proposes.
pub const RULES_CURRENT: u16 = 1;

/// The same behaviour under a second number, which no release gets: tests use it to make one build
/// stand for two versions. A node proposes under it only if a test configures every node to know
/// it.
#[doc(hidden)]
pub const RULES_CURRENT_AGAIN: u16 = u16::MAX;

/// The first byte of every entry: the version of its layout.
const ENTRY_VERSION: u8 = 1;

/// The position of the number of commands, after the version: four bytes, little-endian, of fixed
/// width so that each push can update the number in place.
const COUNT_AT: std::ops::Range<usize> = 1..5;

/// A command in its log encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedCommand(Box<[u8]>);

impl EncodedCommand {
    /// Encodes a command.
    pub fn new(command: &Command<'_>) -> EncodedCommand {
        EncodedCommand(encode(command))
    }

    /// Takes bytes that were encoded before, such as those of an outbox.
    pub fn from_bytes(bytes: Box<[u8]>) -> EncodedCommand {
        EncodedCommand(bytes)
    }

    /// The encoding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<'a> Wire<'a> for EncodedCommand {
    fn write(&self, out: &mut Vec<u8>) {
        self.as_bytes().write(out);
    }

    /// Accepts only bytes that decode, because the bytes may come from another node and go into a
    /// log.
    fn read(reader: &mut Reader<'a>) -> Result<EncodedCommand, DecodeError> {
        let bytes: &[u8] = reader.read()?;
        let mut inner = Reader::foreign(bytes);
        inner.read::<Command<'_>>()?;
        inner.finish()?;
        Ok(EncodedCommand(bytes.into()))
    }
}

/// Packs commands into one entry.
#[derive(Debug)]
pub struct EntryBuilder {
    bytes: Vec<u8>,
    commands: u32,
}

impl EntryBuilder {
    /// An empty entry of the current rules at the time `now`.
    pub fn new(now: Timestamp) -> EntryBuilder {
        EntryBuilder::under(RULES_CURRENT, now)
    }

    /// An empty entry at the time `now`, of the rules that all nodes of the cluster know.
    pub fn under(rules: u16, now: Timestamp) -> EntryBuilder {
        let mut bytes = vec![ENTRY_VERSION, 0, 0, 0, 0];
        rules.write(&mut bytes);
        now.write(&mut bytes);
        EntryBuilder { bytes, commands: 0 }
    }

    /// Adds a command; `false` if the entry is not empty and would grow past `ENTRY_BYTES_MAX`.
    pub fn push(&mut self, command: &EncodedCommand) -> bool {
        if self.commands > 0 && self.bytes.len() + command.0.len() > ENTRY_BYTES_MAX {
            return false;
        }
        write_varint(command.0.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(&command.0);
        self.commands += 1;
        self.bytes[COUNT_AT].copy_from_slice(&self.commands.to_le_bytes());
        true
    }

    /// The number of commands in the entry.
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
    /// The version of the machine's behaviour that the entry was written for.
    pub rules: u16,
    /// The leader's time.
    pub now: Timestamp,
    /// The commands, in order.
    pub commands: Vec<Command<'a>>,
}

/// The error of bytes that are not an entry that this build can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log entry can't be read: {what}")]
pub struct DecodeError {
    /// What was found, and where.
    pub what: String,
}

impl<'a> Entry<'a> {
    /// Whether this build knows the rules that the entry follows.
    pub fn is_known(&self) -> bool {
        [RULES_CURRENT, RULES_CURRENT_AGAIN].contains(&self.rules)
    }

    /// Reads an entry.
    pub fn decode(bytes: &'a [u8]) -> Result<Entry<'a>, DecodeError> {
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            ENTRY_VERSION => {}
            other => return Err(reader.error(format_args!("unknown entry version {other}"))),
        }
        let count = reader.take(COUNT_AT.len())?;
        let count = u32::from_le_bytes(count.try_into().expect("four bytes were taken"));
        let (rules, now) = reader.read()?;
        let mut commands = Vec::with_capacity((count as usize).min(LIST_CAPACITY_MAX));
        for _ in 0..count {
            commands.push(decode(reader.read()?)?);
        }
        reader.finish()?;
        Ok(Entry { rules, now, commands })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::every_command;
    use crate::{Enqueue, NewTask};

    fn pack(commands: &[Command<'_>]) -> Vec<u8> {
        let mut builder = EntryBuilder::new(Timestamp(1_700_000_000_000));
        for command in commands {
            assert!(builder.push(&EncodedCommand::new(command)));
        }
        assert_eq!(builder.commands() as usize, commands.len());
        builder.finish()
    }

    #[test]
    fn an_entry_gives_back_its_time_and_commands() {
        let commands = every_command();
        let bytes = pack(&commands);
        let entry = Entry::decode(&bytes).unwrap();
        assert_eq!(entry.rules, RULES_CURRENT);
        assert_eq!(entry.now, Timestamp(1_700_000_000_000));
        assert_eq!(entry.commands, commands);
    }

    #[test]
    fn a_cut_or_foreign_entry_is_an_error() {
        let bytes = pack(&every_command());
        for length in 0..bytes.len() {
            assert!(Entry::decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        assert!(Entry::decode(&[]).is_err());
        assert!(Entry::decode(b"{}").is_err());
    }

    #[test]
    fn an_entry_is_packed_to_its_bound_and_a_larger_command_travels_alone() {
        let payload = vec![b'x'; ENTRY_BYTES_MAX];
        let mut task = NewTask { task_type: "t", ..NewTask::default() };
        let small =
            EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "q", task: task.clone() }));
        task.body.payload = &payload;
        let large = EncodedCommand::new(&Command::Enqueue(Enqueue { queue: "q", task }));

        let mut alone = EntryBuilder::new(Timestamp(0));
        assert!(alone.push(&large), "the first command always fits");
        assert!(!alone.push(&small));
        let mut packed = EntryBuilder::new(Timestamp(0));
        assert!(packed.push(&small));
        assert!(!packed.push(&large));
        assert_eq!(packed.commands(), 1);
    }
}
