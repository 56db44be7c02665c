//! Names: every tool can be called by the name that its declaration and the program's list show.

use anyhow::{Context as _, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use seance_proto::v1alpha1 as api;

use super::{Stage, expect, source};
use crate::case::{Case, Tool};
use crate::fixtures;
use crate::live;

const CATALOGS: usize = 10;
const NAMES_EACH: usize = 200;
/// What random names are made of.
const CHARACTERS: &[char] = &[
    'a', 'b', 'z', 'A', 'Z', '0', '9', '_', '$', '-', '.', '/', ':', '#', '@', '+', '*', '(', ')', '{', '}',
    '[', ']', '<', '>', '"', '\'', '`', '\\', ',', ';', '=', '!', '?', '%', '&', '|', '~', '^', 'é', 'ß',
    '漢', '😀',
];

/// Case 27.
pub async fn reserved_names(mut stage: Stage) -> anyhow::Result<()> {
    const RESERVED: &[&str] = &[
        "delete",
        "class",
        "then",
        "constructor",
        "toString",
        "send",
        "object_id",
        "await",
        "new",
        "prototype",
        "valueOf",
        "hasOwnProperty",
        "__proto__",
        "function",
        "toJSON",
        "arguments",
        "eval",
    ];
    stage.case.fixtures = Some(vec![]);
    stage.case.tools = RESERVED.iter().map(|name| tool(name)).collect();
    check_names(&stage).await?;
    stage
        .with_session(async |live| {
            let text = "const t = await tools; return [t === tools, typeof tools.constructor, typeof tools.then, `${typeof tools.toString}`]";
            let seen = live.execute(&source(text)).await?;
            expect(text, &seen, |e| {
                e.value = Some(r#"[true,"undefined","undefined","undefined"]"#.to_owned());
            })
        })
        .await
}

/// Case 28: 2,000 random names in ten catalogs.
pub async fn random_names(stage: Stage) -> anyhow::Result<()> {
    let seed = stage.target.seed;
    let mut random = StdRng::seed_from_u64(seed);
    for catalog in 0..CATALOGS {
        let mut stage = stage.clone();
        stage.case.fixtures = Some(vec![]);
        stage.case.tools = (0..NAMES_EACH).map(|n| tool(&random_name(&mut random, n))).collect();
        check_names(&stage).await.with_context(|| format!("seed {seed}, catalog {catalog}"))?;
    }
    Ok(())
}

/// A random name. Its number at the end keeps any two of a catalog apart in every language.
fn random_name(random: &mut StdRng, number: usize) -> String {
    let length = random.random_range(0..20);
    let mut name: String =
        (0..length).map(|_| CHARACTERS[random.random_range(0..CHARACTERS.len())]).collect();
    name.push_str(&format!("_{number}"));
    name
}

fn tool(name: &str) -> Tool {
    Tool { name: name.to_owned(), description: format!("It is {name}."), ..Tool::default() }
}

/// Describes the case's catalog, calls every tool by alias and by name, and compares.
async fn check_names(stage: &Stage) -> anyhow::Result<()> {
    let names: Vec<String> = stage.case.tools.iter().map(|tool| tool.name.clone()).collect();
    let aliases = described(stage, &stage.case, &names).await?;
    stage
        .with_session(async |live| {
            let seen = live.execute(&source("return ALL_TOOLS.map((tool) => tool.name)")).await?;
            expect("ALL_TOOLS", &seen, |e| e.value = serde_json::to_string(&aliases).ok())?;
            let text =
                "await Promise.all(ALL_TOOLS.map(({name}) => tools[name]({by: 'alias'}))); return ALL_TOOLS.length";
            let seen = live.execute(&source(text)).await?;
            let n_names = names.len().to_string();
            expect("calls by alias", &seen, |e| e.value = Some(n_names.clone()))?;
            let mut step = source(
                "await Promise.all(INPUTS.map((name) => tools.call(name, {by: 'name'}))); return INPUTS.length",
            );
            step.inputs = serde_json::to_string(&names).ok();
            let seen = live.execute(&step).await?;
            expect("calls by name", &seen, |e| e.value = Some(n_names.clone()))?;
            let records = live.provider.as_ref().context("no provider")?.records();
            let recorded: Vec<&str> = records.iter().map(|record| record.tool.as_str()).collect();
            let wanted: Vec<&str> = names.iter().chain(&names).map(String::as_str).collect();
            let first = recorded.iter().zip(&wanted).find(|(got, want)| got != want);
            ensure!(first.is_none(), "recorded name and wanted name differ: {first:?}");
            ensure!(recorded.len() == wanted.len(), "{} calls of {} came", recorded.len(), wanted.len());
            Ok(())
        })
        .await
}

/// The aliases, each of which must be declared.
async fn described(stage: &Stage, case: &Case, names: &[String]) -> anyhow::Result<Vec<String>> {
    let request = api::DescribeRequest {
        engine: "javascript".to_owned(),
        catalog: Some(live::inline(fixtures::catalog(case.fixtures.as_deref(), &case.tools)?)),
        engine_options: vec![],
    };
    let described = stage.target.door.engines().describe(request).await?.into_inner();
    let canonical: Vec<&String> = described.aliases.iter().map(|alias| &alias.name).collect();
    ensure!(canonical == names.iter().collect::<Vec<_>>(), "Describe lists other names or another order");
    let aliases: Vec<String> = described.aliases.into_iter().map(|alias| alias.alias).collect();
    for alias in &aliases {
        let is_declared = [format!("\n  {alias}("), format!("\n  \"{alias}\"(")]
            .iter()
            .any(|method| described.declarations.contains(method.as_str()));
        ensure!(is_declared, "{alias} is not declared");
    }
    Ok(aliases)
}
