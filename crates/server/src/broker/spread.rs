//! The spread of a queue, and what must hold on all its shards: settings, pause and resume.
//!
//! They are decided on the queue's home shard, which sends them on to the others by its outbox. Here is
//! waited until all have taken them; only then are gateways told that the queue lies elsewhere. Each step
//! may be repeated: whoever asks again, or meets a change that was given up half-way, completes it, and
//! leaders look for such changes.

use super::{Broker, inspect::queue_name, unexpected};
use crate::{Error, clock::real_now};
use futures_util::future::try_join_all;
use std::time::{Duration, Instant};
use taskyard_machine::{
    Command, Outcome, QueueCommand, QueueSettings, SetQueue, ShardId, SpreadView, TrimQueue, ask,
    limits::SPREAD_QUEUES_MAX, spread_shards,
};
use taskyard_replica::SetSpread;

/// How long a change is waited for on shards that have not taken it yet.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
/// How often leaders look for changes that were given up half-way.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The first pause before such a shard is asked again, and the longest.
const ASK_AGAIN_AFTER: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];
/// What the clocks of shards and gateways may differ by, when it is about request ids.
const CLOCKS_APART_MS: u64 = 60_000;

impl Broker {
    /// Stops handing out tasks of a queue.
    pub async fn pause(&self, queue: &str) -> Result<(), Error> {
        self.command_queue(queue, &Command::PauseQueue(QueueCommand { queue })).await
    }

    /// Hands out tasks of a queue again.
    pub async fn resume(&self, queue: &str) -> Result<(), Error> {
        self.command_queue(queue, &Command::ResumeQueue(QueueCommand { queue })).await
    }

    /// Replaces a queue's settings; makes the queue if it does not exist.
    pub async fn set_queue(&self, queue: &str, settings: QueueSettings) -> Result<(), Error> {
        let home = self.shard_of_queue(queue)?;
        let spread = settings.spread();
        self.check_spread_queues(queue, spread)?;
        let lies = self.shards().ask(home, ask::Spread { queue: queue_name(queue) }).await?;
        let lies = lies.filter(|lies| lies.version > 0);
        let reach = lies.map_or(1, |lies| lies.reach).max(spread.min(self.shards().count()));
        if reach > 1 {
            // A change that not all can take would leave some of them refusing tasks.
            let views = self.spread_views(queue, reach).await?;
            if let Some(lies) = lies {
                self.trim_queue(queue, lies, &views).await?;
            }
        }
        let set = SetQueue { queue, settings };
        self.command_queue(queue, &Command::SetQueue(set)).await?;
        if reach > 1 || lies.is_some() { self.settle_spread_surely(queue).await } else { Ok(()) }
    }

    async fn command_queue(&self, queue: &str, command: &Command<'_>) -> Result<(), Error> {
        let shard = self.shard_of_queue(queue)?;
        match self.propose(shard, command).await? {
            Outcome::Done if self.shards().spread(queue).is_some() => {
                self.settle_spread_surely(queue).await
            }
            Outcome::Done => Ok(()),
            other => unexpected(&other),
        }
    }

    /// Refuses one more queue to be spread than every node should keep. Whoever asks at the same moment
    /// may get past it.
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

    /// How a queue lies, as each of its shards knows it.
    async fn spread_views(
        &self,
        queue: &str,
        width: u16,
    ) -> Result<Vec<Option<SpreadView>>, Error> {
        let shards = spread_shards(queue, width, self.shards().count());
        let ask = |shard| self.shards().ask(shard, ask::Spread { queue: queue_name(queue) });
        try_join_all(shards.map(ask)).await
    }

    /// Lets the shards beyond the spread go if they keep nothing: they take nothing any more.
    async fn trim_queue(
        &self,
        queue: &str,
        lies: SpreadView,
        views: &[Option<SpreadView>],
    ) -> Result<(), Error> {
        let mut beyond = views.iter().take(lies.reach.into()).skip(lies.spread.into()).peekable();
        let is_done = |view: &Option<SpreadView>| {
            view.is_some_and(|view| view.version >= lies.version && view.is_empty)
        };
        if beyond.peek().is_none() || !beyond.all(is_done) {
            return Ok(());
        }
        let trim = Command::TrimQueue(TrimQueue { queue, version: lies.version });
        self.propose(self.shards().home(queue), &trim).await.map(drop)
    }

    /// The same as `settle_spread`, to its end, whether or not the one who asked still listens.
    async fn settle_spread_surely(&self, queue: &str) -> Result<(), Error> {
        let (broker, queue) = (self.clone(), queue.to_owned());
        let settled = tokio::spawn(async move { broker.settle_spread(&queue).await });
        settled.await.unwrap_or(Err(Error::OutcomeUnknown))
    }

    /// Waits until all shards of a queue have taken its newest rules, then tells all nodes where it lies.
    pub(super) async fn settle_spread(&self, queue: &str) -> Result<(), Error> {
        let shards = self.shards();
        let home = shards.home(queue);
        let lies = shards.ask(home, ask::Spread { queue: queue_name(queue) }).await?;
        let Some(lies) = lies.filter(|lies| lies.version > 0) else { return Ok(()) };
        let until = real_now() + TAKEN_WITHIN;
        let rest = spread_shards(queue, lies.reach, shards.count()).skip(1);
        try_join_all(rest.map(|shard| self.await_rules(queue, shard, lies.version, until))).await?;
        // From here on no shard remembers a new request by the spread that gateways still know.
        let known = shards.spread(queue).map_or(1, |known| known.spread);
        let views = self.spread_views(queue, lies.reach.max(known)).await?;
        let remembered = views.into_iter().flatten().filter_map(|view| view.requests_until).max();
        let requests_until_ms = remembered.map_or(0, |until| until.0 + CLOCKS_APART_MS);
        let set = SetSpread {
            queue: queue.to_owned(),
            version: lies.version,
            spread: lies.spread,
            reach: lies.reach,
            now_ms: self.now().0,
            requests_until_ms,
        };
        shards.set_spread(set).await
    }

    /// Completes changes that nobody goes on with: their node has died, or the shards were restored from
    /// a backup. Each leader looks after the queues at home there. Runs until it is dropped.
    pub(crate) async fn keep_settling_spreads(self) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            for shard in (0..self.shards().count()).map(ShardId) {
                // Others look after the shards that this node does not lead.
                let lies = self.shards().local().ask(shard, ask::Spreads {}).await;
                for (queue, lies) in lies.unwrap_or_default() {
                    let is_behind = match self.shards().spread(queue.as_str()) {
                        Some(known) => known.version < lies.version,
                        None => lies.reach > 1,
                    };
                    if is_behind && let Err(error) = self.settle_spread(queue.as_str()).await {
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
