//! A testbed that stays up, and the socket by which it is controlled.
//!
//! ```text
//!  up -> starts -> keeper (lock NAME.lock) -> isolate::run -> [ testbed, listens on NAME.sock ]
//!                                                                      ^
//!                     set, stats, status, exec, down: a line of JSON --+ and one back
//! ```
//!
//! The socket is a Unix stream in a folder of the user's own. A request is one line, an answer is one line, any
//! number of them on a connection, answered in order:
//!
//! | request | result |
//! |---|---|
//! | `{"do": "status"}` | name, run's time, hosts with addresses and the number of their namespace's descriptor, links, lateness |
//! | `{"do": "stats"}` | every counter, frames and bytes |
//! | `{"do": "set", "target": LINK or PORT, "settings": {KEY: VALUE, ...}}` | how many directions were changed |
//! | the same with `"at": TIME` | the change happens at that time of the run |
//! | the same with `"folder": PATH` | where files that a value names are looked for |
//! | `{"do": "meter-add", "meter": {"name": NAME, "at": PLACE, ...}}` | its name; the fields are those of `[[meter]]` |
//! | `{"do": "meter-rm", "name": NAME}` | its name |
//! | `{"do": "meter-ls"}` | every meter with its totals, and what all of them cost |
//! | `{"do": "meter-read", "name": NAME, "window": WIDTH, "from": NUMBER}` | closed windows, 2048 rows at most, and where to go on |
//! | `{"do": "meter-histogram", "name": NAME, "of": "gap", "stream": STREAM}` | buckets of `gap`, `start`, `end` or `delay` |
//! | `{"do": "down"}` | the last report; then the testbed ends |
//!
//! An answer is `{"ok": true, "result": ...}` or `{"ok": false, "bad_input": true or false, "error": TEXT}`. A
//! request may have an `id`, which its answer repeats. Either all settings of a request are made or none.
//!
//! Settings of a link are those of `kuroshio_core::wan::setting`, and `cut` (`on`, `off`) and `drop_next` (a number of
//! frames); of a port, `shape` (a rate), `gap` (a size) and `drain` (a rate), where it has such.
//!
//! **What ends it.** `down`; or the end of any process of the chain, also by `kill -9`: the kernel ends the others
//! and frees the lock. A socket whose lock is free is left over and removed by whoever comes next.

mod answer;
mod client;
mod metering;
mod place;
mod serve;

pub use client::{Client, ControlError, HostEntry, enter, enter_network, start, wait_free};
pub use place::{Place, State};
pub use serve::{keep, keeper};

/// Longest request or answer, bytes.
pub const MAX_LINE: usize = 4 << 20;
/// Most connections at one time.
pub const MAX_CLIENTS: usize = 64;
/// Most settings of one request.
pub const MAX_SETTINGS: usize = 64;
