//! What a host needs to send and receive at a rate over a round-trip time, and setting it.
//!
//! [`window`] holds the arithmetic (three times the bandwidth-delay product, paper 004), [`sysctl`] the
//! access to kernel parameters.

pub mod sysctl;
pub mod window;
