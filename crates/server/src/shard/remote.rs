//! Calls between nodes, as bytes: what a node asks of the shards that another node leads.
//!
//! Each call is one method of [`Shards`] and is served by that method, so that a shard gives all
//! callers the same answer. Bytes come from another node, perhaps of another version: unreadable
//! bytes get an answer in words, nothing panics, and no log gets an entry that can't be decoded.
//! Calls on the same node do not come here.

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

/// The first byte of every call and reply: the version of the layout.
const VERSION: u8 = 1;

/// The second byte of [`ShardReply::Unread`], before its words; the same in every version.
const UNREAD: u8 = 0;

/// About the longest reply. A longer one is shortened if it can be, because a frame has a bound,
/// and one reply must not delay all others behind it.
const REPLY_BYTES_MAX: usize = 16 << 20;

/// A call of one node to the shards of another. A wait is the rest of the caller's wait.
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
        /// What is claimed, and for which worker.
        request: ClaimRequest,
        /// How long the claim may be parked, see [`wait_ms`]; 0 does not park.
        wait_ms: u64,
    },
    /// See [`LocalShards::claimable`](super::LocalShards::claimable).
    Claimable {
        /// Shards, and what is sought of each.
        looks: Vec<Look>,
        /// How long the call may be parked, see [`wait_ms`]; 0 does not park.
        wait_ms: u64,
    },
    /// See [`Shards::ask`].
    Ask {
        /// The shard.
        shard: ShardId,
        /// The question.
        query: Query,
    },
    /// See [`Shards::bodies`].
    Bodies {
        /// The tasks.
        tasks: Vec<TaskId>,
    },
    /// See [`LocalShards::spare_body`](super::LocalShards::spare_body).
    Spare {
        /// The task.
        task: TaskId,
    },
    /// See [`Shards::finished`].
    Finished {
        /// The task or flow.
        task: TaskId,
        /// How long to wait, see [`wait_ms`].
        wait_ms: u64,
    },
    /// See [`Shards::status`].
    Status,
    /// For the control group's leader: a change of a queue's spread, as a command of that group.
    SetSpread(Box<[u8]>),
}

/// The answer to a [`ShardCall`], under the same name.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardReply {
    /// The other node is of another version and could not read the call, for this reason. Nothing
    /// was done.
    Unread(String),
    /// One answer per command, in the same order.
    Proposed(Vec<Result<Outcome, Error>>),
    /// The claimed tasks.
    Claimed(Result<Vec<HandedTask>, Error>),
    /// For some of the shards, how many tasks there may be to claim.
    Claimable(Result<Vec<Hint>, Error>),
    /// What was found.
    Found(Box<Result<Found, Error>>),
    /// One per task, `None` for a body that is gone. Also the answer to [`ShardCall::Spare`].
    Bodies(Result<Vec<Option<KeptBody>>, Error>),
    /// Whether the task or flow has ended.
    Finished(Result<bool, Error>),
    /// The status of the shards on that node.
    Status(Result<Vec<ShardStatus>, Error>),
    /// Whether the control group has taken the change.
    SpreadSet(Result<(), Error>),
}

/// An encoded body that `taskyard_machine::Body::decode` can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBody(pub Bytes);

/// A wait in milliseconds, rounded up, because a short wait must not become a call without one.
pub fn wait_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A received wait, at most the longest that is allowed.
fn wait_for(wait_ms: u64) -> Duration {
    Duration::from_millis(wait_ms.min(CLAIM_WAIT_MS_MAX))
}

impl ShardCall {
    /// The shards that the call asks the leader of, each once; none for calls to any node.
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

    /// Whether the call may be parked.
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

/// Serves a call on the shards that this node leads; for other shards it answers "not the leader".
/// Dropping the future removes what is parked and releases what was claimed.
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

/// Serves a call from bytes to bytes. An unreadable call is answered with words, and a reply that
/// is too long for one frame is shortened.
pub async fn serve_bytes(shards: &Shards, call: &[u8]) -> Vec<u8> {
    match ShardCall::decode(call) {
        Ok(call) => encode_bounded(serve(shards, call).await, REPLY_BYTES_MAX),
        Err(error) => ShardReply::Unread(error.what).encode(),
    }
}

/// Encodes a reply in about `bytes_max`. A page of tasks ends earlier, as any page may; a reply
/// that can't be shortened becomes an error.
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
            // Outcomes must be delivered, the machine bounds a claim far below a frame's bound, and
            // all other replies are short.
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
        "the answer has {bytes} bytes, and a message between nodes has {REPLY_BYTES_MAX} at most; ask for \
         less at once"
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
    bytes_max,
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

    /// Refuses a body that can't be read, because fronts rely on readable bodies.
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
