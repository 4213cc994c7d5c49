//! Finish: the answers of a worker about a claim: ack, fail, extend, release, snooze; one at a
//! time, or many together.

use super::{Broker, unexpected};
use crate::Error;
use std::future::Future;
use taskyard_machine::{
    Ack, AfterFailure, Command, EncodedCommand, Extend, Fail, Outcome, Release, ShardId, Snooze,
    TaskId, TaskStateName, Timestamp, When, limits,
};

impl Broker {
    /// Ends a claimed task as succeeded; returns the ids of its follow-ups.
    pub async fn ack(&self, ack: Ack<'_>) -> Result<Vec<TaskId>, Error> {
        match self.finish(&Command::Ack(ack)).await? {
            Outcome::Acked { follow_ups } => Ok(follow_ups),
            other => unexpected(&other),
        }
    }

    /// Ends an attempt as failed.
    pub async fn fail(&self, fail: Fail<'_>) -> Result<AfterFailure, Error> {
        match self.finish(&Command::Fail(fail)).await? {
            Outcome::Failed(after) => Ok(after),
            other => unexpected(&other),
        }
    }

    /// Renews a lease; returns its new end, and whether the worker should stop.
    pub async fn extend(&self, extend: Extend<'_>) -> Result<(Timestamp, bool), Error> {
        match self.finish(&Command::Extend(extend)).await? {
            Outcome::Extended { lease_expires_at, cancel_requested, .. } => {
                Ok((lease_expires_at, cancel_requested))
            }
            other => unexpected(&other),
        }
    }

    /// Returns a claimed task to its queue.
    pub async fn release(&self, release: Release) -> Result<TaskStateName, Error> {
        match self.finish(&Command::Release(release)).await? {
            Outcome::Released { state } => Ok(state),
            other => unexpected(&other),
        }
    }

    /// Schedules a claimed task for later; returns when it runs again, and its new state. A task
    /// whose cancellation was requested ends instead.
    pub async fn snooze(&self, snooze: Snooze) -> Result<(Timestamp, TaskStateName), Error> {
        match self.finish(&Command::Snooze(snooze)).await? {
            Outcome::Snoozed { run_at, state } => Ok((run_at, state)),
            other => unexpected(&other),
        }
    }

    async fn finish(&self, command: &Command<'_>) -> Result<Outcome, Error> {
        let (shard, command) = self.route(command)?;
        self.shards().propose(shard, command, false).await
    }

    /// Proposes many answers of a worker together; returns the outcomes in order.
    pub(crate) fn finish_all(
        &self,
        commands: Vec<Result<Command<'_>, Error>>,
    ) -> impl Future<Output = Vec<Result<Outcome, Error>>> + Send + use<> {
        let mut routed = Vec::new();
        let mut places = Vec::new();
        for command in commands {
            let route = command.and_then(|command| self.route(&command));
            places.push(route.map(|route| routed.push(route)));
        }
        let shards = self.shards().clone();
        async move {
            let outcomes = match routed.is_empty() {
                true => Vec::new(),
                false => shards.propose_all(routed, false).await,
            };
            let mut outcomes = outcomes.into_iter();
            let mut answer = |()| outcomes.next().unwrap_or(Err(Error::OutcomeUnknown));
            places.into_iter().map(|place| place.and_then(&mut answer)).collect()
        }
    }

    /// The shard and the encoding of a command. A full shard never refuses such a command, with or
    /// without follow-ups, because finished work must not be done again. Parts that the shard would
    /// reject or cut for their length are rejected or cut here, before they take room in the log.
    fn route(&self, command: &Command<'_>) -> Result<(ShardId, EncodedCommand), Error> {
        let task = finished_task(command).expect("only what finishes a claim comes here");
        let shard = self.shard_of_task(task)?;
        match command {
            Command::Ack(ack) => ack.check_bytes()?,
            Command::Extend(extend) => {
                extend.check_bytes()?;
                let progress = extend.progress.map(|progress| progress.cut());
                let cut = Command::Extend(Extend { progress, ..*extend });
                return Ok((shard, EncodedCommand::new(&cut)));
            }
            Command::Fail(fail) => {
                if let Some(When::At(at)) = fail.retry_at {
                    self.check_moment("retry_at", at)?;
                }
                let error = fail.error.cut(limits::ERROR_BYTES_MAX);
                return Ok((shard, EncodedCommand::new(&Command::Fail(Fail { error, ..*fail }))));
            }
            Command::Snooze(Snooze { until: When::At(at), .. }) => {
                self.check_moment("run_at", *at)?;
            }
            _ => {}
        }
        Ok((shard, EncodedCommand::new(command)))
    }
}

/// The task whose claim a command is about, if there is one.
pub(crate) fn finished_task(command: &Command<'_>) -> Option<TaskId> {
    match command {
        Command::Ack(ack) => Some(ack.task),
        Command::Fail(fail) => Some(fail.task),
        Command::Extend(extend) => Some(extend.task),
        Command::Release(release) => Some(release.task),
        Command::Snooze(snooze) => Some(snooze.task),
        _ => None,
    }
}
