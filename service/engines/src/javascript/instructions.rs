//! The instructions for a model that writes JavaScript. They say what the session has and nothing
//! else (G1): an option that is off is listed among what is absent.

use crate::prompt::{self, Listing};

/// The lines that hold for every session; the parts that depend on options stand in braces.
const TEXT: &str = "\
Write a JavaScript or TypeScript program that calls the tools below and combines their results. Only \
what it shows and its value come back.

{running}
Calling tools
- `await tools.name(args)`: each tool takes one object and returns a promise. Calls run at the same \
time with `Promise.all` or `Promise.race`.
- A result is a JSON value. An integer beyond 2**53 arrives as a bigint, and a bigint passed to a tool \
is an integer there.
- A failed call throws a `ToolError` with `message`, `code`, `tool`, `call` and `retryable`; catch it to \
go on.
- `tools.name(args, { signal })` with the signal of an `AbortController` can be cancelled.
- Calls that are not awaited are finished before the program ends.
- Names: characters other than letters, digits, `_` and `$` are `_` here, and a name that is special in \
JavaScript has `_` in front. `tools.call(name, args)` takes the name in either form. `ALL_TOOLS` lists \
all tools.

Showing and returning
- `text(value)` shows a value, a string as it is and anything else as JSON, each on a new line.
- The program's value is what it returns at top level, else its last statement if that is an \
expression; a loop or an `if` at the end gives none. Both are cut when they are long.
- `exit()` ends the program at once, without a value.
- `INPUTS` is the JSON value given with the program, or undefined.
- `store.set(key, value)` keeps a JSON value for later programs if this one completes; also `store.get`, \
`store.delete` and `store.keys`.

The language
- `await` and `return` work at top level. TypeScript types are removed, not checked; enums work, \
namespaces and parameter properties don't.
- {deadlock}
{present}- There is no {absent}.
";

/// The names besides `tools`, declared.
const SURFACE: &str = "\
declare const ALL_TOOLS: readonly { readonly name: string; readonly description: string }[];
declare const INPUTS: any;
declare function text(value: unknown): void;
declare function exit(): never;
declare const store: {
  get(key: string): any;
  set(key: string, value: unknown): void;
  delete(key: string): void;
  keys(): string[];
};
declare class AbortSignal {
  readonly aborted: boolean;
  readonly reason: any;
}
declare class AbortController {
  readonly signal: AbortSignal;
  abort(reason?: unknown): void;
}
declare class ToolError extends Error {
  readonly code: string;
  readonly tool: string;
  readonly call: number;
  readonly retryable: boolean;
}

";

/// How tools are shown.
pub(crate) const LISTING: Listing<'_> = Listing {
    fence: "typescript",
    before: SURFACE,
    after: "",
    search: "ALL_TOOLS.filter(({ name, description }) => /user/i.test(name + description))",
};

/// The instructions with this list of tools and these options.
pub(crate) fn instructions(tools: &str, is_on: impl Fn(&str) -> bool) -> String {
    let parts = [
        (
            "console",
            "`console`",
            "`console.log`, `info`, `warn`, `error` and `debug` show their arguments as text does.",
        ),
        (
            "timers",
            "timers such as `setTimeout`",
            "There are `setTimeout`, `setInterval`, `clearTimeout`, `clearInterval` and `queueMicrotask`.",
        ),
        (
            "binary",
            "`ArrayBuffer` or typed arrays",
            "There are `ArrayBuffer`, `DataView` and the typed arrays.",
        ),
    ];
    let present =
        parts.iter().filter(|part| is_on(part.0)).map(|part| format!("- {}\n", part.2)).collect::<String>();
    let mut absent: Vec<_> = parts.iter().filter(|part| !is_on(part.0)).map(|part| part.1).collect();
    absent.extend([
        "`import`",
        "`require`",
        "`process` or other Node.js API",
        "`fetch` or network",
        "files",
        "WebAssembly",
    ]);
    let text = TEXT
        .replace("{running}", prompt::RUNNING)
        .replace("{deadlock}", prompt::deadlock(is_on("wait_on_deadlock")))
        .replace("{present}", &present)
        .replace("{absent}", &absent.join(", no "));
    format!("{text}\n{tools}")
}
