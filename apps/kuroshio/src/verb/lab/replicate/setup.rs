//! The network of `gfarm-replicate` at any size, and what its result looks like.
//!
//! ```text
//!   us-la1 ─┐                                                ┌─ jp-la1
//!   us-la2 ─┼─ us-gw ══ la  2,340 Mbps, RTT 141 ms ══ jp-gw ─┼─ jp-la2
//!   us-la3 ─┘     │                                    │     └─ jp-la3
//!   us-chi ───────┼════ chi   500 Mbps, RTT 250 ms ════┼─────── jp-chi
//!   us-ny  ───────┴════ ny  1,000 Mbps, RTT 285 ms ════┴─────── jp-ny
//!   meta: every host has a second port in a network without delay, for the control plane
//! ```
//!
//! A site is the nodes behind one uplink: `us-la` has three nodes, `us-chi` and `us-ny` one each, and so in Japan. The
//! three routes are `[[route]]` of metad.toml; the grid's own plan keeps all streams of all nodes below them. Parameters
//! are those of paper 000's SC2003 run, with the usable Los Angeles capacity of figures.md. Every node sends files whose sizes are
//! in proportion to its part of its route, so that all end together.
//!
//! # What a smaller size keeps
//!
//! Delays stay. Rates and queues are divided, so that a queue holds the same *time* (512 KiB at 500 Mbps: 8.4 ms), and with it the
//! part of bandwidth times delay that it was. Frames cannot be divided: the 87 frames of a queue of 512 KiB are four at 1/20. So
//! what hosts send at once has to stay as short as it was in time. A paced TCP of Linux sends trains of 1 ms of its rate, but of
//! two segments at least (`tcp_tso_autosize`, `net.ipv4.tcp_min_tso_segs`): at 1/20 that is no longer 1 ms but 4 to 8 ms, and two
//! streams in step fill the queue to the Chicago line. The papers' kernel (2.4) had no such trains at all: each segment was a frame of its own. So the
//! hosts' `tcp_min_tso_segs` is 1 at every size.

use std::fmt::Write as _;

use kuroshio_lab::check::Check;
use kuroshio_lab::result::{Calibration, Instrument, RunResult, Versions};
use kuroshio_metad::{Config, Replication, RouteConfig, Timing};
use serde_json::{Value, json};

use crate::error::Failure;
use crate::verb::demo::share::{Share, Stamp, Timeline, rate_between, share};

/// Its name and title.
pub const NAME: (&str, &str) = (
    "gfarm-replicate",
    "Replication by `fs rep` between two sides of five node pairs over three trans-Pacific routes",
);

/// A route: name, Mbps at full size (frame level), one-way delay in us, nodes on each side.
pub const ROUTES: [(&str, u64, u32, &[&str]); 3] = [
    ("la", 2_340, 70_500, &["la1", "la2", "la3"]),
    ("chi", 500, 125_000, &["chi"]),
    ("ny", 1_000, 142_500, &["ny"]),
];
/// L1 rate of a port at full size, Mbps; not below what two ports of Los Angeles need.
const PORT_MBPS: u64 = 1_000;
/// MTU of the SC2003 hosts, bytes.
pub const MTU: u32 = 6_000;
/// Queue of a router per Mbps of full-size capacity (512 KiB for each 500 Mbps), bytes; scaled with it.
const QUEUE_PER_MBPS: u64 = 1_024;
/// The part of each route that the plan does not give out.
const HEADROOM: &str = "1.5%";
/// Files of each node.
pub const FILES: u64 = 2;
/// What must hold.
const LEAST_SHARE: f64 = 0.97;
/// Port of every service.
pub const PORT: u16 = 7400;
/// Segments of a train that a host sends at once, at least: no train at all.
const TRAIN: u32 = 1;

/// How large the network and the files are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The rates are one part in so many of the real ones.
    pub divisor: u64,
    /// How long the files fill the routes, seconds.
    pub fill_s: u64,
}

/// On the wall clock, with everything that runs on two cores.
pub const LIVE: Size = Size {
    divisor: 20,
    fill_s: 40,
};
/// In virtual time.
pub const FULL: Size = Size {
    divisor: 1,
    fill_s: 40,
};

/// Every pair: index of its route, index in it, name.
pub fn pairs() -> impl Iterator<Item = (usize, usize, &'static str)> {
    let of = |(r, route): (usize, &(&str, u64, u32, &'static [&'static str]))| {
        let nodes: &'static [&'static str] = route.3;
        nodes.iter().enumerate().map(move |(p, name)| (r, p, *name))
    };
    ROUTES.iter().enumerate().flat_map(of)
}

/// Address of a node on a side (1 or 2).
pub fn address(side: u8, route: usize, pair: usize) -> String {
    format!("10.{}.{}.{side}", route + 1, pair + 1)
}

impl Size {
    /// A route's capacity, bit/s at frame level.
    pub fn capacity_bps(self, route: usize) -> u64 {
        ROUTES[route].1 * 1_000_000 / self.divisor
    }

    /// A port's wire, bit/s at L1.
    pub fn wire_bps(self) -> u64 {
        PORT_MBPS * 1_000_000 / self.divisor
    }

    /// The queue before a route, bytes.
    pub fn queue_bytes(self, route: usize) -> u64 {
        ROUTES[route].1 * QUEUE_PER_MBPS / self.divisor
    }

    /// Bytes of one file of a node on a route: its part of the route's payload, in [`FILES`] files.
    pub fn file_bytes(self, route: usize) -> u64 {
        let payload = self.capacity_bps(route) / 8 * self.fill_s * u64::from(MTU - 52) / u64::from(MTU + 18);
        payload / ROUTES[route].3.len() as u64 / FILES
    }

    /// All routes, bit/s at frame level.
    pub fn sum_bps(self) -> u64 {
        (0..ROUTES.len()).map(|r| self.capacity_bps(r)).sum()
    }

    fn scale(self) -> String {
        match self.divisor {
            1 => "1".into(),
            n => format!("1/{n}"),
        }
    }

    /// The network's topology file.
    pub fn topology(self) -> String {
        let mut text = String::from("name = \"gfarm-replicate\"\n");
        for router in ["us-gw", "jp-gw", "control"] {
            let _ = writeln!(text, "[[router]]\nname = \"{router}\"");
        }
        let mut control = 1;
        let mut second = |text: &mut String| {
            let _ = writeln!(
                text,
                "[[host.port]]\nname = \"ctl\"\nmtu = \"1500B\"\nwire = \"1Gbps\"\naddress = \"10.9.0.{control}/24\"\n\
                 router = \"control\"\nqueue = \"4MiB\""
            );
            control += 1;
        };
        let _ = writeln!(text, "[[host]]\nname = \"meta\"");
        second(&mut text);
        let wire_bps = self.wire_bps();
        for (side, gateway, number) in [("us", "us-gw", 1), ("jp", "jp-gw", 2)] {
            for (r, p, name) in pairs() {
                let _ = writeln!(
                    text,
                    "[[host]]\nname = \"{side}-{name}\"\nsysctl = {{ \"net.ipv4.tcp_min_tso_segs\" = \"{TRAIN}\" }}\n\
                     [[host.port]]\nname = \"wan\"\nmtu = \"{MTU}B\"\n\
                     wire = \"{wire_bps}bps\"\naddress = \"{}/24\"\nrouter = \"{gateway}\"\nqueue = \"64MiB\"",
                    address(number, r, p)
                );
                second(&mut text);
            }
        }
        for (r, (name, _, delay_us, nodes)) in ROUTES.iter().enumerate() {
            let carries: Vec<String> = (0..nodes.len())
                .map(|p| format!("\"10.{}.{}.0/24\"", r + 1, p + 1))
                .collect();
            let _ = writeln!(
                text,
                "[[link]]\nname = \"{name}\"\nbetween = [\"us-gw\", \"jp-gw\"]\ncapacity = \"{}bps\"\n\
                 one_way_delay = \"{delay_us}us\"\nqueue = \"{}B\"\ncarries = [{}]",
                self.capacity_bps(r),
                self.queue_bytes(r),
                carries.join(", ")
            );
        }
        text
    }

    /// The metadata service's configuration.
    pub fn config(self) -> Config {
        let route = |(r, (name, ..)): (usize, &(&str, u64, u32, &[&str]))| RouteConfig {
            from: format!("us-{name}"),
            to: format!("jp-{name}"),
            capacity: format!("{}bps", self.capacity_bps(r)),
        };
        Config {
            name: NAME.0.into(),
            listen: ([10, 9, 0, 1], PORT).into(),
            advertise: None,
            database: None,
            timing: Timing {
                // A busy machine is not a lost node.
                down_after_ms: 20_000,
                transfers: 32,
                ..Timing::default()
            },
            replication: Replication {
                headroom: HEADROOM.into(),
                ..Replication::default()
            },
            routes: ROUTES.iter().enumerate().map(route).collect(),
        }
    }

    /// The share of the routes' sum from 20 % to 80 % of the bytes, and each route's in that time. `stamps` are of frames at the
    /// far ports, by route.
    pub fn shares(self, stamps: &[Vec<Stamp>]) -> Result<(Share, Vec<Value>), Failure> {
        let mut all: Vec<Stamp> = stamps.concat();
        all.sort_by_key(|s| s.at_ns);
        let capacities: Vec<Timeline> = (0..ROUTES.len())
            .map(|r| Timeline::constant(self.capacity_bps(r)))
            .collect();
        let all = share(&all, &capacities).ok_or_else(|| Failure::failed("too few frames were stamped"))?;
        let routes = ROUTES.iter().zip(stamps).enumerate().map(|(r, ((name, ..), stamps))| {
            let rate = rate_between(stamps, all.from_ns, all.to_ns);
            json!({
                "route": name, "capacity_bps": self.capacity_bps(r), "frame_bps": rate,
                "share": rate as f64 / self.capacity_bps(r) as f64, "queue_limit_bytes": self.queue_bytes(r),
            })
        });
        Ok((all, routes.collect()))
    }

    /// The result of a run.
    pub fn result(self, run: Run) -> RunResult {
        RunResult {
            experiment: NAME.0.into(),
            title: NAME.1.into(),
            source:
                "003 Gfarm, replication of 8 GB by three node pairs; 000 GNET-1, SC2003 run for the routes"
                    .into(),
            mode: run.mode.into(),
            variant: String::new(),
            scale: self.scale(),
            started_unix_s: run.started_unix_s,
            paper: json!({
                "three node pairs, 10 s average (CHEP 2003)": "741 Mbps of 893 Mbps (83 %)",
                "SC2003 with GNET-1": "3.78 Gbps of 3.9 Gbps (97 %)",
            }),
            settings: json!({
                "routes": format!("Los Angeles 2,340 Mbps (figures.md), Chicago 500, New York 1,000; RTT 141, 250, 285 ms (000), rates times {}", self.scale()),
                "ports": format!("1 Gbps L1 times {}, MTU 6000 (000)", self.scale()),
                "queues": format!("512 KiB for each 500 Mbps (000, emulated network), times {}: 8.4 ms", self.scale()),
                "trains": "none: tcp_min_tso_segs 1 (000 and 003: Linux 2.4, which has no segmentation offload)",
                "headroom": HEADROOM, "tcp": run.tcp, "streams": "one for each transfer",
                "fill_s": self.fill_s, "files_per_node": FILES,
            }),
            measured: [("replication".to_owned(), run.measured)].into_iter().collect(),
            compared: Vec::new(),
            checks: checks(&run.counts, run.further),
            instrument: Instrument {
                calibration: Calibration {
                    vector: "none: what is counted are bytes in seconds".into(),
                    ..Calibration::default()
                },
                lateness: Vec::new(),
            },
            disturbed: !run.disturbed_by.is_empty(),
            disturbed_by: run.disturbed_by,
            versions: Versions::here(),
            seed: 1,
            notes: run.notes,
        }
    }
}

/// What a run leaves.
pub struct Run {
    /// `live` or `sim`.
    pub mode: &'static str,
    /// When it began, seconds since 1970.
    pub started_unix_s: u64,
    /// What disturbed it.
    pub disturbed_by: String,
    /// The senders' TCP.
    pub tcp: &'static str,
    /// Figures.
    pub measured: Value,
    /// What is judged.
    pub counts: Counts,
    /// Checks of this mode alone.
    pub further: Vec<Check>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// What is judged in every mode.
pub struct Counts {
    /// Share of the routes' sum.
    pub of_capacity: f64,
    /// Frames that a queue refused.
    pub dropped: u64,
    /// Files with a replica on both sides.
    pub whole: u64,
}

/// A check.
pub fn check(name: &str, value: String, bound: &str, ok: bool) -> Check {
    Check {
        name: name.to_owned(),
        value,
        bound: bound.to_owned(),
        ok,
    }
}

fn checks(counts: &Counts, further: Vec<Check>) -> Vec<Check> {
    let files = pairs().count() as u64 * FILES;
    let mut all = vec![
        check(
            "the routes' sum is used",
            format!("{:.2} %", counts.of_capacity * 100.0),
            "97 % or more, frame level, from 20 % to 80 % of the bytes",
            counts.of_capacity >= LEAST_SHARE,
        ),
        check(
            "nothing is dropped",
            format!("{} frames", counts.dropped),
            "0 frames at any router or port",
            counts.dropped == 0,
        ),
        check(
            "every file has both replicas",
            format!("{} of {files}", counts.whole),
            "all",
            counts.whole == files,
        ),
    ];
    all.extend(further);
    all
}

/// What a plan of routes at this size looks like is checked without a machine.
#[cfg(test)]
mod tests {
    use super::*;
    use kuroshio_core::units::{BitRate, Ratio};
    use kuroshio_testbed::Topology;

    #[test]
    fn the_network_is_one() {
        for size in [LIVE, FULL] {
            let topology = Topology::from_toml(&size.topology());
            assert!(topology.is_ok(), "{:?}", topology.err());
            for (r, (name, ..)) in ROUTES.iter().enumerate() {
                assert!(BitRate::new(size.capacity_bps(r)).is_some(), "{name}");
                assert!(size.config().routes[r].capacity_bps().is_ok());
            }
        }
        assert_eq!((LIVE.sum_bps(), FULL.sum_bps()), (192_000_000, 3_840_000_000));
        assert!(HEADROOM.parse::<Ratio>().is_ok());
        // 117 Mbps for 40 s in six files.
        assert_eq!(LIVE.file_bytes(0), 117_000_000 / 8 * 40 * 5948 / 6018 / 6);
    }

    /// Streams in step, each late by half of its slot: the worst that paced streams without trains bring to a queue at once is
    /// three frames for each two streams, and that fits.
    #[test]
    fn a_queue_holds_what_paced_streams_bring_in_step() {
        for size in [LIVE, FULL] {
            for (r, (name, _, _, nodes)) in ROUTES.iter().enumerate() {
                let streams = nodes.len() as u64 * FILES;
                let worst = streams * 3 / 2 * u64::from(MTU + 18) * u64::from(TRAIN);
                assert!(
                    worst <= size.queue_bytes(r),
                    "{name}: {worst} of {}",
                    size.queue_bytes(r)
                );
            }
        }
    }
}
