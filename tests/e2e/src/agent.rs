//! A caller of the service: stock tonic clients over TLS, with a bearer token on every request.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use seance_proto::v1alpha1 as api;
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::tools_client::ToolsClient;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint as TonicEndpoint};
use tonic::{Request, Status};

use crate::wait;

/// A service that starts may take so long to take connections.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);
/// A call may take so long: an Open may have to wait for a cold start.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);
/// Messages of a provider that wait to be sent.
const OUTBOX: usize = 16;

/// How a service is reached.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `https://ADDRESS:PORT`.
    pub url: String,
    /// The name that its certificate has.
    pub server_name: String,
    /// Whom its certificate leads to, PEM.
    pub ca: String,
}

impl Endpoint {
    /// Connects, as soon as connections are taken.
    ///
    /// # Errors
    /// When none is taken in time.
    pub async fn connect(&self) -> anyhow::Result<Channel> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .domain_name(&self.server_name);
        let at = TonicEndpoint::from_shared(self.url.clone())
            .context("the service's address")?
            .connect_timeout(Duration::from_secs(5))
            .tls_config(tls)
            .context("the service's CA")?;
        let at = &at;
        wait::until_told("connecting to the service", CONNECT_WITHIN, || async move {
            at.connect().await.map_err(|error| format!("{:#}", anyhow::Error::new(error)))
        })
        .await
    }
}

/// Puts a token on every request, and the trace that it belongs to.
#[derive(Clone)]
pub struct Bearer {
    token: AsciiMetadataValue,
    traceparent: Option<AsciiMetadataValue>,
}

impl tonic::service::Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.token.clone());
        if let Some(traceparent) = &self.traceparent {
            request.metadata_mut().insert("traceparent", traceparent.clone());
        }
        request.set_timeout(CALL_TIMEOUT);
        Ok(request)
    }
}

type Authorized = InterceptedService<Channel, Bearer>;

/// A connected caller.
#[derive(Clone)]
pub struct Agent {
    /// `Sessions`.
    pub sessions: SessionsClient<Authorized>,
    /// `Tools`.
    pub tools: ToolsClient<Authorized>,
}

/// What a refused call said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The gRPC code.
    pub code: tonic::Code,
    /// The reason in the `ErrorInfo`.
    pub reason: String,
    /// The message.
    pub message: String,
}

impl Refusal {
    /// The refusal that a status is.
    pub fn of(status: &Status) -> Self {
        use tonic_types::StatusExt as _;
        let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
        Self { code: status.code(), reason, message: status.message().to_owned() }
    }
}

/// How a program went, as far as was seen.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The output of the stream.
    pub output: String,
    /// How it ended: an observation, or a refusal.
    pub end: Result<api::Observation, Refusal>,
}

impl Seen {
    /// The program of an observation with this status.
    ///
    /// # Errors
    /// When it ended otherwise.
    pub fn expect(&self, status: api::ObservationStatus) -> anyhow::Result<&api::Program> {
        match &self.end {
            Ok(observation) if observation.status() == status => {
                observation.program.as_ref().context("the observation has no program")
            }
            other => {
                bail!("the program ended with {other:?} instead of {status:?}; output {:?}", self.output)
            }
        }
    }

    /// The value of a program that completed.
    ///
    /// # Errors
    /// When it didn't.
    pub fn value(&self) -> anyhow::Result<&str> {
        let program = self.expect(api::ObservationStatus::Completed)?;
        program.value_json.as_deref().context("the program has no value")
    }
}

impl Agent {
    /// Connects to a service, as soon as it takes connections.
    ///
    /// # Errors
    /// When it takes none in time.
    pub async fn connect(endpoint: &Endpoint, token: &str) -> anyhow::Result<Self> {
        Self::connect_in(endpoint, token, None).await
    }

    /// Connects as somebody whose requests all belong to this span of a trace, a W3C `traceparent`.
    ///
    /// # Errors
    /// When it takes none in time.
    pub async fn connect_in(
        endpoint: &Endpoint,
        token: &str,
        traceparent: Option<&str>,
    ) -> anyhow::Result<Self> {
        let token = format!("Bearer {token}").parse().context("the token")?;
        let traceparent = traceparent.map(str::parse).transpose().context("the trace")?;
        let bearer = Bearer { token, traceparent };
        let channel = InterceptedService::new(endpoint.connect().await?, bearer);
        Ok(Self { sessions: SessionsClient::new(channel.clone()), tools: ToolsClient::new(channel) })
    }

    /// Opens a session.
    ///
    /// # Errors
    /// With the refusal.
    pub async fn open(&self, change: impl FnOnce(&mut api::OpenRequest)) -> Result<String, Refusal> {
        let mut request = api::OpenRequest { engine: "javascript".to_owned(), ..api::OpenRequest::default() };
        change(&mut request);
        let opened = self.sessions.clone().open(request).await.map_err(|status| Refusal::of(&status))?;
        Ok(opened.into_inner().session.unwrap_or_default().session_id)
    }

    /// Opens a session with no wishes.
    ///
    /// # Errors
    /// With the refusal, as an error.
    pub async fn opened(&self) -> anyhow::Result<String> {
        let opened = self.open(|_| ()).await;
        opened.map_err(|refusal| anyhow::anyhow!("Open was refused: {refusal:?}"))
    }

    /// Runs a program to its end, or as long as a window lasts.
    ///
    /// # Errors
    /// When the stream breaks the protocol.
    pub async fn run(&self, session: &str, source: &str) -> anyhow::Result<Seen> {
        self.execute(session, source, |_| ()).await
    }

    /// Runs a program and sees the stream through.
    ///
    /// # Errors
    /// When the stream breaks the protocol.
    pub async fn execute(
        &self,
        session: &str,
        source: &str,
        change: impl FnOnce(&mut api::ExecuteRequest),
    ) -> anyhow::Result<Seen> {
        use api::execute_response::Message;
        let mut request = api::ExecuteRequest {
            session_id: session.to_owned(),
            source: source.as_bytes().to_vec().into(),
            language: "javascript".to_owned(),
            ..api::ExecuteRequest::default()
        };
        change(&mut request);
        let mut output = Vec::new();
        let mut stream = match self.sessions.clone().execute(request).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return Ok(Seen { output: String::new(), end: Err(Refusal::of(&status)) }),
        };
        while let Some(message) = stream.next().await {
            let end = match message {
                Ok(api::ExecuteResponse { message: Some(Message::Output(chunk)) }) => {
                    output.extend_from_slice(&chunk.data);
                    continue;
                }
                Ok(api::ExecuteResponse { message: Some(Message::Observation(observation)) }) => {
                    Ok(observation)
                }
                Ok(_) => continue,
                Err(status) => Err(Refusal::of(&status)),
            };
            return Ok(Seen { output: String::from_utf8_lossy(&output).into_owned(), end });
        }
        bail!("the stream of Execute ended without an observation")
    }

    /// Starts a program and doesn't wait for it; its number.
    ///
    /// # Errors
    /// When it isn't taken.
    pub async fn start(&self, session: &str, source: &str) -> anyhow::Result<u64> {
        let at_once = |request: &mut api::ExecuteRequest| {
            let window = Some(prost_types::Duration { seconds: 0, nanos: 0 });
            request.observe = Some(api::ObserveOptions { window, ..api::ObserveOptions::default() });
        };
        let seen = self.execute(session, source, at_once).await?;
        Ok(seen.expect(api::ObservationStatus::StillWorking)?.number)
    }

    /// Waits for a program for as long as a window lasts.
    ///
    /// # Errors
    /// When the stream breaks the protocol.
    pub async fn wait(&self, session: &str, program: u64) -> anyhow::Result<Seen> {
        use api::wait_response::Message;
        let request = api::WaitRequest {
            session_id: session.to_owned(),
            program_number: program,
            ..api::WaitRequest::default()
        };
        let mut output = Vec::new();
        let mut stream = match self.sessions.clone().wait(request).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return Ok(Seen { output: String::new(), end: Err(Refusal::of(&status)) }),
        };
        while let Some(message) = stream.next().await {
            let end = match message {
                Ok(api::WaitResponse { message: Some(Message::Output(chunk)) }) => {
                    output.extend_from_slice(&chunk.data);
                    continue;
                }
                Ok(api::WaitResponse { message: Some(Message::Observation(observation)) }) => Ok(observation),
                Ok(_) => continue,
                Err(status) => Err(Refusal::of(&status)),
            };
            return Ok(Seen { output: String::from_utf8_lossy(&output).into_owned(), end });
        }
        bail!("the stream of Wait ended without an observation")
    }

    /// A program's record.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn program(&self, session: &str, number: u64) -> anyhow::Result<api::Program> {
        let request = api::GetProgramRequest { session_id: session.to_owned(), program_number: number };
        let got = self.sessions.clone().get_program(request).await?.into_inner();
        got.program.context("there is no program in the answer")
    }

    /// A session's record.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn session(&self, session: &str) -> anyhow::Result<api::Session> {
        let request = api::GetRequest { session_id: session.to_owned() };
        let got = self.sessions.clone().get(request).await?.into_inner();
        got.session.context("there is no session in the answer")
    }

    /// Closes a session and makes sure that it is closed.
    ///
    /// # Errors
    /// When it is refused or not closed.
    pub async fn close(&self, session: &str) -> anyhow::Result<()> {
        let request = api::CloseRequest { session_id: session.to_owned(), ..api::CloseRequest::default() };
        let closed = self.sessions.clone().close(request).await.context("closing the session")?.into_inner();
        let state = closed.session.unwrap_or_default().state();
        ensure!(state == api::SessionState::Closed, "the session is {state:?} after Close");
        Ok(())
    }

    /// Serves tools of a session: `answer` makes a value of a tool's name and its arguments, both as
    /// they come over the wire; a call without one stays unanswered.
    ///
    /// # Errors
    /// When the service doesn't attach it.
    pub async fn provide(
        &self,
        session: &str,
        answer: impl Fn(&str, &str) -> Option<String> + Send + 'static,
    ) -> anyhow::Result<Provider> {
        let of_call = move |call: &api::ProviderCall| {
            let call = call.call.as_ref()?;
            answer(&call.tool, &call.arguments_json)
        };
        self.provide_calls(session, of_call).await
    }

    /// Serves tools of a session, as [`Self::provide`], with all that a provider is told of a call.
    ///
    /// # Errors
    /// When the service doesn't attach it.
    pub async fn provide_calls(
        &self,
        session: &str,
        answer: impl Fn(&api::ProviderCall) -> Option<String> + Send + 'static,
    ) -> anyhow::Result<Provider> {
        use api::{serve_request, serve_response};
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let attach = api::Attach { session_id: session.to_owned(), ..api::Attach::default() };
        let message = Some(serve_request::Message::Attach(attach));
        outbox.send(api::ServeRequest { message }).await.context("attaching")?;
        // A provider stays for as long as it likes.
        let mut request = Request::new(ReceiverStream::new(messages));
        request.set_timeout(Duration::from_secs(600));
        let mut incoming = self.tools.clone().serve(request).await.context("attaching")?.into_inner();
        match incoming.next().await.context("Serve ended before it attached")??.message {
            Some(serve_response::Message::Attached(_)) => {}
            other => bail!("Serve began with {other:?}"),
        }
        let serving = tokio::spawn(async move {
            while let Some(Ok(response)) = incoming.next().await {
                let Some(serve_response::Message::Call(call)) = response.message else { continue };
                let Some(value) = answer(&call) else { continue };
                let outcome = Some(api::tool_result::Outcome::ValueJson(value));
                let result = api::ToolResult { outcome, ..api::ToolResult::default() };
                let result =
                    api::CallResult { call_id: call.call.unwrap_or_default().call_id, result: Some(result) };
                let message = Some(serve_request::Message::Result(result));
                if outbox.send(api::ServeRequest { message }).await.is_err() {
                    return;
                }
            }
        });
        Ok(Provider { serving: serving.abort_handle() })
    }
}

/// An attached provider. Dropping it cuts its stream.
pub struct Provider {
    serving: AbortHandle,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A catalog with these tools, whose schemas take anything.
pub fn catalog(names: &[&str]) -> Option<api::CatalogSource> {
    let tool = |name: &&str| api::Tool { name: (*name).to_owned(), ..api::Tool::default() };
    let catalog = api::Catalog { tools: names.iter().map(tool).collect() };
    Some(api::CatalogSource { source: Some(api::catalog_source::Source::Inline(catalog)) })
}
