//! Progress and results as data with units in the names: the same objects in the service's answers, in
//! `--json` and behind the progress display.

use kuroshio_transfer::{Event, FileError, FileErrorKind, Limiter, Snapshot, Summary};
use serde::{Deserialize, Serialize};

/// Where a transfer stands.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ProgressReport {
    /// Seconds since the session began.
    pub seconds: f64,
    /// Payload bytes announced so far.
    pub bytes_scheduled: u64,
    /// Whether that is final.
    pub walk_done: bool,
    /// Payload bytes that left for the wire.
    pub bytes_on_wire: u64,
    /// Payload bytes that the receiver has written.
    pub bytes_acknowledged: u64,
    /// Payload bytes that were there before.
    pub bytes_present: u64,
    /// Payload bytes published and flushed.
    pub bytes_durable: u64,
    /// Files announced so far.
    pub files_scheduled: u64,
    /// Files published and flushed.
    pub files_durable: u64,
    /// Files skipped because the destination has them.
    pub files_skipped: u64,
    /// Files failed.
    pub files_failed: u64,
    /// Payload rate over the last second or so, bit/s.
    pub goodput_bps: u64,
    /// Seconds to the end at that rate.
    pub eta_seconds: Option<u64>,
    /// Which resource limits now.
    pub limited_by: String,
    /// TCP segments sent again.
    pub retransmissions: u64,
    /// The data streams.
    pub streams: Vec<StreamReport>,
}

/// One data stream.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StreamReport {
    /// Route it belongs to.
    pub route: u32,
    /// Whether it still carries data.
    pub alive: bool,
    /// Frame-level rate it was given, bit/s; none is no limit.
    pub rate_bps: Option<u64>,
    /// Smoothed round-trip time, us.
    pub rtt_us: u32,
    /// Bytes that TCP has sent, headers not counted.
    pub tcp_bytes_sent: u64,
    /// TCP segments sent again.
    pub retransmissions: u32,
}

impl From<&Snapshot> for ProgressReport {
    fn from(s: &Snapshot) -> Self {
        let streams = s.streams.iter().map(|stream| {
            let tcp = stream.tcp.unwrap_or_default();
            StreamReport {
                route: stream.route,
                alive: stream.alive,
                rate_bps: (stream.rate_bps > 0).then_some(stream.rate_bps),
                rtt_us: tcp.rtt_us,
                tcp_bytes_sent: tcp.bytes_sent,
                retransmissions: tcp.retrans_segments,
            }
        });
        Self {
            seconds: s.elapsed_us as f64 / 1e6,
            bytes_scheduled: s.bytes_scheduled,
            walk_done: s.walk_done,
            bytes_on_wire: s.bytes_on_wire,
            bytes_acknowledged: s.bytes_acknowledged,
            bytes_present: s.bytes_present,
            bytes_durable: s.bytes_durable,
            files_scheduled: s.files_scheduled,
            files_durable: s.files_durable,
            files_skipped: s.files_skipped,
            files_failed: s.files_failed,
            goodput_bps: s.rate_bytes_per_s.saturating_mul(8),
            eta_seconds: s.eta_s,
            limited_by: limiter_name(s.limited_by).to_owned(),
            retransmissions: s.retransmissions,
            streams: streams.collect(),
        }
    }
}

fn limiter_name(limiter: Limiter) -> &'static str {
    match limiter {
        Limiter::Unknown => "unknown",
        Limiter::SenderDisk => "sender disk",
        Limiter::NetworkPace => "network pace",
        Limiter::Window => "window",
        Limiter::ReceiverDisk => "receiver disk",
        Limiter::Cpu => "cpu",
    }
}

/// Something that happened to one file or stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventReport {
    /// `durable`, `skipped`, `would_send`, `resent`, `restarted`, `failed` or `stream_lost`.
    pub event: String,
    /// Path relative to the destination, bytes that are not UTF-8 escaped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// Bytes concerned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// Where in the file, bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub offset_bytes: Option<u64>,
    /// BLAKE3 of the file, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub blake3: Option<String>,
    /// What happened, for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text: Option<String>,
}

impl EventReport {
    fn of(event: &str, path: Option<&[u8]>) -> Self {
        Self {
            event: event.to_owned(),
            path: path.map(show_path),
            bytes: None,
            offset_bytes: None,
            blake3: None,
            text: None,
        }
    }
}

impl From<&Event> for EventReport {
    fn from(event: &Event) -> Self {
        match event {
            Event::Durable { path, size, digest } => Self {
                bytes: Some(*size),
                blake3: digest.map(|d| d.iter().map(|b| format!("{b:02x}")).collect()),
                ..Self::of("durable", Some(path))
            },
            Event::Skipped { path } => Self::of("skipped", Some(path)),
            Event::WouldSend { path, bytes } => Self {
                bytes: Some(*bytes),
                ..Self::of("would_send", Some(path))
            },
            Event::Resent { path, offset, len } => Self {
                bytes: Some(u64::from(*len)),
                offset_bytes: Some(*offset),
                text: Some("a chunk had a wrong digest at the destination and is sent again".into()),
                ..Self::of("resent", Some(path))
            },
            Event::Restarted { path } => Self {
                text: Some("the source changed while it was read; it is sent again".into()),
                ..Self::of("restarted", Some(path))
            },
            Event::Failed(error) => Self {
                text: Some(error.text.clone()),
                ..Self::of("failed", Some(&error.path))
            },
            Event::StreamLost { stream, text } => Self {
                text: Some(format!("data stream {stream} broke, the others go on: {text}")),
                ..Self::of("stream_lost", None)
            },
        }
    }
}

/// A path for people and JSON: UTF-8 as it is, other bytes as `\xNN`, a backslash doubled.
pub fn show_path(path: &[u8]) -> String {
    path.utf8_chunks().fold(String::new(), |mut out, chunk| {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if c.is_control() => out.extend(c.escape_default()),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
        out
    })
}

/// One file that was not moved.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileErrorReport {
    /// Path relative to the destination.
    pub path: String,
    /// `source`, `destination`, `changed`, `digest`, `escape` or `unsupported`.
    pub kind: String,
    /// What happened, for people.
    pub text: String,
}

impl From<&FileError> for FileErrorReport {
    fn from(error: &FileError) -> Self {
        let kind = match error.kind {
            FileErrorKind::Source => "source",
            FileErrorKind::Destination => "destination",
            FileErrorKind::Changed => "changed",
            FileErrorKind::Digest => "digest",
            FileErrorKind::Escape => "escape",
            FileErrorKind::Unsupported => "unsupported",
        };
        Self {
            path: show_path(&error.path),
            kind: kind.to_owned(),
            text: error.text.clone(),
        }
    }
}

/// How a transfer ended.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CopyReport {
    /// Whether every file is at the destination, durable and checked as asked.
    pub complete: bool,
    /// Files announced.
    pub files: u64,
    /// Files published and flushed in this run.
    pub files_durable: u64,
    /// Files whose content was compared with the sender's digest.
    pub files_verified: u64,
    /// Files that the destination had already.
    pub files_skipped: u64,
    /// Files that were not moved.
    pub files_failed: u64,
    /// Files begun again because the source changed.
    pub files_restarted: u64,
    /// Directories, symbolic links and hard links made.
    pub others: u64,
    /// Payload bytes of all files announced.
    pub bytes: u64,
    /// Payload bytes sent in this run.
    pub bytes_sent: u64,
    /// Payload bytes found from an earlier run.
    pub bytes_resumed: u64,
    /// Chunks sent again after a wrong digest.
    pub chunks_resent: u64,
    /// Bytes of them.
    pub bytes_resent: u64,
    /// TCP segments sent again.
    pub retransmissions: u64,
    /// Seconds from the first connection to the last acknowledgement.
    pub seconds: f64,
    /// `bytes_sent` over `seconds`, bit/s.
    pub goodput_bps: u64,
    /// The first files that were not moved.
    pub errors: Vec<FileErrorReport>,
}

impl CopyReport {
    /// A report from a summary and the last snapshot.
    pub fn new(summary: &Summary, last: &Snapshot) -> Self {
        let seconds = last.elapsed_us as f64 / 1e6;
        let goodput_bps = if seconds > 0.0 {
            (summary.bytes_sent as f64 * 8.0 / seconds) as u64
        } else {
            0
        };
        Self {
            complete: summary.is_complete(),
            files: summary.files,
            files_durable: summary.files_durable,
            files_verified: summary.files_verified,
            files_skipped: summary.files_skipped,
            files_failed: summary.files_failed,
            files_restarted: summary.files_restarted,
            others: summary.others,
            bytes: summary.bytes,
            bytes_sent: summary.bytes_sent,
            bytes_resumed: summary.bytes_resumed,
            chunks_resent: summary.chunks_resent,
            bytes_resent: summary.bytes_resent,
            retransmissions: last.retransmissions,
            seconds,
            goodput_bps,
            errors: summary.errors.iter().map(FileErrorReport::from).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown_without_loss() {
        assert_eq!(show_path("a/ü".as_bytes()), "a/ü");
        assert_eq!(show_path(b"a\xff\\\n"), "a\\xff\\\\\\n");
    }
}
