//! Calls between nodes: what is asked of the shards that another node leads, as bytes, and back.
//!
//! Each call is one of the methods of [`Shards`] and is served by it, so that a shard decides alike
//! whoever asks. Bytes come from another node, perhaps of another version: what can't be read is
//! answered with words, nothing panics, and nothing gets into a log that can't be read back from
//! it. Nothing here is on the way of calls that stay on this node.

use super::{ClaimRequest, HandedTask, Hint, Look, ShardStatus, Shards};
use crate::Error;
use bytes::Bytes;
use std::time::Duration;
use taskyard_machine::{
    Body, DecodeError, EncodedCommand, Found, NewestAt, NewestPage, Outcome, Query, ShardId,
    TaskId, TaskPage,
    limits::CLAIM_WAIT_MS_MAX,
    wire::{Reader, Wire, decode_from_node, encode_for_node, wire_enum, wire_struct},
};

/// The first byte of every call and reply: how the rest is laid out.
const VERSION: u8 = 1;

/// The second byte of [`ShardReply::Unread`], and its words after it: the same in every version.
const UNREAD: u8 = 0;

/// About how long a reply gets. Larger ones are made smaller, as far as they can be: a frame
/// between nodes has a bound, and one reply should not hold up all others behind it.
const REPLY_BYTES_MAX: usize = 16 << 20;

/// What one node asks of the shards of another. Waits are what is left of them.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardCall {
    /// See [`Shards::propose_all`].
    Propose {
        /// The commands and their shards.
        commands: Vec<(ShardId, EncodedCommand)>,
        /// Whether they add tasks.
        enqueue: bool,
    },
    /// See [`Shards::claim`].
    Claim {
        /// The shard of the queues.
        shard: ShardId,
        /// What is claimed, and for whom.
        request: ClaimRequest,
        /// How long it parks, see [`wait_ms`]; 0 does not park.
        wait_ms: u64,
    },
    /// See [`LocalShards::claimable`](super::LocalShards::claimable).
    Claimable {
        /// Shards, and what is sought of each.
        looks: Vec<Look>,
        /// How long it parks, see [`wait_ms`]; 0 does not park.
        wait_ms: u64,
    },
    /// See [`Shards::ask`].
    Ask {
        /// Which shard.
        shard: ShardId,
        /// The question.
        query: Query,
    },
    /// See [`Shards::bodies`].
    Bodies {
        /// Whose.
        tasks: Vec<TaskId>,
    },
    /// See [`LocalShards::spare_body`](super::LocalShards::spare_body).
    Spare {
        /// Whose.
        task: TaskId,
    },
    /// See [`Shards::finished`].
    Finished {
        /// The task or flow.
        task: TaskId,
        /// How long, see [`wait_ms`].
        wait_ms: u64,
    },
    /// See [`Shards::status`].
    Status,
    /// Of the control group's leader: how far a queue lies, as a command of that group.
    SetSpread(Box<[u8]>),
}

/// The answer to a [`ShardCall`], under the same name.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardReply {
    /// The call could not be read there, for the other node is of another version; says why.
    /// Nothing was done.
    Unread(String),
    /// One answer per command, in the same order.
    Proposed(Vec<Result<Outcome, Error>>),
    /// The tasks.
    Claimed(Result<Vec<HandedTask>, Error>),
    /// Of some of the shards, how many tasks there may be to claim.
    Claimable(Result<Vec<Hint>, Error>),
    /// What was found.
    Found(Box<Result<Found, Error>>),
    /// One per task, `None` for one that is gone. Also to [`ShardCall::Spare`].
    Bodies(Result<Vec<Option<KeptBody>>, Error>),
    /// Whether it has ended.
    Finished(Result<bool, Error>),
    /// How the shards stand on that node.
    Status(Result<Vec<ShardStatus>, Error>),
    /// Whether the control group has taken it.
    SpreadSet(Result<(), Error>),
}

/// An encoded body that `taskyard_machine::Body::decode` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBody(pub Bytes);

/// A wait, as it is sent: in milliseconds, rounded up, for a short wait is no call without one.
pub fn wait_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A wait, as it came; no longer than anybody may wait.
fn wait_for(wait_ms: u64) -> Duration {
    Duration::from_millis(wait_ms.min(CLAIM_WAIT_MS_MAX))
}

impl ShardCall {
    /// The shards whose leader is asked, each once; none where any node may be.
    pub(super) fn shards(&self) -> Vec<ShardId> {
        let mut shards = match self {
            ShardCall::Propose { commands, .. } => {
                commands.iter().map(|(shard, _)| *shard).collect()
            }
            ShardCall::Claim { shard, .. } | ShardCall::Ask { shard, .. } => vec![*shard],
            ShardCall::Claimable { looks, .. } => looks.iter().map(|(shard, _)| *shard).collect(),
            ShardCall::Bodies { tasks } => tasks.iter().map(|task| task.home).collect(),
            ShardCall::Finished { task, .. } => vec![task.home],
            ShardCall::Spare { .. } | ShardCall::SetSpread(_) | ShardCall::Status => Vec::new(),
        };
        shards.sort_unstable();
        shards.dedup();
        shards
    }

    /// Whether it waits for something to happen.
    pub(super) fn parks(&self) -> bool {
        match self {
            ShardCall::Claim { wait_ms, .. }
            | ShardCall::Claimable { wait_ms, .. }
            | ShardCall::Finished { wait_ms, .. } => *wait_ms > 0,
            ShardCall::Propose { .. }
            | ShardCall::Ask { .. }
            | ShardCall::Bodies { .. }
            | ShardCall::Spare { .. }
            | ShardCall::SetSpread(_)
            | ShardCall::Status => false,
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode_for_node(VERSION, self)
    }

    /// The reverse of [`ShardCall::encode`].
    pub fn decode(bytes: &[u8]) -> Result<ShardCall, DecodeError> {
        decode_from_node(VERSION, bytes)
    }
}

impl ShardReply {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode_for_node(VERSION, self)
    }

    /// The reverse of [`ShardReply::encode`].
    pub fn decode(bytes: &[u8]) -> Result<ShardReply, DecodeError> {
        if let [_, UNREAD, words @ ..] = bytes {
            let mut reader = Reader::foreign(words);
            let unread = reader.read().map(ShardReply::Unread)?;
            reader.finish()?;
            return Ok(unread);
        }
        decode_from_node(VERSION, bytes)
    }
}

/// Runs a call on the shards that this node leads; of others it says that it does not. Dropping the
/// future takes away what it parked, and gives back what was claimed for it by then, as dropping
/// the call itself would.
pub async fn serve(shards: &Shards, call: ShardCall) -> ShardReply {
    let (all, shards) = (shards, shards.local());
    match call {
        ShardCall::Propose { commands, enqueue } => {
            ShardReply::Proposed(shards.propose_all(commands, enqueue).await)
        }
        ShardCall::Claim { shard, request, wait_ms } => {
            ShardReply::Claimed(shards.claim(shard, request, wait_for(wait_ms)).await)
        }
        ShardCall::Claimable { looks, wait_ms } => {
            ShardReply::Claimable(shards.claimable(looks, wait_for(wait_ms)).await)
        }
        ShardCall::Ask { shard, query } => {
            ShardReply::Found(Box::new(shards.ask(shard, query).await))
        }
        ShardCall::Bodies { tasks } => {
            let kept = |bodies: Vec<Option<Bytes>>| {
                bodies.into_iter().map(|body| body.map(KeptBody)).collect()
            };
            ShardReply::Bodies(shards.bodies(tasks).await.map(kept))
        }
        ShardCall::Spare { task } => {
            let kept = |body: Option<Bytes>| vec![body.map(KeptBody)];
            ShardReply::Bodies(shards.spare_body(task).await.map(kept))
        }
        ShardCall::Finished { task, wait_ms } => {
            ShardReply::Finished(shards.finished(task, wait_for(wait_ms)).await)
        }
        ShardCall::Status => ShardReply::Status(shards.status().await),
        ShardCall::SetSpread(command) => ShardReply::SpreadSet(all.set_spread_here(&command).await),
    }
}

/// The same from bytes to bytes: a call that can't be read is answered with words, and a reply that
/// is too long for one frame is made shorter.
pub async fn serve_bytes(shards: &Shards, call: &[u8]) -> Vec<u8> {
    match ShardCall::decode(call) {
        Ok(call) => encode_bounded(serve(shards, call).await, REPLY_BYTES_MAX),
        Err(error) => ShardReply::Unread(error.what).encode(),
    }
}

/// The bytes of a reply, about `bytes_max` at most. A page of tasks ends earlier, as any page may;
/// what has no shorter form is refused.
fn encode_bounded(mut reply: ShardReply, bytes_max: usize) -> Vec<u8> {
    loop {
        let encoded = reply.encode();
        if encoded.len() <= bytes_max {
            return encoded;
        }
        reply = match reply {
            ShardReply::Found(found) if found.is_ok() => {
                ShardReply::Found(Box::new(match *found {
                    Ok(Found::Tasks(page)) if page.tasks.len() > 1 => Ok(Found::Tasks(half(page))),
                    Ok(Found::Newest(page)) if page.tasks.len() > 1 => {
                        Ok(Found::Newest(newest_half(page)))
                    }
                    _ => Err(too_long(encoded.len())),
                }))
            }
            ShardReply::Bodies(Ok(_)) => ShardReply::Bodies(Err(too_long(encoded.len()))),
            // What was decided must be told, the machine bounds a claim far below the bound of a
            // frame, and all others are short.
            _ => return encoded,
        };
    }
}

fn half(mut page: TaskPage) -> TaskPage {
    page.tasks.truncate(page.tasks.len() / 2);
    page.next = page.tasks.last().map(|task| task.id);
    page
}

fn newest_half(mut page: NewestPage) -> NewestPage {
    page.tasks.truncate(page.tasks.len() / 2);
    page.next = page.tasks.last().map(|(at, task)| NewestAt { at: *at, task: task.id });
    page
}

fn too_long(bytes: usize) -> Error {
    Error::LimitExceeded(format!(
        "the answer has {bytes} bytes, nodes send each other {REPLY_BYTES_MAX}; ask for less at once"
    ))
}

wire_enum!(ShardCall {
    1 => Propose { commands, enqueue },
    2 => Claim { shard, request, wait_ms },
    3 => Claimable { looks, wait_ms },
    4 => Ask { shard, query },
    5 => Bodies { tasks },
    6 => Finished { task, wait_ms },
    7 => Spare { task },
    10 => Status,
    11 => SetSpread(command),
});
wire_enum!(ShardReply {
    0 => Unread(words),
    1 => Proposed(outcomes),
    2 => Claimed(tasks),
    3 => Claimable(hints),
    4 => Found(found),
    5 => Bodies(bodies),
    6 => Finished(finished),
    8 => Status(shards),
    9 => SpreadSet(set),
});
wire_struct!(ClaimRequest {
    queues,
    types,
    weighted,
    tasks_max,
    lease_ms,
    session,
    number,
    begun,
    worker
});
wire_struct!(ShardStatus { shard, term, serves, persisted, applied });
wire_enum!(Error {
    1 => Rejected(rejection),
    2 => Invalid(what),
    3 => NotFound(what),
    4 => PayloadTooLarge { bytes, bytes_max },
    5 => Element { index, error },
    6 => Node { node, error },
    7 => LimitExceeded(what),
    8 => DiskFull(what),
    9 => NoQuorum { shard },
    10 => NotLeader { shard, leader },
    11 => OutcomeUnknown,
    12 => Unavailable(what),
    13 => HalfWay { enqueued, total, error },
    14 => NoControl,
    15 => Refused(what),
    16 => CommandTooLarge { bytes, bytes_max },
    17 => Forbidden(what),
    18 => RequestTooLarge { bytes, bytes_max },
});

impl<'a> Wire<'a> for KeptBody {
    fn write(&self, out: &mut Vec<u8>) {
        (&*self.0).write(out);
    }

    /// Fronts rely on a body that can be read.
    fn read(reader: &mut Reader<'a>) -> Result<KeptBody, DecodeError> {
        let bytes: &[u8] = reader.read()?;
        Body::decode(bytes).map_err(|error| reader.error(error.what))?;
        Ok(KeptBody(Bytes::copy_from_slice(bytes)))
    }
}

impl<'a> Wire<'a> for HandedTask {
    fn write(&self, out: &mut Vec<u8>) {
        self.task.write(out);
        (&*self.body).write(out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<HandedTask, DecodeError> {
        let task = reader.read()?;
        let KeptBody(body) = reader.read()?;
        Ok(HandedTask { task, body })
    }
}

#[cfg(test)]
mod tests;
