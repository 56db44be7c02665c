//! Cases that simple data can't say, by the name that the data gives them.

mod calls;
mod clients;
mod names;
mod processes;
mod random;
mod schemas;
mod values;

use anyhow::{Context as _, bail};
use futures::future::LocalBoxFuture;
use seance_proto::v1alpha1 as api;

use crate::case::{Case, Expect, Step};
use crate::live::{self, Live};
use crate::run::Target;
use crate::seen::{self, Seen};

/// What a scenario runs with.
#[derive(Clone)]
pub struct Stage {
    /// What it runs against.
    pub target: Target,
    /// The case: its session and tools.
    pub case: Case,
    /// The language of its programs.
    pub language: String,
}

/// A scenario. The error is the note of a failed row.
pub type Scenario = fn(Stage) -> LocalBoxFuture<'static, anyhow::Result<()>>;

macro_rules! scenarios {
    ($($room:ident::$name:ident,)*) => {
        const ALL: &[(&str, Scenario)] = &[$((stringify!($name), |stage| Box::pin($room::$name(stage))),)*];
    };
}

scenarios! {
    calls::boom,
    calls::call_ids,
    calls::calls_are_followed,
    calls::large_payload,
    calls::late_answer,
    calls::no_late_calls,
    calls::trace_context,
    clients::client_deadline,
    clients::confinement_is_told,
    clients::dropped_wait,
    clients::lost_replies,
    clients::much_unread_output,
    clients::refusals_have_one_form,
    clients::two_clients,
    names::random_names,
    names::reserved_names,
    processes::host_killed_between,
    processes::host_killed_in_call,
    processes::sandbox_killed_between,
    processes::service_killed,
    random::random_programs,
    schemas::schemas_compile,
    values::equal_artifacts,
    values::lengths,
    values::picture,
    values::random_values,
    values::value_blob,
    values::value_blob_of_20_mib,
    values::value_cut,
}

/// The scenario of this name.
pub fn find(name: &str) -> Option<Scenario> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, scenario)| *scenario)
}

impl Stage {
    /// Opens the case's session.
    async fn open(&self) -> anyhow::Result<Live> {
        match live::open(&self.target.door, &self.case, &self.language).await? {
            Ok((live, _)) => Ok(live),
            Err(refusal) => bail!("opening: {}", refusal.message),
        }
    }

    /// Opens the case's session for `work` and closes it, whatever comes of it.
    async fn with_session(
        &self,
        work: impl AsyncFnOnce(&mut Live) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut live = self.open().await?;
        let worked = work(&mut live).await;
        let closed = live.clean_up().await;
        worked.and(closed)
    }
}

/// A step that runs this source.
fn source(text: impl Into<String>) -> Step {
    Step { execute: Some(text.into()), ..Step::default() }
}

/// A step that runs this source and doesn't wait for it.
fn started(text: impl Into<String>) -> Step {
    Step { window_ms: Some(0), ..source(text) }
}

/// A step that waits for this program.
fn waiting(program: u64) -> Step {
    Step { wait: Some(program), ..Step::default() }
}

/// Fails unless `seen` is as expected.
fn expect(what: &str, seen: &Seen, edit: impl FnOnce(&mut Expect)) -> anyhow::Result<()> {
    let mut expect = Expect::default();
    edit(&mut expect);
    let wrong = seen::mismatches(&expect, seen);
    if !wrong.is_empty() {
        bail!("{what}: {}", wrong.join("; "));
    }
    Ok(())
}

/// Fails unless the program was started and is at work.
fn expect_started(seen: &Seen) -> anyhow::Result<()> {
    expect("starting", seen, |e| e.status = Some("still_working".to_owned()))
}

/// The program that was seen.
fn program(seen: &Seen) -> anyhow::Result<&api::Program> {
    let refusal = || seen.refused.as_ref().map(|r| r.message.clone()).unwrap_or_default();
    seen.program.as_ref().with_context(|| format!("no program was seen {}", refusal()))
}

/// What was streamed, put together.
fn streamed(seen: &Seen) -> Vec<u8> {
    seen.streamed.iter().flat_map(|(_, data)| data.iter().copied()).collect()
}
