//! What holds of any catalog in every language: the same text each time, within its bounds, whatever
//! schemas say.

mod common;

use common::cases::hostile;
use common::random;
use proptest::prelude::*;
use seance_core::catalog::{Catalog, Tool};
use seance_engines::{ALL, Engine};
use serde_json::json;

const ENGINES: [&str; 3] = ["javascript", "python", "ruby"];

fn engine(name: &str) -> &'static Engine {
    seance_engines::by_name(name).unwrap()
}

fn tables(n_tools: usize) -> Catalog {
    let schema = json!({"type": "object", "required": ["id"], "properties": {
        "id": {"type": "integer", "description": "Which one.", "minimum": 1},
        "filter": {"type": "object", "properties": {"tag": {"type": "string"}}}}});
    let tools = (0..n_tools).map(|n| {
        let description = format!("Reads table {n} of the warehouse.");
        random::tool_with(&format!("read-{n}"), description, &schema, &schema)
    });
    Catalog::new(tools.collect()).unwrap()
}

#[test]
fn every_engine_is_tested_here() {
    assert_eq!(ALL.iter().map(|engine| engine.name).collect::<Vec<_>>(), ENGINES);
    for name in ENGINES {
        assert_eq!(seance_engines::by_language(name), Some(engine(name)));
    }
}

/// A cache of prompts holds: the same catalog has the same text, and one more tool changes nothing that
/// stands before the tools.
#[test]
fn the_text_is_stable() {
    for name in ENGINES {
        for n_tools in [3, 200] {
            let text = |n: usize| engine(name).describe::<&str>(&tables(n), &[]).unwrap().instructions;
            let (one, more) = (text(n_tools), text(n_tools + 1));
            assert_eq!(one, text(n_tools), "{name}");
            let same = one.bytes().zip(more.bytes()).take_while(|(a, b)| a == b).count();
            let tools = one.find("\n```").unwrap();
            assert!(same > tools, "{name}: the texts differ from byte {same}, the tools begin at {tools}");
        }
    }
}

#[test]
fn instructions_mention_only_what_a_language_has() {
    let catalog = tables(1);
    for (name, has, lacks) in [
        (
            "python",
            vec!["`await tools.name(key=value)`", "asyncio.gather", "`finish(value)`", "tool_"],
            vec!["Promise", "FRAME", "exit()"],
        ),
        (
            "ruby",
            vec![
                "`tools.name(key: value)`",
                "tools.parallel",
                "`finish(value)`",
                "last expression",
                "new process",
                "what the sandbox allows",
            ],
            vec!["Promise", "FRAME", "await", "yield"],
        ),
    ] {
        let described = engine(name).describe(&catalog, &["wait_on_deadlock"]).unwrap();
        let text = described.instructions;
        let shared = [
            "Every program starts fresh",
            "still_working",
            "`INPUTS`",
            "`store.set(key, value)`",
            "`ALL_TOOLS`",
            "until its time is over",
        ];
        for part in has.into_iter().chain(shared) {
            assert!(text.contains(part), "{name}: {part} is missing from:\n{text}");
        }
        for part in lacks {
            assert!(!text.contains(part), "{name}: {part} is in:\n{text}");
        }
    }
}

/// What stands at the beginning of the lines of declarations outside doc strings.
fn begins_as_declared(engine: &str, line: &str) -> bool {
    let begins: &[&str] = match engine {
        "ruby" => &["# ", "def tools."],
        _ => return true,
    };
    line.is_empty() || begins.iter().any(|begin| line.starts_with(begin))
}

fn check(engine_name: &str, tools: Vec<Tool>) {
    let n_tools = tools.len();
    let catalog = Catalog::new(tools).unwrap();
    let described = engine(engine_name).describe::<&str>(&catalog, &[]).unwrap();
    assert!(described.declarations.len() <= n_tools * 33 * 1024 + 4_096);
    for line in described.declarations.split(['\n', '\r', '\u{2028}', '\u{85}', '\u{c}', '\u{b}']) {
        assert!(begins_as_declared(engine_name, line), "{engine_name}: {line:?}");
    }
    assert_eq!(described, engine(engine_name).describe::<&str>(&catalog, &[]).unwrap());
}

#[test]
fn hostile_schemas_are_declared_in_every_language() {
    for name in ENGINES {
        check(name, hostile());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// No schema makes a renderer fail, go on without end or say more than it may.
    #[test]
    fn any_schema_is_declared_in_every_language(
        input in random::schema(), output in random::schema(), description in random::text(),
    ) {
        for name in ENGINES {
            check(name, vec![random::tool_with("t", description.clone(), &input, &output)]);
        }
    }
}
