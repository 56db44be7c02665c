//! Calling tools: names, errors, order, cancelling.

use crate::driver::{program, run};

/// Case 25: declared names and `call`; the recorded name is the canonical one (D16).
#[test]
fn a_tool_is_called_by_alias_name_and_call() {
    let said = run(
        "await tools.get_user({value: 1}); await tools['get-user']({value: 2}); await tools.call('get-user', {value: 3}); await tools.call('tools.get_user', {value: 4})",
    );
    assert_eq!(said.value(), Some("4"));
    assert!(said.calls.iter().all(|(tool, _)| tool == "get-user"), "{said:?}");
}

/// Case 27, F6, H3: names that the language looks up on any object are never tools.
#[test]
fn names_special_in_the_language_are_safe() {
    assert_eq!(run("(await tools) === tools").value(), Some("true"));
    let said = run(
        "[tools.then, tools.constructor, tools.toString, tools.__proto__, tools[Symbol.iterator], tools.toJSON].map(x => typeof x)",
    );
    assert_eq!(
        said.value(),
        Some(r#"["undefined","undefined","undefined","undefined","undefined","undefined"]"#)
    );
    assert_eq!(run("await tools._then({value: 1}) + await tools._constructor({value: 2}) + await tools.call('then', {value: 3})").value(), Some("6"));
}

/// Case 28, F11, F13: what is advertised is what is callable, and cannot be changed.
#[test]
fn all_tools_lists_what_is_callable() {
    let said = run(
        "[ALL_TOOLS.every(t => Object.hasOwn(tools, t.name)), Object.keys(tools).length === ALL_TOOLS.length + 1, Object.isFrozen(ALL_TOOLS) && ALL_TOOLS.every(Object.isFrozen), Object.keys(ALL_TOOLS[0]).join()]",
    );
    assert_eq!(said.value(), Some(r#"[true,true,true,"name,description"]"#));
}

/// Case 30, H4: an unknown tool is a rejected call, with a hint; it can be caught.
#[test]
fn an_unknown_tool_is_a_caught_error_with_a_hint() {
    let said = run(
        "try { await tools.get_usr({}) } catch (e) { return [e.name, e.code, e.message, e instanceof ToolError] }",
    );
    assert_eq!(
        said.value(),
        Some(r#"["ToolError","unknown_tool","there is no tool \"get_usr\" (did you mean get_user?)",true]"#)
    );
    assert_eq!(said.calls[0].0, "get_usr");
    let said = run("const call = tools.nothing_like_it; await call().catch(e => e.message)");
    assert_eq!(said.value(), Some(r#""there is no tool \"nothing_like_it\"""#));
}

/// Case 38, H5: a failed call is a typed error.
#[test]
fn a_failed_call_is_a_typed_error() {
    let said = run(
        "try { await tools.fail({message:'m',code:'E1'}); return 'no' } catch (e) { return [e.name,e.message,e.code,e.tool,e.call,e.retryable] }",
    );
    assert_eq!(said.value(), Some(r#"["ToolError","m","E1","fail",1,false]"#));
    let said = run("\n await tools.fail({message:'m',code:'E1'})");
    let error = said.error();
    assert_eq!(
        (error.code.as_str(), error.class.as_str(), error.message.as_str(), error.line),
        ("exception", "ToolError", "m", 2)
    );
    assert_eq!(run("await tools.fail({message:'m',code:'call_limit'})").error().code, "call_limit");
}

/// Cases 3, 4, 6, H11, H13: each result as it comes, in the order of the promises.
#[test]
fn results_come_one_by_one() {
    let said = run(
        "Promise.all([tools.sleep({ms:90,value:'a'}), tools.sleep({ms:30,value:'b'}), tools.sleep({ms:60,value:'c'})].map(async p => { text(await p); return p }))",
    );
    assert_eq!(said.value(), Some(r#"["a","b","c"]"#));
    assert_eq!(said.texts, ["b", "c", "a"]);
    let said = run(
        "const slow = tools.sleep({ms:300,value:'s'}); const a = await tools.echo({value:1}); text(a + 1); return await slow",
    );
    assert_eq!((said.value(), said.texts.as_slice()), (Some("\"s\""), &["2".to_owned()][..]));
    let said =
        run("text(await Promise.race([tools.sleep({ms:200,value:'late'}), tools.echo({value:'fast'})]))");
    assert_eq!(
        (said.texts.as_slice(), said.ended.unawaited_calls.as_slice()),
        (&["fast".to_owned()][..], &[1][..])
    );
    assert!(said.took.as_millis() >= 200);
}

/// Case 4: an aborted call is given up at once.
#[test]
fn a_call_can_be_aborted() {
    let said = run(
        "const c = new AbortController(); const late = tools.sleep({ms:60000}, {signal: c.signal}).catch(e => e.name); text(await Promise.race([late, tools.echo({value:'fast'})])); c.abort(); return await late",
    );
    assert_eq!(said.value(), Some("\"AbortError\""));
    assert_eq!((said.cancelled.as_slice(), said.texts.as_slice()), (&[1][..], &["fast".to_owned()][..]));
    let said = run(
        "const s = AbortSignal.abort('why'); try { await tools.echo({}, {signal: s}) } catch (e) { return [e, s.aborted, s.reason] }",
    );
    assert_eq!((said.value(), said.calls.len()), (Some(r#"["why",true,"why"]"#), 0));
    let said = run(
        "const c = new AbortController(); let n = 0; c.signal.addEventListener('abort', () => n++); const p = tools.echo({value: 1}, {signal: AbortSignal.any([c.signal])}); c.abort(); c.abort(); try { await p } catch { return n }",
    );
    assert_eq!(said.value(), Some("1"));
    assert_eq!(
        run("try { await tools.echo({}, {signal: {aborted: true}}) } catch (e) { return e.name }").value(),
        Some("\"TypeError\"")
    );
}

/// H2: missing arguments are an empty object; others are sent as they are, for the broker to judge.
#[test]
fn arguments_are_sent_as_given() {
    let said = run(
        "await tools.count(); await tools.count(undefined); await tools.count([1]); await tools.count('s')",
    );
    let sent: Vec<&str> = said.calls.iter().map(|(_, arguments)| arguments.as_str()).collect();
    assert_eq!(sent, ["{}", "{}", "[1]", "\"s\""]);
}

/// H14: more pending calls than the limit ends the program with a code.
#[test]
fn too_many_pending_calls_end_the_program() {
    let said = program(
        "try { await Promise.all(Array.from({length: 6}, () => tools.sleep({ms: 10000}))) } catch {}",
    )
    .limits(|limits| limits.pending_calls = 5)
    .run();
    assert_eq!((said.error().code.as_str(), said.calls.len()), ("call_limit", 5));
}

/// The store: JSON values, committed only on completion, bounded.
#[test]
fn the_store_keeps_what_a_completed_program_set() {
    let said = program("store.set('b', {n: [1]}); store.delete('a'); store.set('c', store.get('old') + 1); return [store.keys(), store.get('none') === undefined, store.get('b')]").kept("a", "1").kept("old", "41").run();
    assert_eq!(said.value(), Some(r#"[["b","c","old"],true,{"n":[1]}]"#));
    let mut kept: Vec<_> = said.ended.kept.iter().collect();
    kept.sort();
    assert_eq!(kept, [(&"b".to_owned(), &r#"{"n":[1]}"#.to_owned()), (&"c".to_owned(), &"42".to_owned())]);
    assert_eq!(said.ended.removed_keys, ["a"]);
    let failed = run("store.set('a', 1); throw 1");
    assert!(failed.ended.kept.is_empty());
    let said = run(
        "store.set('a', 1); try { store.set('b', 'x'.repeat(2000)) } catch (e) { return [e.code, store.keys()] }",
    );
    assert_eq!(said.value(), Some(r#"["store_limit",["a"]]"#));
    assert_eq!(run("store.set('b', 'x'.repeat(2000))").error().code, "store_limit");
}

/// H32: one JSON value, deeply immutable.
#[test]
fn inputs_are_a_fixed_value() {
    let said = program("'use strict'; try { INPUTS.a[0].b = 2 } catch (e) { text(e.name) } return INPUTS")
        .inputs(r#"{"a":[{"b":1}],"__proto__":{"x":1}}"#)
        .run();
    assert_eq!(
        (said.value(), said.texts.as_slice()),
        (Some(r#"{"a":[{"b":1}],"__proto__":{"x":1}}"#), &["TypeError".to_owned()][..])
    );
    assert_eq!(run("typeof INPUTS").value(), Some("\"undefined\""));
}
