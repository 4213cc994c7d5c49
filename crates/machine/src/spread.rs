//! Spread: a queue over several shards: its home and the shards after it.
//!
//! The home shard decides settings and pause, and sends them to the others as rules with a version.
//! A shard with rules rejects new tasks that belong on another shard under these rules. A
//! `request_id` is therefore remembered on one shard only, and a shard beyond a narrower spread
//! only empties.
//!
//! Invariants: `reach` is at least the spread, and no shard beyond it has a task of the queue but
//! finished ones from before a deletion. Rules of an older version change nothing.

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

/// The reach of a queue that is spread, or once was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Laid {
    /// The version of the queue's rules; each change raises it.
    pub(crate) version: u64,
    /// The number of shards that may have tasks of the queue: the widest spread since those beyond
    /// were seen empty.
    pub(crate) reach: u16,
}

wire_struct!(Laid { version, reach });

/// The spread of a queue, as one of its shards knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadView {
    /// The version of the rules that this shard has; 0 if the queue was never spread.
    pub version: u64,
    /// The number of shards that new tasks go to.
    pub spread: u16,
    /// The number of shards that may have tasks.
    pub reach: u16,
    /// Whether this shard has no task of the queue, not even a finished one.
    pub is_empty: bool,
    /// When this shard forgets its last request id, of any queue.
    pub requests_until: Option<Timestamp>,
}

wire_struct!(SpreadView { version, spread, reach, is_empty, requests_until });

/// The rules that a queue's home shard sends to the others.
#[derive(Debug, PartialEq)]
pub(crate) struct QueueRules<'a> {
    pub(crate) queue: &'a str,
    pub(crate) laid: Laid,
    pub(crate) paused: bool,
    pub(crate) settings: QueueSettings,
}

wire_struct!(QueueRules<'a> { queue, laid, paused, settings });

/// The shards of a queue: its home and those after it.
pub fn spread_shards(queue: &str, spread: u16, shards: u16) -> impl Iterator<Item = ShardId> {
    let home = home_shard(queue, shards);
    (0..spread.clamp(1, shards.max(1))).map(move |position| after(home, position, shards))
}

/// The shard of a queue that remembers a request id.
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
    /// The number of shards that new tasks go to.
    pub fn spread(&self) -> u16 {
        self.spread.unwrap_or(1)
    }

    /// The name of the first limit that is set and that a single machine must enforce.
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
    /// Checks that a queue may have these settings with its present and its new spread.
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

    /// Records new settings or a pause of a queue that is spread or was, and sends them to its
    /// shards.
    pub(crate) fn tell_spread(&mut self, number: Slot) {
        let queue = self.shard.queues.get(number);
        let spread = queue.settings.spread();
        if queue.laid.is_none() && spread == 1 {
            return;
        }
        // Rules of a queue of this name that was deleted had versions up to `laid_version`.
        let version = self.shard.counters.laid_version;
        let before = queue.laid.unwrap_or(Laid { version, reach: 1 });
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

    /// Applies the rules that the home shard has sent.
    pub(crate) fn take_queue_rules(&mut self, rules: &QueueRules<'_>) {
        if self.laid(rules.queue).is_some_and(|laid| laid.version >= rules.laid.version) {
            return;
        }
        let number = self.queue_for_accepted(rules.queue).expect("its name was checked");
        self.shard.edit_queue(number, |queue| queue.laid = Some(rules.laid));
        if self.shard.queues.get(number).settings != rules.settings {
            self.put_settings(number, &rules.settings);
        }
        let fact = if rules.paused { EventKind::QueuePaused } else { EventKind::QueueResumed };
        self.put_paused(number, rules.paused, fact);
    }

    /// Reduces the reach to the spread. The caller has seen the shards beyond empty under this
    /// version of the rules, and they have accepted nothing since.
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

    /// Rejects a new task that belongs on another shard of its queue. Only a gateway with an
    /// outdated view of the spread sends such a task.
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
    /// The spread of a queue, as this shard knows it.
    pub fn spread_view(&self, queue: &QueueName) -> Option<SpreadView> {
        let number = self.queues.find(queue.as_str())?;
        Some(self.spread_of(self.queues.get(number)))
    }

    /// The spreads of all queues with this home shard that are spread or were.
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

    /// The tasks that remembered requests have made, for each pair of queue and request id.
    pub fn known_requests(&self, requests: &[(String, String)]) -> Vec<Option<TaskId>> {
        let made =
            |(queue, request_id): &(String, String)| self.made_by_request(queue, Some(request_id));
        requests.iter().map(made).collect()
    }
}

#[cfg(test)]
mod tests;
