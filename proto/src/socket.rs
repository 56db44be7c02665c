//! Messages over a connected socket of this machine, each as one length-prefixed frame. There is one
//! stream each way, and the kernel's buffer is its flow control.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{FutureExt, Stream, StreamExt};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::codec::{self, Decoder};

/// What is read at once.
const READ_BYTES: usize = 16 * 1024;
/// Small messages that wait are written together, up to about this many bytes.
const WRITE_BYTES: usize = 64 * 1024;

/// Why no message can be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket broke.
    #[error("the socket broke")]
    Socket(#[source] io::Error),
    /// What came is no message.
    #[error(transparent)]
    Frame(#[from] codec::Error),
}

/// Reads messages off a socket.
#[derive(Debug)]
pub struct Reader {
    socket: OwnedReadHalf,
    decoder: Decoder,
}

impl Reader {
    /// A reader that refuses messages over `limit` bytes.
    pub fn new(socket: OwnedReadHalf, limit: usize) -> Self {
        Self { socket, decoder: Decoder::new(limit) }
    }

    /// The next message; none when the other side has closed its end.
    ///
    /// Cancel-safe: a message that came in part stays in the decoder.
    pub async fn message<M: Message + Default>(&mut self) -> Result<Option<M>, Error> {
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(Some(message));
            }
            if poll_fn(|context| self.poll_read(context)).await.map_err(Error::Socket)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads what is there. It stands on the stack of this call and not in the future, which every session has.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let mut bytes = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.socket).poll_read(context, &mut bytes))?;
        self.decoder.extend(bytes.filled());
        Poll::Ready(Ok(bytes.filled().len()))
    }
}

/// Writes messages until there are no more.
///
/// # Errors
/// When the socket breaks, a message is too large, or `messages` gives an error.
pub async fn write<M: Message>(
    mut socket: OwnedWriteHalf,
    mut messages: impl Stream<Item = io::Result<M>> + Unpin,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    while let Some(message) = messages.next().await {
        let mut next = Some(message);
        while let Some(message) = next.take() {
            bytes.extend_from_slice(&codec::encode(&message?).map_err(io::Error::other)?);
            if bytes.len() < WRITE_BYTES {
                next = messages.next().now_or_never().flatten();
            }
        }
        socket.write_all(&bytes).await?;
        bytes.clear();
    }
    Ok(())
}
