//! Faktory clients without the password, of another protocol, with too much data or none, and many
//! at a time. None of them may harm the others.

use crate::common;

use crate::common::{
    Broker,
    faktory::{Client, Reply, listens, ok},
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{path::Path, sync::Arc, time::Duration};
use taskyard_server::{
    Node,
    config::{FaktoryTls, Secret},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

const LINE_BYTES_MAX: usize = 16 << 20;

async fn broker() -> Broker {
    Broker::with(listens).await
}

fn hashed(password: &str, salt: &str, times: u64) -> String {
    let mut digest = Sha256::digest(format!("{password}{salt}"));
    for _ in 1..times {
        digest = Sha256::digest(digest);
    }
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn only_clients_with_the_password_get_in() {
    let broker = Broker::with(|config| {
        listens(config);
        config.faktory_password = Secret(b"sesame".to_vec());
    })
    .await;
    // Clients of protocol version 1 send no version and hash once.
    for (password, version, is_let_in) in
        [("sesame", r#","v":2"#, true), ("sesame", "", true), ("simsim", r#","v":2"#, false)]
    {
        let (mut client, greeting) = Client::dial(&broker).await;
        let greeting: Value = serde_json::from_str(greeting.strip_prefix("HI ").unwrap()).unwrap();
        let times = if version.is_empty() { 1 } else { greeting["i"].as_u64().unwrap() };
        let hash = hashed(password, greeting["s"].as_str().unwrap(), times);
        let answer = client.call(&format!(r#"HELLO {{"pwdhash":"{hash}"{version}}}"#)).await;
        if is_let_in {
            assert_eq!(answer, ok());
            client.push("job-number-1", "q").await;
        } else {
            assert_eq!(answer, Reply::Error("ERR Invalid password".to_owned()));
            assert_eq!(client.reply().await, None);
        }
    }
    let (mut without, _) = Client::dial(&broker).await;
    assert_eq!(
        without.call(r#"HELLO {"v":2}"#).await,
        Reply::Error("ERR Invalid password".to_owned())
    );
}

#[tokio::test]
async fn clients_that_trust_the_certificate_speak_tls() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let certificate = fixtures.join("faktory-cert.pem");
    let tls =
        FaktoryTls { certificate: certificate.clone(), key: fixtures.join("faktory-key.pem") };
    let broker = Broker::with(|config| {
        listens(config);
        config.faktory_tls = Some(tls.clone());
    })
    .await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificate).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address = broker.node.faktory_address().unwrap();
    let socket = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap();
    stream.write_all(b"HELLO {\"v\":2}\r\nPUSH {}\r\nEND\r\n").await.unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await.unwrap();
    let expected = "+HI {\"v\":2}\r\n+OK\r\n-ERR jobs must have a reasonable jid parameter\r\n";
    assert_eq!(heard, expected);

    // Without TLS nothing is read, and bad files are refused at the start.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"HELLO {\"v\":2}\r\n").await.unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard).await;
    assert!(!heard.starts_with(b"+"), "{heard:?}");
    let dir = tempfile::tempdir().unwrap();
    let mut config = taskyard_server::Config::new(dir.path());
    listens(&mut config);
    config.faktory_tls = Some(FaktoryTls { key: certificate, ..tls });
    let error = Node::start(config).await.unwrap_err().to_string();
    assert!(error.contains("the key") && error.contains("faktory-cert.pem"), "{error}");
}

#[tokio::test]
async fn a_client_of_another_protocol_is_disconnected() {
    let broker = broker().await;
    for first in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"HELLO\n",
        b"HELLO {\"v\":2\n",
        b"hello {}\n",
        b"PUSH {}\n",
        b"\n",
        &[0xff; 100_000],
    ] {
        let (mut client, _) = Client::dial(&broker).await;
        // The connection may close while this is still being sent.
        let _ = client.0.get_mut().write_all(first).await;
        let _ = client.0.get_mut().shutdown().await;
        assert_eq!(client.reply().await, None, "{first:.20?}");
    }
    let (mut silent, _) = Client::dial(&broker).await;
    assert_eq!(silent.reply().await, None, "two seconds are enough to say hello");

    let mut client = Client::open(&broker).await;
    client.send(b"\xff\xfe {}\n").await;
    assert!(matches!(client.reply().await, Some(Reply::Error(_))));
    client.done(r#"PUSH {"jid":"still-served","jobtype":"t","args":[]}"#).await;
}

#[tokio::test]
async fn lines_may_have_any_length_up_to_the_limit_and_come_in_pieces() {
    let broker = broker().await;
    let mut client = Client::open(&broker).await;
    let line = r#"PUSH {"jid":"slow-writer","jobtype":"t","args":["é"]}"#;
    for byte in line.as_bytes().chunks(7).chain([&b"\n"[..]]) {
        client.send(byte).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.reply().await, Some(ok()));
    // Several lines in one piece, each answered in its turn.
    client.send(b"ACK {\"jid\":\"unknown-1\"}\nACK {\"jid\":\"unknown-2\"}\r\nINFO\n").await;
    assert_eq!(client.reply().await, Some(ok()));
    assert_eq!(client.reply().await, Some(ok()));
    assert!(matches!(client.reply().await, Some(Reply::Bulk(_))));

    // A bulk push just below the limit, mostly white space between its jobs.
    let mut bulk = r#"PUSHB [{"jid":"in-a-large-line","jobtype":"t","args":[]}"#.to_owned();
    bulk.push_str(&" ".repeat(LINE_BYTES_MAX - bulk.len() - 1));
    bulk.push(']');
    assert_eq!(client.call(&bulk).await, Reply::Bulk("{}".to_owned()));
    assert_eq!(client.call("FETCH default").await.json()["jid"], "slow-writer");
    assert_eq!(client.call("FETCH default").await.json()["jid"], "in-a-large-line");

    let too_long = vec![b'x'; LINE_BYTES_MAX + 2];
    let _ = client.0.get_mut().write_all(&too_long).await;
    let told = client.reply().await;
    let Some(Reply::Error(text)) = told else { panic!("{told:?}") };
    assert!(text.contains("more than 16777216 bytes"), "{text}");
    assert_eq!(client.reply().await, None);
}

/// The number of slow mutations: each compares large jobs with a pattern that almost matches
/// everywhere. Together they would take minutes.
const LONG_MUTATIONS: usize = 8;

#[tokio::test]
async fn a_mutation_lets_others_go_on_and_ends_with_its_client() {
    let broker = broker().await;
    let mut client = Client::open(&broker).await;
    for n in 0..16 {
        let job = format!(
            r#"PUSH {{"jid":"large-job-{n}","jobtype":"t","args":["{}"],"at":"2030-01-01T00:00:00Z"}}"#,
            "a".repeat(900_000)
        );
        client.done(&job).await;
    }
    let almost = format!("*{}b", "a".repeat(1_000));
    let mutation = format!(
        r#"MUTATE {{"cmd":"discard","target":"scheduled","filter":{{"regexp":"{almost}"}}}}"#
    );
    let mut gone = Vec::new();
    for _ in 0..LONG_MUTATIONS {
        let mut other = Client::open(&broker).await;
        other.send(format!("{mutation}\r\n").as_bytes()).await;
        gone.push(other);
        // The mutations are running, and this command is answered.
        client.done(r#"ACK {"jid":"unknown-1"}"#).await;
    }
    drop(gone);
    client.done(r#"MUTATE {"cmd":"clear","target":"scheduled"}"#).await;
    assert_eq!(client.call("INFO").await.json()["faktory"]["sets"]["scheduled"], 0);
}

#[tokio::test]
async fn lists_that_are_too_long_are_refused() {
    let broker = broker().await;
    let mut client = Client::open(&broker).await;
    let ids: Vec<String> = (0..10_001).map(|n| n.to_string()).collect();
    let ids = serde_json::to_string(&ids).unwrap();
    let mutation = format!(r#"MUTATE {{"cmd":"kill","target":"dead","filter":{{"jids":{ids}}}}}"#);
    let Reply::Error(told) = client.call(&mutation).await else { panic!("it is taken") };
    assert!(told.contains("more than 10000 ids; send several mutations"), "{told}");
    let jobs = "0,".repeat(250_001);
    let Reply::Error(told) = client.call(&format!("PUSHB [{jobs}0]")).await else {
        panic!("it is taken")
    };
    assert!(told.contains("more than 250000 jobs; push them in parts"), "{told}");
    assert!(matches!(client.call("INFO").await, Reply::Bulk(_)), "the connection goes on");
}

#[tokio::test]
async fn a_job_is_not_handed_to_a_client_that_has_gone() {
    let broker = broker().await;
    let mut producer = Client::open(&broker).await;
    for _ in 0..20 {
        let mut gone = Client::worker(&broker, "impatient").await;
        gone.send(b"FETCH q\r\n").await;
    }
    // Half a command is no command.
    let mut half = Client::worker(&broker, "half").await;
    half.send(br#"PUSH {"jid":"half-a-job","jobtype":"#).await;
    drop(half);
    common::eventually("all clients are gone", async || {
        let info = producer.call("INFO").await.json();
        (info["server"]["connections"] == 1).then_some(())
    })
    .await;
    producer.push("the-only-one", "q").await;
    let mut worker = Client::worker(&broker, "patient").await;
    let got = common::eventually("the job", async || match worker.call("FETCH q").await {
        Reply::Bulk(job) => Some(job),
        _ => None,
    })
    .await;
    assert!(got.contains("the-only-one"), "{got}");
}

#[tokio::test]
async fn two_thousand_connections_are_served_and_the_next_is_refused() {
    const MANY: usize = 2_000;
    let broker = Broker::with(|config| {
        listens(config);
        config.connections_max = MANY;
    })
    .await;
    let mut clients = Vec::with_capacity(MANY);
    for n in 0..MANY {
        clients.push(Client::worker(&broker, &format!("worker-{}", n % 500)).await);
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let line = format!(
            "PUSH {{\"jid\":\"job-number-{n}\",\"jobtype\":\"t\",\"queue\":\"q{}\",\"args\":[]}}\n",
            n % 8
        );
        client.send(line.as_bytes()).await;
    }
    for client in &mut clients {
        assert_eq!(client.reply().await, Some(ok()));
    }
    let info = clients[0].call("INFO").await.json();
    assert_eq!(info["faktory"]["total_enqueued"], MANY);
    assert_eq!(info["server"]["connections"], MANY);
    let address = broker.node.faktory_address().unwrap();
    let mut heard = String::new();
    let mut refused = TcpStream::connect(address).await.unwrap();
    refused.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "-ERR too many connections: 2000\r\n");
    drop(clients.pop());
    // The place is free once the end of the connection is noticed.
    loop {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let mut first = [0; 1];
        socket.read_exact(&mut first).await.unwrap();
        if first == *b"+" {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_node_that_stops_closes_its_clients_connections() {
    let broker = broker().await;
    let mut waiting = Client::worker(&broker, "worker-1").await;
    waiting.send(b"FETCH q\n").await;
    let mut idle = Client::open(&broker).await;
    broker.stop().await;
    assert!(matches!(waiting.reply().await, None | Some(Reply::Nil | Reply::Error(_))));
    assert_eq!(idle.reply().await, None);
}
