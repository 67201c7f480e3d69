//! Who keeps the rates of a copy's streams, for its report: asked of the kernel for each address that is dialled.
//!
//! A stream tells its socket its rate (`SO_MAX_PACING_RATE`). Where `fq` is at the interface it keeps that rate, else TCP
//! does. `psp` paces classes: root's copies make one for each of their routes ([`classes`]), all streams of it in sum.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};

use kuroshio_core::units::BitRate;
use kuroshio_pace::{Backend, Mode, Own, Temporary, active};
use kuroshio_service::{Endpoint, Paced, Pacer, Route, ServiceError};

/// What was found so far.
#[derive(Clone, Default)]
pub struct PacedBy(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// Who paces, in words.
    words: BTreeSet<String>,
    /// Interfaces where this process has made classes for its streams.
    classes_at: BTreeSet<String>,
}

/// Classes of psp for routes that have a rate, where psp is loaded, this is root's process, and `kuroshio pace apply` has put
/// no rates in force; they go with the value. A class that cannot be made is said, and TCP keeps the pace.
pub fn classes(to: &Endpoint, routes: &[Route], dynamic: bool) -> Vec<Temporary> {
    let mode = if dynamic { Mode::Dynamic } else { Mode::Static };
    let mut own: Vec<Own> = Vec::new();
    for route in routes {
        // A dynamic class is one clock: it fits one stream alone.
        let (Some(rate), false) = (route.rate, dynamic && route.streams > 1) else {
            continue;
        };
        let Some(to) = address(to, route) else { continue };
        // Two routes to one address are one class.
        match own.iter_mut().find(|o| o.to == to) {
            None => own.push(Own { to, rate, mode }),
            Some(same) => {
                let sum = same.rate.bps().saturating_add(rate.bps());
                same.rate = BitRate::new(sum).unwrap_or(same.rate);
            }
        }
    }
    if own.is_empty() {
        return Vec::new();
    }
    Temporary::psp(&own).unwrap_or_else(|e| {
        eprintln!("kuroshio: no class of psp for these streams: {e}");
        Vec::new()
    })
}

/// Where the streams of a route go; nothing where that cannot be known yet: dialling says why.
fn address(to: &Endpoint, route: &Route) -> Option<SocketAddr> {
    let text = to.via_address(route.via.as_deref()).ok()?;
    text.to_socket_addrs().ok()?.next()
}

/// Who keeps the rate that a stream tells its socket, in words.
fn words(there: Option<(Backend, String)>) -> String {
    match there {
        Some((Backend::Fq, dev)) => format!("fq at {dev}"),
        Some((Backend::Psp, dev)) => {
            format!("psp at {dev} where a class is for these streams (kuroshio pace apply), else TCP itself")
        }
        Some((Backend::Tcp, _)) | None => "TCP itself".to_owned(),
    }
}

impl PacedBy {
    /// This process has made classes for its streams.
    pub fn has_classes(&self, own: &[Temporary]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.classes_at.extend(own.iter().map(|t| t.dev().to_owned()));
    }

    /// A stream to an address has a pace.
    pub fn note(&self, to: IpAddr) {
        let there = active(to);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match there {
            Some((Backend::Psp, dev)) if known.classes_at.contains(&dev) => {
                format!("psp at {dev}, in a class of their own")
            }
            other => words(other),
        };
        known.words.insert(text);
    }

    /// Everyone who paces; empty when no stream has a pace.
    pub fn all(&self) -> Vec<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.words.iter().cloned().collect()
    }
}

/// Another pacer's streams, each noted.
pub struct Noting {
    /// Who gives the rates.
    pub inner: Box<dyn Pacer>,
    /// Where it is noted.
    pub by: PacedBy,
}

impl Pacer for Noting {
    fn pace(&self, to: IpAddr, limit: Option<BitRate>) -> Result<Paced, ServiceError> {
        let paced = self.inner.pace(to, limit)?;
        if paced.rate.get().is_some() || paced.rate.follows_window() {
            self.by.note(to);
        }
        Ok(paced)
    }
}
