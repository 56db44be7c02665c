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
use super::numbers::Acknowledged;
use super::outbox::{self, Messages, Sender};
use crate::convert;

/// The version of the link that this service speaks.
pub const VERSION: u32 = 1;
/// How long a connected runner may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

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
        let hello = match hello.and_then(|hello| check(hello).map_err(Closed::Broken)) {
            Ok(hello) => hello,
            Err(closed) => {
                // Fails only when nobody waits any more.
                drop(self.attached.try_send(Err(closed)));
                return Err(Status::failed_precondition("the handshake failed"));
            }
        };
        let acknowledged = Acknowledged::default();
        let welcome = attach_response::Frame::Welcome(Welcome { version: VERSION, acknowledged: 0 });
        let first = AttachResponse { epoch: 0, frame: Some(welcome) };
        let (sender, messages) = outbox::channel(first, acknowledged.clone());
        let inbox = Inbox::new(stream, acknowledged);
        let engines = hello.engines.into_iter().map(|engine| (engine.language, engine.version)).collect();
        let link = Link { engines, confinement: hello.confinement_parts, sender, inbox };
        match self.attached.try_send(Ok(link)) {
            Ok(()) => Ok(Response::new(messages)),
            Err(_) => Err(Status::unavailable("nobody waits for this runner any more")),
        }
    }
}

async fn hello(stream: &mut Streaming<AttachRequest>) -> Result<Hello, Closed> {
    let message = stream.message().await.map_err(|status| closed_by(&status))?.ok_or(Closed::Lost)?;
    match message {
        AttachRequest { number: 0, frame: Some(attach_request::Frame::Hello(hello)) } => Ok(hello),
        _ => Err(Closed::Broken(Breach::OutOfPlace { frame: "something before hello" })),
    }
}

fn check(hello: Hello) -> Result<Hello, Breach> {
    let Hello { version_min: min, version_max: max, .. } = hello;
    if !(min..=max).contains(&VERSION) {
        return Err(Breach::Version { min, max });
    }
    // A runner that resumes was attached before, and no runner of a socket pair ever was.
    if hello.resume.is_some() {
        return Err(Breach::BadField { field: "hello.resume" });
    }
    convert::check_hello(&hello)?;
    Ok(hello)
}
