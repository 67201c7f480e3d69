//! Extended attributes.

use kuroshio_proto::v1::{self, request::Op, response::Result as Answer};

use crate::error::ClientError;
use crate::grid::{Grid, unexpected};

fn named(path: &[u8], name: &[u8]) -> v1::XattrRequest {
    v1::XattrRequest {
        path: path.to_vec(),
        name: name.to_vec(),
    }
}

impl Grid {
    /// The value of an extended attribute (`user.NAME`).
    ///
    /// # Errors
    /// See [`ClientError`]; `NoData` when there is none of this name.
    pub fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>, ClientError> {
        match self.call(Op::GetXattr(named(path, name)))? {
            Answer::Xattr(reply) => Ok(reply.value),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_xattr(&self, wanted: v1::SetXattrRequest) -> Result<(), ClientError> {
        self.done(Op::SetXattr(wanted))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// See [`ClientError`]; `NoData` when there is none of this name.
    pub fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<(), ClientError> {
        self.done(Op::RemoveXattr(named(path, name)))
    }
}
