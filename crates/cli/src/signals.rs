//! SIGINT and SIGTERM: the first signal stops gracefully, the second one at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Catches the signals: from here on, they no longer end the process by themselves.
    pub(crate) fn listen() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Runs `graceful` to its end. Another signal ends the process at once.
    pub(crate) async fn or_at_once<T>(&mut self, graceful: impl Future<Output = T>) -> T {
        tokio::select! {
            done = graceful => done,
            () = self.next() => {
                eprintln!("stopped at once");
                std::process::exit(1);
            }
        }
    }
}
