//! Spread: a queue that lies on several shards, its home and those that follow it.
//!
//! Settings and pause are decided on the home shard and sent on to the others as rules, each with a
//! version. A shard that has taken rules refuses new tasks that belong elsewhere under them: so a
//! `request_id` is remembered on one shard alone, and a shard beyond a narrower spread only empties.
//!
//! Invariants: `reach` is at least the spread, and no shard beyond it holds a task of the queue; rules
//! of an older version change nothing.

use crate::limits::SPREAD_MAX;
use crate::outbox::Message;
use crate::queue::Queue;
use crate::slab::Slot;
use crate::turn::Turn;
use crate::wire::wire_struct;
use crate::{
    EventKind, Machine, NewTask, Outcome, QueueName, QueueSettings, Rejection, ShardId, TaskId,
    Timestamp, TrimQueue, home_shard,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// How far a queue lies that was ever spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Laid {
    /// Counts the changes of its rules.
    pub(crate) version: u64,
    /// Shards that may hold tasks of it: the widest spread since those beyond were seen empty.
    pub(crate) reach: u16,
}

wire_struct!(Laid { version, reach });

/// How a queue lies, as one of its shards knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadView {
    /// The version of the rules that this shard has taken; 0 if it was never spread.
    pub version: u64,
    /// Shards that new tasks go to.
    pub spread: u16,
    /// Shards that may hold tasks.
    pub reach: u16,
    /// Whether this shard keeps no task of it, not even a finished one.
    pub is_empty: bool,
    /// When the last request id is forgotten that this shard remembers, of whatever queue.
    pub requests_until: Option<Timestamp>,
}

wire_struct!(SpreadView { version, spread, reach, is_empty, requests_until });

/// What the home shard of a queue tells the others.
#[derive(Debug, PartialEq)]
pub(crate) struct QueueRules<'a> {
    pub(crate) queue: &'a str,
    pub(crate) laid: Laid,
    pub(crate) paused: bool,
    pub(crate) settings: QueueSettings,
}

wire_struct!(QueueRules<'a> { queue, laid, paused, settings });

/// The shards that a queue lies on: its home and those that follow it.
pub fn spread_shards(queue: &str, spread: u16, shards: u16) -> impl Iterator<Item = ShardId> {
    let home = home_shard(queue, shards);
    (0..spread.clamp(1, shards.max(1))).map(move |position| after(home, position, shards))
}

/// The one of them that remembers a request id.
pub fn request_shard(queue: &str, request_id: &str, spread: u16, shards: u16) -> ShardId {
    let hash = xxh3_64_with_seed(request_id.as_bytes(), !xxh3_64(queue.as_bytes()));
    let position = (hash % u64::from(spread.max(1))) as u16;
    after(home_shard(queue, shards), position, shards)
}

fn after(home: ShardId, position: u16, shards: u16) -> ShardId {
    let number = (u32::from(home.0) + u32::from(position)) % u32::from(shards.max(1));
    ShardId(number as u16)
}

impl QueueSettings {
    /// Shards that new tasks go to.
    pub fn spread(&self) -> u16 {
        self.spread.unwrap_or(1)
    }

    /// The first of those settings that one machine must decide alone, by its name.
    fn limit(&self) -> Option<&'static str> {
        let limits = [
            ("max_length", self.max_length.is_some()),
            ("concurrency", self.concurrency.is_some()),
            ("rate", self.rate.is_some()),
            ("per_key", self.per_key.is_some()),
        ];
        limits.into_iter().find(|(_, is_set)| *is_set).map(|(name, _)| name)
    }
}

impl Turn<'_> {
    /// Whether a queue may have these settings, spread as it is and will be.
    pub(crate) fn check_spread(
        &self,
        queue: &str,
        settings: &QueueSettings,
    ) -> Result<(), Rejection> {
        let (spread, identity) = (settings.spread(), self.shard.identity);
        let spread_max = identity.shards.min(SPREAD_MAX);
        if spread == 0 || spread > spread_max {
            return Err(Rejection::invalid(format!(
                "spread is {spread}; give 1 to {spread_max}, for this cluster has {} shards and a \
                 queue lies on {SPREAD_MAX} at most",
                identity.shards
            )));
        }
        let home = home_shard(queue, identity.shards);
        if spread > 1 && home != identity.shard {
            return Err(Rejection::invalid(format!("queue {queue} lives on shard {home}")));
        }
        let Some(limit) = settings.limit() else { return Ok(()) };
        if spread > 1 {
            return Err(Rejection::invalid(format!(
                "{limit} and a spread of {spread} exclude each other: a limit is decided by one shard; \
                 leave out one of them"
            )));
        }
        match self.laid(queue) {
            Some(Laid { reach, .. }) if reach > 1 => Err(Rejection::invalid(format!(
                "{limit} can't be set yet: queue {queue} was spread, and {} other shards may still keep \
                 tasks of it, finished and dead ones included; set it when they are gone",
                reach - 1
            ))),
            _ => Ok(()),
        }
    }

    /// Notes new settings or a pause of a queue that is spread or was, and sends them on.
    pub(crate) fn tell_spread(&mut self, number: Slot) {
        let queue = self.shard.queues.get(number);
        let spread = queue.settings.spread();
        if queue.laid.is_none() && spread == 1 {
            return;
        }
        let before = queue.laid.unwrap_or(Laid { version: 0, reach: 1 });
        let laid = Laid { version: before.version + 1, reach: before.reach.max(spread) };
        self.shard.edit_queue(number, |queue| queue.laid = Some(laid));
        self.send_rules(number, laid);
    }

    fn send_rules(&mut self, number: Slot, laid: Laid) {
        let queue = self.shard.queues.get(number);
        let (name, paused, settings) = (queue.name.clone(), queue.paused, queue.settings.clone());
        let rules = QueueRules { queue: name.as_str(), laid, paused, settings };
        let message = Message::QueueRules(rules).encode();
        let here = self.shard.identity;
        for shard in spread_shards(name.as_str(), laid.reach, here.shards) {
            if shard != here.shard {
                self.owe_encoded(shard, message.clone());
            }
        }
    }

    /// Takes what the home shard says about a queue.
    pub(crate) fn take_queue_rules(&mut self, rules: &QueueRules<'_>) {
        let number = self.queue_for_accepted(rules.queue).expect("its name was checked");
        let queue = self.shard.queues.get(number);
        if queue.laid.is_some_and(|laid| laid.version >= rules.laid.version) {
            return;
        }
        self.shard.edit_queue(number, |queue| queue.laid = Some(rules.laid));
        if self.shard.queues.get(number).settings != rules.settings {
            self.put_settings(number, &rules.settings);
        }
        let fact = if rules.paused { EventKind::QueuePaused } else { EventKind::QueueResumed };
        self.put_paused(number, rules.paused, fact);
    }

    /// Lets go the shards beyond a narrower spread. Whoever asks has seen them empty, under the rules
    /// of this version; they take nothing since.
    pub(crate) fn trim_queue(&mut self, trim: TrimQueue<'_>) -> Result<Outcome, Rejection> {
        let number = self.find_queue(trim.queue)?;
        let queue = self.shard.queues.get(number);
        let spread = queue.settings.spread();
        if let Some(laid) = queue.laid.filter(|laid| laid.version == trim.version)
            && laid.reach > spread
        {
            let laid = Laid { version: laid.version + 1, reach: spread };
            self.shard.edit_queue(number, |queue| queue.laid = Some(laid));
            self.send_rules(number, laid);
        }
        Ok(Outcome::Done)
    }

    /// Refuses a new task that belongs on another shard of its queue. Only a gateway that has not
    /// heard of a change yet sends one here.
    pub(crate) fn check_place(&self, queue: &str, task: &NewTask<'_>) -> Result<(), Rejection> {
        let Some(number) = self.shard.queues.find(queue) else { return Ok(()) };
        let found = self.shard.queues.get(number);
        if found.laid.is_none() {
            return Ok(());
        }
        let (here, spread) = (self.shard.identity, found.settings.spread());
        let belongs_here = match (&task.unique, task.request_id) {
            (Some(_), _) => home_shard(queue, here.shards) == here.shard,
            (None, Some(request_id)) => {
                request_shard(queue, request_id, spread, here.shards) == here.shard
            }
            (None, None) => {
                spread_shards(queue, spread, here.shards).any(|shard| shard == here.shard)
            }
        };
        match belongs_here {
            true => Ok(()),
            false => Err(Rejection::QueueMoved { queue: found.name.clone() }),
        }
    }

    fn laid(&self, queue: &str) -> Option<Laid> {
        let number = self.shard.queues.find(queue)?;
        self.shard.queues.get(number).laid
    }
}

impl Machine {
    /// How a queue lies, as this shard knows it.
    pub fn spread_view(&self, queue: &QueueName) -> Option<SpreadView> {
        let number = self.queues.find(queue.as_str())?;
        Some(self.spread_of(self.queues.get(number)))
    }

    /// How the queues lie that were ever spread and have their home here.
    pub fn spread_views(&self) -> Vec<(QueueName, SpreadView)> {
        let here = self.identity;
        let queues = self.queues.by_name.values().map(|&number| self.queues.get(number));
        queues
            .filter(|queue| queue.laid.is_some())
            .filter(|queue| home_shard(queue.name.as_str(), here.shards) == here.shard)
            .map(|queue| (queue.name.clone(), self.spread_of(queue)))
            .collect()
    }

    fn spread_of(&self, queue: &Queue) -> SpreadView {
        let laid = queue.laid.unwrap_or(Laid { version: 0, reach: 1 });
        let counts = queue.counts();
        SpreadView {
            version: laid.version,
            spread: queue.settings.spread(),
            reach: laid.reach,
            is_empty: queue.waiting() + counts.claimed + counts.finished + counts.dead == 0,
            requests_until: self.dedup.last_due(),
        }
    }

    /// The tasks that requests made which are remembered here: queue and request id of each.
    pub fn known_requests(&self, requests: &[(String, String)]) -> Vec<Option<TaskId>> {
        let made =
            |(queue, request_id): &(String, String)| self.made_by_request(queue, Some(request_id));
        requests.iter().map(made).collect()
    }
}

#[cfg(test)]
mod tests;
