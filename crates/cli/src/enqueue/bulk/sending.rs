//! Sending: each line is sent, answered, and sent again while the broker is full.
//!
//! While the broker refuses lines because it is full, no later line is sent. This keeps the order
//! of the file as far as possible, and if sending is given up, the unsent lines are one line and
//! all after it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use taskyard::{Client, Enqueued, Error, NewTask};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use super::{lines::Line, tally::Tally};

/// The most bytes of lines that are read and not yet answered.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// The memory of a task beside its line.
const TASK_BYTES: usize = 1 << 10;
/// The first and the longest wait before a refused line is sent again; the wait doubles.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

struct Sent {
    line: Line,
    task: NewTask,
    /// The line's share of the bytes in flight, until the line is decided.
    _room: OwnedSemaphorePermit,
}

pub(super) struct Sending<'a> {
    client: Client,
    pub(super) tally: Tally<'a>,
    /// How long to go on while the broker accepts nothing.
    patience: Duration,
    room: Arc<Semaphore>,
    answers: JoinSet<(Sent, Result<Enqueued, Error>)>,
    /// The lines that a full broker refused, by number.
    put_off: BTreeMap<u64, (Sent, Error)>,
    /// The reason why sending has ended.
    pub(super) stopped: Option<anyhow::Error>,
}

impl<'a> Sending<'a> {
    pub(super) fn new(client: Client, tally: Tally<'a>, patience: Duration) -> Sending<'a> {
        Sending {
            client,
            tally,
            patience,
            room: Arc::new(Semaphore::new(IN_FLIGHT_BYTES_MAX)),
            answers: JoinSet::new(),
            put_off: BTreeMap::new(),
            stopped: None,
        }
    }

    /// Sends a line, once there is room for it.
    pub(super) async fn send(&mut self, line: Line, task: NewTask) -> Result<()> {
        let cost = (line.bytes.len() + TASK_BYTES).min(IN_FLIGHT_BYTES_MAX);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let room = loop {
            match Arc::clone(&self.room).try_acquire_many_owned(cost) {
                Ok(room) => break room,
                // Lines in flight use up the room, so that another answer must come.
                Err(_) => self.take_next().await?,
            };
            self.send_put_off().await?;
        };
        if self.stopped.is_some() {
            return self.tally.leave(&line);
        }
        self.spawn(Sent { line, task, _room: room });
        while let Some(answer) = self.answers.try_join_next() {
            self.take(answer?)?;
        }
        self.send_put_off().await
    }

    /// Waits until every line is answered.
    pub(super) async fn settle(&mut self) -> Result<()> {
        while self.take_next().await? {}
        self.send_put_off().await
    }

    fn spawn(&mut self, sent: Sent) {
        let enqueue = self.client.enqueue_new(sent.task.clone());
        self.answers.spawn(async move { (sent, enqueue.await) });
    }

    async fn take_next(&mut self) -> Result<bool> {
        match self.answers.join_next().await {
            Some(answer) => self.take(answer?).map(|()| true),
            None => Ok(false),
        }
    }

    fn take(&mut self, (sent, answer): (Sent, Result<Enqueued, Error>)) -> Result<()> {
        match answer {
            Ok(enqueued) => self.tally.accept(&enqueued),
            Err(error) if error.may_pass() && self.stopped.is_none() => {
                self.put_off.insert(sent.line.number, (sent, error));
                return Ok(());
            }
            Err(error) if error.is_outcome_unknown() => {
                self.tally.doubt(&sent.line);
                self.stop(error);
            }
            Err(error) => {
                self.tally.refuse(&sent.line, format_args!("{error}"))?;
                if error.is_retryable() {
                    self.stop(error);
                }
            }
        }
        self.tally.advance(&sent.line);
        Ok(())
    }

    /// Every later line would fail in the same way.
    fn stop(&mut self, error: Error) {
        self.stopped.get_or_insert_with(|| anyhow::Error::new(error));
    }

    /// Sends lines again that a full broker refused: first one line, then more and more, until all
    /// are decided or the broker has accepted none for as long as `patience`.
    async fn send_put_off(&mut self) -> Result<()> {
        if self.put_off.is_empty() {
            return Ok(());
        }
        while self.take_next().await? {}
        let [mut wait, wait_max] = BACKOFF;
        let (mut together, mut last_accepted) = (1, Instant::now());
        self.say_full();
        while let Some((&first, (_, error))) = self.put_off.iter().next() {
            if self.stopped.is_some() || last_accepted.elapsed() >= self.patience {
                let error = error.clone();
                return self.give_up(error);
            }
            if together == 1 {
                let left = self.patience.saturating_sub(last_accepted.elapsed());
                tokio::time::sleep(wait.min(left)).await;
                wait = (wait * 2).min(wait_max);
            }
            for _ in 0..together {
                let Some((_, (sent, _))) = self.put_off.pop_first() else { break };
                self.spawn(sent);
            }
            while self.take_next().await? {}
            if self.put_off.contains_key(&first) {
                together = 1;
            } else {
                last_accepted = Instant::now();
                wait = BACKOFF[0];
                together *= 2;
            }
        }
        Ok(())
    }

    fn say_full(&self) {
        if let Some((number, (_, error))) = self.put_off.first_key_value() {
            self.tally.say(format_args!("line {number}: {error}; waiting for room"));
        }
    }

    fn give_up(&mut self, error: Error) -> Result<()> {
        for (_, (sent, error)) in std::mem::take(&mut self.put_off) {
            self.tally.refuse(&sent.line, format_args!("{error}"))?;
            self.tally.advance(&sent.line);
        }
        self.stop(error);
        Ok(())
    }
}
