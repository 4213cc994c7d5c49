//! Every node refuses a command that is too large for the log, with `payload_too_large`, before it
//! proposes the command. The shard goes on. Texts that may be shortened are shortened.

use crate::common::{
    Broker,
    cluster::{queues, three},
    http::{Answer, get, post},
};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

async fn claim(broker: &Broker, queue: &str) -> (String, Value) {
    post(broker.address, &format!("/v1/queues/{queue}/tasks"), r#"{"type": "t"}"#).await.ok();
    let claim = json!({"queues": [queue], "max": 1, "wait_ms": 10_000}).to_string();
    let claimed = post(broker.address, "/v1/claims", &claim).await.ok();
    let task = &claimed["tasks"][0];
    (task["id"].as_str().unwrap().to_owned(), task["claim_token"].clone())
}

/// Sends a large answer about a new claim. Returns the answer and the task's id.
async fn say(broker: &Broker, queue: &str, verb: &str, mut said: Value) -> (Answer, String) {
    let (id, token) = claim(broker, queue).await;
    said["claim_token"] = token;
    let path = format!("/v1/tasks/{id}/{verb}");
    (post(broker.address, &path, &said.to_string()).await, id)
}

fn follow_ups(queue: &str, count: usize) -> Value {
    let task = json!({"queue": queue, "type": "t", "payload": "x".repeat(MIB - 1_000)});
    json!({"enqueue": vec![task; count]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_larger_than_a_peer_frame_is_refused_and_its_shard_continues() {
    let nodes = three().await;
    let queue = &queues(&nodes[0])[0];
    let large = "x".repeat(25 * MIB);
    for node in &nodes {
        let (answer, _) = say(node, queue, "ack", json!({"result": large})).await;
        let (status, code, detail) = answer.problem();
        assert_eq!((status, code.as_str()), (400, "invalid_argument"), "{detail}");
        assert!(detail.contains("result has") && detail.contains("1048576"), "{detail}");

        // A little less, and more, than nodes can send each other.
        for count in [18, 28] {
            let (answer, _) = say(node, queue, "ack", follow_ups("other", count)).await;
            let (status, code, detail) = answer.problem();
            assert_eq!((status, code.as_str()), (413, "payload_too_large"), "{detail}");
            assert!(detail.contains("16777216") && detail.contains("send less"), "{detail}");
        }

        let error = json!({"error": {"type": "io", "message": large}, "retryable": false});
        let (answer, id) = say(node, queue, "fail", error).await;
        assert_eq!(answer.ok()["state"], "dead");
        let task = get(node.address, &format!("/v1/tasks/{id}")).await.ok();
        let message = task["attempts"][0]["error"]["message"].as_str().unwrap();
        assert_eq!(message.len() + "io".len(), 16 << 10);

        let (answer, _) = say(node, queue, "extend", json!({"resume_state": large})).await;
        let (_, code, detail) = answer.problem();
        assert_eq!(code, "invalid_argument", "{detail}");
        assert!(detail.contains("resume_state has"), "{detail}");
        let progress = json!({"progress": {"percent": 5, "message": large}});
        say(node, queue, "extend", progress).await.0.ok();
    }
    // No leader changed because of it, and each node still works.
    for node in &nodes {
        let (answer, _) = say(node, queue, "ack", follow_ups("other", 3)).await;
        assert_eq!(answer.ok()["enqueued"].as_array().map(Vec::len), Some(3));
    }
}
