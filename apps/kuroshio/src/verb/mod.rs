//! The verbs, one file each.

pub mod capacity;
pub mod cp;
pub mod demo;
pub mod fs;
pub mod gateway;
pub mod r#gen;
pub mod grid;
pub mod lab;
pub mod lane;
pub mod metad;
pub mod mount;
pub mod netv;
pub mod pace;
pub mod plan;
pub mod probe;
pub mod rail;
mod rail_measure;
pub mod serve;
pub mod stored;
pub mod testbed;
pub mod trust;
pub mod tune;
pub mod up;
