//! Claims, wherever their shards are led: parked at the leader, and parked again at the next one
//! for the rest of their wait.
//!
//! No claim is orphaned: a caller that goes away cancels its call, and what comes for it
//! nevertheless goes back. A session's claim has a number; when its answer gets lost, it is sent
//! again under that number, and gets the tasks that it got before under new tokens. So an answer to
//! an earlier sending that comes late goes back in vain. What a claim without a session lost, its
//! lease ends.

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
    /// Makes it a claim of its own. Random, for a session may go on at another node, which does not
    /// know how far this one has counted.
    fn begin(&mut self) {
        let number = |_| ClaimNumber { sequence: random_u64(), sending: 0 };
        self.number = self.session.map(number);
    }

    /// Makes it the same claim once more, if it can be: whatever came of it before is nobody's now.
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
        // The last answer got lost: it is asked for before anything new is.
        let mut repeats = false;
        loop {
            let node = match search.next().await {
                Ok(node) => node,
                // Its wait is over, and it was spent waiting.
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
                        // It had got nothing, or gave it back. What comes now is another claim.
                        repeats = false;
                        request.begin();
                    } else if search.left().is_zero() || node == self.routes().me() {
                        return Ok(tasks);
                    } else {
                        // A node that stops sends home who waits there.
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
        self.forward_minding(network, node, &call, wait + ANSWER_MARGIN, take, Some(late)).await
    }

    /// Gives back what was claimed for somebody who went away. Not waited for: if it fails, the
    /// lease ends it.
    pub(crate) fn release_later(&self, tasks: &[HandedTask]) {
        let release = |handed: &HandedTask| {
            let release = Release { task: handed.task.id, token: handed.task.token };
            (handed.task.id.home, EncodedCommand::new(&Command::Release(release)))
        };
        let commands: Vec<_> = tasks.iter().map(release).collect();
        // A handle may be dropped after its runtime: then the node is gone, and the lease ends it.
        if let (false, Ok(runtime)) = (commands.is_empty(), tokio::runtime::Handle::try_current()) {
            let shards = self.clone();
            runtime.spawn(async move { shards.propose_all(commands, false).await });
        }
    }
}
