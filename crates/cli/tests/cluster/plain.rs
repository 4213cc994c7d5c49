//! Plain: calls to one node without the SDK, so that the test sees every single answer.

use crate::cluster::history::{Answer, Claimed, Made, Seen};
use std::{error::Error, future::Future, time::Duration};
use taskyard_proto::v1::{
    AckRequest, ClaimRequest, ClaimedTask, EnqueueRequest, GetTaskRequest, NewTask, QueueWeight,
    taskyard_client::TaskyardClient,
};
use tonic::{
    ConnectError, Response, Status,
    transport::{Channel, Endpoint},
};

/// A paused node answers nothing; after this time a client tries another node.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a claim waits for a task.
const CLAIM_WAIT: Duration = Duration::from_millis(500);

/// A client of one node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Plain(pub(crate) TaskyardClient<Channel>);

impl Plain {
    /// Connects at the first call, and again after each lost connection.
    pub(crate) fn to(url: &str) -> Plain {
        let endpoint = Endpoint::from_shared(url.to_owned()).unwrap().connect_timeout(PATIENCE);
        let client = TaskyardClient::new(endpoint.connect_lazy());
        Plain(client.max_decoding_message_size(64 << 20))
    }

    pub(crate) async fn enqueue(&self, queue: &str, request: &str) -> Answer<Made> {
        let task = Some(NewTask {
            queue: queue.into(),
            r#type: "chaos".into(),
            payload: request.to_owned().into(),
            content_type: "text/plain".into(),
            request_id: Some(request.into()),
            ..NewTask::default()
        });
        let mut client = self.0.clone();
        let reply = sort(client.enqueue(EnqueueRequest { task })).await;
        reply.map(|reply| Made { id: reply.id, first: !reply.duplicate })
    }

    pub(crate) async fn claim(
        &self,
        queues: &[String],
        max: u32,
        lease: Duration,
        worker: &str,
    ) -> Answer<Vec<Claimed>> {
        let queue = |name: &String| QueueWeight { name: name.clone(), weight: 0 };
        let request = ClaimRequest {
            queues: queues.iter().map(queue).collect(),
            max,
            lease_ms: u64::try_from(lease.as_millis()).unwrap(),
            wait_ms: u64::try_from(CLAIM_WAIT.as_millis()).unwrap(),
            worker: worker.into(),
            types: vec![],
        };
        let mut client = self.0.clone();
        let reply = sort(client.claim(request)).await;
        reply.map(|reply| reply.tasks.into_iter().map(claimed).collect())
    }

    pub(crate) async fn ack(&self, id: &str, token: u64) -> Answer<()> {
        let result = Some(token.to_string().into());
        let request = AckRequest { id: id.into(), claim_token: token, result, enqueue: vec![] };
        let mut client = self.0.clone();
        sort(client.ack(request)).await.map(drop)
    }

    pub(crate) async fn look(&self, id: &str) -> Answer<Seen> {
        let request = GetTaskRequest { id: id.into(), without_payload: true };
        let mut client = self.0.clone();
        let reply = sort(client.get_task(request)).await;
        reply.map(|task| Seen { state: task.state, worker: task.claim.map(|claim| claim.worker) })
    }
}

fn claimed(task: ClaimedTask) -> Claimed {
    Claimed { id: task.id, token: task.claim_token, parents: task.parents.len() }
}

/// Waits for an answer and sorts it. Without a code of the broker the outcome is unknown, unless
/// there never was a connection.
async fn sort<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Answer<T> {
    let code = |status: &Status| {
        let code = status.metadata().get("taskyard-code").and_then(|code| code.to_str().ok());
        let mut causes = std::iter::successors(status.source(), |error| (*error).source());
        let otherwise = match causes.any(|error| error.is::<ConnectError>()) {
            true => "unavailable",
            false => "outcome_unknown",
        };
        code.unwrap_or(otherwise).to_owned()
    };
    match tokio::time::timeout(PATIENCE, call).await {
        Ok(Ok(reply)) => Answer::Is(reply.into_inner()),
        Ok(Err(status)) => Answer::no(&code(&status)),
        Err(_) => Answer::Unknown,
    }
}
