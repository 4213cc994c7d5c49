//! gRPC `taskyard.v1`: decode, call the broker, encode.

mod cluster;
mod flow;
mod scan;
mod schedule;
mod shapes;
mod status;
mod unique;
mod wire;
mod work;

pub(super) use scan::Scan;
pub(super) use status::{CODE_KEY, TOO_LARGE, grpc_code, too_large};

use crate::{
    Broker, Error,
    broker::{
        BulkJob, ClaimAsked, Edit, FlowsAsked, ListAsked, ListOrder, check_batch_length, check_wait,
    },
    cluster::{Operation, Workers},
    front::edge,
    limits::{self, STREAM_BATCHES_MAX},
    sessions::Activity,
};
use futures_util::{Stream, StreamExt, stream};
use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
use taskyard_machine::{Ack, ClaimToken, DeadAction, FlowFilter, Timestamp};
use taskyard_proto::v1::{self, taskyard_server::Taskyard};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// The service, with its broker.
#[derive(Clone, Debug)]
pub(super) struct Grpc {
    broker: Broker,
    /// Limits the backups in progress.
    backups: Arc<Semaphore>,
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Grpc {
    pub(super) fn new(broker: Broker) -> Grpc {
        Grpc { broker, backups: Arc::new(Semaphore::new(limits::BACKUPS_MAX)) }
    }

    fn many(
        &self,
        request: &v1::EnqueueManyRequest,
    ) -> Result<impl Future<Output = v1::EnqueueManyReply> + Send + use<>, Error> {
        let batch_id = edge::batch_id(&request.batch_id)?;
        check_batch_length(request.tasks.len())?;
        let items = request.tasks.iter().map(|task| wire::enqueue(&self.broker, task)).collect();
        let answers = self.broker.enqueue_many(items, batch_id);
        Ok(async move {
            let results = answers.await.iter().map(wire::enqueue_result).collect();
            v1::EnqueueManyReply { results }
        })
    }

    async fn operate(&self, operation: Operation) -> Result<Response<v1::OperateReply>, Status> {
        self.broker.operate(operation).await?;
        Ok(Response::new(v1::OperateReply {}))
    }

    fn dead(
        &self,
        action: DeadAction,
        request: Request<v1::DeadRequest>,
    ) -> Result<Response<Replies<v1::BulkReply>>, Status> {
        let selection = wire::dead_selection(request.into_inner())?;
        Ok(Response::new(reports(self.broker.dead(action, selection)?)))
    }
}

/// A job's reports, as a stream that ends with the job.
fn reports(job: BulkJob) -> Replies<v1::BulkReply> {
    let next = |mut job: BulkJob| async { job.next().await.map(|r| (wire::bulk_reply(r), job)) };
    Box::pin(stream::unfold(job, next))
}

#[tonic::async_trait]
impl Taskyard for Grpc {
    async fn enqueue(
        &self,
        request: Request<v1::EnqueueRequest>,
    ) -> Result<Response<v1::EnqueueReply>, Status> {
        let task = request.into_inner().task.unwrap_or_default();
        let enqueued = self.broker.enqueue(wire::enqueue(&self.broker, &task)?).await?;
        Ok(Response::new(wire::enqueue_reply(enqueued)))
    }

    async fn enqueue_batch(
        &self,
        request: Request<v1::EnqueueBatchRequest>,
    ) -> Result<Response<v1::EnqueueBatchReply>, Status> {
        let enqueued = {
            let request = request.into_inner();
            let queue = wire::queue_or_default(&request.queue);
            let batch_id = edge::batch_id(&request.batch_id)?;
            check_batch_length(request.tasks.len())?;
            let tasks = request.tasks.iter().enumerate();
            let tasks =
                tasks.map(|(index, task)| wire::batch_task(&self.broker, queue, index, task));
            self.broker.enqueue_batch(queue, tasks.collect::<Result<_, _>>()?, batch_id)?
        };
        let tasks = enqueued.await?.into_iter().map(wire::enqueue_reply).collect();
        Ok(Response::new(v1::EnqueueBatchReply { tasks }))
    }

    async fn enqueue_many(
        &self,
        request: Request<v1::EnqueueManyRequest>,
    ) -> Result<Response<v1::EnqueueManyReply>, Status> {
        let reply = self.many(&request.into_inner())?;
        Ok(Response::new(reply.await))
    }

    type EnqueueStreamStream = Replies<v1::EnqueueManyReply>;

    async fn enqueue_stream(
        &self,
        request: Request<Streaming<v1::EnqueueManyRequest>>,
    ) -> Result<Response<Self::EnqueueStreamStream>, Status> {
        let (grpc, broker) = (self.clone(), self.broker.clone());
        let stopping = {
            let broker = broker.clone();
            async move { broker.stopping().await }
        };
        let requests = request.into_inner().take_until(stopping);
        let replies = requests.map(move |message| {
            // Encoded here, in order, so that the await does not keep the request in memory.
            let reply = message.map_err(status::with_code).and_then(|m| Ok(grpc.many(&m)?));
            async move { Ok(reply?.await) }
        });
        let end = stream::once(async move {
            let stopped = broker.is_stopping();
            stopped.then(|| Err(Error::Unavailable(work::STOPPING.into()).into()))
        });
        let replies =
            replies.buffered(STREAM_BATCHES_MAX).chain(end.filter_map(std::future::ready));
        Ok(Response::new(Box::pin(replies)))
    }

    async fn claim(
        &self,
        request: Request<v1::ClaimRequest>,
    ) -> Result<Response<v1::ClaimReply>, Status> {
        let request = request.into_inner();
        let places = self.broker.places(&wire::queue_weights(request.queues))?;
        let places = places.of_types(request.types)?;
        let asked = ClaimAsked {
            tasks_max: request.max.max(1),
            lease_ms: wire::lease_ms(request.lease_ms),
            session: None,
            begun: false,
            worker: request.worker,
        };
        let tasks = self.broker.claim(&places, &asked, check_wait(request.wait_ms)?).await?;
        let tasks = tasks.into_iter().map(wire::claimed_task).collect();
        Ok(Response::new(v1::ClaimReply { tasks }))
    }

    async fn ack(
        &self,
        request: Request<v1::AckRequest>,
    ) -> Result<Response<v1::AckReply>, Status> {
        let request = request.into_inner();
        let follow_ups = self.broker.ack(ack(&self.broker, &request)?).await?;
        Ok(Response::new(ack_reply(&follow_ups)))
    }

    async fn fail(
        &self,
        request: Request<v1::FailRequest>,
    ) -> Result<Response<v1::FailReply>, Status> {
        let request = request.into_inner();
        let after = self.broker.fail(wire::fail(&request)?).await?;
        Ok(Response::new(wire::fail_reply(after)))
    }

    async fn extend(
        &self,
        request: Request<v1::ExtendRequest>,
    ) -> Result<Response<v1::ExtendReply>, Status> {
        let request = request.into_inner();
        let (lease_expires_at, cancel_requested) =
            self.broker.extend(wire::extend(&request)?).await?;
        let lease_expires_at = lease_expires_at.0;
        Ok(Response::new(v1::ExtendReply { lease_expires_at, cancel_requested }))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseReply>, Status> {
        let state = self.broker.release(wire::release(request.get_ref())?).await?;
        Ok(Response::new(v1::ReleaseReply { state: state.as_str().into() }))
    }

    async fn snooze(
        &self,
        request: Request<v1::SnoozeRequest>,
    ) -> Result<Response<v1::SnoozeReply>, Status> {
        let (run_at, state) = self.broker.snooze(wire::snooze(request.get_ref())?).await?;
        Ok(Response::new(v1::SnoozeReply { run_at: run_at.0, state: state.as_str().into() }))
    }

    type WorkStream = ReceiverStream<Result<v1::BrokerMessage, Status>>;

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        Ok(Response::new(work::start(self.broker.clone(), request.into_inner())))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        let state = self.broker.cancel(edge::task_id(&request.get_ref().id)?).await?;
        Ok(Response::new(v1::CancelReply { state: state.as_str().into() }))
    }

    async fn retry(
        &self,
        request: Request<v1::RetryRequest>,
    ) -> Result<Response<v1::RetryReply>, Status> {
        let request = request.into_inner();
        let headers = (!request.headers.is_empty()).then(|| wire::headers(&request.headers));
        let payload =
            request.payload.as_deref().map(|bytes| (bytes, request.content_type.as_str()));
        let edited = payload.is_some() || headers.is_some();
        let edit = edited.then_some(Edit { payload, headers });
        self.broker.retry(edge::task_id(&request.id)?, edit).await?;
        Ok(Response::new(v1::RetryReply { state: "ready".into() }))
    }

    async fn get_task(
        &self,
        request: Request<v1::GetTaskRequest>,
    ) -> Result<Response<v1::Task>, Status> {
        let request = request.into_inner();
        let found = self.broker.task(edge::task_id(&request.id)?, !request.without_payload).await?;
        Ok(Response::new(wire::task(found)))
    }

    async fn list_tasks(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksReply>, Status> {
        let request = request.into_inner();
        let filter = request.filter.unwrap_or_default();
        let asked = ListAsked {
            queue: wire::given(filter.queue),
            state: wire::given(filter.state).map(|word| edge::state(&word)).transpose()?,
            task_type: wire::given(filter.r#type),
            error: wire::given(filter.error),
            tag: wire::given(filter.tag),
            flow: wire::given(filter.flow).map(|id| edge::flow_id(&id)).transpose()?,
            cursor: wire::given(request.cursor),
            limit: if request.limit == 0 { edge::PAGE_TASKS_DEFAULT } else { request.limit },
            order: if request.newest_first { ListOrder::Newest } else { ListOrder::Id },
            since: request.since.map(Timestamp),
            with_body: request.with_payload,
        };
        let page = self.broker.tasks(asked).await?;
        let tasks = page.tasks.into_iter().map(wire::task).collect();
        Ok(Response::new(v1::ListTasksReply { tasks, cursor: page.cursor.unwrap_or_default() }))
    }

    async fn get_result(
        &self,
        request: Request<v1::GetResultRequest>,
    ) -> Result<Response<v1::GetResultReply>, Status> {
        let request = request.into_inner();
        let wait = check_wait(request.wait_ms)?;
        let result = self.broker.result(edge::task_id(&request.id)?, wait).await?;
        Ok(Response::new(v1::GetResultReply {
            state: result.state.as_str().into(),
            result: result.result,
            error: result.error.map(wire::error_reply),
        }))
    }

    async fn why_task(
        &self,
        request: Request<v1::WhyTaskRequest>,
    ) -> Result<Response<v1::WhyTaskReply>, Status> {
        let reasons = self.broker.why(edge::task_id(&request.into_inner().id)?).await?;
        let reasons = reasons.into_iter().map(wire::wait_reason).collect();
        Ok(Response::new(v1::WhyTaskReply { reasons }))
    }

    async fn list_queues(
        &self,
        request: Request<v1::ListQueuesRequest>,
    ) -> Result<Response<v1::ListQueuesReply>, Status> {
        let v1::ListQueuesRequest { cursor, limit } = request.into_inner();
        let limit = if limit == 0 { edge::PAGE_TASKS_DEFAULT } else { limit };
        let page = self.broker.queue_page(wire::given(cursor), limit).await?;
        let queues = page.queues.iter().map(wire::queue).collect();
        let cursor = page.cursor.unwrap_or_default();
        Ok(Response::new(v1::ListQueuesReply { queues, cursor }))
    }

    async fn get_queue(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<Response<v1::Queue>, Status> {
        let view = self.broker.queue(&request.get_ref().queue).await?;
        Ok(Response::new(wire::queue(&view)))
    }

    async fn pause_queue(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<Response<v1::QueueReply>, Status> {
        self.broker.pause(&request.get_ref().queue).await?;
        Ok(Response::new(v1::QueueReply {}))
    }

    async fn resume_queue(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<Response<v1::QueueReply>, Status> {
        self.broker.resume(&request.get_ref().queue).await?;
        Ok(Response::new(v1::QueueReply {}))
    }

    async fn delete_queue(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<Response<v1::QueueReply>, Status> {
        self.broker.delete_queue(&request.get_ref().queue).await?;
        Ok(Response::new(v1::QueueReply {}))
    }

    type PurgeQueueStream = Replies<v1::BulkReply>;

    async fn purge_queue(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<Response<Self::PurgeQueueStream>, Status> {
        Ok(Response::new(reports(self.broker.purge(&request.get_ref().queue).await?)))
    }

    async fn get_queue_settings(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<Response<v1::QueueSettings>, Status> {
        let settings = self.broker.queue_settings(&request.get_ref().queue).await?;
        Ok(Response::new(wire::queue_settings_reply(&settings)))
    }

    async fn set_queue_settings(
        &self,
        request: Request<v1::SetQueueSettingsRequest>,
    ) -> Result<Response<v1::QueueSettings>, Status> {
        let request = request.into_inner();
        let settings = wire::queue_settings(&request.settings.unwrap_or_default())?;
        self.broker.set_queue(&request.queue, settings.clone()).await?;
        Ok(Response::new(wire::queue_settings_reply(&settings)))
    }

    type RetryDeadStream = Replies<v1::BulkReply>;

    async fn retry_dead(
        &self,
        request: Request<v1::DeadRequest>,
    ) -> Result<Response<Self::RetryDeadStream>, Status> {
        self.dead(DeadAction::Retry, request)
    }

    type DiscardDeadStream = Replies<v1::BulkReply>;

    async fn discard_dead(
        &self,
        request: Request<v1::DeadRequest>,
    ) -> Result<Response<Self::DiscardDeadStream>, Status> {
        self.dead(DeadAction::Discard, request)
    }

    async fn submit_flow(
        &self,
        request: Request<v1::SubmitFlowRequest>,
    ) -> Result<Response<v1::SubmitFlowReply>, Status> {
        let submitted = {
            let request = request.into_inner();
            let batch_id = edge::batch_id(&request.batch_id)?;
            let nodes = flow::nodes(&self.broker, &request.nodes)?;
            self.broker.submit_flow(&request.name, nodes, request.retention_ms, batch_id)?
        };
        let submitted = submitted.await?;
        let (id, duplicate) = (submitted.id.to_string(), submitted.duplicate);
        let tasks = flow::ids(submitted.tasks);
        Ok(Response::new(v1::SubmitFlowReply { id, tasks, duplicate }))
    }

    async fn get_flow(
        &self,
        request: Request<v1::GetFlowRequest>,
    ) -> Result<Response<v1::Flow>, Status> {
        let request = request.into_inner();
        let wait = check_wait(request.wait_ms)?;
        let id = edge::flow_id(&request.id)?;
        let found = self.broker.flow(id, wait, !request.without_nodes).await?;
        Ok(Response::new(flow::found(found)))
    }

    async fn list_flows(
        &self,
        request: Request<v1::ListFlowsRequest>,
    ) -> Result<Response<v1::ListFlowsReply>, Status> {
        let request = request.into_inner();
        let state = wire::given(request.state).map(|word| edge::flow_state(&word)).transpose()?;
        let asked = FlowsAsked {
            filter: FlowFilter { name: wire::given(request.name), state },
            cursor: wire::given(request.cursor),
            limit: if request.limit == 0 { edge::PAGE_TASKS_DEFAULT } else { request.limit },
        };
        let (flows, cursor) = self.broker.flows(asked).await?;
        let flows = flows.iter().map(flow::summary).collect();
        Ok(Response::new(v1::ListFlowsReply { flows, cursor: cursor.unwrap_or_default() }))
    }

    async fn cancel_flow(
        &self,
        request: Request<v1::FlowRequest>,
    ) -> Result<Response<v1::FlowReply>, Status> {
        let state = self.broker.cancel_flow(edge::flow_id(&request.get_ref().id)?).await?;
        Ok(Response::new(v1::FlowReply { state: state.as_str().into() }))
    }

    async fn retry_flow(
        &self,
        request: Request<v1::FlowRequest>,
    ) -> Result<Response<v1::FlowReply>, Status> {
        let state = self.broker.retry_flow(edge::flow_id(&request.get_ref().id)?).await?;
        Ok(Response::new(v1::FlowReply { state: state.as_str().into() }))
    }

    async fn add_flow_tasks(
        &self,
        request: Request<v1::AddFlowTasksRequest>,
    ) -> Result<Response<v1::AddFlowTasksReply>, Status> {
        let request = request.into_inner();
        let id = edge::flow_id(&request.flow_id)?;
        // No claim has the token 0.
        if request.claim_token == 0 {
            let text =
                "claim_token is missing; only a running task adds tasks, send that of its claim";
            return Err(Error::Invalid(text.into()).into());
        }
        let token = ClaimToken(request.claim_token);
        let nodes = flow::nodes(&self.broker, &request.nodes)?;
        let tasks = self.broker.add_flow_tasks(id, &request.parent, token, nodes).await?;
        Ok(Response::new(v1::AddFlowTasksReply { tasks: flow::ids(tasks) }))
    }

    async fn set_schedule(
        &self,
        request: Request<v1::SetScheduleRequest>,
    ) -> Result<Response<v1::SetScheduleReply>, Status> {
        let schedule = request.into_inner().schedule.unwrap_or_default();
        let spec = schedule::spec(&self.broker, &schedule)?;
        let (found, created) = self.broker.set_schedule(&schedule.name, spec).await?;
        let schedule = Some(schedule::reply(&found));
        Ok(Response::new(v1::SetScheduleReply { schedule, created }))
    }

    async fn get_schedule(
        &self,
        request: Request<v1::ScheduleRequest>,
    ) -> Result<Response<v1::Schedule>, Status> {
        let found = self.broker.schedule(&request.get_ref().name).await?;
        Ok(Response::new(schedule::reply(&found)))
    }

    async fn list_schedules(
        &self,
        request: Request<v1::ListSchedulesRequest>,
    ) -> Result<Response<v1::ListSchedulesReply>, Status> {
        let request = request.into_inner();
        let limit = if request.limit == 0 { edge::PAGE_TASKS_DEFAULT } else { request.limit };
        let page = self.broker.schedules(wire::given(request.cursor), limit).await?;
        let schedules = page.schedules.iter().map(schedule::reply).collect();
        let cursor = page.cursor.unwrap_or_default();
        Ok(Response::new(v1::ListSchedulesReply { schedules, cursor }))
    }

    async fn remove_schedule(
        &self,
        request: Request<v1::ScheduleRequest>,
    ) -> Result<Response<v1::RemoveScheduleReply>, Status> {
        self.broker.remove_schedule(&request.get_ref().name).await?;
        Ok(Response::new(v1::RemoveScheduleReply {}))
    }

    async fn pause_schedule(
        &self,
        request: Request<v1::PauseScheduleRequest>,
    ) -> Result<Response<v1::Schedule>, Status> {
        let v1::PauseScheduleRequest { name, note } = request.into_inner();
        let found = self.broker.pause_schedule(&name, &note).await?;
        Ok(Response::new(schedule::reply(&found)))
    }

    async fn resume_schedule(
        &self,
        request: Request<v1::ScheduleRequest>,
    ) -> Result<Response<v1::Schedule>, Status> {
        let found = self.broker.resume_schedule(&request.get_ref().name).await?;
        Ok(Response::new(schedule::reply(&found)))
    }

    async fn trigger_schedule(
        &self,
        request: Request<v1::ScheduleRequest>,
    ) -> Result<Response<v1::EnqueueReply>, Status> {
        let id = self.broker.trigger_schedule(&request.get_ref().name).await?;
        Ok(Response::new(v1::EnqueueReply { id: id.to_string(), duplicate: false }))
    }

    async fn backfill_schedule(
        &self,
        request: Request<v1::BackfillScheduleRequest>,
    ) -> Result<Response<v1::BackfillScheduleReply>, Status> {
        let v1::BackfillScheduleRequest { name, from, to } = request.into_inner();
        let enqueued = self.broker.backfill_schedule(&name, Timestamp(from), Timestamp(to)).await?;
        Ok(Response::new(v1::BackfillScheduleReply { enqueued }))
    }

    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersReply>, Status> {
        let Workers { workers, missing } = self.broker.workers().await?;
        let workers = workers.into_iter().map(wire::worker).collect();
        Ok(Response::new(v1::ListWorkersReply { workers, missing_nodes: missing }))
    }

    async fn quiet_worker(
        &self,
        request: Request<v1::WorkerRequest>,
    ) -> Result<Response<v1::WorkerReply>, Status> {
        self.broker.order_worker(&request.get_ref().id, Activity::Quiet).await?;
        Ok(Response::new(v1::WorkerReply {}))
    }

    async fn stop_worker(
        &self,
        request: Request<v1::WorkerRequest>,
    ) -> Result<Response<v1::WorkerReply>, Status> {
        self.broker.order_worker(&request.get_ref().id, Activity::Stopping).await?;
        Ok(Response::new(v1::WorkerReply {}))
    }

    async fn get_cluster(
        &self,
        _: Request<v1::GetClusterRequest>,
    ) -> Result<Response<v1::Cluster>, Status> {
        Ok(Response::new(cluster::reply(self.broker.cluster().await)))
    }

    async fn drain_node(
        &self,
        request: Request<v1::DrainNodeRequest>,
    ) -> Result<Response<v1::OperateReply>, Status> {
        let v1::DrainNodeRequest { node, undo } = request.into_inner();
        self.operate(Operation::Drain { node, drains: !undo }).await
    }

    async fn remove_node(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::OperateReply>, Status> {
        let v1::RemoveNodeRequest { node, force } = request.into_inner();
        self.operate(Operation::Remove { node, force }).await
    }

    async fn transfer_shard(
        &self,
        request: Request<v1::TransferShardRequest>,
    ) -> Result<Response<v1::OperateReply>, Status> {
        let v1::TransferShardRequest { shard, node } = request.into_inner();
        let shard = edge::shard_id(&shard.to_string())?;
        self.operate(Operation::Transfer { shard, node }).await
    }

    async fn set_replication(
        &self,
        request: Request<v1::SetReplicationRequest>,
    ) -> Result<Response<v1::OperateReply>, Status> {
        let factor = edge::replication(request.get_ref().factor)?;
        self.operate(Operation::SetReplication { factor }).await
    }

    type BackupStream = Replies<v1::BackupChunk>;

    async fn backup(
        &self,
        _: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let backups_max = limits::BACKUPS_MAX;
        let place = self.backups.clone().try_acquire_owned().map_err(|_none_left| {
            Error::LimitExceeded(format!(
                "{backups_max} backups are under way; wait for one to end"
            ))
        })?;
        let shards = self.broker.shards().count().into();
        let parts = self.broker.backup().await?;
        let parts = read_in_time(parts, place).map(move |part| {
            let part = part?;
            let shards_done = part.shards_done.into();
            Ok(v1::BackupChunk { data: part.data, shards_done, shards })
        });
        Ok(Response::new(Box::pin(parts)))
    }

    async fn get_info(&self, _: Request<v1::GetInfoRequest>) -> Result<Response<v1::Info>, Status> {
        let info = self.broker.info().await?;
        Ok(Response::new(v1::Info {
            version: info.version.into(),
            cluster_id: info.cluster_id,
            shards: info.shards.into(),
            now: info.now.0,
        }))
    }
}

/// Passes `parts` on, and drops them if the client stops reading. A stream that is not read is not
/// polled either, so another task must watch the time.
fn read_in_time<T: Send + 'static>(
    mut parts: mpsc::Receiver<Result<T, Error>>,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<T, Error>> + Send {
    let (outbound, read) = mpsc::channel(1);
    let (ended, end) = oneshot::channel();
    tokio::spawn(async move {
        let _place = place;
        let patience = Duration::from_millis(limits::BACKUP_STALL_MS_MAX);
        while let Some(part) = parts.recv().await {
            if !matches!(timeout(patience, outbound.send(part)).await, Ok(Ok(()))) {
                return;
            }
        }
        let _ = ended.send(());
    });
    // Without this, a client that comes back would take the part it has for the whole backup.
    let cut = stream::once(end).filter_map(|end| async move {
        let text = "the backup was not read for too long; take it again";
        end.is_err().then(|| Err(Error::Unavailable(text.into())))
    });
    ReceiverStream::new(read).chain(cut)
}

/// An ack, with its follow-ups checked and routed.
fn ack<'a>(broker: &Broker, request: &'a v1::AckRequest) -> Result<Ack<'a>, Error> {
    let follow_up = |task| broker.follow_up(wire::enqueue(broker, task)?);
    Ok(Ack {
        task: edge::task_id(&request.id)?,
        token: ClaimToken(request.claim_token),
        result: request.result.as_deref(),
        follow_ups: request.enqueue.iter().map(follow_up).collect::<Result<_, _>>()?,
    })
}

fn ack_reply(follow_ups: &[taskyard_machine::TaskId]) -> v1::AckReply {
    v1::AckReply { enqueued: follow_ups.iter().map(ToString::to_string).collect() }
}

/// How long a worker may take to read what its stream is sent.
const SEND_WITHIN: Duration = Duration::from_millis(limits::WORKER_READ_MS_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_backup_that_is_not_read_ends_and_its_reader_gets_an_error() {
        let (sender, parts) = mpsc::channel(4);
        let places = Arc::new(Semaphore::new(1));
        let place = places.clone().try_acquire_owned().unwrap();
        let mut read = Box::pin(read_in_time(parts, place));
        for number in 0..4 {
            sender.send(Ok(number)).await.unwrap();
        }
        assert_eq!(read.next().await.unwrap().unwrap(), 0);
        // The client reads no more: the writer learns it, and the next backup has a place.
        sender.closed().await;
        let _next = places.acquire().await.unwrap();
        assert_eq!(read.next().await.unwrap().unwrap(), 1);
        assert_eq!(read.next().await.unwrap().unwrap_err().code(), "unavailable");
        assert!(read.next().await.is_none());
    }

    #[tokio::test]
    async fn a_backup_that_is_read_ends_well() {
        let (sender, parts) = mpsc::channel(1);
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let read = read_in_time(parts, place);
        sender.send(Ok(7)).await.unwrap();
        drop(sender);
        let all: Vec<_> = read.map(Result::unwrap).collect().await;
        assert_eq!(all, [7]);
    }
}
