//! Document: the parts of `GET /openapi.json` that the types of requests and answers lack.
//!
//! The types give names, kinds and descriptions. This file adds the bounds from both `limits.rs`,
//! and the rules between fields. A request that the document allows is refused only for reasons
//! that no schema can express: the state of the broker, the time, or rules inside a string such as
//! a cron expression. `crates/cli/tests/openapi` sends requests that the document allows, and
//! requests that it does not.

use crate::limits::{SHARDS_MAX, UNIQUE_FIELD_BYTES_MAX, UNIQUE_FIELDS_MAX};
use serde_json::{Map, Value, json};
use taskyard_machine::{FlowState, TaskStateName, limits};
use utoipa::openapi::OpenApi;

/// Any text without control characters.
const PLAIN: &str = r"[^\u0000-\u001f\u007f-\u009f]";

/// The document with all bounds and rules.
pub(super) fn completed(document: &OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("a document is JSON");
    whole_numbers(&mut document);
    let schemas = object(&mut document["components"]["schemas"]);
    for (schema, field, bounds) in bounds() {
        let place = &mut schemas[schema]["properties"][field];
        assert!(place.is_object(), "{schema} has a field {field}");
        merge(place, bounds);
    }
    name_in(&mut schemas["ClaimQueue"], &queue_name());
    name_in(&mut schemas["Dependency"], &node_name());
    for (schema, rules) in rules() {
        schemas[schema]["allOf"] = rules;
    }
    part_tasks(schemas);
    for (path, operations) in object(&mut document["paths"]) {
        for operation in object(operations).values_mut() {
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            for parameter in parameters.into_iter().flatten() {
                let bounds = parameter_bounds(path, parameter);
                merge(&mut parameter["schema"], bounds);
            }
        }
    }
    document
}

/// The bounds of one field of one schema, for all that have some.
fn bounds() -> Vec<(&'static str, &'static str, Value)> {
    use limits::*;
    let horizon = || number(0, HORIZON_MS_MAX);
    let names = || text(0, HEADERS_BYTES_MAX);
    let headers = || json!({"maxProperties": HEADERS_MAX, "propertyNames": names()});
    let every = |items: Value, count: usize| json!({"maxItems": count, "items": items});
    let base64 = concat!(
        "^([A-Za-z0-9+/]{4})*",
        "([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
    );
    let claimed_type = || json!({"minLength": 1, "maxLength": TYPE_BYTES_MAX});
    let unique_field = r"^(type|payload(\.[^.]+)*|headers\..*)$";
    let weight = number(1, u64::from(WEIGHT_MAX));
    let rate_max = RATE_MILLIONTHS_MAX / 1_000_000;
    let factor_max = RETRY_FACTOR_THOUSANDTHS_MAX / 1_000;
    vec![
        ("NewTask", "queue", queue_name()),
        ("NewTask", "type", text(1, TYPE_BYTES_MAX)),
        ("NewTask", "payload_base64", json!({"pattern": base64})),
        ("NewTask", "content_type", json!({"maxLength": CONTENT_TYPE_BYTES_MAX})),
        ("NewTask", "headers", headers()),
        ("NewTask", "delay_ms", horizon()),
        ("NewTask", "request_id", text(1, REQUEST_ID_BYTES_MAX)),
        ("NewTask", "timeout_ms", number(1, HORIZON_MS_MAX)),
        ("NewTask", "retention_ms", horizon()),
        ("NewTask", "tags", every(string(text(1, TAG_BYTES_MAX)), TAGS_MAX)),
        ("NewTask", "name", node_name()),
        ("NewTask", "fairness_key", text(1, FAIRNESS_KEY_BYTES_MAX)),
        ("RetryBody", "headers", headers()),
        ("Claim", "queues", json!({"minItems": 1, "maxItems": CLAIM_QUEUES_MAX})),
        ("Claim", "types", every(string(claimed_type()), CLAIM_TYPES_MAX)),
        ("Claim", "lease_ms", number(LEASE_MS_MIN, LEASE_MS_MAX)),
        ("Claim", "wait_ms", number(0, CLAIM_WAIT_MS_MAX)),
        ("Claim", "worker", text(0, WORKER_NAME_BYTES_MAX)),
        ("WeightedQueue", "name", queue_name()),
        ("Ack", "enqueue", json!({"maxItems": FOLLOW_UPS_MAX})),
        ("FailBody", "retry_after_ms", horizon()),
        ("ExtendBody", "lease_ms", number(LEASE_MS_MIN, LEASE_MS_MAX)),
        ("SnoozeBody", "delay_ms", horizon()),
        ("DeadBody", "ids", json!({"items": string(task_id())})),
        ("DeadFilter", "flow", task_id()),
        ("DeadFilter", "queue", queue_name()),
        ("QueueSettings", "dedup_window_ms", number(DEDUP_WINDOW_MS_MIN, DEDUP_WINDOW_MS_MAX)),
        ("QueueSettings", "retention_ms", horizon()),
        ("QueueSettings", "dead_retention_ms", horizon()),
        ("QueueSettings", "timeout_ms", number(1, HORIZON_MS_MAX)),
        ("QueueSettings", "concurrency", number(1, u64::from(u32::MAX))),
        ("QueueSettings", "ageing_ms", number(1, HORIZON_MS_MAX)),
        ("QueueSettings", "spread", number(1, u64::from(SPREAD_MAX))),
        (
            "QueueSettings",
            "weights",
            json!({
                "maxProperties": WEIGHTS_MAX,
                "propertyNames": text(0, FAIRNESS_KEY_BYTES_MAX),
                "additionalProperties": merged(json!({"type": "integer"}), weight),
            }),
        ),
        ("PerKey", "concurrency", number(1, u64::from(u32::MAX))),
        ("Rate", "per_second", json!({"minimum": 0.000_001, "maximum": rate_max})),
        ("Rate", "burst", number(1, u64::from(RATE_BURST_MAX))),
        ("Retry", "max_attempts", number(1, u64::from(ATTEMPTS_MAX))),
        ("Retry", "delay_ms", horizon()),
        ("Retry", "delay_max_ms", horizon()),
        ("Retry", "factor", json!({"minimum": 1, "maximum": factor_max})),
        ("Retry", "jitter", json!({"minimum": 0, "maximum": 1})),
        (
            "Retry",
            "delays_ms",
            every(merged(json!({"type": "integer"}), horizon()), RETRY_DELAYS_MAX),
        ),
        ("Unique", "key", text(1, UNIQUE_KEY_BYTES_MAX)),
        (
            "Unique",
            "fields",
            every(
                string(json!({"maxLength": UNIQUE_FIELD_BYTES_MAX, "pattern": unique_field})),
                UNIQUE_FIELDS_MAX,
            ),
        ),
        ("Unique", "window_ms", number(1, UNIQUE_MS_MAX)),
        ("Unique", "debounce_ms", number(1, UNIQUE_MS_MAX)),
        ("ScheduleBody", "cron", json!({"maxLength": CRON_BYTES_MAX})),
        ("ScheduleBody", "every_ms", number(SCHEDULE_EVERY_MS_MIN, HORIZON_MS_MAX)),
        ("ScheduleBody", "timezone", json!({"maxLength": TIMEZONE_BYTES_MAX})),
        ("ScheduleBody", "queue", queue_name()),
        ("ScheduleBody", "catch_up_window_ms", horizon()),
        ("ScheduleBody", "jitter_ms", number(0, SCHEDULE_JITTER_MS_MAX)),
        ("ScheduleBody", "remaining_runs", json!({"minimum": 1})),
        ("PauseBody", "note", json!({"maxLength": SCHEDULE_NOTE_BYTES_MAX})),
        ("NewFlow", "name", text(0, FLOW_NAME_BYTES_MAX)),
        ("NewFlow", "nodes", json!({"minItems": 1, "maxItems": FLOW_NODES_MAX})),
        ("NewFlow", "retention_ms", horizon()),
        ("AddedTasks", "parent", node_name()),
        ("AddedTasks", "nodes", json!({"minItems": 1, "maxItems": FLOW_ADD_NODES_MAX})),
        ("NamedDependency", "name", node_name()),
        ("ReplicationBody", "factor", json!({"enum": [1, 3, 5]})),
        ("TransferBody", "node", json!({"minimum": 1})),
    ]
}

/// Rules between the fields of a schema; all must hold.
fn rules() -> Vec<(&'static str, Value)> {
    let nothing = || json!({"type": "null"});
    let fields = json!({"required": ["fields"], "properties": {"fields": {"minItems": 1}}});
    let debounced = json!({
        "until": {"enum": ["start", null]}, "window_ms": nothing(),
        "on_conflict": {"enum": ["replace", null]},
    });
    let mut every = given("every_ms");
    every["properties"]["timezone"] = nothing();
    let unlimited = json!({
        "max_length": nothing(), "concurrency": nothing(), "rate": nothing(), "per_key": nothing(),
    });
    vec![
        ("NewTask", json!(task_rules())),
        ("FailBody", json!([not_both("retry_after_ms", "retry_at")])),
        ("SnoozeBody", json!([{"oneOf": [given("delay_ms"), given("run_at")]}])),
        ("DeadBody", json!([{"oneOf": [given("ids"), given("filter")]}])),
        (
            "Unique",
            json!([
                {"oneOf": [given("key"), fields]},
                {"anyOf": [{"properties": {"debounce_ms": nothing()}}, {"properties": debounced}]},
            ]),
        ),
        ("Retry", json!([{"anyOf": retry_policies()}])),
        (
            "ScheduleBody",
            json!([
                {"oneOf": [given("cron"), every]},
                {"anyOf": [
                    {"properties": {"catch_up": {"enum": ["last", "all"]}}},
                    {"properties": {"catch_up_window_ms": nothing()}},
                ]},
            ]),
        ),
        (
            "QueueSettings",
            json!([{"anyOf": [
                {"properties": {"spread": {"enum": [1, null]}}},
                {"properties": unlimited},
            ]}]),
        ),
    ]
}

fn task_rules() -> [Value; 2] {
    [not_both("payload", "payload_base64"), not_both("delay_ms", "run_at")]
}

/// Each retry policy with the fields that apply to it.
fn retry_policies() -> Vec<Value> {
    let policy = |word: &str, unused: &[&str]| {
        let mut properties = json!({"policy": {"const": word}});
        for &field in unused {
            properties[field] = match field {
                "delays_ms" => json!({"maxItems": 0}),
                _ => json!({"type": "null"}),
            };
        }
        // The policy is exponential if the field is absent.
        let required = if word == "exponential" { json!([]) } else { json!(["policy"]) };
        json!({"required": required, "properties": properties})
    };
    let mut list = policy("list", &["factor", "delay_ms", "delay_max_ms"]);
    list["required"] = json!(["policy", "delays_ms"]);
    list["properties"]["delays_ms"] = json!({"minItems": 1});
    vec![
        policy("exponential", &["delays_ms"]),
        policy("fixed", &["factor", "delay_max_ms", "delays_ms"]),
        policy("linear", &["factor", "delays_ms"]),
        policy("polynomial", &["factor", "delay_ms", "delay_max_ms", "delays_ms"]),
        list,
    ]
}

/// Makes a schema for each place of a task, because each place allows other fields.
fn part_tasks(schemas: &mut Map<String, Value>) {
    let of_flows = ["name", "depends_on", "on_failure"];
    let of_one_run = ["run_at", "delay_ms", "expires_at", "request_id", "unique"];
    let task = schemas.remove("NewTask").expect("tasks can be enqueued");
    let mut part = |name: &str, dropped: &[&str], is_named: bool| {
        let mut part = task.clone();
        let properties = object(&mut part["properties"]);
        for field in dropped {
            properties.remove(*field).expect("a task has it");
        }
        if is_named {
            properties["name"]["type"] = json!("string");
            part["required"] = json!(["name", "type"]);
        }
        if dropped.contains(&"run_at") {
            part["allOf"] = json!([task_rules()[0]]);
        }
        schemas.insert(name.to_owned(), part);
        json!({"$ref": format!("#/components/schemas/{name}")})
    };
    let enqueued = part("EnqueuedTask", &[&["queue"][..], &of_flows].concat(), false);
    let follow_up = part("FollowUp", &of_flows, false);
    let node = part("FlowNode", &["on_failure", "request_id", "unique"], true);
    let added = part("AddedNode", &["request_id", "unique"], true);
    let of_schedules = [&["queue"][..], &of_flows, &of_one_run].concat();
    let scheduled = part("ScheduledTask", &of_schedules, false);
    let batch = json!({
        "type": "array", "items": enqueued, "minItems": 1, "maxItems": limits::BATCH_TASKS_MAX,
        "description": "All or none.",
    });
    schemas["OneOrMany"]["oneOf"] = json!([enqueued, batch]);
    schemas["Ack"]["properties"]["enqueue"]["items"] = follow_up;
    schemas["NewFlow"]["properties"]["nodes"]["items"] = node;
    schemas["AddedTasks"]["properties"]["nodes"]["items"] = added;
    schemas["ScheduleBody"]["properties"]["task"] = scheduled;
}

/// The bounds of a parameter in a path or a query.
fn parameter_bounds(path: &str, parameter: &Value) -> Value {
    let is_in_path = parameter["in"] == "path";
    let name = parameter["name"].as_str().unwrap_or_default();
    let states = |states: Vec<&str>| json!({"enum": states});
    match (name, path) {
        ("id", path) if path.starts_with("/v1/tasks/") || path.starts_with("/v1/flows/") => {
            task_id()
        }
        ("id", path) if path.contains("/nodes/") => json!({"minimum": 1}),
        ("id", path) if path.contains("/shards/") => number(0, u64::from(SHARDS_MAX) - 1),
        ("queue", _) => queue_name(),
        ("name", path) if is_in_path && path.starts_with("/v1/schedules/") => queue_name(),
        ("flow", _) => task_id(),
        ("limit", _) => number(1, limits::PAGE_TASKS_MAX as u64),
        ("wait_ms", _) => number(0, limits::CLAIM_WAIT_MS_MAX),
        ("state", "/v1/flows") => states(FlowState::ALL.map(FlowState::as_str).to_vec()),
        ("state", "/v1/dead") => states(vec![TaskStateName::Dead.as_str(), ""]),
        ("state", _) => states(TaskStateName::ALL.map(TaskStateName::as_str).to_vec()),
        _ => json!({}),
    }
}

/// Marks whole numbers as unsigned, and adds their maximum.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => {
            let unsigned = match fields.get("format").and_then(Value::as_str) {
                Some("int32") => Some(("uint32", u64::from(u32::MAX))),
                Some("int64") => Some(("uint64", u64::MAX)),
                _ => None,
            };
            let starts_at_0 =
                fields.get("minimum").is_some_and(|minimum| minimum.as_i64() >= Some(0));
            if let Some((format, maximum)) = unsigned.filter(|_| starts_at_0) {
                fields.insert("format".into(), json!(format));
                fields.entry("maximum").or_insert(json!(maximum));
            }
            fields.values_mut().for_each(whole_numbers);
        }
        _ => {}
    }
}

fn text(bytes_min: usize, bytes_max: usize) -> Value {
    let repeated = if bytes_min == 0 { '*' } else { '+' };
    let pattern = format!("^{PLAIN}{repeated}$");
    json!({"minLength": bytes_min, "maxLength": bytes_max, "pattern": pattern})
}

fn string(bounds: Value) -> Value {
    merged(json!({"type": "string"}), bounds)
}

fn number(minimum: u64, maximum: u64) -> Value {
    json!({"minimum": minimum, "maximum": maximum})
}

/// The name of a queue or a schedule, which may not be dots alone.
fn queue_name() -> Value {
    let pattern = "^[.]*[A-Za-z0-9_:-][A-Za-z0-9_.:-]*$";
    json!({"minLength": 1, "maxLength": limits::QUEUE_NAME_BYTES_MAX, "pattern": pattern})
}

/// The name of a node in its flow.
fn node_name() -> Value {
    text(1, limits::FLOW_NAME_BYTES_MAX)
}

fn task_id() -> Value {
    json!({"minLength": 26, "maxLength": 26, "pattern": "^[0-7][0-9a-v]{25}$"})
}

/// One of two fields must be absent or null.
fn not_both(one: &str, other: &str) -> Value {
    let is_absent = |field: &str| json!({"properties": {field: {"type": "null"}}});
    json!({"anyOf": [is_absent(one), is_absent(other)]})
}

/// The field must exist and not be null.
fn given(field: &str) -> Value {
    json!({"required": [field], "properties": {field: {"not": {"type": "null"}}}})
}

/// Adds bounds to the variant of a name that is a plain string.
fn name_in(schema: &mut Value, bounds: &Value) {
    let variants = schema["oneOf"].as_array_mut().expect("it has variants").iter_mut();
    for name in variants.filter(|variant| variant["type"] == "string") {
        merge(name, bounds.clone());
    }
}

fn merge(schema: &mut Value, bounds: Value) {
    let Value::Object(bounds) = bounds else { unreachable!("bounds are objects") };
    object(schema).extend(bounds);
}

fn merged(mut schema: Value, bounds: Value) -> Value {
    merge(&mut schema, bounds);
    schema
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("this part of a document is an object")
}
