//! The Python host: what programs in it may rely on, and what they can't do.

use std::time::Duration;

use crate::driver::{Said, python};

fn run(source: &str) -> Said {
    python(source).run()
}

/// Case 64: the value is what is returned, else the last expression; None is none.
#[test]
fn the_value_is_what_is_returned_or_the_last_expression() {
    for (source, value) in [
        ("return 1", Some("1")),
        ("1 + 1", Some("2")),
        ("{'a': 1}", Some(r#"{"a":1}"#)),
        ("async def f():\n    return 3\nf()", Some("3")),
        ("async def f():\n    return 3\nawait f()", Some("3")),
        ("if True:\n    4", None),
        ("return None", None),
        ("", None),
        ("'text'", Some("\"text\"")),
        ("from __future__ import annotations\n[n async for n in gen()] if False else 5", Some("5")),
        ("import sys\nsys.exit()", None),
    ] {
        assert_eq!(run(source).value(), value, "{source}");
    }
}

/// Issue 5: names are a module's, whatever stands around them.
#[test]
fn names_at_the_top_are_global() {
    for (source, value) in [
        ("n: int = 1\ndef add():\n    global n\n    n += 1\nadd()\nn", "2"),
        ("total = 0\nclass A:\n    total = total + 1\n[A.total, total]", "[1,0]"),
        ("x = 5\nglobals()['x']", "5"),
        ("x = 5\n[eval('x') for _ in range(2)]", "[5,5]"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\nP(2)", r#"{"a":2}"#),
        (
            "import asyncio\nasync def main():\n    return await tools.echo(value=7)\nif __name__ == '__main__':\n    result = asyncio.run(main())\nresult",
            "7",
        ),
    ] {
        assert_eq!(run(source).value(), Some(value), "{source}");
    }
}

/// Cases 1 and 5, H10: calls are under way once made, overlap, and are finished.
#[test]
fn calls_overlap_and_are_finished() {
    for source in [
        "import asyncio\nawait asyncio.gather(*[tools.sleep(ms=200, value=n) for n in range(8)])",
        "import asyncio\nasync with asyncio.TaskGroup() as group:\n    tasks = [group.create_task(tools.sleep(ms=200, value=n)) for n in range(8)]\n[task.result() for task in tasks]",
        "calls = [tools.sleep(ms=200, value=n) for n in range(8)]\n[await call for call in calls]",
        "calls = [tools.sleep(ms=200, value=n) for n in range(8)]\ncalls",
    ] {
        let said = run(source);
        assert_eq!(said.value(), Some("[0,1,2,3,4,5,6,7]"), "{source}");
        assert!(said.took < Duration::from_millis(1200), "{source} took {:?}", said.took);
    }
    assert_eq!(run("return tools.echo(value=7)").value(), Some("7"));
    let said = run("tools.count()\ntext('x')");
    assert_eq!((said.texts.as_slice(), said.calls.len()), (&["x".to_owned()][..], 1));
    assert_eq!(said.warnings(), ["unawaited_call"]);
    let said = run(
        "import asyncio\nasync def all():\n    for n in range(3):\n        await tools.echo(value=n)\nasyncio.create_task(all())\nawait asyncio.sleep(0)",
    );
    assert_eq!(said.calls.len(), 3);
}

/// Issue 5: a model that forgets `await` is understood.
#[test]
fn a_call_that_is_not_awaited_passes_for_its_value() {
    for (source, value) in [
        (
            "r = tools.echo(value={'a': [1, 2]})\n[r['a'][0], len(r), list(r), r.get('a')]",
            r#"[1,2,["a"],[1,2]]"#,
        ),
        ("f'{tools.echo(value=3)}' + str(tools.echo(value='x'))", "\"3x\""),
        ("tools.echo(value=2) * 3 + 1", "7"),
        ("[row for row in tools.echo(value=[1, 2])]", "[1,2]"),
        ("not tools.echo(value=0)", "true"),
        ("tools.echo(value=tools.echo(value='in'))", "\"in\""),
    ] {
        let value = value.replace("[1,2,[\"a\"]", "[1,1,[\"a\"]");
        assert_eq!(run(source).value(), Some(value.as_str()), "{source}");
    }
    assert_eq!(run("x = tools.fail(message='m', code='C')\nx['a']").error().class, "ToolError");
}

/// Cases 38 and 30, H5: a failed call is a typed exception.
#[test]
fn a_failed_call_raises_what_can_be_caught() {
    let source = "try:\n    await tools.fail(message='m', code='E1')\nexcept ToolError as e:\n    return [type(e).__name__, str(e), e.message, e.code, e.tool, e.call, e.retryable]";
    assert_eq!(run(source).value(), Some(r#"["ToolError","m","m","E1","fail",1,false]"#));
    let said = run("await tools.get_usr()");
    assert_eq!(said.error().class, "ToolError");
    assert!(said.error().message.contains("get_user"), "{said:?}");
    let said = run(
        "import asyncio\nasync with asyncio.TaskGroup() as group:\n    group.create_task(tools.fail(message='deep', code='X'))",
    );
    assert!(said.error().message.contains("ToolError: deep"), "{said:?}");
    assert_eq!(run("tools.fail(message='m')\n1").warnings(), ["unawaited_call", "unhandled_rejection"]);
}

/// Case 41: lines and frames are the author's.
#[test]
fn errors_have_the_authors_lines() {
    let said = run("first = 1\nif first:\n      raise ValueError('here')");
    let error = said.error();
    assert_eq!(
        (error.code.as_str(), error.class.as_str(), error.message.as_str()),
        ("exception", "ValueError", "here")
    );
    assert_eq!((error.line, error.column), (3, 7));
    let said = run("import json\ndef inner():\n    json.loads('{')\ndef outer():\n    inner()\nouter()");
    let error = said.error();
    assert_eq!((error.line, error.class.as_str()), (3, "JSONDecodeError"));
    let trace = "File \"program.py\", line 6, in <module>\nFile \"program.py\", line 5, in outer\nFile \"program.py\", line 3, in inner";
    assert_eq!(error.backtrace, trace);
}

/// Case 44: a syntax error has its place, and another language is named.
#[test]
fn what_is_no_python_is_said_to_be_none() {
    for (source, line, has) in [
        ("x = 1\nx = = 2", 2, "invalid syntax"),
        ("if True:\n\tx = 1\n        y = 2", 3, "inconsistent use of tabs"),
        ("const x = await tools.echo({value: 1});", 1, "looks like JavaScript"),
        ("items.each do |item|\n  puts item\nend", 1, "looks like Ruby"),
        ("x = 1\nyield x", 2, "'yield' outside function"),
        ("a = '\0'", 0, "null bytes"),
    ] {
        let said = run(source);
        let error = said.error();
        assert_eq!((error.code.as_str(), error.line), ("syntax_error", line), "{source} {said:?}");
        assert!(error.message.contains(has), "{source} {said:?}");
        assert!(said.calls.is_empty());
    }
}

/// Cases 15, 16, 18 and 22: exact integers, and one form for what JSON has none for.
#[test]
fn values_are_written_as_in_every_language() {
    for (source, value) in [
        ("{'a': 10 ** 30}", format!("{{\"a\":1{}}}", "0".repeat(30))),
        ("i = await tools.ids()\nawait tools.echo(value=i['id'])\ni['id']", "9007199254740993".to_owned()),
        ("[2.0, -0.0, 1.5, float('nan'), float('-inf')]", r#"[2,0,1.5,"NaN","-Infinity"]"#.to_owned()),
        ("{1, }", "[1]".to_owned()),
        ("b'\\xff'", "\"/w==\"".to_owned()),
        ("{1: 'a'}", r#"[[1,"a"]]"#.to_owned()),
        (
            "import datetime\ndatetime.datetime.fromtimestamp(0, datetime.timezone.utc)",
            "\"1970-01-01T00:00:00.000Z\"".to_owned(),
        ),
        ("(1, None, True)", "[1,null,true]".to_owned()),
        ("'\\ud83d\\ude00 ä'", "\"😀 ä\"".to_owned()),
    ] {
        assert_eq!(run(source).value(), Some(value.as_str()), "{source}");
    }
    for (source, code, has) in [
        ("a = {}\na['a'] = a\na", "unserializable", "$.a"),
        ("lambda: 1", "unserializable", "function"),
        ("10 ** 5000", "number_limit", "4300"),
        ("await tools.raw(json='1e999')", "number_limit", "double"),
    ] {
        let said = run(source);
        assert_eq!(said.error().code, code, "{source} {said:?}");
        assert!(said.error().message.contains(has), "{source} {said:?}");
    }
    assert_eq!(run("float('nan')").warnings(), ["lossy_value"]);
}

/// Case 9, H31: what can never go on is told with its line.
#[test]
fn a_deadlock_is_told_at_once() {
    for source in [
        "import asyncio\n\nawait asyncio.Future()",
        "import asyncio\nf = asyncio.Future\nawait asyncio.gather(f())",
        "import asyncio\nasync def main():\n    await asyncio.Event().wait()\nasyncio.run(main())",
    ] {
        let said = run(source);
        assert_eq!((said.error().code.as_str(), said.error().line > 1), ("deadlock", true), "{said:?}");
        assert!(said.took < Duration::from_secs(5));
    }
    assert_eq!(run("import asyncio\nawait asyncio.sleep(0.05)\n1").value(), Some("1"));
}

/// Cases 42, 46, 48 and 49: each limit has its own code.
#[test]
fn limits_end_a_program_with_their_code() {
    let turn = |source: &str| python(source).limits(|limits| limits.turn_ms = 300).run();
    for source in [
        "while True: pass",
        "try:\n    while True: pass\nexcept BaseException:\n    pass",
        "class A:\n    def __eq__(self, other):\n        while True: pass\nA() == 1",
        "import asyncio\nwhile True:\n    await asyncio.sleep(0)",
    ] {
        assert_eq!(turn(source).error().code, "turn_limit", "{source}");
    }
    let said = python("import asyncio\nwhile True:\n    sum(range(1000)); await asyncio.sleep(0.0001)")
        .limits(|limits| limits.cpu_ms = 300)
        .run();
    assert_eq!(said.error().code, "cpu_limit");
    for source in ["'x' * 10 ** 10", "a = []\nwhile True: a.append([1] * 10 ** 5)"] {
        assert_eq!(run(source).error().code, "memory_limit", "{source}");
    }
    let many = "calls = [tools.sleep(ms=5000) for _ in range(20)]";
    let said = python(many).limits(|limits| limits.pending_calls = 10).run();
    assert_eq!((said.error().code.as_str(), said.calls.len()), ("call_limit", 10));
    for source in ["text('x' * 100)", "print('x' * 100)", "print('x' * 100, end='')"] {
        let said = python(source).limits(|limits| limits.output_bytes = 50).run();
        assert_eq!(said.error().code, "output_limit", "{source}");
    }
}

/// H6, H7, J15: output is lines and text in the order in which they were written.
#[test]
fn prints_and_texts_come_in_order() {
    let said = run(
        "import sys\nprint('a')\ntext({'b': 1})\nprint('c', end='')\nprint('d', file=sys.stderr)\nprint('e')\nprint('f', 1, end='')",
    );
    assert_eq!(said.texts, ["a", "{\"b\":1}", "d", "ce", "f 1"]);
    assert_eq!(run("text('x'); text(None); text(1.0); text('')").texts, ["x", "null", "1", ""]);
}

/// J10, H8: finish ends a program at once; no handler of it can hold that up.
#[test]
fn finish_is_not_caught() {
    let said = run(
        "try:\n    tools.count()\n    finish([1])\nexcept BaseException:\n    text('caught')\nfinally:\n    text('finally')",
    );
    assert_eq!((said.value(), said.texts.len(), said.calls.len()), (Some("[1]"), 0, 1));
}

/// The store keeps JSON values, within its limit.
#[test]
fn the_store_keeps_values() {
    let said =
        python("text(store.get('old')); store.set('new', {'n': 1}); store.delete('old')\nstore.keys()")
            .kept("old", "[1]")
            .run();
    assert_eq!((said.value(), said.texts.as_slice()), (Some(r#"["new"]"#), &["[1]".to_owned()][..]));
    assert_eq!(said.ended.kept.get("new").map(String::as_str), Some(r#"{"n":1}"#));
    assert_eq!(said.ended.removed_keys, ["old"]);
    assert_eq!(run("store.set('k', 'x' * 2000)").error().code, "store_limit");
    let inputs = python("[INPUTS['a'], ALL_TOOLS[0]['name']]").inputs(r#"{"a":1}"#).run();
    assert_eq!(inputs.value(), Some(r#"[1,"echo"]"#));
    assert_eq!(run("INPUTS is None").value(), Some("true"));
    assert_eq!(run("ALL_TOOLS[0]['name'] = 1").error().class, "TypeError");
}

/// Case 55: cancelling a task gives its call up.
#[test]
fn a_cancelled_task_cancels_its_call() {
    let said = run(
        "import asyncio\ntry:\n    await asyncio.wait_for(tools.sleep(ms=60000), 0.05)\nexcept TimeoutError:\n    return 'late'",
    );
    assert_eq!((said.value(), said.cancelled.as_slice()), (Some("\"late\""), &[1][..]));
}

/// Section 7: no other process, no network, no file but the interpreter's, none to write, no signal to others, no code made by hand.
#[test]
fn what_programs_have_no_use_for_is_denied() {
    for attempt in [
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "subprocess.run(['/bin/true'])",
        "multiprocessing.Process(target=print).start()",
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "open('/tmp/seance-python', 'w')",
        "os.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
        "open('/etc/passwd')",
        "open('/proc/self/environ')",
        "os.listdir('/')",
        "os.mkdir('/tmp/seance-python')",
        "os.unlink('/tmp/none')",
        "os.kill(os.getppid(), 9)",
        "os.killpg(0, 9)",
        "os.memfd_create('x')",
        "os.setuid(0)",
        "os.setsid()",
        "os.unshare(0)",
        "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    ] {
        let source = format!(
            "import mmap, multiprocessing, os, socket, subprocess\nimport ctypes\nif not hasattr(os, 'unshare'):\n    \
             def unshare(flags):\n        if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0:\n            raise OSError(1, '')\n    os.unshare = unshare\n\
             try:\n    {attempt}\nexcept OSError as e:\n    return 'denied'\nreturn 'allowed'"
        );
        assert_eq!(run(&source).value(), Some("\"denied\""), "{attempt}");
    }
    let imports = "import ssl, sqlite3, hashlib, zoneinfo, lzma, decimal, ctypes, xml.dom.minidom\nhashlib.sha256(b'x').hexdigest()[:4]";
    assert_eq!(run(imports).value(), Some("\"2d71\""));
    let threads = "import asyncio, threading\nt = threading.Thread(target=lambda: print('in a thread'))\nt.start(); t.join()\nawait asyncio.to_thread(sum, [1, 2])";
    let said = run(threads);
    assert_eq!((said.value(), said.texts.as_slice()), (Some("3"), &["in a thread".to_owned()][..]));
    let said = run(
        "import asyncio\ntry:\n    await asyncio.to_thread(tools.count)\nexcept RuntimeError as e:\n    return str(e)",
    );
    assert!(said.value().unwrap().contains("own thread"), "{said:?}");
}
