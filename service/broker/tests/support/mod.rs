//! What the tests of providers share: a session, calls, and shorthand for results.
#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::time::Duration;

use seance_broker::providers::*;
use seance_core::ids::{CallId, ProgramNumber, SessionId, TenantId};
use seance_core::limits::Limits;
use seance_core::time::Timestamp;

pub const GRACE: Duration = Duration::from_secs(30);
pub const TIMEOUT: Duration = Duration::from_secs(100);

pub fn session_id(n: u8) -> SessionId {
    SessionId::mint(Timestamp(1_700_000_000_000_000), [n; 10])
}

pub fn call_id(number: u64) -> CallId {
    CallId { session: session_id(1), program: ProgramNumber(1), number }
}

pub fn call(number: u64, tool: &str) -> Dispatch {
    Dispatch {
        id: call_id(number),
        tool: tool.into(),
        arguments: format!(r#"{{"n":{number}}}"#).into(),
        timeout: TIMEOUT,
        repeatable: false,
        maybe_seen: false,
        traceparent: None,
        limits: ResultLimits::from(&Limits::default()),
    }
}

pub fn repeatable(number: u64, tool: &str) -> Dispatch {
    Dispatch { repeatable: true, ..call(number, tool) }
}

pub fn text(text: &str) -> ToolResult {
    Content::Text(text.to_owned()).into()
}

pub fn serving(tools: &[&str]) -> Attach {
    Attach { tools: tools.iter().map(|tool| (*tool).to_owned()).collect(), ..Attach::default() }
}

pub struct Session {
    pub providers: Providers,
    pub calls: SessionCalls,
    pub answers: Answers,
}

impl Session {
    pub fn open(grace: Duration) -> Self {
        let providers = Providers::default();
        let (calls, answers) = providers.register(session_id(1), TenantId::default_tenant(), grace);
        Self { providers, calls, answers }
    }

    pub fn attach(&self, attach: Attach) -> Attachment {
        self.providers.attach(session_id(1), attach).unwrap()
    }

    pub fn local(&self, tools: &[&str], handler: impl ToolHandler) -> LocalAttachment {
        let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        self.providers.attach_local(session_id(1), &tools, Arc::new(handler)).unwrap()
    }

    /// The next end of a call: its number and outcome.
    pub async fn ended(&mut self) -> (u64, Outcome) {
        let answered = self.answers.recv().await.expect("the session is open");
        (answered.call.number, answered.outcome)
    }
}

/// The next message, which has to be a call.
pub async fn next_call(provider: &mut Attachment) -> ProviderCall {
    match provider.next().await {
        Ok(ToProvider::Call(call)) => call,
        other => panic!("not a call: {other:?}"),
    }
}

/// Whether the stream has nothing to send right now.
pub async fn is_quiet(provider: &mut Attachment) -> bool {
    tokio::select! {
        biased;
        _ = provider.next() => false,
        () = std::future::ready(()) => true,
    }
}
