//! Limits: each ends the program with its own code, and none can be caught.

use seance_proto::host::v1alpha1::HostLimits;

use crate::driver::{program, run};

/// Case 46, H28, R3: loops of every kind end at the turn limit.
#[test]
fn endless_turns_end_with_turn_limit() {
    for source in [
        "while(true){}",
        "for(;;) { try { while(true){} } catch {} finally {} }",
        "/(a+)+$/.test('a'.repeat(40)+'!')",
        "const f = () => Promise.resolve().then(f); await f()",
        "await new Promise(async () => { for(;;) await 1 })",
    ] {
        // One of them fills memory, on a fast machine before its turn is over.
        let few = |limits: &mut HostLimits| (limits.turn_ms, limits.memory_bytes) = (300, 1 << 30);
        let said = program(source).limits(few).run();
        assert_eq!(said.error().code, "turn_limit", "{source}: {said:?}");
    }
    let said = program("try { 9n ** 99999999n } catch (e) { return e.name }")
        .limits(|limits| limits.turn_ms = 300)
        .run();
    assert_eq!(said.value(), Some("\"RangeError\""));
}

#[test]
fn processor_time_ends_with_cpu_limit() {
    let said = program("for (;;) { for (let i = 0; i < 1e5; i++); await tools.echo({value: 1}) }")
        .limits(|limits| limits.cpu_ms = 300)
        .run();
    assert_eq!(said.error().code, "cpu_limit");
    assert!(said.ended.cpu_us >= 300_000, "{said:?}");
}

/// Case 49, H29: a memory bomb is memory_limit; one that is caught is not.
#[test]
fn a_memory_bomb_ends_with_memory_limit() {
    for source in [
        "const a=[]; for(;;) a.push(new Array(1e6).fill(1))",
        "let s = 'abcdefgh'; for(;;) s += s",
        "const a = []; for(;;) a.push({})",
        "await (async () => { const a = []; for(;;) a.push(await 1, {}) })()",
        "'x'.repeat(2**29)",
        "const m = new Map(); for (let i = 0;; i++) m.set(i, String(i))",
    ] {
        let said = run(source);
        assert_eq!(said.error().code, "memory_limit", "{source}: {said:?}");
    }
    assert_eq!(
        run("try { const a=[]; for(;;) a.push(new Array(1e6).fill(1)) } catch (e) { } 7").value(),
        Some("7")
    );
}

#[test]
fn endless_recursion_is_an_exception() {
    let said = run("function f() { return f() + 1 } f()");
    assert_eq!((said.error().code.as_str(), said.error().class.as_str()), ("exception", "RangeError"));
}

/// Case 21: a value over its budget is told apart from a failure.
#[test]
fn values_and_text_have_their_own_limits() {
    let said = program("'x'.repeat(2000)").limits(|limits| limits.value_bytes = 1000).run();
    assert_eq!(said.error().code, "value_limit");
    let said = program("for (let i = 0; i < 1000; i++) { try { text('x'.repeat(100)) } catch {} }")
        .limits(|limits| limits.output_bytes = 1000)
        .run();
    assert_eq!((said.error().code.as_str(), said.texts.len()), ("output_limit", 10));
}

/// H31: with detection off a program that can never go on waits, for the runner to end it.
#[test]
fn without_detection_a_deadlock_waits() {
    use crate::driver::Host;
    use seance_proto::host::v1alpha1::to_host;
    let run =
        program("text('a'); await new Promise(() => {})").limits(|limits| limits.detect_deadlock = false);
    let mut host = Host::start("javascript");
    host.send(to_host::Frame::Start(run.start));
    let time = std::time::Duration::from_millis(500);
    assert!(host.receive(std::time::Duration::from_secs(10)).is_some());
    assert!(host.receive(time).is_none());
}
