//! The operator: makes pods for Sandboxes and keeps pools of them.
//!
//! A pass over an object is: look at what there is, decide by pure functions ([`pool::decide`],
//! [`sandbox::decide`]), act, tell. What goes into the cluster is built by pure functions too
//! ([`build`]). Nothing is remembered that can't be seen again after a restart, but for pauses.

pub mod args;
pub mod backoff;
pub mod build;
pub mod cluster;
pub mod context;
pub mod differ;
pub mod http;
pub mod leaks;
pub mod lease;
pub mod link_watch;
pub mod metrics;
pub mod pool;
pub mod run;
pub mod sandbox;
pub mod watch;
