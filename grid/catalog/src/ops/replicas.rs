//! Replicas, and whether there are as many as wanted.
//!
//! The table `off_copies` has a row for each fragment of a published content whose valid replicas are not what
//! the rule of its file wants, so that what is to be repaired is found without reading all files. Every
//! operation that changes a replica, a rule or a content reckons the fragments concerned in its own
//! transaction, with the inode locked.

use super::Tx;
use super::content::{Holder, VALID, counts, digest_of};
use super::grid::node_state;
use super::inode::Inode;
use crate::limits::{MAX_RECKON, MAX_REPLICAS};
use crate::sql::{R, Row, p, refuse};
use crate::{
    AdoptReplica, CatalogError, CopyBalance, CopyRule, Digest, ErrorKind, Fragment, Generation, Ino, Kind,
    ListNodeReplicas, ListOffCopies, NewFragment, NodeReplica, NodeState, ObjectId, OffCopies, RemoveReplica,
    Replica, ReplicaState, SetReplica,
};

pub(super) fn state_of(n: i64) -> Result<ReplicaState, CatalogError> {
    Ok(match n {
        0 => ReplicaState::Writing,
        VALID => ReplicaState::Valid,
        2 => ReplicaState::Stale,
        3 => ReplicaState::Lost,
        4 => ReplicaState::Removing,
        _ => return Err(CatalogError::new(ErrorKind::Corrupt, format!("a replica in state {n}"))),
    })
}

fn object_of(row: &Row, at: usize) -> R<ObjectId> {
    Ok(ObjectId { ino: Ino(row.num(at)?), generation: Generation(row.num(at + 1)?), fragment: row.num(at + 2)? })
}

/// A fragment that an operation works on, its inode locked.
struct Held {
    inode: Inode,
    size: u64,
    digest: Digest,
    /// Whether it is of the published content of a file with a name.
    live: bool,
}

/// A replica with its node.
struct Copy {
    node: i64,
    site: String,
    node_state: NodeState,
    state: ReplicaState,
}

impl Copy {
    fn counts(&self) -> bool {
        self.state == ReplicaState::Valid && counts(self.node_state)
    }
}

/// Before the first object.
const FIRST: ObjectId = ObjectId { ino: Ino(0), generation: Generation(0), fragment: 0 };

impl Tx<'_> {
    pub(super) fn node(&mut self, name: &str) -> R<Holder> {
        match self.one("SELECT id, site, state FROM node WHERE name = ?1", p![name])? {
            Some(row) => Ok(Holder { id: row.int(0)?, site: row.text(1)?, state: node_state(row.int(2)?)? }),
            None => refuse(ErrorKind::NotFound, format!("node '{}' is not known", name.escape_debug())),
        }
    }

    // ---- reckoning -------------------------------------------------------------------------------------

    fn write_off(&mut self, o: ObjectId, missing: u32, surplus: u32, new: bool) -> R<()> {
        if missing == 0 && surplus == 0 {
            if !new {
                self.x(
                    "DELETE FROM off_copies WHERE ino = ?1 AND ogen = ?2 AND idx = ?3",
                    p![o.ino.0, o.generation.0, o.fragment],
                )?;
            }
            return Ok(());
        }
        self.x(
            "INSERT INTO off_copies (ino, ogen, idx, missing, surplus) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (ino, ogen, idx) DO UPDATE SET missing = excluded.missing, surplus = excluded.surplus",
            p![o.ino.0, o.generation.0, o.fragment, missing, surplus],
        )?;
        Ok(())
    }

    /// A fragment that was published just now and has the replicas given.
    pub(super) fn reckon_new(&mut self, i: &Inode, g: Generation, f: &NewFragment, holders: &[Holder]) -> R<()> {
        if f.size == 0 {
            return Ok(());
        }
        let rule = self.rule(i.rule)?;
        let sites: Vec<&str> = holders.iter().filter(|h| h.counts()).map(|h| h.site.as_str()).collect();
        let object = ObjectId { ino: i.ino, generation: g, fragment: f.index };
        self.write_off(object, rule.missing(&sites), rule.surplus(&sites), true)
    }

    fn copies(&mut self, o: ObjectId) -> R<Vec<Copy>> {
        let rows = self.q(
            "SELECT r.node, n.site, n.state, r.state FROM replica r JOIN node n ON n.id = r.node \
             WHERE r.ino = ?1 AND r.ogen = ?2 AND r.idx = ?3",
            p![o.ino.0, o.generation.0, o.fragment],
        )?;
        rows.iter()
            .map(|r| {
                Ok(Copy {
                    node: r.int(0)?,
                    site: r.text(1)?,
                    node_state: node_state(r.int(2)?)?,
                    state: state_of(r.int(3)?)?,
                })
            })
            .collect()
    }

    /// What is missing and too much of a fragment, from its replicas.
    fn off(&mut self, o: ObjectId, rule: &CopyRule) -> R<(u32, u32)> {
        let copies = self.copies(o)?;
        let sites: Vec<&str> = copies.iter().filter(|c| c.counts()).map(|c| c.site.as_str()).collect();
        Ok((rule.missing(&sites), rule.surplus(&sites)))
    }

    /// A fragment of the published content whose replicas changed.
    pub(super) fn reckon(&mut self, inode: &Inode, object: ObjectId) -> R<()> {
        let rule = self.rule(inode.rule)?;
        let size = self.fragment_of(inode, object)?.map_or(0, |(size, _, _)| size);
        let (missing, surplus) = if size == 0 { (0, 0) } else { self.off(object, &rule)? };
        self.write_off(object, missing, surplus, false)
    }

    /// All fragments of a file whose rule changed.
    pub(super) fn reckon_file(&mut self, inode: &Inode) -> R<()> {
        let rows = self.q(
            "SELECT ino, ogen, idx FROM fragment WHERE ino = ?1 AND gen = ?2",
            p![inode.ino.0, inode.generation.0],
        )?;
        rows.iter().try_for_each(|row| self.reckon(inode, object_of(row, 0)?))
    }

    /// Drops what is noted of fragments that the published content does not have any more.
    pub(super) fn forget_off_copies(&mut self, inode: &Inode) -> R<()> {
        self.x(
            "DELETE FROM off_copies WHERE ino = ?1 AND NOT EXISTS (SELECT 1 FROM fragment f \
             WHERE f.ino = ?1 AND f.gen = ?2 AND f.idx = off_copies.idx AND f.ogen = off_copies.ogen)",
            p![inode.ino.0, inode.generation.0],
        )?;
        Ok(())
    }

    // ---- one fragment ----------------------------------------------------------------------------------

    /// Size, digest, and whether the published content has it; none if no content has it.
    fn fragment_of(&mut self, inode: &Inode, o: ObjectId) -> R<Option<(u64, Digest, bool)>> {
        // Published, and made with this content or an earlier one; else of a draft or a content that is open.
        let by_generation = "SELECT size, digest FROM fragment WHERE ino = ?1 AND gen = ?2 AND idx = ?3 AND ogen = ?4";
        let published = p![o.ino.0, inode.generation.0, o.fragment, o.generation.0];
        if let Some(row) = self.one(by_generation, published)? {
            return Ok(Some((row.num(0)?, digest_of(&row.bytes(1)?)?, inode.links > 0)));
        }
        let any = "SELECT size, digest FROM fragment WHERE ino = ?1 AND idx = ?2 AND ogen = ?3 LIMIT 1";
        match self.one(any, p![o.ino.0, o.fragment, o.generation.0])? {
            Some(row) => Ok(Some((row.num(0)?, digest_of(&row.bytes(1)?)?, false))),
            None => Ok(None),
        }
    }

    fn check_object(o: ObjectId) -> R<()> {
        super::check_number("inode", o.ino.0)?;
        super::check_number("generation", o.generation.0)
    }

    fn hold(&mut self, o: ObjectId) -> R<Held> {
        Self::check_object(o)?;
        if let Some(inode) = self.find_locked(o.ino)?
            && let Some((size, digest, live)) = self.fragment_of(&inode, o)?
        {
            return Ok(Held { inode, size, digest, live });
        }
        refuse(ErrorKind::NotFound, format!("object {o}: no content has it"))
    }

    fn replica_state(&mut self, o: ObjectId, node: i64) -> R<Option<ReplicaState>> {
        let sql = "SELECT state FROM replica WHERE ino = ?1 AND ogen = ?2 AND idx = ?3 AND node = ?4 {lock}";
        let row = self.one(sql, p![o.ino.0, o.generation.0, o.fragment, node])?;
        row.map(|r| Ok(state_of(r.int(0)?)?)).transpose()
    }

    fn write_state(&mut self, o: ObjectId, node: i64, state: ReplicaState) -> R<()> {
        self.x(
            "INSERT INTO replica (ino, ogen, idx, node, state) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (ino, ogen, idx, node) DO UPDATE SET state = excluded.state",
            p![o.ino.0, o.generation.0, o.fragment, node, state.number()],
        )?;
        Ok(())
    }

    pub(super) fn get_fragment(&mut self, o: ObjectId) -> R<Fragment> {
        self.need_service("fragments by object")?;
        Self::check_object(o)?;
        let found = match self.find(o.ino)? {
            Some(inode) => self.fragment_of(&inode, o)?,
            None => None,
        };
        let Some((size, digest, _)) = found else {
            return refuse(ErrorKind::NotFound, format!("object {o}: no content has it"));
        };
        Ok(Fragment { object: o, size, digest, replicas: self.replicas(o)? })
    }

    fn replicas(&mut self, o: ObjectId) -> R<Vec<Replica>> {
        let rows = self.q(
            "SELECT n.name, r.state FROM replica r JOIN node n ON n.id = r.node \
             WHERE r.ino = ?1 AND r.ogen = ?2 AND r.idx = ?3 ORDER BY n.name",
            p![o.ino.0, o.generation.0, o.fragment],
        )?;
        rows.iter().map(|r| Ok(Replica { node: r.text(0)?, state: state_of(r.int(1)?)? })).collect()
    }

    pub(super) fn add_replica(&mut self, o: ObjectId, node: &str) -> R<()> {
        self.need_service("replicas")?;
        let held = self.hold(o)?;
        if !held.live {
            return refuse(ErrorKind::Stale, format!("object {o}: is not of a published content"));
        }
        let holder = self.node(node)?;
        if holder.state != NodeState::Up {
            return refuse(ErrorKind::Busy, format!("node {node} takes no new replicas ({:?})", holder.state));
        }
        let copies = self.copies(o)?;
        if copies.iter().any(|c| c.node == holder.id) {
            return refuse(ErrorKind::Exists, format!("object {o}: node {node} has a replica"));
        }
        if copies.len() >= MAX_REPLICAS {
            return refuse(ErrorKind::Limit, format!("object {o}: at most {MAX_REPLICAS} replicas"));
        }
        self.write_state(o, holder.id, ReplicaState::Writing)
    }

    pub(super) fn set_replica(&mut self, op: &SetReplica) -> R<()> {
        self.need_service("replicas")?;
        let (o, node) = (op.object, &op.node);
        if matches!(op.state, ReplicaState::Removing | ReplicaState::Writing) {
            return refuse(ErrorKind::Invalid, "a replica is set valid, stale or lost");
        }
        let held = self.hold(o)?;
        let holder = self.node(node)?;
        match self.replica_state(o, holder.id)? {
            None => return refuse(ErrorKind::NotFound, format!("object {o}: node {node} has no replica")),
            Some(ReplicaState::Removing) => {
                return refuse(ErrorKind::Stale, format!("object {o}: the replica on {node} is to be removed"));
            }
            Some(_) => {}
        }
        if op.state == ReplicaState::Valid && op.digest != Some(held.digest) {
            return refuse(ErrorKind::Invalid, format!("object {o}: its digest is {}", held.digest));
        }
        self.write_state(o, holder.id, op.state)?;
        if held.live { self.reckon(&held.inode, o) } else { Ok(()) }
    }

    pub(super) fn remove_replica(&mut self, op: &RemoveReplica) -> R<()> {
        self.need_service("replicas")?;
        let (o, node) = (op.object, &op.node);
        let held = self.hold(o)?;
        let holder = self.node(node)?;
        let copies = self.copies(o)?;
        let Some(copy) = copies.iter().find(|c| c.node == holder.id) else {
            return refuse(ErrorKind::NotFound, format!("object {o}: node {node} has no replica"));
        };
        if copy.state == ReplicaState::Valid && held.size > 0 {
            let others = || copies.iter().filter(|c| c.node != holder.id);
            // A lost node's rows say `Lost` once they are reckoned; before, its state says so.
            let safe = others().any(|c| c.state == ReplicaState::Valid && c.node_state != NodeState::Lost);
            if !safe {
                return refuse(ErrorKind::LastReplica, format!("object {o}: the last valid replica"));
            }
            let rule = self.rule(held.inode.rule)?;
            let with: Vec<&str> = copies.iter().filter(|c| c.counts()).map(|c| c.site.as_str()).collect();
            let without: Vec<&str> = others().filter(|c| c.counts()).map(|c| c.site.as_str()).collect();
            if !op.below && rule.missing(&without) > rule.missing(&with) {
                return refuse(ErrorKind::LastReplica, format!("object {o}: fewer copies than {rule} would stay"));
            }
        }
        self.write_state(o, holder.id, ReplicaState::Removing)?;
        if held.live { self.reckon(&held.inode, o) } else { Ok(()) }
    }

    pub(super) fn drop_replica(&mut self, o: ObjectId, node: &str) -> R<()> {
        self.need_service("replicas")?;
        Self::check_object(o)?;
        // Of a content that is gone there is no inode to lock; the replica's row is.
        self.find_locked(o.ino)?;
        let holder = self.node(node)?;
        match self.replica_state(o, holder.id)? {
            None => refuse(ErrorKind::NotFound, format!("object {o}: node {node} has no replica")),
            Some(ReplicaState::Valid) => {
                refuse(ErrorKind::Invalid, format!("object {o}: the replica on {node} is valid; remove it first"))
            }
            Some(_) => {
                self.x(
                    "DELETE FROM replica WHERE ino = ?1 AND ogen = ?2 AND idx = ?3 AND node = ?4",
                    p![o.ino.0, o.generation.0, o.fragment, holder.id],
                )?;
                Ok(())
            }
        }
    }

    pub(super) fn adopt_replica(&mut self, op: &AdoptReplica) -> R<()> {
        self.need_service("replicas")?;
        let held = self.hold(op.object)?;
        if (op.size, op.digest) != (held.size, held.digest) {
            return refuse(
                ErrorKind::Invalid,
                format!("object {}: has {} bytes of digest {}", op.object, held.size, held.digest),
            );
        }
        let holder = self.node(&op.node)?;
        if self.replica_state(op.object, holder.id)? == Some(ReplicaState::Removing) {
            return refuse(ErrorKind::Stale, format!("object {}: is to be removed", op.object));
        }
        self.write_state(op.object, holder.id, ReplicaState::Valid)?;
        if held.live { self.reckon(&held.inode, op.object) } else { Ok(()) }
    }

    // ---- lists -----------------------------------------------------------------------------------------

    pub(super) fn list_off_copies(&mut self, op: &ListOffCopies) -> R<Vec<OffCopies>> {
        self.need_service("replicas of all files")?;
        super::check_page(op.limit)?;
        let a = op.after.unwrap_or(FIRST);
        Self::check_object(a)?;
        let params = p![a.ino.0, a.generation.0, a.fragment, op.limit];
        macro_rules! list {
            ($column:literal) => {
                concat!(
                    "SELECT o.ino, o.ogen, o.idx, o.missing, o.surplus, f.size, f.digest, i.rule FROM off_copies o ",
                    "JOIN inode i ON i.ino = o.ino AND i.nlink > 0 ",
                    "JOIN fragment f ON f.ino = o.ino AND f.gen = i.gen AND f.idx = o.idx AND f.ogen = o.ogen ",
                    "WHERE o.",
                    $column,
                    " > 0 AND (o.ino, o.ogen, o.idx) > (?1, ?2, ?3) ORDER BY o.ino, o.ogen, o.idx LIMIT ?4"
                )
            };
        }
        let rows = match op.balance {
            CopyBalance::Short => self.q(list!("missing"), params)?,
            CopyBalance::Surplus => self.q(list!("surplus"), params)?,
        };
        let mut out = Vec::with_capacity(rows.len());
        for row in &rows {
            let object = object_of(row, 0)?;
            let replicas = self.replicas(object)?;
            let digest = digest_of(&row.bytes(6)?)?;
            out.push(OffCopies {
                fragment: Fragment { object, size: row.num(5)?, digest, replicas },
                rule: self.rule(row.int(7)?)?,
                missing: row.num(3)?,
                surplus: row.num(4)?,
            });
        }
        Ok(out)
    }

    pub(super) fn list_node_replicas(&mut self, op: &ListNodeReplicas) -> R<Vec<NodeReplica>> {
        self.need_service("replicas of a node")?;
        super::check_page(op.limit)?;
        let a = op.after.unwrap_or(FIRST);
        Self::check_object(a)?;
        let node = self.node(&op.node)?.id;
        macro_rules! list {
            ($which:literal) => {
                concat!(
                    "SELECT r.ino, r.ogen, r.idx, r.state, ",
                    "(SELECT f.size FROM fragment f WHERE f.ino = r.ino AND f.idx = r.idx AND f.ogen = r.ogen LIMIT 1), ",
                    "(SELECT f.digest FROM fragment f WHERE f.ino = r.ino AND f.idx = r.idx AND f.ogen = r.ogen LIMIT 1) ",
                    "FROM replica r WHERE r.node = ?1 AND ",
                    $which,
                    "(r.ino, r.ogen, r.idx) > (?2, ?3, ?4) ORDER BY r.ino, r.ogen, r.idx LIMIT ?5"
                )
            };
        }
        let rows = match op.state {
            None => self.q(list!(""), p![node, a.ino.0, a.generation.0, a.fragment, op.limit])?,
            Some(ReplicaState::Valid) => {
                self.q(list!("r.state = 1 AND "), p![node, a.ino.0, a.generation.0, a.fragment, op.limit])?
            }
            Some(s) => self.q(
                // The condition is that of the index `replica_odd`.
                list!("r.state <> 1 AND r.state = ?6 AND "),
                p![node, a.ino.0, a.generation.0, a.fragment, op.limit, s.number()],
            )?,
        };
        let mut out = Vec::with_capacity(rows.len());
        for row in &rows {
            let digest = row.opt_bytes(5)?.map_or(Ok(Digest([0; 32])), |d| digest_of(&d))?;
            out.push(NodeReplica {
                object: object_of(row, 0)?,
                state: state_of(row.int(3)?)?,
                size: row.opt(4)?.unwrap_or(0),
                digest,
            });
        }
        Ok(out)
    }

    /// A page of a node's replicas after its state or site changed; see [`crate::ReckonNode`].
    pub(super) fn reckon_node(&mut self, node: &str, after: Option<ObjectId>, limit: u32) -> R<Option<ObjectId>> {
        self.need_service("nodes")?;
        if !(1..=MAX_RECKON).contains(&limit) {
            return refuse(ErrorKind::Invalid, format!("limit {limit}: 1 to {MAX_RECKON}"));
        }
        let holder = self.node(node)?;
        let a = after.unwrap_or(FIRST);
        Self::check_object(a)?;
        let rows = self.q(
            "SELECT ino, ogen, idx FROM replica WHERE node = ?1 AND (ino, ogen, idx) > (?2, ?3, ?4) \
             ORDER BY ino, ogen, idx LIMIT ?5",
            p![holder.id, a.ino.0, a.generation.0, a.fragment, limit],
        )?;
        let mut last = None;
        for row in &rows {
            let o = object_of(row, 0)?;
            last = Some(o);
            let inode = self.find_locked(o.ino)?;
            if holder.state == NodeState::Lost {
                match self.replica_state(o, holder.id)? {
                    // What was to be deleted went with the disk.
                    Some(ReplicaState::Removing) => {
                        self.x(
                            "DELETE FROM replica WHERE ino = ?1 AND ogen = ?2 AND idx = ?3 AND node = ?4",
                            p![o.ino.0, o.generation.0, o.fragment, holder.id],
                        )?;
                    }
                    Some(_) => self.write_state(o, holder.id, ReplicaState::Lost)?,
                    None => {}
                }
            }
            if let Some(inode) = inode
                && inode.kind == Kind::File
                && let Some((_, _, true)) = self.fragment_of(&inode, o)?
            {
                self.reckon(&inode, o)?;
            }
        }
        Ok(if rows.len() == limit as usize { last } else { None })
    }
}
