//! A renderer for the templates of our Helm chart, so that tests don't need Helm. It knows only the
//! actions that our templates use, and panics at any other.

use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A piece of a template.
#[derive(Debug)]
enum Part {
    Text(String),
    Print(String),
    If { condition: String, then: Vec<Part>, otherwise: Vec<Part> },
    Range { variable: String, over: String, body: Vec<Part> },
}

/// Renders a template; `root` has `Values` and `Release`.
pub(crate) fn render(template: &str, root: &Value) -> String {
    let mut tokens = tokens(template).into_iter().peekable();
    let parts = parse(&mut tokens);
    assert!(tokens.next().is_none(), "an end or else without its beginning");
    let mut out = String::new();
    print(&parts, root, &mut BTreeMap::new(), &mut out);
    out
}

#[derive(Debug)]
enum Token {
    Text(String),
    Action(String),
}

/// Splits a template into text and actions; `{{-` removes the white space before it, `-}}` the
/// white space after it.
fn tokens(template: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = template;
    let mut trims = false;
    loop {
        let (text, action) = match rest.split_once("{{") {
            Some((text, after)) => (text, Some(after)),
            None => (rest, None),
        };
        let text = if trims { text.trim_start() } else { text };
        let Some(after) = action else {
            found.push(Token::Text(text.to_owned()));
            return found;
        };
        let (after, trims_before) = match after.strip_prefix('-') {
            Some(after) => (after, true),
            None => (after, false),
        };
        let text = if trims_before { text.trim_end() } else { text };
        found.push(Token::Text(text.to_owned()));
        let (action, after) = after.split_once("}}").expect("an action has its end");
        trims = action.ends_with('-');
        found.push(Token::Action(action.trim_end_matches('-').trim().to_owned()));
        rest = after;
    }
}

/// The parts up to the `end` or `else` of the block; that token stays in the iterator.
fn parse(tokens: &mut std::iter::Peekable<std::vec::IntoIter<Token>>) -> Vec<Part> {
    let mut parts = Vec::new();
    while let Some(token) = tokens.peek() {
        if matches!(token, Token::Action(action) if action == "end" || action == "else") {
            break;
        }
        let part = match tokens.next().expect("it was seen") {
            Token::Text(text) => Part::Text(text),
            Token::Action(action) => match action.split_once(' ') {
                Some(("if", condition)) => {
                    let then = parse(tokens);
                    let otherwise = match tokens.next() {
                        Some(Token::Action(action)) if action == "else" => {
                            let otherwise = parse(tokens);
                            tokens.next();
                            otherwise
                        }
                        _ => Vec::new(),
                    };
                    Part::If { condition: condition.to_owned(), then, otherwise }
                }
                Some(("range", range)) => {
                    let (variable, over) = range.split_once(" := ").expect("range $NAME := LIST");
                    let body = parse(tokens);
                    tokens.next();
                    Part::Range { variable: variable.to_owned(), over: over.to_owned(), body }
                }
                _ => Part::Print(action),
            },
        };
        parts.push(part);
    }
    parts
}

fn print(parts: &[Part], root: &Value, variables: &mut BTreeMap<String, Value>, out: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => *out += text,
            Part::Print(expression) => match eval(expression, root, variables) {
                Value::String(text) => *out += &text,
                Value::Null => panic!("{expression} has no value"),
                other => *out += &other.to_string(),
            },
            Part::If { condition, then, otherwise } => {
                let chosen =
                    if truth(&eval(condition, root, variables)) { then } else { otherwise };
                print(chosen, root, variables, out);
            }
            Part::Range { variable, over, body } => {
                let Value::Array(items) = eval(over, root, variables) else {
                    panic!("{over} is no list")
                };
                for item in items {
                    variables.insert(variable.clone(), item);
                    print(body, root, variables, out);
                }
            }
        }
    }
}

fn truth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_u64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// A value, or a call: `name argument...`.
fn eval(expression: &str, root: &Value, variables: &BTreeMap<String, Value>) -> Value {
    let mut words = words(expression).into_iter();
    let name = words.next().expect("an expression");
    let arguments: Vec<Value> = words.map(|word| operand(&word, root, variables)).collect();
    match (name.as_str(), arguments.as_slice()) {
        (_, []) => operand(&name, root, variables),
        ("int", [number]) => number.clone(),
        ("gt", [a, b]) => json!(a.as_u64() > b.as_u64()),
        ("and", [a, b]) => {
            if truth(a) {
                b.clone()
            } else {
                a.clone()
            }
        }
        ("until", [count]) => (0..count.as_u64().expect("a count")).collect(),
        ("toJson", [value]) => json!(value.to_string()),
        _ => panic!("the renderer does not know {expression:?}"),
    }
}

/// Words of a call; a call in parentheses is one word.
fn words(call: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut depth = 0;
    for word in call.split_whitespace() {
        match depth {
            0 => found.push(word.to_owned()),
            _ => *found.last_mut().expect("a word was opened") += &format!(" {word}"),
        }
        depth += word.matches('(').count();
        depth -= word.matches(')').count();
    }
    found
}

fn operand(word: &str, root: &Value, variables: &BTreeMap<String, Value>) -> Value {
    if let Some(call) = word.strip_prefix('(').and_then(|word| word.strip_suffix(')')) {
        return eval(call, root, variables);
    }
    if let Ok(number) = word.parse::<u64>() {
        return json!(number);
    }
    if let Some(value) = variables.get(word) {
        return value.clone();
    }
    let path = word.strip_prefix('$').unwrap_or(word);
    let path = path.strip_prefix('.').unwrap_or_else(|| panic!("what is {word:?}?"));
    let pointer = format!("/{}", path.replace('.', "/"));
    root.pointer(&pointer).unwrap_or_else(|| panic!("values.yaml has no {word}")).clone()
}
