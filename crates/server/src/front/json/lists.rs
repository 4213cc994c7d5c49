//! Lists: counts the elements of a body's lists and maps while it is parsed.
//!
//! An empty string takes three bytes of a body and many times that in memory, and a task far more.
//! So the elements of all lists in a body are bounded together, and so are the tasks of one list.
//! Parsing stops at the first element beyond. Payloads do not count.

use super::NewTask;
use crate::limits::JSON_ELEMENTS_MAX;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use std::{cell::Cell, collections::BTreeMap, fmt, marker::PhantomData};
use taskyard_machine::limits::BATCH_TASKS_MAX;

thread_local! {
    /// How many elements the body that this thread parses may still have. A body is parsed in one
    /// go.
    static LEFT: Cell<usize> = const { Cell::new(JSON_ELEMENTS_MAX) };
}

/// Starts the count for a new body.
pub(super) fn begin() {
    LEFT.set(JSON_ELEMENTS_MAX);
}

fn take_one<E: Error>() -> Result<(), E> {
    let left = LEFT.get().checked_sub(1).ok_or_else(|| {
        let text = format!(
            "the body has more than {JSON_ELEMENTS_MAX} elements in its lists; send less at once"
        );
        E::custom(text)
    })?;
    LEFT.set(left);
    Ok(())
}

/// Reads a list of up to `MAX` elements.
struct List<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        loop {
            if list.len() == MAX {
                // Checks for one more element without parsing it.
                elements.next_element::<Refused>()?;
                return Ok(list);
            }
            let Some(element) = elements.next_element()? else { return Ok(list) };
            take_one()?;
            list.push(element);
        }
    }
}

/// An element beyond the limit.
struct Refused;

impl<'de> Deserialize<'de> for Refused {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Refused, D::Error> {
        Err(D::Error::custom(format!("more than {BATCH_TASKS_MAX} tasks; split them")))
    }
}

/// Reads a map.
struct Map<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Map<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = entries.next_entry()? {
            take_one()?;
            map.insert(key, value);
        }
        Ok(map)
    }
}

/// A list of tasks, with at most as many as an atomic batch.
pub(super) fn tasks<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(List::<T, BATCH_TASKS_MAX>(PhantomData))
}

/// A list.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(List::<T, { usize::MAX }>(PhantomData))
}

/// A list, or `null`.
pub(super) fn list_if_any<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let counted = Option::<Counted<T>>::deserialize(deserializer)?;
    Ok(counted.map(|Counted(list)| list))
}

/// A map.
pub(super) fn map<'de, D, V>(deserializer: D) -> Result<BTreeMap<String, V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    deserializer.deserialize_map(Map(PhantomData))
}

/// Headers, or `null`.
pub(super) fn texts_if_any<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    Ok(Option::<CountedTexts>::deserialize(deserializer)?.map(|CountedTexts(texts)| texts))
}

struct Counted<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Counted<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Counted<T>, D::Error> {
        list(deserializer).map(Counted)
    }
}

struct CountedTexts(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for CountedTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CountedTexts, D::Error> {
        map(deserializer).map(CountedTexts)
    }
}

/// The body of an atomic batch.
#[derive(Debug)]
pub(in crate::front) struct Batch<'a>(pub(in crate::front) Vec<NewTask<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Batch<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Batch<'a>, D::Error> {
        tasks(deserializer).map(Batch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Claim, DeadBody, parse};
    use super::*;

    #[test]
    fn a_task_beyond_the_limit_is_refused_before_it_is_parsed() {
        let tasks = r#"{"type":"t"},"#.repeat(BATCH_TASKS_MAX);
        let whole = format!("[{}]", tasks.trim_end_matches(','));
        assert_eq!(parse::<Batch<'_>>(whole.as_bytes()).unwrap().0.len(), BATCH_TASKS_MAX);
        // What comes after is not even JSON.
        let beyond = format!("[{tasks}{{no");
        let problem = parse::<Batch<'_>>(beyond.as_bytes()).unwrap_err();
        let told = format!("{problem:?}");
        assert!(told.contains("[10000]: more than 10000 tasks; split them"), "{told}");
    }

    #[test]
    fn the_elements_of_all_lists_are_counted_together() {
        let tags = r#""","#.repeat(JSON_ELEMENTS_MAX / 2);
        let task = format!(r#"{{"type":"t","tags":[{}]}}"#, tags.trim_end_matches(','));
        let problem = parse::<Batch<'_>>(format!("[{task},{task},{{no").as_bytes()).unwrap_err();
        let told = format!("{problem:?}");
        assert!(told.contains("elements in its lists; send less at once"), "{told}");
        parse::<Batch<'_>>(format!("[{task}]").as_bytes()).unwrap();
    }

    #[test]
    fn every_list_of_a_body_is_counted() {
        let many = r#""a","#.repeat(JSON_ELEMENTS_MAX + 1);
        let many = many.trim_end_matches(',');
        let pairs: String = (0..=JSON_ELEMENTS_MAX).map(|n| format!(r#""{n}":"","#)).collect();
        let pairs = pairs.trim_end_matches(',');
        for field in [
            format!(r#""tags":[{many}]"#),
            format!(r#""depends_on":[{many}]"#),
            format!(r#""headers":{{{pairs}}}"#),
            format!(r#""unique":{{"fields":[{many}]}}"#),
        ] {
            let body = format!(r#"{{"type":"t",{field}}}"#);
            let problem = format!("{:?}", parse::<NewTask<'_>>(body.as_bytes()).unwrap_err());
            assert!(problem.contains("send less at once"), "{:.40}: {problem}", field);
        }
        let claim = format!(r#"{{"queues":[{many}]}}"#);
        let problem = format!("{:?}", parse::<Claim>(claim.as_bytes()).unwrap_err());
        assert!(problem.contains("send less at once"), "{problem}");
        let dead = format!(r#"{{"ids":[{many}]}}"#);
        let problem = format!("{:?}", parse::<DeadBody>(dead.as_bytes()).unwrap_err());
        assert!(problem.contains("send less at once"), "{problem}");
    }
}
