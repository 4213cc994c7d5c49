//! Priorities inside a queue, strict order and weights between queues.

use taskyard::{Embedded, Fail, TaskContext};

async fn print(what: String, context: TaskContext) -> Result<(), Fail> {
    println!("{:>8}  priority {}  {what}", context.queue(), context.priority());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let client = broker.client();

    // All tasks wait before the worker starts, so that the broker alone decides the order.
    client.task("print", &"whenever there is time").queue("bulk").priority(0).await?;
    client.task("print", &"an ordinary one").queue("mail").await?;
    client.task("print", &"a later ordinary one").queue("mail").await?;
    let urgent = client.task("print", &"an urgent one").queue("mail").priority(9).await?;

    // Mail first, bulk when mail is empty. With `queue_weighted("mail", 3)` and
    // `queue_weighted("bulk", 1)` bulk would get a quarter of the turns instead.
    let worker = broker
        .worker()
        .queue("mail")
        .queue("bulk")
        .concurrency(1)
        .handler("print", print)
        .build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    urgent.result().await?;
    while client.queues().await?.iter().any(|queue| queue.ready + queue.claimed > 0) {
        tokio::task::yield_now().await;
    }
    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
