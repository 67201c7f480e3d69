//! Tables for people, after iperf3's.

use crate::advice::{bytes_text, rate_text};
use crate::params::{Params, Protocol};
use crate::report::TestReport;
use crate::run::Interval;
use crate::sample::{StreamSpan, rate_bps};

/// The head of the table of intervals.
pub fn header(params: &Params) -> String {
    match params.protocol {
        Protocol::Tcp => {
            "[ ID] Interval           Transfer    Goodput     Frame level Retr  Cwnd        RTT".into()
        }
        Protocol::Udp => {
            "[ ID] Interval           Transfer    Goodput     Frame level Jitter      Lost/Total".into()
        }
    }
}

/// The lines of an interval: one for each stream, and the sum where there are several.
pub fn interval_lines(params: &Params, interval: &Interval) -> Vec<String> {
    let note = if interval.omitted { " (omitted)" } else { "" };
    let tail = |span: &StreamSpan| match (params.protocol, span.sends) {
        (Protocol::Tcp, true) => format!(
            "{:>4}  {:<11} {:.3} ms",
            span.retransmits,
            bytes_text(span.cwnd_bytes),
            f64::from(span.rtt_us) / 1e3
        ),
        (Protocol::Tcp, false) => String::new(),
        (Protocol::Udp, true) => format!("{:<11} {}", "", span.datagrams),
        (Protocol::Udp, false) => format!(
            "{:<11} {}/{}",
            format!("{:.3} ms", span.jitter_s * 1e3),
            span.lost,
            span.expected
        ),
    };
    let mut lines: Vec<String> = interval
        .streams
        .iter()
        .map(|span| {
            let front = front(
                &span.id.to_string(),
                span.start_s,
                span.end_s,
                span.bytes,
                span.frame_bytes,
            );
            format!("{front} {}{note}", tail(span)).trim_end().to_owned()
        })
        .collect();
    if let Some(first) = interval.streams.first().filter(|_| interval.streams.len() > 1) {
        let sum = |get: fn(&StreamSpan) -> u64| interval.streams.iter().map(get).sum::<u64>();
        let front = front(
            "SUM",
            first.start_s,
            first.end_s,
            sum(|s| s.bytes),
            sum(|s| s.frame_bytes),
        );
        let tail = match params.protocol {
            Protocol::Tcp => format!("{:>4}", sum(|s| s.retransmits)),
            Protocol::Udp => String::new(),
        };
        lines.push(format!("{front} {tail}{note}").trim_end().to_owned());
    }
    lines
}

fn front(id: &str, start_s: f64, end_s: f64, bytes: u64, frame_bytes: u64) -> String {
    let rate = |bytes| rate_text(rate_bps(bytes, end_s - start_s));
    let time = format!("{start_s:>6.2}-{end_s:<6.2}");
    format!(
        "[{id:>3}] {time} s   {:<11} {:<11} {:<11}",
        bytes_text(bytes),
        rate(bytes),
        rate(frame_bytes)
    )
}

/// The lines at the end of a test.
pub fn summary_lines(report: &TestReport) -> Vec<String> {
    let mut lines =
        vec!["- - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - -".to_owned()];
    let mut directions = vec![report.sends()];
    if report.params.direction == crate::params::Direction::Both {
        directions.push(!report.sends());
    }
    for sends in directions {
        let sum = report.sum(sends);
        let from = if sends { "here" } else { "there" };
        let again = sum
            .retransmits
            .map_or(String::new(), |n| format!(", {n} segments again"));
        lines.push(format!(
            "sent from {from}   {} in {:.2} s, {} goodput{again}",
            bytes_text(sum.sent_bytes),
            sum.sent_s,
            rate_text(rate_bps(sum.sent_bytes, sum.sent_s))
        ));
        let lost = match report.params.protocol {
            Protocol::Tcp => String::new(),
            Protocol::Udp => format!(
                ", {} of {} datagrams lost, jitter {:.3} ms",
                sum.lost,
                sum.packets,
                sum.jitter_s * 1e3
            ),
        };
        lines.push(format!(
            "received         {} in {:.2} s, {} goodput{lost}; {} at frame level as measured here",
            bytes_text(sum.received_bytes),
            sum.received_s,
            rate_text(sum.goodput_bps()),
            rate_text(sum.frame_rate_bps)
        ));
    }
    let cpu = (&report.run.cpu, &report.peer.cpu);
    lines.push(format!(
        "CPU              here {:.1} % ({:.1} user, {:.1} system), there {:.1} % ({:.1}, {:.1})",
        cpu.0.total, cpu.0.user, cpu.0.system, cpu.1.total, cpu.1.user, cpu.1.system
    ));
    if report.params.protocol == Protocol::Tcp {
        lines.extend(tcp_lines(report));
    }
    if let Some(speed) = report.land_speed_tbm_per_s() {
        lines.push(format!(
            "land speed       {speed} Tb*m/s (goodput times distance)"
        ));
    }
    if report.interrupted {
        lines.push("interrupted: the figures end there".into());
    }
    lines
}

fn tcp_lines(report: &TestReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(full) = report.full_rate() {
        lines.push(format!(
            "start-up         90 % of {} (goodput) after {:.1} s, over windows of {:.1} s",
            rate_text(full.plateau_goodput_bps as f64),
            full.time_to_full_rate_s,
            full.rate_window_s
        ));
    }
    lines.push(format!("pacing           {}", report.pacing()));
    if let Some(advice) = report.window_advice() {
        lines.push(format!("window           {}", advice.text));
    }
    if let Some(advice) = report.mtu_advice() {
        lines.push(format!("MTU              {}", advice.text));
    }
    lines
}
