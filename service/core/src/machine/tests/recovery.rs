//! A session whose sandbox outlives the service: the runner is taken back, and its program goes on.

use super::*;
use crate::sandbox::Resumed;

/// The world as the next start of the service has it, the runner not there yet.
fn restarted(world: &World) -> World {
    let record = world.machine.record().clone();
    let mut ids = 100;
    let mut fresh = || fresh_id(&mut ids);
    let mut ctx = Context { now: world.now, random: &mut fresh };
    let machine = Machine::recover_awaiting(record, sandbox(1), &world.events, &mut ctx);
    let World { now, frame, .. } = *world;
    let mut next = World { machine, now, ids, frame, events: vec![], now_actions: vec![], committed: vec![] };
    next.settle();
    next
}

impl World {
    fn taken_back(&mut self, last_program: u64, applied_calls: &[u64]) {
        let program = (last_program > 0).then_some(ProgramNumber(last_program));
        let resumed = Resumed { program, last_program, applied_calls: applied_calls.to_vec() };
        self.input(|machine, ctx| machine.taken_back(ctx, sandbox(1), "quickjs-ng 0.16.2", &resumed));
    }
}

/// Section 3: a program outlives the start of the service that began it. A recorded result is
/// delivered, a dispatched call is asked after, a queued one waits on in line.
#[test]
fn a_program_goes_on_with_what_its_runner_lacks() {
    let (mut before, program) = World::running(&[("max_concurrency", 2)]);
    let applied = before.call(program, 1, false);
    before.answer(applied, Outcome::Finished("1".to_owned()));
    let lacking = before.call(program, 2, false);
    before.answer(lacking, Outcome::Finished("2".to_owned()));
    before.call(program, 3, false);
    before.call(program, 4, false);
    before.call(program, 5, false);

    let mut world = restarted(&before);
    assert!(world.events.is_empty() && world.now_actions.is_empty(), "nothing happens until it is there");
    world.taken_back(1, &[1]);
    let result =
        |call| move |frame: &ToRunner| matches!(frame, ToRunner::CallResult { call: c, .. } if *c == call);
    assert_eq!(
        (world.sent(&world.now_actions, result(1)), world.sent(&world.now_actions, result(2))),
        (0, 1)
    );
    assert_eq!(World::dispatched(&world.now_actions), [3, 4]);
    let asked =
        |action: &Action| matches!(action, Action::Dispatch(d) if d.maybe_seen && d.arguments == "{}");
    assert_eq!(world.now_actions.iter().filter(|action| asked(action)).count(), 2);

    let call = |number| CallId { session: world.machine.record().id, program, number };
    let (third, fourth) = (call(3), call(4));
    world.answer(third, Outcome::Unknown(CallError::new(reasons::OUTCOME_UNKNOWN, "nobody can tell")));
    assert_eq!(World::dispatched(&world.committed), [5]);
    world.answer(fourth, Outcome::Finished("4".to_owned()));
    world.call(program, 6, false);
    world.completed(program, "7");
    let ended = world.program(program);
    assert_eq!((ended.state, ended.calls.len()), (ProgramState::Completed, 6));
    assert_eq!(ended.calls[2].state, CallState::OutcomeUnknown);
}

/// The order to run a program was committed and never sent: nothing of it has run.
#[test]
fn a_program_that_the_runner_never_got_was_not_started() {
    let mut before = World::ready(limits(&[]));
    let program = before.execute().unwrap();
    let mut world = restarted(&before);
    world.taken_back(0, &[]);
    let ended = world.program(program);
    assert_eq!((ended.state, ended.reason.as_str()), (ProgramState::NotStarted, reasons::SERVICE_RESTARTED));
    let next = world.execute().unwrap();
    world.started(next);
    world.completed(next, "1");
    assert_eq!(world.program(next).state, ProgramState::Completed);
}

/// That it started is among what the runner sends again.
#[test]
fn a_start_that_was_not_acknowledged_comes_again() {
    let mut before = World::ready(limits(&[]));
    let program = before.execute().unwrap();
    let mut world = restarted(&before);
    world.taken_back(1, &[]);
    world.started(program);
    world.completed(program, "1");
    assert_eq!(world.program(program).state, ProgramState::Completed);
}

/// A program that is accepted while the runner is awaited runs once it is there.
#[test]
fn a_program_waits_for_the_runner_that_is_awaited() {
    let before = World::ready(limits(&[]));
    let mut world = restarted(&before);
    world.execute().unwrap();
    assert!(!world.now_actions.contains(&Action::Claim));
    world.taken_back(0, &[]);
    assert_eq!(world.sent(&world.committed, |frame| matches!(frame, ToRunner::Execute(_))), 1);
}

/// Case 55 across a restart: a stop that came while the runner was away reaches it.
#[test]
fn a_stop_reaches_the_runner_when_it_is_back() {
    let (before, program) = World::running(&[]);
    let mut world = restarted(&before);
    world.input(|m, c| m.stop(c, None, reasons::STOPPED)).unwrap();
    world.now_actions.clear();
    world.taken_back(1, &[]);
    assert_eq!(world.sent(&world.now_actions, |frame| matches!(frame, ToRunner::StopProgram { .. })), 1);
    world.ended(program, HostEnd::Stopped, None);
    assert_eq!(world.program(program).state, ProgramState::Terminated);
}

/// The backend says how the sandbox ended: the program has that fate.
#[test]
fn a_runner_that_does_not_come_back_loses_its_program() {
    let (mut before, program) = World::running(&[]);
    before.call(program, 1, false);
    let mut world = restarted(&before);
    world.input(|m, c| m.sandbox_ended(c, sandbox(1), SandboxEnd::new(EndReason::NodeLost)));
    let ended = world.program(program);
    assert_eq!((ended.state, ended.reason.as_str()), (ProgramState::Lost, "NODE_LOST"));
    assert_eq!(ended.calls[0].state, CallState::OutcomeUnknown);
    world.taken_back(1, &[]);
    assert!(!world.machine.sandbox_ready(), "what ended is not used again");
}

/// A close doesn't wait for the runner, its proof does.
#[test]
fn a_session_closed_while_its_runner_is_awaited_ends_the_sandbox() {
    let (before, program) = World::running(&[]);
    let mut world = restarted(&before);
    world.input(|m, c| m.close(c, "CLOSED"));
    assert_eq!(world.program(program).state, ProgramState::Terminated);
    let ends = |action: &Action| matches!(action, Action::EndSandbox { sandbox: s, .. } if *s == sandbox(1));
    assert!(world.now_actions.iter().any(ends) && !world.machine.is_closed());
    world.input(|m, c| m.end_proven(c, sandbox(1)));
    assert!(world.machine.is_closed());
}

/// The limits of a program are its own after a restart too.
#[test]
fn a_program_keeps_its_limits() {
    let mut before = World::ready(limits(&[]));
    let own = run(limits(&[("max_calls", 1)]));
    let program = before.input(|m, c| m.execute(c, own)).unwrap();
    before.started(program);
    before.call(program, 1, false);
    let mut world = restarted(&before);
    world.taken_back(1, &[]);
    world.call(program, 2, false);
    let refused = |frame: &ToRunner| matches!(frame, ToRunner::CallResult { call: 2, result: Err(e), .. } if e.code == reasons::CALL_LIMIT);
    assert_eq!(world.sent(&world.now_actions, refused), 1);
}
