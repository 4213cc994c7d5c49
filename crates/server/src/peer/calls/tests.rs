//! One connection whose other side the test plays.

use super::{
    super::connection::{PATIENCE, write_frame},
    *,
};
use futures_util::FutureExt;
use tokio::{
    io::{DuplexStream, ReadHalf, WriteHalf},
    task::JoinHandle,
};

const WAIT: Duration = Duration::from_secs(30);

fn peer() -> PeerHello {
    PeerHello {
        cluster: 1,
        node: 2,
        start: taskyard_replica::Start::default(),
        build: "test".to_string(),
        rules: 1,
    }
}

fn dialled(clock: &Clock) -> Arc<Dialled> {
    Arc::new(Dialled::new(peer(), clock.clone(), CALLS_MAX))
}

/// A call without options.
fn ask(
    dialled: &Arc<Dialled>,
    request: Bytes,
    wait: Duration,
) -> impl Future<Output = Result<Bytes, CallError>> + Send + use<> {
    dialled.clone().call(request, wait, CallOptions::default())
}

fn minded_by(late: LateReply) -> CallOptions {
    CallOptions { late: Some(late), ..CallOptions::default() }
}

/// The other side of a connection, played by the test.
struct Far {
    reader: FrameReader<ReadHalf<DuplexStream>>,
    writer: WriteHalf<DuplexStream>,
}

impl Far {
    /// The next frame that is not a ping or pong.
    async fn frame(&mut self) -> Frame {
        loop {
            let frame = self.reader.frame().await.unwrap();
            if !matches!(frame.kind, Kind::Ping | Kind::Pong) {
                return frame;
            }
        }
    }

    async fn send(&mut self, kind: Kind, stream: u64, body: &'static [u8]) {
        write_frame(&mut self.writer, &Frame::new(kind, stream, body)).await.unwrap();
    }
}

/// Runs a connection in the background; the task returns its end.
fn connect(dialled: &Arc<Dialled>) -> (Far, tokio::task::JoinHandle<Ended>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (reader, writer) = tokio::io::split(near);
    let near = dialled.clone();
    let running = tokio::spawn(async move {
        let mut reader = FrameReader::new(reader);
        reader.trust();
        let ended = near.run(reader, writer, PATIENCE).await;
        near.end();
        ended
    });
    let (reader, writer) = tokio::io::split(far);
    (Far { reader: FrameReader::new(reader), writer }, running)
}

#[tokio::test(start_paused = true)]
async fn answers_find_their_calls_in_any_order() {
    let dialled = dialled(&Clock::system());
    let (mut far, _running) = connect(&dialled);
    let first = tokio::spawn(ask(&dialled, Bytes::from("one"), WAIT));
    let one = far.frame().await;
    let second = tokio::spawn(ask(&dialled, Bytes::from("two"), WAIT));
    let two = far.frame().await;
    assert_eq!((&one.body[..], &two.body[..]), (&b"one"[..], &b"two"[..]));
    far.send(Kind::Reply, two.stream, b"2").await;
    far.send(Kind::Reply, 77, b"for nobody").await;
    far.send(Kind::Reply, one.stream, b"1").await;
    assert_eq!(second.await.unwrap(), Ok(Bytes::from("2")));
    assert_eq!(first.await.unwrap(), Ok(Bytes::from("1")));
    assert_eq!(dialled.calls_under_way(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_is_told_to_the_other_side() {
    let dialled = dialled(&Clock::system());
    let (mut far, _running) = connect(&dialled);
    let caller = tokio::spawn(ask(&dialled, Bytes::from("long"), WAIT));
    let call = far.frame().await;
    caller.abort();
    assert_eq!(far.frame().await, Frame::new(Kind::Cancel, call.stream, Bytes::new()));
    assert_eq!(dialled.calls_under_way(), 0);
}

/// Makes a call and gives up; records late answers.
fn minded(dialled: &Arc<Dialled>, wait: Duration) -> (JoinHandle<()>, Arc<Mutex<Vec<Bytes>>>) {
    let came = Arc::new(Mutex::new(Vec::new()));
    let late = {
        let came = came.clone();
        Arc::new(move |reply| came.lock().unwrap().push(reply))
    };
    let call = dialled.clone().call(Bytes::from("claim"), wait, minded_by(late));
    (tokio::spawn(async move { drop(call.await) }), came)
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_goes_to_its_receiver() {
    let dialled = dialled(&Clock::system());
    let (mut far, _running) = connect(&dialled);
    // The caller goes away, or its wait ends.
    for wait in [WAIT, PATIENCE.ping_every] {
        let (caller, came) = minded(&dialled, wait);
        let call = far.frame().await;
        if wait == WAIT {
            caller.abort();
        }
        assert_eq!(far.frame().await.kind, Kind::Cancel);
        assert_eq!(dialled.calls_under_way(), 1);
        far.send(Kind::Reply, call.stream, b"a task").await;
        // Answers come in order, so that the late one has arrived before this one.
        let after = tokio::spawn(ask(&dialled, Bytes::new(), WAIT));
        let call = far.frame().await;
        far.send(Kind::Reply, call.stream, b"").await;
        after.await.unwrap().unwrap();
        assert_eq!(*came.lock().unwrap(), [Bytes::from("a task")]);
        assert_eq!(dialled.calls_under_way(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unread_answer_goes_to_the_receiver_of_late_answers() {
    let dialled = dialled(&Clock::system());
    let (mut far, _running) = connect(&dialled);
    let came = Arc::new(Mutex::new(Vec::new()));
    let late: LateReply = {
        let came = came.clone();
        Arc::new(move |reply| came.lock().unwrap().push(reply))
    };
    let waiting = dialled.clone().begin(Bytes::from("claim"), minded_by(late)).unwrap();
    let call = far.frame().await;
    far.send(Kind::Reply, call.stream, b"a task").await;
    let after = tokio::spawn(ask(&dialled, Bytes::new(), WAIT));
    let call = far.frame().await;
    far.send(Kind::Reply, call.stream, b"").await;
    after.await.unwrap().unwrap();
    assert!(came.lock().unwrap().is_empty());
    drop(waiting);
    assert_eq!(*came.lock().unwrap(), [Bytes::from("a task")]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_forgotten_when_no_answer_will_come() {
    let dialled = dialled(&Clock::system());
    let (mut far, _running) = connect(&dialled);
    let (caller, came) = minded(&dialled, WAIT);
    let call = far.frame().await;
    caller.abort();
    far.frame().await;
    far.send(Kind::Broken, call.stream, b"").await;
    let after = tokio::spawn(ask(&dialled, Bytes::new(), WAIT));
    let call = far.frame().await;
    far.send(Kind::Reply, call.stream, b"").await;
    after.await.unwrap().unwrap();
    assert_eq!((dialled.calls_under_way(), came.lock().unwrap().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_declined_call_was_not_sent_and_a_broken_one_is_unknown() {
    let dialled = dialled(&Clock::system());
    let (mut far, _running) = connect(&dialled);
    for (kind, expected) in
        [(Kind::Declined, CallError::not_sent("too many")), (Kind::Broken, CallError::Lost)]
    {
        let caller = tokio::spawn(ask(&dialled, Bytes::new(), WAIT));
        let call = far.frame().await;
        far.send(kind, call.stream, b"too many").await;
        assert_eq!(caller.await.unwrap(), Err(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_time_is_over_is_unknown_once_it_was_written() {
    let dialled = dialled(&Clock::system());
    let (mut far, running) = connect(&dialled);
    // The other side keeps the connection alive, and answers no call.
    let caller = tokio::spawn(ask(&dialled, Bytes::new(), PATIENCE.ping_every));
    let call = far.frame().await;
    assert_eq!(caller.await.unwrap(), Err(CallError::TimedOut));
    assert_eq!(far.frame().await, Frame::new(Kind::Cancel, call.stream, Bytes::new()));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_written_was_surely_not_executed() {
    let dialled = dialled(&Clock::system());
    // Nothing runs the connection, so that nothing is written.
    let timed_out = ask(&dialled, Bytes::new(), Duration::from_millis(10)).await;
    assert!(matches!(timed_out, Err(CallError::NotSent { .. })), "{timed_out:?}");

    let call = ask(&dialled, Bytes::new(), WAIT);
    tokio::pin!(call);
    assert!((&mut call).now_or_never().is_none());
    dialled.end();
    let broken = call.await;
    assert!(matches!(broken, Err(CallError::NotSent { .. })), "{broken:?}");
    let late = ask(&dialled, Bytes::new(), WAIT).await;
    assert!(matches!(late, Err(CallError::NotSent { .. })), "{late:?}");
    assert_eq!(dialled.queue.waiting(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_written_are_lost_with_their_connection() {
    let dialled = dialled(&Clock::system());
    let (mut far, running) = connect(&dialled);
    let caller = tokio::spawn(ask(&dialled, Bytes::new(), WAIT));
    far.frame().await;
    drop(far);
    assert_eq!(caller.await.unwrap(), Err(CallError::Lost));
    assert!(matches!(running.await.unwrap(), Ended::Closed | Ended::Broke(_)));
}

#[tokio::test(start_paused = true)]
async fn the_number_and_the_size_of_calls_are_bounded() {
    let dialled = dialled(&Clock::system());
    let too_large = Bytes::from(vec![0; limits::PEER_FRAME_BYTES_MAX]);
    let refused = ask(&dialled, too_large, WAIT).await;
    assert!(matches!(refused, Err(CallError::NotSent { .. })), "{refused:?}");

    let waiting: Vec<Waiting> = (0..limits::PEER_CALLS_MAX)
        .map(|_| dialled.clone().begin(Bytes::new(), CallOptions::default()).unwrap())
        .collect();
    let refused = ask(&dialled, Bytes::new(), WAIT).await;
    assert!(matches!(refused, Err(CallError::NotSent { .. })), "{refused:?}");
    drop(waiting);
    assert_eq!((dialled.calls_under_way(), dialled.queue.waiting()), (0, (0, 0)));

    let piece = Bytes::from(vec![0; 20 << 20]);
    let waiting: Vec<_> =
        (0..4).map(|_| dialled.clone().begin(piece.clone(), CallOptions::default())).collect();
    assert_eq!(waiting.iter().filter(|begun| begun.is_ok()).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_peer_whose_clock_is_an_hour_ahead_is_found_out() {
    let clock = Clock::manual(1_000_000);
    let dialled = dialled(&clock);
    let (mut far, _running) = connect(&dialled);
    let ping = far.reader.frame().await.unwrap();
    assert_eq!((ping.kind, &ping.body[..]), (Kind::Ping, &1_000_000u64.to_le_bytes()[..]));
    clock.advance(Duration::from_millis(20));
    let body = Bytes::copy_from_slice(&4_600_010u64.to_le_bytes());
    let pong = Frame::new(Kind::Pong, ping.stream, body);
    write_frame(&mut far.writer, &pong).await.unwrap();
    // Answers come in order, so that this one arrives after the pong.
    let caller = tokio::spawn(ask(&dialled, Bytes::new(), WAIT));
    let call = far.frame().await;
    far.send(Kind::Reply, call.stream, b"").await;
    caller.await.unwrap().unwrap();
    assert_eq!(dialled.pings().clock_skew_ms(), Some(3_600_000));
    assert_eq!(dialled.pings().round_trip(), Some(Duration::from_millis(20)));
}

#[tokio::test(start_paused = true)]
async fn frames_that_only_a_dialer_sends_end_the_connection() {
    for kind in [Kind::Call, Kind::Tell, Kind::Raft, Kind::Cancel, Kind::Hello, Kind::Welcome] {
        let dialled = dialled(&Clock::system());
        let (mut far, running) = connect(&dialled);
        far.send(kind, 1, b"").await;
        let ended = running.await.unwrap();
        assert!(matches!(ended, Ended::OutOfTurn(_)), "{kind:?}: {ended}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_park_are_bounded_by_themselves() {
    let parks = || CallOptions { parks: true, ..CallOptions::default() };
    let calls_max = CallsMax { all: 5, parked: 3 };
    let dialled = Arc::new(Dialled::new(peer(), Clock::system(), calls_max));
    let begin = |options| dialled.clone().begin(Bytes::new(), options);
    let mut parked: Vec<_> = (0..3).map(|_| begin(parks()).unwrap()).collect();
    assert_eq!(begin(parks()).err(), Some(CallError::TooManyParked { parked: 3 }));
    let prompt: Vec<_> = (0..2).map(|_| begin(CallOptions::default()).unwrap()).collect();
    let refused = begin(CallOptions::default()).err();
    assert!(matches!(refused, Some(CallError::NotSent { .. })), "{refused:?}");
    drop(prompt);
    // A call that ends makes room for the next.
    parked.pop();
    parked.push(begin(parks()).unwrap());
    dialled.answer(1, Ok(Bytes::new()));
    parked.push(begin(parks()).unwrap());
    assert_eq!(begin(parks()).err(), Some(CallError::TooManyParked { parked: 3 }));
}
