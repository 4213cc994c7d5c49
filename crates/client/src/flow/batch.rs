//! Batch: jobs that belong together, and callbacks that run once they are done, as in Sidekiq.

use super::{Flow, FlowResults, IntoFlow, Node, Reading};
use crate::NewTask;

/// Jobs that belong together, with callbacks that run when all of them are done.
///
/// `on_success` runs once every job has succeeded. `on_complete` runs once every job has ended,
/// with or without success, and sees the errors with [`parents`](crate::TaskContext::parents). A
/// job that is retried has not ended. A running job may add further jobs to its own batch with
/// [`add_tasks`](crate::TaskContext::add_tasks); both callbacks then wait for those as well. The
/// callbacks of a batch without jobs run at once.
///
/// ```no_run
/// # async fn example(client: taskyard::Client) -> Result<(), taskyard::Error> {
/// use taskyard::{NewTask, flow::Batch};
///
/// let rows = (0..100).map(|row| NewTask::new("import_row", &row));
/// let batch = Batch::new("import")
///     .jobs(rows)
///     .on_success(NewTask::new("publish", &"catalogue"))
///     .on_complete(NewTask::new("send_report", &"ada@example.com"));
/// client.submit(batch).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a batch does nothing until it is submitted"]
pub struct Batch {
    name: String,
    jobs: Vec<NewTask>,
    on_success: Option<NewTask>,
    on_complete: Option<NewTask>,
}

impl Batch {
    /// The name of the node that runs when all jobs have succeeded.
    pub const ON_SUCCESS: &'static str = "on_success";
    /// The name of the node that runs when all jobs have ended.
    pub const ON_COMPLETE: &'static str = "on_complete";

    /// An empty batch. The name is for people.
    pub fn new(name: impl Into<String>) -> Batch {
        Batch { name: name.into(), jobs: Vec::new(), on_success: None, on_complete: None }
    }

    /// Adds a job.
    pub fn job(mut self, job: impl Into<NewTask>) -> Batch {
        self.jobs.push(job.into());
        self
    }

    /// Adds many jobs.
    pub fn jobs(self, jobs: impl IntoIterator<Item = impl Into<NewTask>>) -> Batch {
        jobs.into_iter().fold(self, Batch::job)
    }

    /// Sets the task that runs once every job has succeeded. If a job fails, this task fails
    /// without having run.
    pub fn on_success(mut self, callback: impl Into<NewTask>) -> Batch {
        self.on_success = Some(callback.into());
        self
    }

    /// Sets the task that runs once every job has ended, with or without success.
    pub fn on_complete(mut self, callback: impl Into<NewTask>) -> Batch {
        self.on_complete = Some(callback.into());
        self
    }

    /// The number of jobs so far.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether the batch has no job yet.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

impl IntoFlow for Batch {
    type Output = FlowResults;

    fn into_flow(self) -> (Flow, Reading<FlowResults>) {
        let flow = Flow::new(self.name);
        let jobs: Vec<Node> = flow.add_numbered(self.jobs);
        if let Some(callback) = self.on_success {
            flow.add(Batch::ON_SUCCESS, callback).after(&jobs);
        }
        if let Some(callback) = self.on_complete {
            flow.add(Batch::ON_COMPLETE, callback).after_any_end(&jobs);
        }
        (flow, Reading::of_all())
    }
}
