//! The worker's stream: credits come in, tasks go out, answers and beats come in batches.
//!
//! Each stream is one task of the runtime; messages need none. The stream hands out no more tasks
//! than the worker has free slots: it subtracts tasks that it sent and the worker had not counted
//! yet.

use super::{SEND_WITHIN, ack, ack_reply, status, wire};
use crate::{
    Broker, Error,
    limits::{self, ANSWERS_UNDER_WAY_MAX, MESSAGE_TASKS_BYTES_MAX, MESSAGES_WAITING_MAX},
    sessions::{Attached, SILENCE_MAX},
    shard::HandedTask,
};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{pin::Pin, time::Duration};
use taskyard_machine::{Command, Outcome};
use taskyard_proto::v1::{
    self, answer::Answer, broker_message::Message as Out, worker_message::Message as In,
};
use tokio::{
    sync::mpsc,
    time::{Sleep, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// The message for workers whose stream ends because the node stops.
pub(super) const STOPPING: &str =
    "this broker stops; go on with another, or with this one once it is back";

/// How long a worker may take for its hello.
const HELLO_WITHIN: Duration = Duration::from_millis(limits::HELLO_MS_MAX);
/// The pause before the next claim after a failed one.
const CLAIM_AGAIN_AFTER: Duration = Duration::from_millis(200);

type Claim = BoxFuture<'static, Result<Vec<HandedTask>, Error>>;
type Outbound = mpsc::Sender<Result<v1::BrokerMessage, Status>>;

/// Serves one stream until it ends.
pub(super) fn start(
    broker: Broker,
    inbound: Streaming<v1::WorkerMessage>,
) -> ReceiverStream<Result<v1::BrokerMessage, Status>> {
    let (outbound, messages) = mpsc::channel(MESSAGES_WAITING_MAX);
    tokio::spawn(async move {
        if let Err(status) = serve(&broker, inbound, &outbound).await {
            // If the worker is gone, nobody needs the reason.
            let _ = timeout(SEND_WITHIN, outbound.send(Err(status))).await;
        }
    });
    ReceiverStream::new(messages)
}

async fn serve(
    broker: &Broker,
    mut inbound: Streaming<v1::WorkerMessage>,
    outbound: &Outbound,
) -> Result<(), Status> {
    let hello = match timeout(HELLO_WITHIN, inbound.message()).await {
        Ok(message) => message.map_err(status::with_code)?.and_then(|message| message.message),
        Err(_) => None,
    };
    let Some(In::Hello(hello)) = hello else {
        return Err(Error::Invalid("the first message of a worker must be hello".into()).into());
    };
    let (attached, orders) = Attached::open(broker, wire::hello(hello)?).await?;
    let welcome = v1::Welcome {
        session_id: attached.id().0.to_be_bytes().to_vec(),
        session_secret: attached.secret().to_bytes(),
        beat_every_ms: attached.beat_every().as_millis() as u64,
        silence_ms_max: SILENCE_MAX.as_millis() as u64,
    };
    let mut stream = WorkerStream {
        broker,
        attached,
        outbound,
        free: 0,
        tasks_received: 0,
        tasks_sent: 0,
        claim: None,
        claim_again: None,
        replies: FuturesUnordered::new(),
    };
    let ended = match stream.greet(welcome, orders).await {
        Some(ended) => ended,
        None => stream.run(&mut inbound).await,
    };
    stream.end(ended).await
}

/// Why a stream ends.
enum Ended {
    /// The worker said goodbye.
    Goodbye,
    /// The connection closed, or the worker reads nothing.
    Cut,
    /// Another stream of the same session took over.
    Replaced,
    /// This node stops.
    Stopping,
    /// The worker sent an invalid message.
    Refused(Status),
}

struct WorkerStream<'a> {
    broker: &'a Broker,
    attached: Attached,
    outbound: &'a Outbound,
    /// The free slots in the worker's last report, when it had received `tasks_received` tasks.
    free: u32,
    tasks_received: u64,
    tasks_sent: u64,
    /// The claim in progress, and how many tasks it asks for.
    claim: Option<(u32, Claim)>,
    /// Set after a claim failed.
    claim_again: Option<Pin<Box<Sleep>>>,
    /// Answers and renewals in progress; each becomes a message, or nothing.
    replies: FuturesUnordered<BoxFuture<'static, Option<v1::BrokerMessage>>>,
}

impl WorkerStream<'_> {
    async fn greet(
        &mut self,
        welcome: v1::Welcome,
        orders: crate::sessions::Orders,
    ) -> Option<Ended> {
        let welcomed = self.send(wire::message(Out::Welcome(welcome))).await;
        if welcomed.is_some() || orders == crate::sessions::Orders::default() {
            return welcomed;
        }
        self.send(wire::orders(orders)).await
    }

    async fn run(&mut self, inbound: &mut Streaming<v1::WorkerMessage>) -> Ended {
        loop {
            self.refresh_claim();
            let WorkerStream { broker, attached, claim, claim_again, replies, .. } = self;
            let ended = tokio::select! {
                message = inbound.message(), if replies.len() < ANSWERS_UNDER_WAY_MAX => {
                    match message {
                        Ok(Some(v1::WorkerMessage { message: Some(message) })) => {
                            self.receive(message).await
                        }
                        // A message of a later version of the contract.
                        Ok(Some(v1::WorkerMessage { message: None })) => None,
                        Ok(None) => Some(Ended::Cut),
                        // The message can't be decoded, or was refused before it was decoded.
                        Err(status) if status::is_about_message(&status) => {
                            Some(Ended::Refused(status::with_code(status)))
                        }
                        Err(_) => Some(Ended::Cut),
                    }
                }
                claimed = async { claim.as_mut().expect("checked").1.as_mut().await }, if claim.is_some() => {
                    self.claim = None;
                    self.hand_out(claimed).await
                }
                Some(reply) = replies.next() => match reply {
                    Some(message) => self.send(message).await,
                    None => None,
                },
                orders = attached.ordered() => match orders {
                    Some(orders) => self.send(wire::orders(orders)).await,
                    None => Some(Ended::Replaced),
                },
                () = async { claim_again.as_mut().expect("checked").as_mut().await }, if claim_again.is_some() => {
                    self.claim_again = None;
                    None
                }
                () = self.outbound.closed() => Some(Ended::Cut),
                () = broker.stopping() => Some(Ended::Stopping),
            };
            if let Some(ended) = ended {
                return ended;
            }
        }
    }

    async fn receive(&mut self, message: In) -> Option<Ended> {
        self.attached.heard();
        match message {
            In::Credits(credits) => {
                self.free = credits.free.min(self.attached.slots());
                self.tasks_received = credits.tasks_received.min(self.tasks_sent);
                None
            }
            In::Answers(answers) => {
                self.answer(&answers);
                None
            }
            In::Started(started) => match wire::held(&started.claims) {
                Ok(claims) => {
                    self.attached.started(&claims);
                    None
                }
                Err(error) => Some(Ended::Refused(error.into())),
            },
            In::Beat(beat) => match wire::beat(&beat) {
                Ok(beat) => self.beat(beat).await,
                Err(error) => Some(Ended::Refused(error.into())),
            },
            In::Goodbye(_) => Some(Ended::Goodbye),
            In::Hello(_) => {
                let error = Error::Invalid("hello was said before; open another stream".into());
                Some(Ended::Refused(error.into()))
            }
        }
    }

    async fn beat(&mut self, beat: crate::sessions::Beat) -> Option<Ended> {
        let (orders, renewals) = self.attached.beat(beat);
        if let Some(renewals) = renewals {
            self.replies.push(Box::pin(async move {
                let orders = renewals.await;
                let news = !orders.cancel.is_empty() || !orders.lost.is_empty();
                news.then(|| wire::orders(orders))
            }));
        }
        self.send(wire::orders(orders)).await
    }

    /// Proposes a batch of answers. The reply follows when they are durable.
    fn answer(&mut self, answers: &v1::Answers) {
        let numbers: Vec<u64> = answers.answers.iter().map(|answer| answer.number).collect();
        let commands = answers.answers.iter().map(|answer| command(self.broker, answer)).collect();
        let outcomes = self.attached.finish(commands);
        self.replies.push(Box::pin(async move {
            let outcomes = outcomes.await;
            let replies = numbers.into_iter().zip(outcomes).map(|(number, o)| reply(number, o));
            Some(wire::message(Out::Replies(v1::AnswerReplies { replies: replies.collect() })))
        }));
    }

    /// Starts, keeps or drops the claim in progress, to match the worker's free slots.
    fn refresh_claim(&mut self) {
        let uncounted = self.tasks_sent - self.tasks_received;
        let free = match self.attached.wants_tasks() {
            true => u64::from(self.free).saturating_sub(uncounted) as u32,
            false => 0,
        };
        if self.claim.as_ref().is_some_and(|(asked, _)| *asked > free) {
            self.claim = None;
        }
        if self.claim.is_none() && self.claim_again.is_none() && free > 0 {
            self.claim = Some((free, Box::pin(self.attached.claim(free))));
        }
    }

    async fn hand_out(&mut self, claimed: Result<Vec<HandedTask>, Error>) -> Option<Ended> {
        let tasks = match claimed {
            Ok(tasks) => tasks,
            Err(error) => {
                tracing::debug!(session = %self.attached.id(), %error, "a claim failed");
                self.claim_again = Some(Box::pin(sleep(CLAIM_AGAIN_AFTER)));
                return None;
            }
        };
        self.tasks_sent += tasks.len() as u64;
        let mut rest = tasks.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |handed: &&HandedTask| {
                bytes += handed.body.len();
                bytes <= MESSAGE_TASKS_BYTES_MAX
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            let message = now.iter().cloned().map(wire::claimed_task).collect();
            let message = wire::message(Out::Tasks(v1::Tasks { tasks: message }));
            if let Some(ended) = self.send(message).await {
                self.attached.give_back(rest);
                return Some(ended);
            }
            rest = later;
        }
        None
    }

    async fn send(&mut self, message: v1::BrokerMessage) -> Option<Ended> {
        match timeout(SEND_WITHIN, self.outbound.send(Ok(message))).await {
            Ok(Ok(())) => None,
            Ok(Err(_closed)) => Some(Ended::Cut),
            Err(_elapsed) => Some(Ended::Cut),
        }
    }

    async fn end(self, ended: Ended) -> Result<(), Status> {
        let WorkerStream { attached, outbound, mut replies, claim, .. } = self;
        drop(claim);
        match ended {
            Ended::Goodbye => {
                while let Some(reply) = replies.next().await {
                    if let Some(message) = reply {
                        let _ = timeout(SEND_WITHIN, outbound.send(Ok(message))).await;
                    }
                }
                attached.goodbye().await;
                Ok(())
            }
            Ended::Cut | Ended::Replaced => {
                drop(attached);
                // Answers that came before still count.
                while replies.next().await.is_some() {}
                Ok(())
            }
            Ended::Refused(status) => {
                drop(attached);
                while replies.next().await.is_some() {}
                Err(status)
            }
            Ended::Stopping => {
                while let Some(reply) = replies.next().await {
                    if let Some(message) = reply {
                        let _ = timeout(SEND_WITHIN, outbound.send(Ok(message))).await;
                    }
                }
                attached.leave();
                Err(Error::Unavailable(STOPPING.into()).into())
            }
        }
    }
}

fn command<'a>(broker: &Broker, answer: &'a v1::Answer) -> Result<Command<'a>, Error> {
    match &answer.answer {
        Some(Answer::Ack(request)) => Ok(Command::Ack(ack(broker, request)?)),
        Some(Answer::Fail(request)) => Ok(Command::Fail(wire::fail(request)?)),
        Some(Answer::Release(request)) => Ok(Command::Release(wire::release(request)?)),
        Some(Answer::Snooze(request)) => Ok(Command::Snooze(wire::snooze(request)?)),
        Some(Answer::Extend(request)) => Ok(Command::Extend(wire::extend(request)?)),
        None => Err(Error::Invalid(format!("answer {} says nothing", answer.number))),
    }
}

fn reply(number: u64, outcome: Result<Outcome, Error>) -> v1::AnswerReply {
    let mut reply = v1::AnswerReply { number, ..Default::default() };
    match outcome {
        Ok(Outcome::Acked { follow_ups }) => reply.ack = Some(ack_reply(&follow_ups)),
        Ok(Outcome::Failed(after)) => reply.fail = Some(wire::fail_reply(after)),
        Ok(Outcome::Extended { lease_expires_at, cancel_requested, .. }) => {
            let lease_expires_at = lease_expires_at.0;
            reply.extend = Some(v1::ExtendReply { lease_expires_at, cancel_requested });
        }
        Ok(Outcome::Snoozed { run_at, state }) => {
            let state = state.as_str().into();
            reply.snooze = Some(v1::SnoozeReply { run_at: run_at.0, state });
        }
        Ok(_) => {}
        Err(error) => reply.error = Some((&error).into()),
    }
    reply
}
