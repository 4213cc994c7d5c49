//! Spreads: the queues that lie on several shards, and how far.
//!
//! Invariants: a queue that is not here lies on its home shard alone; what is here came from the
//! queue's home shard under its version, and an older version changes nothing.

use super::codec::{Reader, Writer};
use super::{Control, ControlOutcome, InvalidControlBytes, invalid};
use taskyard_machine::limits::SPREAD_MAX;

/// How far a queue lies: its home shard and so many that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The version of the rules that its home shard has given out.
    pub version: u64,
    /// Shards that new tasks go to.
    pub spread: u16,
    /// Shards that may hold tasks; at least `spread`.
    pub reach: u16,
    /// Spreads that it had before, while shards remember request ids that came by them.
    pub before: Vec<SpreadBefore>,
}

/// A spread that a queue had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadBefore {
    /// How many shards it was.
    pub spread: u16,
    /// Until when a request id may be remembered by it, in milliseconds since 1970.
    pub until_ms: u64,
}

/// What is said about the spread of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpread {
    /// The queue.
    pub queue: String,
    /// The version that this is from.
    pub version: u64,
    /// Shards that new tasks go to from here on.
    pub spread: u16,
    /// Shards that may hold tasks.
    pub reach: u16,
    /// The time of whoever says it, in milliseconds since 1970.
    pub now_ms: u64,
    /// Until when a request id may be remembered by the spread that this one replaces.
    pub requests_until_ms: u64,
}

impl Control {
    /// How far a queue lies; `None` if it lies on its home shard alone.
    pub fn spread(&self, queue: &str) -> Option<&Spread> {
        self.spreads.get(queue)
    }

    /// How many queues are spread, or were lately.
    pub fn spread_queues(&self) -> usize {
        self.spreads.len()
    }

    pub(super) fn set_spread(&mut self, set: SetSpread) -> ControlOutcome {
        let SetSpread { queue, version, spread, reach, now_ms, requests_until_ms } = set;
        let reach_max = self.shards.min(SPREAD_MAX);
        if spread == 0 || spread > reach || reach > reach_max {
            return Err(invalid(format!(
                "queue {queue} can't lie on {spread} of {reach} shards; at most {reach_max} are allowed"
            )));
        }
        let known = self.spreads.get(&queue);
        if known.is_some_and(|known| version <= known.version) {
            return Ok(());
        }
        let replaced = known.map_or(1, |known| known.spread);
        let mut before = known.map_or(Vec::new(), |known| known.before.clone());
        if replaced != spread {
            // What is remembered by the new spread is found without a look back.
            before.retain(|past| past.spread != spread && past.spread != replaced);
            before.push(SpreadBefore { spread: replaced, until_ms: requests_until_ms });
        }
        before.retain(|past| past.until_ms > now_ms);
        match reach > 1 || !before.is_empty() {
            true => self.spreads.insert(queue, Spread { version, spread, reach, before }),
            false => self.spreads.remove(&queue),
        };
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
