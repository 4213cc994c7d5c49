//! `taskyard backup` and `taskyard restore`: a consistent copy of a running broker, and back.
//!
//! A backup file gets its name only when it is complete and synced to disk, so that every file
//! under such a name is complete.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;
use taskyard::Client;

use crate::{
    args::{BackupArgs, RestoreArgs},
    output::{self, Output},
    remote::{Remote, usage},
    values,
};

#[derive(Serialize)]
struct Done<'a> {
    file: &'a Path,
    bytes: u64,
    shards: u32,
}

pub(crate) async fn backup(remote: &Remote, args: &BackupArgs) -> Result<()> {
    let Remote { client, output, .. } = remote;
    if args.file.as_os_str() == "-" {
        copy(client, *output, &mut io::stdout().lock()).await?;
        return Ok(());
    }
    if args.file.exists() && !args.force {
        let file = args.file.display();
        return Err(usage(format!(
            "{file} is there already: name another, or replace it with --force"
        )));
    }
    let part = Part::create(&args.file)?;
    let (bytes, shards) = copy(client, *output, &mut &part.file).await?;
    part.keep(&args.file)?;
    output.value(&Done { file: &args.file, bytes, shards }, |done| {
        format!(
            "saved {}, {}, to {}",
            values::count(done.shards.into(), "shard"),
            values::show_size(done.bytes),
            done.file.display()
        )
    })?;
    Ok(())
}

async fn copy(client: &Client, output: Output, to: &mut impl Write) -> Result<(u64, u32)> {
    let mut backup = client.backup().await?;
    let bar = output::progress(output, None, "bytes");
    let (mut bytes, mut shards, mut done) = (0, 0, 0);
    while let Some(chunk) = backup.next().await? {
        to.write_all(&chunk.data).context("cannot write the backup")?;
        bytes += chunk.data.len() as u64;
        (shards, done) = (chunk.shards, chunk.shards_done);
        bar.set_position(bytes);
        bar.set_message(format!("shard {} of {}", chunk.shards_done, chunk.shards));
    }
    to.flush()?;
    bar.finish_and_clear();
    anyhow::ensure!(
        shards > 0 && done == shards,
        "the broker sent {done} of {shards} shards and no more; try again"
    );
    Ok((bytes, shards))
}

#[derive(Serialize)]
struct Restored<'a> {
    data: &'a Path,
    tasks: u64,
}

/// Works on files alone, without a broker.
pub(crate) fn restore(args: &RestoreArgs, output: Output) -> Result<()> {
    let total = fs::metadata(&args.file).map(|file| file.len()).ok();
    let bar = output::progress(output, total, "bytes");
    let end = taskyard_server::restore(&args.file, &args.data, |progress| {
        bar.set_position(progress.bytes_read);
        bar.set_message(format!("{} tasks", progress.tasks));
    });
    bar.finish_and_clear();
    let tasks = end?.tasks;
    output.value(&Restored { data: &args.data, tasks }, |restored| {
        let data = restored.data.display();
        let tasks = values::count(restored.tasks, "task");
        format!("restored {tasks}; start it with taskyard serve --data {data}")
    })?;
    Ok(())
}

/// An incomplete file, which is removed unless it is kept.
struct Part {
    file: File,
    path: PathBuf,
}

impl Part {
    fn create(target: &Path) -> Result<Part> {
        let mut name = target.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let path = PathBuf::from(name);
        // The file has all payloads, so that only its owner may read it.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot write beside {}", target.display()))?;
        Ok(Part { file, path })
    }

    fn keep(self, target: &Path) -> Result<()> {
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let keep = || {
            self.file.sync_all()?;
            fs::rename(&self.path, target)?;
            // The file's name must survive a power cut too.
            File::open(folder)?.sync_all()
        };
        keep().with_context(|| format!("cannot write {}", target.display()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Fails if the file was kept, because it has its final name then.
        let _ = fs::remove_file(&self.path);
    }
}
