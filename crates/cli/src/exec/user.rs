//! The user of tasks, if it is not the worker's own.

use std::{fmt, fs, io, path::PathBuf, process::Command};

use rustix::{
    process::{Gid, Uid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use serde::{Deserialize, Serialize};

/// A user and its groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// The user's name and home, if the machine knows them.
    account: Option<(String, PathBuf)>,
}

impl User {
    /// Reads `NAME`, `UID`, or either with a group: `NAME:GROUP`, `UID:GID`. Names are those of
    /// /etc/passwd and /etc/group.
    pub fn find(text: &str) -> Result<User, String> {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        User::find_in(text, &read("/etc/passwd"), &read("/etc/group"))
    }

    fn find_in(text: &str, passwd: &str, group: &str) -> Result<User, String> {
        let (wanted, wanted_group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let number = id(wanted);
        let account = passwd.lines().filter_map(Account::of).find(|account| match number {
            Some(uid) => account.uid == uid,
            None => account.name == wanted,
        });
        let uid = number.or(account.as_ref().map(|account| account.uid)).ok_or_else(|| {
            format!("/etc/passwd has no user {wanted:?}; name another, or give numbers as UID:GID")
        })?;
        if uid == 0 {
            return Err("root may signal every process; name another user".to_owned());
        }
        let gid = match (wanted_group, &account) {
            (Some(name), _) => id(name).or_else(|| group_named(group, name)).ok_or_else(|| {
                format!("/etc/group has no group {name:?}; name another, or give its number")
            })?,
            (None, Some(account)) => account.gid,
            (None, None) => {
                return Err(format!(
                    "/etc/passwd has no user {uid}, so its group is not known; give both as \
                     {uid}:GID"
                ));
            }
        };
        let mut groups = vec![gid];
        if let Some(account) = &account {
            groups.extend(groups_of(group, account.name));
        }
        groups.dedup();
        let account = account.map(|account| (account.name.to_owned(), account.home.into()));
        Ok(User { uid, gid, groups, account })
    }

    /// The number of the user.
    pub fn uid(&self) -> Uid {
        Uid::from_raw(self.uid)
    }

    /// The number of its group.
    pub fn gid(&self) -> Gid {
        Gid::from_raw(self.gid)
    }

    /// Makes this process run as the user. It must have one thread.
    pub(super) fn become_it(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        let (uid, gid) = (self.uid(), self.gid());
        // The user is set last, because the new user may not change its groups.
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        Ok(set_thread_res_uid(uid, uid, uid)?)
    }

    /// Sets the variables about the user. A command would otherwise look for its settings in root's
    /// home.
    pub(super) fn tell(&self, command: &mut Command) {
        if let Some((name, home)) = &self.account {
            command.env("USER", name).env("LOGNAME", name).env("HOME", home);
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.account {
            Some((name, _)) => write!(f, "user {name} ({}:{})", self.uid, self.gid),
            None => write!(f, "user {}:{}", self.uid, self.gid),
        }
    }
}

/// A line of /etc/passwd.
struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Account<'a> {
    fn of(line: &'a str) -> Option<Account<'a>> {
        let mut fields = line.split(':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        Some(Account { name, uid: id(uid)?, gid: id(gid)?, home: fields.nth(1)? })
    }
}

/// A user's or a group's number. The highest one means "none" to the kernel.
fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&id| id != u32::MAX)
}

/// Name, number and members of each group.
fn groups(text: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _, gid) = (fields.next()?, fields.next()?, id(fields.next()?)?);
        Some((name, gid, fields.next().unwrap_or_default()))
    })
}

fn group_named(text: &str, wanted: &str) -> Option<u32> {
    groups(text).find(|(name, ..)| *name == wanted).map(|(_, gid, _)| gid)
}

/// The groups that name `user` as a member.
fn groups_of(text: &str, user: &str) -> impl Iterator<Item = u32> {
    groups(text)
        .filter(move |(.., members)| members.split(',').any(|member| member == user))
        .map(|(_, gid, _)| gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nmail:x:8:12:mail:/var/mail:/bin/false\n\
        odd\ntwin:x:9:x:::\n";
    const GROUP: &str = "root:x:0:\nmail:x:12:\nvideo:x:44:mail,root\ndisk:x:6:root\nodd\n";

    #[test]
    fn a_user_is_a_name_or_a_number_with_a_group_or_without() {
        let user = |uid, gid, groups: &[u32], is_known: bool| User {
            uid,
            gid,
            groups: groups.to_vec(),
            account: is_known.then(|| ("mail".to_owned(), "/var/mail".into())),
        };
        for (text, found) in [
            ("mail", user(8, 12, &[12, 44], true)),
            ("8", user(8, 12, &[12, 44], true)),
            ("mail:disk", user(8, 6, &[6, 44], true)),
            ("mail:7", user(8, 7, &[7, 44], true)),
            ("mail:video", user(8, 44, &[44], true)),
            ("1000:1000", user(1000, 1000, &[1000], false)),
        ] {
            assert_eq!(User::find_in(text, PASSWD, GROUP), Ok(found), "{text}");
        }
    }

    #[test]
    fn an_unknown_user_is_refused_with_a_hint() {
        for (text, part) in [
            ("male", "no user \"male\"; name another"),
            ("", "no user \"\""),
            ("1000", "give both as 1000:GID"),
            ("mail:vido", "no group \"vido\""),
            ("root", "root may signal every process"),
            ("0:12", "root may signal every process"),
            ("4294967295:1", "no user"),
            ("mail:4294967295", "no group"),
            ("twin", "no user"),
        ] {
            let problem = User::find_in(text, PASSWD, GROUP).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
