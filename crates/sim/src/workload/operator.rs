//! The operator: a client that cancels, retries, pauses, purges and reads while work goes on, and
//! that ends the sessions of dead workers as a gateway does.

use super::flow::flow_command;
use super::{Asked, Purpose, Request, Workload, ask};
use crate::invariants::Oracle;
use crate::rng::Rng;
use taskyard_machine::{
    Body, Cancel, Command, DeadAction, DeadCommand, DeleteQueue, EndSession, EnqueueCut, PerKey,
    PurgeQueue, QueueCommand, QueueSettings, Rate, Retry, Selection, SessionEnd, SetQueue,
    TaskFilter, TaskId, Timestamp,
};

impl Workload {
    pub(super) fn operation(
        &mut self,
        rng: &mut Rng,
        oracle: &Oracle,
    ) -> Option<(Request, Purpose, bool)> {
        let ends = self.draining || rng.chance(400);
        if let (true, Some((session, shard))) = (ends, self.dead_sessions.first().copied()) {
            self.dead_sessions.remove(&(session, shard));
            let reason = if rng.chance(300) { SessionEnd::Goodbye } else { SessionEnd::Silence };
            let end = EndSession { session, reason, not_started: vec![], keep: vec![] };
            let purpose = Purpose::EndSession { session, shard };
            return Some((ask(shard, &Command::EndSession(end)), purpose, true));
        }
        let queue = rng.pick(&self.queues).clone();
        let shard = self.shard_of(&queue);
        if let (true, Some(name)) = (self.pausing, oracle.unpaused_schedule()) {
            return Some(self.pause_schedule(name));
        }
        if self.draining && !rng.chance(200) {
            return None;
        }
        if self.draining {
            // Schedules go on, and may fill a queue faster than its rate allows, so that less
            // urgent tasks would wait for ever. Limits are lifted, but late, so that they have an
            // effect meanwhile.
            let command = match rng.chance(50) {
                true => Command::SetQueue(SetQueue { queue: &queue, settings: Default::default() }),
                false => Command::ResumeQueue(QueueCommand { queue: &queue }),
            };
            return Some((ask(shard, &command), Purpose::Interfere, true));
        }
        let task = if self.known.is_empty() { None } else { Some(*rng.pick(&self.known)) };
        let on_task = |task: TaskId, command: Command<'_>| {
            Some((ask(task.home.0, &command), Purpose::Interfere, true))
        };
        let on_queue =
            |command: Command<'_>| Some((ask(shard, &command), Purpose::Interfere, true));
        if let (true, false) = (rng.chance(200), self.flows.is_empty()) {
            // Old tasks are still there.
            let recent = self.flows.len().saturating_sub(6);
            let flow = *rng.pick(&self.flows[recent..]);
            return on_task(flow, flow_command(rng, flow));
        }
        if rng.chance(250) {
            return self.schedule_operation(rng, oracle);
        }
        if rng.chance(120) {
            return on_queue(set_queue(rng, &queue));
        }
        match (rng.below(94), task) {
            (0..30, Some(task)) => {
                let asked = Asked::Read { task, floor: oracle.read_floor(task.home.0) };
                let request = Request { shard: task.home.0, asked };
                Some((request, Purpose::Read(task), true))
            }
            (30..50, Some(task)) => on_task(task, Command::Cancel(Cancel { task })),
            (50..65, Some(task)) => {
                let body = Body { payload: b"edited", ..Body::default() };
                let body = rng.chance(300).then_some(body);
                on_task(task, Command::Retry(Retry { task, body }))
            }
            (65..73, Some(task)) => {
                let action = if rng.chance(600) { DeadAction::Retry } else { DeadAction::Discard };
                let selection = Selection::Ids(vec![task]);
                on_task(task, Command::Dead(DeadCommand { action, selection }))
            }
            (73..77, _) => {
                let filter = TaskFilter { queue: Some(&queue), ..TaskFilter::default() };
                let selection = Selection::Filter { filter, after: None, dead_before: None };
                on_queue(Command::Dead(DeadCommand { action: DeadAction::Retry, selection }))
            }
            (77..83, _) => on_queue(Command::PauseQueue(QueueCommand { queue: &queue })),
            (90..92, _) => {
                on_queue(Command::DeleteQueue(DeleteQueue { queue: &queue, version: 0 }))
            }
            (83..90, _) => on_queue(Command::ResumeQueue(QueueCommand { queue: &queue })),
            (92..94, _) => {
                let newest = task.map_or(u64::MAX, |task| task.sequence);
                let before = EnqueueCut { next_sequence: newest, now: Timestamp(u64::MAX) };
                on_queue(Command::PurgeQueue(PurgeQueue { queue: &queue, before, after: None }))
            }
            _ => None,
        }
    }
}

/// Settings that delay and release tasks, often with limits that are reached.
fn set_queue<'q>(rng: &mut Rng, queue: &'q str) -> Command<'q> {
    let settings = QueueSettings {
        retention_count: rng.chance(500).then(|| rng.below(5) as u32),
        dead_retention_count: rng.chance(300).then(|| rng.below(4) as u32),
        max_length: rng.chance(300).then(|| rng.between(1, 6)),
        concurrency: rng.chance(300).then(|| rng.between(1, 4) as u32),
        rate: rng.chance(300).then(|| rate(rng)),
        per_key: rng.chance(600).then(|| PerKey {
            concurrency: rng.chance(500).then(|| rng.between(1, 3) as u32),
            rate: rng.chance(600).then(|| rate(rng)),
        }),
        weights: match rng.below(3) {
            0 => [("acme".into(), 3), ("".into(), 2)].into(),
            _ => Default::default(),
        },
        ageing_ms: rng.chance(200).then(|| rng.between(100, 5_000)),
        ..QueueSettings::default()
    };
    Command::SetQueue(SetQueue { queue, settings })
}

/// Slow enough to have an effect, and fast enough for all tasks to end within a run.
fn rate(rng: &mut Rng) -> Rate {
    Rate { per_second_millionths: rng.between(500_000, 6_000_000), burst: rng.between(1, 3) as u32 }
}
