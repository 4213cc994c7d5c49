//! The demo's flow: an import counts the photos and adds a thumbnail task for each, and an album is
//! bound when all are done.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use taskyard::{Client, Fail, Flow, NewTask, State, TaskContext, WorkerBuilder, flow::FlowState};

use super::board::{Board, Tone};

const QUEUE: &str = "photos";
const PHOTOS: u32 = 24;
/// How often the view reads the flow's progress.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn register(builder: WorkerBuilder) -> WorkerBuilder {
    builder
        .queue(QUEUE)
        .handler("list_photos", list_photos)
        .handler("make_thumbnail", make_thumbnail)
        .handler("bind_album", bind_album)
}

/// Fan-out at run time: the dependents of this task wait for all tasks that it adds.
async fn list_photos(context: TaskContext, State(board): State<Arc<Board>>) -> Result<u32, Fail> {
    let thumbnail = |photo: u32| {
        let task = NewTask::new("make_thumbnail", &photo).queue(QUEUE);
        (format!("thumbnail-{photo}"), task)
    };
    let added = context.add_tasks((1..=PHOTOS).map(thumbnail)).await?;
    board.lock().enqueued += added.len() as u64;
    board.executed(None);
    board.tell("list_photos", Tone::Plain, format!("found {PHOTOS}, a task for each"));
    Ok(PHOTOS)
}

async fn make_thumbnail(photo: u32, State(board): State<Arc<Board>>) -> Result<(), Fail> {
    tokio::time::sleep(Duration::from_millis(200 + u64::from(photo) * 40)).await;
    board.executed(None);
    Ok(())
}

async fn bind_album(context: TaskContext, State(board): State<Arc<Board>>) -> Result<(), Fail> {
    let photos: u32 = context.parent_result("list").await?;
    board.executed(None);
    board.tell("bind_album", Tone::Good, format!("{photos} thumbnails done, the flow's last task"));
    Ok(())
}

/// Submits the flow and follows it to its end.
pub(super) async fn run(client: &Client, board: &Board) -> Result<()> {
    let flow = Flow::new("photos");
    let list = flow.add("list", NewTask::new("list_photos", &())).queue(QUEUE);
    flow.add("album", NewTask::new("bind_album", &())).queue(QUEUE).after(&list);
    let nodes = flow.len() as u64;
    let flow = client.submit(flow).await?;
    board.lock().enqueued += nodes;
    loop {
        let now = flow.progress(LOOK_EVERY).await?;
        let mut inner = board.lock();
        inner.flow = Some((now.nodes_done, now.nodes_total));
        if now.state.is_finished() {
            inner.flow_id = Some(flow.id().to_string());
            inner.flows += u64::from(now.state == FlowState::Succeeded);
            return Ok(());
        }
    }
}
