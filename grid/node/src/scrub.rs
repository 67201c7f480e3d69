//! The scrub of a node: reads its spool, slowly and for ever, and tells the grid of what is damaged, which is then made anew
//! from another replica.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use kuroshio_client::{Grid, v1};
use kuroshio_store::{Finding, ScrubOptions, Stop};

use crate::server::Shared;

/// Passes until the session is over.
pub fn run(shared: &Shared, grid: &Grid, stop: &Stop, over: &Receiver<()>) {
    let (rate_bytes_per_s, pause_s) = shared.scrub;
    let options = ScrubOptions {
        rate_bytes_per_s,
        quarantine: true,
    };
    while !stop.is_stopped() {
        let mut tell = |found: &Finding| {
            tracing::warn!(object = %found.id, "damaged: {}", found.damage.what);
            if found.quarantined
                && let Err(e) = grid.damaged(vec![name_of(found.id)])
            {
                // It is not given any more; the next look at what the catalog believes finds it.
                tracing::warn!(object = %found.id, "cannot tell of the damage: {e}");
            }
        };
        match shared.store.scrub_pass(&options, stop, &mut tell) {
            Ok(report) if report.complete => {
                tracing::info!(
                    pass = report.pass,
                    objects = report.objects,
                    findings = report.findings,
                    "scrub"
                );
            }
            Ok(_) => return,
            Err(e) => tracing::warn!("scrub: {e}"),
        }
        if over.recv_timeout(Duration::from_secs(pause_s)) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// An object as the grid calls it.
pub fn name_of(id: kuroshio_store::ObjectId) -> v1::ObjectName {
    v1::ObjectName {
        inode: id.inode,
        generation: id.generation.into(),
        fragment: id.fragment,
        ..v1::ObjectName::default()
    }
}
