//! Promises 1 to 3 with real processes: `kill -9` of the broker under load, over and over, on one
//! data directory. Every confirmed task exists exactly once, and no acked task comes back. Clients
//! repeat enqueues whose answer was lost in a kill. Each of these makes one task, even if its first
//! try made it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use taskyard_proto::v1::{
    AckRequest, BackupRequest, ClaimRequest, EnqueueManyRequest, EnqueueRequest, ListTasksRequest,
    NewTask, PerKey, QueueSettings, QueueWeight, Rate, SetQueueSettingsRequest,
    taskyard_client::TaskyardClient,
};
use tonic::transport::{Channel, Endpoint};

/// `CRASH_ROUNDS` can set more rounds.
const ROUNDS_MIN: usize = 20;
/// The most rounds, as a multiple of the wanted rounds.
const ROUNDS_LONGEST: usize = 5;
const PRODUCERS: usize = 4;
const WORKERS: usize = 2;
const QUEUES: usize = 5;
const TASKS_PER_ROUND_MAX: u64 = 1_500;

/// The answers to clients, over all rounds.
#[derive(Default)]
struct Told {
    /// The request id of each confirmed task id.
    confirmed: BTreeMap<String, String>,
    /// Tasks whose ack was accepted.
    acked: BTreeSet<String>,
    /// Requests with a lost answer, to be sent again.
    unanswered: Vec<Vec<NewTask>>,
    /// How many of these requests had made a task.
    made_unanswered: usize,
    /// The chunks of all backups. Each chunk proves a checkpoint.
    backup_chunks: u64,
    /// Broken promises.
    broken: Vec<String>,
}

type Shared = Arc<Mutex<Told>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_tasks_survive_kill_9_of_the_broker_under_load() {
    let more = std::env::var("CRASH_ROUNDS").ok().and_then(|n| n.parse().ok());
    let rounds = more.unwrap_or(0).max(ROUNDS_MIN);
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let told = Shared::default();
    let made_unanswered = || told.lock().unwrap().made_unanswered;
    let mut round = 0;
    // The time between a write and its answer is short, so rounds go on until a kill falls into it.
    while round < rounds || (made_unanswered() == 0 && round < ROUNDS_LONGEST * rounds) {
        let mut broker = serve(folder.path(), address);
        let client = connect(address, &mut broker).await;
        settle(&client, &told, round).await;
        load_until_killed(&client, &told, round, &mut broker).await;
        round += 1;
    }
    let mut broker = serve(folder.path(), address);
    let client = connect(address, &mut broker).await;
    settle(&client, &told, round).await;
    let told = told.lock().unwrap();
    assert!(told.confirmed.len() > rounds * 10, "only {} tasks confirmed", told.confirmed.len());
    assert!(told.acked.len() > rounds, "only {} tasks acked", told.acked.len());
    assert!(told.backup_chunks > 0, "no checkpoint was taken");
    assert!(told.made_unanswered > 0, "no kill came between a write and its answer");
    broker.kill().unwrap();
    broker.wait().unwrap();
}

/// Checks the state after the last round, repeats unanswered requests, and checks again.
async fn settle(client: &TaskyardClient<Channel>, told: &Shared, round: usize) {
    let found = check_all(client.clone(), told, round).await;
    let unanswered = std::mem::take(&mut told.lock().unwrap().unanswered);
    if unanswered.is_empty() {
        return;
    }
    for tasks in unanswered {
        let made = tasks.iter().filter(|task| found.contains_key(task.request_id()));
        told.lock().unwrap().made_unanswered += made.count();
        let known: Vec<_> =
            tasks.iter().map(|task| found.get(task.request_id()).cloned()).collect();
        let request = EnqueueManyRequest { tasks: tasks.clone(), batch_id: Vec::new() };
        let results = client.clone().enqueue_many(request).await.unwrap().into_inner().results;
        assert_eq!(results.len(), tasks.len());
        let mut told = told.lock().unwrap();
        for ((result, task), known) in results.into_iter().zip(&tasks).zip(known) {
            assert_eq!(result.error, None, "round {round}: {task:?}");
            let is_same = known.is_none_or(|known| known == result.id);
            assert!(is_same, "round {round}: {} made a second task", task.request_id());
            told.confirmed.insert(result.id, task.request_id().to_owned());
        }
    }
    check_all(client.clone(), told, round).await;
}

/// Limits, a turn that has begun and a half empty bucket survive a kill of the broker.
#[tokio::test]
async fn limits_and_turns_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let mut broker = serve(folder.path(), address);
    let mut client = connect(address, &mut broker).await;
    let settings = QueueSettings {
        concurrency: Some(5),
        per_key: Some(PerKey {
            concurrency: Some(2),
            // The bucket gets no new token while this test runs.
            rate: Some(Rate { per_second: 0.000_1, burst: Some(3) }),
        }),
        weights: [("a".to_owned(), 2)].into(),
        ..QueueSettings::default()
    };
    let request = SetQueueSettingsRequest { queue: "limited".into(), settings: Some(settings) };
    client.set_queue_settings(request).await.unwrap();
    for (number, key) in ["a", "a", "a", "a", "b", "b", "b", "c", "c"].iter().enumerate() {
        let task = NewTask { fairness_key: Some((*key).into()), ..new_task(key, number) };
        let task = NewTask { queue: "limited".into(), request_id: None, priority: None, ..task };
        client.enqueue(EnqueueRequest { task: Some(task) }).await.unwrap();
    }
    let mut held = Vec::new();
    let mut order = String::new();
    // Each round claims as many tasks as the limits allow, ends the oldest one, and kills.
    for _ in 0..4 {
        let claim = ClaimRequest {
            queues: vec![QueueWeight { name: "limited".into(), weight: 0 }],
            max: 9,
            lease_ms: 3_600_000,
            ..ClaimRequest::default()
        };
        for task in client.claim(claim).await.unwrap().into_inner().tasks {
            order += task.fairness_key.as_deref().unwrap();
            held.push(task);
        }
        order.push(' ');
        let ended = held.remove(0);
        let (id, claim_token) = (ended.id, ended.claim_token);
        client.ack(AckRequest { id, claim_token, ..AckRequest::default() }).await.unwrap();
        broker.kill().unwrap();
        broker.wait().unwrap();
        broker = serve(folder.path(), address);
        client = connect(address, &mut broker).await;
    }
    // Five tasks at once, two per key; key a gets two tasks per turn; three tokens per key.
    assert_eq!(order, "aabcb a c b ");
    broker.kill().unwrap();
    broker.wait().unwrap();
}

/// Loads the broker with confirmed enqueues and acks, and kills it in the middle.
async fn load_until_killed(
    client: &TaskyardClient<Channel>,
    told: &Shared,
    round: usize,
    broker: &mut Child,
) {
    let stop = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU64::new(0));
    let mut load = Vec::new();
    for producer in 0..PRODUCERS {
        let (client, told, stop, sent) = (client.clone(), told.clone(), stop.clone(), sent.clone());
        load.push(tokio::spawn(async move {
            let name = format!("{round}-{producer}");
            produce(client, &told, &name, &sent, &stop).await;
        }));
    }
    for worker in 0..WORKERS {
        let (client, told, stop) = (client.clone(), told.clone(), stop.clone());
        load.push(tokio::spawn(async move { work(client, &told, worker, &stop).await }));
    }
    // Checkpoints are too rare for this test. A backup takes a checkpoint of each shard, so kills
    // can fall into checkpoints in every other round.
    if round % 2 == 1 {
        let (client, told, stop) = (client.clone(), told.clone(), stop.clone());
        load.push(tokio::spawn(async move { checkpoint(client, &told, &stop).await }));
    }
    // The delay differs by round, so that kills fall into starts, syncs, checkpoints and pauses.
    let before_kill = Duration::from_millis(80 + (round as u64 * 149) % 500);
    tokio::time::sleep(before_kill).await;
    broker.kill().unwrap();
    broker.wait().unwrap();
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
}

/// Takes backups in a row; each takes checkpoints.
async fn checkpoint(mut client: TaskyardClient<Channel>, told: &Shared, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(chunks) = client.backup(BackupRequest {}).await else { return };
        let mut chunks = chunks.into_inner();
        while let Ok(Some(_)) = chunks.message().await {
            // The backup reads its chunks from the checkpoints.
            told.lock().unwrap().backup_chunks += 1;
        }
    }
}

async fn produce(
    mut client: TaskyardClient<Channel>,
    told: &Shared,
    name: &str,
    sent: &AtomicU64,
    stop: &AtomicBool,
) {
    for batch in 0.. {
        if stop.load(Ordering::Relaxed)
            || sent.fetch_add(8, Ordering::Relaxed) > TASKS_PER_ROUND_MAX
        {
            return;
        }
        let request_ids: Vec<String> = (0..8).map(|n| format!("{name}-{batch}-{n}")).collect();
        let tasks: Vec<NewTask> =
            request_ids.iter().enumerate().map(|(n, id)| new_task(id, batch + n)).collect();
        let request = EnqueueManyRequest { tasks: tasks.clone(), batch_id: Vec::new() };
        // The broker was killed: nothing was confirmed, and the outcome is unknown.
        let Ok(reply) = client.enqueue_many(request).await else {
            told.lock().unwrap().unanswered.push(tasks);
            return;
        };
        let mut told = told.lock().unwrap();
        for (result, request_id) in reply.into_inner().results.into_iter().zip(request_ids) {
            match result.error {
                None => drop(told.confirmed.insert(result.id, request_id)),
                Some(error) => told.broken.push(format!("{request_id} refused: {error:?}")),
            }
        }
    }
}

fn new_task(request_id: &str, number: usize) -> NewTask {
    NewTask {
        queue: format!("crash-{}", number % QUEUES),
        r#type: "crash".into(),
        payload: request_id.to_owned().into(),
        content_type: "text/plain".into(),
        request_id: Some(request_id.into()),
        priority: Some((number % 10) as u32),
        retention_ms: Some(3_600_000),
        ..NewTask::default()
    }
}

async fn work(
    mut client: TaskyardClient<Channel>,
    told: &Shared,
    worker: usize,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let queues =
            (0..QUEUES).map(|n| QueueWeight { name: format!("crash-{n}"), weight: 0 }).collect();
        let claim = ClaimRequest {
            queues,
            max: 7,
            // Longer than the test, so that no lease ends during the test.
            lease_ms: 3_600_000,
            wait_ms: 1_000,
            worker: format!("worker-{worker}"),
            types: vec![],
        };
        let Ok(reply) = client.claim(claim).await else { return };
        for task in reply.into_inner().tasks {
            if told.lock().unwrap().acked.contains(&task.id) {
                told.lock().unwrap().broken.push(format!("acked task {} was handed out", task.id));
            }
            let ack = AckRequest {
                id: task.id.clone(),
                claim_token: task.claim_token,
                ..AckRequest::default()
            };
            match client.ack(ack).await {
                Ok(_) => drop(told.lock().unwrap().acked.insert(task.id)),
                // The broker was killed during the call: the outcome is unknown, and nothing was
                // promised.
                Err(_) => return,
            }
        }
    }
}

/// Reads every task back and compares it with the answers to clients. Returns the tasks by request
/// id.
async fn check_all(
    mut client: TaskyardClient<Channel>,
    told: &Shared,
    round: usize,
) -> BTreeMap<String, String> {
    let mut states = BTreeMap::new();
    let mut by_request = BTreeMap::<String, String>::new();
    let mut cursor = String::new();
    loop {
        let request =
            ListTasksRequest { cursor, limit: 1_000, with_payload: true, ..Default::default() };
        let page = client.list_tasks(request).await.unwrap().into_inner();
        for task in page.tasks {
            let request_id = String::from_utf8(task.payload.unwrap().to_vec()).unwrap();
            if let Some(other) = by_request.insert(request_id.clone(), task.id.clone()) {
                panic!("round {round}: {request_id} made two tasks, {other} and {}", task.id);
            }
            states.insert(task.id, task.state);
        }
        cursor = page.cursor;
        if cursor.is_empty() {
            break;
        }
    }
    let told = told.lock().unwrap();
    assert_eq!(told.broken, Vec::<String>::new(), "round {round}");
    for (id, request_id) in &told.confirmed {
        assert_eq!(
            by_request.get(request_id),
            Some(id),
            "round {round}: confirmed task {id} is missing ({} confirmed, {} found)",
            told.confirmed.len(),
            states.len()
        );
    }
    for id in &told.acked {
        assert_eq!(states[id], "succeeded", "round {round}: acked task {id} came back");
    }
    by_request
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn serve(data: &Path, address: SocketAddr) -> Child {
    Command::new(env!("CARGO_BIN_EXE_taskyard"))
        .args(["serve", "--data"])
        .arg(data.join("data"))
        .args(["--listen", &address.to_string(), "--peer", "127.0.0.1:0", "--faktory", "none"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until the broker answers; a broker that ended instead fails the test.
async fn connect(address: SocketAddr, broker: &mut Child) -> TaskyardClient<Channel> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        if let Ok(channel) = endpoint.connect().await {
            return TaskyardClient::new(channel).max_decoding_message_size(64 << 20);
        }
        assert!(broker.try_wait().unwrap().is_none(), "the broker did not start");
        assert!(Instant::now() < deadline, "the broker does not answer");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
