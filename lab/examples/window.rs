//! The congestion window of a simulated sender that loses named data segments, once per 10 ms, in JSON:
//! `cargo run -p kuroshio-lab --example window -- CONTROL SECONDS RATE_MBPS ONE_WAY_DELAY_MS WINDOWS NTH...`
//!
//! ```text
//! core::tcp sender --> core::wan link (rate, delay, large queue) --> [n-th data segment is lost] --> receiver
//!                  <-------------------- the same link back --------------------
//! ```
//!
//! The counterpart of a run on the testbed with `lose = "flow 2 data N"`; a segment that is sent again counts
//! again. Today's stack (`Profile::MODERN`); the host's card is not modelled (1.2 us per frame at 10 Gbps).
//!
//! `WINDOWS` is how far the receiver opens its window: bytes, with commas, one for each 100 ms, the last one for the
//! rest. A receiver whose window still opens acknowledges every segment, one whose window is open every second,
//! and HighSpeed grows by acknowledgements; how far a kernel opens it is its receive buffer's tuning, which is
//! not modelled: the caller takes it from the kernel's own run.

use std::process::ExitCode;

use kuroshio_core::tcp::{
    IpVersion, Profile, Receiver, ReceiverConfig, Segment, Sender, SenderConfig, Sizes, cc::Algorithm,
};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio};
use kuroshio_core::wan::{Link, LinkConfig, Stage as _};
use kuroshio_core::wire::pad;
use serde_json::json;

/// Holds every window that such a run reaches.
const QUEUE: FrameBytes = FrameBytes::new(4 << 20);
const WINDOW: u64 = 256 << 20;
const SAMPLE_MS: u64 = 10;
const WINDOWS_MS: u64 = 100;
const SECONDS_MAX: u64 = 3_600;

struct Path {
    sender: Sender,
    receiver: Receiver,
    sizes: Sizes,
    there: Link<Segment>,
    back: Link<Segment>,
    lost: Vec<u64>,
    data: u64,
}

impl Path {
    fn new(control: Algorithm, rate_mbps: u32, delay_ms: u64, lost: Vec<u64>) -> Option<Self> {
        let sizes = Sizes::of_mtu(1_500, IpVersion::V4)?;
        let link = |seed| {
            let config = LinkConfig {
                capacity: BitRate::from_mbps(rate_mbps),
                wire: None,
                one_way_delay: PicoDuration::from_ms(delay_ms),
                queue_limit: QUEUE,
                loss: Ratio::ZERO,
            };
            Link::new(config, seed)
        };
        Some(Path {
            sender: Sender::new(SenderConfig::new(Profile::MODERN, control, sizes)),
            receiver: Receiver::new(ReceiverConfig {
                profile: Profile::MODERN,
                window: WINDOW,
                read_rate: None,
                memory: None,
                mss: sizes.mss,
            }),
            sizes,
            there: link(1),
            back: link(2),
            lost,
            data: 0,
        })
    }

    fn next(&self) -> Option<PicoTime> {
        let ends = [self.sender.next_wakeup(), self.receiver.next_wakeup()];
        let links = [self.there.next_wakeup(), self.back.next_wakeup()];
        ends.into_iter().chain(links).flatten().min()
    }

    /// Works off everything that is due at one moment.
    fn serve(&mut self, now: PicoTime) {
        while let Some(frame) = self.there.poll(now) {
            if frame.token.len > 0 {
                self.data += 1;
                if self.lost.contains(&self.data) {
                    continue;
                }
            }
            self.receiver.handle_segment(now, &frame.token);
        }
        while let Some(frame) = self.back.poll(now) {
            self.sender.handle_segment(now, &frame.token);
        }
        while let Some(segment) = self.sender.poll_transmit(now) {
            let _ = self
                .there
                .handle_frame(now, pad(self.sizes.frame(&segment)), segment);
        }
        while let Some(segment) = self.receiver.poll_transmit(now) {
            let _ = self
                .back
                .handle_frame(now, pad(self.sizes.frame(&segment)), segment);
        }
    }
}

fn run(mut path: Path, seconds: u64, offered: &[u64]) -> serde_json::Value {
    let mut samples = Vec::new();
    for sample in 1..=seconds * 1_000 / SAMPLE_MS {
        let begin_ms = (sample - 1) * SAMPLE_MS;
        let at = usize::try_from(begin_ms / WINDOWS_MS).unwrap_or(usize::MAX);
        if let Some(window) = offered.get(at).or(offered.last()) {
            path.receiver.set_window(*window);
        }
        let end = PicoTime::from_ms(sample * SAMPLE_MS);
        while let Some(now) = path.next().filter(|now| *now <= end) {
            path.serve(now);
        }
        let window = path.sender.window();
        let threshold = (window.ssthresh < u32::MAX / 2).then_some(window.ssthresh);
        samples.push(json!([sample * SAMPLE_MS, window.cwnd, threshold]));
    }
    let stats = path.sender.stats();
    json!({
        "ms_cwnd_ssthresh": samples,
        "resent_segments": stats.resent_segments,
        "timeouts": stats.timeouts,
        "queue_full_frames": path.there.counters().queue_full.frames,
    })
}

fn read(words: &[String]) -> Option<(Path, u64, Vec<u64>)> {
    let [control, seconds, rate_mbps, delay_ms, offered, lost @ ..] = words else {
        return None;
    };
    let offered = offered
        .split(',')
        .map(|n| n.parse().ok().filter(|n| *n <= WINDOW));
    let offered: Vec<u64> = offered.collect::<Option<_>>()?;
    let lost = lost.iter().map(|n| n.parse()).collect::<Result<Vec<u64>, _>>();
    let path = Path::new(
        control.parse().ok()?,
        rate_mbps.parse().ok().filter(|r| (1..=100_000).contains(r))?,
        delay_ms.parse().ok().filter(|d| *d <= 10_000)?,
        lost.ok()?,
    )?;
    let seconds = seconds.parse().ok().filter(|s| (1..=SECONDS_MAX).contains(s))?;
    Some((path, seconds, offered))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((path, seconds, offered)) = read(&words) else {
        eprintln!(
            "window: CONTROL SECONDS RATE_MBPS ONE_WAY_DELAY_MS WINDOWS NTH..., such as: bic 10 200 50 8000000 500 20000"
        );
        return ExitCode::from(2);
    };
    println!("{}", run(path, seconds, &offered));
    ExitCode::SUCCESS
}
