//! Workload: clients that produce, work and interfere. They repeat a call with an unknown outcome
//! only if the operation has an id: a request id, a batch id, a claim sequence, a token.

mod flow;
mod new_task;
mod operator;
mod schedule;
mod worker;

use crate::clock::RUN_BEGINS_AT_MS;
use crate::invariants::{Oracle, Violation};
use crate::rng::Rng;
use new_task::{KILLER, new_task};
use schedule::Drawn;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use taskyard_machine::{
    ClaimToken, ClaimedTask, Command, CommitBatch, EncodedCommand, Enqueue, EnqueueBatch,
    EnqueueMany, NewTask, Outcome, Rejection, SessionId, StageBatch, TaskId, TaskView, home_shard,
};

/// A client's request to a shard.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) shard: u16,
    pub(crate) asked: Asked,
}

#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Command(EncodedCommand),
    /// A strong read of one task, which must show at least what was answered before it began.
    Read {
        task: TaskId,
        floor: u64,
    },
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Decided(Box<Result<Outcome, Rejection>>),
    /// There is no task to claim now.
    Nothing,
    View(Option<Box<TaskView>>),
    /// Not appended; the node given may lead.
    NotLeader {
        leader: Option<usize>,
    },
    /// Appended, and then leadership was lost.
    Unknown,
}

/// The next step of a client: send this request to that node as call `number`.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) client: usize,
    pub(crate) number: u64,
    pub(crate) to: usize,
    pub(crate) request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Producer,
    Worker,
    /// Cancels, retries, pauses, purges, and ends the sessions of dead workers.
    Operator,
}

/// The purpose of a call, which decides the use of its answer.
#[derive(Clone, Debug)]
enum Purpose {
    Enqueue,
    Submit,
    Claim,
    /// Ends the attempt, whatever the answer is.
    Finish(TaskId),
    /// The attempt goes on.
    Keep(TaskId),
    Read(TaskId),
    EndSession {
        session: SessionId,
        shard: u16,
    },
    Interfere,
}

#[derive(Clone, Debug)]
struct Open {
    number: u64,
    request: Request,
    purpose: Purpose,
    /// Whether the call may be repeated when its outcome is unknown.
    identified: bool,
    /// Whether the call is known not to be appended, so that it may be repeated in any case.
    refused: bool,
    gives_up_at: u64,
    sends_left: u32,
}

#[derive(Debug)]
struct Client {
    kind: Kind,
    rng: Rng,
    next_number: u64,
    open: Option<Open>,
    /// The presumed leader of each shard.
    leaders: Vec<usize>,
    session: u128,
    claim_sequence: u64,
    /// Calls whose claims it has; their answer may arrive once more.
    taken: BTreeSet<u64>,
    held: BTreeMap<TaskId, ClaimToken>,
    /// Calls that it has already decided.
    script: VecDeque<(Request, Purpose, bool)>,
}

/// All clients of one run.
#[derive(Debug)]
pub(crate) struct Workload {
    clients: Vec<Client>,
    queues: Vec<String>,
    shards: u16,
    pub(crate) nodes: usize,
    next_name: u64,
    /// Tasks that clients know, for random picks.
    known: Vec<TaskId>,
    flows: Vec<TaskId>,
    request_ids: Vec<(String, String)>,
    dead_sessions: BTreeSet<(SessionId, u16)>,
    /// Tasks that kill the worker that begins them.
    killers: BTreeSet<TaskId>,
    /// The last rules of each schedule.
    drawn: BTreeMap<&'static str, Drawn>,
    /// The clients' clock.
    wall: u64,
    /// Whether schedules have proved alive, and must end now.
    pausing: bool,
    /// Whether clients begin nothing new and only finish their work.
    draining: bool,
    pub(crate) answered: u64,
}

const CALL_MS_MAX: u64 = 1_500;
const CALL_SENDS_MAX: u32 = 12;

impl Workload {
    pub(crate) fn new(rng: &mut Rng, shards: u16, nodes: usize) -> Workload {
        let kinds =
            [Kind::Producer; 2].into_iter().chain([Kind::Worker; 3]).chain([Kind::Operator]);
        let client = |kind| Client {
            kind,
            rng: rng.fork(),
            next_number: 0,
            open: None,
            leaders: vec![0; usize::from(shards)],
            session: u128::from(rng.next()),
            claim_sequence: 0,
            taken: BTreeSet::new(),
            held: BTreeMap::new(),
            script: VecDeque::new(),
        };
        Workload {
            clients: kinds.map(client).collect(),
            queues: (0..6).map(|number| format!("queue-{number}")).collect(),
            shards,
            nodes,
            next_name: 0,
            known: Vec::new(),
            flows: Vec::new(),
            request_ids: Vec::new(),
            dead_sessions: BTreeSet::new(),
            killers: BTreeSet::new(),
            drawn: BTreeMap::new(),
            wall: RUN_BEGINS_AT_MS,
            pausing: false,
            draining: false,
            answered: 0,
        }
    }

    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// From now on clients only finish their work.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// From now on no schedule may fire.
    pub(crate) fn pause_schedules(&mut self) {
        self.pausing = true;
    }

    /// Whether no client waits for an answer or holds a task.
    pub(crate) fn is_quiet(&self) -> bool {
        self.dead_sessions.is_empty() && self.clients.iter().all(|client| client.held.is_empty())
    }

    /// Takes a client's turn: it begins a call, or gives up on one. Returns its pause until the
    /// next turn.
    pub(crate) fn wake(&mut self, client: usize, now: u64, oracle: &Oracle) -> (Option<Call>, u64) {
        self.wall = RUN_BEGINS_AT_MS + now;
        if let Some(open) = &self.clients[client].open {
            if now < open.gives_up_at {
                return (None, open.gives_up_at - now);
            }
            let unknown = !open.refused;
            return (self.send_again(client, now, unknown), CALL_MS_MAX);
        }
        let operator = self.clients[client].kind == Kind::Operator;
        let pause = self.clients[client].rng.between(1, 60);
        let pause = pause + if self.draining && operator { 500 } else { 0 };
        let Some((request, purpose, identified)) = self.choose(client, oracle) else {
            return (None, pause + if self.draining { 200 } else { 0 });
        };
        let this = &mut self.clients[client];
        this.next_number += 1;
        this.open = Some(Open {
            number: this.next_number,
            request,
            purpose,
            identified,
            refused: false,
            gives_up_at: now,
            sends_left: CALL_SENDS_MAX,
        });
        (self.send_again(client, now, false), CALL_MS_MAX)
    }

    /// Sends the open call, perhaps once more. A call that may have taken effect is repeated only
    /// with its id.
    fn send_again(&mut self, client: usize, now: u64, unknown: bool) -> Option<Call> {
        let nodes = self.nodes as u64;
        let this = &mut self.clients[client];
        let open = this.open.as_mut()?;
        if (unknown && !open.identified) || open.sends_left == 0 {
            let open = this.open.take()?;
            self.give_up(client, &open.purpose);
            return None;
        }
        open.sends_left -= 1;
        open.refused = false;
        open.gives_up_at = now + CALL_MS_MAX;
        let leader = &mut this.leaders[usize::from(open.request.shard)];
        if unknown {
            *leader = this.rng.below(nodes) as usize;
            if let Some(claim) = open.request.claimed_again() {
                // The answer belongs to an earlier sending.
                this.next_number += 1;
                (open.request, open.number) = (claim, this.next_number);
            }
        }
        Some(Call { client, number: open.number, to: *leader, request: open.request.clone() })
    }

    fn give_up(&mut self, client: usize, purpose: &Purpose) {
        match purpose {
            // The task becomes free with its lease.
            Purpose::Finish(task) | Purpose::Keep(task) => {
                self.clients[client].held.remove(task);
            }
            Purpose::Claim => self.clients[client].claim_sequence += 1,
            Purpose::EndSession { session, shard } => {
                self.dead_sessions.insert((*session, *shard));
            }
            Purpose::Enqueue | Purpose::Submit | Purpose::Read(_) | Purpose::Interfere => {}
        }
    }

    /// Handles an answer. Returns a call to send at once, if the answer names another node.
    pub(crate) fn answer(
        &mut self,
        client: usize,
        number: u64,
        answer: Answer,
        now: u64,
        oracle: &mut Oracle,
    ) -> Result<Option<Call>, Violation> {
        let nodes = self.nodes as u64;
        let this = &mut self.clients[client];
        let Some(open) = this.open.take_if(|open| open.number == number) else {
            this.answered_late(number, &answer)?;
            return Ok(None);
        };
        let leader = &mut this.leaders[usize::from(open.request.shard)];
        match answer {
            Answer::NotLeader { leader: Some(node) } => {
                *leader = node;
                this.open = Some(open);
                Ok(self.send_again(client, now, false))
            }
            Answer::NotLeader { leader: None } => {
                *leader = this.rng.below(nodes) as usize;
                // The next turn sends it, because an immediate repetition would only spin.
                let open = this.open.insert(open);
                open.gives_up_at = now;
                open.refused = true;
                Ok(None)
            }
            Answer::Unknown => {
                this.open = Some(open);
                Ok(self.send_again(client, now, true))
            }
            Answer::Nothing => {
                this.claim_sequence += 1;
                Ok(None)
            }
            Answer::View(view) => {
                if let Purpose::Read(task) = open.purpose {
                    oracle.check_view(task, view.as_deref())?;
                }
                Ok(None)
            }
            Answer::Decided(outcome) => {
                self.answered += 1;
                self.clients[client].taken.insert(number);
                self.decided(client, open.purpose, *outcome, oracle)?;
                Ok(None)
            }
        }
    }

    fn decided(
        &mut self,
        client: usize,
        purpose: Purpose,
        outcome: Result<Outcome, Rejection>,
        oracle: &mut Oracle,
    ) -> Result<(), Violation> {
        match (purpose, outcome) {
            (Purpose::Enqueue, Ok(outcome)) => {
                let ids = match outcome {
                    Outcome::Enqueued(enqueued) => vec![enqueued.id],
                    Outcome::EnqueuedBatch(all) => all.iter().map(|enqueued| enqueued.id).collect(),
                    Outcome::EnqueuedMany(all) => {
                        all.iter().flatten().map(|enqueued| enqueued.id).collect()
                    }
                    other => return Err(format!("an enqueue was answered {other:?}")),
                };
                oracle.acknowledge(&ids)?;
                self.known.extend(ids);
            }
            (Purpose::Submit, Ok(Outcome::FlowSubmitted { flow, tasks, .. })) => {
                self.flows.push(flow);
                self.known.extend(tasks);
            }
            (Purpose::Submit, _) => {}
            (Purpose::Claim, outcome) => {
                let this = &mut self.clients[client];
                this.claim_sequence += 1;
                if let Ok(Outcome::Claimed(tasks)) = outcome {
                    let kills = |task: &&ClaimedTask| &*task.task_type == KILLER;
                    self.killers.extend(tasks.iter().filter(kills).map(|task| task.id));
                    this.held.extend(tasks.iter().map(|task| (task.id, task.token)));
                    self.fan_out(client, &tasks);
                }
            }
            (Purpose::Finish(task), _) | (Purpose::Keep(task), Err(_)) => {
                self.clients[client].held.remove(&task);
            }
            (Purpose::EndSession { session, shard }, Ok(Outcome::Bulk(progress))) => {
                if progress.next.is_some() {
                    self.dead_sessions.insert((session, shard));
                }
            }
            (Purpose::Enqueue | Purpose::Interfere | Purpose::EndSession { .. }, Err(_))
            | (Purpose::Keep(_) | Purpose::Interfere | Purpose::EndSession { .. }, Ok(_))
            | (Purpose::Read(_), _) => {}
        }
        Ok(())
    }

    fn choose(&mut self, client: usize, oracle: &Oracle) -> Option<(Request, Purpose, bool)> {
        if let Some(next) = self.clients[client].script.pop_front() {
            return Some(next);
        }
        match self.clients[client].kind {
            Kind::Producer if self.draining => None,
            Kind::Producer => Some(self.produce(client)),
            Kind::Worker => self.work(client),
            Kind::Operator => self.operate(client, oracle),
        }
    }

    fn name(&mut self, prefix: &str) -> String {
        self.next_name += 1;
        format!("{prefix}-{}", self.next_name)
    }

    fn shard_of(&self, queue: &str) -> u16 {
        home_shard(queue, self.shards).0
    }

    fn produce(&mut self, client: usize) -> (Request, Purpose, bool) {
        let mut rng = self.clients[client].rng.clone();
        let queue = rng.pick(&self.queues).clone();
        let shard = self.shard_of(&queue);
        let draw = rng.below(100);
        let produced = match draw {
            0..52 => self.enqueue(&mut rng, &queue, shard),
            52..60 => self.set_schedule(&mut rng),
            60..75 => self.enqueue_several(&mut rng, &queue, shard, true),
            75..88 => self.enqueue_several(&mut rng, &queue, shard, false),
            88..93 => self.submit_flow(&mut rng),
            _ => {
                let mut script = staged_batch(&mut rng, &queue, shard);
                let first = script.pop_front().expect("a batch has parts");
                self.clients[client].script = script;
                first
            }
        };
        self.clients[client].rng = rng;
        produced
    }

    fn enqueue(&mut self, rng: &mut Rng, queue: &str, shard: u16) -> (Request, Purpose, bool) {
        let mut task = new_task(rng);
        // Sometimes the request id is known, and must lead to its first task.
        let again = rng.chance(150) && !self.request_ids.is_empty();
        let (queue, request_id) = if again {
            rng.pick(&self.request_ids).clone()
        } else {
            (queue.to_owned(), self.name("request"))
        };
        let shard = if again { self.shard_of(&queue) } else { shard };
        let identified = again || rng.chance(600);
        if identified {
            task.request_id = Some(&request_id);
            self.request_ids.push((queue.clone(), request_id.clone()));
        }
        let command = Command::Enqueue(Enqueue { queue: &queue, task });
        (ask(shard, &command), Purpose::Enqueue, identified)
    }

    fn enqueue_several(
        &mut self,
        rng: &mut Rng,
        queue: &str,
        shard: u16,
        atomic: bool,
    ) -> (Request, Purpose, bool) {
        let names: Vec<String> = (0..rng.between(1, 6)).map(|_| self.name("item")).collect();
        let tasks: Vec<NewTask<'_>> = names
            .iter()
            .map(|name| {
                let request_id = rng.chance(400).then_some(name.as_str());
                NewTask { request_id, ..new_task(rng) }
            })
            .collect();
        let identified = rng.chance(800);
        let batch_id = identified.then(|| u128::from(rng.next()));
        let command = if atomic {
            Command::EnqueueBatch(EnqueueBatch { batch_id, queue, tasks })
        } else {
            let items = tasks.into_iter().map(|task| Enqueue { queue, task }).collect();
            Command::EnqueueMany(EnqueueMany { batch_id, items })
        };
        (ask(shard, &command), Purpose::Enqueue, identified)
    }

    fn operate(&mut self, client: usize, oracle: &Oracle) -> Option<(Request, Purpose, bool)> {
        let mut rng = self.clients[client].rng.clone();
        let operation = self.operation(&mut rng, oracle);
        self.clients[client].rng = rng;
        operation
    }
}

/// A batch in parts: each part may be repeated, and the last call makes the tasks.
fn staged_batch(rng: &mut Rng, queue: &str, shard: u16) -> VecDeque<(Request, Purpose, bool)> {
    let batch_id = u128::from(rng.next());
    let parts = rng.between(1, 3) as u32;
    let mut script = VecDeque::new();
    for part in 0..parts {
        let tasks = (0..rng.between(1, 3)).map(|_| new_task(rng)).collect();
        let stage = Command::StageBatch(StageBatch { batch_id, queue, part, tasks });
        script.push_back((ask(shard, &stage), Purpose::Interfere, true));
    }
    let commit = Command::CommitBatch(CommitBatch { batch_id, parts });
    script.push_back((ask(shard, &commit), Purpose::Enqueue, true));
    script
}

fn ask(shard: u16, command: &Command<'_>) -> Request {
    Request { shard, asked: Asked::Command(EncodedCommand::new(command)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_has_queues() {
        let workload = Workload::new(&mut Rng::new(1), 2, 3);
        let shards: BTreeSet<u16> =
            workload.queues.iter().map(|queue| workload.shard_of(queue)).collect();
        assert_eq!(shards, BTreeSet::from([0, 1]));
    }
}
