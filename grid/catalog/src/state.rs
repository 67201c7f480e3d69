//! What an open catalog keeps in memory: reserved numbers, names by number, open files.

use crate::limits::ID_BLOCK;
use crate::{Generation, Handle, Ino, Timestamp};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A lock whose holder cannot have left it half changed: every change under it is one step.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers for inodes, generations and rows: reserved durably in blocks, given out from memory. Those of a
/// block that are not used when the process ends are never used.
#[derive(Default)]
pub(crate) struct Ids {
    ranges: Mutex<VecDeque<Range<u64>>>,
}

/// What readers leave to writers, so that one batch of changes cannot run out of numbers.
const RESERVE: u64 = ID_BLOCK / 2;

impl Ids {
    fn left(ranges: &VecDeque<Range<u64>>) -> u64 {
        ranges.iter().map(|r| r.end - r.start).sum()
    }

    /// Whether a block is to be reserved.
    pub fn low(&self) -> bool {
        Self::left(&lock(&self.ranges)) < RESERVE
    }

    /// Adds a block that was reserved durably.
    pub fn add(&self, block: Range<u64>) {
        lock(&self.ranges).push_back(block);
    }

    /// The next number that will be given out, if one is reserved.
    pub fn next(&self) -> Option<u64> {
        let ranges = lock(&self.ranges);
        ranges.iter().find(|r| !r.is_empty()).map(|r| r.start)
    }

    /// Numbers below `first` are not given out any more.
    pub fn skip_below(&self, first: u64) {
        for range in lock(&self.ranges).iter_mut() {
            range.start = range.start.max(first).min(range.end);
        }
    }

    /// The next number; a reader gets none while only the writers' reserve is left.
    pub fn take(&self, writer: bool) -> Option<u64> {
        let mut ranges = lock(&self.ranges);
        if !writer && Self::left(&ranges) <= RESERVE / 2 {
            return None;
        }
        while ranges.front().is_some_and(Range::is_empty) {
            ranges.pop_front();
        }
        let first = ranges.front_mut()?;
        first.next()
    }
}

/// Kinds of interned text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Text {
    User = 0,
    Group = 1,
    Rule = 2,
}

/// Interned texts that were seen committed. Rows are never changed, so this never goes stale.
#[derive(Default)]
pub(crate) struct Texts {
    by_id: RwLock<HashMap<i64, Arc<str>>>,
    by_text: RwLock<HashMap<(Text, Arc<str>), i64>>,
}

impl Texts {
    pub fn text(&self, id: i64) -> Option<Arc<str>> {
        self.by_id
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id)
            .cloned()
    }

    pub fn id(&self, kind: Text, text: &str) -> Option<i64> {
        let map = self.by_text.read().unwrap_or_else(PoisonError::into_inner);
        map.get(&(kind, Arc::from(text))).copied()
    }

    pub fn add(&self, kind: Text, id: i64, text: &str) {
        let text: Arc<str> = Arc::from(text);
        self.by_id
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, text.clone());
        self.by_text
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((kind, text), id);
    }
}

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub ino: Ino,
    /// Content being read, or published when the draft was made.
    pub generation: Generation,
    /// The draft's generation.
    pub draft: Option<Generation>,
    pub user: String,
}

/// Open files of this service, and which deaths of contents it has surely seen.
///
/// An open file is registered after the transaction that read it. Between, a content may die. So each
/// transaction that may open something is *under way* with the tick at which it began, and a death is *seen*
/// only when everything under way began after the tick that read it.
#[derive(Default)]
pub(crate) struct Opens {
    inner: Mutex<OpensInner>,
    next: AtomicU64,
}

#[derive(Default)]
struct OpensInner {
    files: HashMap<Handle, Open>,
    tick: u64,
    /// Transactions under way by the tick they began in.
    under_way: BTreeMap<u64, u64>,
    /// Highest death read at a tick, oldest first; those up to the first that is not yet seen are dropped.
    read: VecDeque<(u64, i64)>,
    seen: i64,
}

/// A transaction under way.
pub(crate) struct UnderWay<'a> {
    opens: &'a Opens,
    tick: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.opens.inner);
        if let Some(n) = inner.under_way.get_mut(&self.tick) {
            *n -= 1;
            if *n == 0 {
                inner.under_way.remove(&self.tick);
            }
        }
    }
}

impl Opens {
    pub fn under_way(&self) -> UnderWay<'_> {
        let mut inner = lock(&self.inner);
        let tick = inner.tick;
        *inner.under_way.entry(tick).or_insert(0) += 1;
        UnderWay { opens: self, tick }
    }

    pub fn new_handle(&self) -> Handle {
        Handle(self.next.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Whether fewer than so many files are open.
    pub fn below(&self, limit: usize) -> bool {
        lock(&self.inner).files.len() < limit
    }

    pub fn insert(&self, handle: Handle, open: Open) {
        lock(&self.inner).files.insert(handle, open);
    }

    pub fn remove(&self, handle: Handle, user: Option<&str>) {
        let mut inner = lock(&self.inner);
        if inner
            .files
            .get(&handle)
            .is_some_and(|o| user.is_none_or(|u| u == o.user))
        {
            inner.files.remove(&handle);
        }
    }

    pub fn get(&self, handle: Handle) -> Option<Open> {
        lock(&self.inner).files.get(&handle).cloned()
    }

    /// Whether a user has an inode open.
    pub fn has(&self, ino: Ino, user: &str) -> bool {
        lock(&self.inner)
            .files
            .values()
            .any(|o| o.ino == ino && o.user == user)
    }

    /// Contents that are open: each inode with a generation that is held.
    pub fn held(&self) -> Vec<(Ino, Generation)> {
        let inner = lock(&self.inner);
        let mut out = Vec::with_capacity(inner.files.len());
        for o in inner.files.values() {
            out.push((o.ino, o.generation));
            out.extend(o.draft.map(|d| (o.ino, d)));
        }
        out
    }

    /// A tick that reads all deaths up to `newest`; the answer is the highest death that was surely seen by
    /// everything that opens files. The transaction of the tick itself, which opens nothing, does not count.
    pub fn tick(&self, newest: i64, own: &UnderWay<'_>) -> i64 {
        let mut inner = lock(&self.inner);
        inner.tick += 1;
        let tick = inner.tick;
        inner.read.push_back((tick, newest));
        let oldest = inner
            .under_way
            .iter()
            .find(|(t, n)| **n > u64::from(**t == own.tick))
            .map_or(tick, |(t, _)| *t);
        while let Some(&(read_at, death)) = inner.read.front() {
            // What began at tick `read_at` or later reads a snapshot that has the death.
            if read_at > oldest {
                break;
            }
            inner.seen = inner.seen.max(death);
            inner.read.pop_front();
        }
        inner.seen
    }
}

/// What other services have written until a time of their clocks, and since when it has stood there by this one's monotonic clock.
///
/// A service whose clock has jumped ahead, and that dies then, leaves times that come hours later. Whoever lives writes anew.
#[derive(Default)]
pub(crate) struct Standing(Mutex<HashMap<String, (i64, Instant)>>);

impl Standing {
    /// Those of `rows` (name, what is written, how long it may stand) that were seen unchanged for so long, at each look since.
    /// Other names that begin with `of` are forgotten.
    pub fn look(&self, of: &str, rows: &[(String, i64, Duration)]) -> HashSet<String> {
        self.look_at(of, rows, Instant::now())
    }

    fn look_at(&self, of: &str, rows: &[(String, i64, Duration)], now: Instant) -> HashSet<String> {
        let mut seen = lock(&self.0);
        let mut before = HashMap::new();
        seen.retain(|name, what| {
            let here = name.starts_with(of);
            if here {
                before.insert(name.clone(), *what);
            }
            !here
        });
        let mut stand = HashSet::new();
        for (name, value, time) in rows {
            let since = match before.get(name) {
                Some((was, since)) if was == value => *since,
                _ => now,
            };
            if now.duration_since(since) >= *time {
                stand.insert(name.clone());
            }
            seen.insert(name.clone(), (*value, since));
        }
        stand
    }
}

/// The clock that times are taken from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What the operations share.
pub(crate) struct Shared {
    pub ids: Ids,
    pub texts: Texts,
    pub opens: Opens,
    pub clock: Clock,
    /// Times that others have written.
    pub standing: Standing,
    /// This service's number in the tables `session` and `hold`.
    pub session: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_once_and_readers_leave_a_reserve() {
        let ids = Ids::default();
        assert!(ids.low() && ids.take(true).is_none());
        ids.add(100..100 + ID_BLOCK);
        let mut seen = Vec::new();
        while let Some(n) = ids.take(false) {
            seen.push(n);
        }
        assert!(ids.low());
        assert_eq!(seen.len() as u64, ID_BLOCK - RESERVE / 2);
        while let Some(n) = ids.take(true) {
            seen.push(n);
        }
        assert_eq!(seen, (100..100 + ID_BLOCK).collect::<Vec<_>>());
    }

    #[test]
    fn open_files_are_counted_until_their_owner_releases_them() {
        let opens = Opens::default();
        let open = Open {
            ino: Ino(5),
            generation: Generation(6),
            draft: None,
            user: "ann".into(),
        };
        let (one, two) = (opens.new_handle(), opens.new_handle());
        opens.insert(one, open.clone());
        assert!(opens.below(2));
        opens.insert(two, open);
        assert!(!opens.below(2) && opens.has(Ino(5), "ann") && !opens.has(Ino(5), "eve"));
        opens.remove(one, Some("eve"));
        assert!(!opens.below(2), "not another's to release");
        opens.remove(one, Some("ann"));
        opens.remove(two, None);
        assert!(opens.below(1) && !opens.has(Ino(5), "ann"));
    }

    #[test]
    fn what_does_not_change_stands() {
        let standing = Standing::default();
        let start = Instant::now();
        let look = |of: &str, rows: &[(&str, i64)], ms: u64| {
            let time = Duration::from_millis(100);
            let rows: Vec<_> = rows.iter().map(|(n, v)| ((*n).to_owned(), *v, time)).collect();
            let now = start + Duration::from_millis(ms);
            let mut stand: Vec<_> = standing.look_at(of, &rows, now).into_iter().collect();
            stand.sort();
            stand
        };
        assert!(look("job/", &[("job/1", 5), ("job/2", 5)], 0).is_empty());
        assert!(look("job/", &[("job/1", 5), ("job/2", 6)], 99).is_empty());
        assert!(look("session/", &[("session/1", 5)], 99).is_empty());
        assert_eq!(look("job/", &[("job/1", 5), ("job/2", 6)], 100), ["job/1"]);
        assert!(look("job/", &[("job/2", 6)], 150).is_empty());
        // Forgotten when it was not there.
        assert_eq!(look("job/", &[("job/1", 5), ("job/2", 6)], 199), ["job/2"]);
        assert_eq!(look("session/", &[("session/1", 5)], 199), ["session/1"]);
    }

    #[test]
    fn a_death_is_seen_when_all_that_began_before_it_was_read_ended() {
        let opens = Opens::default();
        let before = opens.under_way();
        let own = opens.under_way();
        assert_eq!(
            opens.tick(7, &own),
            0,
            "one that began before may still register the dead content"
        );
        drop(own);
        drop(before);
        let later = opens.under_way();
        let own = opens.under_way();
        assert_eq!(
            opens.tick(9, &own),
            7,
            "one under way began after 7 was read, but before 9 was"
        );
        drop(later);
        drop(own);
        let own = opens.under_way();
        assert_eq!(opens.tick(9, &own), 9);
    }
}
