//! The service's side of the link: one stream of messages to each runner and one from it.
//!
//! [`serve_local`] takes a process of this machine over a socket pair and hands a [`Link`] to whoever
//! waits for it; [`serve`] drives a connection that was accepted from the network, with gRPC. From then
//! on a [`Sender`] and an [`Inbox`] are polled by the session itself, with no task between it and
//! what the runner sent. A session that doesn't receive holds its runner back by flow control.
//!
//! Over the network a stream may break and another take its place: [`Lasting`] is what a session has
//! of a runner meanwhile.

mod chunks;
mod connection;
mod handshake;
mod inbox;
mod kept;
mod lasting;
mod local;
mod numbers;
mod outbox;
mod share;
mod wire;

pub use chunks::{Budget, FRAME_BYTES_MAX, LINK_BYTES_MAX, OPEN_CHUNKED_MAX};
pub use connection::{NETWORK_WINDOW_BYTES, serve};
pub(crate) use handshake::{HELLO_TIMEOUT, check, hello};
pub use handshake::{Link, VERSION, VERSION_MIN};
pub use inbox::{Closed, Inbox, Received};
pub use lasting::{Attached, LINK_LOST_AFTER, Lasting, LastingReceiver, LastingSender, Listener, Refusal};
pub use local::serve_local;
pub use outbox::{Messages, Sender};

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
