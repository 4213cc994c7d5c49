//! Bytes in JSON: verbatim if they are JSON that every language reads, otherwise base64.
//!
//! An answer has the values of many tasks, and one value that a client can't read would make the
//! whole answer unreadable. Such values are JSON that is nested too deep, has half of a surrogate
//! pair, or has a number beyond a double. A request with such JSON is refused, and bytes from
//! another front are shown as base64.

use crate::limits::JSON_DEPTH_MAX;
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

/// A JSON value that every language reads, verbatim.
#[derive(Clone, Copy, Debug)]
pub(in crate::front) struct Plain<'a>(&'a RawValue);

impl<'a> Plain<'a> {
    pub(in crate::front) fn bytes(self) -> &'a [u8] {
        self.0.get().as_bytes()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Plain<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Plain<'a>, D::Error> {
        let value = <&'a RawValue>::deserialize(deserializer)?;
        check_plain(value).map_err(|problem| {
            let text = problem.to_string();
            // The place is one within the value, and the library words this error in many ways.
            let text = match text.split(" at line ").next().unwrap_or_default() {
                text if text.contains("hex escape") => "a text has half of a surrogate pair",
                text => text,
            };
            D::Error::custom(format!("{text}; not every language could read it"))
        })?;
        Ok(Plain(value))
    }
}

/// Checks that bytes are JSON that every language reads, like the HTTP front does.
pub fn check_json(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("it is not UTF-8: {error}"))?;
    serde_json::from_str::<Plain<'_>>(text).map(|_| ()).map_err(|error| error.to_string())
}

fn check_plain(value: &RawValue) -> Result<(), serde_json::Error> {
    Levels(JSON_DEPTH_MAX).deserialize(&mut serde_json::Deserializer::from_str(value.get()))
}

/// Reads a value with at most this many levels, and keeps nothing of it.
#[derive(Clone, Copy)]
struct Levels(usize);

impl Levels {
    fn inner<E: serde::de::Error>(self) -> Result<Levels, E> {
        let left = self.0.checked_sub(1).map(Levels);
        left.ok_or_else(|| E::custom(format!("nested deeper than {JSON_DEPTH_MAX} levels")))
    }
}

impl<'de> DeserializeSeed<'de> for Levels {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Levels {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while elements.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while entries.next_key_seed(inner)?.is_some() {
            entries.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// Bytes as an answer shows them: in one of the two fields.
#[derive(Debug, Default)]
pub(in crate::front) struct Shown<'a> {
    pub(in crate::front) json: Option<&'a RawValue>,
    pub(in crate::front) base64: Option<String>,
}

/// Shows bytes that may be JSON.
pub(in crate::front) fn shown(bytes: &[u8]) -> Shown<'_> {
    match serde_json::from_slice::<Plain<'_>>(bytes) {
        Ok(Plain(json)) => Shown { json: Some(json), base64: None },
        Err(_) => Shown { json: None, base64: Some(BASE64_STANDARD.encode(bytes)) },
    }
}

/// Shows a payload. A content type other than JSON always means base64.
pub(in crate::front) fn shown_payload<'a>(content_type: &str, payload: &'a [u8]) -> Shown<'a> {
    if is_json(content_type) {
        return shown(payload);
    }
    Shown { json: None, base64: Some(BASE64_STANDARD.encode(payload)) }
}

/// Whether a media type is JSON. An empty one is.
pub(in crate::front) fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let ends = |suffix: &str| {
        let start = media_type.len().checked_sub(suffix.len());
        start
            .and_then(|start| media_type.get(start..))
            .is_some_and(|end| end.eq_ignore_ascii_case(suffix))
    };
    media_type.is_empty() || ends("/json") || ends("+json")
}

pub(in crate::front) fn decode_base64(field: &str, text: &str) -> Result<Vec<u8>, crate::Error> {
    BASE64_STANDARD
        .decode(text)
        .map_err(|error| crate::Error::Invalid(format!("{field} is not base64: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_verbatim_and_the_rest_as_base64() {
        let text = r#"{"b":1, "a":123456789012345678901234567890}"#;
        assert_eq!(shown(text.as_bytes()).json.unwrap().get(), text);
        assert_eq!(check_json(text.as_bytes()), Ok(()));
        assert!(check_json(b"\"\xff\"").unwrap_err().contains("UTF-8"));
        assert_eq!(shown(b"\xff").base64.as_deref(), Some("/w=="));
        assert_eq!(shown(b"").base64.as_deref(), Some(""));
        assert_eq!(shown_payload("text/plain", b"1").base64.as_deref(), Some("MQ=="));
    }

    #[test]
    fn json_that_some_language_cannot_read_is_shown_as_base64() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        for text in [nested(JSON_DEPTH_MAX), r#"{"\ud83d\ude00": [1e308, -0.0, "\u0000"]}"#.into()]
        {
            assert_eq!(shown(text.as_bytes()).json.map(RawValue::get), Some(&*text));
        }
        for (text, why) in [
            (nested(JSON_DEPTH_MAX + 1), "nested deeper than 60 levels"),
            (nested(100_000), "nested deeper than 60 levels"),
            (r#"["\ud800"]"#.to_owned(), "surrogate"),
            (r#"{"\udc00": 1}"#.to_owned(), "surrogate"),
            ("[1e400]".to_owned(), "number out of range"),
        ] {
            assert!(shown(text.as_bytes()).base64.is_some());
            let error = serde_json::from_str::<Plain<'_>>(&text).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains(" at line 1 column 2;"), "{error}");
            assert!(check_json(text.as_bytes()).unwrap_err().contains(why));
        }
    }

    #[test]
    fn media_types_of_json() {
        for (media_type, json) in [
            ("", true),
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.api+json", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("application/jsonx", false),
        ] {
            assert_eq!(is_json(media_type), json, "{media_type}");
        }
    }
}
