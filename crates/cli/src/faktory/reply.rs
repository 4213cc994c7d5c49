//! Replies of a server: a parser of Faktory's part of RESP.
//!
//! Invariant: whatever a server sends, the parser never waits for much more than
//! [`BULK_BYTES_MAX`].

/// The longest line of a reply.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The largest value. Jobs are far smaller, and the target would refuse a larger one anyway.
pub(super) const BULK_BYTES_MAX: usize = 64 << 20;

/// A server's reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR text`: a word and a message.
    Error { word: String, message: String },
    /// `:1`
    Integer(i64),
    /// `$5`, then five bytes.
    Bulk(Vec<u8>),
    /// `$-1`: no value.
    Nil,
}

/// The reply at the start of `bytes` and its length; `None` if it is incomplete.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, String> {
    let searched = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    let Some(end) = searched.windows(2).position(|pair| pair == b"\r\n") else {
        return match searched.len() {
            LINE_BYTES_MAX => Err(format!("a line of more than {LINE_BYTES_MAX} bytes")),
            _ => Ok(None),
        };
    };
    let (Some(kind), after) = (bytes.first(), end + 2) else { return Ok(None) };
    let line =
        std::str::from_utf8(&bytes[1.min(end)..end]).map_err(|_| "a line that is not UTF-8")?;
    let reply = match kind {
        b'+' => Reply::Simple(line.to_owned()),
        b'-' => {
            let (word, message) = line.split_once(' ').unwrap_or((line, ""));
            Reply::Error { word: word.to_owned(), message: message.to_owned() }
        }
        b':' => Reply::Integer(line.parse().map_err(|_| strange(line))?),
        b'$' if line == "-1" => Reply::Nil,
        b'$' => {
            let length: usize = line.parse().map_err(|_| strange(line))?;
            if length > BULK_BYTES_MAX {
                return Err(format!(
                    "a value of {length} bytes; at most {BULK_BYTES_MAX} are taken"
                ));
            }
            return bulk(&bytes[after..], length, after);
        }
        _ => return Err(strange(&String::from_utf8_lossy(&bytes[..end]))),
    };
    Ok(Some((reply, after)))
}

/// The value, which begins at `start`, after its length.
fn bulk(bytes: &[u8], length: usize, start: usize) -> Result<Option<(Reply, usize)>, String> {
    let Some(value) = bytes.get(..length + 2) else { return Ok(None) };
    let (value, end) = value.split_at(length);
    if end != b"\r\n" {
        return Err("a value that does not end where it says".to_owned());
    }
    Ok(Some((Reply::Bulk(value.to_owned()), start + length + 2)))
}

fn strange(line: &str) -> String {
    let shown: String = line.chars().take(60).collect();
    format!("{shown:?}, which is no reply of a Faktory server")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(word: &str, message: &str) -> Reply {
        Reply::Error { word: word.to_owned(), message: message.to_owned() }
    }

    #[test]
    fn each_kind_is_read_and_no_prefix_of_it_is_taken_for_whole() {
        for (text, reply) in [
            ("+OK\r\n", Reply::Simple("OK".into())),
            ("+\r\n", Reply::Simple(String::new())),
            ("+HI {\"v\":2}\r\n", Reply::Simple("HI {\"v\":2}".into())),
            ("-ERR Job not found x\r\n", error("ERR", "Job not found x")),
            ("-NOTUNIQUE Job not unique\r\n", error("NOTUNIQUE", "Job not unique")),
            ("-ERR\r\n", error("ERR", "")),
            (":-7\r\n", Reply::Integer(-7)),
            ("$-1\r\n", Reply::Nil),
            ("$0\r\n\r\n", Reply::Bulk(Vec::new())),
            ("$4\r\na\r\nb\r\n", Reply::Bulk(b"a\r\nb".to_vec())),
        ] {
            for end in 0..text.len() {
                assert_eq!(parse(&text.as_bytes()[..end]), Ok(None), "{text:?} up to {end}");
            }
            let more = format!("{text}+OK\r\n");
            assert_eq!(parse(more.as_bytes()), Ok(Some((reply, text.len()))), "{text:?}");
        }
    }

    #[test]
    fn an_invalid_reply_is_named() {
        for (text, words) in [
            ("HTTP/1.1 400 Bad Request\r\n", "HTTP/1.1"),
            ("\r\n", "no reply"),
            (":many\r\n", "many"),
            ("$x\r\n", "no reply"),
            ("$-2\r\n", "-2"),
            ("$2\r\nabc\r\n", "does not end"),
            ("$99999999999999999999999\r\n", "no reply"),
            ("$67108865\r\n", "at most 67108864"),
        ] {
            let told = parse(text.as_bytes()).expect_err(text);
            assert!(told.contains(words), "{text:?}: {told}");
        }
        assert!(parse(b"+\xff\r\n").is_err());
    }

    #[test]
    fn an_endless_line_is_not_waited_for() {
        let mut line = vec![b'+'];
        line.resize(LINE_BYTES_MAX - 1, b'x');
        assert_eq!(parse(&line), Ok(None));
        line.push(b'x');
        assert!(parse(&line).unwrap_err().contains("a line of more than"));
    }
}
