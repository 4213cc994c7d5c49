//! Entrance: how a new data directory gets into a cluster: it founds one, or joins one.
//!
//! If a list of all nodes names this one too, the first node of the list founds the cluster. It
//! does so only after every other node has reported that it is in no cluster and has the same list.
//! One list can therefore never make two clusters: the founder knows that all others wait for it. A
//! first node that lost its disk hears from the others that a cluster exists, and joins it.
//!
//! A waiting node answers on its peer port.

use super::join::{Candidate, JoinAnswer, JoinCall, Welcome};
use crate::{
    Config,
    clock::real_now,
    data_dir::{FORMAT_VERSION, Format, Joining, read_format},
    node::StartError,
    peer::{self, JoinError, PeerConfig, PeerHandler, PeerHello, PeerNetwork, RefusalCode},
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use taskyard_replica::NodeId;
use tokio::time::sleep;

/// How long one node may take to answer, because it asks the control group's leader in turn.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// The pause before all addresses are tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(300);
/// The least time between two messages about the wait.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// How long a node with a place searches for nodes at the addresses that it was told to join.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// How a node gets the data directory on which it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// The directory exists, with this format.
    There(Format),
    /// The directory is created when it is opened, and founds a cluster.
    Founds,
}

/// Prepares the directory `config.data`: joins a cluster if this is requested and the node has no
/// place yet. `address` and `serves` are for peers and clients; `listener` is the socket behind
/// `address`.
pub(crate) async fn enter(
    config: &Config,
    address: &str,
    serves: &str,
    listener: Option<&std::net::TcpListener>,
) -> Result<Entrance, StartError> {
    let data = config.data.clone();
    if config.join.is_empty() {
        let made_as = blocking(move || read_format(&data)).await?;
        return Ok(made_as.map_or(Entrance::Founds, Entrance::There));
    }
    let joining = match blocking(move || Joining::begin(&data)).await? {
        Err(format) => {
            look(config, format).await?;
            return Ok(Entrance::There(format));
        }
        Ok(joining) => joining,
    };
    let candidate = Candidate {
        format: FORMAT_VERSION,
        instance: joining.instance(),
        address: address.to_owned(),
        serves: serves.to_owned(),
        zone: config.zone.clone(),
        rules_max: config.rules_max,
        shards: config.shards,
    };
    let asking = Asking::new(config, candidate)?;
    let waiting = listener.map(|listener| asking.wait(listener)).transpose()?;
    let welcome = asking.until_in().await?;
    if let Some(waiting) = waiting {
        waiting.stop();
    }
    match welcome {
        None => {
            tracing::info!("all nodes of the list are here and in no cluster: this one founds it");
            blocking(move || joining.leave()).await?;
            Ok(Entrance::Founds)
        }
        Some(welcome) => {
            let Welcome { cluster, incarnation, shards, node, peers } = welcome;
            tracing::info!(node, cluster = %format_args!("{cluster:032x}"), "joined the cluster");
            let format = Format { cluster, incarnation, shards, node };
            blocking(move || joining.make(format, &peers)).await?;
            Ok(Entrance::There(format))
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| StartError(format!("the data directory can't be made: {error}")))?
}

/// The introduction of this node while it has no number.
pub(super) fn introduction(config: &Config) -> PeerConfig {
    PeerConfig {
        cluster: 0,
        node: 0,
        secret: config.cluster_secret.0.clone(),
        build: super::member::BUILD.to_owned(),
        rules: config.rules_max,
        start: None,
    }
}

/// Checks a node that has a place and was told to join. It keeps its place with a message; an
/// address that belongs to another cluster is an error.
async fn look(config: &Config, format: Format) -> Result<(), StartError> {
    let me = introduction(config);
    let until = real_now() + LOOK_FOR;
    for address in &config.join {
        let left = until.saturating_duration_since(real_now());
        let asked = peer::join(&me, address, JoinCall::Look.encode(), left).await;
        let Ok((hello, _)) = asked else { continue };
        if hello.cluster == 0 {
            continue;
        }
        if hello.cluster != format.cluster {
            return Err(another_cluster(&config.data, format, address, &hello));
        }
        let (data, node) = (config.data.display(), format.node);
        tracing::info!(
            "{data} is node {node} of that cluster already; join {address} is not needed"
        );
        return Ok(());
    }
    Ok(())
}

fn another_cluster(data: &Path, format: Format, address: &str, hello: &PeerHello) -> StartError {
    StartError(format!(
        "{} is node {} of cluster {:032x}, and the node at {address} belongs to cluster {:032x}; leave out \
         join, or start with a new data directory",
        data.display(),
        format.node,
        format.cluster,
        hello.cluster
    ))
}

/// A node that asks for a place.
struct Asking {
    me: PeerConfig,
    candidate: Candidate,
    /// The nodes to ask, without this one.
    others: Vec<String>,
    /// The configured list, if it names this node too.
    list: Option<Vec<String>>,
    clock: crate::Clock,
}

/// The result of asking every node once.
enum Round {
    In(Welcome),
    /// All other nodes answer, and wait.
    AllWait,
    /// The reason to ask again.
    NotYet(String),
}

impl Asking {
    fn new(config: &Config, candidate: Candidate) -> Result<Asking, StartError> {
        let is_listed = config.is_listed(&candidate.address);
        let others = config.join.iter().filter(|other| **other != candidate.address);
        let others: Vec<String> = others.cloned().collect();
        if others.is_empty() {
            let address = &candidate.address;
            return Err(StartError(format!(
                "join names {address}, which is this node itself; leave it out to found a cluster of one"
            )));
        }
        let list = is_listed.then(|| config.join.clone());
        let clock = config.clock.clone();
        Ok(Asking { me: introduction(config), candidate, others, list, clock })
    }

    /// Answers on the peer port that this node waits.
    fn wait(&self, listener: &std::net::TcpListener) -> Result<PeerNetwork, StartError> {
        let clone = listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        let listener = clone
            .map_err(|error| StartError(format!("can't listen on the peer address: {error}")))?;
        let waits = JoinAnswer::Waits(self.list.clone().unwrap_or_default()).encode();
        Ok(PeerNetwork::wait(&self.me, listener, Arc::new(Waiting(waits)), self.clock.clone()))
    }

    /// Asks until this node has a place, must found the cluster (`None`), or can never get in.
    async fn until_in(&self) -> Result<Option<Welcome>, StartError> {
        let mut said: Option<Instant> = None;
        loop {
            let why = match self.round().await? {
                Round::In(welcome) => return Ok(Some(welcome)),
                Round::AllWait if self.is_first() => return Ok(None),
                Round::AllWait => "all nodes wait for one that founds the cluster".into(),
                Round::NotYet(why) => why,
            };
            if said.is_none_or(|at| real_now().duration_since(at) >= SAY_EVERY) {
                tracing::warn!("waits for a cluster to join: {why}; trying again");
                said = Some(real_now());
            }
            sleep(AGAIN_AFTER).await;
        }
    }

    fn is_first(&self) -> bool {
        let first = self.list.as_ref().and_then(|list| list.first());
        first.is_some_and(|first| *first == self.candidate.address)
    }

    /// Asks every node once. If any of them is in a cluster, this node joins that cluster.
    async fn round(&self) -> Result<Round, StartError> {
        let call = JoinCall::Join(self.candidate.clone()).encode();
        let mut waiting = 0;
        let mut why = String::new();
        for address in &self.others {
            let answer = peer::join(&self.me, address, call.clone(), ANSWER_WITHIN).await;
            match answer {
                Ok((hello, answer)) => match JoinAnswer::decode(&answer) {
                    Ok(JoinAnswer::Welcome(welcome)) => return Ok(Round::In(welcome)),
                    Ok(JoinAnswer::Waits(theirs)) => {
                        self.check_list(address, &theirs)?;
                        waiting += 1;
                        why = format!("the node at {address} is in none yet either");
                    }
                    Ok(JoinAnswer::Later(words)) => why = format!("{address}: {words}"),
                    Ok(JoinAnswer::Refused(words)) => {
                        return Err(StartError(format!("the cluster at {address} says: {words}")));
                    }
                    Ok(JoinAnswer::Seen(_)) | Err(_) => {
                        return Err(StartError(format!(
                            "the answer of the node at {address}, version {}, can't be read; start the \
                             same version on all nodes",
                            hello.build
                        )));
                    }
                },
                Err(error) if is_for_good(&error) => return Err(StartError(error.to_string())),
                Err(error) => why = error.to_string(),
            }
        }
        match self.list.is_some() && waiting == self.others.len() {
            true => Ok(Round::AllWait),
            false => Ok(Round::NotYet(why)),
        }
    }

    /// Two different lists could make two clusters.
    fn check_list(&self, address: &str, theirs: &[String]) -> Result<(), StartError> {
        let Some(ours) = &self.list else { return Ok(()) };
        if ours == theirs {
            return Ok(());
        }
        let shown = |list: &[String]| match list {
            [] => "one without itself".to_owned(),
            list => list.join(","),
        };
        Err(StartError(format!(
            "the node at {address} was given another list to join ({}) than this one ({}); give all nodes \
             the same, in the same order",
            shown(theirs),
            shown(ours)
        )))
    }
}

/// Whether asking again would give the same answer.
fn is_for_good(error: &JoinError) -> bool {
    match error {
        JoinError::NotAPeer { .. } => true,
        JoinError::Refused { refusal, .. } => matches!(
            refusal.code,
            RefusalCode::Secret
                | RefusalCode::Versions
                | RefusalCode::Cluster
                | RefusalCode::Malformed
        ),
        JoinError::NoNode { .. } | JoinError::NoAnswer { .. } => false,
    }
}

/// The peer port of a node without a cluster.
struct Waiting(Bytes);

impl PeerHandler for Waiting {
    fn raft(&self, _from: NodeId, _group: u64, _message: Bytes) {}

    fn told(&self, _: NodeId, _: Bytes) {}

    fn call(&self, _from: NodeId, _request: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(std::future::ready(Bytes::new()))
    }

    fn joined(&self, _hello: PeerHello, _request: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(std::future::ready(self.0.clone()))
    }

    fn peer_up(&self, _node: NodeId) {}

    fn peer_down(&self, _node: NodeId) {}
}
