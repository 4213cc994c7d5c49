//! Tallies: open, add tasks, reopen, commit, read.
//!
//! A tally's record is on the shard that its id names: drawn at random, or the shard of the tally
//! above. Its tasks are on the shards of their queues, which send it their standings. A read first
//! waits for the messages that were on their way, so that it shows everything that was answered
//! before.

use super::{Broker, enqueue::task_bytes, unexpected};
use crate::{Error, clock::real_now, random::random_u128};
use futures_util::future::try_join_all;
use std::time::{Duration, Instant};
use taskyard_machine::{
    AddToTally, Command, CommitTally, EncodedCommand, Enqueue, FollowUp, LinkView, OpenTally,
    Outcome, Rejection, ReopenTally, ShardId, TallyView, TaskId, ask, limits,
};

/// How long a read waits for the messages between shards.
const MESSAGES_WITHIN: Duration = Duration::from_secs(2);
/// The first and the longest pause before a shard is asked again.
const ASK_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// The options of a new tally.
#[derive(Clone, Debug, Default)]
pub struct OpenTallyAsked<'a> {
    /// A description for people; may be empty.
    pub description: &'a str,
    /// The tally above, which then waits for this one too.
    pub parent: Option<TaskId>,
    /// Enqueued once all tasks have run, or ended.
    pub complete: Option<Enqueue<'a>>,
    /// Enqueued once all tasks have succeeded, and `complete` has.
    pub success: Option<Enqueue<'a>>,
}

impl Broker {
    /// Opens a tally; returns its id. No callback is enqueued before the commit.
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

    /// Adds tasks to a tally, all or none; returns their ids, in order. A task whose request id or
    /// unique key another task has is neither made nor counted; its id names no task.
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

    /// Delays the callbacks that are not enqueued yet, until the next commit.
    pub async fn reopen_tally(&self, tally: TaskId) -> Result<(), Error> {
        self.change_tally(tally, &Command::ReopenTally(ReopenTally { tally })).await
    }

    /// Lets the callbacks be enqueued, at once if they wait for nothing else.
    pub async fn commit_tally(&self, tally: TaskId) -> Result<(), Error> {
        self.change_tally(tally, &Command::CommitTally(CommitTally { tally })).await
    }

    async fn change_tally(&self, tally: TaskId, command: &Command<'_>) -> Result<(), Error> {
        match self.propose(self.shard_of_tally(tally)?, command).await? {
            Outcome::Done => Ok(()),
            other => unexpected(&other),
        }
    }

    /// One tally, with everything that any node answered about its tasks before this call.
    pub async fn tally(&self, tally: TaskId) -> Result<TallyView, Error> {
        let shard = self.shard_of_tally(tally)?;
        let find = || async {
            let found = self.shards().ask(shard, ask::Tally { tally }).await?;
            found.ok_or_else(|| Error::from(Rejection::TallyNotFound { tally }))
        };
        // An unknown tally is rejected after a single read.
        find().await?;
        self.await_messages(shard).await?;
        find().await
    }

    /// Waits until a shard has taken the messages of the others, and their answers to its own
    /// messages.
    async fn await_messages(&self, shard: ShardId) -> Result<(), Error> {
        let others = (0..self.shards().count()).map(ShardId).filter(|&other| other != shard);
        let others: Vec<ShardId> = others.collect();
        if others.is_empty() {
            return Ok(());
        }
        let until = real_now() + MESSAGES_WITHIN;
        let waited = async {
            let links = self.links(shard, others.clone()).await?;
            let answers = others.iter().zip(links).map(|(&other, link)| async move {
                let links = self.await_taken(other, vec![shard], &[link.sent], until).await?;
                Ok::<u64, Error>(links.first().map_or(0, |link| link.sent))
            });
            let sent = try_join_all(answers).await?;
            self.await_taken(shard, others.clone(), &sent, until).await
        };
        match tokio::time::timeout(MESSAGES_WITHIN, waited).await {
            Ok(waited) => waited.map(drop),
            Err(_elapsed) => Err(messages_missing(shard)),
        }
    }

    /// Waits until a shard has taken this many messages from each of these shards.
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
                return Err(messages_missing(shard));
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

fn messages_missing(shard: ShardId) -> Error {
    Error::Unavailable(format!(
        "shard {shard} has not taken all messages of other shards yet; ask again"
    ))
}
