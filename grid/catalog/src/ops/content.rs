//! Contents: opening, drafts, publishing, giving up.

use super::inode::{Inode, READ, SEARCH, SET_GID, SET_UID, WRITE};
use super::quota::Charge;
use super::{Effect, Tx};
use crate::limits::{MAX_FILE_SIZE, MAX_FRAGMENTS, MAX_OPEN, MAX_REPLICAS};
use crate::sql::{R, p, refuse};
use crate::state::Open;
use crate::{
    Attr, Commit, ContentLayout, Digest, Draft, ErrorKind, Fragment, Generation, Handle, Ino, Kind,
    NewFragment, NodeState, ObjectId, OpenFile, Place, PutFile, Replica, ReplicaState, Role, StageFragment,
};
use std::collections::{BTreeSet, HashMap};

/// A node as far as its replicas go.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub id: i64,
    pub site: String,
    pub state: NodeState,
}

impl Holder {
    /// Whether a valid replica on it is a copy for the rule.
    pub fn counts(&self) -> bool {
        counts(self.state)
    }
}

/// Whether a valid replica on a node of this state is a copy for the rule: not on one that is being emptied
/// or lost.
pub(super) fn counts(state: NodeState) -> bool {
    matches!(state, NodeState::Up | NodeState::Down | NodeState::ReadOnly)
}

pub(super) fn digest_of(bytes: &[u8]) -> R<Digest> {
    match <[u8; 32]>::try_from(bytes) {
        Ok(d) => Ok(Digest(d)),
        Err(_) => refuse(ErrorKind::Corrupt, format!("a digest of {} bytes", bytes.len())),
    }
}

impl Tx<'_> {
    // ---- reading ---------------------------------------------------------------------------------------

    fn file(&mut self, place: &Place) -> R<Inode> {
        let inode = self.resolve(place, true)?;
        self.check_file(&inode, place)?;
        Ok(inode)
    }

    fn check_file(&self, inode: &Inode, place: &Place) -> R<()> {
        match inode.kind {
            Kind::File => Ok(()),
            Kind::Dir => refuse(ErrorKind::IsDir, format!("{place}: a directory")),
            Kind::Symlink => refuse(ErrorKind::Loop, format!("{place}: a symbolic link")),
            Kind::Fifo | Kind::Socket => refuse(
                ErrorKind::Invalid,
                format!("{place}: a FIFO or socket has no content"),
            ),
        }
    }

    /// All fragments of a content with their replicas.
    pub(super) fn fragments(&mut self, ino: Ino, generation: Generation) -> R<Vec<Fragment>> {
        let rows = self.q(
            "SELECT f.idx, f.ogen, f.size, f.digest, n.name, r.state FROM fragment f \
             LEFT JOIN replica r ON r.ino = f.ino AND r.ogen = f.ogen AND r.idx = f.idx \
             LEFT JOIN node n ON n.id = r.node WHERE f.ino = ?1 AND f.gen = ?2 ORDER BY f.idx, n.name",
            p![ino.0, generation.0],
        )?;
        let mut out: Vec<Fragment> = Vec::new();
        for row in &rows {
            let fragment = row.num(0)?;
            if out.last().is_none_or(|f| f.object.fragment != fragment) {
                let object = ObjectId {
                    ino,
                    generation: Generation(row.num(1)?),
                    fragment,
                };
                let digest = digest_of(&row.bytes(3)?)?;
                out.push(Fragment {
                    object,
                    size: row.num(2)?,
                    digest,
                    replicas: Vec::new(),
                });
            }
            if let (Some(node), Some(f)) = (row.opt_text(4)?, out.last_mut()) {
                f.replicas.push(Replica {
                    node,
                    state: super::replicas::state_of(row.int(5)?)?,
                });
            }
        }
        Ok(out)
    }

    pub(super) fn open_read(&mut self, place: &Place) -> R<OpenFile> {
        self.need_room()?;
        let inode = self.file(place)?;
        self.need(&inode, READ, place)?;
        if inode.links == 0 {
            return refuse(ErrorKind::Stale, format!("{place}: was removed"));
        }
        let fragments = self.fragments(inode.ino, inode.generation)?;
        let handle = self.open(&inode, inode.generation, None);
        Ok(OpenFile {
            handle,
            attr: self.attr(&inode)?,
            fragments,
        })
    }

    fn open(&mut self, inode: &Inode, generation: Generation, draft: Option<Generation>) -> Handle {
        let handle = self.shared.opens.new_handle();
        let user = self.caller.user.clone();
        self.effects.push(Effect::Open(
            handle,
            Open {
                ino: inode.ino,
                generation,
                draft,
                user,
            },
        ));
        handle
    }

    /// Handles are in memory: their number is bounded.
    fn need_room(&self) -> R<()> {
        if self.shared.opens.below(MAX_OPEN) {
            return Ok(());
        }
        refuse(
            ErrorKind::Busy,
            format!("{MAX_OPEN} files are open in this service"),
        )
    }

    pub(super) fn release(&mut self, handle: Handle) -> R<()> {
        let user = (self.caller.role == Role::User).then(|| self.caller.user.clone());
        self.effects.push(Effect::Close(handle, user));
        Ok(())
    }

    pub(super) fn where_is(&mut self, place: &Place) -> R<ContentLayout> {
        let inode = self.file(place)?;
        let fragments = self.fragments(inode.ino, inode.generation)?;
        Ok(ContentLayout {
            attr: self.attr(&inode)?,
            fragments,
        })
    }

    // ---- drafts ----------------------------------------------------------------------------------------

    pub(super) fn new_draft(&mut self, inode: &Inode) -> R<Draft> {
        self.need_room()?;
        let generation = Generation(self.new_id()?);
        let handle = self.open(inode, inode.generation, Some(generation));
        Ok(Draft {
            ino: inode.ino,
            generation,
            handle,
            base: inode.generation,
        })
    }

    pub(super) fn open_write(&mut self, place: &Place) -> R<Draft> {
        let inode = self.file(place)?;
        self.need(&inode, WRITE, place)?;
        if inode.links == 0 {
            return refuse(ErrorKind::Stale, format!("{place}: was removed"));
        }
        self.new_draft(&inode)
    }

    pub(super) fn allocate(&mut self) -> R<Draft> {
        self.need_room()?;
        let ino = Ino(self.new_id()?);
        let generation = Generation(self.new_id()?);
        let handle = self.shared.opens.new_handle();
        let user = self.caller.user.clone();
        let open = Open {
            ino,
            generation: Generation::EMPTY,
            draft: Some(generation),
            user,
        };
        self.effects.push(Effect::Open(handle, open));
        Ok(Draft {
            ino,
            generation,
            handle,
            base: Generation::EMPTY,
        })
    }

    /// Whether the caller got this draft from this service.
    fn vouched(&self, draft: &Draft) -> bool {
        let known = self.shared.opens.get(draft.handle);
        let known = known.or_else(|| {
            // Made by an operation of the same batch.
            self.effects.iter().find_map(|e| match e {
                Effect::Open(h, open) if *h == draft.handle => Some(open.clone()),
                _ => None,
            })
        });
        known.is_some_and(|o| {
            let user = self.caller.role != Role::User || o.user == self.caller.user;
            user && o.ino == draft.ino && o.draft == Some(draft.generation)
        })
    }

    /// The inode of a draft, locked, if the caller may publish it and it was not published before.
    fn draft_inode(&mut self, draft: &Draft) -> R<Inode> {
        super::check_number("inode", draft.ino.0)?;
        super::check_number("generation", draft.generation.0)?;
        let Some(inode) = self.find_locked(draft.ino)? else {
            return refuse(
                ErrorKind::Stale,
                format!("inode {} of the draft is not there", draft.ino),
            );
        };
        let place = Place::ino(draft.ino);
        self.check_file(&inode, &place)?;
        if !self.vouched(draft) && self.caller.role != Role::Service && !self.owns(&inode)? {
            self.need(&inode, WRITE, &place)?;
        }
        let sql = "SELECT whole FROM dead WHERE ino = ?1 AND gen = ?2";
        let used = inode.generation == draft.generation
            || draft.generation == Generation::EMPTY
            || self.one(sql, p![draft.ino.0, draft.generation.0])?.is_some();
        if used {
            return refuse(
                ErrorKind::Stale,
                format!("draft {} was committed already", draft.generation),
            );
        }
        Ok(inode)
    }

    // ---- fragments -------------------------------------------------------------------------------------

    fn holder(&mut self, name: &str, known: &mut HashMap<String, Holder>) -> R<Holder> {
        if let Some(h) = known.get(name) {
            return Ok(h.clone());
        }
        let holder = self.node(name)?;
        if holder.state == NodeState::Lost {
            return refuse(ErrorKind::Invalid, format!("node {name} is lost"));
        }
        known.insert(name.to_owned(), holder.clone());
        Ok(holder)
    }

    /// Checks new fragments, and finds the nodes of each.
    pub(super) fn check_new(&mut self, fragments: &[NewFragment]) -> R<Vec<Vec<Holder>>> {
        let mut known = HashMap::new();
        let mut indexes = BTreeSet::new();
        let mut out = Vec::with_capacity(fragments.len());
        for f in fragments {
            let about = format!("fragment {}", f.index);
            if f.index as usize >= MAX_FRAGMENTS {
                return refuse(
                    ErrorKind::Limit,
                    format!("{about}: a file has at most {MAX_FRAGMENTS} fragments"),
                );
            }
            if !indexes.insert(f.index) {
                return refuse(ErrorKind::Invalid, format!("{about}: is there twice"));
            }
            if f.size > MAX_FILE_SIZE {
                return refuse(
                    ErrorKind::TooBig,
                    format!("{about}: a file has at most {MAX_FILE_SIZE} bytes"),
                );
            }
            if f.nodes.is_empty() && f.size > 0 {
                return refuse(ErrorKind::Invalid, format!("{about}: no node holds it"));
            }
            if f.nodes.len() > MAX_REPLICAS {
                return refuse(
                    ErrorKind::Limit,
                    format!("{about}: at most {MAX_REPLICAS} replicas"),
                );
            }
            let mut holders: Vec<Holder> = Vec::with_capacity(f.nodes.len());
            for name in &f.nodes {
                let holder = self.holder(name, &mut known)?;
                if holders.iter().any(|h| h.id == holder.id) {
                    return refuse(ErrorKind::Invalid, format!("{about}: node {name} is there twice"));
                }
                holders.push(holder);
            }
            out.push(holders);
        }
        Ok(out)
    }

    pub(super) fn insert_fragment(&mut self, draft: &Draft, f: &NewFragment, holders: &[Holder]) -> R<()> {
        let (ino, generation) = (draft.ino.0, draft.generation.0);
        self.x(
            "INSERT INTO fragment (ino, gen, idx, ogen, size, digest) VALUES (?1, ?2, ?3, ?2, ?4, ?5)",
            p![ino, generation, f.index, f.size, &f.digest.0[..]],
        )?;
        for h in holders {
            self.x(
                "INSERT INTO replica (ino, ogen, idx, node, state) VALUES (?1, ?2, ?3, ?4, 1) \
                 ON CONFLICT (ino, ogen, idx, node) DO UPDATE SET state = 1",
                p![ino, generation, f.index, h.id],
            )?;
        }
        Ok(())
    }

    pub(super) fn stage(&mut self, op: &StageFragment) -> R<()> {
        let holders = self.check_new(std::slice::from_ref(&op.fragment))?;
        let inode = self.draft_inode(&op.draft)?;
        if inode.links == 0 {
            return refuse(ErrorKind::Stale, "the file of the draft was removed");
        }
        let (ino, generation) = (op.draft.ino.0, op.draft.generation.0);
        let sql = "SELECT size FROM fragment WHERE ino = ?1 AND gen = ?2 AND idx = ?3";
        if self.one(sql, p![ino, generation, op.fragment.index])?.is_some() {
            return refuse(
                ErrorKind::Exists,
                format!("fragment {} is staged already", op.fragment.index),
            );
        }
        self.x(
            "INSERT INTO draft (ino, gen, touched) VALUES (?1, ?2, ?3) \
             ON CONFLICT (ino, gen) DO UPDATE SET touched = excluded.touched",
            p![ino, generation, self.now.0],
        )?;
        let none = Vec::new();
        self.insert_fragment(&op.draft, &op.fragment, holders.first().unwrap_or(&none))
    }

    pub(super) fn abandon(&mut self, draft: &Draft) -> R<()> {
        super::check_number("inode", draft.ino.0)?;
        super::check_number("generation", draft.generation.0)?;
        if self.find(draft.ino)?.is_some() {
            // Refuses what is published.
            self.draft_inode(draft)?;
            let sql = "SELECT touched FROM draft WHERE ino = ?1 AND gen = ?2";
            if self.one(sql, p![draft.ino.0, draft.generation.0])?.is_some() {
                self.drop_content(draft.ino, draft.generation)?;
                self.x(
                    "DELETE FROM draft WHERE ino = ?1 AND gen = ?2",
                    p![draft.ino.0, draft.generation.0],
                )?;
            }
        }
        self.release(draft.handle)
    }

    // ---- publishing ------------------------------------------------------------------------------------

    pub(super) fn commit(&mut self, op: &Commit) -> R<Attr> {
        let holders = self.check_new(&op.fragments)?;
        let mut inode = self.draft_inode(&op.draft)?;
        if let Some(expected) = op.expect
            && expected != inode.generation
        {
            return refuse(
                ErrorKind::Stale,
                format!("content {} is published, not {expected}", inode.generation),
            );
        }
        let (ino, generation) = (op.draft.ino, op.draft.generation);
        let Parts { sizes, staged, kept } = self.parts(op, &inode)?;
        let size = whole(&sizes)?;
        let grown = (size as i64).saturating_sub(inode.charged_bytes());
        if inode.links > 0 {
            self.charge(&Charge::of(&inode, inode.qdir, 0, grown))?;
        }
        for (f, h) in op.fragments.iter().zip(&holders) {
            self.insert_fragment(&op.draft, f, h)?;
        }
        self.insert_kept(&op.draft, &kept)?;
        let had = inode.fragments > 0;
        // Of a removed file that is still open, everything goes together later.
        if had && inode.links > 0 {
            self.bury(ino, inode.generation, false)?;
        }
        self.publish(&mut inode, op, size, sizes.len())?;
        if !staged.is_empty() {
            self.x(
                "DELETE FROM draft WHERE ino = ?1 AND gen = ?2",
                p![ino.0, generation.0],
            )?;
        }
        self.hold_published(&op.draft);
        if inode.links > 0 {
            if had {
                self.forget_off_copies(&inode)?;
            }
            for (f, h) in op.fragments.iter().zip(&holders) {
                self.reckon_new(&inode, generation, f, h)?;
            }
            for fragment in staged {
                self.reckon(
                    &inode,
                    ObjectId {
                        ino,
                        generation,
                        fragment,
                    },
                )?;
            }
        }
        self.attr(&inode)
    }

    /// What a commit's content will consist of.
    fn parts(&mut self, op: &Commit, inode: &Inode) -> R<Parts> {
        let rows = self.q(
            "SELECT idx, size FROM fragment WHERE ino = ?1 AND gen = ?2",
            p![op.draft.ino.0, op.draft.generation.0],
        )?;
        let mut sizes: HashMap<u32, u64> = HashMap::new();
        let mut staged = Vec::with_capacity(rows.len());
        for row in &rows {
            sizes.insert(row.num(0)?, row.num(1)?);
            staged.push(row.num::<u32>(0)?);
        }
        for f in &op.fragments {
            if sizes.insert(f.index, f.size).is_some() {
                return refuse(
                    ErrorKind::Exists,
                    format!("fragment {} is staged already", f.index),
                );
            }
        }
        let kept = self.kept(inode, &op.keep, &mut sizes)?;
        Ok(Parts { sizes, staged, kept })
    }

    fn insert_kept(&mut self, draft: &Draft, kept: &[Fragment]) -> R<()> {
        for f in kept {
            self.x(
                "INSERT INTO fragment (ino, gen, idx, ogen, size, digest) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                p![
                    draft.ino.0,
                    draft.generation.0,
                    f.object.fragment,
                    f.object.generation.0,
                    f.size,
                    &f.digest.0[..]
                ],
            )?;
        }
        Ok(())
    }

    /// The draft's handle holds the new content from now on, and its base no more.
    fn hold_published(&mut self, draft: &Draft) {
        if let Some(open) = self.shared.opens.get(draft.handle)
            && open.draft == Some(draft.generation)
        {
            let open = Open {
                generation: draft.generation,
                draft: None,
                ..open
            };
            self.effects.push(Effect::Open(draft.handle, open));
        }
    }

    /// Fragments of the published content that are kept.
    fn kept(&mut self, inode: &Inode, keep: &[u32], sizes: &mut HashMap<u32, u64>) -> R<Vec<Fragment>> {
        if keep.is_empty() {
            return Ok(Vec::new());
        }
        let mut old: HashMap<u32, Fragment> = HashMap::new();
        for f in self.fragments(inode.ino, inode.generation)? {
            old.insert(f.object.fragment, f);
        }
        let mut out = Vec::with_capacity(keep.len());
        for index in keep {
            let Some(f) = old.remove(index) else {
                return refuse(
                    ErrorKind::Invalid,
                    format!("fragment {index} to be kept is not published, or twice"),
                );
            };
            if sizes.insert(*index, f.size).is_some() {
                return refuse(ErrorKind::Exists, format!("fragment {index} is kept and new"));
            }
            out.push(f);
        }
        Ok(out)
    }

    fn publish(&mut self, inode: &mut Inode, op: &Commit, size: u64, fragments: usize) -> R<()> {
        inode.generation = op.draft.generation;
        inode.size = size;
        inode.version += 1;
        inode.fragments = u32::try_from(fragments).unwrap_or(u32::MAX);
        inode.mtime = op.mtime.unwrap_or(self.now);
        inode.ctime = self.now;
        if !self.is_admin() {
            // Whoever writes to a program takes its privilege away.
            inode.mode &= !SET_UID;
            if inode.mode & 0o010 != 0 {
                inode.mode &= !SET_GID;
            }
        }
        self.x(
            "UPDATE inode SET gen = ?2, size = ?3, version = ?4, frags = ?5, mtime = ?6, ctime = ?7, mode = ?8 \
             WHERE ino = ?1",
            p![
                inode.ino.0, inode.generation.0, size, inode.version, inode.fragments, inode.mtime.0,
                inode.ctime.0, inode.mode
            ],
        )?;
        Ok(())
    }

    pub(super) fn put_file(&mut self, op: &PutFile) -> R<Attr> {
        let (place, draft) = (&op.place, &op.draft);
        if !self.vouched(draft) {
            return refuse(
                ErrorKind::Stale,
                "the draft is of another service, or of before its restart",
            );
        }
        let holders = self.check_new(&op.fragments)?;
        let sizes: HashMap<u32, u64> = op.fragments.iter().map(|f| (f.index, f.size)).collect();
        let size = whole(&sizes)?;
        let mut at = self.walk_to_name(place, ErrorKind::IsDir)?;
        if at.slash {
            return refuse(
                ErrorKind::IsDir,
                format!("{place}: a name with a slash is a directory's"),
            );
        }
        self.lock_dir(&mut at.dir, place)?;
        let there = self.entry_locked(at.dir.ino, &at.name)?;
        if let Some(there) = &there {
            if op.exclusive {
                return refuse(ErrorKind::Exists, format!("{place}: is there already"));
            }
            if there.is_dir() {
                return refuse(ErrorKind::IsDir, format!("{place}: a directory"));
            }
            self.need_removal(&at.dir, there, place)?;
        }
        self.need(&at.dir, WRITE | SEARCH, place)?;
        if self.find(draft.ino)?.is_some() {
            return refuse(ErrorKind::Stale, "the draft was used already");
        }
        let mut inode = self.fresh(&at.dir, draft.ino, Kind::File, op.mode, op.umask)?;
        inode.size = size;
        inode.generation = draft.generation;
        inode.version = 1;
        inode.fragments = u32::try_from(op.fragments.len()).unwrap_or(u32::MAX);
        inode.mtime = op.mtime.unwrap_or(self.now);
        // Charged before anything changes: replacing a file needs room for both.
        let charge = Charge::of(&inode, at.dir.qdir, 1, inode.charged_bytes());
        self.charge(&charge)?;
        self.insert(&inode)?;
        if let Some(mut there) = there {
            self.delete_entry(at.dir.ino, &at.name)?;
            self.lose_name(&mut there)?;
        }
        self.insert_entry(at.dir.ino, &at.name, &inode)?;
        self.touch_dir(at.dir.ino, 0)?;
        for (f, h) in op.fragments.iter().zip(&holders) {
            self.insert_fragment(draft, f, h)?;
            self.reckon_new(&inode, draft.generation, f, h)?;
        }
        self.attr(&inode)
    }

    // ---- the end of contents ---------------------------------------------------------------------------

    /// A content (or a whole inode) that no name leads to any more; it goes when nobody has it open.
    pub(super) fn bury(&mut self, ino: Ino, generation: Generation, whole: bool) -> R<()> {
        let death = if self.shares() { 0 } else { self.new_id()? };
        self.x(
            "INSERT INTO dead (ino, gen, whole, seq) VALUES (?1, ?2, ?3, {death})",
            p![ino.0, generation.0, i64::from(whole), death],
        )?;
        Ok(())
    }

    /// A content goes: its objects that no other content of the inode has are to be removed by their nodes.
    pub(super) fn drop_content(&mut self, ino: Ino, generation: Generation) -> R<()> {
        let gone = p![ino.0, generation.0];
        // Objects of this content only: (ogen, idx) of its fragments that no other generation has.
        self.x(
            "DELETE FROM replica WHERE ino = ?1 AND state = 3 AND (ogen, idx) IN ( \
             SELECT f.ogen, f.idx FROM fragment f WHERE f.ino = ?1 AND f.gen = ?2 AND NOT EXISTS ( \
             SELECT 1 FROM fragment o WHERE o.ino = f.ino AND o.gen <> f.gen AND o.idx = f.idx AND o.ogen = f.ogen))",
            gone,
        )?;
        self.x(
            "UPDATE replica SET state = 4 WHERE ino = ?1 AND (ogen, idx) IN ( \
             SELECT f.ogen, f.idx FROM fragment f WHERE f.ino = ?1 AND f.gen = ?2 AND NOT EXISTS ( \
             SELECT 1 FROM fragment o WHERE o.ino = f.ino AND o.gen <> f.gen AND o.idx = f.idx AND o.ogen = f.ogen))",
            gone,
        )?;
        self.x("DELETE FROM fragment WHERE ino = ?1 AND gen = ?2", gone)?;
        Ok(())
    }
}

/// Fragments of a content that is to be published.
struct Parts {
    /// Sizes of all by index.
    sizes: HashMap<u32, u64>,
    /// Indexes of those that were staged.
    staged: Vec<u32>,
    /// Those that are kept from the content published before.
    kept: Vec<Fragment>,
}

/// Size of a content whose indexes are complete.
pub(super) fn whole(sizes: &HashMap<u32, u64>) -> R<u64> {
    let count = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
    if let Some(gap) = (0..count).find(|i| !sizes.contains_key(i)) {
        return refuse(ErrorKind::Invalid, format!("fragment {gap} is missing"));
    }
    let size = sizes.values().fold(0u64, |a, b| a.saturating_add(*b));
    if size > MAX_FILE_SIZE {
        return refuse(
            ErrorKind::TooBig,
            format!("a file has at most {MAX_FILE_SIZE} bytes"),
        );
    }
    Ok(size)
}

/// What a state is in the table.
pub(super) const VALID: i64 = 1;

impl ReplicaState {
    /// Its number in the table `replica`.
    pub(super) fn number(self) -> i64 {
        match self {
            ReplicaState::Writing => 0,
            ReplicaState::Valid => VALID,
            ReplicaState::Stale => 2,
            ReplicaState::Lost => 3,
            ReplicaState::Removing => 4,
        }
    }
}
