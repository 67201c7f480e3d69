//! WebDAV locks (RFC 4918, section 6) of this gateway's clients.
//!
//! ```text
//!   lock on /a (deep)      covers /a and everything below
//!   lock on /a (not deep)  covers /a
//! ```
//!
//! A table that is searched from end to end: there are at most [`MAX_LOCKS`]. A lock ends with its time, with
//! UNLOCK by its owner, or with what it lies on.

use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use dav_server::davpath::DavPath;
use dav_server::ls::{DavLock, DavLockSystem, LsFuture};
use xmltree::Element;

use crate::headers::plain;
use crate::{DEFAULT_LOCK_S, MAX_LOCK_S, MAX_LOCKS, MAX_USER_LOCKS};

/// The locks; a handle that can be cloned.
#[derive(Debug, Clone, Default)]
pub struct Locks(Arc<Mutex<Vec<Kept>>>);

#[derive(Debug)]
struct Kept {
    path: Vec<u8>,
    ends: Instant,
    lock: DavLock,
}

impl Kept {
    /// Whether it says something of `path`.
    fn covers(&self, path: &[u8]) -> bool {
        self.path == path || self.lock.deep && is_below(path, &self.path)
    }
}

/// Whether `path` lies below `folder`.
fn is_below(path: &[u8], folder: &[u8]) -> bool {
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.len() > 1 && rest.starts_with(b"/"))
}

/// How long a lock lives that asks for this.
fn granted(asked: Option<Duration>) -> Duration {
    let asked = asked.unwrap_or(Duration::from_secs(DEFAULT_LOCK_S));
    asked.min(Duration::from_secs(MAX_LOCK_S))
}

impl Locks {
    fn table(&self) -> MutexGuard<'_, Vec<Kept>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        table.retain(|kept| kept.ends > now);
        table
    }

    /// The user who holds the lock with this token.
    pub fn owner(&self, token: &str) -> Option<String> {
        let table = self.table();
        let kept = table.iter().find(|kept| kept.lock.token == token)?;
        kept.lock.principal.clone()
    }

    /// Whether anything at or below `path` is locked, or it lies in what is.
    pub fn is_locked(&self, path: &[u8]) -> bool {
        let table = self.table();
        table
            .iter()
            .any(|kept| kept.covers(path) || is_below(&kept.path, path))
    }

    /// The first lock that `user` with these tokens does not hold.
    fn conflict(
        &self,
        path: &[u8],
        user: Option<&str>,
        any_user: bool,
        deep: bool,
        tokens: &[String],
    ) -> Option<DavLock> {
        let table = self.table();
        let holds = |kept: &Kept| {
            tokens.contains(&kept.lock.token) && (any_user || user == kept.lock.principal.as_deref())
        };
        let mut held = false;
        let mut shared = None;
        for kept in table.iter().filter(|kept| kept.covers(path)) {
            if holds(kept) {
                held = true;
            } else if kept.lock.shared {
                shared.get_or_insert(&kept.lock);
            } else {
                return Some(kept.lock.clone());
            }
        }
        // Of several shared locks one is enough.
        if !held && let Some(lock) = shared {
            return Some(lock.clone());
        }
        let below = table.iter().filter(|kept| deep && is_below(&kept.path, path));
        below
            .filter(|kept| !holds(kept))
            .map(|kept| kept.lock.clone())
            .next()
    }
}

impl DavLockSystem for Locks {
    fn lock(
        &'_ self,
        path: &DavPath,
        principal: Option<&str>,
        owner: Option<&Element>,
        timeout: Option<Duration>,
        shared: bool,
        deep: bool,
    ) -> LsFuture<'_, Result<DavLock, DavLock>> {
        let plain_path = plain(path.as_bytes());
        let time = granted(timeout);
        let lock = DavLock {
            token: uuid::Uuid::new_v4().urn().to_string(),
            path: Box::new(path.clone()),
            principal: principal.map(str::to_owned),
            owner: owner.map(|o| Box::new(o.clone())),
            timeout_at: Some(SystemTime::now() + time),
            timeout: Some(time),
            shared,
            deep,
        };
        let mut table = self.table();
        let clash = table.iter().find(|kept| {
            let meet = kept.covers(&plain_path) || deep && is_below(&kept.path, &plain_path);
            meet && !(shared && kept.lock.shared)
        });
        let mine = |kept: &&Kept| kept.lock.principal.as_deref() == principal;
        let answer = if let Some(clash) = clash {
            Err(clash.lock.clone())
        } else if table.len() >= MAX_LOCKS || table.iter().filter(mine).count() >= MAX_USER_LOCKS {
            tracing::warn!(user = principal, "refused: too many locks");
            Err(lock)
        } else {
            table.push(Kept {
                path: plain_path,
                ends: Instant::now() + time,
                lock: lock.clone(),
            });
            Ok(lock)
        };
        Box::pin(ready(answer))
    }

    fn unlock(&'_ self, path: &DavPath, token: &str) -> LsFuture<'_, Result<(), ()>> {
        let path = plain(path.as_bytes());
        let mut table = self.table();
        let at = table
            .iter()
            .position(|kept| kept.lock.token == token && kept.covers(&path));
        Box::pin(ready(at.map(|at| drop(table.swap_remove(at))).ok_or(())))
    }

    fn refresh(
        &'_ self,
        path: &DavPath,
        token: &str,
        timeout: Option<Duration>,
    ) -> LsFuture<'_, Result<DavLock, ()>> {
        let path = plain(path.as_bytes());
        let mut table = self.table();
        let found = table
            .iter_mut()
            .find(|kept| kept.lock.token == token && kept.covers(&path));
        let refreshed = found.map(|kept| {
            let time = granted(timeout.or(kept.lock.timeout));
            kept.ends = Instant::now() + time;
            kept.lock.timeout = Some(time);
            kept.lock.timeout_at = Some(SystemTime::now() + time);
            kept.lock.clone()
        });
        Box::pin(ready(refreshed.ok_or(())))
    }

    fn check(
        &'_ self,
        path: &DavPath,
        principal: Option<&str>,
        ignore_principal: bool,
        deep: bool,
        submitted_tokens: &[String],
    ) -> LsFuture<'_, Result<(), DavLock>> {
        let path = plain(path.as_bytes());
        let conflict = self.conflict(&path, principal, ignore_principal, deep, submitted_tokens);
        Box::pin(ready(conflict.map_or(Ok(()), Err)))
    }

    fn discover(&'_ self, path: &DavPath) -> LsFuture<'_, Vec<DavLock>> {
        let path = plain(path.as_bytes());
        let table = self.table();
        let covering = table.iter().filter(|kept| kept.covers(&path));
        Box::pin(ready(covering.map(|kept| kept.lock.clone()).collect()))
    }

    fn delete(&'_ self, path: &DavPath) -> LsFuture<'_, Result<(), ()>> {
        let path = plain(path.as_bytes());
        self.table()
            .retain(|kept| kept.path != path && !is_below(&kept.path, &path));
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn path(text: &str) -> DavPath {
        DavPath::new(text).expect("a path")
    }

    fn lock(locks: &Locks, at: &str, user: &str, shared: bool, deep: bool) -> Result<DavLock, DavLock> {
        let made = locks.lock(&path(at), Some(user), None, None, shared, deep);
        made.now_or_never().expect("at once")
    }

    fn check(locks: &Locks, at: &str, user: &str, deep: bool, tokens: &[&DavLock]) -> bool {
        let tokens = tokens.iter().map(|l| l.token.clone()).collect::<Vec<_>>();
        let checked = locks.check(&path(at), Some(user), false, deep, &tokens);
        checked.now_or_never().expect("at once").is_ok()
    }

    #[test]
    fn a_lock_holds_for_its_owner_alone() {
        let locks = Locks::default();
        let held = lock(&locks, "/a/", "me", false, true).expect("free");
        assert!(check(&locks, "/a/b", "me", false, &[&held]));
        assert!(!check(&locks, "/a/b", "me", false, &[]));
        assert!(!check(&locks, "/a/b", "you", false, &[&held]));
        assert!(check(&locks, "/ab", "you", false, &[]));
        assert!(check(&locks, "/", "you", false, &[]));
        assert!(
            !check(&locks, "/", "you", true, &[]),
            "a folder with something locked in it"
        );
        assert!(lock(&locks, "/a/b/c", "you", false, false).is_err());
        assert!(lock(&locks, "/", "you", false, true).is_err());
        assert_eq!(locks.owner(&held.token).as_deref(), Some("me"));
        let unlocked = locks.unlock(&path("/a/b"), &held.token).now_or_never();
        assert_eq!(unlocked, Some(Ok(())));
        assert!(check(&locks, "/a/b", "you", false, &[]));
    }

    #[test]
    fn shared_locks_share() {
        let locks = Locks::default();
        let one = lock(&locks, "/f", "me", true, false).expect("free");
        let two = lock(&locks, "/f", "you", true, false).expect("shared");
        assert!(lock(&locks, "/f", "they", false, false).is_err());
        assert!(check(&locks, "/f", "me", false, &[&one]) && check(&locks, "/f", "you", false, &[&two]));
        assert!(!check(&locks, "/f", "they", false, &[]));
        assert!(check(&locks, "/f/below", "they", false, &[]), "not deep");
    }

    #[test]
    fn locks_end_with_their_time_and_their_place() {
        let locks = Locks::default();
        let none = locks.lock(&path("/a"), Some("me"), None, Some(Duration::ZERO), false, false);
        assert!(none.now_or_never().expect("at once").is_ok());
        assert!(check(&locks, "/a", "you", false, &[]));
        lock(&locks, "/d/f", "me", false, false).expect("free");
        assert_eq!(locks.delete(&path("/d")).now_or_never(), Some(Ok(())));
        assert!(!locks.is_locked(b"/d"));
        let far = Some(Duration::from_secs(u64::MAX));
        let made = locks.lock(&path("/a"), Some("me"), None, far, false, false);
        let made = made.now_or_never().expect("at once").expect("free");
        assert_eq!(made.timeout, Some(Duration::from_secs(MAX_LOCK_S)));
    }

    #[test]
    fn locks_of_a_user_are_bounded() {
        let locks = Locks::default();
        for n in 0..MAX_USER_LOCKS {
            lock(&locks, &format!("/{n}"), "me", false, false).expect("free");
        }
        assert!(lock(&locks, "/one-more", "me", false, false).is_err());
        assert!(lock(&locks, "/one-more", "you", false, false).is_ok());
    }
}
