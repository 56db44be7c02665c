//! The instructions for a model that writes Python. They say what the session has and nothing else (G1).

use crate::prompt::{self, Listing};

/// The lines that hold for every session; the parts that depend on options stand in braces.
const TEXT: &str = "\
Write a Python program that calls the tools below and combines their results. Only what it shows and its \
value come back.

{running}
Calling tools
- `await tools.name(key=value)`: each tool takes keywords and is an async function. Calls run at the same \
time with `asyncio.gather` or `asyncio.TaskGroup`.
- A key that is no identifier is passed as `tools.name(**{\"a-b\": 1})`; one dict does as well.
- A result is a JSON value: dicts, lists, strings, numbers, True, False and None. Integers are exact.
- A failed call raises a `ToolError` with `message`, `code`, `tool`, `call` and `retryable`; catch it to go on.
- Calls that are not awaited are finished before the program ends.
- Names: characters other than letters, digits and `_` are `_` here, and a name that is no identifier in \
Python has `tool_` in front. `tools.call(name, arguments)` takes the name in either form. `ALL_TOOLS` lists \
all tools.

Showing and returning
- `print` shows text; `text(value)` shows a string as it is and anything else as JSON, each on a new line.
- The program's value is what it returns at top level, else its last statement if that is an expression. \
It is written as JSON; `None` is no value. Output and value are cut when they are long.
- `finish(value)` ends the program at once with that value.
- `INPUTS` is the JSON value given with the program, or None.
- `store.set(key, value)` keeps a JSON value for later programs if this one completes; also `store.get`, \
`store.delete` and `store.keys`.

The language
- `await` and `return` work at top level. The standard library is there; import what you use.
- {deadlock}
- There is no network, no other process, and no file that can be written.
";

/// The names besides `tools`, declared.
const SURFACE: &str = "\
class ToolInfo(TypedDict):
    name: str
    description: str
class ToolError(Exception):
    message: str
    code: str
    tool: str
    call: int
    retryable: bool
class Store:
    def get(self, key: str, default: Any = None) -> Any: ...
    def set(self, key: str, value: Any) -> None: ...
    def delete(self, key: str) -> bool: ...
    def keys(self) -> list[str]: ...
ALL_TOOLS: tuple[ToolInfo, ...]
INPUTS: Any
store: Store
def text(value: object) -> None: ...
def finish(value: Any = None) -> Never: ...
";

/// How tools are shown.
pub(crate) const LISTING: Listing<'_> = Listing {
    fence: "python",
    before: "",
    after: SURFACE,
    search: "[tool for tool in ALL_TOOLS if \"user\" in (tool[\"name\"] + tool[\"description\"]).lower()]",
};

/// The instructions with this list of tools.
pub(crate) fn instructions(tools: &str, waits_on_deadlock: bool) -> String {
    let text = TEXT.replace("{running}", prompt::RUNNING);
    let text = text.replace("{deadlock}", prompt::deadlock(waits_on_deadlock));
    format!("{text}\n{tools}")
}
