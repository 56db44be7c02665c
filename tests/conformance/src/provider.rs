//! A provider of the fixture tools: one `Tools.Serve` stream that answers a session's calls and
//! records each of them, cancellations included.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use seance_proto::prost::Message as _;
use seance_proto::v1alpha1 as api;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::case;
use crate::door::Channel;
use crate::fixtures::{self, Answer};

/// Results up to this size go in one message, as encoded; larger ones go in chunks.
const ONE_MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Messages to the service that wait to be sent; a full queue holds the answer back.
const OUTBOX: usize = 64;

/// One call as the provider saw it.
#[derive(Debug, Clone)]
pub struct Record {
    /// The call's id.
    pub call_id: String,
    /// The tool's name.
    pub tool: String,
    /// The arguments as JSON text.
    pub arguments: String,
    /// The program's number.
    pub program: u64,
    /// The W3C trace context that came with it.
    pub traceparent: String,
    /// When it arrived.
    pub began: Instant,
    /// When it was answered.
    pub ended: Option<Instant>,
    /// The position among all answers of this provider, from 0.
    pub rank: Option<usize>,
    /// What was answered.
    pub answer: Option<Answer>,
    /// When and why the provider was told to give it up.
    pub cancelled: Option<(Instant, String)>,
}

impl Record {
    /// Whether the provider still has it.
    pub fn is_live(&self) -> bool {
        self.ended.is_none() && self.cancelled.is_none()
    }
}

#[derive(Debug, Default)]
struct Log {
    records: Vec<Record>,
    n_answered: usize,
    counts: HashMap<String, u64>,
}

/// What a provider serves and how.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// The session.
    pub session_id: String,
    /// Tools that take a call and never answer it.
    pub hold: HashSet<String>,
    /// Held tools answer after all, once they are cancelled.
    pub answer_late: bool,
    /// The case's own tools.
    pub own: Vec<case::Tool>,
    /// The tools to serve; all that nobody else serves when empty.
    pub tools: Vec<String>,
}

/// An attached provider. Dropping it cuts the stream.
#[derive(Debug)]
pub struct Provider {
    log: Arc<Mutex<Log>>,
    changed: Arc<Notify>,
    serving: AbortHandle,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Provider {
    /// Attaches and returns once the service has said so.
    pub async fn attach(channel: Channel, plan: Plan) -> anyhow::Result<Self> {
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let attach = api::Attach {
            session_id: plan.session_id.clone(),
            tools: plan.tools.clone(),
            ..api::Attach::default()
        };
        send(&outbox, api::serve_request::Message::Attach(attach)).await?;
        let mut tools = api::tools_client::ToolsClient::new(channel.clone());
        let mut incoming = tools.serve(ReceiverStream::new(messages)).await?.into_inner();
        match incoming.next().await.context("the service ended Serve before attaching")??.message {
            Some(api::serve_response::Message::Attached(_)) => {}
            other => bail!("Serve began with {other:?} instead of attached"),
        }
        let log = Arc::new(Mutex::new(Log::default()));
        let changed = Arc::new(Notify::new());
        let server = Server { channel, plan, log: log.clone(), changed: changed.clone(), outbox };
        let serving = tokio::spawn(server.run(incoming)).abort_handle();
        Ok(Self { log, changed, serving })
    }

    /// All calls so far, in the order they arrived.
    pub fn records(&self) -> Vec<Record> {
        self.log.lock().expect("nothing panics while it holds the log").records.clone()
    }

    /// Waits until the records satisfy `wanted`; fails after `deadline`.
    pub async fn until(
        &self,
        deadline: Duration,
        what: &str,
        wanted: impl Fn(&[Record]) -> bool,
    ) -> anyhow::Result<()> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if wanted(&self.records()) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(deadline, waiting)
            .await
            .with_context(|| format!("{what} did not happen within {deadline:?}"))
    }
}

async fn send(
    outbox: &mpsc::Sender<api::ServeRequest>,
    message: api::serve_request::Message,
) -> anyhow::Result<()> {
    outbox.send(api::ServeRequest { message: Some(message) }).await.context("the Serve stream is gone")
}

/// The task behind a provider.
struct Server {
    channel: Channel,
    plan: Plan,
    log: Arc<Mutex<Log>>,
    changed: Arc<Notify>,
    outbox: mpsc::Sender<api::ServeRequest>,
}

impl Server {
    async fn run(self, mut incoming: tonic::Streaming<api::ServeResponse>) {
        let server = Arc::new(self);
        let mut calls = JoinSet::new();
        let mut handles: HashMap<String, AbortHandle> = HashMap::new();
        // The end of the stream ends the provider: the service detached it, or is gone.
        while let Some(Ok(response)) = incoming.next().await {
            match response.message {
                Some(api::serve_response::Message::Call(call)) => {
                    let arrived = Instant::now();
                    let Some(inner) = call.call.clone() else { continue };
                    let index = server.record(&inner, &call.traceparent, arrived);
                    let server = server.clone();
                    let id = inner.call_id.clone();
                    handles.insert(id, calls.spawn(async move { server.serve(inner, index).await }));
                }
                Some(api::serve_response::Message::Cancel(cancel)) => {
                    if let Some(handle) = handles.remove(&cancel.call_id) {
                        handle.abort();
                    }
                    server.cancelled(&cancel);
                    if server.plan.answer_late {
                        server.answer_late(&cancel.call_id).await;
                    }
                }
                Some(api::serve_response::Message::Recorded(recorded)) => {
                    handles.remove(&recorded.call_id);
                }
                Some(
                    api::serve_response::Message::Attached(_) | api::serve_response::Message::KeepAlive(_),
                )
                | None => {}
            }
            while calls.try_join_next().is_some() {}
        }
    }

    fn edit<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let result = change(&mut self.log.lock().expect("nothing panics while it holds the log"));
        self.changed.notify_waiters();
        result
    }

    fn record(&self, call: &api::Call, traceparent: &str, began: Instant) -> usize {
        self.edit(|log| {
            log.records.push(Record {
                call_id: call.call_id.clone(),
                tool: call.tool.clone(),
                arguments: call.arguments_json.clone(),
                program: call.program_number,
                traceparent: traceparent.to_owned(),
                began,
                ended: None,
                rank: None,
                answer: None,
                cancelled: None,
            });
            *log.counts.entry(call.tool.clone()).or_default() += 1;
            log.records.len() - 1
        })
    }

    fn cancelled(&self, cancel: &api::CancelCall) {
        self.edit(|log| {
            if let Some(record) = log.records.iter_mut().find(|r| r.call_id == cancel.call_id) {
                record.cancelled = Some((Instant::now(), cancel.reason.clone()));
            }
        });
    }

    async fn answer_late(&self, call_id: &str) {
        let held = self.edit(|log| {
            let index = log.records.iter().position(|r| r.call_id == call_id && r.ended.is_none())?;
            Some((index, log.records[index].tool.clone()))
        });
        let Some((index, tool)) = held.filter(|(_, tool)| self.plan.hold.contains(tool)) else { return };
        let call = api::Call { call_id: call_id.to_owned(), tool, ..api::Call::default() };
        self.answer(&call, index, Answer::Value("\"late\"".to_owned())).await;
    }

    async fn serve(&self, call: api::Call, index: usize) {
        let count = self.edit(|log| log.counts[&call.tool]);
        let arguments = match self.arguments(&call).await {
            Ok(arguments) => arguments,
            Err(error) => return self.answer(&call, index, Answer::Failure(error.to_string())).await,
        };
        self.edit(|log| log.records[index].arguments.clone_from(&arguments));
        if self.plan.hold.contains(&call.tool) {
            return;
        }
        let (after, answer) = fixtures::answer(&call.tool, &arguments, count, &self.plan.own);
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        self.answer(&call, index, answer).await;
    }

    /// The arguments: those over 64 KiB are a blob.
    async fn arguments(&self, call: &api::Call) -> anyhow::Result<String> {
        if call.arguments_blob_id.is_empty() {
            return Ok(call.arguments_json.clone());
        }
        let mut sessions = api::sessions_client::SessionsClient::new(self.channel.clone());
        let request = api::GetBlobRequest {
            session_id: self.plan.session_id.clone(),
            blob_id: call.arguments_blob_id.clone(),
            offset: 0,
        };
        let mut chunks = sessions.get_blob(request).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.next().await {
            bytes.extend(chunk?.data);
        }
        String::from_utf8(bytes).context("the arguments blob isn't UTF-8")
    }

    async fn answer(&self, call: &api::Call, index: usize, answer: Answer) {
        let result = api::CallResult { call_id: call.call_id.clone(), result: Some(answer.to_proto()) };
        self.edit(|log| {
            let rank = log.n_answered;
            log.n_answered += 1;
            let record = &mut log.records[index];
            (record.ended, record.rank, record.answer) = (Some(Instant::now()), Some(rank), Some(answer));
        });
        // A stream that is gone is the end of the session or of the case; nobody waits for it.
        let _ = self.send_result(result).await;
    }

    async fn send_result(&self, result: api::CallResult) -> anyhow::Result<()> {
        if result.encoded_len() <= ONE_MESSAGE_BYTES_MAX {
            return send(&self.outbox, api::serve_request::Message::Result(result)).await;
        }
        let whole = result.encode_to_vec();
        for data in whole.chunks(ONE_MESSAGE_BYTES_MAX) {
            let chunk = api::ResultChunk {
                call_id: result.call_id.clone(),
                total_bytes: whole.len() as u64,
                data: data.to_vec().into(),
            };
            send(&self.outbox, api::serve_request::Message::ResultChunk(chunk)).await?;
        }
        Ok(())
    }
}
