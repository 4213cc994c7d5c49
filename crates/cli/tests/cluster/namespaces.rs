//! A network of network namespaces, one for each node. Each node has a link to a bridge for nodes,
//! which a test can cut, and a link to a bridge for clients, which stays up.
//!
//! ```text
//! test 10.0.1.254 ── clients ──┬── 10.0.1.1  node-1  10.0.2.1 ──┬── peers
//!                              ├── 10.0.1.2  node-2  10.0.2.2 ──┤
//!                              └── 10.0.1.3  node-3  10.0.2.3 ──┘
//! ```
//!
//! A cut link drops packets silently: no connection is closed or refused. Written data arrives, if
//! at all, when the kernel retransmits it. The test runs in its own namespaces, so the network ends
//! with the process of the test.

use crate::{
    cluster::network::{Link, Network, Place},
    yard::{
        Process,
        needs::{self, Need},
    },
};
use std::{
    cell::RefCell,
    collections::BTreeSet,
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
};

const CLIENT_PORT: u16 = 7400;
const PEER_PORT: u16 = 7401;
/// The host number of the test itself, which is the client.
const CLIENTS_HOST: usize = 254;
/// A MAC address that no node has: the bridge loses frames to this address.
const NOBODY: &str = "02:00:00:00:00:fe";

/// This variable is set in the copy of a test that runs inside namespaces. Its value is a file that
/// the copy creates to show that the test ran.
const INSIDE: &str = "CLUSTER_TEST_INSIDE";

/// Runs a test, by its name in this binary, in new namespaces. If the machine can't make
/// namespaces, this prints the reason and skips the test.
pub(crate) fn with_namespaces(name: &str, test: impl Future<Output = ()>) {
    if let Some(file) = std::env::var_os(INSIDE) {
        std::fs::File::create_new(file).unwrap();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        return runtime.worker_threads(2).enable_all().build().unwrap().block_on(test);
    }
    let rights = match needs::namespaces() {
        Ok(rights) => rights,
        Err(why) => return Need::Namespaces.skip(why),
    };
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let mut command = Command::new("unshare");
    command.args(rights).args(needs::NAMESPACES).arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, &ran);
    let mut inside = Process(command.spawn().unwrap());
    let status = inside.0.wait().unwrap();
    assert!(ran.exists(), "there is no test {name}");
    assert!(status.success(), "{name} failed in its namespaces: {status}");
}

/// The network, in the namespaces that `with_namespaces` made.
pub(crate) struct Namespaces {
    nodes: usize,
    cut: RefCell<BTreeSet<Link>>,
}

impl Namespaces {
    pub(crate) fn new() -> Namespaces {
        assert!(std::env::var_os(INSIDE).is_some(), "this changes the network of the machine");
        run("mount -t tmpfs none /run");
        run("ip link set lo up");
        for bridge in ["clients", "peers"] {
            run(&format!("ip link add {bridge} type bridge"));
            run(&format!("ip link set {bridge} up"));
        }
        run(&format!("ip addr add {}/24 dev clients", to_clients(CLIENTS_HOST)));
        Namespaces { nodes: 0, cut: RefCell::default() }
    }
}

impl Network for Namespaces {
    fn add_node(&mut self) -> Place {
        let node = self.nodes;
        self.nodes += 1;
        plug_in(node);
        let peers = SocketAddr::from((to_peers(node), PEER_PORT));
        Place {
            clients: SocketAddr::from((to_clients(node + 1), CLIENT_PORT)),
            peers,
            advertised: peers,
            enter: vec!["nsenter".into(), format!("--net=/run/netns/{}", namespace(node))],
        }
    }

    /// Sends packets for the target node to a MAC address that no node has. Packets from the
    /// target still arrive, but their TCP acknowledgements are lost too.
    fn cut(&self, link: Link) {
        let (from, to) = (namespace(link.0), to_peers(link.1));
        run(&format!("ip -n {from} neigh replace {to} lladdr {NOBODY} nud permanent dev peers"));
        self.cut.borrow_mut().insert(link);
    }

    /// A delay would need `netem`, which many kernels are built without.
    fn can_slow_down(&self) -> bool {
        false
    }

    fn slow_down(&self, _link: Link, _delay: std::time::Duration) {
        unreachable!("links of namespaces are not slowed down")
    }

    fn heal(&self, link: Link) {
        if self.cut.borrow_mut().remove(&link) {
            let (from, to) = (namespace(link.0), to_peers(link.1));
            run(&format!("ip -n {from} neigh del {to} dev peers"));
        }
    }

    fn isolate(&self, node: usize) {
        run(&format!("ip link set peers-{} down", node + 1));
    }

    fn rejoin(&self, node: usize) {
        run(&format!("ip link set peers-{} up", node + 1));
        for other in 0..self.nodes {
            self.heal((node, other));
            self.heal((other, node));
        }
    }
}

/// Makes a machine for a node: its namespace and its links.
pub(crate) fn plug_in(node: usize) {
    let name = namespace(node);
    run(&format!("ip netns add {name}"));
    run(&format!("ip -n {name} link set lo up"));
    for (bridge, own) in [("clients", to_clients(node + 1)), ("peers", to_peers(node))] {
        let port = format!("{bridge}-{}", node + 1);
        // A machine keeps its MAC address when it is plugged in again.
        let [.., network, host] = own.octets();
        let card = format!("address 02:00:00:00:{network:02x}:{host:02x}");
        run(&format!("ip link add {port} type veth peer name {bridge} {card} netns {name}"));
        run(&format!("ip link set {port} master {bridge} up"));
        run(&format!("ip -n {name} addr add {own}/24 dev {bridge}"));
        run(&format!("ip -n {name} link set {bridge} up"));
    }
}

/// Takes a machine away without closing its connections. `end` must end its process.
pub(crate) fn unplug(node: usize, end: impl FnOnce()) {
    for bridge in ["clients", "peers"] {
        run(&format!("ip link del {bridge}-{}", node + 1));
    }
    end();
    run(&format!("ip netns del {}", namespace(node)));
}

fn namespace(node: usize) -> String {
    format!("node-{}", node + 1)
}

fn to_clients(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, u8::try_from(host).unwrap())
}

fn to_peers(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, u8::try_from(node + 1).unwrap())
}

/// Runs a command without quoting, split at spaces; the command must succeed.
fn run(line: &str) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {}, {said}", output.status);
}
