//! The picture of a flow in the terminal: a line for each node, or for many similar nodes, and
//! connections between them.

use std::collections::BTreeMap;

use taskyard::{
    TaskState,
    flow::{FlowDetails, FlowState},
};

use super::{
    fold::{self, Item, Row},
    lanes,
};
use crate::{
    output::{Colour, Output, now, shorten, state_colour},
    values,
};

/// Longer names are cut.
const NAME_CHARS_MAX: usize = 48;
const ERROR_CHARS_MAX: usize = 80;
const RESULT_CHARS_MAX: usize = 400;
/// The number of results below the picture.
const RESULTS_MAX: usize = 10;
/// The number of parents that a list shows.
const PARENTS_MAX: usize = 3;

/// A flow as text: a summary line, its picture, and its results.
pub(super) fn show(flow: &FlowDetails, output: Output, all: bool) -> String {
    let items = fold::items(flow);
    let rows = if all { fold::unfolded(&items) } else { fold::folded(&items) };
    let mut lines = vec![headline(flow, output), String::new()];
    lines.extend(picture(&items, &rows, output));
    let results = results(flow);
    if !results.is_empty() {
        lines.push(String::new());
        lines.extend(results);
    }
    lines.join("\n")
}

pub(super) fn flow_colour(state: FlowState) -> Colour {
    match state {
        FlowState::Succeeded => Colour::Green,
        FlowState::Failed => Colour::Red,
        FlowState::Cancelled => Colour::Yellow,
        FlowState::Running => Colour::Cyan,
        _ => Colour::None,
    }
}

/// The counts of finished and failed nodes.
pub(super) fn counts(flow: &FlowDetails) -> String {
    let mut text = format!("{} of {} done", flow.nodes_done, flow.nodes_total);
    if flow.nodes_failed > 0 {
        text += &format!(", {} failed", flow.nodes_failed);
    }
    text
}

fn headline(flow: &FlowDetails, output: Output) -> String {
    let name = if flow.name.is_empty() { "flow" } else { &flow.name };
    let name = output.paint(Colour::Bold, one_line(name, NAME_CHARS_MAX));
    let state = output.paint(flow_colour(flow.state), flow.state);
    let cancel = match flow.cancel_requested && !flow.state.is_finished() {
        true => ", being cancelled",
        false => "",
    };
    let took = match flow.ended_at {
        Some(ended_at) => {
            format!("after {}", values::show_roughly(ended_at.since(flow.created_at)))
        }
        None => format!("for {}", values::show_roughly(now().since(flow.created_at))),
    };
    let counts = counts(flow);
    format!("{name}  {state}{cancel} {took}, {counts}  {}", output.paint(Colour::Grey, &flow.id))
}

fn picture(items: &[Item], rows: &[Row], output: Output) -> Vec<String> {
    let texts: Vec<RowText> = rows.iter().map(|row| RowText::of(items, row, output)).collect();
    let name_width = texts.iter().map(|text| text.name.chars().count()).max().unwrap_or(0);
    let word_width = texts.iter().map(|text| text.word_width).max().unwrap_or(0);
    let Some(lines) = lanes::draw(rows) else {
        return list(rows, &texts, name_width, word_width, output);
    };
    let lanes_width = lines.iter().map(|line| line.lanes.chars().count()).max().unwrap_or(0);
    let draw = |line: lanes::Line| {
        let Some((row, at)) = line.row else { return line.lanes };
        let pad = " ".repeat(lanes_width - line.lanes.chars().count());
        let before: String = line.lanes.chars().take(at).collect();
        let after: String = line.lanes.chars().skip(at + 1).collect();
        let text = &texts[row];
        let symbol = output.paint(text.colour, text.symbol);
        format!("{before}{symbol}{after}{pad}  {}", text.line(name_width, word_width))
    };
    lines.into_iter().map(draw).collect()
}

/// A list instead of a picture that is too wide: each row names its parents.
fn list(
    rows: &[Row],
    texts: &[RowText],
    name_width: usize,
    word_width: usize,
    output: Output,
) -> Vec<String> {
    let parents: Vec<&[usize]> = rows.iter().map(|row| &*row.parents).collect();
    let line = |row: usize| {
        let text = &texts[row];
        let shown: Vec<&str> =
            parents[row].iter().take(PARENTS_MAX).map(|&parent| &*texts[parent].name).collect();
        let more = parents[row].len().saturating_sub(PARENTS_MAX);
        let after = match (shown.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!("  after {}", shown.join(", ")),
            (false, more) => format!("  after {} and {more} more", shown.join(", ")),
        };
        let symbol = output.paint(text.colour, text.symbol);
        let after = output.paint(Colour::Grey, after);
        format!("{symbol}  {}{after}", text.line(name_width, word_width))
    };
    fold::order(&parents).into_iter().map(line).collect()
}

/// The text of a row.
struct RowText {
    symbol: char,
    colour: Colour,
    name: String,
    /// The state, coloured.
    word: String,
    /// The width of `word`, if the text after it is aligned.
    word_width: usize,
    /// The type, and the error.
    note: String,
}

impl RowText {
    fn of(items: &[Item], row: &Row, output: Output) -> RowText {
        match &*row.members {
            [only] => RowText::of_one(&items[*only], output),
            members => RowText::of_many(items, members, output),
        }
    }

    fn of_one(item: &Item, output: Output) -> RowText {
        let kind = if item.kind == item.name { "" } else { &*item.kind };
        let mut notes = vec![output.paint(Colour::Grey, kind)];
        if item.added_open > 0 {
            notes.push(format!(
                "waits for {} added tasks",
                values::count(item.added_open.into(), "task")
            ));
        }
        notes.extend(item.error.as_deref().map(|error| one_line(error, ERROR_CHARS_MAX)));
        notes.retain(|note| !note.is_empty());
        RowText {
            symbol: symbol(item.state),
            colour: state_colour(item.state),
            name: one_line(&item.name, NAME_CHARS_MAX),
            word: output.state(item.state),
            word_width: item.state.as_str().len(),
            note: notes.join("  "),
        }
    }

    fn of_many(items: &[Item], members: &[usize], output: Output) -> RowText {
        let mut counts: BTreeMap<usize, (TaskState, u64)> = BTreeMap::new();
        for &member in members {
            let state = items[member].state;
            counts.entry(urgency(state)).or_insert((state, 0)).1 += 1;
        }
        let words = counts.values().map(|(state, count)| {
            output.paint(state_colour(*state), format!("{} {state}", values::grouped(*count)))
        });
        let words = words.collect::<Vec<_>>().join(", ");
        // The most urgent state represents all.
        let (state, _) = counts.values().next().copied().unwrap_or((TaskState::Unknown, 0));
        let error = members.iter().find_map(|&member| {
            let error = items[member].error.as_deref()?;
            let text = format!("{}: {error}", items[member].name);
            Some(one_line(&text, ERROR_CHARS_MAX))
        });
        let names = members.iter().map(|&member| items[member].name.as_str());
        let name = format!("{} × {}", values::grouped(members.len() as u64), shared_name(names));
        RowText {
            symbol: symbol(state),
            colour: state_colour(state),
            name: one_line(&name, NAME_CHARS_MAX),
            word: words,
            word_width: 0,
            note: error.unwrap_or_default(),
        }
    }

    fn line(&self, name_width: usize, word_width: usize) -> String {
        let name_pad = " ".repeat(name_width - self.name.chars().count());
        let word_pad = " "
            .repeat(word_width.saturating_sub(self.word_width) * usize::from(self.word_width > 0));
        let line = format!("{}{name_pad}  {}{word_pad}  {}", self.name, self.word, self.note);
        line.trim_end().to_owned()
    }
}

fn symbol(state: TaskState) -> char {
    match state {
        TaskState::Succeeded => '✔',
        TaskState::Claimed => '▶',
        TaskState::Ready => '●',
        TaskState::Scheduled => '◷',
        TaskState::Blocked => '○',
        TaskState::Dead | TaskState::Failed => '✖',
        TaskState::Cancelled | TaskState::Expired => '⊘',
        _ => '?',
    }
}

/// The order of states, the most interesting first.
fn urgency(state: TaskState) -> usize {
    const ORDER: [TaskState; 9] = [
        TaskState::Dead,
        TaskState::Failed,
        TaskState::Expired,
        TaskState::Cancelled,
        TaskState::Claimed,
        TaskState::Ready,
        TaskState::Scheduled,
        TaskState::Blocked,
        TaskState::Succeeded,
    ];
    ORDER.iter().position(|known| *known == state).unwrap_or(ORDER.len())
}

/// The common prefix of names: `part-*` for part-1, part-2 and so on.
fn shared_name<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    let first = names.next().unwrap_or_default();
    let shared = names.fold(first, |shared, name| {
        let same = shared.char_indices().zip(name.chars()).find(|((_, a), b)| a != b);
        let end = same.map_or(shared.len().min(name.len()), |((at, _), _)| at);
        &shared[..end]
    });
    format!("{shared}*")
}

/// The results of the last nodes.
fn results(flow: &FlowDetails) -> Vec<String> {
    let show = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => one_line(text, RESULT_CHARS_MAX),
        Err(_) => format!("{} of bytes; see --json", values::show_size(bytes.len() as u64)),
    };
    let shown = flow.results.iter().take(RESULTS_MAX);
    let mut lines: Vec<String> =
        shown.map(|(name, bytes)| format!("{name} returned {}", show(bytes))).collect();
    let more = flow.results.len().saturating_sub(RESULTS_MAX);
    if more > 0 {
        lines.push(format!(
            "and {} more results; see --json",
            values::count(more as u64, "more node")
        ));
    }
    if flow.results_omitted {
        lines.push(
            "some results are too large to be shown here; see taskyard task result".to_owned(),
        );
    }
    lines
}

/// Cuts a text to a length, and replaces line ends.
fn one_line(text: &str, chars_max: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    shorten(&clean, chars_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, kind: &str, state: TaskState, parents: &[usize]) -> Item {
        let error = (state == TaskState::Dead).then(|| "io: no\nspace".to_owned());
        Item {
            name: name.to_owned(),
            kind: kind.to_owned(),
            queue: String::new(),
            state,
            added_open: 0,
            error,
            parents: parents.to_vec(),
        }
    }

    #[test]
    fn a_diamond_with_a_dead_node() {
        let items = [
            item("fetch", "http_get", TaskState::Succeeded, &[]),
            item("small", "resize", TaskState::Claimed, &[0]),
            item("big", "resize", TaskState::Dead, &[0]),
            item("publish", "publish", TaskState::Failed, &[1, 2]),
        ];
        let lines = picture(&items, &fold::folded(&items), Output::plain());
        assert_eq!(
            lines,
            [
                "✔    fetch    succeeded  http_get",
                "├─╮",
                "▶ │  small    claimed    resize",
                "│ ✖  big      dead       resize  io: no space",
                "├─╯",
                "✖    publish  failed",
            ]
        );
    }

    #[test]
    fn a_wide_fan_is_one_line_with_counts() {
        let mut items = vec![item("split", "split", TaskState::Succeeded, &[])];
        for number in 1..=1_000 {
            let state = match number {
                1..=640 => TaskState::Succeeded,
                641..=650 => TaskState::Claimed,
                651 => TaskState::Dead,
                _ => TaskState::Ready,
            };
            items.push(item(&format!("part-{number}"), "part", state, &[0]));
        }
        items.push(item("join", "join", TaskState::Blocked, &(1..=1_000).collect::<Vec<_>>()));
        let lines = picture(&items, &fold::folded(&items), Output::plain());
        assert_eq!(
            lines,
            [
                "✔  split           succeeded",
                "✖  1,000 × part-*  1 dead, 10 claimed, 349 ready, 640 succeeded  part-651: io: no \
                 space",
                "○  join            blocked",
            ]
        );
    }

    #[test]
    fn a_flow_that_is_too_wide_to_draw_is_a_list() {
        let mut items = vec![item("start", "start", TaskState::Ready, &[])];
        items.extend((1..=40).map(|n| item(&format!("a{n}"), "a", TaskState::Blocked, &[0])));
        items.push(item("end", "end", TaskState::Blocked, &(1..=40).collect::<Vec<_>>()));
        let lines = picture(&items, &fold::unfolded(&items), Output::plain());
        assert_eq!(lines.len(), 42);
        assert_eq!(lines[0], "●  start  ready");
        assert_eq!(lines[1], "○  a1     blocked  a  after start");
        assert_eq!(lines[41], "○  end    blocked  after a1, a2, a3 and 37 more");
    }

    #[test]
    fn names_are_shown_by_what_they_share() {
        for (names, shared) in [
            (&["part-1", "part-2", "part-10"][..], "part-*"),
            (&["a", "b"], "*"),
            (&["ä1", "ö1"], "*"),
        ] {
            assert_eq!(shared_name(names.iter().copied()), shared);
        }
    }
}
