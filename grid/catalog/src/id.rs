//! Names of things: inodes, generations, objects, handles, jobs; who calls; where an operation works.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// An inode. Numbers are never used twice; the root is 1.
    Ino
}
number! {
    /// Identity of one content of a file. 0 is the empty content of a file never written; others come from
    /// one sequence of the whole grid, so no two contents, whichever their file, share one. Later drafts have
    /// higher numbers.
    Generation
}
number! {
    /// An open file of this catalog instance (not durable, see [`crate::OpenRead`]).
    Handle
}
number! {
    /// A durable job.
    JobId
}

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

impl Generation {
    /// The content of a file that was never written: no fragments, size 0.
    pub const EMPTY: Generation = Generation(0);
}

/// What a node stores: one fragment of one content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// Inode that the content was made for.
    pub ino: Ino,
    /// Generation of the content.
    pub generation: Generation,
    /// Index of the fragment in the file, from 0.
    pub fragment: u32,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.ino, self.generation, self.fragment)
    }
}

/// What a caller may do beyond the permissions of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Files by their permissions; own jobs.
    User,
    /// A service of the grid (metadata service, node): replicas, nodes, leases and jobs, no files.
    Service,
    /// Everything, without checks of permissions (POSIX: the superuser).
    Admin,
}

/// Who asks. The catalog trusts it: tokens are checked by the service that builds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User name; owner of what the caller makes.
    pub user: String,
    /// Groups; the first owns what the caller makes (unless the directory is set-group-ID). An empty list is
    /// the group named as the user.
    pub groups: Vec<String>,
    /// See [`Role`].
    pub role: Role,
}

impl Caller {
    /// A user with groups.
    #[must_use]
    pub fn user(user: &str, groups: &[&str]) -> Self {
        Self {
            user: user.into(),
            groups: groups.iter().map(|g| (*g).into()).collect(),
            role: Role::User,
        }
    }

    /// The administrator `admin` of group `admin`.
    #[must_use]
    pub fn admin() -> Self {
        Self {
            user: "admin".into(),
            groups: vec!["admin".into()],
            role: Role::Admin,
        }
    }

    /// A service of the grid.
    #[must_use]
    pub fn service(name: &str) -> Self {
        Self {
            user: name.into(),
            groups: Vec::new(),
            role: Role::Service,
        }
    }
}

/// Where an operation works: a path walked from a directory, as the `*at` calls of POSIX. Components are
/// bytes between slashes; `.` and `..` are understood; `..` of the root is the root. An empty path is the
/// inode itself (no walk, no search permission needed). A leading slash starts at the root. Symbolic links
/// on the way are followed; whether the last one is, says the operation. Search permission is checked on
/// every directory of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where the walk starts.
    pub dir: Ino,
    /// Path from there, at most [`crate::limits::MAX_PATH`] bytes.
    pub path: Vec<u8>,
}

impl Place {
    /// An inode itself.
    #[must_use]
    pub fn ino(ino: Ino) -> Self {
        Self { dir: ino, path: Vec::new() }
    }

    /// A name (or relative path) in a directory.
    #[must_use]
    pub fn at(dir: Ino, name: impl AsRef<[u8]>) -> Self {
        Self { dir, path: name.as_ref().to_vec() }
    }

    /// A path from the root, with or without a leading slash. Only `/` (or nothing) is the root itself.
    #[must_use]
    pub fn path(path: impl AsRef<[u8]>) -> Self {
        Self { dir: Ino::ROOT, path: path.as_ref().to_vec() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.path);
        match (self.dir, self.path.first()) {
            (_, Some(b'/')) => write!(f, "'{}'", text.escape_debug()),
            (Ino::ROOT, _) => write!(f, "'/{}'", text.escape_debug()),
            (dir, None) => write!(f, "inode {dir}"),
            (dir, _) => write!(f, "'{}' of inode {dir}", text.escape_debug()),
        }
    }
}

/// Whether a text can be the name of a user, group, node or site: 1 to
/// [`crate::limits::MAX_PRINCIPAL`] bytes without control characters, blanks, `,`, `=`, `:` and `/`.
#[must_use]
pub fn is_principal(name: &str) -> bool {
    let bad = |c: char| c.is_control() || c.is_whitespace() || matches!(c, ',' | '=' | ':' | '/');
    !name.is_empty() && name.len() <= crate::limits::MAX_PRINCIPAL && !name.contains(bad)
}
