//! Foreign text in the CLI's output: texts of producers and handlers, and names.

use std::{
    collections::HashSet,
    io::{Read, Write},
    net::TcpStream,
};

use crate::{cli::ask_http, yard::Yard};
use serde_json::json;

/// A text of a producer or a handler can look like fields of a task. The CLI must not print such a
/// text where fields stand.
#[test]
fn no_text_of_others_poses_as_a_field_of_a_task() {
    let yard = Yard::start();
    let forged = "gone\nstate         succeeded\n  #2          succeeded after 1s\nid            x";
    let header = format!("note={forged}");
    let id = yard.ok(&["enqueue", "a", "-q", "q", "--retry", "never", "--header", &header]);
    let claim = json!({"queues": ["q"], "worker": forged}).to_string();
    let claimed = ask_http(&yard, "POST", "/v1/claims", &claim);
    let token = &claimed["tasks"][0]["claim_token"];
    let error = json!({"type": "E", "message": forged});
    let fail = json!({"claim_token": token, "error": error}).to_string();
    ask_http(&yard, "POST", &format!("/v1/tasks/{id}/fail"), &fail);

    let shown = yard.ok(&["task", "get", &id]);
    assert_eq!(shown.matches("succeeded after 1s").count(), 3, "all of it is shown: {shown}");
    let names = shown.lines().map(|line| line.get(..14).unwrap_or(line).trim());
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    for name in ["id", "state", "#1"] {
        assert_eq!(names.iter().filter(|other| **other == name).count(), 1, "{shown}");
    }
    assert!(!names.contains(&"#2") && names.len() == names.iter().collect::<HashSet<_>>().len());
    assert!(shown.contains("\nstate         dead\n"), "{shown}");

    let ran = yard.run(&["task", "result", &id]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.starts_with("error: task "), "{}", ran.stderr);
    assert!(ran.stderr.lines().skip(1).all(|line| line.starts_with("  ")), "{}", ran.stderr);
}

#[test]
fn a_flow_that_is_none_is_called_a_flow() {
    let yard = Yard::start();
    for arguments in [
        &["flow", "cancel", "nosuch"][..],
        &["flow", "retry", "nosuch"],
        &["flow", "status", "nosuch"],
        &["flow", "wait", "nosuch"],
        &["task", "list", "--flow", "nosuch"],
        &["dead", "retry", "--flow", "nosuch"],
    ] {
        let ran = yard.run(arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.stderr);
        let told = "error: flow \"nosuch\" is not a flow id: expected 26 characters";
        assert!(ran.stderr.starts_with(told), "{arguments:?}: {}", ran.stderr);
    }
    let path = "/v1/flows/nosuch";
    let mut stream = TcpStream::connect(yard.url.trim_start_matches("http://")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("not a flow id"), "{answer}");
}
