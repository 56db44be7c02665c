//! Execute's and Wait's streams: output, heartbeats, one observation.
//!
//! Dropping the stream detaches. Where Execute said so, it stops the program instead: an owned task
//! does that, because the request is gone by then.

use futures::Stream;
use seance_core::ids::{ProgramNumber, SessionId, TenantId};
use seance_proto::v1alpha1 as proto;
use seance_sessions::{Error, Observation, Observed, Observer, Status as Found};
use tonic::Status;

use super::{Api, OrStatus};
use crate::convert::requests::Execute;
use crate::convert::{records, shape};
use crate::request::Caller;

/// A program that is observed, and what happens to it when its stream is cut.
pub(super) struct Watched {
    // Dropped before the guard: the stop needs the session's control to be free.
    observer: Observer,
    stop: Option<StopOnDrop>,
}

impl Watched {
    /// Goes on when its stream is cut.
    pub(super) fn detaching(observer: Observer) -> Self {
        Self { observer, stop: None }
    }

    /// The next message that the caller wants; none after the last.
    async fn next(&mut self, stream_output: bool) -> Option<Result<Observed, Error>> {
        loop {
            let message = self.observer.next().await;
            match &message {
                Some(Ok(Observed::Output { .. } | Observed::Heartbeat { .. })) if !stream_output => continue,
                Some(Ok(Observed::Output { .. } | Observed::Heartbeat { .. })) => {}
                Some(Ok(Observed::Done(_)) | Err(_)) | None => self.detach(),
            }
            return message;
        }
    }

    fn detach(&mut self) {
        if let Some(mut guard) = self.stop.take() {
            guard.api = None;
        }
    }
}

/// Stops a program when it is dropped, unless it was disarmed.
struct StopOnDrop {
    api: Option<Api>,
    tenant: TenantId,
    session: SessionId,
    program: ProgramNumber,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let Some(api) = self.api.take() else { return };
        let (tenant, session, program) = (self.tenant.clone(), self.session, self.program);
        let sessions = api.sessions.clone();
        api.tasks.spawn(async move { sessions.stop_abandoned(&tenant, session, program).await });
    }
}

impl Api {
    /// Begins a program. With a stop on disconnect the caller may vanish at any point, also before
    /// the program has a number: the beginning is then a task of its own.
    pub(super) async fn begin(&self, execute: Execute, caller: &Caller) -> Result<Watched, Status> {
        let Execute { session, run, observe, stop_on_disconnect } = execute;
        if !stop_on_disconnect {
            let observer = self.sessions.execute(&caller.tenant, session, run, observe.options).await;
            return Ok(Watched::detaching(observer.or_status(caller)?));
        }
        let (api, tenant) = (self.clone(), caller.tenant.clone());
        let beginning = async move {
            let observer = api.sessions.execute(&tenant, session, run, observe.options).await?;
            let program = observer.program();
            let stop = Some(StopOnDrop { api: Some(api), tenant, session, program });
            Ok(Watched { observer, stop })
        };
        let beginning = tracing::Instrument::in_current_span(beginning);
        // When this future is dropped, the task's result is dropped too, and that stops the program.
        let began: Result<Watched, Error> = match self.tasks.spawn(beginning).await {
            Ok(began) => began,
            Err(_) => Err(Error::Stopping),
        };
        began.or_status(caller)
    }
}

/// Execute's messages.
pub(super) fn execute_messages(
    api: Api,
    watched: Watched,
    stream_output: bool,
    caller: Caller,
) -> impl Stream<Item = Result<proto::ExecuteResponse, Status>> {
    use proto::execute_response::Message;
    let program_number = watched.observer.program().0;
    let accepted = Message::Accepted(proto::Accepted { program_number });
    let first = stream_output.then_some(Ok(proto::ExecuteResponse { message: Some(accepted) }));
    let rest = messages(api, watched, stream_output, caller, |observed| {
        let message = match observed {
            Observed::Output { seq, source, data } => Message::Output(records::output(seq, source, data)),
            Observed::Heartbeat { queue_position } => Message::Heartbeat(proto::Heartbeat { queue_position }),
            Observed::Done(done) => Message::Observation(observation(*done)),
        };
        proto::ExecuteResponse { message: Some(message) }
    });
    futures::StreamExt::chain(futures::stream::iter(first), rest)
}

/// Wait's messages.
pub(super) fn wait_messages(
    api: Api,
    watched: Watched,
    stream_output: bool,
    caller: Caller,
) -> impl Stream<Item = Result<proto::WaitResponse, Status>> {
    use proto::wait_response::Message;
    messages(api, watched, stream_output, caller, |observed| {
        let message = match observed {
            Observed::Output { seq, source, data } => Message::Output(records::output(seq, source, data)),
            Observed::Heartbeat { queue_position } => Message::Heartbeat(proto::Heartbeat { queue_position }),
            Observed::Done(done) => Message::Observation(observation(*done)),
        };
        proto::WaitResponse { message: Some(message) }
    })
}

fn messages<T>(
    api: Api,
    watched: Watched,
    stream_output: bool,
    caller: Caller,
    form: impl Fn(Observed) -> T,
) -> impl Stream<Item = Result<T, Status>> {
    let state = Some((api, watched, caller, form));
    futures::stream::unfold(state, move |state| async move {
        let (api, mut watched, caller, form) = state?;
        let message = tokio::select! {
            biased;
            message = watched.next(stream_output) => message?,
            () = api.stopping.cancelled() => {
                // The service ends the stream, not the caller: the program is not stopped for that.
                watched.detach();
                return Some((Err(api.stopped(&caller)), None));
            }
        };
        match message {
            Ok(observed) => Some((Ok(form(observed)), Some((api, watched, caller, form)))),
            Err(error) => Some((Err(crate::status::of(&error, &caller)), None)),
        }
    })
}

/// An observation, held to what one message can carry.
pub(super) fn observation(observation: Observation) -> proto::Observation {
    let status = match observation.status {
        Found::Completed => proto::ObservationStatus::Completed,
        Found::StillWorking => proto::ObservationStatus::StillWorking,
        Found::Terminated => proto::ObservationStatus::Terminated,
        Found::Error => proto::ObservationStatus::Error,
    };
    let mut message = proto::Observation {
        status: status.into(),
        output: observation.output,
        output_separator: if observation.separated { "\n".to_owned() } else { String::new() },
        output_cut: observation
            .cut
            .map(|(original_tokens, cut_tokens)| proto::OutputCut { original_tokens, cut_tokens }),
        program: Some(records::program(&observation.program)),
        pending_calls: observation.pending_calls.iter().map(records::call).collect(),
        artifacts: observation.artifacts.iter().map(records::artifact).collect(),
        next_cursor: observation.cursor,
        queue_position: observation.queue_position,
    };
    shape::observation(&mut message);
    message
}
