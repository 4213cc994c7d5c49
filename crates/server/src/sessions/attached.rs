//! Attached: a session with its live stream: the worker's messages, and the node's.
//!
//! Dropping it without a goodbye cuts the session. The worker can attach again for a while; after
//! that, its tasks go to other workers. A second stream replaces the first, which learns of it by
//! `ordered`.

use super::{Activity, BEAT_EVERY, Held, Link, Order, Profile, Session, SessionSecret};
use crate::{
    Broker, Error,
    broker::{ClaimAsked, Places, finished_task},
    limits::ORDERS_WAITING_MAX,
    random::random_u64,
    shard::HandedTask,
};
use futures_util::future::join_all;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use taskyard_machine::{
    ClaimToken, Command, EncodedCommand, EndSession, Outcome, Rejection, Release, Renew, Renewal,
    SessionEnd, SessionId, ShardId, TaskId, ask, limits,
};
use tokio::sync::mpsc;

/// A claim as workers name it.
type Claim = (TaskId, ClaimToken);

/// The message with which a worker opens or resumes its session.
#[derive(Clone, Debug, Default)]
pub struct Hello {
    /// The secret of the session to resume; `None` opens a new one.
    pub resumed: Option<SessionSecret>,
    /// Who the worker is; its queues and types come from `queues` and `types`.
    pub profile: Profile,
    /// The queues that it claims from, with weights.
    pub queues: Vec<(String, u32)>,
    /// The types of tasks that it can run; empty for all.
    pub types: Vec<String>,
    /// Lease of each claim.
    pub lease_ms: u64,
    /// On resume: the claims that it still holds. Other claims of the session are released.
    pub held: Vec<Claim>,
    /// What it does. A worker that was told to be quiet stays quiet on every node.
    pub activity: Activity,
}

/// What a worker reports every few seconds.
#[derive(Clone, Debug, Default)]
pub struct Beat {
    /// The claims that it holds.
    pub held: Vec<Claim>,
    /// Its memory.
    pub rss_bytes: u64,
    /// What it does.
    pub activity: Activity,
}

/// What a worker has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Stop these tasks: they were cancelled.
    pub cancel: Vec<Claim>,
    /// Stop these tasks: another attempt counts.
    pub lost: Vec<Claim>,
    /// The activity that an operator asks for.
    pub activity: Activity,
}

/// A session with its live stream.
#[derive(Debug)]
pub struct Attached {
    broker: Broker,
    session: Arc<Session>,
    secret: SessionSecret,
    stream: u64,
    places: Places,
    asked: ClaimAsked,
    orders: mpsc::Receiver<Order>,
    said_goodbye: bool,
}

impl Attached {
    /// Opens or resumes a session. On resume, claims that the worker does not list are released.
    /// The orders name the listed claims that it has lost.
    pub async fn open(broker: &Broker, hello: Hello) -> Result<(Attached, Orders), Error> {
        let Hello { resumed, mut profile, queues, types, lease_ms, held, activity } = hello;
        profile.queues = queues.iter().map(|(name, _)| name.clone()).collect();
        let places = broker.places(&queues)?.of_types(types)?;
        profile.types = places.types().clone();
        let worker = profile.name.clone();
        let mut asked =
            ClaimAsked { tasks_max: profile.slots, lease_ms, session: None, begun: false, worker };
        asked.check().map_err(name_slots)?;
        check_profile(&profile)?;

        let is_resumed = resumed.is_some();
        let secret = resumed.unwrap_or_else(SessionSecret::draw);
        let (sender, orders) = mpsc::channel(ORDERS_WAITING_MAX);
        let stream = random_u64();
        let (session, unlisted) = broker.sessions().open(secret.session(), |state, known| {
            state.link = Link::Attached { stream, orders: sender };
            state.profile = profile;
            state.activity = activity;
            if !known {
                state.claims.clear();
            }
            known.then(|| state.keep_only(&held, broker))
        })?;
        asked.session = Some(session.id);
        let attached = Attached {
            broker: broker.clone(),
            session,
            secret,
            stream,
            places,
            asked,
            orders,
            said_goodbye: false,
        };
        attached.heard();
        if is_resumed {
            // Without delay, so that leaders know this node before the renewal below, and the node
            // that had the session forgets it.
            broker.shards().sessions_alive(vec![attached.id()]);
        }
        match unlisted {
            Some(unlisted) => attached.release(unlisted),
            // Another node, or this one before a restart, may have handed out more claims.
            None if is_resumed => attached.end_unlisted(&held).await,
            None => {}
        }
        let mut orders = attached.renew(held).await;
        orders.activity = attached.session.state().ordered;
        Ok((attached, orders))
    }

    /// The session's id.
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// The secret with which the worker resumes the session. Only the worker may see it.
    pub fn secret(&self) -> &SessionSecret {
        &self.secret
    }

    #[cfg(test)]
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// How often this worker should beat: a lease is renewed after a third of its length.
    pub fn beat_every(&self) -> Duration {
        BEAT_EVERY.min(self.lease() / 3)
    }

    /// The most tasks that the worker ever runs at a time.
    pub fn slots(&self) -> u32 {
        self.asked.tasks_max
    }

    /// Notes a message of the worker, which is therefore alive.
    pub fn heard(&self) {
        let clock = self.broker.clock();
        let mut state = self.session.state();
        state.heard_at = clock.monotonic();
        state.is_silent = false;
        state.is_elsewhere = false;
        state.not_started_reported = false;
        // Under the lock, so that the leaders never learn of a silence after its end.
        self.session.heard.store(true, Ordering::Relaxed);
        if clock.is_manual() {
            // A test's clock may jump past the next report.
            self.broker.shards().sessions_alive(vec![self.session.id]);
        }
    }

    /// Whether the worker wants tasks, is not silent, and no operator has stopped it.
    pub fn wants_tasks(&self) -> bool {
        let state = self.session.state();
        let runs = state.activity == Activity::Running && state.ordered == Activity::Running;
        runs && !state.is_silent
    }

    /// Claims up to `tasks_max` tasks for this session. Waits for the first up to the longest long
    /// poll. The result is empty if none came, or if the worker fell silent.
    pub fn claim(
        &self,
        tasks_max: u32,
    ) -> impl Future<Output = Result<Vec<HandedTask>, Error>> + Send + use<> {
        let (broker, session) = (self.broker.clone(), self.session.clone());
        let (places, asked) = (self.places.clone(), ClaimAsked { tasks_max, ..self.asked.clone() });
        async move {
            let wait = Duration::from_millis(limits::CLAIM_WAIT_MS_MAX);
            // Dropping the claim releases tasks that it has got already.
            let tasks = tokio::select! {
                tasks = broker.claim(&places, &asked, wait) => tasks?,
                () = session.silence() => return Ok(Vec::new()),
            };
            let held =
                |handed: &HandedTask| (handed.task.id, Held::new(handed, false, broker.clock()));
            let mut state = session.state();
            state.claims.extend(tasks.iter().map(held));
            state.resend_early_cancels(&tasks);
            // If the worker is silent by now, the leaders must learn of these claims too.
            state.not_started_reported = false;
            drop(state);
            Ok(tasks)
        }
    }

    /// Releases tasks that could not be sent to the worker.
    pub fn give_back(&self, tasks: &[HandedTask]) {
        let mut state = self.session.state();
        for handed in tasks {
            state.claims.remove(&handed.task.id);
        }
        drop(state);
        self.broker.shards().release_later(tasks);
    }

    /// Notes that the handlers of these claims have begun.
    pub fn started(&self, claims: &[Claim]) {
        let mut state = self.session.state();
        for (task, token) in claims {
            if let Some(held) = state.claims.get_mut(task).filter(|held| held.token == *token) {
                held.started = true;
            }
        }
    }

    /// Proposes the worker's commands about its claims together; answers in order.
    pub fn finish(
        &self,
        commands: Vec<Result<Command<'_>, Error>>,
    ) -> impl Future<Output = Vec<Result<Outcome, Error>>> + Send + use<> {
        let task = |command: &Result<_, _>| command.as_ref().ok().and_then(finished_task);
        let tasks: Vec<_> = commands.iter().map(task).collect();
        let outcomes = self.broker.finish_all(commands);
        let (session, clock) = (self.session.clone(), self.broker.clock().clone());
        async move {
            let outcomes = outcomes.await;
            let now = clock.monotonic();
            let mut state = session.state();
            for (task, outcome) in tasks.into_iter().zip(&outcomes) {
                let Some(task) = task else { continue };
                match outcome {
                    Ok(Outcome::Extended { lease_ms, .. }) => {
                        let lease = Duration::from_millis(*lease_ms);
                        let known = state.claims.entry(task);
                        known.and_modify(|held| (held.renewed_at, held.lease) = (now, lease));
                    }
                    Ok(_) => drop(state.claims.remove(&task)),
                    Err(Error::Rejected(
                        Rejection::ClaimLost { .. }
                        | Rejection::TaskNotFound { .. }
                        | Rejection::AlreadyFinished { .. },
                    )) => drop(state.claims.remove(&task)),
                    Err(_) => {}
                }
            }
            drop(state);
            outcomes
        }
    }

    /// Takes a beat. The orders are the answer to it. The future renews the leases that are due,
    /// and brings more orders if the worker has lost some.
    pub fn beat(
        &self,
        beat: Beat,
    ) -> (Orders, Option<impl Future<Output = Orders> + Send + use<>>) {
        let clock = self.broker.clock();
        let now = clock.monotonic();
        // Half a beat early is better than a whole beat late.
        let early = self.beat_every() / 2;
        let mut state = self.session.state();
        state.beat_at = self.broker.now();
        state.rss_bytes = beat.rss_bytes;
        state.activity = beat.activity;
        let due = |claim: &Claim| match state.claims.get(&claim.0) {
            Some(held) => {
                let due_after = (held.lease / 3).saturating_sub(early);
                now.saturating_duration_since(held.renewed_at) >= due_after
            }
            None => true,
        };
        let due: Vec<Claim> = beat.held.into_iter().filter(due).collect();
        let orders = Orders { activity: state.ordered, ..Orders::default() };
        drop(state);
        (orders, (!due.is_empty()).then(|| self.renew(due)))
    }

    /// The next order, with those that wait behind it. `None`: another stream took over.
    pub async fn ordered(&mut self) -> Option<Orders> {
        let mut orders = Orders::default();
        let mut next = self.orders.recv().await?;
        loop {
            match next {
                Order::Cancel(task, token) => orders.cancel.push((task, token)),
                Order::Activity => {}
            }
            match self.orders.try_recv() {
                Ok(following) => next = following,
                Err(_empty) => break,
            }
        }
        orders.activity = self.session.state().ordered;
        Some(orders)
    }

    /// Ends the session, which releases its claims.
    pub async fn goodbye(mut self) {
        self.said_goodbye = true;
        if self.broker.sessions().remove_if(self.session.id, |link| self.is_stream_of(link)) {
            self.end_known().await;
        }
    }

    /// Leaves the session as it is, because this node stops: the worker resumes it here or on
    /// another node.
    pub fn leave(mut self) {
        self.said_goodbye = true;
    }

    /// Renews leases, one command per shard.
    fn renew(&self, claims: Vec<Claim>) -> impl Future<Output = Orders> + Send + use<> {
        let mut by_shard: BTreeMap<ShardId, Vec<Claim>> = BTreeMap::new();
        let mut lost = Vec::new();
        for claim in claims {
            match claim.0.home.0 < self.broker.shards().count() {
                true => by_shard.entry(claim.0.home).or_default().push(claim),
                false => lost.push(claim),
            }
        }
        let encode = |(shard, claims): (&ShardId, &Vec<Claim>)| {
            (*shard, EncodedCommand::new(&Command::Renew(Renew { claims: claims.clone() })))
        };
        let commands: Vec<_> = by_shard.iter().map(encode).collect();
        let (broker, session) = (self.broker.clone(), self.session.clone());
        async move {
            let mut orders = Orders { lost, ..Orders::default() };
            if commands.is_empty() {
                return orders;
            }
            let outcomes = broker.shards().propose_all(commands, false).await;
            let now = broker.clock().monotonic();
            let mut state = session.state();
            for (claims, outcome) in by_shard.into_values().zip(outcomes) {
                // Claims without an answer are due again with the next beat.
                let Ok(Outcome::Renewed(renewals)) = outcome else { continue };
                for ((task, token), renewal) in claims.into_iter().zip(renewals) {
                    match renewal {
                        Renewal::Held { cancel_requested, lease_ms, .. } => {
                            let lease = Duration::from_millis(lease_ms);
                            let held = Held { token, started: true, renewed_at: now, lease };
                            let known = state.claims.entry(task).or_insert(held);
                            (known.renewed_at, known.lease) = (now, lease);
                            if cancel_requested {
                                orders.cancel.push((task, token));
                            }
                        }
                        Renewal::Lost => {
                            state.claims.remove(&task);
                            orders.lost.push((task, token));
                        }
                    }
                }
            }
            orders.activity = state.ordered;
            orders
        }
    }

    fn release(&self, claims: Vec<Claim>) {
        let release = |(task, token): Claim| {
            (task.home, EncodedCommand::new(&Command::Release(Release { task, token })))
        };
        let commands: Vec<_> = claims.into_iter().map(release).collect();
        if !commands.is_empty() {
            let shards = self.broker.shards().clone();
            tokio::spawn(async move { shards.propose_all(commands, false).await });
        }
    }

    /// Ends the session's claims on the shards where this node knows some.
    async fn end_known(&self) {
        let shards: HashSet<ShardId> = self.session.state().claims.keys().map(|t| t.home).collect();
        join_all(shards.into_iter().map(|shard| self.end_on(shard, Vec::new()))).await;
    }

    /// Releases the session's claims on every shard, except those listed.
    async fn end_unlisted(&self, listed: &[Claim]) {
        let shards = (0..self.broker.shards().count()).map(ShardId);
        let end = |shard| async move {
            let holds = ask::SessionHolds { session: self.session.id };
            match self.broker.shards().ask(shard, holds).await {
                Ok(false) => {}
                Ok(true) => {
                    let keep = listed.iter().map(|(task, _)| *task);
                    self.end_on(shard, keep.filter(|task| task.home == shard).collect()).await;
                }
                Err(error) => self.warn_left_to_leases(shard, &error),
            }
        };
        join_all(shards.map(end)).await;
    }

    /// Releases the session's claims on one shard, except some. A shard that can't be reached does
    /// not keep the worker from the others: nobody renews the claims that it does not know.
    async fn end_on(&self, shard: ShardId, keep: Vec<TaskId>) {
        let (session, reason) = (self.session.id, SessionEnd::Goodbye);
        let end = EndSession { session, reason, not_started: Vec::new(), keep };
        let end = EncodedCommand::new(&Command::EndSession(end));
        loop {
            match self.broker.shards().propose(shard, end.clone(), false).await {
                Ok(Outcome::Bulk(progress)) if progress.next.is_some() => {}
                Ok(_) => return,
                Err(error) => return self.warn_left_to_leases(shard, &error),
            }
        }
    }

    fn warn_left_to_leases(&self, shard: ShardId, error: &Error) {
        tracing::warn!(session = %self.session.id, %shard, %error, "claims are released only when their leases lapse");
    }

    /// Whether the link is this stream's, and no other stream took the session over.
    fn is_stream_of(&self, link: &Link) -> bool {
        match link {
            Link::Attached { stream, .. } => *stream == self.stream,
            Link::Asking { .. } | Link::Cut { .. } | Link::Lost { .. } => false,
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.asked.lease_ms)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.said_goodbye {
            return;
        }
        let is_ghost = self.session.state().is_elsewhere;
        let is_own = |link: &Link| self.is_stream_of(link);
        if is_ghost && self.broker.sessions().remove_if(self.session.id, is_own) {
            return;
        }
        let mut state = self.session.state();
        if self.is_stream_of(&state.link) {
            state.link = Link::Cut { at: self.broker.clock().monotonic() };
            self.session.report_cut(&mut state, self.broker.shards());
        }
    }
}

impl super::State {
    /// Tells the worker of tasks that were cancelled before they came here, after it got them.
    pub(super) fn resend_early_cancels(&mut self, tasks: &[HandedTask]) {
        if self.cancelled_early.is_empty() {
            return;
        }
        for handed in tasks {
            let claim = (handed.task.id, handed.task.token);
            let before = self.cancelled_early.len();
            self.cancelled_early.retain(|early| *early != claim);
            let was_early = self.cancelled_early.len() < before;
            if let (true, Link::Attached { orders, .. }) = (was_early, &self.link) {
                let _ = orders.try_send(Order::Cancel(claim.0, claim.1));
            }
        }
    }

    /// Takes over the claims that a resuming worker lists. Returns the claims that it does not
    /// list.
    fn keep_only(&mut self, listed: &[Claim], broker: &Broker) -> Vec<Claim> {
        let renewed_at = broker.clock().monotonic();
        let started = |(task, token): &Claim| {
            let known = self.claims.get(task);
            let started = known.is_none_or(|held| held.started);
            let lease = known.map_or(Duration::ZERO, |held| held.lease);
            (*task, Held { token: *token, started, renewed_at, lease })
        };
        let kept: HashMap<TaskId, Held> = listed.iter().map(started).collect();
        let before = std::mem::replace(&mut self.claims, kept);
        let unlisted = before.into_iter().filter(|(task, _)| !self.claims.contains_key(task));
        unlisted.map(|(task, held)| (task, held.token)).collect()
    }
}

fn name_slots(error: Error) -> Error {
    match error {
        Error::Invalid(text) => Error::Invalid(text.replacen("max ", "slots ", 1)),
        other => other,
    }
}

pub(super) fn check_profile(profile: &Profile) -> Result<(), Error> {
    let bytes_max = limits::WORKER_NAME_BYTES_MAX;
    for (field, text) in [("host", &profile.host), ("version", &profile.version)] {
        if text.len() > bytes_max {
            let text = format!("{field} has {} bytes, at most {bytes_max} are allowed", text.len());
            return Err(Error::Invalid(text));
        }
    }
    Ok(())
}
