//! Tests of [`super`].

use super::*;

fn pair() -> (Seal, Seal) {
    let key = || {
        let (secret, public) = generate_pair().expect("keys");
        assert_eq!(public_of(&secret).expect("public"), public);
        PrivateKey {
            secret,
            public: PublicKey(public),
        }
    };
    let (a, b) = (key(), key());
    let (to_a, to_b) = (a.public, b.public);
    let one = Seal::new(a, to_b).expect("seal");
    let other = Seal::new(b, to_a).expect("seal");
    if one.initiates() {
        (one, other)
    } else {
        (other, one)
    }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn open_both(a: &mut Seal, b: &mut Seal, ms: u64) {
    let mut inside = Vec::new();
    let init = a.poll(at(ms), 1_000 + ms).expect("poll").expect("a message");
    let Opened::Answer(answer) = b.open(at(ms), 0, &init, &mut inside) else {
        panic!("no answer");
    };
    assert_eq!(a.open(at(ms), 1, &answer, &mut inside), Opened::Nothing);
    assert!(a.is_open());
}

fn send(a: &Seal, b: &mut Seal, lane: u8, number: u64, text: &[u8]) -> Opened {
    let (mut datagram, mut inside) = (Vec::new(), Vec::new());
    assert!(a.seal(lane, number, text, &mut datagram));
    let opened = b.open(at(10), lane, &datagram, &mut inside);
    if opened == Opened::Inside(number) {
        assert_eq!(inside, text);
    }
    opened
}

const TEXT: &[u8] = b"sixteen bytes and more";

#[test]
fn a_session_carries_both_ways_once() {
    let (mut a, mut b) = pair();
    open_both(&mut a, &mut b, 0);
    assert!(!b.is_open(), "before the initiator has used it");
    assert_eq!(send(&a, &mut b, 0, 0, TEXT), Opened::Inside(0));
    assert!(b.is_open());
    assert_eq!(send(&b, &mut a, 3, 9, TEXT), Opened::Inside(9));
    // The same number on another lane is another nonce; the same twice is a replay.
    assert_eq!(send(&a, &mut b, 1, 0, TEXT), Opened::Inside(0));
    assert_eq!(send(&a, &mut b, 1, 0, TEXT), Opened::Nothing);
    assert_eq!(b.counters.replayed, 1);
    assert_eq!(
        send(&a, &mut b, 1, REPLAY_WINDOW * 2, TEXT),
        Opened::Inside(REPLAY_WINDOW * 2)
    );
    assert_eq!(
        send(&a, &mut b, 1, 1, TEXT),
        Opened::Nothing,
        "older than the window"
    );
}

/// A handshake's message with another second byte and a right mac.
fn with_cipher(message: &[u8], byte: u8, to: &Seal) -> Vec<u8> {
    let mut changed = message[..message.len() - MAC_BYTES].to_vec();
    changed[1] = byte;
    let mac = blake3::keyed_hash(&mac_key(&to.key.public), &changed);
    changed.extend_from_slice(&mac.as_bytes()[..MAC_BYTES]);
    changed
}

#[test]
fn either_cipher_carries_and_none_can_be_forced() {
    for cipher in [Cipher::ChaCha, Cipher::Aes] {
        let (mut a, mut b) = pair();
        a.cipher = cipher;
        let mut inside = Vec::new();
        let init = a.poll(at(0), 5).expect("poll").expect("a message");
        for byte in [1 - cipher.byte(), 2, 255] {
            let changed = with_cipher(&init, byte, &b);
            assert_eq!(b.open(at(0), 0, &changed, &mut inside), Opened::Nothing, "{byte}");
        }
        assert_eq!(b.counters.refused, 3);
        a.next_attempt = at(0);
        open_both(&mut a, &mut b, 1);
        assert_eq!(send(&a, &mut b, 0, 0, TEXT), Opened::Inside(0));
        assert_eq!(send(&b, &mut a, 0, 0, TEXT), Opened::Inside(0));
    }
}

#[test]
fn a_session_is_renewed_when_its_key_has_sealed_enough() {
    let (mut a, mut b) = pair();
    open_both(&mut a, &mut b, 0);
    assert_eq!(send(&a, &mut b, 0, 0, TEXT), Opened::Inside(0));
    let used = |seal: &Seal| seal.current.as_ref().map(|s| s.used.get());
    assert_eq!((used(&a), used(&b)), (Some(1), Some(1)));
    assert_eq!(a.poll(at(1_000), 7_000).expect("poll"), None);
    let session = a.current.as_ref().expect("a session");
    session.used.set(RENEW_AFTER_DATAGRAMS);
    assert!(a.next_wakeup().expect("an initiator") > at(2_000));
    assert!(a.seal(0, 1, TEXT, &mut Vec::new()));
    assert!(a.next_wakeup().expect("an initiator") < at(2_000));
    open_both(&mut a, &mut b, 1_000);
    assert_eq!(used(&a), Some(0));
}

#[test]
fn what_was_changed_is_turned_away_and_changes_nothing() {
    let (mut a, mut b) = pair();
    open_both(&mut a, &mut b, 0);
    let (mut datagram, mut inside) = (Vec::new(), Vec::new());
    assert!(a.seal(2, 5, TEXT, &mut datagram));
    for at_byte in 0..datagram.len() {
        let mut changed = datagram.clone();
        changed[at_byte] ^= 0x40;
        assert_eq!(
            b.open(at(1), 2, &changed, &mut inside),
            Opened::Nothing,
            "{at_byte}"
        );
    }
    assert_eq!(
        b.open(at(1), 1, &datagram, &mut inside),
        Opened::Nothing,
        "another lane"
    );
    assert!(!b.is_open());
    for len in 0..datagram.len() {
        assert_eq!(b.open(at(1), 2, &datagram[..len], &mut inside), Opened::Nothing);
    }
    assert_eq!(b.open(at(1), 2, &datagram, &mut inside), Opened::Inside(5));
}

#[test]
fn strangers_and_replays_of_the_handshake_are_refused() {
    let (mut a, mut b) = pair();
    let (mut c, _) = pair();
    c.peer = b.key.public;
    let mut inside = Vec::new();
    if c.initiates() {
        let init = c.poll(at(0), 1).expect("poll").expect("a message");
        assert_eq!(
            b.open(at(0), 0, &init, &mut inside),
            Opened::Nothing,
            "an unknown key"
        );
        assert_eq!(b.counters.refused, 1);
    }
    let init = a.poll(at(0), 500).expect("poll").expect("a message");
    assert!(matches!(b.open(at(0), 0, &init, &mut inside), Opened::Answer(_)));
    assert_eq!(b.open(at(1), 0, &init, &mut inside), Opened::Nothing, "a replay");
    // A flood with a right mac costs no more than so many handshakes.
    let before = b.counters.refused;
    for _ in 0..200 {
        b.open(at(2), 0, &init, &mut inside);
    }
    assert_eq!(b.counters.refused - before, 200);
    for byte in 0..init.len() {
        let mut changed = init.clone();
        changed[byte] ^= 1;
        assert_eq!(b.open(at(3), 0, &changed, &mut inside), Opened::Nothing);
    }
}

#[test]
fn a_new_life_of_the_peer_is_noticed_and_a_renewed_session_is_not() {
    let (mut a, mut b) = pair();
    open_both(&mut a, &mut b, 0);
    assert_eq!(send(&a, &mut b, 0, 0, TEXT), Opened::Inside(0));
    open_both(&mut a, &mut b, 3_700_000);
    assert_eq!(send(&a, &mut b, 0, 1, TEXT), Opened::Inside(1));
    assert!(!b.take_renewed_peer() && !a.take_renewed_peer());
    a.boot ^= 1;
    open_both(&mut a, &mut b, 7_500_000);
    assert!(!b.take_renewed_peer(), "before it has spoken");
    assert_eq!(send(&a, &mut b, 0, 0, TEXT), Opened::Inside(0));
    assert!(b.take_renewed_peer());
    assert!(!b.take_renewed_peer());
}
