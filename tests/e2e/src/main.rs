//! `seance-e2e`: runs the tests on the cluster that KUBECONFIG names and says what came of each. Exits
//! with 1 when one fails, with 2 when nothing could be run.

use std::process::ExitCode;

use clap::Parser;
use seance_e2e::run::{self, Options};

#[tokio::main]
async fn main() -> ExitCode {
    // Installing it twice is the only way it fails, and it is there then.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match run::run(Options::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("seance-e2e: {error:#}");
            ExitCode::from(2)
        }
    }
}
