//! A worker's side of the `Work` stream, one message at a time.

use super::{Broker, DEADLINE, queues};
use std::collections::VecDeque;
use taskyard_proto::v1::{
    self, broker_message::Message as FromBroker, worker_message::Message as FromWorker,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// A worker whose messages the test writes.
pub(crate) struct Worker {
    /// The session's id, as the list of workers shows it.
    pub(crate) id: String,
    /// The secret that resumes the session.
    pub(crate) secret: Vec<u8>,
    pub(crate) welcome: v1::Welcome,
    outbound: mpsc::Sender<v1::WorkerMessage>,
    inbound: Streaming<v1::BrokerMessage>,
    /// Tasks that came while the test waited for another message.
    tasks: VecDeque<v1::ClaimedTask>,
    orders: VecDeque<v1::Orders>,
    replies: VecDeque<v1::AnswerReply>,
    pub(crate) tasks_received: u64,
    next_number: u64,
}

pub(crate) fn hello(names: &[&str], slots: u32) -> v1::Hello {
    v1::Hello {
        name: "test".into(),
        host: "localhost".into(),
        pid: 7,
        version: "1".into(),
        queues: queues(names),
        slots,
        ..Default::default()
    }
}

impl Worker {
    pub(crate) async fn open(broker: &Broker, names: &[&str], slots: u32) -> Worker {
        Worker::hello(broker, hello(names, slots)).await.unwrap()
    }

    pub(crate) async fn hello(broker: &Broker, hello: v1::Hello) -> Result<Worker, Status> {
        let mut client = broker.grpc().await;
        let (outbound, messages) = mpsc::channel(16);
        outbound.send(message(FromWorker::Hello(hello))).await.unwrap();
        let mut inbound = client.work(ReceiverStream::new(messages)).await?.into_inner();
        let first = timeout(DEADLINE, inbound.message()).await.expect("an answer to hello")?;
        let Some(v1::BrokerMessage { message: Some(FromBroker::Welcome(welcome)) }) = first else {
            panic!("expected a welcome, got {first:?}")
        };
        Ok(Worker {
            id: welcome.session_id.iter().map(|byte| format!("{byte:02x}")).collect(),
            secret: welcome.session_secret.clone(),
            welcome,
            outbound,
            inbound,
            tasks: VecDeque::new(),
            orders: VecDeque::new(),
            replies: VecDeque::new(),
            tasks_received: 0,
            next_number: 0,
        })
    }

    pub(crate) async fn say(&self, words: FromWorker) {
        self.outbound.send(message(words)).await.expect("the stream is open");
    }

    pub(crate) async fn credits(&self, free: u32) {
        let tasks_received = self.tasks_received;
        let credits = v1::Credits { free, tasks_received };
        // If the stream has ended, the next read says why.
        let _ = self.outbound.send(message(FromWorker::Credits(credits))).await;
    }

    pub(crate) async fn started(&self, tasks: &[v1::ClaimedTask]) {
        self.say(FromWorker::Started(v1::Started { claims: held(tasks) })).await;
    }

    pub(crate) async fn beat(&self, tasks: &[v1::ClaimedTask]) {
        let beat = v1::Beat { held: held(tasks), rss_bytes: 1 << 20, ..Default::default() };
        self.say(FromWorker::Beat(beat)).await;
    }

    /// Says goodbye, and waits for the end of the stream.
    pub(crate) async fn goodbye(mut self) {
        self.say(FromWorker::Goodbye(v1::Goodbye {})).await;
        while timeout(DEADLINE, self.inbound.message()).await.unwrap().unwrap().is_some() {}
    }

    /// The next `count` tasks.
    pub(crate) async fn tasks(&mut self, count: usize) -> Vec<v1::ClaimedTask> {
        while self.tasks.len() < count {
            self.receive().await.unwrap();
        }
        self.tasks.drain(..count).collect()
    }

    pub(crate) async fn orders(&mut self) -> v1::Orders {
        while self.orders.is_empty() {
            self.receive().await.unwrap();
        }
        self.orders.pop_front().unwrap()
    }

    /// Sends answers, and waits for the reply to each.
    pub(crate) async fn answer(
        &mut self,
        answers: impl IntoIterator<Item = v1::answer::Answer>,
    ) -> Vec<v1::AnswerReply> {
        self.try_answer(answers).await.unwrap()
    }

    /// Like `answer`, but the stream may end meanwhile.
    pub(crate) async fn try_answer(
        &mut self,
        answers: impl IntoIterator<Item = v1::answer::Answer>,
    ) -> Result<Vec<v1::AnswerReply>, Status> {
        let mut numbered = Vec::new();
        for answer in answers {
            numbered.push(v1::Answer { number: self.next_number, answer: Some(answer) });
            self.next_number += 1;
        }
        let count = numbered.len();
        let message = message(FromWorker::Answers(v1::Answers { answers: numbered }));
        // If the stream has ended, the next read says why.
        let _ = self.outbound.send(message).await;
        while self.replies.len() < count {
            self.receive().await?;
        }
        Ok(self.replies.drain(..count).collect())
    }

    pub(crate) async fn ack_all(&mut self, tasks: &[v1::ClaimedTask]) {
        for reply in self.answer(tasks.iter().map(|task| ack(task, None))).await {
            assert_eq!(reply.error, None);
        }
    }

    /// The number of tasks that have come and were not taken yet.
    pub(crate) fn waiting(&self) -> usize {
        self.tasks.len()
    }

    /// Reads one message; the end of the stream is an error.
    pub(crate) async fn receive(&mut self) -> Result<(), Status> {
        let read = timeout(DEADLINE, self.inbound.message()).await;
        let message = read.expect("a message in time")?;
        match message.ok_or_else(|| Status::aborted("the stream ended"))?.message {
            Some(FromBroker::Tasks(tasks)) => {
                self.tasks_received += tasks.tasks.len() as u64;
                self.tasks.extend(tasks.tasks);
            }
            Some(FromBroker::Replies(replies)) => self.replies.extend(replies.replies),
            Some(FromBroker::Orders(orders)) => self.orders.push_back(orders),
            other => panic!("unexpected {other:?}"),
        }
        Ok(())
    }
}

fn message(message: FromWorker) -> v1::WorkerMessage {
    v1::WorkerMessage { message: Some(message) }
}

pub(crate) fn held(tasks: &[v1::ClaimedTask]) -> Vec<v1::HeldClaim> {
    let claim = |task: &v1::ClaimedTask| v1::HeldClaim {
        id: task.id.clone(),
        claim_token: task.claim_token,
    };
    tasks.iter().map(claim).collect()
}

pub(crate) fn ack(task: &v1::ClaimedTask, result: Option<&'static str>) -> v1::answer::Answer {
    v1::answer::Answer::Ack(v1::AckRequest {
        id: task.id.clone(),
        claim_token: task.claim_token,
        result: result.map(Into::into),
        ..Default::default()
    })
}
