//! A schedule: the broker enqueues a task by itself, here every second, and each run knows its
//! occurrence. A program may set its schedules each time it starts, because equal rules change
//! nothing.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use taskyard::{
    Embedded, Fail, State, Task, TaskContext,
    schedule::{CatchUp, Overlap},
};
use tokio::sync::mpsc::{self, UnboundedSender};

#[derive(Serialize, Deserialize)]
struct Measure {
    sensor: String,
}

impl Task for Measure {
    const NAME: &'static str = "measure";
    const QUEUE: &'static str = "sensors";
    type Output = ();
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let client = broker.client();

    let (ran, mut runs) = mpsc::unbounded_channel::<String>();
    let worker = broker.worker().state(ran).task(measure).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    // By the clock of a time zone: at three in the night, in summer and in winter.
    let nightly = client.schedule("nightly");
    let set = nightly
        .cron("0 3 * * *", Measure { sensor: "cellar".into() })
        .timezone("Europe/Berlin")
        .catch_up(CatchUp::Last)
        .await?;
    println!("nightly: next at {}", set.details().next_runs[0]);

    // Or at an interval. The next occurrence waits for a run that has not ended; the schedule ends
    // after three runs.
    let often = client.schedule("often");
    often
        .every(Duration::from_secs(1), Measure { sensor: "roof".into() })
        .overlap(Overlap::BufferOne)
        .remaining_runs(3)
        .await?;
    for _ in 0..3 {
        let run = runs.recv().await.ok_or("the worker has ended")?;
        println!("{run}");
    }
    let ended = often.details().await?;
    println!("often: {} fired, next {:?}", ended.fired_total, ended.next_run_at);

    // One run out of turn, and then a pause.
    nightly.trigger().await?;
    println!("{}", runs.recv().await.ok_or("the worker has ended")?);
    let paused = nightly.pause("the cellar is flooded").await?;
    println!("nightly: paused, {}", paused.note);
    nightly.remove().await?;

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}

async fn measure(
    task: Measure,
    context: TaskContext,
    State(ran): State<UnboundedSender<String>>,
) -> Result<(), Fail> {
    let schedule = context.schedule().unwrap_or("no schedule");
    let at = context.occurrence_at().ok_or("not a run of a schedule")?;
    ran.send(format!("{schedule}: measured the {} for {at}", task.sensor))?;
    Ok(())
}
