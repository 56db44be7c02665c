//! JavaScript and TypeScript: names, declarations, instructions.

mod instructions;
mod literals;
mod render;

pub(crate) use instructions::{LISTING, instructions};
pub(crate) use render::TypeScript;

use crate::engine::EngineOption;

/// The optional parts of the engine.
pub(crate) const OPTIONS: &[EngineOption] = &[
    EngineOption { name: "console", description: "console.log, info, warn, error and debug, as output" },
    EngineOption {
        name: "timers",
        description: "setTimeout, setInterval, their clear functions, queueMicrotask",
    },
    EngineOption { name: "binary", description: "ArrayBuffer, DataView and typed arrays" },
    crate::engine::WAIT_ON_DEADLOCK,
];

/// Names that the language looks up on any object by itself: on `tools` they are never a tool, so
/// that it can be awaited, printed and compared. A tool of such a name gets an underscore in front.
/// Words of the grammar (`delete`, `class`, `await`) are fine after a dot and stay as they are.
const SPECIAL: &[&str] = &[
    "then",
    "constructor",
    "prototype",
    "toString",
    "toLocaleString",
    "valueOf",
    "toJSON",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "__proto__",
    "__defineGetter__",
    "__defineSetter__",
    "__lookupGetter__",
    "__lookupSetter__",
];

/// A tool's name in programs (F5, F6): every character but ASCII letters, digits, `_` and `$` becomes
/// `_`; a name that begins with none of letter, `_`, `$` gets `_` in front, and so does one of
/// [`SPECIAL`].
pub(crate) fn alias_of(name: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let mut alias: String = name.chars().map(|c| if is_word(c) { c } else { '_' }).collect();
    if !is_identifier(&alias) || SPECIAL.contains(&alias.as_str()) {
        alias.insert(0, '_');
    }
    alias
}

/// Whether `name` can stand after a dot and as a key without quotes.
pub(crate) fn is_identifier(name: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '$';
    name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F5, F6, cases 25 and 27.
    #[test]
    fn names_become_identifiers_that_are_safe_on_tools() {
        for (name, alias) in [
            ("get_user", "get_user"),
            ("get-user", "get_user"),
            ("v2.list", "v2_list"),
            ("9lives", "_9lives"),
            ("a___b", "a___b"),
            ("$x", "$x"),
            ("ä/b", "__b"),
            ("then", "_then"),
            ("constructor", "_constructor"),
            ("toString", "_toString"),
            ("__proto__", "___proto__"),
            ("delete", "delete"),
            ("class", "class"),
            ("await", "await"),
            ("send", "send"),
            ("object_id", "object_id"),
        ] {
            assert_eq!(alias_of(name), alias, "{name}");
        }
    }
}
