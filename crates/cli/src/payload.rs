//! Payloads of the command line: JSON text, `@FILE`, or `-` for stdin.

use std::io::Read;

use anyhow::{Context, Result};
use taskyard_server::front::check_json;

use crate::{output::shorten, remote::usage};

/// More bytes than any broker accepts: a larger file is refused before it is read to the end.
const BYTES_MAX: u64 = 64 << 20;

/// Reads the bytes that `argument` stands for.
pub(crate) fn read(argument: &str) -> Result<Vec<u8>> {
    match argument.strip_prefix('@') {
        Some(file) => {
            let open = std::fs::File::open(file).with_context(|| format!("cannot read {file}"))?;
            read_bounded(open).with_context(|| format!("cannot read {file}"))
        }
        None if argument == "-" => read_bounded(std::io::stdin()).context("cannot read stdin"),
        None => Ok(argument.as_bytes().to_vec()),
    }
}

/// Reads the bytes that `argument` stands for; they must be JSON.
pub(crate) fn read_json(argument: &str) -> Result<Vec<u8>> {
    let bytes = read(argument)?;
    check_json(&bytes).map_err(|problem| {
        let shown = shorten(&String::from_utf8_lossy(&bytes), 60);
        usage(format!(
            "the payload {shown} is not JSON ({problem}): quote it for the shell, as in \
             '{{\"key\": 1}}' or '\"text\"', or send it as it is with --raw"
        ))
    })?;
    Ok(bytes)
}

fn read_bounded(from: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        anyhow::bail!(
            "it is larger than any payload may be; put it in a file store and enqueue a reference"
        );
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::Usage;

    #[test]
    fn json_is_taken_as_it_is() {
        for text in ["null", "{\"a\": 1}", "\"text\"", " [1,2] "] {
            assert_eq!(read_json(text).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn a_payload_that_is_not_json_is_a_usage_error_with_a_hint() {
        for text in ["hello", "{a: 1}", "", "{} {}", "ünïcode"] {
            let error = read_json(text).unwrap_err();
            let Usage(message) = error.downcast_ref().unwrap();
            assert!(message.contains("--raw") && message.contains("quote it"), "{message}");
        }
    }

    #[test]
    fn json_that_some_language_cannot_read_is_refused_as_over_http() {
        let deep = "[".repeat(61) + &"]".repeat(61);
        for (text, part) in
            [(&*deep, "60 levels"), (r#""\ud800""#, "surrogate"), ("1e999", "out of range")]
        {
            let error = read_json(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, b"\"\xff\"").unwrap();
        let error = read_json(&format!("@{}", file.path().display())).unwrap_err().to_string();
        assert!(error.contains("not UTF-8"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read("@/no/such/file").unwrap_err();
        assert!(format!("{error:#}").contains("cannot read /no/such/file"), "{error:#}");
    }
}
