//! Kept: the first or the last bytes of a stream, within a bound, whatever a child prints.

use std::{
    collections::VecDeque,
    io::{self, PipeWriter, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// The end of a stream that is kept.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keep {
    First,
    Last,
}

/// Up to `bytes_max` bytes of a stream.
struct Kept {
    keep: Keep,
    bytes: VecDeque<u8>,
    bytes_max: usize,
    /// The number of all bytes of the stream, the dropped ones included.
    total: u64,
}

impl Kept {
    fn new(keep: Keep, bytes_max: usize) -> Kept {
        Kept { keep, bytes: VecDeque::new(), bytes_max, total: 0 }
    }

    fn push(&mut self, chunk: &[u8]) {
        self.total = self.total.saturating_add(chunk.len() as u64);
        match self.keep {
            Keep::First => {
                let room = self.bytes_max - self.bytes.len();
                self.bytes.extend(&chunk[..chunk.len().min(room)]);
            }
            Keep::Last => {
                let kept = &chunk[chunk.len().saturating_sub(self.bytes_max)..];
                let overflow = (self.bytes.len() + kept.len()).saturating_sub(self.bytes_max);
                self.bytes.drain(..overflow);
                self.bytes.extend(kept);
            }
        }
    }

    fn to_vec(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }
}

/// A thread that reads a stream to its end and keeps a part of it.
///
/// The part can be taken before the end of the stream, because a process outside of the task may
/// keep the stream open for ever.
pub(super) struct Reader {
    kept: Arc<Mutex<Kept>>,
    reader: thread::JoinHandle<()>,
}

impl Reader {
    /// Starts reading a pipe, and returns the pipe's end for writing.
    pub(super) fn start(keep: Keep, bytes_max: usize) -> io::Result<(Reader, PipeWriter)> {
        let (mut stream, writer) = io::pipe()?;
        let kept = Arc::new(Mutex::new(Kept::new(keep, bytes_max)));
        let shared = Arc::clone(&kept);
        let reader = thread::Builder::new().spawn(move || {
            let mut chunk = vec![0; 64 << 10];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                lock(&shared).push(&chunk[..count]);
            }
        })?;
        Ok((Reader { kept, reader }, writer))
    }

    /// Whether the stream has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.reader.is_finished()
    }

    /// The kept bytes so far, and the number of all bytes.
    pub(super) fn take(&self) -> (Vec<u8>, u64) {
        let kept = lock(&self.kept);
        (kept.to_vec(), kept.total)
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_or_the_last_bytes_stay() {
        for (chunks, first, last) in [
            (vec!["ab"], "ab", "ab"),
            (vec!["abcd"], "abcd", "abcd"),
            (vec!["abc", "def"], "abcd", "cdef"),
            (vec!["a", "bcdefghi"], "abcd", "fghi"),
            (vec!["abcdef", "", "g"], "abcd", "defg"),
        ] {
            for (keep, expected) in [(Keep::First, first), (Keep::Last, last)] {
                let mut kept = Kept::new(keep, 4);
                for chunk in &chunks {
                    kept.push(chunk.as_bytes());
                }
                assert_eq!(kept.to_vec(), expected.as_bytes(), "{keep:?} {chunks:?}");
                assert_eq!(kept.total, chunks.concat().len() as u64, "{keep:?} {chunks:?}");
            }
        }
    }
}
