//! The client against a server that follows a script of expected commands and their answers.

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
    task::JoinHandle,
};

use super::*;

/// Greets with `hi`, then follows the steps: an expected line, and the answer to it. Returns the
/// HELLO.
async fn server(
    hi: &'static str,
    steps: &'static [(&'static str, &'static str)],
) -> (SocketAddr, JoinHandle<serde_json::Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (read, mut write) = socket.split();
        let mut lines = BufReader::new(read).lines();
        write.write_all(hi.as_bytes()).await.unwrap();
        let Some(hello) = lines.next_line().await.unwrap() else { return serde_json::Value::Null };
        write.write_all(b"+OK\r\n").await.unwrap();
        for (heard, said) in steps {
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(*heard));
            // In two pieces, because a reply may arrive in parts.
            let (first, second) = said.split_at(said.len() / 2);
            write.write_all(first.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
            write.write_all(second.as_bytes()).await.unwrap();
        }
        serde_json::from_str(hello.strip_prefix("HELLO ").unwrap()).unwrap()
    });
    (address, serving)
}

async fn open(address: SocketAddr, password: &str) -> Result<Connection, Error> {
    let url: Url = format!("tcp://:{password}@{address}").parse().unwrap();
    let who = Who { wid: Some("w1".to_owned()), labels: vec!["test".to_owned()] };
    Connection::open(&url, &who).await
}

#[tokio::test]
async fn every_command_is_one_line_and_one_reply() {
    let (address, serving) = server(
        "+HI {\"v\":2}\r\n",
        &[
            ("PUSH {\"jid\":1,  \"n\":12345678901234567890}", "+OK\r\n"),
            ("PUSH {}", "-ERR jobs must have a jobtype parameter\r\n"),
            ("FETCH a b", "$4\r\n{\r\n}\r\n"),
            ("FETCH a b", "$-1\r\n"),
            ("ACK {\"jid\":\"x\\\"y\"}", "+OK\r\n"),
            ("BEAT {\"wid\":\"w1\"}", "+OK\r\n"),
            ("BEAT {\"wid\":\"w1\"}", "$17\r\n{\"state\":\"quiet\"}\r\n"),
            ("BEAT {\"wid\":\"w1\"}", "+{\"state\":\"terminate\"}\r\n"),
            ("INFO", "$30\r\n{\"faktory\":{\"queues\":{\"a\":3}}}\r\n"),
        ],
    )
    .await;
    let mut connection = open(address, "").await.unwrap();
    assert_eq!(connection.peer(), address);
    connection.push(b"{\"jid\":1,\r\n\"n\":12345678901234567890}").await.unwrap();
    let refused = connection.push(b"{}").await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { word, .. } if word == "ERR"), "{refused}");
    assert_eq!(refused.to_string(), "jobs must have a jobtype parameter");
    let queues = ["a".to_owned(), "b".to_owned()];
    assert_eq!(connection.fetch(&queues).await.unwrap().as_deref(), Some(&b"{\r\n}"[..]));
    assert_eq!(connection.fetch(&queues).await.unwrap(), None);
    connection.ack("x\"y").await.unwrap();
    for orders in [Orders::GoOn, Orders::Quiet, Orders::Terminate] {
        assert_eq!(connection.beat("w1").await.unwrap(), orders);
    }
    assert_eq!(connection.info().await.unwrap().queues["a"], 3);
    let hello = serving.await.unwrap();
    assert_eq!((&hello["wid"], &hello["v"]), (&"w1".into(), &2.into()), "{hello}");
    assert_eq!(hello["labels"], serde_json::json!(["test"]));
    assert!(hello.get("pwdhash").is_none(), "{hello}");
    let lost = connection.info().await.unwrap_err();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
}

#[tokio::test]
async fn a_password_is_proved_and_never_sent() {
    let (address, serving) = server("+HI {\"v\":2,\"i\":3,\"s\":\"salt\"}\r\n", &[]).await;
    open(address, "sesame").await.unwrap();
    let hello = serving.await.unwrap();
    assert_eq!(hello["pwdhash"], password::hash("sesame", "salt", 3).unwrap());
    assert!(!hello.to_string().contains("sesame"), "{hello}");
}

#[tokio::test]
async fn a_greeting_that_does_not_fit_is_refused_with_words() {
    for (hi, words) in [
        ("+HI {\"v\":2,\"i\":3,\"s\":\"salt\"}\r\n", "tcp://:PASSWORD@"),
        ("+HI {\"v\":3}\r\n", "version 3"),
        ("+HI\r\n", "instead of HI"),
        ("HTTP/1.1 400 Bad Request\r\n", "no reply of a Faktory server"),
        ("-ERR too many connections: 2000\r\n", "too many connections"),
    ] {
        let (address, serving) = server(hi, &[]).await;
        let error = open(address, "").await.unwrap_err().to_string();
        assert!(error.contains(words), "{hi}: {error}");
        serving.abort();
    }
}

#[tokio::test]
async fn nobody_there_is_told_apart_from_a_refusal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = open(address, "sesame").await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("no answer from tcp://{address}: ")), "{error}");
}
