//! Calls of programs on their way to the broker and back.

use super::*;

impl Task {
    pub(super) fn active_prepared(&self) -> Option<Arc<Prepared>> {
        let (_, digest) = self.machine.active_catalog()?;
        self.prepared.get(digest?).cloned()
    }

    pub(super) async fn check(
        &mut self,
        tool: &str,
        arguments: &str,
    ) -> Result<machine::CheckedCall, CallError> {
        let prepared = self.active_prepared();
        let (Some(prepared), Some(limits)) = (prepared, self.machine.active_limits()) else {
            return Err(CallError::new(
                reasons::UNKNOWN_TOOL,
                format!("there is no tool {tool:?}: the program has no tools"),
            ));
        };
        let limits = limits.clone();
        let checked =
            prepared.compiled.check_off_thread(tool.to_owned(), arguments.to_owned(), &limits).await?;
        Ok(machine::CheckedCall {
            tool: checked.tool.name.clone(),
            read_only: checked.tool.read_only,
            repeatable: checked.tool.repeatable(),
            timeout: checked.tool.timeout,
            arguments: checked.arguments,
        })
    }

    pub(super) async fn answered(&mut self, answered: Answered) {
        let Answered { call, outcome, artifacts } = answered;
        let span = self.call_spans.remove(&call).unwrap_or_else(tracing::Span::none);
        let outcome = self.judge(call, outcome).instrument(span).await;
        let artifacts: Vec<(String, String, Bytes)> =
            artifacts.into_iter().map(|a| (a.name, a.media_type, a.data)).collect();
        self.input(|machine, ctx| machine.answered(ctx, call, outcome, artifacts));
    }

    /// What an outcome of the broker means to the program.
    pub(super) async fn judge(&mut self, call: CallId, outcome: Outcome) -> machine::Outcome {
        let state = outcome.state();
        let error = outcome.error();
        match (state, error, outcome) {
            (_, _, Outcome::Failure(text)) => {
                let correlation = hex(&self.inner.config.environment.random());
                tracing::error!(session = %self.shared.id, call = %call, correlation, text, "a tool failed unexpectedly");
                machine::Outcome::Broken { correlation }
            }
            (_, None, outcome @ (Outcome::Value(_) | Outcome::Text(_))) => {
                self.judge_value(call, outcome).await
            }
            (CallState::NotStarted, Some(error), _) => machine::Outcome::NotStarted(error),
            (CallState::OutcomeUnknown, Some(error), _) => machine::Outcome::Unknown(error),
            (_, Some(error), _) => machine::Outcome::Failed(error),
            (_, None, _) => {
                machine::Outcome::Unknown(CallError::new(reasons::OUTCOME_UNKNOWN, "the call gave no result"))
            }
        }
    }

    pub(super) async fn judge_value(&mut self, call: CallId, outcome: Outcome) -> machine::Outcome {
        let tool = self.machine.tool_of(call).map(str::to_owned);
        let (Some(tool), Some(prepared), Some(limits)) =
            (tool, self.active_prepared(), self.machine.active_limits())
        else {
            // The program is over; the machine drops the answer.
            return machine::Outcome::Unknown(CallError::new(
                reasons::OUTCOME_UNKNOWN,
                "the program is over",
            ));
        };
        let limits = limits.clone();
        let checked = prepared.compiled.check_result_off_thread(tool, outcome, &limits).await;
        match checked {
            Ok(value) => machine::Outcome::Finished(value),
            Err(error) => machine::Outcome::Failed(error),
        }
    }

    pub(super) fn broker_dispatch(&mut self, dispatch: machine::Dispatch) -> Dispatch {
        let machine::Dispatch { id, tool, arguments, timeout, mut repeatable, maybe_seen } = dispatch;
        if maybe_seen {
            // The log doesn't say; the catalog that the program runs with does.
            repeatable = self
                .active_prepared()
                .is_some_and(|prepared| prepared.compiled.find(&tool).is_some_and(|tool| tool.repeatable()));
        }
        let span = tracing::info_span!(
            parent: &self.program_span, "tool_call",
            tenant = %self.shared.tenant, session = %id.session, program = id.program.0, call = %id, tool,
        );
        let traceparent = (self.inner.config.traceparent)(&span).map(Into::into);
        self.call_spans.insert(id, span);
        let limits = self.machine.active_limits().unwrap_or(&self.machine.record().limits);
        Dispatch {
            id,
            tool: tool.into(),
            arguments: arguments.into(),
            timeout,
            repeatable,
            maybe_seen,
            traceparent,
            limits: ResultLimits::from(limits),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
