//! Proposals on whichever node leads: sent to the leader, and repeated where that is safe.
//!
//! A command that was surely not appended is sent again. A command with a lost outcome is sent
//! again only if the machine recognizes it (`identity.rs`); otherwise its caller learns that the
//! outcome is unknown.

use super::{
    Shards,
    identity::Repeat,
    remote::{ShardCall, ShardReply},
    route::{Search, Tried},
};
use crate::{Error, clock::real_now, peer::PeerNetwork};
use futures_util::future::join_all;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use taskyard_machine::{EncodedCommand, Outcome, Rejection, ShardId};
use taskyard_replica::NodeId;

/// The longest time of a proposal or a question on any node. A leader whose disk stalls for longer
/// will soon lose leadership.
pub(super) const ANSWER_FOR_MAX: Duration = Duration::from_secs(10);
/// About the bytes of a batch in one call to another node, so that other calls do not wait long
/// behind it.
const PART_BYTES_MAX: usize = 4 << 20;

type Proposed = Result<Outcome, Error>;

impl Shards {
    pub(super) async fn propose_routed(
        &self,
        network: &PeerNetwork,
        shard: ShardId,
        command: EncodedCommand,
        enqueue: bool,
    ) -> Proposed {
        let mut search = Search::new(self, network, shard, real_now() + ANSWER_FOR_MAX);
        loop {
            let node = search.next().await?;
            search.in_time()?;
            let left = search.left();
            let sent = command.clone();
            let is_here = node == self.routes().me();
            self.note_routed(1, is_here);
            let tried = if is_here {
                Tried::here(self.local().propose(shard, sent, enqueue).await)
            } else {
                let call = ShardCall::Propose { commands: vec![(shard, sent)], enqueue };
                let take = |reply| take_answers(reply, 1)?.pop();
                self.forward(network, node, &call, left, take).await
            };
            match tried {
                Tried::Answered(answer) => {
                    search.answered(node);
                    return final_answer(answer, &command, search.is_unknown);
                }
                Tried::Refused(leader) => search.refused(node, leader),
                Tried::Unknown if Repeat::of(&command) == Repeat::Unsafe => {
                    return Err(Error::OutcomeUnknown);
                }
                Tried::Unknown => search.lost(node),
            }
        }
    }

    /// Proposes with one call per leader's node. Commands that were refused, or lost and safe to
    /// repeat, continue shard by shard, in order.
    pub(super) async fn propose_all_routed(
        &self,
        network: &PeerNetwork,
        commands: Vec<(ShardId, EncodedCommand)>,
        enqueue: bool,
        until: Instant,
    ) -> Vec<Proposed> {
        let answers = vec![None; commands.len()];
        let batch = Batch { shards: self, network, answers, commands, enqueue, until };
        batch.propose().await
    }

    /// Proposes commands of one shard that build on each other, in order and within the time of one
    /// call: the parts of something large, and its commit. Stops at the first error. Returns the
    /// last outcome or that error.
    pub async fn propose_in_turn(
        &self,
        shard: ShardId,
        commands: Vec<EncodedCommand>,
        enqueue: bool,
    ) -> Proposed {
        let until = real_now() + ANSWER_FOR_MAX;
        let mut waiting = commands.into_iter().peekable();
        let mut last = Err(Error::OutcomeUnknown);
        while waiting.peek().is_some() {
            if real_now() >= until {
                let what = format!("shard {shard} took too long, and did nothing; send it again");
                return Err(Error::Unavailable(what));
            }
            let mut bytes = 0;
            let mut part = Vec::new();
            while let Some(command) = waiting.next_if(|command| {
                bytes += command.as_bytes().len();
                part.is_empty() || bytes <= PART_BYTES_MAX
            }) {
                part.push((shard, command));
            }
            for outcome in self.propose_all_until(part, enqueue, until).await {
                last = Ok(outcome?);
            }
        }
        last
    }
}

/// The commands of one call, for any shards.
struct Batch<'a> {
    shards: &'a Shards,
    network: &'a PeerNetwork,
    commands: Vec<(ShardId, EncodedCommand)>,
    enqueue: bool,
    until: Instant,
    answers: Vec<Option<Proposed>>,
}

/// The commands of one shard without an answer so far.
#[derive(Default)]
struct Rest {
    /// Their positions in order, and whether an earlier node may have applied the command.
    waiting: Vec<(usize, bool)>,
    /// The node that was asked last, and the leader that it named.
    refused_by: Option<(NodeId, Option<NodeId>)>,
}

impl Rest {
    /// Notes the result of one command, if it was sent. Returns the answer, if it is final.
    fn sort(
        &mut self,
        (position, was_lost): (usize, bool),
        command: &EncodedCommand,
        node: NodeId,
        tried: Option<Tried<Proposed>>,
    ) -> Option<Proposed> {
        let Some(tried) = tried else {
            self.waiting.push((position, was_lost));
            return None;
        };
        let (leader, is_lost) = match tried {
            Tried::Answered(answer) => return Some(final_answer(answer, command, was_lost)),
            Tried::Refused(leader) => (leader, was_lost),
            Tried::Unknown if Repeat::of(command) == Repeat::Unsafe => {
                return Some(Err(Error::OutcomeUnknown));
            }
            Tried::Unknown => (None, true),
        };
        self.waiting.push((position, is_lost));
        self.refused_by = Some((node, leader));
        None
    }
}

impl Batch<'_> {
    async fn propose(mut self) -> Vec<Proposed> {
        let mut rests: BTreeMap<ShardId, Rest> = BTreeMap::new();
        let mut by_node: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        let routes = self.shards.routes();
        for (position, (shard, _)) in self.commands.iter().enumerate() {
            let reaches = |node: &NodeId| *node == routes.me() || self.network.is_reached(*node);
            let leader = match shard.0 < self.shards.count() {
                true => routes.leader(*shard).filter(reaches),
                // This node itself answers that the shard does not exist.
                false => Some(routes.me()),
            };
            match leader {
                Some(node) => by_node.entry(node).or_default().push(position),
                None => rests.entry(*shard).or_default().waiting.push((position, false)),
            }
        }
        let parts = by_node.iter().map(|(&node, positions)| self.propose_at(node, positions));
        let tried = join_all(parts).await;
        for ((node, positions), tried) in by_node.into_iter().zip(tried) {
            let mut tried = tried.into_iter();
            for position in positions {
                let (shard, command) = &self.commands[position];
                let rest = rests.entry(*shard).or_default();
                let waited = (position, false);
                self.answers[position] = rest.sort(waited, command, node, tried.next());
            }
        }
        rests.retain(|_, rest| !rest.waiting.is_empty());
        let rests = rests.into_iter().map(|(shard, rest)| self.propose_rest(shard, rest));
        for (position, answer) in join_all(rests).await.into_iter().flatten() {
            self.answers[position] = Some(answer);
        }
        let answers = self.answers.into_iter();
        answers.map(|answer| answer.expect("each is answered or among the rest")).collect()
    }

    /// Proposes the rest of one shard's commands until all are answered or the time is over.
    async fn propose_rest(&self, shard: ShardId, mut rest: Rest) -> Vec<(usize, Proposed)> {
        let mut search = Search::new(self.shards, self.network, shard, self.until);
        let mut answers = Vec::with_capacity(rest.waiting.len());
        while !rest.waiting.is_empty() {
            if let Some((node, leader)) = rest.refused_by.take() {
                search.refused(node, leader);
            }
            let waiting = std::mem::take(&mut rest.waiting);
            let next = search.next().await;
            let node = match next.and_then(|node| search.in_time().map(|()| node)) {
                Ok(node) => node,
                Err(error) => {
                    let error =
                        |is_lost| if is_lost { Error::OutcomeUnknown } else { error.clone() };
                    answers.extend(waiting.into_iter().map(|(at, lost)| (at, Err(error(lost)))));
                    break;
                }
            };
            let positions: Vec<usize> = waiting.iter().map(|(position, _)| *position).collect();
            let mut tried = self.propose_at(node, &positions).await.into_iter();
            for waited in waiting {
                let command = &self.commands[waited.0].1;
                if let Some(answer) = rest.sort(waited, command, node, tried.next()) {
                    search.answered(node);
                    answers.push((waited.0, answer));
                }
            }
        }
        answers
    }

    /// Proposes some of the commands at one node, in order; one result per command sent. Stops
    /// after a part that was not taken whole, because later commands may build on it. Sends nothing
    /// once the time is over.
    async fn propose_at(&self, node: NodeId, positions: &[usize]) -> Vec<Tried<Proposed>> {
        let Batch { shards, commands, enqueue, .. } = self;
        let is_here = node == shards.routes().me();
        shards.note_routed(positions.len(), is_here);
        if is_here {
            let sent = positions.iter().map(|&position| commands[position].clone()).collect();
            let answers = shards.local().propose_all(sent, *enqueue).await;
            return answers.into_iter().map(Tried::here).collect();
        }
        let mut tried: Vec<Tried<Proposed>> = Vec::with_capacity(positions.len());
        while tried.len() < positions.len() {
            let left = self.until.saturating_duration_since(real_now());
            let is_taken = |tried: &Tried<Proposed>| matches!(tried, Tried::Answered(_));
            if left.is_zero() || !tried.iter().all(is_taken) {
                break;
            }
            let mut bytes = 0;
            let fits = |position: &&usize| {
                bytes += commands[**position].1.as_bytes().len();
                bytes <= PART_BYTES_MAX
            };
            let waiting = &positions[tried.len()..];
            let count = waiting.iter().take_while(fits).count().max(1);
            let sent = waiting[..count].iter().map(|&position| commands[position].clone());
            let call = ShardCall::Propose { commands: sent.collect(), enqueue: *enqueue };
            let take = |reply| take_answers(reply, count).map(Ok);
            match shards.forward(self.network, node, &call, left, take).await {
                Tried::Answered(Ok(answers)) => tried.extend(answers.into_iter().map(Tried::there)),
                Tried::Answered(Err(error)) => {
                    tried.extend((0..count).map(|_| Tried::Answered(Err(error.clone()))));
                }
                Tried::Refused(leader) => tried.extend((0..count).map(|_| Tried::Refused(leader))),
                Tried::Unknown => tried.extend((0..count).map(|_| Tried::Unknown)),
            }
        }
        tried
    }
}

/// The answers of a reply, if their number is right.
fn take_answers(reply: ShardReply, count: usize) -> Option<Vec<Proposed>> {
    match reply {
        ShardReply::Proposed(answers) if answers.len() == count => Some(answers),
        _ => None,
    }
}

/// The answer for the caller. If an earlier try may have applied the command, an error of a later
/// try does not say that nothing was done, and a missing claim or task may be due to the first try.
fn final_answer(answer: Proposed, command: &EncodedCommand, was_lost: bool) -> Proposed {
    match answer {
        Err(Error::Rejected(rejection)) if was_lost && is_gone(&rejection) => {
            match Repeat::of(command) {
                Repeat::Fenced => Err(Error::OutcomeUnknown),
                Repeat::Safe | Repeat::Unsafe => Err(rejection.into()),
            }
        }
        Ok(_) | Err(Error::Rejected(_)) => answer,
        Err(_) if was_lost => Err(Error::OutcomeUnknown),
        Err(_) => answer,
    }
}

/// The command's claim, task, flow or queue is missing or has ended.
fn is_gone(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::ClaimLost { .. }
            | Rejection::TaskNotFound { .. }
            | Rejection::AlreadyRemoved { .. }
            | Rejection::AlreadyFinished { .. }
            | Rejection::FlowNotFound { .. }
            | Rejection::FlowEnded { .. }
            | Rejection::QueueNotFound { .. }
    )
}
