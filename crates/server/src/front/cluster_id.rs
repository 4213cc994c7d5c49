//! ClusterId: every answer names its cluster, and a request may name the cluster that it is for.
//!
//! A node that lost its data and was started again founds another cluster at the old address. A
//! client that knows the old cluster sends its id with each request, and is refused before anything
//! happens.

use super::{browser::is_grpc, problem::Problem};
use crate::Error;
use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tonic::Status;

/// The header of requests and answers; over gRPC the metadata.
const CLUSTER: HeaderName = HeaderName::from_static("taskyard-cluster");

/// The header value of a cluster's id.
pub(super) fn value(id: &str) -> HeaderValue {
    HeaderValue::from_str(id).expect("an id is hexadecimal")
}

/// Names this cluster in every answer, and refuses requests for another one.
pub(super) async fn check_cluster(
    State(own): State<HeaderValue>,
    request: Request,
    next: Next,
) -> Response {
    let wanted = request.headers().get(CLUSTER).filter(|wanted| **wanted != own);
    let mut response = match wanted {
        None => next.run(request).await,
        Some(wanted) => refused(is_grpc(request.headers()), wanted, &own),
    };
    response.headers_mut().insert(CLUSTER, own);
    response
}

fn refused(is_grpc: bool, wanted: &HeaderValue, own: &HeaderValue) -> Response {
    let text = |id: &HeaderValue| -> String {
        String::from_utf8_lossy(id.as_bytes())
            .chars()
            .filter(|c| !c.is_control())
            .take(64)
            .collect()
    };
    let error = Error::Refused(format!(
        "the request is for cluster {}, and this node belongs to cluster {}: either the servers of this client \
         are not of one cluster, or this node lost its data and was started as a new cluster; check the \
         addresses and the node",
        text(wanted),
        text(own)
    ));
    match is_grpc {
        true => Status::from(error).into_http(),
        false => Problem::from(error).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, body::Body, http::header, middleware::from_fn_with_state, routing::get};
    use tower::ServiceExt;

    async fn call(wanted: Option<&str>, content_type: &str) -> Response {
        let router = Router::new()
            .route("/", get(|| async { "done" }))
            .layer(from_fn_with_state(value("00aa"), check_cluster));
        let mut request = Request::get("/").header(header::CONTENT_TYPE, content_type);
        if let Some(wanted) = wanted {
            request = request.header(CLUSTER, wanted);
        }
        router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_request_for_another_cluster_is_refused_and_every_answer_names_this_one() {
        for (wanted, status) in [(None, 200), (Some("00aa"), 200), (Some("00bb"), 409)] {
            let response = call(wanted, "application/json").await;
            assert_eq!(response.status(), status, "{wanted:?}");
            assert_eq!(response.headers()[CLUSTER], "00aa", "{wanted:?}");
        }
        let response = call(Some("00bb"), "application/grpc").await;
        assert_eq!(response.headers()[CLUSTER], "00aa");
        assert_eq!(response.headers()["taskyard-code"], "conflict");
    }
}
