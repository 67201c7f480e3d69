//! The sum of all answers; which one an operation gives stands beside it in [`crate::op`].

use crate::{
    Acl, Attr, ContentLayout, Created, DirPage, Draft, Fragment, Job, Lease, Node, NodeReplica, ObjectId,
    OffCopies, OpenFile, Presence, Route, Site, SpaceTotals, Turn, Usage,
};

/// The answer to an [`crate::Op`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Done.
    Done,
    /// Attributes.
    Attr(Attr),
    /// Bytes: a link's target, an attribute's value.
    Bytes(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Vec<u8>>),
    /// A page of a directory.
    DirPage(DirPage),
    /// A path.
    Path(Vec<u8>),
    /// Result of a create.
    Created(Created),
    /// An open file.
    OpenFile(OpenFile),
    /// Where content is.
    Layout(ContentLayout),
    /// A draft.
    Draft(Draft),
    /// An ACL, if there is one.
    Acl(Option<Acl>),
    /// Sums.
    Space(SpaceTotals),
    /// Usage and quota.
    Usage(Usage),
    /// Usages and quotas.
    Usages(Vec<Usage>),
    /// Nodes.
    Nodes(Vec<Node>),
    /// Sites.
    Sites(Vec<Site>),
    /// Routes.
    Routes(Vec<Route>),
    /// Leases.
    Leases(Vec<Lease>),
    /// A lease.
    Lease(Lease),
    /// Fragments off their copy rule.
    OffCopies(Vec<OffCopies>),
    /// Fragments.
    Fragments(Vec<Fragment>),
    /// Replicas of a node.
    NodeReplicas(Vec<NodeReplica>),
    /// A fragment.
    Fragment(Fragment),
    /// Jobs.
    Jobs(Vec<Job>),
    /// A job.
    Job(Job),
    /// A count.
    Count(u64),
    /// How far a page went.
    Reckoned(Option<ObjectId>),
    /// Who is heard of.
    Presences(Vec<Presence>),
    /// Whose turn it is.
    Turn(Turn),
}
