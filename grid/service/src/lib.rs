//! Data service: identity, HTTP ranges, upgrade to framed streams, rate leases.
