//! Monotonic time, precise wake-up, core pinning, steal and run-queue delay.
