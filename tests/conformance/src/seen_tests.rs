//! The matching can fail: for every expectation there is a sight that breaks it.

use std::time::{Duration, Instant};

use super::*;
use crate::case::Early;

fn completed(value: Option<&str>, output: &str) -> Seen {
    let program = api::Program {
        number: 1,
        state: api::ProgramState::Completed.into(),
        value_json: value.map(str::to_owned),
        ..api::Program::default()
    };
    let observation = api::Observation {
        status: api::ObservationStatus::Completed.into(),
        output: output.to_owned(),
        next_cursor: "c".to_owned(),
        program: Some(program.clone()),
        ..api::Observation::default()
    };
    Seen { observation: Some(observation), program: Some(program), ..Seen::default() }
}

fn failed(code: &str, line: u32) -> Seen {
    let error = api::ProgramError {
        code: code.to_owned(),
        line,
        message: "it broke".to_owned(),
        ..Default::default()
    };
    let program = api::Program {
        state: api::ProgramState::Error.into(),
        error: Some(error),
        ..api::Program::default()
    };
    let observation = api::Observation {
        status: api::ObservationStatus::Error.into(),
        next_cursor: "c".to_owned(),
        program: Some(program.clone()),
        ..api::Observation::default()
    };
    Seen { observation: Some(observation), program: Some(program), ..Seen::default() }
}

fn expect(edit: impl FnOnce(&mut Expect)) -> Expect {
    let mut expect = Expect::default();
    edit(&mut expect);
    expect
}

#[test]
fn what_is_as_expected_has_no_mismatch() {
    let right = expect(|e| {
        e.value = Some("{ \"a\": 1 }".to_owned());
        e.output = Some("x".to_owned());
        e.warnings = Some(vec![]);
    });
    assert_eq!(mismatches(&right, &completed(Some("{\"a\":1}"), "x")), Vec::<String>::new());
}

#[test]
fn a_wrong_value_output_or_order_is_reported() {
    let seen = completed(Some("{\"b\":1,\"a\":9007199254740993}"), "x");
    for value in ["7", "{\"a\":9007199254740993,\"b\":1}", "{\"b\":1,\"a\":9007199254740992}", "{\"b\":1.0}"]
    {
        let wrong = mismatches(&expect(|e| e.value = Some(value.to_owned())), &seen);
        assert_eq!(wrong.len(), 1, "{value}: {wrong:?}");
        assert!(wrong[0].starts_with("value: expected"), "{wrong:?}");
    }
    assert_eq!(mismatches(&expect(|e| e.output = Some("y".to_owned())), &seen).len(), 1);
    assert_eq!(mismatches(&expect(|e| e.no_value = true), &seen).len(), 1);
    assert_eq!(mismatches(&expect(|e| e.value = Some("1".to_owned())), &completed(None, "")).len(), 1);
}

#[test]
fn the_status_is_always_looked_at() {
    assert_eq!(mismatches(&Expect::default(), &failed("exception", 1)).len(), 1);
    let right = expect(|e| e.code = Some("exception".to_owned()));
    assert!(mismatches(&right, &failed("exception", 1)).is_empty());
    assert_eq!(mismatches(&right, &completed(None, "")).len(), 2, "status and code");
    assert_eq!(mismatches(&right, &failed("deadlock", 1)).len(), 1);
    let line = expect(|e| (e.code, e.line) = (Some("exception".to_owned()), Some(3)));
    assert_eq!(mismatches(&line, &failed("exception", 1)).len(), 1);
    let working = expect(|e| e.status = Some("still_working".to_owned()));
    assert_eq!(mismatches(&working, &completed(None, "")).len(), 1);
}

#[test]
fn a_refusal_must_be_the_expected_one_in_every_place() {
    let refused = |reason: &str, trailer: &str, message: &str| Seen {
        refused: Some(Refusal {
            grpc: "ABORTED".to_owned(),
            reason: reason.to_owned(),
            trailer: trailer.to_owned(),
            message: message.to_owned(),
        }),
        ..Seen::default()
    };
    let right = expect(|e| {
        (e.refused, e.grpc) = (Some("CONTROL_ACTIVE".to_owned()), Some("ABORTED".to_owned()));
    });
    let seen = |reason, trailer, message| mismatches(&right, &refused(reason, trailer, message)).len();
    assert_eq!(seen("CONTROL_ACTIVE", "CONTROL_ACTIVE", "CONTROL_ACTIVE: a wait is at work"), 0);
    assert_eq!(seen("PROGRAM_ACTIVE", "CONTROL_ACTIVE", "CONTROL_ACTIVE"), 1);
    assert_eq!(seen("CONTROL_ACTIVE", "", "CONTROL_ACTIVE"), 1);
    assert_eq!(seen("CONTROL_ACTIVE", "CONTROL_ACTIVE", "busy"), 1);
    assert_eq!(mismatches(&right, &completed(None, "")).len(), 1, "no refusal at all");
    let unexpected = refused("INTERNAL", "INTERNAL", "INTERNAL");
    assert_eq!(mismatches(&Expect::default(), &unexpected).len(), 1);
    let grpc = expect(|e| {
        (e.refused, e.grpc) = (Some("CONTROL_ACTIVE".to_owned()), Some("NOT_FOUND".to_owned()));
    });
    assert_eq!(mismatches(&grpc, &refused("CONTROL_ACTIVE", "CONTROL_ACTIVE", "CONTROL_ACTIVE")).len(), 1);
}

fn record(tool: &str, from_ms: u64, to_ms: u64, rank: usize) -> Record {
    let start = Instant::now();
    Record {
        call_id: String::new(),
        tool: tool.to_owned(),
        arguments: "{ }".to_owned(),
        program: 1,
        traceparent: String::new(),
        began: start + Duration::from_millis(from_ms),
        ended: Some(start + Duration::from_millis(to_ms)),
        rank: Some(rank),
        answer: Some(crate::fixtures::Answer::Value(format!("\"{tool}\""))),
        cancelled: None,
    }
}

#[test]
fn recorded_calls_their_order_and_overlap_are_looked_at() {
    let mut seen = completed(None, "");
    seen.records = vec![record("a", 0, 3_000, 1), record("b", 1_000, 2_000, 0)];
    let right = expect(|e| {
        e.recorded = Some(vec!["a {}".to_owned(), "b {}".to_owned()]);
        e.results = Some(vec!["\"b\"".to_owned(), "\"a\"".to_owned()]);
        e.overlap = Some(2);
        e.recorded_n = [("a".to_owned(), 1)].into();
        e.cancelled = Some(vec![]);
    });
    assert_eq!(mismatches(&right, &seen), Vec::<String>::new());
    let wrong = expect(|e| {
        e.recorded = Some(vec!["b {}".to_owned(), "a {}".to_owned()]);
        e.results = Some(vec!["\"a\"".to_owned(), "\"b\"".to_owned()]);
        e.overlap = Some(1);
        e.recorded_n = [("a".to_owned(), 2)].into();
        e.cancelled = Some(vec!["a STOPPED".to_owned()]);
        e.cancelled_within_ms = Some(1);
    });
    assert_eq!(mismatches(&wrong, &seen).len(), 6);
}

#[test]
fn calls_that_follow_each_other_do_not_overlap() {
    assert_eq!(overlap(&[record("a", 0, 1_000, 0), record("b", 2_000, 3_000, 1)]), 1);
    assert_eq!(overlap(&[]), 0);
}

#[test]
fn times_and_early_output_are_looked_at() {
    let mut seen = completed(None, "");
    seen.elapsed = Duration::from_millis(700);
    seen.streamed = vec![(Duration::from_millis(600), b"2".to_vec())];
    assert_eq!(mismatches(&expect(|e| e.within_ms = Some(600)), &seen).len(), 1);
    assert_eq!(mismatches(&expect(|e| e.after_ms = Some(800)), &seen).len(), 1);
    let early = |ms| expect(|e| e.early = Some(Early { text: "2".to_owned(), ms }));
    assert_eq!(mismatches(&early(500), &seen).len(), 1);
    assert_eq!(mismatches(&early(650), &seen).len(), 0);
    assert_eq!(mismatches(&expect(|e| e.service_grew_at_most_mib = Some(1)), &seen).len(), 1);
}

#[test]
fn events_limits_and_declarations_are_looked_at() {
    let seen = Seen {
        events: Some(vec!["session_opened".to_owned(), "call".to_owned()]),
        declarations: "a(args: {\n  n: number }): Promise<void>".to_owned(),
        limits: [("wall_ms".to_owned(), 1)].into(),
        ..Seen::default()
    };
    let right = expect(|e| {
        e.events = Some(vec!["call".to_owned()]);
        e.declares = vec!["a(args: {n: number})".to_owned()];
        e.limits = [("wall_ms".to_owned(), 1)].into();
    });
    assert_eq!(mismatches(&right, &seen), Vec::<String>::new());
    let wrong = expect(|e| {
        e.events = Some(vec!["call".to_owned(), "session_opened".to_owned()]);
        e.no_events = vec!["call".to_owned()];
        e.declares = vec!["b(".to_owned()];
        e.declares_not = vec!["a(".to_owned()];
        e.limits = [("wall_ms".to_owned(), 2)].into();
        e.aliases = Some(vec!["a".to_owned()]);
        e.session = Some("closed".to_owned());
    });
    assert_eq!(mismatches(&wrong, &seen).len(), 7);
}

#[test]
fn an_observation_that_contradicts_itself_is_reported() {
    let mut seen = completed(Some("1"), "");
    let observation = seen.observation.as_mut().unwrap();
    observation.program.as_mut().unwrap().error = Some(api::ProgramError::default());
    assert_eq!(mismatches(&Expect::default(), &seen).len(), 1, "an error beside completed");
    let observation = seen.observation.as_mut().unwrap();
    observation.program.as_mut().unwrap().state = api::ProgramState::Running.into();
    assert_eq!(mismatches(&Expect::default(), &seen).len(), 2, "and a program that still runs");
    seen.observation.as_mut().unwrap().next_cursor.clear();
    assert_eq!(mismatches(&Expect::default(), &seen).len(), 3, "and no cursor");
    seen.observation.as_mut().unwrap().program = None;
    assert_eq!(mismatches(&Expect::default(), &seen).len(), 1, "no program at all");
}
