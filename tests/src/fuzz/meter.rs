//! Filters of meters and captures.

use kuroshio_core::meter::{Filter, StreamKey};

/// Text up to a zero byte and a frame behind it: any text is a filter or an error with a place in it, any bytes are of
/// some stream, and negation turns the answer round.
pub fn run(data: &[u8]) {
    let (text, frame) = data.split_at(data.iter().position(|b| *b == 0).unwrap_or(data.len()));
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let (key, _) = StreamKey::of(frame.get(1..).unwrap_or(&[]));
    match text.parse::<Filter>() {
        Ok(filter) => {
            let taken = filter.takes(&key);
            if let Ok(not) = format!("not ({text})").parse::<Filter>() {
                assert_ne!(not.takes(&key), taken, "{text}");
            }
        }
        Err(e) => assert!(e.at <= text.len(), "{e}"),
    }
}
