//! Results: waiting for one, for several at once, and with a limit that passes.

use serde_json::json;
use std::time::Duration;
use taskyard::{Embedded, Error, Fail};

async fn add(numbers: Vec<i64>) -> Result<i64, Fail> {
    Ok(numbers.iter().sum())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker.worker().handler("add", add).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    let client = broker.client();

    let task = client.task("add", &[1, 2, 3]).retention(Duration::from_secs(3_600)).await?;
    println!("the sum is {}", task.result().await?);
    // The result can be read again, with the task's id and type.
    let again: i64 = client.result(task.id()).await?;
    println!("it still is {again}");

    let (left, right) = tokio::join!(client.task("add", &[1, 1]), client.task("add", &[2, 2]));
    let (left, right) = (left?, right?);
    let (left, right) = tokio::join!(left.result(), right.result());
    println!("{} and {}", left?, right?);

    let nobody_does_this = client.task("add", &json!([1])).queue("elsewhere").await?;
    match nobody_does_this.result().within(Duration::from_millis(200)).await {
        Err(Error::NotFinished { state, .. }) => println!("still {state}"),
        other => println!("{other:?}"),
    }

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
