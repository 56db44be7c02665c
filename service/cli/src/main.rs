//! `seance`: the service, and a client of it, in one binary.
//!
//! The binary is also the keeper and the runner of its own local sandboxes: those modes are taken
//! before anything else happens, because they must be single-threaded and small.

mod args;
mod backend;
mod bench;
mod client;
mod completion;
mod display;
mod doctor;
mod engines;
mod exec;
mod follow;
mod json;
mod provider;
mod run;
mod serve;
mod sessions;
mod token;
mod tools_file;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let mode = std::env::args_os().nth(1);
    match mode.as_ref().and_then(|mode| mode.to_str()) {
        Some(seance_sandbox::confine::INIT_COMMAND) => {
            seance_sandbox::confine::init_main(std::env::args_os().skip(2))
        }
        Some("runner" | "host-javascript") => seance_runner::main_from_args(std::env::args_os().skip(1)),
        _ => client_main(),
    }
}

fn client_main() -> ExitCode {
    let args = Args::parse();
    // Installing it twice is the only way it fails, and it is there then.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(dispatch(args)),
        Err(error) => Err(anyhow::Error::new(error).context("can't start")),
    };
    result.unwrap_or_else(|error| {
        if error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
            return ExitCode::from(client::EXIT_OUTPUT_GONE);
        }
        eprintln!("seance: {}", display::error_text(&error));
        ExitCode::from(client::exit_code(&error))
    })
}

async fn dispatch(args: Args) -> anyhow::Result<ExitCode> {
    let Args { connection, json, command } = args;
    match command {
        Command::Serve(serve) => serve::serve(*serve).await,
        Command::Run(run) => run::run(run, json).await,
        Command::Exec(exec) => exec::exec(&connection, exec, json).await,
        Command::Sessions(command) => sessions::sessions(&connection, command, json).await,
        Command::Follow(follow) => follow::follow(&connection, follow, json).await,
        Command::Engines(command) => engines::engines(&connection, command, json).await,
        Command::Token(token) => token::token(token, json),
        Command::Doctor(doctor) => doctor::doctor(doctor, json).await,
        Command::Bench(bench) => bench::bench(&connection, bench, json).await,
        Command::Completion { shell } => completion::completion(shell),
    }
}
