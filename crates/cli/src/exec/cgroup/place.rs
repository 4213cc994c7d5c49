//! Place: where cgroups of tasks may be created, from the kernel's files about this process.
//!
//! Version 1 has a tree for the `pids` controller, in which any cgroup may have others below it. In
//! version 2 a cgroup with processes gives no controllers to its children, so the cgroups of tasks
//! are beside the worker, in its parent. The parent must have been delegated to the worker: below a
//! foreign parent, tasks would leave the limits and the accounts of the worker's own service.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::{fs::getxattr, process::geteuid};

use super::put;

/// The mark of systemd on a delegated cgroup.
const DELEGATED: [&str; 2] = ["user.delegate", "trusted.delegate"];

/// Finds the folder and prepares it.
pub(super) fn find() -> io::Result<PathBuf> {
    let cgroups = fs::read_to_string("/proc/self/cgroup")?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Place::of(&cgroups, &mounts)
        .ok_or_else(|| io::Error::other("no pids cgroup is mounted"))?
        .prepare()
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Version 1: below the worker's own cgroup.
    Below(PathBuf),
    /// Version 2: in the parent of the worker's own cgroup.
    Beside(PathBuf),
    /// Version 2: the worker's own cgroup is the topmost visible one. If it is the topmost of the
    /// machine, it may give controllers to its children although it has processes.
    Top(PathBuf),
}

impl Place {
    /// Reads the texts of /proc/self/cgroup and /proc/self/mountinfo.
    fn of(cgroups: &str, mounts: &str) -> Option<Place> {
        let mut second = None;
        for line in cgroups.lines() {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            if controllers.split(',').any(|name| name == "pids") {
                let is_pids = |mount: &Mount<'_>| {
                    mount.kind == "cgroup" && mount.options.split(',').any(|name| name == "pids")
                };
                return folder(mounts, is_pids, path).map(|(own, _)| Place::Below(own));
            }
            if controllers.is_empty() {
                second = Some(path);
            }
        }
        let (own, is_top) = folder(mounts, |mount| mount.kind == "cgroup2", second?)?;
        match is_top {
            true => Some(Place::Top(own)),
            false => Some(Place::Beside(own.parent()?.to_owned())),
        }
    }

    /// Gives cgroups in this place the `pids` controller.
    fn prepare(self) -> io::Result<PathBuf> {
        let base = match self {
            Place::Below(base) => return Ok(base),
            Place::Beside(base) => {
                // Another user than root may write there only if the folder was delegated to it.
                if geteuid().is_root() && !is_delegated(&base) {
                    let why = "the parent of this process's cgroup was not delegated to it";
                    return Err(io::Error::other(why));
                }
                base
            }
            Place::Top(base) => base,
        };
        let given = fs::read_to_string(base.join("cgroup.subtree_control"))?;
        if !given.split_ascii_whitespace().any(|name| name == "pids") {
            put(&base, "cgroup.subtree_control", "+pids")?;
        }
        Ok(base)
    }
}

fn is_delegated(folder: &Path) -> bool {
    DELEGATED.iter().any(|name| {
        let mut value = [0; 8];
        getxattr(folder, *name, &mut value).is_ok_and(|length| &value[..length] == b"1")
    })
}

struct Mount<'a> {
    /// The part of the file system that is mounted.
    root: PathBuf,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn of(line: &'a str) -> Option<Mount<'a>> {
        let (place, file_system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut file_system = file_system.split(' ');
        Some(Mount {
            root: unescaped(place.next()?),
            point: unescaped(place.next()?),
            kind: file_system.next()?,
            options: file_system.nth(1)?,
        })
    }
}

/// The folder of the cgroup `path` in the first mount that shows it, and whether it is the topmost
/// there.
fn folder(mounts: &str, fits: impl Fn(&Mount<'_>) -> bool, path: &str) -> Option<(PathBuf, bool)> {
    // The cgroup is outside of the visible ones.
    if path.split('/').any(|part| part == "..") {
        return None;
    }
    mounts.lines().filter_map(Mount::of).filter(fits).find_map(|mount| {
        let below = Path::new(path).strip_prefix(&mount.root).ok()?;
        let is_top = below.as_os_str().is_empty();
        Some((if is_top { mount.point.clone() } else { mount.point.join(below) }, is_top))
    })
}

/// Blanks and similar characters are written as three octal digits after a backslash.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(|_| first == b'\\') {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:10 master:1 - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const FIRST_IN_CONTAINER: &str =
        "39 31 0:36 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n";
    const SECOND: &str = "\
22 1 0:20 / / rw - ext4 /dev/sda rw
30 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const BLANK: &str = "30 22 0:27 / /mnt/c\\040g rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_place_follows_from_what_the_kernel_says() {
        let below = |path: &str| Some(Place::Below(path.into()));
        let beside = |path: &str| Some(Place::Beside(path.into()));
        let top = |path: &str| Some(Place::Top(path.into()));
        for (cgroups, mounts, place) in [
            ("8:pids:/\n4:memory:/a\n0::/\n", FIRST, below("/sys/fs/cgroup/pids")),
            ("0::/b\n8:cpu,pids:/a/b:c\n", FIRST, below("/sys/fs/cgroup/pids/a/b:c")),
            ("8:pids:/docker/abc\n", FIRST_IN_CONTAINER, below("/sys/fs/cgroup/pids")),
            ("8:pids:/docker/abc/d\n", FIRST_IN_CONTAINER, below("/sys/fs/cgroup/pids/d")),
            ("8:pids:/docker/abcd\n", FIRST_IN_CONTAINER, None),
            ("8:pids:/../x\n", FIRST, None),
            ("8:pids:/\n", SECOND, None),
            ("0::/yard.service/worker\n", SECOND, beside("/sys/fs/cgroup/yard.service")),
            ("0::/a\n", SECOND, beside("/sys/fs/cgroup")),
            ("0::/\n", SECOND, top("/sys/fs/cgroup")),
            ("0::/../a\n", SECOND, None),
            ("0::/a/b\n", BLANK, beside("/mnt/c g/a")),
            ("0::/a\n", "", None),
            ("", SECOND, None),
            ("nonsense\n", SECOND, None),
        ] {
            assert_eq!(Place::of(cgroups, mounts), place, "{cgroups:?} {mounts:?}");
        }
    }

    #[test]
    fn a_parent_must_hand_down_the_controller_and_be_ours() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().to_owned();
        let prepare = |place: fn(PathBuf) -> Place| place(base.clone()).prepare();
        assert!(prepare(Place::Top).is_err(), "not a cgroup at all");
        let control = base.join("cgroup.subtree_control");
        fs::write(&control, "cpu pids\n").unwrap();
        assert_eq!(prepare(Place::Top).unwrap(), base);
        assert_eq!(fs::read_to_string(&control).unwrap(), "cpu pids\n", "it was there already");
        fs::write(&control, "cpu").unwrap();
        assert_eq!(prepare(Place::Top).unwrap(), base);
        assert_eq!(fs::read_to_string(&control).unwrap(), "+pids", "it was asked for");
        assert_eq!(prepare(Place::Beside).is_err(), geteuid().is_root(), "not delegated");
    }
}
