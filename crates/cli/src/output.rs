//! Output of commands: tables and JSON on stdout, messages and progress on stderr.
//!
//! Colours and progress bars appear only on a terminal, and never with `NO_COLOR`.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use taskyard::{TaskState, Timestamp};

use crate::values;

/// The form of the output.
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

    /// Writes `value` as one line of JSON, or as the text that `text` makes of it.
    pub(crate) fn value<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        if self.json { self.json_line(value) } else { self.line(&text(value)) }
    }

    /// Writes text for people to stdout.
    pub(crate) fn line(self, text: &str) -> io::Result<()> {
        print(safe(text.trim_end_matches('\n'), self.colours).as_bytes())
    }

    /// Writes data unchanged, and a line end. On a terminal, control characters are escaped.
    pub(crate) fn data(self, data: &[u8]) -> io::Result<()> {
        if io::stdout().is_terminal() {
            let text = String::from_utf8_lossy(data);
            return print(safe(text.trim_end_matches('\n'), false).as_bytes());
        }
        print(data)
    }

    /// Writes one line of JSON.
    pub(crate) fn json_line(self, value: &impl Serialize) -> io::Result<()> {
        print(safe_json(&serde_json::to_string(value)?).as_bytes())
    }

    /// Reports a finished step: data for a script, a message for a person.
    pub(crate) fn done(self, value: &impl Serialize, text: impl Display) -> io::Result<()> {
        self.say(text);
        if self.json { self.json_line(value) } else { Ok(()) }
    }

    /// A message for a person, not for a script.
    pub(crate) fn say(self, text: impl Display) {
        if !self.json {
            eprintln!("{}", safe(&text.to_string(), self.colours));
        }
    }

    /// The reason why a command still waits, also for scripts, whose owners would not learn it
    /// otherwise.
    pub(crate) fn say_waiting(self, text: &str) {
        match self.json {
            true => eprintln!("{}", safe_json(&serde_json::json!({ "waiting": text }).to_string())),
            false => self.say(text),
        }
    }

    /// A line of a description: a name, and a value without colours.
    pub(crate) fn field(self, name: &str, value: &str) -> String {
        self.painted_field(name, &safe(value, false))
    }

    /// Like `field`, with a value that this program has coloured. Further lines of the value stand
    /// below its first line, where no name stands: foreign text cannot pose as a field.
    pub(crate) fn painted_field(self, name: &str, value: &str) -> String {
        let value = indented(value, FIELD_INDENT);
        format!("{}  {value}", self.paint(Colour::Grey, format!("{name:<12}")))
    }

    pub(crate) fn paint(self, colour: Colour, text: impl Display) -> String {
        paint(self.colours, colour, text)
    }

    pub(crate) fn state(self, state: TaskState) -> String {
        self.paint(state_colour(state), state)
    }
}

/// Where the values of a description stand.
const FIELD_INDENT: usize = 14;

/// Text whose lines but the first begin with spaces, so that they are seen to go on.
pub(crate) fn indented(text: &str, spaces: usize) -> Cow<'_, str> {
    match text.contains('\n') {
        true => Cow::Owned(text.replace('\n', &format!("\n{:spaces$}", ""))),
        false => Cow::Borrowed(text),
    }
}

/// Writes one line to stdout. If the reader has gone (`| head`), the command ends without an error.
fn print(line: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(line).and_then(|()| stdout.write_all(b"\n")) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written,
    }
}

/// Whether the environment allows colours at all.
pub(crate) fn may_colour() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// All codes that [`paint`] writes: the end of a colour, and the beginning of each.
const COLOUR_CODES: [&str; 8] =
    ["\x1b[0m", "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[34m", "\x1b[36m", "\x1b[2m", "\x1b[1m"];

pub(crate) fn paint(colours: bool, colour: Colour, text: impl Display) -> String {
    let [end, green, red, yellow, blue, cyan, grey, bold] = COLOUR_CODES;
    let begin = match colour {
        Colour::Green => green,
        Colour::Red => red,
        Colour::Yellow => yellow,
        Colour::Blue => blue,
        Colour::Cyan => cyan,
        Colour::Grey => grey,
        Colour::Bold => bold,
        Colour::None => return text.to_string(),
    };
    if colours { format!("{begin}{text}{end}") } else { text.to_string() }
}

/// Text that cannot control a terminal. Text of producers and handlers may have control characters
/// and marks that change the direction of text: they are replaced by their codes. Line ends and
/// tabs stay, and with `colours` also the codes that [`paint`] writes.
pub(crate) fn safe(text: &str, colours: bool) -> Cow<'_, str> {
    if !text.chars().any(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let own = COLOUR_CODES.iter().find(|code| colours && rest.starts_with(**code));
        let taken = own.map_or(c.len_utf8(), |code| code.len());
        match own {
            None if steers(c) => shown.extend(c.escape_default()),
            _ => shown.push_str(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    Cow::Owned(shown)
}

/// Like [`safe`] for a line of JSON, whose texts have no other control characters.
fn safe_json(json: &str) -> Cow<'_, str> {
    if !json.chars().any(steers) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match steers(c) {
            true => shown += &format!("\\u{:04x}", u32::from(c)),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Whether a character controls a terminal; line ends of ASCII and tabs do not count.
fn steers(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let ends_line = matches!(c, '\u{2028}' | '\u{2029}');
    turns || ends_line || (c.is_control() && c != '\n' && c != '\t')
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

/// A table with a header. Columns are as wide as their widest cell, and numbers are on the right.
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
    /// Names of the columns; `>` at the start of a name aligns the column to the right.
    pub(crate) fn new(columns: &[&'static str]) -> Table {
        let column = |name: &&'static str| Column {
            name: name.trim_start_matches('>'),
            right: name.starts_with('>'),
        };
        Table { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row: each cell a text, or a colour and a text.
    pub(crate) fn row(&mut self, cells: Vec<(Colour, String)>) {
        // A row is one line, even if a message has several.
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

/// Cuts a text to the width of a table.
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

/// This machine's time, only to show how long ago something was.
pub(crate) fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// A bar for work of a known size, a spinner for other work, and nothing without a terminal.
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
    fn foreign_text_cannot_control_a_terminal() {
        let hostile = "a\x1b]0;title\x07\u{9b}2J\r\u{202e}b\n\tc\u{2028}d";
        let harmless = "a\\u{1b}]0;title\\u{7}\\u{9b}2J\\r\\u{202e}b\n\tc\\u{2028}d";
        for colours in [false, true] {
            assert_eq!(safe(hostile, colours), harmless);
        }
        let painted = paint(true, Colour::Red, "größe");
        assert_eq!(safe(&painted, true), painted, "colours of our own stay");
        assert_eq!(safe(&painted, false), "\\u{1b}[31mgröße\\u{1b}[0m");
        let field = Output { json: false, colours: true }.field("header", &painted);
        assert_eq!(field, "\x1b[2mheader      \x1b[0m  \\u{1b}[31mgröße\\u{1b}[0m");
        let json = serde_json::to_string(hostile).unwrap();
        let shown = safe_json(&json);
        assert!(!shown.chars().any(steers), "{shown}");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), hostile);
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
