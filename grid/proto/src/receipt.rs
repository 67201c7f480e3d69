//! Receipts: a node's word that it keeps an object durably.
//!
//! `HMAC-SHA256(key of the node, "INODE/GENERATION/FRAGMENT/SIZE/" + digest)`. Only the node and the metadata
//! service know the key.

use ring::hmac;

/// Length of a node's key, bytes.
pub const RECEIPT_KEY_BYTES: usize = 32;

/// The receipt of one object (inode, generation, fragment) of `size` bytes.
#[must_use]
pub fn mac(key: &[u8], object: (u64, u64, u32), size: u64, digest: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, &text(object, size, digest)).as_ref().to_vec()
}

/// Whether `mac` is the receipt; compared in constant time.
#[must_use]
pub fn check(key: &[u8], object: (u64, u64, u32), size: u64, digest: &[u8], mac: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::verify(&key, &text(object, size, digest), mac).is_ok()
}

/// The secret with which rights to a node's objects are signed, of that node's key: receipts and rights cannot be taken for
/// each other.
#[must_use]
pub fn rights_key(key: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, b"rights to objects").as_ref().to_vec()
}

fn text((inode, generation, fragment): (u64, u64, u32), size: u64, digest: &[u8]) -> Vec<u8> {
    let mut text = format!("{inode}/{generation}/{fragment}/{size}/").into_bytes();
    text.extend_from_slice(digest);
    text
}
