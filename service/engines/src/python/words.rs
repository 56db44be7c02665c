//! The names that stubs use of the language's own library. A tool may have one of them too; then stubs
//! say where theirs is from.

use std::collections::HashSet;

/// Names of `builtins` in stubs.
const BUILTINS: &[&str] = &["bool", "dict", "float", "int", "list", "str"];
/// Names of `typing` in stubs.
const TYPING: &[&str] = &["Annotated", "Any", "Literal", "Never", "NotRequired", "TypeAlias", "TypedDict"];

/// How a catalog's stubs write names of the library.
#[derive(Debug)]
pub(super) struct Words {
    hidden: HashSet<String>,
    /// What the modules are called.
    modules: [String; 2],
}

impl Words {
    /// Of a catalog with these aliases.
    pub(super) fn new<'a>(aliases: impl Iterator<Item = &'a str>) -> Self {
        let aliases: HashSet<&str> = aliases.collect();
        let hidden = BUILTINS.iter().chain(TYPING).filter(|word| aliases.contains(**word));
        let hidden = hidden.map(|word| (*word).to_owned()).collect();
        let modules = ["builtins", "typing"].map(|module| {
            let mut name = module.to_owned();
            while aliases.contains(name.as_str()) {
                name.push('_');
            }
            name
        });
        Self { hidden, modules }
    }

    /// The name as stubs write it.
    pub(super) fn write(&self, word: &str) -> String {
        let module = usize::from(TYPING.contains(&word));
        match self.hidden.contains(word) {
            true => format!("{}.{word}", self.modules[module]),
            false => word.to_owned(),
        }
    }

    /// The imports that stubs begin with.
    pub(super) fn imports(&self) -> String {
        let mut imports = format!("from typing import {}\n", TYPING.join(", "));
        for (module, words) in [(0, BUILTINS), (1, TYPING)] {
            if words.iter().any(|word| self.hidden.contains(*word)) {
                let (name, own) = (&self.modules[module], ["builtins", "typing"][module]);
                imports += &if name == own {
                    format!("import {own}\n")
                } else {
                    format!("import {own} as {name}\n")
                };
            }
        }
        imports
    }

    /// Whether a member of a class can't have this name: in the class it would hide what its own type
    /// is written with.
    pub(super) fn is_own(word: &str) -> bool {
        BUILTINS.contains(&word) || TYPING.contains(&word) || matches!(word, "builtins" | "typing")
    }
}
