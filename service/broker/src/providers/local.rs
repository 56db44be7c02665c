//! Running the tools of this process.
//!
//! The first poll happens where the call is dispatched: a tool that is ready at once costs neither a
//! task nor a wake-up. One that isn't goes on as a task that the session owns.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use seance_core::ids::CallId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::board::{LocalStart, ProviderId};
use super::types::{Content, ToolResult};
use super::{Hub, lock};

/// How long a cancelled in-process tool has to end by itself before it is dropped.
pub const LOCAL_CANCEL_GRACE: Duration = Duration::from_secs(5);

type Running = Pin<Box<dyn Future<Output = ToolResult> + Send>>;

impl Hub {
    pub(super) fn run_all(self: &Arc<Self>, starts: Vec<LocalStart>) {
        for start in starts {
            self.run(start);
        }
    }

    /// Runs an in-process call. Called without the board's lock: the tool may call back.
    pub(super) fn run(self: &Arc<Self>, start: LocalStart) {
        let LocalStart { handler, call } = start;
        let (id, cancelled) = (call.call.id, call.cancelled.clone());
        let mut running: Running = Box::pin(async move { handler.call(call).await });
        match poll_caught(&mut running, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => self.board().local_result(id, result),
            Poll::Pending => self.run_on(id, running, cancelled),
        }
    }

    fn run_on(self: &Arc<Self>, id: CallId, mut running: Running, cancelled: CancellationToken) {
        let hub = self.clone();
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        let task = async move {
            let result = std::future::poll_fn(|context| poll_caught(&mut running, context));
            let given_up = async {
                cancelled.cancelled().await;
                tokio::time::sleep(LOCAL_CANCEL_GRACE).await;
            };
            tokio::select! {
                biased;
                result = result => hub.board().local_result(id, result),
                () = given_up => {}
            }
        };
        tasks.spawn_on(task, &self.runtime);
    }

    pub(super) fn detach(self: &Arc<Self>, id: ProviderId) {
        let starts = self.board().detach(id, Instant::now());
        self.run_all(starts);
    }
}

/// A poll whose panic is an unexpected failure of the tool.
fn poll_caught(running: &mut Running, context: &mut Context<'_>) -> Poll<ToolResult> {
    catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))).unwrap_or_else(|panic| {
        let text = format!("the tool panicked: {}", panic_text(panic.as_ref()));
        Poll::Ready(Content::Failure(text).into())
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
