//! What Cargo knows of the workspace and of everything it locks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The answer of `cargo metadata`, as far as the rules look.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Metadata {
    /// Every locked package.
    pub packages: Vec<Package>,
    /// The ids of the workspace's own.
    pub workspace_members: Vec<String>,
    /// Who uses whom.
    pub resolve: Resolve,
}

/// A package.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Package {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence as an SPDX expression.
    pub license: Option<String>,
    /// What its manifest asks for.
    pub dependencies: Vec<Dependency>,
    /// What Cargo builds of it.
    pub targets: Vec<Target>,
}

/// What a manifest asks for.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Dependency {
    /// The package's name.
    pub name: String,
    /// None for a normal one, or `dev` or `build`.
    pub kind: Option<String>,
    /// The versions that will do.
    pub req: String,
    /// The folder, for one of the workspace.
    pub path: Option<PathBuf>,
}

/// Something Cargo builds.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Target {
    /// `lib`, `bin`, `test` and so on.
    pub kind: Vec<String>,
    /// Its first file.
    pub src_path: PathBuf,
}

/// Who uses whom, features and all.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Resolve {
    /// One for each package.
    pub nodes: Vec<Node>,
}

/// What one package uses.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: String,
    /// The used packages.
    pub deps: Vec<Use>,
}

/// A used package.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Use {
    /// Its id.
    pub pkg: String,
    /// As what.
    pub dep_kinds: Vec<Kind>,
}

/// As what a package is used.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Kind {
    /// None for a normal dependency.
    pub kind: Option<String>,
}

impl Metadata {
    /// The workspace's own packages.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// The names of everything that a package links, itself not counted: normal dependencies only.
    pub fn linked_by(&self, name: &str) -> Vec<&str> {
        let by_id: BTreeMap<_, _> = self.packages.iter().map(|package| (&package.id, package)).collect();
        let uses: BTreeMap<_, _> = self.resolve.nodes.iter().map(|node| (&node.id, &node.deps)).collect();
        let mut found = BTreeMap::new();
        let mut open: Vec<_> =
            self.members().filter(|package| package.name == name).map(|package| &package.id).collect();
        while let Some(id) = open.pop() {
            for used in uses.get(id).into_iter().copied().flatten() {
                let linked = used.dep_kinds.iter().any(|kind| kind.kind.is_none());
                if linked && found.insert(&used.pkg, ()).is_none() {
                    open.push(&used.pkg);
                }
            }
        }
        found.keys().filter_map(|id| by_id.get(*id)).map(|package| package.name.as_str()).collect()
    }

    /// The first file of everything that Cargo builds of the workspace, from its root, and
    /// whether it is a test.
    pub fn roots(&self, root: &Path) -> Vec<(String, bool)> {
        let targets = self.members().flat_map(|package| &package.targets);
        targets
            .filter_map(|target| {
                let path = target.src_path.strip_prefix(root).ok()?.to_str()?.to_owned();
                Some((path, target.kind.iter().any(|kind| kind == "test" || kind == "bench")))
            })
            .collect()
    }
}

/// Asks Cargo about the workspace at `root`.
///
/// # Errors
/// When Cargo fails: a manifest is broken, or the lock file doesn't match them.
pub fn of(root: &Path) -> Result<Metadata> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .output()
        .context("run cargo metadata")?;
    ensure!(asked.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&asked.stderr));
    serde_json::from_slice(&asked.stdout).context("read what cargo metadata says")
}
