//! Rust SDK for Taskyard, a distributed task queue.
//!
//! Producers [enqueue](Client::enqueue) tasks, [workers](Worker) claim and run them. Once an
//! enqueue has returned, its task is on disk. A task whose worker dies runs again. A task that
//! fails is retried by its policy, and then kept as a dead letter.
//!
//! # A task, its producer and its worker
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use taskyard::{Client, Fail, Task, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct SendMail {
//!     to: String,
//! }
//!
//! impl Task for SendMail {
//!     const NAME: &'static str = "send_mail";
//!     const QUEUE: &'static str = "mail";
//!     type Output = ();
//! }
//!
//! async fn send_mail(mail: SendMail) -> Result<(), Fail> {
//!     println!("mail to {}", mail.to);
//!     Ok(())
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("http://127.0.0.1:7400").await?;
//! client.enqueue(SendMail { to: "ada@example.com".into() }).priority(9).await?;
//!
//! let worker = Worker::builder(&client).concurrency(16).task(send_mail).build()?;
//! worker.run_until(tokio::signal::ctrl_c()).await?;
//! # Ok(()) }
//! ```
//!
//! # Enqueueing
//! Each option of a task is a method between [`Client::enqueue`] and `.await`: queue, priority,
//! delay, retry policy, timeout, tags. Use [`Client::task`] for a type that is known only by name,
//! [`Client::batch`] for an atomic batch, and [`Enqueued::result`] for the result.
//!
//! Concurrent enqueues share requests automatically, so a busy program need not batch. An enqueue
//! without an answer is repeated, on the other servers of the cluster too; the repetition never
//! enqueues the task twice. Set a `request_id` to make your own repetitions safe as well, and a
//! [`Unique`] key if only one of several tasks should wait or run at a time.
//!
//! A client of several servers goes back to the first one once it is ready again, see
//! [`Client::builder`].
//!
//! Tasks that depend on each other are a [`Flow`]. Tasks that repeat by cron or at an interval are
//! set once with [`Client::schedule`].
//!
//! # Handlers
//! A handler is a plain async function. Its first argument may be the payload; further arguments
//! are anything that can be taken [from a task](FromTask): [`TaskContext`], [`State`],
//! [`RawPayload`]. It returns a `Result`. Any error is a failure that is retried by the task's
//! policy; [`Fail`] and [`Snooze`] choose another step. A panic is a failure too. Blocking
//! functions go to [`WorkerBuilder::blocking_handler`]. Middleware is any `tower`
//! [layer](WorkerBuilder::layer).
//!
//! Execution is at-least-once: if a worker dies after its work and before its answer, another
//! worker runs the task again. [`TaskContext::id`] is the same in every attempt and serves as an
//! idempotency key. [`TaskContext::claim_token`] grows with every attempt and serves as a fence.
//!
//! # Features
//! - `embedded`: the broker inside your own process, on a directory, with the same API.
//! - `testing`: an embedded broker on a temporary directory, with a clock that the test moves.
#![warn(missing_docs)]

mod attempt;
mod bulk;
mod claim;
mod client;
mod cluster;
mod connection;
mod context;
#[cfg(feature = "embedded")]
mod embedded;
mod enqueue;
mod error;
mod fail;
pub mod flow;
mod gather;
mod handler;
mod inspect;
mod list;
mod new_task;
mod operate;
mod queue;
mod random;
mod result;
mod retry;
pub mod schedule;
mod session;
mod task;
#[cfg(feature = "testing")]
pub mod testing;
mod timestamp;
mod unique;
mod why;
mod worker;

pub use bulk::{Bulk, BulkProgress, DeadLetters};
pub use claim::{Claim, ClaimedTask};
pub use client::{Client, ClientBuilder};
pub use cluster::{ClusterDetails, ClusterNode, ReplicaDetails, ShardDetails};
pub use context::{CancelReason, TaskContext};
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
pub use enqueue::{Batch, Enqueue, Enqueued};
pub use error::Error;
pub use fail::{BoxError, Cancelled, Fail, Snooze, Throttled};
pub use flow::{Flow, FlowHandle, FlowId};
pub use handler::{
    BlockingHandler, FromTask, Handler, IntoResult, Json, RawPayload, RawResult, State,
    TaskHandler, TaskRequest, TaskResponse, TaskService,
};
pub use inspect::{AttemptDetails, ClaimDetails, Progress, TaskDetails};
pub use list::{TaskFilter, Tasks};
pub use new_task::NewTask;
pub use operate::{Backup, BackupChunk, BrokerDetails, WorkerDetails, WorkerList};
pub use queue::{PerKey, Queue, QueueDetails, QueueSettings, Queues, Rate};
pub use result::{ResultOf, TaskOutcome};
pub use retry::{RetryGrowth, RetryPolicy};
pub use schedule::{Schedule, ScheduleDetails};
pub use task::{Task, TaskError, TaskId, TaskState};
pub use timestamp::Timestamp;
pub use unique::{OnConflict, Unique, UniqueDetails, UniqueUntil};
pub use why::WaitReason;
pub use worker::{Broker, Worker, WorkerBuilder, WorkerHandle};

/// Compiles the README's example like every other example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
