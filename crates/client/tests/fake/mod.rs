//! A fake broker: it shows the test each message on the wire, and answers as the test says. On
//! demand it can lose an answer, fall silent and count requests, which a real broker cannot.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};
use taskyard_proto::v1::{
    self, broker_message, taskyard_server::Taskyard, taskyard_server::TaskyardServer,
    worker_message,
};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{mpsc, watch},
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap};

/// Longer than any wait of these tests, unless something is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

type Answer =
    dyn Fn(usize, &v1::EnqueueManyRequest) -> Result<v1::EnqueueManyReply, Status> + Send + Sync;

pub(crate) struct FakeBroker {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    streams: mpsc::UnboundedReceiver<WorkerStream>,
    /// The broker's own runtime. It runs even if the test blocks, and its end closes all
    /// connections.
    runtime: Option<Runtime>,
}

struct State {
    many: Mutex<Vec<v1::EnqueueManyRequest>>,
    answer: Box<Answer>,
    /// Enqueues wait for their answer while the gate is shut.
    gate: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
    streams: mpsc::UnboundedSender<WorkerStream>,
}

/// The broker's end of a worker's stream.
pub(crate) struct WorkerStream {
    pub(crate) metadata: MetadataMap,
    pub(crate) incoming: Streaming<v1::WorkerMessage>,
    outgoing: mpsc::Sender<Result<v1::BrokerMessage, Status>>,
}

impl FakeBroker {
    pub(crate) fn start() -> FakeBroker {
        FakeBroker::answering(|_, request| Ok(ids(request)))
    }

    /// A broker that answers each enqueue request with the result of `answer`, given the request's
    /// number from 0.
    pub(crate) fn answering(
        answer: impl Fn(usize, &v1::EnqueueManyRequest) -> Result<v1::EnqueueManyReply, Status>
        + Send
        + Sync
        + 'static,
    ) -> FakeBroker {
        FakeBroker::bound(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    /// A broker at the address of an earlier one.
    pub(crate) async fn at(address: SocketAddr) -> FakeBroker {
        let bind = async {
            loop {
                match std::net::TcpListener::bind(address) {
                    Ok(listener) => return listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let listener = tokio::time::timeout(PATIENCE, bind).await.unwrap();
        FakeBroker::bound(listener, |_, request| Ok(ids(request)))
    }

    fn bound(
        listener: std::net::TcpListener,
        answer: impl Fn(usize, &v1::EnqueueManyRequest) -> Result<v1::EnqueueManyReply, Status>
        + Send
        + Sync
        + 'static,
    ) -> FakeBroker {
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (streams, incoming) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            many: Mutex::default(),
            answer: Box::new(answer),
            gate: watch::Sender::new(true),
            arrived: watch::Sender::new(0),
            streams,
        });
        let service = TaskyardServer::new(Service(Arc::clone(&state)));
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let connections = tokio_stream::wrappers::TcpListenerStream::new(listener);
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(connections).await.unwrap();
        });
        FakeBroker { address, state, streams: incoming, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Enqueues arrive but get no answer until `open_gate`.
    pub(crate) fn shut_gate(&self) {
        self.state.gate.send_replace(false);
    }

    pub(crate) fn open_gate(&self) {
        self.state.gate.send_replace(true);
    }

    /// The enqueue requests so far, once there are at least `count`.
    pub(crate) async fn requests(&self, count: usize) -> Vec<v1::EnqueueManyRequest> {
        let mut arrived = self.state.arrived.subscribe();
        let arrived = arrived.wait_for(|arrived| *arrived >= count);
        tokio::time::timeout(PATIENCE, arrived).await.unwrap().unwrap();
        self.state.many.lock().unwrap().clone()
    }

    /// The number of enqueue requests so far.
    pub(crate) fn count(&self) -> usize {
        self.state.many.lock().unwrap().len()
    }

    /// The next stream that a worker opens.
    pub(crate) async fn stream(&mut self) -> WorkerStream {
        tokio::time::timeout(PATIENCE, self.streams.recv()).await.unwrap().unwrap()
    }
}

impl Drop for FakeBroker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl WorkerStream {
    pub(crate) async fn send(&self, message: broker_message::Message) {
        let message = v1::BrokerMessage { message: Some(message) };
        self.outgoing.send(Ok(message)).await.unwrap();
    }

    /// Reads the hello and answers it.
    pub(crate) async fn welcome(&mut self, secret: &[u8]) -> v1::Hello {
        let hello = self.hello().await;
        self.welcome_with(secret, 5_000, 15_000).await;
        hello
    }

    pub(crate) async fn hello(&mut self) -> v1::Hello {
        match self.next().await {
            worker_message::Message::Hello(hello) => hello,
            other => panic!("{other:?} is no hello"),
        }
    }

    pub(crate) async fn welcome_with(
        &self,
        secret: &[u8],
        beat_every_ms: u64,
        silence_ms_max: u64,
    ) {
        let (session_id, session_secret) = (b"id".to_vec(), secret.to_vec());
        let welcome = v1::Welcome { session_id, session_secret, beat_every_ms, silence_ms_max };
        self.send(broker_message::Message::Welcome(welcome)).await;
    }

    pub(crate) async fn refuse(&self, status: Status) {
        self.outgoing.send(Err(status)).await.unwrap();
    }

    pub(crate) async fn hand_out(&self, tasks: Vec<v1::ClaimedTask>) {
        self.send(broker_message::Message::Tasks(v1::Tasks { tasks })).await;
    }

    pub(crate) async fn accept(&self, number: u64) {
        let replies = vec![v1::AnswerReply { number, ..v1::AnswerReply::default() }];
        self.send(broker_message::Message::Replies(v1::AnswerReplies { replies })).await;
    }

    pub(crate) async fn order(&self, orders: v1::Orders) {
        self.send(broker_message::Message::Orders(orders)).await;
    }

    /// The worker's next message; panics at the end of the stream.
    pub(crate) async fn next(&mut self) -> worker_message::Message {
        self.next_or_end().await.expect("the worker should have sent a message")
    }

    pub(crate) async fn next_or_end(&mut self) -> Option<worker_message::Message> {
        let next = tokio::time::timeout(PATIENCE, self.incoming.next()).await.unwrap();
        next.and_then(Result::ok).and_then(|message| message.message)
    }

    /// Skips messages until the test accepts one.
    pub(crate) async fn until<T>(
        &mut self,
        mut wanted: impl FnMut(worker_message::Message) -> Option<T>,
    ) -> T {
        loop {
            if let Some(found) = wanted(self.next().await) {
                return found;
            }
        }
    }

    pub(crate) async fn answer(&mut self) -> v1::Answer {
        let answers = self.until(|message| match message {
            worker_message::Message::Answers(answers) => Some(answers.answers),
            _ => None,
        });
        let answers = answers.await;
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.into_iter().next().unwrap()
    }

    pub(crate) async fn credits(&mut self) -> v1::Credits {
        let credits = |message| match message {
            worker_message::Message::Credits(credits) => Some(credits),
            _ => None,
        };
        self.until(credits).await
    }

    pub(crate) async fn beat(&mut self) -> v1::Beat {
        let beat = |message| match message {
            worker_message::Message::Beat(beat) => Some(beat),
            _ => None,
        };
        self.until(beat).await
    }
}

/// A task in the form in which a broker hands it out.
pub(crate) fn claimed(id: &str, kind: &str, payload: &str) -> v1::ClaimedTask {
    v1::ClaimedTask {
        id: id.into(),
        queue: "default".into(),
        r#type: kind.into(),
        payload: payload.to_string().into(),
        attempt: 1,
        claim_token: 1,
        ..v1::ClaimedTask::default()
    }
}

/// Accepts every task and names it after its payload.
pub(crate) fn ids(request: &v1::EnqueueManyRequest) -> v1::EnqueueManyReply {
    let id = |task: &v1::NewTask| format!("id-{}", String::from_utf8_lossy(&task.payload));
    let result = |task| v1::EnqueueResult { id: id(task), duplicate: false, error: None };
    v1::EnqueueManyReply { results: request.tasks.iter().map(result).collect() }
}

/// A refusal as the broker sends it.
pub(crate) fn status(code: tonic::Code, own_code: &'static str) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("taskyard-code", own_code.parse().unwrap());
    Status::with_metadata(code, "as the test says", metadata)
}

struct Service(Arc<State>);

type Unused<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Calls that no test with this broker makes.
macro_rules! unused {
    ($($name:ident($request:ty) -> $reply:ty;)*) => {
        $(fn $name<'a, 'b>(
            &'a self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<$reply>, Status>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($name))) })
        })*
    };
}

#[tonic::async_trait]
impl Taskyard for Service {
    type EnqueueStreamStream = Unused<v1::EnqueueManyReply>;
    type WorkStream = ReceiverStream<Result<v1::BrokerMessage, Status>>;
    type PurgeQueueStream = Unused<v1::BulkReply>;
    type RetryDeadStream = Unused<v1::BulkReply>;
    type DiscardDeadStream = Unused<v1::BulkReply>;
    type BackupStream = Unused<v1::BackupChunk>;

    async fn enqueue_many(
        &self,
        request: Request<v1::EnqueueManyRequest>,
    ) -> Result<Response<v1::EnqueueManyReply>, Status> {
        let request = request.into_inner();
        let number = {
            let mut many = self.0.many.lock().unwrap();
            many.push(request.clone());
            many.len() - 1
        };
        self.0.arrived.send_replace(number + 1);
        let mut gate = self.0.gate.subscribe();
        gate.wait_for(|open| *open).await.unwrap();
        (self.0.answer)(number, &request).map(Response::new)
    }

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let (outgoing, messages) = mpsc::channel(16);
        let metadata = request.metadata().clone();
        let stream = WorkerStream { metadata, incoming: request.into_inner(), outgoing };
        self.0.streams.send(stream).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn get_info(&self, _: Request<v1::GetInfoRequest>) -> Result<Response<v1::Info>, Status> {
        Ok(Response::new(v1::Info { version: "fake".into(), ..v1::Info::default() }))
    }

    unused! {
        enqueue(v1::EnqueueRequest) -> v1::EnqueueReply;
        enqueue_batch(v1::EnqueueBatchRequest) -> v1::EnqueueBatchReply;
        enqueue_stream(Streaming<v1::EnqueueManyRequest>) -> Self::EnqueueStreamStream;
        claim(v1::ClaimRequest) -> v1::ClaimReply;
        ack(v1::AckRequest) -> v1::AckReply;
        fail(v1::FailRequest) -> v1::FailReply;
        extend(v1::ExtendRequest) -> v1::ExtendReply;
        release(v1::ReleaseRequest) -> v1::ReleaseReply;
        snooze(v1::SnoozeRequest) -> v1::SnoozeReply;
        cancel(v1::CancelRequest) -> v1::CancelReply;
        retry(v1::RetryRequest) -> v1::RetryReply;
        get_task(v1::GetTaskRequest) -> v1::Task;
        list_tasks(v1::ListTasksRequest) -> v1::ListTasksReply;
        get_result(v1::GetResultRequest) -> v1::GetResultReply;
        why_task(v1::WhyTaskRequest) -> v1::WhyTaskReply;
        list_queues(v1::ListQueuesRequest) -> v1::ListQueuesReply;
        get_queue(v1::QueueRequest) -> v1::Queue;
        pause_queue(v1::QueueRequest) -> v1::QueueReply;
        delete_queue(v1::QueueRequest) -> v1::QueueReply;
        resume_queue(v1::QueueRequest) -> v1::QueueReply;
        purge_queue(v1::QueueRequest) -> Self::PurgeQueueStream;
        get_queue_settings(v1::QueueRequest) -> v1::QueueSettings;
        set_queue_settings(v1::SetQueueSettingsRequest) -> v1::QueueSettings;
        retry_dead(v1::DeadRequest) -> Self::RetryDeadStream;
        discard_dead(v1::DeadRequest) -> Self::DiscardDeadStream;
        submit_flow(v1::SubmitFlowRequest) -> v1::SubmitFlowReply;
        get_flow(v1::GetFlowRequest) -> v1::Flow;
        list_flows(v1::ListFlowsRequest) -> v1::ListFlowsReply;
        cancel_flow(v1::FlowRequest) -> v1::FlowReply;
        retry_flow(v1::FlowRequest) -> v1::FlowReply;
        add_flow_tasks(v1::AddFlowTasksRequest) -> v1::AddFlowTasksReply;
        set_schedule(v1::SetScheduleRequest) -> v1::SetScheduleReply;
        get_schedule(v1::ScheduleRequest) -> v1::Schedule;
        list_schedules(v1::ListSchedulesRequest) -> v1::ListSchedulesReply;
        remove_schedule(v1::ScheduleRequest) -> v1::RemoveScheduleReply;
        pause_schedule(v1::PauseScheduleRequest) -> v1::Schedule;
        resume_schedule(v1::ScheduleRequest) -> v1::Schedule;
        trigger_schedule(v1::ScheduleRequest) -> v1::EnqueueReply;
        backfill_schedule(v1::BackfillScheduleRequest) -> v1::BackfillScheduleReply;
        list_workers(v1::ListWorkersRequest) -> v1::ListWorkersReply;
        quiet_worker(v1::WorkerRequest) -> v1::WorkerReply;
        stop_worker(v1::WorkerRequest) -> v1::WorkerReply;
        get_cluster(v1::GetClusterRequest) -> v1::Cluster;
        drain_node(v1::DrainNodeRequest) -> v1::OperateReply;
        remove_node(v1::RemoveNodeRequest) -> v1::OperateReply;
        transfer_shard(v1::TransferShardRequest) -> v1::OperateReply;
        set_replication(v1::SetReplicationRequest) -> v1::OperateReply;
        backup(v1::BackupRequest) -> Self::BackupStream;
    }
}
