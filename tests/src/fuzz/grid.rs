//! What reaches the ports of a grid's services: frames of the control plane, names of objects, scopes, tokens and
//! lists of addresses.

use std::fmt::Debug;

use kuroshio_proto::v1::snapshot_record::Record;
use kuroshio_proto::v1::{ClientFrame, ServerFrame, SnapshotBegin, SnapshotRecord};
use kuroshio_proto::{Message, frame, object_path, parse_object_path};
use kuroshio_service::{Pin, Ticket, Verifier, check_addresses, check_scope};

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
}

/// Both ways of reading say the same.
fn read<M: Message + Default + PartialEq + Debug>(bytes: &[u8]) -> Option<M> {
    let read = RUNTIME
        .with(|r| r.block_on(frame::read::<M>(&mut &*bytes)))
        .ok()
        .flatten();
    let split = frame::split::<M>(bytes).ok().flatten();
    assert_eq!(split.map(|(message, _)| message), read);
    read
}

/// A message that is read is written and read again as the same.
fn there_and_back<M: Message + Default + PartialEq + Debug>(bytes: &[u8]) {
    let Some(message) = read::<M>(bytes) else {
        return;
    };
    let mut again = Vec::new();
    frame::append(&mut again, &message).expect("was within the limit");
    assert_eq!(read::<M>(&again), Some(message));
}

/// The bytes as they come, and as the content of a frame.
pub(super) fn frames(data: &[u8]) {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes();
    let framed = [&len, data].concat();
    for bytes in [data, &framed] {
        there_and_back::<ClientFrame>(bytes);
        there_and_back::<ServerFrame>(bytes);
    }
}

/// A snapshot's records as they come; and behind a right beginning, each with its length in a byte before it.
pub(super) fn snapshot(data: &[u8]) {
    let _ = kuroshio_metad::try_records(data);
    let begin = SnapshotRecord {
        record: Some(Record::Begin(SnapshotBegin {
            version: 1,
            ..SnapshotBegin::default()
        })),
    };
    let mut records = Vec::new();
    frame::append(&mut records, &begin).expect("short");
    let (mut left, mut asked) = (data, 0);
    while let Some((len, rest)) = left.split_first() {
        let (record, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        records.extend_from_slice(&u32::try_from(record.len()).unwrap_or(0).to_be_bytes());
        records.extend_from_slice(record);
        (left, asked) = (rest, asked + 1);
    }
    if let Ok(inodes) = kuroshio_metad::try_records(&records) {
        assert!(inodes <= asked);
    }
}

/// Text of a request: no panic, what is taken has one form, and no token is good that nobody signed.
pub(super) fn names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let prefixed = format!("/.kuroshio/objects/{text}");
    for text in [&*text, &prefixed] {
        if let Some((inode, generation, fragment)) = parse_object_path(text) {
            assert_eq!(object_path(inode, generation, fragment), text);
        }
    }
    let _ = check_scope(&text);
    let key = [4; 65];
    let token = format!("eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.{text}");
    for token in [&*text, &token] {
        let checker = || Verifier::new(&key, "urn:kuroshio:x");
        assert!(checker().check(token).is_err());
        assert!(checker().with_secret(&key).check(token).is_err());
        let keeper = kuroshio_service::keeper_of(token);
        assert!(keeper.is_none() || checker().check_shared(token, &key).is_err());
    }
    if check_addresses(&text).is_ok() {
        let ticket = Ticket::new(&text, Pin::of_spki(b"k"), "a.b.c".into()).expect("its addresses are good");
        assert_eq!(ticket.addresses(), text);
        assert!(text.starts_with(ticket.address()));
    }
}
