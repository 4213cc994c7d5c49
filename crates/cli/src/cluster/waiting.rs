//! Waiting: how long a command waits for a cluster, and the messages meanwhile.

use std::{future::Future, time::Duration};

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{output::Output, values::show_duration};

/// The default timeout.
const WAIT_FOR: Duration = Duration::from_secs(600);
/// How often the cluster's state is checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The shortest time between two messages: while shards move, the reason changes all the time.
const SAY_EVERY_MIN: Duration = Duration::from_secs(1);
/// The shortest time before an equal message is repeated.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// A wait with a timeout.
pub(super) struct Waiting {
    output: Output,
    wait_for: Duration,
    until: Instant,
    /// The last message, and its time.
    said: Option<(String, Instant)>,
    /// The last reason to wait.
    still: String,
}

impl Waiting {
    pub(super) fn new(output: Output, wait_for: Option<Duration>) -> Waiting {
        let wait_for = wait_for.unwrap_or(WAIT_FOR);
        // A timeout that is too far away for the clock means none.
        let far = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        let until = Instant::now() + wait_for.min(far);
        Waiting { output, wait_for, until, said: None, still: "the cluster does not answer".into() }
    }

    /// Asks for the cluster's state, within the rest of the timeout.
    pub(super) async fn look<T, E: Into<anyhow::Error>>(
        &self,
        look: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        match timeout_at(self.until, look).await {
            Ok(seen) => seen.map_err(Into::into),
            Err(_elapsed) => self.end(),
        }
    }

    /// Waits until the next check; `still` is the reason. Fails after the timeout.
    pub(super) async fn go_on(&mut self, still: String) -> Result<()> {
        let now = Instant::now();
        self.still = still;
        if now >= self.until {
            return self.end();
        }
        let is_news = match &self.said {
            None => true,
            Some((said, at)) if *said == self.still => now - *at >= SAY_EVERY,
            Some((_, at)) => now - *at >= SAY_EVERY_MIN,
        };
        if is_news {
            self.output.say(format_args!("waiting: {}", self.still));
            self.said = Some((self.still.clone(), now));
        }
        sleep(LOOK_EVERY.min(self.until - now)).await;
        Ok(())
    }

    fn end<T>(&self) -> Result<T> {
        let (wait_for, still) = (show_duration(self.wait_for), &self.still);
        bail!("gave up after {wait_for}: {still}; wait longer with --timeout")
    }
}
