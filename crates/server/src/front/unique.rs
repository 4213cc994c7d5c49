//! Unique keys on every wire: named, or the hash of chosen fields of the task.
//!
//! This is the one implementation of that hash. `docs/protocol.md` describes it, with examples that a
//! test here computes, so that a program in any language can name the key itself.

use crate::{Error, limits::UNIQUE_FIELDS_MAX};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::{borrow::Cow, collections::BTreeMap};
use taskyard_machine::{Body, OnConflict, Unique, UniqueUntil};

/// Digits of the hash that make the key: 128 bits, as many as the broker's own index.
const KEY_DIGITS: usize = 32;
/// Values nested deeper than this are refused: reading them takes a stack.
const DEPTH_MAX: usize = 64;
const NULL: &str = "null";

/// A unique key as wires carry it.
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
    /// What is meant for a task of this type with this body.
    pub(super) fn unique(self, task_type: &str, body: &Body<'_>) -> Result<Unique<'a>, Error> {
        let key = match (self.key, self.fields) {
            (Some(key), []) => Cow::Borrowed(key),
            (None, []) => {
                let text = "unique.key and unique.fields are both missing; send one";
                return Err(Error::Invalid(text.into()));
            }
            (None, fields) => Cow::Owned(key_of(fields, task_type, body)?),
            (Some(_), _) => {
                let text = "unique.key and unique.fields exclude each other; send one";
                return Err(Error::Invalid(text.into()));
            }
        };
        // A debounced task takes the latest payload; nothing else makes sense for it.
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

/// The key that is the hash of these fields of a task.
fn key_of(fields: &[String], task_type: &str, body: &Body<'_>) -> Result<String, Error> {
    if fields.len() > UNIQUE_FIELDS_MAX {
        return Err(Error::Invalid(format!(
            "unique.fields has {} fields; at most {UNIQUE_FIELDS_MAX} are allowed",
            fields.len()
        )));
    }
    let mut chosen = BTreeMap::new();
    for field in fields {
        chosen.insert(field.as_str(), field_value(field, task_type, body)?);
    }
    let digest = Sha256::digest(object(chosen.iter().map(|(field, value)| (*field, value))));
    let mut key = String::from("sha256:");
    for byte in &digest[..KEY_DIGITS / 2] {
        key.push_str(&format!("{byte:02x}"));
    }
    Ok(key)
}

/// The canonical JSON of one field; what the task has not got is `null`.
fn field_value(field: &str, task_type: &str, body: &Body<'_>) -> Result<String, Error> {
    let (root, path) = match field.split_once('.') {
        Some((root, path)) => (root, Some(path)),
        None => (field, None),
    };
    match (root, path) {
        ("type", None) => Ok(text(task_type)),
        ("headers", Some(name)) => {
            let found = body.headers.iter().find(|(header, _)| *header == name);
            Ok(found.map_or(NULL.into(), |(_, value)| text(value)))
        }
        ("payload", path) if !path.is_some_and(|path| path.split('.').any(str::is_empty)) => {
            let payload = if body.payload.is_empty() { NULL.as_bytes() } else { body.payload };
            let payload: &RawValue = serde_json::from_slice(payload).map_err(|error| {
                Error::Invalid(format!("unique.fields {field:?} needs a JSON payload: {error}"))
            })?;
            let steps = path.into_iter().flat_map(|path| path.split('.'));
            let mut value = Some(payload.get().to_owned());
            for step in steps {
                value = value.as_deref().map(|json| member(json, step)).transpose()?.flatten();
            }
            canonical(value.as_deref().unwrap_or(NULL), DEPTH_MAX)
        }
        _ => {
            let shown: String = field.chars().take(64).collect();
            Err(Error::Invalid(format!(
                "unique.fields {shown:?} is not type, payload, payload.NAME or headers.NAME"
            )))
        }
    }
}

/// A member of an object, or an element of an array by its number from 0.
fn member(json: &str, step: &str) -> Result<Option<String>, Error> {
    let found = match json.as_bytes().first() {
        Some(b'{') => read::<BTreeMap<String, &RawValue>>(json)?.remove(step),
        Some(b'[') => {
            let mut elements = read::<Vec<&RawValue>>(json)?.into_iter();
            step.parse().ok().and_then(|index| elements.nth(index))
        }
        _ => None,
    };
    Ok(found.map(|value| value.get().to_owned()))
}

/// A JSON value in the one form that all its spellings share: no spaces, members sorted by the bytes
/// of their names, the shortest escapes. Numbers stay as they are written, so that none loses digits.
fn canonical(json: &str, depth: usize) -> Result<String, Error> {
    let Some(depth) = depth.checked_sub(1) else {
        let text = format!("unique.fields chose a value nested deeper than {DEPTH_MAX} levels");
        return Err(Error::Invalid(text));
    };
    match json.as_bytes().first() {
        Some(b'{') => {
            let mut members = BTreeMap::new();
            for (name, value) in read::<BTreeMap<String, &RawValue>>(json)? {
                members.insert(name, canonical(value.get(), depth)?);
            }
            Ok(object(members.iter().map(|(name, value)| (name.as_str(), value))))
        }
        Some(b'[') => {
            let elements = read::<Vec<&RawValue>>(json)?.into_iter();
            let elements: Vec<String> = elements
                .map(|element| canonical(element.get(), depth))
                .collect::<Result<_, _>>()?;
            Ok(format!("[{}]", elements.join(",")))
        }
        Some(b'"') => Ok(text(&read::<String>(json)?)),
        _ => Ok(json.to_owned()),
    }
}

fn object<'m>(members: impl Iterator<Item = (&'m str, &'m String)>) -> String {
    let members: Vec<String> =
        members.map(|(name, value)| format!("{}:{value}", text(name))).collect();
    format!("{{{}}}", members.join(","))
}

fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn read<'j, T: serde::Deserialize<'j>>(json: &'j str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| {
        Error::Invalid(format!("unique.fields chose a value that is no JSON: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(fields: &[&str], payload: &str) -> Result<String, Error> {
        let fields: Vec<String> = fields.iter().map(|field| field.to_string()).collect();
        let headers = vec![("tenant.id", "acme")];
        let body = Body { content_type: "", headers, payload: payload.as_bytes() };
        let draft = UniqueDraft { fields: &fields, ..UniqueDraft::default() };
        draft.unique("send", &body).map(|unique| unique.key.into_owned())
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
    fn what_is_missing_is_null() {
        let null = key(&["payload.user.id"], r#"{"user":{"id":null}}"#).unwrap();
        for payload in ["{}", "null", "7", r#"{"user":3}"#, r#"{"user":[1]}"#] {
            assert_eq!(key(&["payload.user.id"], payload).unwrap(), null, "{payload}");
        }
        let element = key(&["payload.user.1"], r#"{"user":[5,6]}"#).unwrap();
        assert_ne!(element, key(&["payload.user.1"], r#"{"user":[5]}"#).unwrap());
        assert_ne!(key(&["headers.tenant.id"], "").unwrap(), key(&["headers.x"], "").unwrap());
    }

    #[test]
    fn fields_that_make_no_sense_are_refused_by_name() {
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
        let error = both.unique("send", &Body::default()).unwrap_err();
        assert!(error.to_string().contains("exclude each other"), "{error}");
    }
}
