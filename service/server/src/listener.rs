//! Connections: how they come in, how many there may be, and how they are ended.
//!
//! A connection that says nothing is ended, and so is every connection when a shutdown's time is over:
//! the HTTP/2 server itself has neither.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// Connections at one time. More wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 4_096;
/// A client that has not sent the HTTP/2 preface after this time, after the handshake where there is
/// TLS, is cut.
pub const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// The length of the HTTP/2 preface.
const PREFACE_BYTES: usize = 24;
/// How long to wait after the system refused a connection, which it does when it is out of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all connections of a service share.
#[derive(Clone)]
pub struct Connections {
    slots: Arc<Semaphore>,
    gauge: IntGauge,
    abort: CancellationToken,
}

impl Connections {
    /// Connections that are counted in `gauge` and cut when `abort` is cancelled.
    pub fn new(gauge: IntGauge, abort: CancellationToken) -> Self {
        Self { slots: Arc::new(Semaphore::new(CONNECTIONS_MAX)), gauge, abort }
    }

    /// The connections of a TCP listener, as long as it is polled, each made into what is read and
    /// written by `open`.
    pub fn of_tcp<IO>(
        self,
        listener: TcpListener,
        open: impl Fn(TcpStream) -> IO,
    ) -> impl Stream<Item = io::Result<Connection<IO>>> {
        futures::stream::unfold((self, listener, open), |(connections, listener, open)| async move {
            let slot = connections.slot().await;
            let stream = open(accept(&listener).await);
            let connection = connections.wrap(stream, slot);
            Some((Ok(connection), (connections, listener, open)))
        })
    }

    /// The connections that come through a channel, until it is closed.
    pub fn of_channel<IO: Send + 'static>(
        self,
        channel: tokio::sync::mpsc::Receiver<IO>,
    ) -> impl Stream<Item = io::Result<Connection<IO>>> {
        futures::stream::unfold((self, channel), |(connections, mut channel)| async move {
            let slot = connections.slot().await;
            let stream = channel.recv().await?;
            let connection = connections.wrap(stream, slot);
            Some((Ok(connection), (connections, channel)))
        })
    }

    async fn slot(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.slots).acquire_owned().await.expect("the semaphore is never closed")
    }

    fn wrap<IO>(&self, stream: IO, slot: OwnedSemaphorePermit) -> Connection<IO> {
        self.gauge.inc();
        Connection {
            stream,
            abort: Box::pin(self.abort.clone().cancelled_owned()),
            silence: Some((Box::pin(tokio::time::sleep(PREFACE_TIMEOUT)), PREFACE_BYTES)),
            counted: Counted { gauge: self.gauge.clone(), _slot: slot },
        }
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A frame of output is small and wanted now. Failing only makes it slower.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Counted {
    gauge: IntGauge,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// A connection that is counted, and that ends on abort or when its client says nothing.
pub struct Connection<IO> {
    stream: IO,
    abort: Pin<Box<WaitForCancellationFutureOwned>>,
    silence: Option<(Pin<Box<Sleep>>, usize)>,
    #[expect(dead_code, reason = "held for its drop")]
    counted: Counted,
}

impl<IO> Connection<IO> {
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Option<io::Error> {
        if self.abort.as_mut().poll(cx).is_ready() {
            return Some(io::Error::new(io::ErrorKind::ConnectionAborted, "the service has stopped"));
        }
        let (sleep, _) = self.silence.as_mut()?;
        sleep
            .as_mut()
            .poll(cx)
            .is_ready()
            .then(|| io::Error::new(io::ErrorKind::TimedOut, "no HTTP/2 preface"))
    }

    fn heard(&mut self, bytes: usize) {
        if let Some((_, missing)) = &mut self.silence {
            *missing = missing.saturating_sub(bytes);
            if *missing == 0 {
                self.silence = None;
            }
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Connection<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.poll_cut(cx) {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.heard(buffer.filled().len() - before);
        polled
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Connection<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.poll_cut(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(error) = self.poll_cut(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<IO: Connected> Connected for Connection<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}
