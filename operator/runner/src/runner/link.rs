//! The runner's end of the link.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::link::v1alpha1::link_client::LinkClient;
use seance_proto::link::v1alpha1::{AttachRequest, AttachResponse, Hello, attach_request};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use super::config::Dialer;

/// Frames that may be on their way to the connection; more wait in the outbox.
const WIRE_FRAMES: usize = 32;
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Large enough that one chunked frame does not stop and go.
const WINDOW_BYTES: u32 = 1024 * 1024;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket that was left for us is none.
    #[error("taking over the inherited socket")]
    Socket(#[source] io::Error),
    /// The connection could not be made.
    #[error("connecting to the service")]
    Connect(#[source] tonic::transport::Error),
    /// The service refused the stream, or ended it with an error.
    #[error("service ended the link: {}", .0.message())]
    Refused(#[source] Box<Status>),
}

/// Connects and attaches with a hello. What is put into the sender follows it.
pub async fn attach(
    dialer: Dialer,
    hello: Hello,
) -> Result<(mpsc::Sender<AttachRequest>, Streaming<AttachResponse>), Error> {
    let Dialer::Inherited(fd) = dialer;
    let socket = std::os::unix::net::UnixStream::from(fd);
    socket.set_nonblocking(true).map_err(Error::Socket)?;
    let socket = UnixStream::from_std(socket).map_err(Error::Socket)?;
    let once = Mutex::new(Some(socket));
    let connector = tower::service_fn(move |_| {
        // The socket connects once; a second time means that the link is gone for good.
        let socket = once.lock().ok().and_then(|mut once| once.take());
        std::future::ready(socket.map(TokioIo::new).ok_or(io::Error::from(io::ErrorKind::NotConnected)))
    });
    let channel = Endpoint::from_static("http://link.invalid")
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .connect_with_connector(connector)
        .await
        .map_err(Error::Connect)?;
    let mut client = LinkClient::new(channel)
        .max_decoding_message_size(LINK_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(LINK_MESSAGE_BYTES_MAX);
    let (wire, outgoing) = mpsc::channel(WIRE_FRAMES);
    let hello = AttachRequest { number: 0, frame: Some(attach_request::Frame::Hello(hello)) };
    let first = tokio_stream::once(hello);
    let attached = client.attach(first.chain(ReceiverStream::new(outgoing))).await;
    let incoming = attached.map_err(|status| Error::Refused(Box::new(status)))?.into_inner();
    Ok((wire, incoming))
}
