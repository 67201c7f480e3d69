//! `kuroshio fs`: the namespace, the content and the replicas of a grid. Names after Gfarm's commands
//! (`gfls`, `gfrep`, `gfwhere`, ...).

mod acl;
mod admin;
mod content;
mod files;
mod fragments;
mod meta;
mod replicas;
mod run;
pub mod sizes;
mod spools;
mod walk;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Subcommand;
use kuroshio_client::{Grid, v1};
use serde_json::{Value, json};

use crate::error::Failure;
use crate::output;
use crate::verb::grid::Which;

const EXAMPLE: &str = "\
Example:
  kuroshio fs mkdir -p /data/2003
  kuroshio fs put --ncopy 2 run1.dat /data/2003/
  kuroshio fs where /data/2003/run1.dat
  kuroshio fs get /data/2003/run1.dat .
Paths in the grid begin with a slash. Every command has --json and --grid DIR|NAME.";

/// Arguments of `kuroshio fs`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List directories (gfls)
    Ls(files::LsArgs),
    /// Show attributes (gfstat)
    Stat(files::StatArgs),
    /// Make directories (gfmkdir)
    Mkdir(files::MkdirArgs),
    /// Remove files and directories (gfrm)
    Rm(files::RmArgs),
    /// Rename (gfmv)
    Mv(files::MvArgs),
    /// Make links (gfln)
    Ln(files::LnArgs),
    /// Change permissions (gfchmod)
    Chmod(files::ChmodArgs),
    /// Change owner and group (gfchown)
    Chown(files::ChownArgs),
    /// Show access control lists (gfgetfacl)
    Getfacl(acl::GetArgs),
    /// Change access control lists (gfsetfacl)
    Setfacl(acl::SetArgs),
    /// Extended attributes (gfxattr)
    Xattr(meta::XattrArgs),
    /// Show or set what a user, group or directory uses and may use (gfquota, gfedquota)
    Quota(meta::QuotaArgs),
    /// Look for what is wrong in the catalog and in replicas
    Check(meta::CheckArgs),
    /// Find by name and kind
    Find(walk::FindArgs),
    /// Sum up sizes
    Du(walk::DuArgs),
    /// Copy local files into the grid (gfreg)
    Put(content::PutArgs),
    /// Copy files out of the grid (gfexport)
    Get(content::GetArgs),
    /// Write files to standard output
    Cat(content::CatArgs),
    /// Show digests (gfcksum)
    Cksum(replicas::CksumArgs),
    /// Make replicas and wait for them (gfrep)
    Rep(replicas::RepArgs),
    /// Show replicas (gfwhere)
    Where(replicas::WhereArgs),
    /// Show or set how many replicas are wanted (gfncopy)
    Ncopy(replicas::NcopyArgs),
    /// Which nodes hold how much of these files, best first (gfsched)
    Sched(replicas::SchedArgs),
    /// Run a command on the nodes that hold the fragments of a file (gfrun)
    Run(run::RunArgs),
    /// Run a command on fragments of a file, here
    View(run::ViewArgs),
    /// Compare the nodes' spools with the catalog, both ways
    Fsck(spools::FsckArgs),
    /// Put what only the catalog knows into the grid, for `fsck` to read if the catalog is lost
    Snapshot(spools::SnapshotArgs),
    /// Capacities between sites, and what is given now
    Route(admin::RouteArgs),
    /// Space of nodes (gfdf)
    Df(admin::DfArgs),
    /// State of the whole grid
    Status(admin::StatusArgs),
    /// Nodes: list, drain, make read-only (gfhost)
    Node(admin::NodeArgs),
    /// Replication jobs: list, show, cancel
    Job(admin::JobArgs),
    /// A ticket for a user or a node, on standard output
    Ticket(admin::TicketArgs),
    /// Names of grids that this user knows
    Grid(admin::GridArgs),
}

/// What every action has.
pub struct Context {
    /// The grid.
    pub grid: Grid,
    /// Whether JSON is wanted.
    pub json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let json = args.json;
    let action = match args.action {
        Action::Grid(a) => return admin::grids(a, json),
        action => action,
    };
    let grid = args.which.connect()?;
    let cx = Context { grid, json };
    match action {
        Action::Ls(a) => files::ls(&cx, a),
        Action::Stat(a) => files::stat(&cx, a),
        Action::Mkdir(a) => files::mkdir(&cx, a),
        Action::Rm(a) => files::rm(&cx, a),
        Action::Mv(a) => files::mv(&cx, a),
        Action::Ln(a) => files::ln(&cx, a),
        Action::Chmod(a) => files::chmod(&cx, a),
        Action::Chown(a) => files::chown(&cx, a),
        Action::Getfacl(a) => acl::get(&cx, a),
        Action::Setfacl(a) => acl::set(&cx, a),
        Action::Xattr(a) => meta::xattr(&cx, a),
        Action::Quota(a) => meta::quota(&cx, a),
        Action::Check(a) => meta::check(&cx, a),
        Action::Find(a) => walk::find(&cx, a),
        Action::Du(a) => walk::du(&cx, a),
        Action::Put(a) => content::put(&cx, a),
        Action::Get(a) => content::get(&cx, a),
        Action::Cat(a) => content::cat(&cx, a),
        Action::Cksum(a) => replicas::cksum(&cx, a),
        Action::Rep(a) => replicas::rep(&cx, a),
        Action::Where(a) => replicas::locate(&cx, a),
        Action::Ncopy(a) => replicas::ncopy(&cx, a),
        Action::Sched(a) => replicas::sched(&cx, a),
        Action::Run(a) => run::run(&cx, &args.which, &a),
        Action::View(a) => run::view(&cx, &a),
        Action::Fsck(a) => spools::fsck(&cx, a),
        Action::Snapshot(a) => spools::snapshot(&cx, &a),
        Action::Route(_) => admin::routes(&cx),
        Action::Df(a) => admin::df(&cx, a),
        Action::Status(a) => admin::status(&cx, a),
        Action::Node(a) => admin::node(&cx, a),
        Action::Job(a) => admin::job(&cx, a),
        Action::Ticket(a) => admin::ticket(&cx, a),
        Action::Grid(a) => admin::grids(a, json),
    }
}

impl Context {
    /// Prints one JSON value, if JSON is wanted; says whether it was.
    pub fn print_json(&self, value: &Value) -> Result<bool, Failure> {
        if self.json {
            output::line(&value.to_string())?;
        }
        Ok(self.json)
    }
}

/// A path in the grid from an argument.
pub fn path_of(text: &OsStr) -> Result<Vec<u8>, Failure> {
    let bytes = text.as_bytes();
    if !bytes.starts_with(b"/") {
        return Err(Failure::usage(format!(
            "{}: a path in the grid begins with a slash, for example /data",
            text.display()
        )));
    }
    Ok(bytes.to_vec())
}

/// Paths in the grid from arguments; all are checked before anything is done.
pub fn paths_of(texts: &[OsString]) -> Result<Vec<Vec<u8>>, Failure> {
    texts.iter().map(|t| path_of(t)).collect()
}

/// For people.
pub fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// A name below a directory.
pub fn below(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    [folder, b"/", name].concat()
}

/// The last component of a path.
pub fn last_name(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.rsplit(|b| *b == b'/').next().unwrap_or_default()
}

/// The process's file mode creation mask.
pub fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:"));
    line.and_then(|l| u32::from_str_radix(l.trim(), 8).ok())
        .unwrap_or(0o022)
}

/// Kind in one word.
pub fn kind_name(attr: &v1::Attr) -> &'static str {
    match attr.kind() {
        v1::Kind::File => "file",
        v1::Kind::Directory => "directory",
        v1::Kind::Symlink => "symlink",
        v1::Kind::Fifo => "fifo",
        v1::Kind::Socket => "socket",
        v1::Kind::Unspecified => "unknown",
    }
}

/// Attributes as JSON.
pub fn attr_json(path: &[u8], attr: &v1::Attr) -> Value {
    json!({
        "path": shown(path), "inode": attr.inode, "generation": attr.generation, "kind": kind_name(attr),
        "mode": format!("{:04o}", attr.mode), "owner": attr.owner, "group": attr.group, "links": attr.links,
        "size_bytes": attr.size_bytes, "atime_unix_ns": attr.atime_ns, "mtime_unix_ns": attr.mtime_ns,
        "ctime_unix_ns": attr.ctime_ns, "ncopy": attr.copies, "fragments": attr.fragments, "acl": attr.acl,
    })
}

/// Whether what lies there is a directory; what is not there is none.
pub fn is_dir(grid: &Grid, path: &[u8]) -> Result<bool, Failure> {
    match grid.stat(path, true) {
        Ok(attr) => Ok(attr.kind() == v1::Kind::Directory),
        Err(e) if e.code() == Some(v1::Code::NoEntry) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
