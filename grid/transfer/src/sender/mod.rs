//! The sending side.
use crate::{Progress, SendJob, SessionConns, Summary, TransferError};

pub(crate) fn run(_conns: SessionConns, _job: SendJob, _progress: &Progress) -> Result<Summary, TransferError> {
    Err(TransferError::Input("not available".into()))
}
