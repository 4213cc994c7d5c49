//! `taskyard demo`: the product in ten seconds, in one process and a temporary folder.
//!
//! A real broker, a real worker and a real client over a real socket; only the work is fake. With
//! `--nodes`, the demo starts several processes instead: see `cluster`.

mod board;
mod cluster;
mod exports;
mod photos;
mod prices;
mod tasks;
mod view;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use taskyard::{Client, Worker};
use taskyard_server::{Config, Node};
use tokio::sync::oneshot;

use self::{board::Board, view::View};
use crate::{args::DemoArgs, output::Output, signals::Signals};

/// How often the view is redrawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// How long the demo waits for the last tasks while their number does not fall.
const FINISH_FOR_MAX: Duration = Duration::from_secs(5);
const SHARDS: u16 = 8;
const SLOTS: usize = 64;

pub(crate) fn run(args: &DemoArgs, output: Output) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match args.nodes {
        1 => runtime.block_on(demo(args, output)),
        _ => runtime.block_on(cluster::demo(args, output)),
    }
}

async fn demo(args: &DemoArgs, output: Output) -> Result<()> {
    let mut signals = Signals::listen()?;
    let folder = tempfile::Builder::new().prefix("taskyard-demo-").tempdir()?;
    let mut config = Config::new(folder.path());
    config.listen = Some(args.listen);
    config.shards = Some(SHARDS);
    let node = Node::start(config).await.context("cannot start the demo's broker")?;
    let address = node.address().context("the demo's broker has no address")?;
    let url = format!("http://{address}");
    let client = Client::connect(&url).await?;

    let board = Arc::new(Board::new());
    let worker = tasks::register(Worker::builder(&client), &board).concurrency(SLOTS).build()?;
    let (stop_worker, stopped) = oneshot::channel::<()>();
    let working = tokio::spawn(worker.run_until(stopped));

    let mut view = View::new(output, &url);
    let shown = tokio::select! {
        shown = show(&client, &board, &mut view, args.duration) => shown,
        () = signals.next() => Ok(()),
    };
    let queues = client.queues().await.unwrap_or_default();
    view.finish(&board, &queues, args.keep)?;
    if args.keep && shown.is_ok() {
        signals.next().await;
    }
    drop(stop_worker);
    signals
        .or_at_once(async {
            let worked = working.await;
            node.stop().await;
            worked
        })
        .await??;
    shown
}

/// Runs the demo's tasks and their view until the last task has ended.
async fn show(
    client: &Client,
    board: &Arc<Board>,
    view: &mut View,
    duration: Duration,
) -> Result<()> {
    let story = tasks::story(client.clone(), Arc::clone(board), duration);
    tokio::pin!(story);
    let mut told = false;
    let (mut fewest, mut patience) = (u64::MAX, Instant::now());
    let mut draw = tokio::time::interval(DRAW_EVERY);
    loop {
        tokio::select! {
            result = &mut story, if !told => {
                result?;
                told = true;
            }
            _ = draw.tick() => {
                let queues = client.queues().await?;
                view.draw(board, &queues)?;
                let waiting: u64 = queues.iter().map(|q| q.ready + q.claimed + q.scheduled + q.blocked).sum();
                if !told || waiting < fewest {
                    (fewest, patience) = (waiting, Instant::now() + FINISH_FOR_MAX);
                }
                if told && (waiting == 0 || Instant::now() >= patience) {
                    return Ok(());
                }
            }
        }
    }
}
