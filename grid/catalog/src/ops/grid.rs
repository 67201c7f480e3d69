//! Nodes, sites, routes and leases.

use super::Tx;
use crate::limits::{MAX_LEASES, MAX_NODES, MAX_SITES, MAX_TTL_MS};
use crate::sql::{R, p, refuse};
use crate::{
    CatalogError, DropLease, ErrorKind, Lease, Node, NodeReport, NodeState, PutRoute, Route, Site, TakeLease,
    Timestamp,
};
use std::time::Duration;

pub(super) fn node_state(n: i64) -> Result<NodeState, CatalogError> {
    Ok(match n {
        0 => NodeState::Up,
        1 => NodeState::Down,
        2 => NodeState::Drain,
        3 => NodeState::ReadOnly,
        4 => NodeState::Lost,
        _ => {
            return Err(CatalogError::new(
                ErrorKind::Corrupt,
                format!("a node in state {n}"),
            ));
        }
    })
}

fn number(state: NodeState) -> i64 {
    match state {
        NodeState::Up => 0,
        NodeState::Down => 1,
        NodeState::Drain => 2,
        NodeState::ReadOnly => 3,
        NodeState::Lost => 4,
    }
}

impl Tx<'_> {
    // ---- nodes -----------------------------------------------------------------------------------------

    pub(super) fn list_nodes(&mut self) -> R<Vec<Node>> {
        let rows = self.q(
            "SELECT name, site, address, pin, state, capacity, free, load, heartbeat, since FROM node ORDER BY name",
            p![],
        )?;
        rows.iter()
            .map(|r| {
                Ok(Node {
                    name: r.text(0)?,
                    site: r.text(1)?,
                    address: r.text(2)?,
                    pin: r.text(3)?,
                    state: node_state(r.int(4)?)?,
                    capacity_bytes: r.num(5)?,
                    free_bytes: r.num(6)?,
                    load_milli: r.num(7)?,
                    heartbeat: Timestamp(r.int(8)?),
                    since: Timestamp(r.int(9)?),
                })
            })
            .collect()
    }

    pub(super) fn put_node(&mut self, node: &Node) -> R<()> {
        self.need_service("nodes")?;
        super::check_principal("node", &node.name)?;
        super::check_text("address", &node.address)?;
        super::check_text("pin", &node.pin)?;
        super::check_number("capacity", node.capacity_bytes)?;
        super::check_number("free space", node.free_bytes)?;
        self.need_site(&node.site)?;
        let sql = "SELECT id, state FROM node WHERE name = ?1 {lock}";
        if let Some(row) = self.one(sql, p![&node.name])? {
            let state = match node_state(row.int(1)?)? {
                NodeState::Lost | NodeState::Down => NodeState::Up,
                kept => kept,
            };
            self.x(
                "UPDATE node SET site = ?2, address = ?3, pin = ?4, state = ?5, capacity = ?6, free = ?7, \
                 load = ?8, heartbeat = ?9, since = CASE WHEN state = ?5 THEN since ELSE ?9 END WHERE id = ?1",
                p![
                    row.int(0)?, &node.site, &node.address, &node.pin, number(state), node.capacity_bytes,
                    node.free_bytes, node.load_milli, self.now.0
                ],
            )?;
            return Ok(());
        }
        let count: u64 = self
            .one("SELECT COUNT(*) FROM node", p![])?
            .map_or(Ok(0), |r| r.num(0))?;
        if count >= MAX_NODES {
            return refuse(ErrorKind::Limit, format!("a grid has at most {MAX_NODES} nodes"));
        }
        let id = self.new_id()?;
        self.x(
            "INSERT INTO node (id, name, site, address, pin, state, capacity, free, load, heartbeat, since) \
             VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7, ?8, ?9, ?9)",
            p![
                id,
                &node.name,
                &node.site,
                &node.address,
                &node.pin,
                node.capacity_bytes,
                node.free_bytes,
                node.load_milli,
                self.now.0
            ],
        )?;
        Ok(())
    }

    pub(super) fn heartbeat(&mut self, reports: &[NodeReport]) -> R<u64> {
        self.need_service("heartbeats")?;
        if reports.len() as u64 > MAX_NODES {
            return refuse(ErrorKind::Limit, format!("at most {MAX_NODES} reports at once"));
        }
        for r in reports {
            super::check_number("capacity", r.capacity_bytes)?;
            super::check_number("free space", r.free_bytes)?;
        }
        let mut known = 0;
        for r in reports {
            known += self.x(
                "UPDATE node SET capacity = ?2, free = ?3, load = ?4, heartbeat = ?5, \
                 since = CASE WHEN state = 1 THEN ?5 ELSE since END, \
                 state = CASE WHEN state = 1 THEN 0 ELSE state END WHERE name = ?1",
                p![&r.node, r.capacity_bytes, r.free_bytes, r.load_milli, self.now.0],
            )?;
        }
        Ok(known)
    }

    pub(super) fn set_node_state(&mut self, node: &str, state: NodeState) -> R<()> {
        self.need_service("nodes")?;
        let id = self.node(node)?.id;
        self.x(
            "UPDATE node SET since = CASE WHEN state = ?2 THEN since ELSE ?3 END, state = ?2 WHERE id = ?1",
            p![id, number(state), self.now.0],
        )?;
        Ok(())
    }

    pub(super) fn remove_node(&mut self, node: &str) -> R<()> {
        self.need_service("nodes")?;
        let id = self.node(node)?.id;
        self.one("SELECT id FROM node WHERE id = ?1 {lock}", p![id])?;
        if self
            .one("SELECT ino FROM replica WHERE node = ?1 LIMIT 1", p![id])?
            .is_some()
        {
            return refuse(ErrorKind::Busy, format!("node {node} has replicas"));
        }
        self.x("DELETE FROM node WHERE id = ?1", p![id])?;
        Ok(())
    }

    // ---- sites and routes ------------------------------------------------------------------------------

    fn need_site(&mut self, name: &str) -> R<()> {
        if self
            .one("SELECT name FROM site WHERE name = ?1", p![name])?
            .is_none()
        {
            return refuse(
                ErrorKind::NotFound,
                format!("site '{}' is not known", name.escape_debug()),
            );
        }
        Ok(())
    }

    pub(super) fn list_sites(&mut self) -> R<Vec<Site>> {
        let rows = self.q("SELECT name, note FROM site ORDER BY name", p![])?;
        rows.iter()
            .map(|r| {
                Ok(Site {
                    name: r.text(0)?,
                    note: r.text(1)?,
                })
            })
            .collect()
    }

    pub(super) fn put_site(&mut self, site: &Site) -> R<()> {
        self.need_service("sites")?;
        super::check_principal("site", &site.name)?;
        super::check_text("note", &site.note)?;
        let count: u64 = self
            .one("SELECT COUNT(*) FROM site", p![])?
            .map_or(Ok(0), |r| r.num(0))?;
        if count >= MAX_SITES {
            return refuse(ErrorKind::Limit, format!("a grid has at most {MAX_SITES} sites"));
        }
        self.x(
            "INSERT INTO site (name, note) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET note = excluded.note",
            p![&site.name, &site.note],
        )?;
        Ok(())
    }

    pub(super) fn list_routes(&mut self) -> R<Vec<Route>> {
        let rows = self.q(
            "SELECT r.src, r.dst, r.capacity, (SELECT CAST(COALESCE(SUM(l.rate), 0) AS BIGINT) FROM lease l \
             WHERE l.src = r.src AND l.dst = r.dst AND l.expires > ?1) FROM route r ORDER BY r.src, r.dst",
            p![self.now.0],
        )?;
        rows.iter()
            .map(|r| {
                Ok(Route {
                    from: r.text(0)?,
                    to: r.text(1)?,
                    capacity_bps: r.num(2)?,
                    leased_bps: r.num(3)?,
                })
            })
            .collect()
    }

    pub(super) fn put_route(&mut self, op: &PutRoute) -> R<()> {
        self.need_service("routes")?;
        self.need_site(&op.from)?;
        self.need_site(&op.to)?;
        check_rate("capacity", op.capacity_bps)?;
        self.x(
            "INSERT INTO route (src, dst, capacity) VALUES (?1, ?2, ?3) \
             ON CONFLICT (src, dst) DO UPDATE SET capacity = excluded.capacity",
            p![&op.from, &op.to, op.capacity_bps],
        )?;
        Ok(())
    }

    // ---- leases ----------------------------------------------------------------------------------------

    pub(super) fn take_lease(&mut self, op: &TakeLease) -> R<Lease> {
        self.need_service("leases")?;
        super::check_principal("holder", &op.holder)?;
        check_rate("rate", op.rate_bps)?;
        check_rate("least rate", op.least_bps)?;
        let ttl = ttl_ns(op.ttl_ms)?;
        let sql = "SELECT capacity FROM route WHERE src = ?1 AND dst = ?2 {lock}";
        let Some(route) = self.one(sql, p![&op.from, &op.to])? else {
            return refuse(
                ErrorKind::NotFound,
                format!("no route from {} to {}", op.from, op.to),
            );
        };
        let capacity: u64 = route.num(0)?;
        let (taken, count) = self.taken_by_others(op, ttl)?;
        let left = capacity.saturating_sub(taken);
        if left < op.least_bps {
            return refuse(
                ErrorKind::Busy,
                format!(
                    "route {} to {}: {left} of {capacity} bit/s are left",
                    op.from, op.to
                ),
            );
        }
        if count >= MAX_LEASES {
            return refuse(
                ErrorKind::Limit,
                format!("a route has at most {MAX_LEASES} leases"),
            );
        }
        let rate_bps = op.rate_bps.min(left);
        let expires = Timestamp(self.now.0.saturating_add(ttl));
        self.x(
            "DELETE FROM lease WHERE src = ?1 AND dst = ?2 AND expires <= ?3",
            p![&op.from, &op.to, self.now.0],
        )?;
        self.x(
            "INSERT INTO lease (src, dst, holder, rate, expires) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (src, dst, holder) DO UPDATE SET rate = excluded.rate, expires = excluded.expires",
            p![&op.from, &op.to, &op.holder, rate_bps, expires.0],
        )?;
        let (from, to, holder) = (op.from.clone(), op.to.clone(), op.holder.clone());
        Ok(Lease {
            from,
            to,
            holder,
            rate_bps,
            expires,
        })
    }

    /// Sum and number of the others' leases. One that ends later than its holder can have meant, and that nobody renews, is dropped.
    fn taken_by_others(&mut self, op: &TakeLease, ttl: i64) -> R<(u64, u64)> {
        let sql = "SELECT holder, rate, expires FROM lease WHERE src = ?1 AND dst = ?2 AND holder <> ?3 AND expires > ?4";
        let rows = self.q(sql, p![&op.from, &op.to, &op.holder, self.now.0])?;
        let of = format!("lease/{}/{}/", op.from, op.to);
        let name = |holder: &str| format!("{of}{holder}");
        let time = Duration::from_nanos(u64::try_from(ttl).unwrap_or_default()) * 2;
        let mut seen = Vec::with_capacity(rows.len());
        for row in &rows {
            seen.push((name(&row.text(0)?), row.int(2)?, time));
        }
        let stand = self.shared.standing.look(&of, &seen);
        let (mut taken, mut count) = (0u64, 0);
        for row in &rows {
            let holder = row.text(0)?;
            if stand.contains(&name(&holder)) {
                self.x(
                    "DELETE FROM lease WHERE src = ?1 AND dst = ?2 AND holder = ?3 AND expires = ?4",
                    p![&op.from, &op.to, &holder, row.int(2)?],
                )?;
            } else {
                taken = taken.saturating_add(row.num(1)?);
                count += 1;
            }
        }
        Ok((taken, count))
    }

    pub(super) fn drop_lease(&mut self, op: &DropLease) -> R<()> {
        self.need_service("leases")?;
        self.x(
            "DELETE FROM lease WHERE src = ?1 AND dst = ?2 AND holder = ?3",
            p![&op.from, &op.to, &op.holder],
        )?;
        Ok(())
    }

    pub(super) fn list_leases(&mut self, from: &str, to: &str) -> R<Vec<Lease>> {
        self.need_service("leases")?;
        let rows = self.q(
            "SELECT holder, rate, expires FROM lease WHERE src = ?1 AND dst = ?2 AND expires > ?3 ORDER BY holder",
            p![from, to, self.now.0],
        )?;
        rows.iter()
            .map(|r| {
                Ok(Lease {
                    from: from.to_owned(),
                    to: to.to_owned(),
                    holder: r.text(0)?,
                    rate_bps: r.num(1)?,
                    expires: Timestamp(r.int(2)?),
                })
            })
            .collect()
    }
}

fn check_rate(what: &str, bps: u64) -> R<()> {
    // A sum of MAX_LEASES rates stays below 2^63.
    if bps == 0 || bps > 1 << 49 {
        return refuse(
            ErrorKind::Invalid,
            format!("{what} {bps} bit/s: 1 to {}", 1u64 << 49),
        );
    }
    Ok(())
}

/// Milliseconds of a life as nanoseconds.
pub(super) fn ttl_ns(ms: u64) -> R<i64> {
    if !(1..=MAX_TTL_MS).contains(&ms) {
        return refuse(ErrorKind::Invalid, format!("{ms} ms: 1 to {MAX_TTL_MS}"));
    }
    Ok(ms as i64 * 1_000_000)
}
