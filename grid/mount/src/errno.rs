//! Failures as error numbers.

use fuser::Errno;
use kuroshio_client::ClientError;
use kuroshio_client::v1::Code;

/// The error number of a failure.
pub fn errno(e: &ClientError) -> Errno {
    match e {
        ClientError::Failed(failure) => of_code(failure.code()),
        ClientError::Local { source, .. } => of_io(source),
        ClientError::Invalid(_) => Errno::EINVAL,
        ClientError::Cancelled => Errno::EINTR,
        // What was lost on the way, could not be read or is not what was agreed.
        _ => Errno::EIO,
    }
}

/// The error number of a local file's failure.
pub fn of_io(e: &std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::EIO, Errno::from_i32)
}

fn of_code(code: Code) -> Errno {
    match code {
        Code::NoEntry => Errno::ENOENT,
        Code::Exists => Errno::EEXIST,
        Code::NotEmpty => Errno::ENOTEMPTY,
        Code::NotDirectory => Errno::ENOTDIR,
        Code::IsDirectory => Errno::EISDIR,
        Code::Access | Code::Unauthenticated => Errno::EACCES,
        Code::Permission => Errno::EPERM,
        Code::Invalid => Errno::EINVAL,
        Code::NameTooLong => Errno::ENAMETOOLONG,
        Code::TooManyLinks => Errno::EMLINK,
        Code::NoSpace | Code::NoNode => Errno::ENOSPC,
        Code::Quota => Errno::EDQUOT,
        Code::Stale => Errno::ESTALE,
        Code::Busy | Code::LastReplica => Errno::EBUSY,
        Code::Loop => Errno::ELOOP,
        Code::CrossQuota => Errno::EXDEV,
        Code::Limit => Errno::E2BIG,
        Code::TooBig => Errno::EFBIG,
        Code::Unsupported => Errno::EOPNOTSUPP,
        Code::NoData => Errno::ENODATA,
        Code::NoReplica | Code::Internal | Code::Unavailable | Code::Unspecified => Errno::EIO,
    }
}
