//! What a test says about window, frame size and distance.
//!
//! ```text
//! window     = rate * RTT, socket buffer = 3 * window              (paper 004)
//! efficiency = payload / frame of a full segment
//! land speed = goodput * distance, Tb*m/s (= 10^12 bit * metre / s) (Internet2 land-speed record, paper 004)
//! ```

use kuroshio_core::units::{BitRate, PicoDuration};
use kuroshio_sock::Framing;
use kuroshio_tune::sysctl::Sysctls;
use kuroshio_tune::window::{bdp_bytes, buffer_bytes, least_streams};
use serde::Serialize;

/// MTU of the jumbo frames that most switches carry, bytes.
pub const JUMBO_MTU: u32 = 9000;

/// How far the kernel's autotuning goes on this host, bytes; `None` for what cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelLimits {
    /// `net.ipv4.tcp_rmem`, the third number.
    pub tcp_rmem_max_bytes: Option<u64>,
    /// `net.ipv4.tcp_wmem`, the third number.
    pub tcp_wmem_max_bytes: Option<u64>,
    /// `net.core.rmem_max`: what `SO_RCVBUF` may ask for.
    pub rmem_max_bytes: Option<u64>,
    /// `net.core.wmem_max`.
    pub wmem_max_bytes: Option<u64>,
}

impl KernelLimits {
    /// Those of this host.
    pub fn read(sysctls: &Sysctls) -> Self {
        Self {
            tcp_rmem_max_bytes: sysctls.limit("net.ipv4.tcp_rmem"),
            tcp_wmem_max_bytes: sysctls.limit("net.ipv4.tcp_wmem"),
            rmem_max_bytes: sysctls.limit("net.core.rmem_max"),
            wmem_max_bytes: sysctls.limit("net.core.wmem_max"),
        }
    }
}

/// The window that a path needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowAdvice {
    /// Frame-level rate that the advice is for: the one asked for, else the one reached.
    pub rate_bps: u64,
    /// Least round-trip time seen, microseconds.
    pub rtt_us: u64,
    /// Bandwidth-delay product.
    pub window_bytes: u64,
    /// Three times that.
    pub socket_buffer_bytes: u64,
    /// Streams between which it must be shared, at least.
    pub least_streams: u64,
    /// Whether this host's autotuning goes that far, for one of the streams.
    pub within_kernel_limits: bool,
    /// One sentence.
    pub text: String,
}

/// The advice for a rate and a round-trip time on a test of some streams.
pub fn window(rate: BitRate, rtt_us: u64, streams: u32, limits: &KernelLimits) -> WindowAdvice {
    let window_bytes = bdp_bytes(rate, PicoDuration::from_us(rtt_us));
    let socket_buffer_bytes = buffer_bytes(window_bytes);
    let least_streams = least_streams(window_bytes);
    let each = socket_buffer_bytes.div_ceil(least_streams.max(u64::from(streams)));
    let least = limits
        .tcp_rmem_max_bytes
        .into_iter()
        .chain(limits.tcp_wmem_max_bytes)
        .min();
    let within = least.is_none_or(|limit| limit >= each);
    let need = format!(
        "{rate} over {} ms needs a window of {} and socket buffers of {} in sum",
        rtt_us as f64 / 1e3,
        bytes_text(window_bytes),
        bytes_text(socket_buffer_bytes)
    );
    let text = if within {
        format!("{need}: within this host's limits")
    } else {
        format!("{need}: beyond this host's limits; see `kuroshio tune --rate {rate} --rtt {rtt_us}us`")
    };
    WindowAdvice {
        rate_bps: rate.bps(),
        rtt_us,
        window_bytes,
        socket_buffer_bytes,
        least_streams,
        within_kernel_limits: within,
        text,
    }
}

/// What the frame size costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MtuAdvice {
    /// Path MTU of the connection, bytes.
    pub path_mtu_bytes: u32,
    /// Payload bytes of a full segment.
    pub mss_bytes: u32,
    /// Payload of 100 bytes of frame.
    pub efficiency_percent: f64,
    /// The same with jumbo frames.
    pub jumbo_efficiency_percent: f64,
    /// Frames per second at the rate reached.
    pub frames_per_s: u64,
    /// The same with jumbo frames.
    pub jumbo_frames_per_s: u64,
    /// Whether the path carries jumbo frames already.
    pub is_jumbo: bool,
    /// One sentence.
    pub text: String,
}

/// The advice for a connection of a path MTU and framing that carries a rate of payload.
pub fn mtu(path_mtu_bytes: u32, framing: Framing, ipv6: bool, goodput_bps: f64) -> Option<MtuAdvice> {
    let (payload, frame) = (framing.payload.get(), framing.frame.get());
    // What a segment's headers take of the MTU: IP, TCP, options.
    let headers = frame.checked_sub(payload)?.checked_sub(18)?;
    let timestamps = headers > if ipv6 { 60 } else { 40 };
    let jumbo = Framing::new(JUMBO_MTU.checked_sub(headers)?, timestamps, ipv6)?;
    let efficiency = |f: &Framing| 100.0 * f64::from(f.payload.get()) / f64::from(f.frame.get());
    let frames = |f: &Framing| (goodput_bps / 8.0 / f64::from(f.payload.get())) as u64;
    let is_jumbo = path_mtu_bytes >= JUMBO_MTU;
    let text = if is_jumbo {
        format!("path MTU {path_mtu_bytes}: jumbo frames are in use")
    } else {
        format!(
            "path MTU {path_mtu_bytes}: jumbo frames ({JUMBO_MTU}) on the whole path would carry {:.1} instead of \
             {:.1} % payload in a {:.1}th of the frames",
            efficiency(&jumbo),
            efficiency(&framing),
            f64::from(jumbo.payload.get()) / f64::from(payload)
        )
    };
    Some(MtuAdvice {
        path_mtu_bytes,
        mss_bytes: payload,
        efficiency_percent: efficiency(&framing),
        jumbo_efficiency_percent: efficiency(&jumbo),
        frames_per_s: frames(&framing),
        jumbo_frames_per_s: frames(&jumbo),
        is_jumbo,
        text,
    })
}

/// The land-speed metric, terabit-metres per second, rounded down.
pub fn land_speed_tbm_per_s(goodput_bps: u64, distance_m: u64) -> u64 {
    let product = u128::from(goodput_bps) * u128::from(distance_m);
    u64::try_from(product / 1_000_000_000_000).unwrap_or(u64::MAX)
}

/// A size for people: three digits and a binary unit.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else if value < 10.0 {
        format!("{value:.2} {unit}")
    } else if value < 100.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// A rate for people: three digits and an SI unit.
pub(crate) fn rate_text(bps: f64) -> String {
    let (value, unit) = match bps {
        b if b >= 1e12 => (b / 1e12, "Tbps"),
        b if b >= 1e9 => (b / 1e9, "Gbps"),
        b if b >= 1e6 => (b / 1e6, "Mbps"),
        b if b >= 1e3 => (b / 1e3, "kbps"),
        b => (b, "bps"),
    };
    if value < 10.0 {
        format!("{value:.2} {unit}")
    } else if value < 100.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_land_speed_record() {
        assert_eq!(land_speed_tbm_per_s(5_600_000_000, 35_755_000), 200_228);
        assert_eq!(land_speed_tbm_per_s(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn the_paper_s_window_beyond_and_within_limits() {
        let rate = BitRate::from_mbps(7_000);
        let limits = |max| KernelLimits {
            tcp_rmem_max_bytes: Some(max),
            tcp_wmem_max_bytes: Some(1 << 40),
            ..KernelLimits::default()
        };
        let advice = window(rate, 400_000, 1, &limits(1_049_999_999));
        assert_eq!(
            (advice.window_bytes, advice.socket_buffer_bytes),
            (350_000_000, 1_050_000_000)
        );
        assert!(!advice.within_kernel_limits);
        assert!(
            advice.text.contains("kuroshio tune --rate 7Gbps --rtt 400000us"),
            "{}",
            advice.text
        );
        assert!(window(rate, 400_000, 1, &limits(1_050_000_000)).within_kernel_limits);
        assert!(window(rate, 400_000, 2, &limits(525_000_000)).within_kernel_limits);
    }

    #[test]
    fn jumbo_frames_as_figures_say() {
        let framing = Framing::new(1448, true, false).expect("framing");
        let advice = mtu(1500, framing, false, 1_448_000.0 * 8.0).expect("advice");
        assert!((advice.efficiency_percent - 100.0 * 1448.0 / 1518.0).abs() < 1e-9);
        assert!((advice.jumbo_efficiency_percent - 100.0 * 8948.0 / 9018.0).abs() < 1e-9);
        assert_eq!(advice.frames_per_s, 1000);
        assert!(
            !advice.is_jumbo && advice.text.contains("jumbo"),
            "{}",
            advice.text
        );
        let large = Framing::new(65_483, true, false).expect("framing");
        assert!(mtu(65_535, large, false, 1e9).expect("advice").is_jumbo);
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(999), "999 B");
        assert_eq!(bytes_text(1 << 20), "1.00 MiB");
        assert_eq!(bytes_text(u64::MAX), "16384 PiB");
        assert_eq!(rate_text(987_654_321.0), "988 Mbps");
        assert_eq!(rate_text(0.0), "0.00 bps");
    }
}
