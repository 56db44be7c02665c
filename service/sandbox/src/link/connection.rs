//! One HTTP/2 connection of a runner from the network, over any stream of bytes.

use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use seance_proto::link::v1alpha1::link_server::{Link, LinkServer};
use tokio::io::{AsyncRead, AsyncWrite};

/// How much a runner can send ahead of a session that doesn't receive, in bytes. Many hostile runners
/// may be connected: it is what each can make the service hold before it is known.
pub const NETWORK_WINDOW_BYTES: u32 = 256 * 1024;
/// How much of what goes to a runner is buffered below the lanes, in bytes; a small frame waits
/// behind that much at most.
const SEND_BUFFER_BYTES: usize = 256 * 1024;
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// A runner needs one stream; the others let a second one be refused by name.
const STREAMS_MAX: u32 = 4;

/// Drives a connection until it ends. `window_bytes` is how much is read ahead of whoever receives.
/// Dropping the future ends it.
pub async fn serve<Io, L>(io: Io, service: LinkServer<L>, window_bytes: u32)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    L: Link,
{
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(window_bytes)
        .initial_connection_window_size(window_bytes)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(io), TowerToHyperService::new(service));
    if let Err(error) = connection.await {
        tracing::debug!(error, "the connection of a runner ended");
    }
}
