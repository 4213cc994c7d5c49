//! JSON that some language can't read: refused as JSON, shown as base64, never part of an answer.

use crate::common::{
    Broker,
    http::{get, post},
    task,
};
use serde_json::{Value, json};
use taskyard_proto::v1;

const INVALID: &str = "invalid_argument";

fn nested(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

#[tokio::test]
async fn json_that_not_every_language_reads_never_spoils_an_answer() {
    let broker = Broker::start().await;
    let at = broker.address;
    let mut client = broker.grpc().await;
    let odd = [nested(100_000), nested(61), r#"{"a": "\ud800"}"#.into(), "[1e400]".into()];
    for payload in &odd {
        let task = v1::NewTask { payload: payload.clone().into(), ..task("q", "t") };
        client.enqueue(v1::EnqueueRequest { task: Some(task) }).await.unwrap();
    }
    let fine = json!({"type": "t", "payload": serde_json::from_str::<Value>(&nested(60)).unwrap()});
    post(at, "/v1/queues/q/tasks", &fine.to_string()).await.ok();

    let claimed = post(at, "/v1/claims", r#"{"queues": ["q"], "max": 5}"#).await.ok();
    let tasks = claimed["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 5);
    for (task, payload) in tasks.iter().zip(&odd) {
        assert_eq!(task["payload"], Value::Null);
        let shown = task["payload_base64"].as_str().unwrap();
        assert_eq!(shown.len(), payload.len().div_ceil(3) * 4);
        let path = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
        assert_eq!(get(at, &path).await.ok()["payload_base64"], shown);
        for (verb, field) in [("ack", "result"), ("extend", "resume_state")] {
            let token = &task["claim_token"];
            let body = format!(r#"{{"claim_token": {token}, "{field}": {payload}}}"#);
            let (status, code, detail) = post(at, &format!("{path}/{verb}"), &body).await.problem();
            assert_eq!((status, code.as_str()), (400, INVALID));
            assert!(detail.starts_with(field), "{detail}");
        }
    }
    assert_eq!(tasks[4]["payload"].to_string(), nested(60));
    broker.stop().await;
}
