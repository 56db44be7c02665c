//! Names of types that no two types of a catalog share.

use std::collections::{HashMap, HashSet};

/// Gives the types of one tool their names.
#[derive(Debug)]
pub(crate) struct TypeNames<'a> {
    alias: &'a str,
    /// How a language makes a name of a tool's alias and a word.
    style: fn(&str, &str) -> String,
    /// The names of other tools' types, and what else is taken.
    taken: &'a HashSet<String>,
    /// How many types wanted each name.
    wanted: HashMap<String, usize>,
    used: HashSet<String>,
}

impl<'a> TypeNames<'a> {
    pub(crate) fn new(alias: &'a str, style: fn(&str, &str) -> String, taken: &'a HashSet<String>) -> Self {
        Self { alias, style, taken, wanted: HashMap::new(), used: HashSet::new() }
    }

    /// A name that no other type has, of at most 64 characters of `word` that can stand in one.
    pub(crate) fn free(&mut self, word: &str, otherwise: &str) -> String {
        let is_word = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
        let word: String = word.chars().filter(is_word).take(64).collect();
        let name = (self.style)(self.alias, if word.is_empty() { otherwise } else { &word });
        loop {
            let n_wanted = self.wanted.entry(name.clone()).or_default();
            *n_wanted += 1;
            let name = if *n_wanted == 1 { name.clone() } else { format!("{name}_{n_wanted}") };
            // A number at the end of one name can make it the name of another.
            if !self.taken.contains(&name) && self.used.insert(name.clone()) {
                return name;
            }
        }
    }

    /// All the names given.
    pub(crate) fn into_used(self) -> HashSet<String> {
        self.used
    }
}
