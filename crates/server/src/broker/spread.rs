//! Spread: the number of a queue's shards, and the changes that all of them need: settings, pause
//! and resume.
//!
//! The queue's home shard decides these changes, and sends them to the other shards through its
//! outbox. This file waits until all shards have them, and only then publishes the new spread to
//! gateways. Each step may be repeated. A later call that meets an unfinished change completes it,
//! and leaders look for such changes regularly.

use super::{Broker, inspect::queue_name, unexpected};
use crate::{Error, clock::real_now};
use futures_util::future::try_join_all;
use std::time::{Duration, Instant};
use taskyard_machine::{
    Command, Outcome, QueueCommand, QueueSettings, SetQueue, ShardId, SpreadView, TrimQueue, ask,
    limits::SPREAD_QUEUES_MAX, spread_shards,
};
use taskyard_replica::SetSpread;

/// How long to wait for shards that do not have a change yet.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// The interval at which leaders look for unfinished changes.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The first and the longest pause before such a shard is asked again.
const ASK_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];
/// The largest difference between the clocks of shards and gateways that request ids tolerate.
const CLOCKS_APART_MS: u64 = 60_000;

impl Broker {
    /// Pauses a queue.
    pub async fn pause(&self, queue: &str) -> Result<(), Error> {
        self.command_queue(queue, &Command::PauseQueue(QueueCommand { queue })).await
    }

    /// Resumes a queue.
    pub async fn resume(&self, queue: &str) -> Result<(), Error> {
        self.command_queue(queue, &Command::ResumeQueue(QueueCommand { queue })).await
    }

    /// Replaces a queue's settings; creates the queue if it does not exist.
    pub async fn set_queue(&self, queue: &str, settings: QueueSettings) -> Result<(), Error> {
        let home = self.shard_of_queue(queue)?;
        let spread = settings.spread();
        self.check_spread_queues(queue, spread)?;
        let at_home = self.shards().ask(home, ask::Spread { queue: queue_name(queue) }).await?;
        let at_home = at_home.filter(|at_home| at_home.version > 0);
        let reach =
            at_home.map_or(1, |at_home| at_home.reach).max(spread.min(self.shards().count()));
        if reach > 1 {
            // If a shard could not take the change, the others would reject tasks meanwhile.
            let views = self.spread_views(queue, reach).await?;
            if let Some(at_home) = at_home {
                self.trim_queue(queue, at_home, &views).await?;
            }
        }
        let set = SetQueue { queue, settings };
        self.command_queue(queue, &Command::SetQueue(set)).await?;
        if reach > 1 || at_home.is_some() {
            self.complete_spread_to_end(queue).await
        } else {
            Ok(())
        }
    }

    async fn command_queue(&self, queue: &str, command: &Command<'_>) -> Result<(), Error> {
        let shard = self.shard_of_queue(queue)?;
        match self.propose(shard, command).await? {
            Outcome::Done if self.shards().spread(queue).is_some() => {
                self.complete_spread_to_end(queue).await
            }
            Outcome::Done => Ok(()),
            other => unexpected(&other),
        }
    }

    /// Rejects one more spread queue than every node should keep a record of. Calls at the same
    /// moment may exceed the limit by a little.
    fn check_spread_queues(&self, queue: &str, spread: u16) -> Result<(), Error> {
        let control = self.shards().routes().control();
        let is_new = spread > 1 && control.spread(queue).is_none();
        if is_new && control.spread_queues() >= SPREAD_QUEUES_MAX {
            return Err(Error::LimitExceeded(format!(
                "{SPREAD_QUEUES_MAX} queues are spread, which is the limit; set the spread of another to 1 \
                 first"
            )));
        }
        Ok(())
    }

    /// The spread of a queue, as each of its shards knows it.
    async fn spread_views(
        &self,
        queue: &str,
        width: u16,
    ) -> Result<Vec<Option<SpreadView>>, Error> {
        let shards = spread_shards(queue, width, self.shards().count());
        let ask = |shard| self.shards().ask(shard, ask::Spread { queue: queue_name(queue) });
        try_join_all(shards.map(ask)).await
    }

    /// Removes the shards beyond the spread from the reach if they have no tasks, because they
    /// accept none any more.
    async fn trim_queue(
        &self,
        queue: &str,
        at_home: SpreadView,
        views: &[Option<SpreadView>],
    ) -> Result<(), Error> {
        let mut beyond =
            views.iter().take(at_home.reach.into()).skip(at_home.spread.into()).peekable();
        let is_done = |view: &Option<SpreadView>| {
            view.is_some_and(|view| view.version >= at_home.version && view.is_empty)
        };
        if beyond.peek().is_none() || !beyond.all(is_done) {
            return Ok(());
        }
        let trim = Command::TrimQueue(TrimQueue { queue, version: at_home.version });
        self.propose(self.shards().home(queue), &trim).await.map(drop)
    }

    /// Runs `complete_spread` to its end, even if the caller goes away.
    pub(super) async fn complete_spread_to_end(&self, queue: &str) -> Result<(), Error> {
        let (broker, queue) = (self.clone(), queue.to_owned());
        let completed = tokio::spawn(async move { broker.complete_spread(&queue).await });
        completed.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Waits until all shards of a queue have its newest rules, then publishes its spread to all
    /// nodes.
    pub(super) async fn complete_spread(&self, queue: &str) -> Result<(), Error> {
        let shards = self.shards();
        let home = shards.home(queue);
        let at_home = shards.ask(home, ask::Spread { queue: queue_name(queue) }).await?;
        let Some(at_home) = at_home.filter(|at_home| at_home.version > 0) else { return Ok(()) };
        let until = real_now() + TAKEN_WITHIN;
        let rest = spread_shards(queue, at_home.reach, shards.count()).skip(1);
        try_join_all(rest.map(|shard| self.await_rules(queue, shard, at_home.version, until)))
            .await?;
        // From now on no shard remembers a new request by the spread that gateways still know.
        let known = shards.spread(queue).map_or(1, |known| known.spread);
        let views = self.spread_views(queue, at_home.reach.max(known)).await?;
        let remembered = views.into_iter().flatten().filter_map(|view| view.requests_until).max();
        let requests_until_ms = remembered.map_or(0, |until| until.0 + CLOCKS_APART_MS);
        let set = SetSpread {
            queue: queue.to_owned(),
            version: at_home.version,
            spread: at_home.spread,
            reach: at_home.reach,
            now_ms: self.now().0,
            requests_until_ms,
        };
        shards.set_spread(set).await
    }

    /// Completes unfinished changes, whose node has died or whose shards were restored from a
    /// backup. Each leader handles the queues whose home it leads. Runs until it is dropped.
    pub(crate) async fn keep_completing_spreads(self) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            for shard in (0..self.shards().count()).map(ShardId) {
                // Other nodes handle the shards that this node does not lead.
                let at_home = self.shards().local().ask(shard, ask::Spreads {}).await;
                for (queue, at_home) in at_home.unwrap_or_default() {
                    let is_behind = match self.shards().spread(queue.as_str()) {
                        Some(known) => known.version < at_home.version,
                        None => at_home.reach > 1,
                    };
                    if is_behind && let Err(error) = self.complete_spread(queue.as_str()).await {
                        tracing::warn!(%queue, %error, "a change of spread is not complete yet");
                    }
                }
            }
        }
    }

    async fn await_rules(
        &self,
        queue: &str,
        shard: ShardId,
        version: u64,
        until: Instant,
    ) -> Result<(), Error> {
        let [mut pause, pause_max] = ASK_AGAIN_AFTER;
        loop {
            let asked = ask::Spread { queue: queue_name(queue) };
            let view = self.shards().ask(shard, asked).await?;
            if view.is_some_and(|view| view.version >= version) {
                return Ok(());
            }
            if real_now() >= until {
                return Err(Error::Unavailable(format!(
                    "shard {shard} has not taken the change of queue {queue} yet; it will as soon as it \
                     can, and asking again tells"
                )));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(pause_max);
        }
    }
}
