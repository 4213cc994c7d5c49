//! The log on real files: restarts, torn tails, damage, purges.

use super::*;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

pub(super) const SMALL_FILE_BYTES: u64 = 1 << 20;

pub(super) fn small(dir: &Path) -> Log {
    Log::open_sized(dir, SMALL_FILE_BYTES, 4 * SMALL_FILE_BYTES).unwrap()
}

pub(super) fn entry(index: u64, bytes: usize) -> eraftpb::Entry {
    let data = vec![index as u8; bytes].into();
    eraftpb::Entry { index, term: 1, data, ..Default::default() }
}

pub(super) fn write(log: &Log, group: u64, indexes: std::ops::RangeInclusive<u64>) -> Written {
    let mut batch = Batch::default();
    let last = *indexes.end();
    let entries: Vec<_> = indexes.map(|index| entry(index, 300)).collect();
    batch.append(group, &entries);
    let hard_state = eraftpb::HardState { term: 1, commit: last, ..Default::default() };
    batch.hard_state(group, &hard_state);
    log.write(&mut batch).unwrap()
}

pub(super) fn newest_file(dir: &Path, queue: &str) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == queue)).max().unwrap()
}

pub(super) fn indexes(log: &Arc<Log>, group: u64) -> Vec<u64> {
    let Some((first, last)) = log.group(group).unwrap().entries else { return Vec::new() };
    let entries = log.reader(group).entries(first, last + 1, u64::MAX);
    entries.iter().map(|entry| entry.index).collect()
}

#[test]
fn written_entries_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(Log::open(dir.path()).unwrap());
    assert_eq!(log.group(3).unwrap(), GroupState::default());
    write(&log, 3, 2..=5);
    write(&log, 4, 2..=2);
    let mut batch = Batch::default();
    batch.cut(3, 3);
    log.write(&mut batch).unwrap();
    assert!(batch.is_empty());
    drop(log);
    let log = Arc::new(Log::open(dir.path()).unwrap());
    let state = log.group(3).unwrap();
    assert_eq!((state.cut, state.entries), (3, Some((4, 5))));
    assert_eq!(state.hard_state.unwrap().commit, 5);
    assert_eq!(indexes(&log, 4), [2]);
    assert_eq!(log.reader(3).term(5), Some(1));
    assert_eq!(log.reader(3).term(9), None);
    let one = log.reader(3).entries(4, 6, 1);
    assert_eq!(one.len(), 1, "at least one, whatever the bound");
}

#[test]
fn a_log_of_another_directory_or_of_more_shards_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path()).unwrap();
    let format = Format { cluster: 7, incarnation: 1, shards: 2, node: 1 };
    let error = |format| log.check_mark(dir.path(), format).expect_err("it is refused").0;
    assert!(error(format).contains("has no mark of this data directory"), "{}", error(format));
    log.mark(format).unwrap();
    log.check_mark(dir.path(), format).unwrap();
    let other = Format { cluster: 8, ..format };
    assert!(error(other).contains("belongs to another data directory"), "{}", error(other));
    let fewer = Format { shards: 1, ..format };
    assert!(error(fewer).contains("was made with 2 shards, and FORMAT says 1"));
    write(&log, 2, 2..=2);
    log.check_mark(dir.path(), format).unwrap();
    write(&log, 3, 2..=2);
    assert!(error(format).contains("has data of shard 2"), "{}", error(format));
}

/// Cuts the file at every offset of the last record and of the one before.
#[test]
fn a_torn_tail_loses_the_torn_write_alone() {
    let dir = tempfile::tempdir().unwrap();
    let original = dir.path().join("original");
    fs::create_dir(&original).unwrap();
    let log = Log::open(&original).unwrap();
    let sizes: Vec<usize> = (0..3).map(|i| write(&log, 1, 2 + i..=2 + i).bytes).collect();
    drop(log);
    let file = newest_file(&original, "raftlog");
    let bytes = fs::read(&file).unwrap();
    let third = bytes.len() - sizes[2];
    let second = third - sizes[1];
    for cut in (second..=bytes.len()).step_by(7).chain([third - 1, third, third + 1]) {
        for filler in [None, Some(0u8), Some(0xff)] {
            let copy = dir.path().join(format!("cut-{cut}-{filler:?}"));
            fs::create_dir(&copy).unwrap();
            let mut torn = bytes[..cut].to_vec();
            torn.resize(cut + filler.map_or(0, |_| 4096), filler.unwrap_or_default());
            fs::write(copy.join(file.file_name().unwrap()), torn).unwrap();
            let log = Arc::new(Log::open(&copy).unwrap());
            let whole = if cut < third { 1 } else { 2 + u64::from(cut == bytes.len()) };
            assert_eq!(indexes(&log, 1), (2..2 + whole).collect::<Vec<_>>(), "cut at {cut}");
            drop(log);
            fs::remove_dir_all(&copy).unwrap();
        }
    }
}

#[test]
fn a_damaged_middle_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path()).unwrap();
    let sizes: Vec<usize> = (0..3).map(|i| write(&log, 1, 2 + i..=2 + i).bytes).collect();
    drop(log);
    let file = newest_file(dir.path(), "raftlog");
    let bytes = fs::read(&file).unwrap();
    let first = bytes.len() - sizes.iter().sum::<usize>();
    for offset in [3, first + 1, first + 9, first + 100, first + sizes[0] - 2] {
        let mut broken = bytes.clone();
        broken[offset] ^= 0x55;
        fs::write(&file, &broken).unwrap();
        let error = Log::open(dir.path()).err().expect("it must not open").0;
        assert!(error.contains("is damaged at byte"), "offset {offset}: {error}");
    }
    fs::write(&file, &bytes).unwrap();
    assert_eq!(indexes(&Arc::new(Log::open(dir.path()).unwrap()), 1), [2, 3, 4]);
}

#[test]
fn a_damaged_older_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = small(dir.path());
    let mut batch = Batch::default();
    // Two rotations' worth, because a rotation checks the size before a write.
    for index in 2..=4 {
        batch.append(1, &[entry(index, SMALL_FILE_BYTES as usize + 1)]);
        log.write(&mut batch).unwrap();
    }
    let newest = newest_file(dir.path(), "raftlog");
    let older = newest.with_file_name("0000000000000001.raftlog");
    assert!(older.exists() && older != newest);
    drop(log);
    let damaged = OpenOptions::new().write(true).open(&older).unwrap();
    damaged.write_all_at(b"?", 1000).unwrap();
    let error = Log::open(dir.path()).err().expect("it must not open").0;
    assert!(error.contains("0001.raftlog is damaged at byte 69"), "{error}");
}

#[test]
fn purge_frees_files_behind_the_cut() {
    let dir = tempfile::tempdir().unwrap();
    let log = small(dir.path());
    let mut batch = Batch::default();
    for index in 2..=11 {
        batch.append(1, &[entry(index, SMALL_FILE_BYTES as usize + 1)]);
        log.write(&mut batch).unwrap();
    }
    let files = || fs::read_dir(dir.path()).unwrap().count();
    let before = files();
    batch.cut(1, 10);
    log.write(&mut batch).unwrap();
    log.purge().unwrap();
    assert!(log.engine.get_used_size() <= 3 * SMALL_FILE_BYTES as usize, "{} files", files());
    assert!(before >= 10);
}

/// Each written checkpoint asks for a purge. After the tenth request in a row raft-engine copies
/// the entries that the group's next checkpoint would have freed.
#[test]
fn purges_in_a_row_ask_once_and_copy_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = small(dir.path());
    let mut batch = Batch::default();
    for part in 0..10 {
        let entries = (part * 40 + 2..part * 40 + 42).map(|index| entry(index, 26_000));
        batch.append(1, &entries.collect::<Vec<_>>());
        log.write(&mut batch).unwrap();
    }
    assert_eq!(log.purge().unwrap(), [1], "it has old entries");
    for _ in 0..20 {
        assert!(log.purge().unwrap().is_empty(), "nothing was written since");
    }
    let copied = newest_file(dir.path(), "rewrite");
    assert!(fs::metadata(copied).unwrap().len() < 1_000, "entries were copied");
    batch.append(1, &[entry(402, SMALL_FILE_BYTES as usize)]);
    log.write(&mut batch).unwrap();
    assert_eq!(log.purge().unwrap(), [1], "it still has");
}

/// Writes entries of a group that take a file each, cuts all but the last, and purges.
pub(super) fn write_files(log: &Log, group: u64, index: &mut u64, files: usize) {
    let mut batch = Batch::default();
    for _ in 0..files {
        *index += 1;
        batch.append(group, &[entry(*index, SMALL_FILE_BYTES as usize + 1)]);
        batch.cut(group, *index - 1);
        log.write(&mut batch).unwrap();
    }
    log.purge().unwrap();
}

/// The purging thread moves entries and removes their file while others are read.
#[test]
fn entries_are_read_while_a_purge_moves_them() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(small(dir.path()));
    let (quiet, hot) = (1, 2);
    // As many entries as raft-engine moves, and large, so that reading them takes a while.
    let moved: Vec<_> = (2..=30).map(|index| entry(index, 20_000)).collect();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let reader = log.reader(quiet);
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                let first = log.engine.first_index(quiet).unwrap_or(31);
                let found = reader.entries(first, 31, u64::MAX);
                assert_eq!(found.len() as u64, 31 - first);
            }
        });
        let mut batch = Batch::default();
        let mut index = 1;
        for _ in 0..40 {
            batch.append(quiet, &moved);
            log.write(&mut batch).unwrap();
            write_files(&log, hot, &mut index, 6);
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// A quiet group's entries were moved to the rewrite queue, then cut. The file with the cut's
/// command is freed while a busy group writes on.
#[test]
fn entries_behind_a_cut_do_not_come_back_after_a_purge() {
    let dir = tempfile::tempdir().unwrap();
    let log = small(dir.path());
    let format = Format { cluster: 7, incarnation: 1, shards: 2, node: 1 };
    log.mark(format).unwrap();
    let (quiet, hot) = (1, 2);
    let mut index = 1;
    let mut write_hot = || write_files(&log, hot, &mut index, 12);
    write(&log, quiet, 2..=5);
    write_hot();
    write(&log, quiet, 6..=8);
    let mut cut = Batch::default();
    cut.cut(quiet, 8);
    log.write(&mut cut).unwrap();
    write_hot();
    write_hot();
    drop(log);

    let log = Arc::new(small(dir.path()));
    let state = log.group(quiet).unwrap();
    assert_eq!((state.cut, state.entries), (8, None));
    assert_eq!(state.hard_state.unwrap().commit, 8);
    write(&log, quiet, 9..=9);
    assert_eq!(indexes(&log, quiet), [9]);
    log.check_mark(dir.path(), format).expect("the mark stays, too");
    drop(log);
    assert_eq!(indexes(&Arc::new(small(dir.path())), quiet), [9]);
}
