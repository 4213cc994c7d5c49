//! Middleware: a `tower` layer around all handlers, here one that measures them.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};
use taskyard::{Embedded, Fail, TaskRequest, TaskResponse};
use tower::{Layer, Service};

#[derive(Clone)]
struct Measure;

impl<S> Layer<S> for Measure {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Measured<S> {
        Measured { inner }
    }
}

#[derive(Clone)]
struct Measured<S> {
    inner: S,
}

impl<S> Service<TaskRequest> for Measured<S>
where
    S: Service<TaskRequest, Response = TaskResponse>,
    S::Future: Send + 'static,
{
    type Response = TaskResponse;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<TaskResponse, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: TaskRequest) -> Self::Future {
        let (started, task) = (Instant::now(), request.context().clone());
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            let outcome = if response.is_success() { "succeeded" } else { "failed" };
            println!("{} {} {outcome} in {:?}", task.kind(), task.id(), started.elapsed());
            Ok(response)
        })
    }
}

async fn shout(text: String) -> Result<String, Fail> {
    Ok(text.to_uppercase())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let broker = Embedded::open(directory.path()).await?;
    let worker = broker.worker().layer(Measure).handler("shout", shout).build()?;
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());

    let task = broker.client().task("shout", &"quietly").await?;
    println!("{}", task.result().await?);

    handle.stop();
    running.await??;
    broker.close().await;
    Ok(())
}
