//! Every reason and code that callers see is a row of `seance_core::reasons`: the service names
//! it by its constant, and the runner, which may not use core, by the same text.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use seance_core::reasons::TABLE;

use crate::{Finding, repo::Files, rust::Parts};

static SHOUTED: LazyLock<Regex> = LazyLock::new(|| constant(r"^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$"));
static FIELD: LazyLock<Regex> = LazyLock::new(|| constant(r"\b(?:code|reason)\s*[:=]\s*$"));
static WORD: LazyLock<Regex> = LazyLock::new(|| constant(r"^\w+$"));
/// Names of the environment.
static ENVIRONMENT: LazyLock<Regex> = LazyLock::new(|| constant(r"^(?:SEANCE|RUST|CARGO|OTEL|XDG|LD|NO)_"));

fn constant(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant")
}

/// Other vocabularies in the same dress: gRPC's codes, the states of calls and programs, what the
/// audit says of a call, and the names that every program has.
const OTHER_WORDS: &[&str] = &[
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "DATA_LOSS",
    "NOT_STARTED",
    "OUTCOME_UNKNOWN",
    "STILL_WORKING",
    "NEVER_SEEN_SENT_AGAIN",
    "ALL_TOOLS",
];

/// Core's own table, the names that a test beside it holds against it, the words of
/// `CancelCall.reason`, which are listed in the proto, and codes of the CLI's own tools.
const KEEPERS: &[&str] = &[
    "service/core/src/reasons.rs",
    "service/core/src/sandbox.rs",
    "service/broker/src/providers/types.rs",
    "service/cli/src/provider.rs",
];

/// Reasons written as text, where `tests` are the files that only tests reach.
pub fn check(files: &Files, tests: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in files {
        let service = path.starts_with("service/") && !KEEPERS.contains(&path.as_str());
        let runner = path.starts_with("operator/runner/");
        let product = path.ends_with(".rs") && !tests.contains(path);
        if product && (service || runner) {
            let found = by_text(source.as_deref().unwrap_or_default(), service);
            findings.extend(found.into_iter().map(|(line, message)| Finding::at(path, line, message)));
        }
    }
    findings
}

fn by_text(source: &str, has_constants: bool) -> Vec<(usize, String)> {
    let parts = Parts::of(source);
    let tests = parts.test_ranges();
    let mut findings = Vec::new();
    for literal in &parts.literals {
        let text = literal.text.as_str();
        let is_field = FIELD.is_match(before(&parts.code, literal.start)) && WORD.is_match(text);
        let is_other = ENVIRONMENT.is_match(text) || OTHER_WORDS.contains(&text);
        if is_other
            || !(is_field || SHOUTED.is_match(text))
            || tests.iter().any(|range| range.contains(&literal.start))
        {
            continue;
        }
        let line = parts.line(literal.start);
        if !TABLE.iter().any(|row| row.name == text) {
            findings.push((line, format!("{text:?} is no row of seance_core::reasons")));
        } else if has_constants {
            findings.push((line, format!("write the constant of seance_core::reasons for {text:?}")));
        }
    }
    findings
}

/// The line before an offset.
fn before(code: &str, offset: usize) -> &str {
    let line = code[..offset].rfind('\n').map_or(0, |newline| newline + 1);
    &code[line..offset]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::sample;

    fn found(path: &str, source: &str) -> Vec<String> {
        check(&sample(&[(path, source)]), &BTreeSet::new())
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_reason_outside_the_table_is_found() {
        let message = ["\"OUT_OF_LUCK\" is no row of seance_core::reasons"];
        assert_eq!(found("service/server/src/a.rs", "refuse(\"OUT_OF_LUCK\")"), message);
        let message = ["\"bad_luck\" is no row of seance_core::reasons"];
        assert_eq!(found("operator/runner/src/a.rs", "E { code: \"bad_luck\".into() }"), message);
    }

    #[test]
    fn a_reason_by_text_is_found_where_there_are_constants() {
        let source = "E { code: \"turn_limit\" }; refuse(\"PROGRAM_ACTIVE\")";
        assert_eq!(found("service/sessions/src/a.rs", source).len(), 2);
        assert_eq!(found("operator/runner/src/a.rs", source), Vec::<String>::new());
    }

    #[test]
    fn tests_and_the_environment_may_say_what_they_like() {
        let source = "env(\"SEANCE_ADDRESS\");\n#[allow(x, reason = \"a sentence\")]\n#[cfg(test)]\nmod tests { const A: &str = \"OUT_OF_LUCK\"; }";
        assert_eq!(found("service/server/src/a.rs", source), Vec::<String>::new());
        assert_eq!(found("tests/conformance/src/a.rs", "x(\"OUT_OF_LUCK\")"), Vec::<String>::new());
    }
}
