//! The link over a socket that was inherited: the messages of the gRPC stream, each as one
//! length-prefixed frame.

use std::io;

use futures::{StreamExt, future, stream};
use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::link::v1alpha1::{AttachRequest, AttachResponse};
use seance_proto::socket::{self, Reader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

/// The messages that come over the socket; dropping it ends what writes the others.
pub struct Inherited {
    reader: Reader,
    _writing: JoinSet<()>,
}

impl Inherited {
    /// Takes over a connected socket: `hello` goes out first, and then what comes out of `outgoing`.
    /// Needs a runtime.
    pub fn attach(socket: UnixStream, hello: AttachRequest, outgoing: mpsc::Receiver<AttachRequest>) -> Self {
        let (reader, writer) = socket.into_split();
        let messages = stream::once(future::ready(hello)).chain(ReceiverStream::new(outgoing)).map(Ok);
        let mut writing = JoinSet::new();
        // A socket that breaks shows in what is read.
        writing.spawn(async move { drop(socket::write(writer, messages).await) });
        Self { reader: Reader::new(reader, LINK_MESSAGE_BYTES_MAX), _writing: writing }
    }

    /// The next message; none when the service has closed its end. Losing this future loses nothing.
    pub async fn message(&mut self) -> io::Result<Option<AttachResponse>> {
        self.reader.message().await.map_err(|error| match error {
            socket::Error::Socket(error) => error,
            socket::Error::Frame(error) => io::Error::other(error),
        })
    }
}
