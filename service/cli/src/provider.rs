//! Serves a file's tools to a session: runs a command for each call.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use proto::serve_request::Message as ToService;
use proto::serve_response::Message as FromService;
use proto::tool_result::Outcome;
use seance_proto::prost::Message as _;
use seance_proto::v1alpha1 as proto;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;

use crate::client::Client;
use crate::tools_file::{Tool, Tools};

/// The largest result of a command, in bytes. It is the limit of the service too.
const RESULT_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// What is kept of a failed command's standard error, in bytes.
const STDERR_BYTES_MAX: u64 = 4 * 1024;
/// Results up to this size travel in one message, in bytes.
const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The size of the parts of a larger result, in bytes.
const CHUNK_BYTES: usize = 1024 * 1024;
/// Messages to the service that wait to be sent.
const OUTGOING_MAX: usize = 64;

/// Tools at work. Dropping it ends their commands.
pub struct Provider {
    _tasks: JoinSet<()>,
}

impl Provider {
    /// Attaches to a session and serves all of `tools`.
    pub async fn attach(client: &Client, session: &str, tools: Arc<Tools>) -> Result<Self> {
        let (outgoing, requests) = mpsc::channel(OUTGOING_MAX);
        let attach = proto::Attach {
            session_id: session.to_owned(),
            tools: tools.tools.keys().cloned().collect(),
            ..Default::default()
        };
        outgoing.send(request(ToService::Attach(attach))).await.context("the stream is gone")?;
        let mut incoming = client.tools.clone().serve(ReceiverStream::new(requests)).await?.into_inner();
        // Attached comes first; a program that starts before it would wait for a provider.
        incoming.message().await?.context("the service did not attach the tools")?;
        let (client, session) = (client.clone(), session.to_owned());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let source = Source { client, session, tools };
            let mut serving = Serving { source, outgoing, calls: JoinSet::new(), at_work: HashMap::new() };
            if let Err(status) = serving.run(&mut incoming).await {
                tracing::debug!(%status, "the provider's stream ended");
            }
        });
        Ok(Self { _tasks: tasks })
    }
}

/// Where a call's tool and arguments are.
#[derive(Clone)]
struct Source {
    client: Client,
    session: String,
    tools: Arc<Tools>,
}

struct Serving {
    source: Source,
    outgoing: mpsc::Sender<proto::ServeRequest>,
    calls: JoinSet<()>,
    at_work: HashMap<String, AbortHandle>,
}

impl Serving {
    async fn run(
        &mut self,
        incoming: &mut tonic::Streaming<proto::ServeResponse>,
    ) -> Result<(), tonic::Status> {
        while let Some(response) = incoming.message().await? {
            match response.message {
                Some(FromService::Call(call)) => self.call(call),
                Some(FromService::Cancel(cancel)) => {
                    if let Some(call) = self.at_work.remove(&cancel.call_id) {
                        call.abort();
                    }
                }
                Some(FromService::Recorded(recorded)) => drop(self.at_work.remove(&recorded.call_id)),
                Some(FromService::Attached(_) | FromService::KeepAlive(_)) | None => {}
            }
            while self.calls.try_join_next().is_some() {}
        }
        Ok(())
    }

    fn call(&mut self, call: proto::ProviderCall) {
        let Some(call) = call.call else { return };
        let (source, outgoing) = (self.source.clone(), self.outgoing.clone());
        let id = call.call_id.clone();
        let work = self.calls.spawn(async move {
            let outcome = answer(&source, &call).await;
            let result = proto::ToolResult { outcome: Some(outcome), artifacts: Vec::new() };
            send(&outgoing, proto::CallResult { call_id: call.call_id, result: Some(result) }).await;
        });
        self.at_work.insert(id, work);
    }
}

async fn answer(source: &Source, call: &proto::Call) -> Outcome {
    let Some(tool) = source.tools.tools.get(&call.tool) else {
        return Outcome::Failure(format!("the tools file has no {:?}", call.tool));
    };
    let outcome = match source.arguments(call).await {
        Ok(arguments) => run(&source.tools, tool, arguments).await,
        Err(error) => Err(error.context("can't get the arguments")),
    };
    outcome.unwrap_or_else(|error| {
        Outcome::Failure(format!("{:#}", error.context(format!("tool {:?}", call.tool))))
    })
}

impl Source {
    /// A call's arguments. Large ones are a blob, of at most as many bytes as the service lets a call have.
    async fn arguments(&self, call: &proto::Call) -> Result<String> {
        if call.arguments_blob_id.is_empty() {
            return Ok(call.arguments_json.clone());
        }
        let request = proto::GetBlobRequest {
            session_id: self.session.clone(),
            blob_id: call.arguments_blob_id.clone(),
            offset: 0,
        };
        let mut parts = self.client.sessions.clone().get_blob(request).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = parts.message().await? {
            bytes.extend_from_slice(&part.data);
        }
        Ok(String::from_utf8(bytes)?)
    }
}

async fn run(tools: &Tools, tool: &Tool, arguments: String) -> Result<Outcome> {
    let mut child = Command::new(&tool.command[0])
        .args(&tool.command[1..])
        .current_dir(&tools.folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("can't start {:?}", tool.command[0]))?;
    let (stdout, stderr) = speak(&mut child, arguments).await?;
    let status = child.wait().await.context("can't wait for the command")?;
    if !status.success() {
        let message = String::from_utf8_lossy(&stderr).trim().to_owned();
        let message = if message.is_empty() { format!("the command ended with {status}") } else { message };
        return Ok(Outcome::Error(proto::ToolError {
            code: "command_failed".to_owned(),
            message,
            retryable: false,
        }));
    }
    if stdout.len() as u64 > RESULT_BYTES_MAX {
        let message = format!("the command wrote more than {RESULT_BYTES_MAX} bytes");
        return Ok(Outcome::Error(proto::ToolError {
            code: "result_too_large".to_owned(),
            message,
            retryable: false,
        }));
    }
    let text = String::from_utf8_lossy(&stdout).trim_end_matches('\n').to_owned();
    let is_json = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
    Ok(if is_json { Outcome::ValueJson(text) } else { Outcome::Text(text) })
}

/// Gives the command its arguments and reads what it says, both bounded and at the same time.
async fn speak(child: &mut Child, arguments: String) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut stdin = child.stdin.take().expect("it was asked for");
    let mut stdout = child.stdout.take().expect("it was asked for").take(RESULT_BYTES_MAX + 1);
    let mut stderr = child.stderr.take().expect("it was asked for");
    let write = async move {
        // A command that doesn't read its arguments is no failure.
        let _ = stdin.write_all(arguments.as_bytes()).await;
    };
    let (mut said, mut complained) = (Vec::new(), Vec::new());
    let read_stderr = async {
        (&mut stderr).take(STDERR_BYTES_MAX).read_to_end(&mut complained).await?;
        tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await
    };
    let ((), out, err) = tokio::join!(write, stdout.read_to_end(&mut said), read_stderr);
    out.context("can't read the command's output")?;
    err.context("can't read the command's errors")?;
    Ok((said, complained))
}

fn request(message: ToService) -> proto::ServeRequest {
    proto::ServeRequest { message: Some(message) }
}

async fn send(outgoing: &mpsc::Sender<proto::ServeRequest>, result: proto::CallResult) {
    if result.encoded_len() <= MESSAGE_BYTES_MAX {
        let _ = outgoing.send(request(ToService::Result(result))).await;
        return;
    }
    let call_id = result.call_id.clone();
    let whole = result.encode_to_vec();
    let total_bytes = whole.len() as u64;
    for part in whole.chunks(CHUNK_BYTES) {
        let chunk = proto::ResultChunk { call_id: call_id.clone(), total_bytes, data: part.to_vec().into() };
        if outgoing.send(request(ToService::ResultChunk(chunk))).await.is_err() {
            return;
        }
    }
}
