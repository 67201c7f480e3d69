//! What each side tells the other at the end.

use crate::error::ProbeError;
use crate::json::{count, float, number};
use crate::params::MAX_STREAMS;
use kuroshio_sock::MAX_CONGESTION_NAME;
use serde_json::{Value, json};

/// Processor time of a side over the run's time, percent of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuPercent {
    /// Both together.
    pub total: f64,
    /// In the program.
    pub user: f64,
    /// In the kernel on behalf of the program.
    pub system: f64,
}

/// One stream as one side saw it. Counts are of the whole run less what was omitted, where not said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamResult {
    /// The stream's number: 1, 3, 4, ... in iperf3's order.
    pub id: u32,
    /// Payload bytes sent or received.
    pub bytes: u64,
    /// Segments sent again; `None` at the receiver and with UDP.
    pub retransmits: Option<u64>,
    /// Variation of the delay (RFC 1889), seconds; 0 with TCP and at a sender.
    pub jitter_s: f64,
    /// Datagrams lost, with those of the omitted time.
    pub errors: u64,
    /// Those of the omitted time.
    pub omitted_errors: u64,
    /// Datagrams sent, or the highest number received, with those of the omitted time.
    pub packets: u64,
    /// Those of the omitted time.
    pub omitted_packets: u64,
    /// Begin of what is counted, seconds of the side's run.
    pub start_s: f64,
    /// End of it.
    pub end_s: f64,
}

/// What a side sends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Processor time.
    pub cpu: CpuPercent,
    /// Whether this side sends and knows its retransmissions; `None` when it does not send.
    pub sender_has_retransmits: Option<bool>,
    /// Congestion control in use.
    pub congestion: Option<String>,
    /// The streams.
    pub streams: Vec<StreamResult>,
    /// What only Kuroshio tells, as the other side wrote it.
    pub extension: Option<Value>,
}

impl Results {
    /// The JSON object that iperf3 reads.
    pub fn to_json(&self) -> Value {
        let signed = |n: Option<u64>| n.map_or(json!(-1), |n| json!(n));
        let streams: Vec<Value> = self
            .streams
            .iter()
            .map(|s| {
                json!({
                    "id": s.id,
                    "bytes": s.bytes,
                    "retransmits": signed(s.retransmits),
                    "jitter": s.jitter_s,
                    "errors": s.errors,
                    "omitted_errors": s.omitted_errors,
                    "packets": s.packets,
                    "omitted_packets": s.omitted_packets,
                    "start_time": s.start_s,
                    "end_time": s.end_s,
                })
            })
            .collect();
        let mut object = json!({
            "cpu_util_total": self.cpu.total,
            "cpu_util_user": self.cpu.user,
            "cpu_util_system": self.cpu.system,
            "sender_has_retransmits": signed(self.sender_has_retransmits.map(u64::from)),
            "streams": streams,
        });
        if let Some(name) = &self.congestion {
            object["congestion_used"] = name.clone().into();
        }
        if let Some(extension) = &self.extension {
            object["kuroshio"] = extension.clone();
        }
        object
    }

    /// Reads what the other side sent.
    ///
    /// # Errors
    /// What is missing, of the wrong type, or too much.
    pub fn from_json(object: &Value) -> Result<Self, ProbeError> {
        let streams = object
            .get("streams")
            .and_then(Value::as_array)
            .ok_or_else(|| ProbeError::Protocol("results without streams".into()))?;
        if streams.len() > 2 * MAX_STREAMS as usize {
            return Err(ProbeError::Protocol(format!(
                "results of {} streams",
                streams.len()
            )));
        }
        Ok(Self {
            cpu: CpuPercent {
                total: float(object, "cpu_util_total")?,
                user: float(object, "cpu_util_user")?,
                system: float(object, "cpu_util_system")?,
            },
            sender_has_retransmits: count(object, "sender_has_retransmits")?.map(|n| n != 0),
            // A long or odd name is no reason to lose the results.
            congestion: crate::json::text(object, "congestion_used", MAX_CONGESTION_NAME)
                .ok()
                .flatten(),
            streams: streams.iter().map(stream).collect::<Result<_, _>>()?,
            extension: object.get("kuroshio").filter(|e| e.is_object()).cloned(),
        })
    }

    /// The stream of a number.
    pub fn stream(&self, id: u32) -> Option<&StreamResult> {
        self.streams.iter().find(|s| s.id == id)
    }
}

fn stream(object: &Value) -> Result<StreamResult, ProbeError> {
    let id = u32::try_from(number(object, "id")?)
        .map_err(|_| ProbeError::Protocol("a stream's number beyond 2^32".into()))?;
    Ok(StreamResult {
        id,
        bytes: number(object, "bytes")?,
        retransmits: count(object, "retransmits")?,
        jitter_s: float(object, "jitter")?,
        // Losses may come out below zero at an iperf3 that saw duplicates.
        errors: count(object, "errors")?.unwrap_or(0),
        omitted_errors: count(object, "omitted_errors")?.unwrap_or(0),
        packets: count(object, "packets")?.unwrap_or(0),
        omitted_packets: count(object, "omitted_packets")?.unwrap_or(0),
        start_s: float(object, "start_time")?,
        end_s: float(object, "end_time")?,
    })
}

/// The number of the n-th stream of a test (from 0): iperf3 leaves 2 out.
pub fn stream_id(index: u32) -> u32 {
    if index == 0 { 1 } else { index + 2 }
}
