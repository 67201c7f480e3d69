//! Who asks: one connection to the metadata service for each token.
//!
//! ```text
//!   token ──(known)──────────────────────────> session
//!         ──(new)──> connect, look at / ──ok──> session, kept until idle
//!                                      └─refused: 401, nothing kept
//! ```
//!
//! The metadata service checks the token; what is read of its claims here was accepted there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hyper::StatusCode;
use hyper::header::HeaderMap;
use kuroshio_client::{ClientError, Grid, v1};
use kuroshio_service::{Claims, MAX_TOKEN_BYTES, Pin, Ticket, now_unix_s};
use tokio::sync::Semaphore;

use crate::refusal::Refusal;
use crate::{MAX_LOGINS, MAX_SESSIONS, SESSION_IDLE_S, headers};

/// A user's connection.
pub struct Session {
    grid: Grid,
    /// What the token says.
    pub claims: Claims,
    used: Mutex<Instant>,
}

impl Session {
    /// Asks the grid, in a thread that may wait.
    pub async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        question: impl FnOnce(&Grid) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, ClientError> {
        let session = self.clone();
        let asked = tokio::task::spawn_blocking(move || question(&session.grid)).await;
        asked.unwrap_or_else(|e| Err(ClientError::Protocol(e.to_string())))
    }

    /// The connection, for a thread that may wait.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The user, for locks and logs.
    pub fn user(&self) -> &str {
        &self.claims.sub
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn idle(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// All sessions.
pub struct Sessions {
    address: String,
    pin: Pin,
    guest: Option<String>,
    known: Mutex<HashMap<[u8; 32], Arc<Session>>>,
    logins: Semaphore,
}

impl Sessions {
    /// None yet, for the grid at `address`.
    pub fn new(address: &str, pin: Pin, guest: Option<String>) -> Self {
        Self {
            address: address.to_owned(),
            pin,
            guest,
            known: Mutex::default(),
            logins: Semaphore::new(MAX_LOGINS),
        }
    }

    /// The session of a request.
    pub async fn of(&self, headers: &HeaderMap) -> Result<Arc<Session>, Refusal> {
        let unauthorized = |text: String| Refusal::new(StatusCode::UNAUTHORIZED, text);
        let given = token_of(headers)?;
        let token = given.or_else(|| self.guest.clone()).ok_or_else(|| {
            unauthorized(
                "no token: send `Authorization: Bearer TOKEN` (the last part of a ticket of the grid), or the token \
                 as the password of a user of any name"
                    .into(),
            )
        })?;
        let key = *blake3::hash(token.as_bytes()).as_bytes();
        if let Some(session) = self.lock().get(&key).cloned() {
            if session.claims.exp < now_unix_s() {
                return Err(unauthorized(
                    "the token has expired: ask for another ticket".into(),
                ));
            }
            session.touch();
            return Ok(session);
        }
        let ticket = Ticket::new(&self.address, self.pin, token).map_err(|e| unauthorized(e.to_string()))?;
        let Ok(_place) = self.logins.acquire().await else {
            return Err(Refusal::busy("the gateway ends"));
        };
        let opened = tokio::task::spawn_blocking(move || open(&ticket)).await;
        let opened = opened.map_err(|e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
        let session = Arc::new(opened?);
        let left = {
            let mut known = self.lock();
            let left = make_room(&mut known);
            known.insert(key, session.clone());
            left
        };
        // A connection ends with its thread: not for an asynchronous one to wait for.
        tokio::task::spawn_blocking(move || drop(left));
        Ok(session)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Arc<Session>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes out what is idle, and the longest idle one when there are too many.
fn make_room(known: &mut HashMap<[u8; 32], Arc<Session>>) -> Vec<Arc<Session>> {
    let limit = Duration::from_secs(SESSION_IDLE_S);
    let idle = |s: &Arc<Session>| s.idle() > limit || s.claims.exp < now_unix_s();
    let mut out = known
        .iter()
        .filter(|(_, s)| idle(s))
        .map(|(key, _)| *key)
        .collect::<Vec<_>>();
    if known.len() - out.len() >= MAX_SESSIONS
        && let Some((key, _)) = known.iter().max_by_key(|(_, s)| s.idle())
    {
        out.push(*key);
    }
    out.iter().filter_map(|key| known.remove(key)).collect()
}

fn open(ticket: &Ticket) -> Result<Session, Refusal> {
    let grid = Grid::connect(ticket)?;
    match grid.stat(b"/", true) {
        Err(e) if e.code() == Some(v1::Code::Unauthenticated) => return Err(e.into()),
        // A token for a part of the namespace is good, too.
        Ok(_) | Err(ClientError::Failed(_)) => {}
        Err(e) => return Err(e.into()),
    }
    let claims = claims_of(ticket.token()).ok_or_else(|| {
        Refusal::new(
            StatusCode::UNAUTHORIZED,
            "the token has no claims that can be read",
        )
    })?;
    Ok(Session {
        grid,
        claims,
        used: Mutex::new(Instant::now()),
    })
}

fn claims_of(token: &str) -> Option<Claims> {
    let body = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&body).ok()
}

/// The token that a request carries, if it carries one.
fn token_of(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(hyper::header::AUTHORIZATION) else {
        return Ok(None);
    };
    let refused = |text: &str| Refusal::new(StatusCode::UNAUTHORIZED, text);
    let text = headers::text(headers, "authorization").filter(|_| value.len() <= 2 * MAX_TOKEN_BYTES);
    let (scheme, rest) = text
        .and_then(|t| t.split_once(' '))
        .ok_or_else(|| refused("`Authorization` is neither `Bearer TOKEN` nor `Basic BASE64`"))?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Some(rest.trim().to_owned()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(refused(
            "`Authorization` is neither `Bearer TOKEN` nor `Basic BASE64`",
        ));
    }
    let decoded = STANDARD.decode(rest.trim()).ok();
    let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let (_, password) = decoded
        .as_deref()
        .and_then(|pair| pair.split_once(':'))
        .ok_or_else(|| refused("`Authorization: Basic` is not the base64 form of USER:TOKEN"))?;
    Ok(Some(password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(value: &str) -> Result<Option<String>, u16> {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", value.parse().expect("a value"));
        token_of(&headers).map_err(|r| r.status.as_u16())
    }

    #[test]
    fn tokens_come_as_bearer_or_password() {
        assert_eq!(token_of(&HeaderMap::new()).expect("none"), None);
        assert_eq!(found("Bearer a.b.c"), Ok(Some("a.b.c".into())));
        assert_eq!(found("bearer  a.b.c "), Ok(Some("a.b.c".into())));
        // printf 'me:a.b.c' | base64
        assert_eq!(found("Basic bWU6YS5iLmM="), Ok(Some("a.b.c".into())));
        for bad in ["Bearer", "Digest x", "Basic %%", "Basic bWU=", "Basic /w=="] {
            assert_eq!(found(bad), Err(401), "{bad}");
        }
        assert_eq!(
            found(&format!("Bearer {}", "a".repeat(2 * MAX_TOKEN_BYTES))),
            Err(401)
        );
    }
}
