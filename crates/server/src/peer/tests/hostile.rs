//! What strangers, broken nodes and scanners send to the peer port. After each, the node still
//! answers its peers' calls, and the fault is counted by kind.

use super::*;
use bytes::{BufMut, BytesMut};
use connection::{FrameReader, write_frame};
use frame::PREFACE;
use handshake::Dialing;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// A node under attack, and a peer that stays connected with it.
struct Besieged {
    node: TestNode,
    peer: TestNode,
}

impl Besieged {
    async fn start() -> Besieged {
        Besieged::tuned(TUNING).await
    }

    async fn tuned(tuning: Tuning) -> Besieged {
        let node = TestNode::with(config(1).identity(), tuning, Clock::system()).await;
        let peer = TestNode::start(2).await;
        peer.connects_to(&node).await;
        Besieged { node, peer }
    }

    async fn stranger(&self) -> TcpStream {
        TcpStream::connect(self.node.address).await.unwrap()
    }

    /// A connection that has passed the handshake as node 3, and may send anything.
    async fn insider(&self) -> (FrameReader<OwnedReadHalf>, OwnedWriteHalf) {
        let (address, me) = (self.node.address.to_string(), config(3).identity());
        let opened = dial::dial(&address, &me, Some(1), TUNING.patience.handshake).await;
        let (reader, writer, _) = opened.unwrap();
        (reader, writer)
    }

    /// Checks that the node still serves, and has counted exactly these faults.
    async fn stands(&self, counted: &[(&str, u64)]) {
        assert!(self.peer.asks(1, "hello").await.is_ok());
        assert_eq!(self.peer.recorder.turns(1), [true], "the peer was never cut off");
        let refused = self.node.network.refused();
        assert_eq!(refused.into_iter().collect::<Vec<_>>(), counted);
    }
}

/// Reads until the node closes the connection. Returns what it sent.
async fn until_closed(mut socket: impl AsyncReadExt + Unpin) -> Vec<u8> {
    let mut said = Vec::new();
    // A connection that is closed with bytes unread is reset, which is an end too.
    let _ = within("the end of a connection", socket.read_to_end(&mut said)).await;
    said
}

/// Sends bytes, and waits until the node closes the connection.
async fn send(besieged: &Besieged, bytes: &[u8]) -> Vec<u8> {
    let mut socket = besieged.stranger().await;
    // The node may close it before all is written.
    let _ = socket.write_all(bytes).await;
    until_closed(socket).await
}

fn wire(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = BytesMut::from(&PREFACE[..]);
    frames.iter().for_each(|frame| frame.write(&mut bytes));
    bytes.to_vec()
}

/// The words of a refusal, which must be all that was sent after `skipped` frames.
fn refusal(said: &[u8], skipped: usize) -> String {
    let decoder = frame::Decoder { frame_bytes_max: limits::PEER_HANDSHAKE_BYTES_MAX };
    let mut buffer = BytesMut::from(said);
    for _ in 0..skipped {
        decoder.next(&mut buffer).unwrap().unwrap();
    }
    let frame = decoder.next(&mut buffer).unwrap().unwrap();
    assert_eq!((frame.kind, buffer.len()), (Kind::Refused, 0));
    String::from_utf8_lossy(&frame.body[3..]).into_owned()
}

/// A process that took over a peer's address could otherwise end the node that dials it.
#[tokio::test]
async fn a_verdict_of_one_that_has_proved_nothing_is_no_verdict() {
    let (one, two) = (TestNode::start(1).await, TestNode::start(2).await);
    for code in [RefusalCode::NotAMember, RefusalCode::NodeInUse] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let liar = listener.local_addr().unwrap();
        let lies = tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let refusal = Refusal::new(code, format!("{code:?} says a liar"));
                // Sent before any question, to every dialer.
                let _ = write_frame(&mut socket, &refusal.frame()).await;
                until_closed(socket).await;
            }
        });
        one.dials(&[(2, liar)]);
        let lie = format!("{code:?} says a liar");
        let words = until_error(&one, |error| error.contains(&lie)).await;
        assert!(words.contains("which has proved nothing"), "{words}");
        assert_eq!(one.network.status()[0].verdict, None, "{code:?}");
        lies.abort();
    }
    // The node goes on, and connects once the peer itself is there.
    one.connects_to(&two).await;
    assert!(one.asks(2, "hello").await.is_ok());
}

#[tokio::test]
async fn other_protocols_and_garbage_get_no_answer() {
    let besieged = Besieged::start().await;
    for (bytes, kind) in [
        (&b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"[..], "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP"),
        (&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], "TLS"),
        (b"\0", "garbage"),
        (b"TASKYARD-PEER 2\n", "garbage"),
    ] {
        let before = besieged.node.network.refused().get(kind).copied().unwrap_or_default();
        assert_eq!(send(&besieged, bytes).await, b"", "{bytes:?}");
        assert_eq!(besieged.node.network.refused()[kind], before + 1, "{bytes:?}");
    }
    let draws = Draws(AtomicU64::new(7));
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..=draws.below(5_000)).map(|_| draws.below(256) as u8).collect();
        send(&besieged, &bytes).await;
    }
    let refused: u64 = besieged.node.network.refused().values().sum();
    assert_eq!(refused, 55);
    assert!(besieged.peer.asks(1, "hello").await.is_ok());
}

#[tokio::test]
async fn an_oversized_frame_is_refused_by_its_length() {
    let besieged = Besieged::start().await;
    for length in [limits::PEER_HANDSHAKE_BYTES_MAX as u32 + 1, 1 << 30, u32::MAX, 0, 8] {
        let mut bytes = PREFACE.to_vec();
        bytes.put_u32_le(length);
        assert_eq!(send(&besieged, &bytes).await, b"", "{length}");
    }
    besieged.stands(&[("bad frame", 5)]).await;

    let (mut reader, mut writer) = besieged.insider().await;
    let length = limits::PEER_FRAME_BYTES_MAX as u32 + 1;
    writer.write_all(&length.to_le_bytes()).await.unwrap();
    within("the end", async { while reader.frame().await.is_ok() {} }).await;
    besieged.stands(&[("bad frame", 5), ("peer that breaks the protocol", 1)]).await;
}

#[tokio::test]
async fn half_a_frame_and_then_nothing_is_an_end() {
    let besieged = Besieged::start().await;
    let me = config(3).identity();
    let (_, hello) = Dialing::start(&me, None, &[0; 32]);
    let whole = wire(&[hello]);
    for end in [0, 5, PREFACE.len(), PREFACE.len() + 2, whole.len() - 1] {
        let mut socket = besieged.stranger().await;
        socket.write_all(&whole[..end]).await.unwrap();
        socket.shutdown().await.unwrap();
        assert_eq!(until_closed(socket).await, b"", "cut at {end}");
    }
    besieged.stands(&[("cut handshake", 5)]).await;

    // The same from a peer: half a call is not executed.
    let (mut reader, mut writer) = besieged.insider().await;
    let call = wire(&[Frame::new(Kind::Call, 1, &b"half"[..])]);
    writer.write_all(&call[PREFACE.len()..call.len() - 1]).await.unwrap();
    writer.shutdown().await.unwrap();
    within("the end", async { while reader.frame().await.is_ok() {} }).await;
    besieged.stands(&[("cut handshake", 5)]).await;
    assert_eq!(besieged.node.executed("half"), 0);
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_ended() {
    let mut tuning = TUNING;
    tuning.patience.handshake = Duration::from_millis(1_000);
    let besieged = Besieged::tuned(tuning).await;
    let mut slow = besieged.stranger().await;
    slow.write_all(&PREFACE[..7]).await.unwrap();
    let silent = besieged.stranger().await;
    assert_eq!(until_closed(slow).await, b"");
    assert_eq!(until_closed(silent).await, b"");
    // A byte now and then does not help.
    let mut dripping = besieged.stranger().await;
    let (mut reader, mut writer) = dripping.split();
    let drip = async {
        for byte in wire(&[Frame::new(Kind::Hello, 0, vec![0; 4_000])]) {
            if writer.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        said = until_closed(&mut reader) => assert_eq!(said, b""),
        () = drip => panic!("all of it was taken"),
    }
    besieged.stands(&[("slow handshake", 3)]).await;
}

#[tokio::test]
async fn of_thousands_that_say_nothing_the_oldest_go_first() {
    const STRANGERS: usize = 2_000;
    let besieged = Besieged::tuned(Tuning { strangers_max: 50, ..TUNING }).await;
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS {
        strangers.push(besieged.stranger().await);
        if strangers.len() > 50 {
            // Only the oldest is closed: the number of connections stays the same.
            let oldest = strangers.remove(0);
            assert_eq!(until_closed(oldest).await, b"");
        }
    }
    besieged.stands(&[("too many strangers", STRANGERS as u64 - 50)]).await;
    // A real node gets through the crowd.
    let newcomer = TestNode::start(4).await;
    newcomer.connects_to(&besieged.node).await;
    assert!(newcomer.asks(1, "hello").await.is_ok());
}

#[tokio::test]
async fn a_wrong_secret_and_a_wrong_cluster_are_refused_in_words() {
    let besieged = Besieged::start().await;
    let (node, address) = (&besieged.node, besieged.node.address);
    for (change, words) in [
        (
            Box::new(|config: &mut PeerConfig| config.secret = b"guess".to_vec())
                as Box<dyn Fn(&mut _)>,
            "secrets differ",
        ),
        (Box::new(|config: &mut PeerConfig| config.secret.clear()), "secrets differ"),
        (Box::new(|config: &mut PeerConfig| config.cluster = 0xbad), "is not this one"),
    ] {
        let mut wrong = config(3);
        change(&mut wrong);
        let stray = TestNode::with(wrong.identity(), TUNING, Clock::system()).await;
        stray.dials(&[(1, address)]);
        until_error(&stray, |error| error.contains(words)).await;
        assert!(is_not_sent(&stray.asks(1, "stray").await));
        assert!(stray.recorder.turns(1).is_empty());
    }
    let refused = node.network.refused();
    assert!(refused["wrong cluster"] > 0 && refused["wrong secret"] > 1, "{refused:?}");
    assert_eq!(node.executed("stray"), 0);

    // A stranger that ignores the Challenge, and guesses a proof.
    let me = config(3).identity();
    let (_, hello) = Dialing::start(&me, None, &[0; 32]);
    for guess in [&[0; 32][..], &[], &[1; 33]] {
        let proof = Frame::new(Kind::Proof, 0, guess.to_vec());
        let said = send(&besieged, &wire(&[hello.clone(), proof])).await;
        assert!(refusal(&said, 1).contains("secrets differ"));
    }
    assert_eq!(node.network.refused()["wrong secret"], refused["wrong secret"] + 3);
    assert!(besieged.peer.asks(1, "hello").await.is_ok());
}

#[tokio::test]
async fn a_recorded_handshake_opens_nothing() {
    let besieged = Besieged::start().await;
    let me = config(3).identity();
    // A successful handshake, recorded.
    let (dialing, hello) = Dialing::start(&me, Some(1), &[7; 32]);
    let (reader, mut writer) = besieged.stranger().await.into_split();
    let mut reader = FrameReader::new(reader);
    writer.write_all(PREFACE).await.unwrap();
    write_frame(&mut writer, &hello).await.unwrap();
    let (proved, proof) = dialing.challenged(&reader.frame().await.unwrap()).unwrap();
    write_frame(&mut writer, &proof).await.unwrap();
    proved.welcomed(&reader.frame().await.unwrap()).unwrap();
    drop((reader, writer));

    let said = send(&besieged, &wire(&[hello, proof])).await;
    assert!(refusal(&said, 1).contains("secrets differ"));
    besieged.stands(&[("wrong secret", 1)]).await;
}

#[tokio::test]
async fn frames_before_the_handshake_do_nothing() {
    let besieged = Besieged::start().await;
    let kinds = [Kind::Raft, Kind::Call, Kind::Ping, Kind::Cancel, Kind::Proof, Kind::Welcome];
    for kind in kinds {
        let said = send(&besieged, &wire(&[Frame::new(kind, 1, &b"early"[..])])).await;
        assert!(refusal(&said, 0).contains("where the handshake wants Hello"), "{kind:?}");
    }
    // In place of the proof, too.
    let me = config(3).identity();
    let (_, hello) = Dialing::start(&me, None, &[0; 32]);
    let call = Frame::new(Kind::Call, 1, &b"early"[..]);
    let said = send(&besieged, &wire(&[hello, call])).await;
    assert!(refusal(&said, 1).contains("where the handshake wants Proof"));
    besieged.stands(&[("malformed handshake", kinds.len() as u64 + 1)]).await;
    assert_eq!(besieged.node.executed("early"), 0);
    assert!(besieged.node.recorder.seen.lock().unwrap().raft.is_empty());
}

#[tokio::test]
async fn a_peer_that_breaks_the_protocol_loses_its_connection_alone() {
    let besieged = Besieged::start().await;
    let frame = |kind: u8| {
        let mut bytes = BytesMut::new();
        bytes.put_u32_le(9);
        bytes.put_u8(kind);
        bytes.put_u64_le(1);
        bytes
    };
    let mut broken = 0;
    for bytes in [
        &frame(99)[..],
        &frame(0),
        &frame(Kind::Reply as u8),
        &frame(Kind::Hello as u8),
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let (mut reader, mut writer) = besieged.insider().await;
        writer.write_all(bytes).await.unwrap();
        within("the end", async { while reader.frame().await.is_ok() {} }).await;
        broken += 1;
        besieged.stands(&[("peer that breaks the protocol", broken)]).await;
    }

    // A call's number twice: the connection ends, and with it the first call.
    let (mut reader, mut writer) = besieged.insider().await;
    let call = Frame::new(Kind::Call, 5, "hang");
    write_frame(&mut writer, &call).await.unwrap();
    let began = |seen: &Seen| seen.executed.contains_key(&b"hang"[..]).then_some(());
    besieged.node.recorder.until("the call", began).await;
    write_frame(&mut writer, &call).await.unwrap();
    within("the end", async { while reader.frame().await.is_ok() {} }).await;
    let dropped = |seen: &Seen| (seen.dropped == 1).then_some(());
    besieged.node.recorder.until("no call left", dropped).await;
    assert_eq!(besieged.node.executed("hang"), 1);
}

#[tokio::test]
async fn a_peer_that_reads_no_answers_is_cut_off_and_costs_a_bounded_amount() {
    let mut tuning = TUNING;
    tuning.patience.silence = Duration::from_millis(3_000);
    tuning.allowance =
        Allowance { answer_bytes_soft_max: 1 << 20, answer_bytes_max: 4 << 20, ..ALLOWANCE };
    let node = TestNode::with(config(1).identity(), tuning, Clock::system()).await;
    let (address, me) = (node.address.to_string(), config(3).identity());
    let opened = dial::dial(&address, &me, Some(1), TUNING.patience.handshake).await;
    let (_reader, mut writer, _) = opened.unwrap();
    let flood = async {
        for stream in 1..=5_000 {
            let call = Frame::new(Kind::Call, stream, &b"large"[..]);
            if write_frame(&mut writer, &call).await.is_err() {
                return stream;
            }
        }
        // The system's buffers took all frames: the end shows in the next writes.
        loop {
            if write_frame(&mut writer, &Frame::new(Kind::Pong, 0, Bytes::new())).await.is_err() {
                return 5_000;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the end", flood).await;
    let peer = TestNode::start(2).await;
    peer.connects_to(&node).await;
    assert_eq!(peer.asks(1, "large").await.map(|answer| answer.len()), Ok(1 << 20));
}

#[tokio::test]
async fn a_peer_that_reads_no_answers_is_heard_until_it_is_cut_off() {
    let allowance =
        Allowance { answer_bytes_soft_max: 1 << 20, answer_bytes_max: 4 << 20, ..ALLOWANCE };
    let besieged = Besieged::tuned(Tuning { allowance, ..TUNING }).await;
    let (_reader, mut writer) = besieged.insider().await;
    for stream in 1..=100 {
        let call = Frame::new(Kind::Call, stream, &b"large"[..]);
        write_frame(&mut writer, &call).await.unwrap();
    }
    // More than the system's buffers and the bound take: the other calls are not begun.
    let executed = |seen: &Seen| seen.executed.get(&b"large"[..]).copied().unwrap_or_default();
    besieged.node.recorder.until("calls", |seen| (executed(seen) > 1).then_some(())).await;
    for frame in [Frame::new(Kind::Raft, 3, &b"vote"[..]), Frame::new(Kind::Tell, 0, "alive")] {
        write_frame(&mut writer, &frame).await.unwrap();
    }
    let heard = |seen: &Seen| (seen.raft.len() == 1 && seen.told.len() == 1).then_some(());
    besieged.node.recorder.until("what it sends", heard).await;
    assert!(executed(&besieged.node.recorder.seen.lock().unwrap()) < 100);
}

#[tokio::test]
async fn a_node_that_talks_on_while_it_asks_to_join_is_cut_off() {
    let besieged = Besieged::start().await;
    let mut config = config(0);
    config.cluster = 0;
    let me = config.identity();
    let address = besieged.node.address.to_string();
    for frame in [Frame::new(Kind::Raft, 1, &b"x"[..]), Frame::new(Kind::Ping, 1, &b"x"[..])] {
        let opened = dial::dial(&address, &me, None, TUNING.patience.handshake).await;
        let (mut reader, mut writer, _) = opened.unwrap();
        write_frame(&mut writer, &frame).await.unwrap();
        let ended = within("the end", reader.frame()).await;
        assert!(ended.is_err(), "{ended:?}");
    }
    besieged.stands(&[("join that failed", 2)]).await;
}
