//! Reaching a service.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use seance_proto::v1alpha1::engines_client::EnginesClient;
use seance_proto::v1alpha1::server_client::ServerClient;
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::tools_client::ToolsClient;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::args::Connection;

/// The program failed by its own doing.
pub const EXIT_PROGRAM_FAILED: u8 = 1;
/// The command line is wrong.
pub const EXIT_USAGE: u8 = 2;
/// The program was stopped.
pub const EXIT_STOPPED: u8 = 3;
/// The program was lost or never started, or the service refused.
pub const EXIT_REFUSED: u8 = 4;
/// The service can't be reached.
pub const EXIT_UNREACHABLE: u8 = 5;
/// The program is still working.
pub const EXIT_STILL_WORKING: u8 = 6;

/// The reader of our output has gone away: what a shell shows for SIGPIPE.
pub const EXIT_OUTPUT_GONE: u8 = 141;

/// An error that names its own exit status; also a context of other errors.
#[derive(Debug)]
pub struct Exit(pub u8, pub String);

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Exit {}

/// Puts the bearer token on every request.
#[derive(Clone, Default)]
pub struct Bearer(Option<AsciiMetadataValue>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// A channel with the caller's credentials on it.
pub type Authorized = InterceptedService<Channel, Bearer>;

/// The services of one address. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub sessions: SessionsClient<Authorized>,
    pub engines: EnginesClient<Authorized>,
    pub tools: ToolsClient<Authorized>,
    pub server: ServerClient<Authorized>,
}

impl Client {
    /// A client over a channel that is there already.
    pub fn over(channel: Channel, bearer: Bearer) -> Self {
        let authorized = InterceptedService::new(channel, bearer);
        Self {
            sessions: SessionsClient::new(authorized.clone()),
            engines: EnginesClient::new(authorized.clone()),
            tools: ToolsClient::new(authorized.clone()),
            server: ServerClient::new(authorized),
        }
    }

    /// Connects to a service.
    pub async fn connect(connection: &Connection) -> Result<Self> {
        let address = with_scheme(&connection.address);
        let wrong =
            || Exit(EXIT_USAGE, format!("{address:?} is no address; it looks like http://127.0.0.1:7443"));
        if address.starts_with("https://") && connection.ca.is_none() {
            let text =
                format!("{address} needs the service's certificate authority: --ca FILE, or SEANCE_CA");
            return Err(Exit(EXIT_USAGE, text).into());
        }
        let mut endpoint = Endpoint::from_shared(address.clone())
            .with_context(wrong)?
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true);
        if let Some(ca) = &connection.ca {
            let pem = std::fs::read(ca).with_context(|| format!("can't read {}", ca.display()))?;
            let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
            endpoint = endpoint.tls_config(tls).context("can't use the certificate authority")?;
        }
        let bearer = bearer(connection)?;
        let channel = endpoint
            .connect()
            .await
            .with_context(|| format!("can't reach a service at {address}; `seance serve` starts one"))?;
        Ok(Self::over(channel, bearer))
    }
}

fn bearer(connection: &Connection) -> Result<Bearer> {
    let Some(file) = &connection.token_file else { return Ok(Bearer::default()) };
    let token = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    let mut value: AsciiMetadataValue = format!("Bearer {}", token.trim())
        .parse()
        .with_context(|| format!("{} holds no token", file.display()))?;
    value.set_sensitive(true);
    Ok(Bearer(Some(value)))
}

/// An address as people write it may lack its scheme.
fn with_scheme(address: &str) -> String {
    if address.contains("://") { address.to_owned() } else { format!("http://{address}") }
}

/// The reason of a refusal; none where the connection failed instead.
pub fn reason(status: &tonic::Status) -> Option<&str> {
    status.metadata().get("seance-reason")?.to_str().ok()
}

/// What an error means for the exit status.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(Exit(code, _)) = error.downcast_ref() {
        *code
    } else if let Some(status) = error.downcast_ref::<tonic::Status>() {
        if reason(status).is_some() { EXIT_REFUSED } else { EXIT_UNREACHABLE }
    } else if error.downcast_ref::<tonic::transport::Error>().is_some() {
        EXIT_UNREACHABLE
    } else {
        EXIT_USAGE
    }
}
