//! Problem: an error over HTTP, `application/problem+json` with the stable code.

use crate::Error;
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::{
    IntoResponses, ToSchema,
    openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder, response},
};

/// An error over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Problem {
    /// The kind of problem, as a URI.
    #[serde(rename = "type")]
    kind: String,
    /// The kind in words.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// For programs: stable, the same on every front.
    code: &'static str,
    /// For people: the field, its value, and what to do.
    detail: String,
    /// For `not_unique`: the task that holds the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        let kind = format!("urn:taskyard:{code}");
        let (title, status, detail) = (title(code), status.as_u16(), detail.into());
        Problem { kind, title, status, code, detail, holder: None }
    }

    /// The same problem with another HTTP status.
    pub(super) fn with_status(self, status: StatusCode) -> Problem {
        Problem { status: status.as_u16(), ..self }
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "invalid_argument", detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let problem = Problem::new(status(error.code()), error.code(), error.to_string());
        Problem { holder: error.holder().map(|id| id.to_string()), ..problem }
    }
}

impl IntoResponses for Problem {
    fn responses() -> BTreeMap<String, RefOr<response::Response>> {
        let schema = Ref::from_schema_name(Problem::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let response = ResponseBuilder::new()
            .description("any problem; `code` says which")
            .content("application/problem+json", content);
        BTreeMap::from([("default".into(), RefOr::T(response.build()))])
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let content_type = HeaderValue::from_static("application/problem+json");
        (status, [(header::CONTENT_TYPE, content_type)], body).into_response()
    }
}

fn status(code: &str) -> StatusCode {
    match code {
        "invalid_argument" => StatusCode::BAD_REQUEST,
        "permission_denied" => StatusCode::FORBIDDEN,
        "not_found" => StatusCode::NOT_FOUND,
        "claim_lost" | "already_finished" | "not_unique" | "queue_not_empty" | "conflict" => {
            StatusCode::CONFLICT
        }
        "payload_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "queue_full" | "limit_exceeded" => StatusCode::TOO_MANY_REQUESTS,
        "disk_full" => StatusCode::INSUFFICIENT_STORAGE,
        "no_quorum" | "outcome_unknown" | "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn title(code: &str) -> &'static str {
    match code {
        "invalid_argument" => "the request is invalid",
        "permission_denied" => "permission denied",
        "not_found" => "not found",
        "claim_lost" => "the claim is lost",
        "already_finished" => "the task has ended",
        "not_unique" => "another task holds the unique key",
        "conflict" => "the state does not allow this",
        "payload_too_large" => "the payload is too large",
        "queue_full" => "the queue is full",
        "queue_not_empty" => "the queue has tasks",
        "limit_exceeded" => "a limit is reached",
        "disk_full" => "the disk is close to full",
        "no_quorum" => "no majority",
        "outcome_unknown" => "the outcome is unknown",
        "unavailable" => "not available now",
        _ => "an error",
    }
}
