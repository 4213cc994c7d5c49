//! The demo's limited queue: two exports run at once, ten of twelve wait, and the broker says why.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use taskyard::{Client, Fail, NewTask, QueueSettings, State, TaskId, WorkerBuilder};

use super::board::{Board, Tone};

pub(super) const QUEUE: &str = "exports";
pub(super) const AT_ONCE: u32 = 2;
const EXPORTS: u32 = 12;
const EXPORT_FOR: Duration = Duration::from_millis(280);
/// How long the worker may take to reach the limit.
const REACH_FOR_MAX: Duration = Duration::from_secs(1);

pub(super) fn register(builder: WorkerBuilder) -> WorkerBuilder {
    builder.queue(QUEUE).handler("export", export)
}

/// Sets the limit of the queue, which holds for all workers together.
pub(super) async fn limit(client: &Client) -> Result<()> {
    let concurrency = Some(AT_ONCE);
    let settings = QueueSettings { concurrency, ..QueueSettings::default() };
    client.queue(QUEUE).set(settings).await?;
    Ok(())
}

async fn export(_number: u32, State(board): State<Arc<Board>>) -> Result<(), Fail> {
    {
        let mut inner = board.lock();
        inner.exporting += 1;
        inner.exporting_most = inner.exporting_most.max(inner.exporting);
    }
    tokio::time::sleep(EXPORT_FOR).await;
    board.lock().exporting -= 1;
    board.executed(None);
    Ok(())
}

/// Enqueues more exports than may run at once, and asks why the last one waits.
pub(super) async fn run(client: &Client, board: &Board) -> Result<()> {
    let exports = (1..=EXPORTS).map(|number| NewTask::new("export", &number));
    let enqueued = client.batch(QUEUE).extend(exports).send().await?;
    board.lock().enqueued += enqueued.len() as u64;
    board.tell(
        "export",
        Tone::Plain,
        format!("{EXPORTS} enqueued; their queue runs {AT_ONCE} at a time"),
    );
    let Some(last) = enqueued.last() else { return Ok(()) };
    if let Some(why) = why(client, last.id()).await? {
        board.tell("export", Tone::Plain, format!("#{EXPORTS} waits: {why}"));
    }
    Ok(())
}

/// The broker's reason, once the limit makes the task wait.
async fn why(client: &Client, task: &TaskId) -> Result<Option<String>> {
    let started = Instant::now();
    while started.elapsed() < REACH_FOR_MAX {
        let reasons = client.why(task).await?;
        if let Some(reason) = reasons.into_iter().find(|why| why.code == "queue_concurrency") {
            return Ok(Some(reason.message));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(None)
}
