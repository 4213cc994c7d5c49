//! Counters of nodes, read from their `/metrics`.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const ANSWER_FOR_MAX: Duration = Duration::from_secs(10);

/// Commands and claims of clients, by whether the asked node leads their shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Routed {
    here: u64,
    forwarded: u64,
}

impl Routed {
    /// The sums of the nodes' counters.
    pub(super) async fn of(nodes: &[SocketAddr]) -> Result<Routed> {
        let mut all = Routed::default();
        for node in nodes {
            let text = timeout(ANSWER_FOR_MAX, read(*node))
                .await
                .with_context(|| format!("cannot read the metrics of {node}"))??;
            all = all.and(Routed::parse(&text));
        }
        Ok(all)
    }

    fn parse(text: &str) -> Routed {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        Routed {
            here: value("taskyard_routed_total{to=\"this_node\"}"),
            forwarded: value("taskyard_routed_total{to=\"another_node\"}"),
        }
    }

    pub(super) fn and(self, other: Routed) -> Routed {
        Routed { here: self.here + other.here, forwarded: self.forwarded + other.forwarded }
    }

    /// The difference to `earlier`.
    pub(super) fn since(self, earlier: Routed) -> Routed {
        Routed {
            here: self.here.saturating_sub(earlier.here),
            forwarded: self.forwarded.saturating_sub(earlier.forwarded),
        }
    }

    /// The forwarded share, from 0 to 1.
    pub(super) fn forwarded_share(self) -> f64 {
        self.forwarded as f64 / (self.here + self.forwarded).max(1) as f64
    }
}

async fn read(node: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(node).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {node}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_what_came_in_between() {
        let before = Routed::parse("a 1\ntaskyard_routed_total{to=\"this_node\"} 10\n");
        assert_eq!(before, Routed { here: 10, forwarded: 0 });
        let after = Routed::parse(
            "taskyard_routed_total{to=\"this_node\"} 20\n\
             taskyard_routed_total{to=\"another_node\"} 30\n",
        );
        assert_eq!(after.since(before).forwarded_share(), 0.75);
        assert_eq!(Routed::default().forwarded_share(), 0.0);
    }
}
