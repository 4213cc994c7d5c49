//! Which verb does what.

use super::{caller::Caller, frame::Reply};
use crate::{
    Error,
    broker::{DeadSelection, ListAsked},
};
use taskyard_machine::{DeadAction, Rejection, TaskStateName};

/// The number of tasks that are read at a time.
pub(super) const PAGE_TASKS: u32 = 200;

impl Caller {
    /// Runs any command except FETCH and END, which the connection handles.
    pub(super) async fn command(&self, verb: &str, rest: &str) -> Reply {
        match verb {
            "PUSH" => self.push(rest).await,
            "PUSHB" => self.push_bulk(rest).await,
            "ACK" => self.ack(rest).await,
            "FAIL" => self.fail(rest).await,
            "BEAT" => self.beat(rest),
            "INFO" => self.shared.info().await.unwrap_or_else(|error| refused(&error)),
            "QUEUE" => self.shared.queue(rest).await.unwrap_or_else(|error| refused(&error)),
            "TRACK" => self.shared.track(rest).await.unwrap_or_else(|error| refused(&error)),
            "MUTATE" => self.shared.mutate(rest).await.unwrap_or_else(|error| refused(&error)),
            "BATCH" => self.shared.batch(rest).await.unwrap_or_else(|error| refused(&error)),
            "FLUSH" => self.flush().await.map_or_else(|error| refused(&error), |()| Reply::Ok),
            other => {
                let shown: String = other.chars().take(64).collect();
                Reply::error(format!("unknown command {shown}"))
            }
        }
    }

    /// Removes all jobs that wait or run, and the dead letters.
    async fn flush(&self) -> Result<(), Error> {
        let broker = &self.shared.broker;
        for queue in broker.queues().await? {
            let purged = match broker.purge(queue.name.as_str()).await {
                Ok(mut job) => job.end().await.ended.unwrap_or(Ok(())),
                Err(error) => Err(error),
            };
            match purged {
                // The queue was deleted meanwhile.
                Err(Error::Rejected(Rejection::QueueNotFound { .. })) => {}
                purged => purged?,
            }
        }
        let all = DeadSelection::Filter {
            queue: None,
            task_type: None,
            error: None,
            tag: None,
            flow: None,
        };
        let report = broker.dead(DeadAction::Discard, all)?.end().await;
        report.ended.unwrap_or(Ok(()))?;
        let mut asked = ListAsked {
            state: Some(TaskStateName::Claimed),
            limit: PAGE_TASKS,
            ..ListAsked::default()
        };
        loop {
            let page = broker.tasks(asked.clone()).await?;
            for found in page.tasks {
                unless_changed(broker.cancel(found.task.id).await)?;
            }
            if page.cursor.is_none() {
                return Ok(());
            }
            asked.cursor = page.cursor;
        }
    }
}

/// Ignores rejections: a task that changed since it was listed needs nothing done.
pub(super) fn unless_changed<T>(done: Result<T, Error>) -> Result<(), Error> {
    match done {
        Ok(_) | Err(Error::Rejected(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The reply to an error without words of its own in this protocol.
pub(super) fn refused(error: &Error) -> Reply {
    Reply::error(error.to_string())
}
