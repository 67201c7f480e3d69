//! The emulated link against closed forms, with fixed seeds and sample sizes at which a model that is off by a
//! few per cent fails. Floats are the judge's, not the link's.

use kuroshio_core::{
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio},
    wan::{LinkConfig, Stage, WanConfig, WanLink, setting},
};

/// Uniform numbers of the test's own, in (0, 1].
struct Uniform(u64);

impl Uniform {
    fn next(&mut self) -> f64 {
        // xorshift64* (Vigna 2016): another generator than the link's.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.next().ln()
    }
}

/// 800 Mbps: 10 ns per byte.
fn link(settings: &[(&str, &str)], seed: u64) -> WanLink<u64> {
    let mut config = WanConfig::from(LinkConfig {
        capacity: BitRate::from_mbps(800),
        wire: None,
        one_way_delay: PicoDuration::ZERO,
        queue_limit: FrameBytes::new(1 << 40),
        loss: Ratio::ZERO,
    });
    for (key, value) in settings {
        let mut none = |name: &str| Err(name.to_owned());
        setting(key, value, &mut none)
            .unwrap_or_else(|e| panic!("{e}"))
            .describe(&mut config);
    }
    WanLink::new(config, seed)
}

fn ps(ps: f64) -> PicoTime {
    PicoTime::from_ps(ps as u64)
}

/// Service of 1000 bytes, ps.
const SERVICE: f64 = 10_000_000.0;

#[test]
fn mean_wait_of_m_d_1() {
    // Pollaczek and Khinchine: W = rho S / (2 (1 - rho)).
    for (rho, seed) in [(0.3, 1), (0.5, 2), (0.8, 3)] {
        let mut link = link(&[], 0);
        let mut random = Uniform(seed);
        let (mut now, mut waited, frames) = (0.0, 0.0, 2_000_000u64);
        let mut arrivals = std::collections::VecDeque::new();
        for id in 0..frames {
            now += random.exponential(SERVICE / rho);
            assert_eq!(link.handle_frame(ps(now), FrameBytes::new(1_000), id), Ok(()));
            arrivals.push_back(ps(now));
            while let Some(d) = link.poll(if id + 1 == frames { PicoTime::MAX } else { ps(now) }) {
                let arrived = arrivals.pop_front().expect("in order");
                waited += (d.at - arrived).as_ps() as f64 - SERVICE;
            }
        }
        assert!(arrivals.is_empty());
        let (seen, expected) = (waited / frames as f64, SERVICE * rho / (2.0 * (1.0 - rho)));
        println!("M/D/1, load {rho}: wait {seen:.0} ps, theory {expected:.0}");
        assert!(
            (seen / expected - 1.0).abs() < 0.015,
            "load {rho}: {seen} ps, not {expected}"
        );
    }
}

/// Share lost of M/D/1/K, K in the system: the chain embedded at departures (Takagi, Queueing Analysis 2, 1993).
fn lost_m_d_1_k(rho: f64, k: usize) -> f64 {
    let mut a = vec![(-rho).exp()];
    for j in 1..k {
        a.push(a[j - 1] * rho / j as f64);
    }
    let mut pi = vec![1.0f64];
    for n in 0..k - 1 {
        let inflow: f64 = (1..=n).map(|i| pi[i] * a[n - i + 1]).sum();
        pi.push((pi[n] - pi[0] * a[n] - inflow) / a[0]);
    }
    let empty = pi[0] / pi.iter().sum::<f64>();
    1.0 - 1.0 / (empty + rho)
}

fn lost_m_m_1_k(rho: f64, k: i32) -> f64 {
    (1.0 - rho) * rho.powi(k) / (1.0 - rho.powi(k + 1))
}

/// Share of Poisson arrivals that find a queue of `waiting` frames full.
fn lost(rho: f64, waiting: usize, seed: u64, mean_bytes: f64, fixed: bool) -> f64 {
    let mut link = link(&[("queue", &format!("{waiting} frames"))], 0);
    let mut random = Uniform(seed);
    let (mut now, frames) = (0.0, 2_000_000u64);
    for id in 0..frames {
        now += random.exponential(mean_bytes * 10_000.0 / rho);
        let bytes = if fixed {
            mean_bytes
        } else {
            random.exponential(mean_bytes)
        };
        let _ = link.handle_frame(ps(now), FrameBytes::new(bytes.round() as u64), id);
        while link.poll(ps(now)).is_some() {}
    }
    link.counters().queue_full.frames as f64 / frames as f64
}

#[test]
fn drop_tail_loses_what_m_d_1_k_does() {
    for (rho, waiting, seed) in [(0.7, 2, 1), (0.9, 4, 2), (1.2, 9, 3)] {
        let (seen, expected) = (
            lost(rho, waiting, seed, 1_000.0, true),
            lost_m_d_1_k(rho, waiting + 1),
        );
        println!(
            "M/D/1/{}, load {rho}: lost {seen:.5}, theory {expected:.5}",
            waiting + 1
        );
        assert!(
            (seen / expected - 1.0).abs() < 0.02,
            "{rho} {waiting}: {seen}, not {expected}"
        );
    }
}

#[test]
fn drop_tail_loses_what_m_m_1_k_does() {
    // A mean of 100 kB, so that whole bytes and the smallest frame do not matter.
    for (rho, waiting, seed) in [(0.7, 2, 4), (0.9, 4, 5), (1.2, 9, 6)] {
        let expected = lost_m_m_1_k(rho, waiting as i32 + 1);
        let seen = lost(rho, waiting, seed, 100_000.0, false);
        println!(
            "M/M/1/{}, load {rho}: lost {seen:.5}, theory {expected:.5}",
            waiting + 1
        );
        assert!(
            (seen / expected - 1.0).abs() < 0.02,
            "{rho} {waiting}: {seen}, not {expected}"
        );
    }
}

/// Which of many frames are lost.
fn losses(loss: &str, seed: u64, frames: u64) -> Vec<bool> {
    let mut link = link(&[("loss", loss)], seed);
    let mut lost = vec![true; frames as usize];
    for id in 0..frames {
        let now = PicoTime::from_us(10 * id);
        assert_eq!(link.handle_frame(now, FrameBytes::new(1_000), id), Ok(()));
        while let Some(d) = link.poll(now) {
            lost[d.token as usize] = false;
        }
    }
    while let Some(d) = link.poll(PicoTime::MAX) {
        lost[d.token as usize] = false;
    }
    assert_eq!(
        link.counters().lost.frames,
        lost.iter().filter(|l| **l).count() as u64
    );
    lost
}

fn mean(lost: &[bool]) -> f64 {
    lost.iter().filter(|l| **l).count() as f64 / lost.len() as f64
}

fn correlation(lost: &[bool], lag: usize) -> f64 {
    let m = mean(lost);
    let both = lost.iter().zip(&lost[lag..]).filter(|(a, b)| **a && **b).count() as f64;
    (both / (lost.len() - lag) as f64 - m * m) / (m * (1.0 - m))
}

#[test]
fn gilbert_elliott_has_its_moments() {
    let frames = 4_000_000;
    // Gilbert: share p/(p + r), runs of 1/r, correlation (1 - p - r)^k.
    let lost = losses("gilbert 1% 25%", 11, frames);
    let runs = lost.windows(2).filter(|w| !w[0] && w[1]).count() as f64 + f64::from(u8::from(lost[0]));
    let run = mean(&lost) * frames as f64 / runs;
    println!(
        "Gilbert: share {:.5}, run {run:.4}, correlation {:.4}",
        mean(&lost),
        correlation(&lost, 1)
    );
    assert!(
        (mean(&lost) / (0.01 / 0.26) - 1.0).abs() < 0.02,
        "{}",
        mean(&lost)
    );
    assert!((run / 4.0 - 1.0).abs() < 0.02, "{run}");
    for lag in [1, 3] {
        let expected = 0.74f64.powi(lag as i32);
        let seen = correlation(&lost, lag);
        assert!(
            (seen / expected - 1.0).abs() < 0.02,
            "lag {lag}: {seen}, not {expected}"
        );
    }
    // Elliott: share (p bad + r good)/(p + r); covariance of lag k is (bad - good)^2 pi_b pi_g (1 - p - r)^k.
    let lost = losses("gilbert 2% 10% 1% 60%", 12, frames);
    let (bad, good) = (0.02 / 0.12, 0.1 / 0.12);
    let share = bad * 0.6 + good * 0.01;
    assert!(
        (mean(&lost) / share - 1.0).abs() < 0.02,
        "{}, not {share}",
        mean(&lost)
    );
    let expected = 0.59f64.powi(2) * bad * good * 0.88 / (share * (1.0 - share));
    let seen = correlation(&lost, 1);
    println!(
        "Elliott: share {:.5} of {share:.5}, correlation {seen:.4} of {expected:.4}",
        mean(&lost)
    );
    assert!((seen / expected - 1.0).abs() < 0.02, "{seen}, not {expected}");
}

#[test]
fn independent_loss_has_no_memory() {
    let lost = losses("1%", 13, 4_000_000);
    // Standard deviation of the share 0.5 %, of a correlation 0.0005.
    assert!((mean(&lost) / 0.01 - 1.0).abs() < 0.02, "{}", mean(&lost));
    for lag in [1, 2, 7] {
        assert!(
            correlation(&lost, lag).abs() < 0.002,
            "lag {lag}: {}",
            correlation(&lost, lag)
        );
    }
    // 20 million at 1e-6: 20 expected, standard deviation 4.5.
    let rare = losses("1e-6", 14, 20_000_000).into_iter().filter(|l| *l).count();
    assert!((7..=36).contains(&rare), "{rare}");
}

/// Delays in us, less the constant part, of frames that may overtake, sorted.
fn delays(jitter: &str, seed: u64, frames: u64) -> Vec<f64> {
    let mut link = link(
        &[("jitter", jitter), ("one_way_delay", "1s"), ("order", "free")],
        seed,
    );
    let mut seen = Vec::new();
    for id in 0..frames {
        let now = PicoTime::from_us(10 * id);
        assert_eq!(link.handle_frame(now, FrameBytes::new(1_000), id), Ok(()));
        while let Some(d) = link.poll(now) {
            seen.push((d.at, d.token));
        }
    }
    while let Some(d) = link.poll(PicoTime::MAX) {
        seen.push((d.at, d.token));
    }
    assert_eq!(seen.len() as u64, frames);
    let constant = PicoDuration::from_us(1_000_010).as_ps() as f64;
    let mut delays: Vec<f64> = seen
        .into_iter()
        .map(|(at, id)| ((at - PicoTime::from_us(10 * id)).as_ps() as f64 - constant) / 1e6)
        .collect();
    delays.sort_by(f64::total_cmp);
    delays
}

/// Kolmogorov and Smirnov: largest distance of the two distributions, times sqrt(n). Above 1.63 in one of a
/// hundred seeds when they are the same.
fn distance(sorted: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
    let n = sorted.len() as f64;
    let worst = sorted
        .iter()
        .enumerate()
        .map(|(i, x)| {
            (cdf(*x) - i as f64 / n)
                .abs()
                .max((cdf(*x) - (i + 1) as f64 / n).abs())
        })
        .fold(0.0, f64::max);
    worst * n.sqrt()
}

/// The normal distribution's function, to 1e-7 (Abramowitz and Stegun 26.2.17).
fn phi(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if x >= 0.0 { 1.0 - tail } else { tail }
}

const SAMPLES: u64 = 400_000;

#[test]
fn jitter_is_distributed_as_it_says() {
    let uniform = distance(&delays("uniform 100us", 21, SAMPLES), |x| {
        ((x + 100.0) / 200.0).clamp(0.0, 1.0)
    });
    let normal = distance(&delays("normal 100us 10ms", 22, SAMPLES), |x| phi(x / 100.0));
    let cut = 120.0;
    let inside = phi(cut / 100.0) - phi(-cut / 100.0);
    let truncated = distance(&delays("normal 100us 120us", 23, SAMPLES), |x| {
        ((phi(x / 100.0) - phi(-cut / 100.0)) / inside).clamp(0.0, 1.0)
    });
    let pareto = |shape: f64| move |x: f64| 1.0 - (1.0 + x / 100.0).powf(-shape);
    let heavy = distance(&delays("pareto 100us 1.5", 24, SAMPLES), pareto(1.5));
    let light = distance(&delays("pareto 100us 20/3", 25, SAMPLES), pareto(20.0 / 3.0));
    println!(
        "KS: uniform {uniform:.3}, normal {normal:.3}, truncated {truncated:.3}, Pareto {heavy:.3} {light:.3}"
    );
    for (name, d) in [
        ("uniform", uniform),
        ("normal", normal),
        ("truncated", truncated),
        ("Pareto 1.5", heavy),
        ("Pareto 20/3", light),
    ] {
        assert!(d < 1.63, "{name}: {d}");
    }
    // The test sees a sigma that is off by half a per cent.
    assert!(distance(&delays("normal 100.7us 10ms", 22, SAMPLES), |x| phi(x / 100.0)) > 1.63 / 2.0);
    assert!(distance(&delays("normal 101us 10ms", 22, SAMPLES), |x| phi(x / 100.0)) > 1.3);
}

#[test]
fn samples_come_equally_often_or_in_order() {
    let mut config = WanConfig::from(LinkConfig {
        capacity: BitRate::from_mbps(800),
        wire: None,
        one_way_delay: PicoDuration::ZERO,
        queue_limit: FrameBytes::new(1 << 40),
        loss: Ratio::ZERO,
    });
    for (jitter, in_order) in [("samples x", false), ("replay x", true)] {
        let mut four = |_: &str| Ok("0us\n1us\n2us\n3us".to_owned());
        setting("jitter", jitter, &mut four)
            .unwrap_or_else(|e| panic!("{e}"))
            .describe(&mut config);
        let mut link = WanLink::new(config.clone(), 31);
        let mut counts = [0u32; 4];
        for id in 0..100_000u64 {
            let now = PicoTime::from_us(20 * id);
            assert_eq!(link.handle_frame(now, FrameBytes::new(1_000), id), Ok(()));
            let d = link.poll(now + PicoDuration::from_us(13)).expect("departed");
            let extra = (d.at - now).as_us() as usize - 10;
            counts[extra] += 1;
            assert!(!in_order || extra as u64 == id % 4);
        }
        // Chi-square with three degrees of freedom: 16.3 in one of a thousand seeds.
        let chi: f64 = counts
            .iter()
            .map(|c| (f64::from(*c) - 25_000.0).powi(2) / 25_000.0)
            .sum();
        assert!(chi < 16.3, "{counts:?}: {chi}");
    }
}
