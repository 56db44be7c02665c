//! Tests of the machine: a table for what the contract names; [`recovery`] of taking a runner back after
//! a restart; [`late`] of programs and runners that are late; [`random`] has a property over random
//! inputs.

mod late;
mod random;
mod recovery;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::event::OutputSource;
use crate::ids::{Epoch, SessionId, TenantId};
use crate::limits::Limits;
use crate::link::{FromRunner, HostEnd, HostReport, Numbered};
use crate::program::{CallError, CallState, ProgramState};
use crate::sandbox::SandboxEnd;

struct World {
    machine: Machine,
    now: Timestamp,
    ids: u8,
    frame: u64,
    events: Vec<Event>,
    now_actions: Vec<Action>,
    committed: Vec<Action>,
}

fn fresh_id(ids: &mut u8) -> [u8; 10] {
    *ids = ids.wrapping_add(1);
    [*ids; 10]
}

fn limits(given: &[(&'static str, u64)]) -> Limits {
    Limits::from_map(given.iter().copied()).unwrap()
}

fn record(limits: Limits) -> SessionRecord {
    let created_at = Timestamp(1_000_000_000);
    SessionRecord {
        tenant: TenantId::default_tenant(),
        id: SessionId::mint(created_at, [1; 10]),
        state: SessionState::Open,
        reason: String::new(),
        engine: "javascript".to_owned(),
        min_version: String::new(),
        engine_options: Vec::new(),
        limits,
        labels: BTreeMap::new(),
        catalog: None,
        idle_timeout: Duration::from_secs(300),
        created_at,
        expires_at: created_at.after(Duration::from_secs(86_400)),
        active_program: None,
        last_program: 0,
        sandbox: None,
        last_seq: EventSeq(0),
        kept: BTreeMap::new(),
        observed: None,
        epoch: Epoch(1),
    }
}

fn sandbox(n: u8) -> SandboxId {
    SandboxId::mint(Timestamp(0), [n; 10])
}

fn run(limits: Limits) -> Execute {
    Execute {
        language: "javascript".to_owned(),
        source: "1".to_owned(),
        source_name: "program.js".to_owned(),
        catalog: None,
        inputs: None,
        limits,
        redact_source: false,
    }
}

fn checked(tool: &str, repeatable: bool) -> Result<CheckedCall, CallError> {
    Ok(CheckedCall {
        tool: tool.to_owned(),
        arguments: "{}".to_owned(),
        read_only: repeatable,
        repeatable,
        timeout: None,
    })
}

impl World {
    fn opened(limits: Limits) -> Self {
        Self::opened_with(record(limits))
    }

    fn opened_with(record: SessionRecord) -> Self {
        let now = record.created_at;
        let mut ids = 10;
        let mut fresh = || fresh_id(&mut ids);
        let machine =
            Machine::open(record, sandbox(1), "quickjs-ng 0.16.2", &mut Context { now, random: &mut fresh });
        let mut world =
            Self { machine, now, ids, frame: 0, events: vec![], now_actions: vec![], committed: vec![] };
        world.settle();
        world
    }

    fn ready(limits: Limits) -> Self {
        let mut world = Self::opened(limits);
        world.assigned();
        world
    }

    fn running(given: &[(&'static str, u64)]) -> (Self, ProgramNumber) {
        let mut world = Self::ready(limits(given));
        let program = world.execute().unwrap();
        world.started(program);
        (world, program)
    }

    fn input<T>(&mut self, input: impl FnOnce(&mut Machine, &mut Context<'_>) -> T) -> T {
        let ids = &mut self.ids;
        let mut fresh = || fresh_id(ids);
        let result = input(&mut self.machine, &mut Context { now: self.now, random: &mut fresh });
        self.settle();
        result
    }

    fn settle(&mut self) {
        let step = self.machine.take_step();
        self.events.extend(step.events);
        self.now_actions.extend(step.now);
        self.committed.extend(step.committed);
    }

    fn frame(&mut self, frame: FromRunner) {
        self.frame += 1;
        let number = self.frame;
        let Some(sandbox) = self.machine.sandbox_id() else { return };
        self.input(|machine, ctx| machine.frame(ctx, sandbox, Numbered { number, frame }));
    }

    fn assigned(&mut self) {
        let session = self.machine.record().id;
        self.frame(FromRunner::Assigned { session });
    }

    fn execute(&mut self) -> Result<ProgramNumber, Refusal> {
        let run = run(self.machine.record().limits.clone());
        self.input(|machine, ctx| machine.execute(ctx, run))
    }

    fn started(&mut self, program: ProgramNumber) {
        self.frame(FromRunner::ProgramStarted { program, engine_version: "quickjs-ng 0.16.2".to_owned() });
    }

    fn call(&mut self, program: ProgramNumber, call: u64, repeatable: bool) -> CallId {
        self.frame += 1;
        let number = self.frame;
        let id = CallId { session: self.machine.record().id, program, number: call };
        if let Some(sandbox) = self.machine.sandbox_id() {
            self.input(|machine, ctx| {
                let checked = checked("echo", repeatable);
                machine.tool_call(ctx, sandbox, number, program, call, "echo", "{}".to_owned(), checked);
            });
        }
        id
    }

    fn answer(&mut self, id: CallId, outcome: Outcome) {
        self.input(|machine, ctx| machine.answered(ctx, id, outcome, Vec::new()));
    }

    fn ended(&mut self, program: ProgramNumber, end: HostEnd, report: Option<HostReport>) {
        let signal = if end == HostEnd::Lost { "SIGKILL".to_owned() } else { String::new() };
        self.frame(FromRunner::ProgramEnded(Box::new(crate::link::HostEnded {
            program,
            end,
            report,
            signal,
            exit_status: 0,
            cpu_us: 1,
            wall_us: 2,
            peak_memory_bytes: 3,
            detail: String::new(),
        })));
    }

    fn completed(&mut self, program: ProgramNumber, value: &str) {
        let report = HostReport { value: Some(value.to_owned()), ..HostReport::default() };
        self.ended(program, HostEnd::Reported, Some(report));
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.input(|machine, ctx| machine.tick(ctx));
    }

    fn program(&self, number: ProgramNumber) -> ProgramRecord {
        let ended = |event: &Event| match &event.kind {
            EventKind::ProgramEnded(record) if record.number == number => Some((**record).clone()),
            _ => None,
        };
        self.events.iter().find_map(ended).expect("the program has ended")
    }

    fn sent(&self, list: &[Action], wanted: impl Fn(&ToRunner) -> bool) -> usize {
        list.iter().filter(|action| matches!(action, Action::Send(frame) if wanted(frame))).count()
    }

    fn dispatched(list: &[Action]) -> Vec<u64> {
        let number = |action: &Action| match action {
            Action::Dispatch(dispatch) => Some(dispatch.id.number),
            _ => None,
        };
        list.iter().filter_map(number).collect()
    }
}

/// A9, A10: one program at a time; the refused one changes nothing.
#[test]
fn a_second_execute_is_refused_and_leaves_the_first_untouched() {
    let (mut world, program) = World::running(&[]);
    let before = world.events.len();
    assert_eq!(world.execute(), Err(Refusal::ProgramActive { program }));
    assert_eq!(world.events.len(), before);
    world.completed(program, "7");
    assert_eq!(world.program(program).value.unwrap().json, "7");
    assert_eq!(world.execute(), Ok(ProgramNumber(2)));
}

/// A8: stop without an active program is an error.
#[test]
fn stop_needs_a_program() {
    let mut world = World::ready(limits(&[]));
    let stop = |program| move |m: &mut Machine, c: &mut Context<'_>| m.stop(c, program, reasons::STOPPED);
    assert_eq!(world.input(stop(None)), Err(Refusal::NoActiveProgram));
    let program = ProgramNumber(1);
    assert_eq!(world.input(stop(Some(program))), Err(Refusal::NoSuchProgram { program }));
}

/// A7: a natural end beats a late stop.
#[test]
fn a_natural_end_beats_a_late_stop() {
    let (mut world, program) = World::running(&[]);
    let stop = world.input(|m, c| m.stop(c, None, reasons::STOPPED));
    assert_eq!(stop, Ok(Stopping::Asked(program)));
    world.completed(program, "1");
    assert_eq!(world.program(program).state, ProgramState::Completed);
    let again = world.input(|m, c| m.stop(c, Some(program), reasons::STOPPED));
    assert_eq!(again, Ok(Stopping::AlreadyEnded(program)));
}

/// A6, case 55: a stopped program's calls are cancelled at once.
#[test]
fn stop_cancels_the_calls_and_terminates() {
    let (mut world, program) = World::running(&[]);
    let id = world.call(program, 1, true);
    world.input(|m, c| m.stop(c, None, reasons::STOPPED)).unwrap();
    assert!(world.now_actions.contains(&Action::CancelCall { id, reason: CancelReason::Stopped }));
    world.ended(program, HostEnd::Stopped, None);
    let record = world.program(program);
    assert_eq!((record.state, record.reason.as_str()), (ProgramState::Terminated, "STOPPED"));
    assert_eq!(record.calls[0].state, CallState::Cancelled);
}

/// The order to stop never passes the order to run that waits for its commit.
#[test]
fn an_order_to_stop_does_not_pass_the_order_to_run() {
    let mut world = World::ready(limits(&[]));
    world.execute().unwrap();
    world.input(|m, c| m.stop(c, None, reasons::STOPPED)).unwrap();
    let is_stop = |frame: &ToRunner| matches!(frame, ToRunner::StopProgram { .. });
    assert_eq!(world.sent(&world.now_actions, is_stop), 0);
    assert_eq!(world.sent(&world.committed, is_stop), 1);
}

/// Case 52, case 84: exactly the budget is dispatched, the rest fail and can be caught.
#[test]
fn the_call_budget_is_exact() {
    let (mut world, program) = World::running(&[("max_calls", 3)]);
    for call in 1..=5 {
        world.call(program, call, true);
    }
    assert_eq!(World::dispatched(&world.now_actions), [1, 2, 3]);
    let refused = |frame: &ToRunner| matches!(frame, ToRunner::CallResult { result: Err(error), .. } if error.code == "call_limit");
    assert_eq!(world.sent(&world.now_actions, refused), 2);
}

/// H12, case 5: never more than max_concurrency at once, in order.
#[test]
fn calls_beyond_the_window_wait_in_order() {
    let (mut world, program) = World::running(&[("max_concurrency", 2)]);
    let ids: Vec<_> = (1..=4).map(|call| world.call(program, call, true)).collect();
    assert_eq!(World::dispatched(&world.now_actions), [1, 2]);
    world.answer(ids[1], Outcome::Finished("null".to_owned()));
    assert_eq!(World::dispatched(&world.now_actions), [1, 2, 3]);
    world.answer(ids[0], Outcome::Finished("null".to_owned()));
    assert_eq!(World::dispatched(&world.now_actions), [1, 2, 3, 4]);
}

/// DESIGN 9: what may have an effect waits for the commit, what is repeatable does not.
#[test]
fn calls_with_effects_wait_for_the_commit() {
    let (mut world, program) = World::running(&[]);
    let id = world.call(program, 1, false);
    assert_eq!(World::dispatched(&world.now_actions), [0; 0]);
    assert_eq!(World::dispatched(&world.committed), [1]);
    world.answer(id, Outcome::Finished("1".to_owned()));
    let result = |frame: &ToRunner| matches!(frame, ToRunner::CallResult { .. });
    assert_eq!(world.sent(&world.now_actions, result), 0);
    assert_eq!(world.sent(&world.committed, result), 1);
}

/// A cancel takes the way of its dispatch, so that it never passes it.
#[test]
fn a_cancel_does_not_pass_its_dispatch() {
    let (mut world, program) = World::running(&[]);
    let id = world.call(program, 1, false);
    world.frame(FromRunner::CancelCall { program, call: 1 });
    let place = |wanted: &dyn Fn(&Action) -> bool| world.committed.iter().position(wanted).unwrap();
    let dispatch = place(&|action| matches!(action, Action::Dispatch(_)));
    let cancel =
        place(&|action| matches!(action, Action::CancelCall { id: cancelled, .. } if *cancelled == id));
    assert!(dispatch < cancel);
}

/// Case 57, I15: a lost host leaves calls unknown, and none is repeated.
#[test]
fn a_lost_host_leaves_its_calls_unknown() {
    let (mut world, program) = World::running(&[("max_concurrency", 1)]);
    let id = world.call(program, 1, false);
    world.call(program, 2, false);
    world.ended(program, HostEnd::Lost, None);
    let record = world.program(program);
    assert_eq!((record.state, record.reason.as_str()), (ProgramState::Lost, "HOST_LOST"));
    assert!(record.detail.contains("SIGKILL"));
    assert_eq!(record.calls[0].state, CallState::OutcomeUnknown);
    assert_eq!(record.calls[1].state, CallState::NotStarted);
    world.answer(id, Outcome::Finished("1".to_owned()));
    assert_eq!(World::dispatched(&world.committed), [1]);
}

/// Case 82: an error lists the calls that may have had an effect.
#[test]
fn an_error_lists_the_calls_that_took_effect() {
    let (mut world, program) = World::running(&[]);
    let write = world.call(program, 1, false);
    let read = world.call(program, 2, true);
    world.answer(write, Outcome::Finished("1".to_owned()));
    world.answer(read, Outcome::Finished("2".to_owned()));
    let error = crate::program::ProgramError { code: "exception".to_owned(), ..Default::default() };
    world.ended(program, HostEnd::Reported, Some(HostReport { error: Some(error), ..Default::default() }));
    let error = world.program(program).error.unwrap();
    assert_eq!((error.effective_calls, error.safe_to_repeat), (vec![write], false));
}

/// Case 43, I18: an unexpected failure ends the program and no late success overtakes it.
#[test]
fn an_unexpected_failure_beats_a_late_success() {
    let (mut world, program) = World::running(&[]);
    let id = world.call(program, 1, false);
    world.answer(id, Outcome::Broken { correlation: "c0ffee".to_owned() });
    world.completed(program, "1");
    let record = world.program(program);
    assert_eq!(record.state, ProgramState::Error);
    let error = record.error.unwrap();
    assert_eq!(error.code, "internal");
    assert!(error.message.contains("c0ffee"));
}

/// DESIGN 5, idle_timeout: the sandbox goes, the session stays, and the next program gets a new one.
#[test]
fn an_idle_session_gives_its_sandbox_back() {
    let mut world = World::ready(limits(&[]));
    world.pass(Duration::from_secs(301));
    assert_eq!(world.machine.sandbox_id(), None);
    let program = world.execute().unwrap();
    assert_eq!(world.now_actions.last(), Some(&Action::Claim));
    world.input(|m, c| m.sandbox_claimed(c, sandbox(2), "quickjs-ng 0.16.2"));
    world.assigned();
    world.started(program);
    world.completed(program, "1");
    assert_eq!(world.program(program).state, ProgramState::Completed);
}

/// A14 to A19: close ends everything, is idempotent, and nothing runs after.
#[test]
fn close_waits_for_the_proof() {
    let (mut world, program) = World::running(&[]);
    world.call(program, 1, true);
    world.input(|m, c| m.close(c, reasons::CLOSED));
    assert_eq!(world.program(program).reason, "SESSION_CLOSED_PROGRAM");
    assert_eq!(world.machine.record().state, SessionState::Closing);
    let session = world.machine.record().id;
    assert_eq!(world.execute(), Err(Refusal::Closed { session }));
    let asked = |world: &World| {
        world.now_actions.iter().filter(|action| matches!(action, Action::EndSandbox { .. })).count()
    };
    assert_eq!(asked(&world), 1);
    world.input(|m, c| m.close(c, reasons::CLOSED));
    assert_eq!(asked(&world), 2);
    world.input(|m, c| m.end_proven(c, sandbox(1)));
    assert!(world.machine.is_closed());
    world.input(|m, c| m.close(c, reasons::CLOSED));
    assert_eq!(world.events.last().map(|event| &event.kind), Some(&EventKind::SessionClosed));
}

/// A17: a close while the sandbox is awaited lets no program run.
#[test]
fn a_close_during_a_claim_releases_what_was_claimed() {
    let mut world = World::ready(limits(&[]));
    world.pass(Duration::from_secs(301));
    let program = world.execute().unwrap();
    let before = world.committed.len();
    world.input(|m, c| m.close(c, reasons::CLOSED));
    world.input(|m, c| m.sandbox_claimed(c, sandbox(2), "quickjs-ng 0.16.2"));
    let run = |frame: &ToRunner| matches!(frame, ToRunner::Execute(_) | ToRunner::Assign { .. });
    assert_eq!(world.sent(&world.committed[before..], run), 0);
    assert_eq!(world.program(program).state, ProgramState::Terminated);
    let ended = Action::EndSandbox { sandbox: sandbox(2), reason: EndReason::Released };
    assert!(world.now_actions.contains(&ended));
}

/// The session's own end.
#[test]
fn a_session_ends_at_its_ttl() {
    let mut world = World::ready(limits(&[]));
    world.pass(Duration::from_secs(86_401));
    world.input(|m, c| m.end_proven(c, sandbox(1)));
    assert!(world.machine.is_closed());
    assert_eq!(world.machine.record().reason, "SESSION_TTL");
    let session = world.machine.record().id;
    assert_eq!(world.execute(), Err(Refusal::Expired { session }));
}

/// S4: below the version floor the first program fails naming both versions.
#[test]
fn an_engine_below_the_floor_fails_the_program_naming_both() {
    let mut world =
        World::opened_with(SessionRecord { min_version: "0.17".to_owned(), ..record(limits(&[])) });
    world.assigned();
    let program = world.execute().unwrap();
    let error = world.program(program).error.unwrap();
    assert_eq!(error.code, "engine_too_old");
    assert!(
        error.message.contains("quickjs-ng 0.16.2") && error.message.contains("0.17"),
        "{}",
        error.message
    );
}

/// The floor is compared with the version, not with the name before it.
#[test]
fn an_engine_at_the_floor_runs() {
    let mut world =
        World::opened_with(SessionRecord { min_version: "0.16".to_owned(), ..record(limits(&[])) });
    world.assigned();
    let program = world.execute().unwrap();
    world.started(program);
    world.completed(program, "1");
    assert_eq!(world.program(program).state, ProgramState::Completed);
}

/// H7: a text() is separated from the text() before it, not from other output.
#[test]
fn text_is_separated_from_text() {
    let (mut world, program) = World::running(&[]);
    for (source, data) in [(OutputSource::Text, ""), (OutputSource::Stdout, "x"), (OutputSource::Text, "b")] {
        world.frame(FromRunner::Output { program, source, data: data.as_bytes().to_vec().into() });
    }
    let separated = |event: &Event| match &event.kind {
        EventKind::Output { separated, .. } => Some(*separated),
        _ => None,
    };
    assert_eq!(world.events.iter().filter_map(separated).collect::<Vec<_>>(), [false, false, true]);
}

/// A large text() is several events, separated once, and whole.
#[test]
fn large_output_is_several_events() {
    let (mut world, program) = World::running(&[]);
    let text =
        |n: usize| FromRunner::Output { program, source: OutputSource::Text, data: vec![b'x'; n].into() };
    world.frame(text(0));
    world.frame(text(600 * 1024));
    let output = |event: &Event| match &event.kind {
        EventKind::Output { data, separated, .. } => Some((data.len() / 1024, *separated)),
        _ => None,
    };
    let pieces: Vec<_> = world.events.iter().filter_map(output).collect();
    assert_eq!(pieces, [(0, false), (256, true), (256, false), (88, false)]);
}

/// R6: a value outside our bounds is named for what it is; only what is no JSON is a breach.
#[test]
fn values_outside_the_bounds_are_named() {
    let digits = "1".repeat(5_000);
    let deep = format!("{}1{}", "[".repeat(600), "]".repeat(600));
    let expected = [(digits.as_str(), "number_limit"), (deep.as_str(), "unserializable"), ("{", "protocol")];
    for (value, code) in expected {
        let (mut world, program) = World::running(&[]);
        world.completed(program, value);
        assert_eq!(world.program(program).error.unwrap().code, code);
    }
}

/// P5: equal artifacts are one blob, others are not.
#[test]
fn equal_artifacts_are_kept_once() {
    let (mut world, program) = World::running(&[]);
    for (call, name, data) in [(1, "a", "x"), (2, "a", "x"), (3, "b", "x"), (4, "a", "y")] {
        let id = world.call(program, call, true);
        let left = vec![(name.to_owned(), "text/plain".to_owned(), data.into())];
        world.input(|m, c| m.answered(c, id, Outcome::Finished("1".to_owned()), left));
    }
    world.completed(program, "1");
    let blobs: Vec<_> = world.program(program).artifacts.iter().map(|artifact| artifact.blob).collect();
    assert_eq!(blobs[0], blobs[1]);
    assert_eq!(blobs[1..].iter().collect::<BTreeSet<_>>().len(), 3);
}

/// Case 69: a value over its budget is cut, stays JSON, and the whole is a blob.
#[test]
fn a_large_value_is_cut_and_kept_whole() {
    let mut world = World::ready(limits(&[("value_view_bytes", 100)]));
    let program = world.execute().unwrap();
    world.started(program);
    let whole = format!("[{}1]", "1,".repeat(500));
    let report = HostReport { value: Some(whole.clone()), ..HostReport::default() };
    let ids = &mut world.ids;
    let mut fresh = || fresh_id(ids);
    let mut ctx = Context { now: world.now, random: &mut fresh };
    let frame = FromRunner::ProgramEnded(Box::new(crate::link::HostEnded {
        program,
        end: HostEnd::Reported,
        report: Some(report),
        signal: String::new(),
        exit_status: 0,
        cpu_us: 0,
        wall_us: 0,
        peak_memory_bytes: 0,
        detail: String::new(),
    }));
    world.machine.frame(&mut ctx, sandbox(1), Numbered { number: 9, frame });
    let step = world.machine.take_step();
    let value = step.programs[0].value.clone().unwrap();
    assert!(value.json.len() <= 100 && serde_json::from_str::<serde_json::Value>(&value.json).is_ok());
    assert_eq!(step.blobs[0].data, whole.as_bytes());
    assert_eq!(value.cut.unwrap().blob, step.blobs[0].id);
}

/// A recovered session tells of its program what is true.
#[test]
fn a_program_of_a_service_that_died_is_lost_and_its_calls_have_fates() {
    let (mut world, program) = World::running(&[("max_concurrency", 1)]);
    world.call(program, 1, false);
    world.call(program, 2, false);
    let record = world.machine.record().clone();
    let mut ids = 100;
    let mut fresh = || fresh_id(&mut ids);
    let mut ctx = Context { now: world.now, random: &mut fresh };
    let mut machine = Machine::recover(record, &world.events, &mut ctx);
    let step = machine.take_step();
    let ended = &step.programs[0];
    assert_eq!((ended.state, ended.reason.as_str()), (ProgramState::Lost, "SERVICE_RESTARTED"));
    assert_eq!(ended.calls[0].state, CallState::OutcomeUnknown);
    assert_eq!(ended.calls[1].state, CallState::NotStarted);
    assert!(step.now.iter().all(|action| !matches!(action, Action::Dispatch(_))));
    assert_eq!(step.events.first().map(|event| event.seq), Some(world.machine.record().last_seq.next()));
}
