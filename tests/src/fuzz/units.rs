//! Parsing of quantities: no panic, and what is printed parses to the same.

use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, Ratio, parse_bytes};
use std::fmt::{Debug, Display};
use std::str::FromStr;

fn round_trip<T: FromStr<Err: Debug + Display> + Display + Debug + PartialEq>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => {
            let printed = value.to_string();
            let again = printed.parse::<T>();
            assert_eq!(
                again.as_ref().ok(),
                Some(&value),
                "{text:?} printed as {printed:?}: {again:?}"
            );
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

pub(super) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    round_trip::<BitRate>(text);
    round_trip::<PicoDuration>(text);
    round_trip::<FrameBytes>(text);
    round_trip::<Ratio>(text);
    assert_eq!(
        parse_bytes(text).ok(),
        text.parse::<FrameBytes>().ok().map(FrameBytes::get)
    );
}
