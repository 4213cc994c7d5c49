//! Logs to stderr, as text or JSON.

use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};

use tracing_subscriber::EnvFilter;

use crate::{
    args::{LogArgs, LogFormat},
    output::may_colour,
    remote::usage,
};

/// The format of the log, once logging has started.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();
const FILTER: &str = "info";

/// Whether stderr gets only JSON.
pub(crate) fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Starts logging by the command line. Call it once.
pub(crate) fn start(args: &LogArgs) -> anyhow::Result<()> {
    let filter = args.log.as_deref().map(checked).transpose();
    start_as(filter.as_ref().ok().and_then(Option::as_deref), args.log_format);
    filter.map(|_| ()).map_err(|problem| usage(format!("--log: {problem}")))
}

/// Starts logging; `filter` must be [checked].
pub(crate) fn start_as(filter: Option<&str>, format: LogFormat) {
    let filter = filter.filter(|filter| !filter.is_empty()).unwrap_or(FILTER);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let _ = FORMAT.set(format);
    match format {
        LogFormat::Text => {
            log.with_ansi(may_colour() && io::stderr().is_terminal()).with_target(false).init();
        }
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Checks a filter.
pub(crate) fn checked(filter: &str) -> Result<String, String> {
    match EnvFilter::try_new(filter) {
        Ok(_) => Ok(filter.to_owned()),
        Err(error) => Err(format!("{filter:?} is not a valid log filter: {error}")),
    }
}

/// Writes an error as a line of a JSON log, whatever the filter is.
pub(crate) fn json_error(code: &str, text: &str) {
    let timestamp = format!("{:.6}", jiff::Timestamp::now());
    let line = serde_json::json!({
        "timestamp": timestamp, "level": "ERROR", "message": text, "code": code, "target": "taskyard",
    });
    eprintln!("{line}");
}
