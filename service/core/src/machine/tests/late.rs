//! Programs that take longer than they may, and runners that don't answer in time.

use super::*;

/// Case 54, I4, I5: the wall limit holds without an observer and is not reset.
#[test]
fn the_wall_limit_holds_unobserved() {
    let (mut world, program) = World::running(&[("wall_ms", 1000)]);
    world.input(|m, c| m.observed(c, program, EventSeq(1)));
    world.pass(Duration::from_millis(1300));
    world.ended(program, HostEnd::Stopped, None);
    let error = world.program(program).error.unwrap();
    assert_eq!(error.code, "wall_limit");
    assert!(error.message.contains("timed out"));
}

/// I5: on a machine that starts it late, a program may reach its wall limit before the runner said that
/// it runs. That is the program's limit, and no end of its sandbox.
#[test]
fn the_wall_limit_holds_for_a_program_that_has_not_begun() {
    let mut world = World::ready(limits(&[("wall_ms", 500)]));
    let program = world.execute().unwrap();
    world.pass(Duration::from_millis(751));
    let stops = |frame: &ToRunner| matches!(frame, ToRunner::StopProgram { .. });
    assert_eq!(world.sent(&world.committed, stops), 1);
    world.started(program);
    world.ended(program, HostEnd::Stopped, None);
    let record = world.program(program);
    assert_eq!((record.state, record.error.unwrap().code.as_str()), (ProgramState::Error, "wall_limit"));
    assert!(world.machine.sandbox_ready());
}

/// A runner that never says that a program runs is not waited for until the program's limit.
#[test]
fn a_runner_that_starts_nothing_is_ended() {
    let mut world = World::ready(limits(&[("wall_ms", 600_000)]));
    let program = world.execute().unwrap();
    world.pass(RUNNER_ANSWER_TIMEOUT);
    let record = world.program(program);
    assert_eq!((record.state, record.reason.as_str()), (ProgramState::Lost, EndReason::Unresponsive.name()));
    assert_eq!(world.machine.sandbox_id(), None);
}

/// A runner that does not stop loses its sandbox; the program ends as asked.
#[test]
fn a_runner_that_does_not_stop_is_ended() {
    let (mut world, program) = World::running(&[("cleanup_ms", 100)]);
    world.input(|m, c| m.stop(c, None, reasons::STOPPED)).unwrap();
    world.pass(Duration::from_millis(101));
    assert_eq!(world.program(program).state, ProgramState::Terminated);
    let ended =
        |action: &Action| matches!(action, Action::EndSandbox { reason: EndReason::Unresponsive, .. });
    assert!(world.now_actions.iter().any(ended));
}
