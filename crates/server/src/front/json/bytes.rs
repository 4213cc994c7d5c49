//! Bytes in JSON: verbatim when they are JSON, as base64 when they are not.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::value::RawValue;

/// Bytes as an answer shows them: one of the two.
#[derive(Debug, Default)]
pub(in crate::front) struct Shown<'a> {
    pub(in crate::front) json: Option<&'a RawValue>,
    pub(in crate::front) base64: Option<String>,
}

/// Shows bytes that may be JSON.
pub(in crate::front) fn shown(bytes: &[u8]) -> Shown<'_> {
    match serde_json::from_slice(bytes) {
        Ok(json) => Shown { json: Some(json), base64: None },
        Err(_) => Shown { json: None, base64: Some(BASE64_STANDARD.encode(bytes)) },
    }
}

/// Shows a payload: what says that it is not JSON is not taken for it.
pub(in crate::front) fn shown_payload<'a>(content_type: &str, payload: &'a [u8]) -> Shown<'a> {
    if is_json(content_type) {
        return shown(payload);
    }
    Shown { json: None, base64: Some(BASE64_STANDARD.encode(payload)) }
}

/// Whether a media type is JSON's; none means it.
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
        assert_eq!(shown(b"\xff").base64.as_deref(), Some("/w=="));
        assert_eq!(shown(b"").base64.as_deref(), Some(""));
        assert_eq!(shown_payload("text/plain", b"1").base64.as_deref(), Some("MQ=="));
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
