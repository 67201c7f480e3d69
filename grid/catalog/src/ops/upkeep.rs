//! Giving up contents that nobody has open.
//!
//! A content that is replaced, or whose last name goes, gets a row in `dead` with the order of its death. It
//! stays until **every** service has seen the death and none has the content open:
//!
//! ```text
//!   service A                         tables                         service B
//!   unlink x  ------------------->  dead(x, seq 7)
//!                                   session(B, seen 9), hold(B, x) <-- Reap: has x open, says so, then: seen 9
//!   Reap: min(seen) >= 7, but held
//!                                   session(B, seen 9)             <-- Reap: x was released, hold removed
//!   Reap: x goes, replicas Removing
//! ```
//!
//! A service that does not call for its time to live loses its holds (twice that, if its clock is ahead of the others'). `state::Opens` says when a death is
//! surely seen although files are being opened at that moment. In SQLite the order is a number given at the
//! death (there is one writer); in PostgreSQL it is the number of the transaction, and what is below the oldest
//! running one is seen: a transaction that commits late can so never slip behind the mark.

use super::Tx;
use super::grid::ttl_ns;
use crate::limits::{MAX_REAP, STAGED_NS};
use crate::sql::{R, p, refuse};
use crate::{ErrorKind, Generation, Ino};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Tx<'_> {
    pub(super) fn reap(&mut self, limit: u32, ttl_ms: u64) -> R<u64> {
        self.need_service("upkeep")?;
        if !(1..=MAX_REAP).contains(&limit) {
            return refuse(ErrorKind::Invalid, format!("limit {limit}: 1 to {MAX_REAP}"));
        }
        let ttl = ttl_ns(ttl_ms)?;
        self.say_what_is_held(ttl)?;
        let seen = match self.one("SELECT MIN(seen) FROM session", p![])? {
            Some(row) => row.opt::<i64>(0)?.unwrap_or(0),
            None => 0,
        };
        let rows = self.q(
            "SELECT d.ino, d.gen, d.whole FROM dead d WHERE d.seq <= ?1 AND NOT EXISTS (SELECT 1 FROM hold h \
             WHERE h.ino = d.ino AND (d.whole = 1 OR h.gen = d.gen)) ORDER BY d.seq LIMIT ?2 {skip}",
            p![seen, limit],
        )?;
        for row in &rows {
            let (ino, generation) = (Ino(row.num(0)?), Generation(row.num(1)?));
            self.find_locked(ino)?;
            if row.int(2)? == 1 {
                self.drop_inode(ino)?;
            } else {
                self.drop_content(ino, generation)?;
                self.x(
                    "DELETE FROM dead WHERE ino = ?1 AND gen = ?2",
                    p![ino.0, generation.0],
                )?;
            }
        }
        self.drop_old_drafts(limit)?;
        Ok(rows.len() as u64)
    }

    /// Writes this service's mark and holds.
    fn say_what_is_held(&mut self, ttl: i64) -> R<()> {
        let session = self.shared.session.load(Ordering::Relaxed);
        let newest = if self.shares() {
            "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) - 1"
        } else {
            "SELECT COALESCE(MAX(seq), 0) FROM dead"
        };
        let newest = self.one(newest, p![])?.map_or(Ok(0), |r| r.int(0))?;
        let seen = self.shared.opens.tick(newest, self.under_way);
        self.x(
            "DELETE FROM hold WHERE session IN (SELECT id FROM session WHERE expires <= ?1)",
            p![self.now.0],
        )?;
        self.x("DELETE FROM session WHERE expires <= ?1", p![self.now.0])?;
        self.drop_left_sessions(session, ttl)?;
        // Only dead contents need a row: of the open files, those whose inode is in `dead`.
        let mut held = BTreeSet::new();
        for (ino, generation) in self.shared.opens.held() {
            if self
                .one("SELECT ino FROM dead WHERE ino = ?1 LIMIT 1", p![ino.0])?
                .is_some()
            {
                held.insert((ino.0, generation.0));
            }
        }
        let rows = self.q("SELECT ino, gen FROM hold WHERE session = ?1", p![session])?;
        let mut written = BTreeSet::new();
        for row in &rows {
            written.insert((row.num::<u64>(0)?, row.num::<u64>(1)?));
        }
        for (ino, generation) in held.difference(&written) {
            self.x(
                "INSERT INTO hold (session, ino, gen) VALUES (?1, ?2, ?3)",
                p![session, *ino, *generation],
            )?;
        }
        for (ino, generation) in written.difference(&held) {
            self.x(
                "DELETE FROM hold WHERE session = ?1 AND ino = ?2 AND gen = ?3",
                p![session, *ino, *generation],
            )?;
        }
        self.x(
            "INSERT INTO session (id, seen, expires) VALUES (?1, ?2, ?3) \
             ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, expires = excluded.expires",
            p![session, seen, self.now.0.saturating_add(ttl)],
        )?;
        Ok(())
    }

    /// Services that do not call any more, although by this one's clock their time has not come.
    fn drop_left_sessions(&mut self, own: u64, ttl: i64) -> R<()> {
        let rows = self.q("SELECT id, expires FROM session WHERE id <> ?1", p![own])?;
        let name = |id: i64| format!("session/{id}");
        let time = Duration::from_nanos(u64::try_from(ttl).unwrap_or_default()) * 2;
        let mut seen = Vec::with_capacity(rows.len());
        for row in &rows {
            seen.push((name(row.int(0)?), row.int(1)?, time));
        }
        let stand = self.shared.standing.look("session/", &seen);
        for row in &rows {
            let (id, expires) = (row.int(0)?, row.int(1)?);
            if !stand.contains(&name(id)) {
                continue;
            }
            let gone = "DELETE FROM session WHERE id = ?1 AND expires = ?2";
            if self.x(gone, p![id, expires])? > 0 {
                self.x("DELETE FROM hold WHERE session = ?1", p![id])?;
            }
        }
        Ok(())
    }

    /// An inode without a name goes with all its contents.
    fn drop_inode(&mut self, ino: Ino) -> R<()> {
        self.x("DELETE FROM replica WHERE ino = ?1 AND state = 3", p![ino.0])?;
        self.x("UPDATE replica SET state = 4 WHERE ino = ?1", p![ino.0])?;
        self.x("DELETE FROM fragment WHERE ino = ?1", p![ino.0])?;
        self.x("DELETE FROM off_copies WHERE ino = ?1", p![ino.0])?;
        self.x("DELETE FROM draft WHERE ino = ?1", p![ino.0])?;
        self.x("DELETE FROM dead WHERE ino = ?1", p![ino.0])?;
        self.erase_inode(ino)
    }

    /// Staged fragments whose writers never came back.
    fn drop_old_drafts(&mut self, limit: u32) -> R<()> {
        let before = self.now.0.saturating_sub(STAGED_NS);
        let rows = self.q(
            "SELECT ino, gen FROM draft WHERE touched < ?1 LIMIT ?2 {skip}",
            p![before, limit],
        )?;
        for row in &rows {
            let (ino, generation) = (Ino(row.num(0)?), Generation(row.num(1)?));
            self.find_locked(ino)?;
            self.drop_content(ino, generation)?;
            self.x(
                "DELETE FROM draft WHERE ino = ?1 AND gen = ?2",
                p![ino.0, generation.0],
            )?;
        }
        Ok(())
    }
}
