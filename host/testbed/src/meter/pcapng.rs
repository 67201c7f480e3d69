//! A port's frames as a pcapng file, with nanoseconds.
//!
//! ```text
//! section header (comment: the clocks) | interface (name, filter, if_tsresol 9) | packets (direction) ... | statistics
//! ```
//!
//! Frames are taken in the host, where the kernel stamps them, as TAP devices carry them: without check sequence. Stamps are
//! put on the run's monotonic clock and from there, with the one offset that the head tells, on the time of day: a clock
//! that is stepped during the capture moves no frame. Format: draft-ietf-opsawg-pcapng.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kuroshio_core::meter::{Filter, StreamKey};
use kuroshio_port::{Capture, CapturedFrame, Direction, SNAP_MAX};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};

use super::ClockHead;

/// Most bytes that are kept of a frame: more than any frame of a testbed has.
pub const SNAPLEN_MAX: usize = SNAP_MAX;
/// How often the ring is emptied.
const DRAIN_EVERY: Duration = Duration::from_millis(2);

/// What is to be captured.
#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// Interface in the calling thread's network namespace.
    pub interface: String,
    /// How it is called in the file, `host/port`.
    pub name: String,
    /// Which frames.
    pub filter: Filter,
    /// Bytes of each that are kept, 1 to [`SNAPLEN_MAX`].
    pub snaplen: usize,
    /// Ends after so many frames.
    pub count: Option<u64>,
    /// Ends after this time.
    pub duration: Option<Duration>,
    /// The clocks.
    pub head: ClockHead,
}

/// What a capture did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureReport {
    /// Frames in the file.
    pub frames: u64,
    /// Frames that passed the port meanwhile, also those that the filter left out.
    pub seen_frames: u64,
    /// Frames that found the ring full: they are not in the file.
    pub missed_frames: u64,
}

fn failed(e: pcap_file::PcapError) -> io::Error {
    match e {
        pcap_file::PcapError::IoError(e) => e,
        other => io::Error::other(other),
    }
}

/// Captures until `stop`, the count or the time, and writes what came. `begun` is called when frames are being taken.
///
/// # Errors
/// When there is no such interface, no right to capture, or nothing can be written.
pub fn capture<W: Write>(
    options: &CaptureOptions,
    out: W,
    stop: &AtomicBool,
    begun: impl FnOnce(),
) -> io::Result<CaptureReport> {
    let mut capture = Capture::open_snap(&options.interface, options.snaplen)?;
    let mut file = begin(options, out)?;
    begun();
    let end = options.duration.map(|d| Instant::now() + d);
    let mut report = CaptureReport::default();
    let wanted = options.count.unwrap_or(u64::MAX);
    let mut problem = None;
    loop {
        // Looked at before draining: what came before the end is taken.
        let last = stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
        capture.drain_frames(|frame| {
            report.seen_frames += 1;
            let (key, _) = StreamKey::of(frame.bytes);
            if problem.is_some() || report.frames >= wanted || !options.filter.takes(&key) {
                return;
            }
            match file.write_pcapng_block(packet(options, &frame)) {
                Ok(_) => report.frames += 1,
                Err(e) => problem = Some(failed(e)),
            }
        });
        if let Some(problem) = problem {
            return Err(problem);
        }
        if last || report.frames >= wanted {
            break;
        }
        std::thread::sleep(DRAIN_EVERY);
    }
    report.missed_frames = capture.stats()?.dropped;
    file.write_pcapng_block(InterfaceStatisticsBlock {
        interface_id: 0,
        timestamp: 0,
        options: vec![
            InterfaceStatisticsOption::IsbIfRecv(report.seen_frames + report.missed_frames),
            InterfaceStatisticsOption::IsbIfDrop(report.missed_frames),
            InterfaceStatisticsOption::IsbUsrDeliv(report.frames),
        ],
    })
    .map_err(failed)?;
    file.into_inner().flush()?;
    Ok(report)
}

fn begin<W: Write>(options: &CaptureOptions, out: W) -> io::Result<PcapNgWriter<W>> {
    let section = SectionHeaderBlock {
        options: vec![
            SectionHeaderOption::Comment(Cow::Owned(options.head.line())),
            SectionHeaderOption::UserApplication(Cow::Borrowed("kuroshio testbed capture")),
        ],
        ..SectionHeaderBlock::default()
    };
    let mut file = PcapNgWriter::with_section_header(out, section).map_err(failed)?;
    let mut about = vec![
        InterfaceDescriptionOption::IfName(Cow::Borrowed(options.name.as_str())),
        InterfaceDescriptionOption::IfTsResol(9),
    ];
    let filter = options.filter.to_string();
    if !filter.is_empty() {
        // The first byte 0 says that the filter is text.
        let text = [&[0], filter.as_bytes()].concat();
        about.push(InterfaceDescriptionOption::IfFilter(Cow::Owned(text)));
    }
    file.write_pcapng_block(InterfaceDescriptionBlock {
        linktype: DataLink::ETHERNET,
        snaplen: u32::try_from(options.snaplen).unwrap_or(u32::MAX),
        options: about,
    })
    .map_err(failed)?;
    Ok(file)
}

fn packet<'a>(options: &CaptureOptions, frame: &CapturedFrame<'a>) -> EnhancedPacketBlock<'a> {
    let of_day = i128::from(frame.t_ns) + i128::from(options.head.realtime_minus_monotonic_ns);
    let kept = frame.bytes.get(..options.snaplen).unwrap_or(frame.bytes);
    let direction = match frame.direction {
        Direction::In => 1,
        Direction::Out => 2,
    };
    EnhancedPacketBlock {
        interface_id: 0,
        timestamp: Duration::from_nanos(u64::try_from(of_day).unwrap_or(0)),
        original_len: u32::try_from(frame.len).unwrap_or(u32::MAX),
        data: Cow::Borrowed(kept),
        options: vec![EnhancedPacketOption::Flags(direction)],
    }
}
