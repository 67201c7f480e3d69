//! `plb-global --sim`: every datagram of the video through both ends of a bundle, in virtual time.
//!
//! ```text
//!   Pattern -> Packetizer, Schedule (as `netv send`) -> [Pair: bundle, two links, bundle]  -> Assembler -> Display
//!                                                    or [a link for each half]
//! ```

use std::rc::Rc;

use kuroshio_core::lane::trial::{FarClock, Pair, TrialLane};
use kuroshio_core::lane::{BundleConfig, Load, Mode as BundleMode};
use kuroshio_core::meter::Histogram;
use kuroshio_core::units::{FrameBytes, PicoDuration, PicoTime};
use kuroshio_core::video::{Assembler, Cursor, Geometry, Packetizer};
use kuroshio_core::wan::{Cargo, Stage, WanLink};
use kuroshio_netv::{Display, PAYLOAD_TYPE, Pattern, Schedule};
use serde_json::json;

use super::global::{Apart, BELOW_BYTES, DELAYS_MS, MTU, RATE, Seen, Settings, TUNNEL_BYTES, result};
use super::{About, Made, RailsError, Request, failed, setting};
use crate::experiment::Mode;

/// What the play-out may hold: 150 ms of one lane at full size is 56 MB, and as much again.
const HOLD_BYTES: u64 = 256 << 20;
/// The video begins so long after the lanes.
const LEAD: PicoDuration = PicoDuration::from_secs(2);
/// What may still come after the last picture.
const TAIL: PicoDuration = PicoDuration::from_secs(1);
const CLOCK: FarClock = FarClock {
    offset: PicoDuration::from_secs(3),
    drift_ppb: 15_000,
};
const SEED: u64 = 11;
/// Seconds of video between two lines of progress.
const TELL_S: u64 = 10;

/// A datagram of a half.
#[derive(Debug, Clone)]
struct Parcel {
    part: usize,
    bytes: Rc<[u8]>,
}

impl Load for Parcel {
    fn len_bytes(&self) -> u64 {
        (self.bytes.len() + BELOW_BYTES) as u64
    }
}

impl Cargo for Parcel {
    fn copy(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// What is between sender and screen.
enum Network {
    Bundle(Box<Pair<Parcel>>),
    Apart(Box<[WanLink<Parcel>; 2]>),
}

impl Network {
    fn enter(&mut self, now: PicoTime, parcel: Parcel, refused: &mut u64) {
        let taken = match self {
            Self::Bundle(pair) => pair.enter_near(now, parcel),
            Self::Apart(lanes) => {
                let frame = FrameBytes::new(parcel.len_bytes() + 18);
                lanes[parcel.part].handle_frame(now, frame, parcel).is_ok()
            }
        };
        *refused += u64::from(!taken);
    }

    fn run(&mut self, now: PicoTime, mut arrived: impl FnMut(Parcel)) {
        match self {
            Self::Bundle(pair) => {
                pair.run(now);
                while let Some((_, delivery)) = pair.at_far.pop_front() {
                    arrived(delivery.packet);
                }
            }
            Self::Apart(lanes) => {
                for lane in lanes.iter_mut() {
                    while let Some(departure) = lane.poll(now) {
                        arrived(departure.token);
                    }
                }
            }
        }
    }

    fn next_wakeup(&self) -> PicoTime {
        match self {
            Self::Bundle(pair) => pair.next_wakeup(),
            Self::Apart(lanes) => lanes
                .iter()
                .filter_map(Stage::next_wakeup)
                .min()
                .unwrap_or(PicoTime::MAX),
        }
    }
}

/// One half's sender.
struct Half {
    packetizer: Packetizer,
    schedule: Schedule,
    cursor: Cursor,
    number: u64,
    picture: Vec<u8>,
    pattern: Pattern,
    /// The datagram that leaves next, and when.
    next: Option<(PicoTime, Rc<[u8]>)>,
}

impl Half {
    fn new(geometry: Geometry, index: u32, datagram: usize) -> Result<Self, RailsError> {
        let (part, _) = geometry.part(index, 2).map_err(|e| failed("a half")(&e))?;
        let packetizer = Packetizer::new(part, datagram, PAYLOAD_TYPE, index + 1, 0);
        let schedule = Schedule::new(&packetizer, RATE, false).map_err(|e| failed("the schedule")(&e))?;
        let pattern = Pattern::new(part, 1);
        let mut picture = Vec::new();
        pattern.draw(0, &mut picture);
        Ok(Self {
            packetizer,
            schedule,
            cursor: Cursor::default(),
            number: 0,
            picture,
            pattern,
            next: None,
        })
    }

    /// Makes the next datagram of up to `pictures` pictures ready.
    fn fill(&mut self, pictures: u64) {
        while self.next.is_none() && self.number < pictures {
            let mut bytes = Vec::new();
            let stamp = self.schedule.stamp(self.number);
            let len = self
                .packetizer
                .append(&mut self.cursor, stamp, &self.picture, &mut bytes);
            if len > 0 {
                let at = PicoTime::ZERO + LEAD + (self.schedule.place(self.number, len) - PicoTime::ZERO);
                self.next = Some((at, bytes.into()));
                return;
            }
            self.number += 1;
            self.cursor = Cursor::default();
            self.pattern.draw(self.number, &mut self.picture);
        }
    }
}

/// The receiving side.
struct Screen {
    assemblers: [Assembler; 2],
    display: Display,
    spread: Histogram,
    /// What it showed when it showed the last picture: what comes later is put on the screen of no picture.
    last: (u64, Vec<u8>),
}

impl Screen {
    fn new(geometry: Geometry, pictures: u64) -> Result<Self, RailsError> {
        let half = |i| {
            geometry
                .part(i, 2)
                .map(|(part, _)| part)
                .map_err(|e| failed("a half")(&e))
        };
        Ok(Self {
            assemblers: [half(0)?, half(1)?].map(|part| Assembler::new(part, PAYLOAD_TYPE)),
            display: Display::new(geometry, 2, Settings::wait()).map_err(|e| failed("the screen")(&e))?,
            spread: Histogram::new(),
            last: (pictures, Vec::new()),
        })
    }

    fn take(&mut self, now: PicoTime, parcel: &Parcel) {
        // What is refused is counted by the assembler.
        if let Ok(Some(whole)) = self.assemblers[parcel.part].handle(now, &parcel.bytes) {
            self.display.handle_part(parcel.part, whole);
        }
    }

    fn show(&mut self, now: PicoTime) {
        while let Some(shown) = self.display.poll(now) {
            if !shown.is_torn() {
                self.spread.record(shown.spread.as_ns());
            }
            let counts = self.display.counts();
            if counts.whole + counts.torn == self.last.0 {
                self.last.1 = self.display.picture().to_vec();
            }
        }
    }
}

pub(super) fn run(about: &About, request: &Request, say: &mut dyn FnMut(&str)) -> Result<Made, RailsError> {
    let settings = Settings::of(request, (3_840, 2_160))?;
    let with = video(&settings, true, say)?;
    let without = video(&settings, false, say)?;
    let more = vec![
        setting(
            "tunnel",
            "mode deskew, margin 2 ms, no guard (the video is not TCP), 256 MiB of play-out",
            "ours: the defaults, but for what 150 ms of a lane need",
        ),
        setting("clocks", "3 s apart, 15 ppm of drift", "ours"),
        setting("begin", "the video begins 2 s after the lanes", "ours"),
    ];
    let mut made = result(about, Mode::Sim, &settings, more, &with, &without)?;
    made.result.seed = SEED;
    made.result
        .notes
        .push("Virtual time: every datagram of the video, with its bytes, is in it.".into());
    Ok(made)
}

fn network(settings: &Settings, deskewed: bool) -> Result<Network, RailsError> {
    let lanes = DELAYS_MS.map(|ms| TrialLane::new(settings.lane, PicoDuration::from_ms(ms)));
    if !deskewed {
        let mut seed = SEED;
        return Ok(Network::Apart(Box::new(lanes.map(|lane| {
            seed += 1;
            WanLink::new(lane.path, seed)
        }))));
    }
    let mut config = BundleConfig::new(BundleMode::Deskew, &[settings.lane; 2]);
    config.guard = false;
    config.hold_bytes = HOLD_BYTES;
    let pair = Pair::new(&config, &lanes, CLOCK, SEED).map_err(|e| failed("the lanes")(&e))?;
    Ok(Network::Bundle(Box::new(pair)))
}

/// Sends the video and says what the screen saw.
fn video(settings: &Settings, deskewed: bool, say: &mut dyn FnMut(&str)) -> Result<Seen, RailsError> {
    let datagram = MTU - TUNNEL_BYTES - BELOW_BYTES;
    let half = |i| Half::new(settings.geometry, i, datagram);
    let (mut halves, mut screen) = (
        [half(0)?, half(1)?],
        Screen::new(settings.geometry, settings.pictures)?,
    );
    let mut network = network(settings, deskewed)?;
    let (mut now, mut refused, mut datagrams, mut told) = (PicoTime::ZERO, 0, 0u64, 0);
    let end = PicoTime::ZERO
        + LEAD
        + PicoDuration::from_ns(u64::try_from(settings.time.as_nanos()).unwrap_or(u64::MAX))
        + TAIL;
    while now < end {
        for (part, half) in halves.iter_mut().enumerate() {
            half.fill(settings.pictures);
            while let Some((at, bytes)) = half.next.take_if(|(at, _)| *at <= now) {
                network.enter(at, Parcel { part, bytes }, &mut refused);
                datagrams += 1;
                half.fill(settings.pictures);
            }
        }
        network.run(now, |parcel| screen.take(now, &parcel));
        screen.show(now);
        if now.as_ns() / 1_000_000_000 >= told + TELL_S {
            told += TELL_S;
            let name = if deskewed { "de-skewed" } else { "without" };
            say(&format!(
                "plb-global: {name}, {told} s of virtual time, {datagrams} datagrams"
            ));
        }
        let sending = halves
            .iter()
            .filter_map(|h| h.next.as_ref().map(|(at, _)| *at))
            .min();
        let showing = screen.display.next_wakeup();
        let next = [sending, showing]
            .into_iter()
            .flatten()
            .fold(network.next_wakeup(), PicoTime::min);
        now = next.min(end).max(now);
    }
    let counts = screen.assemblers.each_ref().map(Assembler::counts);
    Ok(Seen {
        counts: screen.display.counts(),
        apart: Apart::of(&screen.spread),
        picture: screen.last.1,
        more: json!({
            "datagrams": datagrams,
            "refused_by_the_network": refused,
            "parts": counts.map(|c| json!({ "whole": c.pictures, "incomplete": c.incomplete, "late_datagrams": c.late })),
        }),
    })
}
