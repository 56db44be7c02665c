//! What can be wrong with a tool's schema.

use std::fmt;

use seance_core::catalog::Tool;

/// Which of a tool's schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Which {
    /// Of its arguments.
    Input,
    /// Of its value.
    Output,
}

impl Which {
    /// The text of this schema of a tool; none where it has none.
    pub(super) fn text(self, tool: &Tool) -> Option<&str> {
        let text = match self {
            Which::Input => &tool.input_schema,
            Which::Output => &tool.output_schema,
        };
        text.as_deref().filter(|text| !text.is_empty())
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Which::Input => "input schema",
            Which::Output => "output schema",
        })
    }
}

/// A tool has a schema that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {which} of tool {tool:?} is wrong{}: {message}", place(path))]
pub struct CatalogError {
    /// The tool.
    pub tool: String,
    /// Which schema.
    pub which: Which,
    /// The JSON pointer to what is wrong in it; empty for the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// Where it is wrong, in the message: nothing for the whole.
fn place(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" at {path:?}") }
}

/// What is wrong in a schema, before it is known whose it is.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) path: String,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }

    pub(super) fn of(self, tool: &str, which: Which) -> CatalogError {
        CatalogError { tool: tool.to_owned(), which, path: self.path, message: self.message }
    }
}
