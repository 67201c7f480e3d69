//! Which metadata service a client speaks to: one of those that its ticket names or that it was told of since.
//!
//! ```text
//!   connected to B ──ends, or does not answer the network──> C ──refuses──> A ──answers──> connected to A
//! ```
//!
//! All services of a grid have one key and one catalog, so any of them is as good as another. The first one is
//! chosen by chance: clients spread over them.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kuroshio_service::{Endpoint, MAX_ADDRESSES, Security, ServiceError, Ticket, check_address};

use crate::connection::Connection;
use crate::error::ClientError;

/// The services of a grid, and the connection to one of them.
pub struct Services {
    security: Security,
    state: Mutex<State>,
}

struct State {
    addresses: Vec<String>,
    /// The one in use, or tried last.
    at: usize,
    connection: Option<Arc<Connection>>,
}

impl Services {
    /// Those of a ticket; connects to one.
    pub fn connect(ticket: &Ticket) -> Result<Self, ClientError> {
        let addresses = ticket
            .addresses()
            .split('+')
            .map(str::to_owned)
            .collect::<Vec<_>>();
        let chance = RandomState::new().hash_one(std::process::id());
        let at = usize::try_from(chance % addresses.len().max(1) as u64).unwrap_or_default();
        let services = Self {
            security: Endpoint::from_ticket(ticket).security().clone(),
            state: Mutex::new(State {
                addresses,
                at,
                connection: None,
            }),
        };
        services.connection()?;
        Ok(services)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection; if it has ended, one to the next service that answers.
    pub fn connection(&self) -> Result<Arc<Connection>, ClientError> {
        let mut state = self.state();
        if let Some(connection) = state.connection.as_ref().filter(|c| !c.is_ended()) {
            return Ok(connection.clone());
        }
        // After a broken connection its own service comes last.
        let broken = usize::from(state.connection.take().is_some());
        let count = state.addresses.len();
        let mut first = None;
        for step in 0..count {
            let at = (state.at + broken + step) % count;
            let Some(address) = state.addresses.get(at) else {
                continue;
            };
            match Connection::open(address, &self.security, count > 1) {
                Ok(connection) => {
                    let connection = Arc::new(connection);
                    state.at = at;
                    state.connection = Some(connection.clone());
                    return Ok(connection);
                }
                // Worth trying another one; the first one's words are told.
                Err(e @ ClientError::Service(ServiceError::Peer { .. } | ServiceError::WrongPin { .. })) => {
                    first.get_or_insert(e);
                }
                Err(e) => return Err(e),
            }
        }
        Err(first.unwrap_or_else(|| ClientError::Invalid("a ticket without an address".into())))
    }

    /// The address of the service in use.
    pub fn current(&self) -> String {
        let state = self.state();
        state.addresses.get(state.at).cloned().unwrap_or_default()
    }

    /// All addresses that are known, joined by `+`.
    pub fn addresses(&self) -> String {
        self.state().addresses.join("+")
    }

    /// The grid says which services it has: those that are not known yet are used from now on. Says whether
    /// there was one.
    pub fn learn(&self, addresses: &[String]) -> bool {
        let mut state = self.state();
        let before = state.addresses.len();
        for address in addresses {
            if state.addresses.len() < MAX_ADDRESSES
                && !state.addresses.contains(address)
                && check_address(address).is_ok()
            {
                state.addresses.push(address.clone());
            }
        }
        state.addresses.len() > before
    }
}
