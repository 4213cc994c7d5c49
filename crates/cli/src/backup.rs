//! `taskyard backup`: a consistent copy of a running broker.
//!
//! A backup file appears under its name only when it is whole and on disk, so that one that is
//! there is one that can be trusted.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::Serialize;
use taskyard::Client;

use crate::{
    args::BackupArgs,
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
    let Remote { client, output } = remote;
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
            "saved {} shards, {}, to {}",
            done.shards,
            values::show_size(done.bytes),
            done.file.display()
        )
    })?;
    Ok(())
}

async fn copy(client: &Client, output: Output, to: &mut impl Write) -> Result<(u64, u32)> {
    let mut backup = client.backup().await?;
    let bar = output::progress(output, None, "bytes");
    let (mut bytes, mut shards) = (0, 0);
    while let Some(chunk) = backup.next().await? {
        to.write_all(&chunk.data).context("cannot write the backup")?;
        bytes += chunk.data.len() as u64;
        shards = chunk.shards;
        bar.set_position(bytes);
        bar.set_message(format!("shard {} of {}", chunk.shards_done, chunk.shards));
    }
    to.flush()?;
    bar.finish_and_clear();
    Ok((bytes, shards))
}

/// A file that is not whole yet; removed unless it is kept.
struct Part {
    file: File,
    path: PathBuf,
}

impl Part {
    fn create(target: &Path) -> Result<Part> {
        let mut name = target.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let path = PathBuf::from(name);
        let file = File::create_new(&path)
            .with_context(|| format!("cannot write beside {}", target.display()))?;
        Ok(Part { file, path })
    }

    fn keep(self, target: &Path) -> Result<()> {
        let kept = self.file.sync_all().and_then(|()| fs::rename(&self.path, target));
        kept.with_context(|| format!("cannot write {}", target.display()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Gone already if it was kept.
        let _ = fs::remove_file(&self.path);
    }
}
