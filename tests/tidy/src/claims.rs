//! Every test that the threat model names beside a claim is there: a claim whose test was renamed or
//! removed is a claim without one.

use std::sync::LazyLock;

use regex::Regex;

use crate::{Finding, repo::Files};

const PAGE: &str = "docs/threat-model.md";
static NAME: LazyLock<Regex> = LazyLock::new(|| Regex::new("`([a-z0-9_-]+)`").expect("a constant"));

/// Tests that the page's tables name and no Rust file has. A test is a function, an entry of a
/// table of attempts (`name:`), or one of `tests/e2e` (`"name",`).
pub fn check(files: &Files) -> Vec<Finding> {
    let Some(Some(page)) = files.get(PAGE) else { return vec![Finding::whole(PAGE, "must be there")] };
    let rust: Vec<&str> = files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .filter_map(|(_, text)| text.as_deref())
        .collect();
    let has = |name: &str| {
        let forms = [format!("fn {name}("), format!(" {name}:"), format!("\"{name}\",")];
        rust.iter().any(|text| forms.iter().any(|form| text.contains(form)))
    };
    let mut findings = Vec::new();
    for (index, line) in page.lines().enumerate() {
        for name in tests_of(line).filter(|name| !has(name)) {
            findings.push(Finding::at(PAGE, index + 1, format!("no test is called {name}")));
        }
    }
    findings
}

/// The names in the second of two columns.
fn tests_of(line: &str) -> impl Iterator<Item = &str> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
    let tests = if let [_, tests] = cells[..] { tests } else { "" };
    NAME.captures_iter(tests).filter_map(|found| found.get(1)).map(|name| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::sample;

    #[test]
    fn a_claim_without_its_test_is_found() {
        let page =
            "| it holds | `is_held`, `tried` (a.rs), `whole-way` (tests/e2e) |\n| `no` | `gone` |\n`text`\n";
        let source = "fn is_held() {}\n    tried: \"x\";\n\"whole-way\", f;";
        let found = check(&sample(&[(PAGE, page), ("a.rs", source)]));
        assert_eq!(found, [Finding::at(PAGE, 2, "no test is called gone")]);
    }
}
