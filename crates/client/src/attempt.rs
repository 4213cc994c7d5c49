//! Attempt: runs a handler once and reports the result.
//!
//! Whatever the handler does (panic, overrun its time, ignore a cancellation), the attempt ends
//! with an answer. The only exception is an attempt whose claim is lost, because the broker no
//! longer accepts its answer.

use crate::{
    BoxError, CancelReason, Client, Fail, TaskContext, TaskError, TaskRequest, TaskResponse,
    TaskService,
    context::States,
    fail::Then,
    session::{Assigned, ClaimKey, Report, Reports, Slot},
};
use std::{
    any::Any,
    backtrace::{Backtrace, BacktraceStatus},
    cell::{Cell, RefCell},
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::{Pin, pin},
    sync::{Arc, Once},
    task::{Context, Poll},
    time::{Duration, Instant},
};
use taskyard_proto::v1::{self, answer::Answer};
use tokio::sync::watch;
use tower::ServiceExt;

/// How long a handler that was asked to stop may take before its future is dropped.
pub(crate) const CANCEL_GRACE: Duration = Duration::from_secs(3);
/// The broker keeps no more of an error, so that longer texts are cut here to spare the wire.
const ERROR_TEXT_BYTES_MAX: usize = 16 << 10;

/// The parts that every attempt of a worker needs.
#[derive(Clone)]
pub(crate) struct Attempts {
    pub(crate) service: TaskService,
    pub(crate) client: Client,
    pub(crate) states: Arc<States>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) reports: Reports,
}

impl Attempts {
    /// Runs one attempt and reports its end.
    pub(crate) async fn run(self, assigned: Assigned) {
        let Assigned { task, stopper } = assigned;
        let slot = Arc::new(Slot(self.reports.clone()));
        let mut ending =
            Ending { key: ClaimKey::of(&task), answer: None, reports: self.reports.clone() };
        let timeout = task.timeout_ms.map(Duration::from_millis).or(self.timeout);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let cancel = stopper.subscribe();
        let context = TaskContext::new(
            task,
            deadline,
            cancel.clone(),
            self.reports,
            self.client,
            self.states,
        );
        let request = TaskRequest::new(context.clone(), Arc::clone(&slot));
        let work = CatchPanic(Box::pin(self.service.oneshot(request)));
        let expired = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = supervise(work, cancel) => outcome,
            () = expired => {
                stopper.stop(CancelReason::Timeout);
                Outcome::TimedOut(timeout.unwrap_or_default())
            }
        };
        ending.answer = outcome.into_answer(&context);
        drop(ending);
        drop(slot);
    }
}

/// Reports the end of an attempt, even if the attempt is dropped with its runtime.
struct Ending {
    key: ClaimKey,
    answer: Option<Answer>,
    reports: Reports,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.reports.send(Report::Ended { key: self.key.clone(), answer: self.answer.take() });
    }
}

/// How an attempt ended.
enum Outcome {
    Done(TaskResponse),
    /// The handler returned after it was asked to stop.
    Yielded(TaskResponse, CancelReason),
    /// The handler was dropped because it did not stop.
    Dropped(CancelReason),
    TimedOut(Duration),
}

/// Waits for the handler, or until it must be dropped because it was asked to stop.
async fn supervise(
    mut work: CatchPanic<impl Future<Output = Result<TaskResponse, BoxError>>>,
    mut cancel: watch::Receiver<Option<CancelReason>>,
) -> Outcome {
    let reason = tokio::select! {
        biased;
        response = &mut work => {
            let reason = *cancel.borrow();
            return match reason {
                Some(reason) => Outcome::Yielded(response, reason),
                None => Outcome::Done(response),
            };
        }
        reason = stopped(&mut cancel) => reason,
    };
    if reason == CancelReason::Lost {
        return Outcome::Dropped(reason);
    }
    let lost = async {
        while stopped(&mut cancel).await != CancelReason::Lost {
            if cancel.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let lost = pin!(lost);
    tokio::select! {
        biased;
        response = &mut work => Outcome::Yielded(response, reason),
        () = lost => Outcome::Dropped(CancelReason::Lost),
        () = tokio::time::sleep(CANCEL_GRACE) => Outcome::Dropped(reason),
    }
}

async fn stopped(cancel: &mut watch::Receiver<Option<CancelReason>>) -> CancelReason {
    let reason = cancel.wait_for(Option::is_some).await.ok().and_then(|reason| *reason);
    match reason {
        Some(reason) => reason,
        // The session is gone, so that nothing can stop the attempt any more.
        None => std::future::pending().await,
    }
}

impl Outcome {
    /// The answer for the broker; `None` if the claim is lost.
    fn into_answer(self, context: &TaskContext) -> Option<Answer> {
        let key = context.key();
        let answer = match self {
            Outcome::Done(response) => answer(response, context),
            Outcome::Yielded(response, CancelReason::Shutdown) => match &response.outcome {
                // The handler stopped because the worker shuts down; the task runs elsewhere and
                // spends nothing.
                Err(Fail { then: Then::Policy | Then::Cancelled, .. }) => release(key),
                _ => answer(response, context),
            },
            Outcome::Yielded(_, CancelReason::Lost) | Outcome::Dropped(CancelReason::Lost) => {
                return None;
            }
            Outcome::Yielded(response, _) => answer(response, context),
            Outcome::Dropped(CancelReason::Shutdown) => release(key),
            Outcome::Dropped(_) => {
                let message = format!("the handler went on for {CANCEL_GRACE:?} and was dropped");
                fail(key, Fail::from(message).kind("cancelled"))
            }
            Outcome::TimedOut(timeout) => {
                let message = format!("the attempt ran longer than its timeout of {timeout:?}");
                fail(key, Fail::from(message).kind("timeout"))
            }
        };
        Some(answer)
    }
}

fn answer(response: TaskResponse, context: &TaskContext) -> Answer {
    let key = context.key();
    match response.outcome {
        Ok(result) => Answer::Ack(v1::AckRequest {
            id: key.id.clone(),
            claim_token: key.token,
            result,
            enqueue: context.take_follow_ups(),
        }),
        Err(Fail { then: then @ (Then::Snooze(until) | Then::PushBackKey(until)), .. }) => {
            let (delay_ms, run_at) = until.into_wire();
            let (id, claim_token) = (key.id.clone(), key.token);
            let hold_key = matches!(then, Then::PushBackKey(_));
            Answer::Snooze(v1::SnoozeRequest { id, claim_token, delay_ms, run_at, hold_key })
        }
        Err(failed) => fail(key, failed),
    }
}

fn release(key: &ClaimKey) -> Answer {
    Answer::Release(v1::ReleaseRequest { id: key.id.clone(), claim_token: key.token })
}

fn fail(key: &ClaimKey, fail: Fail) -> Answer {
    let Fail { mut error, then } = fail;
    cut(&mut error.message);
    cut(&mut error.backtrace);
    let (retry_at, retry_after_ms) = then.retry_wire();
    Answer::Fail(v1::FailRequest {
        id: key.id.clone(),
        claim_token: key.token,
        error: Some(error.into()),
        retry_at,
        retry_after_ms,
        not_retryable: then == Then::Never,
    })
}

fn cut(text: &mut String) {
    if text.len() > ERROR_TEXT_BYTES_MAX {
        let end = (0..=ERROR_TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
}

/// A future whose panic is a failure.
struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future<Output = Result<TaskResponse, BoxError>>> Future for CatchPanic<F> {
    type Output = TaskResponse;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<TaskResponse> {
        match caught(|| self.0.as_mut().poll(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(Ok(response))) => Poll::Ready(response),
            // A layer rejected the task or failed.
            Ok(Poll::Ready(Err(error))) => Poll::Ready(TaskResponse::failed(error)),
            Err(panic) => Poll::Ready(TaskResponse::failed(panic)),
        }
    }
}

thread_local! {
    /// The number of nested handler calls on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The place of the last panic in a handler on this thread.
    static SITE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Calls a handler; a panic becomes a failure that names its place.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Fail> {
    DEPTH.set(DEPTH.get() + 1);
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|payload| {
        let backtrace = SITE.take().unwrap_or_default();
        let message = panic_message(&*payload);
        let error = TaskError { kind: "panic".to_string(), message, backtrace };
        Fail { error, then: Then::Policy }
    })
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_string()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "the handler panicked with a value that is no text".to_string()
    }
}

/// Records the places of panics in handlers, and then calls the previous panic hook.
///
/// A caught panic does not carry its place, so that only a hook can learn it. Panics outside of
/// handlers go to the previous hook alone.
pub(crate) fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if DEPTH.get() > 0 {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                let backtrace = Backtrace::capture();
                let site = match backtrace.status() {
                    BacktraceStatus::Captured => format!("{place}\n{backtrace}"),
                    _ => place,
                };
                SITE.set(Some(site));
            }
            previous(info);
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_that_says_what_and_where() {
        watch_panics();
        let fail = caught(|| -> u8 { panic!("no way") }).unwrap_err();
        assert_eq!(fail.error().to_string(), "panic: no way");
        assert!(fail.error().backtrace.starts_with(file!()), "{}", fail.error().backtrace);
        assert_eq!(caught(|| 7).unwrap(), 7);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut text = "ä".repeat(ERROR_TEXT_BYTES_MAX);
        cut(&mut text);
        assert_eq!(text.len(), ERROR_TEXT_BYTES_MAX);
        let mut odd = format!("a{text}");
        cut(&mut odd);
        assert_eq!(odd.len(), ERROR_TEXT_BYTES_MAX - 1);
    }
}
