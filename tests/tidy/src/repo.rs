//! The repository: its files as git knows them, its crates as Cargo does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::metadata::{self, Metadata};
use crate::modules;

/// Text files by their path from the repository's root; a binary file has no text.
pub type Files = BTreeMap<String, Option<String>>;

/// The repository.
pub struct Repo {
    /// Its root folder.
    pub root: PathBuf,
    /// Its files: those git has, and new ones it doesn't ignore.
    pub files: Files,
    /// Its crates and what they lock.
    pub metadata: Metadata,
}

impl Repo {
    /// The repository that this crate was built in.
    ///
    /// # Errors
    /// When git can't list it, a file can't be read, or Cargo can't tell.
    pub fn here() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .output()
            .context("run git ls-files")?;
        ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
        let mut files = Files::new();
        for path in String::from_utf8(listed.stdout)?.split_terminator('\0') {
            let whole = root.join(path);
            // Deleted, but the deletion isn't recorded yet.
            if whole.symlink_metadata().is_ok_and(|found| found.is_file()) {
                let bytes = std::fs::read(&whole).with_context(|| format!("read {path}"))?;
                files.insert(path.to_owned(), String::from_utf8(bytes).ok());
            }
        }
        let metadata = metadata::of(&root)?;
        Ok(Self { root, files, metadata })
    }

    /// The first file of everything that Cargo builds here, and whether it is a test.
    pub fn crate_roots(&self) -> Vec<(String, bool)> {
        self.metadata.roots(&self.root)
    }

    /// The Rust files that only tests reach.
    pub fn test_files(&self) -> BTreeSet<String> {
        modules::tests(&self.files, &self.crate_roots())
    }
}

/// Files for a test, from path and text.
#[cfg(test)]
pub fn sample(files: &[(&str, &str)]) -> Files {
    files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect()
}
