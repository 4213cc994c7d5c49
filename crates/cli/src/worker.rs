//! `taskyard worker`: shows, quiets and stops workers.

use anyhow::Result;
use serde::Serialize;
use taskyard::{WorkerDetails, WorkerList};

use crate::{
    args::WorkerCommand,
    output::{Colour, Output, Table, now, plain, relative, shorten},
    remote::{Remote, about},
    values,
};

pub(crate) async fn run(remote: &Remote, command: WorkerCommand) -> Result<()> {
    let Remote { client, output, .. } = remote;
    match command {
        WorkerCommand::List => {
            let WorkerList { workers, missing_nodes, .. } = client.workers().await?;
            if !missing_nodes.is_empty() {
                note_missing(*output, &missing_nodes);
            }
            if output.is_json() {
                for worker in &workers {
                    output.json_line(worker)?;
                }
            } else if workers.is_empty() {
                output.say(match missing_nodes.is_empty() {
                    true => "no workers are connected",
                    false => "no workers are connected to the other nodes",
                });
            } else {
                output.value(&(), |()| table(&workers).render(*output))?;
            }
        }
        WorkerCommand::Quiet { ids } => {
            for id in ids {
                let asked = remote.patiently(client.quiet_worker(&id)).await;
                asked.map_err(|error| about(error, "worker", &id))?;
                let text = format!("{id} finishes its tasks and claims nothing more");
                output.done(&Asked { id: &id, state: "quiet" }, text)?;
            }
        }
        WorkerCommand::Stop { ids } => {
            for id in ids {
                let asked = remote.patiently(client.stop_worker(&id)).await;
                asked.map_err(|error| about(error, "worker", &id))?;
                let text = format!("{id} was asked to shut down");
                output.done(&Asked { id: &id, state: "stopping" }, text)?;
            }
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct Asked<'a> {
    id: &'a str,
    state: &'static str,
}

/// Reports on stderr, also to scripts, that the list is incomplete.
fn note_missing(output: Output, nodes: &[u64]) {
    if output.is_json() {
        eprintln!("{}", serde_json::json!({ "missing_nodes": nodes }));
        return;
    }
    let names: Vec<String> = nodes.iter().map(u64::to_string).collect();
    let (nodes, their) = match names.as_slice() {
        [one] => (format!("node {one}"), "its"),
        several => (format!("nodes {}", several.join(", ")), "their"),
    };
    output.say(format_args!("{nodes} did not answer: {their} workers are not listed"));
}

fn table(workers: &[WorkerDetails]) -> Table {
    let now = now();
    let columns = [
        "id",
        "name",
        "state",
        ">busy",
        "queues",
        "types",
        "node",
        "host",
        ">pid",
        ">memory",
        "connected",
        "beat",
    ];
    let mut table = Table::new(&columns);
    for worker in workers {
        let colour = match worker.state.as_str() {
            "running" => Colour::Green,
            "lost" => Colour::Red,
            _ => Colour::Yellow,
        };
        table.row(vec![
            plain(&worker.id),
            (Colour::Bold, worker.name.clone()),
            (colour, worker.state.clone()),
            plain(format!("{}/{}", worker.busy, worker.slots)),
            plain(shorten(&worker.queues.join(" "), 40)),
            plain(types(worker)),
            plain(worker.node),
            plain(&worker.host),
            plain(worker.pid),
            plain(values::show_size(worker.rss_bytes)),
            plain(relative(worker.connected_at, now)),
            plain(relative(worker.beat_at, now)),
        ]);
    }
    table
}

/// The queues and types of a worker, cut to the width of a column.
fn types(worker: &WorkerDetails) -> String {
    match worker.types.is_empty() {
        true => "any".to_owned(),
        false => shorten(&worker.types.join(" "), 40),
    }
}
