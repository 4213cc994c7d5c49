//! LocalShards: calls on the shards that this node leads, without routing.
//!
//! Every method hands its request to the shard loop's thread and awaits the answer. If this node
//! does not lead, the answer is [`Error::NotLeader`], and nothing was done. Only these methods
//! serve the calls of other nodes, so that no call is forwarded twice.

use super::{
    ClaimRequest, HandedTask, Hint, Look, ShardStatus, Shards, Sought, gone,
    inbox::{Input, TicketId, Waiter},
};
use crate::Error;
use bytes::Bytes;
use futures_util::future::try_join_all;
use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};
use taskyard_machine::{Ask, EncodedCommand, Machine, Outcome, ShardId, TaskId, Timestamp};
use tokio::sync::{mpsc, oneshot};

#[derive(Clone, Copy, Debug)]
pub struct LocalShards<'a>(pub(super) &'a Shards);

impl LocalShards<'_> {
    /// See [`Shards::propose`].
    pub async fn propose(
        self,
        shard: ShardId,
        command: EncodedCommand,
        enqueue: bool,
    ) -> Result<Outcome, Error> {
        let (answer, answered) = oneshot::channel();
        self.0.push(Input::Propose { shard, command, enqueue, answer })?;
        answered.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// See [`Shards::propose_all`].
    pub async fn propose_all(
        self,
        commands: Vec<(ShardId, EncodedCommand)>,
        enqueue: bool,
    ) -> Vec<Result<Outcome, Error>> {
        let count = commands.len();
        let (answer, answered) = oneshot::channel();
        if let Err(error) = self.0.push(Input::ProposeAll { commands, enqueue, answer }) {
            return vec![Err(error); count];
        }
        answered.await.unwrap_or_else(|_| vec![Err(Error::OutcomeUnknown); count])
    }

    /// See [`Shards::claim`].
    pub async fn claim(
        self,
        shard: ShardId,
        request: ClaimRequest,
        wait: Duration,
    ) -> Result<Vec<HandedTask>, Error> {
        let (answer, answered) = oneshot::channel();
        let ticket = self.ticket();
        let waiter = Waiter { ticket, request, parks: !wait.is_zero(), answer };
        self.0.push(Input::Claim { shard, waiter })?;
        let mut parked =
            ParkedClaim { shards: self.0, shard, ticket, answered, is_answered: false };
        let answer = if wait.is_zero() {
            (&mut parked.answered).await
        } else {
            match tokio::time::timeout(wait, &mut parked.answered).await {
                Ok(answer) => answer,
                // A claim that was handed over at the last moment counts; a later one is released.
                Err(_) => match parked.take() {
                    Some(answer) => Ok(answer),
                    None => return Ok(Vec::new()),
                },
            }
        };
        parked.is_answered = true;
        answer.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// See [`Shards::claimable`].
    pub(super) async fn claimable_one(
        self,
        shard: ShardId,
        sought: Sought,
        wait: Duration,
    ) -> Result<bool, Error> {
        let hints = self.claimable(vec![(shard, sought)], wait).await?;
        hints.into_iter().next().map_or(Ok(false), |(_, hint)| hint.map(|count| count > 0))
    }

    /// Which of these shards may have tasks to claim. Without a wait the answer has all shards.
    /// Otherwise it waits until some of them have an answer, or the wait is over.
    pub async fn claimable(self, looks: Vec<Look>, wait: Duration) -> Result<Vec<Hint>, Error> {
        if wait.is_zero() {
            let (answer, answered) = oneshot::channel();
            self.0.push(Input::Probe { looks, answer })?;
            return answered.await.map_err(|_| gone());
        }
        let (answer, mut told) = mpsc::unbounded_channel();
        let (ticket, shards) = (self.ticket(), looks.iter().map(|(shard, _)| *shard).collect());
        self.0.push(Input::Hints { ticket, looks, answer })?;
        let _parked = Parked { shards: self.0, places: shards, ticket };
        let Ok(first) = tokio::time::timeout(wait, told.recv()).await else {
            return Ok(Vec::new());
        };
        let mut hints = vec![first.ok_or_else(gone)?];
        while let Ok(hint) = told.try_recv() {
            hints.push(hint);
        }
        Ok(hints)
    }

    /// See [`Shards::ask`].
    pub async fn ask<Q: Ask>(self, shard: ShardId, question: Q) -> Result<Q::Answer, Error> {
        self.read_at(shard, move |machine, now| question.ask(machine, now)).await
    }

    /// Reads the state on the loop's thread after confirming leadership. `read` must be quick.
    pub(super) async fn read<T, F>(self, shard: ShardId, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Machine) -> T + Send + 'static,
    {
        self.read_at(shard, move |machine, _| read(machine)).await
    }

    /// Like `read`, with the leader's time.
    pub(super) async fn read_at<T, F>(self, shard: ShardId, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Machine, Timestamp) -> T + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let read = move |looked: Result<(&Machine, Timestamp), Error>| {
            let _ = answer.send(looked.map(|(machine, now)| read(machine, now)));
        };
        self.0.push(Input::Read { shard, read: Box::new(read) })?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// See [`Shards::bodies`].
    pub async fn bodies(self, tasks: Vec<TaskId>) -> Result<Vec<Option<Bytes>>, Error> {
        // A leader that this node has not heard of may have replaced or removed a body. The read
        // makes this node confirm its leadership; later states are newer.
        let shards: BTreeSet<ShardId> = tasks.iter().map(|task| task.home).collect();
        try_join_all(shards.into_iter().map(|shard| self.read(shard, |_| ()))).await?;
        let (answer, answered) = oneshot::channel();
        self.0.push(Input::Bodies { tasks, answer })?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// The encoded body of a task, from this node's replica of its shard, whichever node leads.
    pub async fn spare_body(self, task: TaskId) -> Result<Option<Bytes>, Error> {
        let (answer, answered) = oneshot::channel();
        self.0.push(Input::Spare { task, answer })?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// See [`Shards::finished`].
    pub async fn finished(self, task: TaskId, wait: Duration) -> Result<bool, Error> {
        let (answer, answered) = oneshot::channel();
        let ticket = self.ticket();
        self.0.push(Input::Watch { task, ticket, answer })?;
        let _watched = OnDrop(|| self.0.tell(Input::Unwatch { task, ticket }));
        match tokio::time::timeout(wait, answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(gone())),
            Err(_) => Ok(false),
        }
    }

    /// See [`Shards::status`].
    pub async fn status(self) -> Result<Vec<ShardStatus>, Error> {
        let (answer, answered) = oneshot::channel();
        self.0.push(Input::Status(answer))?;
        answered.await.map_err(|_| gone())
    }

    /// Releases tasks that were claimed here and not received.
    pub(super) fn undelivered(self, handed: &[HandedTask]) {
        let claims = handed.iter().map(|task| (task.task.id, task.task.token)).collect();
        self.0.tell(Input::Undelivered { claims });
    }

    fn ticket(self) -> TicketId {
        TicketId(self.0.0.tickets.fetch_add(1, Ordering::Relaxed))
    }
}

/// Parked hints; dropping it removes them.
struct Parked<'a> {
    shards: &'a Shards,
    places: Vec<ShardId>,
    ticket: TicketId,
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        let shards = std::mem::take(&mut self.places);
        self.shards.tell(Input::Unpark { shards, ticket: self.ticket });
    }
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A claim under way. Dropping it removes the parked claim and releases its tasks.
struct ParkedClaim<'a> {
    shards: &'a Shards,
    shard: ShardId,
    ticket: TicketId,
    answered: oneshot::Receiver<Result<Vec<HandedTask>, Error>>,
    /// The caller has its answer.
    is_answered: bool,
}

impl ParkedClaim<'_> {
    /// The answer so far; the channel is closed for a later one.
    fn take(&mut self) -> Option<Result<Vec<HandedTask>, Error>> {
        self.answered.close();
        self.answered.try_recv().ok()
    }
}

impl Drop for ParkedClaim<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        match self.take() {
            Some(Ok(handed)) => self.shards.local().undelivered(&handed),
            Some(Err(_)) => {}
            None => {
                let shards = vec![self.shard];
                self.shards.tell(Input::Unpark { shards, ticket: self.ticket });
            }
        }
    }
}
