//! Coming and going of providers, and the fates of calls whose provider was lost.
//!
//! A provider that attaches again tells its calls apart (DESIGN section 3): held ones are waited
//! for, finished ones delivered, ones it never saw are sent to it now, and ones nobody can tell of
//! are unknown unless their tool may be repeated. Attaching again with the same claim takes the
//! place of the old stream: a cut connection is often noticed at one end only.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use seance_core::catalog::{TOOL_NAME_CHARS_MAX, TOOLS_MAX};
use seance_core::ids::CallId;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::board::{Board, Claim, Kind, LocalStart, Out, Place, Provider, ProviderId};
use super::types::{Attach, AttachError, CancelReason, Outcome, ToolHandler, ToolResult};

impl Board {
    /// Attaches a stream. Gives the in-process calls that are to run because of it.
    pub(super) fn attach_stream(
        &mut self,
        attach: Attach,
        wake: Arc<Notify>,
        now: Instant,
    ) -> Result<(ProviderId, Vec<LocalStart>), AttachError> {
        let lists_are_empty =
            attach.held.is_empty() && attach.finished.is_empty() && attach.unknown.is_empty();
        if !attach.again && !lists_are_empty {
            return Err(AttachError::Invalid("only a provider that attaches again can tell of calls"));
        }
        let claim = self.claim(&attach.tools)?;
        let replaced = self.conflicts(&claim, attach.again)?;
        self.expire(now);
        if let Some(old) = replaced {
            self.remove_provider(old, now);
        }
        let id = self.insert(claim, Kind::Stream { outbox: VecDeque::new(), wake });
        if attach.again {
            self.tell_apart(id, attach, now);
        }
        Ok((id, self.settle(now)))
    }

    /// Attaches tools of this process.
    pub(super) fn attach_local(
        &mut self,
        tools: &[String],
        handler: Arc<dyn ToolHandler>,
        now: Instant,
    ) -> Result<(ProviderId, Vec<LocalStart>), AttachError> {
        let claim = self.claim(tools)?;
        self.conflicts(&claim, false)?;
        let id = self.insert(claim, Kind::Local(handler));
        Ok((id, self.settle(now)))
    }

    /// A provider is gone. Its calls wait for one, for the grace time; in-process ones run on.
    pub(super) fn detach(&mut self, id: ProviderId, now: Instant) -> Vec<LocalStart> {
        self.remove_provider(id, now);
        self.settle(now)
    }

    /// The tools that a provider serves, as far as the session declared them.
    pub(super) fn served_by(&self, id: ProviderId) -> Vec<String> {
        let declared = self.declared.iter().filter(|tool| self.route(tool) == Some(id));
        let mut tools: Vec<String> = declared.map(|tool| tool.to_string()).collect();
        if let Some(Provider { claim: Claim::Tools(named), .. }) = self.providers.get(&id) {
            let mut undeclared: Vec<_> = named
                .iter()
                .filter(|tool| !self.declared.contains(*tool))
                .map(|tool| tool.to_string())
                .collect();
            undeclared.sort_unstable();
            tools.append(&mut undeclared);
        }
        tools
    }

    fn claim(&self, tools: &[String]) -> Result<Claim, AttachError> {
        if self.closed {
            return Err(AttachError::NoSession);
        }
        if tools.len() > TOOLS_MAX || tools.iter().any(|tool| tool.len() > 4 * TOOL_NAME_CHARS_MAX) {
            return Err(AttachError::Invalid("too many tools, or a tool's name is too long"));
        }
        if tools.is_empty() {
            return Ok(Claim::Rest);
        }
        let unknown = |tool: &&String| !self.declared.is_empty() && !self.declared.contains(tool.as_str());
        if let Some(tool) = tools.iter().find(unknown) {
            return Err(AttachError::UnknownTool { tool: tool.clone() });
        }
        Ok(Claim::Tools(tools.iter().map(|tool| Arc::from(tool.as_str())).collect()))
    }

    /// The stream that a provider takes the place of: the one of the same claim, when it attaches
    /// again. Any other that serves one of its tools is a conflict.
    fn conflicts(&self, claim: &Claim, again: bool) -> Result<Option<ProviderId>, AttachError> {
        let holder = |tool: &str, id: ProviderId| match self.providers.get(&id) {
            Some(Provider { claim: old, kind: Kind::Stream { .. } }) if again && old == claim => Ok(id),
            _ => Err(AttachError::Conflict { tool: tool.to_owned() }),
        };
        match claim {
            Claim::Rest => self.rest.map(|id| holder("*", id)).transpose(),
            Claim::Tools(tools) => {
                let mut held: Vec<_> =
                    tools.iter().filter_map(|tool| Some((tool, *self.routes.get(tool)?))).collect();
                held.sort_unstable_by_key(|(tool, _)| (*tool).clone());
                held.into_iter().try_fold(None, |_, (tool, id)| holder(tool, id).map(Some))
            }
        }
    }

    fn insert(&mut self, claim: Claim, kind: Kind) -> ProviderId {
        let id = self.mint_provider();
        match &claim {
            Claim::Rest => self.rest = Some(id),
            Claim::Tools(tools) => self.routes.extend(tools.iter().map(|tool| (tool.clone(), id))),
        }
        self.providers.insert(id, Provider { claim, kind });
        id
    }

    fn remove_provider(&mut self, id: ProviderId, now: Instant) {
        let Some(provider) = self.providers.remove(&id) else { return };
        self.routes.retain(|_, served_by| *served_by != id);
        self.rest = self.rest.filter(|rest| *rest != id);
        if let Kind::Stream { wake, .. } = provider.kind {
            wake.notify_one();
        }
        let until = now + self.grace;
        let had_it = |place: &Place| matches!(place, Place::Queued(at) | Place::Sent(at) if *at == id);
        for pending in self.calls.values_mut().filter(|pending| had_it(&pending.place)) {
            pending.place = if pending.seen { Place::Lost { until } } else { Place::Waiting { until } };
        }
        self.note_deadline(until);
    }

    /// What a provider that attached again says of its calls.
    fn tell_apart(&mut self, provider: ProviderId, attach: Attach, now: Instant) {
        for (id, result) in attach.finished {
            self.finished_while_away(provider, id, result);
        }
        let mut told: HashSet<CallId> = HashSet::new();
        for id in attach.held {
            told.insert(id);
            match self.calls.get_mut(&id) {
                Some(pending) if matches!(pending.place, Place::Lost { .. }) => {
                    pending.deadline.get_or_insert(now + pending.dispatch.timeout);
                    pending.place = Place::Sent(provider);
                }
                Some(pending) if matches!(pending.place, Place::Sent(at) if at == provider) => {}
                _ => self.send(provider, Out::Cancel(id, CancelReason::Stopped)),
            }
        }
        for id in attach.unknown {
            if told.insert(id) {
                self.unknown_to(id);
            }
        }
        let never_seen = self.calls.iter().filter(|(id, pending)| {
            matches!(pending.place, Place::Lost { .. })
                && !told.contains(*id)
                && self.route(&pending.dispatch.tool) == Some(provider)
        });
        let mut never_seen: Vec<CallId> = never_seen.map(|(id, _)| *id).collect();
        never_seen.sort_unstable();
        for id in never_seen {
            let pending = self.calls.get_mut(&id).expect("it was just found");
            pending.seen = false;
            self.audit.sent_again(&pending.dispatch, false);
            self.give(id, provider, now);
        }
    }

    /// A result that the provider had when it attached again. The first one wins; another provider
    /// that got the call since is told.
    fn finished_while_away(&mut self, provider: ProviderId, id: CallId, result: ToolResult) {
        let Some(pending) = self.calls.get_mut(&id) else {
            match self.unrecorded.get_mut(&id) {
                Some(receipt) => *receipt = provider,
                None => self.send(provider, Out::Recorded(id)),
            }
            return;
        };
        if !pending.seen || matches!(pending.place, Place::Local { .. }) {
            return;
        }
        if let Place::Sent(other) = pending.place {
            self.send(other, Out::Cancel(id, CancelReason::Aborted));
        } else if let Place::Queued(other) = pending.place
            && let Some(Provider { kind: Kind::Stream { outbox, .. }, .. }) = self.providers.get_mut(&other)
        {
            outbox.retain(|out| !matches!(out, Out::Call(queued) if *queued == id));
        }
        self.deliver(id, result);
        self.remember(id, provider);
    }

    /// Nobody can tell of a call: it ends, unless its tool may be repeated, which `settle` sees to.
    fn unknown_to(&mut self, id: CallId) {
        let Some(pending) = self.calls.get(&id) else { return };
        if matches!(pending.place, Place::Lost { .. }) && !pending.dispatch.repeatable {
            let pending = self.calls.remove(&id).expect("it was just found");
            self.finish(&pending, Outcome::Unknown, Vec::new());
        }
    }

    /// Gives every call that waits to whoever serves its tool now, in order.
    fn settle(&mut self, now: Instant) -> Vec<LocalStart> {
        if self.closed {
            return Vec::new();
        }
        let waits = |place: &Place| matches!(place, Place::Waiting { .. } | Place::Lost { .. });
        let mut ids: Vec<CallId> =
            self.calls.iter().filter(|(_, pending)| waits(&pending.place)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let mut starts = Vec::new();
        for id in ids {
            let start = self.place(id, now);
            let pending = &self.calls[&id];
            if pending.repeated && !matches!(pending.place, Place::Lost { .. }) {
                self.audit.sent_again(&pending.dispatch, true);
            }
            starts.extend(start);
        }
        starts
    }
}
