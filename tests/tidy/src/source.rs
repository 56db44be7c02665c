//! What must not be left in Rust source: unfinished work, tests that don't run, and tests that
//! sleep instead of waiting for something.

use std::collections::BTreeSet;

use regex::Regex;

use crate::{Finding, repo::Files, rust::Parts};

/// Forbidden everywhere: pattern and what to do.
const NEVER: &[(&str, &str)] = &[
    (r"\b(?:todo|unimplemented|dbg)!", "unfinished; finish it"),
    (r"#\s*\[\s*ignore\b", "an ignored test proves nothing; mend it or remove it"),
];

/// Forbidden in the product. Helpers that several test crates share are never all used by each.
const DEAD: &str = r"\ballow\s*\([^)]*\b(?:dead_code|unused\w*)\b";

const SLEEPS: &str = r"\b(?:thread|time)\s*::\s*sleep(?:_ms|_until)?\b|(?:^|[^\w.:])sleep\s*\(";

/// A clock that the test moves itself: sleeping on it takes no time and can't be too short.
const OWN_CLOCK: &str = r"\bstart_paused\b|\btime\s*::\s*pause\b|\bpause\s*\(\s*\)";

/// Between two looks at a condition one may sleep: the loop is this close, in bytes.
const POLL_BYTES: usize = 200;

/// Processes that tests start and that only have to be there.
const STARTED_BY_TESTS: &[&str] = &["tests/hostile/", "/testee/"];

/// What to mend, where `tests` are the files that only tests reach.
pub fn check(files: &Files, tests: &BTreeSet<String>) -> Vec<Finding> {
    let compile = |pattern: &str| Regex::new(pattern).expect("a constant");
    let never: Vec<_> = NEVER.iter().map(|(pattern, remedy)| (compile(pattern), *remedy)).collect();
    let (dead, sleeps, own_clock) = (compile(DEAD), compile(SLEEPS), compile(OWN_CLOCK));
    let pauses = |source: &str| own_clock.is_match(&Parts::of(source).code);
    let targets_with_own_clock: BTreeSet<&str> = files
        .iter()
        .filter(|(path, source)| path.ends_with(".rs") && source.as_deref().is_some_and(pauses))
        .filter_map(|(path, _)| test_target(path))
        .collect();
    let mut findings = Vec::new();
    for (path, source) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let parts = Parts::of(source.as_deref().unwrap_or_default());
        for (pattern, remedy) in &never {
            for found in pattern.find_iter(&parts.code) {
                let message = format!("{} {remedy}", found.as_str().trim());
                findings.push(Finding::at(path, parts.line(found.start()), message));
            }
        }
        for found in dead.find_iter(&parts.code).filter(|_| !tests.contains(path)) {
            let message = "dead code is removed, not allowed";
            findings.push(Finding::at(path, parts.line(found.start()), message));
        }
        let has_own_clock = own_clock.is_match(&parts.code)
            || test_target(path).is_some_and(|target| targets_with_own_clock.contains(target));
        if has_own_clock || STARTED_BY_TESTS.iter().any(|part| path.contains(part)) {
            continue;
        }
        let ranges = parts.test_ranges();
        for found in sleeps.find_iter(&parts.code) {
            if polls(&parts.code, found.start()) {
                continue;
            }
            if tests.contains(path) || ranges.iter().any(|range| range.contains(&found.start())) {
                let message = "a test that sleeps is slow or flaky; wait for a condition with a deadline";
                findings.push(Finding::at(path, parts.line(found.end()), message));
            }
        }
    }
    findings
}

/// The folder of a test target of several files, whose clock they share.
fn test_target(path: &str) -> Option<&str> {
    let start = path.find("/tests/")? + "/tests/".len();
    let end = start + path[start..].find('/')?;
    Some(&path[..end])
}

/// Whether a loop opens just before an offset.
fn polls(code: &str, offset: usize) -> bool {
    let near = String::from_utf8_lossy(&code.as_bytes()[offset.saturating_sub(POLL_BYTES)..offset]);
    near.contains("while ") || near.contains("loop {")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::sample;

    fn lines(source: &str, tests: &[&str]) -> Vec<usize> {
        let tests = tests.iter().map(|path| (*path).to_owned()).collect();
        check(&sample(&[("a.rs", source)]), &tests).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unfinished_work_and_ignored_tests_are_found() {
        assert_eq!(lines("fn a() {\n    todo!()\n}", &[]), [2]);
        assert_eq!(lines("let b = dbg!(c);", &[]), [1]);
        assert_eq!(lines("#[ignore = \"slow\"]\nfn a() {}", &[]), [1]);
        assert_eq!(lines("#![allow(dead_code)]", &[]), [1]);
        assert_eq!(lines("#![allow(dead_code)]", &["a.rs"]), Vec::<usize>::new());
        assert_eq!(lines("// todo!()\nlet a = \"dbg!(x)\";", &[]), Vec::<usize>::new());
    }

    #[test]
    fn a_test_that_sleeps_is_found_and_a_timer_of_the_product_is_not() {
        let source = "fn a() { tokio::time::sleep(b); }\n#[cfg(test)]\nmod tests {\n    fn c() { std::thread::sleep(d); }\n}";
        assert_eq!(lines(source, &[]), [4]);
        assert_eq!(lines(source, &["a.rs"]), [1, 4]);
        assert_eq!(lines("use tokio::time::sleep;\nfn a() { sleep(b) }", &["a.rs"]), [1, 2]);
    }

    #[test]
    fn looking_at_a_condition_again_and_again_is_fine() {
        let source = "async fn a() { while !b() { tokio::time::sleep(c).await; } }";
        assert_eq!(lines(source, &["a.rs"]), Vec::<usize>::new());
    }

    #[test]
    fn sleeping_on_a_clock_of_ones_own_is_fine() {
        let source = "#[tokio::test(start_paused = true)]\nasync fn a() { tokio::time::sleep(b).await }";
        assert_eq!(lines(source, &["a.rs"]), Vec::<usize>::new());
    }

    #[test]
    fn the_files_of_a_test_target_share_its_clock() {
        let sleeps = "async fn a() { tokio::time::sleep(b).await }";
        let files = |other: &str| {
            let files = sample(&[("c/tests/t/main.rs", other), ("c/tests/t/support.rs", sleeps)]);
            let tests = ["c/tests/t/main.rs", "c/tests/t/support.rs"].map(str::to_owned).into();
            check(&files, &tests).len()
        };
        assert_eq!(files("#[tokio::test(start_paused = true)]\nasync fn a() {}"), 0);
        assert_eq!(files("#[tokio::test]\nasync fn a() {}"), 1);
    }
}
