//! Case 35: the declarations of 60 schemas under the real TypeScript compiler.
//!
//! Each schema has samples that are valid and samples that aren't. Valid ones must type-check as
//! the tool's argument. Those that a type can tell apart must not, so that a declaration of
//! `unknown` can't pass.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use seance_proto::v1alpha1 as api;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::process::Command;

use super::Stage;
use crate::live;

const SCHEMAS: &str = include_str!("../../data/schemas.json");
const PACKAGE: &str = include_str!("../../typescript/package.json");
const LOCK: &str = include_str!("../../typescript/package-lock.json");
const TSCONFIG: &str = r#"{"compilerOptions": {"strict": true, "noEmit": true, "target": "es2023", "module": "esnext",
  "lib": ["es2023"], "types": []}, "include": ["*.ts"]}"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schema {
    schema: Box<RawValue>,
    valid: Vec<Box<RawValue>>,
    #[serde(default)]
    invalid: Vec<Box<RawValue>>,
}

fn schemas() -> anyhow::Result<Vec<Schema>> {
    serde_json::from_str(SCHEMAS).context("reading schemas.json")
}

/// Describes a tool for each schema and compiles declarations and samples.
pub async fn schemas_compile(stage: Stage) -> anyhow::Result<()> {
    let schemas = schemas()?;
    let tools = schemas.iter().enumerate().map(|(index, schema)| api::Tool {
        name: format!("t{index}"),
        input_schema_json: format!(
            r#"{{"type":"object","properties":{{"v":{}}},"required":["v"]}}"#,
            hoisted(schema.schema.get())
        ),
        output_schema_json: schema.schema.get().to_owned(),
        ..api::Tool::default()
    });
    let request = api::DescribeRequest {
        engine: "javascript".to_owned(),
        catalog: Some(live::inline(api::Catalog { tools: tools.collect() })),
        engine_options: vec![],
    };
    let described = stage.target.door.engines().describe(request).await?.into_inner();
    let folder = tempfile::tempdir()?;
    let surface = "declare class AbortSignal { readonly aborted: boolean }\n";
    tokio::fs::write(folder.path().join("tools.ts"), format!("{surface}{}", described.declarations)).await?;
    tokio::fs::write(folder.path().join("samples.ts"), samples(&schemas)?).await?;
    tokio::fs::write(folder.path().join("tsconfig.json"), TSCONFIG).await?;
    compile(folder.path()).await
}

/// A schema that refers to itself as "#" stands inside another one here.
fn hoisted(schema: &str) -> String {
    schema.replace("\"#\"", "\"#/properties/v\"").replace("\"#/$defs", "\"#/properties/v/$defs")
}

fn samples(schemas: &[Schema]) -> anyhow::Result<String> {
    let mut text = "export {};\n".to_owned();
    for (index, schema) in schemas.iter().enumerate() {
        writeln!(text, "type A{index} = Parameters<typeof tools.t{index}>[0];")?;
        for (n, sample) in schema.valid.iter().enumerate() {
            writeln!(text, "const v{index}_{n}: A{index} = {{\"v\": {}}};", on_one_line(sample))?;
        }
        for (n, sample) in schema.invalid.iter().enumerate() {
            writeln!(text, "// @ts-expect-error")?;
            writeln!(text, "const i{index}_{n}: A{index} = {{\"v\": {}}};", on_one_line(sample))?;
        }
    }
    Ok(text)
}

fn on_one_line(sample: &RawValue) -> String {
    sample.get().replace('\n', " ")
}

async fn compile(folder: &Path) -> anyhow::Result<()> {
    let compiler = compiler().await?;
    let output = Command::new("node").arg(&compiler).arg("-p").arg(folder).stdin(Stdio::null()).output();
    let output = output.await.context("running node; Node.js is needed for case 35")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = text.lines().take(8).collect();
        bail!("the TypeScript compiler refuses: {}", lines.join(" | "));
    }
    Ok(())
}

/// The pinned compiler, installed once beside this program from its lock file.
async fn compiler() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("this program has no folder")?.join("conformance-typescript");
    let compiler = folder.join("node_modules/typescript/bin/tsc");
    let is_current =
        tokio::fs::read_to_string(folder.join("package-lock.json")).await.is_ok_and(|l| l == LOCK);
    if is_current && compiler.is_file() {
        return Ok(compiler);
    }
    tokio::fs::create_dir_all(&folder).await?;
    tokio::fs::write(folder.join("package.json"), PACKAGE).await?;
    let mut install = Command::new("npm");
    tokio::fs::write(folder.join("package-lock.json"), LOCK).await?;
    install
        .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
        .current_dir(&folder)
        .stdin(Stdio::null());
    let output = install.output().await.context("running npm; Node.js is needed for case 35")?;
    ensure!(output.status.success(), "npm ci failed: {}", String::from_utf8_lossy(&output.stderr));
    ensure!(compiler.is_file(), "npm ci did not bring the TypeScript compiler");
    Ok(compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_sixty_schemas_each_with_a_valid_sample() {
        let schemas = schemas().unwrap();
        assert_eq!(schemas.len(), 60);
        assert!(schemas.iter().all(|schema| !schema.valid.is_empty()));
        let n_told_apart = schemas.iter().filter(|schema| !schema.invalid.is_empty()).count();
        assert!(n_told_apart >= 40, "only {n_told_apart} schemas have a sample that must not compile");
    }
}
