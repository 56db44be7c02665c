//! Every rule on the repository as it is.

use std::sync::LazyLock;

use seance_tidy::{RULES, repo::Repo};

static REPO: LazyLock<Repo> = LazyLock::new(|| Repo::here().expect("the repository can be read"));

fn check(name: &str) {
    let rule = RULES.iter().find(|rule| rule.name == name).expect("the rule exists");
    let findings = (rule.check)(&REPO);
    let text: Vec<_> = findings.iter().map(|finding| format!("  {finding}\n")).collect();
    assert!(findings.is_empty(), "{} to mend:\n{}", findings.len(), text.concat());
}

macro_rules! rules {
    ($($test:ident: $name:literal,)*) => {
        $(#[test] fn $test() { check($name); })*

        #[test]
        fn every_rule_is_checked() {
            assert_eq!([$($name),*].as_slice(), RULES.iter().map(|rule| rule.name).collect::<Vec<_>>());
        }
    };
}

rules! {
    crates_keep_to_their_trust_walls: "trust walls",
    every_licence_is_accepted: "licences",
    every_rust_file_is_compiled: "dead modules",
    every_file_is_used: "dead files",
    every_claim_has_its_test: "claims",
    what_must_be_there_is_there: "what must be there",
    no_file_names_a_place_on_one_machine: "machine paths",
    no_file_is_endless: "file length",
    nothing_is_unfinished_and_no_test_sleeps: "source",
    every_reason_is_in_the_one_table: "reasons",
    generated_pages_are_fresh: "generated pages",
}
