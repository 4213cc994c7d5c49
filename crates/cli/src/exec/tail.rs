//! The last bytes of a stream: whatever a child prints, this holds no more than its bound.

use std::{
    collections::VecDeque,
    io::{self, PipeWriter, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// A stream's last `bytes_max` bytes.
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    bytes_max: usize,
}

impl Tail {
    pub(super) fn new(bytes_max: usize) -> Tail {
        Tail { bytes: VecDeque::new(), bytes_max }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        let kept = &chunk[chunk.len().saturating_sub(self.bytes_max)..];
        let overflow = (self.bytes.len() + kept.len()).saturating_sub(self.bytes_max);
        self.bytes.drain(..overflow);
        self.bytes.extend(kept);
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }
}

/// A thread that reads a stream to its end and keeps its tail.
///
/// The tail can be taken before the end: a stream handed to a process outside the tree would
/// otherwise never end.
pub(super) struct TailReader {
    tail: Arc<Mutex<Tail>>,
    reader: thread::JoinHandle<()>,
}

impl TailReader {
    /// Starts reading what will be written into the pipe that comes with it.
    pub(super) fn start(bytes_max: usize) -> io::Result<(TailReader, PipeWriter)> {
        let (mut stream, writer) = io::pipe()?;
        let tail = Arc::new(Mutex::new(Tail::new(bytes_max)));
        let shared = Arc::clone(&tail);
        let reader = thread::Builder::new().spawn(move || {
            let mut chunk = vec![0; 64 << 10];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                lock(&shared).push(&chunk[..count]);
            }
        })?;
        Ok((TailReader { tail, reader }, writer))
    }

    /// Whether the stream has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.reader.is_finished()
    }

    /// What there is so far.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        lock(&self.tail).to_vec()
    }
}

fn lock(tail: &Mutex<Tail>) -> MutexGuard<'_, Tail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::Tail;

    #[test]
    fn only_the_last_bytes_stay() {
        for (chunks, kept) in [
            (vec!["ab"], "ab"),
            (vec!["abcd"], "abcd"),
            (vec!["abc", "def"], "cdef"),
            (vec!["a", "bcdefghi"], "fghi"),
            (vec!["abcdef", "", "g"], "defg"),
        ] {
            let mut tail = Tail::new(4);
            for chunk in &chunks {
                tail.push(chunk.as_bytes());
            }
            assert_eq!(tail.to_vec(), kept.as_bytes(), "{chunks:?}");
        }
    }
}
