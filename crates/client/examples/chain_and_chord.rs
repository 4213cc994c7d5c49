//! Shapes that flows often have: a chain runs one task after the other, a group runs all at once, a
//! chord runs all at once and then one with all results. Each knows the type of its result.

use serde::{Deserialize, Serialize};
use taskyard::{
    Embedded, Fail, Task, TaskContext,
    flow::{chain, chord, group},
};

#[derive(Serialize, Deserialize)]
struct Count(String);

impl Task for Count {
    const NAME: &'static str = "count";
    type Output = usize;
}

#[derive(Serialize, Deserialize)]
struct Sum;

impl Task for Sum {
    const NAME: &'static str = "sum";
    type Output = usize;
}

async fn count(Count(text): Count) -> Result<usize, Fail> {
    Ok(text.split_whitespace().count())
}

/// Adds up the results of all parents.
async fn sum(_: Sum, context: TaskContext) -> Result<usize, Fail> {
    Ok(context.parent_results::<usize>().await?.into_iter().sum())
}

fn verses() -> impl Iterator<Item = Count> {
    let verses = ["rough winds do shake", "the darling buds of May"];
    verses.into_iter().map(|verse| Count(verse.to_owned()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker.worker().concurrency(4).task(count).task(sum).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    let client = broker.client();

    let one_by_one = chain("one verse").then(Count("one two three".into())).then(Sum);
    let words: usize = client.submit(one_by_one).await?.result().await?;
    println!("chain: {words} words");

    let each: Vec<usize> = client.submit(group("verses", verses())).await?.result().await?;
    println!("group: {each:?} words");

    let all: usize = client.submit(chord("poem", verses(), Sum)).await?.result().await?;
    println!("chord: {all} words");

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
