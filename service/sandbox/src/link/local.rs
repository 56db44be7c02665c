//! The link to a process of this machine, over a socket pair: the messages of the gRPC stream, each as
//! one length-prefixed frame.
//!
//! There is one stream and the kernel's buffer is its flow control, so HTTP/2 would only cost: whoever
//! receives reads the socket itself, with no task between.

use std::io;
use std::time::Duration;

use futures::TryStreamExt;
use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::link::v1alpha1::{AttachRequest, AttachResponse, Hello, Welcome, attach_response};
use seance_proto::socket::{self, Reader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::Breach;
use super::handshake::{self, HELLO_TIMEOUT, Link};
use super::inbox::{Closed, Inbox, Incoming};
use super::numbers::{Delivered, Numbers};
use super::outbox;

/// Takes the runner at the other end of a socket, sends the link or why there is none to `attached`,
/// and writes what goes to the runner until it is gone. Dropping the future shuts that way down; what
/// the runner sent can still be read.
pub async fn serve_local(socket: UnixStream, attached: mpsc::Sender<Result<Link, Closed>>) {
    let (reader, writer) = socket.into_split();
    let mut incoming = Incoming::Local(Reader::new(reader, LINK_MESSAGE_BYTES_MAX));
    let (hello, version) = match handshake(&mut incoming, HELLO_TIMEOUT).await {
        Ok(checked) => checked,
        Err(closed) => {
            // Fails only when nobody waits any more.
            drop(attached.try_send(Err(closed)));
            return;
        }
    };
    let welcome = Welcome { version, acknowledged: 0, ticket: String::new() };
    let first = AttachResponse { epoch: 0, frame: Some(attach_response::Frame::Welcome(welcome)) };
    let (sender, messages) = outbox::channel(first, (Vec::new(), None), None);
    let inbox = Inbox::new(incoming, Numbers::new(0, Delivered::default()), None);
    let engines = hello.engines.into_iter().map(|engine| (engine.language, engine.version)).collect();
    let link = Link { engines, confinement: hello.confinement_parts, sender, inbox };
    if attached.try_send(Ok(link)).is_ok()
        && let Err(error) = socket::write(writer, messages.map_err(io::Error::other)).await
    {
        tracing::debug!(%error, "the connection of a runner ended");
    }
}

async fn handshake(incoming: &mut Incoming, within: Duration) -> Result<(Hello, u32), Closed> {
    let late = || Closed::Broken(Breach::OutOfPlace { frame: "no hello in time" });
    let message = tokio::time::timeout(within, incoming.message()).await.unwrap_or_else(|_| Err(late()))?;
    let hello = handshake::hello_in(message.ok_or(Closed::Lost)?)?;
    if hello.resume.is_some() {
        // A runner that resumes was attached before, and no runner of a socket pair ever was.
        return Err(Closed::Broken(Breach::BadField { field: "hello.resume" }));
    }
    let version = handshake::check(&hello).map_err(Closed::Broken)?;
    Ok((hello, version))
}

/// The next message off a runner's socket; none when the runner is gone. Cancel-safe.
pub(super) async fn message(reader: &mut Reader) -> Result<Option<AttachRequest>, Closed> {
    reader.message().await.map_err(|error| match error {
        socket::Error::Socket(_) => Closed::Lost,
        socket::Error::Frame(error) => Closed::Broken(Breach::Malformed { detail: error.to_string() }),
    })
}
