//! Watch: handles signals, orders of the old server, and its silence, while the import works.
//!
//! A separate async task sends beats over its own connection. Every wait of the import goes through
//! [`Watch::attend`], so that it can be stopped even if a server hangs.

use std::{future::Future, pin::pin, sync::Arc};

use anyhow::Result;
use taskyard_cli::faktory::{BEAT_EVERY, Connection, Error, Orders};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use super::tally::Tally;
use crate::signals::Signals;

pub(super) struct Watch {
    signals: Signals,
    tally: Arc<Tally>,
    /// Orders to stop. The stream ends with an error.
    heard: Receiver<Result<Orders, Error>>,
    beating: JoinHandle<()>,
}

impl Watch {
    /// Starts the beats and catches signals: from here on, signals no longer end the process by
    /// themselves.
    pub(super) fn begin(connection: Connection, wid: String, tally: &Arc<Tally>) -> Result<Watch> {
        let (hear, heard) = mpsc::channel(1);
        let signals = Signals::listen()?;
        let beating = tokio::spawn(beat(connection, wid, hear));
        Ok(Watch { signals, tally: Arc::clone(tally), heard, beating })
    }

    /// Runs `work` to its end, and handles signals and the old server's orders meanwhile. Fails if
    /// the old server falls silent.
    pub(super) async fn attend<F: Future>(&mut self, work: F) -> Result<F::Output> {
        let mut work = pin!(work);
        let mut silent = None;
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = self.signals.next() => {
                    if self.tally.is_interrupted() {
                        eprintln!("stopped at once");
                        std::process::exit(1);
                    }
                    self.tally.say("finishing the jobs under way; another signal stops at once");
                    self.tally.interrupt();
                }
                Some(heard) = self.heard.recv() => match heard {
                    Ok(Orders::GoOn) => {}
                    Ok(Orders::Quiet | Orders::Terminate) => {
                        self.tally.say("the old server orders a stop; finishing the jobs under way");
                        self.tally.obey();
                    }
                    Err(error) => {
                        self.tally.stop();
                        silent = Some(error);
                    }
                },
            }
        };
        silent.map_or(Ok(done), |error| Err(error.into()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

/// Sends beats until the server orders a stop or falls silent, and passes that on.
async fn beat(mut connection: Connection, wid: String, hear: Sender<Result<Orders, Error>>) {
    let mut beat = interval(BEAT_EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_told = false;
    loop {
        beat.tick().await;
        let answer = connection.beat(&wid).await;
        let is_lost = answer.is_err();
        // It is told once; the server says it with each beat.
        let is_news = is_lost || !is_told && !matches!(answer, Ok(Orders::GoOn));
        if is_news {
            is_told = true;
            if hear.send(answer).await.is_err() {
                return;
            }
        }
        if is_lost {
            return;
        }
    }
}
