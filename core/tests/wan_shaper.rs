//! Shaped streams: never above their rates, alone and in sum, in any window longer than a frame.

use kuroshio_core::pace::Spacing;
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, PicoTime};
use kuroshio_core::wan::{
    Cargo, Shaper, ShaperConfig, Stage, StreamFilter, StreamShape, StreamShaper, StreamShaperConfig,
};
use kuroshio_core::wire::{FlowKey, LineRate, PREAMBLE, PROTOCOL_UDP, Packet};
use proptest::prelude::*;

/// A frame of a stream, told by its destination port; of none for 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token {
    stream: u16,
}

impl Cargo for Token {
    fn packet(&self) -> Option<Packet> {
        let mut frame = vec![0u8; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&46u16.to_be_bytes());
        frame[23] = PROTOCOL_UDP;
        frame[36..38].copy_from_slice(&(5_000 + self.stream).to_be_bytes());
        frame[38..40].copy_from_slice(&26u16.to_be_bytes());
        kuroshio_core::wire::packet_of(&frame)
    }
}

/// Start of a frame, its bytes, its stream.
type Start = (PicoTime, u64, u16);

/// No window of `starts` holds more than the rate's share and `slack` frames of the largest size.
fn bounded(starts: &[Start], rate_bps: u64, slack: u64) -> Result<(), TestCaseError> {
    let largest = starts.iter().map(|s| s.1).max().unwrap_or(0);
    // room(j) = rate * start(j) - 8e12 * bytes before j must never fall below an earlier one by more than the
    // slack allows: one frame is the window's last, which is in it whole.
    let (mut highest, mut before) = (i128::MIN, 0i128);
    for (at, len, _) in starts {
        let room = i128::from(rate_bps) * i128::from(at.as_ps()) - before;
        highest = highest.max(room);
        let allowed = i128::from(slack - 1) * i128::from(largest) * 8_000_000_000_000;
        // Starts are rounded down to whole ps.
        prop_assert!(
            room + allowed + i128::from(rate_bps) >= highest,
            "above {rate_bps} bit/s at {at}"
        );
        before += i128::from(*len) * 8_000_000_000_000;
    }
    Ok(())
}

fn run<S: Stage<Token>>(stage: &mut S, line: LineRate, arrivals: &[Start], lazy: bool) -> Vec<Start> {
    let mut out = Vec::new();
    let mut take = |stage: &mut S, until| {
        while let Some(d) = stage.poll(until) {
            // The start of its preamble, exact where a byte of the line is whole ps.
            let own = line.bit_rate().time_for(PREAMBLE + d.len.get());
            out.push((d.at - own, d.len.get(), d.token.stream));
        }
    };
    for (at, len, stream) in arrivals {
        if !lazy {
            take(stage, *at);
        }
        let _ = stage.handle_frame(*at, FrameBytes::new(*len), Token { stream: *stream });
    }
    take(stage, PicoTime::MAX);
    out
}

fn shape(stream: u16, rate: BitRate) -> StreamShape {
    StreamShape {
        filter: format!("udp dst port {}", 5_000 + stream)
            .parse()
            .expect("a filter"),
        spacing: Spacing::Rate(rate),
        queue_limit: FrameBytes::new(1 << 20),
    }
}

fn arrivals() -> impl Strategy<Value = Vec<Start>> {
    let frame = (0u64..30_000_000, 64u64..9_019, 0u16..4);
    prop::collection::vec(frame, 1..300).prop_map(|frames| {
        let mut now = PicoTime::ZERO;
        let add = |(idle, len, stream)| {
            // Bursts as often as pauses.
            now += PicoDuration::from_ps(if idle % 2 == 0 { 0 } else { idle });
            (now, len, stream)
        };
        frames.into_iter().map(add).collect()
    })
}

proptest! {
    #[test]
    fn streams_and_their_sum_keep_their_rates(
        arrivals in arrivals(),
        rates in prop::array::uniform3(1u32..600),
        ceiling in 50u32..1_000,
    ) {
        let line = LineRate::GIGABIT;
        let rates = rates.map(BitRate::from_mbps);
        let config = |ceiling: Option<BitRate>| StreamShaperConfig {
            line,
            streams: (1..=3).zip(rates).map(|(n, rate)| shape(n, rate)).collect(),
            ceiling: ceiling.map(Spacing::Rate),
            rest_queue_limit: FrameBytes::new(1 << 20),
        };
        for ceiling in [Some(BitRate::from_mbps(ceiling)), None] {
            let mut shaper = StreamShaper::new(config(ceiling));
            let starts = run(&mut shaper, line, &arrivals, false);
            for (stream, rate) in (1..=3).zip(rates) {
                let own: Vec<Start> = starts.iter().copied().filter(|s| s.2 == stream).collect();
                bounded(&own, rate.bps(), 1)?;
                // In their order.
                if shaper.counters().queue_full.frames == 0 {
                    let sent: Vec<u64> = arrivals.iter().filter(|a| a.2 == stream).map(|a| a.1).collect();
                    prop_assert_eq!(own.iter().map(|s| s.1).collect::<Vec<_>>(), sent);
                }
            }
            let most = ceiling.map_or(1_000_000_000, BitRate::bps);
            bounded(&starts, most, 1)?;
            if ceiling.is_none() {
                let streams: Vec<Start> = starts.iter().copied().filter(|s| s.2 != 0).collect();
                bounded(&streams, rates.iter().map(|r| r.bps()).sum(), 3)?;
            }
            // How often it is asked changes nothing, and nothing is lost but by full queues.
            prop_assert_eq!(&run(&mut StreamShaper::new(config(ceiling)), line, &arrivals, true), &starts);
            let counters = shaper.counters();
            prop_assert_eq!(counters.held.frames, 0);
            prop_assert_eq!(counters.arrived.frames, counters.departed.frames + counters.queue_full.frames);
        }
    }

    /// Ports that are shaped apart and meet at a router: the sum is that of the rates, and a frame of each.
    #[test]
    fn ports_that_meet_keep_the_sum_of_their_rates(
        arrivals in arrivals(),
        rates in prop::array::uniform4(1u32..900),
    ) {
        let mut all = Vec::new();
        for (port, rate) in (0u16..).zip(rates) {
            let rate = BitRate::from_mbps(rate);
            let mut shaper = Shaper::new(ShaperConfig {
                line: LineRate::GIGABIT,
                spacing: Spacing::Rate(rate),
                queue_limit: FrameBytes::new(8 << 20),
            });
            let own: Vec<Start> = arrivals.iter().copied().filter(|a| a.2 == port).collect();
            let starts = run(&mut shaper, LineRate::GIGABIT, &own, false);
            bounded(&starts, rate.bps(), 1)?;
            all.extend(starts);
        }
        all.sort_by_key(|s| s.0);
        bounded(&all, rates.iter().map(|r| u64::from(*r) * 1_000_000).sum(), 4)?;
    }
}

#[test]
fn the_bound_can_fail() {
    let at = |us, len| (PicoTime::from_us(us), len, 1);
    // 1250 bytes every 100 us are 100 Mbps.
    let even: Vec<Start> = (0..10).map(|n| at(n * 100, 1_250)).collect();
    assert!(bounded(&even, 100_000_000, 1).is_ok());
    assert!(bounded(&even, 99_000_000, 1).is_err());
    assert!(bounded(&[at(0, 1_250), at(50, 1_250), at(100, 1_250)], 100_000_000, 1).is_err());
    assert!(bounded(&[at(0, 1_250), at(50, 1_250)], 100_000_000, 2).is_ok());
}

#[test]
fn a_stream_that_waits_does_not_hold_another() {
    let config = StreamShaperConfig {
        line: LineRate::GIGABIT,
        streams: vec![shape(1, BitRate::from_mbps(1)), shape(2, BitRate::from_mbps(500))],
        ceiling: None,
        rest_queue_limit: FrameBytes::new(1 << 20),
    };
    let frames = [1, 1, 2, 2, 0].map(|stream| (PicoTime::ZERO, 1_518, stream));
    let mut shaper = StreamShaper::new(config);
    let starts = run(&mut shaper, LineRate::GIGABIT, &frames, false);
    // The wire takes 1538 bytes a frame. Stream 2 owns 3036: it is ready at 36.592 us, behind the rest at 36.912.
    // Stream 1 comes back after 12.144 ms.
    let got: Vec<(u64, u16)> = starts.iter().map(|s| (s.0.as_ns(), s.2)).collect();
    assert_eq!(
        got,
        [(0, 1), (12_304, 2), (24_608, 0), (36_912, 2), (12_144_000, 1)]
    );
}

#[test]
fn filters_are_read_and_refused() {
    let flow = FlowKey {
        protocol: PROTOCOL_UDP,
        source: "10.0.0.1".parse().expect("an address"),
        destination: "fd00::2".parse().expect("an address"),
        source_port: 7,
        destination_port: 5_001,
    };
    let takes = |text: &str| text.parse::<StreamFilter>().map(|f| f.takes(&flow)).ok();
    assert_eq!(takes("udp dst port 5001"), Some(true));
    assert_eq!(takes("src 10.0.0.1 and dst fd00::2 and src port 7"), Some(true));
    assert_eq!(takes("tcp"), Some(false));
    assert_eq!(takes("src port 5001"), Some(false));
    for bad in [
        "",
        "and",
        "port 5001",
        "dst port 65536",
        "dst port +5",
        "src",
        "udp tcp",
        "dst host 1.2.3.4",
    ] {
        assert_eq!(takes(bad), None, "{bad}");
    }
    let error = "dst port".parse::<StreamFilter>().err().map(|e| e.to_string());
    assert!(error.is_some_and(|e| e.contains("src port N")));
}
