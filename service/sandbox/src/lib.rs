//! Sandboxes: the confined places where a session's programs run, the service's side of the link
//! to the runner in each, and the local and the Kubernetes backend.
//!
//! Nothing a runner says is believed. What comes over a link is bounded, checked and converted in
//! `convert`; how a sandbox ended is told by the kernel, never by the runner.

#[cfg(target_os = "linux")]
pub mod confine;
mod convert;
pub mod kubernetes;
pub mod link;
#[cfg(target_os = "linux")]
pub mod local;
