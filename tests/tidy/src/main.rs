//! Prints what is to be mended in the repository, or writes its generated pages.

use anyhow::{Result, bail};
use seance_tidy::{RULES, pages, repo::Repo};

fn main() -> Result<()> {
    let repo = Repo::here()?;
    match std::env::args().nth(1).as_deref() {
        None | Some("check") => check(&repo),
        Some("write") => pages::write(&repo.root),
        Some(other) => bail!("unknown command {other:?}; there are check and write"),
    }
}

fn check(repo: &Repo) -> Result<()> {
    let mut n_findings = 0;
    for rule in RULES {
        for finding in (rule.check)(repo) {
            println!("{}: {finding}", rule.name);
            n_findings += 1;
        }
    }
    if n_findings > 0 {
        bail!("{n_findings} to mend");
    }
    Ok(())
}
