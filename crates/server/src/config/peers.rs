//! The part of the configuration that is about the cluster: addresses and the cluster to join. Its
//! checks run before the node dials any peer.

use super::Config;
use crate::limits::CLUSTER_SECRET_BYTES_MIN;
use std::net::{IpAddr, SocketAddr};

/// The longest name of a zone and the longest address, in bytes.
const TEXT_BYTES_MAX: usize = 255;

impl Config {
    /// The address under which peers reach this node, which listens at `bound`; empty if unknown.
    pub(crate) fn peer_address(&self, bound: Option<SocketAddr>) -> String {
        match (&self.advertise, bound) {
            (Some(advertised), _) => advertised.clone(),
            (None, Some(bound)) if !bound.ip().is_unspecified() => bound.to_string(),
            (None, _) => String::new(),
        }
    }

    /// The address under which clients reach this node, which listens at `bound`; empty if unknown.
    pub(crate) fn client_address(&self, bound: Option<SocketAddr>) -> String {
        let Some(bound) = bound else {
            return self.advertise_clients.clone().unwrap_or_default();
        };
        let host = self.advertise.as_deref().and_then(split);
        match (&self.advertise_clients, host) {
            (Some(advertised), _) => advertised.clone(),
            (None, _) if !bound.ip().is_unspecified() => bound.to_string(),
            (None, Some((host, _))) => format!("{host}:{}", bound.port()),
            (None, None) => String::new(),
        }
    }

    /// The names by which clients may call this node.
    pub(crate) fn client_hosts(&self) -> impl Iterator<Item = String> {
        let advertised = [&self.advertise, &self.advertise_clients].into_iter().flatten();
        let hosts =
            advertised.filter_map(|address| split(address)).map(|(host, _)| host.to_owned());
        hosts.chain(self.allowed_hosts.iter().cloned())
    }

    pub(super) fn check_peers(&self, mistakes: &mut Vec<String>) {
        let named =
            [("advertise", &self.advertise), ("advertise_clients", &self.advertise_clients)];
        for (name, address) in named {
            let Some(address) = address else { continue };
            match split(address) {
                None => mistakes.push(format!("{name} is {address:?}; it must be host:port")),
                Some((host, _)) if is_wildcard(host) => mistakes.push(format!(
                    "{name} is {address:?}, which no node can dial; name this machine as others know it"
                )),
                Some(_) => {}
            }
        }
        for host in self.allowed_hosts.iter().filter(|host| !is_name(host)) {
            mistakes.push(format!(
                "allowed_hosts is {host:?}; it must be a name such as queue.internal, or .internal for \
                 all names that end so, without a port"
            ));
        }
        for address in self.join.iter().filter(|address| split(address).is_none()) {
            mistakes.push(format!(
                "join is {address:?}; it must be the peer address of a node, such as 10.0.0.5:7401"
            ));
        }
        let (secret, bytes_min) = (self.cluster_secret.0.len(), CLUSTER_SECRET_BYTES_MIN);
        if (1..bytes_min).contains(&secret) {
            mistakes.push(format!(
                "cluster_secret has {secret} bytes, so that it could be guessed; it must have at least \
                 {bytes_min}: make one with `openssl rand -hex 32`, and give it to every node"
            ));
        }
        if self.zone.len() > TEXT_BYTES_MAX || self.zone.chars().any(char::is_control) {
            mistakes.push(format!(
                "zone is {:?}; it must be one line of at most {TEXT_BYTES_MAX} bytes",
                self.zone
            ));
        }
        if let Some(factor) = self.replication.filter(|factor| ![1, 3, 5].contains(factor)) {
            mistakes.push(format!("replication is {factor}; it must be 1, 3 or 5"));
        }
        if !self.join.is_empty() {
            mistakes.extend(self.check_join());
        }
    }

    /// Finds out whether the nodes that this one joins could reach it.
    fn check_join(&self) -> Option<String> {
        let Some(peer) = self.peer else {
            return Some(
                "join is set and peer is not; a node of a cluster needs a peer address".into(),
            );
        };
        if self.replication.is_some() && !self.is_listed(&self.peer_address(Some(peer))) {
            return Some(
                "replication is set and so is join: the cluster that is joined has its own; change it \
                 with `taskyard cluster replication`"
                    .into(),
            );
        }
        if self.advertise.is_some() {
            return None;
        }
        if peer.ip().is_unspecified() {
            return Some(format!(
                "peer is {peer}, which others can't dial; say with advertise how they reach this node"
            ));
        }
        let elsewhere = self.join.iter().find(|address| !split(address).is_none_or(is_local))?;
        peer.ip().is_loopback().then(|| {
            format!(
                "peer is {peer}, which the nodes at {elsewhere} can't reach; listen for peers on an \
                 address of this machine, or say with advertise how they reach it"
            )
        })
    }

    /// Whether `join` is the list of all nodes of a cluster, this one included.
    pub(crate) fn is_listed(&self, own_address: &str) -> bool {
        self.join.iter().any(|address| address == own_address)
    }
}

fn is_wildcard(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

fn is_local((host, _): (&str, u16)) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The host and the port of an address. IPv6 addresses lose their brackets.
fn split(address: &str) -> Option<(&str, u16)> {
    if address.len() > TEXT_BYTES_MAX {
        return None;
    }
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bracketed {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok().then_some(host)?,
        None => host,
    };
    (bracketed.is_some() || is_name(host)).then_some((host, port))
}

/// Whether `host` can be a host name or an IPv4 address.
fn is_name(host: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (1..=TEXT_BYTES_MAX).contains(&host.len()) && host != "." && host.chars().all(is_fine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn config(peer: &str, join: &[&str], advertise: Option<&str>) -> Config {
        let mut config = Config::new("data");
        config.peer = Some(peer.parse().unwrap());
        config.join = join.iter().map(|address| address.to_string()).collect();
        config.advertise = advertise.map(str::to_string);
        config
    }

    #[test]
    fn a_node_that_others_could_not_reach_is_refused_with_advice() {
        for (peer, join, advertise, mistake) in [
            ("10.0.0.1:7401", &["10.0.0.2:7401"][..], None, None),
            ("127.0.0.1:7401", &["127.0.0.1:8401"], None, None),
            ("127.0.0.1:7401", &["localhost:8401"], None, None),
            ("127.0.0.1:7401", &["10.0.0.2:7401"], Some("proxy:7401"), None),
            ("[::1]:7401", &["[::1]:8401"], None, None),
            ("0.0.0.0:7401", &[], None, None),
            ("0.0.0.0:7401", &["a:7401"], Some("b:7401"), None),
            (
                "0.0.0.0:7401",
                &["a:7401"],
                None,
                Some("peer is 0.0.0.0:7401, which others can't dial"),
            ),
            ("127.0.0.1:7401", &["a:7401"], None, Some("which the nodes at a:7401 can't reach")),
            ("10.0.0.1:7401", &["a"], None, Some("join is \"a\"; it must be the peer address")),
            ("10.0.0.1:7401", &["a:0"], None, Some("join is \"a:0\"")),
            ("10.0.0.1:7401", &["a b:1"], None, Some("join is \"a b:1\"")),
            ("10.0.0.1:7401", &["http://a:1"], None, Some("join is \"http://a:1\"")),
            ("10.0.0.1:7401", &[], Some("b"), Some("advertise is \"b\"; it must be host:port")),
            ("10.0.0.1:7401", &[], Some("[::]:1"), Some("which no node can dial")),
        ] {
            let found = config(peer, join, advertise).validate().err().map(|error| error.0);
            match mistake {
                None => assert_eq!(found, None, "{peer} {join:?} {advertise:?}"),
                Some(mistake) => {
                    let found = found.unwrap_or_else(|| panic!("{mistake}"));
                    assert!(found.contains(mistake), "{found}");
                }
            }
        }
    }

    #[test]
    fn mistakes_about_the_cluster_are_reported_together() {
        let mut config = config("10.0.0.1:7401", &["a"], Some("b"));
        (config.zone, config.replication) = ("a\nb".into(), Some(4));
        let mistakes = config.validate().unwrap_err().0;
        for part in ["advertise is", "join is", "zone is", "replication is 4"] {
            assert!(mistakes.contains(part), "{mistakes}");
        }
        let mut config = Config::new("data");
        config.join = vec!["a:7401".into()];
        assert!(config.validate().unwrap_err().0.contains("needs a peer address"));
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_refused_with_advice() {
        let mut config = config("10.0.0.1:7401", &[], None);
        for (bytes, is_fine) in [(0, true), (1, false), (31, false), (32, true), (64, true)] {
            config.cluster_secret = Secret(vec![b'x'; bytes]);
            let found = config.validate().map_err(|error| error.0);
            assert_eq!(found.is_ok(), is_fine, "{bytes}: {found:?}");
            let words = found.err().unwrap_or_default();
            let says = [&format!("cluster_secret has {bytes} bytes"), "`openssl rand -hex 32`"];
            assert!(is_fine || says.iter().all(|part| words.contains(part)), "{words}");
        }
    }

    #[test]
    fn clients_may_use_the_advertised_hosts_and_the_allowed_ones() {
        let mut config = config("10.0.0.1:7401", &[], Some("a:7401"));
        config.advertise_clients = Some("b:80".into());
        config.allowed_hosts = vec!["c".into(), ".d".into()];
        assert_eq!(config.client_hosts().collect::<Vec<_>>(), ["a", "b", "c", ".d"]);
        config.validate().unwrap();
        for wrong in ["", ".", "e:7400", "http://e", "*"] {
            config.allowed_hosts = vec![wrong.into()];
            let mistakes = config.validate().unwrap_err().0;
            assert!(mistakes.contains(&format!("allowed_hosts is {wrong:?}")), "{mistakes}");
        }
    }

    #[test]
    fn the_advertised_address_is_what_others_can_dial() {
        let bound = |text: &str| Some(text.parse().unwrap());
        for (listen, advertise, clients, expected) in [
            ("10.0.0.1:7400", None, None, "10.0.0.1:7400"),
            ("0.0.0.0:7400", None, None, ""),
            ("0.0.0.0:7400", Some("a:7401"), None, "a:7400"),
            ("0.0.0.0:7400", Some("a:7401"), Some("b:80"), "b:80"),
        ] {
            let mut config = config("127.0.0.1:0", &[], advertise);
            config.advertise_clients = clients.map(str::to_string);
            assert_eq!(config.client_address(bound(listen)), expected);
        }
        let config = config("127.0.0.1:0", &[], None);
        assert_eq!(config.peer_address(bound("127.0.0.1:4711")), "127.0.0.1:4711");
        assert_eq!(config.peer_address(bound("0.0.0.0:4711")), "");
        assert_eq!(config.peer_address(None), "");
    }

    #[test]
    fn a_secret_is_not_printed() {
        let mut config = Config::new("data");
        config.cluster_secret = Secret(b"open sesame".to_vec());
        let shown = format!("{config:?}");
        assert!(!shown.contains("sesame") && !shown.contains("115, 101"), "{shown}");
    }
}
