//! Spreads: the queues on several shards, and the number of these shards.
//!
//! Invariants: a queue without a record is on its home shard alone. A record came from the queue's
//! home shard with its version, and an older version changes nothing.

use super::codec::{Reader, Writer};
use super::{Control, ControlOutcome, InvalidControlBytes, invalid};
use taskyard_machine::limits::SPREAD_MAX;

/// The spread of a queue: its home shard and the shards after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The version of the rules from the queue's home shard.
    pub version: u64,
    /// The number of shards that new tasks go to.
    pub spread: u16,
    /// The number of shards that may have tasks; at least `spread`.
    pub reach: u16,
    /// Earlier spreads, while shards remember request ids that were placed by them.
    pub before: Vec<SpreadBefore>,
}

/// An earlier spread of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadBefore {
    /// The number of shards.
    pub spread: u16,
    /// When the last request id placed by this spread is forgotten, in milliseconds since 1970.
    pub until_ms: u64,
}

/// A report of a queue's spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpread {
    /// The queue.
    pub queue: String,
    /// The version of the queue's rules.
    pub version: u64,
    /// The number of shards that new tasks go to from now on.
    pub spread: u16,
    /// The number of shards that may have tasks.
    pub reach: u16,
    /// The reporter's time, in milliseconds since 1970.
    pub now_ms: u64,
    /// When the last request id placed by the replaced spread is forgotten.
    pub requests_until_ms: u64,
}

impl Control {
    /// The spread of a queue; `None` if the queue is on its home shard alone.
    pub fn spread(&self, queue: &str) -> Option<&Spread> {
        self.spreads.get(queue)
    }

    /// The number of queues that are spread, or were lately.
    pub fn spread_queues(&self) -> usize {
        self.spreads.len()
    }

    pub(super) fn set_spread(&mut self, set: SetSpread) -> ControlOutcome {
        let SetSpread { queue, version, spread, reach, now_ms, requests_until_ms } = set;
        let reach_max = self.shards.min(SPREAD_MAX);
        if spread == 0 || spread > reach || reach > reach_max {
            return Err(invalid(format!(
                "queue {queue} can't have {spread} of {reach} shards; at most {reach_max} are allowed"
            )));
        }
        let known = self.spreads.get(&queue);
        if known.is_some_and(|known| version <= known.version) {
            return Ok(());
        }
        let replaced = known.map_or(1, |known| known.spread);
        let mut before = known.map_or(Vec::new(), |known| known.before.clone());
        if replaced != spread {
            // Request ids placed by the new spread are found without a look at earlier ones.
            before.retain(|past| past.spread != spread && past.spread != replaced);
            before.push(SpreadBefore { spread: replaced, until_ms: requests_until_ms });
        }
        before.retain(|past| past.until_ms > now_ms);
        match reach > 1 || !before.is_empty() {
            true => self.spreads.insert(queue, Spread { version, spread, reach, before }),
            false => self.spreads.remove(&queue),
        };
        // What is left of narrow and of deleted queues goes once no request id needs it.
        let is_needed = |spread: &Spread| {
            spread.reach > 1 || spread.before.iter().any(|past| past.until_ms > now_ms)
        };
        self.spreads.retain(|_, spread| is_needed(spread));
        Ok(())
    }

    pub(super) fn write_spreads(&self, out: &mut Writer) {
        out.u32(self.spreads.len() as u32);
        for (queue, spread) in &self.spreads {
            out.text(queue);
            out.u64(spread.version);
            out.u16(spread.spread);
            out.u16(spread.reach);
            out.u32(spread.before.len() as u32);
            for past in &spread.before {
                out.u16(past.spread);
                out.u64(past.until_ms);
            }
        }
    }

    pub(super) fn read_spreads(
        &mut self,
        input: &mut Reader<'_>,
    ) -> Result<(), InvalidControlBytes> {
        for _ in 0..input.u32()? {
            let queue = input.text()?;
            let (version, spread, reach) = (input.u64()?, input.u16()?, input.u16()?);
            let past = |input: &mut Reader<'_>| {
                Ok(SpreadBefore { spread: input.u16()?, until_ms: input.u64()? })
            };
            let before = (0..input.u32()?).map(|_| past(input)).collect::<Result<_, _>>()?;
            self.spreads.insert(queue, Spread { version, spread, reach, before });
        }
        Ok(())
    }
}

impl SetSpread {
    pub(super) fn write(&self, out: &mut Writer) {
        out.text(&self.queue);
        out.u64(self.version);
        out.u16(self.spread);
        out.u16(self.reach);
        out.u64(self.now_ms);
        out.u64(self.requests_until_ms);
    }

    pub(super) fn read(input: &mut Reader<'_>) -> Result<SetSpread, InvalidControlBytes> {
        Ok(SetSpread {
            queue: input.text()?,
            version: input.u64()?,
            spread: input.u16()?,
            reach: input.u16()?,
            now_ms: input.u64()?,
            requests_until_ms: input.u64()?,
        })
    }
}
