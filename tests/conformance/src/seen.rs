//! What a step saw, and whether that is what its case expects. Pure: no IO, no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use seance_proto::v1alpha1 as api;
use serde_json::Value;

use crate::case::Expect;
use crate::provider::Record;

/// A gRPC status as a client sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Refusal {
    /// The gRPC code's name.
    pub grpc: String,
    /// `ErrorInfo.reason` of the details.
    pub reason: String,
    /// The trailer `seance-reason`.
    pub trailer: String,
    /// The message.
    pub message: String,
}

/// Everything a step saw.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The service refused.
    pub refused: Option<Refusal>,
    /// The observation.
    pub observation: Option<api::Observation>,
    /// The program.
    pub program: Option<api::Program>,
    /// The chunks that were streamed, with the time since the request.
    pub streamed: Vec<(Duration, Vec<u8>)>,
    /// The session.
    pub session: Option<api::Session>,
    /// Limits: in force, or the defaults.
    pub limits: BTreeMap<String, u64>,
    /// Kinds of events, in order.
    pub events: Option<Vec<String>>,
    /// Instructions, or other text.
    pub text: String,
    /// Declarations.
    pub declarations: String,
    /// Aliases in catalog order.
    pub aliases: Vec<String>,
    /// The provider's records.
    pub records: Vec<Record>,
    /// When the request was sent.
    pub sent: Option<std::time::Instant>,
    /// How long the step took.
    pub elapsed: Duration,
    /// How much the service's resident memory grew, in bytes.
    pub service_grew: Option<u64>,
}

/// Everything that is not as expected, one sentence each.
pub fn mismatches(expect: &Expect, seen: &Seen) -> Vec<String> {
    let mut wrong = Wrong::default();
    if refusal(expect, seen, &mut wrong) {
        form(seen, &mut wrong);
        observation(expect, seen, &mut wrong);
        output(expect, seen, &mut wrong);
        program(expect, seen, &mut wrong);
        error(expect, seen, &mut wrong);
        described(expect, seen, &mut wrong);
        session(expect, seen, &mut wrong);
    }
    provider(expect, seen, &mut wrong);
    times(expect, seen, &mut wrong);
    wrong.0
}

#[derive(Default)]
struct Wrong(Vec<String>);

impl Wrong {
    fn add(&mut self, text: String) {
        self.0.push(text);
    }

    /// `want`, when given, equals `got`.
    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, want: Option<&T>, got: Option<&T>) {
        match (want, got) {
            (Some(want), Some(got)) if want != got => {
                self.add(format!("{what}: expected {want:?}, got {got:?}"));
            }
            (Some(want), None) => self.add(format!("{what}: expected {want:?}, got none")),
            _ => {}
        }
    }

    fn holds(&mut self, what: &str, text: &str, has: &[String], lacks: &[String]) {
        for part in has.iter().filter(|part| !text.contains(part.as_str())) {
            self.add(format!("{what}: expected it to hold {part:?}, got {text:?}"));
        }
        for part in lacks.iter().filter(|part| text.contains(part.as_str())) {
            self.add(format!("{what}: expected it not to hold {part:?}, got {text:?}"));
        }
    }
}

/// Whether the rest is to be looked at: neither refused nor expected to be.
fn refusal(expect: &Expect, seen: &Seen, wrong: &mut Wrong) -> bool {
    match (&expect.refused, &seen.refused) {
        (None, None) => true,
        (None, Some(got)) => {
            wrong.add(format!("expected no refusal, got {} {}: {}", got.grpc, got.reason, got.message));
            false
        }
        (Some(want), None) => {
            wrong.add(format!("expected the refusal {want}, got {}", found(seen)));
            false
        }
        (Some(want), Some(got)) => {
            wrong.same("reason", Some(want), Some(&got.reason));
            wrong.same("trailer seance-reason", Some(want), Some(&got.trailer));
            wrong.same("gRPC code", expect.grpc.as_ref(), Some(&got.grpc));
            let named = [want.clone()];
            wrong.holds("the refusal's message", &got.message, &named, &[]);
            wrong.holds("the refusal's message", &got.message, &expect.has, &expect.lacks);
            false
        }
    }
}

/// What was found instead, for a note.
fn found(seen: &Seen) -> String {
    match &seen.observation {
        Some(observation) => format!("{} {}", status_name(observation.status), outcome(seen)),
        None => "an answer".to_owned(),
    }
}

fn outcome(seen: &Seen) -> String {
    let Some(program) = &seen.program else { return String::new() };
    match (&program.error, &program.value_json) {
        (Some(error), _) => format!("({}: {})", error.code, error.message),
        (None, Some(value)) => format!("(value {value})"),
        (None, None) if program.reason.is_empty() => String::new(),
        (None, None) => format!("({})", program.reason),
    }
}

/// What holds of every observation, whatever a case expects of it (B4 to B7).
fn form(seen: &Seen, wrong: &mut Wrong) {
    use api::{ObservationStatus as Status, ProgramState as State};
    let Some(observation) = &seen.observation else { return };
    let Some(program) = &observation.program else {
        return wrong.add("the observation has no program".to_owned());
    };
    let (status, state) = (observation.status(), program.state());
    let agree = match status {
        Status::Completed => state == State::Completed,
        Status::StillWorking => matches!(state, State::Queued | State::Running),
        Status::Terminated => state == State::Terminated,
        Status::Error => state == State::Error,
        Status::Unspecified => false,
    };
    let names = format!("{} and {}", status_name(observation.status), state_name(program.state));
    if !agree {
        wrong.add(format!("status and state contradict each other: {names}"));
    }
    if program.error.is_some() != (status == Status::Error) {
        wrong.add(format!("an error is there with the status error, and only then: {names}"));
    }
    if program.value_json.is_some() && status != Status::Completed {
        wrong.add(format!("only a completed program has a value: {names}"));
    }
    if observation.next_cursor.is_empty() {
        wrong.add("the observation has no next_cursor".to_owned());
    }
}

fn observation(expect: &Expect, seen: &Seen, wrong: &mut Wrong) {
    let Some(observation) = &seen.observation else { return };
    let want = expect.status.clone().unwrap_or_else(|| {
        let failed = expect.code.is_some() || !expect.code_in.is_empty();
        if failed { "error" } else { "completed" }.to_owned()
    });
    let got = status_name(observation.status);
    if want != got {
        wrong.add(format!("status: expected {want}, got {got} {}", outcome(seen)));
    }
    let pending: Vec<String> = observation.pending_calls.iter().map(|call| call.tool.clone()).collect();
    wrong.same("pending calls", expect.pending.as_ref(), Some(&pending));
    let artifacts: Vec<String> = observation
        .artifacts
        .iter()
        .map(|a| format!("{} {} {}", a.name, a.media_type, a.size_bytes))
        .collect();
    wrong.same("artifacts", expect.artifacts.as_ref(), Some(&artifacts));
}

fn output(expect: &Expect, seen: &Seen, wrong: &mut Wrong) {
    if let Some(observation) = &seen.observation {
        wrong.same("output", expect.output.as_ref(), Some(&observation.output));
        wrong.holds("output", &observation.output, &expect.output_has, &expect.output_lacks);
        wrong.same("output_separator", expect.separator.as_ref(), Some(&observation.output_separator));
        let cut = observation.output_cut.as_ref().map(|cut| (cut.original_tokens, cut.cut_tokens));
        wrong.same("output_cut", expect.cut.as_ref(), cut.as_ref());
        if expect.uncut && cut.is_some() {
            wrong.add(format!("output_cut: expected none, got {cut:?}"));
        }
    }
    let streamed: Vec<u8> = seen.streamed.iter().flat_map(|(_, data)| data.iter().copied()).collect();
    let streamed = String::from_utf8_lossy(&streamed).into_owned();
    wrong.same("streamed output", expect.streamed.as_ref(), Some(&streamed));
    if let Some(early) = &expect.early {
        let by = Duration::from_millis(early.ms);
        let in_time: Vec<u8> =
            seen.streamed.iter().filter(|(at, _)| *at <= by).flat_map(|(_, data)| data.clone()).collect();
        if !String::from_utf8_lossy(&in_time).contains(&early.text) {
            let times: Vec<String> = seen
                .streamed
                .iter()
                .map(|(at, data)| format!("{:?} at {} ms", String::from_utf8_lossy(data), at.as_millis()))
                .collect();
            wrong.add(format!("expected {:?} within {} ms, got {times:?}", early.text, early.ms));
        }
    }
}

fn program(expect: &Expect, seen: &Seen, wrong: &mut Wrong) {
    let Some(program) = &seen.program else {
        if expect.value.is_some() || expect.code.is_some() || expect.state.is_some() {
            wrong.add("expected a program, got none".to_owned());
        }
        return;
    };
    wrong.same("state", expect.state.as_ref(), Some(&state_name(program.state)));
    wrong.same("program reason", expect.reason.as_ref(), Some(&program.reason));
    wrong.same("program number", expect.number.as_ref(), Some(&program.number));
    value(expect, program, wrong);
    let warnings: Vec<String> = program.warnings.iter().map(|w| w.code.clone()).collect();
    wrong.same("warnings", expect.warnings.as_ref(), Some(&warnings));
    let calls: Vec<String> = program.calls.iter().map(call_text).collect();
    wrong.same("calls", expect.calls.as_ref(), Some(&calls));
    wrong.same("n_calls", expect.n_calls.as_ref(), Some(&program.n_calls));
    let cpu_ms = program.usage.as_ref().map(|usage| usage.cpu_us / 1000);
    if let Some(most) = expect.cpu_at_most_ms
        && cpu_ms.is_none_or(|cpu| cpu > most)
    {
        wrong.add(format!("processor time: expected at most {most} ms, got {cpu_ms:?}"));
    }
}

fn value(expect: &Expect, program: &api::Program, wrong: &mut Wrong) {
    if expect.no_value && program.value_json.is_some() {
        wrong.add(format!("value: expected none, got {:?}", program.value_json));
    }
    if let Some(want) = &expect.value {
        match &program.value_json {
            None => wrong.add(format!("value: expected {want}, got none {}", error_text(program))),
            Some(got) if plain(got) != plain(want) => {
                wrong.add(format!("value: expected {want}, got {got}"));
            }
            Some(_) => {}
        }
    }
    let cut = program.value_cut.as_ref().map(|cut| cut.original_bytes);
    wrong.same("value_cut.original_bytes", expect.value_bytes.as_ref(), cut.as_ref());
}

fn error_text(program: &api::Program) -> String {
    program.error.as_ref().map(|e| format!("({}: {})", e.code, e.message)).unwrap_or_default()
}

fn error(expect: &Expect, seen: &Seen, wrong: &mut Wrong) {
    let error = seen.program.as_ref().and_then(|program| program.error.clone());
    let error = error.as_ref();
    wrong.same("error code", expect.code.as_ref(), error.map(|e| &e.code));
    if !expect.code_in.is_empty() && !error.is_some_and(|e| expect.code_in.contains(&e.code)) {
        let got = error.map(|e| e.code.as_str());
        wrong.add(format!("error code: expected one of {:?}, got {got:?}", expect.code_in));
    }
    wrong.same("error class", expect.class.as_ref(), error.map(|e| &e.class));
    wrong.same("error message", expect.message.as_ref(), error.map(|e| &e.message));
    let at = error.map(|e| e.message.clone()).unwrap_or_default();
    let line = error.map(|e| e.line);
    if expect.line.is_some() && line != expect.line {
        wrong.add(format!("error line: expected {:?}, got {line:?} ({at})", expect.line));
    }
    wrong.same("error column", expect.column.as_ref(), error.map(|e| &e.column));
    wrong.same("safe_to_repeat", expect.safe_to_repeat.as_ref(), error.map(|e| &e.safe_to_repeat));
    let trace = error.map(|e| e.backtrace.clone()).unwrap_or_default();
    wrong.holds("backtrace", &trace, &expect.trace_has, &expect.trace_lacks);
    if let Some(want) = &expect.effective {
        let program = seen.program.as_ref();
        let tool_of = |id: &String| {
            let calls = program.map(|p| p.calls.as_slice()).unwrap_or_default();
            calls.iter().find(|c| c.call_id == *id).map_or("?".to_owned(), |c| c.tool.clone())
        };
        let got = error.map(|e| e.effective_call_ids.iter().map(tool_of).collect::<Vec<_>>());
        wrong.same("effective calls", Some(want), got.as_ref());
    }
    if seen.observation.is_some() || seen.program.is_some() {
        wrong.holds("error message", &at, &expect.has, &expect.lacks);
    }
}

fn described(expect: &Expect, seen: &Seen, wrong: &mut Wrong) {
    if seen.observation.is_none() && seen.program.is_none() {
        wrong.holds("the text", &seen.text, &expect.has, &expect.lacks);
    }
    let squeezed = squeeze(&seen.declarations);
    let without_comments = squeeze(&uncommented(&seen.declarations));
    let is_there = |part: &str| squeezed.contains(part) || without_comments.contains(part);
    for part in expect.declares.iter().filter(|part| !is_there(&squeeze(part))) {
        wrong.add(format!("declarations: expected {part:?}, got {:?}", seen.declarations));
    }
    for part in expect.declares_not.iter().filter(|part| squeezed.contains(&squeeze(part))) {
        wrong.add(format!("declarations: expected no {part:?}, got {:?}", seen.declarations));
    }
    wrong.same("aliases", expect.aliases.as_ref(), Some(&seen.aliases));
}

/// The text without its `/* */` comments.
fn uncommented(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| kept + part.split_once("*/").map_or("", |(_, rest)| rest))
}

fn squeeze(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

fn session(expect: &Expect, seen: &Seen, wrong: &mut Wrong) {
    let session = seen.session.as_ref();
    let state = session.map(|session| session_state_name(session.state));
    wrong.same("session state", expect.session.as_ref(), state.as_ref());
    wrong.same("session reason", expect.session_reason.as_ref(), session.map(|s| &s.reason));
    wrong.same("engine options", expect.options.as_ref(), session.map(|s| &s.engine_options));
    for (name, want) in &expect.limits {
        wrong.same(&format!("limit {name}"), Some(want), seen.limits.get(name));
    }
    let Some(events) = &seen.events else {
        if expect.events.is_some() || !expect.no_events.is_empty() {
            wrong.add("expected events, got none".to_owned());
        }
        return;
    };
    let mut rest = events.iter();
    for want in expect.events.iter().flatten() {
        if !rest.any(|got| got == want) {
            wrong.add(format!("events: expected {:?} in this order, got {events:?}", expect.events));
            break;
        }
    }
    for kind in expect.no_events.iter().filter(|kind| events.contains(kind)) {
        wrong.add(format!("events: expected no {kind}, got {events:?}"));
    }
}

fn provider(expect: &Expect, seen: &Seen, wrong: &mut Wrong) {
    let recorded: Vec<String> =
        seen.records.iter().map(|r| format!("{} {}", r.tool, plain(&r.arguments))).collect();
    wrong.same("recorded calls", expect.recorded.as_ref(), Some(&recorded));
    for (tool, want) in &expect.recorded_n {
        let got = seen.records.iter().filter(|r| r.tool == *tool).count();
        wrong.same(&format!("recorded calls of {tool}"), Some(want), Some(&got));
    }
    if let Some(want) = &expect.results {
        let mut answered: Vec<&Record> = seen.records.iter().filter(|r| r.rank.is_some()).collect();
        answered.sort_by_key(|r| r.rank);
        let got: Vec<String> = answered
            .iter()
            .filter_map(|r| match &r.answer {
                Some(crate::fixtures::Answer::Value(json)) => Some(json.clone()),
                _ => None,
            })
            .collect();
        wrong.same("results in their order", Some(want), Some(&got));
    }
    wrong.same("calls at one time", expect.overlap.as_ref(), Some(&overlap(&seen.records)));
    let cancelled: Vec<String> = seen
        .records
        .iter()
        .filter_map(|r| r.cancelled.as_ref().map(|(_, reason)| format!("{} {reason}", r.tool)))
        .collect();
    wrong.same("cancelled calls", expect.cancelled.as_ref(), Some(&cancelled));
    if let Some(by) = expect.cancelled_within_ms {
        let told: Vec<u128> = seen
            .records
            .iter()
            .filter_map(|r| Some(r.cancelled.as_ref()?.0.saturating_duration_since(seen.sent?).as_millis()))
            .collect();
        if told.is_empty() || told.iter().any(|ms| *ms > u128::from(by)) {
            wrong.add(format!("expected the cancellation within {by} ms, got {told:?} ms"));
        }
    }
}

/// The most calls that were with the provider at one time.
pub fn overlap(records: &[Record]) -> usize {
    let end = |r: &Record| r.ended.or(r.cancelled.as_ref().map(|(at, _)| *at));
    let live_at = |at| records.iter().filter(|r| r.began <= at && end(r).is_none_or(|end| end > at)).count();
    records.iter().map(|record| live_at(record.began)).max().unwrap_or(0)
}

fn times(expect: &Expect, seen: &Seen, wrong: &mut Wrong) {
    let ms = seen.elapsed.as_millis() as u64;
    if expect.within_ms.is_some_and(|within| ms > within) {
        wrong.add(format!("expected at most {:?} ms, took {ms}", expect.within_ms.unwrap_or_default()));
    }
    if expect.after_ms.is_some_and(|after| ms < after) {
        wrong.add(format!("expected at least {:?} ms, took {ms}", expect.after_ms.unwrap_or_default()));
    }
    if let Some(most) = expect.service_grew_at_most_mib {
        match seen.service_grew {
            Some(grew) if grew <= most << 20 => {}
            Some(grew) => {
                wrong.add(format!("the service grew by {} MiB, expected {most} at most", grew >> 20))
            }
            None => wrong.add("the service's memory can't be read; give --service-pid".to_owned()),
        }
    }
}

/// JSON without spaces, digits and order kept; other text as it is.
pub fn plain(json: &str) -> String {
    serde_json::from_str::<Value>(json).map_or_else(|_| json.to_owned(), |value| value.to_string())
}

/// A call as "tool state" or "tool state code".
pub fn call_text(call: &api::Call) -> String {
    let state = call_state_name(call.state);
    match &call.error {
        Some(error) => format!("{} {state} {}", call.tool, error.code),
        None => format!("{} {state}", call.tool),
    }
}

fn short(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_ascii_lowercase()
}

/// An observation status in the data's words.
pub fn status_name(status: i32) -> String {
    api::ObservationStatus::try_from(status)
        .map_or_else(|_| format!("{status}?"), |s| short(s.as_str_name(), "OBSERVATION_STATUS_"))
}

/// A program state in the data's words.
pub fn state_name(state: i32) -> String {
    api::ProgramState::try_from(state)
        .map_or_else(|_| format!("{state}?"), |s| short(s.as_str_name(), "PROGRAM_STATE_"))
}

/// A call state in the data's words.
pub fn call_state_name(state: i32) -> String {
    api::CallState::try_from(state)
        .map_or_else(|_| format!("{state}?"), |s| short(s.as_str_name(), "CALL_STATE_"))
}

/// A session state in the data's words.
pub fn session_state_name(state: i32) -> String {
    api::SessionState::try_from(state)
        .map_or_else(|_| format!("{state}?"), |s| short(s.as_str_name(), "SESSION_STATE_"))
}

/// Whether a program's record can still change.
pub fn is_final(program: &api::Program) -> bool {
    !matches!(program.state(), api::ProgramState::Queued | api::ProgramState::Running)
}

#[cfg(test)]
#[path = "seen_tests.rs"]
mod tests;
