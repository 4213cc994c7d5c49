//! Rust SDK for Taskyard, a distributed task queue.
//!
//! Producers [enqueue](Client::enqueue), [workers](Worker) claim and execute. An enqueue that has
//! returned is on disk; a task whose worker dies runs again; a task that fails is retried by its
//! policy and then kept as a dead letter.
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
//! Everything that can be said about a task is a method between [`Client::enqueue`] and `.await`:
//! queue, priority, delay, retry policy, timeout, tags. Types that are known by name alone go through
//! [`Client::task`]; an atomic batch through [`Client::batch`]; the result comes back through
//! [`Enqueued::result`].
//!
//! Concurrent enqueues share requests by themselves, so a busy program need not batch. An enqueue
//! that gets no answer is repeated, on the other servers of the cluster too, and is never enqueued
//! twice by that. Give it a `request_id` to make your own repetitions safe as well, and a [`Unique`] key
//! where only one of several tasks should wait or run at a time.
//!
//! A client that knows several servers goes back to the first of them once that one is ready again, see
//! [`Client::builder`].
//!
//! Tasks that depend on each other are a [`Flow`]; tasks that come again by cron or at an interval are set
//! once with [`Client::schedule`].
//!
//! # Handlers
//! A handler is a plain async function. It takes the payload first, if it wants it, and then whatever
//! can be taken [from a task](FromTask): [`TaskContext`], [`State`], [`RawPayload`]. It returns a
//! `Result`; any error is a failure that is retried by the task's policy, and [`Fail`] and [`Snooze`]
//! say otherwise. A panic is a failure too. Functions that block go to
//! [`WorkerBuilder::blocking_handler`]. Middleware is any `tower` [layer](WorkerBuilder::layer).
//!
//! Execution is at-least-once: a worker that dies after its work and before its answer is replaced by
//! another. [`TaskContext::id`] is the same in every attempt and serves as an idempotency key,
//! [`TaskContext::claim_token`] grows with every attempt and serves as a fence.
//!
//! # Features
//! - `embedded`: the broker inside your own process, on a directory, with the same API.
//! - `testing`: the same on a temporary directory, with a clock that the test moves.
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
pub use queue::{PerKey, Queue, QueueDetails, QueueSettings, Rate};
pub use result::{ResultOf, TaskOutcome};
pub use retry::{RetryGrowth, RetryPolicy};
pub use schedule::{Schedule, ScheduleDetails};
pub use task::{Task, TaskError, TaskId, TaskState};
pub use timestamp::Timestamp;
pub use unique::{OnConflict, Unique, UniqueDetails, UniqueUntil};
pub use why::WaitReason;
pub use worker::{Broker, Worker, WorkerBuilder, WorkerHandle};

/// The README's example compiles, as every example here does.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
