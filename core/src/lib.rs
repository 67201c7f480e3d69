//! State machines of Kuroshio: units, wire, pacing, emulation, metering, planning.
//!
//! Bytes and `now` in, actions out. No clock, socket, thread, file, entropy or float: time comes in as
//! [`units::PicoTime`], randomness as a seed.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod capacity;
pub mod chunk;
pub mod meter;
pub mod pace;
pub mod plan;
pub mod rail;
pub mod sim;
pub mod tcp;
pub mod traffic;
pub mod units;
pub mod video;
pub mod wan;
pub mod wire;
