//! Promise 11 with real processes: `kill -9` of the broker, over and over, while the children of a
//! flow end. The callback exists once, waits for all children, and gets every result.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use taskyard_proto::v1::{
    AckRequest, ClaimRequest, ClaimedTask, Dependency, FlowNode, GetFlowRequest, NewTask,
    QueueRequest, QueueWeight, SubmitFlowRequest, taskyard_client::TaskyardClient,
};
use tonic::transport::{Channel, Endpoint};

const CHILDREN: usize = 1_000;
const QUEUES: usize = 8;
const WORKERS: usize = 4;
const KILLS: u32 = 6;
/// Longer than any wait here on a busy machine; only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(180);
const CALL_FOR_MAX: Duration = Duration::from_secs(20);

type Client = TaskyardClient<Channel>;

/// A broker that is killed and restarted at one address.
struct Killed {
    address: SocketAddr,
    folder: tempfile::TempDir,
    broker: Child,
}

impl Killed {
    fn kill_and_start(&mut self) {
        self.broker.kill().unwrap();
        self.broker.wait().unwrap();
        self.broker = serve(self.folder.path(), self.address);
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callback_runs_once_after_a_thousand_children_whatever_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let broker = serve(folder.path(), address);
    let mut yard = Killed { address, folder, broker };
    let mut client = connect(address).await;
    let flow = client.submit_flow(flow()).await.unwrap().into_inner();
    assert_eq!(flow.tasks.len(), CHILDREN + 1);

    let done = Arc::new(AtomicBool::new(false));
    let callbacks: Arc<Mutex<Vec<ClaimedTask>>> = Arc::default();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| tokio::spawn(work(address, done.clone(), callbacks.clone())))
        .collect();
    // The progress of the flow before and after each kill.
    let mut met = Vec::new();
    for kill in 0..KILLS {
        // The first kill falls into claims, later ones into acks and messages between shards.
        let before = until_done(address, &flow.id, kill * CHILDREN as u32 / KILLS).await;
        yard.kill_and_start();
        met.push((before, until_done(address, &flow.id, 0).await));
    }
    let half_way = |&(before, after): &(u32, u32)| before > 0 && after < CHILDREN as u32;
    assert!(met.iter().any(half_way), "no kill met the flow half-way: {met:?}");
    let started = Instant::now();
    let end = loop {
        let mut client = connect(address).await;
        let request = GetFlowRequest { id: flow.id.clone(), wait_ms: 10_000, without_nodes: false };
        let found = client.get_flow(request).await.unwrap().into_inner();
        if found.ended_at.is_some() {
            break found;
        }
        assert!(started.elapsed() < DEADLINE, "{} of {} done", found.nodes_done, found.nodes_total);
    };
    done.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!((end.state.as_str(), end.nodes_failed), ("succeeded", 0));
    assert!(end.nodes.iter().all(|node| node.state == "succeeded"));
    let callbacks = std::mem::take(&mut *callbacks.lock().unwrap());
    let ids: BTreeSet<&str> = callbacks.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(ids, BTreeSet::from([flow.tasks["callback"].as_str()]));
    for callback in &callbacks {
        let names: BTreeSet<&str> =
            callback.parents.iter().map(|parent| parent.name.as_str()).collect();
        assert_eq!(names.len(), CHILDREN, "it ran before its parents had ended");
        assert!(callback.parents.iter().all(|parent| parent.result.as_deref() == Some(b"1")));
    }
    let mut client = connect(address).await;
    let queue = QueueRequest { queue: "callbacks".into() };
    let counts = client.get_queue(queue).await.unwrap().into_inner();
    assert_eq!((counts.enqueued_total, counts.succeeded_total), (1, 1));
}

/// Waits until at least `least` nodes are done; returns how many are.
async fn until_done(address: SocketAddr, id: &str, least: u32) -> u32 {
    let mut client = connect(address).await;
    let deadline = Instant::now() + DEADLINE;
    loop {
        let request = GetFlowRequest { id: id.into(), wait_ms: 0, without_nodes: true };
        let found = client.get_flow(request).await.unwrap().into_inner();
        if found.nodes_done >= least {
            return found.nodes_done;
        }
        assert!(Instant::now() < deadline, "{} of {least} done", found.nodes_done);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn flow() -> SubmitFlowRequest {
    let task = |queue: String| NewTask {
        queue,
        r#type: "child".into(),
        payload: "{}".into(),
        ..NewTask::default()
    };
    let child = |number: usize| FlowNode {
        name: format!("child-{number}"),
        task: Some(task(format!("children-{}", number % QUEUES))),
        ..FlowNode::default()
    };
    let mut nodes: Vec<FlowNode> = (0..CHILDREN).map(child).collect();
    let dependency = |node: &FlowNode| Dependency { name: node.name.clone(), on_failure: 0 };
    nodes.push(FlowNode {
        name: "callback".into(),
        task: Some(task("callbacks".into())),
        depends_on: nodes.iter().map(dependency).collect(),
        on_failure: 0,
    });
    SubmitFlowRequest { nodes, ..SubmitFlowRequest::default() }
}

/// Claims and acks; connects again if the broker is killed during a call.
async fn work(address: SocketAddr, done: Arc<AtomicBool>, callbacks: Arc<Mutex<Vec<ClaimedTask>>>) {
    let mut client = connect(address).await;
    while !done.load(Ordering::Relaxed) {
        let name = |name: String| QueueWeight { name, weight: 0 };
        let queues = (0..QUEUES).map(|number| name(format!("children-{number}")));
        let claim = ClaimRequest {
            queues: queues.chain([name("callbacks".into())]).collect(),
            max: 5,
            lease_ms: 1_000,
            wait_ms: 500,
            worker: String::new(),
            types: vec![],
        };
        let Ok(reply) = client.claim(claim).await else {
            client = connect(address).await;
            continue;
        };
        for task in reply.into_inner().tasks {
            if task.queue == "callbacks" {
                callbacks.lock().unwrap().push(task.clone());
            }
            ack(&mut client, address, &task).await;
        }
    }
}

/// Acks until there is an answer; a repeated ack gets the same answer.
async fn ack(client: &mut Client, address: SocketAddr, task: &ClaimedTask) {
    loop {
        let request = AckRequest {
            id: task.id.clone(),
            claim_token: task.claim_token,
            result: Some(b"1".to_vec().into()),
            enqueue: vec![],
        };
        match client.ack(request).await {
            Ok(_) => return,
            // The lease ended before the broker was back, so another attempt counts.
            Err(status) if status.metadata().contains_key("taskyard-code") => {
                let code = status.metadata().get("taskyard-code").unwrap().to_str().unwrap();
                if matches!(code, "claim_lost" | "already_finished") {
                    return;
                }
            }
            Err(_) => {}
        }
        *client = connect(address).await;
    }
}

fn serve(folder: &Path, address: SocketAddr) -> Child {
    Command::new(env!("CARGO_BIN_EXE_taskyard"))
        .args(["serve", "--shards", "8", "--data"])
        .arg(folder.join("data"))
        .args(["--listen", &address.to_string(), "--peer", "127.0.0.1:0", "--faktory", "none"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits until the broker answers.
async fn connect(address: SocketAddr) -> Client {
    let deadline = Instant::now() + DEADLINE;
    loop {
        // A call may not notice that a kill broke its connection, so every call has a timeout.
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let endpoint = endpoint.connect_timeout(CALL_FOR_MAX).timeout(CALL_FOR_MAX);
        if let Ok(channel) = endpoint.connect().await {
            return TaskyardClient::new(channel).max_decoding_message_size(64 << 20);
        }
        assert!(Instant::now() < deadline, "the broker does not answer");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
