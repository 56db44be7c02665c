//! The handlers: each parses, makes one call into the sessions, and converts the answer.

mod blobs;
mod engines;
mod follow;
mod observe;
mod provide;
mod server;
mod sessions;
mod tools;

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use seance_core::reasons;
use seance_sessions::Sessions;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::request::Caller;
use crate::status::{self, Plain, Refusal};

/// Silence on a stream after which a heartbeat is sent.
const HEARTBEAT: Duration = Duration::from_secs(10);

type MessageStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What all handlers share.
#[derive(Clone)]
pub struct Api {
    /// The sessions.
    pub sessions: Sessions,
    /// Cancelled when the service stops: streams end.
    pub stopping: CancellationToken,
    /// Work that outlives its request: the stop of a program whose caller is gone.
    pub tasks: TaskTracker,
}

impl Api {
    fn stopped(&self, caller: &Caller) -> Status {
        status::of(&Plain::new(reasons::SERVICE_STOPPING, "the service is stopping"), caller)
    }
}

impl Refusal for seance_sessions::Error {
    fn reason(&self) -> &'static str {
        seance_sessions::Error::reason(self)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        self.metadata()
    }

    fn field(&self) -> Option<&str> {
        match self {
            seance_sessions::Error::Invalid { field, .. } => {
                Some(field).filter(|field| !field.is_empty()).copied()
            }
            seance_sessions::Error::Limit(_) => Some("limits"),
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        seance_sessions::Error::retry_after(self)
    }
}

/// Turns errors into statuses for one caller.
trait OrStatus<T> {
    fn or_status(self, caller: &Caller) -> Result<T, Status>;
}

impl<T, E: Refusal> OrStatus<T> for Result<T, E> {
    fn or_status(self, caller: &Caller) -> Result<T, Status> {
        self.map_err(|error| status::of(&error, caller))
    }
}
