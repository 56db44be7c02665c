//! A provider's stream: calls out, results in.
//!
//! Results are read by a task of their own, so that reading never waits for the provider to take what
//! is written. Large results come in pieces, which are put together here within bounds.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use futures::Stream;
use prost::Message as _;
use seance_broker::providers::{
    AttachError, Attachment, ProviderCall, Results, StreamEnd, Taken, ToProvider,
};
use seance_core::ids::{CallId, SessionId};
use seance_core::program::Payload;
use seance_core::reasons;
use seance_proto::v1alpha1 as proto;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming};

use super::{Api, HEARTBEAT, OrStatus};
use crate::convert::{records, requests};
use crate::request::Caller;
use crate::status::{self, Refusal};

/// The largest result: a value and its artifacts, and what is around them, in bytes.
const RESULT_BYTES_MAX: u64 = 97 * 1024 * 1024;
/// Pieces of unfinished results of one stream, in bytes.
const UNFINISHED_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Unfinished results of one stream.
const UNFINISHED_MAX: usize = 64;
/// Arguments over this size go to a provider as a blob, in bytes.
const INLINE_ARGUMENT_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A provider could not attach.
#[derive(Debug, thiserror::Error)]
#[error("session {session}: {error}")]
pub(super) struct Refused {
    pub(super) session: SessionId,
    pub(super) error: AttachError,
}

impl Refusal for Refused {
    fn reason(&self) -> &'static str {
        match &self.error {
            AttachError::Conflict { .. } => reasons::PROVIDER_CONFLICT,
            AttachError::NoSession => reasons::SESSION_CLOSED,
            AttachError::UnknownTool { .. } | AttachError::Invalid(_) => reasons::INVALID_REQUEST,
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![("session_id", self.session.to_string())]
    }

    fn field(&self) -> Option<&str> {
        matches!(self.error, AttachError::UnknownTool { .. }).then_some("attach.tools")
    }
}

type Reader = AbortOnDropHandle<Result<(), Status>>;

struct Provided {
    api: Api,
    attachment: Attachment,
    reader: Reader,
    session: SessionId,
    caller: Caller,
}

/// What the provider is sent. Dropping it means that the provider is lost.
pub(super) fn messages(
    api: Api,
    attachment: Attachment,
    inbound: Streaming<proto::ServeRequest>,
    session: SessionId,
    caller: Caller,
) -> impl Stream<Item = Result<proto::ServeResponse, Status>> {
    use proto::serve_response::Message;
    let attached = Message::Attached(proto::Attached { tools: attachment.tools().to_vec() });
    let first = futures::stream::iter([Ok(proto::ServeResponse { message: Some(attached) })]);
    let reading = read(inbound, attachment.results(), caller.clone());
    let reader = AbortOnDropHandle::new(tokio::spawn(tracing::Instrument::in_current_span(reading)));
    let state = Some(Provided { api, attachment, reader, session, caller });
    let rest = futures::stream::unfold(state, |state| async move {
        let mut provided = state?;
        match provided.next().await {
            Ok(Some(message)) => Some((Ok(proto::ServeResponse { message: Some(message) }), Some(provided))),
            Ok(None) => None,
            Err(status) => Some((Err(status), None)),
        }
    });
    futures::StreamExt::chain(first, rest)
}

/// A call that was taken and isn't sent yet: dropped before that, it was never with the provider.
struct Unsent {
    results: Results,
    call: Option<CallId>,
}

impl Unsent {
    fn goes_out(mut self) {
        self.call = None;
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            self.results.not_sent(call);
        }
    }
}

impl Provided {
    async fn next(&mut self) -> Result<Option<proto::serve_response::Message>, Status> {
        use proto::serve_response::Message;
        let message = tokio::select! {
            biased;
            read = &mut self.reader => return match read {
                // It sends no more results: it is no provider any more.
                Ok(Ok(())) => Ok(None),
                Ok(Err(status)) => Err(status),
                Err(_) => Err(self.api.stopped(&self.caller)),
            },
            message = self.attachment.next() => message,
            () = self.api.stopping.cancelled() => return Err(self.api.stopped(&self.caller)),
            () = tokio::time::sleep(HEARTBEAT) => return Ok(Some(Message::KeepAlive(proto::KeepAlive {}))),
        };
        Ok(Some(match message {
            Ok(ToProvider::Call(call)) => {
                let unsent = Unsent { results: self.attachment.results(), call: Some(call.id) };
                let call = self.call(call).await?;
                unsent.goes_out();
                Message::Call(call)
            }
            Ok(ToProvider::Cancel { call, reason }) => Message::Cancel(proto::CancelCall {
                call_id: call.to_string(),
                reason: reason.name().to_owned(),
            }),
            Ok(ToProvider::Recorded { call }) => {
                Message::Recorded(proto::Recorded { call_id: call.to_string() })
            }
            Err(StreamEnd::SessionClosed | StreamEnd::Replaced) => return Ok(None),
        }))
    }

    async fn call(&self, call: ProviderCall) -> Result<proto::ProviderCall, Status> {
        let (arguments_json, arguments_blob_id) = if call.arguments.len() <= INLINE_ARGUMENT_BYTES_MAX {
            (call.arguments.to_string(), String::new())
        } else {
            (String::new(), self.arguments_blob(call.id).await?)
        };
        Ok(proto::ProviderCall {
            call: Some(proto::Call {
                call_id: call.id.to_string(),
                tool: call.tool.to_string(),
                state: proto::CallState::Dispatched.into(),
                arguments_json,
                arguments_blob_id,
                program_number: call.id.program.0,
                ..proto::Call::default()
            }),
            timeout: Some(records::duration(call.timeout)),
            traceparent: call.traceparent.map(|text| text.to_string()).unwrap_or_default(),
            repeated_call: call.repeated,
        })
    }

    /// The blob that a call's arguments were recorded as.
    async fn arguments_blob(&self, call: CallId) -> Result<String, Status> {
        let program = self.api.sessions.program(&self.caller.tenant, self.session, call.program).await;
        let program = program.or_status(&self.caller)?;
        let arguments = program.calls.iter().find(|listed| listed.id == call).map(|listed| &listed.arguments);
        match arguments {
            Some(Payload::Blob { id, .. }) => Ok(id.to_string()),
            Some(Payload::Inline(_) | Payload::Omitted { .. }) | None => {
                let message = format!("the arguments of call {call} are too large to send and are no blob");
                let error = status::Plain::new(reasons::INTERNAL, message);
                Err(status::of(&error, &self.caller))
            }
        }
    }
}

/// Reads results until the provider ends its side. What is malformed ends the stream: a provider that
/// sends it can't be trusted with the calls it has.
async fn read(
    mut inbound: Streaming<proto::ServeRequest>,
    results: Results,
    caller: Caller,
) -> Result<(), Status> {
    use proto::serve_request::Message;
    let mut unfinished = Unfinished::default();
    while let Some(request) = inbound.message().await? {
        let result = match request.message {
            Some(Message::Result(result)) => result,
            Some(Message::ResultChunk(chunk)) => match unfinished.add(chunk).or_status(&caller)? {
                Some(result) => result,
                None => continue,
            },
            Some(Message::Attach(_)) => {
                return Err(wrong("attach", "it is sent once, first")).or_status(&caller);
            }
            None => return Err(wrong("message", "this version knows no such message")).or_status(&caller),
        };
        let (call, result) = requests::call_result(result).or_status(&caller)?;
        match results.result(call, result) {
            Taken::Delivered => {}
            Taken::Late => tracing::debug!(%call, "a result came after the call's end"),
            Taken::NotYours => {
                tracing::warn!(%call, "a provider sent a result of a call that it does not have")
            }
        }
    }
    Ok(())
}

fn wrong(field: &'static str, message: impl Into<String>) -> requests::Invalid {
    requests::Invalid::field(field, message)
}

/// Results whose pieces have not all come.
#[derive(Default)]
struct Unfinished {
    results: HashMap<String, (usize, BytesMut)>,
    bytes: usize,
}

impl Unfinished {
    /// Takes a piece; gives the result when it was the last.
    fn add(&mut self, chunk: proto::ResultChunk) -> Result<Option<proto::CallResult>, requests::Invalid> {
        const FIELD: &str = "result_chunk";
        let proto::ResultChunk { call_id, total_bytes, data } = chunk;
        if total_bytes > RESULT_BYTES_MAX {
            let message = format!("the result has {total_bytes} bytes, over the limit of {RESULT_BYTES_MAX}");
            return Err(wrong("result_chunk.total_bytes", message));
        }
        requests::call_id(&call_id)?;
        let total = usize::try_from(total_bytes).expect("the limit fits");
        if !self.results.contains_key(&call_id) && self.results.len() >= UNFINISHED_MAX {
            return Err(wrong(FIELD, format!("{UNFINISHED_MAX} results are unfinished already")));
        }
        let (expected, whole) =
            self.results.entry(call_id.clone()).or_insert_with(|| (total, BytesMut::new()));
        if *expected != total || whole.len() + data.len() > total || (data.is_empty() && total > 0) {
            return Err(wrong(FIELD, format!("the pieces of call {call_id} don't fit together")));
        }
        self.bytes += data.len();
        if self.bytes > UNFINISHED_BYTES_MAX {
            return Err(wrong(FIELD, format!("unfinished results have over {UNFINISHED_BYTES_MAX} bytes")));
        }
        whole.extend_from_slice(&data);
        if whole.len() < total {
            return Ok(None);
        }
        let (_, whole) = self.results.remove(&call_id).expect("it was just filled");
        self.bytes -= whole.len();
        decode(whole.freeze(), &call_id).map(Some)
    }
}

fn decode(whole: Bytes, call_id: &str) -> Result<proto::CallResult, requests::Invalid> {
    match proto::CallResult::decode(whole) {
        Ok(result) if result.call_id == call_id => Ok(result),
        Ok(_) => Err(wrong("result_chunk", format!("the result put together is not one of call {call_id}"))),
        Err(_) => Err(wrong("result_chunk", format!("the pieces of call {call_id} are no CallResult"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> String {
        format!("call_{}_1_{n}", "0".repeat(32))
    }

    fn result(n: u32, bytes: usize) -> proto::CallResult {
        let outcome = Some(proto::tool_result::Outcome::Text("x".repeat(bytes)));
        proto::CallResult {
            call_id: id(n),
            result: Some(proto::ToolResult { outcome, artifacts: Vec::new() }),
        }
    }

    fn pieces(n: u32, bytes: usize) -> Vec<proto::ResultChunk> {
        let whole = result(n, bytes).encode_to_vec();
        let piece = |data: &[u8]| proto::ResultChunk {
            call_id: id(n),
            total_bytes: whole.len() as u64,
            data: Bytes::copy_from_slice(data),
        };
        whole.chunks(1_000).map(piece).collect()
    }

    #[test]
    fn mixed_pieces_give_each_result_whole() {
        let mut unfinished = Unfinished::default();
        let mut done = Vec::new();
        let (a, b) = (pieces(1, 5_000), pieces(2, 5_000));
        for (a, b) in a.into_iter().zip(b) {
            done.extend(unfinished.add(a).unwrap());
            done.extend(unfinished.add(b).unwrap());
        }
        assert_eq!(done, [result(1, 5_000), result(2, 5_000)]);
        assert_eq!((unfinished.bytes, unfinished.results.len()), (0, 0));
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        let add = |chunks: Vec<proto::ResultChunk>| {
            let mut unfinished = Unfinished::default();
            chunks.into_iter().find_map(|chunk| unfinished.add(chunk).err()).map(|error| error.to_string())
        };
        let mut other_total = pieces(1, 3_000);
        other_total[1].total_bytes += 1;
        let mut too_long = pieces(1, 3_000);
        too_long[1].data = Bytes::from(vec![0; 10_000]);
        let mut other_call = pieces(1, 3_000);
        for chunk in &mut other_call {
            chunk.call_id = id(2);
        }
        let huge = vec![proto::ResultChunk { call_id: id(1), total_bytes: u64::MAX, data: Bytes::new() }];
        let stalled = vec![proto::ResultChunk { call_id: id(1), total_bytes: 10, data: Bytes::new() }];
        let no_id =
            vec![proto::ResultChunk { call_id: "x".repeat(1_000_000), total_bytes: 10, data: Bytes::new() }];
        let many = (0..70).map(|n| pieces(n, 3_000).swap_remove(0)).collect();
        for (chunks, says) in [
            (other_total, "fit together"),
            (too_long, "fit together"),
            (other_call, "not one of call"),
            (huge, "over the limit"),
            (stalled, "fit together"),
            (no_id, "call id"),
            (many, "unfinished already"),
        ] {
            let error = add(chunks).unwrap_or_else(|| panic!("accepted, wanted {says}"));
            assert!(error.contains(says) && error.len() < 1_000, "{error}");
        }
    }
}
