//! `taskyard worker`: look at workers, quiet and stop them.

use anyhow::{Context, Result};
use serde::Serialize;
use taskyard::WorkerDetails;

use crate::{
    args::WorkerCommand,
    output::{Colour, Table, now, plain, relative, shorten},
    remote::Remote,
    values,
};

pub(crate) async fn run(remote: &Remote, command: WorkerCommand) -> Result<()> {
    let Remote { client, output, .. } = remote;
    match command {
        WorkerCommand::List => {
            let workers = client.workers().await?;
            if output.is_json() {
                for worker in &workers {
                    output.json_line(worker)?;
                }
            } else if workers.is_empty() {
                output.say("no workers are connected");
            } else {
                output.value(&(), |()| table(&workers).render(*output))?;
            }
        }
        WorkerCommand::Quiet { ids } => {
            for id in ids {
                client.quiet_worker(&id).await.with_context(|| format!("worker {id}"))?;
                let text = format!("{id} finishes what it has and claims nothing more");
                output.done(&Asked { id: &id, state: "quiet" }, text)?;
            }
        }
        WorkerCommand::Stop { ids } => {
            for id in ids {
                client.stop_worker(&id).await.with_context(|| format!("worker {id}"))?;
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

fn table(workers: &[WorkerDetails]) -> Table {
    let now = now();
    let columns =
        ["id", "name", "state", ">busy", "queues", "host", ">pid", ">memory", "connected", "beat"];
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
            plain(&worker.host),
            plain(worker.pid),
            plain(values::show_size(worker.rss_bytes)),
            plain(relative(worker.connected_at, now)),
            plain(relative(worker.beat_at, now)),
        ]);
    }
    table
}
