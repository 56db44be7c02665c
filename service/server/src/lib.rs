//! The gRPC edge: authentication, conversion, status mapping, configuration, telemetry, wiring.
//!
//! A handler parses and authorises, sends one command to the session's task and awaits the reply. A
//! handler that is dropped leaves nothing half done.

pub mod admin;
pub mod auth;
pub mod config;
pub mod convert;
mod listener;
pub mod metrics;
pub mod request;
mod service;
mod services;
pub mod status;
pub mod telemetry;
pub mod tls;
mod unknown;

pub use service::{DRAIN_TIMEOUT, Error, Service, serve};
