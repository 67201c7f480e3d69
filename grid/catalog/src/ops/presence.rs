//! Services beside each other: who hears whom, and whose turn a task is.
//!
//! Every record raises a row's `beat`. Whoever reads it twice knows whether it lives, by its own clock alone:
//! services whose clocks differ, or jump, do not take each other's work.

use super::Tx;
use crate::limits::MAX_NODES;
use crate::sql::{R, p, refuse};
use crate::{CatalogError, ErrorKind, Forget, Presence, PresenceKind, TakeTurn, Turn};

fn number(kind: PresenceKind) -> i64 {
    match kind {
        PresenceKind::Node => 0,
        PresenceKind::Service => 1,
    }
}

fn kind_of(n: i64) -> Result<PresenceKind, CatalogError> {
    match n {
        0 => Ok(PresenceKind::Node),
        1 => Ok(PresenceKind::Service),
        _ => Err(CatalogError::new(
            ErrorKind::Corrupt,
            format!("a presence of kind {n}"),
        )),
    }
}

impl Tx<'_> {
    pub(super) fn hear(&mut self, heard: &[Presence]) -> R<u64> {
        self.need_service("presence")?;
        if heard.len() as u64 > MAX_NODES {
            return refuse(ErrorKind::Limit, format!("at most {MAX_NODES} at once"));
        }
        for one in heard {
            super::check_text("name", &one.name)?;
            super::check_text("host", &one.host)?;
            super::check_text("spool", &one.spool)?;
            super::check_principal("service", &one.via)?;
            super::check_number("objects", one.objects)?;
        }
        // In one order everywhere: two services that hear the same nodes wait for each other, not in a circle.
        let mut sorted: Vec<&Presence> = heard.iter().collect();
        sorted.sort_by(|a, b| (number(a.kind), &a.name).cmp(&(number(b.kind), &b.name)));
        let mut count = 0;
        for one in sorted {
            count += self.x(
                "INSERT INTO presence (kind, name, via, beat, host, spool, objects, closed) \
                 VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, ?7) \
                 ON CONFLICT (kind, name) DO UPDATE SET via = excluded.via, beat = presence.beat + 1, \
                 host = excluded.host, spool = excluded.spool, objects = excluded.objects, closed = excluded.closed",
                p![
                    number(one.kind),
                    &one.name,
                    &one.via,
                    &one.host,
                    &one.spool,
                    one.objects,
                    i64::from(one.closed)
                ],
            )?;
        }
        Ok(count)
    }

    pub(super) fn list_presence(&mut self) -> R<Vec<Presence>> {
        self.need_service("presence")?;
        let rows = self.q(
            "SELECT kind, name, via, beat, host, spool, objects, closed FROM presence ORDER BY kind, name",
            p![],
        )?;
        rows.iter()
            .map(|r| {
                Ok(Presence {
                    kind: kind_of(r.int(0)?)?,
                    name: r.text(1)?,
                    via: r.text(2)?,
                    beat: r.num(3)?,
                    host: r.text(4)?,
                    spool: r.text(5)?,
                    objects: r.num(6)?,
                    closed: r.int(7)? != 0,
                })
            })
            .collect()
    }

    pub(super) fn forget(&mut self, op: &Forget) -> R<()> {
        self.need_service("presence")?;
        super::check_number("beat", op.beat)?;
        self.x(
            "DELETE FROM presence WHERE kind = ?1 AND name = ?2 AND beat = ?3",
            p![number(op.kind), &op.name, op.beat],
        )?;
        Ok(())
    }

    pub(super) fn take_turn(&mut self, op: &TakeTurn) -> R<Turn> {
        self.need_service("turns")?;
        super::check_principal("task", &op.task)?;
        super::check_principal("holder", &op.holder)?;
        super::check_number("beat", op.stale.unwrap_or_default())?;
        let now = self.turn(&op.task)?;
        // Each change asks again what the decision rests on: two that come together cannot both succeed.
        match &now {
            None => self.x(
                "INSERT INTO turn (name, holder, beat) VALUES (?1, ?2, 1) ON CONFLICT (name) DO NOTHING",
                p![&op.task, &op.holder],
            )?,
            Some(turn) if turn.holder == op.holder => self.x(
                "UPDATE turn SET beat = beat + 1 WHERE name = ?1 AND holder = ?2",
                p![&op.task, &op.holder],
            )?,
            Some(turn) if op.stale == Some(turn.beat) => self.x(
                "UPDATE turn SET holder = ?2, beat = beat + 1 WHERE name = ?1 AND beat = ?3",
                p![&op.task, &op.holder, turn.beat],
            )?,
            Some(turn) => return Ok(turn.clone()),
        };
        match self.turn(&op.task)? {
            Some(turn) => Ok(turn),
            None => refuse(ErrorKind::Corrupt, format!("the turn at {} is gone", op.task)),
        }
    }

    fn turn(&mut self, task: &str) -> R<Option<Turn>> {
        let Some(row) = self.one("SELECT holder, beat FROM turn WHERE name = ?1", p![task])? else {
            return Ok(None);
        };
        Ok(Some(Turn {
            holder: row.text(0)?,
            beat: row.num(1)?,
        }))
    }
}
