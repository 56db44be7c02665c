//! Observing a program: output as it comes, and one observation at the end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seance_core::event::{Event, EventKind, OutputSource};
use seance_core::ids::{EventSeq, ProgramNumber, SessionId};
use seance_core::program::{ArtifactRecord, CallRecord, ProgramRecord, ProgramState};
use seance_core::reasons;
use seance_core::text;
use tokio::time::Instant;

use crate::commit::Trouble;
use crate::error::Error;
use crate::log::Reader;
use crate::shared::{Command, ControlGuard, Shared, Snapshot};

/// The longest observation window (A23).
pub const WINDOW_MAX: Duration = Duration::from_secs(60);
/// The budget of an observation's output when none is given, in tokens (I2).
pub const OUTPUT_TOKENS_DEFAULT: u64 = 10_000;
/// The largest budget, in tokens (I2).
pub const OUTPUT_TOKENS_MAX: u64 = 1_048_576;
/// Silence after which a heartbeat is sent.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often a queued program's place in line is looked at; each change is told at once then.
const POSITION_INTERVAL: Duration = Duration::from_millis(500);
/// How long the session's task is waited for when a window is over. It is late where the store is
/// away or the runner doesn't read; the window ends all the same (A23).
const SNAPSHOT_WAIT: Duration = Duration::from_millis(250);

/// How to observe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObserveOptions {
    /// How long; at most [`WINDOW_MAX`].
    pub window: Duration,
    /// The budget of the observation's output, in tokens; at most [`OUTPUT_TOKENS_MAX`].
    pub max_output_tokens: u64,
    /// Whether the window also ends when a call waits that nobody serves.
    pub return_on_pending_call: bool,
}

impl Default for ObserveOptions {
    fn default() -> Self {
        Self { window: WINDOW_MAX, max_output_tokens: OUTPUT_TOKENS_DEFAULT, return_on_pending_call: false }
    }
}

/// How an observation found its program (B5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It ran to its end.
    Completed,
    /// It is queued or runs.
    StillWorking,
    /// It was stopped.
    Terminated,
    /// It failed by its own doing.
    Error,
}

/// What execute, wait and stop return (B1).
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// How the program was found.
    pub status: Status,
    /// The output since the observation before, cut to its budget.
    pub output: String,
    /// A newline stood between this output and output observed before.
    pub separated: bool,
    /// Set when the output was cut: the size before, and how much went, in tokens (M6).
    pub cut: Option<(u64, u64)>,
    /// The program.
    pub program: ProgramRecord,
    /// Calls that wait for an answer.
    pub pending_calls: Vec<CallRecord>,
    /// Artifacts since the observation before.
    pub artifacts: Vec<ArtifactRecord>,
    /// Where to go on.
    pub cursor: String,
    /// Where a queued program stands in line; 0 when in none.
    pub queue_position: u32,
}

/// One message of an observed program.
#[derive(Debug, Clone, PartialEq)]
pub enum Observed {
    /// Output, with the separator in it.
    Output {
        /// The event it was read from.
        seq: EventSeq,
        /// Where it came from.
        source: OutputSource,
        /// The bytes.
        data: Bytes,
    },
    /// Nothing happened for a while, or the place in line is another.
    Heartbeat {
        /// Where a queued program stands in line; 0 when in none.
        queue_position: u32,
    },
    /// The observation. Nothing follows.
    Done(Box<Observation>),
}

/// Observes one program. Dropping it detaches: the program goes on.
pub struct Observer {
    session: SessionId,
    program: ProgramNumber,
    shared: Option<Arc<Shared>>,
    reader: Reader,
    options: ObserveOptions,
    ends_at: Instant,
    buffer: VecDeque<Arc<Event>>,
    output: Collected,
    artifacts: Vec<ArtifactRecord>,
    last_seen: EventSeq,
    /// The last event that an observation is about. What observing itself leaves in the log moves no
    /// cursor, so that asking again for nothing new leaves nothing.
    up_to: EventSeq,
    look_for_pending: bool,
    /// The program may be in line for a sandbox.
    pub(crate) is_queued: bool,
    /// The place in line that was told last.
    told_position: u32,
    /// Since when nothing was told.
    quiet_since: Option<Instant>,
    /// The program where the window ended: what was committed before belongs to the observation.
    end: Option<Snapshot>,
    is_over: bool,
    _control: ControlGuard,
}

impl Observer {
    pub(crate) fn new(
        session: SessionId,
        program: ProgramNumber,
        shared: Option<Arc<Shared>>,
        reader: Reader,
        options: ObserveOptions,
        control: ControlGuard,
    ) -> Self {
        let max_output_tokens = options.max_output_tokens.clamp(1, OUTPUT_TOKENS_MAX);
        let last_seen = EventSeq(reader.next_seq().0.saturating_sub(1));
        Self {
            session,
            program,
            shared,
            reader,
            options: ObserveOptions { max_output_tokens, ..options },
            ends_at: Instant::now() + options.window.min(WINDOW_MAX),
            buffer: VecDeque::new(),
            output: Collected::new(max_output_tokens),
            artifacts: Vec::new(),
            last_seen,
            up_to: last_seen,
            look_for_pending: options.return_on_pending_call,
            is_queued: true,
            told_position: 0,
            quiet_since: None,
            end: None,
            is_over: false,
            _control: control,
        }
    }

    /// The program.
    pub fn program(&self) -> ProgramNumber {
        self.program
    }

    /// The next message; none after the observation or an error.
    ///
    /// Cancel-safe: nothing is lost when dropped, and the next call goes on.
    ///
    /// # Errors
    ///
    /// [`Error::ProgramLost`] where the program was lost or never started, after all its output.
    pub async fn next(&mut self) -> Option<Result<Observed, Error>> {
        if self.is_over {
            return None;
        }
        let message = self.message().await;
        self.quiet_since = None;
        self.is_over = matches!(message, Err(_) | Ok(Observed::Done(_)));
        Some(message)
    }

    async fn message(&mut self) -> Result<Observed, Error> {
        loop {
            while self.end.as_ref().is_none_or(|end| self.last_seen < end.last) {
                let Some(event) = self.buffer.pop_front() else { break };
                if let Some(message) = self.see(&event)? {
                    return Ok(message);
                }
            }
            if let Some(end) = self.end.take_if(|end| self.last_seen >= end.last) {
                return Ok(Observed::Done(Box::new(self.still_working(end))));
            }
            if self.end.is_none() && (self.window_is_over() || self.look_for_pending) {
                self.end = self.look().await?;
            }
            if self.buffer.is_empty() {
                self.buffer = self.reader.read().await?.into();
            }
            if !self.buffer.is_empty() || self.end.is_some() || self.window_is_over() {
                continue;
            }
            let heartbeat_at = *self.quiet_since.get_or_insert_with(Instant::now) + HEARTBEAT;
            tokio::select! {
                biased;
                more = self.reader.wait() => if !more {
                    return Err(Error::Stopping);
                },
                () = tokio::time::sleep_until(self.ends_at) => {}
                () = tokio::time::sleep_until(heartbeat_at) => return Ok(self.heartbeat()),
                () = tokio::time::sleep(POSITION_INTERVAL), if self.is_queued => {
                    if self.position() != self.told_position {
                        return Ok(self.heartbeat());
                    }
                }
            }
        }
    }

    /// Where the program stands in line now. A session has one program in line, the active one, and
    /// others have ended.
    fn position(&self) -> u32 {
        self.shared.as_ref().map_or(0, |shared| shared.queue_position.get())
    }

    fn heartbeat(&mut self) -> Observed {
        self.told_position = self.position();
        Observed::Heartbeat { queue_position: self.told_position }
    }

    fn window_is_over(&self) -> bool {
        Instant::now() >= self.ends_at
    }

    fn see(&mut self, event: &Event) -> Result<Option<Observed>, Error> {
        self.last_seen = event.seq;
        if event.program != Some(self.program) {
            return Ok(None);
        }
        if !matches!(event.kind, EventKind::Observed { .. }) {
            self.up_to = event.seq;
        }
        match &event.kind {
            EventKind::ProgramStarted { .. } => {
                self.is_queued = false;
                Ok(None)
            }
            EventKind::Output { source, data, separated } => {
                self.output.push(*separated, data);
                let data = if *separated { with_separator(data) } else { data.clone() };
                Ok(Some(Observed::Output { seq: event.seq, source: *source, data }))
            }
            EventKind::Artifact(artifact) => {
                self.artifacts.push(artifact.clone());
                Ok(None)
            }
            EventKind::CallMade(_) | EventKind::CallDispatched { .. } => {
                self.look_for_pending = self.options.return_on_pending_call;
                Ok(None)
            }
            EventKind::ProgramEnded(record) => {
                self.ended(record).map(|done| Some(Observed::Done(Box::new(done))))
            }
            _ => Ok(None),
        }
    }

    fn ended(&mut self, record: &ProgramRecord) -> Result<Observation, Error> {
        if let Some(shared) = &self.shared {
            shared.set_told(record.number);
        }
        let status = match record.state {
            ProgramState::Completed => Status::Completed,
            ProgramState::Terminated => Status::Terminated,
            ProgramState::Error => Status::Error,
            ProgramState::Queued | ProgramState::Running | ProgramState::Lost | ProgramState::NotStarted => {
                return Err(lost(record));
            }
        };
        Ok(self.observation(status, record.clone(), Vec::new()))
    }

    /// Looks at the program, whose window is over or which may have a call that waits. None when it
    /// has ended, which is then the next to read, and when the window goes on.
    async fn look(&mut self) -> Result<Option<Snapshot>, Error> {
        self.look_for_pending = false;
        let Some(shared) = self.shared.clone() else {
            if self.buffer.is_empty() {
                self.buffer = self.reader.read().await?.into();
            }
            // Nobody here has the session: there is what there is.
            return if self.buffer.is_empty() { Err(Error::Stopping) } else { Ok(None) };
        };
        let program = self.program;
        let asked = shared.ask(|reply| Command::Snapshot { program, reply });
        let snapshot = match tokio::time::timeout(SNAPSHOT_WAIT, asked).await {
            Ok(Ok(Some(snapshot))) => snapshot,
            Ok(Ok(None) | Err(Error::Stopping)) => {
                // Its end was committed, or its session's task is over.
                return if self.reader.wait().await { Ok(None) } else { Err(Error::Stopping) };
            }
            Ok(Err(_)) | Err(_) if !self.window_is_over() => return Ok(None),
            Ok(Err(_)) | Err(_) => {
                let Some(snapshot) = self.committed(&shared).await? else {
                    // Its end is in the store, and about to be told.
                    let told = tokio::time::timeout(SNAPSHOT_WAIT, self.reader.wait()).await;
                    return if told == Ok(true) { Ok(None) } else { Err(Trouble::Failed.into()) };
                };
                snapshot
            }
        };
        Ok((self.window_is_over() || snapshot.needs_answer).then_some(snapshot))
    }

    /// The program as the store has it; none when it has ended.
    async fn committed(&self, shared: &Shared) -> Result<Option<Snapshot>, Error> {
        let last = shared.tail.last();
        let program = self.reader.program(self.program).await?;
        let active = program.filter(|program| !program.state.is_final());
        Ok(active.map(|program| Snapshot { program, pending: Vec::new(), needs_answer: false, last }))
    }

    fn still_working(&mut self, end: Snapshot) -> Observation {
        let (program, up_to) = (self.program, self.up_to);
        if let Some(shared) = &self.shared {
            shared.set_observed(program, up_to);
            // Where its task has no room the record stays behind; the next observation brings it on.
            let sent = shared.commands.try_send(Command::Observed { program, up_to });
            drop(sent);
        }
        let queue_position = match end.program.state {
            ProgramState::Queued => self.position(),
            _ => 0,
        };
        let observation = self.observation(Status::StillWorking, end.program, end.pending);
        Observation { queue_position, ..observation }
    }

    fn observation(
        &mut self,
        status: Status,
        program: ProgramRecord,
        pending_calls: Vec<CallRecord>,
    ) -> Observation {
        let collected = std::mem::replace(&mut self.output, Collected::new(1));
        let separated = collected.separated;
        let (output, cut) = collected.finish();
        Observation {
            status,
            output,
            separated,
            cut,
            program,
            pending_calls,
            artifacts: std::mem::take(&mut self.artifacts),
            cursor: cursor::render(self.session, self.program, self.up_to),
            queue_position: 0,
        }
    }
}

fn with_separator(data: &Bytes) -> Bytes {
    let mut whole = Vec::with_capacity(data.len() + 1);
    whole.push(b'\n');
    whole.extend_from_slice(data);
    whole.into()
}

/// The error that a lost program is told as.
pub(crate) fn lost(record: &ProgramRecord) -> Error {
    let reason = reasons::status(&record.reason).map_or(reasons::INTERNAL, |(reason, _)| reason.name);
    let what = match record.state {
        ProgramState::NotStarted => "never started",
        _ => "was lost",
    };
    let detail = if record.detail.is_empty() { String::new() } else { format!(", {}", record.detail) };
    Error::ProgramLost { session: record.session, program: record.number, reason, what, detail }
}

/// Output held to its budget as it comes: the beginning and the end are kept, so that memory is
/// bounded by the budget whatever a program prints.
struct Collected {
    max_tokens: u64,
    ends_bytes: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
    separated: bool,
    is_empty: bool,
}

impl Collected {
    fn new(max_tokens: u64) -> Self {
        // A character more than the budget, so that one that was split at an end is outside of it.
        let budget_bytes = max_tokens.saturating_mul(text::BYTES_PER_TOKEN);
        let ends_bytes = usize::try_from(budget_bytes.saturating_add(4)).unwrap_or(usize::MAX);
        Self {
            max_tokens,
            ends_bytes,
            head: Vec::new(),
            tail: VecDeque::new(),
            dropped: 0,
            separated: false,
            is_empty: true,
        }
    }

    fn push(&mut self, separated: bool, data: &[u8]) {
        if self.is_empty {
            self.separated = separated;
            self.is_empty = false;
        } else if separated {
            self.put(b"\n");
        }
        self.put(data);
    }

    fn put(&mut self, data: &[u8]) {
        let room = self.ends_bytes.saturating_sub(self.head.len()).min(data.len());
        let (head, rest) = data.split_at(room);
        self.head.extend_from_slice(head);
        let keep = rest.len().min(self.ends_bytes);
        let over = (self.tail.len() + keep).saturating_sub(self.ends_bytes);
        self.tail.drain(..over);
        self.tail.extend(&rest[rest.len() - keep..]);
        self.dropped += (over + rest.len() - keep) as u64;
    }

    /// The text, and when cut its size before and how much went, in tokens.
    fn finish(self) -> (String, Option<(u64, u64)>) {
        let Self { mut head, tail, dropped, max_tokens, .. } = self;
        if dropped == 0 {
            head.extend(tail);
            let cut = text::truncate_middle(&text::lossy(&head), max_tokens);
            let counts = cut.is_cut().then_some((cut.original_tokens, cut.cut_tokens));
            return (cut.text, counts);
        }
        let bytes = (head.len() + tail.len()) as u64 + dropped;
        let tail: Vec<u8> = tail.into();
        let cut = text::truncate_ends(&text::lossy(&head), &text::lossy(&tail), bytes, max_tokens);
        (cut.text, Some((cut.original_tokens, cut.cut_tokens)))
    }
}

/// Cursors: opaque to callers, bound to their session and program.
pub(crate) mod cursor {
    use super::{EventSeq, ProgramNumber, SessionId};
    use seance_core::ids::CatalogDigest;

    /// The cursor behind an event of a program.
    pub(crate) fn render(session: SessionId, program: ProgramNumber, seen: EventSeq) -> String {
        let body = format!("{program}.{seen}");
        let seal = seal(session, &body);
        format!("{body}.{seal}")
    }

    /// The event that a cursor stands behind, if it is one of this session's.
    pub(crate) fn parse(session: SessionId, text: &str) -> Option<(ProgramNumber, EventSeq)> {
        let (body, given) = text.rsplit_once('.')?;
        let (program, seen) = body.split_once('.')?;
        let parsed = (ProgramNumber(program.parse().ok()?), EventSeq(seen.parse().ok()?));
        (given == seal(session, body)).then_some(parsed)
    }

    /// Tells a cursor of another session or a typing error; it guards nothing.
    fn seal(session: SessionId, body: &str) -> String {
        let digest = CatalogDigest::of(format!("{session}/{body}").as_bytes());
        digest.as_str()["sha256:".len()..][..8].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seance_core::time::Timestamp;

    fn collect(max_tokens: u64, pieces: &[&str]) -> (String, Option<(u64, u64)>) {
        let mut collected = Collected::new(max_tokens);
        for piece in pieces {
            collected.push(false, piece.as_bytes());
        }
        collected.finish()
    }

    /// M3: the marker is the same whether the output came at once, in pieces, or much too much.
    #[test]
    fn output_is_cut_the_same_however_it_came() {
        assert_eq!(collect(1, &["abcdefghij"]), ("ab…2 tokens truncated…ij".to_owned(), Some((3, 2))));
        assert_eq!(collect(1, &["abc", "defgh", "ij"]), collect(1, &["abcdefghij"]));
        assert_eq!(collect(1, &["äöüß€"]), ("ä…2 tokens truncated…".to_owned(), Some((3, 2))));
        let long = "0123456789".repeat(1000);
        let whole = text::truncate_middle(&long, 5);
        assert_eq!(collect(5, &[&long]), (whole.text, Some((whole.original_tokens, whole.cut_tokens))));
    }

    /// H7: separators are the same in one observation or several.
    #[test]
    fn separators_put_observations_together_again() {
        let mut both = Collected::new(100);
        both.push(false, b"");
        both.push(true, b"after");
        let mut second = Collected::new(100);
        second.push(true, b"after");
        assert!(second.separated);
        assert_eq!(both.finish().0, format!("\n{}", second.finish().0));
    }

    #[test]
    fn cursors_are_bound_to_their_session() {
        let mint = |n| SessionId::mint(Timestamp(1_000_000), [n; 10]);
        let cursor = cursor::render(mint(1), ProgramNumber(2), EventSeq(30));
        assert_eq!(cursor::parse(mint(1), &cursor), Some((ProgramNumber(2), EventSeq(30))));
        assert_eq!(cursor::parse(mint(2), &cursor), None);
        for bad in ["", "1", "1.2", "1.2.3", "x.y.z", "-1.2.abcdef01"] {
            assert_eq!(cursor::parse(mint(1), bad), None, "{bad}");
        }
    }
}
