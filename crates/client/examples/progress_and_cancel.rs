//! A long task that reports its progress, saves its state, and stops when it is cancelled.

use std::time::Duration;
use taskyard::{Cancelled, Embedded, Error, Fail, TaskContext, TaskState};

async fn count(to: u32, context: TaskContext) -> Result<u32, Fail> {
    let from = context.resume_state::<u32>()?.unwrap_or(0);
    for number in from..to {
        context.progress(number * 100 / to, format!("at {number}"));
        context.checkpoint(&number).await?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
            reason = context.cancelled() => {
                println!("stopping at {number}: {reason:?}");
                return Err(Cancelled.into());
            }
        }
    }
    Ok(to)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker.worker().handler("count", count).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    let client = broker.client();

    let task = client.task("count", &100).await?;
    let progress = loop {
        match client.get(task.id()).await?.progress {
            Some(progress) if progress.percent >= 5 => break progress,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    println!("{} %, {}", progress.percent, progress.message);

    client.cancel(task.id()).await?;
    match task.result().await {
        Err(Error::NotSucceeded { state: TaskState::Cancelled, .. }) => println!("cancelled"),
        other => println!("{other:?}"),
    }

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
