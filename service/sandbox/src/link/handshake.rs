//! The handshake: what a runner says first, and what it is then taken for.

use std::time::Duration;

use seance_proto::link::v1alpha1::{AttachRequest, Hello, attach_request};
use tonic::Streaming;

use super::Breach;
use super::inbox::{Closed, Inbox, closed_by};
use super::outbox::Sender;
use crate::convert;

/// The highest version of the link that this service speaks.
pub const VERSION: u32 = 2;
/// The lowest: the one before, so that runners of the last release go on while a new one is rolled out.
pub const VERSION_MIN: u32 = 1;
/// How long a connected runner may take to say hello.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// A runner that said hello.
#[derive(Debug)]
pub struct Link {
    /// The engines it offers: language and the interpreter's version.
    pub engines: Vec<(String, String)>,
    /// Optional confinement that it says is in force. Not believed, only shown.
    pub confinement: Vec<String>,
    /// To it.
    pub sender: Sender,
    /// From it.
    pub inbox: Inbox,
}

/// The first message of a stream, which has to be a hello.
pub(crate) async fn hello(stream: &mut Streaming<AttachRequest>) -> Result<Hello, Closed> {
    hello_in(stream.message().await.map_err(|status| closed_by(&status))?.ok_or(Closed::Lost)?)
}

/// The hello that the first message has to be.
pub(super) fn hello_in(message: AttachRequest) -> Result<Hello, Closed> {
    match message {
        AttachRequest { number: 0, frame: Some(attach_request::Frame::Hello(hello)) } => Ok(hello),
        _ => Err(Closed::Broken(Breach::OutOfPlace { frame: "something before hello" })),
    }
}

/// Checks a hello and gives the version that is spoken.
pub(crate) fn check(hello: &Hello) -> Result<u32, Breach> {
    let Hello { version_min: min, version_max: max, .. } = *hello;
    let version = max.min(VERSION);
    if version < min.max(VERSION_MIN) {
        return Err(Breach::Version { min, max });
    }
    convert::check_hello(hello)?;
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_version_in_common_is_spoken() {
        let hello = |min, max| Hello { version_min: min, version_max: max, ..Hello::default() };
        for (min, max, spoken) in [(1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 9, 2), (1, 9, 2)] {
            assert_eq!(check(&hello(min, max)), Ok(spoken), "{min} to {max}");
        }
        for (min, max) in [(0, 0), (3, 9), (2, 1), (u32::MAX, u32::MAX)] {
            assert_eq!(check(&hello(min, max)), Err(Breach::Version { min, max }));
        }
    }
}
