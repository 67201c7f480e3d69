//! Congestion controls against their published response functions, and against traces by hand.
//!
//! The harness is the model under which the papers derive those functions: a window of segments a round
//! trip, every segment acknowledged alone, exactly one loss after every N segments, and the window goes to
//! the threshold at once.

use kuroshio_core::{
    tcp::{
        Counting, Window,
        cc::{
            Acked, Algorithm, Bic, CongestionControl, Cubic, Fast, HighSpeed, Htcp, Reno, Scalable,
            cube_root, decrease_256ths, increase_segments,
        },
    },
    units::{PicoDuration, PicoTime},
};
use proptest::prelude::*;

const RTT: PicoDuration = PicoDuration::from_ms(100);

fn acked(now: PicoTime, number: u64, window: &Window) -> Acked {
    Acked {
        now,
        segments: 1,
        acked_to: number,
        sent_to: number + u64::from(window.cwnd),
        rtt: Some(RTT),
        least_rtt: Some(RTT),
        smoothed_rtt: Some(RTT),
        open: true,
    }
}

/// The mean window over round trips, with one loss after every `per_loss` segments.
fn mean_window(control: &mut impl CongestionControl, per_loss: u64, losses: u64) -> f64 {
    let mut window = Window::new(10, 1 << 22, Counting::PerSegment);
    control.init(&mut window);
    window.ssthresh = 100;
    let (mut now, mut number) = (PicoTime::ZERO, 0u64);
    let (mut rounds, mut segments, mut seen, mut since) = (0u64, 0u64, 0u64, 0u64);
    while seen < losses {
        // One round trip: the ACKs are spread over it.
        let in_round = window.cwnd;
        let mut lost = false;
        for i in 0..in_round {
            number += 1;
            since += 1;
            let at = now + PicoDuration::from_ps(RTT.as_ps() / u64::from(in_round) * u64::from(i));
            let ack = acked(at, number, &window);
            control.measured(&mut window, &ack);
            control.increase(&mut window, &ack);
            lost |= since >= per_loss;
            if since >= per_loss {
                since = 0;
            }
        }
        // The first half of the losses brings it into its cycle.
        if seen >= losses / 2 {
            rounds += 1;
            segments += u64::from(in_round);
        }
        now += RTT;
        if lost {
            seen += 1;
            window.ssthresh = control.threshold(&window, now);
            window.cwnd = window.ssthresh;
            window.counter = 0;
        }
    }
    segments as f64 / rounds as f64
}

fn assert_near(got: f64, wanted: f64, share: f64) {
    assert!(
        (got / wanted - 1.0).abs() <= share,
        "{got:.1} segments, published {wanted:.1}: off by {:.1} %",
        (got / wanted - 1.0) * 100.0
    );
}

#[test]
fn reno_follows_the_square_root_of_the_loss_ratio() {
    for per_loss in [1_000u64, 10_000, 100_000] {
        let wanted = 1.5f64.sqrt() * (per_loss as f64).sqrt();
        assert_near(mean_window(&mut Reno, per_loss, 60), wanted, 0.06);
    }
}

#[test]
fn highspeed_follows_rfc_3649() {
    for per_loss in [100_000u64, 1_000_000] {
        let wanted = 0.12 * (per_loss as f64).powf(0.835);
        assert_near(mean_window(&mut HighSpeed::new(), per_loss, 60), wanted, 0.1);
    }
}

#[test]
fn scalable_is_proportional_to_the_inverse_of_the_loss_ratio() {
    for per_loss in [10_000u64, 100_000] {
        // RFC 3649, section 9; by the constants exactly: a mean of 0.9375 W over 100 ln(8/7) rounds.
        assert_near(
            mean_window(&mut Scalable, per_loss, 60),
            0.08 * per_loss as f64,
            0.1,
        );
    }
}

#[test]
fn cubic_follows_rfc_9438() {
    // Section 5.1: (C (3 + b) / (4 (1 - b)))^(1/4) (RTT / p)^(3/4), with b = 717/1024 and C = 0.4.
    let b = 717.0 / 1024.0;
    for per_loss in [100_000u64, 1_000_000] {
        let base = 0.4 * (3.0 + b) / (4.0 * (1.0 - b));
        let wanted = f64::powf(base, 0.25) * (0.1 * per_loss as f64).powf(0.75);
        assert_near(mean_window(&mut Cubic::new(false), per_loss, 60), wanted, 0.1);
    }
}

#[test]
fn highspeeds_table_is_the_formula_of_rfc_3649() {
    for cwnd in [118u32, 1_058, 5_036, 13_614, 38_992, 84_035] {
        let w = f64::from(cwnd);
        let b = 0.5 - 0.4 * (w / 38.0).ln() / (83_000.0f64 / 38.0).ln();
        let p = 0.078 / w.powf(1.2);
        let a = w * w * p * 2.0 * b / (2.0 - b);
        assert!(
            (f64::from(decrease_256ths(cwnd)) / 256.0 - b).abs() < 0.006,
            "b({cwnd})"
        );
        // A row is the largest window of its step.
        assert!(
            (f64::from(increase_segments(cwnd)) - a).abs() < 0.35,
            "a({cwnd}) = {a}"
        );
    }
    assert_eq!((increase_segments(38), increase_segments(39)), (1, 2));
    assert_eq!(increase_segments(1 << 22), 72);
}

/// Acknowledges one window at a time.
fn round(control: &mut impl CongestionControl, window: &mut Window, now: PicoTime) {
    for number in 0..u64::from(window.cwnd) {
        let ack = acked(now, number, window);
        control.measured(window, &ack);
        control.increase(window, &ack);
    }
}

#[test]
fn bic_searches_as_its_module_does() {
    let mut bic = Bic::new(32);
    let mut window = Window::new(2, 1 << 22, Counting::PerAck);
    bic.init(&mut window);
    assert_eq!(window.ssthresh, 100, "initial_ssthresh");
    window.cwnd = 1_000;
    // beta 819 / 1024.
    assert_eq!(bic.threshold(&window, PicoTime::ZERO), 799);
    assert_eq!(bic.last_max(), 1_000);
    // A loss below the last maximum gives room: 900 * (1024 + 819) / 2048.
    window.cwnd = 900;
    assert_eq!(bic.threshold(&window, PicoTime::ZERO), 719);
    assert_eq!(bic.last_max(), 809);
    // Low windows are halved.
    window.cwnd = 14;
    assert_eq!(bic.threshold(&window, PicoTime::ZERO), 7);
}

#[test]
fn bic_is_linear_far_from_its_maximum_and_slow_near_it() {
    let mut bic = Bic::new(32);
    let mut window = Window::new(2, 1 << 22, Counting::PerAck);
    bic.init(&mut window);
    window.cwnd = 10_000;
    window.ssthresh = bic.threshold(&window, PicoTime::ZERO);
    // The estimate of segments per ACK, in 16ths, begins at 32 and stops at 31 for one segment an ACK:
    // 31 >> 4 is 1. So every step is 31/16 of what it would be, as in the kernel.
    let settled = |bic: &mut Bic, window: &mut Window| {
        for number in 0..200 {
            let ack = acked(PicoTime::ZERO, number, window);
            bic.measured(window, &ack);
        }
    };
    settled(&mut bic, &mut window);
    let growth = |bic: &mut Bic, cwnd: u32| {
        let mut window = window;
        window.cwnd = cwnd;
        window.ssthresh = 2;
        window.counter = 0;
        let now = PicoTime::from_secs(u64::from(cwnd));
        for number in 0..u64::from(cwnd) {
            let ack = acked(now, number, &window);
            bic.increase(&mut window, &ack);
        }
        window.cwnd - cwnd
    };
    // Far below: max_increment 32 a round trip, times 31/16, less what a count that is one late takes.
    let far = growth(&mut bic, 8_000);
    assert!((60..=62).contains(&far), "{far}");
    // 80 below the maximum: a quarter of what is left at each step, 80 (1 - exp(-31/64)) = 30.7.
    let near = growth(&mut bic, 9_920);
    assert!((29..=31).contains(&near), "{near}");
    // At the maximum: one in five round trips.
    assert_eq!(growth(&mut bic, 9_998), 0);
    // Far above: 32 again.
    let above = growth(&mut bic, 11_000);
    assert!((60..=62).contains(&above), "{above}");
}

#[test]
fn htcp_speeds_up_with_the_time_since_the_last_loss() {
    let mut htcp = Htcp::new();
    let mut window = Window::new(1_000, 1 << 22, Counting::PerSegment);
    window.ssthresh = 500;
    // RTT 100 ms: no scaling. After 3 s: factor 1 + 10 * 2 + 1 = 22, a = 2 (1 - 0.5) 22 = 22.
    for second in 1..=3u64 {
        round(&mut htcp, &mut window, PicoTime::from_secs(second));
    }
    assert_eq!(htcp.beta_128ths(), 64);
    assert_eq!(htcp.alpha_128ths(), 22 * 128);
    // Right after a loss it is Reno's.
    window.ssthresh = htcp.threshold(&window, PicoTime::from_secs(4));
    assert_eq!(window.ssthresh, window.cwnd / 2);
    window.cwnd = window.ssthresh;
    for ms in 1..=5 {
        round(&mut htcp, &mut window, PicoTime::from_ms(4_000 + 100 * ms));
    }
    assert_eq!(htcp.alpha_128ths(), 128);
}

#[test]
fn fast_keeps_alpha_segments_in_queues() {
    // A path of 1000 segments and a queue: RTT = 100 ms * max(1, cwnd / 1000).
    for alpha in [20u32, 200] {
        let mut fast = Fast::new(alpha);
        let mut window = Window::new(2, 1 << 22, Counting::PerSegment);
        let (mut number, mut now) = (0, PicoTime::ZERO);
        for _ in 0..400 {
            let rtt = RTT.as_ps() * u64::from(window.cwnd.max(1_000)) / 1_000;
            let mut ack = acked(now, number, &window);
            ack.rtt = Some(PicoDuration::from_ps(rtt));
            fast.measured(&mut window, &ack);
            number = ack.sent_to;
            now += PicoDuration::from_ps(rtt);
        }
        let queued = window.cwnd - 1_000;
        assert!(queued.abs_diff(alpha) <= 2, "{queued} of {alpha}");
    }
}

#[test]
fn names_are_read_back() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse(), Ok(algorithm));
        assert_eq!(algorithm.name().to_uppercase().parse(), Ok(algorithm));
    }
    let unknown = "bbr".parse::<Algorithm>().expect_err("not there");
    assert!(unknown.to_string().contains("reno, bic, cubic"), "{unknown}");
}

proptest! {
    #[test]
    fn a_cube_root_is_rounded_down(value: u64) {
        let root = u128::from(cube_root(value));
        prop_assert!(root.pow(3) <= u128::from(value));
        prop_assert!((root + 1).pow(3) > u128::from(value));
    }
}

/// What a step of a control leaves: ACKs for one segment more, the target and the threshold after a loss.
fn step(control: &mut impl CongestionControl, cwnd: u32) -> (u32, u32, u32) {
    let mut window = Window::new(cwnd, 1 << 22, Counting::PerSegment);
    window.ssthresh = 1;
    let mut acks = 0;
    while window.cwnd == cwnd {
        let ack = acked(PicoTime::ZERO, u64::from(acks), &window);
        control.increase(&mut window, &ack);
        acks += 1;
    }
    window.cwnd = cwnd;
    let left = control.threshold(&window, PicoTime::ZERO);
    (acks, control.target().unwrap_or(cwnd), left)
}

#[test]
fn steps_are_those_of_the_kernels_modules() {
    let mut lines = include_str!("../vectors/congestion.csv").lines();
    let header =
        "algorithm,max_increment,last_max,cwnd,acks_for_one_more,target_after_loss,ssthresh_after_loss";
    assert_eq!(lines.next(), Some(header));
    let mut count = 0;
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let numbers: Vec<u32> = fields[1..].iter().map(|f| f.parse().expect("a number")).collect();
        let [most, last_max, cwnd, acks, target, left] = numbers[..] else {
            panic!("{line}: seven fields");
        };
        let got = match fields[0] {
            "bic" => {
                let mut bic = Bic::new(most);
                // A loss at the last maximum is what sets it.
                bic.threshold(
                    &Window::new(last_max, 1 << 22, Counting::PerSegment),
                    PicoTime::ZERO,
                );
                step(&mut bic, cwnd)
            }
            "scalable" => step(&mut Scalable, cwnd),
            "reno" => step(&mut Reno, cwnd),
            other => panic!("{other}: no such control here"),
        };
        assert_eq!(got, (acks, target, left), "{line}");
        count += 1;
    }
    assert!(count > 400, "vectors are missing");
}
