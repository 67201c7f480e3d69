//! The client's side: dial a service, ask, and run sessions.
//!
//! A session's first connection asks for it and becomes its Fwd control; Rev and the data streams are
//! dialled at the same time, each in its own thread, and join as they come. The dialler writes nothing after
//! an upgrade request until the answer is here.

mod content;
mod http;
mod lease;
mod session;

pub use content::{dial_tls, dial_tls_blocking};
pub use http::{Endpoint, HttpConn, Security};
pub use lease::{RemotePlan, plan_change, plan_report};
pub use session::{BetweenJob, PullJob, PushJob, Route, check_congestion, copy_between, pull, push};
