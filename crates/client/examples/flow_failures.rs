//! Each dependency says what a failure means: the dependent task fails too, or runs and sees the
//! error, or runs and ignores it. Once the cause is repaired, a retry goes on from the failed task.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use taskyard::{Embedded, Fail, Flow, NewTask, State, TaskContext};

type Online = Arc<AtomicBool>;

async fn pay(State(online): State<Online>) -> Result<&'static str, Fail> {
    match online.load(Ordering::Relaxed) {
        true => Ok("paid"),
        false => Err(Fail::permanent("the bank is offline")),
    }
}

async fn ship() -> Result<(), Fail> {
    println!("shipped");
    Ok(())
}

async fn tell_customer(context: TaskContext) -> Result<(), Fail> {
    match context.parent("pay").and_then(|parent| parent.error().cloned()) {
        Some(error) => println!("dear customer: {error}"),
        None => println!("dear customer: thank you"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let online = Online::default();
    let worker = broker
        .worker()
        .state(Arc::clone(&online))
        .handler("pay", pay)
        .handler("ship", ship)
        .handler("tell_customer", tell_customer)
        .build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let flow = Flow::new("order");
    let pay = flow.add("pay", NewTask::new("pay", &()));
    flow.add("ship", NewTask::new("ship", &())).after(&pay);
    flow.add("tell", NewTask::new("tell_customer", &())).after_any_end(&pay);
    let flow = broker.client().submit(flow).await?;
    println!("the order {}", flow.wait().await?.state);

    online.store(true, Ordering::Relaxed);
    flow.retry().await?;
    println!("the order {}", flow.wait().await?.state);

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
