//! What a peer or a person may hand over: control messages, frame headers, tickets, paths in requests.

use kuroshio_service::{RootPath, Ticket, check_address};
use kuroshio_transfer::wire::{Fwd, HEADER_LEN, Header, Rev, encode, read_message};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A message that is read is written and read again as the same.
fn there_and_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let mut scratch = Vec::new();
    if let Ok(Some(message)) = read_message::<T>(&mut &*bytes, &mut scratch) {
        let again = encode(&message).expect("was within the limit");
        let back = read_message::<T>(&mut again.as_slice(), &mut scratch).expect("reads");
        assert_eq!(back, Some(message));
    }
}

/// The bytes as they are, and as the content of a message or header whose checksums are right.
pub(super) fn messages(data: &[u8]) {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes();
    let sum = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
    let framed = [&len, &sum(&len)[..4], &sum(data)[..8], data].concat();
    for bytes in [data, &framed] {
        there_and_back::<Fwd>(bytes);
        there_and_back::<Rev>(bytes);
    }
    let mut head = [0u8; HEADER_LEN];
    for (to, from) in head.iter_mut().zip(b"KURO".iter().chain(data)) {
        *to = *from;
    }
    let of_head = sum(&head[..56]);
    head[56..].copy_from_slice(&of_head[..8]);
    if let Ok(header) = Header::from_bytes(&head) {
        assert_eq!(header.to_bytes(), head);
        assert!(
            header
                .part
                .offset
                .checked_add(u64::from(header.part.len))
                .is_some()
        );
    }
}

/// Text of a ticket, path of a request: no panic, and what is taken stays what it is.
pub(super) fn tickets(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let pin = "sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let whole = format!("kuroshio1,{text},{pin},{text}");
    for text in [&*text, &whole] {
        if let Ok(ticket) = text.parse::<Ticket>() {
            let again: Ticket = ticket.to_line().parse().expect("its own text");
            assert_eq!(again.to_line(), ticket.to_line());
        }
    }
    if check_address(&text).is_ok() {
        assert!(!text.contains(','));
    }
    if let Ok(path) = RootPath::from_url(&text) {
        assert!(path.as_bytes().split(|b| *b == b'/').all(|part| part != b".."));
        assert_eq!(
            RootPath::from_url(&path.to_url()).map(|p| p.to_url()),
            Ok(path.to_url())
        );
    }
}
