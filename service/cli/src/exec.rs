//! Running a program in a session: `seance exec`, and the part that `seance run` shares.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use proto::execute_response::Message as Executed;
use proto::wait_response::Message as Waited;
use proto::{Observation, ObservationStatus};
use seance_proto::v1alpha1 as proto;
use tokio::task::JoinSet;

use crate::args::{Connection, Exec, Program};
use crate::client::{self, Client, Exit};
use crate::display::Display;
use crate::provider::Provider;
use crate::tools_file::Tools;

/// The largest source that is read, in bytes. The service has its own limit, which it names.
const SOURCE_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Runs a program in a session of a service.
pub async fn exec(connection: &Connection, exec: Exec, json: bool) -> Result<ExitCode> {
    let source = Source::read(&exec.program)?;
    let client = Client::connect(connection).await?;
    let mut display = Display::new(json, exec.program.quiet);
    let (session, is_ours) = match &exec.session {
        Some(session) => (session.clone(), false),
        None => (open(&client, &exec.program, &source).await?, true),
    };
    let on_interrupt = if exec.detach { proto::OnDisconnect::Detach } else { proto::OnDisconnect::Stop };
    let result = program(&client, &session, &exec.program, source, &mut display, on_interrupt).await;
    let goes_on = matches!(result, Ok(client::EXIT_STILL_WORKING));
    if goes_on {
        display.note(&format!("watch it with: seance follow {session}"));
    } else if is_ours && exec.keep {
        display.note(&format!("session {session} is kept; go on with: seance exec --session {session} FILE"));
    } else if is_ours {
        // What became of the program comes before what became of the session.
        let closed = close(&client, &session).await;
        return result.and_then(|code| closed.map(|()| ExitCode::from(code)));
    }
    result.map(ExitCode::from)
}

/// A program and what it runs with.
pub struct Source {
    text: Vec<u8>,
    language: String,
    inputs: Option<String>,
    pub tools: Option<Arc<Tools>>,
}

impl Source {
    /// The engine that runs its language.
    pub fn engine(&self) -> &str {
        if self.language == "typescript" { "javascript" } else { &self.language }
    }

    /// Reads the files that the command line names.
    pub fn read(program: &Program) -> Result<Self> {
        let language = match &program.language {
            Some(language) => language.clone(),
            None => language_of(&program.file).to_owned(),
        };
        Ok(Self {
            text: read_source(&program.file)?,
            language,
            inputs: program.inputs.as_deref().map(read_inputs).transpose()?,
            tools: program.tools.as_deref().map(Tools::read).transpose()?.map(Arc::new),
        })
    }
}

/// Opens a session for a program.
pub async fn open(client: &Client, program: &Program, source: &Source) -> Result<String> {
    let request = proto::OpenRequest {
        engine: source.engine().to_owned(),
        limits: limits(program),
        engine_options: program.options.clone(),
        idempotency_key: uuid::Uuid::new_v4().to_string(),
        ..Default::default()
    };
    let session = client.sessions.clone().open(request).await?.into_inner().session;
    Ok(session.context("the service opened no session")?.session_id)
}

/// Closes a session.
pub async fn close(client: &Client, session: &str) -> Result<()> {
    let request = proto::CloseRequest { session_id: session.to_owned(), ..Default::default() };
    client.sessions.clone().close(request).await?;
    Ok(())
}

/// Runs a program to its end, shows it, and gives the exit status that tells its fate.
pub async fn program(
    client: &Client,
    session: &str,
    args: &Program,
    source: Source,
    display: &mut Display,
    on_interrupt: proto::OnDisconnect,
) -> Result<u8> {
    let catalog = source.tools.as_ref().map(|tools| proto::CatalogSource {
        source: Some(proto::catalog_source::Source::Inline(tools.catalog())),
    });
    let _provider = match &source.tools {
        Some(tools) => Some(Provider::attach(client, session, tools.clone()).await?),
        None => None,
    };
    let request = proto::ExecuteRequest {
        session_id: session.to_owned(),
        source: source.text.into(),
        language: source.language,
        catalog,
        inputs_json: source.inputs,
        limits: limits(args),
        on_disconnect: on_interrupt.into(),
        idempotency_key: uuid::Uuid::new_v4().to_string(),
        ..Default::default()
    };
    let first = first_sequence(client, session).await?;
    let mut calls = Calls::follow(client, session, first);
    tokio::select! {
        observation = observe(client, session, request, display, &mut calls) => {
            let observation = observation?;
            calls.rest(display);
            display.end(&observation)?;
            Ok(exit_code(observation.status()))
        }
        _ = tokio::signal::ctrl_c() => {
            let (what, code) = match on_interrupt {
                proto::OnDisconnect::Detach => ("interrupted; the program goes on", client::EXIT_STILL_WORKING),
                _ => ("interrupted; the program is stopped", client::EXIT_STOPPED),
            };
            display.note(what);
            Ok(code)
        }
    }
}

async fn observe(
    client: &Client,
    session: &str,
    request: proto::ExecuteRequest,
    display: &mut Display,
    calls: &mut Calls,
) -> Result<Observation> {
    let mut sessions = client.sessions.clone();
    let mut stream = sessions.execute(request).await?.into_inner();
    let mut number = 0;
    let mut last = loop {
        tokio::select! {
            call = calls.next() => display.call(&call),
            message = stream.message() => match message?.and_then(|message| message.message) {
                Some(Executed::Accepted(accepted)) => number = accepted.program_number,
                Some(Executed::Output(chunk)) => display.output(&chunk)?,
                Some(Executed::Heartbeat(_)) => {}
                Some(Executed::Observation(observation)) => break observation,
                None => return Err(stream_ended().into()),
            },
        }
    };
    while last.status() == ObservationStatus::StillWorking {
        let request = proto::WaitRequest {
            session_id: session.to_owned(),
            program_number: number,
            cursor: last.next_cursor.clone(),
            observe: None,
        };
        let mut stream = sessions.wait(request).await?.into_inner();
        last = loop {
            tokio::select! {
                call = calls.next() => display.call(&call),
                message = stream.message() => match message?.and_then(|message| message.message) {
                    Some(Waited::Output(chunk)) => display.output(&chunk)?,
                    Some(Waited::Heartbeat(_)) => {}
                    Some(Waited::Observation(observation)) => break observation,
                    None => return Err(stream_ended().into()),
                },
            }
        };
    }
    Ok(last)
}

/// Calls of the session as they happen, for the display.
struct Calls {
    receiver: tokio::sync::mpsc::Receiver<proto::Call>,
    _task: JoinSet<()>,
}

impl Calls {
    /// Events that the display has not shown yet.
    const WAITING_MAX: usize = 64;

    fn follow(client: &Client, session: &str, from_sequence: u64) -> Self {
        let request =
            proto::FollowRequest { session_id: session.to_owned(), from_sequence, until_now: false };
        let (sender, receiver) = tokio::sync::mpsc::channel(Self::WAITING_MAX);
        let mut sessions = client.sessions.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            // The display is a courtesy: without events the program's result is the same.
            let Ok(stream) = sessions.follow(request).await else { return };
            let mut stream = stream.into_inner();
            while let Ok(Some(response)) = stream.message().await {
                let Some(proto::follow_response::Message::Event(event)) = response.message else { continue };
                if let Some(proto::event::Kind::Call(call)) = event.kind
                    && sender.send(call).await.is_err()
                {
                    return;
                }
            }
        });
        Self { receiver, _task: task }
    }

    async fn next(&mut self) -> proto::Call {
        match self.receiver.recv().await {
            Some(call) => call,
            None => std::future::pending().await,
        }
    }

    /// Shows the events that are here already.
    fn rest(&mut self, display: &mut Display) {
        while let Ok(call) = self.receiver.try_recv() {
            display.call(&call);
        }
    }
}

fn stream_ended() -> Exit {
    Exit(
        client::EXIT_REFUSED,
        "the stream ended without an observation; the program may still run".to_owned(),
    )
}

async fn first_sequence(client: &Client, session: &str) -> Result<u64> {
    let request = proto::GetRequest { session_id: session.to_owned() };
    let session = client.sessions.clone().get(request).await?.into_inner().session.unwrap_or_default();
    Ok(session.last_sequence + 1)
}

fn limits(args: &Program) -> HashMap<String, u64> {
    args.limits.iter().cloned().collect()
}

fn exit_code(status: ObservationStatus) -> u8 {
    match status {
        ObservationStatus::Completed => 0,
        ObservationStatus::Error | ObservationStatus::Unspecified => client::EXIT_PROGRAM_FAILED,
        ObservationStatus::Terminated => client::EXIT_STOPPED,
        ObservationStatus::StillWorking => client::EXIT_STILL_WORKING,
    }
}

fn language_of(file: &Path) -> &'static str {
    match file.extension().and_then(|ending| ending.to_str()) {
        Some("ts" | "mts") => "typescript",
        Some("rb") => "ruby",
        Some("py") => "python",
        _ => "javascript",
    }
}

fn read_source(file: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    if file == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(SOURCE_BYTES_MAX + 1)
            .read_to_end(&mut text)
            .context("can't read standard input")?;
    } else {
        let open = std::fs::File::open(file).with_context(|| format!("can't read {}", file.display()))?;
        open.take(SOURCE_BYTES_MAX + 1)
            .read_to_end(&mut text)
            .with_context(|| format!("can't read {}", file.display()))?;
    }
    if text.len() as u64 > SOURCE_BYTES_MAX {
        bail!("{} has more than {SOURCE_BYTES_MAX} bytes", file.display());
    }
    Ok(text)
}

fn read_inputs(inputs: &str) -> Result<String> {
    match inputs.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("can't read {file}")),
        None => Ok(inputs.to_owned()),
    }
}
