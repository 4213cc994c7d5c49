//! Customers share a queue: they take turns, each runs at most two tasks at once, and a customer
//! whose service answers "too many requests" gets a break.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use taskyard::{Embedded, Fail, PerKey, QueueSettings, Rate, TaskContext, Throttled};

static PUSHED_BACK: AtomicBool = AtomicBool::new(false);

async fn call(number: u32, context: TaskContext) -> Result<(), Fail> {
    let customer = context.fairness_key().unwrap_or("nobody").to_owned();
    // The first call for bolt is refused: no task of bolt is handed out until the break is over.
    if customer == "bolt" && !PUSHED_BACK.swap(true, Ordering::SeqCst) {
        println!("{customer}  pushes back");
        return Err(Throttled::after(Duration::from_millis(300)).into());
    }
    println!("{customer}  call {number}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let client = broker.client();

    let calls = client.queue("calls");
    calls
        .set(QueueSettings {
            rate: Some(Rate::per_second(100.0).burst(20)),
            per_key: Some(PerKey { concurrency: Some(2), rate: None }),
            // Acme gets two tasks per turn.
            weights: [("acme".to_owned(), 2)].into(),
            ..QueueSettings::default()
        })
        .await?;

    // Acme has many tasks and came first. The other customers wait for a turn of acme, not for all
    // its tasks.
    let mut last = None;
    for (customer, count) in [("acme", 12), ("bolt", 3), ("coil", 3)] {
        for number in 1..=count {
            let task = client.task("call", &number).queue("calls").fairness_key(customer);
            last = Some(task.await?);
        }
    }
    let last = last.expect("some were enqueued");
    for reason in client.why(last.id()).await? {
        println!("the last one waits: {}", reason.message);
    }

    let worker = broker.worker().queue("calls").concurrency(1).handler("call", call).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    loop {
        let details = calls.details().await?;
        if details.ready + details.scheduled + details.claimed == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
