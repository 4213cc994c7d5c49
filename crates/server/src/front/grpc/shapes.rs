//! Shapes: the repeated parts of each request, and what each takes in memory.
//!
//! A part of two bytes on the wire may take half a kibibyte in memory. So parts are counted before
//! a message is decoded, see `scan.rs`. A test compares this table with the contract.

use std::mem::size_of;
use taskyard_machine::limits;
use taskyard_proto::v1;

/// The fields of a message that take more memory than their bytes, by field number.
#[derive(Debug)]
pub(super) struct Shape(pub(super) &'static [(u32, Part)]);

/// A field of a shape.
#[derive(Debug)]
pub(super) enum Part {
    /// A message.
    One(&'static Shape),
    /// Elements of a list, or entries of a map.
    Many(Many),
    /// Numbers, perhaps packed: each byte may be one.
    Numbers,
}

/// A repeated field.
#[derive(Debug)]
pub(super) struct Many {
    /// The least memory that one element takes.
    pub(super) bytes: usize,
    /// The most elements, if the whole call is refused for more.
    pub(super) count_max: Option<(usize, &'static str)>,
    /// The shape of an element.
    pub(super) of: Option<&'static Shape>,
}

/// A message without such fields.
const PLAIN: Shape = Shape(&[]);

/// The memory of two strings in a hash map, with their allocations.
const ENTRY_BYTES: usize = 160;
/// The memory of an empty string in a list, which grows by doubling.
const TEXT_BYTES: usize = 2 * size_of::<String>();

const fn many(bytes: usize, of: Option<&'static Shape>) -> Part {
    Part::Many(Many { bytes: 2 * bytes, count_max: None, of })
}

const fn up_to(count_max: usize, what: &'static str, bytes: usize, of: &'static Shape) -> Part {
    Part::Many(Many { bytes: 2 * bytes, count_max: Some((count_max, what)), of: Some(of) })
}

const TEXTS: Part = Part::Many(Many { bytes: TEXT_BYTES, count_max: None, of: None });
const ENTRIES: Part = Part::Many(Many { bytes: ENTRY_BYTES, count_max: None, of: None });

static RETRY: Shape = Shape(&[(7, Part::Numbers)]);
static UNIQUE: Shape = Shape(&[(2, TEXTS)]);
static NEW_TASK: Shape =
    Shape(&[(5, ENTRIES), (11, Part::One(&RETRY)), (14, TEXTS), (15, Part::One(&UNIQUE))]);
const TASK_BYTES: usize = size_of::<v1::NewTask>();
static ENQUEUE: Shape = Shape(&[(1, Part::One(&NEW_TASK))]);
static BATCH: Shape =
    Shape(&[(2, up_to(limits::BATCH_TASKS_MAX, "the batch has", TASK_BYTES, &NEW_TASK))]);
static MANY: Shape =
    Shape(&[(1, up_to(limits::BATCH_TASKS_MAX, "the batch has", TASK_BYTES, &NEW_TASK))]);

const QUEUES: Part = many(size_of::<v1::QueueWeight>(), None);
const CLAIMS: Part = many(size_of::<v1::HeldClaim>(), None);
static CLAIM: Shape = Shape(&[(1, QUEUES), (6, TEXTS)]);
static ACK: Shape = Shape(&[(4, many(TASK_BYTES, Some(&NEW_TASK)))]);
static ANSWER: Shape = Shape(&[(2, Part::One(&ACK))]);
static ANSWERS: Shape = Shape(&[(1, many(size_of::<v1::Answer>(), Some(&ANSWER)))]);
static HELLO: Shape = Shape(&[(6, QUEUES), (9, CLAIMS), (11, TEXTS)]);
static BEAT: Shape = Shape(&[(1, CLAIMS)]);
static WORKER_MESSAGE: Shape = Shape(&[
    (1, Part::One(&HELLO)),
    (3, Part::One(&ANSWERS)),
    (4, Part::One(&BEAT)),
    (5, Part::One(&BEAT)),
]);

static RETRY_TASK: Shape = Shape(&[(4, ENTRIES)]);
static QUEUE_SETTINGS: Shape = Shape(&[(7, Part::One(&RETRY)), (12, ENTRIES)]);
static SET_QUEUE: Shape = Shape(&[(2, Part::One(&QUEUE_SETTINGS))]);
static DEAD: Shape = Shape(&[(1, TEXTS)]);

static FLOW_NODE: Shape =
    Shape(&[(2, Part::One(&NEW_TASK)), (3, many(size_of::<v1::Dependency>(), None))]);
const NODE_BYTES: usize = size_of::<v1::FlowNode>();
static SUBMIT_FLOW: Shape =
    Shape(&[(2, up_to(limits::FLOW_NODES_MAX, "the flow has", NODE_BYTES, &FLOW_NODE))]);
static ADD_FLOW_TASKS: Shape =
    Shape(&[(4, up_to(limits::FLOW_ADD_NODES_MAX, "the call adds", NODE_BYTES, &FLOW_NODE))]);
static SCHEDULE: Shape = Shape(&[(5, Part::One(&NEW_TASK)), (17, Part::Numbers), (20, TEXTS)]);
static SET_SCHEDULE: Shape = Shape(&[(1, Part::One(&SCHEDULE))]);

/// The shape of a call's request. Requests of other calls have no such fields.
pub(super) fn of_call(method: &str) -> &'static Shape {
    match method {
        "Enqueue" => &ENQUEUE,
        "EnqueueBatch" => &BATCH,
        "EnqueueMany" | "EnqueueStream" => &MANY,
        "Claim" => &CLAIM,
        "Ack" => &ACK,
        "Work" => &WORKER_MESSAGE,
        "Retry" => &RETRY_TASK,
        "SetQueueSettings" => &SET_QUEUE,
        "RetryDead" | "DiscardDead" => &DEAD,
        "SubmitFlow" => &SUBMIT_FLOW,
        "AddFlowTasks" => &ADD_FLOW_TASKS,
        "SetSchedule" => &SET_SCHEDULE,
        _ => &PLAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const CONTRACT: &str = include_str!("../../../../proto/taskyard/v1/taskyard.proto");

    /// A field of the contract: whether it is repeated, its type and its number.
    type Field = (bool, String, u32);

    /// The fields of every message.
    type Messages = BTreeMap<String, Vec<Field>>;

    /// The messages, and each call with its request.
    fn contract() -> (Messages, Vec<(String, String)>) {
        let (mut messages, mut calls) = (Messages::new(), Vec::new());
        let mut within: Vec<String> = Vec::new();
        let text: String = CONTRACT
            .lines()
            .map(|line| line.split("//").next().unwrap())
            .flat_map(|line| [line, "\n"])
            .collect();
        let text = text.replace('{', "{\n").replace('}', "\n}\n").replace(';', ";\n");
        for line in text.lines().map(str::trim) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words.as_slice() {
                ["}"] => drop(within.pop()),
                [kind @ ("message" | "enum" | "oneof" | "service"), name, "{"] => {
                    let named = match *kind {
                        "oneof" => within.last().unwrap().clone(),
                        "message" => name.to_string(),
                        _ => String::new(),
                    };
                    within.push(named);
                }
                ["rpc", rest @ ..] => {
                    let rest = rest.join(" ");
                    let (name, request) = rest.split_once('(').unwrap();
                    let request = request.split(')').next().unwrap();
                    let request = request.trim_start_matches("stream ");
                    calls.push((name.to_owned(), request.to_owned()));
                }
                [.., "=", number] if within.last().is_some_and(|name| !name.is_empty()) => {
                    let is_many = line.starts_with("repeated ") || line.starts_with("map<");
                    let kind = match line.starts_with("map<") {
                        true => "map".to_owned(),
                        false => words[words.len() - 4].to_owned(),
                    };
                    let number = number.trim_end_matches(';').parse().unwrap();
                    let message = within.last().unwrap().clone();
                    messages.entry(message).or_default().push((is_many, kind, number));
                }
                _ => {}
            }
        }
        (messages, calls)
    }

    fn compare(messages: &Messages, message: &str, shape: &Shape, compared: &mut usize) {
        let fields = messages.get(message).map_or(&[][..], Vec::as_slice);
        for (is_many, kind, number) in fields {
            let part = shape.0.iter().find(|(known, _)| known == number).map(|(_, part)| part);
            let inner = match part {
                None => {
                    assert!(!is_many, "{message} {number} may be there many times");
                    // A message without such fields needs no part of its own.
                    &PLAIN
                }
                Some(Part::Numbers) => {
                    assert!(*is_many && kind == "uint64", "{message} {number}");
                    &PLAIN
                }
                Some(Part::One(inner)) => {
                    assert!(!is_many, "{message} {number}");
                    inner
                }
                Some(Part::Many(many)) => {
                    assert!(is_many, "{message} {number}");
                    many.of.unwrap_or(&PLAIN)
                }
            };
            *compared += usize::from(part.is_some());
            compare(messages, kind, inner, compared);
        }
    }

    #[test]
    fn every_list_of_a_request_is_counted() {
        let (messages, calls) = contract();
        let mut compared = 0;
        for (call, request) in &calls {
            compare(&messages, request, of_call(call), &mut compared);
        }
        assert!(calls.len() > 40 && compared > 50, "{} calls, {compared} fields", calls.len());
    }
}
