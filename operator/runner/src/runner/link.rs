//! The runner's end of the link: connecting, and connecting again when it breaks.
//!
//! An inherited socket is connected once, and carries the messages without HTTP/2. An address is
//! dialled again with growing pauses; at the first contact the pod's token is shown, after that the
//! ticket that the service gave.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use seance_proto::LINK_MESSAGE_BYTES_MAX;
use seance_proto::link::v1alpha1::link_client::LinkClient;
use seance_proto::link::v1alpha1::{AttachRequest, AttachResponse, Hello, attach_request};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use super::config::{Dialer, Network};
use super::inherited::Inherited;

/// Frames that may be on their way to the connection; more wait in the outbox.
const WIRE_FRAMES: usize = 32;
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Large enough that one chunked frame does not stop and go.
const WINDOW_BYTES: u32 = 1024 * 1024;
/// How long a connection may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the service may take to answer: it may be starting and still reading its sessions.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(45);
/// The pauses between tries; a random part of each is left out.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a runner goes on without a link.
const UNLINKED_MAX: Duration = Duration::from_secs(600);
/// How long the last frames may take to leave.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest token or ticket; a header can't have more.
const CREDENTIAL_BYTES_MAX: usize = 12 * 1024;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket that was left for us is none.
    #[error("taking over the inherited socket")]
    Socket(#[source] io::Error),
    /// The inherited socket broke, or brought what is no message.
    #[error("reading from the inherited socket")]
    Broken(#[source] io::Error),
    /// The token or the CA can't be read.
    #[error("reading {file}")]
    File {
        /// Which.
        file: String,
        #[source]
        source: io::Error,
    },
    /// The connection could not be made.
    #[error("connecting to the service")]
    Connect(#[source] tonic::transport::Error),
    /// The service did not answer.
    #[error("the service did not answer in time")]
    Silent,
    /// The service ended the stream without a word.
    #[error("the service ended the link")]
    Ended,
    /// The service refused the stream, or ended it with an error, whose message says all.
    #[error("service ended the link: {}", .0.message())]
    Refused(Box<Status>),
    /// There was no link for as long as a runner goes on without one.
    #[error("no link for {UNLINKED_MAX:?}")]
    Unlinked,
}

impl Error {
    /// Whether the service will never take this runner again.
    fn is_final(&self) -> bool {
        matches!(self, Error::Refused(status) if status.code() == Code::PermissionDenied)
    }
}

/// What the link does next.
#[derive(Debug)]
pub enum Event {
    /// It is time to dial: [`Link::dial`].
    Dial,
    /// It is connected; what is put into the sender follows the hello.
    Connected(mpsc::Sender<AttachRequest>),
    /// A message came.
    Message(Box<AttachResponse>),
    /// It broke and will be dialled again.
    Lost(Error),
    /// It is gone for good.
    Over(Result<(), Error>),
}

type Attached = (mpsc::Sender<AttachRequest>, Incoming);
type Dialing = Pin<Box<dyn Future<Output = Result<Attached, Error>> + Send>>;

/// Where the service's messages come from.
enum Incoming {
    Network(Box<Streaming<AttachResponse>>),
    Inherited(Box<Inherited>),
}

impl Incoming {
    /// The next message; none when the service has ended the link. Losing this future loses nothing.
    async fn message(&mut self) -> Result<Option<AttachResponse>, Error> {
        match self {
            Incoming::Network(stream) => {
                stream.message().await.map_err(|status| Error::Refused(Box::new(status)))
            }
            Incoming::Inherited(inherited) => inherited.message().await.map_err(Error::Broken),
        }
    }
}

/// The link, up or down.
pub struct Link {
    dialer: Dialer,
    state: State,
    ticket: Option<MetadataValue<Ascii>>,
    n_failures: u32,
    down_since: Instant,
}

enum State {
    Waiting { until: Instant },
    Dialing(Dialing),
    Up(Incoming),
    Over,
}

impl Link {
    /// A link that is not connected yet.
    pub fn new(dialer: Dialer) -> Self {
        let now = Instant::now();
        Self { dialer, state: State::Waiting { until: now }, ticket: None, n_failures: 0, down_since: now }
    }

    /// Whether it is dialled again when it breaks.
    pub fn is_dialled_again(&self) -> bool {
        matches!(self.dialer, Dialer::Network(_))
    }

    /// Keeps what the service gave for the next contact. One that no header can have is none.
    pub fn keep_ticket(&mut self, ticket: &str) {
        if !ticket.is_empty() && ticket.len() <= CREDENTIAL_BYTES_MAX {
            self.ticket = MetadataValue::try_from(ticket).ok();
        }
    }

    /// Connects and attaches with a hello, in [`Self::next`].
    pub fn dial(&mut self, hello: Hello) {
        let dialing: Dialing = match &self.dialer {
            Dialer::Inherited(fd) => Box::pin(inherited(fd.try_clone(), hello)),
            Dialer::Network(network) => Box::pin(network_attach(network.clone(), self.ticket.clone(), hello)),
        };
        self.state = State::Dialing(dialing);
    }

    /// What happens next. Losing this future loses nothing.
    pub async fn next(&mut self) -> Event {
        let (is_new, result) = match &mut self.state {
            State::Waiting { until } => {
                tokio::time::sleep_until(*until).await;
                return Event::Dial;
            }
            State::Dialing(dialing) => match dialing.await {
                Ok((wire, incoming)) => {
                    self.state = State::Up(incoming);
                    return Event::Connected(wire);
                }
                Err(error) => (false, Err(error)),
            },
            State::Up(incoming) => match incoming.message().await {
                Ok(Some(message)) => return Event::Message(Box::new(message)),
                Ok(None) => (true, Ok(())),
                Err(error) => (true, Err(error)),
            },
            State::Over => std::future::pending().await,
        };
        self.broke(is_new, result)
    }

    fn broke(&mut self, was_up: bool, result: Result<(), Error>) -> Event {
        let now = Instant::now();
        if was_up {
            self.down_since = now;
            self.n_failures = 0;
        }
        let is_final = result.as_ref().is_err_and(Error::is_final);
        if !self.is_dialled_again() || is_final {
            self.state = State::Over;
            return Event::Over(result);
        }
        if now - self.down_since > UNLINKED_MAX {
            self.state = State::Over;
            return Event::Over(Err(Error::Unlinked));
        }
        if matches!(&result, Err(Error::Refused(status)) if status.code() == Code::Unauthenticated) {
            // The ticket may be too old; the token tells who we are again.
            self.ticket = None;
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.n_failures.min(10)).min(PAUSE_MAX);
        self.n_failures = self.n_failures.saturating_add(1);
        self.state = State::Waiting { until: now + pause.mul_f64(0.5 + random_half()) };
        Event::Lost(result.err().unwrap_or(Error::Ended))
    }

    /// Lets the last frames leave, after nothing more can be put into the connection.
    pub async fn farewell(&mut self) {
        let State::Up(mut incoming) = std::mem::replace(&mut self.state, State::Over) else { return };
        // The service ends the stream when it has read them.
        let ended = async { while let Ok(Some(_)) = incoming.message().await {} };
        drop(tokio::time::timeout(FAREWELL_TIMEOUT, ended).await);
    }
}

/// From 0 to a half, at random.
fn random_half() -> f64 {
    let mut random = [0];
    // Without random bytes the pauses are merely equal.
    let _ = getrandom::fill(&mut random);
    f64::from(random[0]) / 512.0
}

async fn inherited(fd: io::Result<std::os::fd::OwnedFd>, hello: Hello) -> Result<Attached, Error> {
    let socket = std::os::unix::net::UnixStream::from(fd.map_err(Error::Socket)?);
    socket.set_nonblocking(true).map_err(Error::Socket)?;
    let socket = UnixStream::from_std(socket).map_err(Error::Socket)?;
    let (wire, outgoing) = mpsc::channel(WIRE_FRAMES);
    let hello = AttachRequest { number: 0, frame: Some(attach_request::Frame::Hello(hello)) };
    Ok((wire, Incoming::Inherited(Box::new(Inherited::attach(socket, hello, outgoing)))))
}

async fn network_attach(
    network: Network,
    ticket: Option<MetadataValue<Ascii>>,
    hello: Hello,
) -> Result<Attached, Error> {
    let Network { address, server_name, token_file, ca_file } = network;
    let ca = Certificate::from_pem(read(&ca_file).await?);
    let credential = match ticket {
        Some(ticket) => ("seance-ticket", ticket),
        None => ("authorization", bearer(&token_file).await?),
    };
    let tls = ClientTlsConfig::new().ca_certificate(ca).domain_name(server_name);
    let endpoint = Endpoint::from_shared(address).and_then(|endpoint| endpoint.tls_config(tls));
    let endpoint =
        tuned(endpoint.map_err(Error::Connect)?).connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
    let channel = tokio::time::timeout(CONNECT_TIMEOUT * 2, endpoint.connect()).await;
    let channel = channel.map_err(|_| Error::Silent)?.map_err(Error::Connect)?;
    let attached = attach(channel, credential, hello);
    tokio::time::timeout(ATTACH_TIMEOUT, attached).await.map_err(|_| Error::Silent)?
}

async fn bearer(file: &std::path::Path) -> Result<MetadataValue<Ascii>, Error> {
    let token = read(file).await?;
    let token = std::str::from_utf8(&token).ok().map(str::trim).filter(|token| !token.is_empty());
    let bad = || Error::File { file: file.display().to_string(), source: io::ErrorKind::InvalidData.into() };
    let token = token.filter(|token| token.len() <= CREDENTIAL_BYTES_MAX).ok_or_else(bad)?;
    MetadataValue::try_from(format!("Bearer {token}")).map_err(|_| bad())
}

async fn read(file: &std::path::Path) -> Result<Vec<u8>, Error> {
    let read = tokio::fs::read(file).await;
    read.map_err(|source| Error::File { file: file.display().to_string(), source })
}

fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
}

async fn attach(
    channel: Channel,
    (name, value): (&'static str, MetadataValue<Ascii>),
    hello: Hello,
) -> Result<Attached, Error> {
    let mut client = LinkClient::new(channel)
        .max_decoding_message_size(LINK_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(LINK_MESSAGE_BYTES_MAX);
    let (wire, outgoing) = mpsc::channel(WIRE_FRAMES);
    let hello = AttachRequest { number: 0, frame: Some(attach_request::Frame::Hello(hello)) };
    let first = tokio_stream::once(hello);
    let mut request = Request::new(first.chain(ReceiverStream::new(outgoing)));
    request.metadata_mut().insert(name, value);
    let attached = client.attach(request).await;
    let incoming = attached.map_err(|status| Error::Refused(Box::new(status)))?.into_inner();
    Ok((wire, Incoming::Network(Box::new(incoming))))
}
