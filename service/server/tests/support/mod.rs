//! A service with sandboxes whose runners follow a script instead of running a language, so that the
//! edge's tests decide what a program does and when.
//!
//! A program's source is a list of lines: `text WORDS` writes output, `call TOOL JSON` calls a tool,
//! waits for its result and writes that, `big N` writes N bytes, `hang` waits for a stop. At the
//! end the program completes with the value 42.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use seance_core::event::OutputSource;
use seance_core::ids::{ProgramNumber, SandboxId};
use seance_core::link::{Addressed, FromRunner, HostEnd, HostEnded, HostReport, Numbered, ToRunner};
use seance_core::sandbox::{
    ClaimError, ClaimRequest, Claimed, EndReason, EndUnproven, EngineStatus, LinkEvent, LinkGone,
    LinkReceiver, LinkSender, SandboxBackend, SandboxEnd, SandboxHandle,
};
use seance_core::time::Timestamp;
use seance_proto::v1alpha1::execute_response::Message;
use seance_proto::v1alpha1::sessions_client::SessionsClient;
use seance_proto::v1alpha1::{self as proto};
use seance_server::Service;
use seance_server::auth::mint_token;
use seance_server::config::{ServerConfig, Settings};
use tokio::sync::mpsc;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::transport::Channel;

/// Everything a test waits for has come by then.
pub const SOON: Duration = Duration::from_secs(20);

/// Settings of a service on free ports that keeps nothing.
pub fn settings() -> Settings {
    Settings {
        listen: Some("127.0.0.1:0".to_owned()),
        admin_listen: Some("off".to_owned()),
        data_dir: Some(PathBuf::from("memory")),
        ..Settings::default()
    }
}

/// Starts a service with these settings.
pub async fn start(settings: Settings) -> Service {
    let config: ServerConfig = settings.parse().unwrap();
    Service::start(&config, Arc::new(Scripted::default())).await.unwrap()
}

/// A channel to a service over TCP.
pub async fn connect(service: &Service) -> Channel {
    let address = format!("http://{}", service.local_addr().unwrap());
    Channel::from_shared(address).unwrap().connect().await.unwrap()
}

/// A service that two tenants call, each with a token.
pub struct TwoTenants {
    pub channel: Channel,
    pub ours: String,
    pub theirs: String,
    _service: Service,
    _folder: tempfile::TempDir,
}

impl TwoTenants {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tokens_file = folder.path().join("tokens.toml");
        let mint = |tenant: &str| mint_token(&tenant.parse().unwrap(), "").unwrap();
        let (ours, theirs) = (mint("ours"), mint("theirs"));
        std::fs::write(&tokens_file, format!("{}{}", ours.file_entry, theirs.file_entry)).unwrap();
        let service = start(Settings { tokens_file: Some(tokens_file), ..settings() }).await;
        let channel = connect(&service).await;
        Self { channel, ours: ours.token, theirs: theirs.token, _service: service, _folder: folder }
    }
}

/// Puts a token into every request.
pub fn as_caller(token: &str) -> impl Interceptor + Clone + use<> {
    let bearer: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
    move |mut request: Request<()>| {
        request.metadata_mut().insert("authorization", bearer.clone());
        Ok(request)
    }
}

/// A catalog of one tool without schemas.
pub fn catalog(tool: &str) -> Option<proto::CatalogSource> {
    let tool = proto::Tool { name: tool.to_owned(), ..proto::Tool::default() };
    let inline = proto::Catalog { tools: vec![tool] };
    Some(proto::CatalogSource { source: Some(proto::catalog_source::Source::Inline(inline)) })
}

/// Opens a session with a tool named `look`.
pub async fn open(client: &mut SessionsClient<Channel>) -> String {
    let request = proto::OpenRequest {
        engine: "javascript".to_owned(),
        catalog: catalog("look"),
        ..proto::OpenRequest::default()
    };
    client.open(request).await.unwrap().into_inner().session.unwrap().session_id
}

/// A request to execute a script.
pub fn script(session_id: &str, lines: &[&str]) -> proto::ExecuteRequest {
    proto::ExecuteRequest {
        session_id: session_id.to_owned(),
        source: lines.join("\n").into(),
        ..proto::ExecuteRequest::default()
    }
}

/// Reads Execute's stream to its observation, and gives the output's bytes too.
pub async fn observed(
    client: &mut SessionsClient<Channel>,
    request: proto::ExecuteRequest,
) -> Result<(Vec<u8>, proto::Observation), tonic::Status> {
    let mut stream = client.execute(request).await?.into_inner();
    let mut output = Vec::new();
    while let Some(response) = stream.message().await? {
        match response.message.unwrap() {
            Message::Output(chunk) => output.extend_from_slice(&chunk.data),
            Message::Observation(observation) => return Ok((output, observation)),
            Message::Accepted(_) | Message::Heartbeat(_) => {}
        }
    }
    panic!("the stream ended without an observation");
}

/// A result that is a text.
pub fn text(text: &str) -> proto::ToolResult {
    let outcome = Some(proto::tool_result::Outcome::Text(text.to_owned()));
    proto::ToolResult { outcome, artifacts: Vec::new() }
}

/// A provider's first message: it serves all tools.
pub fn attach(session_id: &str) -> proto::ServeRequest {
    let attach = proto::Attach { session_id: session_id.to_owned(), ..Default::default() };
    proto::ServeRequest { message: Some(proto::serve_request::Message::Attach(attach)) }
}

/// A provider's result of a call.
pub fn result(call_id: &str, result: proto::ToolResult) -> proto::ServeRequest {
    let result = proto::CallResult { call_id: call_id.to_owned(), result: Some(result) };
    proto::ServeRequest { message: Some(proto::serve_request::Message::Result(result)) }
}

/// Waits until a program is at one of these states.
pub async fn program_at(
    client: &mut SessionsClient<Channel>,
    session_id: &str,
    states: &[proto::ProgramState],
) -> proto::Program {
    let request = proto::FollowRequest { session_id: session_id.to_owned(), ..Default::default() };
    let looking = async {
        let mut events = client.clone().follow(request).await.unwrap().into_inner();
        loop {
            let request = proto::GetProgramRequest { session_id: session_id.to_owned(), program_number: 1 };
            if let Ok(found) = client.get_program(request).await {
                let program = found.into_inner().program.unwrap();
                if states.contains(&program.state()) {
                    return program;
                }
            }
            events.message().await.unwrap().expect("the log goes on");
        }
    };
    tokio::time::timeout(SOON, looking).await.expect("the program gets there")
}

/// The reason of a status, which its details, its trailer and its message have to agree on.
pub fn reason(status: &tonic::Status) -> String {
    use tonic_types::StatusExt;
    let info = status.get_error_details().error_info().cloned().expect("an ErrorInfo");
    assert_eq!(info.domain, "seance.dev");
    assert_eq!(status.metadata().get("seance-reason").unwrap(), info.reason.as_str());
    assert!(status.metadata().contains_key("seance-request-id"));
    assert!(status.message().starts_with(&info.reason), "{}", status.message());
    info.reason
}

/// Sandboxes whose runners follow scripts.
#[derive(Default)]
pub struct Scripted {
    n_alive: Arc<AtomicUsize>,
    n_minted: AtomicU64,
}

#[async_trait]
impl SandboxBackend for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn confinement(&self) -> Vec<String> {
        vec!["script".to_owned()]
    }

    fn engines(&self) -> Vec<EngineStatus> {
        vec![EngineStatus { name: "javascript".to_owned(), version: Ok("0.16.2".to_owned()) }]
    }

    async fn claim(&self, _: ClaimRequest) -> Result<Claimed, ClaimError> {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.n_minted.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let (events, receiver) = mpsc::unbounded_channel();
        self.n_alive.fetch_add(1, Ordering::Relaxed);
        let runner = Arc::new(Runner { events, state: Mutex::default(), n_alive: self.n_alive.clone() });
        Ok(Claimed {
            id: SandboxId::mint(Timestamp(1), random),
            engine_version: "0.16.2".to_owned(),
            sender: runner.clone(),
            receiver: Box::new(Receiver { receiver, ended: None }),
            handle: runner,
        })
    }

    fn n_leaked(&self) -> usize {
        0
    }

    async fn shutdown(&self, _: Duration) {}
}

#[derive(Default)]
struct State {
    number: u64,
    program: Option<ProgramNumber>,
    lines: VecDeque<String>,
    n_calls: u64,
    is_over: bool,
}

struct Runner {
    events: mpsc::UnboundedSender<LinkEvent>,
    state: Mutex<State>,
    n_alive: Arc<AtomicUsize>,
}

impl Runner {
    fn emit(&self, state: &mut State, frame: FromRunner) {
        state.number += 1;
        // A receiver that is gone needs no frames.
        let _ = self.events.send(LinkEvent::Frame(Numbered { number: state.number, frame }));
    }

    fn text(&self, state: &mut State, program: ProgramNumber, data: impl Into<bytes::Bytes>) {
        let frame = FromRunner::Output { program, source: OutputSource::Text, data: data.into() };
        self.emit(state, frame);
    }

    /// Follows the script up to the next line that waits for something.
    fn go_on(&self, state: &mut State) {
        let Some(program) = state.program else { return };
        while let Some(line) = state.lines.pop_front() {
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "text" => self.text(state, program, rest.to_owned()),
                "big" => {
                    let piece = bytes::Bytes::from(vec![b'x'; 64 * 1024]);
                    let mut left: usize = rest.parse().unwrap();
                    while left > 0 {
                        let now = left.min(piece.len());
                        self.text(state, program, piece.slice(..now));
                        left -= now;
                    }
                }
                "call" => {
                    let (tool, arguments) = rest.split_once(' ').unwrap_or((rest, "{}"));
                    state.n_calls += 1;
                    let (tool, arguments) = (tool.to_owned(), arguments.to_owned());
                    let call = state.n_calls;
                    return self.emit(state, FromRunner::ToolCall { program, call, tool, arguments });
                }
                "hang" => return,
                other => panic!("no such line: {other}"),
            }
        }
        self.end(state, HostEnd::Reported);
    }

    fn end(&self, state: &mut State, end: HostEnd) {
        let Some(program) = state.program.take() else { return };
        let report = matches!(end, HostEnd::Reported)
            .then(|| HostReport { value: Some("42".to_owned()), ..HostReport::default() });
        let ended = HostEnded {
            program,
            end,
            report,
            signal: String::new(),
            exit_status: 0,
            cpu_us: 1,
            wall_us: 1,
            peak_memory_bytes: 1,
            detail: String::new(),
        };
        self.emit(state, FromRunner::ProgramEnded(Box::new(ended)));
    }
}

#[async_trait]
impl LinkSender for Runner {
    async fn send(&self, addressed: Addressed) -> Result<(), LinkGone> {
        let mut state = self.state.lock().unwrap();
        match addressed.frame {
            ToRunner::Assign { session, .. } => self.emit(&mut state, FromRunner::Assigned { session }),
            ToRunner::Execute(run) => {
                state.program = Some(run.program);
                state.n_calls = 0;
                state.lines = run.source.lines().map(str::to_owned).collect();
                let engine_version = "0.16.2".to_owned();
                self.emit(&mut state, FromRunner::ProgramStarted { program: run.program, engine_version });
                self.go_on(&mut state);
            }
            ToRunner::CallResult { program, result, .. } if state.program == Some(program) => {
                let said = result.unwrap_or_else(|error| format!("{}: {}", error.code, error.message));
                self.text(&mut state, program, said);
                self.go_on(&mut state);
            }
            ToRunner::StopProgram { program } if state.program == Some(program) => {
                self.end(&mut state, HostEnd::Stopped);
            }
            ToRunner::CallResult { .. }
            | ToRunner::StopProgram { .. }
            | ToRunner::Catalog { .. }
            | ToRunner::Ack { .. }
            | ToRunner::Shutdown => {}
        }
        Ok(())
    }
}

#[async_trait]
impl SandboxHandle for Runner {
    async fn end(&self, reason: EndReason, _: Duration) -> Result<(), EndUnproven> {
        let mut state = self.state.lock().unwrap();
        if !std::mem::replace(&mut state.is_over, true) {
            self.n_alive.fetch_sub(1, Ordering::Relaxed);
            // A receiver that is gone needs no end.
            let _ = self.events.send(LinkEvent::Ended(SandboxEnd::new(reason)));
        }
        Ok(())
    }
}

struct Receiver {
    receiver: mpsc::UnboundedReceiver<LinkEvent>,
    ended: Option<SandboxEnd>,
}

#[async_trait]
impl LinkReceiver for Receiver {
    async fn recv(&mut self) -> LinkEvent {
        if let Some(end) = &self.ended {
            return LinkEvent::Ended(end.clone());
        }
        let event = match self.receiver.recv().await {
            Some(event) => event,
            None => LinkEvent::Ended(SandboxEnd::new(EndReason::RunnerExited)),
        };
        if let LinkEvent::Ended(end) = &event {
            self.ended = Some(end.clone());
        }
        event
    }
}

/// Labels as a request has them.
pub fn labels(pairs: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
    let sorted: BTreeMap<_, _> = pairs.iter().copied().collect();
    sorted.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
