//! What sender and receiver say to each other: one JSON object per line, each way in turn.
//!
//! ```text
//!   -> hello (version, streams, clock)         <- welcome (UDP port, clock)
//!   -> begin (run, kind, frame size)           <- ready
//!      ... frames of the run ...
//!   -> end (frames of each stream)             <- report | digest
//! ```
//!
//! Anything that cannot be done is answered by `refused` and the end of the connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::GenError;
use crate::receive::RunReport;

/// Version of this protocol.
pub(crate) const VERSION: u32 = 1;
/// Most bytes of a sender's line.
pub const MAX_REQUEST_BYTES: u64 = 64 << 10;
/// Most bytes of a receiver's line: figures of 1024 streams.
pub const MAX_ANSWER_BYTES: u64 = 4 << 20;
/// How long either side waits for the other's next line, but for the end of a run.
pub(crate) const LINE_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Hello {
        version: u32,
        streams: u32,
        clock: Clock,
    },
    Begin {
        run: u8,
        kind: Kind,
    },
    End {
        sent: Vec<u64>,
    },
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Figures of each stream.
    Report,
    /// The digest of a train of frames of this size, bytes with FCS.
    Digest { frame_bytes: u64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    Welcome { udp_port: u16, clock: Clock },
    Ready,
    Report(Box<RunReport>),
    Digest(TrainDigest),
    Refused { error: String },
}

/// A train's figures as they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct TrainDigest {
    pub received: u64,
    pub sent_rate_bps: u64,
    pub received_rate_bps: u64,
    pub busy_rate_bps: u64,
    pub slope_ppm: i64,
    pub slope_error_ppm: u64,
    pub rise_ns: u64,
    pub receiver_dropped: u64,
}

pub(crate) fn write_line(stream: &mut TcpStream, message: &impl Serialize) -> Result<(), GenError> {
    let mut text = serde_json::to_string(message).map_err(|e| GenError::Protocol(e.to_string()))?;
    text.push('\n');
    stream
        .write_all(text.as_bytes())
        .map_err(GenError::io("writing on the control connection"))
}

/// The next line; `None` at the end of the connection.
pub(crate) fn read_line<T: DeserializeOwned>(
    reader: &mut BufReader<TcpStream>,
    limit_bytes: u64,
) -> Result<Option<T>, GenError> {
    let mut line = Vec::new();
    reader
        .by_ref()
        .take(limit_bytes)
        .read_until(b'\n', &mut line)
        .map_err(GenError::io("waiting on the control connection"))?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        return Err(GenError::Protocol(format!(
            "a line without end, or above {limit_bytes} bytes"
        )));
    }
    parse(&line).map(Some)
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, GenError> {
    serde_json::from_slice(line).map_err(|e| GenError::Protocol(e.to_string()))
}

/// Reads bytes as either side's line: what is read is written and read again as the same. For fuzzing.
///
/// # Panics
/// When it is not.
pub fn fuzz_lines(bytes: &[u8]) {
    if let Ok(request) = parse::<Request>(bytes) {
        let text = serde_json::to_vec(&request).expect("was read");
        assert_eq!(parse::<Request>(&text).ok(), Some(request));
    }
    if let Ok(answer) = parse::<Answer>(bytes) {
        let text = serde_json::to_vec(&answer).expect("was read");
        assert_eq!(parse::<Answer>(&text).ok(), Some(answer));
    }
}
