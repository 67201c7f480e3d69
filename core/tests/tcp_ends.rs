//! Sender and receiver, by hand and over random losses.

use std::collections::VecDeque;

use kuroshio_core::{
    tcp::{
        Block, IpVersion, Kind, LocalCongestion, Profile, Ranges, ReceiveMemory, Receiver, ReceiverConfig,
        RttEstimator, SackBlocks, Segment, Sender, SenderConfig, Sizes, State, cc::Algorithm,
    },
    units::{BitRate, PicoDuration, PicoTime},
};
use proptest::prelude::*;

const MSS: u64 = 1_448;

fn sizes() -> Sizes {
    Sizes::of_mtu(1_500, IpVersion::V4).expect("an MTU")
}

fn ms(ms: u64) -> PicoTime {
    PicoTime::from_ms(ms)
}

fn sender(profile: Profile, algorithm: Algorithm) -> SenderConfig {
    SenderConfig::new(profile, algorithm, sizes())
}

fn receiver(profile: Profile, window: u64) -> Receiver {
    Receiver::new(ReceiverConfig {
        profile,
        window,
        read_rate: None,
        memory: None,
        mss: MSS as u32,
    })
}

fn data(seq: u64) -> Segment {
    let mut segment = Segment::bare(Kind::Data, PicoTime::ZERO);
    segment.seq = seq * MSS;
    segment.len = MSS as u32;
    segment
}

/// An ACK up to a segment, SACKing others.
fn ack(to: u64, sacked: &[(u64, u64)]) -> Segment {
    let mut segment = Segment::bare(Kind::Ack, PicoTime::ZERO);
    segment.ack = to * MSS;
    segment.window = 1 << 30;
    let mut blocks = SackBlocks::NONE;
    for (start, end) in sacked {
        let fits = blocks.push(
            segment.ack,
            Block {
                start: start * MSS,
                end: end * MSS,
            },
        );
        assert!(fits);
    }
    segment.sack = blocks;
    segment
}

/// The numbers of the segments that the sender sends now.
fn burst(sender: &mut Sender, now: PicoTime) -> Vec<u64> {
    std::iter::from_fn(|| sender.poll_transmit(now))
        .map(|segment| segment.seq / MSS)
        .collect()
}

/// A connection that has been opened at 100 ms.
fn open(config: SenderConfig) -> Sender {
    let mut sender = Sender::new(config);
    assert_eq!(sender.poll_transmit(ms(0)).map(|s| s.kind), Some(Kind::Syn));
    assert_eq!(sender.poll_transmit(ms(0)), None);
    let mut answer = Segment::bare(Kind::SynAck, ms(50));
    answer.window = 65_535;
    sender.handle_segment(ms(100), &answer);
    sender
}

#[test]
fn sizes_are_those_of_the_figures() {
    for (mtu, ip, payload, frame) in [
        (1_500, IpVersion::V4, 1_448, 1_518),
        (6_000, IpVersion::V4, 5_948, 6_018),
        (9_000, IpVersion::V4, 8_948, 9_018),
        (1_500, IpVersion::V6, 1_428, 1_518),
    ] {
        let sizes = Sizes::of_mtu(mtu, ip).expect("an MTU");
        assert_eq!((u64::from(sizes.mss), sizes.full_frame().get()), (payload, frame));
    }
    assert_eq!(Sizes::of_mtu(52, IpVersion::V4), None);
}

#[test]
fn the_first_window_is_that_of_the_stack() {
    for (profile, segments) in [(Profile::LINUX_2_6_14, 3), (Profile::MODERN, 10)] {
        let mut sender = open(sender(profile, Algorithm::Reno));
        assert_eq!(burst(&mut sender, ms(100)), (0..segments).collect::<Vec<_>>());
    }
    assert_eq!(Profile::LINUX_2_6_14.initial_window(8_948), 2);
}

#[test]
fn slow_start_counts_acks_or_segments() {
    for (profile, grown) in [(Profile::LINUX_2_6_14, 4), (Profile::MODERN, 12)] {
        let mut sender = open(sender(profile, Algorithm::Reno));
        burst(&mut sender, ms(100));
        sender.handle_segment(ms(200), &ack(2, &[]));
        assert_eq!(sender.window().cwnd, grown, "{}", profile.name);
    }
}

/// Twenty segments sent; the first on the way is lost, three behind it are SACKed. Also the next segment.
fn with_a_gap(profile: Profile) -> (Sender, u64) {
    let mut sender = open(sender(profile, Algorithm::Reno));
    let mut next = burst(&mut sender, ms(100)).len() as u64;
    let mut acked = 0;
    while next < 20 {
        acked += 1;
        sender.handle_segment(ms(200), &ack(acked, &[]));
        next += burst(&mut sender, ms(200)).len() as u64;
    }
    assert_eq!(sender.state(), State::Open);
    let una = sender.acknowledged() / MSS;
    for sacked in 1..=3 {
        assert_eq!(sender.stats().resent_segments, 0, "{sacked}");
        sender.handle_segment(ms(300), &ack(una, &[(una + 1, una + 1 + sacked)]));
        if sacked < 3 {
            next += burst(&mut sender, ms(300)).len() as u64;
        }
    }
    (sender, next)
}

#[test]
fn three_segments_above_a_gap_are_a_loss() {
    for profile in Profile::ALL {
        let (mut sender, _) = with_a_gap(profile);
        assert_eq!(sender.state(), State::Recovery, "{}", profile.name);
        let una = sender.acknowledged() / MSS;
        assert_eq!(
            burst(&mut sender, ms(300)).first(),
            Some(&una),
            "{}",
            profile.name
        );
        assert_eq!(sender.stats().recoveries, 1);
    }
}

#[test]
fn recovery_ends_at_half_the_window() {
    let (mut sender, mut next) = with_a_gap(Profile::MODERN);
    let threshold = sender.window().ssthresh;
    let una = sender.acknowledged() / MSS;
    assert_eq!(burst(&mut sender, ms(300)).first(), Some(&una));
    for _ in 0..50 {
        sender.handle_segment(ms(310), &ack(una, &[(una + 1, next)]));
        // The retransmission counts as lost whenever what was sent after it arrives.
        let sent = burst(&mut sender, ms(310));
        next += sent.into_iter().filter(|number| *number >= next).count() as u64;
    }
    sender.handle_segment(ms(400), &ack(next, &[]));
    assert_eq!(sender.state(), State::Open);
    assert!(sender.window().cwnd >= threshold && sender.window().cwnd <= threshold + 1);
}

#[test]
fn the_first_segment_sent_again_has_all_its_time_again() {
    for profile in Profile::ALL {
        let (mut sender, _) = with_a_gap(profile);
        let before = sender.next_wakeup().expect("the timer runs");
        let una = sender.acknowledged() / MSS;
        assert_eq!(burst(&mut sender, ms(300)).first(), Some(&una));
        // It ran since the ACK at 200 ms.
        let after = sender.next_wakeup().expect("the timer runs");
        assert_eq!(after - before, PicoDuration::from_ms(100), "{}", profile.name);
    }
}

/// Linux `tcp_cwnd_reduction`: a segment for each that is delivered, two where the ACK also moves the left edge.
#[test]
fn far_below_the_threshold_only_progress_grows_the_window() {
    let mut sender = open(sender(Profile::MODERN, Algorithm::Reno));
    let mut next = burst(&mut sender, ms(100)).len() as u64;
    for acked in 1..=30 {
        sender.handle_segment(ms(200), &ack(acked, &[]));
        next += burst(&mut sender, ms(200)).len() as u64;
    }
    let (una, above) = (30, next - 8);
    for sacked in 1..=3 {
        sender.handle_segment(ms(300), &ack(una, &[(above, above + sacked)]));
    }
    assert_eq!(sender.state(), State::Recovery);
    let mut resent = burst(&mut sender, ms(300)).len();
    assert!(sender.in_flight() + 10 < sender.window().ssthresh);
    for sacked in 4..=8 {
        sender.handle_segment(ms(300), &ack(una, &[(above, above + sacked)]));
        let sent = burst(&mut sender, ms(300)).len();
        assert_eq!(sent, 1, "SACKed {sacked}");
        resent += sent;
    }
    assert!((resent as u64) < above - una, "something is left to send");
    sender.handle_segment(ms(400), &ack(una + 1, &[(above, next)]));
    assert_eq!(burst(&mut sender, ms(400)).len(), 2);
}

#[test]
fn rate_halving_never_goes_above_what_is_in_flight() {
    let (sender, _) = with_a_gap(Profile::LINUX_2_6_14);
    assert_eq!(sender.window().cwnd, sender.in_flight() + 1);
}

#[test]
fn silence_is_a_timeout_and_each_one_waits_twice_as_long() {
    let mut sender = open(sender(Profile::LINUX_2_6_14, Algorithm::Reno));
    burst(&mut sender, ms(100));
    // RTT 100 ms, variance 50: 100 + 4 * 50 after the handshake alone.
    let first = sender.next_wakeup().expect("a timer");
    assert_eq!(first, ms(100) + PicoDuration::from_ms(300));
    assert_eq!(burst(&mut sender, first), [0]);
    assert_eq!((sender.state(), sender.window().cwnd), (State::Loss, 1));
    let second = sender.next_wakeup().expect("a timer");
    assert_eq!(second, first + PicoDuration::from_ms(600));
    assert_eq!(burst(&mut sender, second), [0]);
    assert_eq!(sender.stats().timeouts, 2);
}

#[test]
fn a_full_interface_queue_reduces_the_window_unless_it_is_ignored() {
    for (local, state) in [
        (LocalCongestion::Reduce, State::Cwr),
        (LocalCongestion::Ignore, State::Open),
    ] {
        let mut config = sender(Profile::LINUX_2_6_14, Algorithm::Reno);
        config.local_congestion = local;
        let mut sender = open(config);
        let first = sender.poll_transmit(ms(100)).expect("a segment");
        let refused = sender.poll_transmit(ms(100)).expect("another");
        sender.handle_local_drop(ms(100), &refused);
        assert_eq!((first.seq, refused.seq), (0, MSS));
        assert_eq!(sender.state(), state);
        assert_eq!(burst(&mut sender, ms(101)), [] as [u64; 0], "until the next ACK");
        sender.handle_segment(ms(200), &ack(1, &[]));
        assert_eq!(burst(&mut sender, ms(200)).first(), Some(&1), "the same again");
        assert_eq!(sender.stats().resent_segments, 0);
        assert_eq!(sender.stats().local_drops, 1);
    }
}

#[test]
fn send_buffer_and_window_bound_what_is_on_the_way() {
    let mut config = sender(Profile::MODERN, Algorithm::Reno);
    config.send_buffer = 3 * MSS;
    assert_eq!(burst(&mut open(config), ms(100)), [0, 1, 2]);
    config.send_buffer = 3 * MSS - 1;
    assert_eq!(burst(&mut open(config), ms(100)), [0, 1]);
}

#[test]
fn paced_segments_are_a_frame_time_apart() {
    let mut config = sender(Profile::MODERN, Algorithm::Reno);
    config.pacing = kuroshio_core::tcp::Pacing::Rate(BitRate::from_mbps(1));
    let mut sender = open(config);
    let mut now = ms(100);
    let mut starts = Vec::new();
    for _ in 0..3 {
        assert_eq!(burst(&mut sender, now).len(), 1);
        starts.push(now);
        now = sender.next_wakeup().expect("the pacer's next");
    }
    // 1518 bytes at 1 Mbps.
    assert_eq!(starts[1] - starts[0], PicoDuration::from_us(12_144));
    assert_eq!(starts[2] - starts[1], PicoDuration::from_us(12_144));
}

#[test]
fn the_receiver_tells_the_newest_block_first() {
    let mut receiver = receiver(Profile::MODERN, 1 << 20);
    for seq in [0, 2, 4, 6] {
        receiver.handle_segment(ms(1), &data(seq));
    }
    let answer = receiver.poll_transmit(ms(1)).expect("an ACK");
    let blocks: Vec<_> = answer
        .sack
        .above(answer.ack)
        .map(|b| (b.start / MSS, b.end / MSS))
        .collect();
    assert_eq!(answer.ack, MSS);
    assert_eq!(blocks, [(6, 7), (4, 5), (2, 3)]);
    // The gap at 3 is filled: one block of three, newest.
    receiver.handle_segment(ms(2), &data(3));
    let answer = receiver.poll_transmit(ms(2)).expect("an ACK");
    let blocks: Vec<_> = answer
        .sack
        .above(answer.ack)
        .map(|b| (b.start / MSS, b.end / MSS))
        .collect();
    assert_eq!(blocks, [(2, 5), (6, 7)]);
    receiver.handle_segment(ms(3), &data(1));
    let answer = receiver.poll_transmit(ms(3)).expect("an ACK");
    assert_eq!(answer.ack, 5 * MSS);
}

#[test]
fn every_second_segment_is_acknowledged_once_the_window_is_open() {
    let mut profile = Profile::MODERN;
    profile.quick_acks = 0;
    // A window of four segments is open from the start.
    let mut receiver = receiver(profile, 4 * MSS);
    receiver.handle_segment(ms(1), &data(0));
    assert_eq!(receiver.poll_transmit(ms(1)), None);
    assert_eq!(receiver.next_wakeup(), Some(ms(41)));
    receiver.handle_segment(ms(2), &data(1));
    assert_eq!(receiver.poll_transmit(ms(2)).map(|a| a.ack), Some(2 * MSS));
    receiver.handle_segment(ms(3), &data(2));
    assert_eq!(receiver.poll_transmit(ms(42)), None);
    assert_eq!(receiver.poll_transmit(ms(43)).map(|a| a.ack), Some(3 * MSS));
}

#[test]
fn a_window_that_still_opens_is_acknowledged_at_once() {
    let mut profile = Profile::LINUX_2_6_14;
    profile.quick_acks = 0;
    let mut receiver = receiver(profile, 8 * MSS);
    let mut windows = Vec::new();
    for seq in 0..3 {
        receiver.handle_segment(ms(seq), &data(seq));
        windows.extend(receiver.poll_transmit(ms(seq)).map(|a| u64::from(a.window) / MSS));
    }
    // 4 at first, two more for each segment; the third finds it open.
    assert_eq!(windows, [6, 8]);
}

#[test]
fn todays_first_window_is_what_the_field_holds() {
    let mut sender = open(sender(Profile::MODERN, Algorithm::Reno));
    let mut receiver = receiver(Profile::MODERN, 1 << 24);
    receiver.handle_segment(ms(0), &Segment::bare(Kind::Syn, ms(0)));
    let answer = receiver.poll_transmit(ms(0)).expect("a SYN ACK");
    assert_eq!(answer.window, 65_535);
    sender.handle_segment(ms(100), &answer);
    assert_eq!(
        burst(&mut sender, ms(100)).len(),
        10,
        "the initial window is not cut"
    );
}

/// A receiver whose window is open, with 3/4 of a buffer as its window.
fn remembering(buffer: Option<u64>) -> Receiver {
    let mut receiver = Receiver::new(ReceiverConfig {
        profile: Profile::LINUX_2_6_14,
        window: 8 * MSS,
        read_rate: None,
        memory: buffer.map(|buffer| ReceiveMemory {
            buffer,
            per_segment: 2_000,
        }),
        mss: MSS as u32,
    });
    for seq in 0..4 {
        receiver.handle_segment(ms(seq), &data(seq));
        receiver.poll_transmit(ms(seq)).expect("an ACK at once");
    }
    receiver
}

#[test]
fn what_waits_above_a_gap_takes_memory_from_the_window() {
    let edge = |buffer: Option<u64>| {
        let mut receiver = remembering(buffer);
        // 4 and 6 are missing; then 4 comes.
        for seq in [5, 7, 8, 9, 10, 11, 4] {
            receiver.handle_segment(ms(10), &data(seq));
        }
        let ack = receiver.poll_transmit(ms(10)).expect("an ACK");
        assert_eq!(ack.ack, 6 * MSS);
        ack.ack + u64::from(ack.window)
    };
    // Five segments of 2000 bytes are held: 3/4 of the remaining 6000 are less than what was promised, which
    // stays: 8 segments above the fourth.
    assert_eq!(edge(Some(16_000)), (4 + 8) * MSS);
    // With much memory, or when none is counted, the window is whole.
    assert_eq!(edge(Some(160_000)), (6 + 8) * MSS);
    assert_eq!(edge(None), (6 + 8) * MSS);
}

#[test]
fn full_memory_is_copied_into_pages_and_closes_the_window() {
    let mut receiver = remembering(Some(100_000));
    // 51 segments of 2000 bytes are above the buffer; in pages of 3700 bytes they are 20 of 4272.
    for seq in 5..57 {
        receiver.handle_segment(ms(10), &data(seq));
    }
    assert_eq!((receiver.stats().collapses, receiver.stats().refused), (1, 0));
    // Until pages do not help either: 57 segments are 23 pages, 58 are 23, ...
    for seq in 57..200 {
        receiver.handle_segment(ms(11), &data(seq));
    }
    assert!(receiver.stats().refused > 100, "{:?}", receiver.stats());
    // All of it is read as soon as the gap is filled, and the window opens again from two segments.
    receiver.handle_segment(ms(12), &data(4));
    let ack = receiver.poll_transmit(ms(12)).expect("an ACK");
    assert!((57..100).contains(&(ack.ack / MSS)), "{}", ack.ack / MSS);
    assert_eq!(u64::from(ack.window), 4 * MSS);
}

#[test]
fn a_cut_says_where_the_window_was() {
    let mut sender = open(sender(Profile::LINUX_2_6_14, Algorithm::Bic));
    burst(&mut sender, ms(100));
    assert_eq!(sender.cuts(), (0, None));
    let timer = sender.next_timer().expect("a timer");
    sender.handle_timer(timer);
    let (count, cut) = sender.cuts();
    let cut = cut.expect("a cut");
    assert_eq!(
        (count, cut.at, cut.timeout, cut.in_slow_start),
        (1, timer, true, true)
    );
    assert_eq!((cut.ssthresh, cut.target), (2, cut.cwnd));
}

#[test]
fn a_slow_reader_closes_the_window_and_opens_it_again() {
    let mut receiver = Receiver::new(ReceiverConfig {
        profile: Profile::MODERN,
        window: 4 * MSS,
        // One segment in 10 ms.
        read_rate: BitRate::new(MSS * 800),
        memory: None,
        mss: MSS as u32,
    });
    let mut window = 0;
    for seq in 0..4 {
        receiver.handle_segment(ms(1), &data(seq));
        window = receiver.poll_transmit(ms(1)).map_or(window, |a| a.window);
    }
    assert_eq!(window, 0, "four segments wait to be read");
    let due = receiver.next_wakeup().expect("an update");
    // Two segments free: after 20 ms.
    assert!((20..=22).contains(&(due - ms(1)).as_ms()), "{due}");
    let update = receiver.poll_transmit(due).expect("an update");
    assert_eq!(u64::from(update.window) / MSS, 2);
}

#[test]
fn rtt_is_smoothed_as_rfc_6298_says() {
    let floor = PicoDuration::from_ms(200);
    let mut rtt = RttEstimator::new(PicoDuration::from_secs(3), floor);
    assert_eq!(rtt.rto(), PicoDuration::from_secs(3));
    rtt.sample(PicoDuration::from_ms(80));
    assert_eq!(
        rtt.rto(),
        PicoDuration::from_ms(80 + 200),
        "4 * 40 is below the floor"
    );
    rtt.sample(PicoDuration::from_ms(400));
    // variance 40 * 3/4 + 320 / 4 = 110, smoothed 80 * 7/8 + 50 = 120.
    assert_eq!(rtt.smoothed(), Some(PicoDuration::from_ms(120)));
    assert_eq!(rtt.rto(), PicoDuration::from_ms(120 + 440));
    rtt.back_off();
    assert_eq!(rtt.rto(), PicoDuration::from_ms(2 * 560));
}

/// Runs a transfer over a way of 20 ms that loses data and ACKs as `lost` says.
fn transfer(profile: Profile, algorithm: Algorithm, segments: u64, lost: &[bool]) -> (Sender, Receiver) {
    let mut config = sender(profile, algorithm);
    config.source_bytes = Some(segments * MSS - 100);
    let mut sender = Sender::new(config);
    let mut receiver = receiver(profile, 64 * MSS);
    let way = PicoDuration::from_ms(20);
    let (mut there, mut back) = (VecDeque::new(), VecDeque::new());
    let mut now = PicoTime::ZERO;
    let mut losses = lost.iter().copied();
    for _ in 0..100_000 {
        while let Some(segment) = sender.poll_transmit(now) {
            if !losses.next().unwrap_or(false) {
                there.push_back((now + way, segment));
            }
        }
        while let Some(segment) = receiver.poll_transmit(now) {
            if !losses.next().unwrap_or(false) {
                back.push_back((now + way, segment));
            }
        }
        if sender.finished() {
            break;
        }
        let front = |queue: &VecDeque<(PicoTime, Segment)>| queue.front().map(|(at, _)| *at);
        let next = [
            front(&there),
            front(&back),
            sender.next_wakeup(),
            receiver.next_wakeup(),
        ];
        let Some(next) = next.into_iter().flatten().min() else {
            break;
        };
        now = next;
        while let Some((_, segment)) = there.pop_front_if(|(at, _)| *at <= now) {
            receiver.handle_segment(now, &segment);
        }
        while let Some((_, segment)) = back.pop_front_if(|(at, _)| *at <= now) {
            sender.handle_segment(now, &segment);
        }
    }
    (sender, receiver)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is lost, everything arrives, once, in order.
    #[test]
    fn every_byte_arrives(
        modern: bool,
        algorithm in proptest::sample::select(&Algorithm::ALL[..]),
        segments in 1u64..300,
        lost in proptest::collection::vec(proptest::bool::weighted(0.1), 0..600),
    ) {
        let profile = if modern { Profile::MODERN } else { Profile::LINUX_2_6_14 };
        let (sender, receiver) = transfer(profile, algorithm, segments, &lost);
        prop_assert!(sender.finished(), "{:?} {:?}", sender.state(), sender.stats());
        prop_assert_eq!(receiver.stats().bytes, segments * MSS - 100);
        prop_assert_eq!(sender.in_flight(), 0);
    }

    #[test]
    fn ranges_are_a_set(operations in proptest::collection::vec((0u64..200, 1u64..20, 0u64..200), 1..60)) {
        let mut ranges = Ranges::new();
        let mut model = std::collections::BTreeSet::new();
        for (start, len, below) in operations {
            let mut fresh = Vec::new();
            ranges.insert(start, start + len, |from, to| fresh.extend(from..to));
            let wanted: Vec<u64> = (start..start + len).filter(|n| model.insert(*n)).collect();
            prop_assert_eq!(fresh, wanted);
            if below % 7 == 0 {
                ranges.forget_below(below);
                model.retain(|n| *n >= below);
            }
            let all: Vec<u64> = ranges.iter().flat_map(|(from, to)| from..to).collect();
            prop_assert!(all.iter().eq(model.iter()));
            prop_assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.1 < b.0));
        }
    }
}
