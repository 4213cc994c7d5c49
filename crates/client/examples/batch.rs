//! Many tasks at once: an atomic batch, and single enqueues that share requests by themselves.

use std::time::Instant;
use taskyard::{Embedded, NewTask};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let client = broker.client();

    // All or none: one bad task, and nothing is enqueued.
    let tasks = (0..1_000).map(|number| NewTask::new("count", &number));
    let enqueued = client.batch("numbers").extend(tasks).send().await?;
    println!("{} tasks in one batch, the first is {}", enqueued.len(), enqueued[0].id());

    let tasks = [NewTask::new("count", &1), NewTask::new("count", &2).priority(12)];
    let refused = client.batch("numbers").extend(tasks).send().await;
    println!("{}", refused.expect_err("12 is no priority"));

    // Independent callers need no batch: concurrent enqueues share requests.
    let started = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..1_000 {
        let client = client.clone();
        callers.spawn(async move { client.task("count", &number).queue("numbers").await });
    }
    while let Some(enqueued) = callers.join_next().await {
        enqueued??;
    }
    println!("1000 callers were answered within {:?}", started.elapsed());
    println!("{} tasks wait", client.queue("numbers").details().await?.ready);

    broker.close().await;
    Ok(())
}
