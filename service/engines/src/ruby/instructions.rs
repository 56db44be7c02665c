//! The instructions for a model that writes Ruby (G14, G15). They say what the session has and nothing
//! else (G1).

use crate::prompt::{self, Listing};

/// The lines that hold for every session; the parts that depend on options stand in braces.
const TEXT: &str = "\
Write a Ruby program that calls the tools below and combines their results. Only what it shows and its \
value come back.

{running}
Calling tools
- `tools.name(key: value)`: each tool takes keywords, waits for its result and returns it.
- `tools.parallel(-> { tools.a(x: 1) }, -> { tools.b })` calls at the same time and returns the results in \
that order.
- A result is a JSON value: hashes with string keys, arrays, strings, numbers, true, false and nil. Integers \
are exact.
- A failed call raises a `ToolError` with `message`, `code`, `tool`, `call` and `retryable`; rescue it to go on.
- Names: characters other than letters, digits and `_` are `_` here, and a name that every object in Ruby \
has, or that begins with a digit, has `tool_` in front. `tools.call(name, arguments)` takes the name in either \
form. `ALL_TOOLS` lists all tools, each a hash with \"name\" and \"description\", which is as below.

Showing and returning
- `puts` and `p` show text as usual; `text(value)` appends a value as `to_s` has it, without a line end.
- The program's value is that of its last expression. It has to be a JSON value. Both are cut when they are \
long.
- `finish(value)` ends the program at once with that value.
- `INPUTS` is the JSON value given with the program, or nil.
- `store.set(key, value)` keeps a JSON value for later programs if this one completes; also `store.get`, \
`store.delete` and `store.keys`.

The language
- Each program is a new process. The standard library is there; require what you use.
- {deadlock}
- There is no network. Files, processes and libraries are what the sandbox allows.
";

/// How tools are shown.
pub(crate) const LISTING: Listing<'_> = Listing {
    fence: "ruby",
    before: "",
    after: "",
    search: "ALL_TOOLS.select { |tool| tool.values.join.match?(/user/i) }",
};

/// The instructions with this list of tools.
pub(crate) fn instructions(tools: &str, waits_on_deadlock: bool) -> String {
    let text = TEXT.replace("{running}", prompt::RUNNING);
    let text = text.replace("{deadlock}", prompt::deadlock(waits_on_deadlock));
    format!("{text}\n{tools}")
}
