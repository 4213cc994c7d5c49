//! Ending: the final state of the cluster, read through the SDK.

use crate::cluster::load::{self, TICKS};
use taskyard::{Client, ScheduleDetails, TaskDetails, flow::FlowDetails};

/// More than a test ever makes.
const MANY: usize = 1_000_000;

pub(crate) struct Ending {
    pub(crate) tasks: Vec<Left>,
    pub(crate) flows: Vec<FlowLeft>,
    pub(crate) ticks: TicksLeft,
}

/// A task in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left {
    pub(crate) id: String,
    pub(crate) queue: String,
    /// The request or the flow that made this task.
    pub(crate) payload: String,
    pub(crate) state: String,
    pub(crate) death_reason: String,
    /// The claim token in the result: the claim that ended this task.
    pub(crate) token: Option<u64>,
    /// The workers of the last ten ended attempts.
    pub(crate) workers: Vec<String>,
    /// The flow of this task.
    pub(crate) flow: Option<String>,
    /// The occurrence of this run of the schedule, in milliseconds.
    pub(crate) occurrence_at: Option<u64>,
}

/// A flow in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowLeft {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) state: String,
}

/// The schedule in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct TicksLeft {
    pub(crate) fired: u64,
    pub(crate) skipped: u64,
    pub(crate) missed: u64,
}

impl Ending {
    /// Reads the tasks, flows and schedule of the load, and nothing else that a test made.
    pub(crate) async fn read(client: &Client) -> Ending {
        let tasks = client.tasks().page_size(500).with_payload().collect(MANY).await.unwrap();
        let mut pages = client.flows();
        let mut flows = Vec::new();
        while let Some(flow) = pages.next().await.unwrap() {
            flows.push(flow_left(&flow));
        }
        flows.retain(|flow| flow.name.starts_with(load::FLOW));
        let queues = load::all_queues();
        let ticks = client.schedule(TICKS).details().await.unwrap();
        let tasks = tasks.iter().filter(|task| queues.contains(&task.queue)).map(left).collect();
        Ending { tasks, flows, ticks: ticks_left(&ticks) }
    }
}

fn left(task: &TaskDetails) -> Left {
    let payload = task.payload.as_deref().unwrap_or_default();
    let occurrence_at = task.headers.get("taskyard-occurrence-at");
    let moment = |text: &String| text.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    Left {
        id: task.id.to_string(),
        queue: task.queue.clone(),
        payload: String::from_utf8_lossy(payload).trim_matches('"').to_owned(),
        state: task.state.to_string(),
        death_reason: task.death_reason.clone(),
        token: task.result_as().ok(),
        workers: task.attempts.iter().map(|attempt| attempt.worker.clone()).collect(),
        flow: task.flow.as_ref().map(|member| member.flow.to_string()),
        occurrence_at: occurrence_at.map(|text| u64::try_from(moment(text)).unwrap()),
    }
}

fn flow_left(flow: &FlowDetails) -> FlowLeft {
    FlowLeft { id: flow.id.to_string(), name: flow.name.clone(), state: flow.state.to_string() }
}

fn ticks_left(ticks: &ScheduleDetails) -> TicksLeft {
    TicksLeft { fired: ticks.fired_total, skipped: ticks.skipped_total, missed: ticks.missed_total }
}
