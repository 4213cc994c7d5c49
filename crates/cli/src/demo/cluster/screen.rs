//! The view of the demo's cluster: on a terminal, lines of events above a block that is redrawn in
//! place. Elsewhere the same lines, and one per second.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use serde::Serialize;
use taskyard::ClusterDetails;

use crate::{
    demo::view::roomy,
    nodes::view::{lags, leads},
    output::{Colour, Output, Table, plain},
    values::grouped,
};

pub(super) struct Screen {
    output: Output,
    live: bool,
    started: Instant,
    /// Lines of the block that is on the screen.
    drawn: usize,
    /// For plain lines: the last second that was printed.
    second: u64,
}

impl Screen {
    pub(super) fn new(output: Output) -> Screen {
        let live = !output.is_json() && io::stdout().is_terminal() && roomy();
        Screen { output, live, started: Instant::now(), drawn: 0, second: 0 }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Prints an event, which stays on the screen.
    pub(super) fn tell(&mut self, kind: &str, colour: Colour, what: &str) -> io::Result<()> {
        let what = self.output.paint(colour, what);
        let line = format!("  {}  {kind:<12}  {what}\n", self.time());
        let text = self.erase() + &line;
        self.print(&text)
    }

    /// Draws the state of the cluster.
    pub(super) fn draw(
        &mut self,
        view: &ClusterDetails,
        killed: Option<u64>,
        status: &str,
    ) -> io::Result<()> {
        if self.live {
            let table = nodes(view, killed).render(self.output);
            let mut text = self.erase();
            let _ = write!(text, "\n  {}  {status}\n\n", self.time());
            for line in table.lines() {
                let _ = writeln!(text, "  {line}");
            }
            self.drawn = table.lines().count() + 3;
            self.print(&text)
        } else if self.elapsed().as_secs() > self.second {
            self.second = self.elapsed().as_secs();
            let line = format!("  {}  {status}\n", self.time());
            self.print(&line)
        } else {
            Ok(())
        }
    }

    /// Prints the summary. With `urls`, the nodes keep running at these addresses.
    pub(super) fn finish(mut self, summary: &Summary, urls: Option<Vec<String>>) -> io::Result<()> {
        if self.output.is_json() {
            let mut line = serde_json::to_string(summary)?;
            line.push('\n');
            return io::stdout().lock().write_all(line.as_bytes());
        }
        let mut text = self.erase() + &summary.text(self.output);
        if let Some(urls) = urls {
            let urls = urls.join(",");
            let _ = write!(
                text,
                "\n  The nodes stay until Ctrl-C. In another terminal:\n    \
                 taskyard cluster status --server {urls}\n    \
                 taskyard queue list --server {urls}\n"
            );
        }
        self.print(&text)
    }

    fn time(&self) -> String {
        self.output.paint(Colour::Grey, format!("{:>5.1}s", self.elapsed().as_secs_f64()))
    }

    /// The codes that clear the block.
    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\r\x1b[J"),
        }
    }

    /// If the reader has gone, this returns an error like any other, because the nodes must be
    /// stopped first.
    fn print(&self, text: &str) -> io::Result<()> {
        if self.output.is_json() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

fn nodes(view: &ClusterDetails, killed: Option<u64>) -> Table {
    let mut table = Table::new(&[">node", "address", "state  ", ">leads", ">lacks"]);
    for node in &view.nodes {
        let state = match node.state.as_str() {
            _ if killed == Some(node.id) => (Colour::Red, "killed".to_owned()),
            "up" => (Colour::Green, "up".to_owned()),
            state => (Colour::Yellow, state.to_owned()),
        };
        let known: Vec<u64> = lags(view, node.id).filter_map(|(_, lag)| lag).collect();
        let lacks = if known.is_empty() { "?".to_owned() } else { grouped(known.iter().sum()) };
        table.row(vec![
            (Colour::Bold, node.id.to_string()),
            plain(&node.address),
            state,
            plain(leads(view, node.id)),
            plain(lacks),
        ]);
    }
    table
}

/// The results of the demo. Times are in milliseconds.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) duration_ms: u64,
    pub(super) nodes: usize,
    pub(super) shards: u16,
    /// Confirmed enqueues.
    pub(super) confirmed: u64,
    /// Tasks that ran, each counted once.
    pub(super) executed: u64,
    /// Confirmed enqueues whose task was never executed.
    pub(super) lost: u64,
    /// Enqueues that became more than one task.
    pub(super) made_twice: u64,
    /// Tasks that ran more than once.
    pub(super) executed_twice: u64,
    /// Tasks that had not ended when the demo gave up waiting: they may run, or run again.
    pub(super) open: u64,
    /// Enqueues with an unknown outcome.
    pub(super) unconfirmed: u64,
    pub(super) killed_node: u64,
    /// The number of shards that the killed node led.
    pub(super) killed_led: usize,
    /// The observed time from the kill until other nodes led all shards.
    pub(super) led_again_ms: u64,
    /// The longest time between two confirmed enqueues in one queue, from the kill on.
    pub(super) longest_pause_ms: u64,
    /// The longest such time before the kill.
    pub(super) longest_pause_before_ms: u64,
    /// The longest time without any confirmed enqueue, from the kill on.
    pub(super) longest_pause_all_ms: u64,
    /// Entries written to its shards while the node was away.
    pub(super) missed_entries: u64,
    /// The time from the node's restart until it had caught up.
    pub(super) caught_up_ms: u64,
}

impl Summary {
    fn text(&self, output: Output) -> String {
        let lost = match self.lost {
            0 => output.paint(Colour::Green, "0 lost"),
            lost => output.paint(Colour::Red, format!("{} lost", grouped(lost))),
        };
        let open = match self.open {
            0 => String::new(),
            some => format!("\n  {} had not ended when the demo did.", grouped(some)),
        };
        let unconfirmed = match self.unconfirmed {
            0 => String::new(),
            some => format!("\n  {} enqueues got no answer in time.", grouped(some)),
        };
        let confirmed = format!("{} tasks confirmed", grouped(self.confirmed));
        format!(
            "
  {} in {:.1} s, {} executed, {lost}, {} executed twice.{open}{unconfirmed}
  Node {} was killed with {} of {} shards to lead; others led them after {} ms.
  Longest pause between two enqueues of a queue: {} ms ({} ms before the kill);
  longest time without any enqueue: {} ms.
  The node missed {} entries while it was away, and had them {} ms after its start.
",
            output.paint(Colour::Bold, confirmed),
            self.duration_ms as f64 / 1_000.0,
            grouped(self.executed),
            grouped(self.executed_twice),
            self.killed_node,
            self.killed_led,
            self.shards,
            grouped(self.led_again_ms),
            grouped(self.longest_pause_ms),
            grouped(self.longest_pause_before_ms),
            grouped(self.longest_pause_all_ms),
            grouped(self.missed_entries),
            grouped(self.caught_up_ms),
        )
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
