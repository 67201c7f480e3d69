//! Quotas, access control lists, extended attributes, and the catalog's own check.

use kuroshio_proto::v1::{self, request::Op, response::Result as Answer};

use crate::error::ClientError;
use crate::grid::{Grid, unexpected};

impl Grid {
    /// Use and bounds of a user, a group or a directory; of others than oneself for the administrator.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn quota(&self, whose: v1::QuotaRequest) -> Result<v1::Use, ClientError> {
        match self.call(Op::GetQuota(whose))? {
            Answer::Use(mut reply) if reply.uses.len() == 1 => Ok(reply.uses.remove(0)),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets bounds; none is no bound. The administrator only; a directory must be empty or have bounds already.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_quota(&self, wanted: v1::SetQuotaRequest) -> Result<(), ClientError> {
        self.done(Op::SetQuota(wanted))
    }

    /// The access list, or a directory's default list; empty when there is none beyond the mode.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn acl(&self, path: &[u8], default_list: bool) -> Result<Vec<v1::AclEntry>, ClientError> {
        let path = path.to_vec();
        match self.call(Op::GetAcl(list(path, default_list, Vec::new())))? {
            Answer::Acl(reply) => Ok(reply.entries),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets a list; an empty one removes it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_acl(
        &self,
        path: &[u8],
        default_list: bool,
        entries: Vec<v1::AclEntry>,
    ) -> Result<(), ClientError> {
        let path = path.to_vec();
        self.done(Op::SetAcl(list(path, default_list, entries)))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// See [`ClientError`]; `NoData` when there is none of this name.
    pub fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>, ClientError> {
        match self.call(Op::GetXattr(named(path, name)))? {
            Answer::Xattr(reply) => Ok(reply.value),
            other => Err(unexpected(&other)),
        }
    }

    /// The names of the extended attributes, sorted.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, ClientError> {
        match self.call(Op::ListXattr(named(path, b"")))? {
            Answer::Xattr(reply) => Ok(reply.names),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_xattr(&self, wanted: v1::XattrRequest) -> Result<(), ClientError> {
        self.done(Op::SetXattr(wanted))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// See [`ClientError`]; `NoData` when there is none of this name.
    pub fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<(), ClientError> {
        self.done(Op::RemoveXattr(named(path, name)))
    }

    /// What in the catalog contradicts itself, a line each; the administrator only. Reads all of it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn check(&self, limit: u32) -> Result<Vec<Vec<u8>>, ClientError> {
        match self.call(Op::Check(v1::CheckRequest { limit }))? {
            Answer::Check(reply) => Ok(reply.findings),
            other => Err(unexpected(&other)),
        }
    }
}

fn named(path: &[u8], name: &[u8]) -> v1::XattrRequest {
    v1::XattrRequest {
        path: path.to_vec(),
        name: name.to_vec(),
        ..v1::XattrRequest::default()
    }
}

fn list(path: Vec<u8>, defaults: bool, entries: Vec<v1::AclEntry>) -> v1::AclRequest {
    v1::AclRequest {
        path,
        defaults,
        entries,
    }
}
