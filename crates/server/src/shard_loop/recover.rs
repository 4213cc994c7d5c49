//! Recovery: builds replicas from the data directory, or says why it can't.
//!
//! A shard is its last checkpoint and the log after it. The two must meet: a checkpoint older than
//! the start of the log, or a missing log, means that synced data was lost, and the node refuses to
//! start. The exception is a snapshot that has just replaced the state: the store says so, and the
//! log that it made void is dropped.

use super::{
    checkpoints::Checkpoint,
    control::{LocalControl, first_members, replica_config},
    local::{LocalShard, State},
    panic_message,
    stopped::{Unloaded, guarded},
};
use crate::{
    checkpoint::{Cut, Store, StoreError},
    data_dir::Format,
    log::{Batch, GroupState, Log, group_of},
    node::StartError,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use taskyard_machine::{Identity, Machine, RecordKey, ShardId};
use taskyard_replica::{Replica, Restored, eraftpb};

/// The index of a log's first entry: a group begins as if a checkpoint at 1 had been taken.
const FIRST_INDEX: u64 = 2;

/// The replicas that a data directory has.
pub(crate) struct Recovered {
    pub(super) control: Option<LocalControl>,
    pub(super) shards: Vec<LocalShard>,
    /// Replicas whose rules failed on their checkpoint.
    pub(super) unloaded: Vec<Unloaded>,
    /// By group: the last replica that was removed from this node.
    pub(super) gone: BTreeMap<u64, u64>,
}

/// One replica of a data directory.
enum Found {
    Loaded(Box<LocalShard>),
    Unloaded(Unloaded),
}

/// Recovers all replicas of a data directory, on several threads, because loading is CPU work.
pub(crate) fn recover_all(
    format: Format,
    store: &Arc<Store>,
    log: &Arc<Log>,
) -> Result<Recovered, StartError> {
    let control = LocalControl::recover(log, u64::from(format.incarnation))?;
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let recover_some = || {
        let mut recovered = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Ok(id) = u16::try_from(number) else { break };
            if id >= format.shards {
                break;
            }
            recovered.extend(recover(ShardId(id), format, store, log)?);
        }
        Ok(recovered)
    };
    let parts: Result<Vec<_>, StartError> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(recover_some)).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(recovered) => recovered,
            Err(panic) => Err(StartError(panic_message(panic.as_ref()))),
        });
        joined.collect()
    });
    let (mut shards, mut unloaded) = (Vec::new(), Vec::new());
    for found in parts?.into_iter().flatten() {
        match found {
            Found::Loaded(shard) => shards.push(*shard),
            Found::Unloaded(shard) => unloaded.push(shard),
        }
    }
    let mut gone = BTreeMap::new();
    for group in (0..format.shards).map(|shard| group_of(ShardId(shard))) {
        gone.insert(group, log.group(group)?.gone);
    }
    Ok(Recovered { control, shards, unloaded, gone })
}

/// Recovers one shard; `None` if this node has no replica of it.
fn recover(
    shard: ShardId,
    format: Format,
    store: &Arc<Store>,
    log: &Arc<Log>,
) -> Result<Option<Found>, StartError> {
    let group = group_of(shard);
    let damaged = |what: String| {
        StartError(format!(
            "shard {shard} can't be recovered: {what}; restore a backup into a new directory"
        ))
    };
    let view = store.view();
    let unreadable = |error: StoreError| damaged(error.to_string());
    let cut = view.cut(shard).map_err(unreadable)?;
    let held = log.group(group)?;
    let Some(id) = held.replica else {
        match cut {
            Some(Cut { index, .. }) if held.gone == 0 => {
                return Err(damaged(format!("its checkpoint is at {index}, but its log is gone")));
            }
            // The replica was removed, and the node ended before its state was removed.
            Some(_) => store.remove(shard).map_err(unreadable)?,
            None => {}
        }
        return Ok(None);
    };
    if let Some(cut) = &cut
        && view.is_installed(shard).map_err(unreadable)?
    {
        finish_install(log, group, id, cut)?;
    }
    let held = log.group(group)?;
    check_they_meet(cut.as_ref(), &held).map_err(damaged)?;
    let identity = Identity { incarnation: format.incarnation, shard, shards: format.shards };
    let (stored, term) = cut.as_ref().map_or((0, 0), |cut| (cut.index, cut.term));
    let loaded = match &cut {
        None => Ok(Machine::new(identity)),
        Some(_) => load(identity, view.records(shard)),
    };
    let machine = match loaded {
        Ok(machine) => machine,
        Err(LoadError::Damaged(what)) => return Err(damaged(what)),
        Err(LoadError::Panicked(words)) => {
            let last = held.entries.map_or(stored, |(_, last)| last);
            let (replica, checkpoint) = (id, stored);
            let unloaded = Unloaded { shard, replica, checkpoint, term, last, words };
            return Ok(Some(Found::Unloaded(unloaded)));
        }
    };
    let restored = restored(id, cut, &held);
    let config = replica_config(group, id, u64::from(format.incarnation));
    let reader = Box::new(log.reader(group));
    // The reader panics if the log can't be read back.
    let built = guarded(|| Replica::new(&config, restored, reader, State::new(machine)));
    let replica = match built {
        Ok(replica) => replica.map_err(|error| damaged(error.to_string()))?,
        Err(panic) => return Err(damaged(panic_message(panic.as_ref()))),
    };
    // Where the entries are in the log is unknown: they count as the first that were written since
    // this start.
    let checkpoint = Checkpoint::apart(shard, stored, 0);
    Ok(Some(Found::Loaded(Box::new(LocalShard::new(shard, group, replica, checkpoint)))))
}

/// Why no state can be built from a shard's records.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The records can't be read, or do not fit together.
    #[error("{0}")]
    Damaged(String),
    /// The rules failed on them.
    #[error("the state can't be loaded: {0}; start a version in which this is mended")]
    Panicked(String),
}

/// Builds a shard's state from its records.
pub(crate) fn load(
    identity: Identity,
    records: impl Iterator<Item = Result<(RecordKey, Box<[u8]>), StoreError>>,
) -> Result<Machine, LoadError> {
    let mut failed = None;
    let records = records.map_while(|record| record.map_err(|error| failed = Some(error)).ok());
    #[cfg(test)]
    let records =
        records.inspect(|(_, value)| super::local::meet(super::local::MISTAKE_IN_A_LOAD, value));
    let loaded = guarded(|| Machine::load(identity, records));
    match (failed, loaded) {
        (Some(error), _) => Err(LoadError::Damaged(error.to_string())),
        (None, Ok(loaded)) => loaded.map_err(|error| LoadError::Damaged(error.to_string())),
        (None, Err(panic)) => Err(LoadError::Panicked(panic_message(panic.as_ref()))),
    }
}

/// Resets a log that a snapshot has made void, if the node ended before the reset. A log whose cut
/// is as far as the snapshot was reset; entries missing from it were lost later.
pub(super) fn finish_install(
    log: &Log,
    group: u64,
    replica: u64,
    cut: &Cut,
) -> Result<(), StartError> {
    let held = log.group(group)?;
    if held.cut >= cut.index {
        return Ok(());
    }
    let mut hard_state = held.hard_state.unwrap_or_default();
    if hard_state.term < cut.term {
        // That term is over, and its vote with it.
        hard_state = eraftpb::HardState { term: cut.term, ..Default::default() };
    }
    hard_state.commit = cut.index;
    let mut batch = Batch::default();
    batch.reset(group, replica, cut.index, &hard_state);
    log.write(&mut batch).map(drop).map_err(|error| StartError(error.to_string()))
}

pub(super) fn check_they_meet(cut: Option<&Cut>, held: &GroupState) -> Result<(), String> {
    let applied = cut.map_or(1, |cut| cut.index);
    if cut.is_some() && held.hard_state.is_none() {
        return Err(format!("its checkpoint is at {applied}, but its log is gone"));
    }
    if applied < held.cut {
        let cut = held.cut;
        return Err(format!("its checkpoint is at {applied}, but its log begins after {cut}"));
    }
    match held.entries {
        Some((first, last)) if last > applied && first > applied + 1 => {
            Err(format!("its checkpoint is at {applied}, but its log begins at {first}"))
        }
        // A cut of the log is stored beside the log. A log that was never cut begins at its first
        // entry: the node ended after the checkpoint was synced and before the cut.
        entries
            if cut.is_some()
                && held.cut == 0
                && entries.is_none_or(|(first, _)| first > FIRST_INDEX) =>
        {
            Err(format!("its checkpoint is at {applied}, but a part of its log is gone"))
        }
        _ => Ok(()),
    }
}

pub(super) fn restored(id: u64, cut: Option<Cut>, held: &GroupState) -> Restored {
    let first = first_members(id);
    let (applied, applied_term, conf_state) =
        cut.map_or((0, 0, first), |cut| (cut.index, cut.term, cut.conf_state));
    let (first_index, last_index) = match held.entries {
        Some((first, last)) if first <= applied => (first, last.max(applied)),
        Some((_, last)) => (0, last.max(applied)),
        None => (0, applied),
    };
    let hard_state = held.hard_state.clone().unwrap_or_default();
    Restored { hard_state, conf_state, applied, applied_term, first_index, last_index }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_replica::eraftpb;

    #[test]
    fn a_checkpoint_and_a_log_that_do_not_meet_are_refused() {
        let check = |checkpoint: Option<u64>, log_cut: u64, entries: Option<(u64, u64)>| {
            let conf_state = eraftpb::ConfState::default();
            let cut = checkpoint.map(|index| Cut { index, term: 1, conf_state });
            let hard_state = Some(eraftpb::HardState::default());
            check_they_meet(
                cut.as_ref(),
                &GroupState { hard_state, cut: log_cut, entries, replica: Some(1), gone: 0 },
            )
        };
        for (checkpoint, log_cut, entries) in [
            (None, 0, None),
            (None, 0, Some((2, 9))),
            (Some(9), 9, None),
            (Some(9), 9, Some((10, 12))),
            (Some(9), 5, Some((6, 9))),
            // The node ended between its first checkpoint and the cut of its log.
            (Some(9), 0, Some((2, 9))),
        ] {
            let met = check(checkpoint, log_cut, entries);
            assert_eq!(met, Ok(()), "{checkpoint:?} {log_cut} {entries:?}");
        }
        for (checkpoint, log_cut, entries, words) in [
            (None, 9, None, "begins after 9"),
            (Some(5), 9, None, "begins after 9"),
            (Some(9), 9, Some((12, 15)), "begins at 12"),
            (Some(9), 0, None, "a part of its log is gone"),
            (Some(9), 0, Some((10, 12)), "a part of its log is gone"),
        ] {
            let refused = check(checkpoint, log_cut, entries).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }

    /// A replica that was removed is noted in the log. A log without that note has lost its data,
    /// and the shard's checkpoint must be kept.
    #[test]
    fn a_checkpoint_whose_log_is_gone_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let [state, files] = ["state", "log"].map(|folder| dir.path().join(folder));
        std::fs::create_dir(&state).unwrap();
        std::fs::create_dir(&files).unwrap();
        let (store, log) = (Store::open(&state).unwrap(), Arc::new(Log::open(&files).unwrap()));
        let format = Format { cluster: 7, incarnation: 1, shards: 2, node: 1 };
        let shard = ShardId(1);
        let cut = Cut { index: 30, term: 5, conf_state: eraftpb::ConfState::default() };
        store.write(shard, &cut, Vec::new()).unwrap();
        let refused = recover(shard, format, &store, &log).map(drop).unwrap_err().0;
        assert!(refused.contains("its checkpoint is at 30, but its log is gone"), "{refused}");
        assert!(store.view().cut(shard).unwrap().is_some(), "it was removed");

        let mut batch = Batch::default();
        batch.forget(group_of(shard), 3);
        log.write(&mut batch).unwrap();
        assert!(recover(shard, format, &store, &log).unwrap().is_none());
        assert!(store.view().cut(shard).unwrap().is_none(), "it was kept");
    }

    /// A crash between the switch to a snapshot and the reset of the log, and one right after both.
    #[test]
    fn a_log_that_a_snapshot_made_void_is_dropped_and_one_that_lost_a_part_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path()).unwrap();
        let cut = Cut { index: 30, term: 5, conf_state: eraftpb::ConfState::default() };
        let entry = |index| eraftpb::Entry { index, term: 2, ..Default::default() };
        let state =
            |term, vote, commit| eraftpb::HardState { term, vote, commit, ..Default::default() };
        let mut batch = Batch::default();
        // The log ends before the snapshot, after it, or is empty. A vote in a later term than the
        // snapshot's stays.
        for (group, last, before, after) in [
            (1, 9, state(4, 3, 8), state(5, 0, 30)),
            (2, 40, state(7, 3, 8), state(7, 3, 30)),
            (3, 0, state(5, 1, 0), state(5, 1, 30)),
        ] {
            batch.append(group, &(2..=last).map(entry).collect::<Vec<_>>());
            batch.hard_state(group, &before);
            log.write(&mut batch).unwrap();
            finish_install(&log, group, 1, &cut).unwrap();
            let held = log.group(group).unwrap();
            let expected = GroupState {
                hard_state: Some(after),
                cut: 30,
                entries: None,
                replica: Some(1),
                gone: 0,
            };
            assert_eq!(held, expected, "group {group}");
            check_they_meet(Some(&cut), &held).unwrap();
        }
        batch.append(1, &[entry(33)]);
        log.write(&mut batch).unwrap();
        finish_install(&log, 1, 1, &cut).unwrap();
        let refused = check_they_meet(Some(&cut), &log.group(1).unwrap()).unwrap_err();
        assert!(refused.contains("begins at 33"), "{refused}");
    }
}
