//! SIGINT and SIGTERM.

use std::process;

use crate::error::{EXIT_FAILED, Failure};

/// Calls `first` in a thread of its own on the first SIGINT or SIGTERM; the second ends the process at once
/// (what was made durable stays so).
pub fn on_stop(first: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let failed = |e| Failure::failed(format!("cannot catch signals: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _in_runtime = runtime.enter();
        (
            signal(SignalKind::interrupt()).map_err(failed)?,
            signal(SignalKind::terminate()).map_err(failed)?,
        )
    };
    let work = move || {
        let mut wait = || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            });
        };
        wait();
        first();
        wait();
        process::exit(i32::from(EXIT_FAILED));
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(work)
        .map(drop)
        .map_err(failed)
}
