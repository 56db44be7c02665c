//! Making bearer tokens.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use seance_core::ids::TenantId;

use crate::args::Token;
use crate::display;

/// Prints a new token on standard output, once, and its entry for the tokens file on standard error.
pub fn token(token: Token, json: bool) -> Result<ExitCode> {
    let tenant: TenantId = token.tenant.parse().context("can't make a token")?;
    let minted = seance_server::auth::mint_token(&tenant, &token.name).context("can't make a token")?;
    if json {
        let object = serde_json::json!({ "token": minted.token, "file_entry": minted.file_entry });
        display::say(&object.to_string())?;
    } else {
        eprintln!("Add this to the service's tokens file; the token itself is kept nowhere:\n");
        eprintln!("{}\n", minted.file_entry.trim_end());
        eprintln!("The token:");
        display::say(&minted.token)?;
    }
    Ok(ExitCode::SUCCESS)
}
