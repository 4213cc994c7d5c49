//! A flow: tasks that depend on each other, submitted as one. Each task runs once its parents have
//! succeeded, and reads their results.

use serde::{Deserialize, Serialize};
use taskyard::{Embedded, Fail, Flow, Task, TaskContext};

#[derive(Serialize, Deserialize)]
struct Fetch {
    city: String,
}

impl Task for Fetch {
    const NAME: &'static str = "fetch";
    const QUEUE: &'static str = "network";
    type Output = f64;
}

#[derive(Serialize, Deserialize)]
struct Compare;

impl Task for Compare {
    const NAME: &'static str = "compare";
    type Output = String;
}

async fn fetch(task: Fetch) -> Result<f64, Fail> {
    println!("asking for the weather in {}", task.city);
    Ok(task.city.len() as f64 * 1.5)
}

async fn compare(_: Compare, context: TaskContext) -> Result<String, Fail> {
    let rome: f64 = context.parent_result("rome").await?;
    let oslo: f64 = context.parent_result("oslo").await?;
    Ok(format!("Rome has {rome} degrees, Oslo {oslo}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker.worker().task(fetch).task(compare).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let flow = Flow::new("weather");
    let rome = flow.add("rome", Fetch { city: "Rome".into() });
    let oslo = flow.add("oslo", Fetch { city: "Oslo".into() }).priority(9);
    let compared = flow.add("compared", Compare).after([&rome, &oslo]);

    let submitted = broker.client().submit(flow).await?;
    let results = submitted.result().await?;
    println!("{}", results.of(&compared)?);

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
