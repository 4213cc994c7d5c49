//! Logs to stderr, as text or JSON.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::{
    args::{LogArgs, LogFormat},
    output::may_colour,
    remote::usage,
};

/// Starts logging. Call it once.
pub(crate) fn start(args: &LogArgs) -> anyhow::Result<()> {
    let filter = args.log.as_deref().filter(|filter| !filter.is_empty()).unwrap_or("info");
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| usage(format!("--log {filter} is not a filter: {error}")))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match args.log_format {
        LogFormat::Text => {
            log.with_ansi(may_colour() && io::stderr().is_terminal()).with_target(false).init();
        }
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
