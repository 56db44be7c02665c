//! Catalogs too large for a prompt (G1), and what holds of any catalog: the same text each time, within
//! its bounds, whatever schemas say.

mod common;

use common::cases::hostile;
use common::{random, tool};
use proptest::prelude::*;
use seance_core::catalog::{Catalog, Tool};
use seance_engines::{ALL, Engine};
use serde_json::json;

const ENGINES: [&str; 3] = ["javascript", "python", "ruby"];

fn engine(name: &str) -> &'static Engine {
    seance_engines::by_name(name).unwrap()
}

fn large(n_tools: usize) -> Catalog {
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

#[test]
fn a_large_catalog_is_listed_by_name_and_described_to_programs() {
    for name in ENGINES {
        let catalog = large(1_000);
        let described = engine(name).describe::<&str>(&catalog, &[]).unwrap();
        assert!(described.declarations.len() > 64 * 1024, "{name}");
        let text = &described.instructions;
        assert!(text.len() < 32 * 1024, "{name}: {}", text.len());
        assert!(text.contains("There are 1000 tools, too many to show"), "{text}");
        assert!(text.ends_with("read_998, read_999\n") && text.contains("read_0, read_1, read_2"), "{text}");
        assert!(text.contains("ALL_TOOLS.") || text.contains("in ALL_TOOLS if"), "{text}");
        let tools = engine(name).guest_tools(&catalog).unwrap();
        let seen = &tools[7];
        assert_eq!((seen.name.as_str(), seen.alias.as_str()), ("read-7", "read_7"));
        for part in ["Reads table 7 of the warehouse.", "read_7(", "Which one. (", "minimum 1"] {
            assert!(seen.description.contains(part), "{name}: {part} is missing from {}", seen.description);
        }
    }
}

/// F11, F12.
#[test]
fn a_small_catalog_is_shown_in_the_prompt() {
    for name in ENGINES {
        let catalog = large(3);
        let described = engine(name).describe::<&str>(&catalog, &[]).unwrap();
        assert!(described.instructions.contains(&described.declarations), "{name}");
        let tools = engine(name).guest_tools(&catalog).unwrap();
        let is_plain = tools[1].description == "Reads table 1 of the warehouse.";
        assert_eq!(is_plain, name != "ruby", "{}", tools[1].description);
        assert!(is_plain || tools[1].description.contains("def tools.read_1(id:, filter: nil); end"));
    }
}

/// A cache of prompts holds: the same catalog has the same text, and one more tool changes nothing that
/// stands before the tools.
#[test]
fn the_text_is_stable() {
    for name in ENGINES {
        for n_tools in [3, 1_000] {
            let text = |n: usize| engine(name).describe::<&str>(&large(n), &[]).unwrap().instructions;
            let (one, more) = (text(n_tools), text(n_tools + 1));
            assert_eq!(one, text(n_tools), "{name}");
            let same = one.bytes().zip(more.bytes()).take_while(|(a, b)| a == b).count();
            let tools = ["There are 1", "\n```"].iter().find_map(|mark| one.find(mark)).unwrap();
            assert!(same > tools, "{name}: the texts differ from byte {same}, the tools begin at {tools}");
        }
    }
}

/// More names than a prompt has room for are left to the programs.
#[test]
fn names_take_no_more_than_their_budget() {
    let tools = (0..4_096).map(|n| tool(&format!("{}{n:05}", "n".repeat(123)))).collect();
    let catalog = Catalog::new(tools).unwrap();
    for name in ENGINES {
        let text = engine(name).describe::<&str>(&catalog, &[]).unwrap().instructions;
        assert!(text.len() < 72 * 1024 && text.contains(" more in `ALL_TOOLS`"), "{name}: {}", text.len());
        assert_eq!(engine(name).guest_tools(&catalog).unwrap().len(), 4_096);
    }
}

#[test]
fn instructions_mention_only_what_a_language_has() {
    let catalog = large(1);
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
