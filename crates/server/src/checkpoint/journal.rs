//! Journal: checks the store's journals after a power cut. A torn last batch is dropped, damage is
//! refused.
//!
//! fjall drops a batch that ends too early, with everything after it, but refuses a batch with a
//! wrong checksum. After a power cut both mean the same, because the pages of one write reach the
//! disk in any order. The last batch was not synced, so that no checkpoint relied on it. A broken
//! batch with a sound one after it is damage. The journals are therefore checked before fjall opens
//! them.
//!
//! The file format is version 3 of fjall's: `{ 1, u32 items, u64 number }`, then items, then `{ 3,
//! u64 xxh3 of the items, "FJL\3" }`.

use super::layout::journals;
use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
};
use xxhash_rust::xxh3::Xxh3;

const TAG_START: u8 = 1;
const TAG_ITEM: u8 = 2;
const TAG_END: u8 = 3;
const TAG_CLEAR: u8 = 4;
const START_BYTES: usize = 13;
const END_MAGIC: &[u8] = b"FJL\x03";

/// Checks all journals in `dir`, and cuts a torn batch off the newest one; the error says what is
/// wrong.
///
/// fjall itself would also cut at a broken length or tag in the middle, and lose the rest.
pub(super) fn check(dir: &Path) -> Result<(), String> {
    let journals = journals(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for (position, (_, path)) in journals.iter().enumerate() {
        let is_newest = position + 1 == journals.len();
        check_one(path, is_newest).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn check_one(path: &Path, is_newest: bool) -> Result<(), String> {
    let mut data = fs::read(path).map_err(|error| error.to_string())?;
    trim_zeros(&mut data);
    let mut position = 0;
    while let Some(length) = sound_batch(&data[position..]) {
        position += length;
    }
    if position == data.len() {
        return Ok(());
    }
    if !is_newest || (position + 1..data.len()).any(|later| sound_batch(&data[later..]).is_some()) {
        return Err(format!("it is damaged at byte {position}, with sound records after it"));
    }
    let cut = || {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(position as u64)?;
        file.sync_all()
    };
    cut().map_err(|error: io::Error| error.to_string())
}

/// Removes the space that was allocated ahead. A whole batch never ends in a zero.
fn trim_zeros(data: &mut Vec<u8>) {
    const BLOCK: [u8; 4096] = [0; 4096];
    while data.ends_with(&BLOCK) {
        data.truncate(data.len() - BLOCK.len());
    }
    while data.last() == Some(&0) {
        data.pop();
    }
}

/// The length of the first batch in `data`, if the batch is whole.
fn sound_batch(data: &[u8]) -> Option<usize> {
    if *data.first()? != TAG_START {
        return None;
    }
    let items = u32::from_le_bytes(*data.get(1..5)?.first_chunk()?);
    let mut position = START_BYTES;
    let mut checksum = Xxh3::new();
    for _ in 0..items {
        let length = item_length(data.get(position..)?)?;
        checksum.update(data.get(position..position + length)?);
        position += length;
    }
    let end = data.get(position..position + 9 + END_MAGIC.len())?;
    let stored = u64::from_le_bytes(*end[1..9].first_chunk()?);
    let sound =
        items > 0 && end[0] == TAG_END && end[9..] == *END_MAGIC && stored == checksum.digest();
    sound.then_some(position + end.len())
}

fn item_length(data: &[u8]) -> Option<usize> {
    match *data.first()? {
        TAG_CLEAR => Some(9),
        TAG_ITEM => {
            let lengths = data.get(11..21)?;
            let key = u16::from_le_bytes(*lengths.first_chunk()?);
            let value = u32::from_le_bytes(*lengths[6..].first_chunk()?);
            Some(21 + usize::from(key) + value as usize)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Change, Cut, Store};
    use super::*;
    use std::path::PathBuf;
    use taskyard_machine::{RecordKey, ShardId};
    use taskyard_replica::eraftpb::ConfState;

    fn write(store: &Store, index: u64) {
        let cut = Cut { index, term: 1, conf_state: ConfState::default() };
        let key = RecordKey::Rest(Box::from(index.to_le_bytes()));
        let change = Change::Record(key, Some(vec![7; 20_000].into()));
        store.write(ShardId(0), &cut, vec![change]).unwrap();
    }

    fn newest(dir: &Path) -> PathBuf {
        journals(dir).unwrap().pop().unwrap().1
    }

    fn sound_batches(data: &[u8]) -> Vec<usize> {
        let mut starts = vec![0];
        while let Some(length) = sound_batch(&data[*starts.last().unwrap()..]) {
            starts.push(starts.last().unwrap() + length);
        }
        starts
    }

    #[test]
    fn a_torn_checkpoint_falls_back_to_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        (1..=3).for_each(|index| write(&store, index));
        drop(store);
        let journal = newest(dir.path());
        let data = fs::read(&journal).unwrap();
        let starts = sound_batches(&data);
        let last = starts[starts.len() - 2];
        // A page of the last batch did not reach the disk.
        let mut torn = data;
        torn[last + 4096..last + 8192].fill(0);
        fs::write(&journal, &torn).unwrap();
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.view().cut(ShardId(0)).unwrap().unwrap().index, 2);
        write(&store, 9);
        drop(store);
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(store.view().cut(ShardId(0)).unwrap().unwrap().index, 9);
    }

    #[test]
    fn a_journal_cut_anywhere_falls_back_to_a_whole_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        (1..=2).for_each(|index| write(&store, index));
        drop(store);
        let journal = newest(dir.path());
        let data = fs::read(&journal).unwrap();
        let starts = sound_batches(&data);
        let (last, end) = (starts[starts.len() - 2], starts[starts.len() - 1]);
        for cut in (last..end).step_by(2999) {
            fs::write(&journal, &data[..cut]).unwrap();
            let store = Store::open(dir.path()).unwrap();
            assert_eq!(store.view().cut(ShardId(0)).unwrap().unwrap().index, 1, "cut at {cut}");
        }
    }

    #[test]
    fn a_damaged_checkpoint_before_a_sound_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        (1..=3).for_each(|index| write(&store, index));
        drop(store);
        let journal = newest(dir.path());
        let mut data = fs::read(&journal).unwrap();
        let starts = sound_batches(&data);
        let second = starts[starts.len() - 3];
        for offset in [0, 1, 13, 30, 5000] {
            data[second + offset] ^= 1;
            fs::write(&journal, &data).unwrap();
            let error = Store::open(dir.path()).err().expect("it must not open").0;
            assert!(error.contains("with sound records after it"), "{error}");
            data[second + offset] ^= 1;
        }
    }
}
