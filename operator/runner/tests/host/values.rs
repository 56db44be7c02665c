//! Values between JavaScript and JSON.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use seance_proto::host::v1alpha1::{CallResult, Start, call_result, from_host, to_host};

use crate::driver::{Host, limits, program, run, tools};

fn value(source: &str, wanted: &str) {
    assert_eq!(program(source).option("binary").run().value(), Some(wanted), "{source}");
}

/// Case 16: integers beyond 2^53 are exact both ways.
#[test]
fn integers_are_exact() {
    let said = run("const {id} = await tools.ids(); await tools.echo({value:id}); return id");
    assert_eq!(said.calls[1].1, r#"{"value":9007199254740993}"#);
    assert_eq!(said.value(), Some("9007199254740993"));
    value(
        "await tools.raw({json: '[9007199254740991, -9007199254740992, 1e21, 0.1, -0, 1E2]'})",
        "[9007199254740991,-9007199254740992,1e+21,0.1,0,100]",
    );
    value("return {a: 10n}", r#"{"a":10}"#);
    value("typeof (await tools.raw({json: '9007199254740992'}))", "\"bigint\"");
    let digits = "9".repeat(4300);
    assert_eq!(run(&format!("await tools.raw({{json: '{digits}'}})")).value(), Some(digits.as_str()));
    let said =
        run(&format!("try {{ await tools.raw({{json: '{digits}0'}}) }} catch (e) {{ return e.code }}"));
    assert_eq!(said.value(), Some("\"number_limit\""));
    assert_eq!(run("await tools.raw({json: '1e400'})").error().code, "number_limit");
}

/// Case 18: what JSON has no form for has one form, and a warning with the first place.
#[test]
fn what_json_lacks_has_one_form() {
    let source = r#"return {n:NaN,i:-Infinity,z:-0,u:undefined,d:new Date(0),m:new Map([["k",1]]),s:new Set([1]),b:new Uint8Array([255])}"#;
    let said = program(source).option("binary").run();
    let wanted =
        r#"{"n":"NaN","i":"-Infinity","z":0,"d":"1970-01-01T00:00:00.000Z","m":{"k":1},"s":[1],"b":"/w=="}"#;
    assert_eq!(said.value(), Some(wanted));
    assert_eq!(said.warnings(), ["lossy_value"]);
    assert!(said.ended.warnings[0].message.contains("$.n"), "{said:?}");
    value("[undefined, () => 1, Symbol()]", "[null,null,null]");
    value("({a: () => 1, b: 2})", r#"{"b":2}"#);
    value("new Map([[1, 2], ['a', {}]])", r#"[[1,2],["a",{}]]"#);
    value("new Date(NaN)", "null");
    value("new TypeError('t')", r#"{"name":"TypeError","message":"t"}"#);
    value("new Uint8Array([1,2,3,4]).subarray(1,3)", "\"AgM=\"");
    value("new Uint8Array([1,2,3]).buffer", "\"AQID\"");
    value("new DataView(new ArrayBuffer(2), 1)", "\"AA==\"");
    value("new Float64Array([1.5, 2])", "[1.5,2]");
    value("({toJSON() { return {x: 1} }})", r#"{"x":1}"#);
    value("[, 1]", "[null,1]");
    value("'\\ud800x' + String.fromCharCode(0) + '\\u2028'", "\"\u{fffd}x\\u0000\u{2028}\"");
    value("({1: 'a', b: 'c'})", r#"{"1":"a","b":"c"}"#);
    assert!(run("return {a: 1}").ended.warnings.is_empty());
}

/// Case 15: a value that contains itself is an error with its path; twice the same is fine.
#[test]
fn a_cycle_is_an_error_with_its_path() {
    let said = run("const a = {}; a.a = a; return a");
    assert_eq!(said.error().code, "unserializable");
    assert!(said.error().message.contains("$.a"), "{said:?}");
    let said = run("const a = {list: [1, {}]}; a.list[1]['two words'] = a.list; return a");
    assert!(said.error().message.contains(r#"$.list[1]["two words"]"#), "{said:?}");
    value("const a = {}; return [a, a]", "[{},{}]");
    let said = run("let a = 1; for (let i = 0; i < 2000; i++) a = [a]; return a");
    assert_eq!(said.error().code, "unserializable");
    value("let a = 1; for (let i = 0; i < 500; i++) a = {a}; await tools.count({value: a})", "1");
    let said =
        run("const a = {}; a.a = a; try { await tools.echo(a) } catch (e) { return [e.name, e.code] }");
    assert_eq!((said.value(), said.calls.len()), (Some(r#"["ProgramError","unserializable"]"#), 0));
    assert_eq!(run("return { get a() { throw new RangeError('mine') } }").error().class, "RangeError");
}

/// Case 22: undefined is absent, null is null.
#[test]
fn undefined_is_absent() {
    let said = run("await tools.echo({value: undefined}); await tools.echo({value: null}); return undefined");
    assert_eq!(said.calls[0].1, "{}");
    assert_eq!(said.calls[1].1, r#"{"value":null}"#);
    assert_eq!(said.value(), None);
}

/// Case 81: what flows between tools is never cut.
#[test]
fn large_values_pass_whole() {
    let said =
        run("const p = await tools.big({bytes:3000000}); await tools.echo({value: p}); return p.length");
    assert_eq!(said.calls[1].1.len(), 3_000_000 + r#"{"value":""}"#.len());
    assert_eq!(said.value(), Some("3000000"));
}

/// R6: every JSON value comes back as it was, within the bounds.
#[test]
fn every_json_value_survives_the_round_trip() {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
        "[\\x00-\\x7f\"\\\\]{0,8}".prop_map(Into::into),
        (-300i32..300, any::<i32>()).prop_map(|(exponent, n)| {
            let number = f64::from(n) * 10f64.powi(exponent);
            if number.is_finite() { number.into() } else { serde_json::Value::Null }
        }),
    ];
    let tree = leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Into::into),
            prop::collection::vec((any::<String>(), inner), 0..8)
                .prop_map(|entries| serde_json::Value::Object(entries.into_iter().collect())),
        ]
    });
    // One host answers all cases: it hands back whatever it is given.
    let mut host = Host::start("javascript");
    let source = "let last; for (;;) last = await tools.echo({value: last})".to_owned();
    let limits = limits();
    host.send(to_host::Frame::Start(Start {
        source,
        tools: tools(),
        limits: Some(limits),
        ..Start::default()
    }));
    let host = std::cell::RefCell::new((host, 0));
    let first = next_arguments(&mut host.borrow_mut());
    assert_eq!(first, "{}");
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    runner
        .run(&tree, |value| {
            let mut host = host.borrow_mut();
            let call = host.1;
            let result = Some(call_result::Result::ValueJson(value.to_string()));
            host.0.send(to_host::Frame::CallResult(CallResult { call, result }));
            let back: serde_json::Value = serde_json::from_str(&next_arguments(&mut host)).unwrap();
            prop_assert!(same(&back["value"], &value), "{back} is not {value}");
            Ok(())
        })
        .unwrap();
}

fn next_arguments((host, call): &mut (Host, u64)) -> String {
    match host.receive(std::time::Duration::from_secs(10)) {
        Some(from_host::Frame::ToolCall(made)) => {
            *call = made.call;
            made.arguments_json
        }
        other => panic!("{other:?}"),
    }
}

/// Equal as JSON: integers digit by digit, other numbers as doubles, objects in any order (an
/// object's keys that are small integers come first in JavaScript).
fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (a, b) {
        (Number(a), Number(b)) => a == b || a.to_string().parse::<f64>() == b.to_string().parse::<f64>(),
        (Array(a), Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Object(a), Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}
