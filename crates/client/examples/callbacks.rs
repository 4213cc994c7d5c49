//! A batch of jobs with callbacks: one task follows when all jobs have succeeded, another when all
//! have ended. A running job adds another job, and the callbacks wait for that job too.

use taskyard::{Embedded, Fail, NewTask, TaskContext, flow::Batch};

async fn import_row(row: u32, context: TaskContext) -> Result<u32, Fail> {
    match row {
        3 => return Err(Fail::permanent("row 3 is not readable")),
        2 => drop(context.add_tasks([("row 2 again", NewTask::new("import_row", &20))]).await?),
        _ => {}
    }
    println!("imported row {row}");
    Ok(row)
}

async fn publish() -> Result<(), Fail> {
    println!("published");
    Ok(())
}

async fn report(context: TaskContext) -> Result<(), Fail> {
    for job in context.parents() {
        match job.error() {
            Some(error) => println!("report: {} {}: {error}", job.name(), job.state()),
            None => println!("report: {} {}", job.name(), job.state()),
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker
        .worker()
        .handler("import_row", import_row)
        .handler("publish", publish)
        .handler("report", report)
        .build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let batch = Batch::new("import")
        .jobs((1..=3).map(|row| NewTask::new("import_row", &row)))
        .on_success(NewTask::new("publish", &()))
        .on_complete(NewTask::new("report", &()));
    let ended = broker.client().submit(batch).await?.wait().await?;
    println!("the batch {}: {} of {} done", ended.state, ended.nodes_done, ended.nodes_total);

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
