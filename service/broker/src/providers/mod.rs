//! Who answers the calls of sessions: providers on streams, tools of this process, or a client that
//! posts an answer.
//!
//! One session owns a [`SessionCalls`] and its [`Answers`]; nothing it does here waits for a
//! provider. A stream holds an [`Attachment`]. State is behind one short lock for each session,
//! never held across an await. A call is pulled by the stream that is to send it, so what a slow
//! provider hasn't taken waits here, within [`CALLS_MAX`], and is known not to have started.

mod attach;
mod audit;
mod board;
mod local;
mod result;
mod types;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use seance_core::ids::{CallId, SessionId, TenantId};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use audit::Audit;
use board::{Board, ProviderId};

pub use board::{CALLS_MAX, DECLARED_MAX};
pub use local::LOCAL_CANCEL_GRACE;
pub use result::CALL_ARTIFACTS_MAX;
pub(crate) use result::cut_middle;
pub use types::*;

/// The providers of all sessions of this process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Providers {
    sessions: Arc<Mutex<HashMap<SessionId, Arc<Hub>>>>,
}

/// One session's board, and those who wait for it.
struct Hub {
    session: SessionId,
    board: Mutex<Board>,
    /// Woken when there is an answer, an earlier deadline, or the end.
    owner: Arc<Notify>,
    /// In-process calls at work.
    tasks: Mutex<JoinSet<()>>,
    /// Where those run: a dropped attachment can hand its calls on from any thread.
    runtime: Handle,
}

/// A lock whose holder never panics with the state half changed: its changes are single inserts,
/// removes and assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    fn board(&self) -> MutexGuard<'_, Board> {
        lock(&self.board)
    }
}

impl Providers {
    /// Takes a session in. `grace` is how long a call waits for a provider, and a lost provider has
    /// to attach again. A registration of the same session before this one is closed. Must
    /// be called within a tokio runtime, where in-process tools then run.
    pub fn register(&self, session: SessionId, tenant: TenantId, grace: Duration) -> (SessionCalls, Answers) {
        let owner = Arc::new(Notify::new());
        let board = Board::new(Audit { tenant, session }, grace, owner.clone());
        let hub = Arc::new(Hub {
            session,
            board: Mutex::new(board),
            owner,
            tasks: Mutex::default(),
            runtime: Handle::current(),
        });
        let before = lock(&self.sessions).insert(session, hub.clone());
        if let Some(before) = before {
            before.board().close();
        }
        (SessionCalls { providers: self.clone(), hub: hub.clone() }, Answers { hub })
    }

    /// Attaches the stream of a provider. Dropping the attachment means that the provider is lost.
    pub fn attach(&self, session: SessionId, attach: Attach) -> Result<Attachment, AttachError> {
        let hub = self.hub(session).ok_or(AttachError::NoSession)?;
        let wake = Arc::new(Notify::new());
        let (id, starts) = hub.board().attach_stream(attach, wake.clone(), Instant::now())?;
        hub.run_all(starts);
        let tools = hub.board().served_by(id);
        Ok(Attachment { tools, wake, results: Results { hub, id } })
    }

    /// Attaches tools of this process: those named, or all that no one else serves. Dropping the
    /// attachment detaches them; calls at work run on.
    pub fn attach_local(
        &self,
        session: SessionId,
        tools: &[String],
        handler: Arc<dyn ToolHandler>,
    ) -> Result<LocalAttachment, AttachError> {
        let hub = self.hub(session).ok_or(AttachError::NoSession)?;
        let (id, starts) = hub.board().attach_local(tools, handler, Instant::now())?;
        hub.run_all(starts);
        Ok(LocalAttachment { hub, id })
    }

    /// Answers a dispatched call that no provider has. The first answer wins.
    pub fn answer(&self, session: SessionId, call: CallId, result: ToolResult) -> Result<(), AnswerError> {
        let hub = self.hub(session).filter(|_| call.session == session).ok_or(AnswerError::NotFound)?;
        hub.board().answer(call, result)
    }

    fn hub(&self, session: SessionId) -> Option<Arc<Hub>> {
        lock(&self.sessions).get(&session).cloned()
    }
}

/// The session's side. Dropping it closes the session's calls.
pub struct SessionCalls {
    providers: Providers,
    hub: Arc<Hub>,
}

impl SessionCalls {
    /// Says which tools the session has, in order; adds to those said before. From then on a
    /// provider can attach only to these. At most [`DECLARED_MAX`] are held, and those that are
    /// served: past that the ones said longest ago are forgotten, and have to be said again before
    /// a provider can attach to them.
    pub fn declare_tools(&self, tools: impl IntoIterator<Item = Arc<str>>) {
        self.hub.board().declare(tools);
    }

    /// Gets a call answered; never waits. The call comes out of [`Answers`] once, unless it is
    /// cancelled first.
    pub fn dispatch(&self, dispatch: Dispatch) -> Result<(), DispatchError> {
        let start = self.hub.board().dispatch(dispatch, Instant::now())?;
        if let Some(start) = start {
            self.hub.run(start);
        }
        Ok(())
    }

    /// Takes a call back, tells whoever has it, and says what it came to. Unless that is
    /// [`Cancelled::Over`], no answer of the call follows.
    pub fn cancel(&self, call: CallId, reason: CancelReason) -> Cancelled {
        self.hub.board().cancel(call, reason)
    }

    /// The result of an answered call is durable: its provider may forget it.
    pub fn recorded(&self, call: CallId) {
        self.hub.board().recorded(call);
    }

    /// Whether someone serves the tool now.
    pub fn is_served(&self, tool: &str) -> bool {
        self.hub.board().route(tool).is_some()
    }

    /// Ends the session's calls, tells their providers, and ends the streams. Gives what each call
    /// that was still at work came to, by id.
    pub fn close(self) -> Vec<(CallId, Cancelled)> {
        self.end()
    }

    /// Waits for the in-process tools that are still at work, at most [`LOCAL_CANCEL_GRACE`] for
    /// those that are cancelled. Dropping the future ends them at once.
    pub async fn local_calls_ended(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.hub.tasks));
        while tasks.join_next().await.is_some() {}
    }

    fn end(&self) -> Vec<(CallId, Cancelled)> {
        let mut sessions = lock(&self.providers.sessions);
        if sessions.get(&self.hub.session).is_some_and(|hub| Arc::ptr_eq(hub, &self.hub)) {
            sessions.remove(&self.hub.session);
        }
        drop(sessions);
        self.hub.board().close()
    }
}

impl Drop for SessionCalls {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where a session gets the ends of its calls. Timeouts and grace times are kept here too, so they
/// pass only while someone receives.
pub struct Answers {
    hub: Arc<Hub>,
}

impl Answers {
    /// The next call that ended; none once the session's calls are closed and all were fetched.
    ///
    /// Cancel-safe: an answer that was not returned is returned the next time.
    pub async fn recv(&mut self) -> Option<Answered> {
        loop {
            let due = {
                let mut board = self.hub.board();
                let due = board.expire(Instant::now());
                if let Some(answered) = board.take_answered() {
                    return Some(answered);
                }
                if board.closed {
                    return None;
                }
                due
            };
            match due {
                None => self.hub.owner.notified().await,
                Some(due) => tokio::select! {
                    () = self.hub.owner.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                },
            }
        }
    }

    /// The next call that ended, if there is one now.
    pub fn try_recv(&mut self) -> Option<Answered> {
        let mut board = self.hub.board();
        board.expire(Instant::now());
        board.take_answered()
    }
}

/// The stream of a provider. Dropping it means that the provider is lost: its calls wait for the
/// grace time.
pub struct Attachment {
    tools: Vec<String>,
    wake: Arc<Notify>,
    results: Results,
}

/// Why a provider's stream has nothing more to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The session is closed.
    SessionClosed,
    /// The same provider attached again on another stream.
    Replaced,
}

impl Attachment {
    /// The tools it serves, as far as they are known now: the session's declared ones in order,
    /// then others that it named.
    pub fn tools(&self) -> &[String] {
        &self.tools
    }

    /// What takes results, for the reading half of the stream.
    pub fn results(&self) -> Results {
        self.results.clone()
    }

    /// The next message to send. A call counts as seen by the provider once it is returned, so
    /// it is to be taken only when the stream has room for it, and one that can't be sent after all
    /// is to be given back with [`Results::not_sent`].
    ///
    /// Cancel-safe: a message that was not returned is returned the next time.
    pub async fn next(&mut self) -> Result<ToProvider, StreamEnd> {
        loop {
            {
                let mut board = self.results.hub.board();
                if let Some(message) = board.take_next(self.results.id, Instant::now()) {
                    return Ok(message);
                }
                if board.closed {
                    return Err(StreamEnd::SessionClosed);
                }
                if !board.providers.contains_key(&self.results.id) {
                    return Err(StreamEnd::Replaced);
                }
            }
            self.wake.notified().await;
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.results.hub.detach(self.results.id);
    }
}

/// Takes the results that a provider's stream brings. Cheap to clone.
#[derive(Clone)]
pub struct Results {
    hub: Arc<Hub>,
    id: ProviderId,
}

impl Results {
    /// Ends a call with a result. What isn't taken is dropped, and is no error of the stream.
    pub fn result(&self, call: CallId, result: ToolResult) -> Taken {
        self.hub.board().result(self.id, call, result)
    }

    /// A call that [`Attachment::next`] gave was not sent: not a byte of it left this process. It
    /// waits for a provider as it did before.
    pub fn not_sent(&self, call: CallId) {
        self.hub.board().not_sent(self.id, call, Instant::now());
    }
}

/// Tools of this process that serve a session. Dropping it detaches them.
pub struct LocalAttachment {
    hub: Arc<Hub>,
    id: ProviderId,
}

impl Drop for LocalAttachment {
    fn drop(&mut self) {
        self.hub.detach(self.id);
    }
}
