//! Tasks that run later: after a delay, at a moment, or after a snooze.

use std::time::{Duration, SystemTime};
use taskyard::{Embedded, Fail, Snooze, TaskContext};

async fn remind(what: String) -> Result<String, Fail> {
    Ok(what)
}

/// Snoozes the first time, which spends no attempt.
async fn patient(context: TaskContext) -> Result<&'static str, Fail> {
    if context.enqueued_at().as_millis() + 300
        > taskyard::Timestamp::from(SystemTime::now()).as_millis()
    {
        return Err(Snooze::after(Duration::from_millis(300)).into());
    }
    Ok("well rested")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker.worker().handler("remind", remind).handler("patient", patient).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    let client = broker.client();

    let started = SystemTime::now();
    let soon = client.task("remind", &"tea").delay(Duration::from_millis(500)).await?;
    let then = client.task("remind", &"cake").at(started + Duration::from_secs(1)).await?;
    let patient = client.task("patient", &()).await?;

    for task in [patient, soon, then] {
        let said = task.result().await?;
        println!("{said} after {:.1} s", started.elapsed()?.as_secs_f32());
    }

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
