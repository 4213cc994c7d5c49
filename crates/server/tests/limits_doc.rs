//! `docs/limits.md` mirrors both `limits.rs`: the code is the source, and this test writes the
//! page.
//!
//! `UPDATE=1 cargo test -p taskyard-server --test broker limits_doc` rewrites it.

use std::{fs, path::Path};
use taskyard_machine::limits::{self, Limit};

const INTRODUCTION: &str = "\
# Limits

Everything in Taskyard has a bound, and reaching a bound gives a named answer, never an accident. An
argument outside its bounds is refused with `invalid_argument`, a payload with `payload_too_large`,
a full queue with `queue_full`, and a request for which a node has no time with `unavailable`. Any
other bound that is reached gives `limit_exceeded`; [protocol.md](protocol.md#error-codes) lists the
codes. A refused request changes nothing.

A queue's length has no bound unless its settings give it one (`max_length`). The memory and disk
budgets belong to the node; `taskyard serve --help` names them.

A test writes this page from `crates/machine/src/limits.rs` and `crates/server/src/limits.rs`;
change it there.

## Tasks and queues

| limit | value | why |
|---|---:|---|
";

const OF_A_NODE: &str = "
## A node

The bounds of one node's memory and patience. A client that keeps the node waiting for longer loses
its connection. A request beyond a number waits or is refused.

| limit | value | why |
|---|---:|---|
";

#[test]
fn the_page_mirrors_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    let expected = page();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/limits.md differs from the code; \
         run UPDATE=1 cargo test -p taskyard-server --test broker limits_doc"
    );
}

#[test]
fn values_are_written_for_people() {
    for (value, unit, text) in [
        (9, "priority", "9"),
        (10_000, "tasks", "10,000 tasks"),
        (128, "bytes", "128 bytes"),
        (256 << 10, "bytes", "256 KiB"),
        (16 << 20, "bytes", "16 MiB"),
        (1_500, "ms", "1,500 ms"),
        (30_000, "ms", "30 s"),
        (600_000, "ms", "10 min"),
        (86_400_000, "ms", "24 h"),
        (2_592_000_000, "ms", "30 d"),
    ] {
        assert_eq!(for_people(value, unit), text);
    }
}

fn page() -> String {
    let mut rows: Vec<String> = limits::ALL.iter().map(row).collect();
    let delays = limits::LOSS_DELAYS_MS.map(|ms| for_people(ms, "ms")).join(", ");
    rows.push(format!(
        "| `loss_delays_ms` | {delays} | Waits before a lost task may be claimed again, by how often \
         it was lost before. |\n"
    ));
    let of_a_node: String = taskyard_server::limits::ALL.iter().map(row).collect();
    [INTRODUCTION, &rows.concat(), OF_A_NODE, &of_a_node].concat()
}

fn row(limit: &Limit) -> String {
    let Limit { name, value, unit, reason } = limit;
    let value = for_people(*value, unit);
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("| `{}` | {value} | {reason} |\n", name.to_lowercase())
}

/// In the largest unit that leaves no remainder.
fn for_people(value: u64, unit: &str) -> String {
    let scales: &[(u64, &str)] = match unit {
        "bytes" => &[(1 << 20, "MiB"), (1 << 10, "KiB")],
        "ms" => &[(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")],
        "priority" => return value.to_string(),
        _ => &[],
    };
    // A day reads better as 24 h; an hour and below as 1 of their own unit.
    let whole = |scale: u64| value > scale && value.is_multiple_of(scale);
    let exact = |scale: u64| value == scale && scale < 86_400_000;
    match scales.iter().find(|(scale, _)| whole(*scale) || exact(*scale)) {
        Some((scale, name)) => format!("{} {name}", with_commas(value / scale)),
        None => format!("{} {unit}", with_commas(value)),
    }
}

fn with_commas(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
