//! Scan: tells a torn tail of the log from damage in the middle, before the log is opened.
//!
//! raft-engine cuts the newest file at the first record that it can't read, and goes on. That is
//! right for a write that a crash tore: no later write was synced, because every write is synced
//! before the next one begins (for entries that raft-engine moves, see `files.rs`). It is wrong for
//! a record that was synced and went bad later: all later records would be lost without a message.
//! The difference is whether a sound record follows.
//!
//! The file format is raft-engine's, version 2: a header of 69 bytes, then records. A record is `{
//! u56 length, u8 compression, u64 footer offset, entries, crc32, footer, checksum }`, where the
//! checksum is `crc32 ^ file number`.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

const MAGIC: &[u8] = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5";
const FILE_HEADER_BYTES: u64 = 69;
const RECORD_HEADER_BYTES: u64 = 16;
const CHECKSUM_BYTES: usize = 4;
const ZEROS: [u8; 8192] = [0; 8192];

/// New writes, and entries that raft-engine has moved from old, nearly empty files.
const QUEUES: [&str; 2] = [".raftlog", ".rewrite"];

/// Checks all files of the log in `dir`. Returns a description of the damage.
pub(super) fn check(dir: &Path) -> Result<(), String> {
    for queue in QUEUES {
        let files = files(dir, queue)
            .map_err(|error| format!("{} can't be read: {error}", dir.display()))?;
        let Some((newest, older)) = files.split_last() else { continue };
        for file in older {
            check_closed(file).map_err(|error| describe(file, &error))?;
        }
        check_newest(newest).map_err(|error| describe(newest, &error))?;
    }
    Ok(())
}

struct LogFile {
    number: u64,
    path: PathBuf,
}

enum Damage {
    Unreadable(io::Error),
    At(u64),
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Damage {
        Damage::Unreadable(error)
    }
}

fn describe(file: &LogFile, damage: &Damage) -> String {
    let path = file.path.display();
    match damage {
        Damage::Unreadable(error) => format!("{path} can't be read: {error}"),
        Damage::At(offset) => format!(
            "{path} is damaged at byte {offset}, with sound records after it: acknowledged tasks would be lost"
        ),
    }
}

/// The files of a queue in use, oldest first. Files before a gap are empty and wait to be reused.
fn files(dir: &Path, queue: &str) -> io::Result<Vec<LogFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(queue)?.parse().ok());
        if let Some(number) = number {
            files.push(LogFile { number, path });
        }
    }
    files.sort_by_key(|file| file.number);
    let gap = files.windows(2).rposition(|pair| pair[1].number != pair[0].number + 1);
    Ok(files.split_off(gap.map_or(0, |before| before + 1)))
}

/// Checks an older file: it was cut to its length and synced before the next one was begun, so that
/// all of it must be sound.
fn check_closed(file: &LogFile) -> Result<(), Damage> {
    let data = File::open(&file.path)?;
    let length = data.metadata()?.len();
    let mut header = [0; MAGIC.len()];
    if length < FILE_HEADER_BYTES || data.read_exact_at(&mut header, 0).is_err() || header != MAGIC
    {
        return Err(Damage::At(0));
    }
    let mut position = FILE_HEADER_BYTES;
    while position < length {
        let mut header = [0; RECORD_HEADER_BYTES as usize];
        let record = data.read_exact_at(&mut header, position).ok();
        let record = record.and_then(|()| Record::parse(&header, length - position));
        let record = record.ok_or(Damage::At(position))?;
        let mut footer = vec![0; (record.length - record.footer) as usize];
        data.read_exact_at(&mut footer, position + record.footer)?;
        let mut sound = is_sound(&footer, file.number as u32);
        if position + record.length == length {
            // raft-engine would drop broken entries of the last record without a message. In other
            // records they are found when they are read.
            let mut entries = vec![0; (record.footer - RECORD_HEADER_BYTES) as usize];
            data.read_exact_at(&mut entries, position + RECORD_HEADER_BYTES)?;
            sound = sound && (entries.is_empty() || is_sound(&entries, 0));
        }
        if !sound {
            return Err(Damage::At(position));
        }
        position += record.length;
    }
    Ok(())
}

/// Checks the newest file. It may end in a torn record, in zeros that were allocated ahead, or in
/// remains of its earlier use. None of these has a sound record after it.
fn check_newest(file: &LogFile) -> Result<(), Damage> {
    let mut data = fs::read(&file.path)?;
    // A search for records in allocated zeros takes long and finds none. Half a block of zeros
    // stays, for a record that ends in zeros.
    while data.ends_with(&ZEROS) {
        data.truncate(data.len() - ZEROS.len() / 2);
    }
    let number = file.number as u32;
    let mut position = 0;
    if data.starts_with(MAGIC) && data.len() as u64 >= FILE_HEADER_BYTES {
        position = FILE_HEADER_BYTES as usize;
        while let Some(length) = sound_record(&data[position..], number) {
            position += length;
        }
    }
    let later = (position + 1..data.len())
        .any(|later| data[later..].len() > 16 && sound_record(&data[later..], number).is_some());
    if later { Err(Damage::At(position as u64)) } else { Ok(()) }
}

struct Record {
    length: u64,
    footer: u64,
}

impl Record {
    fn parse(header: &[u8], available: u64) -> Option<Record> {
        let (length, footer) = (header.get(..8)?, header.get(8..16)?);
        let length = u64::from_be_bytes(length.try_into().ok()?);
        let (length, compression) = (length >> 8, length as u8);
        let footer = u64::from_be_bytes(footer.try_into().ok()?);
        let plausible = compression <= 1
            && footer >= RECORD_HEADER_BYTES
            && footer < length
            && length <= available;
        plausible.then_some(Record { length, footer })
    }
}

/// The length of the record at the start of `data`, if the record is whole.
fn sound_record(data: &[u8], number: u32) -> Option<usize> {
    let record = Record::parse(data, data.len() as u64)?;
    let footer = &data[record.footer as usize..record.length as usize];
    let entries = &data[RECORD_HEADER_BYTES as usize..record.footer as usize];
    let sound = is_sound(footer, number) && (entries.is_empty() || is_sound(entries, 0));
    sound.then_some(record.length as usize)
}

/// Whether a block ends in its own checksum, signed with the number of its file.
fn is_sound(block: &[u8], signature: u32) -> bool {
    let Some(end) = block.len().checked_sub(CHECKSUM_BYTES).filter(|&end| end > 0) else {
        return false;
    };
    let stored = u32::from_le_bytes(block[end..].try_into().expect("4 bytes"));
    crc32fast::hash(&block[..end]) == stored ^ signature
}

#[cfg(test)]
mod tests {
    use super::super::{Batch, Log, tests::*};
    use super::{FILE_HEADER_BYTES, Record};
    use std::{
        fs::{self, OpenOptions},
        os::unix::fs::FileExt,
        sync::Arc,
    };

    /// A disk writes unsynced data in any order: an earlier part may be lost and a later one kept.
    #[test]
    fn a_power_cut_while_entries_are_moved_is_no_damage() {
        const QUIET: std::ops::RangeInclusive<u64> = 1..=20;
        for syncs in 0..100 {
            let dir = tempfile::tempdir().unwrap();
            let log = small(dir.path());
            let mut batch = Batch::default();
            // Moved as several records, which raft-engine rarely syncs.
            for group in QUIET {
                batch.append(group, &[entry(2, 40_000)]);
                log.write(&mut batch).unwrap();
            }
            for index in 2..12 {
                batch.append(100, &[entry(index, SMALL_FILE_BYTES as usize + 1)]);
                batch.cut(100, index - 1);
                log.write(&mut batch).unwrap();
            }
            log.faults.watch_syncs();
            log.fail_sync_after(syncs);
            let is_moved = log.purge().is_ok();
            log.fail_sync_after(u64::MAX);
            let copy = tempfile::tempdir().unwrap();
            for file in fs::read_dir(dir.path()).unwrap() {
                let file = file.unwrap().path();
                let mut bytes = fs::read(&file).unwrap();
                if file.extension().is_some_and(|end| end == "rewrite") {
                    let synced = log.faults.synced_bytes(&file).max(FILE_HEADER_BYTES as usize);
                    lose_one(&mut bytes[synced..]);
                }
                fs::write(copy.path().join(file.file_name().unwrap()), bytes).unwrap();
            }
            let cut_off = Arc::new(small(copy.path()));
            for group in QUIET {
                assert_eq!(indexes(&cut_off, group), [2], "group {group} after {syncs} syncs");
            }
            if is_moved {
                assert!(syncs > 2, "it is moved in several records");
                return;
            }
        }
        panic!("it is moved at last");
    }

    /// Loses the first unsynced record.
    fn lose_one(unsynced: &mut [u8]) {
        if let Some(record) = Record::parse(unsynced, unsynced.len() as u64) {
            unsynced[..record.length as usize].fill(0);
        }
    }

    /// The entries of a quiet group are in the files for moved entries.
    #[test]
    fn damage_in_moved_entries_is_refused_too() {
        let dir = tempfile::tempdir().unwrap();
        let log = small(dir.path());
        let (quiet, hot) = (1, 2);
        for index in 2..=40 {
            // Moved a few at a time, because damage in the last move alone can't be told from a
            // torn write.
            write(&log, quiet, index..=index);
            let mut batch = Batch::default();
            batch.append(hot, &[entry(index, SMALL_FILE_BYTES as usize + 1)]);
            batch.cut(hot, index - 1);
            log.write(&mut batch).unwrap();
            log.purge().unwrap();
        }
        drop(log);
        let moved = newest_file(dir.path(), "rewrite");
        let file = OpenOptions::new().read(true).write(true).open(&moved).unwrap();
        let mut byte = [0];
        let position = 120;
        file.read_exact_at(&mut byte, position).unwrap();
        file.write_all_at(&[!byte[0]], position).unwrap();
        let refused = Log::open(dir.path()).map(drop).unwrap_err().0;
        assert!(refused.contains(".rewrite is damaged at byte 69"), "{refused}");
    }
}
