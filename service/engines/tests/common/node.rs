//! Checkers that npm installs, each pinned by a lock file of these tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::cases::here;

/// A package of the folder `tests/LANGUAGE`, installed once from its lock file: the path of one of its
/// files.
pub fn installed(language: &str, package: &str, file: &str) -> PathBuf {
    let manifest = fs::read_to_string(here(language).join("package.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let version = manifest["devDependencies"][package].as_str().unwrap();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{package}-{version}"));
    let found = cache.join("node_modules").join(package).join(file);
    if found.is_file() {
        return found;
    }
    // Installed aside and moved, so that a broken installation is never used.
    let aside = cache.with_extension(format!("{}.tmp", std::process::id()));
    fs::create_dir_all(&aside).unwrap();
    for file in ["package.json", "package-lock.json"] {
        fs::copy(here(language).join(file), aside.join(file)).unwrap();
    }
    let output = run(Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(&aside));
    assert!(output.status.success(), "npm ci failed:\n{}", String::from_utf8_lossy(&output.stderr));
    if let Err(error) = fs::rename(&aside, &cache) {
        assert!(found.is_file(), "{} can't be moved to {}: {error}", aside.display(), cache.display());
    }
    found
}

/// Runs a checker over these files in a folder of its own and shows what it says against them.
pub fn check(folder: &str, files: &[(&str, String)], settings: &str, command: &mut Command) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
    let settings = here(settings);
    fs::copy(&settings, folder.join(settings.file_name().unwrap())).unwrap();
    let output = run(command.current_dir(&folder));
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in {}:\n{said}{complained}", folder.display());
}

fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().unwrap_or_else(|error| {
        panic!("{program} does not start ({error}); this test needs Node.js 18 or later with npm: apt install nodejs npm")
    })
}
