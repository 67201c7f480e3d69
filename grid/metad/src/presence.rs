//! Services beside each other on one catalog: each records the nodes that speak to it and itself, and reads what
//! the others have recorded.
//!
//! ```text
//!   node ──heartbeat──> service A ──Hear (every record_every)──> catalog ──ListPresence (every LOOK_EVERY)──> B, C
//! ```
//!
//! A service that is alone (SQLite) only records; nobody reads it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_catalog as cat;
use kuroshio_catalog::{Presence, PresenceKind};
use kuroshio_proto::v1::Failure;
use kuroshio_service::MAX_ADDRESSES;

use crate::server::Inner;

/// Longest time between two records.
const RECORD_EVERY: Duration = Duration::from_secs(2);
/// How often the others' records are read.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A service whose record stands still for so long is named to nobody any more.
const GONE_AFTER: Duration = Duration::from_secs(600);

/// The services of the grid as this one sees them.
#[derive(Default)]
pub struct Services(Mutex<State>);

#[derive(Default)]
struct State {
    me: String,
    recorded: Option<Instant>,
    looked: Option<Instant>,
    /// The other services by address: their record, and since when it has stood there.
    others: HashMap<String, (u64, Instant)>,
}

impl Services {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where this service is reached.
    pub fn set_me(&self, address: &str) {
        address.clone_into(&mut self.state().me);
    }

    /// Addresses of all services that were there lately, this one first.
    pub fn services(&self) -> Vec<String> {
        let state = self.state();
        let lately = |since: &Instant| since.elapsed() < GONE_AFTER;
        let mut others = state
            .others
            .iter()
            .filter(|(_, (_, since))| lately(since))
            .map(|(address, _)| address.clone())
            .collect::<Vec<_>>();
        others.sort();
        let all = std::iter::once(state.me.clone()).chain(others);
        all.take(MAX_ADDRESSES).collect()
    }

    /// Takes in what was read.
    fn learn(&self, records: &[Presence], now: Instant) {
        let mut state = self.state();
        let me = state.me.clone();
        for record in records {
            if record.kind != PresenceKind::Service || record.name == me {
                continue;
            }
            match state.others.get_mut(&record.name) {
                Some((beat, _)) if *beat == record.beat => {}
                Some(known) => *known = (record.beat, now),
                None => {
                    state.others.insert(record.name.clone(), (record.beat, now));
                }
            }
        }
        let names = |address: &String| records.iter().any(|r| r.name == *address);
        state.others.retain(|address, _| names(address));
    }

    /// Those whose record stands still for too long, with that record.
    fn gone(&self, now: Instant) -> Vec<(String, u64)> {
        let state = self.state();
        let old = state
            .others
            .iter()
            .filter(|(_, (_, since))| now.duration_since(*since) >= GONE_AFTER);
        old.map(|(address, (beat, _))| (address.clone(), *beat)).collect()
    }

    fn is_due(&self, every: Duration, what: impl FnOnce(&mut State) -> &mut Option<Instant>) -> bool {
        let mut state = self.state();
        let last = what(&mut state);
        if last.is_some_and(|at| at.elapsed() < every) {
            return false;
        }
        *last = Some(Instant::now());
        true
    }
}

impl Inner {
    /// Reads what the other services have recorded, now.
    pub async fn listen(&self) -> Result<(), Failure> {
        if self.catalog.is_shared() {
            let records = self.ask(&self.service(), cat::ListPresence {}).await?;
            self.registry.learn(&self.worker, records);
        }
        Ok(())
    }

    /// Records what nodes have said, when it is time or `now`, and reads what the other services have recorded.
    pub async fn record(&self, now: bool) -> Result<(), Failure> {
        let service = self.service();
        let third = Duration::from_millis(self.config.timing.down_after_ms / 3);
        let every = if now {
            Duration::ZERO
        } else {
            RECORD_EVERY.min(third)
        };
        if self.presence.is_due(every, |s| &mut s.recorded) {
            let (reports, mut heard) = self.registry.reports(&self.worker);
            if !reports.is_empty() {
                self.ask(&service, cat::Heartbeat { reports }).await?;
            }
            if self.catalog.is_shared() {
                heard.push(Presence {
                    kind: PresenceKind::Service,
                    name: self.presence.state().me.clone(),
                    via: self.worker.clone(),
                    beat: 0,
                    host: String::new(),
                    spool: String::new(),
                    objects: 0,
                    closed: false,
                });
            }
            if !heard.is_empty() {
                self.ask(&service, cat::Hear { heard }).await?;
                let records = self.ask(&service, cat::ListPresence {}).await?;
                self.registry.set_beats(&records);
            }
        }
        if self.catalog.is_shared() && self.presence.is_due(LOOK_EVERY, |s| &mut s.looked) {
            let records = self.ask(&service, cat::ListPresence {}).await?;
            let before = self.presence.services();
            self.presence.learn(&records, Instant::now());
            self.registry.learn(&self.worker, records);
            for (name, beat) in self.presence.gone(Instant::now()) {
                let kind = PresenceKind::Service;
                self.ask(&service, cat::Forget { kind, name, beat }).await?;
            }
            let services = self.presence.services();
            if services != before {
                tracing::info!(?services, "metadata services of the grid");
                self.keep_admin_ticket(&services);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, beat: u64) -> Presence {
        Presence {
            kind: PresenceKind::Service,
            name: name.into(),
            via: "w".into(),
            beat,
            host: String::new(),
            spool: String::new(),
            objects: 0,
            closed: false,
        }
    }

    #[test]
    fn services_come_and_go() {
        let services = Services::default();
        services.set_me("h:1");
        let start = Instant::now();
        services.learn(&[record("h:1", 9), record("h:3", 1), record("h:2", 1)], start);
        assert_eq!(services.services(), ["h:1", "h:2", "h:3"]);
        let later = start + GONE_AFTER;
        services.learn(&[record("h:1", 10), record("h:3", 1), record("h:2", 2)], later);
        assert_eq!(services.gone(later), [("h:3".to_owned(), 1)]);
        services.learn(&[record("h:2", 2)], later);
        assert_eq!(
            services.services(),
            ["h:1", "h:2"],
            "what was forgotten is not named"
        );
    }
}
