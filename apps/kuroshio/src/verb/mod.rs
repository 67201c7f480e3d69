//! The verbs, one file each.

pub mod capacity;
pub mod cp;
pub mod demo;
pub mod fs;
pub mod r#gen;
pub mod grid;
pub mod lab;
pub mod metad;
pub mod plan;
pub mod probe;
pub mod serve;
pub mod stored;
pub mod testbed;
pub mod trust;
pub mod tune;
pub mod up;
