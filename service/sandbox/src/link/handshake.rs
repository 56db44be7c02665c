//! The gRPC service that runners attach to: the handshake, then the stream is handed on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::link::v1alpha1::{
    AttachRequest, AttachResponse, Hello, Welcome, attach_request, attach_response,
    link_server::{self, LinkServer},
};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::Breach;
use super::inbox::{Closed, Inbox, closed_by};
use super::numbers::{Delivered, Numbers};
use super::outbox::{self, Messages, Sender};
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

/// Takes the one runner of one connection.
#[derive(Debug)]
pub struct Service {
    attached: mpsc::Sender<Result<Link, Closed>>,
    taken: AtomicBool,
}

impl Service {
    /// A service that sends the runner to `attached`, or why it was refused. Once; a second stream on
    /// the connection is refused.
    pub fn new(attached: mpsc::Sender<Result<Link, Closed>>) -> LinkServer<Self> {
        LinkServer::new(Self { attached, taken: AtomicBool::new(false) })
            .max_decoding_message_size(LINK_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(LINK_MESSAGE_BYTES_MAX)
    }
}

#[tonic::async_trait]
impl link_server::Link for Service {
    type AttachStream = Messages;

    async fn attach(&self, request: Request<Streaming<AttachRequest>>) -> Result<Response<Messages>, Status> {
        if self.taken.swap(true, Ordering::Relaxed) {
            return Err(Status::already_exists("a runner has one link"));
        }
        let mut stream = request.into_inner();
        let hello = match tokio::time::timeout(HELLO_TIMEOUT, hello(&mut stream)).await {
            Ok(hello) => hello,
            Err(_) => Err(Closed::Broken(Breach::OutOfPlace { frame: "no hello in time" })),
        };
        let checked = hello.and_then(|hello| match check(&hello) {
            // A runner that resumes was attached before, and no runner of a socket pair ever was.
            Ok(_) if hello.resume.is_some() => {
                Err(Closed::Broken(Breach::BadField { field: "hello.resume" }))
            }
            Ok(version) => Ok((hello, version)),
            Err(breach) => Err(Closed::Broken(breach)),
        });
        let (hello, version) = match checked {
            Ok(checked) => checked,
            Err(closed) => {
                // Fails only when nobody waits any more.
                drop(self.attached.try_send(Err(closed)));
                return Err(Status::failed_precondition("the handshake failed"));
            }
        };
        let welcome = Welcome { version, acknowledged: 0, ticket: String::new() };
        let welcome = attach_response::Frame::Welcome(welcome);
        let first = AttachResponse { epoch: 0, frame: Some(welcome) };
        let (sender, messages) = outbox::channel(first, (Vec::new(), None), None);
        let inbox = Inbox::new(stream, Numbers::new(0, Delivered::default()), None);
        let engines = hello.engines.into_iter().map(|engine| (engine.language, engine.version)).collect();
        let link = Link { engines, confinement: hello.confinement_parts, sender, inbox };
        match self.attached.try_send(Ok(link)) {
            Ok(()) => Ok(Response::new(messages)),
            Err(_) => Err(Status::unavailable("nobody waits for this runner any more")),
        }
    }
}

/// The first message of a stream, which has to be a hello.
pub(crate) async fn hello(stream: &mut Streaming<AttachRequest>) -> Result<Hello, Closed> {
    let message = stream.message().await.map_err(|status| closed_by(&status))?.ok_or(Closed::Lost)?;
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
