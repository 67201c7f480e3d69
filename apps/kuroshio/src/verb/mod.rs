//! The verbs, one file each.

pub mod capacity;
pub mod cp;
pub mod demo;
pub mod r#gen;
pub mod lab;
pub mod netv;
pub mod plan;
pub mod probe;
pub mod rail;
mod rail_measure;
pub mod serve;
pub mod testbed;
pub mod trust;
pub mod tune;
