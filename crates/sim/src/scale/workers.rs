//! Workers: sessions on their gateways, and the request for which each of them waits. A worker has
//! one slot: it claims, runs, and then acks and claims again in one message.

use super::host::{Ask, Call};
use super::params::{Micros, Params, SECOND};
use taskyard_machine::{ClaimNumber, ClaimToken, TaskId};

/// The interval of beats, in seconds.
const BEAT_SECONDS: u64 = 5;

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) gateway: usize,
    pub(crate) group: u64,
    /// The last claim, as it was last sent.
    pub(crate) number: ClaimNumber,
    /// Whether that claim is unanswered.
    pub(crate) claims: bool,
    /// The unanswered acks.
    pub(crate) acks: Vec<(TaskId, ClaimToken)>,
    /// Whether it has sent something since its gateway's last list of live sessions.
    heard: bool,
}

pub(crate) struct Workers {
    pub(crate) all: Vec<Worker>,
    of_group: Vec<Vec<u32>>,
    of_gateway: Vec<Vec<u32>>,
}

impl Workers {
    pub(crate) fn new(params: &Params) -> Workers {
        let shards = usize::from(params.shards);
        let mut of_group = vec![Vec::new(); shards + 1];
        let mut of_gateway = vec![Vec::new(); params.nodes];
        let all = (0..params.workers)
            .map(|number| {
                // The workers of each shard are on many gateways.
                let (shard, gateway) = (number % shards, (number / shards + number) % params.nodes);
                of_group[shard + 1].push(number as u32);
                of_gateway[gateway].push(number as u32);
                let (group, acks) = (shard as u64 + 1, Vec::new());
                let number = ClaimNumber { sequence: 1, sending: 0 };
                Worker { gateway, group, number, claims: true, acks, heard: true }
            })
            .collect();
        Workers { all, of_group, of_gateway }
    }

    pub(crate) fn get(&mut self, worker: u32) -> &mut Worker {
        &mut self.all[worker as usize]
    }

    pub(crate) fn of_group(&self, group: u64) -> &[u32] {
        &self.of_group[group as usize]
    }

    /// Ends the task of a worker, which acks it and claims the next one.
    pub(crate) fn finish(&mut self, worker: u32, task: TaskId, token: ClaimToken) {
        let worker = self.get(worker);
        worker.acks.push((task, token));
        worker.number = ClaimNumber { sequence: worker.number.sequence + 1, sending: 0 };
        worker.claims = true;
        worker.heard = true;
    }

    /// The requests for which a worker waits, as calls to a leader; repetitions if a leader may
    /// have had them before.
    pub(crate) fn calls(&mut self, worker: u32, since: Micros, again: bool) -> Vec<Call> {
        self.get(worker).number.sending += u32::from(again);
        let Worker { gateway, number, claims, ref acks, .. } = self.all[worker as usize];
        let call = |ask| Call { gateway, since, ask };
        let acks = acks.iter().map(|&(task, token)| call(Ask::Ack { worker, task, token }));
        let claim = claims.then(|| call(Ask::Claim { worker, number }));
        acks.chain(claim).collect()
    }

    /// Whether a worker still waits for this request.
    pub(crate) fn waits_for(&self, ask: Ask) -> bool {
        match ask {
            Ask::Enqueue => true,
            Ask::Claim { worker, number } => {
                let worker = &self.all[worker as usize];
                worker.claims && worker.number == number
            }
            Ask::Ack { worker, task, token } => {
                self.all[worker as usize].acks.contains(&(task, token))
            }
        }
    }

    /// The sessions that a gateway has heard since its last list, and the number of their
    /// beats.
    pub(crate) fn heard_by(&mut self, gateway: usize, now: Micros) -> (Vec<u32>, u64) {
        let mut beats = 0;
        let mut heard = Vec::new();
        for &number in &self.of_gateway[gateway] {
            let worker = &mut self.all[number as usize];
            let is_due = (now / SECOND + u64::from(number)).is_multiple_of(BEAT_SECONDS);
            beats += u64::from(is_due);
            if std::mem::take(&mut worker.heard) || is_due {
                heard.push(number);
            }
        }
        (heard, beats)
    }

    /// Spreads the workers of a dead gateway over the others; they have yet to connect.
    pub(crate) fn leave(&mut self, gateway: usize, up: &[usize]) -> Vec<u32> {
        let left = std::mem::take(&mut self.of_gateway[gateway]);
        for &number in &left {
            let next = up[number as usize % up.len()];
            self.all[number as usize].gateway = next;
            self.of_gateway[next].push(number);
        }
        left
    }
}
