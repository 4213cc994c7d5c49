//! Intake: counts the bytes of every request on its way in, and of its answer on its way out.
//!
//! A call reserves memory in [`Buffers`] before anything is read: its own cost, and the length of
//! its body or of each gRPC message, where that is known. A body that stops coming is given up, see
//! [`Progress`]. `outflow.rs` counts the answer.

use super::{
    browser::is_grpc,
    connection::ALWAYS_ANSWERED,
    grpc::Scan,
    outflow::{Door, Outflow},
    problem::Problem,
};
use crate::{
    Error,
    buffers::{Buffers, Reserved},
    limits::{self, BODY_BYTES_MAX, CALL_BYTES},
};
use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{Method, StatusCode},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use hyper::body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tonic::Status;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// gRPC calls that change nothing, so that their answers may be refused.
const READS: [&str; 14] = [
    "GetTask",
    "ListTasks",
    "GetResult",
    "WhyTask",
    "ListQueues",
    "GetQueue",
    "GetQueueSettings",
    "GetFlow",
    "ListFlows",
    "GetSchedule",
    "ListSchedules",
    "ListWorkers",
    "GetCluster",
    "GetInfo",
];

/// Counts a call with its request and its answer.
pub(super) async fn count(
    State(buffers): State<Buffers>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if ALWAYS_ANSWERED.contains(&path) {
        return next.run(request).await;
    }
    let is_grpc = is_grpc(request.headers());
    let is_read = match is_grpc {
        true => path.rsplit('/').next().is_some_and(|method| READS.contains(&method)),
        false => request.method() == Method::GET,
    };
    let scan = is_grpc.then(|| Scan::new(path));
    let door = request.extensions_mut().remove::<Door>();
    let door = door.unwrap_or_else(|| Door::new(&buffers));
    let mut call = match door.buffers().reserve(CALL_BYTES) {
        Ok(call) => call,
        Err(error) => return refusal(is_grpc, error),
    };
    let kept = match request.body().is_end_stream() {
        true => None,
        false => {
            let length = request.body().size_hint().exact().unwrap_or(0);
            // The handler refuses a body that is too large, without reading it.
            let length = usize::try_from(length).ok().filter(|length| *length <= BODY_BYTES_MAX);
            let counted = if is_grpc { 0 } else { length.unwrap_or(0) };
            let reserved = match door.buffers().reserve(counted) {
                Ok(reserved) => Arc::new(Mutex::new(reserved)),
                Err(error) => {
                    tokio::spawn(discard(request.into_body(), call));
                    return refusal(is_grpc, error);
                }
            };
            let intake = |body| Body::new(Intake::new(body, scan, Arc::clone(&reserved), counted));
            request = request.map(intake);
            Some(reserved)
        }
    };
    let response = next.run(request).await;
    // The handler is done with the body, unless it is a stream, which counts for itself.
    drop(kept);
    call.shrink_to(CALL_BYTES / 4);
    match Outflow::count(response, &door, call, is_read, is_grpc) {
        Ok(response) => response,
        Err(error) => refusal(is_grpc, error),
    }
}

/// Reads a refused body and keeps nothing of it. Over HTTP/1 the client would otherwise be cut off
/// while it writes, and never read the reason.
async fn discard(body: Body, _call: Reserved) {
    let mut pieces = body.into_data_stream();
    let read = async { while let Some(Ok(_)) = pieces.next().await {} };
    let _ = timeout(PERIOD, read).await;
}

fn refusal(is_grpc: bool, error: Error) -> Response {
    match is_grpc {
        true => Status::from(error).into_http::<Body>(),
        false => Problem::from(error).into_response(),
    }
}

/// A body that is counted as it comes in.
struct Intake {
    body: Body,
    scan: Option<Scan>,
    reserved: Arc<Mutex<Reserved>>,
    /// The bytes that are counted, some before they arrive, and the bytes that have arrived.
    counted: usize,
    arrived: usize,
    progress: Progress,
}

/// The progress of a body: each period must bring a number of bytes, or the end.
#[derive(Default)]
struct Progress {
    /// Runs while bytes are awaited.
    until: Option<Pin<Box<Sleep>>>,
    /// The bytes of this period.
    bytes: usize,
}

const PERIOD: Duration = Duration::from_millis(limits::BODY_PROGRESS_MS_MAX);

impl Progress {
    /// Notes bytes that came.
    fn note(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= limits::BODY_PROGRESS_BYTES_MIN {
            self.bytes = 0;
            if let Some(until) = &mut self.until {
                until.as_mut().reset(Instant::now() + PERIOD);
            }
        }
    }

    /// Notes that no bytes are owed at the moment.
    fn rest(&mut self) {
        *self = Progress::default();
    }

    /// Completes when a period has brought too few bytes.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.until.get_or_insert_with(|| Box::pin(sleep(PERIOD))).as_mut().poll(context)
    }
}

impl Intake {
    fn new(
        body: Body,
        scan: Option<Scan>,
        reserved: Arc<Mutex<Reserved>>,
        counted: usize,
    ) -> Intake {
        Intake { body, scan, reserved, counted, arrived: 0, progress: Progress::default() }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.note(bytes.len());
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scan) = &mut self.scan {
            scan.take(bytes, &mut reserved)?;
            if scan.is_at_rest() {
                self.progress.rest();
            }
            return Ok(());
        }
        self.arrived += bytes.len();
        let beyond = self.arrived.saturating_sub(self.counted);
        self.counted += beyond;
        reserved.grow(beyond)
    }

    /// The error in the form that the reader of this body understands.
    fn error(&self, error: Error) -> BoxError {
        match self.scan {
            Some(_) => Box::new(Status::from(error)),
            None => Box::new(Cut { error, is_stalled: false }),
        }
    }

    fn stalled(&self, text: String) -> BoxError {
        match self.scan {
            // A worker whose network stood still opens another stream.
            Some(_) => Box::new(Status::from(Error::Unavailable(text))),
            None => Box::new(Cut { error: Error::Invalid(text), is_stalled: true }),
        }
    }
}

impl HttpBody for Intake {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            if self.scan.as_ref().is_some_and(Scan::is_at_rest) {
                // The handler that asks for the next message is done with the last one.
                self.reserved.lock().unwrap_or_else(PoisonError::into_inner).shrink_to(0);
                return Poll::Pending;
            }
            ready!(self.progress.poll(context));
            let (bytes, period) = (limits::BODY_PROGRESS_BYTES_MIN, PERIOD);
            let text = format!(
                "the body stopped coming: each {period:?} must bring {bytes} bytes of it or its end"
            );
            return Poll::Ready(Some(Err(self.stalled(text))));
        };
        let taken = match &frame {
            Some(Ok(frame)) => frame.data_ref().map(|bytes| self.take(bytes)),
            _ => None,
        };
        Poll::Ready(match taken {
            Some(Err(error)) => Some(Err(self.error(error))),
            _ => frame.map(|frame| frame.map_err(BoxError::from)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The reason why this node cut a body off.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
struct Cut {
    error: Error,
    is_stalled: bool,
}

/// The problem in a handler's error about its body, if this node cut the body off.
pub(super) fn problem_in(error: &(dyn std::error::Error + 'static)) -> Option<Problem> {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(Cut { error, is_stalled }) = error.downcast_ref::<Cut>() {
            let problem = Problem::from(error.clone());
            return Some(match is_stalled {
                true => problem.with_status(StatusCode::REQUEST_TIMEOUT),
                false => problem,
            });
        }
        source = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, body::to_bytes, middleware::from_fn_with_state, routing::post};
    use futures_util::stream;
    use prost::Message;
    use std::{convert::Infallible, future::poll_fn};
    use taskyard_proto::v1;
    use tower::ServiceExt;

    const MIB: usize = 1 << 20;

    async fn read(body: Body) -> Response {
        match to_bytes(body, usize::MAX).await {
            Ok(bytes) => bytes.len().to_string().into_response(),
            Err(error) => problem_in(&error).unwrap().into_response(),
        }
    }

    fn router(buffers: &Buffers) -> Router {
        Router::new()
            .route("/", post(read).get(|| async { vec![b'x'; 4 * MIB] }))
            .layer(from_fn_with_state(buffers.clone(), count))
    }

    async fn code(response: Response) -> (StatusCode, String) {
        let status = response.status();
        let body = to_bytes(response.into_body(), 10 * MIB).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        (status, problem["code"].as_str().unwrap_or_default().to_owned())
    }

    fn pieces(bytes: usize) -> Body {
        let pieces = (0..bytes / 1_000).map(|_| Ok::<_, Infallible>(vec![b'x'; 1_000]));
        Body::from_stream(stream::iter(pieces))
    }

    #[tokio::test]
    async fn a_body_that_does_not_fit_is_refused_with_limit_exceeded() {
        let buffers = Buffers::new(0);
        let _held = buffers.reserve(47 * MIB).unwrap();
        let known = Body::from(vec![b'x'; 2 * MIB]);
        for body in [known, pieces(2 * MIB)] {
            let request = Request::post("/").body(body).unwrap();
            let refused = code(router(&buffers).oneshot(request).await.unwrap()).await;
            assert_eq!(refused, (StatusCode::TOO_MANY_REQUESTS, "limit_exceeded".into()));
            // The call itself is counted until its body is discarded.
            while buffers.bytes() > 47 * MIB {
                tokio::task::yield_now().await;
            }
        }
        let request = Request::post("/").body(Body::from("small")).unwrap();
        let served = router(&buffers).oneshot(request).await.unwrap();
        assert_eq!(served.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn an_answer_is_counted_until_it_is_taken() {
        let buffers = Buffers::new(0);
        let get = || Request::get("/").body(Body::empty()).unwrap();
        let mut answers = Vec::new();
        let refused = loop {
            let response = router(&buffers).oneshot(get()).await.unwrap();
            match response.status() {
                StatusCode::OK => answers.push(response),
                _ => break code(response).await,
            }
            assert!(answers.len() < 100, "nobody counts");
        };
        assert_eq!(refused, (StatusCode::TOO_MANY_REQUESTS, "limit_exceeded".into()));
        assert!(buffers.bytes() >= answers.len() * 4 * MIB);
        // Bytes on their way to the socket are counted too.
        let mut body = answers.pop().unwrap().into_body().into_data_stream();
        let before = buffers.bytes();
        let piece = body.next().await.unwrap().unwrap();
        assert_eq!(buffers.bytes(), before);
        let bytes = piece.len();
        drop(piece);
        assert_eq!(buffers.bytes(), before - bytes);
        drop((body, answers));
        assert_eq!(buffers.bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_too_slowly_is_given_up() {
        let buffers = Buffers::new(0);
        let slow = stream::unfold((), |()| async {
            sleep(PERIOD / 10).await;
            Some((Ok::<_, Infallible>(vec![b'x'; limits::BODY_PROGRESS_BYTES_MIN / 20]), ()))
        });
        let request = Request::post("/").body(Body::from_stream(slow)).unwrap();
        let begun = Instant::now();
        let refused = code(router(&buffers).oneshot(request).await.unwrap()).await;
        assert_eq!(refused, (StatusCode::REQUEST_TIMEOUT, "invalid_argument".into()));
        assert!(begun.elapsed() <= 2 * PERIOD);
        assert_eq!(buffers.bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_message_of_grpc_is_given_up_and_may_be_sent_again() {
        let buffers = Buffers::new(0);
        // The head of a message of 100 bytes, and nothing more.
        let half = stream::iter([Ok::<_, Infallible>(vec![0, 0, 0, 0, 100])]);
        let half = Body::from_stream(half.chain(stream::pending()));
        let reserved = Arc::new(Mutex::new(buffers.none()));
        for (call, rests) in [("EnqueueMany", false), ("Work", true)] {
            let idle = Body::from_stream(stream::pending::<Result<Vec<u8>, Infallible>>());
            let idle = Intake::new(idle, Some(Scan::new(call)), Arc::clone(&reserved), 0);
            let ended = tokio::time::timeout(2 * PERIOD, to_bytes(Body::new(idle), MIB)).await;
            assert_eq!(ended.is_err(), rests, "{call} before a message");
        }
        let half = Intake::new(half, Some(Scan::new("Work")), reserved, 0);
        let ended = tokio::time::timeout(2 * PERIOD, to_bytes(Body::new(half), MIB)).await;
        let status = Status::from_error(ended.expect("given up").unwrap_err().into());
        assert_eq!(status.metadata().get("taskyard-code").unwrap(), "unavailable");
    }

    #[tokio::test]
    async fn a_stream_that_rests_counts_for_nothing() {
        let buffers = Buffers::new(0);
        let reserved = Arc::new(Mutex::new(buffers.none()));
        let payload = vec![0; MIB].into();
        let task = v1::NewTask { payload, ..Default::default() };
        let many = v1::EnqueueManyRequest { tasks: vec![task], ..Default::default() };
        let many = many.encode_to_vec();
        let framed = [&[0][..], &(many.len() as u32).to_be_bytes(), &many].concat();
        let body = stream::iter([Ok::<_, Infallible>(framed)]).chain(stream::pending());
        let scan = Some(Scan::new("EnqueueStream"));
        let intake = Intake::new(Body::from_stream(body), scan, Arc::clone(&reserved), 0);
        let mut body = Body::new(intake).into_data_stream();
        body.next().await.unwrap().unwrap();
        assert!(buffers.bytes() > MIB);
        let rests = poll_fn(|context| Poll::Ready(body.poll_next_unpin(context).is_pending()));
        assert!(rests.await);
        assert_eq!(buffers.bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_makes_progress_may_take_long() {
        let buffers = Buffers::new(0);
        let steady = stream::unfold(0, |count| async move {
            sleep(PERIOD / 10).await;
            let piece = vec![b'x'; limits::BODY_PROGRESS_BYTES_MIN / 8];
            (count < 50).then_some((Ok::<_, Infallible>(piece), count + 1))
        });
        let request = Request::post("/").body(Body::from_stream(steady)).unwrap();
        let served = router(&buffers).oneshot(request).await.unwrap();
        assert_eq!(served.status(), StatusCode::OK);
    }
}
