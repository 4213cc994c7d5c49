//! One task at a time per key: an enqueue of a taken key returns the task that has the key,
//! replaces its payload, or is refused. A debounced task waits until the edits have paused.

use std::time::Duration;
use taskyard::{Embedded, Error, Fail, OnConflict, Unique};

async fn index(page: String) -> Result<String, Fail> {
    Ok(format!("indexed {page}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let client = broker.client();

    // No worker runs yet, so that the first task waits and keeps its key.
    let first = client.task("index", &"home, first draft").unique(Unique::key("home")).await?;
    let again = client.task("index", &"home, again").unique(Unique::key("home")).await?;
    assert_eq!((again.id(), again.is_duplicate()), (first.id(), true));
    println!("the second enqueue answers with the first task");

    let replace = Unique::key("home").on_conflict(OnConflict::Replace);
    let replaced = client.task("index", &"home, final").unique(replace).await?;
    assert_eq!(replaced.id(), first.id());
    println!("the waiting task takes the latest payload");

    let reject = Unique::key("home").on_conflict(OnConflict::Reject);
    match client.task("index", &"home, too late").unique(reject).await {
        Err(Error::NotUnique { holder, .. }) => assert_eq!(holder.as_ref(), Some(first.id())),
        other => panic!("the key is held: {other:?}"),
    }
    println!("or the enqueue is refused");

    // Five edits in a row become one task with the last payload.
    let quiet = Unique::key("about").debounce(Duration::from_millis(300));
    let mut edited = None;
    for edit in 1..=5 {
        let payload = format!("about, edit {edit}");
        edited = Some(client.task("index", &payload).unique(quiet.clone()).await?);
    }

    let worker = broker.worker().handler("index", index).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    for task in [Some(first), edited].into_iter().flatten() {
        println!("{}", task.result().await?);
    }

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
