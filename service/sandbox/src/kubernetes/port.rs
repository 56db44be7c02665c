//! The link port: TLS, and what a stranger may take up before it is known.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;

use super::Config;
use super::door::{Door, Shared};
use super::peers::{Peers, Stranger};
use super::tickets::Tickets;
use crate::link::{self, NETWORK_WINDOW_BYTES};

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may take to show whose it is.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);
/// How often files are looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after a connection could not be taken, as when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no link port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A file can't be read.
    #[error("can't read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The certificate and the key can't be used.
    #[error("the link's certificate or key can't be used: {0}")]
    Tls(String),
    /// The ticket keys can't be used.
    #[error(transparent)]
    Keys(#[from] super::tickets::KeysError),
    /// The address can't be listened at.
    #[error("can't listen at {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// The contents of the files that may change.
#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    tickets: String,
}

/// What the port is made of.
pub(super) struct Port {
    listener: TcpListener,
    canary: Option<TcpListener>,
    tls: watch::Sender<Arc<ServerConfig>>,
    files: Files,
    peers: Arc<Peers>,
}

impl Port {
    /// Listens, and gives the keys of tickets too.
    pub(super) async fn open(config: &Config) -> Result<(Self, Tickets), PortError> {
        let files = read(config).await?;
        let tls = watch::Sender::new(tls(&files)?);
        let tickets = Tickets::new(&files.tickets)?;
        let listener = listen(config.link_listen).await?;
        let canary = match config.canary_listen {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let peers = Peers::new(config.connections_max, config.strangers_per_address_max);
        Ok((Self { listener, canary, tls, files, peers }, tickets))
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes connections for ever. Dropping the future ends them all.
    pub(super) async fn serve(self, config: Config, shared: Arc<Shared>) {
        let Self { listener, canary, tls, files, peers } = self;
        let accept = accept(listener, tls.subscribe(), peers, Arc::clone(&shared));
        tokio::join!(accept, reload(config, tls, files, shared), answer_nothing(canary));
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, PortError> {
    TcpListener::bind(address).await.map_err(|source| PortError::Listen { address, source })
}

async fn accept(
    listener: TcpListener,
    tls: watch::Receiver<Arc<ServerConfig>>,
    peers: Arc<Peers>,
    shared: Arc<Shared>,
) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection of a runner could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some((place, stranger)) = peers.admit(address.ip().to_canonical()) else {
            tracing::debug!(%address, "too many connections from there; one is closed");
            continue;
        };
        let acceptor = TlsAcceptor::from(Arc::clone(&tls.borrow()));
        connections.spawn(connection(stream, acceptor, place, stranger, Arc::clone(&shared)));
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    _place: OwnedSemaphorePermit,
    stranger: Stranger,
    shared: Arc<Shared>,
) {
    drop(stream.set_nodelay(true));
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else { return };
    let (door, mut is_known, cut) = Door::new(shared, stranger);
    let served = link::serve(stream, door, NETWORK_WINDOW_BYTES);
    let mut served = std::pin::pin!(served);
    tokio::select! {
        () = &mut served => return,
        known = timeout(KNOWN_WITHIN, is_known.wait_for(|known| *known)) => {
            if known.is_err() {
                return;
            }
        }
    }
    tokio::select! {
        () = served => {}
        // Its runner has another, or doesn't read what waits here.
        () = cut.cancelled() => {}
    }
}

/// Reads certificate and keys again when they change. Bad ones change nothing.
async fn reload(
    config: Config,
    tls_config: watch::Sender<Arc<ServerConfig>>,
    mut files: Files,
    shared: Arc<Shared>,
) {
    let mut look = interval(RELOAD_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let found = match read(&config).await {
            Ok(found) if found != files => found,
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%error, "the link's files can't be read again");
                continue;
            }
        };
        match tls(&found) {
            Ok(new) => drop(tls_config.send_replace(new)),
            Err(error) => tracing::warn!(%error, "the link goes on with its old certificate"),
        }
        if let Err(error) = shared.tickets.replace(&found.tickets) {
            tracing::warn!(%error, "tickets go on with their old keys");
        }
        files = found;
        tracing::info!("the link's certificate and keys were read again");
    }
}

/// Listens, so that whoever can reach it is seen to, and says nothing.
async fn answer_nothing(canary: Option<TcpListener>) {
    let Some(listener) = canary else { return };
    loop {
        if listener.accept().await.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

async fn read(config: &Config) -> Result<Files, PortError> {
    let file = |path: &PathBuf| {
        let path = path.clone();
        async move { tokio::fs::read(&path).await.map_err(|source| PortError::File { path, source }) }
    };
    let tickets = file(&config.ticket_keys).await?;
    Ok(Files {
        certificate: file(&config.link_cert).await?,
        key: file(&config.link_key).await?,
        tickets: String::from_utf8_lossy(&tickets).into_owned(),
    })
}

fn tls(files: &Files) -> Result<Arc<ServerConfig>, PortError> {
    let error = |error: &dyn std::fmt::Display| PortError::Tls(error.to_string());
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&files.certificate)
        .collect::<Result<_, _>>()
        .map_err(|failed| error(&failed))?;
    let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|failed| error(&failed))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|failed| error(&failed))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
