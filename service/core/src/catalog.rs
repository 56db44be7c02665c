//! The tools that programs may call, as their owner declared them.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::CatalogDigest;

/// The most tools in one catalog.
pub const TOOLS_MAX: usize = 4096;
/// The largest catalog, names, descriptions and schemas together, in bytes.
pub const CATALOG_BYTES_MAX: usize = 2 * 1024 * 1024 + 512 * 1024;
/// The longest tool name, in characters.
pub const TOOL_NAME_CHARS_MAX: usize = 128;

/// A tool as its owner declares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// The canonical name, which providers get (D16).
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments as JSON text; any object when absent.
    pub input_schema: Option<String>,
    /// The JSON Schema of its value as JSON text; unknown when absent.
    pub output_schema: Option<String>,
    /// It changes nothing: may be called ahead of the log, and again.
    pub read_only: bool,
    /// A call with the same id may be repeated.
    pub replay_safe: bool,
    /// How long a call may take, when not the session's limit.
    pub timeout: Option<Duration>,
}

impl Tool {
    /// Whether a call may run ahead of the log and be made again.
    pub fn repeatable(&self) -> bool {
        self.read_only || self.replay_safe
    }
}

/// What can be wrong with a catalog before its schemas are looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More tools than [`TOOLS_MAX`].
    #[error("the catalog has {n_tools} tools, over the limit of {TOOLS_MAX}")]
    TooManyTools { n_tools: usize },
    /// More bytes than [`CATALOG_BYTES_MAX`].
    #[error("the catalog has {bytes} bytes, over the limit of {CATALOG_BYTES_MAX}")]
    TooLarge { bytes: usize },
    /// A name is empty, too long, or has characters that no name may have.
    #[error(
        "tool {index} (counted from 1) has the name {name:?}: a name has 1 to {TOOL_NAME_CHARS_MAX} characters and no spaces or control characters"
    )]
    BadName { index: usize, name: String },
    /// Two tools have one name.
    #[error("two tools are named {name:?}")]
    DuplicateName { name: String },
}

/// The tools that a program may call, in their owner's order. Immutable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    tools: Vec<Tool>,
}

impl Catalog {
    /// Checks count, size and names. Schemas and guest names are checked by the broker and the
    /// engines.
    pub fn new(tools: Vec<Tool>) -> Result<Self, Error> {
        if tools.len() > TOOLS_MAX {
            return Err(Error::TooManyTools { n_tools: tools.len() });
        }
        let bytes = tools.iter().map(bytes_of).sum();
        if bytes > CATALOG_BYTES_MAX {
            return Err(Error::TooLarge { bytes });
        }
        let mut names = HashSet::with_capacity(tools.len());
        for (index, tool) in tools.iter().enumerate() {
            if !is_name(&tool.name) {
                let name = tool.name.chars().take(TOOL_NAME_CHARS_MAX).collect();
                return Err(Error::BadName { index: index + 1, name });
            }
            if !names.insert(tool.name.as_str()) {
                return Err(Error::DuplicateName { name: tool.name.clone() });
            }
        }
        Ok(Self { tools })
    }

    /// The tools, in order.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The digest of everything in the catalog, order included.
    pub fn digest(&self) -> CatalogDigest {
        CatalogDigest::of(&self.to_json())
    }

    /// The catalog as JSON, the form that is kept.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings, booleans and durations always have a JSON form")
    }

    /// Reads what [`Catalog::to_json`] wrote.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

fn bytes_of(tool: &Tool) -> usize {
    let schema = |s: &Option<String>| s.as_ref().map_or(0, String::len);
    tool.name.len() + tool.description.len() + schema(&tool.input_schema) + schema(&tool.output_schema)
}

fn is_name(name: &str) -> bool {
    (1..=TOOL_NAME_CHARS_MAX).contains(&name.chars().count())
        && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Tool {
        Tool {
            name: name.to_owned(),
            description: String::new(),
            input_schema: None,
            output_schema: None,
            read_only: false,
            replay_safe: false,
            timeout: None,
        }
    }

    #[test]
    fn names_are_checked_and_named_in_the_error() {
        for good in ["a", "get-user", "v2.list", "9lives", "then", "ä/b"] {
            Catalog::new(vec![tool(good)]).unwrap();
        }
        let long = "x".repeat(129);
        for bad in ["", "a b", "a\nb", long.as_str()] {
            assert!(matches!(Catalog::new(vec![tool(bad)]), Err(Error::BadName { index: 1, .. })), "{bad:?}");
        }
        let twice = Catalog::new(vec![tool("a"), tool("a")]);
        assert_eq!(twice, Err(Error::DuplicateName { name: "a".to_owned() }));
    }

    #[test]
    fn a_catalog_of_five_thousand_tools_is_refused_with_the_limit() {
        let tools = (0..5000).map(|n| tool(&format!("t{n}"))).collect();
        let error = Catalog::new(tools).unwrap_err();
        assert!(error.to_string().contains("4096"), "{error}");
    }

    #[test]
    fn the_digest_depends_on_everything() {
        let digest = |tools| Catalog::new(tools).unwrap().digest();
        let (a, b) = (tool("a"), tool("b"));
        assert_ne!(digest(vec![a.clone(), b.clone()]), digest(vec![b, a.clone()]));
        assert_ne!(digest(vec![a.clone()]), digest(vec![Tool { read_only: true, ..a.clone() }]));
        let catalog = Catalog::new(vec![a]).unwrap();
        assert_eq!(Catalog::from_json(&catalog.to_json()).unwrap(), catalog);
    }
}
