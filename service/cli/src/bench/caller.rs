//! A caller as the figures have it: opens sessions, runs programs, answers their calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use proto::execute_response::Message;
use seance_core::reasons;
use seance_proto::v1alpha1 as proto;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::report::millis;
use crate::client::{Client, reason};

/// Calls of tools that one session may make.
const CALLS_MAX: u64 = 100_000;

/// Closes of one session, each of which waits for the proof of its end.
const CLOSES_MAX: usize = 12;

/// When a tool was called.
pub type Calls = Arc<Mutex<Vec<Instant>>>;

/// A caller. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    /// The service.
    pub client: Client,
    /// What every session is labelled with.
    pub labels: HashMap<String, String>,
}

impl Caller {
    /// A session as the figures want it, not opened yet.
    pub fn session(&self, tools: &[proto::Tool]) -> proto::OpenRequest {
        let catalog = proto::Catalog { tools: tools.to_vec() };
        let catalog = proto::CatalogSource { source: Some(proto::catalog_source::Source::Inline(catalog)) };
        proto::OpenRequest {
            engine: "javascript".to_owned(),
            limits: HashMap::from([("max_calls".to_owned(), CALLS_MAX)]),
            catalog: (!tools.is_empty()).then_some(catalog),
            labels: self.labels.clone(),
            ..Default::default()
        }
    }

    /// Opens a session.
    pub async fn open(&self, tools: &[proto::Tool]) -> Result<String> {
        self.open_as(self.session(tools)).await
    }

    /// Opens a session with limits and an idle time.
    pub async fn open_with(&self, limits: HashMap<String, u64>, idle: Option<Duration>) -> Result<String> {
        let idle_timeout = idle.and_then(|idle| idle.try_into().ok());
        self.open_as(proto::OpenRequest { limits, idle_timeout, ..self.session(&[]) }).await
    }

    /// Opens this session.
    pub async fn open_as(&self, request: proto::OpenRequest) -> Result<String> {
        let session = self.client.sessions.clone().open(request).await?.into_inner().session;
        Ok(session.context("no session was opened")?.session_id)
    }

    /// Closes a session. An end that is not proven in time is asked for again, as its remedy says.
    pub async fn close(&self, session: &str) -> Result<()> {
        let request = proto::CloseRequest { session_id: session.to_owned(), ..Default::default() };
        for _ in 1..CLOSES_MAX {
            match self.client.sessions.clone().close(request.clone()).await {
                Err(status) if reason(&status) == Some(reasons::CLEANUP_UNPROVEN) => {}
                closed => return Ok(closed.map(drop)?),
            }
        }
        self.client.sessions.clone().close(request).await?;
        Ok(())
    }

    /// Runs a program to its end. `on_output` sees each chunk of its output.
    pub async fn run(&self, session: &str, source: &str, mut on_output: impl FnMut(&[u8])) -> Result<()> {
        let request = proto::ExecuteRequest {
            session_id: session.to_owned(),
            source: source.as_bytes().to_vec().into(),
            ..Default::default()
        };
        let mut stream = self.client.sessions.clone().execute(request).await?.into_inner();
        while let Some(response) = stream.message().await? {
            match response.message {
                Some(Message::Output(chunk)) => on_output(&chunk.data),
                Some(Message::Observation(observation)) => {
                    return match observation.status() {
                        proto::ObservationStatus::Completed => Ok(()),
                        status => bail!("a program ended {status:?}: {:?}", observation.program),
                    };
                }
                Some(Message::Accepted(_) | Message::Heartbeat(_)) | None => {}
            }
        }
        bail!("a stream ended without an observation")
    }

    /// Runs the smallest program so often, each `pause` after the one before; the milliseconds that each
    /// took.
    pub async fn programs(&self, session: &str, n: usize, pause: Duration) -> Result<Vec<f64>> {
        let mut samples = Vec::new();
        for _ in 0..n {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let began = Instant::now();
            self.run(session, "1", |_| {}).await?;
            samples.push(millis(began.elapsed()));
        }
        Ok(samples)
    }

    /// Runs a program that writes; the milliseconds from `began` until its output is here.
    pub async fn first_output(&self, session: &str, began: Instant) -> Result<f64> {
        let mut first = None;
        self.run(session, "text('x')", |_| first = first.or(Some(began.elapsed()))).await?;
        Ok(millis(first.context("a program wrote nothing")?))
    }

    /// Calls the session's tool so often, served over a provider's stream that answers at once; the
    /// milliseconds from each call to the next.
    pub async fn served_calls(&self, session: &str, n: usize) -> Result<Vec<f64>> {
        let calls = Calls::default();
        let serving = self.serve_at_once(session, calls.clone()).await?;
        self.run(session, &loop_of(n), |_| {}).await?;
        drop(serving);
        Ok(intervals(&calls))
    }

    /// Serves all tools of a session over a provider's stream, answering at once; keeps the time of each
    /// call. Dropping the set ends it.
    pub async fn serve_at_once(&self, session: &str, called: Calls) -> Result<JoinSet<()>> {
        use proto::{serve_request, serve_response};
        let (outgoing, requests) = mpsc::channel(64);
        let attach = proto::Attach { session_id: session.to_owned(), ..Default::default() };
        let request = |message| proto::ServeRequest { message: Some(message) };
        outgoing.send(request(serve_request::Message::Attach(attach))).await?;
        let serve = self.client.tools.clone().serve(ReceiverStream::new(requests)).await;
        let mut incoming = serve?.into_inner();
        incoming.message().await?.context("the service did not attach the tools")?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Ok(Some(response)) = incoming.message().await {
                let Some(serve_response::Message::Call(call)) = response.message else { continue };
                called.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                let outcome = Some(proto::tool_result::Outcome::ValueJson("1".to_owned()));
                let result = proto::CallResult {
                    call_id: call.call.unwrap_or_default().call_id,
                    result: Some(proto::ToolResult { outcome, artifacts: Vec::new() }),
                };
                if outgoing.send(request(serve_request::Message::Result(result))).await.is_err() {
                    return;
                }
            }
        });
        Ok(serving)
    }
}

/// The tool that programs of figures call.
pub fn tick(read_only: bool) -> proto::Tool {
    proto::Tool { name: "tick".to_owned(), read_only, ..Default::default() }
}

/// A program that calls the tool so often, one call after another.
pub fn loop_of(n_calls: usize) -> String {
    format!("for (let n = 0; n < {n_calls}; n++) await tools.tick({{}});")
}

/// From each call to the next: the way from the tool to the program and back, in milliseconds.
pub fn intervals(called: &Mutex<Vec<Instant>>) -> Vec<f64> {
    let called = called.lock().unwrap_or_else(PoisonError::into_inner);
    called.windows(2).map(|pair| millis(pair[1] - pair[0])).collect()
}
