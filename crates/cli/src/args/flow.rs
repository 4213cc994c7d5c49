//! Arguments of the commands that run, show and change flows.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum FlowCommand {
    /// Submit the flow in a file, and wait for its end.
    Run(FlowRunArgs),
    #[command(flatten)]
    Operate(FlowOperation),
}

/// The commands on a submitted flow.
#[derive(Debug, Subcommand)]
pub(crate) enum FlowOperation {
    /// Show a flow: its graph, node by node.
    #[command(after_help = STATUS_HELP)]
    Status {
        /// Its id, as run and list print it.
        #[arg(value_name = "ID")]
        id: String,
        /// Show each node, instead of one line for many similar nodes.
        #[arg(long, short)]
        all: bool,
    },
    /// Wait for a flow's end. Exits 1 if it does not succeed.
    Wait {
        /// Its id, as run and list print it.
        #[arg(value_name = "ID")]
        id: String,
        /// Give up after this long.
        #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
        wait_for: Option<Duration>,
    },
    /// List flows that match.
    List(FlowListArgs),
    /// Cancel flows: waiting tasks end at once, running tasks when their workers yield.
    Cancel {
        /// Their ids, as run and list print them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
    /// Run the failed tasks of flows again, and then the tasks that wait for them.
    Retry {
        /// Their ids, as run and list print them.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}

const STATUS_HELP: &str = "\
Symbols: ✔ succeeded, ▶ claimed, ● ready, ◷ scheduled, ○ blocked, ✖ dead or failed, ⊘ cancelled or expired.
Five nodes or more that are alike are one line with their counts; --all shows each.";

#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct FlowRunArgs {
    /// The flow, in YAML or JSON; - for stdin.
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    /// Print the flow's id and do not wait.
    #[arg(long, short)]
    pub(crate) detach: bool,
    /// Stop waiting after this long; the flow goes on.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, conflicts_with = "detach")]
    pub(crate) wait_for: Option<Duration>,
}

const RUN_HELP: &str = "\
A file names its nodes and what each comes after:
  name: thumbnails
  nodes:
    - name: fetch
      type: http_get
      payload: {url: https://example.com/a.jpg}
    - name: small
      type: resize
      queue: media
      depends_on: [fetch]
    - name: report
      type: send_report
      depends_on: [{name: small, on_failure: run}]

on_failure says what becomes of a node when one that it depends on fails: fail (it fails too, the
default), ignore (it runs, and the flow may succeed), run (it runs and sees the error; the flow
fails in the end). Everything else is what enqueue takes; docs/flows.md has all of it.

Ctrl-C stops the waiting, not the flow. Exits 0 if the flow succeeds, 1 if it does not.";

#[derive(Debug, Args)]
pub(crate) struct FlowListArgs {
    /// Only flows with this name.
    #[arg(long, value_name = "NAME", value_parser = values::word)]
    pub(crate) name: Option<String>,
    /// Only flows in this state: running, succeeded, failed, cancelled.
    #[arg(long, short, value_name = "STATE")]
    pub(crate) state: Option<taskyard::flow::FlowState>,
    /// Print at most this many.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    pub(crate) limit: usize,
    /// Continue an earlier list at the cursor that it printed.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
}
