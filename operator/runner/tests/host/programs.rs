//! What a program's source means and what its value is.

use crate::driver::{program, run};

fn value(source: &str, wanted: Option<&str>) {
    assert_eq!(run(source).value(), wanted, "{source}");
}

/// Case 64, H9: an explicit return, else the last expression; a promise's value is awaited.
#[test]
fn the_value_is_the_return_or_the_last_expression() {
    value("return 1", Some("1"));
    value("1+1", Some("2"));
    value("({a:1})", Some(r#"{"a":1}"#));
    value("const f = async () => 3; f()", Some("3"));
    value("if (true) { 4 }", None);
    value("let x = 1; x += 2; // done", Some("3"));
    value("5; function f() {}", Some("5"));
    value("1, 2;;", Some("2"));
    value("", None);
    value("// nothing", None);
    value("'use strict'; this === undefined", Some("false"));
    value("return undefined", None);
    value("null", Some("null"));
    value("await 7", Some("7"));
    value("await (await tools.echo({value: async () => 1}), tools.echo({value: 2}))", Some("2"));
}

/// Case 1: a returned call is settled first, and an unawaited one is finished and told of (H10).
#[test]
fn calls_are_settled_and_finished() {
    value("return tools.echo({value: 7});", Some("7"));
    let said = run("tools.count(); text('x')");
    assert_eq!((said.texts.as_slice(), said.calls.len()), (&["x".to_owned()][..], 1));
    assert_eq!(said.ended.unawaited_calls, [1]);
    assert_eq!(said.warnings(), ["unawaited_call"]);
}

/// Case 63: types are erased in place, enums work, strings keep their text.
#[test]
fn typescript_is_accepted() {
    let source = r#"const x: Array<number> = [1]; type T = {a: string}; enum E { A = 1 }; const s = "a as string"; return x[0] satisfies number"#;
    for language in [program(source), program(source).typescript()] {
        assert_eq!(language.run().value(), Some("1"));
    }
    let source = "enum E { A, B = A + 4, C, D = 'd' as string, 'x-y' = 9 }\nreturn [E.A, E.B, E.C, E.D, E[5], E['x-y'], E[9]]";
    assert_eq!(program(source).typescript().run().value(), Some(r#"[0,4,5,"d","C",9,"x-y"]"#));
    let source = "function f() { const enum K { Z = 3 } return K.Z }\ninterface I { a: number }\nf()";
    assert_eq!(program(source).typescript().run().value(), Some("3"));
    assert_eq!(program("let n = 1 as number;\nn!").typescript().run().value(), Some("1"));
}

/// Plain JavaScript means exactly itself, also where TypeScript reads it in another way.
#[test]
fn plain_javascript_is_left_alone() {
    value("const a = 1, b = 2, c = 3; a < b > (c)", Some("false"));
    value("var await_ = 1; x = 2; x", Some("2"));
}

/// What erasing cannot do says so.
#[test]
fn unsupported_typescript_says_so() {
    for source in ["namespace N { export const a = 1 }", "class C { constructor(private a: number) {} }"] {
        let said = program(source).typescript().run();
        assert_eq!(said.error().code, "syntax_error", "{source}");
        assert!(said.error().message.starts_with("TypeScript: "), "{said:?}");
        assert_eq!(said.error().line, 1);
    }
}

/// Case 44: syntax errors name the place, and nothing has run.
#[test]
fn syntax_errors_name_the_place() {
    for (source, line, column) in [
        ("await tools.count();\nlet x = ;", 2, 9),
        ("const x: = 1", 1, 7),
        ("}); tools.count(); (async()=>{", 1, 1),
        ("} + {", 1, 1),
        ("}, () => {", 1, 1),
        ("})(), (async () => {", 1, 1),
        ("(", 1, 1),
        ("let a; let a;", 1, 1),
    ] {
        let said = run(source);
        assert_eq!(said.error().code, "syntax_error", "{source}: {said:?}");
        assert!(said.calls.is_empty());
        if column > 1 {
            assert_eq!((said.error().line, said.error().column), (line, column), "{source}: {said:?}");
        }
    }
}

#[test]
fn fenced_source_says_how_to_send_it() {
    let said = run("```js\n1+1\n```");
    assert_eq!(said.error().code, "syntax_error");
    assert!(said.error().message.contains("Markdown fence"), "{said:?}");
}

#[test]
fn deep_nesting_is_refused_before_anything_recursive() {
    let said = run(&"[".repeat(100_000));
    assert_eq!(said.error().code, "syntax_error");
    assert!(said.error().message.contains("256"), "{said:?}");
}

/// Case 65: imports are denied by name, before any call.
#[test]
fn imports_are_denied_before_anything_runs() {
    for source in [
        "import fs from \"fs\"\nawait tools.count()",
        "await tools.count()\nimport { a } from 'fs'\nreturn a",
        "await tools.count(); const fs = await import('fs')",
        "await tools.count(); export * from 'fs'",
        "import type { A } from 'fs'",
    ] {
        let said = run(source);
        assert_eq!(said.error().code, "import_denied", "{source}: {said:?}");
        assert!(said.error().message.contains("\"fs\""), "{said:?}");
        assert!(said.calls.is_empty());
    }
    assert_eq!(run("await tools.count(); await import('f' + 's')").error().code, "import_denied");
}

/// Case 41, J13: class, message and place of an exception, with the author's frames only.
#[test]
fn an_exception_names_the_author_s_place() {
    for (source, typescript) in [
        ("function f() {\n  if (true) {\n      throw new TypeError('bad')\n  }\n}\nf()", false),
        (
            "interface A { a: string }\nfunction f(a: A) {\n      throw new TypeError('bad') }\nf({a: ''})",
            true,
        ),
        ("await tools.echo({value: 1})\n\n      throw new TypeError('bad')", false),
    ] {
        let said = if typescript { program(source).typescript().run() } else { run(source) };
        let error = said.error();
        assert_eq!(
            (error.code.as_str(), error.class.as_str(), error.message.as_str()),
            ("exception", "TypeError", "bad")
        );
        assert_eq!(error.line, 3, "{error:?}");
        assert!((13..=26).contains(&error.column), "{error:?}");
        assert!(error.backtrace.starts_with("at "), "{error:?}");
        assert!(error.backtrace.lines().all(|line| line.contains("program.js:")), "{error:?}");
    }
    let said = run("throw new Error('first line')");
    assert_eq!((said.error().line, said.error().column), (1, 11), "{said:?}");
    assert_eq!(run("throw 'words'").error().message, "words");
    assert_eq!(run("await Promise.reject(new RangeError('r'))").error().class, "RangeError");
}

/// Case 9, R2: a program that can never go on ends at once, where it waits, without computing.
#[test]
fn a_deadlock_is_told_at_once_with_its_line() {
    let said = run("await tools.count()\nawait 1\nawait new Promise(() => {})\nawait 2");
    let error = said.error();
    assert_eq!((error.code.as_str(), error.line, error.column), ("deadlock", 3, 1), "{error:?}");
    assert!(said.took.as_millis() < 5000 && said.ended.cpu_us < 500_000, "{said:?}");
    assert_eq!(run("await Promise.all([1, new Promise(() => {})])").error().code, "deadlock");
    let waits = run("await tools.sleep({ms: 200, value: 1}); 2");
    assert_eq!(waits.value(), Some("2"));
}

/// H8: exit completes at once and cannot be caught; calls under way are finished.
#[test]
fn exit_cannot_be_caught() {
    for source in [
        "text('a'); try { exit() } catch { text('b') } finally { text('c') }",
        "text('a'); new Promise(() => exit()).catch(() => text('b'))",
        "text('a'); await Promise.resolve().then(exit).catch(() => {}); text('b')",
        "text('a'); [1].forEach(exit); text('b')",
    ] {
        let said = run(source);
        assert_eq!(said.value(), None);
        assert_eq!(said.texts, ["a"], "{source}");
    }
    let said = run("tools.sleep({ms: 50}); exit()");
    assert_eq!(said.ended.unawaited_calls, [1]);
    assert!(said.took.as_millis() >= 50);
}

/// R1: a rejection nobody handles is a warning with its place.
#[test]
fn an_unhandled_rejection_is_a_warning() {
    let said = run("Promise.reject(new Error('lost'))\n\nnew Promise((_, no) => no(1)).catch(() => {}); 3");
    assert_eq!(said.value(), Some("3"));
    assert_eq!(said.warnings(), ["unhandled_rejection"]);
    assert!(said.ended.warnings[0].message.contains("lost"), "{said:?}");
    let said = run("tools.fail({message: 'm', code: 'E'}); 3");
    assert_eq!(said.value(), Some("3"));
    assert_eq!(said.warnings(), ["unawaited_call", "unhandled_rejection"]);
}

/// H6, H7: text as it is, undefined as the word, the rest as JSON.
#[test]
fn text_writes_values_plainly() {
    let said =
        run("text('é\\n'); text(); text(undefined); text(12n); text({a: [1n, null]}); text(''); text(NaN)");
    assert_eq!(said.texts, ["é\n", "undefined", "undefined", "12", r#"{"a":[1,null]}"#, "", "\"NaN\""]);
}

/// Case 67: escapes and template text arrive byte for byte.
#[test]
fn multi_line_strings_arrive_as_written() {
    let said = run(
        "const t = `one\n  two\\\\\nthree`; await tools.echo({value: t}); await tools.echo({value: \"a\\\\n\\u0041\\x41\" + /\\d\\\\/.source})",
    );
    assert_eq!(said.calls[0].1, r#"{"value":"one\n  two\\\nthree"}"#);
    assert_eq!(said.calls[1].1, r#"{"value":"a\\nAA\\d\\\\"}"#);
}
