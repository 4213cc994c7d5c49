//! What a person or a script sees: tables and JSON on stdout, talk and progress on stderr.
//!
//! Colours and progress bars only where somebody looks: on a terminal, and never with `NO_COLOR`.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use taskyard::{TaskState, Timestamp};

use crate::values;

/// How answers are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    colours: bool,
}

/// A way to set text apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Green,
    Red,
    Yellow,
    Blue,
    Cyan,
    Grey,
    Bold,
    None,
}

impl Output {
    pub(crate) fn new(json: bool) -> Output {
        Output { json, colours: !json && may_colour() && io::stdout().is_terminal() }
    }

    /// Text without colours.
    #[cfg(test)]
    pub(crate) fn plain() -> Output {
        Output { json: false, colours: false }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Writes `value` as one line of JSON, or else what `text` makes of it.
    pub(crate) fn value<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        if self.json { self.json_line(value) } else { print(text(value).trim_end_matches('\n')) }
    }

    /// Writes text to stdout.
    pub(crate) fn line(self, text: &str) -> io::Result<()> {
        print(text.trim_end_matches('\n'))
    }

    /// Writes one line of JSON.
    pub(crate) fn json_line(self, value: &impl Serialize) -> io::Result<()> {
        print(&serde_json::to_string(value)?)
    }

    /// What was done: data for a script, talk for a person.
    pub(crate) fn done(self, value: &impl Serialize, text: impl Display) -> io::Result<()> {
        self.say(text);
        if self.json { self.json_line(value) } else { Ok(()) }
    }

    /// Something for the person at the keyboard, not for a script.
    pub(crate) fn say(self, text: impl Display) {
        if !self.json {
            eprintln!("{text}");
        }
    }

    pub(crate) fn paint(self, colour: Colour, text: impl Display) -> String {
        paint(self.colours, colour, text)
    }

    pub(crate) fn state(self, state: TaskState) -> String {
        self.paint(state_colour(state), state)
    }
}

/// One line to stdout. A reader that has gone (`| head`) ends the command quietly.
fn print(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(line.as_bytes()).and_then(|()| stdout.write_all(b"\n")) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written,
    }
}

/// Whether the environment allows colours at all.
pub(crate) fn may_colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

pub(crate) fn paint(colours: bool, colour: Colour, text: impl Display) -> String {
    let code = match colour {
        Colour::Green => "32",
        Colour::Red => "31",
        Colour::Yellow => "33",
        Colour::Blue => "34",
        Colour::Cyan => "36",
        Colour::Grey => "2",
        Colour::Bold => "1",
        Colour::None => return text.to_string(),
    };
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
}

pub(crate) fn state_colour(state: TaskState) -> Colour {
    match state {
        TaskState::Succeeded => Colour::Green,
        TaskState::Dead | TaskState::Failed => Colour::Red,
        TaskState::Claimed => Colour::Cyan,
        TaskState::Scheduled | TaskState::Blocked => Colour::Blue,
        TaskState::Cancelled | TaskState::Expired => Colour::Yellow,
        _ => Colour::None,
    }
}

/// A table with a header, columns as wide as their widest cell, numbers to the right.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

struct Column {
    name: &'static str,
    right: bool,
}

struct Cell {
    text: String,
    colour: Colour,
}

impl Table {
    /// Column names; those that start with `>` are set to the right.
    pub(crate) fn new(columns: &[&'static str]) -> Table {
        let column = |name: &&'static str| Column {
            name: name.trim_start_matches('>'),
            right: name.starts_with('>'),
        };
        Table { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row: each cell a text, or a colour and a text.
    pub(crate) fn row(&mut self, cells: Vec<(Colour, String)>) {
        // One row is one line, whatever a message holds.
        let cell = |(colour, text): (Colour, String)| Cell {
            text: text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
            colour,
        };
        self.rows.push(cells.into_iter().map(cell).collect());
    }

    pub(crate) fn render(&self, output: Output) -> String {
        let width = |index: usize| {
            let cells = self.rows.iter().map(|row| row[index].text.chars().count());
            cells.chain([self.columns[index].name.len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let header: Vec<Cell> = self
            .columns
            .iter()
            .map(|column| Cell { text: column.name.to_uppercase(), colour: Colour::Grey })
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, column), width) in row.iter().zip(&self.columns).zip(&widths) {
                let pad = " ".repeat(width - cell.text.chars().count());
                let painted = output.paint(cell.colour, &cell.text);
                let (before, after) = if column.right { (&*pad, "") } else { ("", &*pad) };
                line += &format!("{before}{painted}{after}  ");
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// A cell without a colour.
pub(crate) fn plain(text: impl Display) -> (Colour, String) {
    (Colour::None, text.to_string())
}

/// Cuts a text to a length that fits a table.
pub(crate) fn shorten(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// How long ago, or how soon, seen from `now`.
pub(crate) fn relative(moment: Timestamp, now: Timestamp) -> String {
    if moment.as_millis() > now.as_millis() {
        format!("in {}", values::show_roughly(moment.since(now)))
    } else {
        format!("{} ago", values::show_roughly(now.since(moment)))
    }
}

/// This machine's time; only for showing how long ago something was.
pub(crate) fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// A bar for work whose size is known, a spinner for other work; nothing where nobody looks.
pub(crate) fn progress(output: Output, total: Option<u64>, unit: &str) -> ProgressBar {
    if output.is_json() || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    let counts = match (unit, total) {
        ("bytes", Some(_)) => "{bytes}/{total_bytes} {bytes_per_sec}",
        ("bytes", None) => "{bytes} {bytes_per_sec}",
        (_, Some(_)) => "{human_pos}/{human_len} {per_sec}",
        (_, None) => "{human_pos} {per_sec}",
    };
    let colours = may_colour();
    let template = match (total, colours) {
        (Some(_), true) => format!("{{bar:30.green/dim}} {counts} {{eta}} left {{msg}}"),
        (Some(_), false) => format!("{{bar:30}} {counts} {{eta}} left {{msg}}"),
        (None, _) => format!("{{spinner}} {counts} {unit} {{msg}}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(&template).unwrap_or(ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_one_line_per_row() {
        let mut table = Table::new(&["queue", ">ready", "note"]);
        table.row(vec![plain("mail"), plain(12), plain("two\nlines")]);
        table.row(vec![plain("größe"), plain(3), plain("")]);
        assert_eq!(
            table.render(Output::plain()),
            "QUEUE  READY  NOTE\n\
             mail      12  two lines\n\
             größe      3\n"
        );
    }

    #[test]
    fn colours_do_not_move_columns() {
        let mut table = Table::new(&["a", "b"]);
        table.row(vec![(Colour::Red, "x".into()), plain("y")]);
        let coloured = table.render(Output { json: false, colours: true });
        assert!(coloured.contains("\x1b[31mx\x1b[0m  y"), "{coloured:?}");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(shorten("äöü", 3), "äöü");
        assert_eq!(shorten("äöüß", 3), "äö…");
    }

    #[test]
    fn moments_are_shown_relative_to_now() {
        let now = Timestamp::from_millis(100_000);
        assert_eq!(relative(Timestamp::from_millis(95_000), now), "5.0s ago");
        assert_eq!(relative(Timestamp::from_millis(220_000), now), "in 2m");
    }
}
