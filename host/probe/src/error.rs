//! Why a probe did not come to its end.

use kuroshio_sock::ConnectError;
use std::io;
use std::time::Duration;

/// What went wrong between two ends, or in what they were asked to do.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// An option or a combination of options that means nothing.
    #[error("{0}")]
    BadInput(String),
    /// The name has no address.
    #[error("{host}: no address of this name")]
    Resolve {
        /// What was asked for.
        host: String,
        /// What the resolver said, when it said something.
        #[source]
        source: Option<io::Error>,
    },
    /// No connection.
    #[error("no connection: {0}")]
    Connect(#[source] ConnectError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The other side kept silent.
    #[error("{what}: nothing within {} s", after.as_secs_f64())]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// The other side went away.
    #[error("{what}: the other side closed the connection")]
    Closed {
        /// What was waited for.
        what: &'static str,
    },
    /// The other side sent something that is not iperf3's protocol.
    #[error("not as iperf3 speaks: {0}")]
    Protocol(String),
    /// The server takes no more tests now.
    #[error("the server is busy with other tests; try again later")]
    Busy,
    /// The server said that it cannot (its number in `iperf_api.h`, and its `errno`).
    #[error("the server refused or failed: iperf3 error {code} ({}), errno {errno}", describe(*code))]
    Remote {
        /// iperf3's error number.
        code: i32,
        /// The server's `errno`, or 0.
        errno: i32,
    },
    /// The other side ended the test before its end.
    #[error("the {who} ended the test")]
    Ended {
        /// `client` or `server`.
        who: &'static str,
    },
    /// A limit of this server.
    #[error("beyond this server's limit: {0}")]
    Limit(String),
    /// A search for capacity broke.
    #[error("search for capacity: {0}")]
    Capacity(String),
    /// A stream broke.
    #[error("stream {id}: {what}")]
    Stream {
        /// The stream's number.
        id: u32,
        /// What happened.
        what: String,
    },
}

impl ProbeError {
    /// Whether the input was wrong, so that trying again cannot help.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::BadInput(_))
    }

    pub(crate) fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// iperf3's error numbers that a server sends (`iperf_api.h`).
pub(crate) mod code {
    /// Duration beyond the server's limit.
    pub const DURATION: i32 = 5;
    /// Too many streams.
    pub const STREAMS: i32 = 6;
    /// Block size out of range.
    pub const BLOCK: i32 = 7;
    /// A server could not start the test.
    pub const INIT: i32 = 101;
    /// The parameters could not be read.
    pub const PARAMETERS: i32 = 114;
    /// A message out of place.
    pub const MESSAGE: i32 = 110;
    /// A stream could not be accepted.
    pub const ACCEPT: i32 = 204;
}

/// The meaning of iperf3's more frequent error numbers.
fn describe(number: i32) -> &'static str {
    match number {
        code::DURATION => "the duration is beyond the server's limit",
        code::STREAMS => "too many streams",
        code::BLOCK => "block size out of range",
        8 => "socket buffer too large",
        code::INIT => "the test could not start",
        code::MESSAGE => "a message out of place",
        code::PARAMETERS => "the parameters could not be read",
        code::ACCEPT => "a stream could not be accepted",
        _ => "see iperf_api.h",
    }
}
