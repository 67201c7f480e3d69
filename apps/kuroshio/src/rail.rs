//! `--rail auto|RAIL` of verbs that move data: binds the process to a rail before it starts threads.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use kuroshio_rail::{Binding, RailError, Roots, Source, bind, discover, find, interface_of};
use kuroshio_tune::link::default_dev;

use crate::error::Failure;

impl From<RailError> for Failure {
    fn from(e: RailError) -> Self {
        if e.is_bad_input() {
            Self::usage(e.to_string())
        } else {
            Self::failed(e.to_string())
        }
    }
}

/// The option.
#[derive(clap::Args, Clone, Default)]
pub struct RailFlag {
    /// Bind threads and memory to a rail: its number, PCI address or interface (`kuroshio rail ls`); auto: the
    /// rail of the card that leads to the other side
    #[arg(long, value_name = "auto|RAIL")]
    rail: Option<String>,
}

impl RailFlag {
    /// Binds the calling thread and all that it starts later. `peer` (host and port) tells where `auto` leads; without it, the
    /// default route does.
    pub fn bind(&self, peer: Option<(&str, u16)>) -> Result<(), Failure> {
        self.bind_to(|| peer.and_then(route_to))
    }

    /// As [`bind`](Self::bind), for a service: `auto` is the rail of the interface that has the address where it listens; the
    /// default route's where it listens everywhere.
    pub fn bind_listening(&self, listen: Option<IpAddr>) -> Result<(), Failure> {
        let own = listen.filter(|ip| !ip.is_unspecified());
        self.bind_to(|| own.and_then(|ip| interface_of(ip).ok().flatten()))
    }

    /// As [`bind`](Self::bind), where an interface is named or its address is known.
    pub fn bind_to(&self, interface: impl FnOnce() -> Option<String>) -> Result<(), Failure> {
        let Some(name) = &self.rail else { return Ok(()) };
        let machine = discover(&Source::Here, &Roots::default())?;
        let interface = interface().or_else(default_dev);
        let rail = find(&machine, name, interface.as_deref())?;
        let binding = Binding {
            pus: rail.pus.clone(),
            memory_node: rail.node,
        };
        for note in bind(&machine, &binding)? {
            eprintln!("kuroshio: rail {}: {note}", rail.id);
        }
        Ok(())
    }
}

/// The interface by which a host is reached: a UDP socket that is connected has chosen its address, and has sent
/// nothing.
pub fn route_to((host, port): (&str, u16)) -> Option<String> {
    let peer: SocketAddr = (host, port.max(1)).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = if peer.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    let local = socket.local_addr().ok()?.ip().to_canonical();
    interface_of(local).ok().flatten()
}
