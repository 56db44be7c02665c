//! The Ruby host: what programs in it may rely on, and what they can't do.

use std::time::Duration;

use crate::driver::{Said, ruby};

fn run(source: &str) -> Said {
    ruby(source).run()
}

/// J9, case 64: the value is that of the last expression, or what is returned at the top; nil is none.
#[test]
fn the_value_is_what_is_returned_or_the_last_expression() {
    for (source, value) in [
        ("1 + 1", Some("2")),
        ("return 1\n2", Some("1")),
        ("{ a: 1, 'b' => [nil, true] }", Some(r#"{"a":1,"b":[null,true]}"#)),
        ("f = -> { 3 }\nf.call", Some("3")),
        ("4 if true", Some("4")),
        ("nil", None),
        ("", None),
        ("puts 'x'", None),
        ("'text'", Some("\"text\"")),
        ("class A\n  X = 5\n  def self.x = X\nend\nA.x", Some("5")),
        ("def double(n) = n * 2\n[1, 2].map { |n| double(n) }", Some("[2,4]")),
        ("if __FILE__ == $0\n  :main\nend", Some("\"main\"")),
        ("exit", None),
        ("Point = Struct.new(:x, :y)\nPoint.new(1, 2)", Some(r#"{"x":1,"y":2}"#)),
    ] {
        assert_eq!(run(source).value(), value, "{source}");
    }
    assert_eq!(run("exit 3").error().class, "SystemExit");
}

/// J2, J3, J6, cases 25 and 27: tools are methods; a call waits for its value.
#[test]
fn a_tool_is_a_method_that_waits_for_its_value() {
    for (source, value) in [
        ("tools.echo(value: { a: 1 })['a']", "1"),
        ("tools.echo(**{ value: 2 })", "2"),
        ("tools.echo({ 'value' => 3 })", "3"),
        ("tools.call('echo', value: 4)", "4"),
        ("tools.call('tools.get-user', { 'value' => 5 })", "5"),
        ("tools.get_user(value: 6)", "6"),
        ("tools.public_send(:echo, value: 7)", "7"),
        ("[tools.respond_to?(:echo), tools.respond_to?(:none)]", "[true,false]"),
        (
            "def helper(n) = tools.echo(value: n)\nclass A\n  def x = tools.echo(value: 8)\nend\n[A.new.x, helper(9)]",
            "[8,9]",
        ),
        ("ALL_TOOLS[0]['name']", "\"echo\""),
    ] {
        assert_eq!(run(source).value(), Some(value), "{source}");
    }
    let said = run("tools.call('get-user', value: 1)");
    assert_eq!(said.calls, [("get-user".to_owned(), r#"{"value":1}"#.to_owned())]);
    assert_eq!(run("ALL_TOOLS << 1").error().class, "FrozenError");
    assert_eq!(run("p tools, store").output, "#<tools>\n#<store>\n");
}

/// J4, J5, cases 5 and 6: callables run side by side, each next one as soon as one has ended.
#[test]
fn parallel_overlaps_and_keeps_the_order() {
    let said = run("tools.parallel(*8.times.map { |n| -> { tools.sleep(ms: 200, value: n) } })");
    assert_eq!(said.value(), Some("[0,1,2,3,4,5,6,7]"));
    assert!(said.took < Duration::from_millis(1200), "{:?}", said.took);
    let said = run(
        "tools.parallel(-> { tools.sleep(ms: 300, value: 'a') }, -> { tools.sleep(ms: 100, value: 'b') }, -> { tools.sleep(ms: 200, value: 'c') })",
    );
    assert_eq!(said.value(), Some(r#"["a","b","c"]"#));
    let starts: Vec<_> = said.calls.iter().map(|(_, arguments)| &arguments[6..9]).collect();
    assert_eq!(starts, ["300", "100", "200"]);
    // Two hundred in pairs that depend on each other, more than run at one time, and one in the other.
    let said = run(
        "rows = tools.parallel(200.times.map { |n| -> { tools.echo(value: tools.sleep(ms: 5, value: n) + 1) } })\nrows.sum",
    );
    assert_eq!((said.value(), said.calls.len()), (Some("20100"), 400));
    let said = run(
        "tools.parallel(-> { tools.parallel(-> { tools.sleep(ms: 200, value: 1) }, -> { sleep 0.2; 2 }) }, -> { tools.sleep(ms: 200, value: 3) })",
    );
    assert_eq!(said.value(), Some("[[1,2],3]"));
    assert!(said.took < Duration::from_millis(550), "{:?}", said.took);
    assert_eq!(run("tools.parallel(1)").error().class, "ArgumentError");
    assert_eq!(run("tools.parallel()").value(), Some("[]"));
    let said = run(
        "begin\n  tools.parallel(-> { tools.fail(message: 'm') }, -> { tools.sleep(ms: 50, value: 1); text 'done' })\nrescue ToolError => e\n  e.message\nend",
    );
    assert_eq!((said.value(), said.output.as_str()), (Some("\"m\""), "done"));
}

/// Issue 5: threads are Ruby's other way to do things at one time.
#[test]
fn threads_may_call_tools() {
    let said = run("8.times.map { |n| Thread.new { tools.sleep(ms: 200, value: n) } }.map(&:value)");
    assert_eq!(said.value(), Some("[0,1,2,3,4,5,6,7]"));
    assert!(said.took < Duration::from_millis(1200), "{:?}", said.took);
    let said = run(
        "Thread.new { tools.sleep(ms: 100); text 'late' }\nThread.pass until ObjectSpace.each_object(Thread).any? { |t| t.status == 'sleep' }\ntext 'main'",
    );
    assert_eq!((said.calls.len(), said.warnings()), (1, vec!["unawaited_call"]));
    let said = run("q = Queue.new\nt = Thread.new { q << tools.echo(value: 1) }\nq.pop");
    assert_eq!(said.value(), Some("1"));
}

/// Threads that are killed and timeouts that end come at any moment; nothing of the others is lost by them.
#[test]
fn interrupted_waiting_loses_nothing() {
    let source = "require 'timeout'\n\
        readers = 20.times.map { Thread.new { loop { tools.echo(value: 0) } } }\n\
        late = 30.times.count { |n| Timeout.timeout(0.002) { tools.sleep(ms: n % 4, value: n) } && false rescue true }\n\
        values = 50.times.map { |n| readers.pop&.kill; tools.echo(value: n) }\n\
        readers.each(&:kill).each(&:join)\n\
        [values.sum, late.between?(0, 30), tools.echo(value: 'last')]";
    assert_eq!(run(source).value(), Some("[1225,true,\"last\"]"));
}

/// Case 55: what a program no longer waits for is given up.
#[test]
fn a_timeout_cancels_its_call() {
    let said = run(
        "require 'timeout'\nbegin\n  Timeout.timeout(0.1) { tools.sleep(ms: 60000) }\nrescue Timeout::Error\n  'late'\nend",
    );
    assert_eq!((said.value(), said.cancelled.as_slice()), (Some("\"late\""), &[1][..]));
    let said = run(
        "require 'timeout'\nbegin\n  Timeout.timeout(0.1) { tools.parallel(-> { tools.sleep(ms: 60000) }, -> { tools.sleep(ms: 60000) }) }\nrescue Timeout::Error\n  'late'\nend",
    );
    assert_eq!((said.value(), said.cancelled.as_slice()), (Some("\"late\""), &[1, 2][..]));
}

/// J7, cases 38 and 30: a failed call is a typed exception.
#[test]
fn a_failed_call_raises_what_can_be_rescued() {
    let source = "begin\n  tools.fail(message: 'm', code: 'E1')\nrescue => e\n  [e.class.name, e.message, e.code, e.tool, e.call, e.retryable]\nend";
    assert_eq!(run(source).value(), Some(r#"["ToolError","m","E1","fail",1,false]"#));
    let said = run("tools.get_usr");
    assert_eq!((said.error().class.as_str(), said.error().line), ("ToolError", 1));
    assert!(said.error().message.contains("did you mean get_user?"), "{said:?}");
    assert_eq!(run("tools.constructor(value: 1)").value(), Some("1"));
}

/// J13, case 41: lines and frames are the author's.
#[test]
fn errors_have_the_authors_lines() {
    let said = run("first = 1\nif first\n      raise ArgumentError, 'here'\nend");
    let error = said.error();
    assert_eq!(
        (error.code.as_str(), error.class.as_str(), error.message.as_str()),
        ("exception", "ArgumentError", "here")
    );
    assert_eq!((error.line, error.column), (3, 7));
    let said = run("require 'json'\ndef inner\n  JSON.parse('{')\nend\ndef outer\n  inner\nend\nouter");
    let error = said.error();
    assert_eq!((error.line, error.class.as_str()), (3, "JSON::ParserError"));
    let trace = "program.rb:3:in `inner'\nprogram.rb:6:in `outer'\nprogram.rb:8:in `<main>'";
    assert_eq!(error.backtrace, trace);
    assert_eq!(run("def f = f\nf").error().class, "SystemStackError");
}

/// Case 44: a syntax error has its place, and another language is named.
#[test]
fn what_is_no_ruby_is_said_to_be_none() {
    for (source, line, has) in [
        ("x = 1\nx = = 2", 2, "unexpected '='"),
        ("const x = await tools.echo({value: 1});\nif (x) {\n  text(x);\n}", 0, "looks like JavaScript"),
        ("for item in items:\n    print(item)\n", 0, "looks like Python"),
        ("def f\n  1\n", 2, "end-of-input"),
    ] {
        let said = run(source);
        let error = said.error();
        assert_eq!((error.code.as_str(), error.class.as_str()), ("syntax_error", "SyntaxError"), "{source}");
        assert!(line == 0 || error.line == line, "{source} {said:?}");
        assert!(error.message.contains(has), "{source} {said:?}");
        assert!(said.calls.is_empty());
    }
    assert_eq!(run("x = 1\nx = = 2").error().column, 5);
    // What can be parsed all the same.
    for (source, has) in
        [("const x = 1;\ntext(x);", "looks like JavaScript"), ("import json", "looks like Python")]
    {
        let said = run(source);
        assert!(said.error().message.contains(has), "{said:?}");
    }
    assert!(run("items = fetch_items;").error().message.starts_with("undefined local variable"));
}

/// Cases 15, 16, 18 and 22: exact integers, and one form for what JSON has none for.
#[test]
fn values_are_written_as_in_every_language() {
    for (source, value) in [
        ("{ a: 10**30 }", format!("{{\"a\":1{}}}", "0".repeat(30))),
        ("i = tools.ids\ntools.echo(value: i['id'])\ni['id']", "9007199254740993".to_owned()),
        ("[2.0, -0.0, 1.5, Float::NAN, -Float::INFINITY]", r#"[2,0,1.5,"NaN","-Infinity"]"#.to_owned()),
        ("require 'set'\nSet[1]", "[1]".to_owned()),
        ("\"\\xff\".b", "\"/w==\"".to_owned()),
        ("'ä'.b", "\"ä\"".to_owned()),
        ("{ 1 => 'a' }", r#"[[1,"a"]]"#.to_owned()),
        ("Time.at(0)", "\"1970-01-01T00:00:00.000Z\"".to_owned()),
        ("require 'date'\nDate.new(2026, 1, 2)", "\"2026-01-02\"".to_owned()),
        ("require 'bigdecimal'\nBigDecimal('1.50').round(1).to_f", "1.5".to_owned()),
        ("{ a: 1, 'a' => 2 }", r#"{"a":2}"#.to_owned()),
        ("\"a\\xff\"", "\"a\u{fffd}\"".to_owned()),
        ("'😀 ä'", "\"😀 ä\"".to_owned()),
        (
            "tools.raw(json: '[1e2, 0.1, 123456789012345678901234567890]')",
            "[100,0.1,123456789012345678901234567890]".to_owned(),
        ),
    ] {
        assert_eq!(run(source).value(), Some(value.as_str()), "{source}");
    }
    for (source, code, has) in [
        ("a = {}\na['a'] = a\na", "unserializable", "$.a"),
        ("-> { 1 }", "unserializable", "Proc"),
        ("10**5000", "number_limit", "4300"),
        ("tools.raw(json: '1e999')", "number_limit", "double"),
        ("tools.raw(json: '1' * 5000)", "number_limit", "4300"),
        ("a = []\n600.times { a = [a] }\na", "unserializable", "512 deep"),
    ] {
        let said = run(source);
        assert_eq!(said.error().code, code, "{source} {said:?}");
        assert!(said.error().message.contains(has), "{source} {said:?}");
    }
    assert_eq!(run("Float::NAN").warnings(), ["lossy_value"]);
    assert_eq!(run("tools.raw(json: '[\"' + '9' * 5000 + '\", 1]')[1]").value(), Some("1"));
}

/// Case 9: what can never go on is told with its line; other waiting is not.
#[test]
fn a_deadlock_is_told_at_once() {
    for source in [
        "x = 1\nQueue.new.pop",
        "x = 1\nsleep",
        "m = Mutex.new\nt = Thread.new { sleep }\nt.join",
        "x = 1\ntools.parallel(-> { Queue.new.pop })",
    ] {
        let said = run(source);
        assert_eq!((said.error().code.as_str(), said.error().line >= 1), ("deadlock", true), "{said:?}");
        assert!(said.took < Duration::from_secs(5));
    }
    assert_eq!(run("sleep 0.05\n1").value(), Some("1"));
    let said = run("q = Queue.new\nThread.new { sleep 0.1; q << 1 }\nq.pop");
    assert_eq!(said.value(), Some("1"));
}

/// Cases 42, 46, 48 and 49: each limit has its own code.
#[test]
fn limits_end_a_program_with_their_code() {
    for source in [
        "loop {}",
        "while true do end",
        "begin\n  loop {}\nrescue Exception\n  retry\nensure\n  loop {}\nend",
        "class A\n  def ==(other) = loop {}\nend\nA.new == 1",
        "Thread.new { loop {} }.join",
        "'a' * 40 + '!' =~ /x/; ('a' * 40 + '!') =~ /^(a|aa)+$/",
        "trap('INT') {}\nloop { Process.pid }",
    ] {
        let said = ruby(source).limits(|limits| limits.turn_ms = 300).run();
        assert_eq!(said.error().code, "turn_limit", "{source}");
    }
    let said = ruby("loop { (1..1000).sum; sleep 0.0001 }").limits(|limits| limits.cpu_ms = 300).run();
    assert_eq!(said.error().code, "cpu_limit");
    for source in [
        "'x' * 10**10",
        "a = []\nloop { a << Array.new(10**5, 1) }",
        "a = ''\nloop { a << 'xxxxxxxx' * 1000 }",
    ] {
        let said = run(source);
        assert_eq!(said.error().code, "memory_limit", "{source} {said:?}");
    }
    let many = "tools.parallel(20.times.map { -> { tools.sleep(ms: 5000) } })";
    let said = ruby(many).limits(|limits| limits.pending_calls = 10).run();
    assert_eq!((said.error().code.as_str(), said.calls.len()), ("call_limit", 10));
}

/// J8, J14, J15, case 58: standard output and error are output, in their order, and text adds nothing.
#[test]
fn output_is_what_was_written() {
    let said = run(
        "puts 'a'\ntext({ 'b' => 1 })\n$stderr.puts 'c'\nprint 'd'\nwarn 'e'\nSTDOUT.write(\"\\0\\0\\0\\5{\")\np 1",
    );
    assert_eq!(said.output, "a\n{\"b\"=>1}c\nde\n\0\0\0\u{5}{1\n");
    assert_eq!(run("$stdout.sync = false\nprint 'x'").output, "x");
    assert_eq!(run("gets.inspect").value(), Some("\"nil\""));
}

/// J10: finish ends a program at once; no handler of it can hold that up.
#[test]
fn finish_is_not_rescued() {
    let said = run(
        "at_exit { text 'at exit' }\nbegin\n  tools.count\n  finish([1])\nrescue Exception\n  text 'rescued'\nensure\n  text 'ensure'\nend",
    );
    assert_eq!((said.value(), said.output.as_str(), said.calls.len()), (Some("[1]"), "", 1));
    assert_eq!(run("tools.parallel(-> { finish 2 }, -> { tools.count })").value(), Some("2"));
}

/// J11 and the store: what comes in, and what is kept within its limit.
#[test]
fn inputs_and_the_store_are_json() {
    let said = ruby("text store.get('old'); store.set(:new, { n: 1 }); store.delete('old')\nstore.keys")
        .kept("old", "[1]")
        .run();
    assert_eq!((said.value(), said.output.as_str()), (Some(r#"["new"]"#), "[1]"));
    assert_eq!(said.ended.kept.get("new").map(String::as_str), Some(r#"{"n":1}"#));
    assert_eq!(said.ended.removed_keys, ["old"]);
    assert_eq!(run("store.set('k', 'x' * 2000)").error().code, "store_limit");
    let inputs = |source: &str| ruby(source).inputs(r#"{"a":1}"#).run();
    assert_eq!(inputs("[INPUTS['a'], FRAME['a']]").value(), Some("[1,1]"));
    assert_eq!(inputs("FRAME['b'] = 1").error().class, "FrozenError");
    assert_eq!(run("[INPUTS, defined?(FRAME)]").value(), Some("[null,null]"));
}

/// J12: nothing of another program is there, and nothing of the host has a name.
#[test]
fn a_program_finds_a_fresh_interpreter() {
    run("$left = 1\nLEFT = 1\ndef left = 1");
    assert_eq!(
        run("[defined?($left), defined?(LEFT), defined?(left), defined?(Seance)].compact").value(),
        Some("[]")
    );
    assert_eq!(run("[ENV.size, ARGV, [rand, rand].uniq.size]").value(), Some("[0,[],2]"));
    assert_ne!(run("rand.to_s").value(), run("rand.to_s").value());
}

/// Section 7: no other process, no network, no file but the interpreter's, none to write, no signal to others, no code made by hand.
#[test]
fn what_programs_have_no_use_for_is_denied() {
    for attempt in [
        "fork { exit! }",
        "exec('/bin/true')",
        "system('/bin/true', exception: true)",
        "`/bin/true`",
        "IO.popen('/bin/true')",
        "Process.spawn('/bin/true')",
        "TCPSocket.new('127.0.0.1', 1)",
        "UNIXSocket.new('/tmp/none')",
        "UDPSocket.new",
        "File.write('/tmp/seance-ruby', 'x')",
        "File.read('/etc/passwd')",
        "File.read('/proc/self/environ')",
        "Dir.entries('/')",
        "Dir.mkdir('/tmp/seance-ruby')",
        "File.unlink('/tmp/none')",
        "Process.kill(9, Process.ppid)",
        "Process.kill(9, -1)",
        "Process::UID.change_privilege(0); Process.setsid; raise Errno::EPERM",
        "Process.daemon",
        "syscall(101, 16, Process.ppid, 0, 0)",
        "Fiddle::Function.new(Fiddle.dlopen(nil)['unshare'], [Fiddle::TYPE_INT], Fiddle::TYPE_INT).call(0x10000000) == 0 || raise(SystemCallError.new(Fiddle.last_error))",
    ] {
        let source = format!(
            "require 'socket'\nrequire 'fiddle'\nbegin\n  {attempt}\nrescue SystemCallError => e\n  return 'denied'\nend\n'allowed'"
        );
        assert_eq!(run(&source).value(), Some("\"denied\""), "{attempt}");
    }
    let library = "require 'digest'; require 'openssl'; require 'yaml'; require 'erb'; require 'csv'; require 'zlib'; require 'net/http'\nDigest::SHA256.hexdigest('x')[0, 4]";
    assert_eq!(run(library).value(), Some("\"2d71\""));
}
