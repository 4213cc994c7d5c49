//! Extractors: the parts of a request that handlers take. A part that can't be taken is a problem
//! that names it.

use super::super::{edge, intake, json, problem::Problem};
use crate::limits::{self, BODY_BYTES_MAX};
use axum::{
    body::{Bytes, HttpBody, to_bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request, rejection::QueryRejection},
    http::{StatusCode, Uri, header, request::Parts},
};
use serde::{Deserialize, de::DeserializeOwned};
use std::time::Duration;
use taskyard_machine::TaskId;

/// How long the whole body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_millis(limits::BODY_MS_MAX);

/// A JSON body that is not parsed yet.
pub(super) struct JsonBody(Bytes);

impl JsonBody {
    pub(super) fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        json::parse(&self.0)
    }

    /// Parses the body; the default if there is none.
    pub(super) fn parse_or_default<'a, T: Deserialize<'a> + Default>(
        &'a self,
    ) -> Result<T, Problem> {
        if self.0.is_empty() { Ok(T::default()) } else { self.parse() }
    }

    /// Whether the body is an array and not an object.
    pub(super) fn is_array(&self) -> bool {
        self.0.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
    }
}

impl<S: Sync> FromRequest<S> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<JsonBody, Problem> {
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > BODY_BYTES_MAX as u64) {
            return Err(too_large());
        }
        let body = to_bytes(request.into_body(), BODY_BYTES_MAX);
        match tokio::time::timeout(BODY_WITHIN, body).await {
            Ok(Ok(body)) => Ok(JsonBody(body)),
            Ok(Err(error)) if is_length_limit(&error) => Err(too_large()),
            Ok(Err(error)) => Err(intake::problem_in(&error)
                .unwrap_or_else(|| Problem::invalid(format!("the body ended early: {error}")))),
            Err(_elapsed) => {
                let detail = format!("the body did not arrive within {BODY_WITHIN:?}");
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "invalid_argument", detail))
            }
        }
    }
}

/// No body, or an object without fields, so that no field is ever ignored.
pub(super) struct NoFields;

impl<S: Sync> FromRequest<S> for NoFields {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<NoFields, Problem> {
        if !request.body().is_end_stream() {
            let body = JsonBody::from_request(request, state).await?;
            // The library would read an array as the fields of an object, in their order.
            if body.is_array() {
                return Err(Problem::invalid("invalid type: array, expected an object"));
            }
            let json::NoFields {} = body.parse_or_default()?;
        }
        Ok(NoFields)
    }
}

fn too_large() -> Problem {
    let detail = format!("the body has more than {BODY_BYTES_MAX} bytes; split it");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
}

fn is_length_limit(error: &axum::Error) -> bool {
    let mut source = Some(error as &dyn std::error::Error);
    while let Some(error) = source {
        if error.to_string().contains("length limit exceeded") {
            return true;
        }
        source = error.source();
    }
    false
}

/// The task that the path names.
pub(super) struct TaskPath(pub(super) TaskId);

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<TaskPath, Problem> {
        Ok(TaskPath(edge::task_id(&text(parts, state).await?)?))
    }
}

/// The flow that the path names.
pub(super) struct FlowPath(pub(super) TaskId);

impl<S: Send + Sync> FromRequestParts<S> for FlowPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<FlowPath, Problem> {
        Ok(FlowPath(edge::flow_id(&text(parts, state).await?)?))
    }
}

/// The one name in the path: a queue's, a schedule's or a worker's.
pub(super) struct NamePath(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for NamePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<NamePath, Problem> {
        text(parts, state).await.map(NamePath)
    }
}

async fn text<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, Problem> {
    match Path::<String>::from_request_parts(parts, state).await {
        Ok(Path(text)) => Ok(text),
        // The path always has this segment, so the only possible error is bad UTF-8.
        Err(_no_text) => {
            let path: String = parts.uri.path().chars().take(256).collect();
            let detail = format!("path {path} is not UTF-8 once decoded; encode names as UTF-8");
            Err(Problem::invalid(detail))
        }
    }
}

/// The query's parameters.
pub(super) struct Parameters<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Parameters<T>, Problem> {
        check_utf8(&parts.uri)?;
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(parameters)) => Ok(Parameters(parameters)),
            Err(rejection) => Err(Problem::invalid(bad_parameter(&parts.uri, &rejection))),
        }
    }
}

/// Refuses a query that is not UTF-8 once decoded. The library would replace the bad bytes, and the
/// search would be for another text.
fn check_utf8(uri: &Uri) -> Result<(), Problem> {
    let query = uri.query().unwrap_or_default();
    for pair in query.split('&') {
        if let Err(_no_text) = percent_decode(pair) {
            let name: String =
                pair.split('=').next().unwrap_or_default().chars().take(64).collect();
            let detail = format!("parameter {name} is not UTF-8 once decoded; encode it as UTF-8");
            return Err(Problem::invalid(detail));
        }
    }
    Ok(())
}

fn percent_decode(text: &str) -> Result<String, std::string::FromUtf8Error> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let decoded = match (first, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// Names the bad parameter of a query, its value, and the reason.
fn bad_parameter(uri: &Uri, rejection: &QueryRejection) -> String {
    let text = std::error::Error::source(rejection).map(ToString::to_string).unwrap_or_default();
    if let Some(name) = text.strip_prefix("duplicate field ") {
        return format!("parameter {name} is there twice; send it once");
    }
    let Some((name, reason)) = text.split_once(": ") else {
        return format!("the query can't be read: {text}; send name=value pairs joined by &");
    };
    let reason = match reason.strip_prefix("unknown field ") {
        Some(names) => format!("unknown parameter {names}"),
        None if reason.contains("too large") => "this number is too large".to_owned(),
        None if reason.contains("digit") || reason.contains("number") => {
            "expected a whole number, 0 or more".to_owned()
        }
        None => json::in_words(reason),
    };
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let pairs = pairs.map_or_else(|_| Vec::new(), |Query(pairs)| pairs);
    let value = pairs.into_iter().find(|(found, _)| found == name).map(|(_, value)| value);
    let value: String = value.unwrap_or_default().chars().take(64).collect();
    format!("parameter {name} is {value:?}: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, body::Body, routing::post};
    use futures_util::{StreamExt, stream};
    use tower::ServiceExt;

    #[tokio::test(start_paused = true)]
    async fn half_a_body_is_given_up() {
        let half = stream::iter([Ok::<_, std::io::Error>("{\"type\":")]).chain(stream::pending());
        let router = Router::new().route("/", post(|_: JsonBody| async {}));
        let request = Request::post("/").body(Body::from_stream(half)).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(problem["code"], "invalid_argument");
    }
}
