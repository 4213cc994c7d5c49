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
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
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
