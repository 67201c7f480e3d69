//! Tests that cross crates: floors, end to end.
