//! Refuses requests that a foreign web page makes a browser send.
//!
//! A broker trusts everyone who reaches its port. A browser on the same machine or network reaches
//! it for every page that it shows. Such a page can't read answers, but its request alone can
//! enqueue, purge or drain. A browser names the page in `Origin` and `Sec-Fetch-Site`. A page whose
//! own name points at this node (DNS rebinding) shows in `Host`. A request without a preflight
//! can't have the content types that this broker wants. Programs send neither of the first two, and
//! pass.

use super::{grpc::CODE_KEY, json, problem::Problem};
use crate::Error;
use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header,
        uri::{Authority, Scheme, Uri},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::{net::IpAddr, sync::Arc};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The start of every content type of gRPC.
const GRPC: &[u8] = b"application/grpc";

/// The names by which clients may call this node, besides its addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Arc<[String]>);

impl Hosts {
    /// A name with a leading dot stands for all names that end in it.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Hosts {
        Hosts(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    fn allow(&self, authority: &str) -> bool {
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().to_ascii_lowercase();
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if bracketed.unwrap_or(&host).parse::<IpAddr>().is_ok() {
            return true;
        }
        let host = host.strip_suffix('.').unwrap_or(&host);
        let is_named = |name: &String| match name.starts_with('.') {
            true => host.len() > name.len() && host.ends_with(name.as_str()),
            false => host == name,
        };
        host == "localhost" || self.0.iter().any(is_named)
    }
}

/// Refuses a request whose host is no name of this node, or whose page belongs to another site.
pub(super) async fn refuse_foreign(
    State(hosts): State<Hosts>,
    request: Request,
    next: Next,
) -> Response {
    match check(request.method(), request.uri(), request.headers(), &hosts) {
        Ok(()) => next.run(request).await,
        Err((status, detail)) => refusal(is_grpc(request.headers()), status, detail),
    }
}

/// Refuses a POST or PUT, with or without a body, that does not declare JSON.
pub(super) async fn require_json(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::POST | Method::PUT) {
        let media_type = content_type(request.headers());
        if media_type.is_empty() || !json::is_json(&media_type) {
            return unsupported(&media_type, "application/json");
        }
    }
    next.run(request).await
}

/// Refuses requests on gRPC paths that are no gRPC calls.
pub(super) async fn require_grpc(request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        let detail = format!("gRPC does not take {}; send POST", request.method());
        let status = StatusCode::METHOD_NOT_ALLOWED;
        return Problem::new(status, "invalid_argument", detail).into_response();
    }
    if !is_grpc(request.headers()) {
        return unsupported(&content_type(request.headers()), "application/grpc");
    }
    next.run(request).await
}

pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|media| media.as_bytes().starts_with(GRPC))
}

fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    String::from_utf8_lossy(value.unwrap_or_default()).chars().take(128).collect()
}

fn unsupported(media_type: &str, wanted: &str) -> Response {
    let detail = match media_type {
        "" => format!("content-type is missing; send {wanted}, also without a body"),
        other => format!("content-type {other} is not taken; send {wanted}"),
    };
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_argument", detail).into_response()
}

fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    hosts: &Hosts,
) -> Result<(), (StatusCode, String)> {
    let asked = uri.authority().map(Authority::as_str);
    let named = headers.get_all(header::HOST).into_iter().map(text);
    let asked: Vec<&str> = asked.into_iter().chain(named).collect();
    if let Some(foreign) = asked.iter().find(|host| !hosts.allow(host)) {
        return Err((StatusCode::MISDIRECTED_REQUEST, unknown_host(foreign)));
    }
    let mut origins = headers.get_all(header::ORIGIN).into_iter().map(text);
    let is_own = |origin: &str| !asked.is_empty() && asked.iter().all(|host| is_at(origin, host));
    if let Some(origin) = origins.find(|origin| !is_own(origin)) {
        let detail = format!(
            "a page of {:?} may not use this broker; only pages that it serves itself may",
            shortened(origin)
        );
        return Err((StatusCode::FORBIDDEN, detail));
    }
    // A link that a user follows shows a page and changes nothing.
    let follows_link = matches!(*method, Method::GET | Method::HEAD)
        && headers.get(SEC_FETCH_MODE).is_some_and(|mode| mode == "navigate");
    let mut sites = headers.get_all(SEC_FETCH_SITE).into_iter().map(text);
    if !follows_link && sites.any(|site| !matches!(site, "same-origin" | "none")) {
        let detail = "a page of another site may not use this broker; only pages that it serves \
                      itself may";
        return Err((StatusCode::FORBIDDEN, detail.into()));
    }
    Ok(())
}

/// Bytes that are no text are in no name.
fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or("?")
}

/// Whether the pages of `origin` come from `host`, by names and ports.
fn is_at(origin: &str, host: &str) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    let default_port = match origin.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => 80,
        Some(scheme) if *scheme == Scheme::HTTPS => 443,
        _ => return false,
    };
    let (Some(page), Ok(asked)) = (origin.authority(), host.parse::<Authority>()) else {
        return false;
    };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(default_port);
    page.host().eq_ignore_ascii_case(asked.host()) && port(page) == port(&asked)
}

fn shortened(text: &str) -> String {
    text.chars().take(128).collect()
}

fn unknown_host(host: &str) -> String {
    format!(
        "host {:?} is no name of this broker; use its IP address or localhost, or start it with \
         --allowed-hosts and the name",
        shortened(host)
    )
}

fn refusal(is_grpc: bool, status: StatusCode, detail: String) -> Response {
    let error = Error::Forbidden(detail);
    if !is_grpc {
        return Problem::from(error).with_status(status).into_response();
    }
    let mut response = tonic::Status::from(error).into_http::<axum::body::Body>();
    debug_assert!(response.headers().contains_key(CODE_KEY));
    // gRPC clients read gRPC's own status; others read this one.
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_of_a_host_if_names_and_ports_are_equal() {
        for (origin, host, is_own) in [
            ("http://localhost:7400", "localhost:7400", true),
            ("http://LOCALHOST:7400", "localhost:7400", true),
            ("http://yard.example", "yard.example", true),
            ("http://yard.example", "yard.example:80", true),
            ("https://yard.example", "yard.example", true),
            ("https://yard.example", "yard.example:443", true),
            ("https://yard.example", "yard.example:80", false),
            ("http://yard.example", "yard.example:7400", false),
            ("http://[::1]:7400", "[::1]:7400", true),
            ("http://localhost:7400", "127.0.0.1:7400", false),
            ("ftp://localhost:7400", "localhost:7400", false),
            ("localhost:7400", "localhost:7400", false),
            ("null", "null", false),
            ("", "", false),
        ] {
            assert_eq!(is_at(origin, host), is_own, "{origin} {host}");
        }
    }

    #[test]
    fn a_request_without_host_and_page_comes_from_a_program() {
        let uri = Uri::from_static("/v1/claims");
        let checked = check(&Method::POST, &uri, &HeaderMap::new(), &Hosts::default());
        assert_eq!(checked, Ok(()));
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_static("http://localhost"));
        assert_eq!(
            check(&Method::POST, &uri, &headers, &Hosts::default()).unwrap_err().0,
            StatusCode::FORBIDDEN,
            "a browser always names the host"
        );
    }
}
