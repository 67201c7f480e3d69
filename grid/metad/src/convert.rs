//! Between the catalog's types and the schema's.

use kuroshio_catalog::{self as cat, AclEntry, AclTag, CatalogError, ErrorKind};
use kuroshio_proto::frame::MAX_FRAME_BYTES;
use kuroshio_proto::v1::{self, Code, Failure};

/// A catalog's error as a client sees it.
pub fn failure(e: &CatalogError) -> Failure {
    Failure::new(code(e.kind()), e.to_string())
}

fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotFound => Code::NoEntry,
        ErrorKind::Exists => Code::Exists,
        ErrorKind::NotEmpty => Code::NotEmpty,
        ErrorKind::NotDir => Code::NotDirectory,
        ErrorKind::IsDir => Code::IsDirectory,
        ErrorKind::Access => Code::Access,
        ErrorKind::NotPermitted => Code::Permission,
        ErrorKind::Invalid => Code::Invalid,
        ErrorKind::NameTooLong => Code::NameTooLong,
        ErrorKind::Loop => Code::Loop,
        ErrorKind::TooManyLinks => Code::TooManyLinks,
        ErrorKind::Quota => Code::Quota,
        ErrorKind::CrossQuota => Code::CrossQuota,
        ErrorKind::NoSpace => Code::NoSpace,
        ErrorKind::TooBig => Code::TooBig,
        ErrorKind::NoData => Code::NoData,
        ErrorKind::Stale => Code::Stale,
        ErrorKind::Busy => Code::Busy,
        ErrorKind::LastReplica => Code::LastReplica,
        ErrorKind::Limit => Code::Limit,
        ErrorKind::Unsupported => Code::Unsupported,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Io | ErrorKind::Corrupt => Code::Internal,
    }
}

/// What an inode is.
pub fn kind(kind: cat::Kind) -> v1::Kind {
    match kind {
        cat::Kind::File => v1::Kind::File,
        cat::Kind::Dir => v1::Kind::Directory,
        cat::Kind::Symlink => v1::Kind::Symlink,
        cat::Kind::Fifo => v1::Kind::Fifo,
        cat::Kind::Socket => v1::Kind::Socket,
    }
}

/// Attributes.
pub fn attr(a: cat::Attr) -> v1::Attr {
    v1::Attr {
        inode: a.ino.0,
        generation: a.generation.0,
        kind: kind(a.kind).into(),
        mode: a.mode,
        owner: a.owner,
        group: a.group,
        links: a.links.into(),
        size_bytes: a.size,
        atime_ns: a.atime.0,
        mtime_ns: a.mtime.0,
        ctime_ns: a.ctime.0,
        copies: a.copies.to_string(),
        fragments: a.fragments,
        version: a.version,
        acl: a.acl,
    }
}

/// An access list.
pub fn acl(acl: &cat::Acl) -> Vec<v1::AclEntry> {
    let entries = acl.entries().iter().map(|e| {
        let (tag, name) = match &e.tag {
            AclTag::UserObj => (v1::AclTag::Owner, ""),
            AclTag::User(name) => (v1::AclTag::User, name.as_str()),
            AclTag::GroupObj => (v1::AclTag::GroupOwner, ""),
            AclTag::Group(name) => (v1::AclTag::Group, name.as_str()),
            AclTag::Mask => (v1::AclTag::Mask, ""),
            AclTag::Other => (v1::AclTag::Other, ""),
        };
        v1::AclEntry {
            tag: tag.into(),
            name: name.to_owned(),
            bits: e.bits.into(),
        }
    });
    entries.collect()
}

/// The same, the other way.
pub fn acl_of(entries: &[v1::AclEntry]) -> Result<cat::Acl, Failure> {
    let mut out = Vec::with_capacity(entries.len());
    for e in entries {
        let tag = match e.tag() {
            v1::AclTag::Owner => AclTag::UserObj,
            v1::AclTag::User => AclTag::User(e.name.clone()),
            v1::AclTag::GroupOwner => AclTag::GroupObj,
            v1::AclTag::Group => AclTag::Group(e.name.clone()),
            v1::AclTag::Mask => AclTag::Mask,
            v1::AclTag::Other => AclTag::Other,
            v1::AclTag::Unspecified => {
                return Err(Failure::new(
                    Code::Invalid,
                    "an entry of an access list for nobody",
                ));
            }
        };
        let bits = u8::try_from(e.bits).unwrap_or(u8::MAX);
        out.push(AclEntry { tag, bits });
    }
    cat::Acl::new(out).map_err(|e| failure(&e))
}

/// A page of a directory, as much of it as one answer holds: long copy rules and names may fill that before.
pub fn page(entries: impl Iterator<Item = v1::Entry>, mut more: bool) -> v1::ListReply {
    let mut reply = v1::ListReply::default();
    let mut room = MAX_FRAME_BYTES / 2;
    for entry in entries {
        let bytes = kuroshio_proto::Message::encoded_len(&entry) + 8;
        if bytes > room {
            more = true;
            break;
        }
        room -= bytes;
        reply.entries.push(entry);
    }
    if more {
        reply.next = reply.entries.last().map(|e| e.name.clone()).unwrap_or_default();
    }
    reply
}

/// A replica's state.
pub fn replica_state(state: cat::ReplicaState) -> &'static str {
    match state {
        cat::ReplicaState::Writing => "writing",
        cat::ReplicaState::Valid => "valid",
        cat::ReplicaState::Stale => "stale",
        cat::ReplicaState::Lost => "lost",
        cat::ReplicaState::Removing => "removing",
    }
}

/// A node's state.
pub fn node_state(state: cat::NodeState) -> &'static str {
    match state {
        cat::NodeState::Up => "up",
        cat::NodeState::Down => "down",
        cat::NodeState::Drain => "drain",
        cat::NodeState::ReadOnly => "readonly",
        cat::NodeState::Lost => "lost",
    }
}

/// The states that a person may set.
pub fn parse_node_state(text: &str) -> Result<cat::NodeState, Failure> {
    match text {
        "up" => Ok(cat::NodeState::Up),
        "drain" => Ok(cat::NodeState::Drain),
        "readonly" => Ok(cat::NodeState::ReadOnly),
        "lost" => Ok(cat::NodeState::Lost),
        _ => Err(Failure::new(
            Code::Invalid,
            format!("node state `{text}`: up, drain, readonly and lost are valid"),
        )),
    }
}

/// A job; its path is found apart.
pub fn job(j: cat::Job) -> v1::Job {
    let kind = match j.what.kind {
        cat::JobKind::Replicate => "replicate",
        cat::JobKind::Migrate => "migrate",
        cat::JobKind::Remove => "remove",
        cat::JobKind::Verify => "verify",
    };
    v1::Job {
        job: j.id.0,
        kind: kind.to_owned(),
        state: job_state(j.state).to_owned(),
        path: Vec::new(),
        inode: j.what.object.ino.0,
        generation: j.what.object.generation.0,
        fragment: j.what.object.fragment,
        owner: j.owner,
        source: j.what.source.unwrap_or_default(),
        destination: j.what.destination.unwrap_or_default(),
        bytes_done: j.done_bytes,
        bytes_total: j.total_bytes,
        attempts: j.attempts,
        error: j.error.unwrap_or_default(),
        rate_bps: 0,
        transfers: 0,
    }
}

/// A job's state.
fn job_state(state: cat::JobState) -> &'static str {
    match state {
        cat::JobState::Queued => "queued",
        cat::JobState::Running => "running",
        cat::JobState::Done => "done",
        cat::JobState::Failed => "failed",
        cat::JobState::Cancelled => "cancelled",
    }
}

/// The 32 bytes of a digest.
pub fn digest(bytes: &[u8]) -> Result<cat::Digest, Failure> {
    let found = <[u8; 32]>::try_from(bytes);
    found.map(cat::Digest).map_err(|_| {
        Failure::new(
            Code::Invalid,
            format!("a digest of {} bytes; BLAKE3 has 32", bytes.len()),
        )
    })
}
