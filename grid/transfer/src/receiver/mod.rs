//! The receiving side.
use crate::{Progress, ReceiveJob, SessionConns, Summary, TransferError};

pub(crate) fn run(_conns: SessionConns, _job: ReceiveJob, _progress: &Progress) -> Result<Summary, TransferError> {
    Err(TransferError::Input("not available".into()))
}
