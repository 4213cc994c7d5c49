//! Unique keys in all protocols: given by name, or the hash of chosen fields of the task.
//!
//! This is the only implementation of that hash. `docs/protocol.md` describes it, with examples
//! that a test here computes, so that a program in any language can compute the key itself.
//! `chosen.rs` reads the payload.

mod chosen;

use self::chosen::{Paths, canonical, text, write_object};
use crate::{
    Error,
    limits::{UNIQUE_FIELD_BYTES_MAX, UNIQUE_FIELDS_MAX},
};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::{borrow::Cow, collections::BTreeMap};
use taskyard_machine::{Body, OnConflict, Unique, UniqueUntil};

/// The digits of the hash in the key: 128 bits, like the broker's own index.
const KEY_DIGITS: usize = 32;
const NULL: &str = "null";

/// A unique key as protocols carry it.
#[derive(Debug, Default)]
pub(super) struct UniqueDraft<'a> {
    pub(super) key: Option<&'a str>,
    pub(super) fields: &'a [String],
    pub(super) until: Option<UniqueUntil>,
    pub(super) window_ms: Option<u64>,
    pub(super) on_conflict: Option<OnConflict>,
    pub(super) debounce_ms: Option<u64>,
}

impl<'a> UniqueDraft<'a> {
    /// The unique key of a task of this type with this body. `payload_bytes_max` is this node's
    /// limit.
    pub(super) fn unique(
        self,
        task_type: &str,
        body: &Body<'_>,
        payload_bytes_max: usize,
    ) -> Result<Unique<'a>, Error> {
        let key = match (self.key, self.fields) {
            (Some(key), []) => Cow::Borrowed(key),
            (None, []) => {
                let text = "unique.key and unique.fields are both missing; send one";
                return Err(Error::Invalid(text.into()));
            }
            (None, fields) => Cow::Owned(key_of(fields, task_type, body, payload_bytes_max)?),
            (Some(_), _) => {
                let text = "unique.key and unique.fields exclude each other; send one";
                return Err(Error::Invalid(text.into()));
            }
        };
        // A debounced task takes the latest payload; no other choice fits it.
        let default = match self.debounce_ms {
            Some(_) => OnConflict::Replace,
            None => OnConflict::Existing,
        };
        Ok(Unique {
            key,
            until: self.until,
            window_ms: self.window_ms,
            on_conflict: self.on_conflict.unwrap_or(default),
            debounce_ms: self.debounce_ms,
        })
    }
}

/// A field of a task.
enum Field<'f> {
    Type,
    Header(&'f str),
    /// A path into the payload; without steps, the whole payload.
    Payload(Option<&'f str>),
}

impl<'f> Field<'f> {
    fn parse(field: &'f str) -> Result<Field<'f>, Error> {
        if field.len() > UNIQUE_FIELD_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "unique.fields {:?} has {} bytes; at most {UNIQUE_FIELD_BYTES_MAX} are allowed",
                shown(field),
                field.len()
            )));
        }
        let (root, path) = match field.split_once('.') {
            Some((root, path)) => (root, Some(path)),
            None => (field, None),
        };
        match (root, path) {
            ("type", None) => Ok(Field::Type),
            ("headers", Some(name)) => Ok(Field::Header(name)),
            ("payload", path) if !path.is_some_and(|path| path.split('.').any(str::is_empty)) => {
                Ok(Field::Payload(path))
            }
            _ => Err(Error::Invalid(format!(
                "unique.fields {:?} is not type, payload, payload.NAME or headers.NAME",
                shown(field)
            ))),
        }
    }
}

fn shown(field: &str) -> String {
    field.chars().take(64).collect()
}

/// The key that is the hash of these fields of a task.
fn key_of(
    fields: &[String],
    task_type: &str,
    body: &Body<'_>,
    payload_bytes_max: usize,
) -> Result<String, Error> {
    if fields.len() > UNIQUE_FIELDS_MAX {
        return Err(Error::Invalid(format!(
            "unique.fields has {} fields; at most {UNIQUE_FIELDS_MAX} are allowed",
            fields.len()
        )));
    }
    let mut chosen = BTreeMap::new();
    let mut in_payload = Vec::new();
    for field in fields {
        match Field::parse(field)? {
            Field::Type => drop(chosen.insert(field.as_str(), text(task_type))),
            Field::Header(name) => {
                let found = body.headers.iter().find(|(header, _)| *header == name);
                let value = found.map_or(NULL.into(), |(_, value)| text(value));
                chosen.insert(field, value);
            }
            Field::Payload(path) => in_payload.push((field.as_str(), path)),
        }
    }
    // A field that is named twice counts once.
    in_payload.sort_unstable();
    in_payload.dedup();
    for (field, value) in payload_values(&in_payload, body.payload, payload_bytes_max)? {
        chosen.insert(field, value);
    }
    let mut hashed = String::new();
    write_object(&mut hashed, chosen.iter().map(|(field, value)| (*field, value)));
    let digest = Sha256::digest(hashed);
    let mut key = String::from("sha256:");
    for byte in &digest[..KEY_DIGITS / 2] {
        key.push_str(&format!("{byte:02x}"));
    }
    Ok(key)
}

/// The canonical JSON of fields in the payload; `null` for a missing one.
fn payload_values<'f>(
    fields: &[(&'f str, Option<&'f str>)],
    payload: &[u8],
    payload_bytes_max: usize,
) -> Result<Vec<(&'f str, String)>, Error> {
    let Some((first, _)) = fields.first() else { return Ok(Vec::new()) };
    let (bytes, bytes_max) = (payload.len(), payload_bytes_max);
    if bytes > bytes_max {
        return Err(Error::PayloadTooLarge { bytes, bytes_max });
    }
    let payload = if payload.is_empty() { NULL.as_bytes() } else { payload };
    let payload: &RawValue = serde_json::from_slice(payload).map_err(|error| {
        Error::Invalid(format!("unique.fields {:?} needs a JSON payload: {error}", shown(first)))
    })?;
    let mut paths = Paths::default();
    for (number, (_, path)) in fields.iter().enumerate() {
        paths.add(number, path.iter().flat_map(|path| path.split('.')));
    }
    let found = paths.find(payload.get(), fields.len());
    let named = fields.iter().zip(found);
    named.map(|((field, _), value)| Ok((*field, canonical(value.unwrap_or(NULL))?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD_MAX: usize = 1 << 20;

    fn key(fields: &[&str], payload: &str) -> Result<String, Error> {
        let fields: Vec<String> = fields.iter().map(|field| field.to_string()).collect();
        let headers = vec![("tenant.id", "acme")];
        let body = Body { content_type: "", headers, payload: payload.as_bytes() };
        let draft = UniqueDraft { fields: &fields, ..UniqueDraft::default() };
        draft.unique("send", &body, PAYLOAD_MAX).map(|unique| unique.key.into_owned())
    }

    #[test]
    fn the_examples_of_the_document_are_true() {
        let document = include_str!("../../../../docs/protocol.md");
        let rows: Vec<Vec<&str>> = document
            .lines()
            .filter(|line| line.starts_with('|') && line.contains("`sha256:"))
            .map(|line| line.split('`').skip(1).step_by(2).collect())
            .collect();
        assert!(rows.len() >= 5, "the examples are gone");
        for row in rows {
            let [fields, payload, hashed, expected] = row[..] else { panic!("{row:?}") };
            let fields: Vec<&str> = fields.split(", ").collect();
            assert_eq!(key(&fields, payload).unwrap(), expected, "{payload}");
            let digest = Sha256::digest(hashed.as_bytes());
            let digits: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(format!("sha256:{digits}"), expected, "{hashed}");
        }
    }

    #[test]
    fn spellings_of_one_value_are_one_key() {
        let first = key(&["type", "payload"], r#"{"a": [1, "é"], "b": null}"#).unwrap();
        for payload in [r#"{"b":null,"a":[1,"\u00e9"]}"#, "{\"a\":[ 1 ,\"é\"],\n\"b\" : null }"] {
            assert_eq!(key(&["payload", "type", "type"], payload).unwrap(), first, "{payload}");
        }
        for payload in [r#"{"a": [1.0, "é"], "b": null}"#, r#"{"a": ["é", 1], "b": null}"#] {
            assert_ne!(key(&["type", "payload"], payload).unwrap(), first, "{payload}");
        }
    }

    #[test]
    fn large_numbers_keep_their_digits() {
        let of = |number: &str| key(&["payload.id"], &format!("{{\"id\":{number}}}")).unwrap();
        assert_ne!(of("9007199254740993"), of("9007199254740992"));
    }

    #[test]
    fn missing_fields_are_null() {
        let null = key(&["payload.user.id"], r#"{"user":{"id":null}}"#).unwrap();
        for payload in ["{}", "null", "7", r#"{"user":3}"#, r#"{"user":[1]}"#] {
            assert_eq!(key(&["payload.user.id"], payload).unwrap(), null, "{payload}");
        }
        let element = key(&["payload.user.1"], r#"{"user":[5,6]}"#).unwrap();
        assert_ne!(element, key(&["payload.user.1"], r#"{"user":[5]}"#).unwrap());
        assert_ne!(key(&["headers.tenant.id"], "").unwrap(), key(&["headers.x"], "").unwrap());
    }

    #[test]
    fn long_fields_and_large_payloads_are_refused_before_the_payload_is_read() {
        let long = format!("payload.{}", "0.".repeat(200) + "0");
        let error = key(&[&long], "no json").unwrap_err();
        assert_eq!(error.code(), "invalid_argument");
        assert!(error.to_string().contains("has 409 bytes; at most 256"), "{error}");
        let error = key(&["payload.a"], &"x".repeat(PAYLOAD_MAX + 1)).unwrap_err();
        assert_eq!(error.code(), "payload_too_large", "{error}");
    }

    #[test]
    fn brackets_of_any_depth_are_read_once() {
        let deep = |levels: usize| "[".repeat(levels) + "7" + &"]".repeat(levels);
        let path = format!("payload.{}", ["0"; 120].join("."));
        let found = key(&[&path], &deep(120)).unwrap();
        assert_ne!(found, key(&[&path], &deep(119)).unwrap());
        // Values beside the path may be nested deeper than chosen ones.
        let beside = format!("{{\"a\":{},\"b\":1,\"a\":{}}}", deep(100_000), deep(2));
        let chosen = key(&["payload.a.0.0"], &beside).unwrap();
        assert_eq!(chosen, key(&["payload.a.0.0"], "{\"a\":[[7]]}").unwrap());
    }

    #[test]
    fn the_last_of_equal_names_replaces_the_others_whole() {
        let of = |fields: &[&str], payload: &str| key(fields, payload).unwrap();
        let fields = ["payload.a.b", "payload.a", "payload.a.c"];
        assert_eq!(
            of(&fields, r#"{"a":{"b":1,"c":2},"a":{"b":3}}"#),
            of(&fields, r#"{"a":{"b":3}}"#)
        );
        assert_eq!(of(&fields, r#"{"a":{"b":1},"\u0061":2}"#), of(&fields, r#"{"a":2}"#));
        assert_eq!(
            of(&["payload"], r#"{"a":{"c":1,"c":[]}}"#),
            of(&["payload"], r#"{"a":{"c":[]}}"#)
        );
        // An element has one name.
        assert_eq!(of(&["payload.01"], "[1,2]"), of(&["payload.01"], "[]"));
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let many = vec!["type"; UNIQUE_FIELDS_MAX + 1];
        for (fields, payload, text) in [
            (vec!["user"], "{}", "\"user\" is not type, payload"),
            (vec!["type.x"], "{}", "\"type.x\" is not"),
            (vec!["headers"], "{}", "\"headers\" is not"),
            (vec!["payload..a"], "{}", "\"payload..a\" is not"),
            (vec!["payload.a"], "not json", "needs a JSON payload"),
            (vec!["payload"], &deep, "nested deeper than 64"),
            (vec!["payload"], r#""\ud800""#, "is no JSON"),
            (many, "{}", "has 17 fields"),
            (vec![], "{}", "both missing"),
        ] {
            let error = key(&fields, payload).unwrap_err();
            assert_eq!(error.code(), "invalid_argument");
            assert!(error.to_string().contains(text), "{error} lacks {text}");
        }
        let both = UniqueDraft { key: Some("k"), fields: &["type".into()], ..Default::default() };
        let error = both.unique("send", &Body::default(), PAYLOAD_MAX).unwrap_err();
        assert!(error.to_string().contains("exclude each other"), "{error}");
    }
}
