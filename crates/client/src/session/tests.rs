//! The messages that a session sends, keeps and repeats, without a network.

use super::*;
use broker_message::Message as FromBroker;
use worker_message::Message as FromWorker;

fn session(slots: u32) -> Session {
    let mut session = Session::new(v1::Hello { slots, ..v1::Hello::default() });
    session.hello();
    session.welcome(b"session".to_vec());
    session
}

fn task(id: &str, token: u64) -> v1::ClaimedTask {
    v1::ClaimedTask { id: id.into(), claim_token: token, ..v1::ClaimedTask::default() }
}

fn key(id: &str, token: u64) -> ClaimKey {
    ClaimKey { id: id.into(), token }
}

fn ack(id: &str, token: u64) -> Answer {
    Answer::Ack(v1::AckRequest { id: id.into(), claim_token: token, ..v1::AckRequest::default() })
}

/// All messages that the session wants to send, one word for each.
fn said(session: &mut Session) -> Vec<String> {
    let claim = |claim: &v1::HeldClaim| format!("{}/{}", claim.id, claim.claim_token);
    let sorted = |claims: &[v1::HeldClaim]| {
        let mut claims: Vec<String> = claims.iter().map(claim).collect();
        claims.sort();
        claims.join(" ")
    };
    let show = |message: v1::WorkerMessage| match message.message.unwrap() {
        FromWorker::Hello(hello) => format!("hello {}", sorted(&hello.held)),
        FromWorker::Credits(credits) => format!("free {}", credits.free),
        FromWorker::Beat(beat) => format!("beat {}", sorted(&beat.held)),
        FromWorker::Started(started) => format!("started {}", sorted(&started.claims)),
        FromWorker::Goodbye(_) => "goodbye".to_string(),
        FromWorker::Answers(answers) => {
            let answers = answers.answers.into_iter().map(|answer| {
                let number = answer.number;
                match answer.answer.unwrap() {
                    Answer::Ack(ack) => format!("{number}: ack {}", ack.id),
                    Answer::Fail(fail) => format!("{number}: fail {}", fail.id),
                    Answer::Release(release) => format!("{number}: release {}", release.id),
                    Answer::Snooze(snooze) => format!("{number}: snooze {}", snooze.id),
                    Answer::Extend(extend) => match extend.progress {
                        Some(progress) => format!("{number}: {} % {}", progress.percent, extend.id),
                        None => format!("{number}: extend {}", extend.id),
                    },
                }
            });
            answers.collect::<Vec<_>>().join(", ")
        }
    };
    std::iter::from_fn(|| session.outgoing(|| 0)).map(show).collect()
}

fn hand_out(session: &mut Session, tasks: &[(&str, u64)]) -> Vec<Assigned> {
    let tasks = tasks.iter().map(|(id, token)| task(id, *token)).collect();
    session.receive(FromBroker::Tasks(v1::Tasks { tasks })).run
}

fn reply(session: &mut Session, number: u64, error: Option<&str>) {
    let error = error.map(|code| v1::Error {
        code: code.into(),
        message: "why".into(),
        ..v1::Error::default()
    });
    let replies = vec![v1::AnswerReply { number, error, ..v1::AnswerReply::default() }];
    session.receive(FromBroker::Replies(v1::AnswerReplies { replies }));
}

fn reason(assigned: &Assigned) -> Option<CancelReason> {
    *assigned.stopper.subscribe().borrow()
}

#[test]
fn credits_follow_free_slots_and_nothing_else() {
    let mut session = session(3);
    assert_eq!(said(&mut session), ["free 3", "beat "]);
    let run = hand_out(&mut session, &[("a", 1), ("b", 1)]);
    assert_eq!(run.len(), 2);
    // Tasks that arrive use up the budget, so that there is nothing new to grant.
    assert_eq!(said(&mut session), ["started a/1 b/1"]);
    session.report(Report::Ended { key: key("a", 1), answer: Some(ack("a", 1)) });
    assert_eq!(said(&mut session), ["1: ack a"]);
    // The slot may become free after the end of the attempt, because a thread can outlive its
    // attempt.
    session.report(Report::SlotFree);
    assert_eq!(said(&mut session), ["free 2"]);
}

#[test]
fn a_claim_is_held_until_its_answer_is_confirmed() {
    let mut session = session(2);
    hand_out(&mut session, &[("a", 1)]);
    session.report(Report::Ended { key: key("a", 1), answer: Some(ack("a", 1)) });
    session.report(Report::SlotFree);
    assert_eq!(said(&mut session), ["1: ack a", "free 2", "beat a/1"]);
    assert!(!session.is_settled());
    reply(&mut session, 1, None);
    session.beat();
    assert_eq!(said(&mut session), ["beat "]);
    assert!(session.is_settled());
}

#[test]
fn a_new_stream_names_what_is_held_and_repeats_what_is_not_confirmed() {
    let mut session = session(4);
    hand_out(&mut session, &[("a", 1), ("b", 1), ("c", 1)]);
    session.report(Report::Ended { key: key("a", 1), answer: Some(ack("a", 1)) });
    session.report(Report::Ended { key: key("b", 1), answer: Some(ack("b", 1)) });
    said(&mut session);
    reply(&mut session, 1, None);
    let hello = session.hello().message.unwrap();
    let FromWorker::Hello(hello) = hello else { panic!("{hello:?} is no hello") };
    assert_eq!(hello.session_secret, b"session");
    let mut held: Vec<ClaimKey> = hello.held.into_iter().map(ClaimKey::from).collect();
    held.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(held, [key("b", 1), key("c", 1)]);
    session.welcome(b"session".to_vec());
    // The slots of the two ended attempts become free only with their own reports.
    assert_eq!(said(&mut session), ["started c/1", "2: ack b", "free 1", "beat b/1 c/1"]);
}

#[test]
fn an_answer_the_broker_cannot_decide_on_is_sent_again_later() {
    let mut session = session(1);
    hand_out(&mut session, &[("a", 1)]);
    session.report(Report::Ended { key: key("a", 1), answer: Some(ack("a", 1)) });
    said(&mut session);
    let full = ["disk_full", "limit_exceeded", "queue_full"];
    for code in ["unavailable", "no_quorum", "outcome_unknown"].into_iter().chain(full) {
        reply(&mut session, 1, Some(code));
        assert_eq!(said(&mut session), [""; 0], "{code}");
        session.catch_up();
        assert_eq!(said(&mut session), ["1: ack a"], "{code}");
    }
    reply(&mut session, 1, None);
    assert!(session.is_settled());
}

#[test]
fn a_refused_result_fails_the_task() {
    let mut session = session(1);
    hand_out(&mut session, &[("a", 1)]);
    session.report(Report::Ended { key: key("a", 1), answer: Some(ack("a", 1)) });
    said(&mut session);
    reply(&mut session, 1, Some("payload_too_large"));
    assert_eq!(said(&mut session), ["2: fail a"]);
    reply(&mut session, 2, Some("claim_lost"));
    session.beat();
    assert_eq!(said(&mut session), ["beat "]);
}

#[test]
fn a_late_answer_is_dropped() {
    for code in ["claim_lost", "already_finished", "not_found"] {
        let mut session = session(1);
        hand_out(&mut session, &[("a", 1)]);
        session.report(Report::Ended { key: key("a", 1), answer: Some(ack("a", 1)) });
        said(&mut session);
        reply(&mut session, 1, Some(code));
        assert!(session.is_settled(), "{code}");
        assert_eq!(said(&mut session), [""; 0], "{code}");
    }
}

#[test]
fn orders_reach_the_attempts_they_name() {
    let mut session = session(3);
    let run = hand_out(&mut session, &[("a", 1), ("b", 1), ("c", 1)]);
    let claim = |id: &str| v1::HeldClaim { id: id.into(), claim_token: 1 };
    let orders =
        v1::Orders { cancel: vec![claim("a"), claim("x")], lost: vec![claim("b")], state: 0 };
    let received = session.receive(FromBroker::Orders(orders));
    assert_eq!(received.asked, None);
    let reasons: Vec<_> = run.iter().map(reason).collect();
    assert_eq!(reasons, [Some(CancelReason::Requested), Some(CancelReason::Lost), None]);
    // A lost claim replaces a cancellation, and never the other way round.
    session.stop_all(CancelReason::Lost);
    session.stop_all(CancelReason::Shutdown);
    assert!(run.iter().all(|assigned| reason(assigned) == Some(CancelReason::Lost)));
}

#[test]
fn a_newer_claim_of_the_same_task_ends_the_older() {
    let mut session = session(2);
    let older = hand_out(&mut session, &[("a", 1)]);
    let newer = hand_out(&mut session, &[("a", 2)]);
    assert_eq!(reason(&older[0]), Some(CancelReason::Lost));
    assert_eq!(reason(&newer[0]), None);
    session.report(Report::Ended { key: key("a", 1), answer: None });
    session.beat();
    assert_eq!(said(&mut session), ["started a/2", "free 0", "beat a/2"]);
}

#[test]
fn a_stopping_session_gives_back_what_still_arrives() {
    let mut session = session(2);
    said(&mut session);
    session.enter(Phase::Stopping);
    assert_eq!(said(&mut session), ["free 0", "beat "]);
    assert_eq!(hand_out(&mut session, &[("a", 1)]).len(), 0);
    assert_eq!(session.running(), 0);
    // The budget includes received tasks, so that the broker knows which messages crossed on the
    // wire.
    assert_eq!(said(&mut session), ["1: release a", "free 0"]);
    session.enter(Phase::Quiet);
    assert_eq!(session.phase(), Phase::Stopping);
}

#[test]
fn a_resumed_session_repeats_its_orders_to_the_new_node() {
    let mut session = session(2);
    let said = |session: &mut Session| match session.hello().message {
        Some(FromWorker::Hello(hello)) => hello.state(),
        other => panic!("not a hello: {other:?}"),
    };
    assert_eq!(said(&mut session), v1::WorkerState::Running);
    session.enter(Phase::Quiet);
    assert_eq!(said(&mut session), v1::WorkerState::Quiet);
    session.enter(Phase::Stopping);
    assert_eq!(said(&mut session), v1::WorkerState::Stopping);
}

#[test]
fn a_quiet_session_still_runs_what_crossed_on_the_wire() {
    let mut session = session(2);
    said(&mut session);
    let orders = v1::Orders { state: v1::WorkerState::Quiet.into(), ..v1::Orders::default() };
    let received = session.receive(FromBroker::Orders(orders));
    assert_eq!(received.asked, Some(Phase::Quiet));
    session.enter(Phase::Quiet);
    assert_eq!(hand_out(&mut session, &[("a", 1)]).len(), 1);
}

#[test]
fn only_the_latest_progress_is_sent_and_one_at_a_time() {
    let mut session = session(1);
    hand_out(&mut session, &[("a", 1)]);
    said(&mut session);
    let progress = |percent| Report::Progress {
        key: key("a", 1),
        progress: v1::TaskProgress { percent, message: String::new() },
    };
    session.report(progress(10));
    session.report(progress(20));
    assert_eq!(said(&mut session), [""; 0]);
    session.catch_up();
    assert_eq!(said(&mut session), ["1: 20 % a"]);
    session.report(progress(30));
    session.catch_up();
    assert_eq!(said(&mut session), [""; 0]);
    reply(&mut session, 1, None);
    session.catch_up();
    assert_eq!(said(&mut session), ["2: 30 % a"]);
}

#[test]
fn a_checkpoint_is_answered_when_the_broker_has_it() {
    let mut session = session(1);
    let run = hand_out(&mut session, &[("a", 1)]);
    let checkpoint = |session: &mut Session| {
        let (saved, answer) = oneshot::channel();
        session.report(Report::Checkpoint { key: key("a", 1), state: Vec::new(), saved });
        said(session);
        answer
    };
    let mut answer = checkpoint(&mut session);
    assert!(answer.try_recv().is_err());
    reply(&mut session, 1, None);
    assert!(answer.try_recv().unwrap().is_ok());
    // The broker's reply may report that the task was cancelled.
    let _answer = checkpoint(&mut session);
    let extend = Some(v1::ExtendReply { lease_expires_at: 0, cancel_requested: true });
    let replies = vec![v1::AnswerReply { number: 2, extend, ..v1::AnswerReply::default() }];
    session.receive(FromBroker::Replies(v1::AnswerReplies { replies }));
    assert_eq!(reason(&run[0]), Some(CancelReason::Requested));
    let mut answer = checkpoint(&mut session);
    reply(&mut session, 3, Some("claim_lost"));
    assert_eq!(answer.try_recv().unwrap().unwrap_err().code(), "claim_lost");
    assert_eq!(reason(&run[0]), Some(CancelReason::Lost));
}

#[test]
fn answers_fill_messages_up_to_their_bounds() {
    let mut session = session(3);
    hand_out(&mut session, &[("a", 1), ("b", 1), ("c", 1)]);
    for id in ["a", "b", "c"] {
        let result = Some(vec![b'x'; ANSWERS_BYTES_MAX / 2].into());
        let ack =
            v1::AckRequest { id: id.into(), claim_token: 1, result, ..v1::AckRequest::default() };
        let answer = Some(Answer::Ack(ack));
        session.report(Report::Ended { key: key(id, 1), answer });
    }
    let said = said(&mut session);
    assert_eq!(said[..3], ["1: ack a", "2: ack b", "3: ack c"]);
}

#[test]
fn a_task_sent_twice_runs_once() {
    let mut session = session(2);
    assert_eq!(hand_out(&mut session, &[("a", 1)]).len(), 1);
    assert_eq!(hand_out(&mut session, &[("a", 1)]).len(), 0);
    assert_eq!(session.running(), 1);
}
