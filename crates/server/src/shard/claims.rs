//! Claims on whichever node leads: parked at the leader, and parked again at its successor for the
//! rest of the wait.
//!
//! No claim is orphaned: a caller that goes away cancels its call, and tasks that still come are
//! released. A session's claim has a number. If its answer is lost, the claim is repeated under
//! that number and gets the same tasks under new tokens, so releasing the tasks of a late first
//! answer has no effect. If a claim without a session loses its answer, its lease ends the claim.

use super::{
    ClaimRequest, HandedTask, Shards,
    forward::ANSWER_MARGIN,
    proposals::ANSWER_FOR_MAX,
    remote::{ShardCall, ShardReply, wait_ms},
    route::{Search, Tried},
};
use crate::{
    Error,
    clock::real_now,
    peer::{LateReply, PeerNetwork},
    random::random_u64,
};
use std::{sync::Arc, time::Duration};
use taskyard_machine::{ClaimNumber, Command, EncodedCommand, Release, ShardId};
use taskyard_replica::NodeId;

impl ClaimRequest {
    /// Gives the claim a new number. The number is random, because the session may continue at
    /// another node, which does not know this node's count.
    fn begin(&mut self) {
        let number = |_| ClaimNumber { sequence: random_u64(), sending: 0 };
        self.number = self.session.map(number);
    }

    /// Makes the claim a repetition, if it has a number. An earlier answer is void from now on.
    fn repeat(&mut self) -> bool {
        if let Some(number) = &mut self.number {
            number.sending += 1;
        }
        self.number.is_some()
    }
}

impl Shards {
    pub(super) async fn claim_routed(
        &self,
        network: &PeerNetwork,
        shard: ShardId,
        mut request: ClaimRequest,
        wait: Duration,
    ) -> Result<Vec<HandedTask>, Error> {
        let (parks, until) = (!wait.is_zero(), real_now() + wait);
        let search_until = if parks { until } else { until + ANSWER_FOR_MAX };
        let mut search = Search::new(self, network, shard, search_until);
        request.begin();
        // The last answer was lost: it is requested again before a new claim is made.
        let mut repeats = false;
        loop {
            let node = match search.next().await {
                Ok(node) => node,
                // The wait is over, and was spent at a leader.
                Err(_) if search.has_waited && search.left().is_zero() => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            let left = until.saturating_duration_since(real_now());
            let wait = if repeats { Duration::ZERO } else { left };
            if parks && left.is_zero() && !repeats {
                return Ok(Vec::new());
            }
            match self.claim_at(network, node, shard, request.clone(), wait).await {
                Tried::Answered(Ok(tasks)) if tasks.is_empty() && parks => {
                    if repeats {
                        // The lost claim had got nothing, or its tasks were released: a new claim
                        // follows.
                        repeats = false;
                        request.begin();
                    } else if search.left().is_zero() || node == self.routes().me() {
                        return Ok(tasks);
                    } else {
                        // A node that stops answers parked claims early with nothing.
                        search.refused(node, None);
                    }
                }
                Tried::Answered(answer) => {
                    search.answered(node);
                    return answer;
                }
                Tried::Refused(leader) => search.refused(node, leader),
                Tried::Unknown => {
                    search.lost(node);
                    repeats = request.repeat();
                }
            }
        }
    }

    async fn claim_at(
        &self,
        network: &PeerNetwork,
        node: NodeId,
        shard: ShardId,
        request: ClaimRequest,
        wait: Duration,
    ) -> Tried<Result<Vec<HandedTask>, Error>> {
        let is_here = node == self.routes().me();
        self.note_routed(1, is_here);
        if is_here {
            return Tried::here(self.local().claim(shard, request, wait).await);
        }
        let call = ShardCall::Claim { shard, request, wait_ms: wait_ms(wait) };
        let shards = self.clone();
        let late: LateReply = Arc::new(move |reply| {
            if let Ok(ShardReply::Claimed(Ok(tasks))) = ShardReply::decode(&reply) {
                shards.release_later(&tasks);
            }
        });
        let take = |reply| match reply {
            ShardReply::Claimed(claimed) => Some(claimed),
            _ => None,
        };
        self.forward_with_late(network, node, &call, wait + ANSWER_MARGIN, take, Some(late)).await
    }

    /// Releases tasks that were claimed for a caller that went away, in the background. If a
    /// release fails, the lease ends the claim.
    pub(crate) fn release_later(&self, tasks: &[HandedTask]) {
        let release = |handed: &HandedTask| {
            let release = Release { task: handed.task.id, token: handed.task.token };
            (handed.task.id.home, EncodedCommand::new(&Command::Release(release)))
        };
        let commands: Vec<_> = tasks.iter().map(release).collect();
        // Without a runtime the node is gone, and leases end the claims.
        if let (false, Ok(runtime)) = (commands.is_empty(), tokio::runtime::Handle::try_current()) {
            let shards = self.clone();
            runtime.spawn(async move { shards.propose_all(commands, false).await });
        }
    }
}
