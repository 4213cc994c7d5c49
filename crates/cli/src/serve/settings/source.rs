//! Sources of settings: the command line, or else a file. Each setting remembers its place for the
//! message about a mistake.
//!
//! Mistakes are collected and not returned, so that a person can correct all of them at once.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use toml::de::{DeTable, DeValue};

use crate::values;

/// The kinds of values in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text.
    Text,
    /// A text or a whole number.
    Number,
    /// A list of texts, or one text with commas.
    List,
}

/// A setting and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    /// A single text, or all texts of a list.
    texts: Vec<String>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// An option, or the variable that stands for it.
    Option,
    /// A line of the file, from 1.
    Line(usize),
}

/// All settings, and the mistakes in them.
#[derive(Debug)]
pub(super) struct Source {
    /// The path of the file, as it was typed.
    file: String,
    given: BTreeMap<&'static str, Given>,
    mistakes: Vec<(Option<Place>, String)>,
}

impl Source {
    /// Reads a file whose keys are `keys`.
    pub(super) fn read(path: Option<&Path>, keys: &[(&'static str, Kind)]) -> Result<Source> {
        let file = path.map(|path| path.display().to_string()).unwrap_or_default();
        let mut source = Source { file, given: BTreeMap::new(), mistakes: Vec::new() };
        if let Some(path) = path {
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", source.file))?;
            source.take_file(&text, keys);
        }
        Ok(source)
    }

    /// Adds an option, which wins over the file.
    pub(super) fn typed(&mut self, key: &'static str, texts: &[String]) {
        if !texts.is_empty() {
            let given = Given { texts: texts.to_vec(), place: Place::Option };
            self.given.insert(key, given);
        }
    }

    pub(super) fn list(&self, key: &'static str) -> Vec<String> {
        self.given.get(key).map(|given| given.texts.clone()).unwrap_or_default()
    }

    pub(super) fn text(&self, key: &'static str) -> Option<String> {
        self.given.get(key)?.texts.first().cloned()
    }

    pub(super) fn path(&self, key: &'static str) -> Option<PathBuf> {
        self.text(key).map(Into::into)
    }

    /// Parses the text of a setting; records a mistake and returns `None` if that fails.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let place = self.given.get(key)?.place;
        match read(&self.text(key)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                let text = format!("{}: {problem}", self.name(key));
                self.mistakes.push((Some(place), text));
                None
            }
        }
    }

    /// The name of a setting for people: its option, or its key in the file.
    pub(super) fn name(&self, key: &str) -> String {
        match self.given.get(key).map(|given| given.place) {
            Some(Place::Option) => format!("--{}", key.replace('_', "-")),
            Some(Place::Line(_)) | None => key.to_owned(),
        }
    }

    /// Adds a mistake about the value of a setting.
    pub(super) fn mistake(&mut self, key: &str, text: String) {
        let place = self.given.get(key).map(|given| given.place);
        self.mistakes.push((place, text));
    }

    /// All mistakes, those of options first, those of the file by line.
    pub(super) fn mistakes(mut self) -> Vec<String> {
        self.mistakes.sort_by_key(|(place, _)| *place);
        let told = |(place, text): (Option<Place>, String)| match place {
            Some(Place::Line(line)) => format!("{}:{line}: {text}", self.file),
            Some(Place::Option) | None => text,
        };
        self.mistakes.into_iter().map(told).collect()
    }

    fn take_file(&mut self, text: &str, keys: &[(&'static str, Kind)]) {
        let line_at = |at: usize| 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let span = error.span().unwrap_or_default();
            let place = Place::Line(line_at(span.start));
            let about = text.get(span).and_then(|text| text.lines().next()).unwrap_or_default();
            let about = if about.is_empty() { String::new() } else { format!(": {about}") };
            self.mistakes.push((Some(place), format!("{}{about}", error.message())));
        }
        // The value of a line that can't be read would be misleading.
        let is_broken = |place: &Place, mistakes: &[(Option<Place>, String)]| {
            mistakes.iter().any(|(broken, _)| broken.as_ref() == Some(place))
        };
        let broken = self.mistakes.clone();
        for (name, value) in table.get_ref() {
            let place = Place::Line(line_at(name.span().start));
            if is_broken(&place, &broken) {
                continue;
            }
            let known = keys.iter().find(|(key, _)| key == name.get_ref());
            let taken = match known {
                Some((key, kind)) => take(value.get_ref(), *kind).map(|texts| (*key, texts)),
                None => Err(format!("there is no such key{}", did_you_mean(name.get_ref(), keys))),
            };
            match taken {
                Ok((key, texts)) => {
                    self.given.insert(key, Given { texts, place });
                }
                Err(problem) => {
                    let text = format!("{}: {problem}", name.get_ref());
                    self.mistakes.push((Some(place), text));
                }
            }
        }
    }
}

/// The texts of a value.
fn take(value: &DeValue<'_>, kind: Kind) -> Result<Vec<String>, String> {
    match (value, kind) {
        (DeValue::String(text), Kind::List) => {
            Ok(text.split(',').map(|one| one.trim().to_owned()).collect())
        }
        (DeValue::String(text), Kind::Text | Kind::Number) => Ok(vec![text.to_string()]),
        (DeValue::Integer(number), Kind::Number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            number.map(|number| vec![number.to_string()]).map_err(|error| error.to_string())
        }
        (DeValue::Array(values), Kind::List) => {
            let text = |value: &DeValue<'_>| match value {
                DeValue::String(text) => Ok(text.to_string()),
                other => Err(format!("its list has a value that is no text: {}", shown(other))),
            };
            values.iter().map(|value| text(value.get_ref())).collect()
        }
        (other, Kind::Text) => Err(format!("{} is no text; put it in quotes", shown(other))),
        (other, Kind::Number) => {
            Err(format!("{} is neither a whole number nor a text", shown(other)))
        }
        (other, Kind::List) => {
            Err(format!("{} is neither a list of texts nor a text", shown(other)))
        }
    }
}

fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Boolean(is) => is.to_string(),
        other => format!("a value of type {}", other.type_str()),
    }
}

fn did_you_mean(unknown: &str, keys: &[(&'static str, Kind)]) -> String {
    let names = || keys.iter().map(|(key, _)| *key);
    match values::nearest(unknown, names()) {
        Some(key) => format!("; did you mean {key}?"),
        None => format!("; there are {}", names().collect::<Vec<_>>().join(", ")),
    }
}
