//! A declared task: the compiler checks the payload, the handler and the result.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use taskyard::{Embedded, Fail, NewTask, RetryPolicy, Task};

#[derive(Serialize, Deserialize)]
struct Multiply {
    left: i64,
    right: i64,
}

impl Task for Multiply {
    const NAME: &'static str = "multiply";
    const QUEUE: &'static str = "math";
    type Output = i64;

    fn configure(&self, task: NewTask) -> NewTask {
        task.timeout(Duration::from_secs(10)).retry(RetryPolicy::exponential().max_attempts(3))
    }
}

async fn multiply(task: Multiply) -> Result<i64, Fail> {
    task.left.checked_mul(task.right).ok_or_else(|| Fail::permanent("the product is too large"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    // The worker claims from the queues of its declared tasks.
    let worker = broker.worker().task(multiply).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let task = broker.client().enqueue(Multiply { left: 6, right: 7 }).await?;
    let product: i64 = task.result().await?;
    println!("6 x 7 = {product}");

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
