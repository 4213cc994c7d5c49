//! The smallest producer and worker.
//!
//! Start a broker with `taskyard serve`, then run this example. It reports an error if there is no
//! broker at `TASKYARD_URL` or the default address.

use std::env;
use taskyard::{Client, Fail, Worker};

async fn greet(name: String) -> Result<String, Fail> {
    Ok(format!("hello, {name}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("TASKYARD_URL").unwrap_or("http://127.0.0.1:7400".to_string());
    let client = Client::connect(url).await?;

    let worker = Worker::builder(&client).handler("greet", greet).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let task = client.task("greet", &"Ada").await?;
    println!("task {} says: {}", task.id(), task.result().await?);

    handle.stop();
    running.await??;
    Ok(())
}
