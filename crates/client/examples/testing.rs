//! A test of a handler whose retries take days, in milliseconds: the real broker in the test's own
//! process, with a clock that the test moves.

use std::time::Duration;
use taskyard::{Error, Fail, RetryPolicy, TaskContext, TaskState, testing::TestBroker};

async fn flaky(context: TaskContext) -> Result<String, Fail> {
    match context.attempt() {
        attempt @ 1..=3 => Err(format!("attempt {attempt} found the service down").into()),
        attempt => Ok(format!("attempt {attempt} succeeded")),
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let broker = TestBroker::start().await?;
    let client = broker.client();
    let daily = RetryPolicy::fixed(Duration::from_secs(86_400)).jitter(0.0).max_attempts(10);
    let task = client.task("flaky", &()).retry(daily).await?;
    let worker = broker.run(broker.worker().handler("flaky", flaky))?;

    let started = broker.now();
    loop {
        broker.settle().await?;
        let details = client.get(task.id()).await?;
        let day = broker.now().since(started).as_secs() / 86_400;
        println!("day {day}: {} after attempt {}", details.state, details.attempt);
        if details.state == TaskState::Succeeded {
            break;
        }
        broker.advance(Duration::from_secs(86_400)).await?;
    }
    println!("{}", task.result().await?);

    worker.stop().await?;
    broker.stop().await;
    Ok(())
}
