//! Python: names, stubs, instructions.

mod instructions;
mod render;
mod types;
mod words;

pub(crate) use instructions::{LISTING, instructions};
pub(crate) use render::Stubs;

use crate::engine::EngineOption;

/// The optional parts of the engine.
pub(crate) const OPTIONS: &[EngineOption] = &[crate::engine::WAIT_ON_DEADLOCK];

/// Words of the grammar, which can't stand after a dot.
const KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// A tool's name in programs: every character but ASCII letters, digits and `_` becomes `_`; a name
/// that begins with a digit or two underscores, or is one of [`KEYWORDS`], gets `tool_` in front. What
/// begins with two underscores is looked up by the language itself, or renamed by it inside a class.
pub(crate) fn alias_of(name: &str) -> String {
    let alias = crate::names::words(name);
    if is_plain(&alias) { alias } else { format!("tool_{alias}") }
}

/// Whether `name` can be a parameter, and stand after a dot anywhere.
fn is_plain(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty()
        && name.chars().all(is_word)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.starts_with("__")
        && !KEYWORDS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases 25 and 27.
    #[test]
    fn names_become_identifiers_that_are_no_words_of_the_language() {
        for (name, alias) in [
            ("get-user", "get_user"),
            ("v2.list", "v2_list"),
            ("9lives", "tool_9lives"),
            ("a___b", "a___b"),
            ("ä/b", "tool___b"),
            ("$x", "_x"),
            ("class", "tool_class"),
            ("await", "tool_await"),
            ("None", "tool_None"),
            ("__class__", "tool___class__"),
            ("__x", "tool___x"),
            ("delete", "delete"),
            ("then", "then"),
            ("print", "print"),
            ("match", "match"),
            ("self", "self"),
        ] {
            assert_eq!(alias_of(name), alias, "{name}");
        }
    }
}
