//! Names of tools in programs: groups F, cases 25 to 28.

mod common;

use std::collections::HashSet;

use common::{catalog, describe, describe_in, javascript, tool};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use seance_engines::RESERVED;

fn refusal(names: &[&str]) -> String {
    javascript().names(&catalog(names.iter().copied())).unwrap_err().to_string()
}

/// F1: the canonical names stay, in order.
#[test]
fn aliases_stand_beside_the_canonical_names_in_order() {
    let names = ["zeta", "get-user", "Foo", "foo", "then"];
    let aliases = javascript().names(&catalog(names)).unwrap();
    let pairs: Vec<_> = aliases.iter().map(|a| (a.name.as_str(), a.alias.as_str())).collect();
    assert_eq!(
        pairs,
        [("zeta", "zeta"), ("get-user", "get_user"), ("Foo", "Foo"), ("foo", "foo"), ("then", "_then")]
    );
}

/// F2, F7.
#[test]
fn our_own_names_are_refused_naming_both_forms() {
    for name in RESERVED {
        assert_eq!(
            refusal(&["fine", name]),
            format!("tool {name:?} would be {name:?} in a program, which is reserved; rename it")
        );
    }
    javascript().names(&catalog(["exec2", "text", "store", "exit", "ALL_TOOLS"])).unwrap();
}

/// F3, case 26.
#[test]
fn two_tools_with_one_name_are_refused_naming_both() {
    assert_eq!(
        refusal(&["get-item", "other", "get_item"]),
        r#"tools "get-item" and "get_item" would both be "get_item" in a program; rename one"#
    );
    assert!(refusal(&["then", "_then"]).contains(r#"both be "_then""#));
}

/// F4.
#[test]
fn describing_checks_the_names_too() {
    let error = javascript().describe::<&str>(&catalog(["wait"]), &[]).unwrap_err();
    assert!(error.to_string().contains(r#""wait""#), "{error}");
}

/// Case 28: what is declared is what is callable and what ALL_TOOLS lists, which are the aliases.
#[test]
fn two_thousand_generated_names_are_declared_as_they_are_called() {
    let mut runner = TestRunner::deterministic();
    let generated = prop::collection::vec("[a-zA-Z0-9_$./:@äλ漢-]{1,24}", 2_200);
    let names = generated.new_tree(&mut runner).unwrap().current();
    let mut kept = Vec::new();
    let mut seen = HashSet::new();
    for name in names {
        let alias = javascript().names(&catalog([name.as_str()])).map(|aliases| aliases[0].alias.clone());
        if alias.is_ok_and(|alias| seen.insert(alias)) {
            kept.push(name);
        }
    }
    assert!(kept.len() >= 2_000, "{}", kept.len());
    let description = describe(kept.iter().map(|name| tool(name)).collect());
    let (_, methods) = description.declarations.split_once("declare const tools: {\n").unwrap();
    let declared: Vec<&str> = methods
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_once('('))
        .map(|(name, _)| name)
        .collect();
    let mut called: Vec<&str> = description.aliases.iter().map(|alias| alias.alias.as_str()).collect();
    called.push("call");
    let quoted: Vec<&str> = declared.iter().map(|name| name.trim_matches('"')).collect();
    assert_eq!(quoted.into_iter().filter(|name| !name.starts_with("/**")).collect::<Vec<_>>(), called);
}

/// In each language what is declared is what is callable, whatever tools are called (case 28).
#[test]
fn declarations_have_the_aliases_in_every_language() {
    let names =
        ["zeta", "get-user", "9lives", "class", "send", "list", "str", "__proto__", "then", "None", "ä"];
    for (engine, before) in [("python", "    async def "), ("ruby", "def tools.")] {
        let description = describe_in(engine, names.iter().map(|name| tool(name)).collect());
        let declared = description.declarations.lines().filter_map(|line| line.strip_prefix(before));
        let declared: Vec<_> = declared.map(|line| line.split_once('(').unwrap().0).collect();
        let called: Vec<_> = description.aliases.iter().map(|alias| alias.alias.as_str()).collect();
        assert_eq!(declared[..names.len()], called, "{engine}");
    }
}

proptest! {
    #[test]
    fn aliases_of_python_and_ruby_can_stand_after_a_dot(name in "[a-zA-Z0-9_$./:@äλ漢-]{1,24}") {
        for engine in ["python", "ruby"] {
            let engine = seance_engines::by_name(engine).unwrap();
            let Ok(aliases) = engine.names(&catalog([name.as_str()])) else { continue };
            let alias = &aliases[0].alias;
            prop_assert!(alias.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{}", alias);
            prop_assert!(!alias.starts_with(|c: char| c.is_ascii_digit()), "{}", alias);
        }
    }

    #[test]
    fn an_alias_is_an_identifier_and_never_special(name in "\\PC{1,40}") {
        prop_assume!(!name.chars().any(char::is_whitespace));
        if let Ok(aliases) = javascript().names(&catalog([name.as_str()])) {
            let alias = &aliases[0].alias;
            prop_assert!(alias.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '$'));
            prop_assert!(alias.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$'));
            prop_assert!(!["then", "constructor", "toString", "__proto__", "call", "exec"].contains(&alias.as_str()));
        }
    }
}
