//! The words of HTTP/JSON: what requests may hold and what answers hold.
//!
//! Unknown fields are refused, so that a misspelled option is not a silent default. Payloads pass
//! through verbatim: neither the order of keys nor the digits of a number change. The OpenAPI
//! document is made from these types.

mod bytes;
mod overview;
mod reply;
mod request;
mod scalar;

pub(super) use bytes::is_json;
pub(super) use overview::*;
pub(super) use reply::*;
pub(super) use request::*;
pub(super) use scalar::{Moment, Ms};

use super::problem::Problem;
use serde::Deserialize;

/// Reads a JSON body; the problem names the field, the value and the place.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Problem::invalid(format!("the body is not UTF-8: {error}")))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { String::new() } else { format!("{path}: ") };
        Problem::invalid(format!("{place}{}", error.inner()))
    })?;
    deserializer.end().map_err(|error| Problem::invalid(error.to_string()))?;
    Ok(value)
}
