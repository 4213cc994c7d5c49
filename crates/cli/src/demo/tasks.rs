//! The demo's tasks, and the producer that enqueues them: quick tasks, one that fails and then
//! succeeds, one that dies, one that waits for its time, a long one with progress, flows, a
//! schedule, and a queue with a limit.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use taskyard::{Client, Fail, NewTask, RetryPolicy, State, TaskContext, WorkerBuilder};
use tokio::task::JoinSet;

use super::{
    board::{Board, Tone},
    exports, photos, prices,
};

/// Quick tasks per tick of the story.
const GREETINGS_PER_TICK: usize = 10;
const PEOPLE: [&str; 5] = ["ada", "grace", "edsger", "barbara", "leslie"];
const TICK: Duration = Duration::from_millis(50);
/// The time of a flow on a free worker, and of the exports.
const FLOW_FOR_MAX: Duration = Duration::from_secs(2);
/// The burst at the end: this many tasks, or as many as fit into its time.
const BURST_TASKS: u64 = 20_000;
const BURST_FOR_MAX: Duration = Duration::from_secs(2);
const BURST_AT_ONCE: usize = 2_000;

#[derive(Clone, Serialize, Deserialize)]
struct Greeting {
    name: String,
    /// When the task was enqueued, in microseconds since the demo began; absent in the burst, whose
    /// tasks wait for each other.
    sent_us: Option<u64>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Mail {
    to: String,
}

#[derive(Clone, Serialize, Deserialize)]
struct Charge {
    card: String,
    cents: u32,
}

#[derive(Clone, Serialize, Deserialize)]
struct Video {
    frames: u32,
}

pub(super) fn register(builder: WorkerBuilder, board: &Arc<Board>) -> WorkerBuilder {
    prices::register(exports::register(photos::register(builder)))
        .name("demo-worker")
        .queue("billing")
        .queue("mail")
        .queue("media")
        .queue("default")
        .queue("burst")
        .state(Arc::clone(board))
        .handler("greet", greet)
        .handler("send_mail", send_mail)
        .handler("charge_card", charge_card)
        .handler("remind", remind)
        .handler("render_video", render_video)
}

async fn greet(greeting: Greeting, State(board): State<Arc<Board>>) -> Result<String, Fail> {
    board.executed(greeting.sent_us);
    Ok(format!("hello {}", greeting.name))
}

/// The mail server refuses the first try of each mail.
async fn send_mail(
    mail: Mail,
    context: TaskContext,
    State(board): State<Arc<Board>>,
) -> Result<(), Fail> {
    tokio::time::sleep(Duration::from_millis(40)).await;
    if context.attempt() == 1 {
        board.lock().retries += 1;
        board.tell("send_mail", Tone::Bad, format!("{}: connection refused, runs again", mail.to));
        return Err(Fail::new("connection refused").kind("connection_refused"));
    }
    board.executed(None);
    board.tell(
        "send_mail",
        Tone::Good,
        format!("{}: sent on attempt {}", mail.to, context.attempt()),
    );
    Ok(())
}

/// A card that no attempt can charge.
async fn charge_card(
    charge: Charge,
    context: TaskContext,
    State(board): State<Arc<Board>>,
) -> Result<(), Fail> {
    tokio::time::sleep(Duration::from_millis(25)).await;
    if context.attempt() < 2 {
        board.lock().retries += 1;
        board.tell(
            "charge_card",
            Tone::Bad,
            format!("{}: bank timed out, runs again", charge.card),
        );
        return Err(Fail::new("the bank did not answer").kind("bank_timeout"));
    }
    board.tell("charge_card", Tone::Bad, format!("{}: card expired, a dead letter", charge.card));
    let mut inner = board.lock();
    inner.deaths += 1;
    inner.dead = Some(context.id().to_string());
    Err(Fail::permanent(format!("card {} has expired", charge.card)).kind("card_expired"))
}

async fn remind(due_us: u64, State(board): State<Arc<Board>>) -> Result<(), Fail> {
    let late = Duration::from_micros(board.now_us().saturating_sub(due_us));
    board.executed(None);
    board.tell("remind", Tone::Good, format!("ran {} ms after its time", late.as_millis()));
    Ok(())
}

async fn render_video(
    video: Video,
    context: TaskContext,
    State(board): State<Arc<Board>>,
) -> Result<String, Fail> {
    for frame in 1..=video.frames {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let percent = frame * 100 / video.frames.max(1);
        let message = format!("frame {frame} of {}", video.frames);
        context.progress(percent, &message);
        board.lock().rendering = Some((percent, message));
    }
    board.executed(None);
    board.tell("render_video", Tone::Good, format!("{} frames rendered", video.frames));
    Ok("cat.mp4".to_owned())
}

/// Enqueues the demo's load: mixed tasks for `duration`, then a burst.
pub(super) async fn story(client: Client, board: Arc<Board>, duration: Duration) -> Result<()> {
    let started = Instant::now();
    let frames = u32::try_from(duration.as_millis() * 3 / 4 / 10).unwrap_or(1).max(1);
    enqueue(&client, &board, NewTask::new("render_video", &Video { frames }).queue("media"))
        .await?;
    board.tell("render_video", Tone::Plain, "a long task, with progress");
    prices::set(&client, &board).await?;
    exports::limit(&client).await?;

    let mut flows = JoinSet::new();
    let mut tick = tokio::time::interval(TICK);
    let mut people = PEOPLE.iter().copied().cycle();
    for number in 0u32.. {
        tick.tick().await;
        if started.elapsed() >= duration {
            break;
        }
        let mut sending = send_greetings(&client, &board, &mut people);
        enqueue_single(&client, &board, number, &mut people).await?;
        // The last flow has time to end before the burst.
        if started.elapsed() + FLOW_FOR_MAX < duration {
            start_flow(&client, &board, number, &mut flows);
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
    }
    while let Some(ended) = flows.join_next().await {
        ended??;
    }
    burst(&client, &board).await
}

/// The quick tasks of a tick, side by side.
fn send_greetings(
    client: &Client,
    board: &Arc<Board>,
    people: &mut impl Iterator<Item = &'static str>,
) -> JoinSet<Result<()>> {
    let mut sending = JoinSet::new();
    for name in people.take(GREETINGS_PER_TICK) {
        let greeting = Greeting { name: name.to_owned(), sent_us: Some(board.now_us()) };
        let task = NewTask::new("greet", &greeting);
        let (client, board) = (client.clone(), Arc::clone(board));
        sending.spawn(async move { enqueue(&client, &board, task).await });
    }
    sending
}

/// Single tasks: a mail, a charge or a reminder, on their ticks.
async fn enqueue_single(
    client: &Client,
    board: &Board,
    number: u32,
    people: &mut impl Iterator<Item = &'static str>,
) -> Result<()> {
    let fixed = |ms| RetryPolicy::fixed(Duration::from_millis(ms)).jitter(0.0);
    if number % 20 == 4 {
        let to = format!("{}@example.com", people.next().unwrap_or_default());
        let mail = NewTask::new("send_mail", &Mail { to }).queue("mail");
        enqueue(client, board, mail.retry(fixed(900).max_attempts(5))).await?;
    }
    if number % 50 == 12 {
        let card = format!("4000-{:04}", 17 * number % 10_000);
        let charge = NewTask::new("charge_card", &Charge { card, cents: 1_999 }).queue("billing");
        enqueue(client, board, charge.retry(fixed(600).max_attempts(3))).await?;
    }
    if number % 60 == 20 {
        let delay = Duration::from_secs(2);
        let due_us = board.now_us() + 2_000_000;
        enqueue(client, board, NewTask::new("remind", &due_us).delay(delay)).await?;
        board.tell("remind", Tone::Plain, "waits 2 s for its time");
    }
    Ok(())
}

/// A flow or some exports, on their ticks; the demo waits for their end.
fn start_flow(client: &Client, board: &Arc<Board>, number: u32, flows: &mut JoinSet<Result<()>>) {
    let (client, board) = (client.clone(), Arc::clone(board));
    match number % 60 {
        6 => drop(flows.spawn(async move { photos::run(&client, &board).await })),
        34 => drop(flows.spawn(async move { exports::run(&client, &board).await })),
        _ => {}
    }
}

/// As many tasks as possible, a few thousand at once.
async fn burst(client: &Client, board: &Arc<Board>) -> Result<()> {
    board.tell("greet", Tone::Plain, format!("a burst of {BURST_TASKS}, or as many as fit in 2 s"));
    let before = board.lock().executed;
    let started = Instant::now();
    let mut sending = JoinSet::new();
    let mut sent = 0;
    while sent < BURST_TASKS && started.elapsed() < BURST_FOR_MAX {
        let greeting = Greeting { name: "everyone".to_owned(), sent_us: None };
        let task = NewTask::new("greet", &greeting).queue("burst");
        let (client, board) = (client.clone(), Arc::clone(board));
        sending.spawn(async move { enqueue(&client, &board, task).await });
        sent += 1;
        if sending.len() >= BURST_AT_ONCE
            && let Some(answer) = sending.join_next().await
        {
            answer??;
        }
    }
    while let Some(answer) = sending.join_next().await {
        answer??;
    }
    // A few other tasks end meanwhile too, which does not matter beside thousands.
    while board.lock().executed < before + sent && started.elapsed() < 2 * BURST_FOR_MAX {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let executed = board.lock().executed - before;
    board.lock().burst = Some((executed.min(sent), started.elapsed()));
    Ok(())
}

async fn enqueue(client: &Client, board: &Board, task: NewTask) -> Result<()> {
    client.enqueue_new(task).await?;
    board.lock().enqueued += 1;
    Ok(())
}
