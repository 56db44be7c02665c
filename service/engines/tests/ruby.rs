//! Signatures as Ruby itself reads them: it takes them, they are called as they say, and no schema makes
//! them anything but comments and signatures (G10 to G13).

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::cases::{cases, expect_golden, hostile, tool_of};
use common::{describe_in, random, tool};
use seance_core::catalog::Tool;
use seance_engines::Description;
use serde_json::json;

fn describe(tools: Vec<Tool>) -> Description {
    describe_in("ruby", tools)
}

/// Ruby with these arguments and this program: what it printed.
fn ruby(arguments: &[&str], program: &str) -> String {
    let started = Command::new("ruby")
        .arg("--disable-gems")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.unwrap_or_else(|error| {
        panic!("ruby does not start ({error}); this test needs Ruby 3.0 or later: apt install ruby")
    });
    child.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complained}\n{program}");
    String::from_utf8(output.stdout).unwrap()
}

/// What is declared parses, and is nothing but comments and signatures.
fn check(declarations: &str) {
    assert_eq!(ruby(&["-c"], declarations).trim(), "Syntax OK");
    for line in declarations.lines() {
        let is_signature = line.starts_with("def tools.") && line.ends_with("); end");
        assert!(line.is_empty() || line.starts_with("# ") || is_signature, "{line:?}");
    }
}

#[test]
fn signatures_are_as_golden() {
    let declarations = describe(cases().iter().map(tool_of).collect()).declarations;
    check(&declarations);
    expect_golden("declarations.rb", &declarations);
}

#[test]
fn ruby_takes_signatures_of_hostile_and_random_schemas() {
    check(&describe(hostile()).declarations);
    check(&describe(random::tools(300)).declarations);
}

/// G10 to G13.
#[test]
fn a_signature_says_what_a_call_takes_and_gives() {
    let input = json!({"type": "object", "required": ["query"], "properties": {
        "query": {"type": "string", "description": "What to look for.", "minLength": 1, "maxLength": 80},
        "mode": {"enum": ["fast", "thorough"], "default": "fast"},
        "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 50},
        "from": {"type": "array", "items": {"type": "string"}},
        "filter": {"type": "object", "required": ["tag"], "properties": {"tag": {"type": "string", "description": "Its tag."}, "all": {"type": "boolean"}}},
    }});
    let output = json!({"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}});
    let search = random::tool_with("search", "Searches documents.".to_owned(), &input, &output);
    let declarations = describe(vec![search]).declarations;
    let expected = r#"
# Searches documents.
#   query: String, required. What to look for. (minLength 1, maxLength 80)
#   mode: "fast" | "thorough", optional. default "fast"
#   limit: Integer | nil, optional. minimum 1, maximum 50
#   from: Array[String], optional
#   filter: {
#     # Its tag.
#     tag: String,
#     ?all: bool,
#   }, optional
# Returns {
#   "id" => Integer,
#   ?"tags" => Array[String],
# }
def tools.search(query:, mode: nil, limit: nil, from: nil, filter: nil); end
"#;
    assert!(declarations.contains(expected), "{declarations}");
}

/// A call as the signature says is one that Ruby takes; one without what is required is not.
#[test]
fn signatures_are_called_as_they_say() {
    let input = json!({"type": "object", "required": ["id", "class"], "properties": {"id": {}, "class": {}, "if": {}, "a-b": {}}});
    let described = describe(vec![
        random::tool_with("get-user", String::new(), &input, &json!(true)),
        tool("class"),
        tool("9lives"),
        tool("end"),
        tool("Foo"),
    ]);
    let program = r#"
tools.get_user(id: 1, class: 2)
tools.get_user(id: 1, class: 2, if: 3, "a-b": 4)
tools.tool_class
tools.tool_9lives(x: 1)
tools.end
tools.Foo(x: 1)
tools.call("get-user", { id: 1 })
tools.parallel(-> { tools.end }, -> { tools.end })
begin
  tools.get_user(id: 1)
rescue ArgumentError => error
  puts error.message
end
"#;
    let program = format!("def tools = $tools ||= Object.new\n{}{program}", described.declarations);
    assert_eq!(ruby(&[], &program), "missing keyword: :class\n");
}

/// F9, and every name that a tool can have can be called.
#[test]
fn names_of_the_host_are_refused_and_words_can_be_called() {
    let engine = seance_engines::by_name("ruby").unwrap();
    for name in ["call", "parallel", "exec", "wait", "stop", "text", "finish", "all_tools"] {
        let error = engine.names(&common::catalog([name])).unwrap_err();
        assert!(error.to_string().contains("reserved"), "{error}");
    }
    let words = "BEGIN END alias and begin break case class def defined do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield __FILE__ __LINE__ __ENCODING__ puts raise fail open sleep test send object_id Integer";
    let names: Vec<&str> = words.split(' ').collect();
    let described = describe(names.iter().map(|name| tool(name)).collect());
    let calls: String =
        described.aliases.iter().map(|alias| format!("tools.{}(x: 1)\n", alias.alias)).collect();
    let program = format!(
        "def tools = $tools ||= Object.new\n{}{calls}puts tools.singleton_methods.size",
        described.declarations
    );
    assert_eq!(ruby(&[], &program), format!("{}\n", names.len() + 2));
}
