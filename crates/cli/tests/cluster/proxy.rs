//! The network between nodes: a proxy in front of each node's peer port. The proxy knows which node
//! dials, and can cut or slow down each direction between two nodes by itself.
//!
//! A cut link delays data and refuses nothing, like a network that drops packets: neither side
//! learns that the connection is gone, and written data arrives once the link is healed.

use crate::{
    cluster::network::{Link, Network, Place},
    yard::subnet::Subnet,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

const CLIENT_PORT: u16 = 7400;
const PEER_PORT: u16 = 7401;
/// The port of the proxy in front of the peer port.
const ADVERTISED_PORT: u16 = 7402;

/// Nodes on loopback, each with its own address.
pub(crate) struct Proxies {
    links: Links,
    subnet: Arc<Subnet>,
    nodes: usize,
}

impl Proxies {
    pub(crate) fn new() -> Proxies {
        Proxies { links: Links::default(), subnet: Arc::new(Subnet::free()), nodes: 0 }
    }

    /// Both directions between a node and each other one.
    fn links_of(&self, node: usize) -> impl Iterator<Item = Link> {
        let others = (0..self.nodes).filter(move |&other| other != node);
        others.flat_map(move |other| [(node, other), (other, node)])
    }
}

impl Network for Proxies {
    fn add_node(&mut self) -> Place {
        let node = self.nodes;
        self.nodes += 1;
        let ip = self.subnet.host(u8::try_from(node + 1).unwrap());
        let [clients, peers, advertised] =
            [CLIENT_PORT, PEER_PORT, ADVERTISED_PORT].map(|port| SocketAddr::from((ip, port)));
        let listener = TcpListener::bind(advertised).unwrap();
        self.links.serve(listener, node, peers, self.subnet.clone());
        Place { clients, peers, advertised, enter: Vec::new() }
    }

    fn started(&self, node: usize, process: u32) {
        self.links.lock().processes.insert(process, node);
    }

    fn cut(&self, link: Link) {
        self.links.lock().cut.insert(link);
    }

    fn can_slow_down(&self) -> bool {
        true
    }

    fn slow_down(&self, link: Link, delay: Duration) {
        self.links.lock().slow.insert(link, delay);
    }

    /// The data that was queued at the cut is delivered too.
    fn heal(&self, link: Link) {
        self.links.heal(link);
    }

    fn isolate(&self, node: usize) {
        self.links_of(node).for_each(|link| self.cut(link));
    }

    fn rejoin(&self, node: usize) {
        self.links_of(node).for_each(|link| self.heal(link));
    }
}

/// The state of all links. Cheap to clone; clones share the state.
#[derive(Clone, Default)]
struct Links(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    cut: BTreeSet<Link>,
    slow: BTreeMap<Link, Duration>,
    /// The node of each process id, to tell which node dials.
    processes: BTreeMap<u32, usize>,
}

impl Links {
    fn heal(&self, link: Link) {
        let mut state = self.lock();
        state.cut.remove(&link);
        state.slow.remove(&link);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Proxies connections from `listener` to `target`, the port of `node`, until the process ends.
    /// The subnet reserves the address for as long.
    fn serve(&self, listener: TcpListener, node: usize, target: SocketAddr, subnet: Arc<Subnet>) {
        let links = self.clone();
        thread::spawn(move || {
            let _subnet = subnet;
            for dialled in listener.incoming().flatten() {
                // The dialler is unknown if its process was killed meanwhile.
                let Some(dialler) = links.dialler_of(&dialled) else { continue };
                let links = links.clone();
                thread::spawn(move || links.connect(dialled, dialler, node, target));
            }
        });
    }

    /// Carries one connection, both ways, until it ends.
    fn connect(&self, dialled: TcpStream, dialler: usize, node: usize, target: SocketAddr) {
        // A dial through a cut link waits until the link is healed.
        self.pass((dialler, node));
        let Ok(accepted) = TcpStream::connect(target) else { return };
        let _ = (dialled.set_nodelay(true), accepted.set_nodelay(true));
        let (Ok(back_from), Ok(back_to)) = (accepted.try_clone(), dialled.try_clone()) else {
            return;
        };
        let links = self.clone();
        thread::spawn(move || links.carry((node, dialler), back_from, back_to));
        self.carry((dialler, node), dialled, accepted);
    }

    fn carry(&self, link: Link, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut buffer).unwrap_or(0);
            let delay = self.pass(link);
            thread::sleep(delay);
            if read == 0 || to.write_all(&buffer[..read]).is_err() {
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    /// Waits until the link is healed, and returns the delay of the link.
    fn pass(&self, link: Link) -> Duration {
        let state = self.0.changed.wait_while(self.lock(), |state| state.cut.contains(&link));
        state.unwrap().slow.get(&link).copied().unwrap_or_default()
    }

    /// The node whose process has the other end of a connection on this machine.
    fn dialler_of(&self, connection: &TcpStream) -> Option<usize> {
        let inode = inode_of(connection.peer_addr().ok()?, connection.local_addr().ok()?)?;
        let socket = format!("socket:[{inode}]");
        let processes = self.lock().processes.clone();
        let has_it = |process: u32| {
            let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
            let mut names = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
            names.find(|name| name.to_str() == Some(&socket))
        };
        processes.iter().find(|(process, _)| has_it(**process).is_some()).map(|(_, node)| *node)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }
}

/// The kernel's number of the socket at `local` that is connected to `remote`.
fn inode_of(local: SocketAddr, remote: SocketAddr) -> Option<String> {
    let shown = |address: SocketAddr| {
        let SocketAddr::V4(address) = address else { return String::new() };
        format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
    };
    let (local, remote) = (shown(local), shown(remote));
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.len() > 9 && row[1] == local && row[2] == remote)?;
    Some(row[9].to_owned())
}
