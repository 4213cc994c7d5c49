//! Follow-ups: tasks that are enqueued together with the success of another, or not at all.

use taskyard::{Embedded, Fail, NewTask, TaskContext};

/// Buys something. The receipt and the parcel are enqueued together with the success of the
/// purchase.
async fn buy(article: String, context: TaskContext) -> Result<(), Fail> {
    println!("bought {article}");
    context.enqueue(NewTask::new("send_receipt", &article))?;
    context.enqueue(NewTask::new("send_parcel", &article).priority(9))?;
    Ok(())
}

async fn send_receipt(article: String) -> Result<(), Fail> {
    println!("receipt for {article}");
    Ok(())
}

async fn send_parcel(article: String) -> Result<(), Fail> {
    println!("parcel with {article}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker
        .worker()
        .concurrency(1)
        .handler("buy", buy)
        .handler("send_receipt", send_receipt)
        .handler("send_parcel", send_parcel)
        .build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let client = broker.client();
    client.task("buy", &"a lamp").await?.result().await?;
    while client.queue("default").details().await?.succeeded_total < 3 {
        tokio::task::yield_now().await;
    }

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
