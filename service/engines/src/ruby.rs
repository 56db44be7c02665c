//! Ruby: names, signatures, instructions.

mod instructions;
mod render;
mod types;

pub(crate) use instructions::{LISTING, instructions};
pub(crate) use render::Signatures;

use crate::engine::EngineOption;

/// The optional parts of the engine.
pub(crate) const OPTIONS: &[EngineOption] = &[crate::engine::WAIT_ON_DEADLOCK];

/// Names that this language's host has beside those of every language (F9).
pub(crate) const RESERVED: &[&str] = &["parallel", "text", "finish", "all_tools"];

/// Methods that every object has and the language or its library calls by itself, or whose loss would
/// surprise a program: on `tools` they are never a tool. A tool of such a name gets `tool_` in front.
/// Functions of Kernel (`open`, `sleep`, `fail`, `test`, `print`) and words of the grammar (`end`, `if`)
/// are fine after a dot and stay as they are; `class` is one of these methods.
const SPECIAL: &[&str] = &[
    "__binding__",
    "__id__",
    "__method__",
    "__send__",
    "class",
    "clone",
    "coerce",
    "define_singleton_method",
    "display",
    "dup",
    "encode_with",
    "enum_for",
    "extend",
    "extended",
    "freeze",
    "hash",
    "inherited",
    "init_with",
    "initialize",
    "initialize_clone",
    "initialize_copy",
    "initialize_dup",
    "inspect",
    "instance_eval",
    "instance_exec",
    "instance_variable_get",
    "instance_variable_set",
    "instance_variables",
    "itself",
    "marshal_dump",
    "marshal_load",
    "method",
    "method_missing",
    "methods",
    "object_id",
    "pretty_print",
    "pretty_print_cycle",
    "pretty_inspect",
    "private_methods",
    "protected_methods",
    "public_method",
    "public_methods",
    "public_send",
    "remove_instance_variable",
    "respond_to_missing",
    "send",
    "singleton_class",
    "singleton_method",
    "singleton_method_added",
    "singleton_method_removed",
    "singleton_method_undefined",
    "singleton_methods",
    "tap",
    "then",
    "to_a",
    "to_ary",
    "to_c",
    "to_enum",
    "to_f",
    "to_h",
    "to_hash",
    "to_i",
    "to_int",
    "to_io",
    "to_json",
    "to_open",
    "to_path",
    "to_proc",
    "to_r",
    "to_regexp",
    "to_s",
    "to_str",
    "to_sym",
    "to_yaml",
    "yield_self",
];

/// A tool's name in programs (F8): every character but ASCII letters, digits and `_` becomes `_`; a name
/// that begins with a digit, and one of [`SPECIAL`], gets `tool_` in front.
pub(crate) fn alias_of(name: &str) -> String {
    let alias = crate::names::words(name);
    let is_special = alias.starts_with(|c: char| c.is_ascii_digit()) || SPECIAL.contains(&alias.as_str());
    if is_special { format!("tool_{alias}") } else { alias }
}

/// Whether `name` can be a keyword of a method: a local name, and none that the language sets itself.
fn is_keyword(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_numbered =
        name.len() == 2 && name.starts_with('_') && name.ends_with(|c: char| c.is_ascii_digit());
    name.chars().all(is_word)
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && !name.starts_with("__")
        && !is_numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F8, cases 25 and 27.
    #[test]
    fn names_become_methods_that_no_object_has() {
        for (name, alias) in [
            ("get-user", "get_user"),
            ("v2.list", "v2_list"),
            ("9lives", "tool_9lives"),
            ("a$b", "a_b"),
            ("class", "tool_class"),
            ("send", "tool_send"),
            ("object_id", "tool_object_id"),
            ("then", "tool_then"),
            ("constructor", "constructor"),
            ("toString", "toString"),
            ("delete", "delete"),
            ("await", "await"),
            ("end", "end"),
            ("open", "open"),
            ("sleep", "sleep"),
            ("Foo", "Foo"),
        ] {
            assert_eq!(alias_of(name), alias, "{name}");
        }
    }
}
