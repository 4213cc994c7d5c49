//! The broker inside this process, on a directory: no server, the same API, and tasks that survive
//! the process.

use taskyard::{Embedded, Fail};

async fn greet(name: String) -> Result<String, Fail> {
    Ok(format!("hello, {name}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;

    // The first broker accepts the task and closes.
    let broker = Embedded::open(directory.path()).await?;
    let id = broker.client().task("greet", &"Ada").await?.id().clone();
    broker.close().await;

    // A second broker on the same directory still has the task.
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker.worker().handler("greet", greet).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    let greeting: String = broker.client().result(&id).await?;
    println!("task {id} says: {greeting}");

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
