//! The demo's view: on a terminal one block that is redrawn in place, elsewhere a line per second.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use serde::Serialize;
use taskyard::QueueDetails;

use super::{
    board::{Board, Event, Inner, Tone},
    exports,
};
use crate::{
    output::{Colour, Output, Table, plain, shorten},
    values::{self, grouped},
};

/// A narrower terminal gets plain lines.
const COLUMNS_MIN: u16 = 80;
const ROWS_MIN: u16 = 23;
const BAR_CELLS: usize = 30;
/// The number of events in view.
const RECENT_SHOWN: usize = 5;
const SPARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) struct View {
    output: Output,
    url: String,
    live: bool,
    /// Lines of the block that is on the screen.
    drawn: usize,
    /// For plain lines: the last printed second, and the number of printed events.
    second: u64,
    told: usize,
}

impl View {
    pub(super) fn new(output: Output, url: &str) -> View {
        let live = !output.is_json() && io::stdout().is_terminal() && roomy();
        View { output, url: url.to_owned(), live, drawn: 0, second: 0, told: 0 }
    }

    pub(super) fn draw(&mut self, board: &Board, queues: &[QueueDetails]) -> io::Result<()> {
        let inner = board.lock().clone();
        if self.output.is_json() {
            Ok(())
        } else if self.live {
            self.draw_block(&inner, queues, board.elapsed())
        } else {
            self.print_news(&inner, board.elapsed())
        }
    }

    /// The summary, and commands to look further.
    pub(super) fn finish(
        &mut self,
        board: &Board,
        queues: &[QueueDetails],
        keep: bool,
    ) -> io::Result<()> {
        self.draw(board, queues)?;
        let summary = Summary::of(&board.lock(), board.elapsed());
        if self.output.is_json() {
            return self.output.json_line(&summary);
        }
        let mut out = io::stdout().lock();
        if self.live {
            out.write_all(b"\x1b[?25h")?;
        }
        out.write_all(summary.text(self.output, &self.url, keep).as_bytes())?;
        out.flush()
    }

    fn draw_block(
        &mut self,
        inner: &Inner,
        queues: &[QueueDetails],
        elapsed: Duration,
    ) -> io::Result<()> {
        let lines = block(self.output, &self.url, inner, queues, elapsed);
        let mut text = String::new();
        if self.drawn == 0 {
            text += "\x1b[?25l";
        } else {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        for line in &lines {
            let _ = writeln!(text, "\r{line}\x1b[K");
        }
        // Clears the rest of a larger block.
        text += "\x1b[J";
        self.drawn = lines.len();
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn print_news(&mut self, inner: &Inner, elapsed: Duration) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let news = inner.happened.saturating_sub(self.told).min(inner.recent.len());
        for happening in inner.recent.iter().skip(inner.recent.len() - news) {
            writeln!(out, "{}", tell(self.output, happening))?;
        }
        self.told = inner.happened;
        if elapsed.as_secs() > self.second {
            self.second = elapsed.as_secs();
            writeln!(
                out,
                "  {:>5.1}s  enqueued {}, executed {}, retries {}, dead letters {}, {}",
                elapsed.as_secs_f64(),
                inner.enqueued,
                inner.executed,
                inner.retries,
                inner.deaths,
                latency(inner),
            )?;
        }
        out.flush()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.live && self.drawn > 0 {
            // The cursor is shown again, even after an error.
            let _ = io::stdout().lock().write_all(b"\x1b[?25h");
        }
    }
}

pub(super) fn roomy() -> bool {
    rustix::termios::tcgetwinsize(io::stdout())
        .is_ok_and(|size| size.ws_col >= COLUMNS_MIN && size.ws_row >= ROWS_MIN)
}

fn block(
    output: Output,
    url: &str,
    inner: &Inner,
    queues: &[QueueDetails],
    elapsed: Duration,
) -> Vec<String> {
    let mut lines = vec![
        String::new(),
        format!(
            "  {}  a broker and a worker at {url}  {:.1} s",
            output.paint(Colour::Bold, "taskyard demo"),
            elapsed.as_secs_f64()
        ),
        String::new(),
    ];
    lines.extend(queue_table(queues).render(output).lines().map(|line| format!("  {line}")));
    lines.push(String::new());
    lines.push(match &inner.rendering {
        Some((percent, message)) => {
            format!("  render_video  {}  {percent:>3} %  {message}", bar(output, *percent))
        }
        None => "  render_video  waits for the worker".to_owned(),
    });
    lines.push(match inner.flow {
        Some((done, total)) => {
            let percent = done * 100 / total.max(1);
            format!("  photos flow   {}  {done:>3} of {total} nodes", bar(output, percent))
        }
        None => "  photos flow   waits for its turn".to_owned(),
    });
    lines.push(limited_queue(output, queues));
    lines.push(format!(
        "  executed/s    {}  {}",
        output.paint(Colour::Cyan, format!("{:<BAR_CELLS$}", sparks(&inner.per_second))),
        latency(inner)
    ));
    lines.push(String::new());
    let recent = inner.recent.iter().skip(inner.recent.len().saturating_sub(RECENT_SHOWN));
    lines.extend(recent.map(|happening| tell(output, happening)));
    lines
}

/// The limited queue: running and waiting exports.
fn limited_queue(output: Output, queues: &[QueueDetails]) -> String {
    let queue = queues.iter().find(|queue| queue.name == exports::QUEUE);
    let (running, waiting) = queue.map_or((0, 0), |queue| (queue.claimed, queue.ready));
    let limit = u64::from(exports::AT_ONCE);
    let percent = u32::try_from(running * 100 / limit).unwrap_or(u32::MAX);
    format!(
        "  exports       {}  {running} of {limit} at once, {waiting} wait",
        bar(output, percent)
    )
}

fn queue_table(queues: &[QueueDetails]) -> Table {
    let columns =
        ["queue    ", ">ready", ">running", ">scheduled", ">succeeded", ">failures", ">dead"];
    let mut table = Table::new(&columns);
    for queue in queues {
        let dead = if queue.dead > 0 { Colour::Red } else { Colour::None };
        table.row(vec![
            (Colour::Bold, queue.name.clone()),
            plain(grouped(queue.ready)),
            plain(queue.claimed),
            plain(queue.scheduled),
            (Colour::Green, grouped(queue.succeeded_total)),
            plain(queue.failed_total),
            (dead, queue.dead.to_string()),
        ]);
    }
    table
}

fn tell(output: Output, happening: &Event) -> String {
    let colour = match happening.tone {
        Tone::Good => Colour::Green,
        Tone::Bad => Colour::Yellow,
        Tone::Plain => Colour::None,
    };
    format!(
        "  {}  {:<12}  {}",
        output.paint(Colour::Grey, format!("{:>5.1}s", happening.at.as_secs_f64())),
        happening.kind,
        output.paint(colour, shorten(&happening.what, 54))
    )
}

fn bar(output: Output, percent: u32) -> String {
    let full = (percent.min(100) as usize * BAR_CELLS).div_ceil(100);
    let (done, left) = ("█".repeat(full), "░".repeat(BAR_CELLS - full));
    format!("{}{}", output.paint(Colour::Green, done), output.paint(Colour::Grey, left))
}

/// A bar for each of the last seconds, as high as its number of executions.
fn sparks(per_second: &[u64]) -> String {
    let shown = &per_second[per_second.len().saturating_sub(BAR_CELLS)..];
    let most = shown.iter().copied().max().unwrap_or(0).max(1);
    let height = |count: u64| (count * (SPARKS.len() as u64 - 1)).div_ceil(most);
    shown.iter().map(|&count| SPARKS[usize::try_from(height(count)).unwrap_or(0)]).collect()
}

fn latency(inner: &Inner) -> String {
    if inner.latency.is_empty() {
        return "nothing executed yet".to_owned();
    }
    let ms = |quantile: f64| inner.latency.value_at_quantile(quantile) as f64 / 1_000.0;
    format!("latency p50 {:.1} p99 {:.1} ms", ms(0.5), ms(0.99))
}

#[derive(Serialize)]
struct Summary {
    duration_ms: u64,
    enqueued: u64,
    executed: u64,
    retries: u64,
    dead: u64,
    p50_ms: f64,
    p99_ms: f64,
    burst_tasks: u64,
    burst_per_second: u64,
    dead_id: Option<String>,
    flows: u64,
    flow_id: Option<String>,
    scheduled: u64,
    exports_at_once: u32,
}

impl Summary {
    fn of(inner: &Inner, elapsed: Duration) -> Summary {
        let ms = |quantile: f64| inner.latency.value_at_quantile(quantile) as f64 / 1_000.0;
        let (burst_tasks, burst_for) = inner.burst.unwrap_or_default();
        let burst_ms = u64::try_from(burst_for.as_millis()).unwrap_or(u64::MAX).max(1);
        Summary {
            duration_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            enqueued: inner.enqueued,
            executed: inner.executed,
            retries: inner.retries,
            dead: inner.deaths,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            burst_tasks,
            burst_per_second: burst_tasks.saturating_mul(1_000) / burst_ms,
            dead_id: inner.dead.clone(),
            flows: inner.flows,
            flow_id: inner.flow_id.clone(),
            scheduled: inner.scheduled,
            exports_at_once: inner.exporting_most,
        }
    }

    fn text(&self, output: Output, url: &str, keep: bool) -> String {
        let bold = |text: String| output.paint(Colour::Bold, text);
        let executed = bold(format!("{} tasks executed", grouped(self.executed)));
        let dead = self.dead_id.as_deref().unwrap_or("ID");
        let stay = if keep {
            format!("The broker stays at {url} until Ctrl-C. In another terminal:")
        } else {
            "Run `taskyard demo --keep --listen 127.0.0.1:7400`, then in another terminal:"
                .to_owned()
        };
        let (server, http) = if keep {
            (format!(" --server {url}"), url)
        } else {
            (String::new(), "http://127.0.0.1:7400")
        };
        let dead = if keep { dead } else { "ID" };
        let flow = self.flow_id.as_deref().filter(|_| keep).unwrap_or("ID");
        let flows = values::count(self.flows, "flow");
        let runs = values::count(self.scheduled, "run");
        let dead_letters = match self.dead {
            1 => "1 dead letter".to_owned(),
            dead => format!("{dead} dead letters"),
        };
        let burst = match self.burst_tasks {
            0 => String::new(),
            tasks => format!(
                "\n  A burst of {}: {} tasks/s, each on disk before it was acknowledged.",
                grouped(tasks),
                grouped(self.burst_per_second)
            ),
        };
        format!(
            "
  {executed} in {:.1} s, {} failures tried again, {dead_letters}.
  {flows}, {runs} by schedule, at most {} exports at once.
  Enqueue to executed: p50 {:.1} ms, p99 {:.1} ms.{burst}

  {stay}
    taskyard queue list{server}
    taskyard dead list{server}
    taskyard task get {dead}{server}
    taskyard dead retry --queue billing{server}
    taskyard flow status {flow}{server}
    taskyard schedule get prices{server}
    curl -s {http}/v1/queues

  Your own:
    taskyard serve --data ./yard
    taskyard work --exec 'tr a-z A-Z'
    taskyard enqueue shout '{{\"name\": \"Ada\"}}' --wait
",
            self.duration_ms as f64 / 1_000.0,
            self.retries,
            self.exports_at_once,
            self.p50_ms,
            self.p99_ms,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_never_wraps_on_the_narrowest_terminal() {
        let board = Board::new();
        board.executed(Some(0));
        board.lock().flow = Some((9_999, 10_000));
        board.lock().rendering = Some((54, "frame 540 of 1000".to_owned()));
        for _ in 0..9 {
            board.tell("render_video", Tone::Bad, "x".repeat(300));
        }
        let url = "http://127.0.0.1:65535";
        let elapsed = Duration::from_secs(9);
        let lines = block(Output::plain(), url, &board.lock(), &[], elapsed);
        for line in &lines {
            assert!(line.chars().count() < usize::from(COLUMNS_MIN), "{line}");
        }
        // The demo has seven more queues.
        assert!(lines.len() + 7 < usize::from(ROWS_MIN), "{} lines", lines.len());
    }

    #[test]
    fn sparks_are_as_high_as_their_second() {
        assert_eq!(sparks(&[]), "");
        assert_eq!(sparks(&[0, 5, 10]), "▁▅█");
        assert_eq!(sparks(&vec![1; 100]).chars().count(), BAR_CELLS);
    }

    #[test]
    fn bars_are_always_as_long() {
        for percent in [0, 1, 50, 100, 250] {
            assert_eq!(bar(Output::plain(), percent).chars().count(), BAR_CELLS);
        }
    }
}
