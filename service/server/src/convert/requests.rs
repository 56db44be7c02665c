//! Messages of callers, parsed once. A field that is missing or has a form that it can't have is
//! refused by its name.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::time::Duration;

use prost::Message;
use seance_broker::providers::{self, ArtifactBytes, Content};
use seance_core::catalog::{self, Catalog, Tool};
use seance_core::ids::{BlobId, CallId, ProgramNumber, SessionId};
use seance_core::program::CallError;
use seance_core::reasons;
use seance_core::session::SessionState;
use seance_core::store::{IDEMPOTENCY_KEY_BYTES_MAX, SessionFilter};
use seance_proto::v1alpha1 as proto;
use seance_sessions::{CatalogSource, ExecuteRequest, Idempotency, ObserveOptions, OpenRequest, StopRequest};
use sha2::{Digest, Sha256};

use crate::convert::shape;
use crate::request::Caller;
use crate::status::Refusal;

/// The longest observation window.
const WINDOW_MAX: Duration = Duration::from_secs(60);
/// The largest output budget that is taken, in tokens.
const OUTPUT_TOKENS_ASKED_MAX: u32 = 1_048_576;
/// Sessions of one page.
const PAGE_SIZE_MAX: i32 = 500;
const PAGE_SIZE_DEFAULT: usize = 50;
/// The most calls a provider may tell of when it attaches again.
const TOLD_CALLS_MAX: usize = providers::CALLS_MAX;
/// Texts of callers are quoted up to this many characters.
const QUOTED_CHARS: usize = 64;

/// A request that can't be taken as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Invalid {
    reason: &'static str,
    field: &'static str,
    message: String,
}

impl Invalid {
    fn new(reason: &'static str, field: &'static str, message: impl Into<String>) -> Self {
        Self { reason, field, message: message.into() }
    }

    /// A field that is missing or malformed.
    pub fn field(field: &'static str, message: impl Into<String>) -> Self {
        Self::new(reasons::INVALID_REQUEST, field, message)
    }
}

impl Refusal for Invalid {
    fn reason(&self) -> &'static str {
        self.reason
    }

    fn field(&self) -> Option<&str> {
        Some(self.field)
    }
}

type Parsed<T> = Result<T, Invalid>;

/// A session's id.
pub fn session_id(text: &str) -> Parsed<SessionId> {
    id(text, "session_id")
}

/// A blob's id.
pub fn blob_id(text: &str) -> Parsed<BlobId> {
    id(text, "blob_id")
}

/// A call's id.
pub fn call_id(text: &str) -> Parsed<CallId> {
    id(text, "call_id")
}

fn id<T: FromStr<Err = seance_core::ids::ParseError>>(text: &str, field: &'static str) -> Parsed<T> {
    text.parse().map_err(|error: seance_core::ids::ParseError| Invalid::field(field, error.to_string()))
}

/// A program's number, where 0 names none.
pub fn program_number(number: u64) -> Option<ProgramNumber> {
    (number != 0).then_some(ProgramNumber(number))
}

/// A program's number that has to be there.
pub fn named_program(number: u64) -> Parsed<ProgramNumber> {
    program_number(number)
        .ok_or_else(|| Invalid::field("program_number", "it is 0 or missing; programs count from 1"))
}

/// Opens a session.
pub fn open(request: proto::OpenRequest) -> Parsed<OpenRequest> {
    if request.engine.is_empty() {
        return Err(Invalid::field("engine", "it is missing; Engines.List tells which there are"));
    }
    let mut digest = RequestDigest::new("Open");
    digest.map(&request.limits);
    digest.map(&request.labels);
    let proto::OpenRequest { limits, labels, idempotency_key, .. } = request.clone();
    digest.message(&proto::OpenRequest {
        limits: HashMap::new(),
        labels: HashMap::new(),
        idempotency_key: String::new(),
        ..request.clone()
    });
    Ok(OpenRequest {
        engine: request.engine,
        min_version: request.min_version,
        limits: limits.into_iter().collect(),
        catalog: catalog_source(request.catalog)?,
        idle_timeout: duration(request.idle_timeout, "idle_timeout")?,
        session_ttl: duration(request.session_ttl, "session_ttl")?,
        labels: labels.into_iter().collect(),
        engine_options: request.engine_options,
        idempotency: idempotency(idempotency_key, digest)?,
    })
}

/// An Execute, parsed.
#[derive(Debug)]
pub struct Execute {
    /// Which session.
    pub session: SessionId,
    /// The program.
    pub run: ExecuteRequest,
    /// How it is observed.
    pub observe: Observe,
    /// It is stopped when its stream is cut.
    pub stop_on_disconnect: bool,
}

/// How a program is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observe {
    /// The window and its budget.
    pub options: ObserveOptions,
    /// Output is streamed as it comes; else there is the observation only.
    pub stream_output: bool,
}

/// Runs a program.
pub fn execute(request: proto::ExecuteRequest, caller: &Caller) -> Parsed<Execute> {
    let session = session_id(&request.session_id)?;
    let observe = observe(request.observe, caller)?;
    let stop_on_disconnect = match proto::OnDisconnect::try_from(request.on_disconnect) {
        Ok(proto::OnDisconnect::Unspecified | proto::OnDisconnect::Detach) => false,
        Ok(proto::OnDisconnect::Stop) => true,
        Err(_) => return Err(unknown_value("on_disconnect", request.on_disconnect)),
    };
    let mut digest = RequestDigest::new("Execute");
    digest.map(&request.limits);
    // How a program is observed is no part of what it does: a repeat may observe it otherwise.
    digest.message(&proto::ExecuteRequest {
        limits: HashMap::new(),
        observe: None,
        on_disconnect: 0,
        idempotency_key: String::new(),
        ..request.clone()
    });
    let run = ExecuteRequest {
        source: request.source,
        language: request.language,
        catalog: catalog_source(request.catalog)?,
        inputs: request.inputs_json,
        limits: request.limits.into_iter().collect(),
        idempotency: idempotency(request.idempotency_key, digest)?,
    };
    Ok(Execute { session, run, observe, stop_on_disconnect })
}

/// How to observe, with a window that ends before the call's own deadline.
pub fn observe(options: Option<proto::ObserveOptions>, caller: &Caller) -> Parsed<Observe> {
    let options = options.unwrap_or_default();
    let window = duration(options.window, "observe.window")?.unwrap_or(WINDOW_MAX);
    if window > WINDOW_MAX {
        let message = format!("it is {} s; it can be 0 to {} s", window.as_secs(), WINDOW_MAX.as_secs());
        return Err(Invalid::new(reasons::LIMIT_OUT_OF_RANGE, "observe.window", message));
    }
    let max_output_tokens = output_tokens(options.max_output_tokens, "observe.max_output_tokens")?
        .unwrap_or(ObserveOptions::default().max_output_tokens);
    Ok(Observe {
        options: ObserveOptions {
            window: caller.window_before_deadline(window),
            max_output_tokens,
            return_on_pending_call: options.return_on_pending_call,
        },
        stream_output: options.stream_output.unwrap_or(true),
    })
}

fn output_tokens(tokens: Option<u32>, field: &'static str) -> Parsed<Option<u64>> {
    match tokens {
        Some(tokens) if tokens > OUTPUT_TOKENS_ASKED_MAX => {
            let message = format!("it is {tokens}; it can be up to {OUTPUT_TOKENS_ASKED_MAX}");
            Err(Invalid::new(reasons::LIMIT_OUT_OF_RANGE, field, message))
        }
        Some(tokens) => Ok(Some(u64::from(tokens).min(shape::OUTPUT_TOKENS_MAX))),
        None => Ok(None),
    }
}

/// A cursor, where an empty one is none.
pub fn cursor(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Ends a program.
pub fn stop(request: proto::StopRequest) -> Parsed<(SessionId, StopRequest)> {
    let session = session_id(&request.session_id)?;
    let mut digest = RequestDigest::new("Stop");
    digest.message(&proto::StopRequest { idempotency_key: String::new(), ..request.clone() });
    let stop = StopRequest {
        program: program_number(request.program_number),
        cursor: cursor(request.cursor),
        max_output_tokens: output_tokens(request.max_output_tokens, "max_output_tokens")?,
        idempotency: idempotency(request.idempotency_key, digest)?,
    };
    Ok((session, stop))
}

/// Ends a session.
pub fn close(request: proto::CloseRequest) -> Parsed<(SessionId, Option<Idempotency>)> {
    let session = session_id(&request.session_id)?;
    let mut digest = RequestDigest::new("Close");
    digest.message(&proto::CloseRequest { idempotency_key: String::new(), ..request.clone() });
    Ok((session, idempotency(request.idempotency_key, digest)?))
}

/// Which sessions to list. One more than the page is asked for, so that its end is known.
pub fn list(request: proto::ListRequest) -> Parsed<(usize, SessionFilter)> {
    let page_size = match request.page_size {
        0 => PAGE_SIZE_DEFAULT,
        size @ 1..=PAGE_SIZE_MAX => usize::try_from(size).expect("it is positive"),
        size => {
            return Err(Invalid::field("page_size", format!("it is {size}; it can be 1 to {PAGE_SIZE_MAX}")));
        }
    };
    let before = match request.page_token.as_str() {
        "" => None,
        token => Some(id(token, "page_token")?),
    };
    let state = match proto::SessionState::try_from(request.state) {
        Ok(proto::SessionState::Unspecified) => None,
        Ok(proto::SessionState::Open) => Some(SessionState::Open),
        Ok(proto::SessionState::Closing) => Some(SessionState::Closing),
        Ok(proto::SessionState::Closed) => Some(SessionState::Closed),
        Err(_) => return Err(unknown_value("state", request.state)),
    };
    let filter =
        SessionFilter { state, labels: request.labels.into_iter().collect(), before, n_max: page_size + 1 };
    Ok((page_size, filter))
}

/// Keeps a catalog.
pub fn put_catalog(request: proto::PutCatalogRequest) -> Parsed<(Catalog, Option<Idempotency>)> {
    let mut digest = RequestDigest::new("PutCatalog");
    digest.message(&proto::PutCatalogRequest { idempotency_key: String::new(), ..request.clone() });
    let given = request.catalog.ok_or_else(|| Invalid::field("catalog", "it is missing"))?;
    Ok((catalog(given)?, idempotency(request.idempotency_key, digest)?))
}

/// A catalog by digest or in full; none when it is left out.
pub fn catalog_source(source: Option<proto::CatalogSource>) -> Parsed<Option<CatalogSource>> {
    use proto::catalog_source::Source;
    let Some(source) = source else { return Ok(None) };
    match source.source {
        Some(Source::Digest(digest)) => Ok(Some(CatalogSource::Digest(id(&digest, "catalog.digest")?))),
        Some(Source::Inline(inline)) => Ok(Some(CatalogSource::Inline(catalog(inline)?))),
        None => Err(Invalid::field("catalog", "it has neither a digest nor an inline catalog")),
    }
}

fn catalog(given: proto::Catalog) -> Parsed<Catalog> {
    let tools: Vec<Tool> = given.tools.into_iter().map(tool).collect::<Parsed<_>>()?;
    Catalog::new(tools).map_err(|error| {
        let reason = match error {
            catalog::Error::TooManyTools { .. } | catalog::Error::TooLarge { .. } => {
                reasons::CATALOG_TOO_LARGE
            }
            catalog::Error::BadName { .. } => reasons::INVALID_CATALOG,
            catalog::Error::DuplicateName { .. } => reasons::CATALOG_NAME_CLASH,
        };
        Invalid::new(reason, "catalog", error.to_string())
    })
}

fn tool(tool: proto::Tool) -> Parsed<Tool> {
    let timeout = duration(tool.timeout, "catalog.tools.timeout")?;
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        let name: String = tool.name.chars().take(QUOTED_CHARS).collect();
        let message = format!("the timeout of tool {name:?} is zero");
        return Err(Invalid::new(reasons::INVALID_CATALOG, "catalog.tools.timeout", message));
    }
    let schema = |text: String| (!text.is_empty()).then_some(text);
    Ok(Tool {
        name: tool.name,
        description: tool.description,
        input_schema: schema(tool.input_schema_json),
        output_schema: schema(tool.output_schema_json),
        read_only: tool.read_only,
        replay_safe: tool.replay_safe,
        timeout,
    })
}

/// An answer to a pending call.
pub struct Answer {
    /// Which session.
    pub session: SessionId,
    /// Which call.
    pub call: CallId,
    /// What it gave.
    pub result: providers::ToolResult,
    /// Makes a repeated request safe.
    pub idempotency: Option<Idempotency>,
}

/// Answers a pending call.
pub fn answer(request: proto::AnswerRequest) -> Parsed<Answer> {
    let mut digest = RequestDigest::new("Answer");
    digest.message(&proto::AnswerRequest { idempotency_key: String::new(), ..request.clone() });
    Ok(Answer {
        session: session_id(&request.session_id)?,
        call: call_id(&request.call_id)?,
        result: tool_result(request.result)?,
        idempotency: idempotency(request.idempotency_key, digest)?,
    })
}

/// What a provider gives for a call.
pub fn tool_result(result: Option<proto::ToolResult>) -> Parsed<providers::ToolResult> {
    use proto::tool_result::Outcome;
    let missing = || Invalid::new(reasons::INVALID_RESULT, "result", "it has no outcome");
    let result = result.ok_or_else(missing)?;
    let content = match result.outcome.ok_or_else(missing)? {
        Outcome::ValueJson(json) => Content::Value(json),
        Outcome::Text(text) => Content::Text(text),
        Outcome::Error(error) => Content::Error(CallError {
            code: if error.code.is_empty() { reasons::TOOL_ERROR.to_owned() } else { error.code },
            message: error.message,
            retryable: error.retryable,
        }),
        Outcome::Failure(text) => Content::Failure(text),
        Outcome::NotStarted(text) => Content::NotStarted(text),
    };
    let artifact = |data: proto::ArtifactData| ArtifactBytes {
        name: data.name,
        media_type: data.media_type,
        data: data.data,
    };
    Ok(providers::ToolResult { content, artifacts: result.artifacts.into_iter().map(artifact).collect() })
}

/// A call's result with its id.
pub fn call_result(result: proto::CallResult) -> Parsed<(CallId, providers::ToolResult)> {
    Ok((call_id(&result.call_id)?, tool_result(result.result)?))
}

/// What a provider says first.
pub fn attach(attach: proto::Attach) -> Parsed<(SessionId, providers::Attach)> {
    let session = session_id(&attach.session_id)?;
    let n_told = attach.held_call_ids.len() + attach.finished_results.len() + attach.unknown_call_ids.len();
    if n_told > TOLD_CALLS_MAX {
        return Err(Invalid::field(
            "attach",
            format!("it tells of {n_told} calls; {TOLD_CALLS_MAX} can be at work"),
        ));
    }
    let ids = |ids: Vec<String>, field| ids.iter().map(|text| id(text, field)).collect::<Parsed<Vec<_>>>();
    let attach = providers::Attach {
        tools: attach.tools,
        again: attach.again,
        held: ids(attach.held_call_ids, "attach.held_call_ids")?,
        finished: attach.finished_results.into_iter().map(call_result).collect::<Parsed<_>>()?,
        unknown: ids(attach.unknown_call_ids, "attach.unknown_call_ids")?,
    };
    Ok((session, attach))
}

/// A length of time; none when it is left out.
fn duration(given: Option<prost_types::Duration>, field: &'static str) -> Parsed<Option<Duration>> {
    let Some(given) = given else { return Ok(None) };
    let parts = (u64::try_from(given.seconds), u32::try_from(given.nanos));
    match parts {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(Invalid::field(field, "it is negative, or its nanoseconds are a second or more")),
    }
}

fn unknown_value(field: &'static str, value: i32) -> Invalid {
    Invalid::new(reasons::UNSUPPORTED, field, format!("this version does not know the value {value}"))
}

fn idempotency(key: String, digest: RequestDigest) -> Parsed<Option<Idempotency>> {
    if key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        let message = format!("it has {} bytes, over the limit of {IDEMPOTENCY_KEY_BYTES_MAX}", key.len());
        return Err(Invalid::field("idempotency_key", message));
    }
    Ok((!key.is_empty()).then(|| Idempotency { key, request_digest: digest.finish() }))
}

/// The digest of a request. Maps go in sorted, because their order in a message means nothing.
struct RequestDigest(Sha256);

impl RequestDigest {
    fn new(method: &str) -> Self {
        let mut digest = Self(Sha256::new());
        digest.part(method.as_bytes());
        digest
    }

    /// Every part goes in with its length, so that none can pass for another.
    fn part(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    fn map<V: ToString>(&mut self, map: &HashMap<String, V>) {
        self.part(&(map.len() as u64).to_be_bytes());
        let sorted: BTreeMap<_, _> = map.iter().collect();
        for (name, value) in sorted {
            self.part(name.as_bytes());
            self.part(value.to_string().as_bytes());
        }
    }

    fn message(&mut self, message: &impl Message) {
        self.part(&message.encode_to_vec());
    }

    fn finish(self) -> String {
        hex::encode(self.0.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_request() -> proto::OpenRequest {
        proto::OpenRequest {
            engine: "javascript".to_owned(),
            idempotency_key: "key".to_owned(),
            limits: (0..20).map(|n| (format!("limit_{n}"), n)).collect(),
            labels: HashMap::from([("a".to_owned(), "b".to_owned())]),
            ..Default::default()
        }
    }

    #[test]
    fn a_repeated_request_has_the_same_digest_and_a_changed_one_has_not() {
        let digest = |request| open(request).unwrap().idempotency.unwrap().request_digest;
        // Every map has its own random order.
        let first = digest(open_request());
        for _ in 0..20 {
            assert_eq!(digest(open_request()), first);
        }
        let mut moved = open_request();
        moved.limits.insert("limit_0".to_owned(), 1);
        assert_ne!(digest(moved), first);
        let other_key = proto::OpenRequest { idempotency_key: "other".to_owned(), ..open_request() };
        assert_eq!(digest(other_key), first);
        let other_engine = proto::OpenRequest { min_version: "1".to_owned(), ..open_request() };
        assert_ne!(digest(other_engine), first);
    }

    #[test]
    fn a_repeat_may_observe_otherwise() {
        let request = |observe| proto::ExecuteRequest {
            session_id: format!("ses_{}", "0".repeat(32)),
            idempotency_key: "key".to_owned(),
            observe,
            ..Default::default()
        };
        let digest = |request| execute(request, &Caller::for_tests()).unwrap().run.idempotency;
        let brief = proto::ObserveOptions { stream_output: Some(false), ..Default::default() };
        assert_eq!(digest(request(None)), digest(request(Some(brief))));
    }

    #[test]
    fn fields_are_refused_by_name() {
        let check = |error: Invalid, reason, field| assert_eq!((error.reason, error.field), (reason, field));
        check(open(proto::OpenRequest::default()).unwrap_err(), reasons::INVALID_REQUEST, "engine");
        check(session_id("sbx_1").unwrap_err(), reasons::INVALID_REQUEST, "session_id");
        check(named_program(0).unwrap_err(), reasons::INVALID_REQUEST, "program_number");
        let caller = Caller::for_tests();
        let window = |seconds, nanos| {
            let window = Some(prost_types::Duration { seconds, nanos });
            observe(Some(proto::ObserveOptions { window, ..Default::default() }), &caller)
        };
        check(window(61, 0).unwrap_err(), reasons::LIMIT_OUT_OF_RANGE, "observe.window");
        check(window(-1, 0).unwrap_err(), reasons::INVALID_REQUEST, "observe.window");
        check(window(1, i32::MAX).unwrap_err(), reasons::INVALID_REQUEST, "observe.window");
        assert_eq!(window(0, 0).unwrap().options.window, Duration::ZERO);
        let tokens = proto::ObserveOptions { max_output_tokens: Some(u32::MAX), ..Default::default() };
        check(
            observe(Some(tokens), &caller).unwrap_err(),
            reasons::LIMIT_OUT_OF_RANGE,
            "observe.max_output_tokens",
        );
        let list_of = |page_size, state| list(proto::ListRequest { page_size, state, ..Default::default() });
        check(list_of(501, 0).unwrap_err(), reasons::INVALID_REQUEST, "page_size");
        check(list_of(1, 77).unwrap_err(), reasons::UNSUPPORTED, "state");
        check(tool_result(None).unwrap_err(), reasons::INVALID_RESULT, "result");
        let empty_source = Some(proto::CatalogSource { source: None });
        check(catalog_source(empty_source).unwrap_err(), reasons::INVALID_REQUEST, "catalog");
    }

    /// Five thousand tools, names that clash.
    #[test]
    fn a_bad_catalog_is_refused_with_its_reason() {
        let tool = |name: String| proto::Tool { name, ..Default::default() };
        let refused = |tools| catalog(proto::Catalog { tools }).unwrap_err().reason;
        assert_eq!(refused((0..5_000).map(|n| tool(format!("t{n}"))).collect()), reasons::CATALOG_TOO_LARGE);
        assert_eq!(refused(vec![tool("a".to_owned()), tool("a".to_owned())]), reasons::CATALOG_NAME_CLASH);
        assert_eq!(refused(vec![tool("a b".to_owned())]), reasons::INVALID_CATALOG);
    }
}
