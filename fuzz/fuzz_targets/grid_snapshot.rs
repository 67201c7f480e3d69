//! Runs the body of the same name, see `tests/src/fuzz`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| kuroshio_tests::fuzz::run("grid_snapshot", data));
