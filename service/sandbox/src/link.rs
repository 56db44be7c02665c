//! The service's side of the link: one gRPC stream to each runner, over any connected stream.
//!
//! [`serve`] drives one connection and knows nothing of listeners, so a socket pair to a local
//! process and an accepted TLS connection are the same to it. [`Service`] does the handshake and
//! hands a [`Link`] to whoever waits for the runner; from then on a [`Sender`] and an [`Inbox`]
//! are polled by the session itself, with no task between it and the HTTP/2 stream. A session
//! that doesn't receive holds its runner back by flow control, at [`STREAM_WINDOW_BYTES`].
//!
//! Over the network a stream may break and another take its place: [`Lasting`] is what a session has
//! of a runner meanwhile.

mod chunks;
mod connection;
mod inbox;
mod kept;
mod lasting;
mod numbers;
mod outbox;
mod service;
mod share;
mod wire;

pub use chunks::{Budget, FRAME_BYTES_MAX, LINK_BYTES_MAX, OPEN_CHUNKED_MAX};
pub use connection::{NETWORK_WINDOW_BYTES, STREAM_WINDOW_BYTES, serve};
pub use inbox::{Closed, Inbox, Received};
pub use lasting::{Attached, LINK_LOST_AFTER, Lasting, LastingReceiver, LastingSender, Listener, Refusal};
pub use outbox::{Messages, Sender};
pub(crate) use service::{HELLO_TIMEOUT, check, hello};
pub use service::{Link, Service, VERSION, VERSION_MIN};

pub use share::SendBudget;

pub use crate::convert::{Aside, Outcome, Tried};

/// The runner did something that the protocol doesn't allow. The sandbox ends with
/// [`seance_core::sandbox::EndReason::ProtocolBroken`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A message that can't be decoded, is over its size or has bad UTF-8.
    #[error("a message is malformed: {detail}")]
    Malformed {
        /// What is wrong with it.
        detail: String,
    },
    /// A frame that has no place where it came.
    #[error("a frame is out of place: {frame}")]
    OutOfPlace {
        /// Which.
        frame: &'static str,
    },
    /// A number that isn't the next.
    #[error("frame number {number} where {expected} was next")]
    Misnumbered {
        /// The number that came.
        number: u64,
        /// The number that was due.
        expected: u64,
    },
    /// More of something than a frame may have.
    #[error("{what}: {n} is over the limit of {limit}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How many or how large.
        n: u64,
        /// The most.
        limit: u64,
    },
    /// A field has no acceptable value.
    #[error("{field} has no acceptable value")]
    BadField {
        /// Which.
        field: &'static str,
    },
    /// Runner and service have no version in common.
    #[error("the runner speaks versions {min} to {max} of the link, this service {VERSION_MIN} to {VERSION}")]
    Version {
        /// The runner's lowest.
        min: u32,
        /// The runner's highest.
        max: u32,
    },
}
