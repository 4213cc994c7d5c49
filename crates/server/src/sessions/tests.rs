//! Silence, and messages that cross on their way: tests from outside can't time these.

use super::*;
use crate::{Broker, Config, shard::Engine};
use taskyard_machine::{Enqueue, NewTask};
use tempfile::TempDir;

struct Yard {
    engine: Engine,
    broker: Broker,
    _dir: TempDir,
}

impl Yard {
    fn new() -> Yard {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        (config.listen, config.shards, config.disk_reserve_bytes) = (None, Some(2), 0);
        let engine = Engine::start(&config).unwrap();
        let broker = Broker::new(engine.shards(), &config);
        Yard { engine, broker, _dir: dir }
    }

    async fn enqueue(&self) -> TaskId {
        self.enqueue_leased(None).await
    }

    /// A task with its own lease.
    async fn enqueue_leased(&self, lease_ms: Option<u64>) -> TaskId {
        let task = NewTask { task_type: "test", lease_ms, ..NewTask::default() };
        self.broker.enqueue(Enqueue { queue: "mail", task }).await.unwrap().id
    }

    async fn open(&self, resumed: Option<SessionSecret>) -> Attached {
        let profile = Profile { slots: 5, ..Profile::default() };
        let queues = vec![("mail".to_owned(), 1)];
        let hello = Hello { resumed, profile, queues, lease_ms: 30_000, ..Hello::default() };
        Attached::open(&self.broker, hello).await.unwrap().0
    }

    fn sessions(&self) -> &Sessions {
        self.broker.sessions()
    }
}

/// The claims that the worker is told to stop next.
async fn cancelled_claims(attached: &mut Attached) -> Vec<(TaskId, ClaimToken)> {
    let orders = tokio::time::timeout(Duration::from_secs(60), attached.ordered()).await;
    orders.expect("an order in time").unwrap().cancel
}

/// Makes more than one beat go missing.
fn fall_silent(attached: &Attached, sessions: &Sessions) {
    let session = attached.session();
    let mut state = session.state();
    let long_ago = state.heard_at.checked_sub(SILENT_AFTER + REPORT_EVERY);
    state.heard_at = long_ago.expect("this machine is up for seconds");
    session.heard.store(false, Ordering::Relaxed);
    drop(state);
    sessions.report();
}

#[tokio::test]
async fn a_silent_worker_is_handed_nothing_until_it_is_heard() {
    let yard = Yard::new();
    let attached = yard.open(None).await;
    let parked = tokio::spawn(attached.claim(1));
    fall_silent(&attached, yard.sessions());
    assert!(parked.await.unwrap().unwrap().is_empty());
    assert!(!attached.wants_tasks());
    yard.enqueue().await;
    assert!(attached.claim(1).await.unwrap().is_empty());

    attached.heard();
    assert!(attached.wants_tasks());
    assert_eq!(attached.claim(1).await.unwrap().len(), 1);
    fall_silent(&attached, yard.sessions());
    assert!(attached.session().state().not_started_reported);
    // The task came while the worker fell silent, so the leaders are told again.
    attached.session().state().is_silent = false;
    yard.enqueue().await;
    assert_eq!(attached.claim(1).await.unwrap().len(), 1);
    assert!(!attached.session().state().not_started_reported);
    yard.engine.stop();
}

/// A session that is about to be forgotten may come back in the meantime.
#[tokio::test]
async fn a_session_that_is_back_is_not_forgotten_with_lost_ones() {
    let yard = Yard::new();
    let attached = yard.open(None).await;
    let (id, lost_at) = (attached.id(), yard.broker.clock().monotonic());
    let long_after = lost_at + LOST_KEPT_FOR + REPORT_EVERY;
    yard.sessions().forget(vec![(lost_at, id)], long_after);
    assert!(yard.sessions().session(id).is_some(), "its leaders would take it for dead");
    attached.session().state().link = Link::Lost { at: lost_at };
    yard.sessions().forget(vec![(lost_at, id)], long_after);
    assert!(yard.sessions().session(id).is_none());
    yard.engine.stop();
}

/// A cancellation takes another way than the answer to a claim, and may arrive first.
#[tokio::test]
async fn a_cancellation_that_comes_before_its_claim_is_sent_again_after_it() {
    let yard = Yard::new();
    let mut attached = yard.open(None).await;
    let task = yard.enqueue().await;
    // As if the claim were still on its way, and this node did not know its tasks.
    let claim = attached.claim(1).await.unwrap();
    attached.session().state().claims.clear();
    yard.broker.cancel(task).await.unwrap();
    let expected = vec![(task, claim[0].task.token)];
    assert_eq!(
        cancelled_claims(&mut attached).await,
        expected,
        "a worker that knows it stops at once"
    );
    attached.session().state().resend_early_cancels(&claim);
    assert_eq!(cancelled_claims(&mut attached).await, expected, "and again when it has come");
    assert_eq!(attached.session().state().cancelled_early, []);
    yard.engine.stop();
}

#[tokio::test]
async fn orders_to_workers_of_other_nodes_are_remembered_within_bounds() {
    let yard = Yard::new();
    let sessions = yard.sessions();
    let (secret, now) = (SessionSecret::draw(), yard.broker.clock().monotonic());
    let away = secret.session();
    assert_eq!(sessions.order(away, Activity::Quiet), Ordered::Unknown);
    sessions.remember(away, Activity::Quiet);
    let attached = yard.open(Some(secret.clone())).await;
    assert!(!attached.wants_tasks(), "it was ordered to be quiet");
    // The newer order counts.
    assert_eq!(sessions.order(away, Activity::Stopping), Ordered::Told);
    drop(attached);
    assert_eq!(sessions.order(away, Activity::Stopping), Ordered::Waits);
    let attached = yard.open(Some(secret.clone())).await;
    assert_eq!(attached.session().state().ordered, Activity::Stopping);

    for id in 2..LOST_KEPT_MAX as u128 + 10 {
        sessions.remember(SessionId(id), Activity::Quiet);
    }
    assert_eq!(sessions.0.remembered.of(SessionId(2)), None, "the oldest went");
    let last = SessionId(LOST_KEPT_MAX as u128 + 9);
    assert_eq!(sessions.0.remembered.of(last), Some(Activity::Quiet));
    sessions.0.remembered.forget(now + LOST_KEPT_FOR + Duration::from_secs(60));
    assert_eq!(sessions.0.remembered.of(last), None, "long ago");
    yard.engine.stop();
}

#[tokio::test]
async fn a_lease_is_renewed_by_its_own_length() {
    let yard = Yard::new();
    let attached = yard.open(None).await;
    for (own, is_due) in [(None, false), (Some(60_000), false), (Some(3_000), true)] {
        yard.enqueue_leased(own).await;
        let handed = attached.claim(1).await.unwrap().remove(0);
        let held = vec![(handed.task.id, handed.task.token)];
        let (_, renewal) = attached.beat(Beat { held, ..Beat::default() });
        assert_eq!(renewal.is_some(), is_due, "{own:?}");
    }
    yard.engine.stop();
}
