//! HTTP/JSON `/v1`: decode, call the broker, encode.
//!
//! The `routes!` table below makes the router, the OpenAPI document and the test that compares
//! both. `cargo xtask tidy` compares the table with `docs/protocol.md`. The calls of gRPC are in
//! `taskyard.proto`.

mod claims;
mod cluster;
mod dead;
mod document;
mod extract;
mod flows;
mod node;
mod queues;
mod schedules;
mod tasks;
mod workers;

use super::{browser, problem::Problem};
use crate::Broker;
use axum::{
    Router,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    middleware::from_fn,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::OpenApi;

/// What handlers share.
#[derive(Clone, Debug)]
pub(super) struct Http {
    broker: Broker,
}

macro_rules! routes {
    ($($method:ident $path:literal $module:ident::$handler:ident;)+) => {
        fn routes() -> Router<Http> {
            Router::new()$(.route($path, axum::routing::$method($module::$handler)))+
        }

        /// Method and path of every route.
        #[cfg(test)]
        const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path)),+];

        #[derive(OpenApi)]
        #[openapi(
            info(
                title = "Taskyard",
                description = "A distributed task queue. Errors are application/problem+json with a stable `code`.",
            ),
            paths($($module::$handler),+),
            components(schemas(Problem)),
        )]
        struct Document;
    };
}

routes! {
    post "/v1/queues/{queue}/tasks" tasks::enqueue;
    post "/v1/claims" claims::claim;
    post "/v1/tasks/{id}/ack" claims::ack;
    post "/v1/tasks/{id}/fail" claims::fail;
    post "/v1/tasks/{id}/extend" claims::extend;
    post "/v1/tasks/{id}/snooze" claims::snooze;
    post "/v1/tasks/{id}/release" claims::release;
    post "/v1/tasks/{id}/cancel" tasks::cancel;
    post "/v1/tasks/{id}/retry" tasks::retry;
    get "/v1/tasks/{id}" tasks::task;
    get "/v1/tasks/{id}/result" tasks::result;
    get "/v1/tasks/{id}/why" tasks::why;
    get "/v1/tasks" tasks::list;
    get "/v1/queues" queues::list;
    get "/v1/queues/{queue}" queues::queue;
    delete "/v1/queues/{queue}" queues::delete;
    post "/v1/queues/{queue}/pause" queues::pause;
    post "/v1/queues/{queue}/resume" queues::resume;
    post "/v1/queues/{queue}/purge" queues::purge;
    get "/v1/queues/{queue}/settings" queues::settings;
    put "/v1/queues/{queue}/settings" queues::set;
    get "/v1/dead" dead::list;
    post "/v1/dead/retry" dead::retry;
    post "/v1/dead/discard" dead::discard;
    post "/v1/flows" flows::submit;
    get "/v1/flows" flows::list;
    get "/v1/flows/{id}" flows::flow;
    post "/v1/flows/{id}/cancel" flows::cancel;
    post "/v1/flows/{id}/retry" flows::retry;
    post "/v1/flows/{id}/tasks" flows::add;
    get "/v1/schedules" schedules::list;
    get "/v1/schedules/{name}" schedules::schedule;
    put "/v1/schedules/{name}" schedules::set;
    delete "/v1/schedules/{name}" schedules::remove;
    post "/v1/schedules/{name}/pause" schedules::pause;
    post "/v1/schedules/{name}/resume" schedules::resume;
    post "/v1/schedules/{name}/trigger" schedules::trigger;
    post "/v1/schedules/{name}/backfill" schedules::backfill;
    get "/v1/workers" workers::list;
    post "/v1/workers/{id}/quiet" workers::quiet;
    post "/v1/workers/{id}/stop" workers::stop;
    get "/v1/cluster" cluster::cluster;
    post "/v1/cluster/nodes/{id}/drain" cluster::drain;
    post "/v1/cluster/nodes/{id}/undrain" cluster::undrain;
    post "/v1/cluster/nodes/{id}/remove" cluster::remove;
    post "/v1/cluster/shards/{id}/transfer" cluster::transfer;
    post "/v1/cluster/replication" cluster::set_replication;
    get "/metrics" node::metrics;
    get "/healthz" node::healthz;
    get "/readyz" node::readyz;
    get "/openapi.json" node::openapi;
}

/// All routes of HTTP, and the answers for unknown routes and methods.
pub(super) fn router(broker: Broker) -> Router {
    routes()
        .route_layer(from_fn(browser::require_json))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Http { broker })
}

async fn unknown_route(uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(256).collect();
    let detail = format!("there is no route {path}; GET /openapi.json lists them");
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let path: String = uri.path().chars().take(256).collect();
    let detail = format!("{path} does not take {method}; GET /openapi.json lists what it takes");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_argument", detail)
}

/// An answer in JSON.
fn reply(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => {
            let content_type = HeaderValue::from_static("application/json");
            (status, [(header::CONTENT_TYPE, content_type)], body).into_response()
        }
        Err(error) => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Problem::new(status, "outcome_unknown", error.to_string()).into_response()
        }
    }
}

fn ok(body: &impl Serialize) -> Response {
    reply(StatusCode::OK, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_document_lists_every_route_and_no_other() {
        let document = document::completed(&Document::openapi());
        let mut documented = BTreeSet::new();
        let mut operations = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                assert!(documented.insert((method.clone(), path.clone())), "{method} {path} twice");
                let name = operation["operationId"].as_str().unwrap();
                assert!(operations.insert(name.to_owned()), "{name} twice");
                for (status, response) in operation["responses"].as_object().unwrap() {
                    let description = response["description"].as_str().unwrap_or_default();
                    assert!(!description.is_empty(), "{name} {status} must be described");
                }
            }
        }
        let routed = ROUTES.iter().map(|(method, path)| (method.to_string(), path.to_string()));
        assert_eq!(documented, routed.collect());
    }

    #[test]
    fn every_schema_that_the_document_names_is_in_it() {
        let value = document::completed(&Document::openapi());
        let document = value.to_string();
        let schemas = value["components"]["schemas"].as_object().unwrap();
        let mut named = 0;
        for reference in document.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
            named += 1;
        }
        assert!(named > 20, "only {named} references");
    }
}
