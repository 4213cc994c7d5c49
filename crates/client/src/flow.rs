//! Flows: tasks that depend on each other, submitted as one.
//!
//! A [`Flow`] names its tasks and their parents. The broker runs each task once its parents have
//! ended, gives it their results, and counts the progress. [`chain`], [`group`], [`chord`] and
//! [`Batch`] are flows of common shapes.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use taskyard::{Fail, Flow, Task, TaskContext, testing::TestBroker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Count(String);
//!
//! impl Task for Count {
//!     const NAME: &'static str = "count";
//!     type Output = usize;
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Sum;
//!
//! impl Task for Sum {
//!     const NAME: &'static str = "sum";
//!     type Output = usize;
//! }
//!
//! async fn count(Count(text): Count) -> Result<usize, Fail> {
//!     Ok(text.split_whitespace().count())
//! }
//!
//! async fn sum(_: Sum, context: TaskContext) -> Result<usize, Fail> {
//!     Ok(context.parent_results::<usize>().await?.into_iter().sum())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), taskyard::Error> {
//! let broker = TestBroker::start().await?;
//! let _worker = broker.run(broker.worker().task(count).task(sum))?;
//!
//! let flow = Flow::new("word count");
//! let verse = flow.add("verse", Count("so long as men can breathe".into()));
//! let chorus = flow.add("chorus", Count("or eyes can see".into()));
//! let sum = flow.add("sum", Sum).after([&verse, &chorus]);
//!
//! let words = broker.client().submit(flow).await?.result().await?;
//! assert_eq!(words.of(&sum)?, 10);
//! # Ok(()) }
//! ```

mod batch;
mod details;
mod handle;
mod list;
mod member;
mod node;
mod results;
mod shape;

pub use batch::Batch;
pub use details::{Dependency, FlowDetails, FlowId, FlowMember, FlowState, NodeDetails};
pub use handle::FlowHandle;
pub use list::Flows;
pub use member::Parent;
pub use node::{IntoNode, Node, OnFailure, Parents};
pub use results::{FlowResults, Reading};
pub use shape::{Chain, Chord, Group, chain, chord, group};

use self::node::{Draft, Drafts};
use crate::NewTask;
use std::{collections::BTreeSet, fmt, time::Duration};

/// Tasks that depend on each other, to be submitted together, all or none.
///
/// Up to 10,000 tasks, in any queues. Names must differ. The broker rejects a flow with a cycle,
/// and names its nodes. See the [module](crate::flow) for an example.
#[must_use = "a flow does nothing until it is submitted"]
pub struct Flow {
    pub(crate) name: String,
    pub(crate) retention: Option<Duration>,
    drafts: Drafts,
}

impl Flow {
    /// An empty flow. The name is for people and for searches; it may be empty.
    pub fn new(name: impl Into<String>) -> Flow {
        Flow { name: name.into(), retention: None, drafts: Drafts::default() }
    }

    /// Sets how long the flow and its tasks can be looked up after its end; 24 h by default.
    pub fn retention(mut self, retention: Duration) -> Flow {
        self.retention = Some(retention);
        self
    }

    /// Adds a task under a name: a declared one, or a [`NewTask`]. It runs at once unless it comes
    /// [after](Node::after) other nodes.
    pub fn add<T: IntoNode>(&self, name: impl Into<String>, task: T) -> Node<T::Output> {
        self.drafts.add(name.into(), task.into_task())
    }

    /// The number of tasks so far.
    pub fn len(&self) -> usize {
        self.drafts.lock().len()
    }

    /// Whether the flow has no task yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a task under the name of its type, with a number if that name is taken.
    pub(crate) fn add_fresh<T: IntoNode>(&self, task: T) -> Node<T::Output> {
        let task = task.into_task();
        let kind = task.kind().to_owned();
        let taken: BTreeSet<String> =
            self.drafts.lock().iter().map(|draft| draft.name.clone()).collect();
        let numbered = (2..).map(|number| format!("{kind}-{number}"));
        let mut names = std::iter::once(kind.clone()).chain(numbered);
        let name = names.find(|name| !taken.contains(name)).unwrap_or(kind);
        self.drafts.add(name, task)
    }

    /// Adds tasks under the name of their type, numbered from 1.
    pub(crate) fn add_numbered<T: IntoNode>(
        &self,
        tasks: impl IntoIterator<Item = T>,
    ) -> Vec<Node<T::Output>> {
        let add = |(number, task): (u64, T)| {
            let task: NewTask = task.into_task();
            self.drafts.add(format!("{}-{number}", task.kind()), task)
        };
        (1..).zip(tasks).map(add).collect()
    }

    pub(crate) fn into_drafts(self) -> Vec<Draft> {
        std::mem::take(&mut *self.drafts.lock())
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("name", &self.name).field("len", &self.len()).finish()
    }
}

/// Anything that can be submitted as a flow: a [`Flow`], a [`Chain`], a [`Group`], a [`Chord`], a
/// [`Batch`].
pub trait IntoFlow {
    /// The type of its result.
    type Output;

    /// The flow, and the way to read its result.
    #[doc(hidden)]
    fn into_flow(self) -> (Flow, Reading<Self::Output>);
}

impl IntoFlow for Flow {
    type Output = FlowResults;

    fn into_flow(self) -> (Flow, Reading<FlowResults>) {
        (self, Reading::of_all())
    }
}
