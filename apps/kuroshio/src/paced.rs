//! Who keeps the rates of a copy's streams, for its report: asked of the kernel for each address that is dialled.
//!
//! A stream tells its socket its rate (`SO_MAX_PACING_RATE`). Where `fq` is at the interface it keeps that rate, else TCP
//! does. `psp` paces classes, so a stream is its own only where a class is for it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use kuroshio_core::units::BitRate;
use kuroshio_pace::{Backend, active};
use kuroshio_service::{Paced, Pacer, ServiceError};

/// What was found so far.
#[derive(Clone, Default)]
pub struct PacedBy(Arc<Mutex<BTreeSet<String>>>);

/// Who keeps the rate that a stream from here to an address tells its socket, in words.
pub fn who(to: IpAddr) -> String {
    match active(to) {
        Some((Backend::Fq, dev)) => format!("fq at {dev}"),
        Some((Backend::Psp, dev)) => {
            format!("psp at {dev} where a class is for these streams (kuroshio pace apply), else TCP itself")
        }
        Some((Backend::Tcp, _)) | None => "TCP itself".to_owned(),
    }
}

impl PacedBy {
    /// A stream to an address has a pace.
    pub fn note(&self, to: IpAddr) {
        let text = who(to);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text);
    }

    /// Everyone who paces; empty when no stream has a pace.
    pub fn all(&self) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().cloned().collect()
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
