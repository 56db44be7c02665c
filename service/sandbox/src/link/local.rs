//! The link to a process of this machine, over a socket pair: the messages of the gRPC stream, each as
//! one length-prefixed frame.
//!
//! There is one stream and the kernel's buffer is its flow control, so HTTP/2 would only cost: whoever
//! receives reads the socket itself, with no task between.

use std::io;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::codec::{self, Decoder};
use seance_proto::link::v1alpha1::{AttachRequest, AttachResponse, Hello, Welcome, attach_response};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::Breach;
use super::handshake::{self, HELLO_TIMEOUT, Link};
use super::inbox::{Closed, Inbox, Incoming};
use super::numbers::{Delivered, Numbers};
use super::outbox::{self, Messages};

/// What is read at once.
const READ_BYTES: usize = 16 * 1024;
/// Small messages that wait are written together, up to about this many bytes.
const WRITE_BYTES: usize = 64 * 1024;

/// Takes the runner at the other end of a socket, sends the link or why there is none to `attached`,
/// and writes what goes to the runner until it is gone. Dropping the future shuts that way down; what
/// the runner sent can still be read.
pub async fn serve_local(socket: UnixStream, attached: mpsc::Sender<Result<Link, Closed>>) {
    let (reader, writer) = socket.into_split();
    let mut incoming = Incoming::Local(Reader::new(reader));
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
        && let Err(error) = write(writer, messages).await
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

async fn write(mut socket: OwnedWriteHalf, mut messages: Messages) -> io::Result<()> {
    let mut bytes = Vec::new();
    while let Some(message) = messages.next().await {
        let mut next = Some(message);
        while let Some(message) = next.take() {
            let message = message.map_err(io::Error::other)?;
            bytes.extend_from_slice(&codec::encode(&message).map_err(io::Error::other)?);
            if bytes.len() < WRITE_BYTES {
                next = messages.next().now_or_never().flatten();
            }
        }
        socket.write_all(&bytes).await?;
        bytes.clear();
    }
    Ok(())
}

/// Reads a runner's messages off its socket.
#[derive(Debug)]
pub(super) struct Reader {
    socket: OwnedReadHalf,
    decoder: Decoder,
}

impl Reader {
    fn new(socket: OwnedReadHalf) -> Self {
        Self { socket, decoder: Decoder::new(LINK_MESSAGE_BYTES_MAX) }
    }

    /// The next message; none when the runner is gone.
    ///
    /// Cancel-safe: a message that came in part stays in the decoder.
    pub(super) async fn message(&mut self) -> Result<Option<AttachRequest>, Closed> {
        let malformed = |error: codec::Error| Breach::Malformed { detail: error.to_string() };
        loop {
            let message = self.decoder.next_message().map_err(|error| Closed::Broken(malformed(error)))?;
            if message.is_some() {
                return Ok(message);
            }
            self.socket.readable().await.map_err(|_| Closed::Lost)?;
            match self.read() {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(Closed::Lost),
            }
        }
    }

    fn read(&mut self) -> io::Result<usize> {
        let mut buffer = [0; READ_BYTES];
        let n = self.socket.try_read(&mut buffer)?;
        self.decoder.extend(&buffer[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use seance_core::link::{FromRunner, Numbered};
    use seance_proto::link::v1alpha1::{Output, attach_request::Frame};
    use tokio::io::AsyncReadExt;

    use super::*;

    fn hello() -> AttachRequest {
        let hello = Hello { version_min: 1, version_max: 1, ..Hello::default() };
        AttachRequest { number: 0, frame: Some(Frame::Hello(hello)) }
    }

    async fn attach(ours: UnixStream) -> Result<Link, Closed> {
        let (attached, mut attaching) = mpsc::channel(1);
        tokio::spawn(serve_local(ours, attached));
        attaching.recv().await.expect("it says how it went")
    }

    /// L5: frames are whole however they come, and one that is half there loses nothing.
    #[tokio::test]
    async fn messages_come_whole_however_they_were_cut() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&codec::encode(&hello()).unwrap()).await.unwrap();
        let mut link = attach(ours).await.unwrap();
        let mut welcome = [0; 1];
        theirs.read_exact(&mut welcome).await.unwrap();
        let output = Output { program: 1, source: 1, data: "x".repeat(1000).into() };
        let frame = AttachRequest { number: 1, frame: Some(Frame::Output(output)) };
        let bytes = codec::encode(&frame).unwrap();
        for byte in bytes.chunks(7) {
            assert!(link.inbox.next_frame().now_or_never().is_none(), "nothing is there before the end");
            theirs.write_all(byte).await.unwrap();
        }
        let Ok(Numbered { number: 1, frame: FromRunner::Output { .. } }) = link.inbox.next_frame().await
        else {
            panic!("an output")
        };
        drop(theirs);
        assert_eq!(link.inbox.next_frame().await, Err(Closed::Lost));
    }

    /// L2: a length over the limit ends the link before anything is read of it.
    #[tokio::test]
    async fn a_message_over_the_limit_breaks_the_link() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&codec::encode(&hello()).unwrap()).await.unwrap();
        let mut link = attach(ours).await.unwrap();
        let bytes = u32::try_from(LINK_MESSAGE_BYTES_MAX + 1).unwrap();
        theirs.write_all(&bytes.to_be_bytes()).await.unwrap();
        assert!(matches!(link.inbox.next_frame().await, Err(Closed::Broken(Breach::Malformed { .. }))));
    }

    /// A runner that resumes over a socket pair, or says anything before hello, is refused.
    #[tokio::test]
    async fn only_a_first_hello_is_taken() {
        let mut resuming = hello();
        if let Some(Frame::Hello(hello)) = &mut resuming.frame {
            hello.resume = Some(Default::default());
        }
        let early = AttachRequest { number: 0, frame: Some(Frame::Goodbye(Default::default())) };
        for first in [resuming, early] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&codec::encode(&first).unwrap()).await.unwrap();
            assert!(matches!(attach(ours).await, Err(Closed::Broken(_))), "{first:?}");
            assert_eq!(theirs.read(&mut [0; 1]).await.unwrap(), 0, "and the socket is closed");
        }
    }
}
