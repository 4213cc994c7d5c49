//! Mentions: every path in the code of a Rust file, with imports resolved.
//!
//! `use std::{fs, time::Instant as Now};` and a later `Now::now()` both come out in full, so that a
//! rule about `std::time::Instant` holds however the file is written.

use super::source::{Source, is_word};
use std::collections::BTreeMap;

/// A path in code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mention {
    /// From 1.
    pub(super) line: usize,
    /// The full path, such as `std::time::Instant::now`; a macro ends in `!`.
    pub(super) path: String,
    /// Whether the path is in a `use`, or has more than one segment, so that it is not a variable's
    /// name.
    pub(super) is_path: bool,
    pub(super) test: bool,
}

impl Mention {
    /// Whether this path is `name` or inside it. A `name` that ends in `::` is a crate, and never
    /// matches a variable of the same name.
    pub(super) fn names(&self, name: &str) -> bool {
        match name.strip_suffix("::") {
            Some(root) => self.is_path && within(&self.path, root),
            None => within(&self.path, name),
        }
    }
}

fn within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Every path in the file, in order.
pub(super) fn mentions(source: &Source) -> Vec<Mention> {
    let tokens = tokens(source);
    let mut imports = BTreeMap::new();
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        // `use<'a>` in a return type imports nothing.
        let captures = tokens.get(at + 1).is_some_and(|next| next.text == "<");
        if token.text == "use" && !captures {
            let end = (at..tokens.len()).find(|&i| tokens[i].text == ";").unwrap_or(tokens.len());
            for (path, name, line) in expand("", &tokens[at + 1..end]) {
                imports.insert(name, path.clone());
                found.push(Mention { line, path, is_path: true, test: token.test });
            }
            at = end;
        } else if is_name(&token.text) {
            let member = at > 0 && tokens[at - 1].text == ".";
            let macro_call = tokens.get(at + 1).is_some_and(|next| next.text == "!")
                && tokens.get(at + 2).is_none_or(|next| next.text != "=");
            if !member {
                let path = match macro_call {
                    true => format!("{}!", token.text),
                    false => token.text.clone(),
                };
                let is_path = path.contains("::");
                found.push(Mention { line: token.line, path, is_path, test: token.test });
            }
        }
        at += 1;
    }
    for mention in &mut found {
        let (first, rest) = mention.path.split_once("::").unwrap_or((&mention.path, ""));
        if let Some(full) = imports.get(first).filter(|full| *full != first) {
            let resolved = if rest.is_empty() { full.clone() } else { format!("{full}::{rest}") };
            mention.path = resolved;
        }
    }
    found
}

struct Token {
    line: usize,
    /// A path, or one character of punctuation.
    text: String,
    test: bool,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| is_word(c) && !c.is_ascii_digit())
}

fn tokens(source: &Source) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (line, content) in source.numbered() {
        let mut rest = content.code.as_str();
        while let Some(c) = rest.chars().next() {
            let word_end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let length = if word_end > 0 { word_end } else { c.len_utf8() };
            let text = &rest[..length];
            rest = &rest[length..];
            if !c.is_whitespace() {
                tokens.push(Token { line, text: text.to_string(), test: content.test });
            }
        }
    }
    join_paths(tokens)
}

/// Joins `a`, `:`, `:`, `b` into `a::b`, and drops a leading `::`. Before `{` or `*` the colons are
/// dropped too, because the position says what follows.
fn join_paths(tokens: Vec<Token>) -> Vec<Token> {
    let mut joined: Vec<Token> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        if token.text == ":" {
            colons += 1;
            continue;
        }
        let continues = colons == 2 && is_name(&token.text);
        match joined.last_mut() {
            Some(last) if continues && is_name(&last.text) => {
                last.text = format!("{}::{}", last.text, token.text);
            }
            _ => joined.push(token),
        }
        colons = 0;
    }
    joined
}

/// The full paths of a use tree, with the name each goes by in the file and its line.
fn expand(prefix: &str, tokens: &[Token]) -> Vec<(String, String, usize)> {
    let mut found = Vec::new();
    for branch in split_at_commas(tokens) {
        let Some(first) = branch.first() else { continue };
        let join = |name: &str| match (prefix, name) {
            ("", _) => name.to_string(),
            (_, "self" | "*") => prefix.to_string(),
            _ => format!("{prefix}::{name}"),
        };
        if first.text == "{" {
            found.extend(expand(prefix, inside_braces(branch)));
            continue;
        }
        let path = join(&first.text);
        match branch.get(1).map(|token| token.text.as_str()) {
            Some("{") => found.extend(expand(&path, inside_braces(&branch[1..]))),
            Some("as") => {
                let name = branch.get(2).map(|token| token.text.clone()).unwrap_or_default();
                found.push((path, name, first.line));
            }
            _ => {
                let name = path.rsplit("::").next().unwrap_or_default().to_string();
                found.push((path, name, first.line));
            }
        }
    }
    found
}

fn inside_braces(tokens: &[Token]) -> &[Token] {
    let end = if tokens.last().is_some_and(|last| last.text == "}") { 1 } else { 0 };
    &tokens[1..tokens.len() - end]
}

fn split_at_commas(tokens: &[Token]) -> Vec<&[Token]> {
    let mut depth = 0;
    tokens
        .split(|token| {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            token.text == "," && depth == 0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        let source = Source::parse("src/a.rs", text);
        mentions(&source).into_iter().map(|mention| mention.path).collect()
    }

    #[test]
    fn use_trees_come_out_in_full() {
        let text = "use std::{fs, time::{Duration, Instant as Now}, io::{self, Read}};";
        assert_eq!(
            paths(text),
            ["std::fs", "std::time::Duration", "std::time::Instant", "std::io", "std::io::Read"]
        );
    }

    #[test]
    fn imported_names_are_resolved_where_they_are_used() {
        let text = "use std::time::Instant as Now;\nfn a() { Now::now(); }";
        assert!(paths(text).contains(&"std::time::Instant::now".to_string()), "{:?}", paths(text));
        let text = "use tokio::time::Instant;\nfn a() { Instant::now(); }";
        assert!(paths(text).contains(&"tokio::time::Instant::now".to_string()));
    }

    #[test]
    fn macros_and_paths_over_lines_are_seen() {
        assert!(paths("fn a() { dbg!(1); }").contains(&"dbg!".to_string()));
        assert!(paths("fn a() { std::fs\n    ::read(x) }").contains(&"std::fs::read".to_string()));
        assert!(!paths("fn a() { if dbg != 1 {} }").contains(&"dbg!".to_string()));
    }

    #[test]
    fn a_crate_is_not_a_variable_or_a_field() {
        let source = Source::parse("src/a.rs", "let raft = self.raft; raft.step();");
        assert!(!mentions(&source).iter().any(|mention| mention.names("raft::")));
        let source = Source::parse("src/a.rs", "use raft; let x = raft::Config::default();");
        assert_eq!(mentions(&source).iter().filter(|mention| mention.names("raft::")).count(), 2);
    }
}
