//! The demo's schedule: the broker enqueues a fetch of prices every two seconds.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Result;
use taskyard::{Client, Fail, NewTask, State, TaskContext, Timestamp, WorkerBuilder};

use super::board::{Board, Tone};

const SCHEDULE: &str = "prices";
const EVERY: Duration = Duration::from_secs(2);

pub(super) fn register(builder: WorkerBuilder) -> WorkerBuilder {
    builder.handler("fetch_prices", fetch_prices)
}

async fn fetch_prices(context: TaskContext, State(board): State<Arc<Board>>) -> Result<(), Fail> {
    let at = context.occurrence_at().ok_or("not a run of a schedule")?;
    let late = Timestamp::from(SystemTime::now()).since(at);
    board.ran_by_schedule();
    // Whole seconds, as on a clock.
    let clock: String = at.to_string().chars().skip(11).take(8).collect();
    let what = format!("run of {clock}, fired by its schedule, {} ms late", late.as_millis());
    board.tell("fetch_prices", Tone::Good, what);
    Ok(())
}

/// Sets the schedule; the broker does the rest.
pub(super) async fn set(client: &Client, board: &Board) -> Result<()> {
    let task = NewTask::new("fetch_prices", &());
    client.schedule(SCHEDULE).every(EVERY, task).await?;
    board.tell("fetch_prices", Tone::Plain, "a schedule: every 2 s from here on");
    Ok(())
}
