//! Data mover: framed streams, chunk scheduling, resume, digests.
