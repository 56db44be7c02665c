//! The state of one session's calls between dispatch and answer: who has which, and until when.
//!
//! Pure: time comes in, nothing is awaited, and in-process tools that are to run come out. A call
//! is in exactly one [`Place`]; leaving the board is its end, so it ends once. `seen` is the truth
//! that decides between *not started* and *outcome unknown*: it is set when the stream takes the
//! call, and only a provider's own word unsets it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use seance_core::ids::{CallId, ProgramNumber};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::audit::Audit;
use super::result::bounded;
use super::types::{
    AnswerError, Answered, ArtifactBytes, CancelReason, Cancelled, Dispatch, DispatchError, LocalCall,
    Outcome, ProviderCall, Taken, ToProvider, ToolHandler, ToolResult,
};

/// The most calls of a session at work, and answered but not fetched. Past it a dispatch is refused.
pub const CALLS_MAX: usize = 4_096;

/// The most tools that a session's declarations hold: its own catalog and another.
pub const DECLARED_MAX: usize = 2 * seance_core::catalog::TOOLS_MAX;

/// A provider within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ProviderId(pub(super) u64);

/// What a provider serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Claim {
    /// All that no one else serves.
    Rest,
    /// These.
    Tools(HashSet<Arc<str>>),
}

pub(super) struct Provider {
    pub(super) claim: Claim,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// A stream, which takes from the outbox at its own pace. The outbox holds at most one call
    /// for each of the board's, and a cancel or a receipt only for calls that the stream took.
    Stream { outbox: VecDeque<Out>, wake: Arc<Notify> },
    /// In this process.
    Local(Arc<dyn ToolHandler>),
}

#[derive(Debug)]
pub(super) enum Out {
    Call(CallId),
    Cancel(CallId, CancelReason),
    Recorded(CallId),
}

/// Where a call is.
#[derive(Debug)]
pub(super) enum Place {
    /// Nobody serves its tool. It was never seen.
    Waiting { until: Instant },
    /// In a stream's outbox.
    Queued(ProviderId),
    /// A stream took it.
    Sent(ProviderId),
    /// Its provider is lost after it took the call.
    Lost { until: Instant },
    /// An in-process tool runs it.
    Local { cancel: CancellationToken },
}

pub(super) struct Pending {
    pub(super) dispatch: Dispatch,
    /// When it is given up; counts from when a provider was first to have it.
    pub(super) deadline: Option<Instant>,
    /// It may have reached a provider.
    pub(super) seen: bool,
    /// It was so before its stream took it.
    seen_before: bool,
    /// It is sent again though it was seen.
    pub(super) repeated: bool,
    pub(super) place: Place,
}

/// An in-process call that is to be run, outside of the board's lock.
pub(super) struct LocalStart {
    pub(super) handler: Arc<dyn ToolHandler>,
    pub(super) call: LocalCall,
}

pub(super) struct Board {
    pub(super) audit: Audit,
    pub(super) grace: Duration,
    pub(super) closed: bool,
    pub(super) calls: HashMap<CallId, Pending>,
    pub(super) providers: HashMap<ProviderId, Provider>,
    pub(super) routes: HashMap<Arc<str>, ProviderId>,
    pub(super) rest: Option<ProviderId>,
    /// The tools that the session declared, in order; none when it declared nothing.
    pub(super) declared: indexmap::IndexSet<Arc<str>>,
    /// Answered calls whose result isn't durable yet, and who is to be told when it is.
    pub(super) unrecorded: IndexMap<CallId, ProviderId>,
    answered: VecDeque<Answered>,
    /// Wakes the session.
    owner: Arc<Notify>,
    next_provider: u64,
    /// The highest call that was dispatched.
    highest: (ProgramNumber, u64),
    /// No deadline is before it.
    earliest: Option<Instant>,
}

impl Board {
    pub(super) fn new(audit: Audit, grace: Duration, owner: Arc<Notify>) -> Self {
        Self {
            audit,
            grace,
            closed: false,
            calls: HashMap::new(),
            providers: HashMap::new(),
            routes: HashMap::new(),
            rest: None,
            declared: indexmap::IndexSet::new(),
            unrecorded: IndexMap::new(),
            answered: VecDeque::new(),
            owner,
            next_provider: 0,
            highest: (ProgramNumber(0), 0),
            earliest: None,
        }
    }

    pub(super) fn route(&self, tool: &str) -> Option<ProviderId> {
        self.routes.get(tool).copied().or(self.rest)
    }

    /// Takes a call. Gives what is to run in this process, if that is where it goes.
    pub(super) fn dispatch(
        &mut self,
        dispatch: Dispatch,
        now: Instant,
    ) -> Result<Option<LocalStart>, DispatchError> {
        let id = dispatch.id;
        if self.closed {
            return Err(DispatchError::Closed);
        }
        if self.calls.contains_key(&id) || self.answered.iter().any(|answered| answered.call == id) {
            return Err(DispatchError::Duplicate);
        }
        if self.calls.len() + self.answered.len() >= CALLS_MAX {
            return Err(DispatchError::Full);
        }
        self.highest = self.highest.max((id.program, id.number));
        self.audit.dispatched(&dispatch);
        let until = now + self.grace;
        let seen = dispatch.maybe_seen;
        let place = if seen { Place::Lost { until } } else { Place::Waiting { until } };
        self.note_deadline(until);
        let pending = Pending { dispatch, deadline: None, seen, seen_before: seen, repeated: false, place };
        self.calls.insert(id, pending);
        Ok(self.place(id, now))
    }

    /// Gives a call that waits to whoever serves its tool now: one that was never seen, or one that
    /// may be repeated.
    pub(super) fn place(&mut self, id: CallId, now: Instant) -> Option<LocalStart> {
        let pending = self.calls.get(&id)?;
        let free = match pending.place {
            Place::Waiting { .. } => true,
            Place::Lost { .. } => pending.dispatch.repeatable,
            Place::Queued(_) | Place::Sent(_) | Place::Local { .. } => false,
        };
        let provider = self.route(&pending.dispatch.tool).filter(|_| free)?;
        self.give(id, provider, now)
    }

    /// Gives a call to a provider, whatever place it is in.
    pub(super) fn give(&mut self, id: CallId, provider: ProviderId, now: Instant) -> Option<LocalStart> {
        let pending = self.calls.get_mut(&id)?;
        let deadline = *pending.deadline.get_or_insert(now + pending.dispatch.timeout);
        pending.repeated |= pending.seen;
        let start = match &mut self.providers.get_mut(&provider)?.kind {
            Kind::Stream { outbox, wake } => {
                pending.place = Place::Queued(provider);
                outbox.push_back(Out::Call(id));
                wake.notify_one();
                None
            }
            Kind::Local(handler) => {
                pending.seen = true;
                let cancelled = CancellationToken::new();
                pending.place = Place::Local { cancel: cancelled.clone() };
                let call = pending.as_sent(deadline.saturating_duration_since(now));
                Some(LocalStart { handler: handler.clone(), call: LocalCall { call, cancelled } })
            }
        };
        self.note_deadline(deadline);
        start
    }

    /// The next message of a stream. A call that it takes counts as seen from here on.
    pub(super) fn take_next(&mut self, provider: ProviderId, now: Instant) -> Option<ToProvider> {
        loop {
            let Kind::Stream { outbox, .. } = &mut self.providers.get_mut(&provider)?.kind else {
                return None;
            };
            match outbox.pop_front()? {
                Out::Cancel(call, reason) => return Some(ToProvider::Cancel { call, reason }),
                Out::Recorded(call) => return Some(ToProvider::Recorded { call }),
                Out::Call(id) => {
                    let Some(pending) = self.calls.get_mut(&id) else { continue };
                    if !matches!(pending.place, Place::Queued(queued) if queued == provider) {
                        continue;
                    }
                    pending.place = Place::Sent(provider);
                    pending.seen_before = pending.seen;
                    pending.seen = true;
                    let left = pending
                        .deadline
                        .map_or(pending.dispatch.timeout, |at| at.saturating_duration_since(now));
                    return Some(ToProvider::Call(pending.as_sent(left)));
                }
            }
        }
    }

    /// A call that a stream took did not go out. It waits again, and is as it was before.
    pub(super) fn not_sent(&mut self, provider: ProviderId, id: CallId, now: Instant) {
        let until = now + self.grace;
        let Some(pending) = self.calls.get_mut(&id) else { return };
        if !matches!(pending.place, Place::Sent(sent) if sent == provider) {
            return;
        }
        pending.seen = pending.seen_before;
        pending.place = if pending.seen { Place::Lost { until } } else { Place::Waiting { until } };
        self.note_deadline(until);
    }

    /// Adds to the tools that the session has; those declared longest ago and not served by name
    /// make room.
    pub(super) fn declare(&mut self, tools: impl IntoIterator<Item = Arc<str>>) {
        let newest: indexmap::IndexSet<Arc<str>> = tools.into_iter().take(DECLARED_MAX).collect();
        self.declared.retain(|tool| !newest.contains(tool));
        let mut n_over = (self.declared.len() + newest.len()).saturating_sub(DECLARED_MAX);
        let routes = &self.routes;
        self.declared.retain(|tool| {
            let goes = n_over > 0 && !routes.contains_key(tool);
            n_over -= usize::from(goes);
            !goes
        });
        self.declared.extend(newest);
    }

    /// A result that a stream brought.
    pub(super) fn result(&mut self, provider: ProviderId, id: CallId, result: ToolResult) -> Taken {
        match self.calls.get(&id) {
            None => Taken::Late,
            Some(pending) if matches!(pending.place, Place::Sent(sent) if sent == provider) => {
                self.deliver(id, result);
                self.remember(id, provider);
                Taken::Delivered
            }
            Some(_) => Taken::NotYours,
        }
    }

    /// A result of an in-process tool; dropped when the call has ended.
    pub(super) fn local_result(&mut self, id: CallId, result: ToolResult) {
        if matches!(self.calls.get(&id), Some(Pending { place: Place::Local { .. }, .. })) {
            self.deliver(id, result);
        }
    }

    /// An answer of a client without a stream: only for a call that no provider has.
    pub(super) fn answer(&mut self, id: CallId, result: ToolResult) -> Result<(), AnswerError> {
        match self.calls.get(&id).map(|pending| &pending.place) {
            None if (id.program, id.number) > self.highest => Err(AnswerError::NotFound),
            None => Err(AnswerError::NotPending),
            Some(Place::Waiting { .. } | Place::Lost { .. }) => {
                self.deliver(id, result);
                Ok(())
            }
            Some(Place::Queued(_) | Place::Sent(_) | Place::Local { .. }) => Err(AnswerError::Served),
        }
    }

    /// The result of a call is durable.
    pub(super) fn recorded(&mut self, id: CallId) {
        if let Some(provider) = self.unrecorded.swap_remove(&id) {
            self.send(provider, Out::Recorded(id));
        }
    }

    /// Ends a call for the session; tells whoever has it.
    pub(super) fn cancel(&mut self, id: CallId, reason: CancelReason) -> Cancelled {
        let Some(pending) = self.calls.remove(&id) else { return Cancelled::Over };
        let fate = self.withdraw(&pending, reason);
        self.audit.ended(
            &pending.dispatch,
            match fate {
                Cancelled::NotStarted => "NOT_STARTED",
                Cancelled::Told => "CANCELLED",
                Cancelled::Unknown | Cancelled::Over => "OUTCOME_UNKNOWN",
            },
        );
        fate
    }

    /// Takes a call that has left the board away from whoever has it.
    pub(super) fn withdraw(&mut self, pending: &Pending, reason: CancelReason) -> Cancelled {
        let id = pending.dispatch.id;
        match &pending.place {
            Place::Waiting { .. } => Cancelled::NotStarted,
            Place::Lost { .. } => Cancelled::Unknown,
            Place::Queued(provider) => {
                if let Some(Provider { kind: Kind::Stream { outbox, .. }, .. }) =
                    self.providers.get_mut(provider)
                {
                    outbox.retain(|out| !matches!(out, Out::Call(queued) if *queued == id));
                }
                if pending.seen { Cancelled::Unknown } else { Cancelled::NotStarted }
            }
            Place::Sent(provider) => {
                self.send(*provider, Out::Cancel(id, reason));
                Cancelled::Told
            }
            Place::Local { cancel } => {
                cancel.cancel();
                Cancelled::Told
            }
        }
    }

    /// Ends what is due, and gives the next time to look.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return self.earliest;
        }
        let mut due: Vec<_> =
            self.calls.values().map(|p| (p.due(), p.dispatch.id)).filter(|(due, _)| *due <= now).collect();
        due.sort_unstable();
        for (_, id) in due {
            let pending = self.calls.remove(&id).expect("it was just found");
            let timed_out = pending.deadline.is_some_and(|at| at <= now);
            self.withdraw(&pending, CancelReason::Timeout);
            let outcome = match (timed_out, pending.seen) {
                (false, false) => Outcome::NoProvider,
                (false, true) => Outcome::Unknown,
                (true, false) => Outcome::NotStarted,
                (true, true) => Outcome::Timeout,
            };
            self.finish(&pending, outcome, Vec::new());
        }
        self.earliest = self.calls.values().map(Pending::due).min();
        self.earliest
    }

    /// The next answer for the session.
    pub(super) fn take_answered(&mut self) -> Option<Answered> {
        self.answered.pop_front()
    }

    /// Ends the session's calls and tells every stream. Idempotent.
    pub(super) fn close(&mut self) -> Vec<(CallId, Cancelled)> {
        self.closed = true;
        let mut ids: Vec<CallId> = self.calls.keys().copied().collect();
        ids.sort_unstable();
        let fates = ids.into_iter().map(|id| (id, self.cancel(id, CancelReason::SessionClosed))).collect();
        for provider in self.providers.values() {
            if let Kind::Stream { wake, .. } = &provider.kind {
                wake.notify_one();
            }
        }
        self.owner.notify_one();
        fates
    }

    /// Ends a call with a result, wherever it is.
    pub(super) fn deliver(&mut self, id: CallId, result: ToolResult) {
        let pending = self.calls.remove(&id).expect("callers have looked");
        let (outcome, artifacts) = bounded(result, &pending.dispatch.limits);
        self.finish(&pending, outcome, artifacts);
    }

    /// Reports the end of a call that has left the board.
    pub(super) fn finish(&mut self, pending: &Pending, outcome: Outcome, artifacts: Vec<ArtifactBytes>) {
        self.audit.finished(&pending.dispatch, &outcome);
        self.answered.push_back(Answered { call: pending.dispatch.id, outcome, artifacts });
        self.owner.notify_one();
    }

    /// Remembers whom to tell when a result is durable. The session tells of each answer it
    /// fetched, so that this stays small; the oldest is forgotten where it does not.
    pub(super) fn remember(&mut self, id: CallId, provider: ProviderId) {
        if self.unrecorded.len() >= CALLS_MAX {
            self.unrecorded.shift_remove_index(0);
        }
        self.unrecorded.insert(id, provider);
    }

    pub(super) fn send(&mut self, provider: ProviderId, out: Out) {
        if let Some(Provider { kind: Kind::Stream { outbox, wake }, .. }) = self.providers.get_mut(&provider)
        {
            outbox.push_back(out);
            wake.notify_one();
        }
    }

    pub(super) fn mint_provider(&mut self) -> ProviderId {
        self.next_provider += 1;
        ProviderId(self.next_provider)
    }

    /// A new deadline; wakes the session when it has to look earlier than it meant to.
    pub(super) fn note_deadline(&mut self, at: Instant) {
        if self.earliest.is_none_or(|earliest| at < earliest) {
            self.earliest = Some(at);
            self.owner.notify_one();
        }
    }
}

impl Pending {
    /// When the call ends by itself.
    fn due(&self) -> Instant {
        let until = match self.place {
            Place::Waiting { until } | Place::Lost { until } => Some(until),
            Place::Queued(_) | Place::Sent(_) | Place::Local { .. } => None,
        };
        [until, self.deadline].into_iter().flatten().min().expect("a call waits for a time or has a deadline")
    }

    fn as_sent(&self, timeout: Duration) -> ProviderCall {
        let Dispatch { id, tool, arguments, traceparent, .. } = &self.dispatch;
        ProviderCall {
            id: *id,
            tool: tool.clone(),
            arguments: arguments.clone(),
            timeout,
            traceparent: traceparent.clone(),
            repeated: self.repeated,
        }
    }
}
