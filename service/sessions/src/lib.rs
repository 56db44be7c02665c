//! Sessions at work: one task for each, around the pure machine of `seance-core`.
//!
//! A caller's request becomes one command to the session's task, whose answer is awaited; a request
//! that is dropped leaves nothing half done. The task feeds commands, frames of the runner, answers
//! of providers and ticks into the machine. Its steps go to the session's committer, which writes
//! them to the store and then does what waits for the commit. Everything callers observe is read
//! from committed events ([`log`]): there is one read path.
//!
//! What this room does not know: gRPC, tokens, schemas of storage, namespaces and pods.

mod checks;
mod claim;
mod commit;
mod environment;
mod error;
mod guest_tools;
mod log;
mod metrics;
mod observe;
mod once;
mod prepare;
mod requests;
mod sessions;
mod shared;
mod task;

pub use environment::{Environment, SystemEnvironment};
pub use error::Error;
pub use log::Follower;
pub use observe::{Observation, ObserveOptions, Observed, Observer, Status};
pub use requests::{CatalogSource, ExecuteRequest, Idempotency, OpenRequest, StopRequest};
pub use sessions::{Config, Sessions, StopReason, Traceparent};
