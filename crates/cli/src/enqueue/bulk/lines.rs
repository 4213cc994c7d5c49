//! The lines of a file of tasks, read on a thread of their own.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use anyhow::{Context, Result};
use tokio::sync::mpsc;

/// Room for the largest payload and the other fields of a task.
const LINE_BYTES_MAX: usize = 12 << 20;
/// The byte order mark with which some editors begin a file; it is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line with its number, from 1.
pub(super) struct Line {
    pub(super) number: u64,
    /// The unchanged line, or the start of a line that is too long.
    pub(super) bytes: Vec<u8>,
}

impl Line {
    /// The line as text, or the reason why it can't be one.
    pub(super) fn text(&self) -> Result<&str> {
        anyhow::ensure!(
            self.bytes.len() <= LINE_BYTES_MAX,
            "it is longer than {LINE_BYTES_MAX} bytes"
        );
        std::str::from_utf8(&self.bytes).context("it is not UTF-8")
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.trim_ascii().is_empty()
    }
}

/// The next lines. The last item may be the error that ended the reading.
pub(super) type Lines = mpsc::Receiver<io::Result<Line>>;

/// Reads the lines of a file or of stdin (`-`); also returns the size of the file.
pub(super) fn open(file: &Path) -> Result<(Lines, Option<u64>)> {
    let (source, total): (Box<dyn Read + Send>, _) = if file.as_os_str() == "-" {
        (Box::new(io::stdin()), None)
    } else {
        let open = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        let total = open.metadata().ok().filter(|meta| meta.is_file()).map(|meta| meta.len());
        (Box::new(open), total)
    };
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        let mut source = BufReader::new(source);
        for number in 1.. {
            let line = read(&mut source, number).transpose();
            let Some(line) = line else { return };
            let is_last = line.is_err();
            // This thread may block, which bounds how far the reading is ahead.
            if sender.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    });
    Ok((receiver, total))
}

fn read(source: &mut impl BufRead, number: u64) -> io::Result<Option<Line>> {
    let mut bytes = Vec::new();
    let read = source.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes)?;
    if read == 0 {
        return Ok(None);
    }
    if read > LINE_BYTES_MAX {
        source.skip_until(b'\n')?;
    }
    if number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(Some(Line { number, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<Line> {
        let mut source = BufReader::new(bytes);
        (1..).map_while(|number| read(&mut source, number).unwrap()).collect()
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let lines = all(b"\xef\xbb\xbf{}\n{}");
        let texts: Vec<&str> = lines.iter().map(|line| line.text().unwrap()).collect();
        assert_eq!(texts, ["{}\n", "{}"]);
    }

    #[test]
    fn lines_that_are_too_long_or_no_text_are_told_and_the_next_is_read() {
        let mut file = vec![b'x'; 2 * LINE_BYTES_MAX];
        file.extend(b"\n\xff\n\n{}\n");
        let lines = all(&file);
        let problem = |line: &Line| line.text().unwrap_err().to_string();
        assert!(problem(&lines[0]).contains("longer"));
        assert!(problem(&lines[1]).contains("UTF-8"));
        assert!(lines[2].is_empty() && lines[3].text().unwrap() == "{}\n");
        assert_eq!(lines.len(), 4);
    }
}
