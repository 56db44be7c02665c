//! The gRPC door: stock tonic clients with default settings, and what they see put into [`Seen`].

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::Stream;
use seance_proto::v1alpha1 as api;
use tokio_stream::StreamExt as _;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic_types::StatusExt as _;

use crate::seen::{Refusal, Seen};

/// A connection whose requests carry the caller's credentials.
pub type Channel = InterceptedService<tonic::transport::Channel, Credentials>;

/// Puts a bearer token into every request, where there is one.
#[derive(Debug, Clone, Default)]
pub struct Credentials(Option<MetadataValue<Ascii>>);

impl Interceptor for Credentials {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(bearer) = &self.0 {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        Ok(request)
    }
}

/// The service's clients over one connection.
#[derive(Debug, Clone)]
pub struct Door {
    endpoint: Endpoint,
    credentials: Credentials,
    channel: Channel,
}

impl Door {
    /// Connects to a service without TLS and without a token.
    pub async fn connect(address: &str) -> anyhow::Result<Self> {
        Self::over(Endpoint::from_shared(address.to_owned())?, Credentials::default()).await
    }

    /// Connects to a service with the certificate authority (PEM) of its certificate, and a token.
    pub async fn connect_as(address: &str, ca: Option<&str>, token: Option<&str>) -> anyhow::Result<Self> {
        let mut endpoint = Endpoint::from_shared(address.to_owned())?;
        if let Some(ca) = ca {
            endpoint =
                endpoint.tls_config(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)))?;
        }
        let bearer = token.map(|token| format!("Bearer {}", token.trim()).parse()).transpose();
        Self::over(endpoint, Credentials(bearer.context("the token is no header's text")?)).await
    }

    async fn over(endpoint: Endpoint, credentials: Credentials) -> anyhow::Result<Self> {
        let connected = endpoint.connect().await;
        let channel = connected.with_context(|| format!("connecting to {}", endpoint.uri()))?;
        let channel = InterceptedService::new(channel, credentials.clone());
        Ok(Self { endpoint, credentials, channel })
    }

    /// The same door over a connection of its own.
    pub async fn another(&self) -> anyhow::Result<Self> {
        Self::over(self.endpoint.clone(), self.credentials.clone()).await
    }

    /// The connection.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// `Sessions`.
    pub fn sessions(&self) -> api::sessions_client::SessionsClient<Channel> {
        api::sessions_client::SessionsClient::new(self.channel())
    }

    /// `Tools`.
    pub fn tools(&self) -> api::tools_client::ToolsClient<Channel> {
        api::tools_client::ToolsClient::new(self.channel())
    }

    /// `Engines`.
    pub fn engines(&self) -> api::engines_client::EnginesClient<Channel> {
        api::engines_client::EnginesClient::new(self.channel())
    }

    /// `Server`.
    pub fn server(&self) -> api::server_client::ServerClient<Channel> {
        api::server_client::ServerClient::new(self.channel())
    }
}

/// A message of Execute's or Wait's stream.
#[derive(Debug)]
pub enum Message {
    /// The program was accepted.
    Accepted(u64),
    /// Output.
    Output(Vec<u8>),
    /// Nothing happened for a while.
    Heartbeat,
    /// The observation.
    Observation(Box<api::Observation>),
    /// Nothing we know.
    Unknown,
}

impl From<api::ExecuteResponse> for Message {
    fn from(response: api::ExecuteResponse) -> Self {
        use api::execute_response::Message::*;
        match response.message {
            Some(Accepted(accepted)) => Message::Accepted(accepted.program_number),
            Some(Output(chunk)) => Message::Output(chunk.data.to_vec()),
            Some(Heartbeat(_)) => Message::Heartbeat,
            Some(Observation(observation)) => Message::Observation(Box::new(observation)),
            None => Message::Unknown,
        }
    }
}

impl From<api::WaitResponse> for Message {
    fn from(response: api::WaitResponse) -> Self {
        use api::wait_response::Message::*;
        match response.message {
            Some(Output(chunk)) => Message::Output(chunk.data.to_vec()),
            Some(Heartbeat(_)) => Message::Heartbeat,
            Some(Observation(observation)) => Message::Observation(Box::new(observation)),
            None => Message::Unknown,
        }
    }
}

/// Reads a stream to its end. A stream that ends without an observation is an error.
pub async fn collect<T: Into<Message>>(
    mut stream: impl Stream<Item = Result<T, tonic::Status>> + Unpin,
    sent: Instant,
) -> anyhow::Result<Seen> {
    let mut seen = Seen { sent: Some(sent), ..Seen::default() };
    while let Some(message) = stream.next().await {
        match message.map(Into::into) {
            Ok(Message::Output(data)) => seen.streamed.push((sent.elapsed(), data)),
            Ok(Message::Observation(observation)) => {
                anyhow::ensure!(seen.observation.is_none(), "the stream has two observations");
                seen.program = observation.program.clone();
                seen.observation = Some(*observation);
            }
            Ok(Message::Accepted(_) | Message::Heartbeat) => {
                anyhow::ensure!(seen.observation.is_none(), "a message came after the observation");
            }
            Ok(Message::Unknown) => anyhow::bail!("the stream has an empty message"),
            Err(status) => {
                seen.refused = Some(refusal(&status));
                break;
            }
        }
    }
    seen.elapsed = sent.elapsed();
    let ended = seen.observation.is_some() || seen.refused.is_some();
    anyhow::ensure!(ended, "the stream ended without an observation");
    Ok(seen)
}

/// A status as the cases speak of it.
pub fn refusal(status: &tonic::Status) -> Refusal {
    let trailer = status.metadata().get("seance-reason").and_then(|value| value.to_str().ok());
    Refusal {
        grpc: grpc_name(status.code()).to_owned(),
        reason: status.get_details_error_info().map(|info| info.reason).unwrap_or_default(),
        trailer: trailer.unwrap_or_default().to_owned(),
        message: status.message().to_owned(),
    }
}

/// What an answer without a stream shows, or its refusal.
pub fn answered<T>(
    result: Result<tonic::Response<T>, tonic::Status>,
    put: impl FnOnce(&mut Seen, T),
) -> Seen {
    let mut seen = Seen::default();
    match result {
        Ok(response) => put(&mut seen, response.into_inner()),
        Err(status) => seen.refused = Some(refusal(&status)),
    }
    seen
}

fn grpc_name(code: tonic::Code) -> &'static str {
    use tonic::Code::*;
    match code {
        Ok => "OK",
        Cancelled => "CANCELLED",
        Unknown => "UNKNOWN",
        InvalidArgument => "INVALID_ARGUMENT",
        DeadlineExceeded => "DEADLINE_EXCEEDED",
        NotFound => "NOT_FOUND",
        AlreadyExists => "ALREADY_EXISTS",
        PermissionDenied => "PERMISSION_DENIED",
        ResourceExhausted => "RESOURCE_EXHAUSTED",
        FailedPrecondition => "FAILED_PRECONDITION",
        Aborted => "ABORTED",
        OutOfRange => "OUT_OF_RANGE",
        Unimplemented => "UNIMPLEMENTED",
        Internal => "INTERNAL",
        Unavailable => "UNAVAILABLE",
        DataLoss => "DATA_LOSS",
        Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Milliseconds as the API's duration.
pub fn duration(ms: u64) -> prost_types::Duration {
    let duration = Duration::from_millis(ms);
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).expect("under a second in nanoseconds fits"),
    }
}
