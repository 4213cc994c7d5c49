//! Connections are cut again and again while clients enqueue and a worker runs tasks. No task is
//! lost, no task is enqueued twice, and the worker goes on.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use taskyard::{Client, Fail, TaskContext, Worker};
use taskyard_server::{Config, Node};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

const PATIENCE: Duration = Duration::from_secs(60);
const PRODUCERS: usize = 8;
const TASKS_EACH: usize = 50;

/// A proxy in front of a broker that cuts all connections on request, and then accepts new ones.
async fn proxy(broker: SocketAddr) -> (SocketAddr, watch::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (cut, cuts) = watch::channel(());
    tokio::spawn(async move {
        loop {
            let Ok((mut near, _)) = listener.accept().await else { return };
            let mut cuts = cuts.clone();
            cuts.mark_unchanged();
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(broker).await else { return };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    _ = cuts.changed() => {}
                }
            });
        }
    });
    (address, cut)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let config =
        Config { listen, shards: Some(4), disk_reserve_bytes: 0, ..Config::new(directory.path()) };
    let node = Node::start(config).await.unwrap();
    let (address, cut) = proxy(node.address().unwrap()).await;
    let client = Client::builder([format!("http://{address}")]).timeout(PATIENCE).build().unwrap();

    let runs = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
    let seen = Arc::clone(&runs);
    let count = move |context: TaskContext| {
        *seen.lock().unwrap().entry(context.id().to_string()).or_default() += 1;
        std::future::ready(Ok::<_, Fail>(()))
    };
    let worker = Worker::builder(&client).handler("count", count).build().unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS {
        let client = client.clone();
        producers.spawn(async move {
            let mut ids = Vec::new();
            for number in 0..TASKS_EACH {
                let task = client.task("count", &(producer, number)).await.unwrap();
                ids.push(task.id().to_string());
            }
            ids
        });
    }
    // Cut the connections again and again while producers run.
    let mut cuts = 0;
    let mut ids = Vec::new();
    while !producers.is_empty() {
        tokio::select! {
            Some(made) = producers.join_next() => ids.extend(made.unwrap()),
            () = tokio::time::sleep(Duration::from_millis(40)) => {
                cut.send_replace(());
                cuts += 1;
            }
        }
    }
    cut.send_replace(());
    assert!(cuts > 0, "no connection was cut");

    let total = PRODUCERS * TASKS_EACH;
    let direct = Client::connect(format!("http://{}", node.address().unwrap())).await.unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let queue = direct.queue("default").details().await.unwrap();
        assert_eq!(queue.enqueued_total, total as u64, "each enqueue makes one task");
        if queue.succeeded_total == total as u64 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{queue:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    {
        let runs = runs.lock().unwrap();
        assert!(ids.iter().all(|id| runs.contains_key(id)));
        assert_eq!((ids.len(), runs.len()), (total, total));
    }
    handle.stop();
    running.await.unwrap().unwrap();
    node.stop().await;
}
