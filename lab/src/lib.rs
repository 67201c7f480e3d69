//! The papers' experiments as data, their runner and reports.
