//! The cases as data: what a case opens, what it does step by step, and what must be seen.
//!
//! The files under `data/` are TOML. Each `[[case]]` block is one session; blocks of one id make
//! one row of the report. An unknown key, an action with nothing to expect, or two actions in one
//! step is a mistake in the data and is refused when it is read.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

/// One file of cases.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Languages that the lines of this file also bind, and that are not built yet: but for rows all of
    /// whose programs are given in one of them too.
    #[serde(default)]
    pub later: Vec<String>,
    /// The languages that run the cases of this file.
    #[serde(default = "javascript")]
    pub languages: Vec<String>,
    /// The cases, in the order of the report.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

fn javascript() -> Vec<String> {
    vec!["javascript".to_owned()]
}

/// One session of one case.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The line of the acceptance lists: "case 9", "A12".
    pub id: String,
    /// What this block asserts, in words.
    #[serde(default)]
    pub what: String,
    /// Runs with nothing beside it, because it asserts times.
    #[serde(default)]
    pub alone: bool,
    /// The languages, when not the file's.
    pub languages: Option<Vec<String>>,
    /// The languages still to come, when not the file's.
    pub later: Option<Vec<String>>,
    /// A scenario written in Rust, by name; then there are no steps.
    pub scenario: Option<String>,
    /// The engine; "javascript" when left out.
    pub engine: Option<String>,
    /// `OpenRequest.min_version`.
    #[serde(default)]
    pub min_version: String,
    /// `OpenRequest.engine_options`.
    #[serde(default)]
    pub options: Vec<String>,
    /// `OpenRequest.limits`.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// `OpenRequest.session_ttl`, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// `OpenRequest.idle_timeout`, in milliseconds.
    pub idle_ms: Option<u64>,
    /// The fixture tools in the catalog; all of them when left out.
    pub fixtures: Option<Vec<String>>,
    /// Tools of this case's own, after the fixtures.
    #[serde(default, rename = "tool")]
    pub tools: Vec<Tool>,
    /// Tools that take a call and never answer it.
    #[serde(default)]
    pub hold: Vec<String>,
    /// Tools in `hold` answer after all, once they are cancelled.
    #[serde(default)]
    pub answer_late: bool,
    /// No provider attaches.
    #[serde(default)]
    pub no_provider: bool,
    /// The steps.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
}

/// A tool of a case's own. It answers with `value` or `text`, else with its arguments.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its description.
    #[serde(default)]
    pub description: String,
    /// The JSON Schema of its arguments.
    #[serde(default)]
    pub input: String,
    /// The JSON Schema of its value.
    #[serde(default)]
    pub output: String,
    /// Declared read-only.
    #[serde(default)]
    pub read_only: bool,
    /// The structured value it answers, as JSON text.
    pub value: Option<String>,
    /// The text it answers.
    pub text: Option<String>,
    /// What each call leaves behind.
    #[serde(default)]
    pub leaves: Vec<Leaves>,
}

/// Something a call leaves behind: this many bytes of "x".
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaves {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// Its size.
    pub bytes: usize,
}

/// One thing done and what must be seen of it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The session it is done to; "" is the first. Another name opens another one.
    #[serde(default)]
    pub on: String,

    /// Opens the session explicitly, to assert what comes of it.
    pub open: Option<bool>,
    /// Runs this source and reads its stream to the end.
    pub execute: Option<String>,
    /// Runs source made of this text over and over, to this many bytes.
    pub execute_fill: Option<Fill>,
    /// Runs source given as bytes.
    pub execute_bytes: Option<Vec<u8>>,
    /// Runs this source and goes on with the next step while its stream is open.
    pub begin: Option<String>,
    /// Waits for a program in the background, like `begin`.
    pub begin_wait: Option<u64>,
    /// The observation of the last `begin` or `begin_wait`.
    pub join: Option<bool>,
    /// Cuts the stream of the last `begin` or `begin_wait`.
    pub cut: Option<bool>,
    /// Waits for a program; 0 is the active one.
    pub wait: Option<u64>,
    /// Stops a program; 0 is the active one.
    pub stop: Option<u64>,
    /// Closes the session.
    pub close: Option<bool>,
    /// Reads a program's record.
    pub program: Option<u64>,
    /// Reads the session's record.
    pub get: Option<bool>,
    /// Answers the pending call of this tool that the last observation told of.
    pub answer: Option<Answer>,
    /// Waits until a call of this tool is with the provider.
    pub until_call: Option<String>,
    /// Waits until a program is over, reading its record.
    pub until_ended: Option<u64>,
    /// Waits until the session is closed, reading its record.
    pub until_closed: Option<bool>,
    /// Reads the session's events so far.
    pub events: Option<bool>,
    /// Asks what a model is told with the session's catalog.
    pub describe: Option<bool>,
    /// Lists the engines.
    pub engines: Option<bool>,
    /// Asks for the service's facts.
    pub info: Option<bool>,
    /// Uses this session id instead of the session's own, for execute, wait, stop, close, get.
    pub session_id: Option<String>,

    /// `ExecuteRequest.language`, when not the row's.
    pub language: Option<String>,
    /// `ExecuteRequest.inputs_json`.
    pub inputs: Option<String>,
    /// The fixtures of another catalog, for this program alone.
    pub fixtures: Option<Vec<String>>,
    /// `ExecuteRequest.limits`.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// `ExecuteRequest.on_disconnect = STOP`.
    #[serde(default)]
    pub stop_on_cut: bool,
    /// The observation window, in milliseconds.
    pub window_ms: Option<u64>,
    /// `max_output_tokens`.
    pub tokens: Option<u32>,
    /// `stream_output`.
    pub stream_output: Option<bool>,
    /// `return_on_pending_call`.
    #[serde(default)]
    pub on_pending: bool,
    /// The idempotency key.
    #[serde(default)]
    pub key: String,
    /// The cursor kept under this name.
    pub cursor: Option<String>,
    /// A cursor as text, to try what is none.
    pub cursor_text: Option<String>,
    /// Keeps the observation's cursor under this name.
    pub keep_cursor: Option<String>,

    /// The program of `execute` or `begin` in Python, and what must be seen of the step there.
    pub python: Option<Translation>,
    /// The same in Ruby.
    pub ruby: Option<Translation>,

    /// What must be seen.
    #[serde(default)]
    pub expect: Expect,
}

/// A step in another language.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translation {
    /// The program, where the step has one.
    #[serde(default)]
    pub source: String,
    /// What must be seen, when it is not the same.
    pub expect: Option<Expect>,
}

/// Text repeated to a size.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fill {
    /// What stands first, once.
    #[serde(default)]
    pub head: String,
    /// What is repeated.
    pub text: String,
    /// The size of the whole, in bytes.
    pub bytes: usize,
}

/// An answer to a pending call.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The tool.
    pub tool: String,
    /// The value, as JSON text.
    pub value: Option<String>,
    /// The error's code and message.
    pub error: Option<(String, String)>,
}

/// What must be seen. What is left out isn't asserted, but for the status: an observation is
/// "completed" where nothing else is said, "error" where `code` is, and nothing is refused.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The reason of the gRPC status; then nothing else but `grpc`, `has`, `lacks` and times.
    pub refused: Option<String>,
    /// The gRPC code of the refusal, such as "FAILED_PRECONDITION".
    pub grpc: Option<String>,
    /// What the refusal's message, the error's message or the description holds.
    #[serde(default)]
    pub has: Vec<String>,
    /// What it doesn't.
    #[serde(default)]
    pub lacks: Vec<String>,

    /// The observation's status.
    pub status: Option<String>,
    /// The program's state.
    pub state: Option<String>,
    /// `Program.reason`.
    pub reason: Option<String>,
    /// The program's number.
    pub number: Option<u64>,
    /// The value as JSON text; spaces don't count, order and digits do.
    pub value: Option<String>,
    /// There is no value.
    #[serde(default)]
    pub no_value: bool,
    /// `value_cut.original_bytes`.
    pub value_bytes: Option<u64>,
    /// The observation's output, whole.
    pub output: Option<String>,
    /// What the output holds.
    #[serde(default)]
    pub output_has: Vec<String>,
    /// What the output doesn't hold.
    #[serde(default)]
    pub output_lacks: Vec<String>,
    /// The separator before the output.
    pub separator: Option<String>,
    /// The streamed chunks put together.
    pub streamed: Option<String>,
    /// This text was streamed within this many milliseconds of the request.
    pub early: Option<Early>,
    /// The output was cut: original tokens, cut tokens.
    pub cut: Option<(u64, u64)>,
    /// The output was not cut.
    #[serde(default)]
    pub uncut: bool,

    /// The error's code.
    pub code: Option<String>,
    /// The error's code is one of these.
    #[serde(default)]
    pub code_in: Vec<String>,
    /// The error's class.
    pub class: Option<String>,
    /// The error's message, whole.
    pub message: Option<String>,
    /// The error's line.
    pub line: Option<u32>,
    /// The error's column.
    pub column: Option<u32>,
    /// What the backtrace holds.
    #[serde(default)]
    pub trace_has: Vec<String>,
    /// What the backtrace doesn't hold.
    #[serde(default)]
    pub trace_lacks: Vec<String>,
    /// Tools of the calls that took effect, in order.
    pub effective: Option<Vec<String>>,
    /// Whether a re-run is safe.
    pub safe_to_repeat: Option<bool>,
    /// The warnings' codes, in order.
    pub warnings: Option<Vec<String>>,
    /// The program's calls as "tool state" or "tool state code", in program order.
    pub calls: Option<Vec<String>>,
    /// How many calls the program made.
    pub n_calls: Option<u64>,
    /// Tools of the pending calls.
    pub pending: Option<Vec<String>>,
    /// The observation's new artifacts as "name media-type bytes".
    pub artifacts: Option<Vec<String>>,
    /// The program's processor time is at most this, in milliseconds.
    pub cpu_at_most_ms: Option<u64>,

    /// Everything the session's provider got so far, as "tool arguments", in order.
    pub recorded: Option<Vec<String>>,
    /// How often the provider got each of these tools so far.
    #[serde(default)]
    pub recorded_n: BTreeMap<String, usize>,
    /// The results the provider gave so far, in the order it gave them.
    pub results: Option<Vec<String>>,
    /// The most calls that were with the provider at one time.
    pub overlap: Option<usize>,
    /// The calls the provider was told to give up, as "tool reason".
    pub cancelled: Option<Vec<String>>,
    /// They were told within this many milliseconds of the request.
    pub cancelled_within_ms: Option<u64>,

    /// The step took at most this long.
    pub within_ms: Option<u64>,
    /// The step took at least this long.
    pub after_ms: Option<u64>,
    /// The service's resident memory grew by at most this over the step, in MiB.
    pub service_grew_at_most_mib: Option<u64>,

    /// The session's state.
    pub session: Option<String>,
    /// The session's reason.
    pub session_reason: Option<String>,
    /// Limits in force, or their defaults.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// The engine options in force.
    pub options: Option<Vec<String>>,
    /// Kinds of events that were recorded, in this order, others between them.
    pub events: Option<Vec<String>>,
    /// Kinds of events that were not recorded.
    #[serde(default)]
    pub no_events: Vec<String>,
    /// The tools' names in the guest language, in catalog order.
    pub aliases: Option<Vec<String>>,
    /// What the declarations hold; spaces don't count.
    #[serde(default)]
    pub declares: Vec<String>,
    /// What the declarations don't hold.
    #[serde(default)]
    pub declares_not: Vec<String>,
}

/// Text that must be there early.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Early {
    /// The text.
    pub text: String,
    /// By when, in milliseconds.
    pub ms: u64,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// See the field of the same name in [`Step`], here and below.
    Open,
    Execute,
    Begin,
    BeginWait,
    Join,
    Cut,
    Wait,
    Stop,
    Close,
    Program,
    Get,
    Answer,
    UntilCall,
    UntilEnded,
    UntilClosed,
    Events,
    Describe,
    Engines,
    Info,
}

impl Case {
    /// How many of its programs are given in this language too; nothing when one is in JavaScript only.
    pub fn n_translated(&self, language: &str) -> Option<usize> {
        let programs = self.steps.iter().filter(|step| step.has_program());
        let translated = programs.map(|step| step.translation(language).map(|_| ()));
        let all = translated.collect::<Option<Vec<()>>>().map(|all| all.len());
        all.filter(|_| self.scenario.is_none())
    }

    /// The case in this language, which has none of JavaScript's optional parts or has them always.
    pub fn translated(&self, language: &str) -> Self {
        let engine = Some(language.to_owned());
        let mut case = Self { engine, options: Vec::new(), ..self.clone() };
        for step in &mut case.steps {
            let Some(Translation { source, expect }) = step.translation(language).cloned() else { continue };
            for program in [&mut step.execute, &mut step.begin] {
                *program = program.take().map(|_| source.clone());
            }
            step.expect = expect.unwrap_or_else(|| std::mem::take(&mut step.expect));
        }
        case
    }
}

impl Step {
    fn translation(&self, language: &str) -> Option<&Translation> {
        match language {
            "python" => self.python.as_ref(),
            "ruby" => self.ruby.as_ref(),
            _ => None,
        }
    }

    fn has_program(&self) -> bool {
        let given = [self.execute.is_some(), self.execute_fill.is_some(), self.execute_bytes.is_some()];
        given.contains(&true) || self.begin.is_some()
    }

    /// The one thing it does.
    pub fn action(&self) -> anyhow::Result<Action> {
        let given = [
            (self.open.is_some(), Action::Open),
            (self.execute.is_some(), Action::Execute),
            (self.execute_fill.is_some(), Action::Execute),
            (self.execute_bytes.is_some(), Action::Execute),
            (self.begin.is_some(), Action::Begin),
            (self.begin_wait.is_some(), Action::BeginWait),
            (self.join.is_some(), Action::Join),
            (self.cut.is_some(), Action::Cut),
            (self.wait.is_some(), Action::Wait),
            (self.stop.is_some(), Action::Stop),
            (self.close.is_some(), Action::Close),
            (self.program.is_some(), Action::Program),
            (self.get.is_some(), Action::Get),
            (self.answer.is_some(), Action::Answer),
            (self.until_call.is_some(), Action::UntilCall),
            (self.until_ended.is_some(), Action::UntilEnded),
            (self.until_closed.is_some(), Action::UntilClosed),
            (self.events.is_some(), Action::Events),
            (self.describe.is_some(), Action::Describe),
            (self.engines.is_some(), Action::Engines),
            (self.info.is_some(), Action::Info),
        ];
        let mut actions = given.into_iter().filter(|(set, _)| *set).map(|(_, action)| action);
        match (actions.next(), actions.next()) {
            (Some(action), None) => Ok(action),
            (None, _) => bail!("a step does nothing"),
            (Some(a), Some(b)) => bail!("a step does both {a:?} and {b:?}"),
        }
    }

    /// The source it runs, as bytes.
    pub fn source(&self) -> Vec<u8> {
        if let Some(source) = self.execute.as_ref().or(self.begin.as_ref()) {
            return source.clone().into_bytes();
        }
        if let Some(Fill { head, text, bytes }) = &self.execute_fill {
            return head.bytes().chain(text.bytes().cycle()).take(*bytes).collect();
        }
        self.execute_bytes.clone().unwrap_or_default()
    }
}

/// Reads a file of cases and refuses what could never fail.
pub fn parse(name: &str, text: &str) -> anyhow::Result<File> {
    let file: File = toml::from_str(text).with_context(|| format!("reading {name}"))?;
    for case in &file.cases {
        check(case).with_context(|| format!("{name}, {} ({})", case.id, case.what))?;
    }
    Ok(file)
}

fn check(case: &Case) -> anyhow::Result<()> {
    ensure!(case.scenario.is_some() == case.steps.is_empty(), "it needs steps or a scenario, not both");
    let mut asserted = case.scenario.is_some();
    for (index, step) in case.steps.iter().enumerate() {
        let action = step.action().with_context(|| format!("step {}", index + 1))?;
        ensure!(
            step.expect.refused.is_some() || step.expect.grpc.is_none(),
            "step {}: grpc without refused",
            index + 1
        );
        asserted |= !matches!(action, Action::Begin | Action::BeginWait | Action::Cut | Action::UntilCall);
    }
    ensure!(asserted, "nothing is asserted");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_in_the_data_are_refused() {
        let case = |body: &str| parse("test", &format!("[[case]]\nid = \"A1\"\n{body}"));
        assert!(case("[[case.step]]\nexecute = \"1\"\nexpect = { value = \"1\" }").is_ok());
        assert!(case("[[case.step]]\nexecute = \"1\"\nexpect = { valeu = \"1\" }").is_err(), "unknown key");
        assert!(case("[[case.step]]\nexecute = \"1\"\nstop = 0").is_err(), "two actions");
        assert!(case("[[case.step]]\ntokens = 1").is_err(), "no action");
        assert!(case("[[case.step]]\nbegin = \"1\"").is_err(), "nothing asserted");
        assert!(case("").is_err(), "no steps");
    }

    #[test]
    fn fill_makes_source_of_exactly_that_size() {
        let step = Step {
            execute_fill: Some(Fill { head: "//".to_owned(), text: "ab".to_owned(), bytes: 7 }),
            ..Step::default()
        };
        assert_eq!(step.source(), b"//ababa");
    }
}
