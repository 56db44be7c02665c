//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

/// Code-mode sessions for AI agents: a model writes a program, seance runs it confined, lets it
/// call tools, and streams its output.
#[derive(Debug, Parser)]
#[command(name = "seance", version, propagate_version = true)]
#[command(
    after_help = "Exit status: 0 the program completed, 1 it failed, 2 the command line or a file it names is wrong, \
3 the program was stopped, 4 it was lost or never started, or the service refused or can't start, \
5 the service can't be reached, 6 the program is still working, 141 the reader of the output has gone.\n\n\
Start with: seance run examples/hello.js"
)]
pub struct Args {
    #[command(flatten)]
    pub connection: Connection,
    /// Prints JSON, one object a line, for programs to read.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

/// How to reach a service. `run`, `serve`, `doctor` and `token` need none, nor `bench`
/// without --kubernetes.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// The service's address.
    #[arg(
        long,
        global = true,
        env = "SEANCE_ADDRESS",
        default_value = "http://127.0.0.1:7443",
        value_name = "URL"
    )]
    pub address: String,
    /// A file with the bearer token.
    #[arg(long, global = true, env = "SEANCE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The certificate authority of an https address, PEM.
    #[arg(long, global = true, env = "SEANCE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a program here and now, with no service, and tools from a file of commands.
    Run(Run),
    /// Starts the service.
    Serve(Box<Serve>),
    /// Runs a program in a session of a service.
    Exec(Exec),
    /// Lists sessions and looks at them.
    #[command(subcommand)]
    Sessions(Sessions),
    /// Follows what happens in a session.
    Follow(Follow),
    /// Lists engines, and says what to tell a model.
    #[command(subcommand)]
    Engines(Engines),
    /// Makes a bearer token and its line for the tokens file.
    Token(Token),
    /// Says whether this machine can confine programs, or what a cluster lacks, and what to do about it.
    Doctor(Doctor),
    /// Measures this machine, or with --kubernetes an installed chart: each figure beside the floor of
    /// the same run.
    Bench(Bench),
    /// Prints the completion script of a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// The program and what it gets.
#[derive(Debug, Clone, ClapArgs)]
pub struct Program {
    /// The program; `-` for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Tools that the program may call: a TOML file that maps names to commands.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// The language; told from the file's ending when left out.
    #[arg(long, value_name = "NAME")]
    pub language: Option<String>,
    /// A JSON value that the program sees as INPUTS; `@FILE` reads it from a file.
    #[arg(long, value_name = "JSON")]
    pub inputs: Option<String>,
    /// A limit, such as wall_ms=5000. Can be given more than once.
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
    pub limits: Vec<(String, u64)>,
    /// An optional part of the engine, such as console. Can be given more than once.
    #[arg(long = "option", value_name = "NAME")]
    pub options: Vec<String>,
    /// Shows no tool calls, only the program's output and value.
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Run {
    #[command(flatten)]
    pub program: Program,
    /// Runs the program without confinement, as your own user. Only for programs you would run
    /// yourself.
    #[arg(long)]
    pub unconfined: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Exec {
    #[command(flatten)]
    pub program: Program,
    /// The session; a new one is opened, and closed at the end, when left out.
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Keeps a session that was opened for this, and prints its id.
    #[arg(long, conflicts_with = "session")]
    pub keep: bool,
    /// Leaves the program running, and the session open, when this command is interrupted.
    #[arg(long)]
    pub detach: bool,
}

#[derive(Debug, Default, ClapArgs)]
pub struct Serve {
    /// A TOML file of settings; flags go over it.
    #[arg(long, env = "SEANCE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The address of the API [default: 127.0.0.1:7443]. Port 0 takes a free one, and prints it.
    #[arg(long, env = "SEANCE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// The loopback address of /metrics, /healthz and /ready [default: 127.0.0.1:7444]; `off` for none.
    #[arg(long, env = "SEANCE_ADMIN_LISTEN", value_name = "ADDRESS")]
    pub admin_listen: Option<String>,
    /// Where sessions are kept [default: the user's data folder]; `memory` keeps them in memory only.
    #[arg(long, env = "SEANCE_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The file of hashed bearer tokens. Needed for an address that is not loopback.
    #[arg(long, env = "SEANCE_TOKENS_FILE", value_name = "FILE")]
    pub tokens_file: Option<PathBuf>,
    /// The certificate chain, PEM. Needed for an address that is not loopback.
    #[arg(long, env = "SEANCE_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM.
    #[arg(long, env = "SEANCE_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Sandboxes that are kept warm.
    #[arg(long, env = "SEANCE_WARM", value_name = "N")]
    pub warm: Option<usize>,
    /// Sandboxes at one time.
    #[arg(long, env = "SEANCE_MAX_SANDBOXES", value_name = "N")]
    pub max_sandboxes: Option<usize>,
    /// Seconds that an open waits for a sandbox [default: 30].
    #[arg(long, env = "SEANCE_CLAIM_WAIT_SECONDS", value_name = "SECONDS")]
    pub claim_wait_seconds: Option<u64>,
    /// Runs programs without confinement, as the service's own user.
    #[arg(long, env = "SEANCE_UNCONFINED")]
    pub unconfined: bool,
    /// Open sessions of one tenant.
    #[arg(long, env = "SEANCE_MAX_SESSIONS", value_name = "N")]
    pub max_sessions: Option<usize>,
    /// Programs of one tenant that are queued or run.
    #[arg(long, env = "SEANCE_MAX_RUNNING", value_name = "N")]
    pub max_running: Option<usize>,
    /// Days that closed sessions are kept.
    #[arg(long, env = "SEANCE_RETENTION_DAYS", value_name = "DAYS")]
    pub retention_days: Option<u64>,
    /// Bytes of closed sessions that are kept.
    #[arg(long, env = "SEANCE_RETENTION_BYTES", value_name = "BYTES")]
    pub retention_bytes: Option<u64>,
    /// Leaves sources out of the log.
    #[arg(long, env = "SEANCE_REDACT_SOURCE")]
    pub redact_source: bool,
    /// How log lines look: text or json.
    #[arg(long, env = "SEANCE_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// What is logged, such as info,seance_sessions=debug.
    #[arg(long, env = "SEANCE_LOG", value_name = "FILTER")]
    pub log_filter: Option<String>,
    /// Where spans go: an OTLP gRPC endpoint such as http://127.0.0.1:4317.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// Lists sessions, newest first.
    List {
        /// Only sessions at this state: open, closing or closed.
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// Only sessions with this label. Can be given more than once.
        #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
        /// At most this many.
        #[arg(long, default_value_t = 50, value_name = "N")]
        n: i32,
    },
    /// One session.
    Get {
        /// The session's id.
        session: String,
    },
    /// One program of a session.
    Program {
        /// The session's id.
        session: String,
        /// The program's number.
        number: u64,
    },
    /// Stops a program.
    Stop {
        /// The session's id.
        session: String,
        /// The program's number; the active one when left out.
        number: Option<u64>,
    },
    /// Ends a session.
    Close {
        /// The session's id.
        session: String,
    },
    /// Writes a blob to standard output.
    Blob {
        /// The session's id.
        session: String,
        /// The blob's id.
        blob: String,
    },
}

#[derive(Debug, ClapArgs)]
pub struct Follow {
    /// The session's id.
    pub session: String,
    /// The first event wanted.
    #[arg(long, default_value_t = 1, value_name = "SEQUENCE")]
    pub from: u64,
    /// Ends at the last event there is.
    #[arg(long)]
    pub until_now: bool,
}

#[derive(Debug, Subcommand)]
pub enum Engines {
    /// Lists the engines.
    List,
    /// Prints what to tell a model.
    Describe {
        /// The engine's name.
        #[arg(default_value = "javascript")]
        engine: String,
        /// The tools: a TOML file as `run` takes it.
        #[arg(long, value_name = "FILE")]
        tools: Option<PathBuf>,
        /// An optional part of the engine. Can be given more than once.
        #[arg(long = "option", value_name = "NAME")]
        options: Vec<String>,
    },
}

#[derive(Debug, ClapArgs)]
pub struct Token {
    /// Whom the token's bearer belongs to.
    pub tenant: String,
    /// A name for the token, for people.
    #[arg(long, default_value = "token", value_name = "NAME")]
    pub name: String,
}

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Exit status: 0 nothing is lacking, 1 something is, 5 the cluster can't be reached. What can't be seen \
is told and lacks nothing."
)]
pub struct Doctor {
    /// Looks at a cluster instead: what it has and lacks of what sandboxes as pods need.
    #[arg(long)]
    pub kubernetes: bool,
    /// The file that tells where the cluster is; KUBECONFIG or the usual one when left out.
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub kubeconfig: Option<PathBuf>,
    /// The context in that file; its current one when left out.
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    pub context: Option<String>,
    /// Looks only at the pools of this namespace, for callers who may not list those of all.
    #[arg(long, short, value_name = "NAME", requires = "kubernetes")]
    pub namespace: Option<String>,
}

#[derive(Debug, Default, ClapArgs)]
pub struct Bench {
    /// Measures the service at --address and the pool that its sandboxes come from: an installed chart.
    /// The cluster is the one of KUBECONFIG, or the one that this runs in. What it makes there, it
    /// takes away again.
    #[arg(long)]
    pub kubernetes: bool,
    /// The SandboxPool that is measured [default: the only one with JavaScript].
    #[arg(long, requires = "kubernetes", value_name = "NAME")]
    pub pool: Option<String>,
    /// The namespace of the sandboxes [default: all are looked through for pools].
    #[arg(long, requires = "kubernetes", value_name = "NAME")]
    pub sandbox_namespace: Option<String>,
    /// The namespace of the service and the operator [default: found by where runners dial].
    #[arg(long, requires = "kubernetes", value_name = "NAME")]
    pub service_namespace: Option<String>,
    /// Takes about a tenth of the samples.
    #[arg(long)]
    pub quick: bool,
    /// Only these figures. Can be given more than once.
    #[arg(long = "only", value_name = "NAME")]
    pub only: Vec<String>,
    /// Keeps the raw samples here, one file a figure.
    #[arg(long, value_name = "DIR")]
    pub samples: Option<PathBuf>,
}

fn limit(text: &str) -> Result<(String, u64), String> {
    let (name, value) = label(text)?;
    let value = value.parse().map_err(|_| format!("{value:?} is no whole number"))?;
    Ok((name, value))
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} has no ="))?;
    Ok((name.to_owned(), value.to_owned()))
}
