//! Users and groups: names in the grid, numbers in the kernel.
//!
//! ```text
//!   number -> the ticket's user for whoever mounted; else the local account's name; else the number in decimal
//!   name   -> whoever mounted for the ticket's user; else the local account; else the decimal number; else 65534
//! ```

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_client::v1::Actor;
use nix::unistd::{Gid, Group, Uid, User};

/// What has no number here: the kernel's `overflowuid`.
const NOBODY: u32 = 65_534;
/// How long an answer of the host's user database is kept.
const KEEP: Duration = Duration::from_secs(60);
/// Answers kept.
const MAX_KEPT: usize = 16_384;

/// Whose file system it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Of the user who mounted it: all that is done is done by the ticket's user.
    One,
    /// Of all local users, by the administrator's ticket: each is the grid user of its name.
    All,
}

#[derive(Default)]
struct Kept {
    since: Option<Instant>,
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
    user_names: HashMap<u32, String>,
    group_names: HashMap<u32, String>,
}

/// The mapping of one mount.
pub struct Ids {
    whose: Whose,
    uid: u32,
    gid: u32,
    user: String,
    group: String,
    kept: Mutex<Kept>,
}

impl Ids {
    /// The mapping for a ticket's user and first group, mounted by this process's user.
    pub fn new(whose: Whose, user: String, group: String) -> Self {
        Self {
            whose,
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            user,
            group,
            kept: Mutex::default(),
        }
    }

    /// Whose file system it is.
    pub fn whose(&self) -> Whose {
        self.whose
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let many = kept.users.len() + kept.groups.len() + kept.user_names.len() + kept.group_names.len();
        if many > MAX_KEPT || kept.since.is_none_or(|s| s.elapsed() > KEEP) {
            *kept = Kept {
                since: Some(Instant::now()),
                ..Kept::default()
            };
        }
        kept
    }

    /// Number of a grid user.
    pub fn uid(&self, name: &str) -> u32 {
        if name == self.user {
            return self.uid;
        }
        if let Some(known) = self.kept().users.get(name) {
            return *known;
        }
        let local = User::from_name(name).ok().flatten().map(|u| u.uid.as_raw());
        let found = local.or_else(|| decimal(name)).unwrap_or(NOBODY);
        self.kept().users.insert(name.to_owned(), found);
        found
    }

    /// Number of a grid group.
    pub fn gid(&self, name: &str) -> u32 {
        if name == self.group {
            return self.gid;
        }
        if let Some(known) = self.kept().groups.get(name) {
            return *known;
        }
        let local = Group::from_name(name).ok().flatten().map(|g| g.gid.as_raw());
        let found = local.or_else(|| decimal(name)).unwrap_or(NOBODY);
        self.kept().groups.insert(name.to_owned(), found);
        found
    }

    /// The grid user of a number.
    pub fn user(&self, uid: u32) -> String {
        if uid == self.uid {
            return self.user.clone();
        }
        if let Some(known) = self.kept().user_names.get(&uid) {
            return known.clone();
        }
        let local = User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|u| u.name);
        // A local account of the ticket's name is not the ticket's user.
        let name = local.filter(|n| fits(n) && *n != self.user);
        let name = name.unwrap_or_else(|| uid.to_string());
        self.kept().user_names.insert(uid, name.clone());
        name
    }

    /// The grid group of a number.
    pub fn group(&self, gid: u32) -> String {
        if gid == self.gid {
            return self.group.clone();
        }
        if let Some(known) = self.kept().group_names.get(&gid) {
            return known.clone();
        }
        let local = Group::from_gid(Gid::from_raw(gid)).ok().flatten().map(|g| g.name);
        let name = local.filter(|n| fits(n) && *n != self.group);
        let name = name.unwrap_or_else(|| gid.to_string());
        self.kept().group_names.insert(gid, name.clone());
        name
    }

    /// For whom a request is to be asked: nobody else but in a file system of all users.
    pub fn actor(&self, uid: u32, gid: u32, pid: u32) -> Option<Actor> {
        if self.whose == Whose::One {
            return None;
        }
        let mut groups = vec![self.group(gid)];
        if uid == self.uid {
            if gid == self.gid {
                return None;
            }
            return Some(Actor {
                user: String::new(),
                groups,
            });
        }
        for more in groups_of(pid) {
            let name = self.group(more);
            if !groups.contains(&name) {
                groups.push(name);
            }
        }
        Some(Actor {
            user: self.user(uid),
            groups,
        })
    }
}

/// Whether a local account's name can be a grid user's.
fn fits(name: &str) -> bool {
    let bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, ',' | '=' | ':' | '/');
    !name.is_empty() && name.len() <= 128 && !name.contains(bad)
}

fn decimal(name: &str) -> Option<u32> {
    let digits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| name.parse::<u32>().ok()).flatten()?;
    // Only the form that is written here; -1 is nobody's number.
    (number.to_string() == name && number != u32::MAX).then_some(number)
}

/// Supplementary groups of a process, as the kernel tells them.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("Groups:"))
        .unwrap_or_default();
    line.split_ascii_whitespace()
        .filter_map(|g| g.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_come_back() {
        let ids = Ids::new(Whose::All, "keeper of the grid".into(), "keepers".into());
        let me = nix::unistd::geteuid().as_raw();
        assert_eq!(ids.uid("keeper of the grid"), me);
        assert_eq!(ids.user(me), "keeper of the grid");
        // No account has this number.
        let free = 4_000_000_123;
        assert_eq!(ids.user(free), "4000000123");
        assert_eq!(ids.uid("4000000123"), free);
        assert_eq!(ids.gid(&ids.group(free)), free);
        for nobody in ["no such account", "007", "4294967295", "-1", ""] {
            assert_eq!(ids.uid(nobody), NOBODY, "{nobody}");
        }
    }

    #[test]
    fn a_private_mount_acts_for_nobody_else() {
        let ids = Ids::new(Whose::One, "alice".into(), "users".into());
        assert_eq!(ids.actor(4_000_000_123, 5, 1), None);
        let ids = Ids::new(Whose::All, "admin".into(), "admin".into());
        let actor = ids.actor(4_000_000_123, 4_000_000_124, std::process::id());
        let actor = actor.expect("somebody else");
        assert_eq!(actor.user, "4000000123");
        assert_eq!(actor.groups.first().map(String::as_str), Some("4000000124"));
    }
}
