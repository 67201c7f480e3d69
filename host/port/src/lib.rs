//! Frames in and out: TAP devices and packet capture.
