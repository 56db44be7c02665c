//! Files as a whole: nothing unused, nothing missing, nothing of one machine, nothing endless.

use std::collections::BTreeSet;

use regex::Regex;

use crate::{Finding, repo::Files};

/// Lines of a Rust file. Past a few hundred a file has more than one thing in it.
const LINES_MAX: usize = 600;

/// Read by people, or by a tool that looks for this very name.
const KNOWN: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "Cargo.toml",
    "Cargo.lock",
    "rustfmt.toml",
    ".gitignore",
    ".ci/run",
    "tests/run",
];

/// Must be there.
const REQUIRED: &[&str] =
    &["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "Cargo.lock", ".ci/run", "tests/run"];

/// Files that no other file names, by their own name or by their folder's.
///
/// Rust files are left to [`crate::modules`].
pub fn unused(files: &Files) -> Vec<Finding> {
    files
        .keys()
        .filter(|path| !path.ends_with(".rs") && !is_known(path) && !is_named(path, files))
        .map(|path| Finding::whole(path, "no other file names it; use it or remove it"))
        .collect()
}

/// Whether people or tools find it by themselves: also Cargo's manifests, Go's, npm's, and the templates
/// of a chart, of which Helm takes all.
fn is_known(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    KNOWN.contains(&path)
        || (path.starts_with("charts/") && path.contains("/templates/"))
        || ["Cargo.toml", "go.mod", "go.sum", "package.json", "package-lock.json", "README.md"]
            .contains(&name)
}

fn is_named(path: &str, files: &Files) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder_name = folder.rsplit('/').next().filter(|name| name.len() > 3).unwrap_or(folder);
    files.iter().any(|(other, text)| {
        let Some(text) = text.as_deref().filter(|_| other != path) else { return false };
        has_word(text, name) || (!folder.is_empty() && has_word(text, &format!("{folder_name}/")))
    })
}

/// Whether `text` has `word` and not as a part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(joins);
        let after = !word.ends_with('/') && text[at + word.len()..].chars().next().is_some_and(joins);
        !before && !after
    })
}

/// Files that must be there and aren't, and a licence that isn't the one in the manifests.
pub fn missing(files: &Files) -> Vec<Finding> {
    let mut findings: Vec<_> = REQUIRED
        .iter()
        .filter(|path| !files.contains_key(**path))
        .map(|path| Finding::whole(*path, "must be there"))
        .collect();
    if let Some(Some(licence)) = files.get("LICENSE")
        && !licence.contains("Apache License")
    {
        findings.push(Finding::whole("LICENSE", "isn't the Apache-2.0 of the manifests"));
    }
    findings
}

/// Places that exist on one machine only.
pub fn machine_paths(files: &Files) -> Vec<Finding> {
    let machine = Regex::new(
        r"(?x) (?:^|[^\w.]) (
            /home/(?:[a-z]\w+)/\w | /Users/\w
            | /root/(?:\.pyenv|\.cargo|\.cache|go)\b
        )",
    )
    .expect("a constant");
    // Attacks name such places on purpose, and so does this rule.
    let skipped = |path: &str| path == "tests/tidy/src/files.rs" || path.contains("hostile");
    let mut findings = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| !skipped(path)) {
        for (index, line) in text.as_deref().unwrap_or_default().lines().enumerate() {
            if let Some(found) = machine.captures(line) {
                let message = format!("{} is a place on one machine", &found[1]);
                findings.push(Finding::at(path, index + 1, message));
            }
        }
    }
    findings
}

/// Rust files with more lines than one thing needs.
pub fn too_long(files: &Files) -> Vec<Finding> {
    let rust: BTreeSet<_> = files.iter().filter(|(path, _)| path.ends_with(".rs")).collect();
    rust.into_iter()
        .filter_map(|(path, text)| {
            let n_lines = text.as_deref().unwrap_or_default().lines().count();
            let message = format!("has {n_lines} lines, over {LINES_MAX}; split it by what it does");
            (n_lines > LINES_MAX).then(|| Finding::whole(path, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::sample;

    fn places(findings: Vec<Finding>) -> Vec<String> {
        findings.into_iter().map(|finding| finding.place).collect()
    }

    #[test]
    fn a_file_that_nobody_names_is_found() {
        let files = sample(&[
            ("README.md", "see docs/limits.md, cases/ and old-notes.md"),
            ("docs/limits.md", ""),
            ("a/cases/one.toml", "two.toml is not here"),
            ("a/notes.md", "a/notes.md"),
            ("b/Cargo.toml", ""),
            ("charts/c/templates/d.yaml", ""),
        ]);
        assert_eq!(places(unused(&files)), ["a/notes.md"]);
    }

    #[test]
    fn a_missing_licence_and_another_one_are_found() {
        let files = sample(&[("LICENSE", "All rights reserved")]);
        let found = places(missing(&files));
        assert!(
            found.contains(&"README.md".to_owned()) && found.contains(&"LICENSE".to_owned()),
            "{found:?}"
        );
    }

    #[test]
    fn places_of_one_machine_are_found() {
        for bad in ["see /home/anna/x", "PATH=/root/.cargo/bin", "/Users/x"] {
            assert_eq!(machine_paths(&sample(&[("a.md", bad)])).len(), 1, "{bad}");
        }
        for good in ["/homework/main", "/home", "/root", "https://x/home.html"] {
            assert_eq!(machine_paths(&sample(&[("a.md", good)])), [], "{good}");
        }
    }

    #[test]
    fn an_endless_file_is_found() {
        let files =
            sample(&[("a.rs", &"\n".repeat(601)), ("b.rs", &"\n".repeat(600)), ("c.md", &"\n".repeat(900))]);
        assert_eq!(places(too_long(&files)), ["a.rs"]);
    }
}
