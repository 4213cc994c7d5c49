//! Node: joins a cluster if asked to, opens shards, connects to other nodes, and starts fronts. A
//! stop goes in reverse order.

use crate::{
    Broker, Config, Error, Front, clock,
    cluster::{About, Cluster, ClusterHandler, Entrance, Operation, enter},
    data_dir::known_peers,
    descriptors,
    disk::until_room,
    front::{FaktoryDoor, Hosts, Tls},
    limits,
    peer::{PeerConfig, PeerNetwork},
    shard::{Engine, Shards},
};
use std::{
    io,
    net::{self, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    task::JoinSet,
};

/// The longest grace of a stop, so that deadlines can be computed.
const STOP_FOR_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a stopping node waits for other leaders.
const HAND_OVER_FOR_MAX: Duration = Duration::from_secs(2);

/// A running node.
#[derive(Debug)]
pub struct Node {
    front: Front,
    /// The node's background tasks for its cluster.
    tasks: JoinSet<()>,
    network: Option<HangUp>,
    cluster: Cluster,
    engine: Engine,
    peer_address: Option<SocketAddr>,
    shutdown_grace: Duration,
}

impl Node {
    /// Opens the data directory, recovers every shard and starts to listen. A new directory first
    /// joins a cluster, if the configuration says so. Waits for free space on a full disk. Joining
    /// and waiting have no time limit: drop the future to give up.
    pub async fn start(config: Config) -> Result<Node, StartError> {
        config.validate()?;
        until_room(&config.data, config.disk_reserve_bytes).await;
        // Before the data directory, because a taken port shows at once.
        let mut listener = listen_for_clients(config.listen, false)?;
        let mut faktory_listener = listen_for_clients(config.faktory, config.faktory_may_move)?;
        let faktory_tls = config.faktory_tls.as_ref().map(Tls::load).transpose();
        let faktory_tls = faktory_tls.map_err(StartError)?;
        let peer_listener = listen_for_peers(config.peer, config.peer_may_move)?;
        let peer_address = peer_listener.as_ref().and_then(|listener| listener.local_addr().ok());
        // Not for a node inside another program, whose limit of open files is not ours to use up.
        let connections_max = match config.listen {
            None => config.connections_max,
            Some(_) => descriptors::connections_max(config.connections_max),
        };
        let bound = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let faktory_bound =
            faktory_listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let about = About {
            address: config.peer_address(peer_address),
            serves: config.client_address(bound),
            zone: config.zone.clone(),
            rules_max: config.rules_max,
        };
        if !config.join.is_empty() {
            // Joining may take long: meanwhile clients are refused instead of left waiting.
            (listener, faktory_listener) = (None, None);
        }
        let entrance =
            enter(&config, &about.address, &about.serves, peer_listener.as_ref()).await?;
        if listener.is_none() {
            listener = listen_for_clients(bound, false)?;
        }
        if faktory_listener.is_none() {
            faktory_listener = listen_for_clients(faktory_bound, false)?;
        }
        let opening = config.clone();
        let engine = tokio::task::spawn_blocking(move || match opening.peer {
            Some(_) => Engine::start_apart(&opening),
            None => Engine::start(&opening),
        })
        .await;
        let engine = engine.map_err(|error| StartError(format!("recovery ended: {error}")))??;
        let cluster = Cluster::new(engine.shards(), about, config.clock.clone());
        let network =
            peer_listener.map(|listener| connect(&config, &cluster, listener)).transpose()?;
        let network = network.map(HangUp);
        let tasks = keep_up(&config, &cluster);
        set_replication(&config, &cluster, &entrance).await?;
        let broker = Broker::in_cluster(cluster.clone(), &config);
        let door = |listener| FaktoryDoor {
            listener,
            password: config.faktory_password.clone(),
            tls: faktory_tls,
        };
        let faktory = faktory_listener.map(door);
        let hosts = Hosts::new(config.client_hosts());
        let front = Front::start(broker, listener, faktory, hosts, connections_max)
            .map_err(|error| StartError(format!("the fronts can't be started: {error}")))?;
        let shutdown_grace = config.shutdown_grace;
        Ok(Node { front, tasks, network, cluster, engine, peer_address, shutdown_grace })
    }

    /// The address for clients, if the node has one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.front.address()
    }

    /// The address for other nodes, if the node has one.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address
    }

    /// The address for Faktory clients, if the node has one.
    pub fn faktory_address(&self) -> Option<SocketAddr> {
        self.front.faktory_address()
    }

    /// The node's number in its cluster.
    pub fn id(&self) -> u64 {
        self.engine.shards().routes().me()
    }

    /// An in-process connection: speak HTTP/2 (gRPC) or HTTP/1 on it, to the host `localhost`.
    pub fn connect(&self) -> tokio::io::DuplexStream {
        self.front.connect()
    }

    pub fn shards(&self) -> Shards {
        self.engine.shards()
    }

    /// Completes when the node can't go on: its disk failed, or its cluster has removed it.
    pub async fn failed(&self) -> Error {
        tokio::select! {
            why = self.engine.failed() => Error::Unavailable(why),
            why = self.cluster.turned_away() => Error::Unavailable(why),
        }
    }

    /// Stops gracefully: hands over leadership, refuses new calls, lets calls in flight end,
    /// answers parked claims, and writes checkpoints. All of it within `shutdown_grace`; calls in
    /// flight may use up the time for checkpoints.
    pub async fn stop(self) {
        let Node { front, mut tasks, network, engine, shutdown_grace, .. } = self;
        let grace = shutdown_grace.min(STOP_FOR_MAX);
        let until = clock::real_now() + grace;
        // First, while calls are still forwarded, so that callers notice nothing.
        engine.hand_over(clock::real_now() + HAND_OVER_FOR_MAX.min(grace)).await;
        front.stop(until.saturating_duration_since(clock::real_now())).await;
        tasks.shutdown().await;
        drop(network);
        let _ = tokio::task::spawn_blocking(move || engine.stop_by(until)).await;
    }
}

fn listen_for_clients(
    address: Option<SocketAddr>,
    may_move: bool,
) -> Result<Option<TcpListener>, StartError> {
    let Some(address) = address else { return Ok(None) };
    let listener = listen_or_move(address, may_move).map_err(|error| {
        StartError(format!(
            "can't listen on {address}: {error}; stop what uses it or choose another address"
        ))
    })?;
    Ok(Some(listener))
}

/// Listens with a backlog for all clients that may connect at once, as after a restart.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // After a restart, connections of the process before may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(limits::LISTEN_BACKLOG)
}

/// Listens on another port if this one is taken and was not chosen by the operator.
fn listen_or_move(address: SocketAddr, may_move: bool) -> io::Result<TcpListener> {
    match listen(address) {
        Err(error) if may_move && error.kind() == io::ErrorKind::AddrInUse => {
            listen(SocketAddr::new(address.ip(), 0))
        }
        listener => listener,
    }
}

/// Stops the network when dropped. The network's own handlers keep it alive, so that it does not
/// end by itself.
#[derive(Debug)]
struct HangUp(PeerNetwork);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn listen_for_peers(
    address: Option<SocketAddr>,
    may_move: bool,
) -> Result<Option<net::TcpListener>, StartError> {
    let Some(address) = address else { return Ok(None) };
    let listener = listen_or_move(address, may_move).and_then(TcpListener::into_std);
    listener.map(Some).map_err(|error| {
        StartError(format!(
            "can't listen for other nodes on {address}: {error}; stop what uses it, or choose another \
             peer address"
        ))
    })
}

/// Starts the peer network, and connects the shards to it.
fn connect(
    config: &Config,
    cluster: &Cluster,
    listener: net::TcpListener,
) -> Result<PeerNetwork, StartError> {
    let listener = TcpListener::from_std(listener)
        .map_err(|error| StartError(format!("can't listen on the peer address: {error}")))?;
    let shards = cluster.shards();
    let me = PeerConfig {
        cluster: shards.cluster(),
        node: shards.routes().me(),
        secret: config.cluster_secret.0.clone(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        rules: config.rules_max,
        start: Some(shards.starts().start()),
    };
    let mut handler = ClusterHandler::new(shards.clone());
    let of = cluster.clone();
    handler.cluster = Some(Arc::new(move |_from, call| {
        let cluster = of.clone();
        Box::pin(async move { cluster.serve(&call).await })
    }));
    let of = Arc::clone(shards.snapshots());
    handler.snapshot = Some(Arc::new(move |_from, call| Box::pin(Arc::clone(&of).serve(call))));
    let of = cluster.clone();
    handler.joined = Some(Arc::new(move |_hello, call| {
        let cluster = of.clone();
        Box::pin(async move { cluster.joined(&call).await.encode() })
    }));
    let of = cluster.clone();
    handler.admit = Some(Arc::new(move |hello| of.admit(hello)));
    let of = cluster.clone();
    handler.seated = Some(Arc::new(move |hello| of.note_start(hello)));
    let network = PeerNetwork::start(&me, listener, Arc::new(handler), config.clock.clone());
    shards.connect(network.clone());
    Ok(network)
}

/// Starts a node's background tasks for its cluster.
fn keep_up(config: &Config, cluster: &Cluster) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(cluster.clone().keep_telling());
    tasks.spawn(cluster.clone().keep_moving());
    tasks.spawn(cluster.clone().keep_counting());
    if config.peer.is_some() {
        let joined_with = known_peers(&config.data);
        cluster.name_peers(&joined_with);
        tasks.spawn(cluster.clone().open_gate(joined_with.clone()));
        tasks.spawn(cluster.clone().keep_peers(joined_with));
        tasks.spawn(cluster.clone().keep_routes());
        tasks.spawn(cluster.clone().keep_comparing_clocks());
    }
    tasks
}

/// Sets the replication of a new cluster. For an existing cluster the setting has no effect.
async fn set_replication(
    config: &Config,
    cluster: &Cluster,
    entrance: &Entrance,
) -> Result<(), StartError> {
    let Some(factor) = config.replication else { return Ok(()) };
    if *entrance != Entrance::Founds {
        let known = cluster.shards().routes().control().factor();
        if known != factor {
            tracing::warn!(
                "replication {factor} is for a new cluster; this one has {known}, change it with \
                 `taskyard cluster replication {factor}`"
            );
        }
        return Ok(());
    }
    let set = cluster.operate(Operation::SetReplication { factor }).await;
    set.map_err(|error| StartError(format!("replication {factor} can't be set: {error}")))
}

/// Why a node could not start: what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    async fn node(dir: &std::path::Path, change: impl FnOnce(&mut Config)) -> Node {
        let mut config = Config::new(dir);
        config.peer = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        (config.listen, config.disk_reserve_bytes) = (None, 0);
        change(&mut config);
        Node::start(config).await.unwrap()
    }

    #[tokio::test]
    async fn a_taken_default_port_is_replaced_by_a_free_one() {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let faktory = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let first = node(dirs[0].path(), |config| config.faktory = Some(faktory)).await;
        let taken = (first.peer_address(), first.faktory_address());
        let second = node(dirs[1].path(), |config| {
            (config.peer, config.faktory) = taken;
            (config.peer_may_move, config.faktory_may_move) = (true, true);
        });
        let second = second.await;
        let moved = (second.peer_address().unwrap(), second.faktory_address().unwrap());
        assert!(moved.0.ip().is_loopback() && Some(moved.0) != taken.0, "{moved:?} {taken:?}");
        assert!(moved.1.ip().is_loopback() && Some(moved.1) != taken.1, "{moved:?} {taken:?}");

        // A chosen port is not replaced.
        for (peer, faktory) in [(taken.0, None), (None, taken.1)] {
            let mut config = Config::new(dirs[2].path());
            (config.listen, config.peer, config.faktory) = (None, peer, faktory);
            let refused = Node::start(config).await.unwrap_err().0;
            assert!(refused.contains("stop what uses it"), "{refused}");
        }
        second.stop().await;
        first.stop().await;
    }

    /// On one thread no other task has run when a start returns. So a start must name the peers
    /// itself, or the first caller finds them silent.
    #[tokio::test]
    async fn a_started_node_gives_its_peers_time_before_they_count_as_silent() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let one = node(dirs[0].path(), |config| config.shards = Some(2)).await;
        let join = vec![one.peer_address().unwrap().to_string()];
        let two = node(dirs[1].path(), |config| config.join = join).await;
        let begun = clock::real_now();
        while !one.shards().routes().control().nodes().contains_key(&2) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it did not hear of node 2");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        two.stop().await;
        one.stop().await;

        let one = node(dirs[0].path(), |_| ()).await;
        let network = &one.network.as_ref().unwrap().0;
        assert!(network.is_heard(2), "it was not given a moment");
        drop(one);
    }
}
