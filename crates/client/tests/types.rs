//! A worker gets only tasks of its types; other tasks wait.

use std::time::Duration;
use taskyard::{Fail, TaskState, testing::TestBroker};

/// Longer than any wait of these tests, unless something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_worker_is_handed_the_types_of_its_handlers() {
    let broker = TestBroker::start().await.unwrap();
    let (client, mail) = (broker.client(), || async { Ok::<_, Fail>("sent") });
    let _worker = broker.run(broker.worker().handler("mail", mail)).unwrap();
    let foreign = client.task("video", &()).await.unwrap();
    let task = client.task("mail", &()).await.unwrap();
    assert_eq!(task.result().within(PATIENCE).await.unwrap(), "sent");
    let details = client.get(foreign.id()).await.unwrap();
    assert_eq!((details.state, details.attempt), (TaskState::Ready, 0), "no attempt is spent");
    let reasons = client.why(foreign.id()).await.unwrap();
    assert_eq!(reasons[0].code, "no_worker_for_type");
    assert_eq!(client.workers().await.unwrap().workers[0].types, ["mail"]);
    let claimed = client.claim(["default"]).types(["mail", "video"]).max(5).await.unwrap();
    assert_eq!(claimed.len(), 1, "a claim by hand may name types too");
    assert_eq!(&claimed[0].id(), foreign.id());
}

#[tokio::test]
async fn time_advances_while_no_worker_runs_a_type() {
    let broker = TestBroker::start().await.unwrap();
    let client = broker.client();
    let mail = || async { Ok::<_, Fail>(()) };
    let _worker = broker.run(broker.worker().handler("mail", mail)).unwrap();
    client.task("video", &()).await.unwrap();
    let later = client.task("mail", &()).delay(Duration::from_secs(60)).await.unwrap();
    broker.advance(Duration::from_secs(90)).await.unwrap();
    assert_eq!(client.get(later.id()).await.unwrap().state, TaskState::Succeeded);
}
