//! Records, events and observations as messages.

use std::time::Duration;

use seance_core::catalog::Catalog;
use seance_core::event::{Event, EventKind, OutputSource};
use seance_core::ids::{CallId, EventSeq, ProgramNumber};
use seance_core::limits;
use seance_core::program::{
    ArtifactRecord, CallError, CallRecord, CallState, Payload, ProgramError, ProgramRecord, ProgramState,
    Usage, ValueCut, Warning,
};
use seance_core::session::{SessionRecord, SessionState};
use seance_core::time::Timestamp;
use seance_proto::v1alpha1 as proto;

/// A point in time.
pub fn timestamp(at: Timestamp) -> prost_types::Timestamp {
    let nanos = i32::try_from(at.0.rem_euclid(1_000_000) * 1_000).expect("below a second");
    prost_types::Timestamp { seconds: at.0.div_euclid(1_000_000), nanos }
}

/// A length of time. What is longer than the message can say is the longest that it can.
pub fn duration(length: Duration) -> prost_types::Duration {
    let seconds = i64::try_from(length.as_secs()).unwrap_or(i64::MAX);
    let nanos = i32::try_from(length.subsec_nanos()).expect("below a second");
    prost_types::Duration { seconds, nanos }
}

/// A session.
pub fn session(record: &SessionRecord) -> proto::Session {
    proto::Session {
        session_id: record.id.to_string(),
        state: session_state(record.state).into(),
        engine: record.engine.clone(),
        limits: record.limits.to_map().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        labels: record.labels.clone().into_iter().collect(),
        active_program: record.active_program.map_or(0, |number| number.0),
        last_program: record.last_program,
        created_at: Some(timestamp(record.created_at)),
        expires_at: Some(timestamp(record.expires_at)),
        sandbox_id: record.sandbox.map(|id| id.to_string()).unwrap_or_default(),
        last_sequence: record.last_seq.0,
        reason: record.reason.clone(),
        engine_options: record.engine_options.clone(),
        idle_timeout: Some(duration(record.idle_timeout)),
    }
}

/// What a session is at.
pub fn session_state(state: SessionState) -> proto::SessionState {
    match state {
        SessionState::Open => proto::SessionState::Open,
        SessionState::Closing => proto::SessionState::Closing,
        SessionState::Closed => proto::SessionState::Closed,
    }
}

/// A program.
pub fn program(record: &ProgramRecord) -> proto::Program {
    let value = record.value.as_ref();
    proto::Program {
        session_id: record.session.to_string(),
        number: record.number.0,
        state: program_state(record.state).into(),
        reason: record.reason.clone(),
        reason_detail: record.detail.clone(),
        value_json: value.map(|value| value.json.clone()),
        value_cut: value.and_then(|value| value.cut.as_ref()).map(value_cut),
        error: record.error.as_ref().map(program_error),
        warnings: record.warnings.iter().map(warning).collect(),
        usage: Some(usage(&record.usage)),
        calls: record.calls.iter().map(call).collect(),
        n_calls: record.n_calls,
        language: record.language.clone(),
        catalog_digest: record.catalog.as_ref().map(ToString::to_string).unwrap_or_default(),
        created_at: Some(timestamp(record.created_at)),
        started_at: record.started_at.map(timestamp),
        ended_at: record.ended_at.map(timestamp),
        artifacts: record.artifacts.iter().map(artifact).collect(),
    }
}

fn program_state(state: ProgramState) -> proto::ProgramState {
    match state {
        ProgramState::Queued => proto::ProgramState::Queued,
        ProgramState::Running => proto::ProgramState::Running,
        ProgramState::Completed => proto::ProgramState::Completed,
        ProgramState::Terminated => proto::ProgramState::Terminated,
        ProgramState::Error => proto::ProgramState::Error,
        ProgramState::Lost => proto::ProgramState::Lost,
        ProgramState::NotStarted => proto::ProgramState::NotStarted,
    }
}

fn value_cut(cut: &ValueCut) -> proto::ValueCut {
    proto::ValueCut { original_bytes: cut.original_bytes, blob_id: cut.blob.to_string() }
}

fn program_error(error: &ProgramError) -> proto::ProgramError {
    proto::ProgramError {
        code: error.code.clone(),
        message: error.message.clone(),
        class: error.class.clone(),
        line: error.line,
        column: error.column,
        backtrace: error.backtrace.clone(),
        effective_call_ids: error.effective_calls.iter().map(CallId::to_string).collect(),
        safe_to_repeat: error.safe_to_repeat,
    }
}

fn warning(warning: &Warning) -> proto::Warning {
    proto::Warning { code: warning.code.clone(), message: warning.message.clone() }
}

fn usage(usage: &Usage) -> proto::Usage {
    proto::Usage {
        cpu_us: usage.cpu_us,
        wall_us: usage.wall_us,
        peak_memory_bytes: usage.peak_memory_bytes,
        n_calls: usage.n_calls,
        sandbox_us: usage.sandbox_us,
    }
}

/// A call.
pub fn call(record: &CallRecord) -> proto::Call {
    let (arguments_json, arguments_blob_id) = match &record.arguments {
        Payload::Inline(json) => (json.clone(), String::new()),
        Payload::Blob { id, .. } => (String::new(), id.to_string()),
        Payload::Omitted { .. } => (String::new(), String::new()),
    };
    proto::Call {
        call_id: record.id.to_string(),
        tool: record.tool.clone(),
        state: call_state(record.state).into(),
        arguments_json,
        arguments_blob_id,
        error: record.error.as_ref().map(tool_error),
        created_at: Some(timestamp(record.created_at)),
        dispatched_at: record.dispatched_at.map(timestamp),
        ended_at: record.ended_at.map(timestamp),
        program_number: record.id.program.0,
    }
}

fn call_state(state: CallState) -> proto::CallState {
    match state {
        CallState::Queued => proto::CallState::Queued,
        CallState::Dispatched => proto::CallState::Dispatched,
        CallState::Finished => proto::CallState::Finished,
        CallState::Failed => proto::CallState::Failed,
        CallState::Cancelled => proto::CallState::Cancelled,
        CallState::NotStarted => proto::CallState::NotStarted,
        CallState::OutcomeUnknown => proto::CallState::OutcomeUnknown,
    }
}

fn tool_error(error: &CallError) -> proto::ToolError {
    proto::ToolError { code: error.code.clone(), message: error.message.clone(), retryable: error.retryable }
}

/// Something a call left behind.
pub fn artifact(record: &ArtifactRecord) -> proto::Artifact {
    proto::Artifact {
        blob_id: record.blob.to_string(),
        name: record.name.clone(),
        media_type: record.media_type.clone(),
        size_bytes: record.bytes,
        call_id: record.call.to_string(),
    }
}

/// Where output came from.
pub fn output_source(source: OutputSource) -> proto::OutputSource {
    match source {
        OutputSource::Text => proto::OutputSource::Text,
        OutputSource::Stdout => proto::OutputSource::Stdout,
        OutputSource::Stderr => proto::OutputSource::Stderr,
    }
}

/// Output as it is streamed.
pub fn output(seq: EventSeq, source: OutputSource, data: bytes::Bytes) -> proto::OutputChunk {
    proto::OutputChunk { source: output_source(source).into(), data, sequence: seq.0 }
}

/// What happened to a call, where the event does not say it in one piece: which call was dispatched.
fn dispatched(event: &Event, session: seance_core::ids::SessionId, number: u64) -> proto::Call {
    let program = event.program.unwrap_or(ProgramNumber(0));
    proto::Call {
        call_id: CallId { session, program, number }.to_string(),
        state: proto::CallState::Dispatched.into(),
        dispatched_at: Some(timestamp(event.at)),
        program_number: program.0,
        ..proto::Call::default()
    }
}

/// An event. A source that is kept as a blob is given in `blob_source`.
pub fn event(
    event: &Event,
    session: seance_core::ids::SessionId,
    blob_source: Option<String>,
) -> proto::Event {
    use proto::event::Kind;
    let kind = match &event.kind {
        EventKind::SessionOpened { engine } => {
            Kind::SessionOpened(proto::SessionOpened { engine: engine.clone() })
        }
        EventKind::SandboxAssigned { sandbox } => {
            Kind::SandboxAssigned(proto::SandboxAssigned { sandbox_id: sandbox.to_string() })
        }
        EventKind::SandboxEnded { sandbox, end } => Kind::SandboxEnded(proto::SandboxEnded {
            sandbox_id: sandbox.to_string(),
            reason: end.reason.name().to_owned(),
        }),
        EventKind::ProgramAccepted { language, source, catalog, .. } => {
            Kind::ProgramAccepted(proto::ProgramAccepted {
                language: language.clone(),
                source: match source {
                    Payload::Inline(source) => source.clone(),
                    Payload::Blob { .. } => blob_source.unwrap_or_default(),
                    Payload::Omitted { .. } => String::new(),
                },
                catalog_digest: catalog.as_ref().map(ToString::to_string).unwrap_or_default(),
            })
        }
        EventKind::ProgramStarted { engine_version } => {
            Kind::ProgramStarted(proto::ProgramStarted { engine_version: engine_version.clone() })
        }
        EventKind::Output { source, data, separated } => {
            let data = if *separated { with_separator(data) } else { data.clone() };
            Kind::Output(output(event.seq, *source, data))
        }
        EventKind::CallMade(record) | EventKind::CallEnded { record, .. } => Kind::Call(call(record)),
        EventKind::CallDispatched { call } => Kind::Call(dispatched(event, session, *call)),
        EventKind::Artifact(record) => Kind::Artifact(artifact(record)),
        EventKind::ProgramEnded(record) => Kind::ProgramEnded(program(record)),
        EventKind::HostExited { how, stderr_bytes } => {
            Kind::HostExited(proto::HostExited { how: how.clone(), stderr_bytes: *stderr_bytes })
        }
        EventKind::Observed { up_to } => Kind::Observed(proto::Observed { up_to: up_to.0 }),
        EventKind::SessionClosing { reason } => {
            Kind::SessionClosing(proto::SessionClosing { reason: reason.clone() })
        }
        EventKind::SessionClosed => Kind::SessionClosed(proto::SessionClosed {}),
        EventKind::OwnerChanged { epoch } => Kind::OwnerChanged(proto::OwnerChanged { epoch: epoch.0 }),
    };
    proto::Event {
        sequence: event.seq.0,
        time: Some(timestamp(event.at)),
        program_number: event.program.map_or(0, |number| number.0),
        kind: Some(kind),
    }
}

/// Output with the newline that stands between it and the text() before.
fn with_separator(data: &[u8]) -> bytes::Bytes {
    let mut whole = Vec::with_capacity(1 + data.len());
    whole.push(b'\n');
    whole.extend_from_slice(data);
    whole.into()
}

/// The limits that Open and Execute take.
pub fn limits() -> Vec<proto::Limit> {
    let limit = |limit: &limits::Limit| proto::Limit {
        name: limit.name.to_owned(),
        description: limit.description.to_owned(),
        unit: limit.unit.name().to_owned(),
        default_value: limit.default,
        minimum: limit.min,
        maximum: limit.max,
    };
    limits::TABLE.iter().map(limit).collect()
}

/// A catalog.
pub fn catalog(catalog: &Catalog) -> proto::Catalog {
    let tool = |tool: &seance_core::catalog::Tool| proto::Tool {
        name: tool.name.clone(),
        description: tool.description.clone(),
        input_schema_json: tool.input_schema.clone().unwrap_or_default(),
        output_schema_json: tool.output_schema.clone().unwrap_or_default(),
        read_only: tool.read_only,
        replay_safe: tool.replay_safe,
        timeout: tool.timeout.map(duration),
    };
    proto::Catalog { tools: catalog.tools().iter().map(tool).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_keep_their_microseconds() {
        for (micros, seconds, nanos) in [(0, 0, 0), (1_500_001, 1, 500_001_000), (-1, -1, 999_999_000)] {
            let stamp = timestamp(Timestamp(micros));
            assert_eq!((stamp.seconds, stamp.nanos), (seconds, nanos));
        }
        assert_eq!(duration(Duration::MAX).seconds, i64::MAX);
    }

    #[test]
    fn separated_output_begins_with_its_newline() {
        let kind = EventKind::Output { source: OutputSource::Text, data: "b".into(), separated: true };
        let event_of = Event { seq: EventSeq(7), at: Timestamp(1), program: Some(ProgramNumber(2)), kind };
        let id = seance_core::ids::SessionId::mint(Timestamp(1), [1; 10]);
        let Some(proto::event::Kind::Output(chunk)) = event(&event_of, id, None).kind else {
            panic!("output")
        };
        assert_eq!((&chunk.data[..], chunk.sequence), (&b"\nb"[..], 7));
    }
}
