//! A session that a case has opened: its provider, its stream in the background, its cursors, and
//! every thing that can be done to it. Each gives back what was [`Seen`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use seance_proto::v1alpha1 as api;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;

use crate::case::{Case, Step};
use crate::door::{self, Door, Message};
use crate::fixtures;
use crate::provider::{Plan, Provider};
use crate::seen::{self, Refusal, Seen};

/// The most events that one Follow is read for.
const EVENTS_MAX: usize = 200_000;
/// How long the service may take to see that a stream was cut.
const CUT_SEEN_MAX: Duration = Duration::from_secs(2);
/// How often a condition without a stream is looked at.
const POLL: Duration = Duration::from_millis(10);

/// A session of a case.
pub struct Live {
    /// The way in.
    pub door: Door,
    /// Its id.
    pub id: String,
    /// The provider of its tools.
    pub provider: Option<Provider>,
    /// The language its programs are said to be in.
    pub language: String,
    background: Option<JoinHandle<anyhow::Result<Seen>>>,
    cursors: HashMap<String, String>,
    pending: Vec<api::Call>,
    closed: bool,
    cut_at: Option<Instant>,
}

/// Opens a case's session and attaches its provider. A refusal is no error.
pub async fn open(door: &Door, case: &Case, language: &str) -> anyhow::Result<Result<(Live, Seen), Refusal>> {
    let door = door.another().await?;
    let catalog = fixtures::catalog(case.fixtures.as_deref(), &case.tools)?;
    let request = api::OpenRequest {
        engine: case.engine.clone().unwrap_or_else(|| "javascript".to_owned()),
        min_version: case.min_version.clone(),
        limits: case.limits.clone().into_iter().collect(),
        catalog: Some(inline(catalog)),
        idle_timeout: case.idle_ms.map(door::duration),
        session_ttl: case.ttl_ms.map(door::duration),
        engine_options: case.options.clone(),
        ..api::OpenRequest::default()
    };
    let session = match door.sessions().open(request).await {
        Ok(response) => response.into_inner().session.context("Open gave no session")?,
        Err(status) => return Ok(Err(door::refusal(&status))),
    };
    let mut live = Live {
        id: session.session_id.clone(),
        door,
        provider: None,
        language: language.to_owned(),
        background: None,
        cursors: HashMap::new(),
        pending: Vec::new(),
        closed: false,
        cut_at: None,
    };
    if !case.no_provider {
        let plan = Plan {
            session_id: live.id.clone(),
            hold: case.hold.iter().cloned().collect(),
            own: case.tools.clone(),
            answer_late: case.answer_late,
            tools: vec![],
        };
        live.provider = Some(Provider::attach(live.door.channel(), plan).await.context("attaching")?);
    }
    let mut seen = Seen { text: session.session_id.clone(), ..Seen::default() };
    seen.limits = session.limits.clone().into_iter().collect();
    seen.session = Some(session);
    Ok(Ok((live, seen)))
}

/// A catalog in full.
pub fn inline(catalog: api::Catalog) -> api::CatalogSource {
    api::CatalogSource { source: Some(api::catalog_source::Source::Inline(catalog)) }
}

impl Live {
    /// The id that a step speaks of.
    fn id(&self, step: &Step) -> String {
        step.session_id.clone().unwrap_or_else(|| self.id.clone())
    }

    /// The step's idempotency key. Keys are a tenant's, so the session's id makes them this case's.
    fn key(&self, step: &Step) -> String {
        if step.key.is_empty() { String::new() } else { format!("{}-{}", self.id, step.key) }
    }

    fn observe(step: &Step) -> api::ObserveOptions {
        api::ObserveOptions {
            window: step.window_ms.map(door::duration),
            max_output_tokens: step.tokens,
            stream_output: step.stream_output,
            return_on_pending_call: step.on_pending,
        }
    }

    /// What an Execute of this step asks for.
    pub fn execute_request(&self, step: &Step) -> anyhow::Result<api::ExecuteRequest> {
        let catalog = match &step.fixtures {
            Some(names) => Some(inline(fixtures::catalog(Some(names), &[])?)),
            None => None,
        };
        let on_disconnect =
            if step.stop_on_cut { api::OnDisconnect::Stop } else { api::OnDisconnect::Unspecified };
        Ok(api::ExecuteRequest {
            session_id: self.id(step),
            source: step.source().into(),
            language: step.language.clone().unwrap_or_else(|| self.language.clone()),
            catalog,
            inputs_json: step.inputs.clone(),
            observe: Some(Self::observe(step)),
            on_disconnect: on_disconnect.into(),
            limits: step.limits.clone().into_iter().collect(),
            idempotency_key: self.key(step),
        })
    }

    /// Runs a program and reads its stream to the end.
    pub async fn execute(&mut self, step: &Step) -> anyhow::Result<Seen> {
        loop {
            let request = self.execute_request(step)?;
            let sent = Instant::now();
            let seen = match self.door.sessions().execute(request).await {
                Ok(response) => door::collect(response.into_inner(), sent).await?,
                Err(status) => refused(&status, sent),
            };
            if !self.is_held_by_cut(&seen).await {
                return Ok(seen);
            }
        }
    }

    /// Runs a program and returns once it is accepted; `join` or `cut` follows.
    pub async fn begin(&mut self, step: &Step) -> anyhow::Result<Seen> {
        ensure!(self.background.is_none(), "a stream is open already");
        let request = self.execute_request(step)?;
        let sent = Instant::now();
        let mut stream = match self.door.sessions().execute(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => return Ok(refused(&status, sent)),
        };
        match stream.next().await.map(|message| message.map(Message::from)) {
            Some(Ok(Message::Accepted(_))) => {}
            Some(Err(status)) => return Ok(refused(&status, sent)),
            other => bail!("Execute began with {other:?} instead of accepted"),
        }
        self.background = Some(tokio::spawn(async move { door::collect(stream, sent).await }));
        Ok(Seen { sent: Some(sent), elapsed: sent.elapsed(), ..Seen::default() })
    }

    /// Waits for a program in the background; `join` or `cut` follows.
    pub async fn begin_wait(&mut self, step: &Step) -> anyhow::Result<Seen> {
        ensure!(self.background.is_none(), "a stream is open already");
        let request = self.wait_request(step)?;
        let sent = Instant::now();
        match self.door.sessions().wait(request).await {
            Ok(response) => {
                let stream = response.into_inner();
                self.background = Some(tokio::spawn(async move { door::collect(stream, sent).await }));
                Ok(Seen { sent: Some(sent), elapsed: sent.elapsed(), ..Seen::default() })
            }
            Err(status) => Ok(refused(&status, sent)),
        }
    }

    /// The observation of the stream in the background.
    pub async fn join(&mut self) -> anyhow::Result<Seen> {
        self.background.take().context("no stream is open")?.await.context("reading the stream")?
    }

    /// Cuts the stream in the background and waits until it is dropped.
    pub async fn cut(&mut self) -> anyhow::Result<()> {
        let task = self.background.take().context("no stream is open")?;
        task.abort();
        match task.await {
            Ok(seen) => bail!("the stream had ended before it was cut: {seen:?}"),
            Err(error) if error.is_cancelled() => {
                self.has_cut();
                Ok(())
            }
            Err(error) => Err(error).context("reading the stream"),
        }
    }

    /// A stream of this session was cut just now. Until the service has seen that, the session's
    /// controls are still held by it; the next control waits for it to be free.
    pub fn has_cut(&mut self) {
        self.cut_at = Some(Instant::now());
    }

    /// Whether a refused control is to be tried again: a cut stream may still hold the session.
    async fn is_held_by_cut(&mut self, seen: &Seen) -> bool {
        let busy = seen.refused.as_ref().is_some_and(|refusal| refusal.reason == "CONTROL_ACTIVE");
        if busy && self.cut_at.is_some_and(|at| at.elapsed() < CUT_SEEN_MAX) {
            tokio::time::sleep(POLL).await;
            return true;
        }
        self.cut_at = None;
        false
    }

    /// What a Wait of this step asks for.
    pub fn wait_request(&self, step: &Step) -> anyhow::Result<api::WaitRequest> {
        Ok(api::WaitRequest {
            session_id: self.id(step),
            program_number: step.wait.or(step.begin_wait).unwrap_or_default(),
            cursor: self.cursor(step)?,
            observe: Some(Self::observe(step)),
        })
    }

    fn cursor(&self, step: &Step) -> anyhow::Result<String> {
        match (&step.cursor, &step.cursor_text) {
            (_, Some(text)) => Ok(text.clone()),
            (Some(name), None) => {
                self.cursors.get(name).cloned().with_context(|| format!("no cursor {name} was kept"))
            }
            (None, None) => Ok(String::new()),
        }
    }

    /// Goes on observing a program.
    pub async fn wait(&mut self, step: &Step) -> anyhow::Result<Seen> {
        loop {
            let request = self.wait_request(step)?;
            let sent = Instant::now();
            let seen = match self.door.sessions().wait(request).await {
                Ok(response) => door::collect(response.into_inner(), sent).await?,
                Err(status) => refused(&status, sent),
            };
            if !self.is_held_by_cut(&seen).await {
                return Ok(seen);
            }
        }
    }

    /// Stops a program.
    pub async fn stop(&mut self, step: &Step) -> anyhow::Result<Seen> {
        let request = api::StopRequest {
            session_id: self.id(step),
            program_number: step.stop.unwrap_or_default(),
            cursor: self.cursor(step)?,
            max_output_tokens: step.tokens,
            idempotency_key: self.key(step),
        };
        let sent = Instant::now();
        let mut seen = door::answered(self.door.sessions().stop(request).await, |seen, response| {
            seen.program = response.observation.as_ref().and_then(|o| o.program.clone());
            seen.observation = response.observation;
        });
        (seen.sent, seen.elapsed) = (Some(sent), sent.elapsed());
        Ok(seen)
    }

    /// Closes the session.
    pub async fn close(&mut self, step: &Step) -> anyhow::Result<Seen> {
        let request = api::CloseRequest { session_id: self.id(step), idempotency_key: self.key(step) };
        let sent = Instant::now();
        let mut seen = door::answered(self.door.sessions().close(request).await, |seen, response| {
            seen.session = response.session;
        });
        self.closed |= seen.refused.is_none() && step.session_id.is_none();
        (seen.sent, seen.elapsed) = (Some(sent), sent.elapsed());
        Ok(seen)
    }

    /// Closes what the case left open. A close that fails is the case's failure.
    pub async fn clean_up(&mut self) -> anyhow::Result<()> {
        if let Some(task) = self.background.take() {
            task.abort();
            let _ = task.await;
        }
        if self.closed {
            return Ok(());
        }
        self.has_cut();
        loop {
            let seen = self.close(&Step::default()).await?;
            if self.is_held_by_cut(&seen).await {
                continue;
            }
            match seen.refused {
                Some(refusal) if refusal.reason.starts_with("SESSION_") => return Ok(()),
                Some(refusal) => bail!("closing at the end: {}", refusal.message),
                None => return Ok(()),
            }
        }
    }

    /// A program's record.
    pub async fn program(&self, step: &Step, number: u64) -> Seen {
        let request = api::GetProgramRequest { session_id: self.id(step), program_number: number };
        door::answered(self.door.sessions().get_program(request).await, |seen, response| {
            seen.program = response.program;
        })
    }

    /// The session's record.
    pub async fn get(&self, step: &Step) -> Seen {
        let request = api::GetRequest { session_id: self.id(step) };
        door::answered(self.door.sessions().get(request).await, |seen, response| {
            let limits = response.session.as_ref().map(|session| session.limits.clone());
            seen.limits = limits.unwrap_or_default().into_iter().collect();
            seen.session = response.session;
        })
    }

    /// Waits until a program is over.
    pub async fn until_ended(&self, step: &Step, number: u64) -> Seen {
        let sent = Instant::now();
        loop {
            let mut seen = self.program(step, number).await;
            let over = seen.program.as_ref().is_none_or(seen::is_final);
            if over {
                seen.elapsed = sent.elapsed();
                return seen;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the session is closed.
    pub async fn until_closed(&self, step: &Step) -> Seen {
        let sent = Instant::now();
        loop {
            let mut seen = self.get(step).await;
            let closed = seen.session.as_ref().is_none_or(|s| s.state() == api::SessionState::Closed);
            if closed {
                seen.elapsed = sent.elapsed();
                return seen;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The session's events so far.
    pub async fn events(&self) -> Result<Vec<api::Event>, tonic::Status> {
        let request = api::FollowRequest { session_id: self.id.clone(), from_sequence: 0, until_now: true };
        let mut stream = self.door.sessions().follow(request).await?.into_inner();
        let mut events = Vec::new();
        while let Some(response) = stream.next().await {
            if let Some(api::follow_response::Message::Event(event)) = response?.message {
                events.push(event);
            }
            if events.len() >= EVENTS_MAX {
                return Err(tonic::Status::internal("more events than the case can have made"));
            }
        }
        Ok(events)
    }

    /// Answers the pending call of a tool that the last observation told of.
    pub async fn answer(&mut self, step: &Step) -> anyhow::Result<Seen> {
        let answer = step.answer.as_ref().context("no answer")?;
        let at = self.pending.iter().position(|call| call.tool == answer.tool);
        let call = self.pending.remove(at.with_context(|| format!("no call of {} is pending", answer.tool))?);
        let result = match (&answer.value, &answer.error) {
            (Some(json), None) => fixtures::Answer::Value(json.clone()),
            (None, Some((code, message))) => fixtures::Answer::Error(code.clone(), message.clone()),
            _ => bail!("an answer is a value or an error"),
        };
        let request = api::AnswerRequest {
            session_id: self.id(step),
            call_id: call.call_id,
            result: Some(result.to_proto()),
            idempotency_key: self.key(step),
        };
        Ok(door::answered(self.door.tools().answer(request).await, |_, _| {}))
    }

    /// Keeps what later steps speak of.
    pub fn remember(&mut self, step: &Step, seen: &Seen) {
        let Some(observation) = &seen.observation else { return };
        if let Some(name) = &step.keep_cursor {
            self.cursors.insert(name.clone(), observation.next_cursor.clone());
        }
        self.pending.clone_from(&observation.pending_calls);
    }

    /// A blob's bytes and media type.
    pub async fn blob(&self, blob_id: &str) -> anyhow::Result<(Vec<u8>, String)> {
        let request =
            api::GetBlobRequest { session_id: self.id.clone(), blob_id: blob_id.to_owned(), offset: 0 };
        let mut stream = self.door.sessions().get_blob(request).await?.into_inner();
        let (mut bytes, mut media_type, mut total) = (Vec::new(), String::new(), 0);
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            if bytes.is_empty() {
                (media_type, total) = (chunk.media_type.clone(), chunk.total_bytes);
            }
            bytes.extend_from_slice(&chunk.data);
        }
        ensure!(bytes.len() as u64 == total, "the blob has {} bytes and says {total}", bytes.len());
        Ok((bytes, media_type))
    }
}

fn refused(status: &tonic::Status, sent: Instant) -> Seen {
    Seen {
        refused: Some(door::refusal(status)),
        sent: Some(sent),
        elapsed: sent.elapsed(),
        ..Seen::default()
    }
}

/// An event's kind in the data's words.
pub fn event_kind(event: &api::Event) -> &'static str {
    use api::event::Kind::*;
    match &event.kind {
        Some(SessionOpened(_)) => "session_opened",
        Some(SandboxAssigned(_)) => "sandbox_assigned",
        Some(SandboxEnded(_)) => "sandbox_ended",
        Some(ProgramAccepted(_)) => "program_accepted",
        Some(ProgramStarted(_)) => "program_started",
        Some(Output(_)) => "output",
        Some(Call(_)) => "call",
        Some(ProgramEnded(_)) => "program_ended",
        Some(HostExited(_)) => "host_exited",
        Some(Observed(_)) => "observed",
        Some(SessionClosing(_)) => "session_closing",
        Some(SessionClosed(_)) => "session_closed",
        Some(OwnerChanged(_)) => "owner_changed",
        Some(Artifact(_)) => "artifact",
        None => "none",
    }
}
