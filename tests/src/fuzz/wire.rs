//! Views of frames: no panic on any bytes; what they point to lies in the frame.

use kuroshio_core::wire::{FrameView, packet_of};

pub(super) fn run(data: &[u8]) {
    let Some(view) = FrameView::new(data) else {
        assert_eq!(packet_of(data), None);
        return;
    };
    let _ = (view.destination(), view.source(), view.ethertype());
    assert!(view.payload().len() < data.len());
    assert_eq!(view.packet(), packet_of(data));
}
