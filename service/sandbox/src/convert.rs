//! The link's frames between their wire form and the session's. Everything from a runner is
//! hostile: what has a rule is parsed, what is for people is cut, what is too much is a breach.

use std::collections::BTreeMap;

use seance_core::event::OutputSource;
use seance_core::ids::ProgramNumber;
use seance_core::link::{FromRunner, HostEnd, HostEnded, HostReport, RunProgram, ToRunner};
use seance_core::program::{ProgramError, Warning};
use seance_proto::host::v1alpha1 as host;
use seance_proto::link::v1alpha1 as proto;
use seance_proto::link::v1alpha1::{attach_request, attach_response};

use crate::link::Breach;

/// The longest name, signal, code or version that is kept, in bytes; the rest is cut. No catalog
/// has a longer name, so a longer one is unknown either way.
const NAME_BYTES_MAX: usize = 1024;
/// The longest text for people that is kept, in bytes; the rest is cut.
const TEXT_BYTES_MAX: usize = 256 * 1024;
/// The most entries of each list in a report.
const ENTRIES_MAX: usize = 64 * 1024;
/// The most checks in a report, and calls in one word about them.
const CHECKS_MAX: usize = 128;
/// The most calls that a runner says were answered when it resumes.
const APPLIED_MAX: usize = 16_384;
/// The most engines and confinement names in a hello.
const HELLO_ENTRIES_MAX: usize = 32;
/// The longest name or version in a hello, in bytes.
const HELLO_NAME_BYTES_MAX: usize = 128;

/// Whether a runner must number this frame.
pub(crate) fn is_numbered(frame: &attach_request::Frame) -> bool {
    use attach_request::Frame::*;
    match frame {
        Output(_) | ToolCall(_) | CancelCall(_) | ProgramEnded(_) | HostExited(_) | ProgramStarted(_) => true,
        Hello(_) | Assigned(_) | Chunk(_) | Refused(_) | IsolationReport(_) | Applied(_) | Goodbye(_) => {
            false
        }
    }
}

/// A frame for the link itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aside {
    /// What came of trying the forbidden ways out.
    Isolation {
        /// One by one.
        tried: Vec<Tried>,
        /// The most memory that the sandbox has used, in bytes; 0 where it can't be told.
        memory_peak_bytes: u64,
    },
    /// Results that have reached the program.
    Applied {
        /// The program.
        program: ProgramNumber,
        /// The calls.
        calls: Vec<u64>,
    },
    /// The runner exits.
    Goodbye,
}

/// A forbidden way out that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The check.
    pub name: String,
    /// Where; nothing where nothing is dialled.
    pub address: Option<std::net::SocketAddr>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of trying a forbidden way out, as the runner says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody answered, or there is no limit.
    Open,
    /// It was refused.
    Refused,
    /// Nothing came back.
    Silent,
    /// There is a limit.
    Limited,
}

/// A frame for the link itself, or the frame as it was.
pub(crate) fn aside(frame: attach_request::Frame) -> Result<Result<Aside, attach_request::Frame>, Breach> {
    use attach_request::Frame;
    Ok(Ok(match frame {
        Frame::IsolationReport(report) => {
            at_most("isolation checks", report.checks.len(), CHECKS_MAX)?;
            let tried = report.checks.into_iter().map(tried).collect::<Result<_, _>>()?;
            Aside::Isolation { tried, memory_peak_bytes: report.memory_peak_bytes }
        }
        Frame::Applied(applied) => {
            at_most("applied calls", applied.calls.len(), CHECKS_MAX)?;
            Aside::Applied { program: program(applied.program)?, calls: applied.calls }
        }
        Frame::Goodbye(_) => Aside::Goodbye,
        frame => return Ok(Err(frame)),
    }))
}

fn tried(check: proto::IsolationCheck) -> Result<Tried, Breach> {
    use proto::IsolationOutcome as Wire;
    at_most("bytes of a check's name", check.name.len(), HELLO_NAME_BYTES_MAX)?;
    let outcome = match Wire::try_from(check.outcome) {
        Ok(Wire::Open) => Outcome::Open,
        Ok(Wire::Refused) => Outcome::Refused,
        Ok(Wire::Silent) => Outcome::Silent,
        Ok(Wire::Limited) => Outcome::Limited,
        Ok(Wire::Unspecified) | Err(_) => return Err(Breach::BadField { field: "check.outcome" }),
    };
    let address = match check.address.as_str() {
        "" => None,
        address => Some(address.parse().map_err(|_| Breach::BadField { field: "check.address" })?),
    };
    Ok(Tried { name: check.name, address, outcome })
}

/// Checks the sizes of a hello.
pub(crate) fn check_hello(hello: &proto::Hello) -> Result<(), Breach> {
    at_most("engines", hello.engines.len(), HELLO_ENTRIES_MAX)?;
    at_most("confinement names", hello.confinement_parts.len(), HELLO_ENTRIES_MAX)?;
    at_most("applied calls", hello.resume.as_ref().map_or(0, |r| r.applied_calls.len()), APPLIED_MAX)?;
    let names = hello.engines.iter().flat_map(|engine| [&engine.language, &engine.version]);
    for name in names.chain(&hello.confinement_parts) {
        at_most("bytes of a name in a hello", name.len(), HELLO_NAME_BYTES_MAX)?;
        if name.chars().any(char::is_control) {
            return Err(Breach::BadField { field: "a name in a hello" });
        }
    }
    Ok(())
}

/// A frame from a runner.
pub(crate) fn from_proto(frame: attach_request::Frame) -> Result<FromRunner, Breach> {
    use attach_request::Frame;
    Ok(match frame {
        Frame::Hello(_) => return Err(Breach::OutOfPlace { frame: "second hello" }),
        Frame::Chunk(_) => return Err(Breach::OutOfPlace { frame: "chunk" }),
        Frame::IsolationReport(_) | Frame::Applied(_) | Frame::Goodbye(_) => {
            return Err(Breach::OutOfPlace { frame: "a frame for the link" });
        }
        Frame::Assigned(frame) => FromRunner::Assigned {
            session: frame.session_id.parse().map_err(|_| Breach::BadField { field: "session_id" })?,
        },
        Frame::ProgramStarted(frame) => FromRunner::ProgramStarted {
            program: program(frame.program)?,
            engine_version: cut(frame.engine_version, HELLO_NAME_BYTES_MAX),
        },
        Frame::Output(frame) => FromRunner::Output {
            program: program(frame.program)?,
            source: output_source(frame.source)?,
            data: frame.data,
        },
        Frame::ToolCall(frame) => FromRunner::ToolCall {
            program: program(frame.program)?,
            call: call(frame.call)?,
            tool: cut(frame.tool, NAME_BYTES_MAX),
            arguments: frame.arguments_json,
        },
        Frame::CancelCall(frame) => {
            FromRunner::CancelCall { program: program(frame.program)?, call: call(frame.call)? }
        }
        Frame::ProgramEnded(frame) => FromRunner::ProgramEnded(Box::new(host_ended(frame)?)),
        Frame::HostExited(frame) => FromRunner::HostExited {
            signal: cut(frame.signal, NAME_BYTES_MAX),
            exit_status: frame.exit_status,
            stderr_bytes: frame.stderr_bytes,
        },
        Frame::Refused(frame) => FromRunner::Refused {
            reason: cut(frame.reason, NAME_BYTES_MAX),
            detail: cut(frame.detail, TEXT_BYTES_MAX),
            program: (frame.program != 0).then_some(ProgramNumber(frame.program)),
        },
    })
}

fn program(number: u64) -> Result<ProgramNumber, Breach> {
    if number == 0 {
        return Err(Breach::BadField { field: "program" });
    }
    Ok(ProgramNumber(number))
}

fn call(number: u64) -> Result<u64, Breach> {
    if number == 0 {
        return Err(Breach::BadField { field: "call" });
    }
    Ok(number)
}

fn output_source(source: i32) -> Result<OutputSource, Breach> {
    match proto::OutputSource::try_from(source) {
        Ok(proto::OutputSource::Text) => Ok(OutputSource::Text),
        Ok(proto::OutputSource::Stdout) => Ok(OutputSource::Stdout),
        Ok(proto::OutputSource::Stderr) => Ok(OutputSource::Stderr),
        Ok(proto::OutputSource::Unspecified) | Err(_) => Err(Breach::BadField { field: "output.source" }),
    }
}

fn host_ended(frame: proto::ProgramEnded) -> Result<HostEnded, Breach> {
    let end = host_end(frame.end)?;
    if (end == HostEnd::Reported) != frame.report.is_some() {
        return Err(Breach::BadField { field: "program_ended.report" });
    }
    Ok(HostEnded {
        program: program(frame.program)?,
        end,
        report: frame.report.map(host_report).transpose()?,
        signal: cut(frame.signal, NAME_BYTES_MAX),
        exit_status: frame.exit_status,
        cpu_us: frame.cpu_us,
        wall_us: frame.wall_us,
        peak_memory_bytes: frame.peak_memory_bytes,
        detail: cut(frame.detail, TEXT_BYTES_MAX),
    })
}

fn host_end(end: i32) -> Result<HostEnd, Breach> {
    use proto::HostEnd as Wire;
    Ok(match Wire::try_from(end) {
        Ok(Wire::Reported) => HostEnd::Reported,
        Ok(Wire::Stopped) => HostEnd::Stopped,
        Ok(Wire::WallLimit) => HostEnd::WallLimit,
        Ok(Wire::Lost) => HostEnd::Lost,
        Ok(Wire::Protocol) => HostEnd::Protocol,
        Ok(Wire::MemoryLimit) => HostEnd::MemoryLimit,
        Ok(Wire::ProcessLimit) => HostEnd::ProcessLimit,
        Ok(Wire::CpuLimit) => HostEnd::CpuLimit,
        Ok(Wire::OutputLimit) => HostEnd::OutputLimit,
        Ok(Wire::TurnLimit) => HostEnd::TurnLimit,
        Ok(Wire::Unspecified) | Err(_) => return Err(Breach::BadField { field: "program_ended.end" }),
    })
}

fn host_report(report: host::Ended) -> Result<HostReport, Breach> {
    at_most("kept entries", report.kept.len(), ENTRIES_MAX)?;
    at_most("removed entries", report.removed_keys.len(), ENTRIES_MAX)?;
    at_most("warnings", report.warnings.len(), ENTRIES_MAX)?;
    at_most("unawaited calls", report.unawaited_calls.len(), 100_000)?;
    Ok(HostReport {
        value: report.value_json,
        error: report.error.map(program_error),
        kept: report.kept.into_iter().collect::<BTreeMap<_, _>>(),
        removed: report.removed_keys,
        unawaited_calls: report.unawaited_calls,
        warnings: report.warnings.into_iter().map(warning).collect(),
        cpu_us: report.cpu_us,
        peak_memory_bytes: report.peak_memory_bytes,
    })
}

fn program_error(error: host::ProgramError) -> ProgramError {
    ProgramError {
        code: cut(error.code, NAME_BYTES_MAX),
        message: cut(error.message, TEXT_BYTES_MAX),
        class: cut(error.class, NAME_BYTES_MAX),
        line: error.line,
        column: error.column,
        backtrace: cut(error.backtrace, TEXT_BYTES_MAX),
        ..ProgramError::default()
    }
}

fn warning(warning: host::Warning) -> Warning {
    Warning { code: cut(warning.code, NAME_BYTES_MAX), message: cut(warning.message, NAME_BYTES_MAX) }
}

fn at_most(what: &'static str, n: usize, limit: usize) -> Result<(), Breach> {
    if n > limit {
        return Err(Breach::TooMuch { what, n: n as u64, limit: limit as u64 });
    }
    Ok(())
}

fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.shrink_to_fit();
    }
    text
}

/// A frame to a runner.
pub(crate) fn to_proto(frame: ToRunner) -> attach_response::Frame {
    use attach_response::Frame;
    match frame {
        ToRunner::Assign { session, engine, deadline } => Frame::Assign(proto::Assign {
            session_id: session.to_string(),
            language: engine,
            // A part of a second counts as a whole one: 0 would mean none.
            deadline_seconds: deadline.map_or(0, |d| (d.as_millis().div_ceil(1000) as u64).max(1)),
        }),
        ToRunner::Catalog { digest, tools } => {
            let tool = |tool: &seance_core::link::GuestTool| host::ToolName {
                name: tool.name.clone(),
                alias: tool.alias.clone(),
                description: tool.description.clone(),
            };
            let tools = tools.iter().map(tool).collect();
            Frame::Catalog(proto::Catalog { digest: digest.to_string(), tools })
        }
        ToRunner::Execute(run) => Frame::Execute(execute(*run)),
        ToRunner::CallResult { program, call, result } => {
            use host::call_result::Result as Wire;
            let result = match result {
                Ok(value) => Wire::ValueJson(value),
                Err(error) => Wire::Error(host::CallError {
                    code: error.code,
                    message: error.message,
                    retryable: error.retryable,
                }),
            };
            let result = Some(host::CallResult { call, result: Some(result) });
            Frame::CallResult(proto::CallResult { program: program.0, result })
        }
        ToRunner::StopProgram { program } => Frame::StopProgram(proto::StopProgram { program: program.0 }),
        ToRunner::Ack { number } => Frame::Ack(proto::Ack { number }),
        ToRunner::Shutdown => Frame::Shutdown(proto::Shutdown {}),
    }
}

/// The engine option with which a program that can never go on is kept until its wall limit (H31).
const WAIT_ON_DEADLOCK: &str = "wait_on_deadlock";

fn execute(run: RunProgram) -> proto::Execute {
    let limits = host::HostLimits {
        cpu_ms: run.limits.cpu_ms,
        turn_ms: run.limits.turn_ms,
        memory_bytes: run.limits.memory_bytes,
        pending_calls: run.limits.pending_calls,
        value_bytes: run.limits.value_bytes,
        kept_bytes: run.limits.kept_bytes,
        detect_deadlock: !run.options.iter().any(|option| option == WAIT_ON_DEADLOCK),
        output_bytes: run.limits.output_bytes,
    };
    proto::Execute {
        program: run.program.0,
        language: run.language,
        source: run.source,
        source_name: run.source_name,
        catalog_digest: run.catalog.map(String::from).unwrap_or_default(),
        inputs_json: run.inputs,
        kept: run.kept.into_iter().collect(),
        limits: Some(limits),
        // At least one millisecond: 0 would mean no limit.
        wall_ms: u64::try_from(run.wall_left.as_millis()).unwrap_or(u64::MAX).max(1),
        options: run.options,
    }
}

#[cfg(test)]
mod tests {
    use attach_request::Frame;

    use super::*;

    #[test]
    fn frames_with_values_that_cannot_be_are_refused() {
        let ended = |end: i32, report| {
            Frame::ProgramEnded(proto::ProgramEnded { program: 1, end, report, ..Default::default() })
        };
        let bad = [
            Frame::Hello(proto::Hello::default()),
            Frame::Chunk(proto::Chunk::default()),
            Frame::Assigned(proto::Assigned { session_id: "ses_1".to_owned() }),
            Frame::Output(proto::Output { program: 1, source: 0, data: "x".into() }),
            Frame::Output(proto::Output { program: 1, source: 77, data: "x".into() }),
            Frame::Output(proto::Output { program: 0, source: 1, data: "x".into() }),
            Frame::ToolCall(proto::ToolCall { program: 1, ..Default::default() }),
            ended(0, None),
            ended(99, None),
            ended(proto::HostEnd::Reported as i32, None),
            ended(proto::HostEnd::Lost as i32, Some(host::Ended::default())),
        ];
        for frame in bad {
            assert!(from_proto(frame.clone()).is_err(), "{frame:?}");
        }
    }

    /// A program that calls a tool by an enormous name harms only itself.
    #[test]
    fn long_names_are_cut_between_characters() {
        let tool = "é".repeat(100_000);
        let call = proto::ToolCall { program: 1, call: 1, tool, arguments_json: "{}".to_owned() };
        let FromRunner::ToolCall { tool, .. } = from_proto(Frame::ToolCall(call)).unwrap() else {
            panic!("another frame")
        };
        assert_eq!(tool, "é".repeat(512));
    }

    #[test]
    fn a_hello_with_too_much_is_refused() {
        let engine = |name: &str| proto::Engine { language: name.to_owned(), version: "1".to_owned() };
        let hello = |engines| proto::Hello { engines, ..Default::default() };
        check_hello(&hello(vec![engine("javascript")])).unwrap();
        for bad in [vec![engine("a"); 33], vec![engine(&"a".repeat(129))], vec![engine("a\n")]] {
            assert!(check_hello(&hello(bad)).is_err());
        }
    }

    #[test]
    fn times_never_round_to_none() {
        let session = seance_core::ids::SessionId::mint(seance_core::time::Timestamp(0), [0; 10]);
        let deadline = Some(std::time::Duration::from_millis(1));
        let assign = ToRunner::Assign { session, engine: "javascript".to_owned(), deadline };
        let attach_response::Frame::Assign(assign) = to_proto(assign) else { panic!("another frame") };
        assert_eq!(assign.deadline_seconds, 1);
    }
}
