//! A queue over several shards through the SDK, against the real broker. Producers and workers use
//! it like any other queue.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};
use taskyard::{Client, Fail, QueueSettings, State, testing::TestBroker};

const QUEUE: &str = "clicks";

async fn spread(client: &Client, shards: u32) {
    let settings = QueueSettings { spread: Some(shards), ..QueueSettings::default() };
    assert_eq!(client.queue(QUEUE).set(settings.clone()).await.unwrap(), settings);
    assert_eq!(client.queue(QUEUE).settings().await.unwrap(), settings);
}

type Counted = Arc<Mutex<BTreeSet<u32>>>;

async fn count(number: u32, State(counted): State<Counted>) -> Result<(), Fail> {
    assert!(counted.lock().unwrap().insert(number), "{number} ran twice");
    Ok(())
}

#[tokio::test]
async fn a_worker_runs_tasks_of_every_shard_while_the_spread_changes() {
    let broker = TestBroker::start().await.unwrap();
    let client = broker.client();
    let counted = Counted::default();
    let worker = broker.worker().queue(QUEUE).concurrency(4).state(Arc::clone(&counted));
    let _worker = broker.run(worker.handler("count", count)).unwrap();
    let mut number = 0_u32;
    for shards in [1, 4, 2] {
        spread(&client, shards).await;
        for _ in 0..20 {
            client.task("count", &number).queue(QUEUE).await.unwrap();
            let request_id = format!("r{number}");
            let again = || client.task("count", &(number + 1)).queue(QUEUE).request_id(&request_id);
            let (first, second) = (again().await.unwrap(), again().await.unwrap());
            assert_eq!(first.id(), second.id());
            number += 2;
        }
    }
    broker.settle().await.unwrap();
    assert_eq!(counted.lock().unwrap().len(), number as usize);
    let details = client.queue(QUEUE).details().await.unwrap();
    assert_eq!((details.succeeded_total, details.ready), (u64::from(number), 0));
}

#[tokio::test]
async fn a_limit_on_a_spread_queue_is_refused_with_words() {
    let broker = TestBroker::start().await.unwrap();
    let queue = broker.client().queue(QUEUE);
    let both = QueueSettings { spread: Some(2), concurrency: Some(1), ..QueueSettings::default() };
    let refused = queue.set(both).await.unwrap_err();
    assert_eq!(refused.code(), "invalid_argument");
    assert!(refused.to_string().contains("a limit is decided by one shard"), "{refused}");
    let far = QueueSettings { spread: Some(100_000), ..QueueSettings::default() };
    assert_eq!(queue.set(far).await.unwrap_err().code(), "invalid_argument");
}
