//! What the parsers promise for any input, checked by a fuzzer and by a bounded test.

use super::{
    batch,
    fields::Fields,
    finish::{Acked, Beaten, Failed},
    frame::{Lines, Reply, split},
    glob, hello,
    job::{AsJob, Job, without_spaces},
    mutate::Mutation,
    track::Asked,
};
use crate::limits::FAKTORY_LINE_BYTES_MAX;
use serde_json::value::RawValue;
use taskyard_machine::{Body, NewTask, ShardId, TaskId, Timestamp};

const NOW: Timestamp = Timestamp(1_700_000_000_000);

/// Reads bytes like a connection, and panics if the parsers break a promise.
pub(crate) fn read_as_client(bytes: &[u8]) {
    let whole = lines_of(bytes, bytes.len().max(1));
    assert_eq!(whole, lines_of(bytes, 1), "lines depend on how they come in pieces");
    for line in whole {
        let _ = hello::parse(&line);
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        let (verb, rest) = split(text);
        let mut out = Vec::new();
        Reply::error(format!("unknown command {verb}")).write(&mut out);
        let ends = out.iter().filter(|byte| **byte == b'\n').count();
        assert!(out.ends_with(b"\r\n") && ends == 1, "an error is one line");
        // As if after any verb, and after a second verb, as in BATCH NEW and TRACK SET.
        for json in [rest, split(rest).1] {
            read_json(json);
        }
        let (pattern, text) = rest.as_bytes().split_at(rest.len().min(24));
        let text = &text[..text.len().min(256)];
        let comparison = glob::Comparison::new(pattern, text).advance(usize::MAX);
        assert!(comparison.is_some(), "it comes to an end");
    }
}

/// Reads what a client sends after a verb.
fn read_json(json: &str) {
    if let Ok(job) = Job::parse(json, NOW) {
        check_round_trip(json, &job);
    }
    let _ = Job::parse_callback(json, NOW);
    if let Ok(jobs) = serde_json::from_str::<Vec<&RawValue>>(json) {
        jobs.iter().for_each(|job| drop(Job::parse(job.get(), NOW)));
    }
    let _ = serde_json::from_str::<Acked<'_>>(json);
    let _ = serde_json::from_str::<Failed<'_>>(json);
    let _ = serde_json::from_str::<Beaten<'_>>(json);
    let _ = Mutation::read(json);
    let Ok(fields) = serde_json::from_str::<Fields<'_>>(json) else { return };
    let _ = Asked::read(&fields);
    for name in ["complete", "success"] {
        let _ = batch::callback(&fields, name, NOW);
    }
}

fn lines_of(bytes: &[u8], piece: usize) -> Vec<Vec<u8>> {
    let (mut lines, mut found) = (Lines::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        lines.buffer().extend_from_slice(piece);
        while let Ok(Some(line)) = lines.next(FAKTORY_LINE_BYTES_MAX) {
            found.push(line.to_vec());
        }
    }
    found
}

/// A job comes out as JSON with the id, type and arguments that went in, byte for byte.
fn check_round_trip(pushed: &str, job: &Job<'_>) {
    let enqueue = job.enqueue(NOW);
    let NewTask { task_type, ref body, .. } = enqueue.task;
    let body = Body { headers: body.headers.clone(), ..*body };
    let id = TaskId { incarnation: 1, home: ShardId(0), origin: ShardId(0), sequence: 1 };
    let shown = AsJob {
        id,
        queue: enqueue.queue,
        jobtype: task_type,
        enqueued_at: NOW,
        body: &body,
        failure: None,
    };
    let json = String::from_utf8(shown.json()).expect("JSON is text");
    let came: Fields<'_> = serde_json::from_str(pushed).expect("it was read before");
    let went: Fields<'_> = serde_json::from_str(&json).expect("what is handed out is JSON");
    assert_eq!(went.text("jid"), came.text("jid"));
    assert_eq!(went.text("jobtype"), came.text("jobtype"));
    let args = |fields: &Fields<'_>| fields.get("args").map(|args| args.get().to_owned());
    assert_eq!(args(&went), args(&came));
    for (name, value) in came.iter().filter(|(name, _)| name.starts_with("x_")) {
        assert_eq!(
            went.get(name).map(|kept| kept.get()),
            Some(value.get()).filter(|v| *v != "null")
        );
    }
    assert!(serde_json::from_slice::<Fields<'_>>(&without_spaces(json.as_bytes())).is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    /// The number of inputs made from each seed.
    const MADE_OF_EACH: u64 = 1_500;
    /// The pieces of clients' mistakes.
    const PIECES: [&[u8]; 14] = [
        b"\r\n",
        b"\n",
        b"\"",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b"null",
        b"-1e999",
        b"\xff",
        b"\0",
        b"\xf0\x9f\x92\xa9",
        b",\"jid\":",
    ];

    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn changed(seed: &[u8], state: &mut u64) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=next(state) % 4 {
            let at = next(state) as usize % (bytes.len() + 1);
            match next(state) % 5 {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(at..at, PIECES[next(state) as usize % 14].iter().copied())),
                2 if at < bytes.len() => bytes[at] = next(state) as u8,
                3 if at < bytes.len() => drop(bytes.remove(at)),
                _ => {
                    let end = (at + next(state) as usize % 64).min(bytes.len());
                    bytes.extend_from_within(at..end);
                }
            }
        }
        bytes
    }

    #[test]
    fn any_input_is_read_without_harm() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/faktory");
        let mut seeds: Vec<_> =
            fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
        seeds.sort();
        assert!(seeds.len() >= 10, "the corpus is there");
        for path in seeds {
            let seed = fs::read(&path).unwrap();
            read_as_client(&seed);
            let mut state = 0x9e37_79b9_7f4a_7c15;
            for _ in 0..MADE_OF_EACH {
                read_as_client(&changed(&seed, &mut state));
            }
        }
    }
}
