//! The operations: each a whole transaction. One struct each, its answer beside it.
//!
//! Unless an operation says otherwise: the walk of a [`Place`] needs search permission on each directory;
//! changing a directory's entries needs write and search permission on it, and with the sticky bit that the
//! caller owns the entry or the directory; [`Role::Admin`](crate::Role) passes all checks. Operations on
//! nodes, replicas, leases and jobs need `Role::Service` or `Role::Admin`.

use crate::{
    Access, Acl, AclKind, Attr, CatalogError, ContentLayout, CopyBalance, CopyRule, Created, DirPage, Draft,
    DumpSink, Fragment, Generation, Handle, Ino, Job, JobFilter, JobId, JobState, Kind, Lease, NewFragment,
    NewJob, Node, NodeReplica, NodeReport, NodeState, ObjectId, OffCopies, OpenFile, Place, Presence,
    PresenceKind, QuotaKind, QuotaSubject, RenameMode, ReplicaState, Reply, Route, SetTime, SetXattrMode,
    Site, SpaceTotals, Turn, Usage,
};

/// An operation with a typed answer; see [`crate::CatalogExt::call`].
pub trait Operation: Into<Op> {
    /// What it answers.
    type Output;
    /// The answer out of the sum of all answers.
    fn output(reply: Reply) -> Option<Self::Output>;
    /// Whether it changes what is durable.
    const WRITES: bool;
}

macro_rules! operations {
    ($($(#[$doc:meta])* $mode:ident $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* } -> $out:ty = $reply:pat => $value:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

            impl From<$name> for Op {
                fn from(op: $name) -> Op {
                    Op::$name(op)
                }
            }

            impl Operation for $name {
                type Output = $out;
                const WRITES: bool = operations!(@$mode);
                fn output(reply: Reply) -> Option<$out> {
                    match reply {
                        $reply => Some($value),
                        _ => None,
                    }
                }
            }
        )*

        /// Any operation.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $(#[doc = concat!("See [`", stringify!($name), "`](struct@", stringify!($name), ").")] $name($name),)*
        }

        impl Op {
            /// Its name, for logs.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(_) => stringify!($name),)* }
            }

            /// Whether it changes what is durable (and is answered after the flush).
            #[must_use]
            pub fn writes(&self) -> bool {
                match self { $(Op::$name(_) => operations!(@$mode),)* }
            }
        }
    };
    (@read) => { false };
    (@write) => { true };
}

impl Op {
    /// Whether it reads a few rows: microseconds, where the rows are in this process. (Of a path, a content, or the
    /// nodes: as many rows as it has components, fragments and replicas, or as there are nodes.)
    #[must_use]
    pub fn is_quick(&self) -> bool {
        matches!(
            self,
            Op::Stat(_)
                | Op::CheckAccess(_)
                | Op::ReadLink(_)
                | Op::PathOf(_)
                | Op::GetXattr(_)
                | Op::ListXattr(_)
                | Op::GetAcl(_)
                | Op::OpenRead(_)
                | Op::Release(_)
                | Op::Where(_)
                | Op::OpenWrite(_)
                | Op::Allocate(_)
                | Op::GetUsage(_)
                | Op::GetFragment(_)
                | Op::ListNodes(_)
                | Op::ListRoutes(_)
        )
    }
}

operations! {
    // ---- names and attributes ------------------------------------------------------------------------

    /// Attributes of what a path leads to.
    read Stat {
        /// What.
        place: Place,
        /// Whether a symbolic link at the end is followed.
        follow: bool,
    } -> Attr = Reply::Attr(a) => a;

    /// Whether the caller may (`access(2)`); `Access` error if not. Follows links.
    read CheckAccess {
        /// What.
        place: Place,
        /// Permissions asked for.
        access: Access,
    } -> Attr = Reply::Attr(a) => a;

    /// Target of a symbolic link.
    read ReadLink {
        /// The link.
        place: Place,
    } -> Vec<u8> = Reply::Bytes(b) => b;

    /// A page of a directory in the order of its names' bytes; needs read permission. An entry that is there
    /// during the whole listing is listed exactly once, whatever else is made and removed meanwhile. `.` and
    /// `..` are not listed.
    read ReadDir {
        /// The directory.
        place: Place,
        /// Names after this one; none: from the beginning. It need not exist (any more).
        after: Option<Vec<u8>>,
        /// Entries at most, 1 to [`crate::limits::MAX_PAGE`].
        limit: u32,
        /// Whether attributes are given (needs search permission too).
        attrs: bool,
    } -> DirPage = Reply::DirPage(p) => p;

    /// The path of an inode from the root, with a leading slash; of a file with many names one of them, if it
    /// still has the one that it was last made or renamed to (else `NotFound`). Service or administrator.
    read PathOf {
        /// Inode.
        ino: Ino,
    } -> Vec<u8> = Reply::Path(p) => p;

    /// Makes a directory; the answer is its attributes.
    write MakeDir {
        /// Name to make.
        place: Place,
        /// Permission bits, before the mask.
        mode: u32,
        /// Bits taken away, unless the parent has a default ACL.
        umask: u32,
    } -> Attr = Reply::Attr(a) => a;

    /// Makes a FIFO or a socket: a name with attributes, and nothing else.
    write MakeSpecial {
        /// Name to make.
        place: Place,
        /// What: [`Kind::Fifo`] or [`Kind::Socket`].
        kind: Kind,
        /// Permission bits, before the mask.
        mode: u32,
        /// Bits taken away, unless the parent has a default ACL.
        umask: u32,
    } -> Attr = Reply::Attr(a) => a;

    /// Makes an empty file, or opens the one that is there (following links). With `open` the answer has a
    /// draft, and an existing file needs write permission.
    write Create {
        /// Name to make.
        place: Place,
        /// Permission bits, before the mask.
        mode: u32,
        /// Bits taken away, unless the parent has a default ACL.
        umask: u32,
        /// Refuse what is there already (`O_EXCL`), even a dangling link.
        exclusive: bool,
        /// Whether a draft is wanted.
        open: bool,
    } -> Created = Reply::Created(c) => c;

    /// A symbolic link.
    write Symlink {
        /// Name to make.
        place: Place,
        /// Target, 1 to [`crate::limits::MAX_TARGET`] bytes, not checked.
        target: Vec<u8>,
    } -> Attr = Reply::Attr(a) => a;

    /// Another name for a file or symbolic link (not followed), not for a directory, and not under another
    /// directory's quota (`CrossQuota`).
    write Link {
        /// What is there.
        from: Place,
        /// Name to make.
        to: Place,
    } -> Attr = Reply::Attr(a) => a;

    /// Removes a name of a file or symbolic link. The answer is its attributes after that; content whose last
    /// name is gone is kept while it is open.
    write Unlink {
        /// Name to remove.
        place: Place,
    } -> Attr = Reply::Attr(a) => a;

    /// Removes an empty directory.
    write RemoveDir {
        /// Name to remove.
        place: Place,
    } -> () = Reply::Done => ();

    /// Renames in one step, over what is there (a file over a file, a directory over an empty directory).
    /// Two names of one file: nothing happens, as in POSIX. A directory cannot move below itself. `CrossQuota`
    /// for a directory, or a file with several links, that would come under another directory's quota.
    write Rename {
        /// Name that is there.
        from: Place,
        /// Name to be.
        to: Place,
        /// What to do with what is there.
        mode: RenameMode,
    } -> () = Reply::Done => ();

    /// Changes attributes; what is `None` stays. Owner: administrator only; group: the owner, to a group of
    /// its own; mode: the owner; a change of owner or group by a user clears set-ID bits.
    write SetAttr {
        /// What.
        place: Place,
        /// Whether a symbolic link at the end is followed.
        follow: bool,
        /// New permission bits, to 0o7777.
        mode: Option<u32>,
        /// New owner.
        owner: Option<String>,
        /// New group.
        group: Option<String>,
        /// New access time.
        atime: Option<SetTime>,
        /// New modification time.
        mtime: Option<SetTime>,
    } -> Attr = Reply::Attr(a) => a;

    /// Value of an extended attribute (read permission for `user.*`; `trusted.*` and `security.*` are the
    /// administrator's).
    read GetXattr {
        /// What (links are followed).
        place: Place,
        /// Name with its namespace.
        name: Vec<u8>,
    } -> Vec<u8> = Reply::Bytes(b) => b;

    /// Names of the extended attributes, sorted.
    read ListXattr {
        /// What (links are followed).
        place: Place,
    } -> Vec<Vec<u8>> = Reply::Names(n) => n;

    /// Sets an extended attribute: `user.*` by whoever may write the file or directory.
    write SetXattr {
        /// What (links are followed).
        place: Place,
        /// Name with its namespace.
        name: Vec<u8>,
        /// Value.
        value: Vec<u8>,
        /// Whether it must or must not be there already.
        mode: SetXattrMode,
    } -> () = Reply::Done => ();

    /// Removes an extended attribute.
    write RemoveXattr {
        /// What (links are followed).
        place: Place,
        /// Name with its namespace.
        name: Vec<u8>,
    } -> () = Reply::Done => ();

    /// An ACL. `Access` of a file without one is `None`: its mode says all ([`Acl::from_mode`]).
    read GetAcl {
        /// What (links are followed).
        place: Place,
        /// Which.
        kind: AclKind,
    } -> Option<Acl> = Reply::Acl(a) => a;

    /// Sets or removes an ACL; the owner only. An access ACL sets the mode's bits too.
    write SetAcl {
        /// What (links are followed).
        place: Place,
        /// Which; `Default` only of a directory.
        kind: AclKind,
        /// The list; none removes it.
        acl: Option<Acl>,
    } -> () = Reply::Done => ();

    // ---- content -------------------------------------------------------------------------------------

    /// Opens for reading (read permission; follows links).
    read OpenRead {
        /// The file.
        place: Place,
    } -> OpenFile = Reply::OpenFile(o) => o;

    /// Gives a handle back. Unknown handles are ignored.
    read Release {
        /// The handle.
        handle: Handle,
    } -> () = Reply::Done => ();

    /// Fragments and replicas, without opening (no read permission needed; follows links).
    read Where {
        /// The file.
        place: Place,
    } -> ContentLayout = Reply::Layout(l) => l;

    /// A draft of new content (write permission; follows links). Costs no durable write.
    read OpenWrite {
        /// The file.
        place: Place,
    } -> Draft = Reply::Draft(d) => d;

    /// A number for a file that will be made by [`PutFile`]; costs no durable write.
    read Allocate {} -> Draft = Reply::Draft(d) => d;

    /// Publishes a draft: new fragments, those staged, and those kept from the base. From then on the file has
    /// this content; the former one goes when no reader has it. Whoever has the draft may commit it (the
    /// permission was checked when it was opened). A draft can be committed once. Indexes without a fragment
    /// are an error. The replicas given are `Valid`. The draft's handle holds the new content until it is
    /// released; for more changes open again.
    write Commit {
        /// From [`OpenWrite`] or [`Create`].
        draft: Draft,
        /// New fragments.
        fragments: Vec<NewFragment>,
        /// Indexes of fragments of the content that is now published to be kept as they are.
        keep: Vec<u32>,
        /// Refuse (`Stale`) unless this content is the one that is published.
        expect: Option<Generation>,
        /// Modification time; none: now.
        mtime: Option<crate::Timestamp>,
    } -> Attr = Reply::Attr(a) => a;

    /// Records a stored fragment of a draft durably, for [`Commit`] to publish: so several processes write one
    /// file, one fragment each.
    write StageFragment {
        /// The draft (the handle may be another process's).
        draft: Draft,
        /// The fragment.
        fragment: NewFragment,
    } -> () = Reply::Done => ();

    /// Gives up a draft: what was staged is to be removed by the nodes.
    write AbandonDraft {
        /// The draft.
        draft: Draft,
    } -> () = Reply::Done => ();

    /// Makes a file with its content in one step, over the file that is there (as a rename would): the name
    /// is never seen without the whole content.
    write PutFile {
        /// Name to make.
        place: Place,
        /// From [`Allocate`].
        draft: Draft,
        /// Permission bits, before the mask.
        mode: u32,
        /// Bits taken away, unless the parent has a default ACL.
        umask: u32,
        /// All fragments, by index from 0.
        fragments: Vec<NewFragment>,
        /// Refuse what is there already.
        exclusive: bool,
        /// Modification time; none: now.
        mtime: Option<crate::Timestamp>,
    } -> Attr = Reply::Attr(a) => a;

    // ---- quotas, copies ------------------------------------------------------------------------------

    /// Space and inodes of the whole grid.
    read StatFs {} -> SpaceTotals = Reply::Space(s) => s;

    /// Usage and quota of a user, group or directory. A user may ask for its own, its groups', and of
    /// directories it may read.
    read GetUsage {
        /// Whose.
        subject: QuotaSubject,
    } -> Usage = Reply::Usage(u) => u;

    /// All users', groups' or directories' usage, by name; administrator.
    read ListUsage {
        /// Which kind.
        kind: QuotaKind,
        /// After this name (or decimal inode number); none: from the beginning.
        after: Option<String>,
        /// At most.
        limit: u32,
    } -> Vec<Usage> = Reply::Usages(u) => u;

    /// Sets a quota; administrator. A directory's counts everything below it, and must be set while it is
    /// empty or has a quota already (so that its usage is known).
    write SetQuota {
        /// Whose.
        subject: QuotaSubject,
        /// Files (inodes) at most; none: no bound.
        max_files: Option<u64>,
        /// Payload bytes at most, each file counted once; none: no bound.
        max_bytes: Option<u64>,
    } -> () = Reply::Done => ();

    /// Sets how many copies are wanted, of a file, or for what will be made in a directory. The owner, up to
    /// any number; what was made before keeps its rule.
    write SetCopies {
        /// File or directory (links are followed).
        place: Place,
        /// The rule.
        rule: CopyRule,
    } -> Attr = Reply::Attr(a) => a;

    // ---- replicas ------------------------------------------------------------------------------------

    /// A fragment by what nodes call it; `NotFound` if no content has it (any more).
    read GetFragment {
        /// The object.
        object: ObjectId,
    } -> Fragment = Reply::Fragment(f) => f;

    /// Published fragments off their rule, by object.
    read ListOffCopies {
        /// Which.
        balance: CopyBalance,
        /// After this object; none: from the beginning.
        after: Option<ObjectId>,
        /// At most.
        limit: u32,
    } -> Vec<OffCopies> = Reply::OffCopies(o) => o;

    /// Replicas of a node, by object.
    read ListNodeReplicas {
        /// The node.
        node: String,
        /// Only in this state.
        state: Option<ReplicaState>,
        /// After this object; none: from the beginning.
        after: Option<ObjectId>,
        /// At most.
        limit: u32,
    } -> Vec<NodeReplica> = Reply::NodeReplicas(r) => r;

    /// A replica that is begun: `Writing`. The node must be `Up`; `Exists` if the node has one.
    write AddReplica {
        /// Of which fragment.
        object: ObjectId,
        /// Where.
        node: String,
    } -> () = Reply::Done => ();

    /// Changes a replica's state: `Valid` (with the digest that was verified), `Stale` or `Lost`. A state of
    /// `Removing` stays.
    write SetReplica {
        /// Of which fragment.
        object: ObjectId,
        /// Where.
        node: String,
        /// New state; not `Removing` (see [`RemoveReplica`]) and not `Writing`.
        state: ReplicaState,
        /// For `Valid`: what was verified; must be the fragment's.
        digest: Option<crate::Digest>,
    } -> () = Reply::Done => ();

    /// Marks a replica `Removing`. Refused (`LastReplica`) if it is the last valid one, or, unless `below` is
    /// set, if fewer than the rule wants would stay.
    write RemoveReplica {
        /// Of which fragment.
        object: ObjectId,
        /// Where.
        node: String,
        /// Whether fewer than the rule wants may stay.
        below: bool,
    } -> () = Reply::Done => ();

    /// The node has deleted its bytes (or never wrote them): the row goes. Only of replicas that are
    /// `Writing`, `Stale`, `Lost` or `Removing`.
    write DropReplica {
        /// Of which fragment.
        object: ObjectId,
        /// Where.
        node: String,
    } -> () = Reply::Done => ();

    /// Adds a replica that a node has, `Valid`, with all the checks of size and digest (`fsck`).
    write AdoptReplica {
        /// Of which fragment.
        object: ObjectId,
        /// Where.
        node: String,
        /// Its size.
        size: u64,
        /// Its digest.
        digest: crate::Digest,
    } -> () = Reply::Done => ();

    // ---- nodes, sites, routes ------------------------------------------------------------------------

    /// All nodes, by name.
    read ListNodes {} -> Vec<Node> = Reply::Nodes(n) => n;

    /// Registers a node, or changes its site, address and pin. A new one is `Up`; a `Lost` one becomes `Up`.
    write PutNode {
        /// Name, site, address, pin; the site must be there. Its other fields are taken as first report.
        node: Node,
    } -> () = Reply::Done => ();

    /// Heartbeats, of one or many nodes. A node that is `Down` becomes `Up`. Unknown names are skipped; the
    /// answer is how many were known.
    write Heartbeat {
        /// What they said.
        reports: Vec<NodeReport>,
    } -> u64 = Reply::Count(n) => n;

    /// Sets a node's state. `Lost` only marks it: [`ReckonNode`] does the replicas.
    write SetNodeState {
        /// The node.
        node: String,
        /// New state.
        state: NodeState,
    } -> () = Reply::Done => ();

    /// Re-reckons a page of a node's replicas after a change of its state or site (`Lost`: its replicas become
    /// `Lost`; then what is missing or too much elsewhere is found). Repeat with the answer as `after` until
    /// it is none.
    write ReckonNode {
        /// The node.
        node: String,
        /// After this object; none: from the beginning.
        after: Option<ObjectId>,
        /// Replicas at most, 1 to 1,000 (the rows are locked meanwhile).
        limit: u32,
    } -> Option<ObjectId> = Reply::Reckoned(o) => o;

    /// Forgets a node that has no replicas.
    write RemoveNode {
        /// The node.
        node: String,
    } -> () = Reply::Done => ();

    /// All sites, by name.
    read ListSites {} -> Vec<Site> = Reply::Sites(s) => s;

    /// Makes or changes a site.
    write PutSite {
        /// The site.
        site: Site,
    } -> () = Reply::Done => ();

    /// All routes, with what is leased.
    read ListRoutes {} -> Vec<Route> = Reply::Routes(r) => r;

    /// Makes a route or changes its capacity.
    write PutRoute {
        /// Source site.
        from: String,
        /// Destination site.
        to: String,
        /// Frame-level capacity, bits per second, at least 1.
        capacity_bps: u64,
    } -> () = Reply::Done => ();

    /// Takes, renews or changes a lease on a route: as much of `rate_bps` as the other leases leave, in one
    /// step with their sum; `Busy` if less than `least_bps` is left (an own lease then stays as it was).
    write TakeLease {
        /// Source site.
        from: String,
        /// Destination site.
        to: String,
        /// Who.
        holder: String,
        /// Frame-level rate wanted, bits per second, at least 1.
        rate_bps: u64,
        /// Least that is of use, bits per second, at least 1.
        least_bps: u64,
        /// How long, milliseconds.
        ttl_ms: u64,
    } -> Lease = Reply::Lease(l) => l;

    /// Gives a lease back.
    write DropLease {
        /// Source site.
        from: String,
        /// Destination site.
        to: String,
        /// Who.
        holder: String,
    } -> () = Reply::Done => ();

    /// Leases on a route that have not ended.
    read ListLeases {
        /// Source site.
        from: String,
        /// Destination site.
        to: String,
    } -> Vec<Lease> = Reply::Leases(l) => l;

    // ---- jobs ----------------------------------------------------------------------------------------

    /// Makes jobs. Any caller; a user only for files it may write (service and administrator: all). An open
    /// job of the same kind, object and destination is not made again. The answer is all of them, in order.
    write AddJobs {
        /// The jobs, at most [`crate::limits::MAX_NEW_JOBS`].
        jobs: Vec<NewJob>,
    } -> Vec<Job> = Reply::Jobs(j) => j;

    /// Takes queued jobs (and those whose claim ended), highest priority first, then oldest. Jobs for a node that
    /// another service hears ([`Presence`]) are left to that one, unless the node is `Down` or `Lost`.
    write ClaimJobs {
        /// Who takes them.
        worker: String,
        /// At most.
        limit: u32,
        /// How long the claim holds unless renewed, milliseconds.
        claim_ms: u64,
    } -> Vec<Job> = Reply::Jobs(j) => j;

    /// Renews a claim and records progress. The answer tells a worker if its job was cancelled or taken over
    /// (`worker` is another): then it stops.
    write JobProgress {
        /// Which.
        id: JobId,
        /// Who has it.
        worker: String,
        /// Payload bytes done.
        done_bytes: u64,
        /// How long the claim holds from now, milliseconds.
        claim_ms: u64,
    } -> Job = Reply::Job(j) => j;

    /// Ends a job that the worker has: `Done`, `Failed`, or `Queued` to be tried again.
    write FinishJob {
        /// Which.
        id: JobId,
        /// Who has it.
        worker: String,
        /// New state.
        state: JobState,
        /// Why, for all but `Done`.
        error: Option<String>,
    } -> Job = Reply::Job(j) => j;

    /// Cancels a queued or running job; its owner, a service or the administrator.
    write CancelJob {
        /// Which.
        id: JobId,
    } -> Job = Reply::Job(j) => j;

    /// Jobs by number. Users see their own.
    read ListJobs {
        /// Which.
        filter: JobFilter,
        /// After this number.
        after: Option<JobId>,
        /// At most.
        limit: u32,
    } -> Vec<Job> = Reply::Jobs(j) => j;

    /// Forgets jobs that ended before a time; the answer is how many.
    write PruneJobs {
        /// Ended before.
        before: crate::Timestamp,
        /// At most.
        limit: u32,
    } -> u64 = Reply::Count(n) => n;

    // ---- upkeep --------------------------------------------------------------------------------------

    /// Upkeep, to be called about once a second by each service: tells the other services which dead contents
    /// are open here, and gives up those that are open nowhere (their replicas become `Removing`, their
    /// inodes go). The answer is how many contents went.
    write Reap {
        /// Contents at most.
        limit: u32,
        /// How long this service's holds stand if it does not call again, milliseconds.
        ttl_ms: u64,
    } -> u64 = Reply::Count(n) => n;

    /// Records who was heard by a service since it said so last: nodes, and the service itself. The answer is how
    /// many.
    write Hear {
        /// Who; at most [`crate::limits::MAX_NODES`].
        heard: Vec<Presence>,
    } -> u64 = Reply::Count(n) => n;

    /// Everybody who was ever heard of and not forgotten.
    read ListPresence {} -> Vec<Presence> = Reply::Presences(p) => p;

    /// Forgets somebody, unless it was heard of since `beat`.
    write Forget {
        /// What it is.
        kind: PresenceKind,
        /// Its name.
        name: String,
        /// As it was seen last.
        beat: u64,
    } -> () = Reply::Done => ();

    /// Takes or renews the turn at a task that one service does for the grid. Another's turn is taken only if it
    /// still stands at `stale`: whoever asks has seen it there for longer than a holder lets it stand. The answer
    /// is whose turn it is now.
    write TakeTurn {
        /// The task.
        task: String,
        /// Who asks.
        holder: String,
        /// A `beat` that has not changed for too long; none: only a turn that nobody has, or one's own.
        stale: Option<u64>,
    } -> Turn = Reply::Turn(t) => t;

    // ---- a catalog that has lost its memory ------------------------------------------------------------

    /// No inode or generation up to `highest` is given out from now on. The answer is the first number that was not
    /// given out before (on PostgreSQL: not reserved): at or below `highest`, the catalog is older than what bears that
    /// number. Service or
    /// administrator. Other services go on with the numbers that they have reserved.
    write RaiseNumbers {
        /// Highest number in use elsewhere.
        highest: u64,
    } -> u64 = Reply::Count(n) => n;

    /// Makes a file with the numbers that its objects bear at their nodes. `Exists` if the name is taken, `Stale` if
    /// the inode is in use. Service or administrator; the walk needs the caller's permissions, as any.
    write RestoreFile {
        /// Name to make.
        place: Place,
        /// Its inode.
        ino: Ino,
        /// Generation of its objects.
        generation: Generation,
        /// Owner.
        owner: String,
        /// Group.
        group: String,
        /// Permission bits; set-ID bits are not given back.
        mode: u32,
        /// Copies wanted.
        rule: CopyRule,
        /// Modification time.
        mtime: crate::Timestamp,
        /// All fragments, by index from 0, each with the nodes that have it whole.
        fragments: Vec<NewFragment>,
    } -> Attr = Reply::Attr(a) => a;

    /// Gives what only the catalog knows to `sink`, as of one moment: inodes, names, attributes, bounds. The answer is how
    /// many rows. It holds a reading connection while it lasts. Service or administrator.
    read Dump {
        /// Takes the rows.
        sink: DumpSink,
    } -> u64 = Reply::Count(n) => n;

    /// Checks invariants by reading everything: link counts, quota sums, copy reckoning, rows without their
    /// owner. One line for each finding, at most `limit`. Service or administrator.
    read CheckInvariants {
        /// Findings at most.
        limit: u32,
    } -> Vec<Vec<u8>> = Reply::Names(n) => n;
}

pub(crate) fn wrong_reply(op: &str) -> CatalogError {
    CatalogError::new(
        crate::ErrorKind::Corrupt,
        format!("{op}: the answer is another operation's"),
    )
}
