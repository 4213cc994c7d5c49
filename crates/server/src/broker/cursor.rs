//! Cursor: the position of a list over all shards, as opaque text.
//!
//! Lists walk the shards in order, and each shard in id order. So one shard and the last id seen
//! there are a position on every shard: earlier shards are done, later ones untouched.

use crate::Error;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use taskyard_machine::{
    NewestAt, QueueName, ShardId, TaskId, Timestamp, check_schedule_name, limits,
};

/// A position in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The shard to continue with.
    pub(super) shard: ShardId,
    /// The last id seen there.
    pub(super) after: Option<TaskId>,
}

const VERSION: u8 = 1;
const NAME_VERSION: u8 = 2;
const NEWEST_VERSION: u8 = 3;
const QUEUE_VERSION: u8 = 4;
const BYTES_WITHOUT_ID: usize = 3;
const BYTES_WITH_ID: usize = BYTES_WITHOUT_ID + 16;

impl Cursor {
    pub(super) fn encode(self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend(self.shard.0.to_be_bytes());
        bytes.extend(self.after.iter().flat_map(|task| task.to_u128().to_be_bytes()));
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    pub(super) fn decode(text: &str, shards: u16) -> Result<Cursor, Error> {
        let cursor = Cursor::read(text).filter(|cursor| cursor.shard.0 < shards);
        cursor.ok_or_else(|| unknown(text))
    }

    fn read(text: &str) -> Option<Cursor> {
        if text.len() > 2 * BYTES_WITH_ID {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (&[version, high, low], id) = bytes.split_first_chunk()?;
        let after = match id.len() {
            0 => None,
            _ => Some(TaskId::from_u128(u128::from_be_bytes(id.try_into().ok()?))),
        };
        let shard = ShardId(u16::from_be_bytes([high, low]));
        (version == VERSION).then_some(Cursor { shard, after })
    }
}

fn unknown(text: &str) -> Error {
    let shown: String = text.chars().take(64).collect();
    let advice = "send the cursor of the previous page unchanged, or none";
    Error::Invalid(format!("cursor {shown:?} is not from this broker; {advice}"))
}

/// The length of a page that was asked for, if a page may have it.
pub(super) fn page_limit(limit: u32) -> Result<usize, Error> {
    let limit = limit as usize;
    match (1..=limits::PAGE_TASKS_MAX).contains(&limit) {
        true => Ok(limit),
        false => {
            let text = format!("limit {limit} is not 1 to {}", limits::PAGE_TASKS_MAX);
            Err(Error::Invalid(text))
        }
    }
}

/// The cursor of a list by schedule name, after this name.
pub(super) fn encode_name(name: &str) -> String {
    encode_text(NAME_VERSION, name)
}

pub(super) fn decode_name(text: &str) -> Result<String, Error> {
    let name = decode_text(NAME_VERSION, text).filter(|name| check_schedule_name(name).is_ok());
    name.ok_or_else(|| unknown(text))
}

/// Where a list in the order of queue names goes on: after this one.
pub(super) fn encode_queue(name: &str) -> String {
    encode_text(QUEUE_VERSION, name)
}

pub(super) fn decode_queue(text: &str) -> Result<String, Error> {
    let name = decode_text(QUEUE_VERSION, text).filter(|name| QueueName::parse(name).is_ok());
    name.ok_or_else(|| unknown(text))
}

fn encode_text(version: u8, name: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode([&[version], name.as_bytes()].concat())
}

fn decode_text(version: u8, text: &str) -> Option<String> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    let (&found, name) = bytes.split_first()?;
    let name = std::str::from_utf8(name).ok()?;
    (found == version).then(|| name.to_owned())
}

/// The cursor of a list that begins with the newest, before this place on every shard.
pub(super) fn encode_newest(NewestAt { at, task }: NewestAt) -> String {
    let place = [&at.0.to_be_bytes()[..], &task.to_u128().to_be_bytes()].concat();
    BASE64_URL_SAFE_NO_PAD.encode([&[NEWEST_VERSION], &place[..]].concat())
}

pub(super) fn decode_newest(text: &str) -> Result<NewestAt, Error> {
    let read = || {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (&version, place) = bytes.split_first()?;
        let (at, task) = place.split_first_chunk()?;
        let task = TaskId::from_u128(u128::from_be_bytes(task.try_into().ok()?));
        let at = Timestamp(u64::from_be_bytes(*at));
        (version == NEWEST_VERSION).then_some(NewestAt { at, task })
    };
    read().ok_or_else(|| unknown(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_text() {
        for after in [None, Some(TaskId::from_u128(7)), Some(TaskId::from_u128(u128::MAX))] {
            let cursor = Cursor { shard: ShardId(31), after };
            assert_eq!(Cursor::decode(&cursor.encode(), 32).unwrap(), cursor);
            assert!(Cursor::decode(&cursor.encode(), 31).is_err(), "a shard that does not exist");
        }
    }

    #[test]
    fn cursors_of_names_survive_text() {
        assert_eq!(decode_name(&encode_name("nightly")).unwrap(), "nightly");
        let of_tasks = Cursor::default().encode();
        for text in ["", "zzz", "nightly", &of_tasks, &encode_name(""), &encode_name("a b")] {
            assert_eq!(decode_name(text).unwrap_err().code(), "invalid_argument", "{text}");
        }
        assert!(Cursor::decode(&encode_name("nightly"), 32).is_err());
        assert_eq!(decode_queue(&encode_queue("mail")).unwrap(), "mail");
        for text in ["", "mail", &of_tasks, &encode_name("mail"), &encode_queue("a b")] {
            assert_eq!(decode_queue(text).unwrap_err().code(), "invalid_argument", "{text}");
        }
        assert!(decode_name(&encode_queue("mail")).is_err(), "a list of another kind");
    }

    #[test]
    fn cursors_of_newest_lists_survive_text() {
        let place = NewestAt { at: Timestamp(u64::MAX - 7), task: TaskId::from_u128(9) };
        assert_eq!(decode_newest(&encode_newest(place)).unwrap(), place);
        let (of_ids, of_names) = (Cursor::default().encode(), encode_name("nightly"));
        for text in ["", "zzz", "Aw", &of_ids, &of_names, &encode_newest(place)[1..]] {
            assert_eq!(decode_newest(text).unwrap_err().code(), "invalid_argument", "{text}");
        }
        assert!(Cursor::decode(&encode_newest(place), 32).is_err());
        assert!(decode_name(&encode_newest(place)).is_err());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "x", "AAAA", "AQ", "AQAA_", "ä", &"A".repeat(1000), "AQAAAAAA"] {
            let error = Cursor::decode(text, 32).unwrap_err();
            assert_eq!(error.code(), "invalid_argument", "{text}: {error}");
        }
    }
}
