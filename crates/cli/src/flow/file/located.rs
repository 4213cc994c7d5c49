//! A value of a YAML or JSON file that knows its line, and those of its parts.
//!
//! JSON stays text until it is read, so that its numbers keep all their digits.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use serde_saphyr::{MessageFormatter, Spanned, UserMessageFormatter};

use super::Problem;

/// The most scalars, lists and maps: enough for a flow of 10,000 nodes with all options.
const YAML_NODES_MAX: usize = 2_000_000;

/// A value and its line, from 1.
pub(super) struct Located<'a> {
    pub(super) line: usize,
    content: Content<'a>,
}

enum Content<'a> {
    Yaml(Tree),
    Json(&'a str),
}

/// YAML, each part with its place.
enum Tree {
    Map(Vec<(String, Spanned<Tree>)>),
    List(Vec<Spanned<Tree>>),
    Scalar(Value),
}

impl<'a> Located<'a> {
    /// Reads a file. A file that can't be parsed is one mistake.
    pub(super) fn parse(text: &'a str) -> Result<Located<'a>, Problem> {
        if !text.trim_start().starts_with('{') {
            return parse_yaml(text);
        }
        let value: &RawValue = serde_json::from_str(text)
            .map_err(|error| Problem { line: error.line().max(1), what: unplaced(&error) })?;
        Ok(Located { line: line_of(text, value.get()), content: Content::Json(value.get()) })
    }

    /// The members of an object, in order, also those with repeated names.
    pub(super) fn fields(self) -> Option<Vec<(String, Located<'a>)>> {
        match self.content {
            Content::Yaml(Tree::Map(fields)) => {
                Some(fields.into_iter().map(|(name, value)| (name, value.into())).collect())
            }
            Content::Yaml(_) => None,
            Content::Json(text) => {
                let Members(members) = serde_json::from_str(text).ok()?;
                let (names, values): (Vec<_>, Vec<_>) = members.into_iter().unzip();
                Some(names.into_iter().zip(parts(self.line, text, &values)).collect())
            }
        }
    }

    /// The items of a list.
    pub(super) fn items(self) -> Option<Vec<Located<'a>>> {
        match self.content {
            Content::Yaml(Tree::List(items)) => Some(items.into_iter().map(Into::into).collect()),
            Content::Yaml(_) => None,
            Content::Json(text) => {
                let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                Some(parts(self.line, text, &items))
            }
        }
    }

    /// The value as JSON text.
    pub(super) fn json(&self) -> String {
        match &self.content {
            Content::Yaml(tree) => tree.value().to_string(),
            Content::Json(text) => (*text).to_owned(),
        }
    }
}

impl From<Spanned<Tree>> for Located<'_> {
    fn from(spanned: Spanned<Tree>) -> Self {
        let line = usize::try_from(spanned.referenced.line()).unwrap_or(1).max(1);
        Located { line, content: Content::Yaml(spanned.value) }
    }
}

impl Tree {
    fn value(&self) -> Value {
        match self {
            Tree::Map(fields) => fields
                .iter()
                .map(|(name, value)| (name.clone(), value.value.value()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Tree::List(items) => items.iter().map(|item| item.value.value()).collect(),
            Tree::Scalar(value) => value.clone(),
        }
    }
}

fn parse_yaml<'a>(text: &str) -> Result<Located<'a>, Problem> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `no` and `on` are words; only true and false are not.
        strict_booleans: true,
        // The reader of the fields reports repeated names.
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        budget: serde_saphyr::budget! { max_nodes: YAML_NODES_MAX, max_events: 2 * YAML_NODES_MAX },
    };
    let tree: Spanned<Tree> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line()).max(1);
            let what = UserMessageFormatter.format_message(error.without_snippet()).into_owned();
            Problem { line: usize::try_from(line).unwrap_or(1), what }
        })?;
    Ok(tree.into())
}

/// Values that are parts of a text, in order, so that one walk counts the lines.
fn parts<'a>(first_line: usize, text: &'a str, values: &[&'a RawValue]) -> Vec<Located<'a>> {
    let (mut line, mut counted) = (first_line, 0);
    let place = |value: &&'a RawValue| {
        let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
        line += text[counted..start].matches('\n').count();
        counted = start;
        Located { line, content: Content::Json(value.get()) }
    };
    values.iter().map(place).collect()
}

/// The line of a part of a text.
fn line_of(text: &str, part: &str) -> usize {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    1 + text[..start].matches('\n').count()
}

/// The message of serde_json without its place, which is reported in another form.
pub(super) fn unplaced(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).map_or_else(|| text.clone(), str::to_owned)
}

/// The unparsed members of a JSON object.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeReader)
    }
}

struct TreeReader;

impl<'de> Visitor<'de> for TreeReader {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Tree::Map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<Tree, D::Error> {
        Tree::deserialize(value)
    }
}
