//! What a program finds, what it must not find, and what it cannot break.

use crate::driver::{program, run};

/// H18: no platform parts unless an option says so.
#[test]
fn platform_parts_are_absent_by_default() {
    let names = [
        "console",
        "process",
        "require",
        "fetch",
        "WebAssembly",
        "ArrayBuffer",
        "SharedArrayBuffer",
        "DataView",
        "Atomics",
        "Uint8Array",
        "Int8Array",
        "Float64Array",
        "BigInt64Array",
        "setTimeout",
        "setInterval",
        "queueMicrotask",
        "performance",
        "navigator",
        "std",
        "os",
        "bjson",
        "print",
        "gc",
        "scriptArgs",
    ];
    for name in names {
        let source = format!("[typeof {name}, typeof globalThis.{name}]");
        assert_eq!(run(&source).value(), Some(r#"["undefined","undefined"]"#), "{name}");
    }
    let source = "[typeof SharedArrayBuffer, typeof Atomics, typeof Uint8Array, typeof DataView]";
    let said = program(source).option("binary").run();
    assert_eq!(said.value(), Some(r#"["undefined","undefined","function","function"]"#));
}

/// H19: the host's names and the removed ones cannot be redefined.
#[test]
fn globals_cannot_be_redefined() {
    for name in
        ["tools", "ALL_TOOLS", "INPUTS", "text", "exit", "store", "ToolError", "fetch", "process", "console"]
    {
        let source = format!(
            "const before = globalThis.{name}; {name} = 1; delete globalThis.{name}; \
             let failed = false; try {{ Object.defineProperty(globalThis, '{name}', {{value: 1}}) }} catch {{ failed = true }} \
             return [globalThis.{name} === before, failed]"
        );
        assert_eq!(run(&source).value(), Some("[true,true]"), "{name}");
    }
    assert_eq!(
        run("tools.echo = 1; tools.new_one = 1; [typeof tools.echo, Object.hasOwn(tools, 'new_one')]")
            .value(),
        Some(r#"["function",false]"#)
    );
}

/// H20, H21: nothing of the host is reachable by name, by caller or by a function's text.
#[test]
fn host_internals_are_out_of_reach() {
    let known =
        ["Object", "Function", "Error", "Array", "tools", "ALL_TOOLS", "INPUTS", "text", "exit", "store"];
    let said = run("Object.getOwnPropertyNames(globalThis)");
    let names: Vec<String> = serde_json::from_str(said.value().unwrap()).unwrap();
    assert!(known.iter().all(|name| names.iter().any(|found| found == name)));
    assert!(names.iter().all(|name| !name.starts_with('_') && !name.contains("prelude")), "{names:?}");
    for source in [
        "(function f() { try { return f.caller === null || f.caller === undefined } catch { return true } })()",
        "typeof arguments === 'undefined'",
        "!String(tools.echo).includes('native code') || String(tools.echo).includes('[native code]')",
        "(() => { try { null.x } catch (e) { return !e.stack.includes('prelude') && !e.stack.includes('/') } })()",
        "await (async () => { try { await tools.fail({code: 'a', message: 'b'}) } catch (e) { return !String(e.stack).includes('prelude') } })()",
        "(() => { try { new AbortSignal({}) } catch (e) { return e instanceof TypeError } })()",
    ] {
        assert_eq!(run(source).value(), Some("true"), "{source}");
    }
    let said = run("eval('import(\"fs\")').catch(e => e.name)");
    assert!(matches!(said.value(), Some("\"ReferenceError\"" | "\"TypeError\"")), "{said:?}");
}

/// R10: a program that breaks every prototype breaks only itself.
#[test]
fn polluted_prototypes_do_not_reach_the_host() {
    let source = "
        const map = new Map([['k', 1]]), set = new Set([1]);
        const evil = () => { text('evil') };
        for (const name of ['get', 'set', 'value', 'writable', 'has', 'signal', 'code', '0', '1', 'a'])
            Object.defineProperty(Object.prototype, name, {__proto__: null, get: evil, set: evil, configurable: true});
        for (const name of ['0', '1', 'push', 'length2'])
            Object.defineProperty(Array.prototype, name, {__proto__: null, get: evil, set: evil, configurable: true});
        Array.prototype[Symbol.iterator] = evil;
        Map.prototype.forEach = Set.prototype.forEach = Date.prototype.toISOString = evil;
        Map.prototype.entries = Map.prototype[Symbol.iterator] = evil;
        Function.prototype.call = Function.prototype.apply = evil;
        JSON.stringify = JSON.parse = evil;
        Reflect.apply = Reflect.setPrototypeOf = evil;
        globalThis.BigInt = globalThis.Promise = globalThis.Error = globalThis.TypeError = evil;
        const r = await tools.raw({json: '{\"a\":[1,{\"0\":2}],\"__proto__\":3,\"n\":9007199254740993}'}, {});
        return [r, new Date(0), map, set]";
    let said = run(source);
    let wanted =
        r#"[{"a":[1,{"0":2}],"__proto__":3,"n":9007199254740993},"1970-01-01T00:00:00.000Z",{"k":1},[1]]"#;
    assert_eq!(said.value(), Some(wanted));
    assert!(said.texts.iter().all(|text| text == "evil"), "{said:?}");
    let said =
        run("Promise.prototype.then = () => { text('then') }; const v = await tools.echo({value: 5}); v");
    assert_eq!(said.value(), Some("5"), "{said:?}");
}

/// Case 19: logged values are readable.
#[test]
fn the_console_is_an_option_and_readable() {
    let said = program(
        "console.log({a:1}, [2]); console.error('x', undefined, 1n); console.warn(new TypeError('t'))",
    )
    .option("console")
    .run();
    assert_eq!(said.texts[..2], [r#"{"a":1} [2]"#, "x undefined 1"]);
    assert!(said.texts[2].starts_with("TypeError: t"), "{said:?}");
}

#[test]
fn timers_are_an_option() {
    let source = "let n = 0; const i = setInterval(() => { n++; if (n === 3) clearInterval(i) }, 5); \
        await new Promise(r => setTimeout(r, 60)); const x = await new Promise(r => setTimeout(r, 1, 'arg')); \
        const c = setTimeout(() => text('never'), 1); clearTimeout(c); await new Promise(r => queueMicrotask(r)); return [n, x]";
    let said = program(source).option("timers").run();
    assert_eq!((said.value(), said.texts.len()), (Some(r#"[3,"arg"]"#), 0));
    let said = program("for (let i = 0; i < 2000; i++) setTimeout(() => {}, 1000)").option("timers").run();
    assert_eq!(said.error().class, "RangeError");
    let said = program("setTimeout(() => { throw new Error('late') }, 1); await new Promise(() => {})")
        .option("timers")
        .run();
    assert_eq!(said.error().message, "late");
    let said = program("queueMicrotask(() => { throw new Error('micro') }); await new Promise(() => {})")
        .option("timers")
        .run();
    assert_eq!(said.error().message, "micro");
}
