//! The link over a socket that was inherited: the messages of the gRPC stream, each as one
//! length-prefixed frame. There is one stream and the kernel's buffer is its flow control.

use std::io;

use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::codec::{self, Decoder};
use seance_proto::link::v1alpha1::{AttachRequest, AttachResponse};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// What is read at once.
const READ_BYTES: usize = 16 * 1024;
/// Small messages that wait are written together, up to about this many bytes.
const WRITE_BYTES: usize = 64 * 1024;

/// The messages that come over the socket; dropping it ends what writes the others.
pub struct Inherited {
    socket: OwnedReadHalf,
    decoder: Decoder,
    _writing: JoinSet<()>,
}

impl Inherited {
    /// Takes over a connected socket: `hello` goes out first, and then what comes out of `outgoing`.
    /// Needs a runtime.
    pub fn attach(
        socket: UnixStream,
        hello: AttachRequest,
        mut outgoing: mpsc::Receiver<AttachRequest>,
    ) -> Self {
        let (reader, writer) = socket.into_split();
        let mut writing = JoinSet::new();
        // A socket that breaks shows in what is read.
        writing.spawn(async move { drop(write(writer, hello, &mut outgoing).await) });
        Self { socket: reader, decoder: Decoder::new(LINK_MESSAGE_BYTES_MAX), _writing: writing }
    }

    /// The next message; none when the service has closed its end. Losing this future loses nothing.
    pub async fn message(&mut self) -> io::Result<Option<AttachResponse>> {
        loop {
            if let Some(message) = self.decoder.next_message().map_err(io::Error::other)? {
                return Ok(Some(message));
            }
            self.socket.readable().await?;
            match self.read() {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
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

async fn write(
    mut socket: OwnedWriteHalf,
    hello: AttachRequest,
    outgoing: &mut mpsc::Receiver<AttachRequest>,
) -> io::Result<()> {
    let mut next = Some(hello);
    while let Some(message) = next {
        let mut bytes = codec::encode(&message).map_err(io::Error::other)?.to_vec();
        while bytes.len() < WRITE_BYTES
            && let Ok(message) = outgoing.try_recv()
        {
            bytes.extend_from_slice(&codec::encode(&message).map_err(io::Error::other)?);
        }
        socket.write_all(&bytes).await?;
        next = outgoing.recv().await;
    }
    Ok(())
}
