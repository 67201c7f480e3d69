//! State machines of Kuroshio: units, wire, pacing, emulation, metering, planning.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
