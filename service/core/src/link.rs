//! Frames between a session and its runner, as the session sees them. The wire form and its
//! conversion belong to the sandbox room.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::event::OutputSource;
use crate::ids::{CatalogDigest, Epoch, ProgramNumber, SessionId};
use crate::limits::Limits;
use crate::program::{CallError, ProgramError, Warning};

/// A tool as a program sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestTool {
    /// The canonical name.
    pub name: String,
    /// The name in the guest language.
    pub alias: String,
    /// What it does.
    pub description: String,
}

/// A program for a runner to run. Idempotent by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunProgram {
    /// Its number in the session.
    pub program: ProgramNumber,
    /// The language.
    pub language: String,
    /// The source as the caller gave it.
    pub source: String,
    /// The file name that errors show.
    pub source_name: String,
    /// The catalog, which was sent before; none for no tools.
    pub catalog: Option<CatalogDigest>,
    /// The inputs as JSON text.
    pub inputs: Option<String>,
    /// What earlier programs kept.
    pub kept: BTreeMap<String, String>,
    /// The limits of this program.
    pub limits: Limits,
    /// The wall time that is left.
    pub wall_left: Duration,
    /// Optional parts of the engine that are on.
    pub options: Vec<String>,
}

/// A frame to a runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToRunner {
    /// Gives the runner its one session.
    Assign {
        /// The session.
        session: SessionId,
        /// The engine's name.
        engine: String,
        /// When the sandbox ends by itself, from now; none for never.
        deadline: Option<Duration>,
    },
    /// A catalog that programs may name.
    Catalog {
        /// Its digest.
        digest: CatalogDigest,
        /// Its tools, in order.
        tools: Arc<[GuestTool]>,
    },
    /// Runs a program.
    Execute(Box<RunProgram>),
    /// Answers a call. Idempotent by program and call.
    CallResult {
        /// The program.
        program: ProgramNumber,
        /// The call's number.
        call: u64,
        /// The value as JSON text, or why it failed.
        result: Result<String, CallError>,
    },
    /// Ends a program. Idempotent.
    StopProgram {
        /// Which.
        program: ProgramNumber,
    },
    /// Everything up to this number is committed.
    Ack {
        /// The number.
        number: u64,
    },
    /// Ends the runner.
    Shutdown,
}

/// How the process of a program went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostEnd {
    /// It told how its program ended.
    Reported,
    /// It was ended because the service asked.
    Stopped,
    /// It was ended at the wall limit.
    WallLimit,
    /// It ended by itself without saying how.
    Lost,
    /// It broke the protocol.
    Protocol,
    /// It used more memory than it may.
    MemoryLimit,
    /// It had more processes or threads than it may.
    ProcessLimit,
    /// It used more processor time than it may.
    CpuLimit,
    /// It wrote more output than it may.
    OutputLimit,
    /// One turn took longer than it may and did not stop.
    TurnLimit,
}

/// What a host told of its program. Hostile like all that comes from a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostReport {
    /// The value as JSON text.
    pub value: Option<String>,
    /// Why the program failed.
    pub error: Option<ProgramError>,
    /// What the program kept.
    pub kept: BTreeMap<String, String>,
    /// Keys that the program removed.
    pub removed: Vec<String>,
    /// Calls whose result the program never asked for.
    pub unawaited_calls: Vec<u64>,
    /// What a reader should know.
    pub warnings: Vec<Warning>,
    /// Processor time as the host counts it, in microseconds.
    pub cpu_us: u64,
    /// The largest interpreter heap, in bytes.
    pub peak_memory_bytes: u64,
}

/// The end of a program as the runner tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEnded {
    /// The program.
    pub program: ProgramNumber,
    /// How the process went.
    pub end: HostEnd,
    /// What the host told, with [`HostEnd::Reported`].
    pub report: Option<HostReport>,
    /// The signal that ended the process; empty when none.
    pub signal: String,
    /// The exit status where no signal ended it.
    pub exit_status: i32,
    /// Processor time measured by the runner, in microseconds.
    pub cpu_us: u64,
    /// Wall time, in microseconds.
    pub wall_us: u64,
    /// Largest resident size, in bytes.
    pub peak_memory_bytes: u64,
    /// What was wrong, for [`HostEnd::Protocol`].
    pub detail: String,
}

/// A frame from a runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromRunner {
    /// The runner has taken its session.
    Assigned {
        /// Which.
        session: SessionId,
    },
    /// A program is running.
    ProgramStarted {
        /// Which.
        program: ProgramNumber,
        /// The interpreter's version.
        engine_version: String,
    },
    /// Output, in the order it was read.
    Output {
        /// The program.
        program: ProgramNumber,
        /// Where it came from.
        source: OutputSource,
        /// The bytes as they came.
        data: Bytes,
    },
    /// A tool call.
    ToolCall {
        /// The program.
        program: ProgramNumber,
        /// The call's number.
        call: u64,
        /// The tool's canonical name, or what the program wrote.
        tool: String,
        /// The arguments as JSON text, not checked yet.
        arguments: String,
    },
    /// The program gave up on a call.
    CancelCall {
        /// The program.
        program: ProgramNumber,
        /// The call's number.
        call: u64,
    },
    /// A program is over and its process reaped.
    ProgramEnded(Box<HostEnded>),
    /// A host that ran no program ended.
    HostExited {
        /// The signal; empty when none.
        signal: String,
        /// The exit status where no signal ended it.
        exit_status: i32,
        /// Bytes it wrote to standard error.
        stderr_bytes: u64,
    },
    /// The runner could not take a frame.
    Refused {
        /// Why, such as "already_assigned".
        reason: String,
        /// More, for the log.
        detail: String,
        /// The program it was about, where there was one.
        program: Option<ProgramNumber>,
    },
}

/// A frame to a runner with the epoch it is sent under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addressed {
    /// The sender's epoch.
    pub epoch: Epoch,
    /// The frame.
    pub frame: ToRunner,
}

/// A frame from a runner with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// The number to acknowledge once the frame's events are committed; 0 for none.
    pub number: u64,
    /// The frame.
    pub frame: FromRunner,
}
