//! `taskyard serve`: runs a broker until a signal stops it.

mod settings;

use anyhow::{Context, Result};
use serde::Serialize;
use std::time::Duration;
use taskyard_server::{Config, Node};

use crate::{args::ServeArgs, log, output::Output, signals::Signals};

/// How long the process waits for its other threads at the end.
const END_FOR_MAX: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &ServeArgs, output: Output) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Before anything else, so that every signal from here on stops the broker gracefully.
    let signals = runtime.block_on(async { Signals::listen() })?;
    let settings =
        settings::read(args).unwrap_or_else(|error| settings::Settings::failed(args, error));
    log::start_as(settings.log.as_deref(), settings.log_format);
    let ended = runtime.block_on(serve(settings.config?, signals, output));
    // A stopped broker has closed everything. A broker that was still starting, and for example
    // read a long log, can be cut off anywhere, as by a kill: the next start repeats its work.
    runtime.shutdown_timeout(END_FOR_MAX);
    ended
}

/// The first line of `serve --json`: the addresses of the broker.
#[derive(Serialize)]
struct Started {
    url: String,
    address: String,
    data: String,
    pid: u32,
    /// The node's number in its cluster.
    node: u64,
    /// The address for other nodes.
    peer: String,
    /// The URL for Faktory clients; absent if it does not listen for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    faktory: Option<String>,
}

async fn serve(config: Config, mut signals: Signals, output: Output) -> Result<()> {
    let data = config.data.clone();
    let (peer_wanted, faktory_wanted) = (config.peer, config.faktory);
    let has_secret = !config.cluster_secret.0.is_empty();
    let has_password = !config.faktory_password.0.is_empty();
    let scheme = if config.faktory_tls.is_some() { "tcp+tls" } else { "tcp" };
    let shown = data.display();
    // A task of its own, because dropping the start here would wait for the work that it has begun.
    let starting = tokio::spawn(Node::start(config));
    let node = tokio::select! {
        node = starting => node?.with_context(|| format!("cannot start on {shown}"))?,
        () = signals.next() => {
            tracing::info!("stopped before the broker was up");
            return Ok(());
        }
    };
    let address = node.address().map(|address| address.to_string()).unwrap_or_default();
    let url = format!("http://{address}");
    let faktory = node.faktory_address().map(|address| format!("{scheme}://{address}"));
    if output.is_json() {
        output.json_line(&Started {
            url,
            address,
            data: shown.to_string(),
            pid: std::process::id(),
            node: node.id(),
            peer: node.peer_address().map(|peer| peer.to_string()).unwrap_or_default(),
            faktory,
        })?;
    } else if log::is_json() {
        let (version, faktory) = (env!("CARGO_PKG_VERSION"), faktory.unwrap_or_default());
        tracing::info!(version, url, data = %shown, faktory, "listening");
    } else {
        let version = env!("CARGO_PKG_VERSION");
        eprintln!(
            "taskyard {version} listens on {url} and keeps its tasks in {shown}; Ctrl-C stops it"
        );
        if let Some(faktory) = faktory {
            eprintln!("Faktory clients reach it at {faktory}");
        }
    }
    let moved = [
        ("--peer", peer_wanted, node.peer_address()),
        ("--faktory", faktory_wanted, node.faktory_address()),
    ];
    for (option, wanted, address) in moved {
        let (Some(wanted), Some(address)) = (wanted, address) else { continue };
        if wanted.port() != 0 && wanted != address {
            output.say(format!("{wanted} is taken: {option} is {address} instead"));
        }
    }
    if let Some(address) = node.address().filter(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            %address,
            "anyone who reaches this address can do anything: there is no authentication yet; \
             listen on 127.0.0.1, or restrict the address by a firewall"
        );
    }
    if let Some(address) =
        node.peer_address().filter(|peer| !has_secret && !peer.ip().is_loopback())
    {
        tracing::warn!(
            %address,
            "anyone who reaches the peer address can join this cluster as a node: give all nodes \
             the same --cluster-secret-file, and keep the address on a private network"
        );
    }
    if let Some(address) =
        node.faktory_address().filter(|address| !has_password && !address.ip().is_loopback())
    {
        tracing::warn!(
            %address,
            "anyone who reaches this address can push and fetch jobs as a Faktory client: give a \
             --faktory-password-file, or listen on 127.0.0.1"
        );
    }
    tokio::select! {
        () = signals.next() => {}
        error = node.failed() => {
            return Err(anyhow::Error::new(error).context(format!("the broker on {shown} stopped")));
        }
    }
    tracing::info!("stopping");
    signals.or_at_once(node.stop()).await;
    tracing::info!("stopped");
    Ok(())
}
