//! The types of HTTP/JSON: requests and answers.
//!
//! Unknown fields are refused, so that a misspelled option does not silently become a default.
//! Payloads pass through verbatim: neither the order of keys nor the digits of numbers change. The
//! OpenAPI document is made from these types.

mod bytes;
mod cluster;
mod flow;
mod lists;
mod overview;
mod reply;
mod request;
mod retry;
mod scalar;
mod schedule;
mod select;
mod settings;
mod unique;
mod whole;

pub use bytes::check_json;
pub(super) use bytes::{Plain, is_json};
pub(super) use cluster::*;
pub(super) use flow::*;
pub(super) use lists::Batch;
pub(super) use overview::*;
pub(super) use reply::*;
pub(super) use request::*;
pub(super) use scalar::{Moment, MomentSince1970, Ms};
pub(super) use schedule::*;
pub(super) use select::*;
pub(super) use settings::*;

use super::problem::Problem;
use serde::Deserialize;
use serde_json::error::Category;

/// Fields that have a name already and no effect yet. They are refused, because a silent default
/// would be worse.
const NOT_YET: [&str; 1] = ["webhook_url"];

/// The library's names for expected values, and the names that people use.
const EXPECTED: [(&str, &str); 6] = [
    ("u64", "a whole number, 0 or more"),
    ("u32", "a whole number, 0 to 4294967295"),
    ("f64", "a number"),
    ("a sequence", "an array"),
    ("a map", "an object"),
    ("a borrowed string", "a string"),
];

/// Parses a JSON body. The problem names the field, the value and the place.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Problem::invalid(format!("the body is not UTF-8: {error}")))?;
    lists::begin();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let reader = whole::Whole(&mut deserializer);
    let value = serde_path_to_error::deserialize(reader).map_err(|error| {
        let path = error.path().to_string();
        Problem::invalid(described(&path, error.inner()))
    })?;
    deserializer.end().map_err(|error| Problem::invalid(described(".", &error)))?;
    Ok(value)
}

/// What is wrong with a body, in the style of all other messages.
fn described(path: &str, error: &serde_json::Error) -> String {
    // The path ends in `?` if not even a key could be read.
    let path = path.trim_end_matches(['?', '.']);
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let place = format!(" at line {line} column {column}");
    let text = text.strip_suffix(&place).unwrap_or(&text);
    let text = match (error.classify(), path) {
        (Category::Data, "") => in_words(text),
        (Category::Data, path) => format!("{path}: {}", in_words(text)),
        (_, "") => format!("the body is not JSON: {text}"),
        (_, path) => format!("{path} is not JSON: {text}"),
    };
    format!("{text} (line {line} column {column})")
}

/// The library's message about a value, without the names of its types.
pub(super) fn in_words(text: &str) -> String {
    if let Some(field) =
        NOT_YET.iter().find(|field| text.starts_with(&format!("unknown field `{field}`")))
    {
        return format!("field `{field}` is not supported yet; leave it out");
    }
    let Some((found, expected)) = text.rsplit_once(", expected ") else { return text.to_owned() };
    let found = found.replace("invalid type: map", "invalid type: object");
    let found = found.replace("invalid type: sequence", "invalid type: array");
    let known = EXPECTED.iter().find(|(library, _)| *library == expected);
    match known {
        Some((_, people)) => format!("{found}, expected {people}"),
        None if expected.starts_with("struct ") => format!("{found}, expected an object"),
        None => format!("{found}, expected {expected}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        #[derive(Debug, Deserialize)]
        struct Read<'a> {
            one: u64,
            many: Vec<i8>,
            maybe: Option<u32>,
            lease: Ms,
            share: f64,
            by_name: std::collections::BTreeMap<String, u16>,
            #[serde(borrow)]
            payload: Plain<'a>,
            queues: Vec<ClaimQueue>,
        }
        let body = r#"{"one": 3.0, "many": [-0.0, -3e0, 1.2e1], "maybe": 4294967295.0,
            "lease": 5000.000, "share": 3, "by_name": {"a": 7.0}, "payload": [3.0, 1e4],
            "queues": ["a", {"name": "b", "weight": 2.0}]}"#;
        let read: Read<'_> = parse(body.as_bytes()).unwrap();
        assert_eq!((read.one, read.many, read.maybe), (3, vec![0, -3, 12], Some(4_294_967_295)));
        assert_eq!((read.lease, read.share, read.by_name["a"]), (Ms(5_000), 3.0, 7));
        assert_eq!(read.payload.bytes(), b"[3.0, 1e4]", "digits stay");
        let ClaimQueue::Weighted(queue) = &read.queues[1] else { panic!("{:?}", read.queues) };
        assert_eq!((queue.name.as_str(), queue.weight), ("b", 2));
        for (number, told) in [
            ("3.5", "invalid type: floating point `3.5`, expected a whole number, 0 or more"),
            ("-3.0", "invalid value: integer `-3`, expected a whole number, 0 or more"),
            // It may have been 9007199254740993.0.
            ("9007199254740992.0", "invalid type: floating point `9007199254740992.0`"),
            ("1e300", "invalid type: floating point `1e"),
        ] {
            let told_of = format!("[0]: {told}");
            let problem = parse::<Vec<u64>>(format!("[{number}]").as_bytes()).unwrap_err();
            let detail = format!("{problem:?}");
            assert!(detail.contains(&told_of), "{number}: {detail}");
        }
    }

    #[test]
    fn messages_name_the_place_and_no_internal_type() {
        for (body, described) in [
            ("[bad", "[0] is not JSON: expected value (line 1 column 2)"),
            (r#"[{"type": "t"}, {bad"#, "[1] is not JSON: key must be a string (line 1 column 18)"),
            ("5", "invalid type: integer `5`, expected an array (line 1 column 1)"),
            ("{}", "invalid type: object, expected an array (line 1 column 0)"),
            ("[5]", "[0]: invalid type: integer `5`, expected an object (line 1 column 2)"),
            (
                r#"[{"type": "t", "priority": -1}]"#,
                "[0].priority: invalid value: integer `-1`, expected a whole number, 0 or more (line 1 column 29)",
            ),
            (
                r#"[{"type": "t", "webhook_url": "x"}]"#,
                "[0].webhook_url: field `webhook_url` is not supported yet; leave it out (line 1 column 28)",
            ),
        ] {
            let problem = parse::<Vec<NewTask<'_>>>(body.as_bytes()).unwrap_err();
            assert_eq!(problem, Problem::invalid(described), "{body}");
        }
    }
}
