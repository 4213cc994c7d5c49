//! Kept: this node's copies of its shards, for backups that any node writes.
//!
//! A copy is a view of the store. This node keeps a copy while requests for it come in, and drops
//! an unused one, because the store cannot free the space of the data in a view.

use super::Cluster;
use crate::{
    Error, backup,
    checkpoint::{Part, Position, View, encode_cut},
    clock::real_now,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use taskyard_machine::ShardId;

/// How long replicas may take to apply what their leaders had applied.
const CATCH_UP_FOR: Duration = Duration::from_secs(5);
/// The interval between two looks at their progress.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A copy without requests for this long is dropped.
const UNUSED_FOR_MAX: Duration = Duration::from_secs(60);
/// The most copies at once. Each backup needs one on many nodes.
const COPIES_MAX: usize = 16;

struct Copy {
    /// `None` until the whole copy is on disk.
    view: Option<Arc<View>>,
    used_at: Instant,
}

struct State {
    /// The copies by backup.
    copies: BTreeMap<u64, Copy>,
    /// Whether the node stops.
    is_closed: bool,
}

/// The copies of this node, by their backup.
pub(crate) struct KeptCopies(Mutex<State>);

impl KeptCopies {
    pub(super) fn new() -> KeptCopies {
        KeptCopies(Mutex::new(State { copies: BTreeMap::new(), is_closed: false }))
    }

    /// Reserves a place for a copy.
    pub(super) fn expect(&self, backup: u64, now: Instant) -> Result<(), Error> {
        let mut state = self.lock();
        close_unused(&mut state, now);
        if state.is_closed {
            return Err(crate::shard::gone());
        }
        if state.copies.len() >= COPIES_MAX {
            return Err(Error::LimitExceeded(format!(
                "this node keeps copies for {COPIES_MAX} backups; wait for one to end"
            )));
        }
        state.copies.insert(backup, Copy { view: None, used_at: now });
        Ok(())
    }

    /// Keeps a copy in its reserved place, unless the place was dropped meanwhile.
    pub(super) fn keep(&self, backup: u64, view: View, now: Instant) {
        if let Some(copy) = self.lock().copies.get_mut(&backup) {
            (copy.view, copy.used_at) = (Some(Arc::new(view)), now);
        }
    }

    /// Drops a copy that is not needed, or its reserved place.
    pub(super) fn remove(&self, backup: u64) {
        self.lock().copies.remove(&backup);
    }

    /// The copy for a backup; `Some(None)` if it is not on disk yet.
    pub(super) fn copy(&self, backup: u64, now: Instant) -> Option<Option<Arc<View>>> {
        let mut state = self.lock();
        let copy = state.copies.get_mut(&backup)?;
        copy.used_at = now;
        Some(copy.view.clone())
    }

    /// Drops unused copies.
    pub(super) fn close_unused(&self, now: Instant) {
        close_unused(&mut self.lock(), now);
    }

    /// Drops all copies, because the node stops.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.copies.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close_unused(state: &mut State, now: Instant) {
    let is_used = |copy: &Copy| now.saturating_duration_since(copy.used_at) < UNUSED_FOR_MAX;
    state.copies.retain(|_, copy| is_used(copy));
}

impl Cluster {
    /// Freezes all replicas of this node, after these shards have applied the given indexes or took
    /// too long. Returns the shards that have applied them.
    pub(super) async fn freeze(
        &self,
        backup: u64,
        shards: &[(ShardId, u64)],
    ) -> Result<Vec<ShardId>, Error> {
        self.shards().snapshots().kept.expect(backup, real_now())?;
        let reached = self.catch_up(shards).await?;
        let frozen = self.shards().freeze().await?;
        let shards = self.shards().clone();
        tokio::spawn(async move {
            let kept = &shards.snapshots().kept;
            match frozen.written().await {
                Ok(view) => kept.keep(backup, view, real_now()),
                Err(_) => kept.remove(backup),
            }
        });
        Ok(reached)
    }

    /// Waits until these replicas have applied the given indexes. Returns those that have.
    async fn catch_up(&self, shards: &[(ShardId, u64)]) -> Result<Vec<ShardId>, Error> {
        let until = real_now() + CATCH_UP_FOR;
        loop {
            let groups = self.shards().groups().await?;
            let has_come = |(shard, index): &&(ShardId, u64)| {
                let group = u64::from(shard.0) + 1;
                groups.iter().any(|own| own.group == group && own.applied >= *index)
            };
            let reached: Vec<ShardId> = shards.iter().filter(has_come).map(|it| it.0).collect();
            if reached.len() == shards.len() || real_now() >= until {
                return Ok(reached);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The cuts of the copies for a backup; `None` until they are on disk.
    pub(super) async fn copied(
        &self,
        backup: u64,
    ) -> Result<Option<Vec<(ShardId, Vec<u8>)>>, Error> {
        let Some(view) = self.kept_copy(backup)? else { return Ok(None) };
        let shards = self.shards().count();
        let read = tokio::task::spawn_blocking(move || {
            let cut = |shard| Ok(view.cut(shard)?.map(|cut| (shard, encode_cut(&cut))));
            (0..shards).map(ShardId).filter_map(|shard| cut(shard).transpose()).collect()
        });
        match read.await {
            Ok(Ok(cuts)) => Ok(Some(cuts)),
            Ok(Err(error)) => {
                let error: crate::checkpoint::StoreError = error;
                Err(Error::Unavailable(error.to_string()))
            }
            Err(_) => Err(crate::shard::gone()),
        }
    }

    /// A part of a shard's copy for a backup.
    pub(super) async fn copied_part(
        &self,
        backup: u64,
        shard: ShardId,
        from: Position,
    ) -> Result<Part, Error> {
        match self.kept_copy(backup)? {
            Some(view) => backup::read_part(view, shard, from).await,
            None => Err(self.keeps_no_copy()),
        }
    }

    fn kept_copy(&self, backup: u64) -> Result<Option<Arc<View>>, Error> {
        let kept = self.shards().snapshots().kept.copy(backup, real_now());
        kept.ok_or_else(|| self.keeps_no_copy())
    }

    fn keeps_no_copy(&self) -> Error {
        let me = self.me();
        Error::Unavailable(format!(
            "node {me} keeps no copy for this backup any more; take the backup again"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{checkpoint::Store, clock};

    #[test]
    fn a_copy_is_kept_while_it_is_asked_for_and_no_node_keeps_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let kept = KeptCopies::new();
        let mut now = clock::real_now();
        assert!(kept.copy(1, now).is_none(), "nobody expects it");
        kept.expect(1, now).unwrap();
        assert!(kept.copy(1, now).is_some_and(|copy| copy.is_none()), "it is not there yet");
        kept.keep(1, store.view(), now);
        kept.keep(2, store.view(), now);
        assert!(kept.copy(2, now).is_none(), "nobody expects it");
        for _ in 0..10 {
            now += UNUSED_FOR_MAX / 2;
            kept.close_unused(now);
            assert!(kept.copy(1, now).is_some_and(|copy| copy.is_some()));
        }
        now += UNUSED_FOR_MAX;
        kept.close_unused(now);
        assert!(kept.copy(1, now).is_none(), "nobody asked for it");
        for backup in 0..COPIES_MAX as u64 {
            kept.expect(backup, now).unwrap();
            kept.keep(backup, store.view(), now);
        }
        assert_eq!(kept.expect(99, now).unwrap_err().code(), "limit_exceeded");
        kept.remove(3);
        kept.expect(99, now).unwrap();
        kept.close();
        assert!(kept.copy(99, now).is_none());
        assert!(kept.expect(100, now).is_err(), "the node ends");
        assert_eq!(Arc::strong_count(&store), 1, "nothing holds the store");
    }
}
