//! The network of the demo: San Diego and Tokyo, three trans-Pacific routes, five ports.
//!
//! ```text
//!                  +-- la1 --+                                                +-- la1 --+
//!   San Diego -----+-- la2 --+== Los Angeles  2,400 Mbps, RTT 141 ms ========+-- la2 --+----- Tokyo
//!                  +-- la3 --+                                                +-- la3 --+
//!                  +-- chi ---== Chicago        500 Mbps, RTT 250 ms ===========- chi --+
//!                  +-- ny ----== New York     1,000 Mbps, RTT 285 ms ===========-- ny --+
//! ```
//!
//! From the SC2003 run of paper 000 (section "results on Transpacific networks", figure 7): capacities
//! (frame level), round-trip times, Gigabit ports, MTU 6000. The routers' queues there are not known; they
//! are 512 KB for each 500 Mbps, as in that paper's own emulation (figure 4). Scaling multiplies
//! capacities, ports and queues by one ratio; delays are the ocean's and stay.

use std::fmt::Write as _;
use std::time::Duration;

use kuroshio_core::units::{BitRate, Ratio};

/// A route over the ocean, at full scale.
#[derive(Debug)]
pub struct Route {
    /// Name of the link in the topology and of the route in the rate plan.
    pub name: &'static str,
    /// For tables.
    pub title: &'static str,
    /// Frame-level capacity in Mbps.
    pub capacity_mbps: u32,
    /// One-way delay in microseconds.
    pub one_way_delay_us: u32,
    /// Names of the ports that use it.
    pub ports: &'static [&'static str],
}

/// The three routes.
pub const ROUTES: [Route; 3] = [
    Route {
        name: "la",
        title: "Los Angeles",
        capacity_mbps: 2_400,
        one_way_delay_us: 70_500,
        ports: &["la1", "la2", "la3"],
    },
    Route {
        name: "chicago",
        title: "Chicago",
        capacity_mbps: 500,
        one_way_delay_us: 125_000,
        ports: &["chi"],
    },
    Route {
        name: "newyork",
        title: "New York",
        capacity_mbps: 1_000,
        one_way_delay_us: 142_500,
        ports: &["ny"],
    },
];

/// L1 rate of a port at full scale, Mbps.
const PORT_L1_MBPS: u32 = 1_000;
/// MTU of the SC2003 hosts, bytes.
const MTU_BYTES: u32 = 6_000;
/// Queue of a router per Mbps of capacity, bytes (512 KB per 500 Mbps).
const QUEUE_BYTES_PER_MBPS: u64 = 1_024;
/// What the rate plan leaves free on each route, in words and thousandths.
pub const HEADROOM: &str = "1.5%";
const HEADROOM_PERMILLE: u64 = 15;
/// How long a lease is good; a service that has just started grants floors for as long.
const LEASE_TTL: Duration = Duration::from_secs(1);
/// Rate of a stream that lost its lease; reserved for twice as many streams as a route has ports.
const FLOOR: &str = "64kbps";
/// The host that sends and the host that receives.
pub const SENDER: &str = "sandiego";
/// See [`SENDER`].
pub const RECEIVER: &str = "tokyo";

/// The network at one scale.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    scale: Ratio,
}

impl Net {
    /// The network with capacities, ports and queues multiplied by `scale`; `None` when a route would have
    /// less than 1 Mbps or more than ten times its real capacity.
    pub fn new(scale: Ratio) -> Option<Self> {
        let net = Self { scale };
        let least = ROUTES
            .iter()
            .filter_map(|r| net.scaled(r.capacity_mbps))
            .map(BitRate::bps)
            .min()?;
        let sane = least >= 1_000_000 && u128::from(scale.num()) <= 10 * u128::from(scale.den());
        sane.then_some(net)
    }

    fn scaled(&self, mbps: u32) -> Option<BitRate> {
        BitRate::from_mbps(mbps).checked_mul_ratio(self.scale)
    }

    /// Frame-level capacity of a route at this scale.
    pub fn capacity(&self, route: &Route) -> BitRate {
        self.scaled(route.capacity_mbps).unwrap_or(BitRate::MIN)
    }

    /// What the plan has for each port of a route: its capacity without headroom, in equal parts.
    pub fn port_share(&self, route: &Route) -> Option<BitRate> {
        let usable = Ratio::new(1_000 - HEADROOM_PERMILLE, 1_000 * route.ports.len() as u64).ok()?;
        self.capacity(route).checked_mul_ratio(usable)
    }

    /// Frame-level capacity of all routes in sum.
    pub fn capacity_sum_bps(&self) -> u64 {
        ROUTES.iter().map(|r| self.capacity(r).bps()).sum()
    }

    /// Address of a port: one subnet per port, one second byte per route.
    fn subnet(route: usize, port: usize) -> String {
        format!("10.{}.{}", route + 1, port + 1)
    }

    /// The receiver's address behind each port, in the order of [`ROUTES`] and their ports.
    pub fn receiver_addresses(&self) -> Vec<String> {
        ports()
            .map(|(r, p, _)| format!("{}.2", Self::subnet(r, p)))
            .collect()
    }

    /// The topology, in the testbed's own form.
    pub fn topology(&self) -> String {
        let mut text = String::from("name = \"sc2003\"\n");
        let wire_bps = self.scaled(PORT_L1_MBPS).unwrap_or(BitRate::MIN).bps();
        for (host, gateway, last) in [(SENDER, "sandiego-gw", 1), (RECEIVER, "tokyo-gw", 2)] {
            let _ = writeln!(text, "[[router]]\nname = \"{gateway}\"");
            let _ = writeln!(text, "[[host]]\nname = \"{host}\"");
            for (r, p, name) in ports() {
                let address = Self::subnet(r, p);
                let _ = writeln!(
                    text,
                    "[[host.port]]\nname = \"{name}\"\nmtu = \"{MTU_BYTES}B\"\nwire = \"{wire_bps}bps\"\n\
                     address = \"{address}.{last}/24\"\nrouter = \"{gateway}\"\nqueue = \"64MiB\""
                );
            }
        }
        for (r, route) in ROUTES.iter().enumerate() {
            let queue_bytes = u128::from(route.capacity_mbps)
                * u128::from(QUEUE_BYTES_PER_MBPS)
                * u128::from(self.scale.num())
                / u128::from(self.scale.den());
            let carries: Vec<String> = (0..route.ports.len())
                .map(|p| format!("\"{}.0/24\"", Self::subnet(r, p)))
                .collect();
            let _ = writeln!(
                text,
                "[[link]]\nname = \"{}\"\nbetween = [\"sandiego-gw\", \"tokyo-gw\"]\ncapacity = \"{}bps\"\n\
                 one_way_delay = \"{}us\"\nqueue = \"{queue_bytes}B\"\ncarries = [{}]",
                route.name,
                self.capacity(route).bps(),
                route.one_way_delay_us,
                carries.join(", ")
            );
        }
        text
    }

    /// The rate plan of the sending site, in the service's own form.
    pub fn plan(&self) -> String {
        let mut text = format!("ttl = \"{}ms\"\n", LEASE_TTL.as_millis());
        for (r, route) in ROUTES.iter().enumerate() {
            let _ = writeln!(
                text,
                "[[route]]\nname = \"{}\"\ncapacity = \"{}bps\"\nheadroom = \"{HEADROOM}\"\nto = [\"10.{}.0.0/16\"]\n\
                 floor = \"{FLOOR}\"\nmax_streams = {}",
                route.name,
                self.capacity(route).bps(),
                r + 1,
                2 * route.ports.len()
            );
        }
        text
    }
}

/// Every port: index of its route, index in the route, name.
pub fn ports() -> impl Iterator<Item = (usize, usize, &'static str)> {
    ROUTES
        .iter()
        .enumerate()
        .flat_map(|(r, route)| route.ports.iter().enumerate().map(move |(p, name)| (r, p, *name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_ocean() {
        let net = Net::new(Ratio::new(1, 5).unwrap()).unwrap();
        assert_eq!(net.capacity_sum_bps(), 780_000_000);
        assert_eq!(
            net.receiver_addresses(),
            ["10.1.1.2", "10.1.2.2", "10.1.3.2", "10.2.1.2", "10.3.1.2"]
        );
        let shares = ROUTES.iter().map(|r| net.port_share(r).map(BitRate::bps));
        assert!(shares.eq([Some(157_600_000), Some(98_500_000), Some(197_000_000)]));
        assert_eq!(
            HEADROOM,
            format!("{}.{}%", HEADROOM_PERMILLE / 10, HEADROOM_PERMILLE % 10)
        );
        let topology = kuroshio_testbed::Topology::from_toml(&net.topology());
        assert!(topology.is_ok(), "{:?}\n{}", topology.err(), net.topology());
    }

    #[test]
    fn scales_that_make_no_network_are_refused() {
        assert!(Net::new(Ratio::new(1, 1_000).unwrap()).is_none());
        assert!(Net::new(Ratio::new(11, 1).unwrap()).is_none());
        assert!(Net::new(Ratio::new(1, 1).unwrap()).is_some());
    }
}
