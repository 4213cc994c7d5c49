//! Fields: a JSON object, each value verbatim.

use crate::limits;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// The most members of one object: each is compared with all before it.
const MEMBERS_MAX: usize = limits::FAKTORY_MEMBERS_MAX;

/// The members of an object, in order. Of two with the same name, the last one counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// A member that exists and is not null.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value).filter(|value| value.get() != "null")
    }

    /// A member that must be a string.
    pub(super) fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let read: Result<Text<'a>, _> = serde_json::from_str(value.get());
        read.map(|read| Some(read.0)).map_err(|_| format!("invalid JSON: {name} is not a string"))
    }

    /// A member that must be a whole number.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, String> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = serde_json::from_str::<i64>(value.get()).ok();
        // Some languages write whole numbers with a fraction.
        let fraction = || serde_json::from_str::<f64>(value.get()).ok().map(|given| given as i64);
        let number = whole.or_else(fraction);
        number.map(Some).ok_or_else(|| format!("invalid JSON: {name} is not a number"))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (&**name, *value))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    if let Some(known) = members.iter_mut().find(|(known, _)| *known == name.0) {
                        known.1 = value;
                        continue;
                    }
                    if members.len() == MEMBERS_MAX {
                        let text = format!("an object has more than {MEMBERS_MAX} members");
                        return Err(A::Error::custom(text));
                    }
                    members.push((name.0, value));
                }
                Ok(Fields(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// A string, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A string as JSON.
pub(super) fn text(plain: &str) -> String {
    serde_json::to_string(plain).expect("a text is JSON")
}

/// How deep the lists and objects of valid JSON are nested.
pub(super) fn levels(json: &str) -> usize {
    let (mut open, mut most, mut in_text, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b'[' | b'{') => open += 1,
            (false, b']' | b'}') => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lists_and_objects_count_as_levels() {
        let table =
            [("1", 0), ("[]", 1), (r#"{"a":[1,[2]],"b":{}}"#, 3), (r#"["[[\"[","\\",[]]"#, 2)];
        for (json, expected) in table {
            assert_eq!(levels(json), expected, "{json}");
        }
    }
}
