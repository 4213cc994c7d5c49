//! Staging: drops the staged parts of a batch or flow that failed.
//!
//! Parts wait for their commit for a while, so that a caller with an id of its own can send them
//! again. If this node drew the id, no caller can send them again, and the parts would only take
//! the places of others.

use crate::{random::random_u128, shard::Shards};
use taskyard_machine::{Command, EncodedCommand, ShardId, Unstage};

/// The id under which parts are staged. When this value is dropped before the commit, it drops the
/// parts too, unless their caller may send them again.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) batch_id: u128,
    /// The shard on which to drop the parts.
    abandoned: Option<(Shards, ShardId)>,
}

impl Staging {
    /// Uses the caller's id, or draws one.
    pub(super) fn new(shards: &Shards, shard: ShardId, callers: Option<u128>) -> Staging {
        match callers {
            Some(batch_id) => Staging { batch_id, abandoned: None },
            None => {
                let abandoned = Some((shards.clone(), shard));
                Staging { batch_id: random_u128(), abandoned }
            }
        }
    }

    /// Records that the parts are committed, so that nothing is left to drop.
    pub(super) fn committed(mut self) {
        self.abandoned = None;
    }
}

impl Drop for Staging {
    /// Does not wait; if the command fails, the parts expire.
    fn drop(&mut self) {
        // A future may be dropped after its runtime, when the node is gone.
        if let (Some((shards, shard)), Ok(runtime)) =
            (self.abandoned.take(), tokio::runtime::Handle::try_current())
        {
            let unstage = Command::Unstage(Unstage { batch_id: self.batch_id });
            let unstage = EncodedCommand::new(&unstage);
            runtime.spawn(async move { shards.propose(shard, unstage, false).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Broker, Config, shard::Engine};
    use taskyard_machine::{Body, NewTask, QueueSettings, limits};

    /// A refused batch once left its parts for a minute, and after some of them no other batch
    /// could be staged.
    #[tokio::test]
    async fn a_batch_that_is_refused_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        (config.shards, config.disk_reserve_bytes) = (Some(1), 0);
        let engine = Engine::start(&config).unwrap();
        let broker = Broker::new(engine.shards(), &config);
        let full = QueueSettings { max_length: Some(1), ..QueueSettings::default() };
        broker.set_queue("mail", full).await.unwrap();
        let payload = vec![b'x'; limits::ENTRY_BYTES_MAX / 2];
        let body = Body { payload: &payload, ..Body::default() };
        let task = NewTask { task_type: "test", body, ..NewTask::default() };
        for attempt in 0..=limits::BATCHES_STAGED_MAX {
            let batch = broker.enqueue_batch("mail", vec![task.clone(); 3], None).unwrap();
            let refused = batch.await.unwrap_err();
            assert_eq!(refused.code(), "queue_full", "attempt {attempt}: {refused}");
        }
        // A batch with a name is kept, because its caller may send it again.
        let batch = |id| broker.enqueue_batch("mail", vec![task.clone(); 3], Some(id)).unwrap();
        assert_eq!(batch(1).await.unwrap_err().code(), "queue_full");
        broker.set_queue("mail", QueueSettings::default()).await.unwrap();
        assert_eq!(batch(1).await.unwrap().len(), 3);
    }
}
