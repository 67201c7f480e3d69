//! Who may, and that nobody reads: Noise IK with static keys, a seal on every datagram, a replay window for each lane.
//!
//! ```text
//!   initiator (the smaller public key)                        responder
//!      kind 1 | session | 0       | e, es, s, ss, {time, boot} | mac  -->   known key? time newer than the last? -> session, waits
//!      kind 2 | session | answers | e, ee, se, {boot}          | mac  <--
//!      first sealed datagram                                          -->   session is used from now on
//! ```
//!
//! `Noise_IK_25519_AESGCM_BLAKE2s`, or with `ChaChaPoly` where the initiator's processor has no AES instructions (second byte of its message: 1, 0; the
//! name is part of what the handshake proves). (Noise specification, revision 34), as WireGuard (Donenfeld, NDSS 2017) has it, whose
//! `mac` is here too: a keyed BLAKE3 of the message under a key made of the receiver's public key, so that garbage is turned away
//! for one hash. Handshakes with a right mac are worked on [`HANDSHAKES_PER_S`] times a second at most.
//!
//! `boot` is drawn when a process starts: a peer with another one has begun anew, and so does the bundle. A session is renewed by the
//! initiator every [`RENEW_AFTER`] or [`RENEW_AFTER_DATAGRAMS`], and when nothing was heard for [`SILENCE`]. The one before stays for receiving.

use std::cell::Cell;
use std::time::Duration;

use kuroshio_core::lane::{LANES_MAX, Novelty, Seen, wire};
use ring::rand::{SecureRandom, SystemRandom};
use snow::{
    Builder, HandshakeState, StatelessTransportState,
    params::DHChoice,
    resolvers::{CryptoResolver, DefaultResolver},
};

use crate::{
    LaneError,
    key::{KEY_BYTES, PrivateKey, PublicKey},
};

const MAC_CONTEXT: &str = "kuroshio 2026 lane handshake mac";
/// Kinds of the outside.
const INIT: u8 = 1;
const RESPONSE: u8 = 2;
const HEAD_BYTES: usize = 12;
const MAC_BYTES: usize = 16;
/// Longest message of a handshake.
pub const HANDSHAKE_MAX: usize = 256;
/// Most handshakes that are worked on in a second.
pub const HANDSHAKES_PER_S: u32 = 20;
/// Between two attempts.
pub const RETRY_EVERY: Duration = Duration::from_millis(250);
/// Life of a session before it is renewed.
pub const RENEW_AFTER: Duration = Duration::from_secs(3_600);
/// Datagrams of a session, both ways, after which it is renewed: AES-GCM is good for 2^28 of up to 2 KiB by one key (RFC 9001, appendix B.1.1).
pub const RENEW_AFTER_DATAGRAMS: u64 = 1 << 27;
/// Silence after which the initiator tries anew.
pub const SILENCE: Duration = Duration::from_secs(5);
/// Numbers of a lane that are told apart from repeats.
pub const REPLAY_WINDOW: u64 = 1 << 14;

/// What seals datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cipher {
    ChaCha,
    Aes,
}

impl Cipher {
    /// What this processor is quicker with. Without instructions for it AES is slow.
    fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        let has_aes =
            std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Self::Aes } else { Self::ChaCha }
    }

    fn of(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::ChaCha),
            1 => Some(Self::Aes),
            _ => None,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::ChaCha => 0,
            Self::Aes => 1,
        }
    }

    fn pattern(self) -> &'static str {
        match self {
            Self::ChaCha => "Noise_IK_25519_ChaChaPoly_BLAKE2s",
            Self::Aes => "Noise_IK_25519_AESGCM_BLAKE2s",
        }
    }
}

/// A new pair of keys: private, public.
pub(crate) fn generate_pair() -> Result<([u8; KEY_BYTES], [u8; KEY_BYTES]), LaneError> {
    let pair = Builder::new(Cipher::ChaCha.pattern().parse()?).generate_keypair()?;
    let key = |bytes: Vec<u8>| bytes.try_into().map_err(|_| LaneError::Noise(snow::Error::Dh));
    Ok((key(pair.private)?, key(pair.public)?))
}

/// The public key of a private one.
pub(crate) fn public_of(secret: &[u8; KEY_BYTES]) -> Result<[u8; KEY_BYTES], LaneError> {
    let mut dh = DefaultResolver
        .resolve_dh(&DHChoice::Curve25519)
        .ok_or(LaneError::Noise(snow::Error::Dh))?;
    dh.set(secret);
    dh.pubkey()
        .try_into()
        .map_err(|_| LaneError::Noise(snow::Error::Dh))
}

struct Session {
    ours: u32,
    theirs: u32,
    boot: u64,
    born: Duration,
    noise: StatelessTransportState,
    replay: Vec<Seen>,
    /// Datagrams sealed and opened.
    used: Cell<u64>,
}

impl Session {
    fn is_used_up(&self) -> bool {
        self.used.get() > RENEW_AFTER_DATAGRAMS
    }

    fn count(&self) {
        self.used.set(self.used.get().saturating_add(1));
    }
}

struct Attempt {
    ours: u32,
    noise: HandshakeState,
}

/// What was turned away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SealCounters {
    /// Datagrams of no known form.
    pub garbage: u64,
    /// Datagrams of a session that is not known.
    pub strangers: u64,
    /// Datagrams with a wrong seal.
    pub forged: u64,
    /// Datagrams that had been there before.
    pub replayed: u64,
    /// Handshake messages with a right mac that were refused, or too many.
    pub refused: u64,
    /// Sessions made.
    pub sessions: u64,
}

/// What a datagram turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened {
    /// Sealed: its lane's number; the inside is in the buffer.
    Inside(u64),
    /// A handshake message that is to be answered with this.
    Answer(Vec<u8>),
    /// Nothing more to do.
    Nothing,
}

/// One end's keys and sessions.
pub struct Seal {
    key: PrivateKey,
    peer: PublicKey,
    boot: u64,
    /// What this end proposes.
    cipher: Cipher,
    random: SystemRandom,
    current: Option<Session>,
    previous: Option<Session>,
    /// Made by the responder, not used before the initiator has.
    waiting: Option<Session>,
    attempt: Option<Attempt>,
    next_attempt: Duration,
    last_heard: Duration,
    last_time: u64,
    bucket: (Duration, u32),
    renewed_peer: bool,
    /// What was turned away.
    pub counters: SealCounters,
}

fn mac_key(of: &PublicKey) -> [u8; 32] {
    blake3::derive_key(MAC_CONTEXT, &of.0)
}

impl Seal {
    /// An end without a session.
    ///
    /// # Errors
    /// When both ends have the same key, or no random numbers can be had.
    pub fn new(key: PrivateKey, peer: PublicKey) -> Result<Self, LaneError> {
        if key.public == peer {
            return Err(LaneError::Bad(format!(
                "peer {peer} is this end's own key: name the other end's"
            )));
        }
        let mut seal = Self {
            key,
            peer,
            boot: 0,
            cipher: Cipher::here(),
            random: SystemRandom::new(),
            current: None,
            previous: None,
            waiting: None,
            attempt: None,
            next_attempt: Duration::ZERO,
            last_heard: Duration::ZERO,
            last_time: 0,
            bucket: (Duration::ZERO, 0),
            renewed_peer: false,
            counters: SealCounters::default(),
        };
        let mut boot = [0; 8];
        seal.fill(&mut boot)?;
        seal.boot = u64::from_be_bytes(boot);
        Ok(seal)
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), LaneError> {
        self.random.fill(bytes).map_err(|_| LaneError::Io {
            what: "random numbers".into(),
            source: std::io::Error::other("the system gives none"),
        })
    }

    fn initiates(&self) -> bool {
        self.key.public.0 < self.peer.0
    }

    /// Whether datagrams can be sealed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.current.is_some()
    }

    /// Whether, since the last question, the peer turned out to have begun anew.
    pub fn take_renewed_peer(&mut self) -> bool {
        std::mem::take(&mut self.renewed_peer)
    }

    /// A message to send on every lane now. `now` counts from the start, `unix_ns` is the time of day.
    ///
    /// # Errors
    /// When the library or the system refuses.
    pub fn poll(&mut self, now: Duration, unix_ns: u64) -> Result<Option<Vec<u8>>, LaneError> {
        if !self.initiates() || now < self.next_attempt {
            return Ok(None);
        }
        let due = match &self.current {
            None => true,
            Some(session) => {
                now > session.born + RENEW_AFTER || session.is_used_up() || now > self.last_heard + SILENCE
            }
        };
        if !due {
            return Ok(None);
        }
        self.next_attempt = now + RETRY_EVERY;
        let mut noise = Builder::new(self.cipher.pattern().parse()?)
            .local_private_key(&self.key.secret)?
            .remote_public_key(&self.peer.0)?
            .build_initiator()?;
        let ours = self.index()?;
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&unix_ns.to_be_bytes());
        payload[8..].copy_from_slice(&self.boot.to_be_bytes());
        let message = self.message(&mut noise, (INIT, self.cipher), ours, 0, &payload)?;
        self.attempt = Some(Attempt { ours, noise });
        Ok(Some(message))
    }

    /// When [`Seal::poll`] may have something to send.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Duration> {
        if !self.initiates() {
            return None;
        }
        let due = match &self.current {
            None => Duration::ZERO,
            Some(session) if session.is_used_up() => Duration::ZERO,
            Some(session) => (session.born + RENEW_AFTER).min(self.last_heard + SILENCE),
        };
        Some(due.max(self.next_attempt) + Duration::from_nanos(1))
    }

    fn index(&self) -> Result<u32, LaneError> {
        let mut index = [0; 4];
        self.fill(&mut index)?;
        Ok(u32::from_be_bytes(index))
    }

    fn message(
        &self,
        noise: &mut HandshakeState,
        (kind, cipher): (u8, Cipher),
        ours: u32,
        theirs: u32,
        payload: &[u8],
    ) -> Result<Vec<u8>, LaneError> {
        let mut message = vec![0; HANDSHAKE_MAX];
        message[0] = kind;
        message[1] = cipher.byte();
        message[4..8].copy_from_slice(&ours.to_be_bytes());
        message[8..12].copy_from_slice(&theirs.to_be_bytes());
        let written = noise.write_message(payload, &mut message[HEAD_BYTES..HANDSHAKE_MAX - MAC_BYTES])?;
        message.truncate(HEAD_BYTES + written);
        let mac = blake3::keyed_hash(&mac_key(&self.peer), &message);
        message.extend_from_slice(&mac.as_bytes()[..MAC_BYTES]);
        Ok(message)
    }

    /// Takes a datagram that arrived on the socket of `lane`. A sealed one's inside is put into `inside`.
    pub fn open(&mut self, now: Duration, lane: u8, datagram: &[u8], inside: &mut Vec<u8>) -> Opened {
        match datagram.first() {
            Some(&wire::KIND_SEALED) => self.open_sealed(now, lane, datagram, inside),
            Some(&INIT | &RESPONSE) => match self.handshake(now, datagram) {
                Ok(Some(answer)) => Opened::Answer(answer),
                Ok(None) => Opened::Nothing,
                Err(_) => {
                    self.counters.refused += 1;
                    Opened::Nothing
                }
            },
            _ => {
                self.counters.garbage += 1;
                Opened::Nothing
            }
        }
    }

    fn open_sealed(&mut self, now: Duration, lane: u8, datagram: &[u8], inside: &mut Vec<u8>) -> Opened {
        let Some((said, index, number)) = wire::read_outside(datagram).filter(|(said, ..)| *said == lane)
        else {
            self.counters.garbage += 1;
            return Opened::Nothing;
        };
        let sessions = [&mut self.current, &mut self.waiting, &mut self.previous];
        let found = sessions.into_iter().flatten().find(|s| s.ours == index);
        let Some(session) = found else {
            self.counters.strangers += 1;
            return Opened::Nothing;
        };
        let Some(replay) = session.replay.get_mut(usize::from(said)) else {
            return Opened::Nothing;
        };
        if replay.check(number) != Novelty::New {
            self.counters.replayed += 1;
            return Opened::Nothing;
        }
        let sealed = &datagram[wire::OUTSIDE_BYTES..];
        inside.resize(sealed.len(), 0);
        let Ok(len) = session
            .noise
            .read_message(wire::nonce(said, number), sealed, inside)
        else {
            self.counters.forged += 1;
            return Opened::Nothing;
        };
        inside.truncate(len);
        // Only what is genuine moves the window.
        replay.note(number);
        session.count();
        self.last_heard = now;
        if self.waiting.as_ref().is_some_and(|s| s.ours == index)
            && let Some(session) = self.waiting.take()
        {
            self.establish(session);
        }
        Opened::Inside(number)
    }

    fn establish(&mut self, session: Session) {
        let known = self.current.as_ref().map(|s| s.boot);
        if known.is_some_and(|boot| boot != session.boot) {
            // What an earlier life of the peer sent must not reach the new bundle.
            self.renewed_peer = true;
            self.previous = None;
            self.current = Some(session);
        } else {
            self.previous = self.current.replace(session);
        }
        self.counters.sessions += 1;
    }

    fn handshake(&mut self, now: Duration, message: &[u8]) -> Result<Option<Vec<u8>>, LaneError> {
        let body = message.len().checked_sub(MAC_BYTES).filter(|n| *n > HEAD_BYTES);
        let Some(body) = body.filter(|_| message.len() <= HANDSHAKE_MAX) else {
            self.counters.garbage += 1;
            return Ok(None);
        };
        let (signed, mac) = message.split_at(body);
        let want = blake3::keyed_hash(&mac_key(&self.key.public), signed);
        let different = want.as_bytes().iter().zip(mac).fold(0, |d, (a, b)| d | (a ^ b));
        if different != 0 {
            self.counters.garbage += 1;
            return Ok(None);
        }
        if now >= self.bucket.0 + Duration::from_secs(1) {
            self.bucket = (now, 0);
        }
        self.bucket.1 += 1;
        if self.bucket.1 > HANDSHAKES_PER_S {
            self.counters.refused += 1;
            return Ok(None);
        }
        let word =
            |at: usize| u32::from_be_bytes([signed[at], signed[at + 1], signed[at + 2], signed[at + 3]]);
        let (theirs, ours) = (word(4), word(8));
        if signed[0] == INIT {
            let cipher = Cipher::of(signed[1]).ok_or(LaneError::Noise(snow::Error::Input))?;
            self.respond(now, cipher, theirs, &signed[HEAD_BYTES..]).map(Some)
        } else {
            self.finish(now, ours, theirs, &signed[HEAD_BYTES..])
                .map(|()| None)
        }
    }

    fn respond(
        &mut self,
        now: Duration,
        cipher: Cipher,
        theirs: u32,
        noise_message: &[u8],
    ) -> Result<Vec<u8>, LaneError> {
        let refused = || LaneError::Noise(snow::Error::Input);
        if self.initiates() {
            return Err(refused());
        }
        let mut noise = Builder::new(cipher.pattern().parse()?)
            .local_private_key(&self.key.secret)?
            .build_responder()?;
        let mut payload = [0; HANDSHAKE_MAX];
        let len = noise.read_message(noise_message, &mut payload)?;
        let time = number(&payload[..len], 0).ok_or_else(refused)?;
        let boot = number(&payload[..len], 8).ok_or_else(refused)?;
        if noise.get_remote_static() != Some(&self.peer.0[..]) || time <= self.last_time {
            return Err(refused());
        }
        self.last_time = time;
        let ours = self.index()?;
        let answer = self.message(
            &mut noise,
            (RESPONSE, cipher),
            ours,
            theirs,
            &self.boot.to_be_bytes(),
        )?;
        self.waiting = Some(session(noise, ours, theirs, boot, now)?);
        Ok(answer)
    }

    fn finish(&mut self, now: Duration, ours: u32, theirs: u32, message: &[u8]) -> Result<(), LaneError> {
        let refused = || LaneError::Noise(snow::Error::Input);
        let attempt = self
            .attempt
            .as_mut()
            .filter(|a| a.ours == ours)
            .ok_or_else(refused)?;
        let mut payload = [0; HANDSHAKE_MAX];
        // A message that does not fit leaves the attempt as it was.
        let len = attempt.noise.read_message(message, &mut payload)?;
        let boot = number(&payload[..len], 0).ok_or_else(refused)?;
        let attempt = self.attempt.take().ok_or_else(refused)?;
        self.last_heard = now;
        let session = session(attempt.noise, ours, theirs, boot, now)?;
        self.establish(session);
        Ok(())
    }

    /// Seals an inside as a datagram of a lane and appends it. `false`, and `out` as it was, without a session.
    pub fn seal(&self, lane: u8, lane_number: u64, inside: &[u8], out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let Some(session) = &self.current else {
            return false;
        };
        wire::write_outside(out, lane, session.theirs, lane_number);
        let inside_at = out.len();
        out.resize(inside_at + inside.len() + wire::SEAL_BYTES, 0);
        let room = &mut out[inside_at..];
        let sealed = session
            .noise
            .write_message(wire::nonce(lane, lane_number), inside, room);
        if sealed.is_err() {
            out.truncate(start);
        }
        session.count();
        sealed.is_ok()
    }
}

fn session(
    noise: HandshakeState,
    ours: u32,
    theirs: u32,
    boot: u64,
    born: Duration,
) -> Result<Session, LaneError> {
    Ok(Session {
        ours,
        theirs,
        boot,
        born,
        noise: noise.into_stateless_transport_mode()?,
        replay: (0..LANES_MAX).map(|_| Seen::new(REPLAY_WINDOW)).collect(),
        used: Cell::new(0),
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

#[cfg(test)]
#[path = "seal_tests.rs"]
mod tests;
