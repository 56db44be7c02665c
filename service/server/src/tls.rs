//! TLS of the API's port: a certificate that is read again when its files change, and the handshake.
//!
//! Certificates are renewed while the service runs: a new one is written beside its key, or a mounted
//! secret is switched. New connections get the new one; those that are open keep theirs. Files that
//! have become unreadable or don't belong together leave the certificate as it was.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use crate::auth::{ChangedAt, changed_at};
use crate::config::TlsFiles;

/// How often the files are looked at.
pub const TLS_FILES_LOOK: Duration = Duration::from_secs(10);
/// The largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("{} can't be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is no PEM file, or has nothing of its kind.
    #[error("{} is no PEM file with {wanted}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        wanted: &'static str,
    },
    /// The certificate and the key can't be used, or not together.
    #[error("the certificate {} and its key can't be used", path.display())]
    Unusable {
        /// The certificate.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
}

/// The certificate that new connections get.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The files of a certificate, which are read again whenever they change.
pub struct Certificate {
    files: TlsFiles,
    seen: [Option<ChangedAt>; 2],
    current: Arc<Current>,
}

impl Certificate {
    /// Reads the files. What is read later reaches the acceptor too, while [`Certificate::watch`] runs.
    pub fn open(files: TlsFiles) -> Result<(Self, TlsAcceptor), Error> {
        let seen = seen(&files);
        let current = Arc::new(Current(RwLock::new(Arc::new(read(&files)?))));
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has what the default versions need")
            .with_no_client_auth();
        let mut config = config.with_cert_resolver(Arc::clone(&current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok((Self { files, seen, current }, TlsAcceptor::from(Arc::new(config))))
    }

    /// Looks at the files every [`TLS_FILES_LOOK`], for ever.
    pub async fn watch(mut self) {
        let mut look = tokio::time::interval(TLS_FILES_LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            self.look();
        }
    }

    fn look(&mut self) {
        let now = seen(&self.files);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match read(&self.files) {
            Ok(key) => {
                *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
                tracing::info!(cert = %self.files.cert.display(), "the certificate was read again");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    error,
                    "the certificate changed and can't be used; new connections get the one before"
                );
            }
        }
    }
}

fn provider() -> rustls::crypto::CryptoProvider {
    rustls::crypto::ring::default_provider()
}

fn seen(files: &TlsFiles) -> [Option<ChangedAt>; 2] {
    [changed_at(&files.cert), changed_at(&files.key)]
}

fn read(files: &TlsFiles) -> Result<CertifiedKey, Error> {
    let wrong = |path: &Path, wanted| Error::Pem { path: path.to_owned(), wanted };
    let certs = read_file(&files.cert)?;
    let certs: Vec<_> = CertificateDer::pem_slice_iter(&certs)
        .collect::<Result<_, _>>()
        .map_err(|_| wrong(&files.cert, "a certificate"))?;
    if certs.is_empty() {
        return Err(wrong(&files.cert, "a certificate"));
    }
    let key =
        PrivateKeyDer::from_pem_slice(&read_file(&files.key)?).map_err(|_| wrong(&files.key, "a key"))?;
    CertifiedKey::from_der(certs, key, &provider())
        .map_err(|source| Error::Unusable { path: files.cert.clone(), source })
}

fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A connection whose handshake happens when it is first read or written, in the connection's own
/// task: a client that is slow at it holds up nobody.
pub struct Secured<IO: Connected> {
    info: IO::ConnectInfo,
    state: State<IO>,
}

enum State<IO> {
    Handshake(Box<Accept<IO>>),
    Open(Box<TlsStream<IO>>),
    Failed,
}

impl<IO: Connected + AsyncRead + AsyncWrite + Unpin> Secured<IO> {
    /// A connection that a client has made.
    pub fn accept(acceptor: &TlsAcceptor, stream: IO) -> Self {
        let info = stream.connect_info();
        Self { info, state: State::Handshake(Box::new(acceptor.accept(stream))) }
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<IO>>>> {
        if let State::Handshake(accept) = &mut self.state {
            match ready!(Pin::new(accept.as_mut()).poll(cx)) {
                Ok(stream) => self.state = State::Open(Box::new(stream)),
                Err(error) => {
                    tracing::debug!(%error, "a TLS handshake failed");
                    self.state = State::Failed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &mut self.state {
            State::Open(stream) => Poll::Ready(Ok(Pin::new(stream.as_mut()))),
            State::Handshake(_) | State::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl<IO: Connected + AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<IO>
where
    IO::ConnectInfo: Unpin,
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, buffer)
    }
}

impl<IO: Connected + AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<IO>
where
    IO::ConnectInfo: Unpin,
{
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.state {
            // Nothing was written yet.
            State::Handshake(_) | State::Failed => Poll::Ready(Ok(())),
            State::Open(_) => ready!(self.poll_open(cx))?.poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.state {
            State::Handshake(_) | State::Failed => {
                self.state = State::Failed;
                Poll::Ready(Ok(()))
            }
            State::Open(_) => ready!(self.poll_open(cx))?.poll_shutdown(cx),
        }
    }
}

impl<IO: Connected> Connected for Secured<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.info.clone()
    }
}
