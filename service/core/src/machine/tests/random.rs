//! Whatever comes in, outcomes are certain.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Move {
    Execute,
    Stop,
    Close,
    Assigned,
    Started,
    Call(bool),
    SkipCall,
    Cancel(u64),
    Answer(u64, u8),
    End(u8),
    SandboxEnds,
    Claimed(bool),
    Proven,
    Pass(u16),
    Output,
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => Just(Move::Execute),
        1 => Just(Move::Stop),
        1 => Just(Move::Close),
        2 => Just(Move::Assigned),
        4 => Just(Move::Started),
        8 => any::<bool>().prop_map(Move::Call),
        1 => Just(Move::SkipCall),
        2 => (1..8u64).prop_map(Move::Cancel),
        6 => (1..8u64, 0..5u8).prop_map(|(call, how)| Move::Answer(call, how)),
        3 => (0..10u8).prop_map(Move::End),
        1 => Just(Move::SandboxEnds),
        2 => any::<bool>().prop_map(Move::Claimed),
        1 => Just(Move::Proven),
        2 => any::<u16>().prop_map(Move::Pass),
        2 => Just(Move::Output),
    ]
}

fn play(world: &mut World, one: Move, calls: &mut BTreeMap<ProgramNumber, u64>, sandboxes: &mut u8) {
    let program = ProgramNumber(world.machine.record().last_program.max(1));
    let id = |number| CallId { session: world.machine.record().id, program, number };
    match one {
        Move::Execute => drop(world.execute()),
        Move::Stop => drop(world.input(|m, c| m.stop(c, None, reasons::STOPPED))),
        Move::Close => world.input(|m, c| m.close(c, reasons::CLOSED)),
        Move::Assigned => world.assigned(),
        Move::Started => world.started(program),
        Move::Call(repeatable) => {
            let next = calls.entry(program).or_default();
            *next += 1;
            let next = *next;
            world.call(program, next, repeatable);
        }
        Move::SkipCall => drop(world.call(program, 77, true)),
        Move::Cancel(call) => world.frame(FromRunner::CancelCall { program, call }),
        Move::Answer(call, how) => {
            let error = CallError::new("tool_error", "no");
            let outcome = match how {
                0 => Outcome::Finished("1".to_owned()),
                1 => Outcome::Failed(error),
                2 => Outcome::NotStarted(error),
                3 => Outcome::Unknown(error),
                _ => Outcome::Broken { correlation: "x".to_owned() },
            };
            let id = id(call);
            world.answer(id, outcome);
        }
        Move::End(0) => world.completed(program, "1"),
        Move::End(how) => {
            use HostEnd::*;
            let ends = [
                Stopped,
                WallLimit,
                Lost,
                Protocol,
                MemoryLimit,
                ProcessLimit,
                CpuLimit,
                OutputLimit,
                TurnLimit,
            ];
            world.ended(program, ends[usize::from(how) - 1], None);
        }
        Move::SandboxEnds => {
            if let Some(sandbox) = world.machine.sandbox_id() {
                let end = SandboxEnd::new(EndReason::LinkLost);
                world.input(|m, c| m.sandbox_ended(c, sandbox, end));
            }
        }
        Move::Claimed(true) => {
            // As the task does, only where a claim is at work.
            if world.machine.sandbox_id().is_none() && world.machine.active().is_some() {
                *sandboxes += 1;
                let id = sandbox(*sandboxes);
                world.input(|m, c| m.sandbox_claimed(c, id, "quickjs-ng 0.16.2"));
            }
        }
        Move::Claimed(false) => world.input(|m, c| m.claim_failed(c, reasons::NO_SANDBOX, "none")),
        Move::Proven => {
            for n in 0..=*sandboxes {
                world.input(|m, c| m.end_proven(c, sandbox(n)));
            }
        }
        Move::Pass(millis) => world.pass(Duration::from_millis(u64::from(millis))),
        Move::Output => {
            let data = b"x".to_vec().into();
            world.frame(FromRunner::Output { program, source: OutputSource::Text, data });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Case 12 and the certainty of outcomes: whatever comes in, events are numbered without gaps,
    /// each program ends once and with every call's fate known, and no call is dispatched twice,
    /// past the budget, or over the window.
    #[test]
    fn outcomes_are_certain(moves in prop::collection::vec(any_move(), 1..120)) {
        let limits = limits(&[("max_calls", 5), ("max_concurrency", 2), ("wall_ms", 100_000)]);
        let mut world = World::opened(limits);
        let (mut calls, mut sandboxes) = (BTreeMap::new(), 1);
        for one in moves {
            play(&mut world, one, &mut calls, &mut sandboxes);
            let active = world.machine.active();
            let at_work = active.iter().flat_map(|p| &p.calls).filter(|call| call.state == CallState::Dispatched);
            prop_assert!(at_work.count() <= 2);
        }
        let mut ended = BTreeSet::new();
        for (index, event) in world.events.iter().enumerate() {
            prop_assert_eq!(event.seq.0, index as u64 + 1);
            if let EventKind::ProgramEnded(record) = &event.kind {
                prop_assert!(ended.insert(record.number), "program {} ended twice", record.number);
                prop_assert!(record.state.is_final());
                prop_assert!(record.calls.iter().all(|call| call.state.is_final()));
                prop_assert_eq!(record.last_seq, event.seq);
            } else if let Some(program) = event.program {
                let late = ended.contains(&program) && !matches!(event.kind, EventKind::Observed { .. });
                prop_assert!(!late, "program {} has an event after its end", program);
            }
        }
        let active = world.machine.active().map(|program| program.number);
        for number in 1..=world.machine.record().last_program {
            let number = ProgramNumber(number);
            prop_assert!(ended.contains(&number) != (active == Some(number)));
        }
        let all: Vec<_> = world.now_actions.iter().chain(&world.committed).collect();
        let dispatched: Vec<_> = all.iter().filter_map(|action| match action {
            Action::Dispatch(dispatch) => Some(dispatch.id),
            _ => None,
        }).collect();
        let distinct: BTreeSet<_> = dispatched.iter().collect();
        prop_assert_eq!(distinct.len(), dispatched.len());
        for program in dispatched.iter().map(|id| id.program).collect::<BTreeSet<_>>() {
            prop_assert!(dispatched.iter().filter(|id| id.program == program).count() <= 5);
        }
    }
}
