//! Joining: a locked data directory on its way into a cluster.
//!
//! Invariant: a directory keeps one instance number from its first request for a place until it has
//! one. So a node that crashed before it got the answer gets the same place when it asks again.

use super::{
    DataDir, Format, JOINING_FILE, Origin, PEERS_FILE, claim, read_format, refuse_foreign,
    sync_dir, unusable, write_synced,
};
use crate::{node::StartError, random::random_u128};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};
use taskyard_replica::NodeId;

/// A directory without a place in a cluster.
#[derive(Debug)]
pub(crate) struct Joining {
    path: PathBuf,
    instance: u128,
    lock: File,
}

impl Joining {
    /// Locks `path`. The inner `Err` is the format of an existing data directory.
    pub(crate) fn begin(path: &Path) -> Result<Result<Joining, Format>, StartError> {
        let lock = claim(path)?;
        if let Some(format) = read_format(path)? {
            return Ok(Err(format));
        }
        refuse_foreign(path)?;
        let unusable = |error: io::Error| unusable(path, &error);
        let file = path.join(JOINING_FILE);
        let instance = match fs::read_to_string(&file) {
            // An empty file was made by a node that ended before it could ask.
            Ok(text) if !text.trim_matches('\0').is_empty() => parse(&text).ok_or_else(|| {
                StartError(format!(
                    "{} is damaged; remove it, and the node that it stands for from the cluster, if \
                     `taskyard cluster status` shows one that never came up",
                    file.display()
                ))
            })?,
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(error)),
            Ok(_) | Err(_) => {
                // 0 is not a valid instance.
                let instance = random_u128().max(1);
                let text = format!("# A node that asks to join. Don't edit.\ninstance = {instance:032x}\n");
                write_synced(&file, &text).and_then(|()| sync_dir(path)).map_err(unusable)?;
                instance
            }
        };
        Ok(Ok(Joining { path: path.to_path_buf(), instance, lock }))
    }

    /// The random number that identifies the directory until it has a node number.
    pub(crate) fn instance(&self) -> u128 {
        self.instance
    }

    /// Makes it the data directory of a node that the cluster took in. `peers` are the addresses of
    /// the other nodes.
    pub(crate) fn make(
        self,
        format: Format,
        peers: &BTreeMap<NodeId, String>,
    ) -> Result<(), StartError> {
        let Joining { path, lock, .. } = self;
        let mut text = String::new();
        for (node, address) in peers {
            let _ = writeln!(text, "{node} {address}");
        }
        let unusable = |error: io::Error| unusable(&path, &error);
        write_synced(&path.join(PEERS_FILE), &text).map_err(unusable)?;
        let dir = DataDir { path: path.clone(), format, origin: Origin::New, _lock: lock };
        dir.begin().map_err(unusable)?;
        drop(dir.contents()?);
        dir.seal()?;
        remove(&path).map_err(unusable)
    }

    /// Removes the trace of joining, because the directory will found a cluster instead.
    pub(crate) fn leave(self) -> Result<(), StartError> {
        remove(&self.path).map_err(|error| unusable(&self.path, &error))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path.join(JOINING_FILE))?;
    sync_dir(path)
}

fn parse(text: &str) -> Option<u128> {
    let instance = text.lines().find_map(|line| line.strip_prefix("instance = "))?;
    u128::from_str_radix(instance, 16).ok().filter(|instance| *instance != 0)
}

/// The addresses of the other nodes when the directory was made, for a node without a map.
pub(crate) fn known_peers(path: &Path) -> BTreeMap<NodeId, String> {
    let text = fs::read_to_string(path.join(PEERS_FILE)).unwrap_or_default();
    let peer = |line: &str| {
        let (node, address) = line.split_once(' ')?;
        Some((node.parse().ok()?, address.to_owned()))
    };
    text.lines().filter_map(peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(path: &Path) -> Joining {
        Joining::begin(path).unwrap().unwrap()
    }

    /// The node was killed before it had written the number, and so before it asked.
    #[test]
    fn a_number_that_was_never_written_is_drawn_again() {
        let dir = tempfile::tempdir().unwrap();
        for empty in ["", "\0\0\0\0"] {
            fs::write(dir.path().join(JOINING_FILE), empty).unwrap();
            let instance = begin(dir.path()).instance();
            assert_eq!(begin(dir.path()).instance(), instance);
        }
        fs::write(dir.path().join(JOINING_FILE), "instance = no").unwrap();
        assert!(Joining::begin(dir.path()).unwrap_err().0.contains("is damaged"));
    }

    #[test]
    fn a_directory_asks_under_one_number_until_it_has_a_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let first = begin(&path);
        let refused = Joining::begin(&path).expect_err("it is locked").0;
        assert!(refused.contains("is in use by another taskyard process"), "{refused}");
        let instance = first.instance();
        drop(first);
        let again = begin(&path);
        assert_eq!(again.instance(), instance, "the same after a crash");
        let format = Format { cluster: 7, incarnation: 1, shards: 4, node: 3 };
        let peers = BTreeMap::from([(1, "a:7401".to_string()), (2, "[::1]:7401".to_string())]);
        again.make(format, &peers).unwrap();
        assert_eq!(Joining::begin(&path).unwrap().unwrap_err(), format);
        assert_eq!(known_peers(&path), peers);
        let opened = DataDir::open(&path, None).unwrap();
        opened.contents().unwrap();
        assert_eq!(opened.format(), format);
    }

    #[test]
    fn a_directory_that_founds_is_as_new_as_before() {
        let dir = tempfile::tempdir().unwrap();
        begin(dir.path()).leave().unwrap();
        assert!(!dir.path().join(JOINING_FILE).exists());
        // An interrupted beginning is begun anew, whether the node joins or founds.
        drop(DataDir::open(dir.path(), Some(4)).unwrap());
        let instance = begin(dir.path()).instance();
        drop(DataDir::open(dir.path(), Some(4)).unwrap());
        assert_eq!(begin(dir.path()).instance(), instance);
    }

    #[test]
    fn damaged_and_foreign_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(JOINING_FILE), "instance = 0\n").unwrap();
        let refused = Joining::begin(dir.path()).expect_err("damaged").0;
        assert!(refused.contains("JOINING is damaged; remove it"), "{refused}");
        let foreign = tempfile::tempdir().unwrap();
        fs::write(foreign.path().join("thesis.txt"), "x").unwrap();
        let refused = Joining::begin(foreign.path()).expect_err("foreign").0;
        assert!(refused.contains("holds thesis.txt"), "{refused}");
    }
}
