//! What can go wrong with an operation.

use std::error::Error;
use std::fmt;

/// Kinds of refusal and failure; most are POSIX error numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such file, directory, attribute's owner, node, job (`ENOENT`).
    NotFound,
    /// It is there already (`EEXIST`).
    Exists,
    /// A directory that is not empty (`ENOTEMPTY`).
    NotEmpty,
    /// A component that is not a directory (`ENOTDIR`).
    NotDir,
    /// A directory where a file is needed (`EISDIR`).
    IsDir,
    /// Permission bits or an ACL refuse (`EACCES`).
    Access,
    /// Only the owner, a service or the administrator may (`EPERM`).
    NotPermitted,
    /// An argument that cannot be (`EINVAL`).
    Invalid,
    /// A name or path beyond the limit (`ENAMETOOLONG`).
    NameTooLong,
    /// Too many symbolic links (`ELOOP`).
    Loop,
    /// Too many hard links (`EMLINK`).
    TooManyLinks,
    /// A quota is exhausted (`EDQUOT`).
    Quota,
    /// A rename or link that would come under another directory's quota (`EXDEV`: copy instead).
    CrossQuota,
    /// No space, in the catalog's own file system or on nodes (`ENOSPC`).
    NoSpace,
    /// A file beyond the largest size (`EFBIG`).
    TooBig,
    /// No such extended attribute (`ENODATA`).
    NoData,
    /// The content, draft, handle or inode is not there any more (`ESTALE`).
    Stale,
    /// In use, or too much at once: the same again may succeed (`EBUSY`).
    Busy,
    /// Refused because it would leave a fragment without a valid replica, or fewer than the rule wants
    /// (`EBUSY`).
    LastReplica,
    /// A documented limit of the catalog (`E2BIG`).
    Limit,
    /// The operation is not there for this kind of file (`EOPNOTSUPP`).
    Unsupported,
    /// The catalog's database cannot be reached; the same again may succeed. Whether a change took place is
    /// not known (`EAGAIN`).
    Unavailable,
    /// The catalog's database failed (`EIO`).
    Io,
    /// The catalog's rows contradict each other (`EIO`).
    Corrupt,
}

impl ErrorKind {
    /// Linux's number on x86-64 and AArch64.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound => 2,
            Self::Io | Self::Corrupt => 5,
            Self::Limit => 7,
            Self::Unavailable => 11,
            Self::Access => 13,
            Self::Busy | Self::LastReplica => 16,
            Self::Exists => 17,
            Self::CrossQuota => 18,
            Self::NotDir => 20,
            Self::IsDir => 21,
            Self::Invalid => 22,
            Self::TooBig => 27,
            Self::NoSpace => 28,
            Self::TooManyLinks => 31,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::Loop => 40,
            Self::NoData => 61,
            Self::Unsupported => 95,
            Self::Stale => 116,
            Self::Quota => 122,
        }
    }

    /// Whether the same operation may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Busy | Self::Unavailable)
    }
}

/// A refusal or failure with what it was about.
#[derive(Debug)]
pub struct CatalogError {
    kind: ErrorKind,
    what: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl CatalogError {
    /// An error about `what`.
    #[must_use]
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), source: None }
    }

    /// The same, with a cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for CatalogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for CatalogError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|s| &**s as &(dyn Error + 'static))
    }
}
