//! Names of tools in a guest language. The canonical name is what providers get and records show; the
//! alias is what programs write.

use std::collections::HashMap;

use seance_core::catalog::Catalog;

/// Aliases that no tool may have, in any language: the controls of a session, and the function that
/// calls a tool by its canonical name.
pub const RESERVED: &[&str] = &["exec", "wait", "stop", "call"];

/// A tool's name in a guest language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The canonical name.
    pub name: String,
    /// What programs write.
    pub alias: String,
}

/// Why tools can't have their names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is one of [`RESERVED`], or of the language's host.
    #[error("tool {name:?} would be {alias:?} in a program, which is reserved; rename it")]
    Reserved { name: String, alias: String },
    /// Two tools would have one name.
    #[error("tools {first:?} and {second:?} would both be {alias:?} in a program; rename one")]
    Clash { first: String, second: String, alias: String },
}

/// A name with `_` for every character but ASCII letters, digits and `_`.
pub(crate) fn words(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// Gives every tool its alias, in the catalog's order. The language's host has `own` names beside
/// [`RESERVED`].
pub(crate) fn assign(
    catalog: &Catalog,
    alias_of: fn(&str) -> String,
    own: &[&str],
) -> Result<Vec<Alias>, NameError> {
    let mut seen: HashMap<String, &str> = HashMap::with_capacity(catalog.tools().len());
    let mut aliases = Vec::with_capacity(catalog.tools().len());
    for tool in catalog.tools() {
        let (name, alias) = (tool.name.clone(), alias_of(&tool.name));
        if RESERVED.contains(&alias.as_str()) || own.contains(&alias.as_str()) {
            return Err(NameError::Reserved { name, alias });
        }
        if let Some(first) = seen.insert(alias.clone(), &tool.name) {
            return Err(NameError::Clash { first: first.to_owned(), second: name, alias });
        }
        aliases.push(Alias { name, alias });
    }
    Ok(aliases)
}
