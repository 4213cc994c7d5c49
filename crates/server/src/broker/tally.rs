//! Tallies: open, add to, reopen, commit, look.
//!
//! A tally lives on the shard that its id names, drawn when it is opened, or that of the tally above it;
//! its tasks live on the shards of their queues, which tell it what becomes of them. A look waits for what
//! they had to tell when it was asked, so that it shows all that was answered before.

use super::{Broker, enqueue::task_bytes, unexpected};
use crate::{Error, clock::real_now, random::random_u128};
use futures_util::future::try_join_all;
use std::time::{Duration, Instant};
use taskyard_machine::{
    AddToTally, Command, CommitTally, EncodedCommand, Enqueue, FollowUp, LinkView, OpenTally,
    Outcome, Rejection, ReopenTally, ShardId, TallyView, TaskId, ask, limits,
};

/// How long a look waits for what shards have to tell each other.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// The first pause before a shard is asked again, and the longest.
const ASK_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// A tally as it is asked for.
#[derive(Clone, Debug, Default)]
pub struct OpenTallyAsked<'a> {
    /// For people; may be empty.
    pub description: &'a str,
    /// The tally that waits for this one too.
    pub parent: Option<TaskId>,
    /// Enqueued once all its tasks have run, or ended.
    pub complete: Option<Enqueue<'a>>,
    /// Enqueued once all its tasks have succeeded, and `complete` has.
    pub success: Option<Enqueue<'a>>,
}

impl Broker {
    /// Opens a tally; its id. Nothing follows from it before it is committed.
    pub async fn open_tally(&self, asked: OpenTallyAsked<'_>) -> Result<TaskId, Error> {
        let OpenTallyAsked { description, parent, complete, success } = asked;
        let identity = random_u128();
        let shard = match parent {
            Some(parent) => self.shard_of_tally(parent)?,
            None => ShardId((identity % u128::from(self.shards().count())) as u16),
        };
        let command = EncodedCommand::new(&Command::OpenTally(OpenTally {
            batch_id: Some(identity),
            description,
            parent,
            complete: self.callback(complete)?,
            success: self.callback(success)?,
        }));
        match self.shards().propose(shard, command, true).await? {
            Outcome::TallyOpened { tally } => Ok(tally),
            other => unexpected(&other),
        }
    }

    fn callback<'a>(
        &self,
        enqueue: Option<Enqueue<'a>>,
    ) -> Result<Option<Box<FollowUp<'a>>>, Error> {
        enqueue.map(|enqueue| self.follow_up(enqueue).map(Box::new)).transpose()
    }

    /// Adds tasks to a tally, all or none; their ids, in order. One whose request or unique key has a task
    /// already is not made, and not counted: its id names none.
    pub async fn add_to_tally(
        &self,
        tally: TaskId,
        tasks: Vec<Enqueue<'_>>,
    ) -> Result<Vec<TaskId>, Error> {
        let shard = self.shard_of_tally(tally)?;
        let bytes: usize = tasks.iter().map(|enqueue| task_bytes(&enqueue.task)).sum();
        let bytes_max = limits::BATCH_BYTES_MAX;
        if bytes > bytes_max {
            return Err(Error::Invalid(format!(
                "the added tasks have {bytes} bytes, at most {bytes_max} are allowed; split them"
            )));
        }
        let in_place = |(index, enqueue)| -> Result<FollowUp<'_>, Error> {
            let error = |error| Error::Element { index, error: Box::new(error) };
            self.follow_up(enqueue).map_err(error)
        };
        let tasks = tasks.into_iter().enumerate().map(in_place).collect::<Result<_, _>>()?;
        let add = AddToTally { tally, batch_id: Some(random_u128()), tasks };
        let command = EncodedCommand::new(&Command::AddToTally(add));
        match self.shards().propose(shard, command, true).await? {
            Outcome::TallyAdded { ids } => Ok(ids),
            other => unexpected(&other),
        }
    }

    /// Holds back what has not followed from a tally yet, until it is committed again.
    pub async fn reopen_tally(&self, tally: TaskId) -> Result<(), Error> {
        self.change_tally(tally, &Command::ReopenTally(ReopenTally { tally })).await
    }

    /// Lets tasks follow from a tally: now, if all that they wait for has come.
    pub async fn commit_tally(&self, tally: TaskId) -> Result<(), Error> {
        self.change_tally(tally, &Command::CommitTally(CommitTally { tally })).await
    }

    async fn change_tally(&self, tally: TaskId, command: &Command<'_>) -> Result<(), Error> {
        match self.propose(self.shard_of_tally(tally)?, command).await? {
            Outcome::Done => Ok(()),
            other => unexpected(&other),
        }
    }

    /// One tally, with all that was answered about its tasks before it was asked for, by whichever node.
    pub async fn tally(&self, tally: TaskId) -> Result<TallyView, Error> {
        let shard = self.shard_of_tally(tally)?;
        let find = || async {
            let found = self.shards().ask(shard, ask::Tally { tally }).await?;
            found.ok_or_else(|| Error::from(Rejection::TallyNotFound { tally }))
        };
        // Whoever asks for one that is not there costs one look.
        find().await?;
        self.await_told(shard).await?;
        find().await
    }

    /// Waits until a shard has taken what the others had to tell it, with what they have to say to all that
    /// it had told them.
    async fn await_told(&self, shard: ShardId) -> Result<(), Error> {
        let others = (0..self.shards().count()).map(ShardId).filter(|&other| other != shard);
        let others: Vec<ShardId> = others.collect();
        if others.is_empty() {
            return Ok(());
        }
        let until = real_now() + TOLD_WITHIN;
        let waited = async {
            let links = self.links(shard, others.clone()).await?;
            let answers = others.iter().zip(links).map(|(&other, link)| async move {
                let links = self.await_taken(other, vec![shard], &[link.sent], until).await?;
                Ok::<u64, Error>(links.first().map_or(0, |link| link.sent))
            });
            let sent = try_join_all(answers).await?;
            self.await_taken(shard, others.clone(), &sent, until).await
        };
        match tokio::time::timeout(TOLD_WITHIN, waited).await {
            Ok(waited) => waited.map(drop),
            Err(_elapsed) => Err(not_told(shard)),
        }
    }

    /// Waits until a shard has taken so much from each of these.
    async fn await_taken(
        &self,
        shard: ShardId,
        from: Vec<ShardId>,
        sent: &[u64],
        until: Instant,
    ) -> Result<Vec<LinkView>, Error> {
        let [mut pause, pause_max] = ASK_AGAIN_AFTER;
        loop {
            let links = self.links(shard, from.clone()).await?;
            if links.iter().zip(sent).all(|(link, &sent)| link.taken >= sent) {
                return Ok(links);
            }
            if real_now() >= until {
                return Err(not_told(shard));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(pause_max);
        }
    }

    async fn links(&self, shard: ShardId, with: Vec<ShardId>) -> Result<Vec<LinkView>, Error> {
        self.shards().ask(shard, ask::Links { shards: with }).await
    }

    /// The shard that a tally's id names, if this cluster has it.
    fn shard_of_tally(&self, tally: TaskId) -> Result<ShardId, Error> {
        match tally.home.0 < self.shards().count() {
            true => Ok(tally.home),
            false => Err(Rejection::TallyNotFound { tally }.into()),
        }
    }
}

fn not_told(shard: ShardId) -> Error {
    Error::Unavailable(format!(
        "shard {shard} has not heard all that others have to tell it; ask again"
    ))
}
