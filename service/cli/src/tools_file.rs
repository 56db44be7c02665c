//! Tools as commands: a TOML file that maps tool names to commands.
//!
//! ```toml
//! [tools.find_lines]
//! description = "Lines of a file that contain a text."
//! command = ["grep", "-n"]
//! input_schema = "find_lines.schema.json"   # a file beside this one, or an inline table
//! read_only = true
//! ```
//!
//! A command gets the call's arguments as JSON on standard input and answers with JSON, or text, on
//! standard output. It runs in the file's own folder, with this user's rights: tools are trusted,
//! programs are not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use indexmap::IndexMap;
use seance_proto::v1alpha1 as proto;
use serde::Deserialize;

/// The largest tools or schema file, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Tools, in the file's order.
pub struct Tools {
    /// Where commands run.
    pub folder: PathBuf,
    /// The tools by name.
    pub tools: IndexMap<String, Tool>,
}

/// One tool.
pub struct Tool {
    /// The command and its arguments.
    pub command: Vec<String>,
    declaration: proto::Tool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tools: IndexMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    command: Vec<String>,
    #[serde(default)]
    description: String,
    input_schema: Option<Schema>,
    output_schema: Option<Schema>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    replay_safe: bool,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Schema {
    File(PathBuf),
    Inline(toml::Table),
}

impl Tools {
    /// Reads a tools file and the schemas beside it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_bounded(path)?;
        let file: File = toml::from_str(&text).with_context(|| format!("can't use {}", path.display()))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut tools = IndexMap::new();
        for (name, entry) in file.tools {
            let tool = tool(folder, &name, entry)
                .with_context(|| format!("tool {name:?} of {} can't be used", path.display()))?;
            tools.insert(name, tool);
        }
        Ok(Self { folder: folder.to_owned(), tools })
    }

    /// The catalog of these tools.
    pub fn catalog(&self) -> proto::Catalog {
        proto::Catalog { tools: self.tools.values().map(|tool| tool.declaration.clone()).collect() }
    }
}

fn tool(folder: &Path, name: &str, entry: Entry) -> Result<Tool> {
    if entry.command.is_empty() {
        bail!("its command is empty");
    }
    let schema = |schema: Option<Schema>| match schema {
        None => Ok(String::new()),
        Some(Schema::File(path)) => read_bounded(&folder.join(path)),
        Some(Schema::Inline(table)) => Ok(serde_json::to_string(&table)?),
    };
    let timeout = entry.timeout_ms.map(Duration::from_millis);
    let declaration = proto::Tool {
        name: name.to_owned(),
        description: entry.description,
        input_schema_json: schema(entry.input_schema)?,
        output_schema_json: schema(entry.output_schema)?,
        read_only: entry.read_only,
        replay_safe: entry.replay_safe,
        timeout: timeout.and_then(|timeout| timeout.try_into().ok()),
    };
    Ok(Tool { command: entry.command, declaration })
}

fn read_bounded(path: &Path) -> Result<String> {
    let doing = || format!("can't read {}", path.display());
    let bytes = std::fs::metadata(path).with_context(doing)?.len();
    if bytes > FILE_BYTES_MAX {
        bail!("{} has {bytes} bytes, over the limit of {FILE_BYTES_MAX}", path.display());
    }
    std::fs::read_to_string(path).with_context(doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Tools> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("in.json"), r#"{"type":"object"}"#).unwrap();
        let path = folder.path().join("tools.toml");
        std::fs::write(&path, text).unwrap();
        Tools::read(&path)
    }

    #[test]
    fn tools_keep_their_order_and_schemas() {
        let tools = read(
            r#"
            [tools.b]
            command = ["cat"]
            input_schema = "in.json"
            [tools.a]
            command = ["true"]
            read_only = true
            timeout_ms = 1500
            input_schema = { type = "object", properties = { n = { type = "integer" } } }
            "#,
        )
        .unwrap();
        let catalog = tools.catalog();
        assert_eq!(catalog.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(catalog.tools[0].input_schema_json, r#"{"type":"object"}"#);
        assert!(catalog.tools[1].input_schema_json.contains(r#""n":{"type":"integer"}"#));
        assert_eq!(catalog.tools[1].timeout.unwrap().nanos, 500_000_000);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = [
            ("[tools.a]\ncommand = []", "tool \"a\""),
            ("[tools.a]\ncommand = [\"x\"]\ninput_schema = \"no.json\"", "no.json"),
            ("[tools.a]\ncommand = [\"x\"]\ncolour = 1", "colour"),
            ("[tool.a]", "tool"),
        ];
        for (text, named) in wrong {
            let error = format!("{:#}", read(text).err().expect(text));
            assert!(error.contains(named), "{error}");
        }
    }
}
