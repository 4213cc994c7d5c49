//! The worker: it claims, extends, ends and gives back tasks, dies with what it holds, and asks
//! again for a claim whose answer got lost.

use super::new_task::new_task_now;
use super::{Answer, Asked, Client, Purpose, Request, Workload, ask};
use crate::invariants::Violation;
use taskyard_machine::{
    Ack, Claim, ClaimNumber, ClaimQueue, ClaimToken, Command, Enqueue, Extend, Fail, FollowUp,
    Outcome, Progress, Release, Renew, SessionId, Snooze, TaskError, TaskId, When, home_shard,
    wire::{Reader, Wire},
};

impl Workload {
    pub(super) fn work(&mut self, client: usize) -> Option<(Request, Purpose, bool)> {
        let draining = self.draining;
        let this = &mut self.clients[client];
        let killed = this.held.keys().any(|task| self.killers.contains(task));
        if killed || (!draining && this.rng.chance(15)) {
            // The worker dies with what it holds; another takes its place.
            this.held.clear();
            let session = SessionId(this.session);
            this.session = u128::from(this.rng.next());
            let shards = 0..self.shards;
            self.dead_sessions.extend(shards.map(|shard| (session, shard)));
            return None;
        }
        let held = this.held.len();
        let full = held >= 6 || (held > 0 && this.rng.chance(600));
        if full { self.attend(client) } else { Some(self.claim(client)) }
    }

    fn claim(&mut self, client: usize) -> (Request, Purpose, bool) {
        let mut rng = self.clients[client].rng.clone();
        let shard = rng.below(u64::from(self.shards)) as u16;
        let own: Vec<&String> =
            self.queues.iter().filter(|queue| self.shard_of(queue) == shard).collect();
        let this = &mut self.clients[client];
        let draining = self.draining;
        let mut queues: Vec<ClaimQueue<'_>> = own
            .iter()
            .filter(|_| draining || rng.chance(700))
            .map(|queue| ClaimQueue { name: queue, weight: 1 + (queue.len() as u32 % 3) })
            .collect();
        if queues.is_empty() {
            queues
                .push(ClaimQueue { name: own.first().map_or("nowhere", |queue| queue), weight: 1 });
        }
        let in_session = rng.chance(800);
        let number = ClaimNumber { sequence: this.claim_sequence, sending: 0 };
        let command = Command::Claim(Claim {
            queues,
            types: vec![],
            weighted_seed: rng.chance(300).then(|| rng.next()),
            tasks_max: rng.between(1, 5) as u32,
            bytes_max: u32::MAX,
            lease_ms: rng.between(1_000, 20_000),
            session: in_session.then_some(SessionId(this.session)),
            number: in_session.then_some(number),
            begun: this.claim_sequence.is_multiple_of(5),
            worker: "worker",
        });
        this.rng = rng;
        (ask(shard, &command), Purpose::Claim, in_session)
    }

    /// Does something with a held task.
    fn attend(&mut self, client: usize) -> Option<(Request, Purpose, bool)> {
        let mut rng = self.clients[client].rng.clone();
        let held: Vec<(TaskId, ClaimToken)> =
            self.clients[client].held.iter().map(|(task, token)| (*task, *token)).collect();
        let &(task, token) = rng.pick(&held);
        let draw = if self.draining { 0 } else { rng.below(100) };
        let follow_queue = rng.pick(&self.queues).clone();
        let error = TaskError { error_type: "Sim", message: "it failed", backtrace: "" };
        let finish = Purpose::Finish(task);
        let (command, purpose) = match draw {
            0..50 => {
                let follow_ups = (0..rng.below(3)).filter(|_| !self.draining && rng.chance(300));
                let home = home_shard(&follow_queue, self.shards);
                let follow_ups = follow_ups
                    .map(|_| FollowUp {
                        home,
                        enqueue: Enqueue { queue: &follow_queue, task: new_task_now() },
                    })
                    .collect();
                let result = Some(&b"\"done\""[..]);
                (Command::Ack(Ack { task, token, result, follow_ups }), finish)
            }
            50..65 => {
                let retry_at = rng.chance(300).then(|| When::After { ms: rng.below(2_000) });
                let retryable = !rng.chance(150);
                (Command::Fail(Fail { task, token, error, retry_at, retryable }), finish)
            }
            65..75 => {
                let extend = Extend {
                    task,
                    token,
                    lease_ms: rng.chance(500).then(|| rng.between(1_000, 20_000)),
                    progress: rng
                        .chance(500)
                        .then(|| Progress { percent: rng.below(101) as u8, message: "on it" }),
                    resume_state: rng.chance(300).then_some(&b"half"[..]),
                };
                (Command::Extend(extend), Purpose::Keep(task))
            }
            75..80 => {
                let shard = task.home.0;
                let claims =
                    held.iter().copied().filter(|(task, _)| task.home.0 == shard).collect();
                (Command::Renew(Renew { claims }), Purpose::Keep(task))
            }
            80..88 => (Command::Release(Release { task, token }), finish),
            88..94 => {
                let until = When::After { ms: rng.below(3_000) };
                let push_back_key = rng.chance(300);
                (Command::Snooze(Snooze { task, token, until, push_back_key }), finish)
            }
            _ => {
                // Forgotten: its lease will lapse.
                self.clients[client].held.remove(&task);
                self.clients[client].rng = rng;
                return None;
            }
        };
        let request = ask(task.home.0, &command);
        self.clients[client].rng = rng;
        Some((request, purpose, true))
    }
}

impl Client {
    /// Handles an answer that came too late: its tasks are released, as a gateway does it. A later
    /// sending of the same claim must not have got any of them.
    pub(super) fn answered_late(&mut self, number: u64, answer: &Answer) -> Result<(), Violation> {
        let Answer::Decided(outcome) = answer else { return Ok(()) };
        let Ok(Outcome::Claimed(tasks)) = &**outcome else { return Ok(()) };
        if self.taken.contains(&number) {
            return Ok(());
        }
        for claim in tasks {
            let (task, token) = (claim.id, claim.token);
            if self.held.get(&task) == Some(&token) {
                return Err(format!(
                    "a late answer brings token {} of {task}, which its worker holds",
                    token.0
                ));
            }
            let release = Command::Release(Release { task, token });
            self.script.push_back((ask(task.home.0, &release), Purpose::Interfere, true));
        }
        Ok(())
    }
}

impl Request {
    /// The next sending of a claim, if it is one that may be sent again.
    pub(super) fn claimed_again(&self) -> Option<Request> {
        let Asked::Command(command) = &self.asked else { return None };
        let mut command = Command::read(&mut Reader::new(command.as_bytes())).ok()?;
        let Command::Claim(Claim { number: Some(number), .. }) = &mut command else { return None };
        number.sending += 1;
        Some(ask(self.shard, &command))
    }
}
