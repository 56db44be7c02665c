//! Rust files that no crate compiles: a test file nobody declares never fails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use crate::{Finding, repo::Files, rust::Parts};

/// Rust files that aren't in the module tree of any of the crate roots (path, whether a test).
pub fn check(files: &Files, roots: &[(String, bool)]) -> Vec<Finding> {
    let reached = walk(files, roots);
    files
        .keys()
        .filter(|path| path.ends_with(".rs") && !reached.contains_key(*path))
        .map(|path| Finding::whole(path, "no crate compiles it; declare it as a module or remove it"))
        .collect()
}

/// Rust files that are compiled for tests alone.
pub fn tests(files: &Files, roots: &[(String, bool)]) -> BTreeSet<String> {
    walk(files, roots).into_iter().filter(|(_, only_tests)| *only_tests).map(|(path, _)| path).collect()
}

/// Every file that the roots reach, and whether only tests do.
fn walk(files: &Files, roots: &[(String, bool)]) -> BTreeMap<String, bool> {
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    let mut open: Vec<_> = roots.iter().map(|(path, test)| (path.clone(), *test, true)).collect();
    while let Some((path, test, is_root)) = open.pop() {
        let Some(Some(source)) = files.get(&path) else { continue };
        match reached.get(&path) {
            Some(only_tests) if !*only_tests || test => continue,
            _ => reached.insert(path.clone(), test),
        };
        let own = source_folder(&path, is_root);
        for module in modules_of(source) {
            for candidate in module.candidates(&own, &path) {
                if files.contains_key(&candidate) {
                    open.push((candidate, test || module.test, false));
                }
            }
        }
    }
    reached
}

/// The folder where a file's modules are.
fn source_folder(path: &str, is_root: bool) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match is_root || name == "mod.rs" {
        true => folder.to_owned(),
        false => format!("{folder}/{}", name.trim_end_matches(".rs")),
    }
}

/// A declaration of a module in a file of its own, or an inclusion.
struct Module {
    /// The modules around it in the same file, joined, and its name.
    path: String,
    /// The file it names itself.
    file: Option<String>,
    /// Whether it is under `#[cfg(test)]`.
    test: bool,
}

impl Module {
    fn candidates(&self, own_folder: &str, declared_in: &str) -> Vec<String> {
        let beside = declared_in.rsplit_once('/').map_or("", |(folder, _)| folder);
        match &self.file {
            Some(file) => vec![normal(&format!("{beside}/{file}"))],
            None => ["{}.rs", "{}/mod.rs"]
                .map(|form| normal(&format!("{own_folder}/{}", form.replace("{}", &self.path))))
                .to_vec(),
        }
    }
}

/// A path without `.` and `..`.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?x)
        (?P<path>\#\[\s*path\s*=)
        | \bmod\s+(?P<name>\w+)\s*(?P<end>[;{])
        | (?P<include>\binclude!\s*\()
        | (?P<open>\{) | (?P<close>\})",
    )
    .expect("a constant")
});

fn modules_of(source: &str) -> Vec<Module> {
    let parts = Parts::of(source);
    let tests = parts.test_ranges();
    let literal_after = |at: usize| parts.literals.iter().find(|l| l.start >= at).map(|l| l.text.clone());
    let (mut depth, mut around, mut named) = (0usize, Vec::<(usize, String)>::new(), None);
    let mut found = Vec::new();
    for token in TOKEN.captures_iter(&parts.code) {
        let at = token.get(0).expect("the whole").start();
        let test = tests.iter().any(|range| range.contains(&at));
        if token.name("path").is_some() {
            named = literal_after(at);
        } else if token.name("include").is_some() {
            found.push(Module { path: String::new(), file: literal_after(at), test });
        } else if let Some(name) = token.name("name") {
            let inner = |name: &str| {
                let mut names: Vec<_> = around.iter().map(|(_, name)| name.as_str()).collect();
                names.push(name);
                names.join("/")
            };
            if &token["end"] == ";" {
                found.push(Module { path: inner(name.as_str()), file: named.take(), test });
            } else {
                depth += 1;
                around.push((depth, name.as_str().to_owned()));
            }
        } else if token.name("open").is_some() {
            depth += 1;
        } else {
            if around.last().is_some_and(|(opened, _)| *opened == depth) {
                around.pop();
            }
            depth = depth.saturating_sub(1);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::sample;

    fn unreached(files: &[(&str, &str)]) -> Vec<String> {
        let roots = [("a/src/lib.rs".to_owned(), false), ("a/tests/all.rs".to_owned(), true)];
        check(&sample(files), &roots).into_iter().map(|finding| finding.place).collect()
    }

    #[test]
    fn a_file_that_nobody_declares_is_found() {
        let files = [("a/src/lib.rs", "// mod b;\nconst S: &str = \"mod b;\";"), ("a/src/b.rs", "")];
        assert_eq!(unreached(&files), ["a/src/b.rs"]);
    }

    #[test]
    fn modules_in_every_form_are_reached() {
        let files = [
            (
                "a/src/lib.rs",
                "mod b;\npub(crate) mod c;\nmod d { fn x() {} mod e; }\n#[path = \"odd/f.rs\"] mod f;",
            ),
            ("a/src/b.rs", "mod g;"),
            ("a/src/b/g.rs", ""),
            ("a/src/c/mod.rs", "mod h;"),
            ("a/src/c/h.rs", "include!(\"../odd/i.rs\");"),
            ("a/src/d/e.rs", ""),
            ("a/src/odd/f.rs", ""),
            ("a/src/odd/i.rs", ""),
            ("a/tests/all.rs", "mod part;"),
            ("a/tests/part.rs", ""),
        ];
        assert_eq!(unreached(&files), Vec::<String>::new());
    }

    #[test]
    fn a_folder_of_tests_that_a_module_beside_it_should_declare_is_found() {
        let files = [("a/src/lib.rs", "mod b;"), ("a/src/b.rs", ""), ("a/src/b/tests.rs", "")];
        assert_eq!(unreached(&files), ["a/src/b/tests.rs"]);
    }

    #[test]
    fn what_only_tests_reach_is_a_test() {
        let files = sample(&[
            ("a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod c;"),
            ("a/src/b.rs", ""),
            ("a/src/c.rs", "mod d;"),
            ("a/src/c/d.rs", ""),
        ]);
        let found = tests(&files, &[("a/src/lib.rs".to_owned(), false)]);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a/src/c.rs", "a/src/c/d.rs"]);
    }
}
