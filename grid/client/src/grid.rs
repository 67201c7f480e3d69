//! Operations in the namespace, each a request and its answer.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kuroshio_proto::v1::{self, Code, request::Op, response::Result as Answer};
use kuroshio_service::{ServiceError, Ticket};

use crate::connection::{Broken, Connection, Waiting};
use crate::error::ClientError;
use crate::pool::Pool;
use crate::service::Services;

/// How long a request that can be asked again is asked again once a connection was lost.
pub const RETRY_LIMIT: Duration = Duration::from_secs(3);
/// Wait before the first attempt to connect again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// A grid as one user sees it.
pub struct Grid {
    ticket: Ticket,
    services: Services,
    /// Connections to nodes.
    pub(crate) nodes: Pool,
}

/// A request on its way.
pub struct Pending {
    waiting: Waiting,
    // Keeps the connection open until the answer is here.
    _connection: Arc<Connection>,
}

impl Pending {
    /// Waits for the answer; failures of the metadata service are errors.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn wait(self) -> Result<Answer, ClientError> {
        match self.waiting.wait() {
            Ok(Answer::Failure(failure)) => Err(ClientError::Failed(failure)),
            Ok(answer) => Ok(answer),
            Err(Broken::NotSent(why) | Broken::Sent(why)) => Err(ClientError::Lost(why)),
        }
    }
}

impl Grid {
    /// Connects with a ticket, to one of the services that it names.
    ///
    /// # Errors
    /// No service can be reached, or it shows another key, or refuses the token.
    pub fn connect(ticket: &Ticket) -> Result<Self, ClientError> {
        Ok(Self {
            ticket: ticket.clone(),
            services: Services::connect(ticket)?,
            nodes: Pool::default(),
        })
    }

    /// Whether content of nodes on this host is read from and handed over as files (the default), or goes through the
    /// network as that of all others.
    pub fn use_near(&self, wanted: bool) {
        self.nodes.near.want(wanted);
    }

    /// `HOST:PORT` of the metadata service in use.
    pub fn address(&self) -> String {
        self.services.current()
    }

    /// The ticket, with all services that are known by now.
    pub fn ticket(&self) -> Ticket {
        let addresses = self.services.addresses();
        let whole = Ticket::new(&addresses, self.ticket.pin(), self.ticket.token().to_owned());
        // All of its parts were checked.
        whole.unwrap_or_else(|_| self.ticket.clone())
    }

    /// Begins a request without waiting for its answer. Requests of one thread are begun by the service in
    /// the order in which they were submitted.
    ///
    /// # Errors
    /// There is no connection and none can be had.
    pub fn submit(&self, op: Op) -> Result<Pending, ClientError> {
        let connection = self.services.connection()?;
        Ok(Pending {
            waiting: connection.submit(op, None),
            _connection: connection,
        })
    }

    /// As [`Self::submit`], in a context.
    ///
    /// # Errors
    /// There is no connection and none can be had.
    pub fn submit_in(&self, op: Op, context: v1::Context) -> Result<Pending, ClientError> {
        let connection = self.services.connection()?;
        Ok(Pending {
            waiting: connection.submit(op, Some(context)),
            _connection: connection,
        })
    }

    /// Asks and waits. A request that changes nothing, and any that was never sent, is asked again on a new
    /// connection, at another service if there is one, for at most [`RETRY_LIMIT`] after the first was lost.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn call(&self, op: Op) -> Result<Answer, ClientError> {
        self.ask(op, None)
    }

    /// As [`Self::call`], in a context: where the paths begin, and for whom the administrator asks.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn call_in(&self, op: Op, context: v1::Context) -> Result<Answer, ClientError> {
        self.ask(op, Some(context))
    }

    fn ask(&self, op: Op, context: Option<v1::Context>) -> Result<Answer, ClientError> {
        let mut deadline = None;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.services.connection() {
                Ok(connection) => match connection.submit(op.clone(), context.clone()).wait() {
                    Ok(Answer::Failure(failure)) if is_passing(&failure) && changes_nothing(&op) => {
                        ClientError::Failed(failure)
                    }
                    Ok(Answer::Failure(failure)) => return Err(ClientError::Failed(failure)),
                    Ok(answer) => return Ok(answer),
                    Err(Broken::Sent(why)) if !changes_nothing(&op) => return Err(ClientError::Lost(why)),
                    Err(Broken::Sent(why) | Broken::NotSent(why)) => ClientError::Lost(why),
                },
                Err(e @ ClientError::Service(ServiceError::Peer { .. })) => e,
                Err(e) => return Err(e),
            };
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + RETRY_LIMIT);
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    pub(crate) fn done(&self, op: Op) -> Result<(), ClientError> {
        match self.call(op)? {
            Answer::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn attr(&self, op: Op) -> Result<v1::Attr, ClientError> {
        match self.call(op)? {
            Answer::Attr(attr) => Ok(attr),
            other => Err(unexpected(&other)),
        }
    }

    /// Attributes of what lies at `path`; of a symbolic link itself if `follow` is not set.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn stat(&self, path: &[u8], follow: bool) -> Result<v1::Attr, ClientError> {
        self.attr(Op::Stat(path_request(path, !follow)))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn make_dir(&self, path: &[u8], mode: u32, umask: u32) -> Result<v1::Attr, ClientError> {
        let path = path.to_vec();
        self.attr(Op::MakeDir(v1::MakeDirRequest { path, mode, umask }))
    }

    /// Makes an empty file, which must not be there: one durable change.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn make_file(&self, path: &[u8], mode: u32, umask: u32) -> Result<v1::Attr, ClientError> {
        let wanted = v1::MakeFileRequest {
            special: v1::Special::None.into(),
            path: path.to_vec(),
            mode,
            umask,
            open: false,
        };
        match self.call(Op::MakeFile(wanted))? {
            Answer::OpenFile(v1::OpenFileReply { attr: Some(attr), .. }) => Ok(attr),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes a name, or an empty directory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove(&self, path: &[u8], directory: bool) -> Result<(), ClientError> {
        let path = path.to_vec();
        self.done(Op::Remove(v1::RemoveRequest { path, directory }))
    }

    /// Renames, over what is there unless `no_replace`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn rename(&self, from: &[u8], to: &[u8], no_replace: bool) -> Result<(), ClientError> {
        let (from, to) = (from.to_vec(), to.to_vec());
        self.done(Op::Rename(v1::RenameRequest { from, to, no_replace }))
    }

    /// Makes another name for a file.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn link(&self, existing: &[u8], path: &[u8]) -> Result<v1::Attr, ClientError> {
        let (existing, path) = (existing.to_vec(), path.to_vec());
        self.attr(Op::Link(v1::LinkRequest { existing, path }))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<v1::Attr, ClientError> {
        let (target, path) = (target.to_vec(), path.to_vec());
        self.attr(Op::Symlink(v1::SymlinkRequest { target, path }))
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, ClientError> {
        match self.call(Op::ReadLink(path_request(path, true)))? {
            Answer::Link(link) => Ok(link.target),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes mode, owner, group or times.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_attr(&self, change: v1::SetAttrRequest) -> Result<v1::Attr, ClientError> {
        self.attr(Op::SetAttr(change))
    }

    /// Sets how many replicas are wanted (`2`, or `SITE=N,SITE=N`), of a file or for what is made in a directory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_copies(&self, path: &[u8], copies: &str) -> Result<v1::Attr, ClientError> {
        let (path, copies) = (path.to_vec(), copies.to_owned());
        self.attr(Op::SetCopies(v1::SetCopiesRequest { path, copies }))
    }

    /// Attributes, fragments and all replicas, without the right to read them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn locate(&self, path: &[u8]) -> Result<v1::ReadGrant, ClientError> {
        self.read_grant(Op::Where(path_request(path, false)))
    }

    /// The right to read a file, and where.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn open(&self, path: &[u8]) -> Result<v1::ReadGrant, ClientError> {
        self.read_grant(Op::Open(path_request(path, false)))
    }

    fn read_grant(&self, op: Op) -> Result<v1::ReadGrant, ClientError> {
        match self.call(op)? {
            Answer::Read(grant) => Ok(grant),
            other => Err(unexpected(&other)),
        }
    }

    /// The right to give a file new content, and where. It ends with [`Self::commit`] or [`Self::abandon`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn create(&self, wanted: v1::CreateRequest) -> Result<v1::WriteGrant, ClientError> {
        match self.call(Op::Create(wanted))? {
            Answer::Write(grant) => Ok(grant),
            other => Err(unexpected(&other)),
        }
    }

    /// Publishes new content that is durable at a node.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn commit(&self, written: v1::CommitRequest) -> Result<v1::Attr, ClientError> {
        self.attr(Op::Commit(written))
    }

    /// Tells that a fragment of a draft is durable at a node.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn stage(&self, written: v1::StageRequest) -> Result<(), ClientError> {
        self.done(Op::Stage(written))
    }

    /// Gives new content up.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn abandon(&self, inode: u64, generation: u64, token: &str) -> Result<(), ClientError> {
        let token = token.to_owned();
        self.done(Op::Abandon(v1::AbandonRequest {
            inode,
            generation,
            token,
        }))
    }

    /// Ends the right to read that [`Self::open`] gave, without waiting for the answer.
    pub fn close(&self, grant: &v1::ReadGrant) {
        // The end of the connection says the same.
        let _ = self.submit(Op::Close(v1::CloseRequest { handle: grant.handle }));
    }

    /// Asks for replicas of a file; gives the jobs that make them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn replicate(
        &self,
        path: &[u8],
        copies: u32,
        nodes: Vec<String>,
    ) -> Result<Vec<v1::Job>, ClientError> {
        self.job_list(Op::Replicate(v1::ReplicateRequest {
            path: path.to_vec(),
            copies,
            nodes,
            ..v1::ReplicateRequest::default()
        }))
    }

    /// Use of space by users or groups.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn uses(&self, groups: bool) -> Result<Vec<v1::Use>, ClientError> {
        match self.call(Op::Use(v1::UseRequest { groups }))? {
            Answer::Use(reply) => Ok(reply.uses),
            other => Err(unexpected(&other)),
        }
    }

    /// The state of the whole.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn status(&self) -> Result<v1::StatusReply, ClientError> {
        match self.call(Op::Status(v1::StatusRequest {}))? {
            Answer::Status(status) => {
                self.services.learn(&status.services);
                Ok(status)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// All nodes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn nodes(&self) -> Result<Vec<v1::Node>, ClientError> {
        self.node_list(Op::ListNodes(v1::ListNodesRequest {}))
    }

    /// Changes a node's state: `up`, `drain`, `readonly` or `lost`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_node(&self, name: &str, state: &str) -> Result<Vec<v1::Node>, ClientError> {
        let (name, state) = (name.to_owned(), state.to_owned());
        self.node_list(Op::SetNode(v1::SetNodeRequest { name, state }))
    }

    fn node_list(&self, op: Op) -> Result<Vec<v1::Node>, ClientError> {
        match self.call(op)? {
            Answer::Nodes(reply) => Ok(reply.nodes),
            other => Err(unexpected(&other)),
        }
    }

    /// These jobs, or all (none named).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn jobs(&self, jobs: &[u64], open_only: bool) -> Result<Vec<v1::Job>, ClientError> {
        let jobs = jobs.to_vec();
        self.job_list(Op::ListJobs(v1::ListJobsRequest { jobs, open_only }))
    }

    /// Cancels a job; what it has copied stays.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn cancel_job(&self, job: u64) -> Result<Vec<v1::Job>, ClientError> {
        self.job_list(Op::CancelJob(v1::CancelJobRequest { job }))
    }

    fn job_list(&self, op: Op) -> Result<Vec<v1::Job>, ClientError> {
        match self.call(op)? {
            Answer::Jobs(reply) => Ok(reply.jobs),
            other => Err(unexpected(&other)),
        }
    }

    /// A token for a user or a node.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn issue_ticket(&self, wanted: v1::IssueTicketRequest) -> Result<Ticket, ClientError> {
        match self.call(Op::IssueTicket(wanted))? {
            Answer::Ticket(reply) => {
                self.services.learn(&reply.services);
                let addresses = self.services.addresses();
                let ticket = Ticket::new(&addresses, self.ticket.pin(), reply.token);
                ticket.map_err(|e| ClientError::Protocol(e.to_string()))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Presents a node.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn join(&self, node: v1::JoinRequest) -> Result<v1::JoinReply, ClientError> {
        match self.call(Op::Join(node))? {
            Answer::Join(reply) => {
                self.services.learn(&reply.services);
                Ok(reply)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Tells that a node lives; what it shall do comes back, at once or within the heartbeat's time.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn heartbeat(&self, state: v1::HeartbeatRequest) -> Result<v1::HeartbeatReply, ClientError> {
        match self.call(Op::Heartbeat(state))? {
            Answer::Heartbeat(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells how an order ended.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn order_done(&self, done: v1::OrderDoneRequest) -> Result<(), ClientError> {
        self.done(Op::OrderDone(done))
    }

    /// Compares a node's objects, at most 1,000, with what the catalog knows of it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn inventory(&self, asked: v1::InventoryRequest) -> Result<v1::InventoryReply, ClientError> {
        match self.call(Op::Inventory(asked))? {
            Answer::Inventory(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells which objects, at most 1,000, this node has lost or found damaged.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn damaged(&self, objects: Vec<v1::ObjectName>) -> Result<(), ClientError> {
        self.done(Op::Damaged(v1::DamagedRequest { objects }))
    }

    /// Tells that a node's replica of a fragment gave something else than the catalog knows.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn report(&self, path: &[u8], fragment: u32, node: &str) -> Result<(), ClientError> {
        let (path, node) = (path.to_vec(), node.to_owned());
        self.done(Op::Report(v1::ReportRequest { path, fragment, node }))
    }

    /// Compares spools with the catalog, or tries the nodes' disks; see [`v1::SpoolsRequest`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn spools(&self, asked: v1::SpoolsRequest) -> Result<v1::SpoolsReply, ClientError> {
        match self.call(Op::Spools(asked))? {
            Answer::Spools(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Routes between sites, with what is given now.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn routes(&self) -> Result<Vec<v1::GridRoute>, ClientError> {
        match self.call(Op::Routes(v1::RoutesRequest {}))? {
            Answer::Routes(reply) => Ok(reply.routes),
            other => Err(unexpected(&other)),
        }
    }

    /// One page of a directory, from the cursor `after` on (empty at the start).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn list_page(&self, path: &[u8], after: Vec<u8>) -> Result<v1::ListReply, ClientError> {
        let request = Op::List(v1::ListRequest {
            path: path.to_vec(),
            after,
            limit: 0,
        });
        match self.call(request)? {
            Answer::List(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// The entries of a directory, page by page.
    pub fn list<'a>(&'a self, path: &[u8]) -> Entries<'a> {
        Entries {
            grid: self,
            path: path.to_vec(),
            page: VecDeque::new(),
            next: Some(Vec::new()),
        }
    }
}

/// Entries of a directory; see [`Grid::list`].
pub struct Entries<'a> {
    grid: &'a Grid,
    path: Vec<u8>,
    page: VecDeque<v1::Entry>,
    next: Option<Vec<u8>>,
}

impl Iterator for Entries<'_> {
    type Item = Result<v1::Entry, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.pop_front() {
                return Some(Ok(entry));
            }
            let after = self.next.take()?;
            match self.grid.list_page(&self.path, after) {
                Ok(reply) => {
                    self.page = reply.entries.into();
                    self.next = Some(reply.next).filter(|n| !n.is_empty());
                }
                Err(e) => return Some(Err(e)),
            }
        }
    }
}

fn path_request(path: &[u8], no_follow: bool) -> v1::PathRequest {
    v1::PathRequest {
        path: path.to_vec(),
        no_follow,
        near_host: host_name(),
    }
}

/// This host's name, for choosing what is near; as it was when it was asked for first.
pub fn host_name() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    NAME.get_or_init(|| read().trim().to_owned()).clone()
}

/// Whether asking twice is as good as once.
fn changes_nothing(op: &Op) -> bool {
    matches!(
        op,
        Op::Stat(_)
            | Op::List(_)
            | Op::ReadLink(_)
            | Op::Open(_)
            | Op::Where(_)
            | Op::Status(_)
            | Op::ListNodes(_)
            | Op::ListJobs(_)
            | Op::SetAttr(_)
            | Op::SetCopies(_)
            | Op::Join(_)
            | Op::Heartbeat(_)
            | Op::OrderDone(_)
            | Op::Abandon(_)
            | Op::Create(_)
            | Op::Use(_)
            | Op::Inventory(_)
            | Op::IssueTicket(_)
            | Op::GetQuota(_)
            | Op::SetQuota(_)
            | Op::Check(_)
            | Op::Damaged(_)
            | Op::Report(_)
            | Op::Spools(_)
            | Op::Routes(_)
            | Op::OpenFile(_)
            | Op::WriteGrant(_)
            | Op::Change(_)
            | Op::ReadDir(_)
            | Op::Access(_)
            | Op::GetXattr(_)
            | Op::ListXattr(_)
            | Op::GetAcl(_)
            | Op::SetAcl(_)
            | Op::Space(_)
    )
}

/// Whether the same again may succeed: the service, or its database, is just going or coming.
fn is_passing(failure: &v1::Failure) -> bool {
    matches!(failure.code(), Code::Unavailable | Code::Busy)
}

pub(crate) fn unexpected(answer: &Answer) -> ClientError {
    let text = format!("{answer:?}");
    ClientError::Protocol(text.chars().take(80).collect())
}
