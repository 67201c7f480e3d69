//! Accepted and refused texts side by side.

use super::*;
use alloc::string::ToString;
use proptest::prelude::*;

fn rate(text: &str) -> Result<u64, Problem> {
    text.parse::<BitRate>().map(BitRate::bps).map_err(|e| e.problem())
}

#[test]
fn rates_as_text() {
    let table: &[(&str, Result<u64, Problem>)] = &[
        ("800M", Ok(800_000_000)),
        ("800Mbps", Ok(800_000_000)),
        ("800Mbit", Ok(800_000_000)),
        ("800 Mbit/s", Ok(800_000_000)),
        (" 800M ", Ok(800_000_000)),
        ("2.34G", Ok(2_340_000_000)),
        ("2.340000000000000000000G", Ok(2_340_000_000)),
        ("8kbps", Ok(8_000)),
        ("8Kbps", Ok(8_000)),
        ("50MB/s", Ok(400_000_000)),
        ("0.125B/s", Ok(1)),
        ("1bps", Ok(1)),
        ("0.8Tbps", Ok(800_000_000_000)),
        ("18446744073709551615bps", Ok(u64::MAX)),
        ("18446744073709551616bps", Err(Problem::TooLarge)),
        (
            "99999999999999999999999999999999999999999T",
            Err(Problem::TooLarge),
        ),
        ("800", Err(Problem::NoUnit)),
        ("0", Err(Problem::NoUnit)),
        ("0bps", Err(Problem::Zero)),
        ("0.0G", Err(Problem::Zero)),
        ("0.5bps", Err(Problem::TooFine)),
        ("1.0000000001G", Err(Problem::TooFine)),
        (
            "0.00000000000000000000000000000000000000000000001G",
            Err(Problem::TooFine),
        ),
        ("800m", Err(Problem::UnknownUnit)),
        ("800mbps", Err(Problem::UnknownUnit)),
        ("800MB", Err(Problem::UnknownUnit)),
        ("800MiB/s", Err(Problem::UnknownUnit)),
        ("1e9bps", Err(Problem::UnknownUnit)),
        ("1,5G", Err(Problem::UnknownUnit)),
        ("1.2.3G", Err(Problem::UnknownUnit)),
        ("８００M", Err(Problem::NoNumber)),
        ("800М", Err(Problem::UnknownUnit)), // a Cyrillic letter
        ("-1M", Err(Problem::Negative)),
        ("+1M", Err(Problem::NoNumber)),
        (".5G", Err(Problem::NoNumber)),
        ("5.G", Err(Problem::NoNumber)),
        ("Mbps", Err(Problem::NoNumber)),
        ("", Err(Problem::Empty)),
        (" ", Err(Problem::Empty)),
        (&"1".repeat(65), Err(Problem::TooLong)),
    ];
    for (text, expected) in table {
        assert_eq!(rate(text), *expected, "{text:?}");
    }
}

#[test]
fn times_as_text() {
    let table: &[(&str, Result<u64, Problem>)] = &[
        ("70.5ms", Ok(70_500_000_000)),
        ("12us", Ok(12_000_000)),
        ("12µs", Ok(12_000_000)),
        ("500ns", Ok(500_000)),
        ("1.3s", Ok(1_300_000_000_000)),
        ("10min", Ok(600_000_000_000_000)),
        ("1h", Ok(3_600_000_000_000_000)),
        ("0s", Ok(0)),
        ("1ps", Ok(1)),
        ("0.001ns", Ok(1)),
        ("0.0001ns", Err(Problem::TooFine)),
        ("70.5", Err(Problem::NoUnit)),
        ("70.5m", Err(Problem::UnknownUnit)),
        ("70.5MS", Err(Problem::UnknownUnit)),
        ("5200h", Err(Problem::TooLarge)),
        ("-1s", Err(Problem::Negative)),
    ];
    for (text, expected) in table {
        let read = text
            .parse::<PicoDuration>()
            .map(PicoDuration::as_ps)
            .map_err(|e| e.problem());
        assert_eq!(read, *expected, "{text:?}");
        let read = text
            .parse::<PicoTime>()
            .map(PicoTime::as_ps)
            .map_err(|e| e.problem());
        assert_eq!(read, *expected, "{text:?}");
    }
}

#[test]
fn sizes_as_text() {
    let table: &[(&str, Result<u64, Problem>)] = &[
        ("512KiB", Ok(524_288)),
        ("1MiB", Ok(1_048_576)),
        ("1.5MiB", Ok(1_572_864)),
        ("8MB", Ok(8_000_000)),
        ("512kB", Ok(512_000)),
        ("1500B", Ok(1_500)),
        ("0B", Ok(0)),
        ("16777215TiB", Ok(16_777_215 << 40)),
        ("16777216TiB", Err(Problem::TooLarge)),
        ("1500", Err(Problem::NoUnit)),
        ("512K", Err(Problem::UnknownUnit)),
        ("512KB", Err(Problem::UnknownUnit)),
        ("512k", Err(Problem::UnknownUnit)),
        ("1Mi", Err(Problem::UnknownUnit)),
        ("1mib", Err(Problem::UnknownUnit)),
        ("1Mb", Err(Problem::UnknownUnit)),
        ("0.5B", Err(Problem::TooFine)),
        ("x", Err(Problem::NoNumber)),
    ];
    for (text, expected) in table {
        assert_eq!(parse_bytes(text).map_err(|e| e.problem()), *expected, "{text:?}");
    }
}

#[test]
fn ratios_as_text() {
    type Expected = Result<(u64, u64), Problem>;
    let table: &[(&str, Expected)] = &[
        ("0", Ok((0, 1))),
        ("0.0%", Ok((0, 1))),
        ("1", Ok((1, 1))),
        ("100%", Ok((1, 1))),
        ("0.1%", Ok((1, 1_000))),
        ("0.001", Ok((1, 1_000))),
        ("1e-9", Ok((1, 1_000_000_000))),
        ("2.5E-3", Ok((1, 400))),
        ("1/1000", Ok((1, 1_000))),
        ("2 / 6", Ok((1, 3))),
        ("7/2", Ok((7, 2))),
        ("1/0", Err(Problem::Zero)),
        ("1/2/3", Err(Problem::UnknownUnit)),
        ("0.1/2", Err(Problem::UnknownUnit)),
        ("1e-19", Err(Problem::TooFine)),
        ("1e9", Err(Problem::UnknownUnit)),
        ("1e-", Err(Problem::UnknownUnit)),
        ("1 in 5", Err(Problem::UnknownUnit)),
        ("0.00000000000000000001", Err(Problem::TooFine)),
        ("18446744073709551616", Err(Problem::TooLarge)),
        ("-0.1", Err(Problem::Negative)),
        ("/2", Err(Problem::NoNumber)),
        ("", Err(Problem::Empty)),
    ];
    for (text, expected) in table {
        let read = text
            .parse::<Ratio>()
            .map(|r| (r.num(), r.den()))
            .map_err(|e| e.problem());
        assert_eq!(read, *expected, "{text:?}");
    }
}

#[test]
fn values_as_text() {
    let show = |bps| BitRate::from_bps(bps).map(|r| r.to_string());
    assert_eq!(show(2_340_000_000).as_deref(), Ok("2.34Gbps"));
    assert_eq!(show(999).as_deref(), Ok("999bps"));
    assert_eq!(show(1_000_000_000_001).as_deref(), Ok("1.000000000001Tbps"));
    assert_eq!(PicoDuration::from_us(70_500).to_string(), "70.5ms");
    assert_eq!(PicoDuration::ZERO.to_string(), "0s");
    assert_eq!(PicoTime::from_secs(600).to_string(), "600s");
    assert_eq!(FrameBytes::new(524_288).to_string(), "512KiB");
    assert_eq!(FrameBytes::new(8_000_000).to_string(), "8MB");
    assert_eq!(FrameBytes::new(9_000).to_string(), "9000B");
    assert_eq!(
        Ratio::new(2, 2_000).map(|r| r.to_string()).as_deref(),
        Ok("1/1000")
    );
}

#[test]
fn errors_say_what_would_be_valid() {
    let error = "800".parse::<BitRate>().map_err(|e| e.to_string());
    assert_eq!(
        error,
        Err(
            "rate \"800\" has no unit: write a number and a unit, such as 800Mbps, 2.34G, 8kbit/s or 50MB/s"
                .into()
        )
    );
    let error = parse_bytes("512K").map_err(|e| e.to_string()).err();
    assert!(error.is_some_and(|e| e.contains("512K") && e.contains("KiB") && e.contains("kB")));
    let long = "9".repeat(5_000);
    assert!(long.parse::<Ratio>().is_err_and(|e| e.to_string().len() < 200));
}

#[test]
fn arithmetic_saturates() {
    let one = PicoDuration::from_ps(1);
    assert_eq!(PicoTime::MAX + one, PicoTime::MAX);
    assert_eq!(PicoTime::ZERO - one, PicoTime::ZERO);
    assert_eq!(PicoTime::ZERO - PicoTime::MAX, PicoDuration::ZERO);
    assert_eq!(PicoTime::MAX.checked_add(one), None);
    assert_eq!(PicoTime::ZERO.checked_since(PicoTime::MAX), None);
    assert_eq!(PicoDuration::from_secs(u64::MAX), PicoDuration::MAX);
    assert_eq!(FrameBytes::MAX + FrameBytes::new(1), FrameBytes::MAX);
    assert_eq!(FrameBytes::ZERO - FrameBytes::new(1), FrameBytes::ZERO);
    assert_eq!(BitRate::MAX.checked_add(BitRate::MIN), None);
    assert_eq!(BitRate::MIN.checked_sub(BitRate::MIN), None);
    assert_eq!(BitRate::MIN.time_for(u64::MAX), PicoDuration::MAX);
    assert_eq!(BitRate::MAX.bytes_in(PicoDuration::MAX), u64::MAX);
    assert_eq!(BitRate::of(1, PicoDuration::ZERO), None);
    let mut clock = TxClock::new(BitRate::MIN);
    clock.advance(u64::MAX);
    clock.advance(u64::MAX);
    assert_eq!(clock.at(), PicoTime::MAX);
}

#[test]
fn a_fraction_of_a_picosecond_is_kept_dropped_or_rounded_up() {
    // At 3 bit/s and 1 byte the clock stands at 2666666666666 and 2/3 ps.
    let (three, ps) = (BitRate::from_bps(3), PicoTime::from_ps(2_666_666_666_666));
    let (Ok(three), one) = (three, PicoDuration::from_ps(1)) else {
        panic!("3 is a rate")
    };
    let mut clock = TxClock::new(three);
    assert_eq!(
        (clock.advance(1) + one, clock.at(), clock.remainder()),
        (three.time_for(1), ps, 2)
    );
    let (mut busy, mut idle, mut changed) = (clock, clock, clock);
    busy.catch_up(ps);
    assert_eq!((busy.at(), busy.remainder()), (ps, 2));
    idle.catch_up(ps + one);
    assert_eq!((idle.at(), idle.remainder()), (ps + one, 0));
    changed.set_rate(BitRate::MIN);
    assert_eq!((changed.at(), changed.remainder()), (ps + one, 0));
    clock.set_rate(three);
    assert_eq!((clock.at(), clock.remainder()), (ps, 2));
}

#[test]
fn rate_times_ratio() {
    let gigabit = BitRate::from_mbps(1_000);
    let two_thirds = Ratio::new(2, 3).ok();
    assert_eq!(
        two_thirds.and_then(|r| gigabit.checked_mul_ratio(r)),
        BitRate::new(666_666_666)
    );
    assert_eq!(two_thirds.map(Ratio::complement), Ratio::new(1, 3).ok());
    assert_eq!(gigabit.checked_mul_ratio(Ratio::ZERO), None);
    assert_eq!(Ratio::new(7, 2).map(Ratio::complement), Ok(Ratio::ZERO));
    assert_eq!(gigabit.time_for(1_518), PicoDuration::from_ns(12_144));
    assert_eq!(gigabit.bytes_in(PicoDuration::from_ms(2)), 250_000);
    assert_eq!(BitRate::of(250_000, PicoDuration::from_ms(2)), Some(gigabit));
}

proptest! {
    #[test]
    fn text_round_trips(value in any::<u64>(), shift in 0u32..64, den in 1u64..) {
        let value = value >> shift;
        if let Ok(rate) = BitRate::from_bps(value) {
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        let time = PicoTime::from_ps(value);
        prop_assert_eq!(time.to_string().parse(), Ok(time));
        let duration = PicoDuration::from_ps(value);
        prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        let size = WireBytes::new(value);
        prop_assert_eq!(size.to_string().parse(), Ok(size));
        let ratio = Ratio::new(value, den);
        prop_assert_eq!(ratio.as_ref().map(ToString::to_string).map(|t| t.parse()), Ok(ratio.clone()));
    }

    #[test]
    fn any_text_is_an_answer(text in "\\PC{0,70}", number in "[0-9]{0,45}(\\.[0-9]{0,45})?[a-zA-Z/%]{0,5}") {
        for text in [text, number] {
            let _ = text.parse::<BitRate>();
            let _ = text.parse::<PicoTime>();
            let _ = text.parse::<Ratio>();
            let _ = parse_bytes(&text);
        }
    }

    #[test]
    fn tx_clock_keeps_its_equation(
        rate in 1u64.., shift in 0u32..60, sizes in prop::collection::vec(0u64..3_000_000, 1..200),
    ) {
        // At rates this low the clock would reach its end.
        let rate = (rate >> shift).max(1_000_000);
        let mut clock = TxClock::new(BitRate::from_bps(rate)?);
        let mut bytes = 0u128;
        for size in sizes {
            bytes += u128::from(size);
            clock.advance(size);
            prop_assert!(clock.remainder() < rate);
            let exact = u128::from(clock.at().as_ps()) * u128::from(rate) + u128::from(clock.remainder());
            prop_assert_eq!(exact, bytes * u128::from(PS_BITS_PER_BYTE));
        }
    }
}
