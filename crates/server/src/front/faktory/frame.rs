//! Frames: requests are lines, replies a subset of RESP 2. No I/O.

use crate::limits::FAKTORY_LINE_BYTES_MAX;
use bytes::{Buf, BytesMut};
use std::borrow::Cow;

/// A client's bytes that are not yet a whole line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// The number of leading bytes that contain no line end.
    searched: usize,
}

/// A line is over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Lines {
    /// The buffer for further bytes.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The number of bytes that wait for the rest of their line.
    pub(super) fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// The next whole line without its end (CRLF or LF); `None` if it has not come yet.
    pub(super) fn next(&mut self, bytes_max: usize) -> Result<Option<BytesMut>, TooLong> {
        let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(position) = found else {
            self.searched = self.buffer.len();
            return if self.searched > bytes_max { Err(TooLong) } else { Ok(None) };
        };
        let end = self.searched + position;
        self.searched = 0;
        let mut line = self.buffer.split_to(end);
        self.buffer.advance(1);
        if line.last() == Some(&b'\r') {
            line.truncate(end - 1);
        }
        if line.len() > bytes_max { Err(TooLong) } else { Ok(Some(line)) }
    }
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// `+OK`.
    Ok,
    /// Bytes of any length.
    Bulk(Vec<u8>),
    /// No result.
    Nil,
    /// An error: a code word, then text.
    Error { code: &'static str, text: Cow<'static, str> },
}

impl Reply {
    /// The usual error.
    pub(super) fn error(text: impl Into<Cow<'static, str>>) -> Reply {
        Reply::Error { code: "ERR", text: text.into() }
    }

    /// A JSON value as bytes.
    pub(super) fn json(value: &impl serde::Serialize) -> Reply {
        Reply::Bulk(serde_json::to_vec(value).expect("what is answered can be written as JSON"))
    }

    /// Appends the reply in its wire form.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Ok => out.extend_from_slice(b"+OK\r\n"),
            Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
            Reply::Bulk(bytes) => {
                out.push(b'$');
                out.extend_from_slice(bytes.len().to_string().as_bytes());
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Error { code, text } => {
                out.push(b'-');
                out.extend_from_slice(code.as_bytes());
                out.push(b' ');
                // An error is one line, even if it quotes a client.
                let printed = text.chars().map(|c| if c.is_control() { ' ' } else { c });
                let mut bytes = [0; 4];
                for c in printed {
                    out.extend_from_slice(c.encode_utf8(&mut bytes).as_bytes());
                }
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// A line's verb and the rest, trimmed.
pub(super) fn split(line: &str) -> (&str, &str) {
    let line = line.trim_matches([' ', '\t', '\r']);
    match line.split_once(' ') {
        Some((verb, rest)) => (verb, rest.trim_start()),
        None => (line, ""),
    }
}

/// A longer line needs one of the few places for large lines.
pub(super) const LARGE_LINE_BYTES: usize = 1 << 20;
const _: () = assert!(LARGE_LINE_BYTES < FAKTORY_LINE_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]], bytes_max: usize) -> Vec<Result<String, TooLong>> {
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.buffer().extend_from_slice(piece);
            loop {
                match lines.next(bytes_max) {
                    Ok(Some(line)) => all.push(Ok(String::from_utf8(line.to_vec()).unwrap())),
                    Ok(None) => break,
                    Err(error) => {
                        all.push(Err(error));
                        return all;
                    }
                }
            }
        }
        all
    }

    #[test]
    fn lines_end_with_crlf_or_lf_in_any_pieces() {
        let expected = ["PUSH {}", "INFO", "", "END"].map(|line| Ok(line.to_owned()));
        let whole = b"PUSH {}\r\nINFO\n\r\nEND\n";
        assert_eq!(lines(&[whole], 100), expected);
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(lines(&bytes, 100), expected);
    }

    #[test]
    fn a_line_that_is_too_long_is_noticed_before_its_end() {
        assert_eq!(lines(&[b"12345"], 4), [Err(TooLong)]);
        assert_eq!(lines(&[b"1234", b"5\n"], 4), [Err(TooLong)]);
        assert_eq!(lines(&[b"1234", b"\n"], 4), [Ok("1234".to_owned())]);
    }

    #[test]
    fn replies_are_resp_and_errors_one_line() {
        let written = |reply: Reply| {
            let mut out = Vec::new();
            reply.write(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(Reply::Ok), "+OK\r\n");
        assert_eq!(written(Reply::Nil), "$-1\r\n");
        assert_eq!(written(Reply::Bulk(b"a\nb".to_vec())), "$3\r\na\nb\r\n");
        assert_eq!(written(Reply::error("no\r\n+OK\r\né")), "-ERR no  +OK  é\r\n");
    }

    #[test]
    fn a_verb_ends_at_the_first_space() {
        assert_eq!(split("FETCH a b "), ("FETCH", "a b"));
        assert_eq!(split("FETCH "), ("FETCH", ""));
        assert_eq!(split("INFO"), ("INFO", ""));
        assert_eq!(split("  "), ("", ""));
    }
}
