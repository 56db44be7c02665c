//! Prints what is to be mended in the repository, or writes its generated pages.

use std::process::ExitCode;

use anyhow::{Result, bail};
use seance_tidy::{RULES, pages, repo::Repo};

fn main() -> Result<ExitCode> {
    let repo = Repo::here()?;
    match std::env::args().nth(1).as_deref() {
        None | Some("check") => Ok(check(&repo)),
        Some("write") => pages::write(&repo.root).map(|()| ExitCode::SUCCESS),
        Some(other) => bail!("unknown command {other:?}; there are check and write"),
    }
}

fn check(repo: &Repo) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for rule in RULES {
        for finding in (rule.check)(repo) {
            println!("{}: {finding}", rule.name);
            code = ExitCode::FAILURE;
        }
    }
    code
}
