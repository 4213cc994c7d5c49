//! Bad input over gRPC is refused with the same codes and words as over HTTP, and changes nothing.

use crate::common::{Broker, code, queues, task};
use taskyard_proto::v1;
use tonic::Code;

const INVALID: &str = "invalid_argument";

async fn task_count(broker: &Broker) -> u64 {
    let queues = broker.grpc().await.list_queues(v1::ListQueuesRequest::default()).await.unwrap();
    queues.into_inner().queues.iter().map(|queue| queue.enqueued_total).sum()
}

#[tokio::test]
async fn grpc_refuses_the_same() {
    let broker = Broker::start().await;
    let mut client = broker.grpc().await;
    let base = || task("q", "t");
    for (bad, words) in [
        (v1::NewTask { priority: Some(12), ..base() }, "priority 12 is not 0 to 9"),
        (v1::NewTask { r#type: String::new(), ..base() }, "type"),
        (v1::NewTask { delay_ms: Some(1), run_at: Some(1), ..base() }, "exclude each other"),
        (
            v1::NewTask { run_at: Some(253_370_764_800_000), ..base() },
            "run_at 9999-01-01T00:00:00.000Z is more than ten years ahead",
        ),
        (v1::NewTask { delay_ms: Some(u64::MAX), ..base() }, "delay"),
        (
            v1::NewTask {
                retry: Some(v1::RetryPolicy { jitter: Some(f64::NAN), ..Default::default() }),
                ..base()
            },
            "retry.jitter NaN",
        ),
        (
            v1::NewTask {
                retry: Some(v1::RetryPolicy { policy: 77, ..Default::default() }),
                ..base()
            },
            "retry.policy 77",
        ),
    ] {
        let status = client.enqueue(v1::EnqueueRequest { task: Some(bad) }).await.unwrap_err();
        assert_eq!((status.code(), code(&status)), (tonic::Code::InvalidArgument, INVALID));
        assert!(status.message().contains(words), "{status:?} does not say {words}");
    }
    let status = client.enqueue(v1::EnqueueRequest { task: None }).await.unwrap_err();
    assert_eq!(code(&status), INVALID);
    let request = v1::EnqueueManyRequest { tasks: vec![base()], batch_id: vec![1, 2] };
    let status = client.enqueue_many(request).await.unwrap_err();
    assert!(status.message().contains("batch_id has 2 bytes"), "{status:?}");
    let request = v1::GetTaskRequest { id: "x".into(), without_payload: false };
    assert_eq!(code(&client.get_task(request).await.unwrap_err()), INVALID);
    assert_eq!(task_count(&broker).await, 0);
    broker.stop().await;
}

#[tokio::test]
async fn bytes_that_are_not_utf8_are_refused() {
    let broker = Broker::start().await;
    // Field 2 (type) of the task has a byte that is not UTF-8.
    let mut grpc = tonic::client::Grpc::new(channel(&broker).await);
    grpc.ready().await.unwrap();
    let path = "/taskyard.v1.Taskyard/Enqueue".parse().unwrap();
    let message = b"\x0a\x03\x12\x01\xff".to_vec();
    let status = grpc.unary(tonic::Request::new(message), path, RawCodec).await.unwrap_err();
    assert_eq!(
        (status.code(), code(&status)),
        (tonic::Code::InvalidArgument, INVALID),
        "{status:?}"
    );
    assert_eq!(task_count(&broker).await, 0);
    broker.stop().await;
}

async fn channel(broker: &Broker) -> tonic::transport::Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", broker.address));
    endpoint.unwrap().connect().await.unwrap()
}

/// Sends bytes as they are.
#[derive(Default)]
struct RawCodec;

impl tonic::codec::Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = RawCodec;
    type Decoder = RawCodec;

    fn encoder(&mut self) -> RawCodec {
        RawCodec
    }

    fn decoder(&mut self) -> RawCodec {
        RawCodec
    }
}

impl tonic::codec::Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(
        &mut self,
        item: Vec<u8>,
        out: &mut tonic::codec::EncodeBuf<'_>,
    ) -> Result<(), tonic::Status> {
        bytes::BufMut::put_slice(out, &item);
        Ok(())
    }
}

impl tonic::codec::Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(
        &mut self,
        source: &mut tonic::codec::DecodeBuf<'_>,
    ) -> Result<Option<Vec<u8>>, tonic::Status> {
        let mut item = vec![0; bytes::Buf::remaining(source)];
        bytes::Buf::copy_to_slice(source, &mut item);
        Ok(Some(item))
    }
}

#[tokio::test]
async fn a_retry_that_the_state_forbids_is_a_failed_precondition() {
    let broker = Broker::start().await;
    let mut grpc = broker.grpc().await;
    let request = v1::EnqueueRequest { task: Some(task("q", "t")) };
    let id = grpc.enqueue(request).await.unwrap().into_inner().id;
    let claim = v1::ClaimRequest { queues: queues(&["q"]), ..v1::ClaimRequest::default() };
    assert_eq!(grpc.claim(claim).await.unwrap().into_inner().tasks.len(), 1);
    let refused = grpc.retry(v1::RetryRequest { id, ..Default::default() }).await.unwrap_err();
    assert_eq!((refused.code(), code(&refused)), (Code::FailedPrecondition, "conflict"));
    broker.stop().await;
}
