//! What happens after a failure: retried by a policy, at a time of the handler's choice, or never.

use std::time::Duration;
use taskyard::{Embedded, Error, Fail, RetryPolicy, TaskContext, TaskState};

/// Fails twice, then succeeds: errors are retried by the task's policy.
async fn flaky(context: TaskContext) -> Result<String, Fail> {
    match context.attempt() {
        attempt @ 1..=2 => Err(format!("attempt {attempt} found the service down").into()),
        attempt => Ok(format!("attempt {attempt} succeeded")),
    }
}

/// Chooses the time of its retry.
async fn polite(context: TaskContext) -> Result<&'static str, Fail> {
    match context.attempt() {
        1 => Err(Fail::retry_after(Duration::from_millis(200), "asked to wait a moment")),
        _ => Ok("came back in time"),
    }
}

/// No retry can help, so that the task becomes a dead letter at once.
async fn hopeless() -> Result<(), Fail> {
    Err(Fail::permanent("the address does not exist").kind("bad_address"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker
        .worker()
        .handler("flaky", flaky)
        .handler("polite", polite)
        .handler("hopeless", hopeless)
        .build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    let client = broker.client();

    let often = RetryPolicy::fixed(Duration::from_millis(100)).max_attempts(5);
    let task = client.task("flaky", &()).retry(often).await?;
    println!("flaky: {}", task.result().await?);

    let task = client.task("polite", &()).await?;
    println!("polite: {}", task.result().await?);

    let task = client.task("hopeless", &()).await?;
    match task.result().await {
        Err(Error::NotSucceeded { state: TaskState::Dead, error: Some(error), .. }) => {
            println!("hopeless: {error}");
        }
        other => println!("hopeless: {other:?}"),
    }

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
