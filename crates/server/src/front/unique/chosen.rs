//! Chosen values of a JSON text: found in one pass, and written in one canonical form.
//!
//! The caller has checked with the library that the text is JSON. This file reads no byte twice,
//! except in a value that is chosen more than once. Only chosen parts bound the stack: a path by
//! its length, a chosen value by `DEPTH_MAX`.

use crate::Error;
use std::{borrow::Cow, collections::BTreeMap};

/// A chosen value that is nested deeper is refused, because writing it takes a stack.
const DEPTH_MAX: usize = 64;

/// The chosen values: a tree of the steps of all paths.
#[derive(Debug, Default)]
pub(super) struct Paths<'p> {
    /// The number of the path that ends here.
    here: Option<usize>,
    next: BTreeMap<&'p str, Paths<'p>>,
}

impl<'p> Paths<'p> {
    /// Adds the path with this number.
    pub(super) fn add(&mut self, number: usize, steps: impl Iterator<Item = &'p str>) {
        let mut node = self;
        for step in steps {
            node = node.next.entry(step).or_default();
        }
        node.here = Some(number);
    }

    /// Finds the values of `count` paths in `json`, which must be one JSON value without white
    /// space around it.
    pub(super) fn find<'j>(&self, json: &'j str, count: usize) -> Vec<Option<&'j str>> {
        let mut found = vec![None; count];
        Reader { json, at: 0 }.choose(self, &mut found);
        found
    }

    /// Forgets the values of these paths: a later member of the same name replaces them.
    fn forget(&self, found: &mut [Option<&str>]) {
        if let Some(number) = self.here {
            found[number] = None;
        }
        self.next.values().for_each(|next| next.forget(found));
    }

    /// The paths through an element of an array, which is named by its number from 0.
    fn elements(&self) -> Vec<(usize, &Paths<'p>)> {
        let numbered = self.next.iter().filter_map(|(step, next)| {
            let number: usize = step.parse().ok()?;
            // An element has one name.
            (number.to_string() == *step).then_some((number, next))
        });
        numbered.collect()
    }
}

/// Writes a JSON value in its canonical form: no white space, members sorted by the bytes of their
/// names, the shortest escapes. Numbers stay as they are, so that none loses digits.
pub(super) fn canonical(json: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(json.len());
    Reader { json, at: 0 }.write(&mut out, DEPTH_MAX)?;
    Ok(out)
}

/// A string as JSON.
pub(super) fn text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A position in a JSON text.
struct Reader<'j> {
    json: &'j str,
    at: usize,
}

impl<'j> Reader<'j> {
    /// The next byte that is no white space; 0 at the end.
    fn peek(&mut self) -> u8 {
        let bytes = self.json.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied().unwrap_or_default()
    }

    /// Skips the next byte if it is this one.
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == byte;
        self.at += usize::from(is_next);
        is_next
    }

    /// The next string with its quotes.
    fn quoted(&mut self) -> &'j str {
        self.peek();
        let start = self.at;
        let mut escaped = false;
        for byte in &self.json.as_bytes()[start..] {
            self.at += 1;
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' if self.at > start + 1 => break,
                _ => {}
            }
        }
        &self.json[start..self.at]
    }

    /// The next value, of any depth.
    fn skip(&mut self) -> &'j str {
        self.peek();
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek() {
                b'"' => {
                    self.quoted();
                }
                b'{' | b'[' => (depth, self.at) = (depth + 1, self.at + 1),
                b'}' | b']' => (depth, self.at) = (depth.saturating_sub(1), self.at + 1),
                b',' | b':' => self.at += 1,
                0 => break,
                _ => {
                    self.word();
                }
            }
            if depth == 0 {
                break;
            }
        }
        &self.json[start..self.at]
    }

    /// The next number, or `true`, `false` or `null`.
    fn word(&mut self) -> &'j str {
        self.peek();
        let rest = &self.json[self.at..];
        let ends = |byte: u8| byte.is_ascii_whitespace() || b",:]}".contains(&byte);
        let word = &rest[..rest.bytes().position(ends).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn choose(&mut self, paths: &Paths<'_>, found: &mut [Option<&'j str>]) {
        let first = self.peek();
        let start = self.at;
        match first {
            b'{' if !paths.next.is_empty() => {
                self.at += 1;
                while !matches!(self.peek(), b'}' | 0) {
                    // A name that does not decode to text is never asked for.
                    let name = unquoted(self.quoted()).ok();
                    self.take(b':');
                    match name.and_then(|name| paths.next.get(&*name)) {
                        Some(next) => {
                            next.forget(found);
                            self.choose(next, found);
                        }
                        None => {
                            self.skip();
                        }
                    }
                    self.take(b',');
                }
                self.take(b'}');
            }
            b'[' if !paths.next.is_empty() => {
                let elements = paths.elements();
                self.at += 1;
                let mut number = 0;
                while !matches!(self.peek(), b']' | 0) {
                    match elements.iter().find(|(element, _)| *element == number) {
                        Some((_, next)) => self.choose(next, found),
                        None => {
                            self.skip();
                        }
                    }
                    self.take(b',');
                    number += 1;
                }
                self.take(b']');
            }
            _ => {
                self.skip();
            }
        }
        if let Some(number) = paths.here {
            found[number] = Some(&self.json[start..self.at]);
        }
    }

    fn write(&mut self, out: &mut String, depth: usize) -> Result<(), Error> {
        let Some(depth) = depth.checked_sub(1) else {
            let text = format!("unique.fields chose a value nested deeper than {DEPTH_MAX} levels");
            return Err(Error::Invalid(text));
        };
        match self.peek() {
            b'{' => {
                self.at += 1;
                let mut members = BTreeMap::new();
                while !matches!(self.peek(), b'}' | 0) {
                    let name = unquoted(self.quoted())?;
                    self.take(b':');
                    let mut value = String::new();
                    self.write(&mut value, depth)?;
                    members.insert(name, value);
                    self.take(b',');
                }
                self.take(b'}');
                write_object(out, members.iter().map(|(name, value)| (&**name, value)));
            }
            b'[' => {
                self.at += 1;
                out.push('[');
                while !matches!(self.peek(), b']' | 0) {
                    self.write(out, depth)?;
                    if self.take(b',') {
                        out.push(',');
                    }
                }
                self.take(b']');
                out.push(']');
            }
            b'"' => out.push_str(&text(&unquoted(self.quoted())?)),
            _ => out.push_str(self.word()),
        }
        Ok(())
    }
}

/// Writes an object of these members, in this order.
pub(super) fn write_object<'m>(
    out: &mut String,
    members: impl Iterator<Item = (&'m str, &'m String)>,
) {
    out.push('{');
    for (number, (name, value)) in members.enumerate() {
        if number > 0 {
            out.push(',');
        }
        out.push_str(&text(name));
        out.push(':');
        out.push_str(value);
    }
    out.push('}');
}

/// The text in a quoted string.
fn unquoted(quoted: &str) -> Result<Cow<'_, str>, Error> {
    if !quoted.contains('\\') {
        return Ok(Cow::Borrowed(quoted.trim_matches('"')));
    }
    serde_json::from_str(quoted).map(Cow::Owned).map_err(|error| {
        Error::Invalid(format!("unique.fields chose a value that is no JSON: {error}"))
    })
}
