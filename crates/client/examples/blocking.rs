//! A handler that blocks: it runs on a thread of its own and checks regularly whether it is
//! cancelled.

use serde::Deserialize;
use taskyard::{Cancelled, Embedded, Fail, TaskContext};

#[derive(Deserialize)]
struct Primes {
    below: u32,
}

fn count_primes(below: u32, context: &TaskContext) -> Result<usize, Fail> {
    let mut found = 0;
    for candidate in 2..below {
        if candidate % 1_000 == 0 {
            if context.is_cancelled() {
                return Err(Cancelled.into());
            }
            context.progress(candidate * 100 / below, "sieving");
        }
        let divides = |divisor: &u32| candidate.is_multiple_of(*divisor);
        if !(2..).take_while(|divisor| divisor * divisor <= candidate).any(|d| divides(&d)) {
            found += 1;
        }
    }
    Ok(found)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let primes = |primes: Primes, context: TaskContext| count_primes(primes.below, &context);
    let worker = broker.worker().blocking_handler("primes", primes).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let below = 200_000;
    let task = broker.client().task("primes", &serde_json::json!({ "below": below })).await?;
    println!("{} primes below {below}", task.result().await?);

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
