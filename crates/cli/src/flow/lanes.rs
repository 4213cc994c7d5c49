//! Lines between the rows of a picture, from top to bottom.
//!
//! A lane leads to one row, and the row's parents join the lane. So each row has one lane, and the
//! picture is as wide as the number of rows whose lanes have begun.

use super::fold::{Row, order};

/// A wider picture is harder to read than a list.
const LANES_MAX: usize = 24;

/// One line of a picture: the lanes, and perhaps a row on one of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The line without the row's own symbol, whose place is `at`, in characters.
    pub(super) lanes: String,
    pub(super) row: Option<(usize, usize)>,
}

const UP: u8 = 1;
const DOWN: u8 = 2;
const LEFT: u8 = 4;
const RIGHT: u8 = 8;

/// Draws the rows; `None` if there are too many side by side.
pub(super) fn draw(rows: &[Row]) -> Option<Vec<Line>> {
    let parents: Vec<&[usize]> = rows.iter().map(|row| &*row.parents).collect();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
    for (index, row) in rows.iter().enumerate() {
        row.parents.iter().for_each(|&parent| children[parent].push(index));
    }
    let mut lanes: Vec<Option<usize>> = Vec::new();
    let mut lines = Vec::new();
    for row in order(&parents) {
        let lane = lanes.iter().position(|&leads_to| leads_to == Some(row));
        let lane = lane.unwrap_or_else(|| free(&mut lanes, 0));
        lanes[lane] = Some(row);
        lines.push(Line { lanes: text(&lanes, |_| UP | DOWN, &[]), row: Some((row, lane * 2)) });
        lanes[lane] = None;
        lines.extend(branch(&mut lanes, lane, &children[row]));
        while lanes.last() == Some(&None) {
            lanes.pop();
        }
        if lanes.len() > LANES_MAX {
            return None;
        }
    }
    Some(lines)
}

/// The first free lane from `from` on.
fn free(lanes: &mut Vec<Option<usize>>, from: usize) -> usize {
    let found = (from..lanes.len()).find(|&lane| lanes[lane].is_none());
    found.unwrap_or_else(|| {
        lanes.push(None);
        lanes.len() - 1
    })
}

/// Connects a row on `lane` to its children, and draws a line for it unless a straight lane is
/// enough.
fn branch(lanes: &mut Vec<Option<usize>>, lane: usize, children: &[usize]) -> Option<Line> {
    let before = lanes.clone();
    let mut targets = Vec::new();
    for &child in children {
        match lanes.iter().position(|&leads_to| leads_to == Some(child)) {
            Some(known) => targets.push(known),
            None if lanes[lane].is_none() => lanes[lane] = Some(child),
            None => {
                let fresh = free(lanes, lane);
                lanes[fresh] = Some(child);
                targets.push(fresh);
            }
        }
    }
    let (&first, &last) = (targets.iter().min()?, targets.iter().max()?);
    let (first, last) = (first.min(lane), last.max(lane));
    let bits = |at: usize| {
        let up = if at == lane || before.get(at).is_some_and(Option::is_some) { UP } else { 0 };
        let down = if lanes[at].is_some() { DOWN } else { 0 };
        let met = at == lane || targets.contains(&at);
        let left = if at > first && at <= last && met { LEFT } else { 0 };
        let right = if at >= first && at < last && met { RIGHT } else { 0 };
        // A crossed lane is drawn over the crossing line.
        up | down | left | right
    };
    let crossed: Vec<usize> = (first..last).collect();
    Some(Line { lanes: text(lanes, bits, &crossed), row: None })
}

/// The characters of all lanes; from the lanes in `joined` a line goes to the right.
fn text(lanes: &[Option<usize>], bits: impl Fn(usize) -> u8, joined: &[usize]) -> String {
    let mut text = String::new();
    for (at, leads_to) in lanes.iter().enumerate() {
        let between = joined.contains(&at) || (at > 0 && joined.contains(&(at - 1)));
        let bits = bits(at);
        text.push(match bits & (UP | DOWN | LEFT | RIGHT) {
            0 if between => '─',
            0 => ' ',
            _ if leads_to.is_none() && bits == UP | DOWN => ' ',
            bits => corner(bits),
        });
        text.push(if joined.contains(&at) { '─' } else { ' ' });
    }
    text.trim_end().to_owned()
}

fn corner(bits: u8) -> char {
    const UP_DOWN: u8 = UP | DOWN;
    const LEFT_RIGHT: u8 = LEFT | RIGHT;
    match (bits & UP_DOWN, bits & LEFT_RIGHT) {
        (UP_DOWN, RIGHT) => '├',
        (UP_DOWN, LEFT) => '┤',
        (UP_DOWN, LEFT_RIGHT) => '┼',
        (UP, RIGHT) => '╰',
        (UP, LEFT) => '╯',
        (UP, LEFT_RIGHT) => '┴',
        (DOWN, RIGHT) => '╭',
        (DOWN, LEFT) => '╮',
        (DOWN, LEFT_RIGHT) => '┬',
        (0, _) => '─',
        _ => '│',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws rows given by their parents; each is shown as its number.
    fn drawn(parents: &[&[usize]]) -> String {
        let row = |parents: &&[usize]| Row { members: Vec::new(), parents: parents.to_vec() };
        let rows: Vec<Row> = parents.iter().map(row).collect();
        let lines = draw(&rows).expect("narrow enough");
        let line = |Line { lanes, row }| match row {
            None => lanes,
            Some((row, at)) => {
                let mut cells: Vec<char> = lanes.chars().collect();
                cells[at] = char::from_digit(row as u32, 36).unwrap();
                cells.into_iter().collect()
            }
        };
        lines.into_iter().map(line).collect::<Vec<String>>().join("\n")
    }

    #[test]
    fn a_chain_is_straight() {
        assert_eq!(drawn(&[&[], &[0], &[1]]), "0\n1\n2");
    }

    #[test]
    fn a_diamond_opens_and_closes() {
        assert_eq!(drawn(&[&[], &[0], &[0], &[1, 2]]), "0\n├─╮\n1 │\n│ 2\n├─╯\n3");
    }

    #[test]
    fn roots_side_by_side_stand_below_each_other() {
        assert_eq!(drawn(&[&[], &[], &[]]), "0\n1\n2");
        // Two rows with one child.
        assert_eq!(drawn(&[&[], &[], &[0, 1]]), "0\n│ 1\n├─╯\n2");
    }

    #[test]
    fn a_fan_has_one_lane_for_each_branch() {
        let fan = drawn(&[&[], &[0], &[0], &[0], &[1, 2, 3]]);
        assert_eq!(fan, "0\n├─┬─╮\n1 │ │\n│ 2 │\n├─╯ │\n│   3\n├───╯\n4");
    }

    #[test]
    fn lanes_that_are_only_crossed_go_on() {
        // 1 and 2 come after 0; 3 after 1 and 4; 4 comes after 0 and is to the right of 2's lane.
        let crossed = drawn(&[&[], &[0], &[0], &[0], &[1, 3], &[2]]);
        assert_eq!(crossed, "0\n├─┬─╮\n1 │ │\n│ 2 │\n│ 5 │\n│   3\n├───╯\n4");
        let crossed = drawn(&[&[], &[0], &[0], &[0], &[3, 1], &[1, 2]]);
        assert!(crossed.lines().all(|line| line.chars().count() <= 7), "{crossed}");
    }

    #[test]
    fn a_picture_that_is_too_wide_is_not_drawn() {
        let mut parents: Vec<Vec<usize>> = vec![Vec::new()];
        parents.extend((1..=LANES_MAX + 1).map(|_| vec![0]));
        let rows: Vec<Row> =
            parents.into_iter().map(|parents| Row { members: Vec::new(), parents }).collect();
        assert!(draw(&rows).is_none());
    }
}
