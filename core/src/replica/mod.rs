//! Replicas: where copies go, how they are kept, which is read, and how fast they move.
//!
//! | question | answered by |
//! |---|---|
//! | which nodes take new copies | [`place`] |
//! | which copies are missing, too many or in the wrong place, and what to do about it | [`Keeper`] |
//! | which copy a reader takes, and the next when that fails; several sources of one copy | [`read_order`], [`split`] |
//! | on which nodes a program should run that reads these fragments | [`schedule`] |
//! | which transfers of many jobs run now, with how many streams, and how fast | [`Planner`], [`fair_rates`] |
//!
//! All of it is decisions: nothing is read, sent or waited for. Time comes in as
//! [`PicoTime`](crate::units::PicoTime), randomness as a seed; the same calls give the same answers.

mod choose;
#[cfg(test)]
mod choose_tests;
mod decide;
mod fair;
mod jobs;
mod keeper;
#[cfg(test)]
mod keeper_tests;
mod place;
#[cfg(test)]
mod place_tests;
mod planner;
#[cfg(test)]
mod planner_tests;
mod types;

pub use choose::{
    Affine, Assigned, Input, Nearness, Reader, Schedule, SourcePart, WayCosts, read_order, schedule, split,
};
pub use fair::{Flow, ResourceId, fair_rates};
pub use jobs::{
    Change, DiskLimits, Ended, ItemId, JobId, JobItem, JobView, MAX_ITEMS, MAX_JOBS, MAX_RUNNING,
    PlannerConfig, PlannerError, Transfer, TransferId,
};
pub use keeper::{Action, Copy, CopyId, Fragment, Keeper, KeeperConfig, MAX_FRAGMENTS, Reason};
pub use place::{Placement, Wish, place};
pub use planner::Planner;
pub use types::{
    CopyRule, FragmentId, MAX_COPIES, MAX_NODES, Node, NodeId, NodeState, Nodes, ReplicaError, SiteId,
};
