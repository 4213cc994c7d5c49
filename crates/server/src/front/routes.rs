//! All routes of the port, of gRPC and HTTP, behind one guard. `intake.rs` counts them.
//!
//! The guard bounds how long a call may take until its answer begins. It turns a panic in a handler
//! into an error of that call, so that a panic never takes the node down.

use super::{
    browser::{self, Hosts, is_grpc},
    cluster_id,
    grpc::{CODE_KEY, Grpc, TOO_LARGE, grpc_code, too_large},
    http, intake,
    problem::Problem,
};
use crate::{Broker, Error, limits};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use std::{panic::AssertUnwindSafe, time::Duration};
use taskyard_proto::v1::taskyard_server::TaskyardServer;
use tonic::Code;

/// The longest long poll, and time to send half a request.
const ANSWER_WITHIN: Duration = Duration::from_millis(limits::ANSWER_MS_MAX);

pub(super) fn all(broker: &Broker, hosts: Hosts) -> Router {
    let grpc = TaskyardServer::new(Grpc::new(broker.clone()))
        .max_decoding_message_size(limits::BODY_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    let grpc = Router::new()
        .route_service("/taskyard.v1.Taskyard/{*method}", grpc)
        .route_layer(from_fn(browser::require_grpc));
    http::router(broker.clone())
        .merge(grpc)
        .layer(from_fn_with_state(hosts, browser::refuse_foreign))
        .layer(from_fn_with_state(
            cluster_id::value(&broker.cluster_id()),
            cluster_id::check_cluster,
        ))
        .layer(from_fn(guard))
        .layer(from_fn_with_state(broker.buffers().clone(), intake::count))
}

async fn guard(request: Request, next: Next) -> Response {
    let is_grpc = is_grpc(request.headers());
    let call = AssertUnwindSafe(next.run(request)).catch_unwind();
    match tokio::time::timeout(ANSWER_WITHIN, call).await {
        Ok(Ok(response)) if is_grpc => with_code(response),
        Ok(Ok(response)) => response,
        Ok(Err(panic)) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            tracing::error!(message, "a call failed by a bug");
            let detail = "this call failed by a bug of the broker; its log says more";
            failed(is_grpc, StatusCode::INTERNAL_SERVER_ERROR, detail)
        }
        Err(_elapsed) => {
            let detail = "the call took too long; look before sending it again";
            failed(is_grpc, StatusCode::GATEWAY_TIMEOUT, detail)
        }
    }
}

/// The answer to a call that ended without one: its outcome is unknown.
fn failed(is_grpc: bool, status: StatusCode, detail: &'static str) -> Response {
    let code = Error::OutcomeUnknown.code();
    if !is_grpc {
        return Problem::new(status, code, detail).into_response();
    }
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(grpc_code(code) as i32));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static("the%20outcome%20is%20unknown"));
    headers.insert(CODE_KEY, HeaderValue::from_static(code));
    response
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Gives an error that the gRPC library made (for a message that can't be decoded, or is too large)
/// the status and code that other fronts use.
fn with_code(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let status = headers.get(GRPC_STATUS).and_then(|status| status.to_str().ok()?.parse().ok());
    if headers.contains_key(CODE_KEY) {
        return response;
    }
    let code = match status.map(Code::from_i32) {
        Some(Code::Internal) => "invalid_argument",
        Some(Code::OutOfRange | Code::ResourceExhausted) => TOO_LARGE,
        Some(Code::Unimplemented) => "not_found",
        _ => return response,
    };
    if code != "not_found" {
        headers.insert(GRPC_STATUS, HeaderValue::from(grpc_code(code) as i32));
    }
    if code == TOO_LARGE
        && let Ok(words) = HeaderValue::try_from(too_large())
    {
        headers.insert(GRPC_MESSAGE, words);
    }
    headers.insert(CODE_KEY, HeaderValue::from_static(code));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tower::ServiceExt;

    async fn bug() -> StatusCode {
        panic!("a bug")
    }

    fn guarded() -> Router {
        let hangs = get(|| async { std::future::pending::<StatusCode>().await });
        Router::new().route("/bug", get(bug)).route("/hangs", hangs).layer(from_fn(guard))
    }

    async fn call(path: &str, content_type: &str) -> Response {
        let request = Request::get(path).header(header::CONTENT_TYPE, content_type);
        guarded().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_bug_or_a_call_that_hangs_fails_that_call_alone() {
        for (path, status) in [("/bug", 500), ("/hangs", 504)] {
            let response = call(path, "application/json").await;
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
            let response = call(path, "application/grpc").await;
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()[GRPC_STATUS], (Code::Unknown as i32).to_string());
            assert_eq!(response.headers()[CODE_KEY], "outcome_unknown");
        }
    }
}
