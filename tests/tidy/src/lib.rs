//! Checks of the repository itself: what no compiler and no behaviour test sees.
//!
//! Each rule is a function from what it looks at to findings, so that a test can feed it a bad
//! sample. `tests/repository.rs` runs every rule on the real repository; `cargo run -p
//! seance-tidy` prints the same findings, and `cargo run -p seance-tidy -- write` writes the
//! generated pages.

pub mod claims;
pub mod files;
pub mod licences;
pub mod metadata;
pub mod modules;
pub mod pages;
pub mod reasons;
pub mod repo;
pub mod rust;
pub mod source;
pub mod walls;

use std::fmt;

/// Something to mend.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, or the package, that it is about.
    pub place: String,
    /// The line, from 1; 0 for the whole.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl Finding {
    /// A finding about a whole file or package.
    pub fn whole(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self::at(place, 0, message)
    }

    /// A finding at a line.
    pub fn at(place: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { place: place.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.place, self.message),
            line => write!(f, "{}:{line}: {}", self.place, self.message),
        }
    }
}

/// A rule by name.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What it finds in a repository.
    pub check: fn(&repo::Repo) -> Vec<Finding>,
}

/// All rules.
pub const RULES: &[Rule] = &[
    Rule { name: "trust walls", check: |repo| walls::check(&repo.metadata) },
    Rule { name: "licences", check: |repo| licences::check(&repo.metadata) },
    Rule { name: "dead modules", check: |repo| modules::check(&repo.files, &repo.crate_roots()) },
    Rule { name: "dead files", check: |repo| files::unused(&repo.files) },
    Rule { name: "claims", check: |repo| claims::check(&repo.files) },
    Rule { name: "what must be there", check: |repo| files::missing(&repo.files) },
    Rule { name: "machine paths", check: |repo| files::machine_paths(&repo.files) },
    Rule { name: "file length", check: |repo| files::too_long(&repo.files) },
    Rule { name: "source", check: |repo| source::check(&repo.files, &repo.test_files()) },
    Rule { name: "reasons", check: |repo| reasons::check(&repo.files, &repo.test_files()) },
    Rule { name: "generated pages", check: |repo| pages::check(&repo.files) },
];
