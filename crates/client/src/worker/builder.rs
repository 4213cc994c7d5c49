//! WorkerBuilder: the options of a worker, and the checks that find all mistakes in them at once.

use super::{Broker, Worker};
use crate::{
    BlockingHandler, BoxError, Error, Fail, Handler, Task, TaskHandler, TaskRequest, TaskResponse,
    TaskService,
    attempt::Attempts,
    context::States,
    handler::{StateSet, call_blocking},
    session::Reports,
    timestamp::millis,
};
use std::{
    collections::BTreeMap, convert::Infallible, env, fmt, fs, future::Future, pin::Pin, sync::Arc,
    time::Duration,
};
use taskyard_proto::v1;
use tower::{Layer, Service, ServiceExt};

/// The default number of tasks that run at once.
const CONCURRENCY: usize = 10;
/// The most tasks that the broker hands to one worker at once.
const CONCURRENCY_MAX: usize = 1_000;
/// The most queues of one worker.
const QUEUES_MAX: usize = 64;
/// The most types that one worker may name.
const TYPES_MAX: usize = 256;
/// The bounds of a lease.
const LEASES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(24 * 3_600));
/// The default shutdown grace. Together with the 3 s that cancelled handlers get, it stays below
/// the 30 s after which common supervisors kill a process.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(25);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Route = Arc<dyn Fn(TaskRequest) -> BoxFuture<TaskResponse> + Send + Sync>;
type Wrap = Box<dyn FnOnce(TaskService) -> TaskService + Send>;
type MissingStates = fn(&StateSet<'_>) -> Vec<String>;

/// The options of a [`Worker`]. Made by [`Worker::builder`]; [`build`](WorkerBuilder::build)
/// reports all mistakes at once.
#[must_use = "a builder does nothing until `build`"]
pub struct WorkerBuilder {
    broker: Broker,
    name: Option<String>,
    queues: Vec<v1::QueueWeight>,
    concurrency: usize,
    lease: Option<Duration>,
    timeout: Option<Duration>,
    shutdown_grace: Duration,
    routes: Routes,
    layers: Vec<Wrap>,
    states: States,
    missing: Vec<(String, MissingStates)>,
    problems: Vec<String>,
    /// The queues of declared tasks, which the worker uses if no queue is named.
    task_queues: Vec<&'static str>,
}

#[derive(Clone, Default)]
struct Routes {
    by_kind: BTreeMap<String, Route>,
    fallback: Option<Route>,
}

impl WorkerBuilder {
    pub(super) fn new(broker: Broker) -> WorkerBuilder {
        WorkerBuilder {
            broker,
            name: None,
            queues: Vec::new(),
            concurrency: CONCURRENCY,
            lease: None,
            timeout: None,
            shutdown_grace: SHUTDOWN_GRACE,
            routes: Routes::default(),
            layers: Vec::new(),
            states: States::default(),
            missing: Vec::new(),
            problems: Vec::new(),
            task_queues: Vec::new(),
        }
    }

    /// Adds a queue to claim from. Earlier queues come first: the worker claims from a queue when
    /// the queues before it are empty.
    ///
    /// A worker without a named queue claims from the queues of its declared tasks, or else from
    /// `default`.
    pub fn queue(self, name: impl Into<String>) -> WorkerBuilder {
        self.add_queue(name.into(), 0)
    }

    /// Adds a queue to claim from in proportion to its weight, 1 to 1,000. Queues without a weight
    /// then have weight 1.
    pub fn queue_weighted(mut self, name: impl Into<String>, weight: u32) -> WorkerBuilder {
        let name = name.into();
        if !(1..=1_000).contains(&weight) {
            let problem = format!("queue {name} has weight {weight}; it must be 1 to 1000");
            self.problems.push(problem);
        }
        self.add_queue(name, weight)
    }

    /// Sets how many tasks run at once, 1 to 1,000; 10 by default. The worker never claims more
    /// tasks than it has free slots.
    pub fn concurrency(mut self, tasks: usize) -> WorkerBuilder {
        self.concurrency = tasks;
        self
    }

    /// Sets the lease of the worker's claims, 1 s to 24 h; 30 s by default. The broker renews
    /// leases while the worker lives, so a lease does not limit the run time.
    pub fn lease(mut self, lease: Duration) -> WorkerBuilder {
        self.lease = Some(lease);
        self
    }

    /// Sets how long an attempt may run if its task has no timeout of its own. No limit by default.
    pub fn timeout(mut self, timeout: Duration) -> WorkerBuilder {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how long handlers may go on when the worker stops; 25 s by default. The remaining
    /// handlers are then asked to stop. A handler that has not stopped after 3 s is dropped, and
    /// its task is released.
    pub fn shutdown_grace(mut self, grace: Duration) -> WorkerBuilder {
        self.shutdown_grace = grace;
        self
    }

    /// Sets the name that operators see; the name of the program by default. Need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> WorkerBuilder {
        self.name = Some(name.into());
        self
    }

    /// Shares a value with all handlers that take a [`State`](crate::State) of its type.
    pub fn state<S: Clone + Send + Sync + 'static>(mut self, state: S) -> WorkerBuilder {
        self.states.insert(state);
        self
    }

    /// Runs an async function for tasks of a type known by name.
    ///
    /// Without a [`fallback`](WorkerBuilder::fallback) the worker claims only tasks of the types
    /// that have a handler, and may have handlers for up to 256 types.
    ///
    /// The first argument of the function may be the payload. Up to four arguments [from the
    /// task](crate::FromTask) may follow.
    pub fn handler<H, Arguments>(self, kind: impl Into<String>, handler: H) -> WorkerBuilder
    where
        H: Handler<Arguments>,
    {
        self.add_route(Some(kind.into()), route(handler), H::missing)
    }

    /// Runs an async function for tasks of a declared type, the type of its first argument.
    pub fn task<T, H, Arguments>(mut self, handler: H) -> WorkerBuilder
    where
        T: Task,
        H: TaskHandler<T, Arguments>,
    {
        self.task_queues.push(T::QUEUE);
        let route: Route = Arc::new(move |request| {
            let handler = handler.clone();
            Box::pin(async move { handler.call(request).await })
        });
        self.add_route(Some(T::NAME.to_string()), route, H::missing)
    }

    /// Runs a function that may block, on a thread of its own, for tasks of a type known by name.
    ///
    /// The worker can't stop a thread, so the function should check
    /// [`is_cancelled`](crate::TaskContext::is_cancelled) regularly.
    pub fn blocking_handler<H, Arguments>(
        self,
        kind: impl Into<String>,
        handler: H,
    ) -> WorkerBuilder
    where
        H: BlockingHandler<Arguments>,
        Arguments: 'static,
    {
        let route: Route =
            Arc::new(move |request| Box::pin(call_blocking(handler.clone(), request)));
        self.add_route(Some(kind.into()), route, H::missing)
    }

    /// Runs an async function for tasks of all types without a handler. The worker then claims
    /// tasks of any type.
    pub fn fallback<H, Arguments>(self, handler: H) -> WorkerBuilder
    where
        H: Handler<Arguments>,
    {
        self.add_route(None, route(handler), H::missing)
    }

    /// Puts a `tower` layer around all handlers. The first layer is the outermost.
    ///
    /// A layer gets a [`TaskRequest`] and returns a [`TaskResponse`]. An error of the layer itself
    /// fails the attempt. The worker handles timeouts, panics and cancellation outside of all
    /// layers.
    pub fn layer<L>(mut self, layer: L) -> WorkerBuilder
    where
        L: Layer<TaskService> + Send + 'static,
        L::Service: Service<TaskRequest, Response = TaskResponse> + Clone + Send + Sync + 'static,
        <L::Service as Service<TaskRequest>>::Error: Into<BoxError>,
        <L::Service as Service<TaskRequest>>::Future: Send + 'static,
    {
        self.layers
            .push(Box::new(move |inner| TaskService::new(layer.layer(inner).map_err(Into::into))));
        self
    }

    /// Makes the worker, or reports every mistake in its options.
    pub fn build(mut self) -> Result<Worker, Error> {
        self.check();
        if !self.problems.is_empty() {
            return Err(Error::Invalid(self.problems.join("; ")));
        }
        let client = self.broker.0?;
        let types = self.routes.types();
        let routes = Arc::new(self.routes);
        let routed = tower::service_fn(move |request: TaskRequest| {
            let routes = Arc::clone(&routes);
            async move { Ok::<_, Infallible>(routes.call(request).await) }
        });
        let innermost = TaskService::new(routed.map_err(BoxError::from));
        let service = self.layers.into_iter().rev().fold(innermost, |inner, wrap| wrap(inner));
        let hello = v1::Hello {
            name: self.name.unwrap_or_else(program),
            host: host(),
            pid: std::process::id(),
            version: concat!("taskyard-rust/", env!("CARGO_PKG_VERSION")).to_string(),
            queues: self.queues,
            types,
            slots: u32::try_from(self.concurrency).unwrap_or(u32::MAX),
            lease_ms: self.lease.map_or(0, millis),
            ..v1::Hello::default()
        };
        let (reports, inbox) = Reports::new();
        let attempts = Attempts {
            service,
            client: client.clone(),
            states: Arc::new(self.states),
            timeout: self.timeout,
            reports,
        };
        Ok(Worker { client, hello, attempts, inbox, shutdown_grace: self.shutdown_grace })
    }

    fn add_queue(mut self, name: String, weight: u32) -> WorkerBuilder {
        self.queues.push(v1::QueueWeight { name, weight });
        self
    }

    fn add_route(
        mut self,
        kind: Option<String>,
        route: Route,
        missing: MissingStates,
    ) -> WorkerBuilder {
        let name = kind.clone().unwrap_or_else(|| "the fallback".to_string());
        let known = match kind {
            Some(kind) => self.routes.by_kind.insert(kind, route).is_some(),
            None => self.routes.fallback.replace(route).is_some(),
        };
        if known {
            self.problems.push(format!("{name} has two handlers; keep one"));
        }
        self.missing.push((name, missing));
        self
    }

    /// Fills in default queues and collects all mistakes.
    fn check(&mut self) {
        if self.queues.is_empty() {
            let mut names = std::mem::take(&mut self.task_queues);
            names.sort_unstable();
            names.dedup();
            if names.is_empty() {
                names.push("default");
            }
            let queue = |name: &str| v1::QueueWeight { name: name.to_string(), weight: 0 };
            self.queues = names.into_iter().map(queue).collect();
        }
        if self.queues.iter().any(|queue| queue.weight > 0) {
            self.queues.iter_mut().for_each(|queue| queue.weight = queue.weight.max(1));
        }
        let mut problems = std::mem::take(&mut self.problems);
        if let Err(error) = &self.broker.0 {
            problems.push(error.to_string());
        }
        if self.routes.by_kind.is_empty() && self.routes.fallback.is_none() {
            problems.push("no handler; add one with .handler(...) or .task(...)".to_string());
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            let concurrency = self.concurrency;
            problems
                .push(format!("concurrency is {concurrency}; it must be 1 to {CONCURRENCY_MAX}"));
        }
        if self.queues.len() > QUEUES_MAX {
            let queues = self.queues.len();
            problems.push(format!("{queues} queues; one worker claims from {QUEUES_MAX} at most"));
        }
        let types = self.routes.types().len();
        if types > TYPES_MAX {
            problems.push(format!(
                "handlers for {types} types; one worker names {TYPES_MAX} at most: split it, or add a \
                 fallback, with which it takes any type"
            ));
        }
        for queue in &self.queues {
            if self.queues.iter().filter(|other| other.name == queue.name).count() > 1 {
                problems.push(format!("queue {} is named twice; name it once", queue.name));
            }
        }
        if let Some(lease) = self.lease.filter(|lease| !(LEASES.0..=LEASES.1).contains(lease)) {
            problems.push(format!("lease is {lease:?}; it must be 1 s to 24 h"));
        }
        let states = StateSet(&self.states);
        for (name, missing) in &self.missing {
            for state in missing(&states) {
                problems.push(format!("handler {name} takes {state}"));
            }
        }
        problems.dedup();
        self.problems = problems;
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("queues", &self.queues)
            .field("concurrency", &self.concurrency)
            .field("handlers", &self.routes.by_kind.keys())
            .finish_non_exhaustive()
    }
}

impl Routes {
    /// The types that the worker can run; an empty list means any type.
    fn types(&self) -> Vec<String> {
        match self.fallback {
            Some(_) => Vec::new(),
            None => self.by_kind.keys().cloned().collect(),
        }
    }

    async fn call(&self, request: TaskRequest) -> TaskResponse {
        let kind = request.context().kind();
        match self.by_kind.get(kind).or(self.fallback.as_ref()) {
            Some(route) => route(request).await,
            // The failure is retried, because a worker that knows the type may start later.
            None => {
                let known: Vec<&str> = self.by_kind.keys().map(String::as_str).collect();
                let message =
                    format!("no handler for {kind}; this worker has {}", known.join(", "));
                TaskResponse::failed(Fail::from(message).kind("no_handler"))
            }
        }
    }
}

fn route<H: Handler<Arguments>, Arguments>(handler: H) -> Route {
    Arc::new(move |request| {
        let handler = handler.clone();
        Box::pin(async move { handler.call(request).await })
    })
}

fn program() -> String {
    let path = env::current_exe().ok();
    let name = path.as_deref().and_then(|path| path.file_stem()).and_then(|name| name.to_str());
    name.unwrap_or("worker").to_string()
}

fn host() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name =
        kernel.or_else(|| env::var("HOSTNAME").ok()).or_else(|| env::var("COMPUTERNAME").ok());
    name.unwrap_or_default().trim().to_string()
}
