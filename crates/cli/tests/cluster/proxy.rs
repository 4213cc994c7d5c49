//! The network between nodes: a proxy before each node's peer port, which knows who dials, and can cut
//! or slow down what goes from one node to another, each direction by itself.
//!
//! What is cut is held, not refused, as by a network that drops packets: neither side hears that the
//! connection is gone, and what was written goes on its way once the link is healed.

use crate::yard::subnet::Subnet;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

/// From which node to which, by their places in the list of nodes.
pub(crate) type Link = (usize, usize);

/// The state of all links. Cheap to clone; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Links(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    cut: BTreeSet<Link>,
    slow: BTreeMap<Link, Duration>,
    /// Which process is which node.
    processes: BTreeMap<u32, usize>,
}

impl Links {
    /// Lets nothing more through.
    pub(crate) fn cut(&self, link: Link) {
        self.lock().cut.insert(link);
    }

    /// Holds back everything that goes through for this long.
    pub(crate) fn slow_down(&self, link: Link, delay: Duration) {
        self.lock().slow.insert(link, delay);
    }

    /// Lets everything through at once, and what was held too.
    pub(crate) fn heal(&self, link: Link) {
        let mut state = self.lock();
        state.cut.remove(&link);
        state.slow.remove(&link);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Says which node a process is, so that its connections are known as that node's.
    pub(crate) fn name_process(&self, process: u32, node: usize) {
        self.lock().processes.insert(process, node);
    }

    /// Takes connections at `listener` for `node`, whose own port is `target`, until the process ends. For
    /// so long nobody else may take the address, which its subnet sees to.
    pub(crate) fn serve(
        &self,
        listener: TcpListener,
        node: usize,
        target: SocketAddr,
        subnet: Arc<Subnet>,
    ) {
        let links = self.clone();
        thread::spawn(move || {
            let _subnet = subnet;
            for dialled in listener.incoming().flatten() {
                // Nobody knows whose it is any more when its process was killed meanwhile.
                let Some(dialler) = links.dialler_of(&dialled) else { continue };
                let links = links.clone();
                thread::spawn(move || links.connect(dialled, dialler, node, target));
            }
        });
    }

    /// Carries one connection, both ways, until it ends.
    fn connect(&self, dialled: TcpStream, dialler: usize, node: usize, target: SocketAddr) {
        // A dial through a cut takes as long as the cut does.
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

    /// Waits until the link lets something through, and says how long that takes.
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
